"""Attention and its gradient as expressions of simpler ops: where no kernel has them whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from symdnn.graph.operators import operator
from symdnn.graph.variable import Variable
from symdnn.ops.array.reduce import logsumexp
from symdnn.ops.attention.scores import Scores, hides_rows, visible
from symdnn.ops.core.dtype import is_narrow_float
from symdnn.ops.core.shape import alloc, dims_of
from symdnn.ops.elementwise.arithmetic import cast
from symdnn.ops.elementwise.comparison import switch
from symdnn.ops.elementwise.math import exp, tanh
from symdnn.ops.linalg.dot import MatchSizes, matmul
from symdnn.ops.nn.dropout import Dropout, DropoutGrad
from symdnn.ops.nn.softmax import softmax


class Known(NamedTuple):
    """What is there already of an attention.

    ``weights`` are its probabilities, in the order of their elements. Where a query sees no key
    they may be others; with ``means`` nothing reads the result there, and its cotangent is 0.
    ``product`` is that of queries and keys but for a factor.
    """

    weights: Variable | None = None
    means: bool = False
    product: Variable | None = None
    factor: float = 1.0


NOTHING = Known()


def attention_parts(
    how: Scores, q: Variable, k: Variable, v: Variable, *extras: Variable, known: Known = NOTHING
) -> Any:
    """(result, log-sum-exp, next state if it draws) as expressions."""
    given, dtype = how.named(extras), v.type.dtype
    q, k, v = (_wide(x) for x in (q, k, v))
    s, p, _, seen = probabilities(how, q, k, given, known)
    lse = logsumexp(s, axis=3)
    if seen is not None:
        lse = switch(lse > _lowest(s), lse, np.asarray(-np.inf, lse.type.dtype))
    new = []
    if "state" in given:
        p, _, state = Dropout()(given["state"], p, given["rate"])
        new = [state]
    return [cast(_by_groups(p, v), dtype), lse, *new]


def attention_of_one_key(how: Scores, q: Variable, k: Variable, v: Variable) -> list[Variable]:
    """(result, log-sum-exp) of one query and one key, which it sees: the value, and the score."""
    batch, heads, _, features = dims_of(q)
    rows, key = _wide(q), _wide(k)
    if _shared(q, k):
        split = batch, dims_of(k)[1], heads // dims_of(k)[1]
        rows = rows.reshape((*split, features))
        v = alloc(v, *split, dims_of(v)[3]).reshape((batch, heads, 1, dims_of(v)[3]))
    s = (rows * key).sum(axis=3).reshape((batch, heads, 1)) * _scale(how, rows)
    if how.softcap:
        cap = np.asarray(how.softcap, s.type.dtype)
        s = tanh(s / cap) * cap
    return [v, s]


def attention_grad_parts(
    how: Scores, own: bool, *operands: Any, known: Known = NOTHING
) -> list[Variable]:
    """The gradients of :class:`~symdnn.ops.attention.attention.AttentionGrad` as expressions.

    The cotangent of the log-sum-exp may be None.
    """
    dtypes = [x.type.dtype for x in operands[:3]]
    q, k, v, out, lse, dout = (_wide(x) for x in operands[:6])
    dlse = operands[6]
    given = how.named(operands[7:])
    s, p, slope, seen = probabilities(how, q, k, given, known)
    if not own:
        p = _by_lse(s, cast(lse, s.type.dtype).dimshuffle(0, 1, 2, "x"), seen)
    total = (dout * out).sum(axis=3, keepdims=True)
    if dlse is not None:
        total = total - dlse.dimshuffle(0, 1, 2, "x")
    dp, dropped = _to_keys(dout, v), p
    if "state" in given:
        dropped, kept, _ = Dropout()(given["state"], p, given["rate"])
        dp = DropoutGrad()(dp, kept, given["rate"])
    ds = p * (dp - total)
    raw = ds * slope * _scale(how, q) if slope is not None else ds * _scale(how, q)
    dq = _by_groups(raw, k)
    dk, dv = _grouped_sum(raw, q, k), _grouped_sum(dropped, dout, v)
    grads = [cast(g, t) for g, t in zip((dq, dk, dv), dtypes)]
    mask = given.get("mask")
    if mask is None or mask.type.dtype == "bool":
        return grads
    axes = [a for a in range(4) if mask.type.shape[a] == 1]
    return [*grads, cast(ds.sum(axis=axes, keepdims=True) if axes else ds, mask.type.dtype)]


def _by_lse(s: Variable, lse: Variable, seen: Variable | None) -> Variable:
    """Probabilities by scores and their log-sum-exp."""
    if seen is None:
        return exp(s - lse)
    safe = switch(lse > _lowest(lse), lse, _zero(lse))  # -inf where a row sees nothing
    return switch(seen, exp(switch(seen, s, _zero(s)) - safe), _zero(s))


def probabilities(
    how: Scores, q: Variable, k: Variable, extras: Mapping[str, Any], known: Known = NOTHING
) -> tuple[Any, ...]:
    """Scores, their softmax, the slope of the soft cap (None: 1), and what is seen (None: all)."""
    s, slope, seen = _scores(how, q, k, extras, known)
    if seen is not None:
        s = switch(seen, s, _lowest(s))
    p = softmax(s, axis=3) if known.weights is None else _in_four(known.weights, q, k)
    if known.weights is not None and known.means:
        return s, p, slope, seen
    lengths = q.type.shape[2], k.type.shape[2]
    if seen is not None and hides_rows(how, None not in lengths and lengths[0] == lengths[1]):
        p = switch(seen, p, _zero(p))
    return s, p, slope, seen


def _in_four(x: Variable, q: Variable, k: Variable) -> Variable:
    """Scores or weights, (batch, heads, queries, keys), in the dtype of the wide query."""
    whole = (*dims_of(q)[:3], dims_of(k)[2])
    return cast(x if x.type.ndim == 4 else x.reshape(whole), q.type.dtype)


def _scores(
    how: Scores, q: Variable, k: Variable, extras: Mapping[str, Any], known: Known
) -> tuple[Any, ...]:
    """Scores, the slope of the soft cap (None: 1), and what is seen (None: all)."""
    given = {
        name: MatchSizes(((0, 0),))(v, q) if name in ("key_lengths", "query_lengths") else v
        for name, v in extras.items()
    }
    if known.product is None:
        s = _to_keys(q, k) * _scale(how, q)
    else:
        s = _in_four(known.product, q, k) * (_scale(how, q) * q.type.numpy.type(known.factor))
    slope = None
    if how.softcap:
        cap = np.asarray(how.softcap, s.type.dtype)
        bounded = tanh(s / cap)
        s, slope = bounded * cap, 1 - bounded * bounded
    mask = given.get("mask")
    if mask is not None and mask.type.dtype != "bool":
        s = s + cast(mask, s.type.dtype)
    return s, slope, visible(how, (dims_of(q)[2], dims_of(k)[2]), given, OfVariables)


def sees_a_key(how: Scores, q: Variable, k: Variable, extras: Mapping[str, Any]) -> Variable:
    """Whether a query sees a key, to broadcast over (batch, heads, queries, 1); not for no mask."""
    seen = visible(how, (dims_of(q)[2], dims_of(k)[2]), extras, OfVariables)
    found: Variable = seen.any(axis=3, keepdims=True)
    return found


def _scale(how: Scores, q: Variable) -> Any:
    if how.scale is not None:
        return np.asarray(how.scale, q.type.dtype)
    size = dims_of(q)[3]
    if isinstance(size, int):
        return np.asarray(1 / np.sqrt(max(size, 1)), q.type.dtype)
    return 1 / operator("sqrt")(cast(operator("maximum")(size, 1), q.type.dtype))


def _shared(q: Variable, k: Variable) -> bool:
    """Whether several query heads share a head of keys, or may."""
    heads, groups = q.type.shape[1], k.type.shape[1]
    return heads is None or heads != groups


def _rows(x: Variable, groups: Any) -> Variable:
    """(batch, heads, rows, columns) with the rows of heads that share a group joined."""
    b, heads, rows, columns = dims_of(x)
    return x.reshape((b, groups, heads * rows // groups, columns))


def _to_keys(q: Variable, k: Variable) -> Variable:
    """``q @ k.T`` for each head, (batch, heads, rows of q, rows of k)."""
    turned = k.dimshuffle(0, 1, 3, 2)
    if not _shared(q, k):
        return matmul(q, turned)
    b, heads, rows, _ = dims_of(q)
    return matmul(_rows(q, dims_of(k)[1]), turned).reshape((b, heads, rows, dims_of(k)[2]))


def _by_groups(p: Variable, v: Variable) -> Variable:
    """``p @ v`` for each head."""
    if not _shared(p, v):
        return matmul(p, v)
    b, heads, rows, _ = dims_of(p)
    return matmul(_rows(p, dims_of(v)[1]), v).reshape((b, heads, rows, dims_of(v)[3]))


def _grouped_sum(p: Variable, x: Variable, like: Variable) -> Variable:
    """``p.T @ x`` for each head, summed over the heads that share one of ``like``."""
    if _shared(p, like):
        p, x = (_rows(a, dims_of(like)[1]) for a in (p, x))
    return matmul(p.dimshuffle(0, 1, 3, 2), x)


def _wide(x: Variable) -> Variable:
    """Narrow floats in float32, in which products accumulate anyway."""
    return cast(x, "float32") if is_narrow_float(x.type.dtype) else x


def _lowest(s: Variable) -> Any:
    """A score so low that its exponential is 0 beside any other."""
    return np.asarray(-0.7 * np.finfo(s.type.dtype).max, s.type.dtype)


def _zero(x: Variable) -> Any:
    return np.zeros((), x.type.dtype)


class OfVariables:
    """Expressions for :func:`~symdnn.ops.attention.scores.visible`."""

    @staticmethod
    def arange(n: Any) -> Variable:
        """0 to n - 1."""
        return operator("arange")(n, dtype="int32")

    @staticmethod
    def int32(v: Any) -> Any:
        """As int32."""
        return np.int32(v) if isinstance(v, int) else cast(v, "int32")

    @staticmethod
    def axis(v: Variable, *dims: Any) -> Variable:
        """The vector along the dimension that is 0."""
        return v.dimshuffle(*("x",) * (4 - len(dims)), *dims)

    @staticmethod
    def is_bool(v: Variable) -> bool:
        """Whether it is a bool mask."""
        return v.type.dtype == "bool"

    @staticmethod
    def lowest(v: Variable) -> Any:
        """-inf."""
        return np.asarray(-np.inf, v.type.dtype)
