"""Names of Theano's old modules of convolution and pooling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from symdnn import tensor as T
from symdnn.autodiff import grad
from symdnn.compat.theano.names.class_names import NAMES, stand_in
from symdnn.graph.typing import BorderMode, TensorLike
from symdnn.graph.variable import Constant, Shared, Variable
from symdnn.ops.nn.pool import max_pool_2d_same_size, pool_2d, pool_3d, pool_size
from symdnn.tensor.nnet.abstract_conv import (
    bilinear_upsampling,
    conv3d_grad_wrt_inputs,
    conv3d_grad_wrt_weights,
)

__all__ = [
    "AbstractConv", "AbstractConv_gradInputs", "AbstractConv_gradWeights",
    "AveragePoolGrad", "BaseAbstractConv", "Corr3dMM",
    "CorrMM", "CorrMM_gradInputs", "CorrMM_gradWeights", "DownsampleFactorMax",
    "MaxPoolGrad", "Pool", "assert_conv_shape", "border_mode_to_pad", "conv3D", "conv3d",
    "convGrad3D",
    "convTransp3D", "frac_bilinear_upsampling", "max_pool_2d", "max_pool_2d_same_size",
    "max_pool_3d", "pool_2d",
    "pool_3d", "separable_conv3d",
]  # fmt: skip

BaseAbstractConv = NAMES["BaseAbstractConv"]
Corr3dMM = NAMES["Corr3dMM"]
CorrMM = NAMES["CorrMM"]
CorrMM_gradInputs = NAMES["CorrMM_gradInputs"]
CorrMM_gradWeights = NAMES["CorrMM_gradWeights"]

AbstractConv = BaseAbstractConv
AbstractConv_gradInputs, AbstractConv_gradWeights = CorrMM_gradInputs, CorrMM_gradWeights


def max_pool_2d(
    input: TensorLike, ds: object, ignore_border: bool | None = None, st: object = None,
    padding: BorderMode = (0, 0), mode: str = "max",
) -> Variable:  # fmt: skip
    """Theano's old name of ``pool_2d``: windows ``ds``, steps ``st``."""
    return pool_2d(input, ws=ds, ignore_border=ignore_border, stride=st, pad=padding, mode=mode)


def max_pool_3d(input: TensorLike, ds: object, ignore_border: bool | None = None) -> Variable:
    """Pooling of the last three dimensions."""
    return pool_3d(input, ws=ds, ignore_border=ignore_border)


def _pool_shape(
    imgshape: Any, ws: Any = None, ignore_border: bool = False, stride: Any = None,
    pad: Any = None, ndim: int = 2, ds: Any = None, st: object = None, padding: object = None,
) -> list[Any]:  # fmt: skip
    """``Pool.out_shape``: the shape of pooled images of ``imgshape``, ints or variables.

    ``ds``, ``st`` and ``padding`` are old names of ``ws``, ``stride`` and ``pad``.
    """
    ws = tuple(ds if ws is None else ws)
    stride, pad = st if stride is None else stride, padding if pad is None else pad
    stride, pad = (
        tuple(ws if stride is None else stride),
        tuple((0,) * ndim if pad is None else pad),
    )
    lead = len(imgshape) - ndim
    pooled = zip(imgshape[lead:], ws, stride, pad, strict=True)
    return [*imgshape[:lead], *(pool_size(n, w, s, p, ignore_border) for n, w, s, p in pooled)]


def _pool_op(
    ignore_border: bool = False, mode: str = "max", ndim: int = 2, openmp: object = None
) -> Callable[..., Variable]:
    """Theano's op of pooling the last ``ndim`` dimensions, 1 to 3: a function of
    ``(images, ws, stride, pad)``."""
    if ndim not in (1, 2, 3):
        raise NotImplementedError(f"Pool: ndim={ndim}, wanted 1, 2 or 3")
    pool = pool_3d if ndim == 3 else pool_2d
    lead = 1 if ndim == 1 else 0  # a vector is an image of one row

    def sizes(given: Any, each: int) -> Any:
        if isinstance(given, int | np.integer):
            given = (int(given),) * ndim
        elif isinstance(given, Variable):
            given = tuple(given[i] for i in range(ndim))
        return (each,) * lead + tuple(given)

    def apply(x: TensorLike, ws: object, stride: object = None, pad: object = None) -> Variable:
        v: Any = T.as_tensor_variable(x)
        if v.ndim < ndim:
            raise TypeError(f"Pool: wanted at least {ndim} dimensions, got {v.type}")
        image = v
        for _ in range(lead):
            image = image.dimshuffle(*range(image.ndim - 1), "x", image.ndim - 1)
        steps = None if stride is None else sizes(stride, 1)
        made: Any = pool(
            image, sizes(ws, 1), ignore_border, steps, sizes(0 if pad is None else pad, 0), mode
        )
        if lead:
            kept = [made.shape[i] for i in range(made.ndim - 1 - lead)]
            made = made.reshape([*kept, made.shape[-1]], ndim=v.ndim)
        pooled: Variable = made
        return pooled

    return apply


def _average_grad(
    ignore_border: bool = False, mode: str = "average_inc_pad", ndim: int = 2
) -> Callable[..., Variable]:
    """Theano's op of the gradient of average pooling: a function of ``(images, gradient, ws,
    stride, pad)``."""
    pool = _pool_op(ignore_border, mode, ndim)

    def apply(
        x: Any, gz: object, ws: object, stride: object = None, pad: object = None
    ) -> Variable:
        v = T.as_tensor_variable(x)
        found: Variable = grad(None, v, known_grads={pool(v, ws, stride, pad): gz})
        return found

    return apply


def _max_grad(
    ignore_border: bool = False, ndim: int = 2, **words: object
) -> Callable[..., Variable]:
    """Theano's op of the gradient of max-pooling: a function of ``(images, pooled, gradient, ws,
    stride, pad)``."""
    of_images = _average_grad(ignore_border, "max", ndim)
    return lambda x, pooled, *given, **words: of_images(x, *given, **words)


def _downsample(
    ds: object, ignore_border: bool = False, st: object = None, padding: BorderMode = (0, 0),
    mode: str = "max", openmp: object = None,
) -> Callable[..., Variable]:  # fmt: skip
    """Theano's op of ``pool_2d`` to 0.8: a function of the images."""
    return lambda x: max_pool_2d(x, ds, ignore_border, st, padding, mode)


def _pool_name(name: str, maker: Callable[..., Any], *targets: str) -> Any:
    of = targets or NAMES["Pool"].targets
    return stand_in(name, maker, *of, out_shape=staticmethod(_pool_shape))


Pool = _pool_name("Pool", _pool_op)
DownsampleFactorMax = _pool_name("DownsampleFactorMax", _downsample)
MaxPoolGrad = _pool_name("MaxPoolGrad", _max_grad, "nn.pool.MaxPoolGrad")
AveragePoolGrad = _pool_name("AveragePoolGrad", _average_grad, "nn.pool.AveragePoolGrad")


def frac_bilinear_upsampling(input: TensorLike, frac_ratio: object) -> Variable:
    """Bilinear upsampling by fractions."""
    return bilinear_upsampling(input, frac_ratio=frac_ratio)


def border_mode_to_pad(mode: Any, convdim: int, kshp: Any) -> tuple[tuple[int, int], ...]:
    """The padding before and after each dimension that a ``border_mode`` means."""
    if isinstance(mode, tuple) and len(mode) != convdim:
        raise ValueError(f"border_mode {mode}: wanted {convdim} entries")
    if isinstance(mode, int):
        mode = (mode,) * convdim
    words: dict[str, Callable[[int], int]] = {
        "full": lambda k: k - 1, "half": lambda k: k // 2, "valid": lambda k: 0,
    }  # fmt: skip
    if isinstance(mode, str):
        if mode not in words:
            raise ValueError(f"border_mode {mode!r}: wanted 'valid', 'full', 'half' or ints")
        mode = tuple(words[mode](k) for k in kshp)
    pairs = tuple((m, m) if isinstance(m, int) else tuple(m) for m in mode)
    if any(p < 0 for pair in pairs for p in pair):
        raise ValueError(f"border_mode {mode}: a padding cannot be negative")
    return pairs


def get_conv_gradinputs_shape_1axis(
    kernel_shape: Any, top_shape: Any, border_mode: Any, subsample: object, dilation: Any
) -> Any:
    """The size of the images of which a convolution has this output, along one axis; None where
    it is not known."""
    if None in (kernel_shape, top_shape, border_mode, subsample, dilation) or subsample != 1:
        return None
    size = (kernel_shape - 1) * dilation + 1
    if isinstance(border_mode, tuple | list):
        low, high = border_mode
    elif isinstance(border_mode, int):
        low = high = border_mode
    else:
        low = high = {"full": size - 1, "half": size // 2, "valid": 0}[border_mode]
    return top_shape + size - 1 - low - high


def get_conv_gradweights_shape_1axis(
    image_shape: Any, top_shape: Any, border_mode: Any, subsample: Any, dilation: Any
) -> Any:
    """The size of the filters of which a convolution has this output, along one axis; None where
    it is not known."""
    plain = isinstance(border_mode, int) or border_mode == "valid"
    if None in (image_shape, top_shape, border_mode, subsample, dilation):
        return None
    if subsample != 1 or border_mode == "half" or not (plain or border_mode == "full"):
        return None
    if border_mode == "full":
        return (top_shape - image_shape) // dilation + 1
    pad = 0 if border_mode == "valid" else border_mode
    return (image_shape + 2 * pad - top_shape) // dilation + 1


def assert_conv_shape(shape: object) -> Any:
    """``shape``; the sizes of a convolution are always checked."""
    return shape


def conv3d(
    signals: Any, filters: TensorLike, signals_shape: Any = None, filters_shape: Any = None,
    border_mode: BorderMode = "valid",
) -> Variable:  # fmt: skip
    """``conv3d2d.conv3d``: of (batch, time, channels, rows, columns)."""
    order = (0, 2, 1, 3, 4)
    x, w = (T.as_tensor_variable(v).dimshuffle(*order) for v in (signals, filters))
    sizes = [None if s is None else tuple(s[i] for i in order)
             for s in (signals_shape, filters_shape)]  # fmt: skip
    modes = border_mode if isinstance(border_mode, tuple) else (border_mode,) * 3
    if len(set(modes)) != 1 or not isinstance(modes[0], str):
        raise NotImplementedError(f"conv3d2d.conv3d: border_mode {border_mode}: one word for all")
    y = T.nnet.conv3d(x, w, sizes[0], sizes[1], border_mode=modes[0])
    return y.dimshuffle(*order)


def _last_to_second(v: Any) -> Variable:
    return T.as_tensor_variable(v).dimshuffle(0, 4, 1, 2, 3)


def _steps(d: Any) -> tuple[int, ...]:
    """Three steps as numbers; those of a shared variable are its value when the graph is built."""
    known = d.get_value() if isinstance(d, Shared) else d.data if isinstance(d, Constant) else d
    return tuple(int(n) for n in known)


def conv3D(V: Any, W: Any, b: Any, d: Any) -> Variable:
    """``Conv3D.conv3D``: a correlation of (batch, rows, columns, time, channels), steps ``d``."""
    y = T.nnet.conv3d(
        _last_to_second(V), _last_to_second(W), subsample=_steps(d), filter_flip=False
    )
    return y.dimshuffle(0, 2, 3, 4, 1) + T.as_tensor_variable(b).dimshuffle("x", "x", "x", "x", 0)


def convGrad3D(V: Any, d: Any, WShape: Any, dCdH: Any) -> Variable:
    """``ConvGrad3D.convGrad3D``: the gradient of :func:`conv3D` by ``W``, of shape ``WShape``."""
    shape = [WShape[i] for i in (0, 4, 1, 2, 3)]
    g = conv3d_grad_wrt_weights(
        _last_to_second(V), _last_to_second(dCdH), shape, subsample=_steps(d), filter_flip=False
    )
    return g.dimshuffle(0, 2, 3, 4, 1)


def convTransp3D(W: Any, b: Any, d: Any, H: Any, RShape: Any = None) -> Variable:
    """``ConvTransp3D.convTransp3D``: the transpose of :func:`conv3D` in space, plus ``b``."""
    w, h, d = _last_to_second(W), _last_to_second(H), _steps(d)
    space = RShape if RShape is not None else [
        (h.shape[2 + i] - 1) * d[i] + w.shape[2 + i] for i in range(3)]  # fmt: skip
    shape = [h.shape[0], w.shape[1], *(space[i] for i in range(3))]
    g = conv3d_grad_wrt_inputs(h, w, shape, subsample=d, filter_flip=False)
    return g.dimshuffle(0, 2, 3, 4, 1) + T.as_tensor_variable(b).dimshuffle("x", "x", "x", "x", 0)


def separable_conv3d(
    input: TensorLike, depthwise_filters: TensorLike, pointwise_filters: TensorLike,
    num_channels: int, input_shape: Any = None, depthwise_filter_shape: Any = None,
    pointwise_filter_shape: Any = None, border_mode: Any = "valid",
    subsample: Any = (1, 1, 1), filter_flip: bool = True, filter_dilation: Any = (1, 1, 1),
) -> Variable:  # fmt: skip
    """A depthwise convolution of ``num_channels`` channels of volumes, then a pointwise one."""
    deep = T.nnet.conv3d(
        input, depthwise_filters, input_shape, depthwise_filter_shape, border_mode, subsample,
        filter_flip, filter_dilation, num_channels,
    )  # fmt: skip
    return T.nnet.conv3d(deep, pointwise_filters, None, pointwise_filter_shape)
