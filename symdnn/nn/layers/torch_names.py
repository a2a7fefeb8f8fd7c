"""Today's names: functions that make the layers of this package from PyTorch's arguments.

Names and order of the arguments are PyTorch's; what is made (and printed) is Torch7's class. Where
PyTorch and Torch7 have one name (``ReLU``, ``Linear``, ``Dropout``, ``LayerNorm``, ...), it is
Torch7's class with Torch7's order, and is not here. Sizes are ints or tuples (T, H, W).

>>> Conv2d(3, 96, 11, 3)
nn.SpatialConvolution(3 -> 96, 11x11, 3,3)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

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
from symdnn.nn.layers.softmax import BY_RANK, LogSoftMax, SoftMax, SoftMin
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

P = ParamSpec("P")
Layer = TypeVar("Layer", bound=Module)
Pool = TypeVar("Pool", bound=pooling._Pooling)
Adaptive = TypeVar("Adaptive", bound=adaptive._Adaptive)

Hardshrink, Hardsigmoid, Hardswish = HardShrink, HardSigmoid, HardSwish
Hardtanh, Softshrink, Softsign = HardTanh, SoftShrink, SoftSign
Dropout2d, Dropout3d = SpatialDropout, VolumetricDropout


def _named(
    name: str, make: Callable[Concatenate[type[Layer], P], Layer], kind: type[Layer],
    about: str = "",
) -> Callable[P, Layer]:  # fmt: skip
    """PyTorch's ``name`` of layers of ``kind``, which ``make(kind, ...)`` makes."""

    _, *parameters = inspect.signature(make).parameters.values()
    signature = inspect.Signature(parameters, return_annotation=kind)

    def made(*args: P.args, **kwargs: P.kwargs) -> Layer:
        return make(kind, *args, **kwargs)

    made.__name__ = made.__qualname__ = name
    made.__doc__ = f":class:`{kind.__name__}`{about}."
    vars(made)["__signature__"] = signature
    return torch_class(kind)(checked(made))


#: What is said of layers of one dimension, whose Torch7's classes take (N, frames, features).
_FRAMES = " of (N, features, frames)"


def _order(kind: type[Module]) -> dict[str, bool]:
    """The option by which a layer of frames has PyTorch's order of axes."""
    return {"channels_first": True} if kind.__name__.startswith("Temporal") else {}


# -- convolutions --------------------------------------------------------------------------------


def _convolution(
    kind: type[Layer], /, in_channels: int, out_channels: int, kernel_size: PerAxis,
    stride: PerAxis = 1, padding: BorderMode = 0, dilation: PerAxis = 1, groups: int = 1,
    bias: bool = True, padding_mode: str = "zeros", **options: object,
) -> Layer:  # fmt: skip
    if not issubclass(kind, conv.TRANSPOSED):
        options["padding_mode"] = padding_mode
    make: Callable[..., Layer] = kind
    return make(
        in_channels, out_channels, kernel_size=kernel_size, stride=stride,
        padding=0 if isinstance(padding, str) and padding == "valid" else padding,
        dilation=dilation, groups=groups, bias=bias, **_order(kind), **options,
    )  # fmt: skip


def _transposed(
    kind: type[Layer], /, in_channels: int, out_channels: int, kernel_size: PerAxis,
    stride: PerAxis = 1, padding: BorderMode = 0, output_padding: PerAxis = 0, groups: int = 1,
    bias: bool = True, dilation: PerAxis = 1, padding_mode: str = "zeros", **options: Any,
) -> Layer:  # fmt: skip
    if padding_mode != "zeros":
        raise UnknownWord(f"{kind.__name__}: padding_mode={padding_mode!r}; wanted 'zeros'")
    return _convolution(
        kind, in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias,
        output_padding=output_padding, **options,
    )  # fmt: skip


Conv1d = _named("Conv1d", _convolution, conv.TemporalConvolution, _FRAMES)
Conv2d = _named("Conv2d", _convolution, conv.SpatialConvolution)
Conv3d = _named("Conv3d", _convolution, conv.VolumetricConvolution)
ConvTranspose1d = _named("ConvTranspose1d", _transposed, conv.TemporalFullConvolution, _FRAMES)
ConvTranspose2d = _named("ConvTranspose2d", _transposed, conv.SpatialFullConvolution)
ConvTranspose3d = _named("ConvTranspose3d", _transposed, conv.VolumetricFullConvolution)


# -- pooling -------------------------------------------------------------------------------------


def _largest(
    kind: type[Pool], /, kernel_size: PerAxis, stride: PerAxis | None = None, padding: PerAxis = 0,
    dilation: PerAxis = 1, return_indices: bool = False, ceil_mode: bool = False,
) -> Pool:  # fmt: skip
    make: Callable[..., Pool] = kind
    made = make(
        kernel_size=kernel_size, stride=stride, padding=padding, ceil_mode=ceil_mode, **_order(kind)
    )
    made.options(dilation=dilation, return_indices=return_indices)
    return made


def _average(
    kind: type[Pool], /, kernel_size: PerAxis, stride: PerAxis | None = None, padding: PerAxis = 0,
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
) -> Pool:  # fmt: skip
    make: Callable[..., Pool] = kind
    made = make(
        kernel_size=kernel_size, stride=stride, padding=padding, ceil_mode=ceil_mode,
        count_include_pad=count_include_pad, **_order(kind),
    )  # fmt: skip
    made.options(divisor_override=divisor_override)
    return made


def _average_of_frames(
    kind: type[Pool], /, kernel_size: PerAxis, stride: PerAxis | None = None, padding: PerAxis = 0,
    ceil_mode: bool = False, count_include_pad: bool = True,
) -> Pool:  # fmt: skip
    return _average(kind, kernel_size, stride, padding, ceil_mode, count_include_pad)


MaxPool1d = _named("MaxPool1d", _largest, pooling.TemporalMaxPooling, _FRAMES)
MaxPool2d = _named("MaxPool2d", _largest, pooling.SpatialMaxPooling)
MaxPool3d = _named("MaxPool3d", _largest, pooling.VolumetricMaxPooling)
AvgPool1d = _named("AvgPool1d", _average_of_frames, pooling.TemporalAveragePooling, _FRAMES)
AvgPool2d = _named("AvgPool2d", _average, pooling.SpatialAveragePooling)
AvgPool3d = _named("AvgPool3d", _average, pooling.VolumetricAveragePooling)


def _adaptive(kind: type[Layer], /, output_size: PerAxis) -> Layer:
    make: Callable[..., Layer] = kind
    return make(output_size=output_size, **_order(kind))


def _adaptive_largest(
    kind: type[Adaptive], /, output_size: PerAxis, return_indices: bool = False
) -> Adaptive:
    made = _adaptive(kind, output_size)
    made.return_indices = return_indices
    return made


AdaptiveAvgPool1d = _named(
    "AdaptiveAvgPool1d", _adaptive, adaptive.TemporalAdaptiveAveragePooling, _FRAMES
)
AdaptiveAvgPool2d = _named("AdaptiveAvgPool2d", _adaptive, adaptive.SpatialAdaptiveAveragePooling)
AdaptiveAvgPool3d = _named(
    "AdaptiveAvgPool3d", _adaptive, adaptive.VolumetricAdaptiveAveragePooling
)
AdaptiveMaxPool1d = _named(
    "AdaptiveMaxPool1d", _adaptive_largest, adaptive.TemporalAdaptiveMaxPooling, _FRAMES
)
AdaptiveMaxPool2d = _named(
    "AdaptiveMaxPool2d", _adaptive_largest, adaptive.SpatialAdaptiveMaxPooling
)
AdaptiveMaxPool3d = _named(
    "AdaptiveMaxPool3d", _adaptive_largest, adaptive.VolumetricAdaptiveMaxPooling
)


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
    kind: type[Layer], /, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1,
    affine: bool = True, track_running_stats: bool = True, *, bias: bool = True,
    dtype: str | None = None,
) -> Layer:  # fmt: skip
    make: Callable[..., Layer] = kind
    return make(
        num_features, eps, momentum if track_running_stats else None, affine, bias=bias,
        cumulative=track_running_stats and momentum is None, dtype=dtype,
    )  # fmt: skip


BatchNorm1d = _named("BatchNorm1d", _batch_norm, norm.BatchNormalization)
BatchNorm2d = _named("BatchNorm2d", _batch_norm, norm.SpatialBatchNormalization)
BatchNorm3d = _named("BatchNorm3d", _batch_norm, norm.VolumetricBatchNormalization)


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


def _along(kind: type[Layer], /, dim: int | None = None) -> Layer:
    make: Callable[..., Layer] = kind
    made = make(dim=dim)
    if dim is None:
        vars(made)["dim"] = BY_RANK
    return made


_DIM = " along the axis ``dim``; None: the first of 1 or 3 dimensions, else the second, as PyTorch"
Softmax = _named("Softmax", _along, SoftMax, _DIM)
LogSoftmax = _named("LogSoftmax", _along, LogSoftMax, _DIM)
Softmin = _named("Softmin", _along, SoftMin, _DIM)


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
