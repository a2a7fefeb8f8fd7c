"""What a rank computes of parts, for each op that has a rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from symdnn.graph.variable import Apply, Variable
from symdnn.ops.array.advanced_index import AdvancedIncSubtensor, AdvancedSubtensor
from symdnn.ops.array.create import arange
from symdnn.ops.array.index import IncSubtensor, Subtensor
from symdnn.ops.array.join import Join
from symdnn.ops.array.join import Split as Cut
from symdnn.ops.array.reduce import Max, Min, Reduce, Sum
from symdnn.ops.array.reduce import max as largest
from symdnn.ops.array.reduce import sum as total
from symdnn.ops.array.slices import FULL
from symdnn.ops.attention.attention import Attention, AttentionGrad
from symdnn.ops.collective.functions import all_reduce
from symdnn.ops.collective.reductions import AllReduce
from symdnn.ops.core.gradient_control import Identity
from symdnn.ops.core.shape import DimShuffle, Reshape, ShapeI, SpecifyType, dimshuffle, reshape
from symdnn.ops.elementwise.arithmetic import Add, Cast, Mul, Neg, Sub, TrueDiv, cast, clip
from symdnn.ops.elementwise.comparison import and_, eq, ge, lt, switch
from symdnn.ops.elementwise.math import exp, log
from symdnn.ops.elemwise import Elemwise
from symdnn.ops.linalg.products import Dot
from symdnn.ops.nn.crossentropy import SoftmaxCrossentropy, SoftmaxCrossentropyGrad
from symdnn.sharding.axis import Split
from symdnn.sharding.propagate import TERM, Local, Ranks, Rule

Found = Sequence[Local] | None
Given = Sequence[Local]


def _elemwise(ranks: Ranks, node: Apply, given: Given) -> Found:
    """Operands with the same dimension shared out; sums of terms are terms."""
    if (terms := _linear(ranks, node, given)) is not None:
        return terms
    split = next((x.how for x in given if isinstance(x.how, Split)), None)
    if split is None or len({v.type.ndim for v in node.inputs}) > 1:
        return None
    values = []
    for v, x in zip(node.inputs, given):
        if v.type.shape[split.axis] == 1:
            values.append(ranks.whole(v))
        elif x.how == split or ranks.can_split(v, split):
            values.append(ranks.part(v, split))
        else:
            return None
    return [Local(v, split) for v in ranks.same(node, values)]


def _linear(ranks: Ranks, node: Apply, given: Given) -> Found:
    """Terms of linear functions of terms."""
    terms = [x.how == TERM for x in given]
    if not any(terms) or not all(x.how in (None, TERM) for x in given):
        return None
    op, values = type(node.op), [x.value for x in given]
    if op in (Add, Sub) and not node.outputs[0].type.ndim and node.outputs[0].type.is_float:
        # A whole number is the term of the first rank: sums of squares are reduced once.
        first = np.asarray(ranks.index == 0, node.outputs[0].type.numpy)
        values = [v if term else v * first for v, term in zip(values, terms)]
        return [Local(v, TERM) for v in ranks.same(node, values)]
    narrow = op is Cast and node.outputs[0].type.dtype != node.inputs[0].type.dtype
    fits = (
        (op in (Add, Sub, Neg) and all(terms))
        or (op is Mul and sum(terms) == 1)
        or (op is TrueDiv and terms[0] and not any(terms[1:]))
        or (op is Cast and not narrow)
    )
    if not fits:
        return None
    return [Local(v, TERM) for v in ranks.same(node, values)]


def _dimshuffle(ranks: Ranks, node: Apply, given: Given) -> Found:
    op: Any = node.op
    (x,) = given
    how = x.how
    if isinstance(how, Split):
        how = how.moved(op.pattern.index(how.axis))
    return [Local(v, how) for v in ranks.same(node, [x.value])]


def _reshape(ranks: Ranks, node: Apply, given: Given) -> Found:
    """Dimensions may be joined to the one behind, or divided, where all sizes behind are known."""
    v, x = node.inputs[0], given[0]
    dims: list[Any] = [ranks.whole(d) for d in node.inputs[1:]]
    if x.how == TERM:
        return [Local(reshape(x.value, dims), TERM)]
    if not isinstance(x.how, Split):
        return None
    behind, target = v.type.shape[x.how.axis :], node.outputs[0].type.shape
    if None in behind:
        return None
    places = [
        b for b in range(len(target))
        if None not in target[b:] and prod(target[b:]) == prod(behind) and target[b] != 1  # type: ignore[arg-type]
    ]  # fmt: skip
    if not places:
        return None
    (axis,) = places
    size = target[axis]
    if size is None or size % ranks.size or (x.how.sections and size != behind[0]):
        return None
    dims[axis] = size // ranks.size
    return [Local(reshape(x.value, dims), x.how.moved(axis))]


def _reduce(ranks: Ranks, node: Apply, given: Given) -> Found:
    op: Any = node.op
    (x,) = given
    if not isinstance(x.how, Split):
        linear = x.how == TERM and isinstance(op, Sum)
        return [Local(op(x.value), TERM)] if linear else None
    value = op(x.value)
    if x.how.axis not in op.axes:
        gone = 0 if op.keepdims else sum(a < x.how.axis for a in op.axes)
        return [Local(value, x.how.moved(x.how.axis - gone))]
    if isinstance(op, Sum):
        return [Local(value, TERM)]
    if isinstance(op, Max | Min) and not node.outputs[0].type.is_complex:
        return [Local(all_reduce(value, "max" if isinstance(op, Max) else "min", ranks.group))]
    return None


def _dot(ranks: Ranks, node: Apply, given: Given) -> Found:
    """Columns of the second operand make columns, rows of the first make rows; where the summed
    dimension is shared out, each rank has a term."""
    (a, b), (x, y) = node.inputs, given
    inner_a, inner_b = a.type.ndim - 1, max(b.type.ndim - 2, 0)
    if TERM in (x.how, y.how) or max(a.type.ndim, b.type.ndim) > 2:
        return None
    over_a = x.how if x.axis == inner_a else None
    over_b = y.how if y.axis == inner_b else None
    for this, other, at in ((over_a, b, inner_b), (over_b, a, inner_a)):
        if isinstance(this, Split):
            there = this.moved(at)
            if ranks.local(other).how != there and not ranks.can_split(other, there):
                return None
            left = x.value if other is b else ranks.part(a, there)
            right = ranks.part(b, there) if other is b else y.value
            return [Local(v, TERM) for v in ranks.same(node, [left, right])]
    if isinstance(x.how, Split):
        return [Local(v, x.how) for v in ranks.same(node, [x.value, ranks.whole(b)])]
    if not isinstance(y.how, Split):
        return None
    how = y.how.moved(node.outputs[0].type.ndim - 1)
    return [Local(v, how) for v in ranks.same(node, [x.value, y.value])]


def _bounds(index: Any, axis: int, size: int | None) -> tuple[int, int] | None:
    """Begin and end of a static slice of step 1 along a dimension; None for another entry."""
    entry = index[axis]
    if size is None or not isinstance(entry, tuple):
        return None
    start, stop, step = entry
    if not all(e is None or isinstance(e, int) for e in entry) or step not in (None, 1):
        return None
    begin, end, _ = slice(start, stop).indices(size)
    return begin, end


def _inside(ranks: Ranks, split: Split, bounds: tuple[int, int]) -> tuple[int, int] | None:
    """The same slice of a rank's part, where it has whole sections."""
    edges = np.cumsum([0, *split.sections])
    if bounds[0] not in edges or bounds[1] not in edges:
        return None
    return bounds[0] // ranks.size, bounds[1] // ranks.size


def _some(split: Split, bounds: tuple[int, int]) -> tuple[int, ...]:
    """The sections in a slice; none if it is one."""
    edges = np.cumsum([0, *split.sections]).tolist()
    found = split.sections[edges.index(bounds[0]) : edges.index(bounds[1])]
    return found if len(found) > 1 else ()


def _subtensor(ranks: Ranks, node: Apply, given: Given) -> Found:
    op: Any = node.op
    v, x = node.inputs[0], given[0]
    if not isinstance(x.how, Split):
        return None
    index, axis = list(op.index), x.how.axis
    how, rest = x.how, [ranks.whole(b) for b in node.inputs[1:]]
    if index[axis] != FULL:
        bounds = _bounds(index, axis, v.type.shape[axis])
        mine = None if bounds is None else _inside(ranks, how, bounds)
        if mine is None or bounds is None:
            return None
        index[axis], how = (*mine, None), Split(axis, _some(how, bounds))
    gone = sum(not isinstance(e, tuple) for e in index[:axis])
    return [Local(Subtensor(tuple(index))(x.value, *rest), how.moved(axis - gone))]


def _inc_subtensor(ranks: Ranks, node: Apply, given: Given) -> Found:
    """A part that is added to whole sections, or at other dimensions than the shared one."""
    op: Any = node.op
    (v, _), (x, y) = node.inputs[:2], given[:2]
    if not isinstance(y.how, Split) or any(not isinstance(e, tuple) for e in op.index):
        return None
    index, axis = list(op.index), y.how.axis
    how, rest = y.how, [ranks.whole(b) for b in node.inputs[2:]]
    if index[axis] != FULL:
        bounds = _bounds(index, axis, v.type.shape[axis])
        known = [s.split for s in ranks.layouts if sum(s.split.sections) == v.type.shape[axis]]
        splits = [Split(axis, s.sections) for s in known]
        splits = [s for s in splits if bounds and _inside(ranks, s, bounds)]
        if not splits or bounds is None or _some(splits[0], bounds) != how.sections:
            return None
        how = splits[0]
        index[axis] = (*_inside(ranks, how, bounds), None)  # type: ignore[misc]
    if x.how != how and not ranks.can_split(v, how):
        return None
    made = replace(op, index=tuple(index))(ranks.part(v, how), y.value, *rest)
    return [Local(made, how)]


def _rows(op: Any) -> bool:
    """Whether an index is one array for the first dimension and all of the others."""
    return op.index[0] == "a" and all(e == FULL for e in op.index[1:])


def _own_rows(ranks: Ranks, index: Variable, rows: int) -> tuple[Variable, Variable]:
    """Indices among a rank's rows, of which there are so many, and whether each is one."""
    mine = cast(index, "int64")
    mine = switch(lt(mine, 0), mine + rows * ranks.size, mine) - ranks.index * rows
    there = and_(ge(mine, 0), lt(mine, rows))
    return clip(mine, 0, rows - 1), there


def _take_rows(ranks: Ranks, node: Apply, given: Given) -> Found:
    """Rows of a table whose rows are shared out: a term, zeros for those of other ranks."""
    op: Any = node.op
    (v, index), (x, i) = node.inputs[:2], given[:2]
    if len(node.inputs) > 2 or not _rows(op) or not isinstance(x.how, Split) or i.how is not None:
        return None
    depth = index.type.ndim
    if x.how.axis:
        how = x.how.moved(x.how.axis - 1 + depth)
        return [Local(op(x.value, i.value), how)]
    size = v.type.shape[0]
    if size is None or x.how.sections:
        return None
    mine, there = _own_rows(ranks, i.value, size // ranks.size)
    rows = op(x.value, mine)
    keep = dimshuffle(there, [*range(depth), *["x"] * (rows.type.ndim - depth)])
    return [Local(switch(keep, rows, np.zeros((), rows.type.numpy)), TERM)]


def _add_rows(ranks: Ranks, node: Apply, given: Given) -> Found:
    """The gradient of rows of such a table: each rank adds those of its own rows."""
    op: Any = node.op
    (v, y, index), (x, dy, i) = node.inputs[:3], given[:3]
    how = ranks.wanted.get(node.outputs[0], x.how)
    if len(node.inputs) > 3 or op.set_instead_of_inc or not _rows(op) or i.how is not None:
        return None
    if not isinstance(how, Split) or how.sections or not ranks.can_split(v, how):
        return None
    base, depth = ranks.part(v, how), index.type.ndim
    if how.axis:
        there = how.moved(how.axis - 1 + depth)
        if dy.how != there and not ranks.can_split(y, there):
            return None
        return [Local(op(base, ranks.part(y, there), i.value), how)]
    rows = v.type.shape[0]
    assert rows is not None, "it can be split"
    mine, own = _own_rows(ranks, i.value, rows // ranks.size)
    values = ranks.whole(y)
    keep = dimshuffle(own, [*range(depth), *["x"] * (values.type.ndim - depth)])
    return [Local(op(base, switch(keep, values, np.zeros((), values.type.numpy)), mine), how)]


def _attention(ranks: Ranks, node: Apply, given: Given) -> Found:
    """Heads are independent; draws are not, as a state serves all heads in turn."""
    op: Any = node.op
    first = op.first_extra if isinstance(op, AttentionGrad) else 3
    split = Split(1)
    if "state" in op.how.extras or not any(x.how == split for x in given[:3]):
        return None
    if isinstance(op, AttentionGrad) and len(node.outputs) > 3:
        return None
    values = []
    for k, v in enumerate(node.inputs):
        heads = v.type.shape[1] if v.type.ndim > 2 else None
        if k >= first and heads in (None, 1):
            if heads is None and v.type.ndim > 2:
                return None
            values.append(ranks.whole(v))
        elif ranks.local(v).how == split or ranks.can_split(v, split):
            values.append(ranks.part(v, split))
        else:
            return None
    return [Local(v, split) for v in ranks.same(node, values)]


def _cross_entropy(ranks: Ranks, node: Apply, given: Given) -> Found:
    """Of scores whose classes are shared out: two numbers a row are summed over the ranks."""
    op: Any = node.op
    v, (x, t) = node.inputs[0], given
    size = v.type.shape[op.axis]
    if x.axis != op.axis or x.how != Split(op.axis) or size is None or t.how is not None:
        return None
    scores = cast(x.value, "float32") if v.type.dtype in ("float16", "bfloat16") else x.value
    top = all_reduce(largest(scores, axis=op.axis, keepdims=True), "max", ranks.group)
    s = scores - top
    mine = _one_hot(ranks, t.value, op.axis, v.type.ndim, size // ranks.size)
    picked = total(switch(mine, s, np.zeros((), s.type.numpy)), axis=op.axis, keepdims=True)
    parts = [total(exp(s), axis=op.axis, keepdims=True), picked]
    sums, at_label = all_reduce(parts, "sum", ranks.group)
    wide = log(sums)
    rest = [i for i in range(v.type.ndim) if i != op.axis]
    nll = dimshuffle(wide - at_label, rest)
    outs = node.outputs
    return [
        Local(cast(nll, outs[0].type.dtype)),
        Local(cast(s - wide, outs[1].type.dtype), x.how),
    ]


def _one_hot(ranks: Ranks, labels: Variable, axis: int, ndim: int, count: int) -> Variable:
    """Whether a class of this rank is the label, of the shape of its scores."""
    order: list[Any] = list(range(ndim - 1))
    order.insert(axis, "x")
    classes = dimshuffle(
        arange(count) + np.int64(ranks.index * count),
        ["x" if i != axis else 0 for i in range(ndim)],
    )
    return eq(dimshuffle(cast(labels, "int64"), order), classes)


def _cross_entropy_grad(ranks: Ranks, node: Apply, given: Given) -> Found:
    op: Any = node.op
    (_, v, _), (_, logp, t) = node.inputs, given
    size = v.type.shape[op.axis]
    if logp.how != Split(op.axis) or size is None or t.how is not None:
        return None
    order: list[Any] = list(range(v.type.ndim - 1))
    order.insert(op.axis, "x")
    wide = "float32" if v.type.dtype in ("float16", "bfloat16") else v.type.dtype
    d = dimshuffle(cast(ranks.whole(node.inputs[0]), wide), order)
    mine = _one_hot(ranks, t.value, op.axis, v.type.ndim, size // ranks.size)
    found = exp(cast(logp.value, wide)) * d - switch(mine, d, np.zeros((), d.type.numpy))
    return [Local(cast(found, v.type.dtype), logp.how)]


def _along_another(ranks: Ranks, node: Apply, given: Given) -> Found:
    """Joined or cut along another dimension than the shared one."""
    op: Any = node.op
    count = 1 if isinstance(op, Cut) else len(given)
    hows = {x.how for x in given[:count]}
    if len(hows) != 1 or not isinstance(given[0].how, Split) or given[0].how.axis == op.axis:
        return None
    sizes = [ranks.whole(v) for v in node.inputs[count:]]
    values = [*(x.value for x in given[:count]), *sizes]
    return [Local(v, given[0].how) for v in ranks.same(node, values)]


def _pass_on(ranks: Ranks, node: Apply, given: Given) -> Found:
    """The first operand; the others are whole."""
    rest = [ranks.whole(v) for v in node.inputs[1:]]
    return [Local(v, given[0].how) for v in ranks.same(node, [given[0].value, *rest])]


def _specified(ranks: Ranks, node: Apply, given: Given) -> Found:
    """A declared type holds for the whole."""
    return [given[0]]


def _shape(ranks: Ranks, node: Apply, given: Given) -> Found:
    return [ranks.size_of(node)]


def _all_reduce(ranks: Ranks, node: Apply, given: Given) -> Found:
    """Along another axis of a mesh, parts are reduced as parts."""
    op: Any = node.op
    if op.group == ranks.group:
        return None
    values = [
        x.value if isinstance(x.how, Split) else ranks.whole(v)
        for v, x in zip(node.inputs, given)
    ]  # fmt: skip
    hows = [x.how if isinstance(x.how, Split) else None for x in given]
    return [Local(v, how) for v, how in zip(ranks.same(node, values), hows)]


RULES: Mapping[type[Any], Rule] = {
    Elemwise: _elemwise, DimShuffle: _dimshuffle, Reshape: _reshape, Reduce: _reduce, Dot: _dot,
    Subtensor: _subtensor, IncSubtensor: _inc_subtensor, AdvancedSubtensor: _take_rows,
    AdvancedIncSubtensor: _add_rows, Attention: _attention, AttentionGrad: _attention,
    SoftmaxCrossentropy: _cross_entropy, SoftmaxCrossentropyGrad: _cross_entropy_grad,
    Join: _along_another, Cut: _along_another, Identity: _pass_on, SpecifyType: _specified,
    ShapeI: _shape, AllReduce: _all_reduce,
}  # fmt: skip
