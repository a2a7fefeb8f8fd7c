"""The user's interface to cuDNN, with the names and the defaults of Theano's ``dnn`` module.

The functions build device-neutral ops with hints. The rewrites of
:mod:`symdnn.libraries.cudnn.rules` lower these to ``GpuDnn*`` ops if the target has cuDNN, so every
program runs on a CPU too. No GPU library is loaded before a function runs on a GPU.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from symdnn.config import config
from symdnn.errors import TypeMismatch
from symdnn.flags import FLAGS
from symdnn.gpu.detect import dnn_available, dnn_present, version
from symdnn.gpu.dnn_names import (
    CUDNNDataType,
    DnnVersion,
    _dnn_check_compile,
    _dnn_check_version,
    _dnn_lib,
    _make_handle,
    cudnn,
    handle_type,
)
from symdnn.gpu.dnn_rnn import (
    DropoutDescriptor,
    RNNBlock,
    RNNDescriptor,
    _DropoutDescriptor,
    _RNNDescriptor,
    _RNNParamSize,
    _RNNSplitParams,
    dropout,
)
from symdnn.graph.origin import Hints
from symdnn.graph.type import TensorType
from symdnn.graph.typing import BorderMode, PerAxis, TensorLike
from symdnn.graph.variable import Constant, Variable, as_variable, constant
from symdnn.libraries.cudnn.rules import no_cudnn_raise as NoCuDNNRaise
from symdnn.ops.core.dtype import upcast
from symdnn.ops.core.shape import dims_of
from symdnn.ops.elementwise.arithmetic import cast
from symdnn.ops.nn import normalization
from symdnn.ops.nn.conv_builders import conv_grad_wrt_inputs, conv_grad_wrt_weights, conv_nd
from symdnn.ops.nn.conv_windows import Options
from symdnn.ops.nn.conv_words import static_ints
from symdnn.ops.nn.pool import Pool
from symdnn.ops.nn.pool_by_size import is_symbolic, pool_by_size
from symdnn.ops.nn.spatial_transformer import spatial_transformer
from symdnn.ops.vendor.gpudnn import (
    MIN_EPSILON,
    POOL_MODES,
    DnnBase,
    GpuDnnActivation,
    GpuDnnBatchNorm,
    GpuDnnBatchNormGrad,
    GpuDnnBatchNormInference,
    GpuDnnConv,
    GpuDnnConvDesc,
    GpuDnnConvGradI,
    GpuDnnConvGradW,
    GpuDnnCTCLoss,
    GpuDnnDropoutOp,
    GpuDnnLRN,
    GpuDnnPool,
    GpuDnnPoolBase,
    GpuDnnPoolDesc,
    GpuDnnPoolGrad,
    GpuDnnReduction,
    GpuDnnRNNGradInputs,
    GpuDnnRNNGradWeights,
    GpuDnnRNNOp,
    GpuDnnSoftmax,
    GpuDnnSoftmaxBase,
    GpuDnnSoftmaxGrad,
    GpuDnnTransformerGradI,
    GpuDnnTransformerGradT,
    GpuDnnTransformerGrid,
    GpuDnnTransformerSampler,
    compute_precision,
)
from symdnn.ops.vendor.gpudnn_conv import ALGORITHMS_ONLY_2D
from symdnn.options import is_int

__all__ = [
    "CUDNNDataType", "DnnBase", "DnnVersion", "DropoutDescriptor", "GpuDnnActivation",
    "GpuDnnBatchNorm", "GpuDnnBatchNormGrad",
    "GpuDnnBatchNormInference", "GpuDnnCTCLoss", "GpuDnnConv", "GpuDnnConvDesc",
    "GpuDnnConvGradI", "GpuDnnConvGradW", "GpuDnnDropoutOp", "GpuDnnLRN", "GpuDnnPool",
    "GpuDnnPoolBase", "GpuDnnPoolDesc", "GpuDnnPoolGrad", "GpuDnnRNNGradInputs",
    "GpuDnnRNNGradWeights", "GpuDnnRNNOp", "GpuDnnReduction", "GpuDnnSoftmax",
    "GpuDnnSoftmaxBase", "GpuDnnSoftmaxGrad", "GpuDnnTransformerGradI", "GpuDnnTransformerGradT",
    "GpuDnnTransformerGrid", "GpuDnnTransformerSampler", "NoCuDNNRaise", "RNNBlock",
    "RNNDescriptor",
    "_DropoutDescriptor", "_RNNDescriptor", "_RNNParamSize", "_RNNSplitParams",
    "_dnn_check_compile", "_dnn_check_version", "_dnn_conv", "_dnn_gradinput", "_dnn_gradweight",
    "_dnn_lib", "_make_handle", "as_i32", "cudnn",
    "dnn_available", "dnn_batch_normalization_test", "dnn_batch_normalization_train", "dnn_conv",
    "dnn_conv3d", "dnn_gradinput", "dnn_gradinput3d", "dnn_gradweight", "dnn_gradweight3d",
    "dnn_pool", "dnn_present", "dnn_spatialtf", "dropout", "ensure_dt", "get_precision",
    "handle_type", "version",
]  # fmt: skip


# -- helpers under Theano's names -----------------------------------------------------------------


def get_precision(
    precision: str | None, inputs: Sequence[Variable], for_grad: bool = False
) -> tuple[str, str]:
    """(accumulation dtype, common dtype of the inputs) of a convolution.

    ``precision`` is a value of the flag ``dnn.conv.precision``; None means the flag's value. Raises
    TypeError for inputs other than floats, and for float16 in a gradient, which cuDNN lacks.
    """
    common = upcast(*(v.type.dtype for v in inputs))
    if not TensorType(common).is_float:
        raise TypeMismatch("dnn", "float tensors", [v.type for v in inputs], "Cast them")
    wanted = str(config.dnn.conv.precision) if precision is None else precision
    allowed = FLAGS["dnn.conv.precision"].choices
    if wanted not in allowed:
        raise ValueError(f"precision={wanted!r}: wanted one of {', '.join(allowed)}")
    settled = compute_precision(wanted, common)
    if for_grad and settled == "float16":
        raise TypeError("cuDNN does not accumulate in float16 in the gradients of a convolution")
    return settled, common


def ensure_dt(val: object, default: float, name: str, dtype: str) -> Variable:
    """``val`` (None: ``default``) as a scalar of ``dtype``, float32 for float16."""
    wide = "float32" if dtype == "float16" else dtype
    v = constant(default if val is None else val) if not isinstance(val, Variable) else val
    if v.type.ndim != 0:
        raise TypeError(f"{name}: wanted a scalar, got {v.type}")
    return cast(v, wide)


def as_i32(v: Any) -> Variable:
    """``v`` as an int32 scalar."""
    return cast(as_variable(v), "int32")


# -- convolution ----------------------------------------------------------------------------------


def _checked_algo(name: str, algo: Any, direction: str, ndim: int) -> Any:
    """``algo``; raises ValueError for an algorithm that cuDNN lacks."""
    if algo is None or (is_int(algo) and algo >= 0):
        return algo
    allowed = FLAGS[f"dnn.conv.algo_{direction}"].choices
    if algo not in allowed:
        wanted = f"a number of cuDNN's enum, or one of {', '.join(allowed)}"
        raise ValueError(f"{name}: algo={algo!r}; wanted {wanted}")
    if ndim == 3 and algo in ALGORITHMS_ONLY_2D[direction]:
        raise ValueError(f"{name}: cuDNN has no algorithm {algo!r} in 3-D")
    return algo


def _hints(
    name: str, ndim: int, direction: str, algo: str | int | None, precision: str | None,
    operands: Sequence[Variable],
) -> Hints:  # fmt: skip
    """The hints of a convolution in this direction, with checks of its arguments."""
    get_precision(precision, operands, for_grad=direction != "fwd")
    chosen = _checked_algo(name, algo, direction, ndim)
    return replace(Hints(backend="cudnn", precision=precision), **{f"algo_{direction}": chosen})


def _flips(name: str, conv_mode: str) -> bool:
    if conv_mode not in ("conv", "cross"):
        raise ValueError(f"{name}: conv_mode={conv_mode!r}; wanted 'conv' or 'cross'")
    return conv_mode == "conv"


def _is_full(border_mode: object) -> bool:
    return isinstance(border_mode, str) and border_mode == "full"


def _is_valid(border_mode: BorderMode) -> bool:
    if isinstance(border_mode, str):
        return border_mode == "valid"
    return bool(np.all(np.asarray(border_mode) == 0))


def _conv(
    name: str, ndim: int, img: TensorLike, kerns: TensorLike, border_mode: BorderMode,
    subsample: PerAxis, dilation: PerAxis, conv_mode: str, direction_hint: str | None,
    algo: str | int | None, precision: str | None, num_groups: int,
) -> Variable:  # fmt: skip
    x, w = as_variable(img), as_variable(kerns)
    flip = _flips(name, conv_mode)
    steps = static_ints(f"{name}: subsample", subsample, ndim)
    spread = static_ints(f"{name}: dilation", dilation, ndim)
    plain = set(steps) == {1} and num_groups == 1
    if (
        plain and set(spread) == {1} and direction_hint == "bprop weights"
        and _is_valid(border_mode)
    ):  # fmt: skip
        return _as_grad_weight(name, ndim, x, w, flip, algo, precision)
    if plain and _is_full(border_mode) and direction_hint != "forward!":
        return _as_grad_input(name, ndim, x, w, spread, flip, algo, precision)
    hints = _hints(name, ndim, "fwd", algo, precision, (x, w))
    options = Options(name, ndim, border_mode, steps, flip, spread, num_groups)
    return conv_nd(options, x, w, hints=hints)


def _swapped(v: Variable) -> Variable:
    return v.dimshuffle(1, 0, *range(2, v.type.ndim))


def _as_grad_weight(
    name: str, ndim: int, x: Variable, w: Variable, flip: bool, algo: str | int | None,
    precision: str | None,
) -> Variable:  # fmt: skip
    """A convolution as the filter gradient of another, with batch and channels exchanged."""
    hints = _hints(name, ndim, "bwd_filter", algo, precision, (x, w))
    if flip:
        w = w[(slice(None), slice(None), *[slice(None, None, -1)] * ndim)]
    pairs = zip(dims_of(x)[2:], dims_of(w)[2:], strict=True)
    sizes = [n - k + 1 for n, k in pairs]
    options = Options(name, ndim, "valid", 1, False, 1, 1)
    return _swapped(conv_grad_wrt_weights(options, _swapped(x), _swapped(w), sizes, None, hints))


def _as_grad_input(
    name: str, ndim: int, x: Variable, w: Variable, dilation: Sequence[int], flip: bool,
    algo: str | int | None, precision: str | None,
) -> Variable:  # fmt: skip
    """A full convolution as the input gradient of a valid one, with the other mode."""
    hints = _hints(name, ndim, "bwd_data", algo, precision, (x, w))
    sizes = [
        n + (k - 1) * d for n, k, d in zip(dims_of(x)[2:], dims_of(w)[2:], dilation, strict=True)
    ]
    options = Options(name, ndim, "valid", 1, not flip, dilation, 1)
    return conv_grad_wrt_inputs(options, x, _swapped(w), sizes, None, hints)


def dnn_conv(
    img: TensorLike, kerns: TensorLike, border_mode: BorderMode = "valid",
    subsample: PerAxis = (1, 1), dilation: PerAxis = (1, 1), conv_mode: str = "conv",
    direction_hint: str | None = None, workmem: str | None = None, algo: str | int | None = None,
    precision: str | None = None, num_groups: int = 1,
) -> Variable:  # fmt: skip
    """Convolution of ``img`` (batch, channels, rows, columns) with filters ``kerns`` (NCHW, too).

    ``conv_mode`` is ``'conv'`` (filters are mirrored) or ``'cross'``. ``border_mode`` is
    ``'valid'``, ``'full'``, ``'half'``, an int or a tuple of ints. With ``direction_hint``
    ``'bprop weights'`` a valid convolution is computed as the filter gradient of another. A full
    one is computed as the input gradient of another, unless the hint is ``'forward!'``. ``algo``
    and ``precision`` are values of the flags ``dnn.conv.algo_fwd`` (or that of the direction that
    is computed) and ``dnn.conv.precision``; ``workmem`` is the old name of ``algo``.
    """
    if workmem is not None:
        if algo is not None:
            raise ValueError("dnn_conv: workmem is the old name of algo; give one of them")
        warnings.warn("dnn_conv: workmem is now named algo", DeprecationWarning, stacklevel=2)
        algo = workmem
    return _conv("dnn_conv", 2, img, kerns, border_mode, subsample, dilation, conv_mode,
                 direction_hint, algo, precision, num_groups)  # fmt: skip


def dnn_conv3d(
    img: TensorLike, kerns: TensorLike, border_mode: BorderMode = "valid",
    subsample: PerAxis = (1, 1, 1), dilation: PerAxis = (1, 1, 1), conv_mode: str = "conv",
    direction_hint: str | None = None, algo: str | int | None = None, precision: str | None = None,
    num_groups: int = 1,
) -> Variable:  # fmt: skip
    """:func:`dnn_conv` in 3-D, of (batch, channels, depth, rows, columns)."""
    return _conv("dnn_conv3d", 3, img, kerns, border_mode, subsample, dilation, conv_mode,
                 direction_hint, algo, precision, num_groups)  # fmt: skip


def _shape_of(name: str, shape: Any, ndim: int) -> list[Any]:
    """The entries of a shape of ``ndim + 2`` ints or of a symbolic vector."""
    v = shape if isinstance(shape, Variable) and not isinstance(shape, Constant) else None
    if v is not None and v.type.ndim == 1:
        return [v[i] for i in range(ndim + 2)]
    entries = list(shape.data.tolist() if isinstance(shape, Constant) else shape)
    if len(entries) != ndim + 2:
        raise ValueError(f"{name}: wanted a shape of {ndim + 2} ints, got {len(entries)}")
    return entries


def _gradient(
    build: Callable[..., Variable], name: str, ndim: int, a: TensorLike, b: TensorLike, shape: Any,
    border_mode: BorderMode, subsample: PerAxis, dilation: PerAxis, conv_mode: str,
    precision: str | None, algo: str | int | None, num_groups: int,
) -> Variable:  # fmt: skip
    """A gradient by ``build``, of its two operands, with the shape of the result."""
    direction = "bwd_filter" if build is conv_grad_wrt_weights else "bwd_data"
    first, second = as_variable(a), as_variable(b)
    hints = _hints(name, ndim, direction, algo, precision, (first, second))
    flip = _flips(name, conv_mode)
    options = Options(name, ndim, border_mode, subsample, flip, dilation, num_groups)
    return build(options, first, second, _shape_of(name, shape, ndim), None, hints)


def dnn_gradweight(
    img: TensorLike, topgrad: TensorLike, kerns_shp: Any, border_mode: BorderMode = "valid",
    subsample: PerAxis = (1, 1), dilation: PerAxis = (1, 1), conv_mode: str = "conv",
    precision: str | None = None, algo: str | int | None = None, num_groups: int = 1,
) -> Variable:  # fmt: skip
    """The gradient of :func:`dnn_conv` with respect to the filters, of shape ``kerns_shp``."""
    return _gradient(conv_grad_wrt_weights, "dnn_gradweight", 2, img, topgrad, kerns_shp,
                     border_mode, subsample, dilation, conv_mode, precision, algo,
                     num_groups)  # fmt: skip


def dnn_gradweight3d(
    img: TensorLike, topgrad: TensorLike, kerns_shp: Any, border_mode: BorderMode = "valid",
    subsample: PerAxis = (1, 1, 1), dilation: PerAxis = (1, 1, 1), conv_mode: str = "conv",
    precision: str | None = None, algo: str | int | None = None, num_groups: int = 1,
) -> Variable:  # fmt: skip
    """The gradient of :func:`dnn_conv3d` with respect to the filters."""
    return _gradient(conv_grad_wrt_weights, "dnn_gradweight3d", 3, img, topgrad, kerns_shp,
                     border_mode, subsample, dilation, conv_mode, precision, algo,
                     num_groups)  # fmt: skip


def dnn_gradinput(
    kerns: TensorLike, topgrad: TensorLike, img_shp: Any, border_mode: BorderMode = "valid",
    subsample: PerAxis = (1, 1), dilation: PerAxis = (1, 1), conv_mode: str = "conv",
    precision: str | None = None, algo: str | int | None = None, num_groups: int = 1,
) -> Variable:  # fmt: skip
    """The gradient of :func:`dnn_conv` with respect to the input, of shape ``img_shp``."""
    return _gradient(conv_grad_wrt_inputs, "dnn_gradinput", 2, topgrad, kerns, img_shp,
                     border_mode, subsample, dilation, conv_mode, precision, algo,
                     num_groups)  # fmt: skip


def dnn_gradinput3d(
    kerns: TensorLike, topgrad: TensorLike, img_shp: Any, border_mode: BorderMode = "valid",
    subsample: PerAxis = (1, 1, 1), dilation: PerAxis = (1, 1, 1), conv_mode: str = "conv",
    precision: str | None = None, algo: str | int | None = None, num_groups: int = 1,
) -> Variable:  # fmt: skip
    """The gradient of :func:`dnn_conv3d` with respect to the input."""
    return _gradient(conv_grad_wrt_inputs, "dnn_gradinput3d", 3, topgrad, kerns, img_shp,
                     border_mode, subsample, dilation, conv_mode, precision, algo,
                     num_groups)  # fmt: skip


# -- pooling --------------------------------------------------------------------------------------


def dnn_pool(img: Any, ws: Any, stride: Any = None, mode: str = "max", pad: Any = None) -> Variable:
    """2-D (4 dimensions) or 3-D (5) pooling in windows of size ``ws``, with ``stride`` (default 1).

    Partial windows at the end are ignored. ``mode`` is ``'max'``, ``'max_deterministic'``,
    ``'average_inc_pad'`` (also ``'average'``), ``'average_exc_pad'`` or ``'sum'``. ``ws``,
    ``stride`` and ``pad`` may be symbolic; such pooling does not use cuDNN, and is slower.
    """
    x = as_variable(img)
    if not isinstance(x.type, TensorType) or x.type.ndim not in (4, 5) or not x.type.is_float:
        raise TypeMismatch("dnn_pool", "a float tensor of 4 or 5 dimensions", x.type)
    ndim = x.type.ndim - 2
    word = POOL_MODES.get(mode, mode)
    if any(map(is_symbolic, (ws, stride, pad))):
        words = (ws, 1 if stride is None else stride, 0 if pad is None else pad)
        return pool_by_size(x, *words, word, ndim)
    size = static_ints("dnn_pool: ws", ws, ndim)
    steps = static_ints("dnn_pool: stride", 1 if stride is None else stride, ndim)
    around = static_ints("dnn_pool: pad", 0 if pad is None else pad, ndim)
    sure = "deterministic" if mode == "max_deterministic" else None
    op = Pool(size, steps, around, word, True)
    return op(x, hints=Hints(backend="cudnn", algo_fwd=sure))


# -- batch normalisation --------------------------------------------------------------------------


def _check_batch_norm(name: str, inputs: Any, parameters: dict[str, Any], epsilon: Any) -> Variable:
    x = as_variable(inputs)
    for word, p in parameters.items():
        if p is not None and as_variable(p).type.ndim != x.type.ndim:
            raise ValueError(
                f"{name}: {word} must have {x.type.ndim} dimensions like the input, got "
                f"{as_variable(p).type}"
            )
    number = epsilon.data if isinstance(epsilon, Constant) else epsilon
    if not isinstance(number, Variable) and number < MIN_EPSILON:
        raise ValueError(f"{name}: epsilon={epsilon} is less than {MIN_EPSILON}")
    return x


def _check_mode(name: str, mode: str) -> None:
    if mode not in ("per-activation", "spatial"):
        raise ValueError(f"{name}: mode={mode!r}; wanted 'per-activation' or 'spatial'")


def dnn_batch_normalization_train(
    inputs: Any, gamma: Any, beta: Any, mode: str = "per-activation", epsilon: Any = 1e-4,
    running_average_factor: Any = 0.1, running_mean: Any = None, running_var: Any = None,
) -> tuple[Variable, ...]:  # fmt: skip
    """(out, mean, invstd), and with both running averages also their new values.

    ``mode`` is ``'per-activation'`` (statistics over axis 0) or ``'spatial'`` (over all but axis
    1). Parameters have the ndim of ``inputs``. Raises ``ValueError`` for an epsilon below 1e-5.
    """
    name = "dnn_batch_normalization_train"
    _check_mode(name, mode)
    parameters = {"gamma": gamma, "beta": beta, "running_mean": running_mean,
                  "running_var": running_var}  # fmt: skip
    x = _check_batch_norm(name, inputs, parameters, epsilon)
    return normalization.batch_normalization_train(
        x, gamma, beta, mode, epsilon, running_average_factor, running_mean, running_var,
        hints=Hints(backend="cudnn"),
    )  # fmt: skip


def dnn_batch_normalization_test(
    inputs: TensorLike, gamma: TensorLike, beta: TensorLike, mean: TensorLike, var: TensorLike,
    mode: str = "per-activation", epsilon: TensorLike = 1e-4,
) -> Variable:  # fmt: skip
    """``(inputs - mean) * gamma / sqrt(var + epsilon) + beta``, with the modes of training."""
    name = "dnn_batch_normalization_test"
    _check_mode(name, mode)
    parameters = {"gamma": gamma, "beta": beta, "mean": mean, "var": var}
    x = _check_batch_norm(name, inputs, parameters, epsilon)
    return normalization.batch_normalization_test(
        x, gamma, beta, mean, var, mode, epsilon, hints=Hints(backend="cudnn")
    )


# -- spatial transformer --------------------------------------------------------------------------


def dnn_spatialtf(
    img: TensorLike, theta: TensorLike, scale_width: float = 1, scale_height: float = 1
) -> Variable:
    """``img`` (N, C, H, W), sampled bilinearly at affine transforms ``theta`` (N, 2, 3) of a grid.

    The result has ``ceil(H * scale_height)`` rows and ``ceil(W * scale_width)`` columns.
    """
    return spatial_transformer(img, theta, scale_width, scale_height)


# -- Theano's private functions with alpha and beta -----------------------------------------------


def _scaled_sum(
    name: str, made: Variable, alpha: TensorLike, beta: TensorLike, out: TensorLike
) -> Variable:
    """``alpha * made + beta * out``. Rewrites fuse the factor and the sum into cuDNN's call.

    Raises ``ValueError`` for a ``beta`` that is not 0 without ``out``.
    """
    dtype = made.type.dtype
    if isinstance(beta, Variable) or beta != 0:
        if out is None:
            raise ValueError(f"{name}: beta={beta} needs out, to which the result is added")
        return made * _scalar(alpha, dtype) + as_variable(out) * _scalar(beta, dtype)
    return made if not isinstance(alpha, Variable) and alpha == 1 else made * _scalar(alpha, dtype)


def _scalar(value: TensorLike, dtype: str) -> Any:
    return value if isinstance(value, Variable) else as_variable(np.asarray(value)).astype(dtype)


def _dnn_conv(
    img: Any, kerns: Any, alpha: Any = 1, beta: Any = 0, out: Any = None, *args: Any, **named: Any
) -> Variable:
    """``alpha * dnn_conv(...) + beta * out``; further arguments are those of :func:`dnn_conv`."""
    made = dnn_conv(img, kerns, *args, **named)
    return _scaled_sum("_dnn_conv", made, alpha, beta, out)


def _dnn_gradweight(
    img: Any, topgrad: Any, kerns_shp: Any, alpha: Any = 1, beta: Any = 0, out: Any = None,
    *args: Any, **named: Any,
) -> Variable:  # fmt: skip
    """``alpha * dnn_gradweight(...) + beta * out``."""
    made = dnn_gradweight(img, topgrad, kerns_shp, *args, **named)
    return _scaled_sum("_dnn_gradweight", made, alpha, beta, out)


def _dnn_gradinput(
    kerns: Any, topgrad: Any, img_shp: Any, alpha: Any = 1, beta: Any = 0, out: Any = None,
    *args: Any, **named: Any,
) -> Variable:  # fmt: skip
    """``alpha * dnn_gradinput(...) + beta * out``."""
    made = dnn_gradinput(kerns, topgrad, img_shp, *args, **named)
    return _scaled_sum("_dnn_gradinput", made, alpha, beta, out)
