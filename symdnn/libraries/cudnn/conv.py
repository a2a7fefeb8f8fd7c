"""Convolution and its gradients to cuDNN's ops.

cuDNN pads both sides alike. Where the padding differs, the smaller amount is cuDNN's on both
sides; the rest is added by a pad op before the convolution, and cut off behind a gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from symdnn.config import config
from symdnn.graph.dims import known
from symdnn.graph.op import Op
from symdnn.graph.origin import Hints
from symdnn.graph.variable import Apply, Variable
from symdnn.libraries.cudnn.backend import BACKEND
from symdnn.libraries.cudnn.dims import as_2d, from_ncx, to_ncx
from symdnn.ops.array.pad import pad
from symdnn.ops.core.shape import as_dim, static_dim
from symdnn.ops.nn.conv import Conv, ConvGradInput, ConvGradWeight, Pad
from symdnn.ops.vendor.gpudnn_conv import (
    NONDETERMINISTIC_ALGORITHMS,
    DnnConvolution,
    GpuDnnConv,
    GpuDnnConvGradI,
    GpuDnnConvGradW,
    compute_precision,
)
from symdnn.opt.lower.lowering import Lowering
from symdnn.rewriting.rewrite import Context

# The accumulator dtypes that cuDNN has for each dtype of the data.
_ACC_DTYPES = {
    "float16": ("float16", "float32"),
    "bfloat16": ("float32",),
    "float32": ("float32",),
    "float64": ("float64",),
}


def _precision(node: Apply) -> str:
    wanted = node.hints.precision or str(config.dnn.conv.precision)
    precision = compute_precision(wanted, node.outputs[0].type.dtype)
    forward = isinstance(node.op, Conv)
    # cuDNN's gradients accumulate float16 in float32 only.
    return "float32" if precision == "float16" and not forward else precision


def _algorithm(direction: str, hints: Hints, deterministic: bool) -> str | int:
    """The algorithm of the hint, else of the flag, which is read only here.

    With ``deterministic`` a flag for an algorithm whose bits vary is replaced. A hint for one stays
    and is refused when a plan is made.
    """
    hint: str | int | None = getattr(hints, f"algo_{direction}")
    if hint is not None:
        return hint
    flag = str(getattr(config.dnn.conv, f"algo_{direction}"))
    varies = flag in NONDETERMINISTIC_ALGORITHMS[direction]
    return "deterministic" if deterministic and varies else flag


def refuses(node: Apply, context: Context) -> str | None:
    """Only 1 to 3 dimensions, and accumulator dtypes that cuDNN has for the dtype."""
    op: Any = node.op
    if op.ndim > 3:
        return f"cuDNN convolves over at most 3 dimensions, not {op.ndim}"
    dtype = node.outputs[0].type.dtype
    if (precision := _precision(node)) not in _ACC_DTYPES[dtype]:
        return f"cuDNN does not accumulate {dtype} in {precision} (dnn.conv.precision)"
    return None


def _one_sided_padding(op: Any) -> list[tuple[int, int]]:
    """For each dimension the padding of each side beyond that of the other side."""
    pairs = [(0, 0) if isinstance(p, str) else p for p in op.padding]
    return [(a - min(a, b), b - min(a, b)) for a, b in pairs]


def _symmetric_padding(op: Any) -> tuple[Pad, ...]:
    """For each dimension the padding that both sides have."""
    return tuple(p if isinstance(p, str) else (min(p), min(p)) for p in op.padding)


def _padded(x: Variable, one_sided: Sequence[tuple[int, int]]) -> Variable:
    return pad(x, [(0, 0), (0, 0), *one_sided]) if any(map(any, one_sided)) else x


def _sum(d: Variable, n: int) -> Variable:
    size = known(d)
    return as_dim((d if size is None else size) + n) if n else d


def _applied(
    low: Any, a: Variable, b: Variable, dims: Sequence[Variable], one_sided: list[tuple[int, int]]
) -> Variable:
    """``low`` of (a, b, \\*dims), with the padding that cuDNN does not do."""
    if not isinstance(low, GpuDnnConvGradI):
        made: Variable = low(_padded(a, one_sided), b, *dims)
        return made
    whole = [_sum(d, before + after) for d, (before, after) in zip(dims, one_sided, strict=True)]
    dx: Variable = replace(low, static=tuple(map(static_dim, whole)))(a, b, *whole)
    if not any(map(any, one_sided)):
        return dx
    inner = [slice(p, _sum(d, p)) for d, (p, _) in zip(dims, one_sided, strict=True)]
    return dx[(slice(None), slice(None), *inner)]


def _lowering(name: str, kind: type[Op], low: type[DnnConvolution]) -> Lowering:
    def build(node: Apply, context: Context) -> Variable:
        own: Any = node.op
        op, ndim = as_2d(own), own.ndim
        made = low.of(
            op, padding=_symmetric_padding(op), num_groups=op.groups,
            conv_mode="conv" if op.flip else "cross", precision=_precision(node),
            algo=_algorithm(low.direction, node.hints, context.deterministic),
        )  # fmt: skip
        a, b, *dims = node.inputs
        if dims and ndim == 1:
            dims = [as_dim(1), *dims]
        y = _applied(made, to_ncx(a, ndim), to_ncx(b, ndim), dims, _one_sided_padding(op))
        return from_ncx(y, b, ndim)

    return BACKEND.lowering(name, low, kind, refuses=refuses, tags=("conv_dnn",))(build)


LOWERINGS = (
    _lowering("local_abstractconv_cudnn", Conv, GpuDnnConv),
    _lowering("local_abstractconv_gw_cudnn", ConvGradWeight, GpuDnnConvGradW),
    _lowering("local_abstractconv_gi_cudnn", ConvGradInput, GpuDnnConvGradI),
)
