"""Nodes that can have the layout NHWC, and their form in it."""

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

__all__ = ["in_nhwc", "is_filter", "may_have_nhwc", "reads_strided"]

#: Builds the outputs of a node in NHWC from inputs in NHWC.
Build = Callable[[Apply, Sequence[Variable]], Sequence[Variable]]


@dataclass(frozen=True)
class _NhwcForm:
    """How to build an op in NHWC. ``takes`` says for which nodes that is possible."""

    build: Build
    takes: Callable[[Apply], bool] = lambda node: True


def may_have_nhwc(node: Apply) -> bool:
    """Whether a node can have the layout NHWC."""
    found = _form_of(node)
    if found is None or not found.takes(node):
        return False
    ranks = {v.type.ndim for v in (*node.inputs, *node.outputs) if is_image(v.type)}
    return len(ranks) == 1 and not node.op.unmergeable


def in_nhwc(node: Apply, inputs: Sequence[Variable]) -> Sequence[Variable]:
    """The outputs of a node in NHWC. ``inputs`` are its own, activations in NHWC."""
    found = _form_of(node)
    assert found is not None, f"{node.op} has no channels-last form"
    return found.build(node, inputs)


def reads_strided(node: Apply) -> bool:
    """Whether a node can read an array of either layout without a reorder."""
    return isinstance(node.op, Elemwise)


def is_filter(v: Variable, node: Apply | None) -> bool:
    """Whether ``v`` is the filter of the convolution ``node``, which keeps its layout."""
    op = None if node is None else node.op
    index = op.packed_filter if isinstance(op, Lowered) else None
    if node is None or index is None:
        return False
    return v in node.outputs if index < 0 else v is node.inputs[index]


def _form_of(node: Apply) -> _NhwcForm | None:
    return next((_NHWC_FORMS[kind] for kind in type(node.op).__mro__ if kind in _NHWC_FORMS), None)


def _ndim(node: Apply) -> int:
    return next(int(v.type.ndim) for v in (*node.inputs, *node.outputs) if is_image(v.type))


def _results(made: Any) -> Sequence[Variable]:
    return [made] if isinstance(made, Variable) else list(made)


def _same_op(node: Apply, inputs: Sequence[Variable]) -> Sequence[Variable]:
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
        return _reduction_takes(node)
    return any(is_image(v.type) for v in node.inputs) and op.channels_last(_ndim(node)) is not None


def _in_nhwc(node: Apply, inputs: Sequence[Variable]) -> Sequence[Variable]:
    op: Any = node.op
    if op.reduced_axes is not None:
        return _reduced(node, inputs)
    return _results(op.channels_last(_ndim(node))(*inputs))


# -- reductions -----------------------------------------------------------------------------------


def _axes(op: Any) -> tuple[int, ...]:
    return (op.reduced_axes or ()) if isinstance(op, Lowered) else tuple(op.axes)


def _reduction_takes(node: Apply) -> bool:
    """Whether a reduction's result has no layout, or the ndim of its operand."""
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
    """An index of slices, with its entries and their symbolic bounds permuted."""
    op: Any = node.op
    arrays = 2 if isinstance(op, IncSubtensor) else 1
    rest = iter(inputs[arrays:])
    bounds = [[next(rest) for b in entry if b == "?"] for entry in op.index]
    order = last_order(len(op.index))
    index = tuple(op.index[d] for d in order)
    given = [b for d in order for b in bounds[d]]
    return [replace(op, index=index)(*inputs[:arrays], *given)]


_NHWC_FORMS: dict[type[Op], _NhwcForm] = {
    Lowered: _NhwcForm(_in_nhwc, _has_nhwc),
    LRN: _NhwcForm(_along_axis),
    LRNGrad: _NhwcForm(_along_axis),
    Elemwise: _NhwcForm(_same_op),
    DropoutGrad: _NhwcForm(_same_op),
    Reduce: _NhwcForm(_reduced, _reduction_takes),
    Join: _NhwcForm(_along_axis),
    Split: _NhwcForm(_along_axis),
    SpecifyType: _NhwcForm(_specified),
    ForgetShape: _NhwcForm(_forgotten),
    Alloc: _NhwcForm(_allocated),
    Pad: _NhwcForm(_padded),
    Subtensor: _NhwcForm(_indexed, _only_slices),
    IncSubtensor: _NhwcForm(_indexed, _only_slices),
}
