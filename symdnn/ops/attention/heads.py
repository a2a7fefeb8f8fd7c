"""Leading dimensions of query, key and value that differ: sizes of 1, and numbers of heads."""

from __future__ import annotations

from typing import Any

from symdnn.graph.operators import operator
from symdnn.graph.variable import Variable
from symdnn.ops.core.shape import dims_of


def with_equal_lead(
    q: Variable, k: Variable, v: Variable, *, groups: bool
) -> tuple[Variable, Variable, Variable]:
    """The arrays (..., heads, time, features) with equal leading dimensions.

    Static 1s broadcast. One head that key and value have together stays one: queries share it. With
    ``groups``, of key and value the one with fewer heads repeats them.
    """
    ndim = max(x.type.ndim for x in (q, k, v))
    q, k, v = (_with_ones(x, ndim) for x in (q, k, v))
    if ndim == 2:
        return q, k, v
    if groups:
        k, v = _repeated(k, v), _repeated(v, k)
    shared = k.type.shape[-3] == v.type.shape[-3] == 1
    q = _spread(q, [k, v], ndim - 2)
    return q, _spread(k, [q, v], ndim - 2 - shared), _spread(v, [q, k], ndim - 2 - shared)


def _with_ones(x: Variable, ndim: int) -> Variable:
    missing = ndim - x.type.ndim
    return x.dimshuffle(*("x",) * missing, *range(x.type.ndim)) if missing else x


def _spread(x: Variable, others: list[Variable], count: int) -> Variable:
    """``x`` with its first ``count`` dimensions of size 1 broadcast to those of ``others``."""
    sizes: list[Any] = list(dims_of(x))
    widened = False
    for i in range(count):
        wider = [y for y in others if y.type.shape[i] != 1]
        if x.type.shape[i] == 1 and wider:
            sizes[i], widened = dims_of(wider[0])[i], True
    return operator("alloc")(x, *sizes) if widened else x


def _repeated(x: Variable, other: Variable) -> Variable:
    """``x`` with each head repeated to the number that ``other`` has, if that is a multiple."""
    own, wanted = x.type.shape[-3], other.type.shape[-3]
    if own is None or wanted is None or own >= wanted or not own or wanted % own:
        return x
    axis, dims = x.type.ndim - 3, dims_of(x)
    spread = x.dimshuffle(*range(axis + 1), "x", axis + 1, axis + 2)
    spread = operator("alloc")(spread, *dims[: axis + 1], wanted // own, *dims[axis + 1 :])
    repeated: Variable = spread.reshape((*dims[:axis], wanted, *dims[axis + 1 :]))
    return repeated
