"""Scaling and adding behind cuDNN's convolutions, merged into the convolution (alpha and beta).

``c * conv`` sets alpha, ``conv + v`` sets beta and makes ``v`` the residual operand, where nothing
else reads the convolution. Only constants are merged: cuDNN reads these numbers on the host.

A sum with a shared variable is usually its update. A fused elementwise kernel computes that in
place. Merged, it would need two copies: one of the old value, one of the result.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from symdnn.graph.op import Op
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
from symdnn.opt.epilogue.epilogue import constant_factor, same_type
from symdnn.rewriting.facts import is_old_value, real_float
from symdnn.rewriting.rewrite import Context, Rewrite, reads

_Build = Callable[..., Variable | None]
_TAGS = frozenset({"cudnn", "conv_dnn", "fast_compile"})
_OPS_BY_NAME: dict[str, type[DnnConvolution]] = {
    "conv": GpuDnnConv, "convw": GpuDnnConvGradW, "convi": GpuDnnConvGradI,
}  # fmt: skip


def _sole_convolution(v: Variable, kind: type[DnnConvolution], context: Context) -> Apply | None:
    """The convolution of this kind that makes ``v``, if ``v`` has one reader."""
    node = context.sole_maker(v)
    return node if node is not None and type(node.op) is kind else None


def _applied(node: Apply, op: Any, *more: Variable) -> Variable:
    made: Variable = op(*node.inputs, *more, hints=node.hints)
    return made


def _in_update(v: Variable, context: Context) -> bool:
    """Whether ``v`` is added to the old value of a shared variable."""
    users = [u for u in context.fgraph.user_nodes(v) if isinstance(u.op, Add | Sub)]
    return any(is_old_value(w) for u in users for w in u.inputs if w is not v)


def _with_alpha(node: Apply, context: Context, kind: type[DnnConvolution]) -> Variable | None:
    """``c * conv`` as a convolution with an alpha."""
    if not real_float(node.outputs[0]) or _in_update(node.outputs[0], context):
        return None
    for v in node.inputs:
        conv, factor = _sole_convolution(v, kind, context), constant_factor(node, v)
        if conv is None or factor is None or not same_type(v, node.outputs[0]):
            continue
        op: Any = conv.op
        if op.alpha * factor != 0 and (op.beta == 0 or op.beta * factor != 0):
            terms = {"alpha": op.alpha * factor, "residual": op.beta * factor}
            return _applied(conv, op.ending(v.type.dtype, **terms))
    return None


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


def _with_beta(node: Apply, context: Context, kind: type[DnnConvolution]) -> Variable | None:
    """``conv + v`` as a convolution that adds to ``v``."""
    for v, sign, out, beta in _terms(node):
        conv = _sole_convolution(v, kind, context)
        if conv is None or isinstance(out, Constant) or is_old_value(out):
            continue
        op: Any = conv.op
        same = same_type(v, out) and same_type(v, node.outputs[0])
        if op.beta == 0 and same and v is not out and not _graph_api_is_better(v.type.dtype):
            scaled = op.ending(v.type.dtype, alpha=op.alpha * sign, residual=beta)
            return _applied(conv, scaled, out)
    return None


def _merge(name: str, ops: tuple[type[Op], ...], build: _Build, text: str) -> list[Rewrite]:
    """The rewrite of each direction, whose name has Theano's word for it."""
    return [
        Rewrite(
            name.format(word), "lower", ops, partial(build, kind=kind), _TAGS,
            text.format(kind.__name__), admits=reads(kind), target="cuda",
        )
        for word, kind in _OPS_BY_NAME.items()
    ]  # fmt: skip


RULES = (
    *_merge("local_dnn_{}_alpha_merge", (Mul, Neg, TrueDiv), _with_alpha, "c * {0} with an alpha"),
    *_merge("local_dnn_{}_output_merge", (Add, Sub), _with_beta, "{0} + v as one that adds to v"),
)
