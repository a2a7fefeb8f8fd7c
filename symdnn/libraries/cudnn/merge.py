"""Scaling and adding behind cuDNN's convolutions, merged into the convolution (alpha and beta).

``c * conv`` sets alpha, ``conv + v`` sets beta and makes ``v`` the residual operand, where nothing
else reads the convolution. Only constants are merged: cuDNN reads these numbers on the host.

A sum with a shared variable is usually its update. A fused elementwise kernel computes that in
place. Merged, it would need two copies: one of the old value, one of the result.
"""

from __future__ import annotations

from typing import Any

from symdnn.graph.type import TensorType
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.core.dtype import is_narrow_float
from symdnn.ops.elementwise.arithmetic import Add, Mul, Neg, Sub, TrueDiv
from symdnn.ops.nn.conv_words import allows_tf32
from symdnn.ops.vendor.gpudnn_conv import (
    DnnConvolution,
    GpuDnnConv,
    GpuDnnConvGradI,
    GpuDnnConvGradW,
)
from symdnn.rewriting.facts import is_old_value, number, real_float
from symdnn.rewriting.rewrite import Context, Rewrite, reads

__all__ = ["RULES"]

_TAGS = frozenset({"cudnn", "conv_dnn", "fast_compile"})
_OPS_BY_NAME: dict[str, type[DnnConvolution]] = {
    "conv": GpuDnnConv, "convw": GpuDnnConvGradW, "convi": GpuDnnConvGradI,
}  # fmt: skip


def _sole_convolution(v: Variable, kind: type[DnnConvolution], context: Context) -> Apply | None:
    """The convolution of this kind that makes ``v``, if ``v`` has one reader."""
    node = v.owner
    if node is None or type(node.op) is not kind or not context.only_user(v):
        return None
    return node


def _applied(node: Apply, op: Any, *more: Variable) -> Variable:
    return op(*node.inputs, *more, hints=node.hints)  # type: ignore[no-any-return]


def _same_type(a: Variable, b: Variable) -> bool:
    """Equal dtype and broadcast pattern: neither operand is broadcast to the other's shape."""
    s, t = a.type, b.type
    return (
        isinstance(s, TensorType)
        and isinstance(t, TensorType)
        and (s.dtype == t.dtype and s.broadcastable == t.broadcastable)
    )


def _in_update(v: Variable, context: Context) -> bool:
    """Whether ``v`` is added to the old value of a shared variable."""
    users = [u for u in context.fgraph.user_nodes(v) if isinstance(u.op, Add | Sub)]
    return any(is_old_value(w) for u in users for w in u.inputs if w is not v)


def _scalings(node: Apply) -> list[tuple[Variable, float]]:
    """(operand, factor) for each way in which the node scales an operand by a number."""
    if isinstance(node.op, Neg):
        return [(node.inputs[0], -1.0)]
    a, b = node.inputs
    x, y = number(a), number(b)
    if isinstance(node.op, TrueDiv):
        return [(a, 1 / float(y))] if y is not None and y != 0 else []
    return [(v, float(n)) for v, n in ((a, y), (b, x)) if n is not None]


def _alpha_merge(name: str, kind: type[DnnConvolution]) -> Rewrite:
    def apply(node: Apply, context: Context) -> Variable | None:
        if not real_float(node.outputs[0]) or _in_update(node.outputs[0], context):
            return None
        for v, factor in _scalings(node):
            conv = _sole_convolution(v, kind, context)
            if conv is None or not _same_type(v, node.outputs[0]) or isinstance(v, Constant):
                continue
            op: Any = conv.op
            alpha, beta = op.alpha * factor, op.beta * factor
            if alpha != 0 and (beta != 0 or op.beta == 0):
                return _applied(conv, op.ending(v.type.dtype, alpha=alpha, residual=beta))
        return None

    text = f"c * {kind.__name__} -> {kind.__name__} with an alpha"
    return Rewrite(
        f"local_dnn_{name}_alpha_merge", "lower", (Mul, Neg, TrueDiv), apply, _TAGS, text,
        admits=reads(kind), target="cuda",
    )  # fmt: skip


def _terms(node: Apply) -> list[tuple[Variable, float, Variable, float]]:
    """(convolution, its sign, addend, its sign), with each operand as the convolution."""
    a, b = node.inputs
    sign = -1.0 if isinstance(node.op, Sub) else 1.0
    return [(a, 1.0, b, sign), (b, sign, a, 1.0)]


def _graph_api_is_better(dtype: str) -> bool:
    """Whether the fast kernels for this dtype are those of cuDNN's graph API.

    They neither scale a result nor add to one. Elementwise kernels and the epilogues of the forward
    convolution do that.
    """
    tf32 = dtype == "float32" and allows_tf32()
    return tf32 or is_narrow_float(dtype)


def _output_merge(name: str, kind: type[DnnConvolution]) -> Rewrite:
    def apply(node: Apply, context: Context) -> Variable | None:
        for v, sign, out, beta in _terms(node):
            conv = _sole_convolution(v, kind, context)
            if conv is None or isinstance(out, Constant) or is_old_value(out):
                continue
            op: Any = conv.op
            same = _same_type(v, out) and _same_type(v, node.outputs[0])
            if op.beta == 0 and same and v is not out and not _graph_api_is_better(v.type.dtype):
                scaled = op.ending(v.type.dtype, alpha=op.alpha * sign, residual=beta)
                return _applied(conv, scaled, out)
        return None

    text = f"{kind.__name__} + v -> {kind.__name__} that adds to v"
    return Rewrite(
        f"local_dnn_{name}_output_merge", "lower", (Add, Sub), apply, _TAGS, text,
        admits=reads(kind), target="cuda",
    )  # fmt: skip


RULES = (
    *(_alpha_merge(name, kind) for name, kind in _OPS_BY_NAME.items()),
    *(_output_merge(name, kind) for name, kind in _OPS_BY_NAME.items()),
)
