"""Shapes: reading them, and giving tensors others."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import symdnn.tensor as T
from symdnn.graph.dims import ceil_div, dim_max, dim_min, known, product, quotient
from symdnn.graph.variable import Constant, Variable
from symdnn.onnx.model.kinds import carrier
from symdnn.onnx.model.node import Node
from symdnn.onnx.model.values import Value, array_of_objects
from symdnn.ops.core.shape import dims_of
from symdnn.ops.elementwise.comparison import Switch

#: A tensor of a file larger than this is an error of the file.
_MOST_ELEMENTS = 1 << 36


def plain_dims(x: Variable) -> list[Any]:
    """The sizes of ``x`` as ints where they are static, else as integer scalars."""
    return list(dims_of(x))


def entries(sizes: list[Any]) -> Value:
    """An integer vector of sizes: known if all are numbers."""
    if not any(isinstance(d, Variable) for d in sizes):
        return Value.of(np.array(sizes, dtype=np.int64))
    return Value(None, "int64", array_of_objects(sizes))


def _dims(value: Value) -> list[Any]:
    return list(value.data.shape) if value.data is not None else plain_dims(value.variable)


def _shape(node: Node) -> Value:
    sizes = _dims(node.value(0))
    start, end = node.attribute("start", 0), node.attribute("end", len(sizes))
    return entries(sizes[slice(start, end)])


def _size(node: Node) -> Value:
    total = product(_dims(node.value(0)))
    if isinstance(total, Variable):
        found = np.empty((), dtype=object)
        found[()] = total
        return Value(None, "int64", found)
    return Value.of(np.asarray(total, dtype=np.int64))


def checked_sizes(node: Node, sizes: list[Any]) -> list[Any]:
    """``sizes``, unless a static one is negative or there are absurdly many elements."""
    known = [int(d) for d in sizes if not isinstance(d, Variable)]
    if any(d < 0 for d in known) or math.prod(d or 1 for d in known) > _MOST_ELEMENTS:
        raise node.error(f"a tensor of shape {tuple(sizes)}")
    return sizes


def _reshape(node: Node) -> Variable:
    x = node.x()
    given = [int(d) for d in node.required("shape")] if node.version < 5 else node.sizes(1)
    zero_means_zero = bool(node.attribute("allowzero", 0))
    computed = node.version >= 5 and not node.value(1).has_sizes
    sizes, own = [], plain_dims(x)
    for i, d in enumerate(given):
        if zero_means_zero:
            sizes.append(d)
        elif not isinstance(d, Variable) or isinstance(d, Constant):
            number = int(d.data) if isinstance(d, Constant) else int(d)
            if number == 0 and i >= len(own):
                raise node.error(
                    f"its shape has a 0 in place {i}, and the input has {x.ndim} sizes"
                )
            sizes.append(own[i] if number == 0 else number)
        elif computed and i < len(own):
            sizes.append(T.switch(T.eq(d, 0), own[i], d))
        else:
            sizes.append(d)
    if not x.type.is_static:
        sizes = _with_rest(node, x, sizes)
    return x.reshape(tuple(checked_sizes(node, [d if isinstance(d, Variable) or d != -1 else 1
                                                for d in sizes]) and sizes))  # fmt: skip


def _with_rest(node: Node, x: Variable, sizes: list[Any]) -> list[Any]:
    """``sizes`` with a number for -1 where all open sizes cancel: a 1 broadcasts."""
    places = [i for i, d in enumerate(sizes) if not isinstance(d, Variable) and d == -1]
    if len(places) != 1 or node.scope is None:
        return sizes
    found = node.scope.world.sizes
    others = [found.size(d) if isinstance(d, Variable) else d
              for i, d in enumerate(sizes) if i not in places]  # fmt: skip
    total = [_entry(d, others) for d in found.shape(x)]
    rest = known(quotient(total, others))
    return sizes if rest is None else [rest if i in places else d for i, d in enumerate(sizes)]


def _entry(d: Any, others: list[Any]) -> Any:
    """A size that was an entry of a Reshape, which may be -1: not if it is one beside a -1."""
    if isinstance(d, Variable) and d.owner is not None and isinstance(d.owner.op, Switch):
        entry = d.owner.inputs[2]
        return next((o for o in others if o is entry), d)
    return d


def _flatten(node: Node) -> Variable:
    x = node.x()
    axis = node.attribute("axis", 1)
    if not -x.ndim <= axis <= x.ndim:
        raise node.error(f"axis {axis} of a tensor of {x.ndim} dimension(s)")
    axis = axis + x.ndim if axis < 0 else axis
    sizes = plain_dims(x)
    return x.reshape((product(sizes[:axis]), product(sizes[axis:])))


def _transpose(node: Node) -> Variable:
    return T.transpose(node.x(), node.attribute("perm"))


def _squeeze(node: Node) -> Variable:
    x = node.x()
    axes = node.setting("axes", 1)
    if axes is None:
        for d in plain_dims(x):
            if isinstance(d, Variable):
                node.settled(d, "a size that is removed if it is 1")
        return T.squeeze(x)
    return T.squeeze(x, [node.normal(int(a), x.ndim) for a in axes]) if len(axes) else x


def _unsqueeze(node: Node) -> Variable:
    axes = node.setting("axes", 1)
    return T.expand_dims(node.x(), [int(a) for a in axes]) if len(axes) else node.x()


def _concat(node: Node) -> Variable:
    given = node.variables()
    axis = node.axis(given[0].ndim, 1 if node.version < 4 else None)
    return given[0] if len(given) == 1 else T.concatenate(given, axis=axis)


def _split(node: Node) -> list[Variable]:
    x = node.x()
    axis, count = node.axis(x.ndim), len(node.wanted)
    lengths: Any = node.attribute("split")
    if node.has(1):
        lengths = node.sizes(1, "the lengths")
        if len(lengths) < count:
            raise node.error(f"{count} outputs of the lengths {lengths}")
    if lengths is None:
        size = plain_dims(x)[axis]
        part = ceil_div(size, node.attribute("num_outputs", count))
        lengths = [part] * (count - 1) + [size - part * (count - 1)]
    return pieces(x, lengths, axis)


def pieces(x: Variable, lengths: list[Any], axis: int) -> list[Variable]:
    """``x`` cut along ``axis`` into pieces of these lengths."""
    found, start = [], 0
    for n in lengths:
        part = [slice(None)] * axis + [slice(start, start + n)]
        found.append(x[tuple(part)])
        start = start + n
    return found


def _expand(node: Node) -> Variable:
    x = node.x()
    sizes = checked_sizes(node, node.sizes(1))
    return expanded(x, sizes)


def expanded(x: Variable, sizes: list[Any]) -> Variable:
    """``x`` broadcast against a tensor of the shape ``sizes``."""
    ndim = max(x.ndim, len(sizes))
    x = T.shape_padleft(x, ndim - x.ndim) if x.ndim < ndim else x
    sizes = [1] * (ndim - len(sizes)) + list(sizes)
    own = plain_dims(x)
    # A size that is open agrees with the wanted one, or the wanted one is 1.
    wide = [d if (n == 1 and not isinstance(n, Variable)) else n for d, n in zip(own, sizes)]
    wide = [d if isinstance(n, Variable) and not isinstance(d, Variable) and d != 1 else n
            for d, n in zip(own, wide)]  # fmt: skip
    if all(d is n or (not isinstance(d, Variable) and not isinstance(n, Variable) and d == n)
           for d, n in zip(own, wide)):  # fmt: skip
        return x
    return T.alloc(x, *wide)


def _tile(node: Node) -> Variable:
    x = node.x()
    if node.version < 6:
        count, axis = node.number(1), int(node.known(2, "the axis").ravel()[0])
        return T.tile(x, [count if i == axis else 1 for i in range(x.ndim)])
    counts = node.sizes(1, "the repeats")
    if len(counts) != x.ndim:
        raise node.error(f"{len(counts)} repeats of a tensor of {x.ndim} dimension(s)")
    return T.tile(x, counts) if counts else x


def _constant(node: Node) -> Value:
    for name in ("value", "sparse_value"):
        if node.attribute(name) is not None:
            return node.attribute(name)
    for name, dtype in (("value_float", np.float32), ("value_floats", np.float32),
                        ("value_int", np.int64), ("value_ints", np.int64)):  # fmt: skip
        if node.attribute(name) is not None:
            return Value.of(np.asarray(node.attribute(name), dtype=dtype))
    raise node.error("it has no value that is a tensor or a number (strings are refused)")


def _constant_of_shape(node: Node) -> Value:
    value: Any = node.attribute("value") or Value.of(np.zeros(1, np.float32))
    fill = value.data.reshape(-1)[0]
    sizes = checked_sizes(node, node.sizes(0))
    return Value(T.alloc(T.constant(np.asarray(fill)), *sizes), value.kind)


def _eye_like(node: Node) -> Value:
    x = node.value(0)
    kind = node.kind_attribute("dtype", x.kind)
    n, m = _dims(x)
    return Value(T.eye(n, m, node.attribute("k", 0), dtype=carrier(kind or x.kind)), kind)


def _trilu(node: Node) -> Variable:
    x = node.x()
    k = node.number(1, 0)
    function = T.triu if node.attribute("upper", 1) else T.tril
    return function(x, k).astype(x.type.dtype)


def _range(node: Node) -> Value | Variable:
    dtype = node.carrier
    start, stop, step = (node.number(i) for i in range(3))
    if not any(isinstance(n, Variable) for n in (start, stop, step)):
        count = max(math.ceil((stop - start) / step), 0) if step else 0
        checked_sizes(node, [count])
        return Value.of((start + np.arange(count) * step).astype(dtype))
    if isinstance(step, Variable) or np.dtype(dtype).kind == "f":
        start, stop, step = (node.size(n, "a bound of the range") for n in (start, stop, step))
        first, last, by = (T.cast(n, "float64") for n in (start, stop, step))
        count = T.cast(T.maximum(T.ceil((last - first) / by), 0), "int64")
        places = T.cast(T.arange(count, dtype="int64"), dtype)
        return T.cast(start, dtype) + places * T.cast(step, dtype)
    return T.arange(start, stop, step, dtype=dtype)


def _pad(node: Node) -> Variable:
    x = node.x()
    mode = node.attribute("mode", "constant")
    if node.version < 11:
        pads: list[Any] = list(node.attribute("pads") or node.attribute("paddings"))
        fill: Any = node.attribute("value", 0.0)
    else:
        pads, fill = node.sizes(1, "the pads"), node.number(2, 0)
    axes = node.ints(3, "the axes") if node.version >= 18 and node.has(3) else range(x.ndim)
    before, after = [0] * x.ndim, [0] * x.ndim
    count = len(pads) // 2
    for k, a in enumerate(axes):
        axis = node.normal(int(a), x.ndim)
        before[axis], after[axis] = pads[k], pads[count + k]
    return padded(node, x, list(zip(before, after)), mode, fill)


def padded(node: Node, x: Variable, pads: list[tuple[Any, Any]], mode: str, fill: Any) -> Variable:
    """``x`` with elements around it; negative numbers cut elements off."""
    cut = tuple(slice(_cut(b), None if _cut(a) == 0 else -_cut(a)) for b, a in pads)
    if any(c != slice(0, None) for c in cut):
        x = x[cut]
    pads = [(_at_least_0(b), _at_least_0(a)) for b, a in pads]
    if mode == "wrap" or mode in ("edge", "reflect"):
        return _padded_by_index(node, x, pads, mode)
    if mode != "constant":
        raise node.error(f"mode {mode!r}: wanted constant, edge, reflect or wrap")
    if all(not isinstance(n, Variable) and n == 0 for pair in pads for n in pair):
        return x
    if not isinstance(fill, Variable):
        fill = T.constant(np.asarray(fill, x.type.numpy))
    x, pads = _cut_by_sizes(x, pads)
    return T.pad(x, pads, mode="constant", constant_values=fill)


def _cut(n: Any) -> int:
    return -n if not isinstance(n, Variable) and n < 0 else 0


def _at_least_0(n: Any) -> Any:
    return n if isinstance(n, Variable) else max(n, 0)


def _cut_by_sizes(
    x: Variable, pads: list[tuple[Any, Any]]
) -> tuple[Variable, list[tuple[Any, Any]]]:
    """``x`` without what numbers that only a call has cut off, and what is then put around it."""
    parts, left = [slice(None)] * x.ndim, list(pads)
    for axis, (before, after) in enumerate(pads):
        if isinstance(before, Variable):
            parts[axis] = slice(dim_max(-before, 0), None)
        if isinstance(after, Variable):
            parts[axis] = slice(parts[axis].start, plain_dims(x)[axis] + dim_min(after, 0))
        left[axis] = (dim_max(before, 0), dim_max(after, 0))
    return (x[tuple(parts)] if parts != [slice(None)] * x.ndim else x), left


def _padded_by_index(node: Node, x: Variable, pads: list[tuple[Any, Any]], mode: str) -> Variable:
    """Padding by elements of ``x``, one axis after the other."""
    for axis, (before, after) in enumerate(pads):
        if all(not isinstance(n, Variable) and n == 0 for n in (before, after)):
            continue
        n = plain_dims(x)[axis]
        if not isinstance(n, Variable) and n == 0:
            raise node.error(f"mode {mode!r} of an axis without elements")
        place = T.arange(-before, n + after, dtype="int64")
        if mode == "edge":
            place = T.clip(place, 0, n - 1)
        elif mode == "wrap":
            place = T.mod(place, n)
        else:
            period = T.maximum(2 * (n - 1), 1) if isinstance(n, Variable) else max(2 * (n - 1), 1)
            place = (n - 1) - T.abs_((n - 1) - T.mod(place, period))
        x = T.take(x, place, axis=axis)
    return x


def _depth_to_space(node: Node) -> Variable:
    x, b = node.x(), int(node.required("blocksize"))
    n, c, *spatial = plain_dims(x)
    rank = len(spatial)
    depth = c // b**rank
    blocks = [b] * rank
    if node.attribute("mode", "DCR") == "DCR":
        y = x.reshape((n, *blocks, depth, *spatial))
        first, rest = list(range(1, 1 + rank)), list(range(2 + rank, 2 + 2 * rank))
        channel = 1 + rank
    else:
        y = x.reshape((n, depth, *blocks, *spatial))
        first, rest = list(range(2, 2 + rank)), list(range(2 + rank, 2 + 2 * rank))
        channel = 1
    order = [0, channel, *(a for pair in zip(rest, first) for a in pair)]
    return y.transpose(order).reshape((n, depth, *(d * b for d in spatial)))


def _space_to_depth(node: Node) -> Variable:
    x, b = node.x(), int(node.required("blocksize"))
    n, c, *spatial = plain_dims(x)
    rank = len(spatial)
    y = x.reshape((n, c, *(e for d in spatial for e in (d // b, b))))
    inner, outer = [3 + 2 * i for i in range(rank)], [2 + 2 * i for i in range(rank)]
    lead = [*inner, 1] if node.attribute("mode", "DCR") == "DCR" else [1, *inner]
    return y.transpose([0, *lead, *outer]).reshape((n, c * b**rank, *(d // b for d in spatial)))


OPS: dict[str, Any] = {
    "Shape": _shape, "Size": _size, "Reshape": _reshape, "Flatten": _flatten,
    "Transpose": _transpose, "Squeeze": _squeeze, "Unsqueeze": _unsqueeze, "Concat": _concat,
    "Split": _split, "Expand": _expand, "Tile": _tile, "Constant": _constant,
    "ConstantOfShape": _constant_of_shape, "EyeLike": _eye_like, "Trilu": _trilu, "Range": _range,
    "Pad": _pad, "DepthToSpace": _depth_to_space, "SpaceToDepth": _space_to_depth,
}  # fmt: skip
