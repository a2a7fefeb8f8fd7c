"""Reductions of values by the element that an index sends them to.

PyTorch's ``scatter_reduce`` and ``index_reduce``, and ``segment_sum`` and its kin of ``jax.ops``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from symdnn.errors import OptionError, TypeMismatch
from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.array.create import full
from symdnn.ops.array.getitem import getitem, inc_subtensor, reduce_subtensor, set_subtensor
from symdnn.ops.array.scatter_reduce import identity_of
from symdnn.ops.core.shape import dims_of, ones_like
from symdnn.ops.elementwise.arithmetic import cast, int_div, maximum, true_div
from symdnn.ops.torch_names.torch_arrays import entries_along, places_along

__all__ = [
    "index_reduce", "scatter_reduce", "segment_max", "segment_min", "segment_prod", "segment_sum",
]  # fmt: skip

#: PyTorch's words, and the function of two numbers.
_REDUCTIONS = {"sum": "add", "mean": "add", "prod": "mul", "amax": "max", "amin": "min"}


def scatter_reduce(
    x: TensorLike, dim: int, index: TensorLike, src: TensorLike, reduce: str,
    *, include_self: bool = True,
) -> Variable:  # fmt: skip
    """``x`` with each element reduced with those of ``src`` that ``index`` sends to it.

    The places are those of ``gather``; ``src`` has at least the shape of ``index``. ``reduce`` is
    ``"sum"``, ``"prod"``, ``"mean"``, ``"amax"`` or ``"amin"``. Without ``include_self`` an element
    to which something is sent begins anew; others stay. The gradient of an extreme is shared
    equally by those that are equal to it. (PyTorch's.)

    >>> import symdnn.tensor as T
    >>> x, i = T.constant([1.0, 2.0]), T.constant([0, 0])
    >>> scatter_reduce(x, 0, i, T.constant([5.0, 3.0]), "amax").eval().tolist()
    [5.0, 2.0]
    """
    v = as_variable(x)
    part = getitem(v, places_along("scatter_reduce", v, dim, index))
    values = as_variable(src)
    if values.type.ndim != v.type.ndim:
        raise TypeMismatch("scatter_reduce", f"src of {v.type.ndim} dimension(s)", values.type)
    values = values[tuple(slice(0, n) for n in dims_of(as_variable(index)))]
    return _reduced("scatter_reduce", v, part, values, reduce, include_self)


def index_reduce(
    x: TensorLike, dim: int, index: TensorLike, source: TensorLike, reduce: str,
    *, include_self: bool = True,
) -> Variable:  # fmt: skip
    """``x`` with its entries ``index`` (a vector) of ``dim`` reduced with those of ``source``.

    Arguments as of :func:`scatter_reduce`. (PyTorch's.)
    """
    v, part = entries_along("index_reduce", x, dim, index)
    return _reduced("index_reduce", v, part, as_variable(source), reduce, include_self)


def _reduced(
    what: str, x: Variable, part: Variable, values: Variable, reduce: str, include_self: bool
) -> Variable:
    if reduce not in _REDUCTIONS:
        wanted = ", ".join(map(repr, _REDUCTIONS))
        raise OptionError(f"{what}: reduce={reduce!r}: wanted one of {wanted}")
    dtype, way = x.type.dtype, _REDUCTIONS[reduce]
    values = cast(values, dtype)
    begun = x
    if not include_self:
        first = np.zeros((), x.type.numpy) if way == "add" else identity_of(way, dtype)
        begun = set_subtensor(part, first)
    here = _again(part, begun)
    total = inc_subtensor(here, values) if way == "add" else reduce_subtensor(here, values, way)
    if reduce != "mean":
        return total
    start = ones_like(x)
    if not include_self:
        start = set_subtensor(_again(part, start), np.zeros((), x.type.numpy))
    count = maximum(
        inc_subtensor(_again(part, start), ones_like(values)), np.ones((), x.type.numpy)
    )
    return (int_div if x.type.is_discrete else true_div)(total, count)


def _again(part: Variable, x: Variable) -> Variable:
    """The same part of another tensor."""
    node: Any = part.owner
    found: Variable = node.op(x, *node.inputs[1:])
    return found


# -- segments --------------------------------------------------------------------------------------


def _segments(
    what: str, way: str, data: TensorLike, segment_ids: TensorLike, num_segments: Any
) -> Variable:
    """``data`` reduced over the entries of its first axis with equal ``segment_ids``."""
    v, ids = as_variable(data), as_variable(segment_ids)
    if not ids.type.is_integer or ids.type.ndim != 1:
        raise TypeMismatch(what, "segment_ids a vector of integers", ids.type)
    if v.type.ndim == 0:
        raise TypeMismatch(what, "data with a first axis", v.type)
    count = ids.max() + 1 if num_segments is None else num_segments
    dtype = v.type.dtype
    first = np.zeros((), v.type.numpy) if way == "add" else identity_of(way, dtype)
    part = full((count, *dims_of(v)[1:]), first, dtype)[ids]
    return inc_subtensor(part, v) if way == "add" else reduce_subtensor(part, v, way)


def segment_sum(data: TensorLike, segment_ids: TensorLike, num_segments: Any = None) -> Variable:
    """The sum of the entries of ``data`` (its first axis) for each number among ``segment_ids``.

    ``num_segments`` is the size of the result, by default the largest number and 1. Numbers need
    not be sorted; one below 0 counts from the end. (``jax.ops.segment_sum``.)

    >>> import symdnn.tensor as T
    >>> segment_sum(T.constant([1.0, 2.0, 3.0]), T.constant([0, 2, 0]), 3).eval().tolist()
    [4.0, 0.0, 2.0]
    """
    return _segments("segment_sum", "add", data, segment_ids, num_segments)


def segment_prod(data: TensorLike, segment_ids: TensorLike, num_segments: Any = None) -> Variable:
    """The product of each segment, 1 where there is none; as :func:`segment_sum`."""
    return _segments("segment_prod", "mul", data, segment_ids, num_segments)


def segment_max(data: TensorLike, segment_ids: TensorLike, num_segments: Any = None) -> Variable:
    """The largest of each segment; as :func:`segment_sum`.

    Where there is none it is minus infinity, of integers the smallest one.
    """
    return _segments("segment_max", "max", data, segment_ids, num_segments)


def segment_min(data: TensorLike, segment_ids: TensorLike, num_segments: Any = None) -> Variable:
    """The smallest of each segment; as :func:`segment_max`."""
    return _segments("segment_min", "min", data, segment_ids, num_segments)


METHODS: dict[str, Any] = {"index_reduce": index_reduce, "scatter_reduce": scatter_reduce}
FUNCTIONS: dict[str, Any] = {}
