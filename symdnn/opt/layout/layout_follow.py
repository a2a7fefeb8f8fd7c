"""Nodes that can work on images with channels last, and what they become there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from symdnn.graph.op import Op
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.array.argreduce import ArgMax, ArgMin
from symdnn.ops.array.index import IncSubtensor, Subtensor
from symdnn.ops.array.join import Join, Split
from symdnn.ops.array.pad import Pad
from symdnn.ops.array.reduce import Reduce
from symdnn.ops.array.slices import is_slice
from symdnn.ops.array.view import ForgetShape
from symdnn.ops.core.shape import Alloc, SpecifyType, dimshuffle
from symdnn.ops.elemwise import Elemwise
from symdnn.ops.lowered.lowered import Lowered
from symdnn.ops.nn.channels_last import is_image, last_order, last_shape, moved_axis
from symdnn.ops.nn.dropout import DropoutGrad
from symdnn.ops.nn.lrn import LRN, LRNGrad

__all__ = ["absorbs", "follows", "is_kernel", "rebuilt"]

#: The outputs of a node, images with channels last, from inputs of which images have it so too.
Build = Callable[[Apply, Sequence[Variable]], Sequence[Variable]]


@dataclass(frozen=True)
class _Follow:
    """``takes`` says whether a node can do it, beyond having images of one rank."""

    build: Build
    takes: Callable[[Apply], bool] = lambda node: True


def follows(node: Apply) -> bool:
    """Whether a node can have its images with channels last."""
    found = _rule(node)
    if found is None or not found.takes(node):
        return False
    ranks = {v.type.ndim for v in (*node.inputs, *node.outputs) if is_image(v.type)}
    return len(ranks) == 1 and not node.op.unmergeable


def rebuilt(node: Apply, inputs: Sequence[Variable]) -> Sequence[Variable]:
    """Its outputs with channels last. ``inputs`` are its own, the images in that order."""
    found = _rule(node)
    assert found is not None, f"{node.op} has no channels-last form"
    return found.build(node, inputs)


def absorbs(node: Apply) -> bool:
    """Whether a node reads an array in another order as well as in its own, without a copy."""
    return isinstance(node.op, Elemwise)


def is_kernel(v: Variable, node: Apply | None) -> bool:
    """Whether ``v`` is to ``node`` the kernels of a convolution, which keep their order."""
    op = None if node is None else node.op
    index = op.packed_filter if isinstance(op, Lowered) else None
    if node is None or index is None:
        return False
    return v in node.outputs if index < 0 else v is node.inputs[index]


def _rule(node: Apply) -> _Follow | None:
    return next((_RULES[kind] for kind in type(node.op).__mro__ if kind in _RULES), None)


def _ndim(node: Apply) -> int:
    return next(int(v.type.ndim) for v in (*node.inputs, *node.outputs) if is_image(v.type))


def _results(made: Any) -> Sequence[Variable]:
    return [made] if isinstance(made, Variable) else list(made)


def _same(node: Apply, inputs: Sequence[Variable]) -> Sequence[Variable]:
    return _results(node.op(*inputs))


def _with(**fields: Callable[[Any, int], Any]) -> Build:
    """The same op with some fields changed, each by a function of the op and the rank."""

    def build(node: Apply, inputs: Sequence[Variable]) -> Sequence[Variable]:
        op: Any = node.op
        ndim = _ndim(node)
        return _results(replace(op, **{k: f(op, ndim) for k, f in fields.items()})(*inputs))

    return build


_along_axis = _with(axis=lambda op, ndim: moved_axis(op.axis, ndim))


# -- ops of libraries -----------------------------------------------------------------------------


def _has_nhwc(node: Apply) -> bool:
    op: Any = node.op
    if op.reduced_axes is not None:
        return _reduces(node)
    return any(is_image(v.type) for v in node.inputs) and op.channels_last(_ndim(node)) is not None


def _in_nhwc(node: Apply, inputs: Sequence[Variable]) -> Sequence[Variable]:
    op: Any = node.op
    if op.reduced_axes is not None:
        return _reduced(node, inputs)
    return _results(op.channels_last(_ndim(node))(*inputs))


# -- reductions -----------------------------------------------------------------------------------


def _axes(op: Any) -> tuple[int, ...]:
    return (op.reduced_axes or ()) if isinstance(op, Lowered) else tuple(op.axes)


def _reduces(node: Apply) -> bool:
    """Those whose result has no layout, or the dimensions of their operand."""
    op: Any = node.op
    if isinstance(op, ArgMax | ArgMin):
        return False
    out = node.outputs[0].type
    return not is_image(out) or out.ndim == node.inputs[0].type.ndim


def _reduced(node: Apply, inputs: Sequence[Variable]) -> Sequence[Variable]:
    op: Any = node.op
    ndim = node.inputs[0].type.ndim
    moved = tuple(sorted(moved_axis(a, ndim) for a in _axes(op)))
    y: Variable = (op.over(moved) if isinstance(op, Lowered) else replace(op, axes=moved))(*inputs)
    if is_image(node.outputs[0].type):
        return [y]
    kept = [d for d in last_order(ndim) if d not in _axes(op)]
    return [dimshuffle(y, [kept.index(d) for d in sorted(kept)])]


# -- shapes and parts -----------------------------------------------------------------------------


def _specified(node: Apply, inputs: Sequence[Variable]) -> Sequence[Variable]:
    op: Any = node.op
    return [SpecifyType(last_shape(op.static))(*inputs)]


def _forgotten(node: Apply, inputs: Sequence[Variable]) -> Sequence[Variable]:
    op: Any = node.op
    ndim = node.inputs[0].type.ndim
    return [ForgetShape(tuple(sorted(moved_axis(a, ndim) for a in op.axes)))(*inputs)]


def _allocated(node: Apply, inputs: Sequence[Variable]) -> Sequence[Variable]:
    value, *dims = inputs
    own = node.inputs[0].type.ndim
    op: Any = node.op
    if 0 < own < len(dims):
        order = [d - (len(dims) - own) for d in last_order(len(dims))]
        value = dimshuffle(value, ["x" if d < 0 else d for d in order])
    return [Alloc(last_shape(op.static))(value, *last_shape(dims))]


def _padded(node: Apply, inputs: Sequence[Variable]) -> Sequence[Variable]:
    op: Any = node.op
    x, value, *widths = inputs
    order = [2 * d + side for d in last_order(x.type.ndim) for side in (0, 1)]
    return [Pad(tuple(op.static[i] for i in order))(x, value, *(widths[i] for i in order))]


def _only_slices(node: Apply) -> bool:
    op: Any = node.op
    return all(map(is_slice, op.index))


def _indexed(node: Apply, inputs: Sequence[Variable]) -> Sequence[Variable]:
    """A part by slices: its entries in the new order, their symbolic bounds likewise."""
    op: Any = node.op
    arrays = 2 if isinstance(op, IncSubtensor) else 1
    rest = iter(inputs[arrays:])
    bounds = [[next(rest) for b in entry if b == "?"] for entry in op.index]
    order = last_order(len(op.index))
    index = tuple(op.index[d] for d in order)
    given = [b for d in order for b in bounds[d]]
    return [replace(op, index=index)(*inputs[:arrays], *given)]


_RULES: dict[type[Op], _Follow] = {
    Lowered: _Follow(_in_nhwc, _has_nhwc),
    LRN: _Follow(_along_axis),
    LRNGrad: _Follow(_along_axis),
    Elemwise: _Follow(_same),
    DropoutGrad: _Follow(_same),
    Reduce: _Follow(_reduced, _reduces),
    Join: _Follow(_along_axis),
    Split: _Follow(_along_axis),
    SpecifyType: _Follow(_specified),
    ForgetShape: _Follow(_forgotten),
    Alloc: _Follow(_allocated),
    Pad: _Follow(_padded),
    Subtensor: _Follow(_indexed, _only_slices),
    IncSubtensor: _Follow(_indexed, _only_slices),
}
