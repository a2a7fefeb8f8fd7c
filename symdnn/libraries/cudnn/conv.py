"""Convolution and its gradients to cuDNN's ops.

A convolution over one dimension becomes one over two, of which the first has size 1. cuDNN pads
both sides alike. Where the padding differs, the smaller amount is cuDNN's on both sides; the rest
is added by a pad op before the convolution, and cut off behind a gradient.
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
    NONDETERMINISTIC_ALGORITHMS,
    DnnConvolution,
    GpuDnnConv,
    GpuDnnConvGradI,
    GpuDnnConvGradW,
    compute_precision,
)
from symdnn.rewriting.rewrite import Context

__all__ = ["LOWERINGS"]

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
    if (reason := dtype_reason(context.target, dtype, DnnConvolution)) is not None:
        return reason
    if (precision := _precision(node)) not in _ACC_DTYPES[dtype]:
        return f"cuDNN does not accumulate {dtype} in {precision} (dnn.conv.precision)"
    return None


def _settings(node: Apply, context: Context, kind: type[DnnConvolution]) -> dict[str, Any]:
    """Fields of cuDNN's op except padding, stride and dilation."""
    op: Any = node.op
    return {
        "algo": _algorithm(kind.direction, node.hints, context.deterministic),
        "num_groups": op.groups,
        "conv_mode": "conv" if op.flip else "cross",
        "precision": _precision(node),
    }


def _one_sided_padding(op: Any) -> list[tuple[int, int]]:
    """For each dimension the padding of each side beyond that of the other side."""
    pairs = [(0, 0) if isinstance(p, str) else p for p in op.padding]
    return [(a - min(a, b), b - min(a, b)) for a, b in pairs]


def _symmetric_padding(op: Any) -> tuple[Pad, ...]:
    """For each dimension the padding that both sides have."""
    return tuple(p if isinstance(p, str) else (min(p), min(p)) for p in op.padding)


def _padded(x: Variable, one_sided: Sequence[tuple[int, int]]) -> Variable:
    return pad(x, [(0, 0), (0, 0), *one_sided]) if any(map(any, one_sided)) else x


def _as_2d(op: Any) -> Any:
    """The op over two dimensions that equals ``op`` over one, with a first dimension of size 1."""
    more = {"static": (1, *op.static)} if hasattr(op, "static") else {}
    return replace(
        op, padding=((0, 0), *op.padding), stride=(1, *op.stride), dilation=(1, *op.dilation),
        **more,
    )  # fmt: skip


def _with_unit_dim(v: Variable) -> Variable:
    return v.dimshuffle(0, 1, "x", 2)


def _without_unit_dim(v: Variable) -> Variable:
    return v.dimshuffle(0, 1, 3)


TAGS = ("conv_dnn",)


@BACKEND.lowering("local_abstractconv_cudnn", Conv, refuses=refuses, tags=TAGS)
def forward(node: Apply, context: Context) -> Variable:
    """Convolution to GpuDnnConv."""
    op: Any = node.op
    settings = _settings(node, context, GpuDnnConv)
    x, w = node.inputs
    if op.ndim == 1:
        return _without_unit_dim(
            _forward(_as_2d(op), _with_unit_dim(x), _with_unit_dim(w), settings)
        )
    return _forward(op, x, w, settings)


def _forward(op: Any, x: Variable, w: Variable, settings: dict[str, Any]) -> Variable:
    low = GpuDnnConv(
        padding=_symmetric_padding(op), stride=op.stride, dilation=op.dilation, **settings
    )
    return low(_padded(x, _one_sided_padding(op)), w)  # type: ignore[no-any-return]


@BACKEND.lowering("local_abstractconv_gw_cudnn", ConvGradWeight, refuses=refuses, tags=TAGS)
def grad_weight(node: Apply, context: Context) -> Variable:
    """The gradient of the filters to GpuDnnConvGradW."""
    op: Any = node.op
    settings = _settings(node, context, GpuDnnConvGradW)
    x, dy, *dims = node.inputs
    if op.ndim == 1:
        one = as_dim(1)
        return _without_unit_dim(
            _grad_weight(_as_2d(op), _with_unit_dim(x), _with_unit_dim(dy), [one, *dims], settings)
        )
    return _grad_weight(op, x, dy, dims, settings)


def _grad_weight(
    op: Any, x: Variable, dy: Variable, dims: Sequence[Variable], settings: dict[str, Any]
) -> Variable:
    low = GpuDnnConvGradW(
        padding=_symmetric_padding(op),
        stride=op.stride,
        dilation=op.dilation,
        static=op.static,
        **settings,
    )
    return low(_padded(x, _one_sided_padding(op)), dy, *dims)  # type: ignore[no-any-return]


@BACKEND.lowering("local_abstractconv_gi_cudnn", ConvGradInput, refuses=refuses, tags=TAGS)
def grad_input(node: Apply, context: Context) -> Variable:
    """The gradient of the input to GpuDnnConvGradI."""
    op: Any = node.op
    settings = _settings(node, context, GpuDnnConvGradI)
    w, dy, *dims = node.inputs
    if op.ndim == 1:
        one = as_dim(1)
        return _without_unit_dim(
            _grad_input(_as_2d(op), _with_unit_dim(w), _with_unit_dim(dy), [one, *dims], settings)
        )
    return _grad_input(op, w, dy, dims, settings)


def _grad_input(
    op: Any, w: Variable, dy: Variable, dims: Sequence[Variable], settings: dict[str, Any]
) -> Variable:
    one_sided = _one_sided_padding(op)
    whole = [_sum(d, a + b) for d, (a, b) in zip(dims, one_sided, strict=True)]
    low = GpuDnnConvGradI(
        padding=_symmetric_padding(op), stride=op.stride, dilation=op.dilation,
        static=tuple(static_dim(d) for d in whole), **settings,
    )  # fmt: skip
    dx: Variable = low(w, dy, *whole)
    if not any(map(any, one_sided)):
        return dx
    inner = [slice(a, _sum(d, a)) for d, (a, _) in zip(dims, one_sided, strict=True)]
    return dx[(slice(None), slice(None), *inner)]


def _sum(d: Variable, n: int) -> Variable:
    size = known(d)
    return as_dim((d if size is None else size) + n) if n else d


LOWERINGS = (forward, grad_weight, grad_input)
