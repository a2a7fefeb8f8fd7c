"""Pooling, softmax, reductions, activation functions and the spatial transformer to cuDNN's ops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from symdnn.graph.dims import product
from symdnn.graph.op import Op
from symdnn.graph.variable import Apply, Variable, constant
from symdnn.libraries.cudnn.backend import BACKEND
from symdnn.libraries.cudnn.dims import as_2d, from_ncx, to_ncx
from symdnn.ops.array.advanced_index import AdvancedSubtensor
from symdnn.ops.array.argreduce import ArgMax
from symdnn.ops.array.reduce import Max, Min, Prod, Sum
from symdnn.ops.array.view import expand_dims
from symdnn.ops.core.dtype import wide_float
from symdnn.ops.core.shape import as_dim
from symdnn.ops.elementwise.activations import Elu, Relu, Sigmoid
from symdnn.ops.elementwise.arithmetic import Abs, Minimum, Sqr, cast, sqr
from symdnn.ops.elementwise.math import Log, Tanh
from symdnn.ops.elemwise import Elemwise
from symdnn.ops.nn.pool import AveragePoolGrad, MaxPoolGrad, Pool
from symdnn.ops.nn.softmax import LogSoftmax, LogSoftmaxGrad, Softmax, SoftmaxGrad
from symdnn.ops.nn.spatial_transformer import (
    TransformerGrid,
    TransformerGridGrad,
    TransformerSampler,
    TransformerSamplerGrad,
)
from symdnn.ops.vendor.gpudnn_pool import GpuDnnPool, GpuDnnPoolBase, GpuDnnPoolGrad
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
from symdnn.opt.lower.lowering import Lowering
from symdnn.rewriting.facts import number
from symdnn.rewriting.rewrite import Context, node_rewrite

# -- pooling --------------------------------------------------------------------------------------


def pool_refuses(node: Apply, context: Context) -> str | None:
    """Only 1 to 3 pooled dimensions."""
    op: Any = node.op
    return f"cuDNN pools over at most 3 dimensions, not {op.ndim}" if op.ndim > 3 else None


def _mode(node: Apply, context: Context) -> str:
    op: Any = node.op
    if op.mode == "max" and (context.deterministic or node.hints.algo_fwd == "deterministic"):
        return "max_deterministic"
    return "average_inc_pad" if _is_scaled_mean(op) else str(op.mode)


def _is_scaled_mean(op: Any) -> bool:
    """Whether a sum is cuDNN's mean times the window's size: so it is for whole windows."""
    return bool(op.mode == "sum" and op.ignore_border)


def _pool_lowering(name: str, kind: type[Op], low: type[GpuDnnPoolBase]) -> Lowering:
    def build(node: Apply, context: Context) -> Variable:
        op: Any = node.op
        host = op.host_inputs
        arrays = [v for i, v in enumerate(node.inputs) if i not in host]
        dims = [node.inputs[i] for i in host]
        if dims and op.ndim == 1:
            dims = [as_dim(1), *dims]
        made = low.of(as_2d(op), mode=_mode(node, context))
        scale = constant(product(op.ws), dtype=arrays[0].type.dtype)
        before = _is_scaled_mean(op) and kind is AveragePoolGrad  # of fewer elements than behind
        out = made(*(to_ncx(v * scale if before else v, op.ndim) for v in arrays), *dims)
        y = from_ncx(out, arrays[0], op.ndim)
        return y * scale if _is_scaled_mean(op) and not before else y

    text = f"{kind.__name__} to {low.__name__}; a sum is the mean times the window's size"
    return BACKEND.lowering(name, low, kind, refuses=pool_refuses, text=text)(build)


POOLINGS = (
    _pool_lowering("local_gpua_pool_dnn_alternative", Pool, GpuDnnPool),
    _pool_lowering("local_gpua_pool_dnn_grad_stride", MaxPoolGrad, GpuDnnPoolGrad),
    _pool_lowering("local_gpua_avg_pool_dnn_grad_stride", AveragePoolGrad, GpuDnnPoolGrad),
)


# -- softmax --------------------------------------------------------------------------------------


@BACKEND.lowering("local_gpua_softmax_dnn_grad", GpuDnnSoftmaxGrad, SoftmaxGrad, LogSoftmaxGrad)
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
    """Only 1 to 8 dimensions, one dtype, accumulated in float32 or float64."""
    op: Any = node.op
    (x,) = node.inputs
    dtype = x.type.dtype
    if not op.axes or x.type.ndim > 8:
        return f"cuDNN reduces 1 to 8 dimensions, not the axes {op.axes} of {x.type.ndim}"
    wide = wide_float(dtype)
    acc = getattr(op, "acc_dtype", wide)
    if acc != wide:
        return f"cuDNN accumulates a reduction of {dtype} in {wide}, not {acc}"
    if not isinstance(op, ArgMax) and node.outputs[0].type.dtype != dtype:
        return f"the result is {node.outputs[0].type.dtype}, the input {dtype}"
    return None


def _with_kept_dims(v: Variable, op: Any) -> Variable:
    return expand_dims(v, op.axes) if op.keepdims else v


def _operand_under(x: Variable, context: Context, kind: type[Any]) -> Variable | None:
    """The operand of ``x``, if ``x`` is an op of this kind and has one reader; else None.

    An operand that is computed elementwise, or selected by index arrays, stays with ``x``: fusion
    computes both in the reduction. So does one that other elementwise nodes read: their kernel may
    take in a sum of all elements.
    """
    made = context.sole_maker(x)
    if made is None or type(made.op) is not kind:
        return None
    operand = made.inputs[0]
    maker, readers = operand.owner, context.fgraph.user_nodes(operand)
    fuses = maker is not None and isinstance(maker.op, Elemwise | AdvancedSubtensor)
    fuses = fuses or any(isinstance(n.op, Elemwise) for n in readers if n is not made)
    return operand if operand.type.dtype == x.type.dtype and not fuses else None


@BACKEND.lowering(
    "local_dnn_reduction", GpuDnnReduction, Sum, Prod, Max, Min, refuses=reduction_refuses
)
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
    y: Variable = GpuDnnReduction(word, op.axes, wide_float(dtype), dtype)(x)
    return _with_kept_dims(power(y) if power is not None else y, op)


@BACKEND.lowering("local_dnn_argmax", GpuDnnReduction, ArgMax, refuses=reduction_refuses)
def argmax(node: Apply, context: Context) -> Variable:
    """The index of the maximum to the second output of GpuDnnReduction."""
    # As measured with cuDNN 9.19 on an H200: of equal maxima the first, the first NaN, and indices
    # in C order over any axes.
    op: Any = node.op
    (x,) = node.inputs
    dtype = x.type.dtype
    _, index = GpuDnnReduction("maximum", op.axes, wide_float(dtype), dtype, True)(x)
    return _with_kept_dims(cast(index, "int64"), op)


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
    if BACKEND.dtype_reason(context.target, dtype, GpuDnnActivation) or x.type.ndim == 0:
        return None
    if isinstance(node.op, Minimum):
        return _clipped(node)
    coef = 1.0
    if isinstance(node.op, Elu):
        alpha = number(node.inputs[1])
        if alpha is None:
            return None
        coef = float(alpha)
    return GpuDnnActivation(_ACTIVATIONS[type(node.op)], coef)(x)


def _clipped(node: Apply) -> Variable | None:
    """A minimum of a relu and a constant as cuDNN's clipped relu."""
    for v, ceiling in (node.inputs, node.inputs[::-1]):
        made, top = v.owner, number(ceiling)
        if made is not None and made.op == GpuDnnActivation("relu") and top is not None:
            return GpuDnnActivation("clipped_relu", float(top))(*made.inputs)
    return None


LOWERINGS = (
    *POOLINGS,
    BACKEND.row("local_softmax_dnn", GpuDnnSoftmax, Softmax),
    BACKEND.row("local_gpua_logsoftmax_to_dnn", GpuDnnSoftmax, LogSoftmax, algo="log"),
    softmax_grad,
    reduction,
    argmax,
    *(
        BACKEND.row(f"local_dnn_transformer_{name}", low, op)
        for name, low, op in (
            ("grid", GpuDnnTransformerGrid, TransformerGrid),
            ("sampler", GpuDnnTransformerSampler, TransformerSampler),
            ("grad_i", GpuDnnTransformerGradI, TransformerSamplerGrad),
            ("grad_t", GpuDnnTransformerGradT, TransformerGridGrad),
        )
    ),
)

RULES = (log_of_softmax, max_and_argmax, activation)
