"""Joins, splits and reorders on a GPU without copies: values are made where these would put them.

A value that is only joined to others is made where the join would copy it, and a piece of a split
is a view of what is split. Both need a kernel that writes, or kernels that read, rows with other
values between them; a piece for which there is none is copied, as ever.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from symdnn.compile.plan.packing import Buffer
from symdnn.compile.plan.result_layout import is_read_in_place
from symdnn.compile.plan.specialise import Specialised
from symdnn.compile.plan.views import (
    View,
    bounds_known,
    byte_count,
    must_run,
    plain_strides,
    shape_of,
)
from symdnn.graph.place import HOST
from symdnn.graph.type import TensorType
from symdnn.graph.values.strides import reshaped
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.array.join import Join, Split
from symdnn.ops.core.shape import DimShuffle, Reshape
from symdnn.ops.lowered.transfer import GpuFromHost, HostFromGpu
from symdnn.ops.nn.channels_last import Reorder

#: A vector of this part of the bytes that a segment makes may be held while much else is made.
_SMALL_PART = 32


def placed(spec: Specialised) -> dict[Variable, View]:
    """The layouts of values of a segment that joins and reorders copy, and of joins' results.

    The memory of a result is taken from the first of its pieces on, so this is left where much else
    is made before the join.
    """
    if spec.segment.place == HOST or spec.segment.guard is not None:
        return {}
    nodes = spec.segment.nodes
    views = _reordered(spec)
    joins = [(step, n) for step, n in enumerate(nodes) if isinstance(n.op, Join)]
    made = _Made(spec) if joins else None
    for step, node in reversed(joins):
        whole = _whole(spec, node, views)
        if whole is None or made is None:
            continue
        found = _roots(spec, node, whole, views)
        found = {v: view for v, view in found.items() if made.close(v, step, node)}
        if found:
            views |= {node.outputs[0]: whole} | found
    return views


def _reordered(spec: Specialised) -> dict[Variable, View]:
    """Values that a reorder copies, in the layout in which it is a view of them."""
    views: dict[Variable, View] = {}
    for node in spec.segment.nodes:
        if not isinstance(node.op, Reorder) or _is_kept(spec, node.outputs[0]):
            continue
        v, out = node.inputs[0], node.outputs[0]
        shape, new = spec.shapes.get(v), spec.shapes[out]
        if shape is None or new is None or 0 in shape:
            continue
        steps = dict(zip(node.op.order, plain_strides(out, new)))
        buffer = Buffer(v, "arena", byte_count(v, shape), first=-1)
        turned = View(buffer, shape, tuple(steps[d] for d in range(len(shape))))
        root, view = _behind(spec, v, turned)
        buffer.variable = root
        if turned.contiguous or root in views or _is_kept(spec, root):
            continue
        if _may_turn(spec, root, view):
            views[root] = view
    return views


def _may_turn(spec: Specialised, v: Variable, view: View) -> bool:
    """Whether a value may be made with its axes in another order, at no cost for its readers."""
    alone = v.owner is not None and len(v.owner.outputs) == 1
    taken = alone and _may_write(spec, v, view) and is_read_in_place(spec, v, view)
    return taken and reads_turned(spec, v, reorders=True)


def reads_turned(spec: Specialised, v: Variable, reorders: bool = False) -> bool:
    """Whether readers take the axes of ``v`` in any order at no cost, where they accept them.

    Libraries say what they accept. With ``reorders``, reorders may be among the readers.
    """
    for node, _ in spec.segment.readers.get(v, ()):
        if isinstance(node.op, Reshape | DimShuffle):
            fits = reads_turned(spec, node.outputs[0], reorders)
        else:
            kernel = spec.choices[node].kernel
            any_order = kernel.reads_any_order and len(node.inputs) == 1
            fits = any_order or not kernel.reads_any_layout
            fits = fits or (reorders and isinstance(node.op, Reorder))
        if not fits:
            return False
    return True


class _Made:
    """The bytes that the steps of a segment make, without views."""

    def __init__(self, spec: Specialised) -> None:
        self.spec = spec
        self.step_of = {n: step for step, n in enumerate(spec.segment.nodes)}
        self.until = [0, *accumulate(map(self._by, spec.segment.nodes))]

    def _by(self, node: Apply) -> int:
        if node.op.views:
            return 0
        return sum(byte_count(v, self.spec.shapes.get(v) or ()) for v in node.outputs)

    def close(self, v: Variable, step: int, join: Apply) -> bool:
        """Whether from ``v`` to its join at ``step`` no more is made than twice what is joined, or
        that is a vector which is small beside all that is made, as a bucket of gradients is."""
        assert v.owner is not None, "inputs of a segment are no values that are made"
        (whole,) = join.outputs
        joined = byte_count(whole, self.spec.shapes[whole] or ())
        if whole.type.ndim == 1 and joined * _SMALL_PART <= self.until[-1]:
            return True
        return self.until[step] - self.until[self.step_of[v.owner]] <= 2 * joined


def _whole(spec: Specialised, node: Apply, views: Mapping[Variable, View]) -> View | None:
    """The result's memory, which may itself be part of another join's, or leave the segment.

    None for the new value of a variable, or of a loop's state, which has memory already.
    """
    (v,) = node.outputs
    shape, segment = spec.shapes[v], spec.segment
    shapes = [shape_of(spec, x) for x in node.inputs]
    has_memory = any(v is new for new, _ in (*segment.updates, *segment.carried))
    if shape is None or any(s is None or 0 in s for s in shapes) or has_memory:
        return None
    leaves = v in segment.outputs
    buffer = Buffer(v, "outside" if leaves else "arena", byte_count(v, shape), first=-1)
    return views.get(v) or View(buffer, shape, plain_strides(v, shape), static=not leaves)


def _roots(
    spec: Specialised, node: Apply, whole: View, views: Mapping[Variable, View]
) -> dict[Variable, View]:
    """The values behind a join's operands, with their parts of the result, that may be there."""
    found: dict[Variable, View] = {}
    for v, part in zip(node.inputs, joined_views(spec, node, whole)):
        root, view = _behind(spec, v, part)
        new = root not in views and root not in found and not _is_kept(spec, root)
        if new and _may_write(spec, root, view) and is_read_in_place(spec, root, view):
            found[root] = view
    return found


def joined_views(spec: Specialised, node: Apply, whole: View) -> list[View]:
    """The parts of a join's result that its operands are copied to."""
    assert isinstance(node.op, Join), "other ops join nothing"
    axis = node.op.axis
    shapes = [shape_of(spec, v) for v in node.inputs]
    sizes = [s[axis] for s in shapes if s is not None]
    assert len(sizes) == len(node.inputs), "shapes of the operands follow from that of the result"
    return list(_pieces(whole, axis, sizes))


def _behind(spec: Specialised, v: Variable, view: View) -> tuple[Variable, View]:
    """The value of which ``v`` is a view, and its layout where that of ``v`` is ``view``."""
    while v.owner is not None and isinstance(v.owner.op, Reshape | DimShuffle):
        source = v.owner.inputs[0]
        seen = None if _is_kept(spec, v) else _before(v.owner, view, spec.shapes.get(source))
        if seen is None:
            break
        v, view = source, seen
    return v, view


def _is_kept(spec: Specialised, v: Variable) -> bool:
    """Whether it has memory of its own because it leaves the segment."""
    return v in spec.segment.outputs or v in dict(spec.segment.updates)


def _before(node: Apply, view: View, shape: tuple[int, ...] | None) -> View | None:
    """The layout of a view op's operand, of this shape, whose result has the layout ``view``."""
    if shape is None or must_run(node) or len(node.outputs) != 1:
        return None
    if isinstance(node.op, Reshape):
        strides = reshaped(view.shape, view.strides, shape)
        return None if strides is None else replace(view, shape=shape, strides=strides)
    assert isinstance(node.op, DimShuffle), "the caller follows these two"
    steps = {int(d): s for d, s in zip(node.op.pattern, view.strides) if d != "x"}
    dropped = max(view.strides, default=0)  # they have one element
    strides = tuple(steps.get(d, dropped) for d in range(len(shape)))
    return replace(view, shape=shape, strides=strides)


def _may_write(spec: Specialised, v: Variable, view: View) -> bool:
    """Whether a kernel makes the value, and may make it in this layout."""
    node = v.owner
    if (
        node is None
        or node not in spec.choices
        or node.op.views
        or not isinstance(v.type, TensorType)
    ):
        return False
    if spec.shapes.get(v) is None or isinstance(node.op, GpuFromHost | HostFromGpu):
        return False
    kernel = spec.choices[node].kernel
    return kernel.writes(spec.call(node), node.outputs.index(v), view)


def _pieces(whole: View, axis: int, sizes: Sequence[int]) -> Iterator[View]:
    """Consecutive parts of a view, of these sizes along ``axis``."""
    for start, stop in pairwise([0, *accumulate(sizes)]):
        shape = tuple(stop - start if d == axis else n for d, n in enumerate(whole.shape))
        yield replace(whole, shape=shape, offset=whole.offset + start * whole.strides[axis])


def split_views(spec: Specialised, node: Apply, source: View) -> dict[int, View]:
    """The pieces of a split that all their readers take as views of ``source``, by number."""
    shapes = [spec.shapes.get(v) for v in node.outputs]
    known = [s for s in shapes if s is not None and 0 not in s]
    if spec.segment.place == HOST or spec.segment.guard is not None or len(known) < len(shapes):
        return {}
    if not isinstance(node.op, Split) or source.buffer.kind != "arena" or not source.static:
        return {}
    if not bounds_known(spec, node):
        return {}
    pieces = _pieces(source, node.op.axis, [s[node.op.axis] for s in known])
    return {
        i: view
        for i, (v, view) in enumerate(zip(node.outputs, pieces))
        if not _is_kept(spec, v) and is_read_in_place(spec, v, view)
    }


def is_there(view: View, part: View) -> bool:
    """Whether a value lies where a join would copy it."""
    strides = [(a, b) for a, b, n in zip(view.strides, part.strides, part.shape) if n != 1]
    return (
        view.buffer is part.buffer
        and view.offset == part.offset
        and all(a == b for a, b in strides)
    )
