"""Masks as facts: where they are a band beside the diagonal, as a causal mask is.

A mask is a bool expression that broadcasts over (..., queries, keys). A band ``(left, right)`` is
``i - left <= j <= i + right`` for query ``i`` and key ``j``; None is no bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from symdnn.graph.typing import Array
from symdnn.graph.variable import Constant, Variable, as_variable
from symdnn.graph.variable import constant as as_constant
from symdnn.ops.array.create import ARange
from symdnn.ops.array.index import Subtensor
from symdnn.ops.array.slices import FULL, fill_in, is_slice
from symdnn.ops.core.shape import Alloc, DimShuffle
from symdnn.ops.elementwise.arithmetic import Add, Cast, Mul, Neg, Sub
from symdnn.ops.elementwise.comparison import And, Eq, Ge, Gt, Invert, Le, Lt, Neq, Or, Switch
from symdnn.ops.elementwise.comparison import invert as negation
from symdnn.ops.elemwise import Elemwise
from symdnn.rewriting.facts import made_by, node_of, number

Band = tuple[int | None, int | None]
#: A score of a hidden key. Higher numbers may stay beside scores, and are added as they are.
_HIDDEN_AT_MOST = -1e8


#: How many operations on known numbers :func:`filled` follows.
_MAX_DEPTH = 4


def filled(v: Variable, depth: int = _MAX_DEPTH) -> Any:
    """The number that all elements of ``v`` have, as a NumPy scalar; None if it is not known."""
    while made_by(v, Alloc, DimShuffle, Cast):
        if made_by(v, Cast) and not _same_kind(v, node_of(v).inputs[0]):
            return None
        v = node_of(v).inputs[0]
    found = number(v)
    return _computed(v, depth) if found is None and depth else found


def _computed(v: Variable, depth: int) -> Any:
    """The number that arithmetic of known numbers gives; None if one is unknown."""
    if v.owner is None or not isinstance(v.owner.op, Elemwise) or len(v.owner.outputs) != 1:
        return None
    known = [filled(u, depth - 1) for u in v.owner.inputs]
    if not known or any(n is None for n in known):
        return None
    pairs = zip(known, v.owner.inputs, strict=True)
    with np.errstate(all="ignore"):
        found = v.owner.op.reference(*(np.asarray(n, u.type.numpy) for n, u in pairs))
    return np.asarray(found).astype(v.type.numpy)[()]


def _same_kind(v: Variable, w: Variable) -> bool:
    """Whether a cast between both keeps numbers, but for rounding."""
    return v.type.is_float or w.type.dtype == "bool"


def indicator(v: Variable) -> Variable | None:
    """The bool expression that is True where ``v`` is 1 and False where it is 0; None otherwise."""
    if v.type.dtype == "bool":
        return v
    if made_by(v, Cast):
        return indicator(node_of(v).inputs[0])
    if isinstance(v, Constant):
        zeros_and_ones = v.data.size and bool(np.all((v.data == 0) | (v.data == 1)))
        return as_constant(v.data == 1) if zeros_and_ones else None
    if made_by(v, Subtensor):
        x, *bounds = node_of(v).inputs
        inside = indicator(x)
        return None if inside is None else node_of(v).op(inside, *bounds)
    if made_by(v, DimShuffle):
        inside = indicator(node_of(v).inputs[0])
        return None if inside is None else inside.dimshuffle(*node_of(v).op.pattern)
    if made_by(v, Sub) and filled(node_of(v).inputs[0]) == 1:
        inside = indicator(node_of(v).inputs[1])
        return None if inside is None else negation(inside)
    if made_by(v, Switch):
        condition, yes, no = node_of(v).inputs
        pair = filled(yes), filled(no)
        if condition.type.dtype == "bool" and pair in ((1, 0), (0, 1)):
            return as_variable(condition) if pair[0] else negation(condition)
    return None


def band_of(mask: Variable) -> Band | None:
    """The band that the mask shows; None where it is not known to be one."""
    return _of_constant(mask.data) if isinstance(mask, Constant) else _band(mask)


def _of_constant(mask: Array) -> Band | None:
    if mask.ndim < 2 or any(d != 1 for d in mask.shape[:-2]):
        return None
    shown = mask.reshape(mask.shape[-2:]).astype(bool)
    queries, keys = shown.shape
    offset = np.arange(keys) - np.arange(queries)[:, None]
    if not shown.any():
        return None
    low, high = int(offset[shown].min()), int(offset[shown].max())
    if not np.array_equal(shown, (offset >= low) & (offset <= high)):
        return None
    left = None if low == 1 - queries else -low
    return _sound(left, None if high == keys - 1 else high)


def _sound(left: int | None, right: int | None) -> Band | None:
    """The band where both bounds are at least 0."""
    return None if any(b is not None and b < 0 for b in (left, right)) else (left, right)


def _band(v: Variable, opposite: bool = False) -> Band | None:
    """The band of a symbolic mask, or of its ``opposite``."""
    if made_by(v, Invert):
        return _band(node_of(v).inputs[0], not opposite)
    if made_by(v, DimShuffle):
        return _band(node_of(v).inputs[0], opposite) if _keeps_matrix(v) else None
    if made_by(v, Or if opposite else And):
        both = [_band(u, opposite) for u in node_of(v).inputs]
        return None if None in both else meet(both)
    if made_by(v, Cast, Switch):
        inside = indicator(node_of(v).inputs[0]) if made_by(v, Cast) else _bool_switch(v)
        return None if inside is None else _band(inside, opposite)
    if made_by(v, Subtensor):
        return _of_corner(v, opposite)
    if made_by(v, Eq, Neq, Ge, Gt, Le, Lt) and (inside := _compared(v)) is not None:
        return _band(inside, opposite)
    if isinstance(v, Constant):
        return _of_constant(~v.data if opposite else v.data)
    found = _one_sided(v, opposite)
    return None if found is None else _sound(*found)


def _compared(v: Variable) -> Variable | None:
    """The condition of ``indicator == 0``, ``indicator > 0.5`` and the like."""
    for place, (x, other) in enumerate((node_of(v).inputs, node_of(v).inputs[::-1])):
        inside, value = indicator(x), filled(other)
        if inside is None or value is None or isinstance(x, Constant):
            continue
        pairs = [(n, value) if place == 0 else (value, n) for n in (0, 1)]
        at_0, at_1 = (bool(node_of(v).op.reference(*map(np.asarray, pair))) for pair in pairs)
        if at_0 != at_1:
            return inside if at_1 else negation(inside)
    return None


def _of_corner(v: Variable, opposite: bool) -> Band | None:
    """The band of the first rows and columns of a mask, or of a whole one."""
    x, *bounds = node_of(v).inputs
    entries = list(fill_in(node_of(v).op.index, bounds))
    lead, matrix = entries[:-2], entries[-2:]
    kept = all(is_slice(e) and e[0] in (None, 0) and e[2] in (None, 1) for e in matrix)
    if not kept or x.type.ndim < 2:
        return None
    if any(e != FULL and size != 1 for e, size in zip(lead, x.type.shape[:-2], strict=True)):
        return None
    if any(isinstance(e[1], int) and e[1] < 0 for e in matrix):
        return None
    return _band(x, opposite)


def _bool_switch(v: Variable) -> Variable | None:
    """The condition of ``switch(condition, True, False)``, or its opposite."""
    condition, yes, no = node_of(v).inputs
    pair = filled(yes), filled(no)
    if condition.type.dtype != "bool" or None in pair or bool(pair[0]) == bool(pair[1]):
        return None
    return as_variable(condition) if pair[0] else negation(condition)


def _keeps_matrix(v: Variable) -> bool:
    """Whether a dimshuffle only changes dimensions before the last two."""
    pattern, ndim = node_of(v).op.pattern, node_of(v).inputs[0].type.ndim
    last = min(ndim, 2)
    return bool(pattern[len(pattern) - last :] == tuple(range(ndim - last, ndim)))


def meet(bands: Sequence[Any]) -> Band:
    """The band of what all bands show."""
    lefts = [b[0] for b in bands if b[0] is not None]
    rights = [b[1] for b in bands if b[1] is not None]
    return min(lefts, default=None), min(rights, default=None)


_OPPOSITE: dict[type, type] = {Ge: Lt, Lt: Ge, Gt: Le, Le: Gt}


def _one_sided(v: Variable, opposite: bool) -> Band | None:
    """The band of a comparison of indices, or of its opposite; a bound may be negative."""
    if not made_by(v, Ge, Gt, Le, Lt):
        return None
    a, b = (_affine(u) for u in node_of(v).inputs)
    if a is None or b is None:
        return None
    kind: Any = type(node_of(v).op)
    kind = _OPPOSITE[kind] if opposite else kind
    i, j, c = (x - y for x, y in zip(a, b, strict=True))
    if kind in (Le, Lt):
        i, j, c = -i, -j, -c
    if kind in (Gt, Lt):
        c -= 1  # integers: a > b is a >= b + 1
    if (i, j) == (1, -1):  # i - j + c >= 0
        return None, c
    return (c, None) if (i, j) == (-1, 1) else None


Affine = tuple[int, int, int]


def _affine(v: Variable) -> Affine | None:
    """``(a, b, c)`` where ``v`` is ``a * i + b * j + c`` for query ``i`` and key ``j``."""
    if not v.type.is_discrete or v.type.dtype.startswith("uint"):
        return None
    if (whole := filled(v)) is not None:
        return 0, 0, int(whole)
    if _is_whole(v):
        return _affine(node_of(v).inputs[0])
    if isinstance(v, Constant) and v.data.size in v.type.shape[-2:]:
        along = (0, "x") if v.type.shape[-2] == v.data.size else ("x", 0)
        return _along(as_constant(v.data.reshape(-1)), along)
    if made_by(v, DimShuffle):
        source = node_of(v).inputs[0]
        if source.type.ndim == 1:
            return _along(source, node_of(v).op.pattern)
        return _affine(source) if _keeps_matrix(v) else None
    return _arithmetic(v, _affine)


def _along(v: Variable, pattern: Sequence[Any]) -> Affine | None:
    """A vector that counts, along the queries or the keys."""
    if _is_whole(v):
        return _along(node_of(v).inputs[0], pattern)
    if (whole := filled(v)) is not None:
        return 0, 0, int(whole)
    start = _first_of_count(v)
    if start is not None:
        behind = len(pattern) - pattern.index(0)
        return {2: (1, 0, start), 1: (0, 1, start)}.get(behind)
    return _arithmetic(v, lambda u: _along(u, pattern))


def _is_whole(v: Variable) -> bool:
    """Whether ``v`` is ``x[:]``."""
    return made_by(v, Subtensor) and all(e == FULL for e in node_of(v).op.index)


def _arithmetic(v: Variable, form: Callable[[Variable], Affine | None]) -> Affine | None:
    """The form of sums, differences and negatives, by those of their operands."""
    if not made_by(v, Add, Sub, Neg, Cast):
        return None
    parts = [form(u) for u in node_of(v).inputs]
    if parts[0] is None or parts[-1] is None:
        return None
    if made_by(v, Cast):
        return parts[0]
    a, b = ((0, 0, 0), parts[0]) if made_by(v, Neg) else (parts[0], parts[-1])
    sign = 1 if made_by(v, Add) else -1
    return a[0] + sign * b[0], a[1] + sign * b[1], a[2] + sign * b[2]


def _first_of_count(v: Variable) -> int | None:
    """The first element of a vector whose elements grow by 1."""
    if isinstance(v, Constant):
        counts = v.data.size and np.array_equal(v.data - v.data[0], np.arange(v.data.size))
        return int(v.data[0]) if counts else None
    if not made_by(v, ARange):
        return None
    start, _, step = node_of(v).inputs
    first = number(start)
    return None if first is None or number(step) != 1 else int(first)


# -- numbers that hide ---------------------------------------------------------------------------


def hidden_by(mask: Variable, factor: float) -> tuple[Variable, float] | None:
    """(where keys are seen, the number added elsewhere) of a mask of 0 and a very low number."""
    if isinstance(mask, Constant):
        return _hidden_by_constant(mask, factor)
    if made_by(mask, DimShuffle):
        inside = hidden_by(node_of(mask).inputs[0], factor)
        return None if inside is None else (_like(inside[0], mask), inside[1])
    if made_by(mask, Switch):
        condition, yes, no = node_of(mask).inputs
        for shown, low, seen in ((yes, no, condition), (no, yes, negation(condition))):
            if condition.type.dtype == "bool" and filled(shown) == 0 and is_low(low, factor):
                return seen, float(filled(low)) * factor
        return None
    if made_by(mask, Mul):
        a, b = node_of(mask).inputs
        for low, rest in ((a, b), (b, a)):
            if is_low(low, factor) and (where := indicator(rest)) is not None:
                return negation(where), float(filled(low)) * factor
    return None


def _hidden_by_constant(mask: Constant, factor: float) -> tuple[Variable, float] | None:
    least = (mask.data.min() if factor > 0 else mask.data.max()) if mask.data.size else 0
    low = float(least) * factor
    if low > _HIDDEN_AT_MOST or not np.all((mask.data == 0) | (mask.data == least)):
        return None
    return as_constant(mask.data == 0), low


def _like(inside: Variable, mask: Variable) -> Variable:
    return inside.dimshuffle(*node_of(mask).op.pattern)


def is_low(v: Variable, factor: float) -> bool:
    """Whether all numbers of ``v``, times ``factor``, hide the scores that they are added to."""
    value = filled(v)
    return value is not None and float(value) * factor <= _HIDDEN_AT_MOST
