"""Attention as users write it: two products around a softmax of masked scores.

The op that stands for it keeps no scores where a kernel has it, nor does its gradient. It is used
only where scores and probabilities have no other reader.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from symdnn.graph.operators import operator
from symdnn.graph.type import float_limits
from symdnn.graph.variable import Apply, Constant, Variable, as_variable
from symdnn.ops.attention.attention import Attention
from symdnn.ops.attention.scores import Scores
from symdnn.ops.core.shape import DimShuffle, Reshape, dimshuffle
from symdnn.ops.elementwise.arithmetic import Add, Cast, Mul, Sub, TrueDiv, cast, inv
from symdnn.ops.elementwise.comparison import Switch, gt, switch
from symdnn.ops.elementwise.comparison import invert as negation
from symdnn.ops.elementwise.math import Tanh
from symdnn.ops.elemwise import like
from symdnn.ops.linalg.products import BatchedDot, Dot, MatchSizes
from symdnn.ops.nn.softmax import Softmax
from symdnn.rewriting.facts import all_ones, made_by, node_of
from symdnn.rewriting.rewrite import Context, Family
from symdnn.stable.axes import Axes, Joined, Second, axes_of, joined_axes, turned
from symdnn.stable.bands import Band, band_of, filled, hidden_by, indicator, is_low, meet
from symdnn.stable.heads import operands_of, without_factor
from symdnn.stable.views import dropped, undivided, without_views

__all__ = ["RULES"]

FAMILY = Family("stabilize", ("numerics", "attention"))

#: Targets where the op is faster although masks of windows are repeated for it.
_REPEAT_MASKS_ON = ("cuda",)
_ProductT = TypeVar("_ProductT")


@dataclass(frozen=True)
class _Mask:
    """A term ``added``, times ``factor``, or a bool mask ``seen`` with ``low`` where it is False.

    With both, the term is ``low`` where ``seen`` is False and 0 elsewhere.
    """

    added: Variable | None = None
    factor: float = 1.0
    seen: Variable | None = None
    low: float = 0.0

    @property
    def operand(self) -> Variable:
        """A variable of its shape."""
        found = self.seen if self.added is None else self.added
        assert found is not None
        return found


@dataclass
class _Written:
    """The parts of softmax's operand, from the outside to the inside."""

    number: Any
    factor: float = 1.0
    factors: list[Variable] = field(default_factory=list)
    softcap: float = 0.0
    masks: list[_Mask] = field(default_factory=list)
    #: Dimensions of size 1 before those of what is left.
    lead: int = 0

    def add(self, mask: _Mask) -> None:
        """Note a mask, with all dimensions of the scores."""
        added, seen = (
            v if v is None or not self.lead else _with_ones(v, self.lead)
            for v in (mask.added, mask.seen)
        )
        self.masks.append(replace(mask, added=added, seen=seen))


@FAMILY.on(BatchedDot, Dot)
def recognise_attention(node: Apply, context: Context) -> Variable | None:
    """``dropout(softmax(q @ k.T * scale + mask)) @ v`` as the op :class:`Attention`."""
    found = _of_four_axes(node, context)
    if found is None and isinstance(node.op, BatchedDot):
        found = _of_other_axes(node, 0, context)
        found = _of_other_axes(node, 1, context) if found is None else found
    return found


def _of_four_axes(node: Apply, context: Context) -> Variable | None:
    """Attention with scores (batch, heads, queries, keys), or without the first of these."""
    softmax, dropout = _probabilities(node.inputs[0], context)
    if not made_by(softmax, Softmax) or not context.only_reader(softmax):
        return None
    axis, ndim = node_of(softmax).op.axis, softmax.type.ndim
    if axis != ndim - 1 or ndim not in (2, 3, 4) or not softmax.type.is_float:
        return None
    scores = as_variable(node_of(softmax).inputs[0])
    found = _peel(scores, context, _product)
    if found is None or not _same_matrices(scores, node.inputs[0]):
        return None
    written, product = found
    operands = operands_of(product, node, scores, context)
    if operands is None:
        return None
    old = node.outputs[0]
    out = _attention(old, written, scores, [*operands, *dropout], context)
    return None if out is None else out.reshape(tuple(context.shapes.dims(old)))


def _of_other_axes(node: Apply, at: int, context: Context) -> Variable | None:
    """The same with scores of other axes; the weights are behind operand ``at`` of the product."""
    weights = joined_axes(node.inputs[at], True, context)
    softmax, dropout = dropped(weights.array, context)
    if not made_by(softmax, Softmax) or not context.only_reader(softmax):
        return None
    order, scores = turned(as_variable(node_of(softmax).inputs[0]), context)
    found = _peel(scores, context, _product_of_other_axes)
    if found is None or found[0].lead or not softmax.type.is_float:
        return None
    written, product = found
    second = Second(node, at, tuple(tuple(order[a] for a in g) for g in weights.groups))
    sizes = tuple(context.shapes.dims(scores))
    axes = axes_of(product, second, order, order[node_of(softmax).op.axis], sizes)
    if axes is None or (dropout and axes.order != order):
        return None  # a dropout draws in the order of its elements
    axes, operands = axes.operands(product, second, context)
    if len({x.type.dtype for x in operands}) > 1 or not _mask_axes(written, axes, context):
        return None
    whole = axes.mask(scores, True, context)
    assert whole is not None
    out = _attention(node.outputs[0], written, whole, [*operands, *dropout], context)
    return None if out is None else axes.divided(out, second)


def _mask_axes(written: _Written, axes: Axes, context: Context) -> bool:
    """Give the masks attention's axes; whether that can be done."""
    repeat, found = context.target.kind in _REPEAT_MASKS_ON, []
    for mask in written.masks:
        added, seen = (
            v if v is None else axes.mask(v, repeat, context) for v in (mask.added, mask.seen)
        )
        if (added is None) != (mask.added is None) or (seen is None) != (mask.seen is None):
            return False
        found.append(replace(mask, added=added, seen=seen))
    written.masks = found
    factors = [v if all_ones(v) else axes.mask(v, True, context) for v in written.factors]
    written.factors = [v for v in factors if v is not None]
    return True


def _probabilities(v: Variable, context: Context) -> tuple[Variable, list[Variable]]:
    """The softmax behind views, casts and a dropout of ``v``, and the dropout's state and rate.

    The numbers of a dropout are drawn in the order of elements, which no view here changes.
    """
    inside, drawn = dropped(without_views(v, context), context)
    return without_views(inside, context) if drawn else inside, drawn


def _same_matrices(a: Variable, b: Variable) -> bool:
    """Whether both are stacks of matrices of the same two sizes, as far as these are known."""
    pairs = zip(a.type.shape[-2:], b.type.shape[-2:], strict=True)
    return all(None in pair or pair[0] == pair[1] for pair in pairs)


# -- from the softmax to the product of queries and keys -------------------------------------------


def _peel(
    scores: Variable, context: Context, product_of: Callable[[Variable, Context], _ProductT | None]
) -> tuple[_Written, _ProductT] | None:
    """What was done to the scores, and their product as ``product_of`` has it."""
    written, v = _Written(scores.type.numpy.type), scores
    while context.only_reader(v):
        product = product_of(v, context)
        if product is not None:
            return written, product
        inner = _peel_one(v, written, context)
        if inner is None or not _keeps_sizes(inner, v):
            return None
        v = inner
    return None


def _keeps_sizes(inner: Variable, v: Variable) -> bool:
    """Whether ``v`` has the sizes of ``inner``; those that it knows alone are a mask's."""
    pairs = zip(inner.type.shape, v.type.shape[v.type.ndim - inner.type.ndim :], strict=True)
    return all(a == b or (a is None and b != 1) for a, b in pairs)


def _product(v: Variable, context: Context) -> Apply | None:
    """The product that made ``v``, also behind a reshape of its stack and a cast."""
    x = without_views(v, context)
    if not made_by(x, BatchedDot, Dot) or not context.only_reader(x):
        return None
    fits = x.type.ndim >= 2 and _same_matrices(v, x)
    return node_of(x) if fits else None


def _product_of_other_axes(v: Variable, context: Context) -> Joined | None:
    """The product that made ``v``, also behind views that order its axes anew."""
    found = joined_axes(v, False, context)
    made = made_by(found.array, BatchedDot) and context.only_reader(found.array)
    return found if made and found.groups else None


def _peel_one(v: Variable, written: _Written, context: Context) -> Variable | None:
    """The operand of ``v`` towards the scores; the rest is noted in ``written``."""
    if made_by(v, DimShuffle) and v.type.ndim > node_of(v).inputs[0].type.ndim:
        return _without_ones(v, written)
    if made_by(v, Mul, TrueDiv):
        return _scale(v, written)
    if made_by(v, Add, Sub) and not written.softcap:
        return _mask_added(v, written)
    if made_by(v, Reshape, DimShuffle) and not written.softcap and not written.factors:
        return _mask_of_windows(v, written, context)
    if made_by(v, Switch) and not written.softcap:
        return _mask_chosen(v, written)
    if made_by(v, Tanh) and written.factor > 0 and not written.factors and not written.softcap:
        return _cap(v, written)
    return None


def _without_ones(v: Variable, written: _Written) -> Variable | None:
    """Of a dimshuffle that puts dimensions of size 1 first."""
    source = as_variable(node_of(v).inputs[0])
    lead = v.type.ndim - source.type.ndim
    if lead <= 0 or node_of(v).op.pattern != (*("x",) * lead, *range(source.type.ndim)):
        return None
    written.lead += lead
    return source


def _with_ones(v: Variable, lead: int) -> Variable:
    return v.dimshuffle(*("x",) * lead, *range(v.type.ndim))


def _scale(v: Variable, written: _Written) -> Variable | None:
    a, b = node_of(v).inputs
    if made_by(v, Mul) and not all_ones(b) and (all_ones(a) or _is_of_heads(a, b)):
        a, b = b, a
    if not all_ones(b):
        if not _is_of_heads(b, a):
            return _zeroed(v, written) if made_by(v, Mul) else None
        written.factors.append(inv(b) if made_by(v, TrueDiv) else b)
        return a  # type: ignore[no-any-return]
    value = filled(b)
    if value is None:
        written.factors.append(inv(b) if made_by(v, TrueDiv) else b)
    elif not np.isfinite(value) or value == 0:
        return None
    else:
        own = written.number(value)  # as the rules for quotients round it
        inverse = written.number(1) / own if made_by(v, TrueDiv) else own
        written.factor = float(written.number(written.factor) * inverse)
    return a  # type: ignore[no-any-return]


def _is_of_heads(factor: Variable, scores: Variable) -> bool:
    """Whether a factor is the same for all queries and keys of a head."""
    return factor.type.shape[-2:] == (1, 1) != scores.type.shape[-2:] and _broadcasts(
        factor, scores
    )


def _zeroed(v: Variable, written: _Written) -> Variable | None:
    """Of ``scores * seen``, where what is not seen gets a low number anyway."""
    for scores, other in (node_of(v).inputs, node_of(v).inputs[::-1]):
        seen = indicator(other)
        if seen is None or other.type.dtype == "bool" or not _broadcasts(other, scores):
            continue
        if any(m.seen is not None and _same_mask(m.seen, seen) for m in written.masks):
            return scores  # type: ignore[no-any-return]
    return None


def _same_mask(a: Variable, b: Variable) -> bool:
    band = band_of(a)
    return band is not None and band == band_of(b) and a.type.shape[-2:] == b.type.shape[-2:]


def _mask_added(v: Variable, written: _Written) -> Variable | None:
    """Of ``scores + mask`` or ``scores - mask``."""
    if written.factors:
        return None
    a, b = map(as_variable, node_of(v).inputs)
    scores, mask = (a, b) if made_by(v, Sub) or _has_product(a) else (b, a)
    if not _has_product(scores) or not _broadcasts(mask, scores):
        return None
    factor = -written.factor if made_by(v, Sub) else written.factor
    seen, low = hidden_by(mask, factor) or (None, 0.0)
    written.add(_Mask(mask, factor, seen, low))
    return scores


def _mask_of_windows(v: Variable, written: _Written, context: Context) -> Variable | None:
    """Of scores whose stack is divided for a mask that is added."""
    found = undivided(v, context) if context.target.kind in _REPEAT_MASKS_ON else None
    if found is None or not _has_product(found[0]) or not _broadcasts(found[1], found[0]):
        return None
    written.add(_Mask(found[1], written.factor))
    return found[0]


def _mask_chosen(v: Variable, written: _Written) -> Variable | None:
    """Of ``switch(mask, scores, low)``, or the other way."""
    given, yes, no = node_of(v).inputs
    condition = indicator(given)
    if condition is None or written.factors:
        return None
    for scores, low, seen in ((yes, no, condition), (no, yes, negation(condition))):
        if is_low(low, written.factor) and _broadcasts(condition, scores):
            written.add(_Mask(None, 1.0, seen, float(filled(low)) * written.factor))
            return scores  # type: ignore[no-any-return]
    return None


def _cap(v: Variable, written: _Written) -> Variable | None:
    """Of ``cap * tanh(scores / cap)``; what is inside of tanh is multiplied by ``cap``."""
    cap = written.factor
    written.softcap, written.factor = cap, cap
    return node_of(v).inputs[0]  # type: ignore[no-any-return]


def _broadcasts(mask: Variable, scores: Variable) -> bool:
    """Whether the mask changes nothing about the shape of the scores."""
    if mask.type.ndim != scores.type.ndim:
        return False
    return all(m == 1 or s != 1 for m, s in zip(mask.type.shape, scores.type.shape, strict=True))


def _has_product(v: Variable, depth: int = 6) -> bool:
    """Whether a product is behind elementwise ops and views."""
    for _ in range(depth):
        if made_by(v, BatchedDot, Dot):
            return True
        if not made_by(v, Mul, TrueDiv, Add, Sub, Switch, Tanh, Cast, Reshape, DimShuffle):
            return False
        inputs = node_of(v).inputs
        if made_by(v, Cast, Reshape, Tanh, DimShuffle):
            v = inputs[0]
            continue
        return any(_has_product(u, depth - 1) for u in inputs if not isinstance(u, Constant))
    return False


# -- the op ----------------------------------------------------------------------------------------


def _attention(
    old: Variable, written: _Written, scores: Variable, operands: list[Variable], context: Context
) -> Variable | None:
    masks = _settled(written, scores, context)
    if masks is None:
        return None
    how, terms, shown, bands = masks
    q, k, v, *dropout = operands
    for band in bands:
        q = _checked(q, -2, band.operand, context)
        k = _checked(k, -1, band.operand, context)
    (q, of_q), (k, of_k) = without_factor(q), without_factor(k)
    written.factor *= of_q * of_k
    for factor in written.factors:
        if factor.type.ndim != 4 and not all_ones(factor):
            return None
        own = dimshuffle(factor, ("x",) * 4) if all_ones(factor) else factor
        q = q * cast(own, q.type.dtype)
    seen = _all_of(shown)
    mask = _mask_operand(terms, seen)
    how = replace(
        how, scale=_scale_setting(written, q), softcap=written.softcap,
        extras=(*(("mask",) if mask is not None else ()), *(("state", "rate") if dropout else ())),
    )  # fmt: skip
    out = Attention(how)(q, k, v, *([] if mask is None else [mask]), *dropout)[0]
    if seen is not None and np.isfinite(shown[0].low):
        out = _where_all_is_hidden(out, v, seen)
    return cast(out, old.type.dtype)


def _scale_setting(written: _Written, q: Variable) -> float | None:
    """The scale; None where it is ``1 / sqrt(features)``."""
    size, error = q.type.shape[3], 8 * float(float_limits(written.number).eps)
    if size and abs(written.factor * np.sqrt(size) - 1) < error:
        return None
    return written.factor


def _settled(
    written: _Written, scores: Variable, context: Context
) -> tuple[Scores, list[_Mask], list[_Mask], list[_Mask]] | None:
    """The band, the terms that are added, the bool masks, and the masks that are the band.

    It is None where they do not go together.

    The value of a row of which every key is hidden depends on how, and must stay: with low numbers
    it is a mean. Hidden keys are left out where no such row can be, or where it would be nan.
    """
    band: Band = (None, None)
    terms, shown, bands = [], [], []
    for mask in written.masks:
        infinite = mask.seen is not None and not np.isfinite(mask.low)
        own = _band(mask, scores, context) if infinite or len(written.masks) == 1 else None
        if own is not None:
            band = meet([band, own])
            bands.append(mask)
        elif mask.added is not None:
            terms.append(mask)
        else:
            shown.append(mask)
    lows = {m.low for m in shown}
    low = next(iter(lows), -np.inf)
    if len(lows) > 1 or (np.isfinite(low) and (terms or band != (None, None))):
        return None
    return Scores(left=band[0], right=band[1]), terms, shown, bands


def _band(mask: _Mask, scores: Variable, context: Context) -> Band | None:
    """The band of a mask of the size of the scores, in which every query sees a key."""
    found = None if mask.seen is None else band_of(mask.seen)
    if found is None:
        return None
    sizes = zip(mask.operand.type.shape[-2:], scores.type.shape[-2:], strict=True)
    if any(m == 1 != s for m, s in sizes):
        return None
    square = context.shapes.same(*context.shapes.dims(scores)[-2:])
    return found if found[0] is None or square else None


def _checked(x: Variable, axis: int, mask: Variable, context: Context) -> Variable:
    """The query or key with a check that ``mask``, of which a band is left, has its size."""
    own, wanted = context.shapes.dims(x)[2], context.shapes.dims(mask)[axis]
    if context.shapes.same(own, wanted):
        return x
    return MatchSizes(((2, mask.type.ndim + axis),))(x, mask)


def _all_of(shown: Sequence[_Mask]) -> Variable | None:
    """Where all bool masks are True, of 4 dimensions."""
    seen = None
    for mask in shown:
        seen = mask.operand if seen is None else seen & mask.operand
    return None if seen is None else _four_dimensions(seen)


def _mask_operand(terms: Sequence[_Mask], seen: Variable | None) -> Variable | None:
    """One operand that stands for all masks."""
    total = None
    for mask in terms:
        v = mask.operand
        term = v if mask.factor == 1 else v * np.asarray(mask.factor, v.type.dtype)
        total = term if total is None else total + term
    if total is None:
        return seen
    total = _four_dimensions(total)
    return total if seen is None else switch(seen, total, np.asarray(-np.inf, total.type.dtype))


def _four_dimensions(mask: Variable) -> Variable:
    patterns = {2: ("x", "x", 0, 1), 3: (0, "x", 1, 2), 4: (0, 1, 2, 3)}
    return mask.dimshuffle(*patterns[mask.type.ndim])


def _where_all_is_hidden(out: Variable, v: Variable, seen: Variable) -> Variable:
    """The mean of all values in rows without a key: their scores are one very low number.

    Without keys that is 0, as the sum of no values is.
    """
    if isinstance(seen, Constant) and bool(np.all(seen.data.any(axis=-1))):
        return out
    mean = v.mean(axis=2, keepdims=True)
    if v.type.shape[2] is None:
        mean = switch(gt(v.shape[2], 0), mean, like(0, mean))
    if v.type.shape[1] != out.type.shape[1]:
        mean = operator("repeat")(mean, out.shape[1] // v.shape[1], axis=1)
    return switch(seen.any(axis=3, keepdims=True), out, mean)


RULES = (recognise_attention,)
