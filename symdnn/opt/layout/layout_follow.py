"""Nodes that can have the layout NHWC, and their form in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from symdnn.graph.op import Op
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.array.advanced_index import AdvancedIncSubtensor, AdvancedSubtensor
from symdnn.ops.array.argreduce import ArgMax, ArgMin
from symdnn.ops.array.index import IncSubtensor, Subtensor
from symdnn.ops.array.join import Join, Roll, Split
from symdnn.ops.array.pad import Pad
from symdnn.ops.array.reduce import Reduce
from symdnn.ops.array.slices import FULL, is_slice
from symdnn.ops.array.view import ForgetShape
from symdnn.ops.core.shape import Alloc, SpecifyType, dimshuffle
from symdnn.ops.elemwise import Elemwise
from symdnn.ops.lowered.gathered import ListedSums, PlacedSums
from symdnn.ops.lowered.group_norm import GroupNorm, GroupNormGrad
from symdnn.ops.lowered.lowered import Lowered
from symdnn.ops.nn.channels_last import is_image, last_order, last_shape, moved_axis
from symdnn.ops.nn.dropout import DropoutGrad
from symdnn.ops.nn.lrn import LRN, LRNGrad

#: Builds what an op returns in NHWC, of the op, the rank of the activations, inputs in NHWC.
Build = Callable[[Any, int, Sequence[Variable]], Any]


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
    made = found.build(node.op, _ndim(node), inputs)
    return [made] if isinstance(made, Variable) else list(made)


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


def _same_op(op: Op, ndim: int, inputs: Sequence[Variable]) -> Any:
    return op(*inputs)


def _along_axis(op: Any, ndim: int, inputs: Sequence[Variable]) -> Any:
    return replace(op, axis=moved_axis(op.axis, ndim))(*inputs)


# -- ops of libraries, reductions ------------------------------------------------------------------


def _has_nhwc(node: Apply) -> bool:
    op: Any = node.op
    if op.reduced_axes is not None:
        return _reduction_takes(node)
    return any(is_image(v.type) for v in node.inputs) and op.channels_last(_ndim(node)) is not None


def _of_library(op: Any, ndim: int, inputs: Sequence[Variable]) -> Any:
    if op.reduced_axes is not None:
        return _reduced(op, ndim, inputs)
    return op.channels_last(ndim)(*inputs)


def _reduction_takes(node: Apply) -> bool:
    """Whether a reduction's result has no layout, or the ndim of its operand."""
    if isinstance(node.op, ArgMax | ArgMin):
        return False
    out = node.outputs[0].type
    return not is_image(out) or out.ndim == node.inputs[0].type.ndim


def _reduced(op: Any, ndim: int, inputs: Sequence[Variable]) -> Variable:
    of_library = isinstance(op, Lowered)
    axes: Sequence[int] = op.reduced_axes if of_library else op.axes
    moved = tuple(sorted(moved_axis(a, ndim) for a in axes))
    y: Variable = (op.over(moved) if of_library else replace(op, axes=moved))(*inputs)
    if y.type.ndim == ndim:
        return y
    kept = [d for d in last_order(ndim) if d not in axes]
    return dimshuffle(y, [kept.index(d) for d in sorted(kept)])


def _channels_moved(op: Any, ndim: int, inputs: Sequence[Variable]) -> Any:
    return replace(op, channels=ndim - 1)(*inputs)


# -- shapes and parts -----------------------------------------------------------------------------


def _specified(op: SpecifyType, ndim: int, inputs: Sequence[Variable]) -> Variable:
    return SpecifyType(last_shape(op.static))(*inputs)


def _forgotten(op: ForgetShape, ndim: int, inputs: Sequence[Variable]) -> Variable:
    return ForgetShape(tuple(sorted(moved_axis(a, ndim) for a in op.axes)))(*inputs)


def _allocated(op: Alloc, ndim: int, inputs: Sequence[Variable]) -> Variable:
    value, *dims = inputs
    missing = ndim - value.type.ndim  # of the value, which is broadcast along them
    if 0 < missing < ndim:
        order = [d - missing for d in last_order(ndim)]
        value = dimshuffle(value, ["x" if d < 0 else d for d in order])
    return Alloc(last_shape(op.static))(value, *last_shape(dims))


def _padded(op: Pad, ndim: int, inputs: Sequence[Variable]) -> Variable:
    x, value, *widths = inputs
    order = [2 * d + side for d in last_order(ndim) for side in (0, 1)]
    return Pad(tuple(op.static[i] for i in order))(x, value, *(widths[i] for i in order))


def _only_slices(node: Apply) -> bool:
    op: Any = node.op
    return all(map(is_slice, op.index))


def _indexed(op: Any, ndim: int, inputs: Sequence[Variable]) -> Any:
    """An index of slices, with its entries and their symbolic bounds permuted."""
    arrays = 2 if isinstance(op, IncSubtensor) else 1
    rest = iter(inputs[arrays:])
    bounds = [[next(rest) for b in entry if b == "?"] for entry in op.index]
    order = last_order(len(op.index))
    index = tuple(op.index[d] for d in order)
    given = [b for d in order for b in bounds[d]]
    return replace(op, index=index)(*inputs[:arrays], *given)


def _only_sizes(node: Apply) -> bool:
    """Whether index arrays, each with a dimension of its own, select along the sizes of images."""
    op: Any = node.op
    first = 2 if isinstance(op, AdvancedIncSubtensor) else 1
    plain = op.index[:2] == (FULL, FULL) and all(e in ("a", FULL) for e in op.index)
    count = op.index.count("a")
    contiguous = "a" in op.index and op.index[op.index.index("a") :][:count] == ("a",) * count
    return plain and contiguous and all(v.type.ndim == count for v in node.inputs[first:])


def _gathered(op: Any, ndim: int, inputs: Sequence[Variable]) -> Any:
    return replace(op, index=tuple(op.index[d] for d in last_order(ndim)))(*inputs)


def _listed(op: ListedSums, ndim: int, inputs: Sequence[Variable]) -> Variable:
    return ListedSums(tuple(moved_axis(a, ndim) for a in op.axes))(*inputs)


def _placed(op: PlacedSums, ndim: int, inputs: Sequence[Variable]) -> Any:
    count = len(op.parts)
    parts = tuple(tuple(last_shape(part)) for part in op.parts)
    placed = replace(op, static=last_shape(op.static), parts=parts)
    return placed(*inputs[:count], *last_shape(inputs[count:]))


_NHWC_FORMS: dict[type[Op], _NhwcForm] = {
    Lowered: _NhwcForm(_of_library, _has_nhwc),
    GroupNorm: _NhwcForm(_channels_moved),
    GroupNormGrad: _NhwcForm(_channels_moved),
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
    Roll: _NhwcForm(_along_axis),
    AdvancedSubtensor: _NhwcForm(_gathered, _only_sizes),
    AdvancedIncSubtensor: _NhwcForm(_gathered, _only_sizes),
    ListedSums: _NhwcForm(_listed),
    PlacedSums: _NhwcForm(_placed),
    Subtensor: _NhwcForm(_indexed, _only_slices),
    IncSubtensor: _NhwcForm(_indexed, _only_slices),
}
