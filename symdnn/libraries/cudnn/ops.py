"""Pooling, softmax, reductions, activation functions and the spatial transformer to cuDNN's ops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from symdnn.graph.dims import product
from symdnn.graph.variable import Apply, Variable, constant
from symdnn.libraries.cudnn.backend import BACKEND, dtype_reason
from symdnn.ops.array.argreduce import ArgMax
from symdnn.ops.array.reduce import Max, Min, Prod, Sum
from symdnn.ops.core.shape import as_dim, dims_of, reshape
from symdnn.ops.elementwise.activations import Elu, Relu, Sigmoid
from symdnn.ops.elementwise.arithmetic import Abs, Minimum, Sqr, cast, sqr
from symdnn.ops.elementwise.math import Log, Tanh
from symdnn.ops.nn.pool import AveragePoolGrad, MaxPoolGrad, Pool
from symdnn.ops.nn.softmax import LogSoftmax, LogSoftmaxGrad, Softmax, SoftmaxGrad
from symdnn.ops.nn.spatial_transformer import (
    TransformerGrid,
    TransformerGridGrad,
    TransformerSampler,
    TransformerSamplerGrad,
)
from symdnn.ops.vendor.gpudnn_pool import GpuDnnPool, GpuDnnPoolGrad
from symdnn.ops.vendor.gpudnn_softmax import (
    GpuDnnActivation,
    GpuDnnReduction,
    GpuDnnSoftmax,
    GpuDnnSoftmaxGrad,
    reduction_word,
)
from symdnn.ops.vendor.gpudnn_spatial_transformer import (
    GpuDnnTransformerGradI,
    GpuDnnTransformerGradT,
    GpuDnnTransformerGrid,
    GpuDnnTransformerSampler,
)
from symdnn.rewriting.facts import number
from symdnn.rewriting.rewrite import Context, node_rewrite

__all__ = ["LOWERINGS", "RULES"]


# -- pooling --------------------------------------------------------------------------------------


def pool_refuses(node: Apply, context: Context) -> str | None:
    """Only 1 to 3 pooled dimensions, of floats."""
    op: Any = node.op
    if op.ndim > 3:
        return f"cuDNN pools over at most 3 dimensions, not {op.ndim}"
    return dtype_reason(context.target, node.outputs[0].type.dtype, GpuDnnPool)


def _mode(node: Apply, context: Context) -> str:
    op: Any = node.op
    if op.mode == "max" and (context.deterministic or node.hints.algo_fwd == "deterministic"):
        return "max_deterministic"
    return "average_inc_pad" if _is_scaled_mean(op) else str(op.mode)


def _is_scaled_mean(op: Any) -> bool:
    """Whether a sum is cuDNN's mean times the window's size: so it is for whole windows."""
    return bool(op.mode == "sum" and op.ignore_border)


def _pool_fields(op: Any) -> dict[str, Any]:
    border = {"ignore_border": op.ignore_border}
    if op.ndim > 1:
        return {"ws": op.ws, "stride": op.stride, "pad": op.pad, **border}
    return {"ws": (1, *op.ws), "stride": (1, *op.stride), "pad": (0, *op.pad), **border}


def _as_ncx(v: Variable, ndim: int) -> Variable:
    """``v`` as (N, C, sizes...) with at least two pooled dimensions."""
    lead, spatial = dims_of(v)[: v.type.ndim - ndim], dims_of(v)[v.type.ndim - ndim :]
    if len(lead) == 2 and ndim > 1:
        return v
    if len(lead) == 2:
        return v.dimshuffle(0, 1, "x", 2)
    shape = (product(lead), 1, *([1] if ndim == 1 else []), *spatial)
    return reshape(v, shape, ndim=len(shape))


def _from_ncx(v: Variable, like: Variable, ndim: int) -> Variable:
    """``v`` with the dimensions before the pooled ones as ``like`` has them."""
    if like.type.ndim - ndim == 2 and ndim > 1:
        return v
    if like.type.ndim - ndim == 2:
        return v.dimshuffle(0, 1, 3)
    lead = dims_of(like)[: like.type.ndim - ndim]
    return reshape(v, (*lead, *dims_of(v)[v.type.ndim - ndim :]), ndim=like.type.ndim)


def _window_elements(op: Any) -> int:
    size: int = product(op.ws)
    return size


@BACKEND.lowering("local_gpua_pool_dnn_alternative", Pool, refuses=pool_refuses)
def pool(node: Apply, context: Context) -> Variable:
    """Pooling to GpuDnnPool; a sum is the mean times the window's size."""
    op: Any = node.op
    (x,) = node.inputs
    low = GpuDnnPool(_mode(node, context), **_pool_fields(op))
    y = _from_ncx(low(_as_ncx(x, op.ndim)), x, op.ndim)
    return y * constant(_window_elements(op), dtype=x.type.dtype) if _is_scaled_mean(op) else y


@BACKEND.lowering("local_gpua_pool_dnn_grad_stride", MaxPoolGrad, refuses=pool_refuses)
def max_pool_grad(node: Apply, context: Context) -> Variable:
    """The gradient of max pooling to GpuDnnPoolGrad."""
    op: Any = node.op
    low = GpuDnnPoolGrad(_mode(node, context), **_pool_fields(op))
    dx = low(*(_as_ncx(v, op.ndim) for v in node.inputs))
    return _from_ncx(dx, node.inputs[0], op.ndim)


@BACKEND.lowering("local_gpua_avg_pool_dnn_grad_stride", AveragePoolGrad, refuses=pool_refuses)
def average_pool_grad(node: Apply, context: Context) -> Variable:
    """The gradient of average pooling to GpuDnnPoolGrad."""
    op: Any = node.op
    dy, *dims = node.inputs
    one = [] if op.ndim > 1 else [1]
    low = GpuDnnPoolGrad(_mode(node, context), **_pool_fields(op), static=(*one, *op.static))
    dx = low(_as_ncx(dy, op.ndim), *map(as_dim, one), *dims)
    dx = _from_ncx(dx, dy, op.ndim)
    return dx * constant(_window_elements(op), dtype=dy.type.dtype) if _is_scaled_mean(op) else dx


# -- softmax --------------------------------------------------------------------------------------


def float_refuses(node: Apply, context: Context) -> str | None:
    """Only floats of dtypes that cuDNN has."""
    return dtype_reason(context.target, node.outputs[0].type.dtype, GpuDnnSoftmax)


@BACKEND.lowering("local_softmax_dnn", Softmax, refuses=float_refuses)
def softmax(node: Apply, context: Context) -> Variable:
    """Softmax along any axis to GpuDnnSoftmax."""
    assert isinstance(node.op, Softmax)
    return GpuDnnSoftmax("accurate", "channel", axis=node.op.axis)(*node.inputs)


@BACKEND.lowering("local_gpua_logsoftmax_to_dnn", LogSoftmax, refuses=float_refuses)
def log_softmax(node: Apply, context: Context) -> Variable:
    """Log-softmax to GpuDnnSoftmax('log')."""
    assert isinstance(node.op, LogSoftmax)
    return GpuDnnSoftmax("log", "channel", axis=node.op.axis)(*node.inputs)


@BACKEND.lowering("local_gpua_softmax_dnn_grad", SoftmaxGrad, LogSoftmaxGrad, refuses=float_refuses)
def softmax_grad(node: Apply, context: Context) -> Variable:
    """The gradients of softmax and log-softmax to GpuDnnSoftmaxGrad."""
    op: Any = node.op
    y, dy = node.inputs
    algo = "log" if isinstance(op, LogSoftmaxGrad) else "accurate"
    return GpuDnnSoftmaxGrad(algo, "channel", axis=op.axis)(dy, y)


@node_rewrite(
    Log, phase="lower", tags=("cudnn", "stabilize", "fast_compile"), name="local_log_softmax_dnn"
)
def log_of_softmax(node: Apply, context: Context) -> Variable | None:
    """``log(GpuDnnSoftmax(x))`` to GpuDnnSoftmax('log'), where nobody else reads the softmax."""
    made = node.inputs[0].owner
    if made is None or not isinstance(made.op, GpuDnnSoftmax) or made.op.algo == "log":
        return None
    if not context.only_user(node.inputs[0]):
        return None
    return replace(made.op, algo="log")(*made.inputs, hints=made.hints)


# -- reductions -----------------------------------------------------------------------------------


def reduction_refuses(node: Apply, context: Context) -> str | None:
    """Only 1 to 8 dimensions, one float dtype, accumulated in float32 or float64."""
    op: Any = node.op
    (x,) = node.inputs
    dtype = x.type.dtype
    if not op.axes or x.type.ndim > 8:
        return f"cuDNN reduces 1 to 8 dimensions, not the axes {op.axes} of {x.type.ndim}"
    if (reason := dtype_reason(context.target, dtype)) is not None:
        return reason
    wide = "float64" if dtype == "float64" else "float32"
    acc = getattr(op, "acc_dtype", wide)
    if acc != wide:
        return f"cuDNN accumulates a reduction of {dtype} in {wide}, not {acc}"
    if not isinstance(op, ArgMax) and node.outputs[0].type.dtype != dtype:
        return f"the result is {node.outputs[0].type.dtype}, the input {dtype}"
    return None


def _with_kept_dims(v: Variable, op: Any, ndim: int) -> Variable:
    if not op.keepdims:
        return v
    kept = iter(range(ndim - len(op.axes)))
    return v.dimshuffle(["x" if i in op.axes else next(kept) for i in range(ndim)])


def _operand_under(x: Variable, context: Context, kind: type[Any]) -> Variable | None:
    """The operand of ``x``, if ``x`` is an op of this kind and has one reader; else None."""
    made = x.owner
    if made is None or type(made.op) is not kind or not context.only_user(x):
        return None
    operand = made.inputs[0]
    return operand if operand.type.dtype == x.type.dtype else None


@BACKEND.lowering("local_dnn_reduction", Sum, Prod, Max, Min, refuses=reduction_refuses)
def reduction(node: Apply, context: Context) -> Variable:
    """Reductions to GpuDnnReduction, also sums of squares, sums and maxima of absolute values."""
    op: Any = node.op
    (x,) = node.inputs
    word = reduction_word(op) or ""
    power = None
    if word == "add" and (v := _operand_under(x, context, Sqr)) is not None:
        word, x, power = "norm2", v, sqr
    elif word in ("add", "maximum") and (v := _operand_under(x, context, Abs)) is not None:
        word, x = ("norm1" if word == "add" else "absmax"), v
    dtype = x.type.dtype
    acc = "float64" if dtype == "float64" else "float32"
    y: Variable = GpuDnnReduction(word, op.axes, acc, dtype)(x)
    return _with_kept_dims(power(y) if power is not None else y, op, x.type.ndim)


@BACKEND.lowering("local_dnn_argmax", ArgMax, refuses=reduction_refuses)
def argmax(node: Apply, context: Context) -> Variable:
    """The index of the maximum to the second output of GpuDnnReduction."""
    # As measured with cuDNN 9.19 on an H200: of equal maxima the first, the first NaN, and indices
    # in C order over any axes.
    op: Any = node.op
    (x,) = node.inputs
    acc = "float64" if x.type.dtype == "float64" else "float32"
    _, index = GpuDnnReduction("maximum", op.axes, acc, x.type.dtype, True)(x)
    return _with_kept_dims(cast(index, "int64"), op, x.type.ndim)


@node_rewrite(
    GpuDnnReduction, phase="lower", tags=("cudnn", "fast_compile"), name="local_cudnn_maxandargmax"
)
def max_and_argmax(node: Apply, context: Context) -> Variable | None:
    """A maximum whose index is computed as well is the first output of that reduction."""
    op = node.op
    assert isinstance(op, GpuDnnReduction)
    if op.red_op != "maximum" or op.return_indices:
        return None
    both = replace(op, return_indices=True)
    for user in context.fgraph.user_nodes(node.inputs[0]):
        if user.op == both:
            return user.outputs[0]
    return None


# -- activation functions (rules tagged optional) --------------------------------------------------

_ACTIVATIONS: dict[type[Any], str] = {Relu: "relu", Sigmoid: "sigmoid", Tanh: "tanh", Elu: "elu"}


@node_rewrite(
    *_ACTIVATIONS, Minimum, phase="lower", tags=("optional",), name="local_dnn_activation"
)
def activation(node: Apply, context: Context) -> Variable | None:
    """relu, sigmoid, tanh and elu to GpuDnnActivation."""
    x, dtype = node.inputs[0], node.outputs[0].type.dtype
    if context.target.kind != "cuda" or not context.target.has("cudnn") or x.type.dtype != dtype:
        return None
    if dtype_reason(context.target, dtype, GpuDnnActivation) or x.type.ndim == 0:
        return None
    if isinstance(node.op, Minimum):
        return _clipped(node, context)
    coef = 1.0
    if isinstance(node.op, Elu):
        alpha = number(node.inputs[1])
        if alpha is None:
            return None
        coef = float(alpha)
    return GpuDnnActivation(_ACTIVATIONS[type(node.op)], coef)(x)


def _clipped(node: Apply, context: Context) -> Variable | None:
    """A minimum of a relu and a constant as cuDNN's clipped relu."""
    for v, ceiling in (node.inputs, node.inputs[::-1]):
        made, top = v.owner, number(ceiling)
        if made is not None and made.op == GpuDnnActivation("relu") and top is not None:
            return GpuDnnActivation("clipped_relu", float(top))(*made.inputs)
    return None


# -- spatial transformer --------------------------------------------------------------------------


def transformer_refuses(node: Apply, context: Context) -> str | None:
    """Only floats of dtypes that cuDNN has."""
    return dtype_reason(context.target, node.outputs[0].type.dtype)


@BACKEND.lowering("local_dnn_transformer_grid", TransformerGrid, refuses=transformer_refuses)
def transformer_grid(node: Apply, context: Context) -> Variable:
    """The sampling grid to GpuDnnTransformerGrid."""
    return GpuDnnTransformerGrid()(*node.inputs)


@BACKEND.lowering("local_dnn_transformer_sampler", TransformerSampler, refuses=transformer_refuses)
def transformer_sampler(node: Apply, context: Context) -> Variable:
    """The bilinear sampler to GpuDnnTransformerSampler."""
    return GpuDnnTransformerSampler()(*node.inputs)


@BACKEND.lowering(
    "local_dnn_transformer_grad_i", TransformerSamplerGrad, refuses=transformer_refuses
)
def transformer_grad_i(node: Apply, context: Context) -> Sequence[Variable]:
    """The sampler's gradient to GpuDnnTransformerGradI."""
    return list(GpuDnnTransformerGradI()(*node.inputs))


@BACKEND.lowering("local_dnn_transformer_grad_t", TransformerGridGrad, refuses=transformer_refuses)
def transformer_grad_t(node: Apply, context: Context) -> Variable:
    """The grid's gradient to GpuDnnTransformerGradT."""
    return GpuDnnTransformerGradT()(*node.inputs)


LOWERINGS = (
    pool, max_pool_grad, average_pool_grad, softmax, log_softmax, softmax_grad, reduction, argmax,
    transformer_grid, transformer_sampler, transformer_grad_i, transformer_grad_t,
)  # fmt: skip

RULES = (log_of_softmax, max_and_argmax, activation)
