"""Whether factors may be gathered: what overflows or vanishes on the way is lost.

``1e30 * (1e30 * x)`` is a number where ``x`` is 1e-40, but 1e60 is none in float32. And with
``x`` and ``y`` of 1e24 so is ``(6.7e-11 * x) * y``, though ``x * y`` is infinite.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from symdnn.graph.dims import product
from symdnn.graph.pattern import Match
from symdnn.graph.type import float_limits
from symdnn.graph.variable import Constant, Variable
from symdnn.ops.core.shape import DimShuffle, dims_of
from symdnn.ops.elementwise.arithmetic import Cast, Inv, TrueDiv
from symdnn.ops.elementwise.comparison import gt, switch
from symdnn.ops.elemwise import Elemwise, like

#: A constant may move past another factor if its binary exponent is at most this, and at most this
#: part of its dtype's: all that is nearer to the limits of the dtype may be lost.
_EXPONENT, _PART_OF_RANGE = 24, 0.25
#: The most variables among which a division by a count is looked for.
_MOST_SEEN = 32


def limits(dtype: str) -> Any:
    """The limits of a float dtype, ``numpy.finfo`` of those that NumPy does not know either."""
    return float_limits({"complex64": "float32", "complex128": "float64"}.get(dtype, dtype))


def foldable(op: np.ufunc) -> Callable[[Match], bool]:
    """The condition that ``op(c, d)`` of a match loses no finite element.

    Overflow loses it; so does a product or quotient below the smallest normal number.
    """

    def condition(m: Match) -> bool:
        if m.node.outputs[0].type.is_discrete:
            return True
        wide = np.complex128 if m.c.type.is_complex else np.float64
        c, d = m.c.data.astype(wide), m.d.data.astype(wide)
        with np.errstate(all="ignore"):
            size = np.abs(op(c, d))
        range_ = limits(m.c.type.dtype)
        kept = size <= float(range_.max)
        if op in (np.multiply, np.true_divide):
            kept &= (size >= float(range_.smallest_normal)) | (c == 0) | (d == 0)
        return bool(np.all(kept | ~np.isfinite(c) | ~np.isfinite(d)))

    return condition


def is_moderate(v: Variable) -> bool:
    """Whether ``v`` is a constant of one element that may be left out of an intermediate result.

    All whole numbers may: their arithmetic has no bounds that are lost.
    """
    if not isinstance(v, Constant) or v.data.size != 1:
        return False
    if v.type.is_discrete:
        return True
    size = float(np.abs(v.data.reshape(()).astype(np.complex128)))
    if not (np.isfinite(size) and size > 0):
        return False
    most = min(_EXPONENT, _PART_OF_RANGE * int(limits(v.type.dtype).maxexp))
    return bool(abs(np.log2(size)) <= most)


def movable(v: Variable) -> bool:
    """Whether a factor may be applied later or earlier: constants must be moderate."""
    return not isinstance(v, Constant) or is_moderate(v)


def unless_none(factor: Variable, x: Variable, axes: Collection[int], other: float) -> Variable:
    """A factor of a sum of ``x`` over ``axes``; ``other`` where there is nothing to sum.

    The mean of no elements divides by their number, 0, and its gradient adds up no quotients by
    that. So it does where the quotient is a factor of a sum: 0 times infinity is NaN.
    """
    unknown = [dims_of(x)[a] for a in axes if x.type.shape[a] is None]
    if any(x.type.shape[a] == 0 for a in axes):
        return like(other, factor)
    if not unknown or not (_is_count(factor) or _is_by_count(factor, set())):
        return factor
    return switch(gt(product(unknown), 0), factor, like(other, factor))


def _is_by_count(v: Variable, seen: set[Variable]) -> bool:
    """Whether the last elementwise ops that make ``v`` divide by an integer."""
    node = v.owner
    if node is None or v in seen or len(seen) == _MOST_SEEN:
        return False
    seen.add(v)
    if isinstance(node.op, TrueDiv | Inv) and _is_count(node.inputs[-1]):
        return True
    goes_on = isinstance(node.op, Elemwise | DimShuffle)
    return goes_on and any(_is_by_count(x, seen) for x in node.inputs)


def _is_count(v: Variable) -> bool:
    """Whether it is an integer, known in a call, perhaps as a float."""
    while v.owner is not None and isinstance(v.owner.op, Cast | DimShuffle):
        v = v.owner.inputs[0]
    return v.type.is_discrete and not isinstance(v, Constant)
