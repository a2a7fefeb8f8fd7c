"""Today's names: functions that make the layers of this package from PyTorch's arguments.

Names and order of the arguments are PyTorch's; what is made (and printed) is Torch7's class. Where
PyTorch and Torch7 have one name (``ReLU``, ``Linear``, ``Dropout``, ``LayerNorm``, ...), it is
Torch7's class with Torch7's order, and is not here. Sizes are ints or tuples (T, H, W).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from symdnn.errors import UnknownWord
from symdnn.graph.typing import BorderMode, PerAxis
from symdnn.nn.layers import adaptive_pooling as adaptive
from symdnn.nn.layers import conv, norm, pooling, recurrent, shaping
from symdnn.nn.layers.activation import (
    HardShrink,
    HardSigmoid,
    HardSwish,
    HardTanh,
    SoftShrink,
    SoftSign,
)
from symdnn.nn.layers.activation import TanhShrink as Tanhshrink
from symdnn.nn.layers.dropout import SpatialDropout, VolumetricDropout
from symdnn.nn.layers.linear import LookupTable
from symdnn.nn.layers.softmax import LogSoftMax, SoftMax, SoftMin
from symdnn.nn.modules.arguments import sizes
from symdnn.nn.modules.checked import checked
from symdnn.nn.modules.module import Module
from symdnn.nn.modules.torch_class import torch_class

__all__ = [
    "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d", "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d", "AdaptiveMaxPool3d", "AvgPool1d", "AvgPool2d", "AvgPool3d",
    "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d",
    "ConvTranspose2d", "ConvTranspose3d", "Dropout2d", "Dropout3d", "Embedding", "Hardshrink",
    "Hardsigmoid", "Hardswish", "Hardtanh", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d",
    "LogSoftmax", "MaxPool1d", "MaxPool2d", "MaxPool3d", "RNN",
    "ReflectionPad2d", "ReplicationPad2d", "Softmax", "Softmin", "Softshrink", "Softsign",
    "Tanhshrink", "ZeroPad2d",
]  # fmt: skip

Layer = TypeVar("Layer", bound=Module)
Pool = TypeVar("Pool", bound=pooling._Pooling)

Hardshrink, Hardsigmoid, Hardswish = HardShrink, HardSigmoid, HardSwish
Hardtanh, Softshrink, Softsign = HardTanh, SoftShrink, SoftSign
Dropout2d, Dropout3d = SpatialDropout, VolumetricDropout


# -- convolutions --------------------------------------------------------------------------------


def _convolution(kind: type[Layer], *arguments: object, **options: object) -> Layer:
    """A convolution; the first nine arguments are those that all of PyTorch's have."""
    planes_in, planes_out, kernel, stride, padding, dilation, groups, bias, mode = arguments
    if issubclass(kind, conv.TRANSPOSED):
        if mode != "zeros":
            raise UnknownWord(f"{kind.__name__}: padding_mode={mode!r}; wanted 'zeros'")
    else:
        options["padding_mode"] = mode
    make: Callable[..., Layer] = kind
    return make(
        planes_in, planes_out, kernel_size=kernel, stride=stride,
        padding=0 if isinstance(padding, str) and padding == "valid" else padding,
        dilation=dilation, groups=groups, bias=bias, **options,
    )  # fmt: skip


@torch_class(conv.TemporalConvolution)
@checked
def Conv1d(
    in_channels: int, out_channels: int, kernel_size: PerAxis, stride: PerAxis = 1,
    padding: BorderMode = 0, dilation: PerAxis = 1, groups: int = 1, bias: bool = True,
    padding_mode: str = "zeros", **options: object,
) -> conv.TemporalConvolution:  # fmt: skip
    """:class:`TemporalConvolution` of (N, features, frames)."""
    return _convolution(
        conv.TemporalConvolution, in_channels, out_channels, kernel_size, stride, padding,
        dilation, groups, bias, padding_mode, channels_first=True, **options,
    )  # fmt: skip


@torch_class(conv.SpatialConvolution)
@checked
def Conv2d(
    in_channels: int, out_channels: int, kernel_size: PerAxis, stride: PerAxis = 1,
    padding: BorderMode = 0, dilation: PerAxis = 1, groups: int = 1, bias: bool = True,
    padding_mode: str = "zeros", **options: object,
) -> conv.SpatialConvolution:  # fmt: skip
    """:class:`SpatialConvolution`.

    >>> Conv2d(3, 96, 11, 3)
    nn.SpatialConvolution(3 -> 96, 11x11, 3,3)
    """
    return _convolution(
        conv.SpatialConvolution, in_channels, out_channels, kernel_size, stride, padding,
        dilation, groups, bias, padding_mode, **options,
    )  # fmt: skip


@torch_class(conv.VolumetricConvolution)
@checked
def Conv3d(
    in_channels: int, out_channels: int, kernel_size: PerAxis, stride: PerAxis = 1,
    padding: BorderMode = 0, dilation: PerAxis = 1, groups: int = 1, bias: bool = True,
    padding_mode: str = "zeros", **options: object,
) -> conv.VolumetricConvolution:  # fmt: skip
    """:class:`VolumetricConvolution`."""
    return _convolution(
        conv.VolumetricConvolution, in_channels, out_channels, kernel_size, stride, padding,
        dilation, groups, bias, padding_mode, **options,
    )  # fmt: skip


@torch_class(conv.TemporalFullConvolution)
@checked
def ConvTranspose1d(
    in_channels: int, out_channels: int, kernel_size: PerAxis, stride: PerAxis = 1,
    padding: BorderMode = 0, output_padding: PerAxis = 0, groups: int = 1, bias: bool = True,
    dilation: PerAxis = 1, padding_mode: str = "zeros", **options: object,
) -> conv.TemporalFullConvolution:  # fmt: skip
    """:class:`TemporalFullConvolution` of (N, features, frames)."""
    return _convolution(
        conv.TemporalFullConvolution, in_channels, out_channels, kernel_size, stride, padding,
        dilation, groups, bias, padding_mode, output_padding=output_padding, channels_first=True,
        **options,
    )  # fmt: skip


@torch_class(conv.SpatialFullConvolution)
@checked
def ConvTranspose2d(
    in_channels: int, out_channels: int, kernel_size: PerAxis, stride: PerAxis = 1,
    padding: BorderMode = 0, output_padding: PerAxis = 0, groups: int = 1, bias: bool = True,
    dilation: PerAxis = 1, padding_mode: str = "zeros", **options: object,
) -> conv.SpatialFullConvolution:  # fmt: skip
    """:class:`SpatialFullConvolution`."""
    return _convolution(
        conv.SpatialFullConvolution, in_channels, out_channels, kernel_size, stride, padding,
        dilation, groups, bias, padding_mode, output_padding=output_padding, **options,
    )  # fmt: skip


@torch_class(conv.VolumetricFullConvolution)
@checked
def ConvTranspose3d(
    in_channels: int, out_channels: int, kernel_size: PerAxis, stride: PerAxis = 1,
    padding: BorderMode = 0, output_padding: PerAxis = 0, groups: int = 1, bias: bool = True,
    dilation: PerAxis = 1, padding_mode: str = "zeros", **options: object,
) -> conv.VolumetricFullConvolution:  # fmt: skip
    """:class:`VolumetricFullConvolution`."""
    return _convolution(
        conv.VolumetricFullConvolution, in_channels, out_channels, kernel_size, stride, padding,
        dilation, groups, bias, padding_mode, output_padding=output_padding, **options,
    )  # fmt: skip


# -- pooling -------------------------------------------------------------------------------------


def _largest(
    kind: type[Pool], window: tuple[Any, ...], dilation: PerAxis, indices: bool, ceil: bool
) -> Pool:
    made = _pooling(kind, window, ceil_mode=ceil)
    made.options(dilation=dilation, return_indices=indices)
    return made


def _average(
    kind: type[Pool], window: tuple[Any, ...], ceil: bool, padded: bool, divisor: int | None
) -> Pool:
    made = _pooling(kind, window, ceil_mode=ceil, count_include_pad=padded)
    made.options(divisor_override=divisor)
    return made


def _pooling(kind: type[Pool], window: tuple[Any, ...], **options: object) -> Pool:
    kernel, stride, padding = window
    make: Callable[..., Pool] = kind
    if kind in (pooling.TemporalMaxPooling, pooling.TemporalAveragePooling):
        options["channels_first"] = True
    return make(kernel_size=kernel, stride=stride, padding=padding, **options)


@torch_class(pooling.TemporalMaxPooling)
@checked
def MaxPool1d(
    kernel_size: PerAxis, stride: PerAxis | None = None, padding: PerAxis = 0,
    dilation: PerAxis = 1, return_indices: bool = False, ceil_mode: bool = False,
) -> pooling.TemporalMaxPooling:  # fmt: skip
    """:class:`TemporalMaxPooling` of (N, features, frames)."""
    window = (kernel_size, stride, padding)
    return _largest(pooling.TemporalMaxPooling, window, dilation, return_indices, ceil_mode)


@torch_class(pooling.SpatialMaxPooling)
@checked
def MaxPool2d(
    kernel_size: PerAxis, stride: PerAxis | None = None, padding: PerAxis = 0,
    dilation: PerAxis = 1, return_indices: bool = False, ceil_mode: bool = False,
) -> pooling.SpatialMaxPooling:  # fmt: skip
    """:class:`SpatialMaxPooling`."""
    window = (kernel_size, stride, padding)
    return _largest(pooling.SpatialMaxPooling, window, dilation, return_indices, ceil_mode)


@torch_class(pooling.VolumetricMaxPooling)
@checked
def MaxPool3d(
    kernel_size: PerAxis, stride: PerAxis | None = None, padding: PerAxis = 0,
    dilation: PerAxis = 1, return_indices: bool = False, ceil_mode: bool = False,
) -> pooling.VolumetricMaxPooling:  # fmt: skip
    """:class:`VolumetricMaxPooling`."""
    window = (kernel_size, stride, padding)
    return _largest(pooling.VolumetricMaxPooling, window, dilation, return_indices, ceil_mode)


@torch_class(pooling.TemporalAveragePooling)
@checked
def AvgPool1d(
    kernel_size: PerAxis, stride: PerAxis | None = None, padding: PerAxis = 0,
    ceil_mode: bool = False, count_include_pad: bool = True,
) -> pooling.TemporalAveragePooling:  # fmt: skip
    """:class:`TemporalAveragePooling` of (N, features, frames)."""
    window = (kernel_size, stride, padding)
    return _average(pooling.TemporalAveragePooling, window, ceil_mode, count_include_pad, None)


@torch_class(pooling.SpatialAveragePooling)
@checked
def AvgPool2d(
    kernel_size: PerAxis, stride: PerAxis | None = None, padding: PerAxis = 0,
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
) -> pooling.SpatialAveragePooling:  # fmt: skip
    """:class:`SpatialAveragePooling`."""
    window = (kernel_size, stride, padding)
    return _average(
        pooling.SpatialAveragePooling, window, ceil_mode, count_include_pad, divisor_override
    )


@torch_class(pooling.VolumetricAveragePooling)
@checked
def AvgPool3d(
    kernel_size: PerAxis, stride: PerAxis | None = None, padding: PerAxis = 0,
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
) -> pooling.VolumetricAveragePooling:  # fmt: skip
    """:class:`VolumetricAveragePooling`."""
    window = (kernel_size, stride, padding)
    return _average(
        pooling.VolumetricAveragePooling, window, ceil_mode, count_include_pad, divisor_override
    )


@torch_class(adaptive.TemporalAdaptiveAveragePooling)
@checked
def AdaptiveAvgPool1d(output_size: int) -> adaptive.TemporalAdaptiveAveragePooling:
    """:class:`TemporalAdaptiveAveragePooling` of (N, features, frames)."""
    return adaptive.TemporalAdaptiveAveragePooling(output_size, channels_first=True)


@torch_class(adaptive.SpatialAdaptiveAveragePooling)
@checked
def AdaptiveAvgPool2d(output_size: PerAxis) -> adaptive.SpatialAdaptiveAveragePooling:
    """:class:`SpatialAdaptiveAveragePooling`."""
    return adaptive.SpatialAdaptiveAveragePooling(output_size=output_size)


@torch_class(adaptive.VolumetricAdaptiveAveragePooling)
@checked
def AdaptiveAvgPool3d(output_size: PerAxis) -> adaptive.VolumetricAdaptiveAveragePooling:
    """:class:`VolumetricAdaptiveAveragePooling`."""
    return adaptive.VolumetricAdaptiveAveragePooling(output_size=output_size)


@torch_class(adaptive.TemporalAdaptiveMaxPooling)
@checked
def AdaptiveMaxPool1d(
    output_size: int, return_indices: bool = False
) -> adaptive.TemporalAdaptiveMaxPooling:
    """:class:`TemporalAdaptiveMaxPooling` of (N, features, frames)."""
    made = adaptive.TemporalAdaptiveMaxPooling(output_size, channels_first=True)
    made.return_indices = return_indices
    return made


@torch_class(adaptive.SpatialAdaptiveMaxPooling)
@checked
def AdaptiveMaxPool2d(
    output_size: PerAxis, return_indices: bool = False
) -> adaptive.SpatialAdaptiveMaxPooling:
    """:class:`SpatialAdaptiveMaxPooling`."""
    made = adaptive.SpatialAdaptiveMaxPooling(output_size=output_size)
    made.return_indices = return_indices
    return made


@torch_class(adaptive.VolumetricAdaptiveMaxPooling)
@checked
def AdaptiveMaxPool3d(
    output_size: PerAxis, return_indices: bool = False
) -> adaptive.VolumetricAdaptiveMaxPooling:
    """:class:`VolumetricAdaptiveMaxPooling`."""
    made = adaptive.VolumetricAdaptiveMaxPooling(output_size=output_size)
    made.return_indices = return_indices
    return made


# -- recurrent -----------------------------------------------------------------------------------


@torch_class(recurrent.Recurrent)
@checked
def RNN(
    input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: str = "tanh",
    bias: bool = True, batch_first: bool = False, dropout: float = 0.0,
    bidirectional: bool = False, **options: Any,
) -> recurrent.Recurrent:  # fmt: skip
    """:class:`RNNTanh`, or :class:`RNNReLU` by ``nonlinearity="relu"``."""
    kinds = {"tanh": recurrent.RNNTanh, "relu": recurrent.RNNReLU}
    if nonlinearity not in kinds:
        raise UnknownWord(f"RNN: nonlinearity={nonlinearity!r}; wanted 'tanh' or 'relu'")
    return kinds[nonlinearity](
        input_size, hidden_size, num_layers, batch_first, dropout=dropout,
        bidirectional=bidirectional, bias=bias, **options,
    )  # fmt: skip


# -- normalisation, softmax, the rest ------------------------------------------------------------


def _batch_norm(
    kind: type[Layer], features: int, eps: float, momentum: float | None, affine: bool,
    kept: bool, bias: bool, dtype: str | None,
) -> Layer:  # fmt: skip
    make: Callable[..., Layer] = kind
    if kept and momentum is None:
        return make(features, eps, affine=affine, bias=bias, cumulative=True, dtype=dtype)
    return make(features, eps, momentum if kept else None, affine, bias=bias, dtype=dtype)


@torch_class(norm.BatchNormalization)
@checked
def BatchNorm1d(
    num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True,
    track_running_stats: bool = True, *, bias: bool = True, dtype: str | None = None,
) -> norm.BatchNormalization:  # fmt: skip
    """:class:`BatchNormalization`."""
    return _batch_norm(
        norm.BatchNormalization, num_features, eps, momentum, affine, track_running_stats,
        bias, dtype,
    )  # fmt: skip


@torch_class(norm.SpatialBatchNormalization)
@checked
def BatchNorm2d(
    num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True,
    track_running_stats: bool = True, *, bias: bool = True, dtype: str | None = None,
) -> norm.SpatialBatchNormalization:  # fmt: skip
    """:class:`SpatialBatchNormalization`."""
    return _batch_norm(
        norm.SpatialBatchNormalization, num_features, eps, momentum, affine, track_running_stats,
        bias, dtype,
    )  # fmt: skip


@torch_class(norm.VolumetricBatchNormalization)
@checked
def BatchNorm3d(
    num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True,
    track_running_stats: bool = True, *, bias: bool = True, dtype: str | None = None,
) -> norm.VolumetricBatchNormalization:  # fmt: skip
    """:class:`VolumetricBatchNormalization`."""
    return _batch_norm(
        norm.VolumetricBatchNormalization, num_features, eps, momentum, affine,
        track_running_stats, bias, dtype,
    )  # fmt: skip


def _instance_norm(
    positions: int, features: int, eps: float, momentum: float, affine: bool, kept: bool,
    bias: bool, dtype: str | None,
) -> norm.InstanceNorm:  # fmt: skip
    return norm.InstanceNorm(
        features, eps, affine, positions=positions, bias=bias, momentum=momentum,
        track_running_stats=kept, dtype=dtype,
    )  # fmt: skip


@torch_class(norm.InstanceNorm)
@checked
def InstanceNorm1d(
    num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = False,
    track_running_stats: bool = False, *, bias: bool = True, dtype: str | None = None,
) -> norm.InstanceNorm:  # fmt: skip
    """:class:`InstanceNorm`; ``momentum`` is that of running statistics, if it tracks them."""
    return _instance_norm(1, num_features, eps, momentum, affine, track_running_stats, bias, dtype)


@torch_class(norm.InstanceNorm)
@checked
def InstanceNorm2d(
    num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = False,
    track_running_stats: bool = False, *, bias: bool = True, dtype: str | None = None,
) -> norm.InstanceNorm:  # fmt: skip
    """:func:`InstanceNorm1d` of images."""
    return _instance_norm(2, num_features, eps, momentum, affine, track_running_stats, bias, dtype)


@torch_class(norm.InstanceNorm)
@checked
def InstanceNorm3d(
    num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = False,
    track_running_stats: bool = False, *, bias: bool = True, dtype: str | None = None,
) -> norm.InstanceNorm:  # fmt: skip
    """:func:`InstanceNorm1d` of volumes."""
    return _instance_norm(3, num_features, eps, momentum, affine, track_running_stats, bias, dtype)


@torch_class(LookupTable)
@checked
def Embedding(
    num_embeddings: int, embedding_dim: int, padding_idx: int | None = None,
    max_norm: float | None = None, norm_type: float = 2.0, scale_grad_by_freq: bool = False,
    sparse: bool = False, **options: Any,
) -> LookupTable:  # fmt: skip
    """:class:`LookupTable`; ``Embedding.from_pretrained`` is that of the class."""
    return LookupTable(
        num_embeddings, embedding_dim, padding_idx, max_norm=max_norm, norm_type=norm_type,
        scale_grad_by_freq=scale_grad_by_freq, sparse=sparse, **options,
    )  # fmt: skip


@torch_class(SoftMax)
@checked
def Softmax(dim: int | None = None) -> SoftMax:
    """:class:`SoftMax` along the axis ``dim``; None: over each example."""
    return SoftMax(dim=dim)


@torch_class(LogSoftMax)
@checked
def LogSoftmax(dim: int | None = None) -> LogSoftMax:
    """:class:`LogSoftMax` along the axis ``dim``; None: over each example."""
    return LogSoftMax(dim=dim)


@torch_class(SoftMin)
@checked
def Softmin(dim: int | None = None) -> SoftMin:
    """:class:`SoftMin` along the axis ``dim``; None: over each example."""
    return SoftMin(dim=dim)


def _widths(what: str, padding: BorderMode, sides: int) -> tuple[int, ...]:
    return sizes(f"{what}: padding", sides, [None] * sides, padding)


@torch_class(shaping.SpatialZeroPadding)
@checked
def ZeroPad2d(padding: BorderMode) -> shaping.SpatialZeroPadding:
    """:class:`SpatialZeroPadding`; an int, or (left, right, top, bottom)."""
    return shaping.SpatialZeroPadding(*_widths("ZeroPad2d", padding, 4))


@torch_class(shaping.SpatialReflectionPadding)
@checked
def ReflectionPad2d(padding: BorderMode) -> shaping.SpatialReflectionPadding:
    """:class:`SpatialReflectionPadding`; an int, or (left, right, top, bottom)."""
    return shaping.SpatialReflectionPadding(*_widths("ReflectionPad2d", padding, 4))


@torch_class(shaping.SpatialReplicationPadding)
@checked
def ReplicationPad2d(padding: BorderMode) -> shaping.SpatialReplicationPadding:
    """:class:`SpatialReplicationPadding`; an int, or (left, right, top, bottom)."""
    return shaping.SpatialReplicationPadding(*_widths("ReplicationPad2d", padding, 4))
