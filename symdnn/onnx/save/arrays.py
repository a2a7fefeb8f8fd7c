"""Ops that move, join, index and reduce arrays, as nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.onnx.save.writer import FAR, Writer
from symdnn.ops.array.slices import FULL, fill_in, is_slice

Emitter = Callable[[Writer, Apply], Any]


def _identity(w: Writer, node: Apply) -> Any:
    return w.name(node.inputs[0])


# -- shapes ---------------------------------------------------------------------------------------


def _shape_i(w: Writer, node: Apply) -> Any:
    op: Any = node.op
    return w.size(w.name(node.inputs[0]), op.axis)


def _shape_vector(w: Writer, node: Apply) -> Any:
    return w.shape(w.name(node.inputs[0]))


def _make_vector(w: Writer, node: Apply) -> Any:
    op: Any = node.op
    parts = [w.name(v) if v.type.dtype == op.dtype else w.cast(w.name(v), op.dtype)
             for v in node.inputs]  # fmt: skip
    if not parts:
        return w.constant(np.zeros(0, op.dtype))
    return w.add("Concat", *(w.unsqueezed(p, [0]) for p in parts), axis=0)


def _reshape(w: Writer, node: Apply) -> Any:
    x, *dims = node.inputs
    if any(isinstance(d, Constant) and int(d.data) == 0 for d in dims):
        return w.add("Reshape", w.name(x), w.vector(dims), allowzero=1)
    return w.add("Reshape", w.name(x), w.vector(dims))


def _dimshuffle(w: Writer, node: Apply) -> Any:
    op: Any = node.op
    (x,) = node.inputs
    return shuffled(w, w.name(x), op.pattern, x.ndim)


def shuffled(w: Writer, name: str, pattern: Any, ndim: int, more: int = 0) -> str:
    """A value of ``ndim`` dimensions with these in another order; ``more`` after them stay last."""
    kept = [int(d) for d in pattern if d != "x"]
    dropped = [d for d in range(ndim) if d not in kept]
    if dropped:
        name = w.squeezed(name, dropped)
    order = [k - sum(d < k for d in dropped) for k in kept]
    if order != sorted(order):
        last = range(len(order), len(order) + more)
        name = w.add("Transpose", name, perm=[*order, *last])
    new = [i for i, d in enumerate(pattern) if d == "x"]
    return w.unsqueezed(name, new) if new else name


def _alloc(w: Writer, node: Apply) -> Any:
    value, *dims = node.inputs
    return w.add("Expand", w.name(value), w.vector(dims))


def _join(w: Writer, node: Apply) -> Any:
    op: Any = node.op
    return w.add("Concat", *map(w.name, node.inputs), axis=op.axis)


def _split(w: Writer, node: Apply) -> Any:
    op: Any = node.op
    x, *sizes = node.inputs
    return w.add_several("Split", len(sizes), w.name(x), w.vector(sizes), axis=op.axis)


def _pad(w: Writer, node: Apply) -> Any:
    x, value, *widths = node.inputs
    pads = w.vector([*widths[0::2], *widths[1::2]])
    return w.add("Pad", w.name(x), pads, w.name(value))


def _arange(w: Writer, node: Apply) -> Any:
    op: Any = node.op
    name = w.add("Range", *(w.as_int64(v) for v in node.inputs))
    return name if op.dtype == "int64" else w.cast(name, op.dtype)


def _one_hot(w: Writer, node: Apply) -> Any:
    op: Any = node.op
    labels, n = node.inputs
    # ONNX Runtime has the node for int64 labels and sizes, and for few dtypes of values.
    dtype = "float32" if op.dtype.startswith("float") else "int64"
    values = w.constant(np.array([0, 1], dtype))
    found = w.add("OneHot", w.as_int64(labels), w.as_int64(n), values, axis=-1)
    return found if dtype == op.dtype else w.cast(found, op.dtype)


def _diagonal_matrix(w: Writer, node: Apply) -> Any:
    """Element ``min(row, column)`` of the vector where ``column - row`` is ``offset``, else 0."""
    op: Any = node.op
    x, n, m = node.inputs
    ends = [w.constant(v, np.int64) for v in (0, 1)]
    rows, columns = (w.add("Range", ends[0], w.as_int64(v), ends[1]) for v in (n, m))
    rows = w.unsqueezed(rows, [1])
    on = w.add("Equal", w.add("Add", rows, w.constant(op.offset, np.int64)), columns)
    places = w.add("Where", on, w.add("Min", rows, columns), ends[0])
    zero = w.like(x, 0)
    name = w.name(x)
    if not x.type.shape[-1]:  # an empty vector has no element 0
        name = w.add("Concat", name, _column_of_zeros(w, x), axis=-1)
    return w.add("Where", on, w.add("Gather", name, places, axis=x.ndim - 1), zero)


def _diagonal(w: Writer, node: Apply) -> Any:
    """Places of the flattened last two dimensions, a row and a column further each."""
    op: Any = node.op
    x = node.inputs[0]
    name, lead = w.name(x), x.ndim - 2
    zero, one = (w.constant(v, np.int64) for v in (0, 1))
    down, right = (w.constant(max(k, 0), np.int64) for k in (-op.offset, op.offset))
    columns = w.size(name, lead + 1)
    length = w.add("Min", w.add("Sub", w.size(name, lead), down), w.add("Sub", columns, right))
    steps = w.add("Range", zero, w.add("Max", length, zero), one)
    rows = w.add("Mul", w.add("Add", steps, down), columns)
    places = w.add("Add", rows, w.add("Add", steps, right))
    return w.add("Gather", w.reshaped(name, [0] * lead + [-1]), places, axis=lead)


def _column_of_zeros(w: Writer, x: Variable) -> str:
    lead = w.add("Slice", w.shape(w.name(x)), *(w.constant([k], np.int64) for k in (0, -1, 0)))
    sizes = w.add("Concat", lead, w.constant([1], np.int64), axis=0)
    return w.add("Expand", w.like(x, 0), sizes)


def _roll(w: Writer, node: Apply) -> Any:
    op: Any = node.op
    x, shift = node.inputs
    name, axis = w.name(x), op.axis
    size = w.size(name, axis)
    places = w.add("Range", w.constant(0, np.int64), size, w.constant(1, np.int64))
    places = w.add("Mod", w.add("Sub", places, w.as_int64(shift)), size)
    return w.add("Gather", name, places, axis=axis)


# -- indices --------------------------------------------------------------------------------------


def _indexed(w: Writer, name: str, entries: list[Any]) -> str:
    """A value indexed by ints and slices, of which bounds may be scalars."""
    sliced = [(a, e) for a, e in enumerate(entries) if is_slice(e) and e != FULL]
    if sliced:
        starts, ends, steps = [], [], []
        for _, (start, stop, step) in sliced:
            step = 1 if step is None else step
            step = int(step.data) if isinstance(step, Constant) else step
            ahead = isinstance(step, Variable) or step > 0
            starts.append(start if start is not None else (0 if ahead else FAR))
            ends.append(stop if stop is not None else (FAR if ahead else -FAR - 1))
            steps.append(step)
        name = w.sliced(name, starts, ends, [a for a, _ in sliced], steps)
    for axis in reversed(range(len(entries))):
        e = entries[axis]
        if not is_slice(e):
            index = w.as_int64(e) if isinstance(e, Variable) else w.constant(int(e), np.int64)
            name = w.add("Gather", name, index, axis=axis)
    return name


def _subtensor(w: Writer, node: Apply) -> Any:
    op: Any = node.op
    x, *bounds = node.inputs
    if any(is_slice(e) and e[2] == "?" for e in op.index):
        raise w.refuse(node, "the step of a slice is only known in a call")
    return _indexed(w, w.name(x), fill_in(op.index, bounds))


def _gathered(w: Writer, node: Apply, name: str, arrays: Any, bounds: Any) -> str:
    """A value indexed by arrays; the other entries of the pattern are slices."""
    index = node.op.index  # type: ignore[attr-defined]
    entries = [e for e in index if e != "x"]
    if "x" in index:
        raise w.refuse(node, "index arrays mixed with new dimensions")
    filled = fill_in(tuple(FULL if e == "a" else e for e in entries), bounds)
    if any(not is_slice(e) for e in filled):
        raise w.refuse(node, "index arrays mixed with integers")
    name = _indexed(w, name, filled) if any(e != FULL for e in filled) else name
    places = [k for k, e in enumerate(entries) if e == "a"]
    if len(places) == 1:
        return w.add("Gather", name, w.as_int64(arrays[0]), axis=places[0])
    rest = [k for k in range(len(entries)) if k not in places]
    if [*places, *rest] != list(range(len(entries))):
        name = w.add("Transpose", name, perm=[*places, *rest])
    names = _broadcast(w, arrays)
    columns = [w.unsqueezed(n, [arrays[0].ndim]) for n in names]
    joined = w.add("Concat", *columns, axis=-1)
    found = w.add("GatherND", name, joined)
    if places != list(range(places[0], places[-1] + 1)) or not places[0]:
        return found
    lead = arrays[0].ndim
    before = len([k for k in rest if k < places[0]])
    order = [*range(lead, lead + before), *range(lead), *range(lead + before, lead + len(rest))]
    found = w.add("Transpose", found, perm=order)
    return found


def _broadcast(w: Writer, arrays: Any) -> list[str]:
    """Index arrays as int64, each in the shape that they have together."""
    names = [w.as_int64(a) for a in arrays]
    if len({a.type.shape for a in arrays}) == 1 and None not in arrays[0].type.shape:
        return names
    zero = w.constant(0, np.int64)
    total = w.add("Mul", names[0], zero)
    for n in names[1:]:
        total = w.add("Add", total, w.add("Mul", n, zero))
    return [w.add("Add", n, total) for n in names]


def _advanced(w: Writer, node: Apply) -> Any:
    op: Any = node.op
    count = len(op.arrays)
    x, rest = node.inputs[0], node.inputs[1:]
    return _gathered(w, node, w.name(x), rest[:count], rest[count:])


def _written(w: Writer, node: Apply) -> Any:
    """``x`` with elements set or increased: by their places in the flattened ``x``."""
    op: Any = node.op
    x, y, *rest = node.inputs
    name, shape = w.name(x), w.shape(w.name(x))
    total = w.add("Size", name)
    grid = w.add("Range", w.constant(0, np.int64), total, w.constant(1, np.int64))
    grid = w.add("Reshape", grid, shape)
    if type(op).__name__ == "IncSubtensor":
        if any(is_slice(e) and e[2] == "?" for e in op.index):
            raise w.refuse(node, "the step of a slice is only known in a call")
        places = _indexed(w, grid, fill_in(op.index, rest))
    else:
        count = len([e for e in op.index if e == "a"])
        places = _gathered(w, node, grid, rest[:count], rest[count:])
    updates = w.name(y) if y.type.dtype == x.type.dtype else w.cast(w.name(y), x.type.dtype)
    updates = w.add("Expand", updates, w.add("Shape", places))
    flat = w.constant([-1], np.int64)
    parts = [w.add("Reshape", n, flat) for n in (name, places, updates)]
    plain = "none" if op.set_instead_of_inc else "add"
    mode = getattr(op, "reduce", plain)
    return w.add("Reshape", w.add("ScatterElements", *parts, axis=0, reduction=mode), shape)


def _nonzero(w: Writer, node: Apply) -> Any:
    x = node.inputs[0]
    rows = w.add("NonZero", w.name(x))
    return [w.add("Gather", rows, w.constant(i, np.int64), axis=0) for i in range(x.ndim)]


def _pick_label(w: Writer, node: Apply) -> Any:
    op: Any = node.op
    x, labels = node.inputs
    wide = w.unsqueezed(w.as_int64(labels), [op.axis])
    return w.squeezed(w.add("GatherElements", w.name(x), wide, axis=op.axis), [op.axis])


def _categorical(w: Writer, node: Apply) -> Any:
    return w.add("Neg", w.add("Log", _pick_label(w, node)))


def _search_sorted(w: Writer, node: Apply) -> Any:
    """How many elements are less (or not greater)."""
    op: Any = node.op
    x, v = map(w.name, node.inputs)
    below = w.add("Less" if op.side == "left" else "LessOrEqual", x, w.unsqueezed(v, [-1]))
    return w.add("ReduceSum", w.cast(below, "int64"), w.constant([-1], np.int64), keepdims=0)


def _unique(w: Writer, node: Apply) -> Any:
    op: Any = node.op
    (x,), kept = node.inputs, ("float32", "float64", "int64", "int8")
    dtype = x.type.dtype if x.type.dtype in kept else "float32" if x.type.is_float else "int64"
    name = w.name(x) if dtype == x.type.dtype else w.cast(w.name(x), dtype)  # ONNX Runtime's
    y, *rest = w.add_several("Unique", 4, name, sorted=1)
    y = y if dtype == x.type.dtype else w.cast(y, x.type.dtype)
    asked = (op.return_index, op.return_inverse, op.return_counts)
    return [y, *(name for name, wanted in zip(rest, asked) if wanted)]


# -- reductions -----------------------------------------------------------------------------------


def _reduction(op_name: str, through: str | None = None) -> Emitter:
    def emit(w: Writer, node: Apply) -> Any:
        op: Any = node.op
        x, out = node.inputs[0], node.outputs[0]
        name, dtype = w.name(x), x.type.dtype
        wanted = through or out.type.dtype
        name = name if dtype == wanted else w.cast(name, wanted)
        if op.axes or x.ndim:
            axes = w.constant(list(op.axes), np.int64)
            name = w.add(op_name, name, axes, keepdims=int(op.keepdims)) if op.axes else name
        return name if wanted == out.type.dtype else w.cast(name, out.type.dtype)

    return emit


def _truth(op_name: str) -> Emitter:
    def emit(w: Writer, node: Apply) -> Any:
        op: Any = node.op
        x = node.inputs[0]
        name = w.name(x) if x.type.dtype == "bool" else w.cast(w.name(x), "bool")
        axes = w.constant(list(op.axes), np.int64)
        found = w.add(
            op_name, w.cast(name, "int32"), axes, keepdims=int(op.keepdims),
            noop_with_empty_axes=1,
        )  # fmt: skip
        return w.add("Greater", found, w.constant(0, np.int32))  # of no elements it is the least

    return emit


def _arg(op_name: str) -> Emitter:
    def emit(w: Writer, node: Apply) -> Any:
        op: Any = node.op
        x = node.inputs[0]
        name = w.cast(w.name(x), "uint8") if x.type.dtype == "bool" else w.name(x)
        if len(op.axes) == 1:
            return w.add(op_name, name, axis=op.axes[0], keepdims=int(op.keepdims))
        if tuple(op.axes) != tuple(range(x.ndim)):
            raise w.refuse(node, "the index of an extreme over several axes, but not over all")
        place = w.add(op_name, w.reshaped(name, [-1]), axis=0, keepdims=0)
        return w.reshaped(place, [1] * x.ndim) if op.keepdims else place

    return emit


def _cumulative(w: Writer, node: Apply) -> Any:
    op: Any = node.op
    x, out = node.inputs[0], node.outputs[0]
    name = w.name(x) if x.type.dtype == out.type.dtype else w.cast(w.name(x), out.type.dtype)
    return w.add("CumSum", name, w.constant(op.axis, np.int64), reverse=int(op.reverse))


def _top_k(w: Writer, node: Apply) -> Any:
    op: Any = node.op
    x, k = node.inputs
    if not isinstance(k, Constant):
        raise w.refuse(node, "whether the largest or the smallest are wanted is known in a call")
    count = int(k.data)
    values, places = w.add_several(
        "TopK", 2, w.name(x), w.constant([abs(count)], np.int64), axis=op.axis,
        largest=int(count > 0),
    )  # fmt: skip
    wide = op.index_dtype
    return [values, places if wide == "int64" else w.cast(places, wide)]


def _sorted(output: int) -> Emitter:
    def emit(w: Writer, node: Apply) -> Any:
        op: Any = node.op
        name = w.name(node.inputs[0])
        size = w.unsqueezed(w.size(name, op.axis), [0])
        return w.add_several("TopK", 2, name, size, axis=op.axis, largest=0)[output]

    return emit


EMITTERS: dict[str, Emitter] = {
    **dict.fromkeys(
        ["Copy", "ForgetShape", "SpecifyShape", "SpecifyType", "Assert", "InBounds", "MatchSizes",
         "Opaque", "DisconnectedGrad", "ZeroGrad", "GradClip", "GradScale", "Print",
         "StraightThrough"],
        _identity,
    ),
    "ShapeI": _shape_i, "ShapeVector": _shape_vector, "MakeVector": _make_vector,
    "Reshape": _reshape, "DimShuffle": _dimshuffle, "Alloc": _alloc, "Join": _join,
    "Split": _split, "Pad": _pad, "ARange": _arange, "OneHot": _one_hot, "Roll": _roll,
    "Subtensor": _subtensor, "AdvancedSubtensor": _advanced, "IncSubtensor": _written,
    "AdvancedIncSubtensor": _written, "ScatterReduce": _written, "Diagonal": _diagonal,
    "Nonzero": _nonzero, "PickLabel": _pick_label,
    "Sum": _reduction("ReduceSum"), "Prod": _reduction("ReduceProd"),
    "Max": _reduction("ReduceMax"), "Min": _reduction("ReduceMin"),
    "LogSumExp": _reduction("ReduceLogSumExp"), "AllTrue": _truth("ReduceMin"),
    "AnyTrue": _truth("ReduceMax"), "ArgMax": _arg("ArgMax"), "ArgMin": _arg("ArgMin"),
    "AllocDiag": _diagonal_matrix, "CrossentropyCategorical1Hot": _categorical,
    "SearchSorted": _search_sorted, "Unique": _unique,
    "CumSum": _cumulative, "TopK": _top_k, "Sort": _sorted(0), "ArgSort": _sorted(1),
}  # fmt: skip
