"""Writes of parts of an array beside which another part is read or written."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Any

from symdnn.graph.variable import Apply, Variable
from symdnn.ops.array.index import IncSubtensor, Subtensor
from symdnn.ops.array.pad import Pad
from symdnn.ops.array.slices import is_slice
from symdnn.ops.elementwise.arithmetic import Add
from symdnn.opt.canonicalize.dimshuffle_rules import fields_of
from symdnn.rewriting.facts import all_ones, is_zero, made_by, node_of
from symdnn.rewriting.rewrite import Context, node_rewrite, reads

PHASE = "canonicalize"
TAGS = ("indexing",)
#: The most increments of other parts that are looked through for one of the same part.
_MOST_BETWEEN = 64


def _apart(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Whether two indices of one array have no element in common, whatever its shape."""
    return any(is_slice(x) and is_slice(y) and _meet_nowhere(x, y) for x, y in zip(a, b))


def _meet_nowhere(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Of slices whose beginnings and steps are known, from the front on."""
    starts, steps = [s[0] or 0 for s in (a, b)], [1 if s[2] is None else s[2] for s in (a, b)]
    if not all(isinstance(n, int) for n in (*starts, *steps)) or min(starts) < 0 or min(steps) < 1:
        return False
    first, later = sorted((a, b), key=lambda s: s[0] or 0)
    ends = isinstance(first[1], int) and 0 <= first[1] <= (later[0] or 0)
    return ends or (starts[0] - starts[1]) % gcd(*steps) != 0


@node_rewrite(Subtensor, phase=PHASE, tags=TAGS, admits=reads(IncSubtensor))
def read_beside_what_was_put(node: Apply, context: Context) -> Variable | None:
    """``set_subtensor(x[::2], 0)[1::2] -> x[1::2]``: what is written has no element of the part.

    Only of one element, which fits wherever it is written: a gradient passes by the parts that
    were replaced.
    """
    v, *bounds = node.inputs
    if not made_by(v, IncSubtensor):
        return None
    put, (x, y, *_) = node_of(v).op, node_of(v).inputs
    if not all_ones(y) or not all(map(is_slice, put.index)):
        return None
    return (
        Subtensor(fields_of(node).index)(x, *bounds)
        if _apart(put.index, fields_of(node).index)
        else None
    )


@node_rewrite(IncSubtensor, phase=PHASE, tags=TAGS, admits=reads(IncSubtensor))
def increment_of_what_was_zeroed(node: Apply, context: Context) -> Variable | None:
    """``inc_subtensor(set_subtensor(x[i], 0)[i], y) -> set_subtensor(x[i], y)``.

    Also where parts beside it were written in between.
    """
    op: Any = node.op
    v, y, *bounds = node.inputs
    between: list[Apply] = []
    while made_by(v, IncSubtensor) and context.only_user(v) and not op.set_instead_of_inc:
        made: Any = v.owner
        x, zero, *own = made.inputs
        put = made.op
        if put.index == op.index and own == bounds:
            if not put.set_instead_of_inc or not is_zero(zero) or y.type.dtype != x.type.dtype:
                return None
            found: Variable = put(x, y, *bounds)
            for n in reversed(between):
                found = n.op(found, *n.inputs[1:])
            return found
        if not _apart(put.index, op.index):
            return None
        between.append(made)
        v = x
    return None


@node_rewrite(Subtensor, phase=PHASE, tags=TAGS, admits=reads(Pad))
def inside_of_a_pad(node: Apply, context: Context) -> Variable | None:
    """``pad(x, w)[w : w + n] -> x``: the gradient of padding reads what was padded."""
    v, *_ = node.inputs
    if not made_by(v, Pad):
        return None
    x: Variable = node_of(v).inputs[0]
    op: Any = node_of(v).op
    index = fields_of(node).index
    if len(index) < x.type.ndim or not all(map(is_slice, index)):
        return None
    widths = zip(op.static[::2], op.static[1::2], x.type.shape)
    for (start, stop, step), (low, high, n) in zip(index, widths, strict=True):
        if low is None or (start or 0) != low or step not in (None, 1):
            return None
        from_end = high is not None and stop == (-high or None)
        if not from_end and (n is None or stop != low + n):
            return None
    return x


@node_rewrite(IncSubtensor, phase=PHASE, tags=("fast_compile", *TAGS), admits=reads(IncSubtensor))
def increments_of_one_part(node: Apply, context: Context) -> Variable | None:
    """``inc_subtensor(inc_subtensor(x[i], a)[i], b) -> inc_subtensor(x[i], a + b)``, also with
    increments of other parts between them, in any order."""
    v, b, *bounds = node.inputs
    op: Any = node.op
    between = list[Apply]()
    while made_by(v, IncSubtensor) and context.only_user(v) and len(between) < _MOST_BETWEEN:
        inner = node_of(v)
        x, a, *others = inner.inputs
        if fields_of(inner).set_instead_of_inc or op.set_instead_of_inc:
            return None
        alike = a.type.dtype == b.type.dtype and a.type.ndim == b.type.ndim
        if inner.op == op and others == bounds and alike:
            out: Variable = op(x, Add()(a, b), *bounds)
            for other in reversed(between):
                out = other.op(out, *other.inputs[1:])
            return out
        between.append(inner)
        v = x
    return None


RULES = [
    increments_of_one_part, read_beside_what_was_put, increment_of_what_was_zeroed, inside_of_a_pad,
]  # fmt: skip
