"""Attention and its gradient to cuDNN's ops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from symdnn.graph.operators import operator
from symdnn.graph.target import Target
from symdnn.graph.variable import Apply, Variable
from symdnn.libraries.cudnn.backend import BACKEND, dtype_reason
from symdnn.ops.attention.attention import Attention, AttentionGrad
from symdnn.ops.attention.scores import Scores
from symdnn.ops.core.shape import as_dim, dims_of
from symdnn.ops.elementwise.arithmetic import cast
from symdnn.ops.elementwise.comparison import switch
from symdnn.ops.vendor.gpudnn_attention import GpuDnnAttention, GpuDnnAttentionGrad
from symdnn.opt.precision.amp import amp_dtype
from symdnn.rewriting.rewrite import Context

__all__ = ["LOWERINGS"]

#: The most features, and of Hopper and later GPUs with this version of cuDNN.
_MAX_FEATURES, _MAX_FEATURES_LATER, _LATER_VERSION = 128, 256, (9, 5)

_LENGTHS = ("key_lengths", "query_lengths")


def _dtype(node: Apply, target: Target) -> str:
    """The dtype in which the node is computed: its own, or that of the flag ``amp``."""
    own: str = node.inputs[0].type.dtype
    if own == "float32" and node.hints.precision is None:
        return amp_dtype(target) or own
    return own


def _op(node: Apply) -> Attention | AttentionGrad:
    assert isinstance(node.op, Attention | AttentionGrad)
    return node.op


def refuses(node: Apply, context: Context) -> str | None:
    """Dtypes, features and settings that cuDNN does not have."""
    how, target = _op(node).how, context.target
    q, k, v = (x.type.shape for x in node.inputs[:3])
    if (target.compute_capability or (0, 0)) < (8, 0):
        return f"cuDNN's attention needs compute capability 8.0 or more, {target} has not"
    reason = dtype_reason(target, _dtype(node, target), GpuDnnAttention)
    if reason is not None:
        return reason
    if isinstance(node.op, AttentionGrad) and node.op.of_lse:
        return "cuDNN takes no cotangent of the log-sum-exp"
    later = (target.compute_capability or (0, 0)) >= (9, 0) and (
        target.cudnn or ()
    ) >= _LATER_VERSION
    most = _MAX_FEATURES_LATER if later else _MAX_FEATURES
    for size in (q[3], v[3]):
        if size is None or size % 8 or not 0 < size <= most:
            return f"cuDNN takes features that are known multiples of 8 up to {most}, not {size}"
    if q[1] is None or k[1] is None:
        return "the numbers of heads are not known"
    return _settings_reason(how, q[2], k[2])


def _settings_reason(how: Scores, queries: int | None, keys: int | None) -> str | None:
    unknown = [e for e in how.extras if e not in _LENGTHS]
    if unknown or how.softcap:
        return f"not used with {', '.join([*unknown, *['softcap'] * bool(how.softcap)])}"
    if how.right is not None and how.right > 0:
        return "a window ends at the query"
    if how.left is not None and how.right is None:
        return "a window to the left ends at the query"
    if how.left is not None or how.bottom_right:
        if how.extras:
            return "not used with lengths beside a window, or one that ends at the last key"
        if queries is None or keys is None or queries > keys:
            return "a query may see no key: there may be more queries than keys"
    return None


def _with_lengths(node: Apply, first: int) -> tuple[Scores, list[Variable]]:
    """The settings and operands with both lengths, in int32, where one is given."""
    how = _op(node).how
    if not how.extras:
        return how, []
    given = how.named(node.inputs[first:])
    found = []
    for name, x in zip(_LENGTHS, (node.inputs[1], node.inputs[0])):
        batch, _, time, _ = dims_of(x)
        whole = operator("alloc")(cast(as_dim(time), "int32"), batch)
        found.append(cast(given[name], "int32") if name in given else whole)
    return replace(how, extras=_LENGTHS), found


def _sees(how: Scores, node: Apply, extras: Sequence[Variable], x: Variable) -> Variable | None:
    """Where the rows of a result (batch, heads, time, ...) are beside a row that sees something."""
    if "query_lengths" not in how.extras:
        return None
    keys, queries = extras
    at = operator("arange")(dims_of(x)[2], dtype="int32")
    inside = (at.dimshuffle("x", 0) < queries.dimshuffle(0, "x")) & (keys > 0).dimshuffle(0, "x")
    return inside.dimshuffle(0, "x", 1, *["x"] * (x.type.ndim - 3))


@BACKEND.lowering("local_dnn_attention", Attention, refuses=refuses)
def attention(node: Apply, context: Context) -> Sequence[Variable]:
    """Attention to GpuDnnAttention."""
    how, extras = _with_lengths(node, 3)
    dtype, own = _dtype(node, context.target), node.inputs[0].type.dtype
    qkv = [cast(x, dtype) for x in node.inputs[:3]]
    out, lse = GpuDnnAttention(how)(*qkv, *extras, hints=node.hints)
    seen = _sees(how, node, extras, out)
    if seen is not None:
        out = switch(seen, out, np.zeros((), out.type.numpy))
        lse = switch(seen.dimshuffle(0, 1, 2), lse, np.asarray(-np.inf, "float32"))
    return [cast(out, own), lse]


@BACKEND.lowering("local_dnn_attention_grad", AttentionGrad, refuses=refuses)
def attention_grad(node: Apply, context: Context) -> Sequence[Variable]:
    """Its gradient to GpuDnnAttentionGrad."""
    how, extras = _with_lengths(node, 6)
    dtype, own = _dtype(node, context.target), node.inputs[0].type.dtype
    q, k, v, out, lse, dout = node.inputs[:6]
    narrow = [cast(x, dtype) for x in (q, k, v, out)]
    grads = GpuDnnAttentionGrad(how)(*narrow, lse, cast(dout, dtype), *extras, hints=node.hints)
    inside = [_inside(g, extras, i == 0) if extras else g for i, g in enumerate(grads)]
    return [cast(g, own) for g in inside]


def _inside(g: Variable, extras: Sequence[Variable], of_query: bool) -> Variable:
    """A gradient with 0 beyond the sequence's end."""
    keys, queries = extras
    at = operator("arange")(dims_of(g)[2], dtype="int32").dimshuffle("x", 0)
    ends, others = (queries, keys) if of_query else (keys, queries)
    inside = (at < ends.dimshuffle(0, "x")) & (others > 0).dimshuffle(0, "x")
    return switch(inside.dimshuffle(0, "x", 1, "x"), g, np.zeros((), g.type.numpy))


LOWERINGS = (attention, attention_grad)
