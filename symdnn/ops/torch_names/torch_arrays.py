"""PyTorch's functions that view, split, gather and scatter tensors, with its arguments.

Each is a method of a variable, too: ``unsqueeze(x, 0)`` and ``x.unsqueeze(0)``.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from symdnn.errors import NdimMismatch, OptionError, ShapeMismatch, TypeMismatch
from symdnn.graph.dims import Dim, ceil_div, normal_axis
from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.array.create import arange
from symdnn.ops.array.getitem import getitem, inc_subtensor, reduce_subtensor, set_subtensor
from symdnn.ops.array.join import concatenate, flip, repeat, tile
from symdnn.ops.array.take import take
from symdnn.ops.array.view import broadcast_to, expand_dims, flatten, moveaxis, swapaxes, transpose
from symdnn.ops.core.shape import dims_of, reshape
from symdnn.ops.elementwise.arithmetic import cast
from symdnn.ops.elementwise.comparison import switch
from symdnn.ops.numpy_names.numpy_arrays import array_split, chunk, unstack

__all__ = [
    "cat", "gather", "index_add", "index_copy", "index_fill", "index_select", "masked_fill",
    "masked_select", "movedim", "narrow", "permute", "repeat_interleave", "scatter",
    "scatter_add", "swapdims", "t", "tensor_split", "unbind", "unflatten", "unfold", "unsqueeze",
]  # fmt: skip


def _several(given: Sequence[Any], named: Any = None) -> tuple[Any, ...]:
    """``(2, 3)`` or ``((2, 3),)`` as the former; a vector of sizes stays one entry.

    ``named`` is the keyword form.
    """
    if named is not None:
        given = (named,) if not isinstance(named, list | tuple) else named
    if len(given) == 1 and isinstance(given[0], list | tuple):
        return tuple(given[0])
    return tuple(given)


# -- shapes ----------------------------------------------------------------------------------------


def view(x: TensorLike, *shape: Any, size: Any = None) -> Variable:
    """The same elements in another shape; one entry may be -1.

    Raises :class:`~symdnn.errors.TypeMismatch` for a dtype (NumPy's ``view``).
    """
    sizes = _several(shape, size)
    if any(isinstance(s, str | type | np.dtype) for s in sizes):
        raise TypeMismatch("view", "sizes", sizes, "x.astype(dtype) has other elements")
    return reshape(as_variable(x), sizes[0] if _is_vector(sizes) else sizes)


def _is_vector(sizes: tuple[Any, ...]) -> bool:
    return len(sizes) == 1 and isinstance(sizes[0], Variable) and sizes[0].type.ndim == 1


def view_as(x: TensorLike, other: TensorLike) -> Variable:
    """The same elements in the shape of ``other``."""
    return reshape(as_variable(x), dims_of(as_variable(other)))


reshape_as = view_as


def permute(x: TensorLike, *given: Any, dims: Any = None) -> Variable:
    """The dimensions in the order ``dims``."""
    return transpose(as_variable(x), _several(given, dims))


def t(x: TensorLike) -> Variable:
    """The transpose of a matrix; a vector is returned as it is."""
    v = as_variable(x)
    if v.type.ndim > 2:
        raise NdimMismatch("t", "a tensor of at most 2 dimensions", v.type)
    return v if v.type.ndim < 2 else swapaxes(v, 0, 1)


def swapdims(x: TensorLike, dim0: int, dim1: int) -> Variable:
    """Two dimensions exchanged."""
    return swapaxes(as_variable(x), dim0, dim1)


def movedim(x: TensorLike, source: Any, destination: Any) -> Variable:
    """Dimensions moved to other places, the rest in their order."""
    return moveaxis(as_variable(x), source, destination)


def unsqueeze(x: TensorLike, dim: int) -> Variable:
    """A new dimension of size 1 at ``dim``."""
    return expand_dims(as_variable(x), dim)


def expand(x: TensorLike, *sizes: Any, size: Any = None) -> Variable:
    """Dimensions of size 1 repeated to ``sizes``; -1 keeps one, new ones come in front."""
    v, wanted = as_variable(x), list(_several(sizes, size))
    before = len(wanted) - v.type.ndim
    if before < 0:
        raise NdimMismatch("expand", f"at least {v.type.ndim} sizes", wanted)
    found: list[Dim] = [*wanted[:before], *dims_of(v)]
    kept = [n if isinstance(w, int) and w == -1 else w for w, n in zip(wanted, found, strict=True)]
    return broadcast_to(v, kept)


def expand_as(x: TensorLike, other: TensorLike) -> Variable:
    """:func:`expand` to the shape of ``other``."""
    return expand(x, *dims_of(as_variable(other)))


def torch_flatten(x: TensorLike, start_dim: int = 0, end_dim: int = -1) -> Variable:
    """The dimensions ``start_dim`` to ``end_dim`` joined into one."""
    v = as_variable(x)
    if v.type.ndim == 0:
        return flatten(v, 1)
    first = normal_axis("flatten", start_dim, v.type.ndim)
    last = normal_axis("flatten", end_dim, v.type.ndim)
    if first > last:
        raise OptionError(f"flatten: start_dim={start_dim} is behind end_dim={end_dim}")
    dims = dims_of(v)
    joined: Any = 1
    for n in dims[first : last + 1]:
        joined = joined * n
    return reshape(v, [*dims[:first], joined, *dims[last + 1 :]])


def unflatten(x: TensorLike, dim: int, sizes: Sequence[Any]) -> Variable:
    """The dimension ``dim`` as several of these sizes; one of them may be -1."""
    v = as_variable(x)
    axis, dims = normal_axis("unflatten", dim, v.type.ndim), dims_of(v)
    known: Any = 1
    for n in sizes:
        known = known if isinstance(n, int) and n == -1 else known * n
    inner = [dims[axis] // known if isinstance(n, int) and n == -1 else n for n in sizes]
    return reshape(v, [*dims[:axis], *inner, *dims[axis + 1 :]])


# -- parts -----------------------------------------------------------------------------------------


def cat(tensors: Sequence[TensorLike], dim: int = 0, *, axis: int | None = None) -> Variable:
    """The tensors one after the other along ``dim``."""
    return concatenate(tensors, dim if axis is None else axis)


def unbind(x: TensorLike, dim: int = 0) -> list[Variable]:
    """The parts of ``x`` along ``dim``, whose size is known when the graph is built."""
    return unstack(x, dim)


def narrow(x: TensorLike, dim: int, start: Any, length: Any) -> Variable:
    """``length`` entries along ``dim`` from ``start`` on."""
    v = as_variable(x)
    axis = normal_axis("narrow", dim, v.type.ndim)
    at = start + dims_of(v)[axis] if isinstance(start, int) and start < 0 else start
    return v[(*_all(axis), slice(at, at + length))]


def _all(axis: int) -> tuple[slice, ...]:
    return (slice(None),) * axis


def select(x: TensorLike, dim: int, index: Any) -> Variable:
    """The entry ``index`` of ``dim``, without that dimension."""
    v = as_variable(x)
    return v[(*_all(normal_axis("select", dim, v.type.ndim)), index)]


def torch_split(x: TensorLike, split_size: Any, dim: int = 0) -> list[Variable]:
    """Parts of ``split_size`` entries along ``dim`` (the last may have fewer), or of these sizes.

    With one number the size of ``dim`` must be known when the graph is built.
    """
    v = as_variable(x)
    axis = normal_axis("split", dim, v.type.ndim)
    if not isinstance(split_size, list | tuple):
        size, each = v.type.shape[axis], int(split_size)
        if size is None:
            raise NdimMismatch(
                "split", "an axis of known size", v.type,
                f"Give all sizes, split([{each}, {each}, ...]), a number of parts, chunk(n), or "
                "the size, T.specify_shape",
            )  # fmt: skip
        if each < 1:
            raise OptionError(f"split: wanted parts of 1 or more, got {each}")
        split_size = [min(each, size - i) for i in range(0, size, each)]
    bounds: list[Any] = [0]
    for n in split_size:
        bounds.append(bounds[-1] + n)
    if v.type.shape[axis] not in (None, bounds[-1]):
        raise ShapeMismatch("split", f"sizes that add up to {v.type.shape[axis]}", split_size)
    return [v[(*_all(axis), slice(a, b))] for a, b in itertools.pairwise(bounds)]


def tensor_split(x: TensorLike, indices_or_sections: Any, dim: int = 0) -> list[Variable]:
    """``dim`` cut into nearly equal parts, or before these indices."""
    return array_split(x, indices_or_sections, dim)


def unfold(x: TensorLike, dimension: int, size: int, step: int) -> Variable:
    """Windows of ``size`` entries along ``dimension``, one every ``step`` entries. Their entries
    are the last dimension.
    """
    v = as_variable(x)
    axis = normal_axis("unfold", dimension, v.type.ndim)
    if size < 1 or step < 1:
        raise OptionError(f"unfold: wanted size and step of 1 or more, got {size} and {step}")
    count = ceil_div(dims_of(v)[axis] - size + 1, step)
    at = (arange(count) * step).dimshuffle(0, "x") + np.arange(size)
    return moveaxis(take(v, at, axis), axis + 1, -1)


def repeat_interleave(x: TensorLike, repeats: TensorLike, dim: int | None = None) -> Variable:
    """Each entry of ``dim`` (of the flattened ``x``) ``repeats`` times."""
    return repeat(x, repeats, dim)


# -- by index --------------------------------------------------------------------------------------


def places_along(what: str, x: Variable, dim: int, index: TensorLike) -> tuple[Any, ...]:
    """For each axis of ``index`` its places in ``x``: those of ``index`` itself along ``dim``."""
    i = as_variable(index)
    axis = normal_axis(what, dim, max(1, x.type.ndim))
    if not i.type.is_integer or i.type.ndim != x.type.ndim:
        raise TypeMismatch(what, f"integer indices of {x.type.ndim} dimension(s)", i.type)
    n = i.type.ndim
    return tuple(
        i if d == axis else arange(size).dimshuffle(["x"] * d + [0] + ["x"] * (n - 1 - d))
        for d, size in enumerate(dims_of(i))
    )


def gather(x: TensorLike, dim: int, index: TensorLike) -> Variable:
    """``out[i][j] = x[index[i][j]][j]`` (``dim=0``): in the shape of ``index``."""
    v = as_variable(x)
    return getitem(v, places_along("gather", v, dim, index))


def scatter(
    x: TensorLike, dim: int, index: TensorLike, src: TensorLike, reduce: str | None = None
) -> Variable:
    """``x`` with ``src`` at the places of :func:`gather`; ``reduce="add"`` adds it.

    ``src`` is a number, or has at least the shape of ``index``. With equal indices it is undefined
    which value is written. ``reduce="multiply"`` multiplies by all of them.
    """
    if reduce not in (None, "add", "multiply"):
        raise OptionError(
            f"scatter: reduce={reduce!r}: wanted None, 'add' or 'multiply'; scatter_reduce has more"
        )
    v = as_variable(x)
    part = getitem(v, places_along("scatter", v, dim, index))
    values = as_variable(src)
    if values.type.ndim == v.type.ndim:
        values = values[tuple(slice(0, n) for n in dims_of(as_variable(index)))]
    values = cast(values, v.type.dtype)
    if reduce == "multiply":
        return reduce_subtensor(part, values, "mul")
    return inc_subtensor(part, values) if reduce else set_subtensor(part, values)


def scatter_add(x: TensorLike, dim: int, index: TensorLike, src: TensorLike) -> Variable:
    """``x`` with ``src`` added at the places of :func:`gather`; equal places are added up."""
    return scatter(x, dim, index, src, "add")


def entries_along(
    what: str, x: TensorLike, dim: int, index: TensorLike
) -> tuple[Variable, Variable]:
    """``x``, and its entries ``index`` (a vector) of ``dim``."""
    v, i = as_variable(x), as_variable(index)
    if not i.type.is_integer or i.type.ndim > 1:
        raise TypeMismatch(what, "a vector of integer indices", i.type)
    axis = normal_axis(what, dim, v.type.ndim)
    return v, v[(*_all(axis), i if i.type.ndim else i.dimshuffle("x"))]


def index_select(x: TensorLike, dim: int, index: TensorLike) -> Variable:
    """The entries ``index`` (a vector) of ``dim``."""
    return entries_along("index_select", x, dim, index)[1]


def index_add(
    x: TensorLike, dim: int, index: TensorLike, source: TensorLike, *, alpha: TensorLike = 1
) -> Variable:
    """``x`` with ``alpha source`` added to the entries ``index`` of ``dim``; repeated: added up."""
    v, part = entries_along("index_add", x, dim, index)
    values = as_variable(source)
    plain = isinstance(alpha, int) and alpha == 1
    return inc_subtensor(part, cast(values if plain else values * alpha, v.type.dtype))


def index_copy(x: TensorLike, dim: int, index: TensorLike, source: TensorLike) -> Variable:
    """``x`` with ``source`` in place of the entries ``index`` of ``dim``."""
    v, part = entries_along("index_copy", x, dim, index)
    return set_subtensor(part, cast(source, v.type.dtype))


def index_fill(x: TensorLike, dim: int, index: TensorLike, value: TensorLike) -> Variable:
    """``x`` with the scalar ``value`` in the entries ``index`` of ``dim``."""
    return index_copy(x, dim, index, value)


def masked_fill(x: TensorLike, mask: TensorLike, value: TensorLike) -> Variable:
    """``x`` with the scalar ``value`` where ``mask`` is true; in the dtype of ``x``."""
    v = as_variable(x)
    return switch(_mask("masked_fill", mask), cast(value, v.type.dtype), v)


def masked_select(x: TensorLike, mask: TensorLike) -> Variable:
    """The elements for which ``mask``, of the shape of ``x``, is true, as a vector."""
    return as_variable(x)[_mask("masked_select", mask)]


def _mask(what: str, mask: TensorLike) -> Variable:
    if isinstance(mask, bool):
        raise TypeMismatch(what, "an array of bools as the mask", mask)
    return cast(mask, "bool")


def torch_flip(x: TensorLike, *given: Any, dims: Any = None) -> Variable:
    """``x`` in reverse order along ``dims``."""
    return flip(x, _several(given, dims) or None)


def torch_tile(x: TensorLike, *given: Any, dims: Any = None) -> Variable:
    """``x`` repeated ``dims`` times along its dimensions."""
    return tile(x, list(_several(given, dims)))


METHODS: dict[str, Any] = {
    **{
        f.__name__: f
        for f in (
            expand, expand_as, gather, index_add, index_copy, index_fill, index_select,
            masked_fill, masked_select, movedim, narrow, permute, repeat_interleave, scatter,
            scatter_add, select, swapdims, t, tensor_split, unbind, unflatten, unfold, unsqueeze,
            view, view_as,
        )
    },
    "reshape_as": view_as, "chunk": chunk, "split": torch_split,
    "flip": torch_flip, "tile": torch_tile,
    "moveaxis": movedim, "broadcast_to": broadcast_to,
}  # fmt: skip

#: Functions and methods for calls with PyTorch's keywords.
FUNCTIONS = {"flatten": torch_flatten, "split": torch_split}
