"""Query, key and value of attention behind the products that users write, with heads of their own.

A product of stacks joins batch and heads, and heads of keys and values may be repeated for groups
of query heads. Both are undone here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from symdnn.graph.variable import Apply, Constant, Variable, as_variable
from symdnn.ops.array.advanced_index import AdvancedSubtensor
from symdnn.ops.core.shape import Alloc, DimShuffle, Reshape
from symdnn.ops.elementwise.arithmetic import Cast, Mul, cast
from symdnn.ops.linalg.products import Dot, MatchSizes
from symdnn.rewriting.facts import all_ones, made_by, node_of
from symdnn.rewriting.rewrite import Context
from symdnn.stable.bands import filled


def operands_of(
    product: Apply, second: Apply, scores: Variable, context: Context
) -> list[Variable] | None:
    """Query, key and value, (batch, heads, time, features), of one dtype.

    ``product`` makes the scores (2 to 4 dimensions), ``second`` weighs the values.
    """
    if type(product.op) is not type(second.op):
        return None
    q, turned, value = *product.inputs, second.inputs[1]
    if isinstance(product.op, Dot):
        found = _of_matrices(q, turned, value, scores)
    elif scores.type.ndim == 3 or 1 in scores.type.shape[:2]:
        found = _of_stacks(q, turned, value, scores)
    else:
        pairs = [(q, False), (turned, True), (value, False)]
        wholes = [_whole(x, last, scores, context) for x, last in pairs]
        if not all(_agree(w, scores, context) for w in wholes):
            return None
        query, *others = [unchecked(w) for w in wholes if w is not None]
        found = [query, *_as_groups(others, context)]
    if found is None or len({x.type.dtype for x in found}) > 1 or not found[0].type.is_float:
        return None
    return found


def _of_matrices(
    q: Variable, turned: Variable, value: Variable, scores: Variable
) -> list[Variable] | None:
    """One head. A matrix that is an input or a parameter is the weight of a layer, not keys."""
    given = node_of(turned).inputs[0] if made_by(turned, Cast) else turned
    if {x.type.ndim for x in (q, turned, value)} != {2} or given.owner is None:
        return None
    if any(d != 1 for d in scores.type.shape[:-2]):
        return None
    return [x.dimshuffle("x", "x", 0, 1) for x in (q, turned.dimshuffle(1, 0), value)]


def _of_stacks(
    q: Variable, turned: Variable, value: Variable, scores: Variable
) -> list[Variable] | None:
    """One head of each sequence, or one sequence."""
    stack = [q, turned.dimshuffle(0, 2, 1), value]
    if len({x.type.shape[0] == 1 for x in stack}) > 1:
        return None  # one matrix for all
    batch_only = scores.type.ndim == 3 or scores.type.shape[0] != 1
    return [x.dimshuffle(*((0, "x") if batch_only else ("x", 0)), 1, 2) for x in stack]


# -- batch and heads that a reshape joined ---------------------------------------------------------


def _whole(x: Variable, turned: bool, scores: Variable, context: Context) -> Variable | None:
    """The array of 4 dimensions that ``x`` was, or that it is divided into as the scores are."""
    whole = _four(x, turned)
    return _divided(x, turned, scores, context) if whole is None else whole


def _four(x: Variable, turned: bool) -> Variable | None:
    """The array of 4 dimensions whose first two a reshape joined to make ``x``.

    With ``turned`` the last two are exchanged.
    """
    x = unchecked(x)
    moved = made_by(x, DimShuffle) and node_of(x).op.pattern == (0, 2, 1)
    source = node_of(x).inputs[0] if moved else x
    if made_by(source, Cast) and source.type.is_float:
        inside = _four(node_of(source).inputs[0], False)
        whole = None if inside is None else cast(inside, source.type.dtype)
    else:
        whole = node_of(source).inputs[0] if made_by(source, Reshape) else None
    if whole is None or whole.type.ndim != 4 or source.type.ndim != 3:
        return None
    kept = [(a, b) for a, b in zip(whole.type.shape[2:], source.type.shape[1:]) if a != b]
    if any(a is not None and b is not None for a, b in kept):
        return None
    return whole.dimshuffle(0, 1, 3, 2) if moved != turned else whole


def _divided(x: Variable, turned: bool, scores: Variable, context: Context) -> Variable | None:
    """A stack of which the scores divide the first dimension into batch and heads, of 4 dimensions.

    The array behind the transposition is divided, so that the result is a view, too.
    """
    x = unchecked(x)
    pattern = (0, 1, 2)
    if made_by(x, DimShuffle) and sorted(map(str, node_of(x).op.pattern)) == ["0", "1", "2"]:
        x, pattern = as_variable(node_of(x).inputs[0]), node_of(x).op.pattern
    first = context.shapes.dims(scores)[:2]
    at, sizes = pattern[0], list(context.shapes.dims(x))
    if x.type.ndim != 3 or not context.shapes.same(sizes[at], first[0] * first[1]):
        return None
    sizes[at : at + 1] = first
    axes = [at, at + 1, *(p + (p > at) for p in pattern[1:])]
    whole = x.reshape(tuple(sizes)).dimshuffle(*axes)
    return whole.dimshuffle(0, 1, 3, 2) if turned else whole


def unchecked(x: Variable) -> Variable:
    """``x`` without checks of sizes, which the op does, too."""
    if made_by(x, MatchSizes):
        return unchecked(node_of(x).inputs[0])
    if made_by(x, DimShuffle):
        source = as_variable(node_of(x).inputs[0])
        inside = unchecked(source)
        return x if inside is source else inside.dimshuffle(*node_of(x).op.pattern)
    return x


def _agree(x: Variable | None, scores: Variable, context: Context) -> bool:
    """Whether an operand has the batch and the heads of the scores.

    Their product is equal, so one of them is enough.
    """
    if x is None:
        return False
    own, wanted = context.shapes.dims(x)[:2], context.shapes.dims(scores)[:2]
    static = zip(x.type.shape[:2], scores.type.shape[:2], strict=True)
    if any(None not in pair and pair[0] != pair[1] for pair in static):
        return False
    return any(context.shapes.same(a, b) for a, b in zip(own, wanted, strict=True))


def without_factor(x: Variable) -> tuple[Variable, float]:
    """(y, a number) with ``x`` = y times the number, which a multiplication before views holds."""
    if made_by(x, Reshape, DimShuffle):
        node = node_of(x)
        inside, factor = without_factor(as_variable(node.inputs[0]))
        return (x, 1.0) if factor == 1 else (node.op(inside, *node.inputs[1:]), factor)
    if made_by(x, Mul):
        for number, y in (node_of(x).inputs, node_of(x).inputs[::-1]):
            value = filled(number) if all_ones(number) else None
            same = y.type.dtype == x.type.dtype
            if value is not None and same and np.isfinite(value) and value != 0:
                return as_variable(y), float(value)
    return x, 1.0


# -- heads that were repeated ----------------------------------------------------------------------


def _as_groups(pair: list[Variable], context: Context) -> list[Variable]:
    """Keys and values without repeats of their heads, where both are repeated equally often."""
    found = [_without_repeats(x, 1, context) for x in pair]
    once = [f[0] for f in found if f is not None]
    times = {f[1] for f in found if f is not None}
    return once if len(once) == len(pair) and len(times) == 1 else pair


_Once = tuple[Variable, int] | None


def _without_repeats(x: Variable, axis: int, context: Context) -> _Once:
    """(the array of which each entry along ``axis`` is repeated in ``x``, how often)."""
    if made_by(x, MatchSizes):  # the op checks, too
        return _without_repeats(node_of(x).inputs[0], axis, context)
    if made_by(x, Cast, DimShuffle):
        return _behind_view(x, axis, context)
    if made_by(x, Reshape):
        return _of_joined(x, axis, context)
    if made_by(x, AdvancedSubtensor):
        return _of_taken(x, axis)
    source = broadcast_along(x, axis, context)
    times = x.type.shape[axis]
    return None if source is None or times is None else (source, times)


def _behind_view(x: Variable, axis: int, context: Context) -> _Once:
    op, inside = node_of(x).op, node_of(x).inputs[0]
    at = op.pattern[axis] if isinstance(op, DimShuffle) else axis
    if not isinstance(at, int) or not inside.type.is_float:
        return None
    found = _without_repeats(inside, at, context)
    return None if found is None else (op(found[0]), found[1])


def _of_joined(x: Variable, axis: int, context: Context) -> _Once:
    """Of a reshape that joins ``axis`` with a dimension behind it, along which it broadcasts."""
    spread = _without_ones(node_of(x).inputs[0], x.type.ndim + 1, context)
    if spread is None:
        return None
    own, joined = context.shapes.dims(x), list(context.shapes.dims(spread))
    times = spread.type.shape[axis + 1]
    del joined[axis + 1]
    others = [i for i in range(x.type.ndim) if i != axis]
    source = broadcast_along(spread, axis + 1, context)
    same = all(context.shapes.same(own[i], joined[i]) for i in others)
    if source is None or times is None or not same:
        return None
    kept = [i for i in range(source.type.ndim) if i != axis + 1]
    return source.dimshuffle(*kept), times


def _without_ones(x: Variable, ndim: int, context: Context) -> Variable | None:
    """``x``, or the source of its reshapes that has ``ndim`` dimensions besides those of size 1."""
    if made_by(x, Reshape):
        x = _unreshaped(x, context)
    ones = [i for i, d in enumerate(x.type.shape) if d == 1]
    surplus = x.type.ndim - ndim
    if not 0 <= surplus <= len(ones):
        return None
    return x.dimshuffle(*[i for i in range(x.type.ndim) if i not in ones[:surplus]])


def _unreshaped(x: Variable, context: Context) -> Variable:
    """The source of a reshape that only drops dimensions of size 1."""
    inside = node_of(x).inputs[0]

    def sizes(v: Variable) -> list[Any]:
        dims = zip(v.type.shape, context.shapes.dims(v), strict=True)
        return [context.shapes.key(d) for static, d in dims if static != 1]

    return inside if sizes(inside) == sizes(x) else x


def broadcast_along(x: Variable, axis: int, context: Context) -> Variable | None:
    """The source of a broadcast to ``x`` along ``axis`` only; the batch may be compared with
    another.

    The op checks that key and value have the batch of the query.
    """
    if made_by(x, DimShuffle) and "x" not in node_of(x).op.pattern:
        pattern = node_of(x).op.pattern
        source = broadcast_along(node_of(x).inputs[0], pattern[axis], context)
        return None if source is None else node_of(x).op(source)
    if not made_by(x, Alloc):
        return None
    source = node_of(x).inputs[0]
    if source.type.ndim != x.type.ndim or source.type.shape[axis] != 1:
        return None
    own, wanted = context.shapes.dims(source), context.shapes.dims(x)
    for i, (a, b) in enumerate(zip(source.type.shape, x.type.shape, strict=True)):
        widened = a == 1 and b != 1
        if i != axis and (widened or (i > 0 and not context.shapes.same(own[i], wanted[i]))):
            return None
    return source  # type: ignore[no-any-return]


def _of_taken(x: Variable, axis: int) -> _Once:
    """Of ``x[:, [0, 0, 1, 1]]``."""
    source, *rest = node_of(x).inputs
    heads, index = source.type.shape[axis], node_of(x).op.index
    whole = [e == (None, None, None) for i, e in enumerate(index) if i != axis]
    if len(index) <= axis or index[axis] != "a" or not all(whole) or not heads:
        return None
    given = rest[0].data if isinstance(rest[0], Constant) else np.zeros(0)
    times = given.size // heads
    once = given.ndim == 1 and np.array_equal(given, np.repeat(np.arange(heads), times))
    return (source, times) if once and times else None
