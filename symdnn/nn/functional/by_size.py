"""Pooling whose windows or results have sizes that a call knows, such as ``x.shape[2:]``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from symdnn.errors import InputError, NdimMismatch
from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import Variable, as_variable
from symdnn.nn.layers.adaptive_pooling import adaptive_averages
from symdnn.ops.array.moments import mean
from symdnn.ops.array.reduce import max as largest
from symdnn.ops.core.shape import ShapeI, shape_entries
from symdnn.ops.nn.pool import pool_nd

#: PyTorch's arguments after the window's, by position.
_MAXIMUM = ("stride", "padding", "dilation", "ceil_mode", "return_indices")
_AVERAGE = ("stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")


def _symbolic(given: Any) -> bool:
    if isinstance(given, list | tuple):
        return any(map(_symbolic, given))
    return isinstance(given, Variable)


def pool_by_size(layer: Callable[..., Any], n: int, average: bool) -> Callable[..., Any]:
    """The function ``layer`` of PyTorch's words, also for windows of symbolic sizes."""
    name = f"{'avg' if average else 'max'}_pool{n}d"

    def pool(input: TensorLike, kernel_size: Any, *more: Any, **options: Any) -> Any:
        words = _AVERAGE if average else _MAXIMUM
        given = dict(zip(words, more)) | options
        if not _symbolic([kernel_size, given.get("stride"), given.get("padding")]):
            return layer(input, kernel_size, *more, **options)
        plain = {"dilation": 1, "return_indices": False, "divisor_override": None}
        for word, usual in plain.items():
            if given.get(word, usual) != usual:
                raise InputError(f"{name}: {word} is of windows whose sizes are numbers")
        x, window = as_variable(input), _entries(kernel_size, n)
        if not given.get("padding", 0) and _is_whole(x, window):
            axes = tuple(range(x.type.ndim - n, x.type.ndim))
            whole = mean if average else largest
            return whole(x, axis=axes, keepdims=True)
        kept = "inc" if given.get("count_include_pad", True) else "exc"
        mode = f"average_{kept}_pad" if average else "max"
        stride = given.get("stride")
        return pool_nd(
            name, n, x, window, not given.get("ceil_mode", False),
            None if stride is None else _entries(stride, n), given.get("padding", 0), mode,
        )  # fmt: skip

    pool.__name__ = pool.__qualname__ = name
    pool.__doc__ = layer.__doc__
    vars(pool)["__signature__"] = vars(layer)["__signature__"]
    return pool


def adaptive_by_size(layer: Callable[..., Any], n: int) -> Callable[..., Any]:
    """The function ``layer`` of adaptive averages, also of symbolic sizes."""

    def pool(input: TensorLike, output_size: Any) -> Any:
        x, entries = as_variable(input), output_size
        if not _symbolic(entries):
            return layer(x, entries)
        if x.type.ndim not in (n + 1, n + 2):
            wanted = f"an input of {n + 1} or {n + 2} dimensions, (N, C, ...) or (C, ...)"
            raise NdimMismatch(f"adaptive_avg_pool{n}d", wanted, x.type)
        batch = x if x.type.ndim == n + 2 else x.dimshuffle("x", *range(x.type.ndim))
        found = adaptive_averages(batch, _entries(entries, n))
        return found if batch is x else found[0]

    pool.__name__ = pool.__qualname__ = f"adaptive_avg_pool{n}d"
    pool.__doc__ = layer.__doc__
    vars(pool)["__signature__"] = vars(layer)["__signature__"]
    return pool


def _entries(given: Any, n: int) -> list[Any]:
    entries = shape_entries(given)
    return entries * n if len(entries) == 1 else entries


def _is_whole(x: Variable, window: Sequence[Any]) -> bool:
    """Whether a window is as long as each of the last axes."""
    axes = range(x.type.ndim - len(window), x.type.ndim)
    return all(_is_size(n, x, axis) for n, axis in zip(window, axes, strict=True))


def _is_size(n: Any, x: Variable, axis: int) -> bool:
    node = n.owner if isinstance(n, Variable) else None
    if node is not None and isinstance(node.op, ShapeI):
        return node.op.axis == axis and node.inputs[0] is x
    return isinstance(n, int) and n == x.type.shape[axis]
