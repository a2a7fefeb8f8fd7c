"""Attention and its gradient to cuDNN's ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from symdnn.graph.operators import operator
from symdnn.graph.variable import Apply, Variable
from symdnn.libraries.cudnn.attention_reasons import dtype_of, first_extra, refuses, simplest
from symdnn.libraries.cudnn.backend import BACKEND
from symdnn.ops.attention.attention import Attention, AttentionGrad
from symdnn.ops.attention.parts import sees_a_key
from symdnn.ops.attention.scores import EXTRAS, Scores
from symdnn.ops.core.shape import as_dim, dims_of
from symdnn.ops.elementwise.arithmetic import cast, maximum
from symdnn.ops.elementwise.comparison import switch
from symdnn.ops.random.random import state_after
from symdnn.ops.vendor.gpudnn_attention import GpuDnnAttention, GpuDnnAttentionGrad
from symdnn.rewriting.facts import number
from symdnn.rewriting.rewrite import Context

_LENGTHS = ("key_lengths", "query_lengths")

#: What is added to a hidden score: finite, so that a query that sees no key makes no nan.
_HIDDEN = {"float16": -6e4, "bfloat16": -1e30}

#: The log-sum-exp that makes all probabilities of a query 0.
_NO_PROBABILITY = np.float32(1e30)


@dataclass(frozen=True)
class _Given:
    """The operands of cuDNN's op beside query, key and value, and those of the neutral op."""

    how: Scores
    extras: Mapping[str, Variable]
    rate: float
    neutral: Mapping[str, Variable]
    query: Variable
    key: Variable

    @property
    def sees(self) -> Variable | None:
        """Whether a query sees a key, to broadcast over (batch, heads, queries, 1); None: all do.

        It is exact where a mask is added; with lengths alone it is cheaper.
        """
        if "mask" in self.neutral:
            own = replace(self.how, extras=tuple(self.neutral))
            return sees_a_key(own, self.query, self.key, self.neutral)
        if "key_lengths" not in self.extras:
            return None
        return self.inside(self.query, "query_lengths", "key_lengths")

    def inside(self, x: Variable, own: str, other: str) -> Variable:
        """Which rows of ``x`` are inside a sequence, where the other sequence is not empty."""
        at = operator("arange")(dims_of(x)[2], dtype="int32").dimshuffle("x", 0)
        ends, others = (self.extras[n].dimshuffle(0, "x") for n in (own, other))
        return ((at < ends) & (others > 0)).dimshuffle(0, "x", 1, "x")


def _given(node: Apply, context: Context) -> _Given:
    """Operands as cuDNN takes them: both lengths or none, a mask that is added, no rate of 0."""
    own = simplest(node, context)
    q, k = node.inputs[:2]
    named = own.named(node.inputs[first_extra(node) :])
    extras = {n: named[n] for n in named if n not in _LENGTHS}
    rate = float(number(named["rate"])) if "rate" in named else 0.0
    if not rate:
        extras = {n: v for n, v in extras.items() if n not in ("state", "rate")}
    if "mask" in named:
        extras["mask"] = _added(named["mask"], dtype_of(node, context.target))
    if set(_LENGTHS) & set(named):
        extras |= {n: _lengths(named.get(n), x) for n, x in zip(_LENGTHS, (k, q), strict=True)}
    names = tuple(n for n in EXTRAS if n in extras)
    neutral = {n: named[n] for n in named if n not in ("state", "rate")}
    return _Given(replace(own, extras=names), {n: extras[n] for n in names}, rate, neutral, q, k)


def _added(mask: Variable, dtype: str) -> Variable:
    """A mask as what is added to scores."""
    low = _HIDDEN[dtype]
    if mask.type.dtype == "bool":
        wide = switch(mask, np.float32(0), np.float32(low))
    else:
        wide = maximum(mask, np.asarray(low, mask.type.dtype))
    return cast(wide, dtype)


def _lengths(given: Variable | None, x: Variable) -> Variable:
    batch, _, time, _ = dims_of(x)
    if given is not None:
        return cast(given, "int32")
    return operator("alloc")(cast(as_dim(time), "int32"), batch)


@BACKEND.lowering("local_dnn_attention", None, Attention, refuses=refuses)
def attention(node: Apply, context: Context) -> Sequence[Variable]:
    """Attention to GpuDnnAttention."""
    given = _given(node, context)
    dtype, own = dtype_of(node, context.target), node.inputs[0].type.dtype
    qkv = [cast(x, dtype) for x in node.inputs[:3]]
    op = GpuDnnAttention(given.how, given.rate)
    out, lse = op.make_node(*qkv, *given.extras.values(), hints=node.hints).outputs
    sees = given.sees
    if sees is not None:
        out = switch(sees, out, np.zeros((), out.type.numpy))
        rows = sees.dimshuffle(0, 1, 2)
        lse = switch(rows, lse, np.asarray(-np.inf, "float32"))
    return [cast(out, own), lse, *_state(node)]


def _state(node: Apply) -> list[Variable]:
    """The state after as many draws as there are scores, if the node has one."""
    if len(node.outputs) < 3:
        return []
    (batch, heads, queries, _), (_, _, keys, _) = (dims_of(x) for x in node.inputs[:2])
    scores = as_dim(batch) * as_dim(heads) * as_dim(queries) * as_dim(keys)
    return [state_after(node.inputs[-2], scores)]


@BACKEND.lowering("local_dnn_attention_grad", None, AttentionGrad, refuses=refuses)
def attention_grad(node: Apply, context: Context) -> Sequence[Variable]:
    """Its gradient to GpuDnnAttentionGrad."""
    given = _given(node, context)
    dtype = dtype_of(node, context.target)
    q, k, v, out, lse, dout = node.inputs[:6]
    if "mask" in given.neutral:  # a query that sees nothing has a mean in cuDNN, of no gradient
        sees = given.sees
        assert sees is not None
        lse = switch(sees.dimshuffle(0, 1, 2), lse, _NO_PROBABILITY)
        dout = switch(sees, dout, np.zeros((), dout.type.numpy))
    narrow = [cast(x, dtype) for x in (q, k, v, out)]
    op = GpuDnnAttentionGrad(given.how, len(node.outputs) > 3, given.rate)
    operands = (*narrow, cast(lse, "float32"), cast(dout, dtype), *given.extras.values())
    grads = [*op.make_node(*operands, hints=node.hints).outputs]
    if "key_lengths" in given.extras:
        for i, names in enumerate((_LENGTHS[::-1], _LENGTHS, _LENGTHS)):
            inside = given.inside(grads[i], *names)
            grads[i] = switch(inside, grads[i], np.zeros((), grads[i].type.numpy))
    return [cast(g, o.type.dtype) for g, o in zip(grads, node.outputs, strict=True)]


LOWERINGS = (attention, attention_grad)
