"""Strides of results on a GPU that readers like better than C order.

A GEMM is several times as fast where the rows of its matrices begin at multiples of 16 bytes, so
rows of an odd number of elements (the scores of 50257 words) get padding between them. Other
kernels name the order of axes in which they write. A result has such strides only where every
reader reads them in place.

A reshape of a transposed value is a copy. Where a kernel writes any layout, it writes the value in
an order in which the reshape is a view: that of an operand if there is one, so that the kernel
turns few arrays, else that of the transposition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from symdnn.compile.plan.packing import Buffer
from symdnn.compile.plan.specialise import Specialised
from symdnn.compile.plan.views import (
    View,
    bounds_known,
    byte_count,
    derived_view,
    extent,
    must_run,
    plain_strides,
)
from symdnn.graph.place import HOST
from symdnn.graph.values.strides import reshaped
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.core.shape import DimShuffle, Reshape
from symdnn.ops.lowered.transfer import HostFromGpu

#: Rows of small matrices are not padded: a GEMM that reads them takes no time.
_LEAST_PADDED_BYTES = 1 << 20
#: What cuBLASLt's fast kernels need, and a line of the cache for long rows.
_ALIGNMENT_BYTES, _LINE_BYTES, _LONG_ROW_BYTES = 16, 128, 4096


def result_strides(
    spec: Specialised,
    views: Mapping[Variable, View],
    node: Apply,
    index: int,
    shape: tuple[int, ...],
) -> tuple[int, ...] | None:
    """Strides in bytes of a node's result that are better than contiguous ones; None for those.

    ``views`` are those of its operands.
    """
    v = node.outputs[index]
    if spec.segment.place == HOST or spec.segment.guard is not None or 0 in shape:
        return None
    found = (
        _in_order(spec, node, index, shape),
        *_in_orders_of_operands(spec, views, node, index, shape),
        _in_order_of_view(spec, node, shape),
        _padded(spec, node, index, shape),
    )
    for strides in found:
        if strides is not None:
            view = View(Buffer(v, "arena", extent(shape, strides)), shape, strides)
            if is_read_in_place(spec, v, view):
                return strides
    return None


def _in_order(
    spec: Specialised, node: Apply, index: int, shape: tuple[int, ...]
) -> tuple[int, ...] | None:
    axes = spec.choices[node].kernel.result_axes(spec.call(node), index)
    return None if axes is None else _strides_in(axes, node.outputs[index], shape)


def _strides_in(axes: Sequence[int], v: Variable, shape: tuple[int, ...]) -> tuple[int, ...]:
    inner = plain_strides(v, [shape[a] for a in axes])
    return tuple(inner[list(axes).index(d)] for d in range(len(shape)))


def _in_order_of_view(
    spec: Specialised, node: Apply, shape: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Strides with which a transposition of the only result, or a reshape of one, is no copy."""
    (v, *others), kernel = node.outputs, spec.choices[node].kernel
    if others or not kernel.writes_any_layout:
        return None
    for turned in _readers(spec, v):
        axes = _order_of(turned, shape)
        if axes is None or axes == sorted(axes):
            continue
        strides = tuple(plain_strides(v, shape)[a] for a in axes)
        sizes = tuple(shape[a] for a in axes)
        after = [n for n in _readers(spec, turned.outputs[0]) if isinstance(n.op, Reshape)]
        seen = [turned.outputs[0], *(n.outputs[0] for n in after)]
        new = [spec.shapes[n.outputs[0]] for n in after]
        if any(w in spec.segment.outputs for w in seen) or any(
            to is not None and reshaped(sizes, strides, to) is None for to in new
        ):
            return _strides_in(axes, v, shape)
    return None


def _in_orders_of_operands(
    spec: Specialised,
    views: Mapping[Variable, View],
    node: Apply,
    index: int,
    shape: tuple[int, ...],
) -> list[tuple[int, ...]]:
    """Strides in the orders of operands of this shape, where a reader copies C order.

    The order whose last axis is the last one of most operands and earlier results comes first: its
    kernel turns the fewest.
    """
    v = node.outputs[index]
    if len(shape) < 2 or not spec.choices[node].kernel.writes_any_layout:
        return []
    plain = View(Buffer(v, "arena", byte_count(v, shape)), shape, plain_strides(v, shape))
    if is_read_in_place(spec, v, plain):
        return []
    beside = [views[x] for x in (*node.inputs, *node.outputs[:index]) if x in views]
    orders = [_axes_of(seen) for seen in beside if seen.shape == shape]
    known = [axes for axes in orders if axes is not None]
    ends = [axes[-1] for axes in known]
    found = [axes for axes in dict.fromkeys(known) if list(axes) != sorted(axes)]
    return [_strides_in(axes, v, shape) for axes in sorted(found, key=lambda s: -ends.count(s[-1]))]


def _axes_of(seen: View) -> tuple[int, ...] | None:
    """The axes of an array in their order in memory; None if it repeats elements."""
    if any(s <= 0 and n > 1 for s, n in zip(seen.strides, seen.shape)):
        return None
    order = sorted(range(seen.ndim), key=lambda d: (-seen.strides[d], d))
    short = [d for d in range(seen.ndim) if seen.shape[d] == 1]
    return (*short, *(d for d in order if seen.shape[d] > 1))


def _readers(spec: Specialised, v: Variable) -> Iterator[Apply]:
    """The nodes that read a value, also behind ops that only check its shape."""
    for node, i in spec.segment.readers.get(v, ()):
        if node.op.shape_inputs and node.op.views.get(0) == i:
            yield from _readers(spec, node.outputs[0])
        else:
            yield node


def _order_of(node: Apply, shape: tuple[int, ...]) -> list[int] | None:
    """The input's axes in the order of the output of a transposition; None of another node."""
    if not isinstance(node.op, DimShuffle):
        return None
    axes = [int(d) for d in node.op.pattern if d != "x"]
    return axes if len(axes) == len(shape) else None


def _padded(
    spec: Specialised, node: Apply, index: int, shape: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Strides with padding behind each row, for GEMMs that write or read it."""
    v, kernel = node.outputs[index], spec.choices[node].kernel
    row = byte_count(v, shape[-1:])
    if not kernel.pads_rows or len(shape) < 2 or row % _ALIGNMENT_BYTES == 0 or shape[-1] == 1:
        return None
    if byte_count(v, shape) < _LEAST_PADDED_BYTES:
        return None
    if not (kernel.aligned_rows or _is_read_by_gemm(spec, v)):
        return None
    step = _LINE_BYTES if row >= _LONG_ROW_BYTES else _ALIGNMENT_BYTES
    return plain_strides(v, (*shape[:-1], -(-row // step) * step // v.type.numpy.itemsize))


def _is_read_by_gemm(spec: Specialised, v: Variable) -> bool:
    return any(
        _is_read_by_gemm(spec, node.outputs[0])
        if node.op.views.get(0) == i
        else spec.choices[node].kernel.aligned_rows
        for node, i in spec.segment.readers.get(v, ())
    )


def is_read_in_place(spec: Specialised, v: Variable, view: View) -> bool:
    """Whether all readers of ``v``, and of views of it, read it in this layout without a copy."""
    if v in spec.segment.outputs:
        return False
    return all(_reads(spec, node, i, view) for node, i in spec.segment.readers.get(v, ()))


def _reads(spec: Specialised, node: Apply, i: int, view: View) -> bool:
    if isinstance(node.op, HostFromGpu):
        # Results are copied to contiguous memory, before variables may be written.
        return view.contiguous or not spec.segment.updates
    if node.op.views.get(0) == i and len(node.outputs) == 1 and not must_run(node):
        shape = spec.shapes[node.outputs[0]]
        if shape is None or not bounds_known(spec, node):
            return False
        if node.outputs[0] in spec.segment.outputs:
            # Its kernel copies it, since a result has memory of its own.
            return spec.choices[node].kernel.reads_any_layout
        seen = derived_view(spec, node, view, shape)
        return seen is not None and is_read_in_place(spec, node.outputs[0], seen)
    kernel = spec.choices[node].kernel
    return kernel.reads_any_layout or kernel.accepts(i, view)
