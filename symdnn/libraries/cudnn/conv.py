"""Convolution and its gradients to cuDNN's.

Over one dimension it is done as over two, the first of size 1. Padding that differs on the two
sides: what is common stays with cuDNN, the rest is padded before (and cut off after a gradient).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from symdnn.config import config
from symdnn.graph.dims import known
from symdnn.graph.origin import Hints
from symdnn.graph.variable import Apply, Variable
from symdnn.libraries.cudnn.backend import BACKEND, dtype_reason
from symdnn.ops.array.pad import pad
from symdnn.ops.core.shape import as_dim, static_dim
from symdnn.ops.nn.conv import Conv, ConvGradInput, ConvGradWeight, Pad
from symdnn.ops.vendor.gpudnn_conv import (
    RANDOM,
    DnnConvolution,
    GpuDnnConv,
    GpuDnnConvGradI,
    GpuDnnConvGradW,
    compute_precision,
)
from symdnn.rewriting.rewrite import Context

__all__ = ["LOWERINGS"]

# Accumulation dtypes that cuDNN has for each dtype of the data.
_PRECISIONS = {
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
    """The hint's algorithm, else the flag's; read once, here.

    A hint that does not repeat its bits is refused when a plan is made; a flag gives way.
    """
    hint: str | int | None = getattr(hints, f"algo_{direction}")
    if hint is not None:
        return hint
    flag = str(getattr(config.dnn.conv, f"algo_{direction}"))
    return "deterministic" if deterministic and flag in RANDOM[direction] else flag


def refuses(node: Apply, context: Context) -> str | None:
    """cuDNN convolves over two or three dimensions (one is made two), in some precisions."""
    op: Any = node.op
    if op.ndim > 3:
        return f"cuDNN convolves over at most 3 dimensions, not {op.ndim}"
    dtype = node.outputs[0].type.dtype
    if (reason := dtype_reason(context.target, dtype, DnnConvolution)) is not None:
        return reason
    if (precision := _precision(node)) not in _PRECISIONS[dtype]:
        return f"cuDNN does not accumulate {dtype} in {precision} (dnn.conv.precision)"
    return None


def _settings(node: Apply, context: Context, kind: type[DnnConvolution]) -> dict[str, Any]:
    """Fields of the GpuDnn op, but for padding, stride and dilation."""
    op: Any = node.op
    return {
        "algo": _algorithm(kind.direction, node.hints, context.deterministic),
        "num_groups": op.groups,
        "conv_mode": "conv" if op.flip else "cross",
        "precision": _precision(node),
    }


def _excess(op: Any) -> list[tuple[int, int]]:
    """What each side has more than the other."""
    pairs = [(0, 0) if isinstance(p, str) else p for p in op.padding]
    return [(a - min(a, b), b - min(a, b)) for a, b in pairs]


def _common(op: Any) -> tuple[Pad, ...]:
    """What both sides have."""
    return tuple(p if isinstance(p, str) else (min(p), min(p)) for p in op.padding)


def _padded(x: Variable, excess: Sequence[tuple[int, int]]) -> Variable:
    return pad(x, [(0, 0), (0, 0), *excess]) if any(map(any, excess)) else x


def _as_2d(op: Any) -> Any:
    """The settings over two dimensions of a convolution over one."""
    more = {"static": (1, *op.static)} if hasattr(op, "static") else {}
    return replace(
        op, padding=((0, 0), *op.padding), stride=(1, *op.stride), dilation=(1, *op.dilation),
        **more,
    )  # fmt: skip


def _widened(v: Variable) -> Variable:
    return v.dimshuffle(0, 1, "x", 2)


def _narrowed(v: Variable) -> Variable:
    return v.dimshuffle(0, 1, 3)


TAGS = ("conv_dnn",)


@BACKEND.lowering("local_abstractconv_cudnn", Conv, refuses=refuses, tags=TAGS)
def forward(node: Apply, context: Context) -> Variable:
    """Convolution to GpuDnnConv."""
    op: Any = node.op
    settings = _settings(node, context, GpuDnnConv)
    x, w = node.inputs
    if op.ndim == 1:
        return _narrowed(_forward(_as_2d(op), _widened(x), _widened(w), settings))
    return _forward(op, x, w, settings)


def _forward(op: Any, x: Variable, w: Variable, settings: dict[str, Any]) -> Variable:
    low = GpuDnnConv(padding=_common(op), stride=op.stride, dilation=op.dilation, **settings)
    return low(_padded(x, _excess(op)), w)  # type: ignore[no-any-return]


@BACKEND.lowering("local_abstractconv_gw_cudnn", ConvGradWeight, refuses=refuses, tags=TAGS)
def grad_weight(node: Apply, context: Context) -> Variable:
    """The gradient in the kernels to GpuDnnConvGradW."""
    op: Any = node.op
    settings = _settings(node, context, GpuDnnConvGradW)
    x, dy, *dims = node.inputs
    if op.ndim == 1:
        one = as_dim(1)
        return _narrowed(
            _grad_weight(_as_2d(op), _widened(x), _widened(dy), [one, *dims], settings)
        )
    return _grad_weight(op, x, dy, dims, settings)


def _grad_weight(
    op: Any, x: Variable, dy: Variable, dims: Sequence[Variable], settings: dict[str, Any]
) -> Variable:
    low = GpuDnnConvGradW(
        padding=_common(op), stride=op.stride, dilation=op.dilation, static=op.static, **settings
    )
    return low(_padded(x, _excess(op)), dy, *dims)  # type: ignore[no-any-return]


@BACKEND.lowering("local_abstractconv_gi_cudnn", ConvGradInput, refuses=refuses, tags=TAGS)
def grad_input(node: Apply, context: Context) -> Variable:
    """The gradient in the images to GpuDnnConvGradI."""
    op: Any = node.op
    settings = _settings(node, context, GpuDnnConvGradI)
    w, dy, *dims = node.inputs
    if op.ndim == 1:
        one = as_dim(1)
        return _narrowed(_grad_input(_as_2d(op), _widened(w), _widened(dy), [one, *dims], settings))
    return _grad_input(op, w, dy, dims, settings)


def _grad_input(
    op: Any, w: Variable, dy: Variable, dims: Sequence[Variable], settings: dict[str, Any]
) -> Variable:
    excess = _excess(op)
    whole = [_sum(d, a + b) for d, (a, b) in zip(dims, excess, strict=True)]
    low = GpuDnnConvGradI(
        padding=_common(op), stride=op.stride, dilation=op.dilation,
        static=tuple(static_dim(d) for d in whole), **settings,
    )  # fmt: skip
    dx: Variable = low(w, dy, *whole)
    if not any(map(any, excess)):
        return dx
    inner = [slice(a, _sum(d, a)) for d, (a, _) in zip(dims, excess, strict=True)]
    return dx[(slice(None), slice(None), *inner)]


def _sum(d: Variable, n: int) -> Variable:
    size = known(d)
    return as_dim((d if size is None else size) + n) if n else d


LOWERINGS = (forward, grad_weight, grad_input)
