"""Convolutions: spatial, volumetric and temporal, and their transposes.

Arguments by position are Torch7's: width before height, and time before both. Tuples, by keyword
only, are in the order of the axes: ``kernel_size=(kH, kW)``. Filters are not mirrored
(cross-correlation), as in Torch7, PyTorch and cuDNN.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import sqrt
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import InputError, UnknownWord
from symdnn.graph.typing import BorderMode, PerAxis, TensorLike
from symdnn.graph.variable import Shared, Variable
from symdnn.nn import init
from symdnn.nn.layers.conv_sizes import (
    check_output_padding,
    chosen_sizes,
    output_padded,
    padding_of,
    torch_order,
)
from symdnn.nn.modules.arguments import as_batch, positive, sizes
from symdnn.nn.modules.modes import ConvolutionModes
from symdnn.nn.modules.module import Module
from symdnn.ops.array.pad import pad
from symdnn.ops.core.shape import dims_of
from symdnn.ops.nn.conv_builders import (
    conv1d,
    conv1d_transpose,
    conv2d,
    conv2d_transpose,
    conv3d,
    conv3d_transpose,
)

__all__ = [
    "SpatialConvolution", "SpatialDilatedConvolution", "SpatialFullConvolution",
    "TemporalConvolution", "TemporalFullConvolution", "VolumetricConvolution",
    "VolumetricFullConvolution",
]  # fmt: skip

_FORWARD: dict[int, Callable[..., Variable]] = {1: conv1d, 2: conv2d, 3: conv3d}
_TRANSPOSED: dict[int, Callable[..., Variable]] = {
    1: conv1d_transpose,
    2: conv2d_transpose,
    3: conv3d_transpose,
}
#: PyTorch's words, and those of ``pad``.
_PADDING_MODES = {
    "zeros": "constant",
    "reflect": "reflect",
    "replicate": "edge",
    "circular": "wrap",
}
_INPUTS = {
    1: "(batch, frames, features) or (frames, features)",
    2: "(batch, planes, height, width) or (planes, height, width)",
    3: "(batch, planes, time, height, width) or (planes, time, height, width)",
}


class _Convolution(ConvolutionModes, Module):
    """Their base class: sizes in the order of the axes, a weight and a bias."""

    weight: Shared
    #: None with ``bias=False``.
    bias: Shared | None
    ndim: ClassVar[int]

    def _make(
        self,
        planes: tuple[Any, Any],
        groups: int,
        bias: bool,
        weight_init: Callable[..., Any] | None,
        bias_init: Callable[..., Any] | None,
        dtype: str | None,
        padding_mode: str = "zeros",
    ) -> None:
        """Check the sizes and draw the parameters; sizes are set already."""
        name = type(self).__name__
        if padding_mode not in _PADDING_MODES:
            wanted = ", ".join(_PADDING_MODES)
            raise UnknownWord(f"{name}: padding_mode={padding_mode!r}; wanted one of {wanted}")
        self.padding_mode = padding_mode
        if self.padding == "same" and any(s != 1 for s in self.stride):
            raise InputError(f"{name}: padding='same' wants stride 1, got {self.stride}")
        if self.padding == "causal" and self.ndim != 1:
            raise InputError(f"{name}: padding='causal' is for sequences (Temporal...)")
        positive(f"{name}: nInputPlane, nOutputPlane, groups", *planes, groups)
        positive(f"{name}: kernel, stride, dilation", *self.kernel, *self.stride, *self.dilation)
        if not isinstance(self.padding, str):
            positive(f"{name}: padding", *np.ravel(self.padding).tolist(), least=0)
        if any(p % groups for p in planes):
            raise InputError(
                f"{name}: groups={groups} must divide both {planes[0]} input and {planes[1]} "
                "output planes"
            )
        self.nInputPlane, self.nOutputPlane = (int(p) for p in planes)
        self.groups = int(groups)
        shape = self._weight_shape()
        self.parameter("weight", shape, weight_init or init.torch_uniform, dtype)
        if not bias:
            self.bias = None
            return
        initial = bias_init or init.uniform(1 / sqrt(max(1, init.fans(shape)[0])))
        self.parameter("bias", (self.nOutputPlane,), initial, dtype)

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...] | tuple[tuple[int, int], ...] | str
    padding_mode: str
    dilation: tuple[int, ...]

    def _weight_shape(self) -> tuple[int, ...]:
        return (self.nOutputPlane, self.nInputPlane // self.groups, *self.kernel)

    def _product(self, x: Variable) -> Variable:
        """The convolution of a batch."""
        border, mode = self._border(), _PADDING_MODES[self.padding_mode]
        if mode != "constant":
            x = pad(x, [(0, 0), (0, 0), *border], mode)
            border = ((0, 0),) * self.ndim
        return _FORWARD[self.ndim](
            x, self.weight, border_mode=border, subsample=self.stride, filter_flip=False,
            filter_dilation=self.dilation, num_groups=self.groups,
        )  # fmt: skip

    def _border(self) -> tuple[tuple[int, int], ...]:
        """Padding as pairs; ``"same"`` keeps the size at stride 1, one more behind if odd."""
        if not isinstance(self.padding, str):
            return tuple(p if isinstance(p, tuple) else (p, p) for p in self.padding)
        around = [d * (k - 1) for k, d in zip(self.kernel, self.dilation, strict=True)]
        if self.padding == "causal":
            return tuple((n, 0) for n in around)
        return tuple((n // 2, n - n // 2) for n in around)

    def _with_bias(self, y: Variable) -> Variable:
        if self.bias is None:
            return y
        return y + self.bias.dimshuffle("x", 0, *["x"] * self.ndim)

    def forward(self, x: TensorLike) -> Variable:
        return self._around(x, self._product)

    def _around(self, x: Any, product: Callable[[Variable], Variable]) -> Variable:
        """The output by the ``product`` of a batch, planes first."""
        batch, restore = as_batch(self, x, self.ndim + 2, _INPUTS[self.ndim])
        return restore(self._with_bias(product(batch)))

    # -- printing ---------------------------------------------------------------------------------

    def _numbers(self) -> list[str]:
        """Strides, padding, ... in the order in which they are printed, width first."""
        padding = self.padding
        padded = isinstance(padding, str) or bool(np.any(padding))
        shown = []
        if padded or any(s != 1 for s in self.stride):
            shown.append(torch_order(self.stride))
        if padded:
            shown.append(padding if isinstance(padding, str) else torch_order(padding))
        if self.padding_mode != "zeros":
            shown.append(self.padding_mode)
        return shown

    def describe(self) -> str:
        window = torch_order(self.kernel, "x")
        parts = [f"{self.nInputPlane} -> {self.nOutputPlane}", window, *self._numbers()]
        if self.groups != 1:
            parts.append(f"groups={self.groups}")
        return f"({', '.join(parts)})" + ("" if self.bias is not None else " without bias")


class SpatialConvolution(_Convolution):
    """Convolution of images: (N, nInputPlane, H, W) to (N, nOutputPlane, H', W').

    ``H' = (H + 2 padH - dilation (kH - 1) - 1) // dH + 1``. By position, as in Torch7: kW, kH,
    strides dW, dH (1), padW (0), padH (padW), groups (1). By keyword instead: ``kernel_size``,
    ``stride``, ``padding`` and ``dilation``, each an int or (height, width); ``padding="same"``
    keeps the size (stride 1), ``((top, bottom), (left, right))`` differs by side. What stands
    there is ``padding_mode``: "zeros", "reflect", "replicate" or "circular". ``bias=False`` leaves
    the bias out. An input without a batch gives an output without one. ``weight`` is
    (nOutputPlane, nInputPlane / groups, kH, kW), ``bias``
    (nOutputPlane,). (cudnn.SpatialConvolution; PyTorch's Conv2d.)

    >>> SpatialConvolution(3, 96, 11, 11, 3, 3)
    nn.SpatialConvolution(3 -> 96, 11x11, 3,3)
    """

    ndim = 2

    def __init__(
        self, nInputPlane: int, nOutputPlane: int, kW: int | None = None, kH: int | None = None,
        dW: int | None = None, dH: int | None = None, padW: int | None = None,
        padH: int | None = None, groups: int = 1, *, kernel_size: PerAxis | None = None,
        stride: PerAxis | None = None, padding: BorderMode | None = None,
        dilation: PerAxis | None = 1, bias: bool = True, padding_mode: str = "zeros",
        weight_init: Callable[..., Any] | None = None, bias_init: Callable[..., Any] | None = None,
        dtype: str | None = None,
    ) -> None:  # fmt: skip
        name = type(self).__name__
        self.kernel = sizes(f"{name}: kW, kH or kernel_size=", 2, (kH, kW), kernel_size)
        self.stride = sizes(f"{name}: dW, dH or stride=", 2, (dH, dW), stride, 1)
        padH = padW if padH is None else padH
        self.padding = padding_of(f"{name}: padW, padH or padding=", (padH, padW), padding)
        self.dilation = sizes(f"{name}: dilation", 2, (None, None), dilation)
        self._make(
            (nInputPlane, nOutputPlane), groups, bias, weight_init, bias_init, dtype,
            padding_mode,
        )  # fmt: skip

    def _numbers(self) -> list[str]:
        dilated = any(d != 1 for d in self.dilation)
        more = [f"dilation={torch_order(self.dilation)}"] if dilated else []
        return [*_Convolution._numbers(self), *more]


class SpatialDilatedConvolution(SpatialConvolution):
    """:class:`SpatialConvolution` with dilationW, dilationH (1) behind padH, as in Torch7."""

    def __init__(
        self, nInputPlane: int, nOutputPlane: int, kW: int | None = None, kH: int | None = None,
        dW: int | None = None, dH: int | None = None, padW: int | None = None,
        padH: int | None = None, dilationW: int = 1, dilationH: int | None = None, **options: Any,
    ) -> None:  # fmt: skip
        if "dilation" not in options:
            options["dilation"] = (dilationW if dilationH is None else dilationH, dilationW)
        super().__init__(nInputPlane, nOutputPlane, kW, kH, dW, dH, padW, padH, **options)

    def _numbers(self) -> list[str]:
        return [*_Convolution._numbers(self), torch_order(self.dilation)]


class VolumetricConvolution(_Convolution):
    """Convolution of volumes: (N, nInputPlane, T, H, W); time comes first among the arguments.

    By position kT, kW, kH, strides dT, dW, dH (1), padT (0), padW (padT), padH (padW), groups (1);
    by keyword tuples (time, height, width). ``weight`` is (nOutputPlane, nInputPlane / groups, kT,
    kH, kW). Else as :class:`SpatialConvolution`. (cudnn.VolumetricConvolution; Conv3d.)

    >>> VolumetricConvolution(3, 8, 3, 5, 5, padT=1)
    nn.VolumetricConvolution(3 -> 8, 3x5x5, 1,1,1, 1,1,1)
    """

    ndim = 3

    def __init__(
        self, nInputPlane: int, nOutputPlane: int, kT: int | None = None, kW: int | None = None,
        kH: int | None = None, dT: int | None = None, dW: int | None = None, dH: int | None = None,
        padT: int | None = None, padW: int | None = None, padH: int | None = None, groups: int = 1,
        *, kernel_size: PerAxis | None = None, stride: PerAxis | None = None,
        padding: BorderMode | None = None, dilation: PerAxis | None = 1, bias: bool = True,
        padding_mode: str = "zeros", weight_init: Callable[..., Any] | None = None,
        bias_init: Callable[..., Any] | None = None, dtype: str | None = None,
    ) -> None:  # fmt: skip
        name, none = type(self).__name__, (None, None, None)
        self.kernel = sizes(f"{name}: kT, kW, kH or kernel_size=", 3, (kT, kH, kW), kernel_size)
        self.stride = sizes(f"{name}: dT, dW, dH or stride=", 3, (dT, dH, dW), stride, 1)
        padW = padT if padW is None else padW
        padH = padW if padH is None else padH
        what = f"{name}: padT, padW, padH or padding="
        self.padding = padding_of(what, (padT, padH, padW), padding)
        self.dilation = sizes(f"{name}: dilation", 3, none, dilation)
        self._make(
            (nInputPlane, nOutputPlane), groups, bias, weight_init, bias_init, dtype,
            padding_mode,
        )  # fmt: skip

    _numbers = SpatialConvolution._numbers


class _Temporal(_Convolution):
    """The base of convolutions of sequences, with the axis of the features."""

    ndim = 1
    channels_first: bool

    def _around(self, x: Any, product: Callable[[Variable], Variable]) -> Variable:
        wanted = _INPUTS[1]
        if self.channels_first:
            wanted = "(batch, features, frames) or (features, frames)"
        batch, restore = as_batch(self, x, 3, wanted)
        if self.channels_first:
            return restore(self._with_bias(product(batch)))
        y = self._with_bias(product(batch.dimshuffle(0, 2, 1)))
        return restore(y.dimshuffle(0, 2, 1))


class TemporalConvolution(_Temporal):
    """Convolution of sequences: (N, frames, inputFrameSize) to (N, frames', outputFrameSize).

    By position kW and the stride dW (1); by keyword ``padding``, ``dilation``, ``groups``.
    ``padding="causal"`` is all before the first frame: no output sees later frames; ``((2, 1),)``
    is 2 before and 1 behind. ``padding_mode`` is as of :class:`SpatialConvolution`.
    ``channels_first=True`` takes and gives (N, features, frames), as PyTorch's Conv1d does.
    ``weight`` is (outputFrameSize, inputFrameSize / groups, kW).

    >>> TemporalConvolution(20, 40, 5)
    nn.TemporalConvolution(20 -> 40, 5)
    """

    def __init__(
        self, inputFrameSize: int, outputFrameSize: int, kW: int | None = None,
        dW: int | None = None, *, kernel_size: PerAxis | None = None, stride: PerAxis | None = None,
        padding: BorderMode | None = 0, dilation: PerAxis | None = 1, groups: int = 1,
        channels_first: bool = False, bias: bool = True, padding_mode: str = "zeros",
        weight_init: Callable[..., Any] | None = None, bias_init: Callable[..., Any] | None = None,
        dtype: str | None = None,
    ) -> None:  # fmt: skip
        name = type(self).__name__
        self.kernel = sizes(f"{name}: kW or kernel_size=", 1, (kW,), kernel_size)
        self.stride = sizes(f"{name}: dW or stride=", 1, (dW,), stride, 1)
        self.padding = padding_of(f"{name}: padding", (None,), padding)
        self.dilation = sizes(f"{name}: dilation", 1, (None,), dilation)
        self.channels_first = channels_first
        planes = (inputFrameSize, outputFrameSize)
        self._make(
            planes, groups, bias, weight_init, bias_init, dtype,
            padding_mode,
        )  # fmt: skip


class _FullConvolution(_Convolution):
    """Transposed convolution: the gradient of a convolution in its input, as a layer.

    ``layer(x, output_size=sizes)`` has these sizes (PyTorch's), one for each axis, or the whole
    shape with the planes before them. They are in the reach of ``output_padding``, which they
    replace.
    """

    adjust: tuple[int, ...]

    def forward(self, x: TensorLike, output_size: Any = None) -> Variable:
        return self._around(x, partial(self._product, output_size=output_size))

    def _weight_shape(self) -> tuple[int, ...]:
        return (self.nInputPlane, self.nOutputPlane // self.groups, *self.kernel)

    def _product(self, x: Variable, output_size: Any = None) -> Variable:
        made = self._output_sizes(x)
        if output_size is not None:
            whole = 2 if getattr(self, "channels_first", True) else 0
            least = [n - a for n, a in zip(made, self.adjust, strict=True)]
            made = chosen_sizes(type(self).__name__, least, self.stride, output_size, whole)
        else:
            x = output_padded(x, self.adjust, self.stride)
        return _TRANSPOSED[self.ndim](
            x, self.weight, made, border_mode=tuple(self.padding), input_dilation=self.stride,
            filter_flip=False, filter_dilation=self.dilation, num_groups=self.groups,
        )  # fmt: skip

    def _output_sizes(self, x: Variable) -> list[Any]:
        rows = zip(dims_of(x)[2:], self.kernel, self.stride, self.padding, self.dilation,
                   self.adjust, strict=True)  # fmt: skip
        return [(n - 1) * s - 2 * p + d * (k - 1) + 1 + a for n, k, s, p, d, a in rows]

    def _numbers(self) -> list[str]:
        more = [torch_order(self.adjust)] if any(self.adjust) else []
        shown = super()._numbers()
        if more and len(shown) < 2:  # arguments after the padding are printed with it
            shown = [torch_order(self.stride), torch_order(tuple(self.padding))]
        return [*shown, *more]


class SpatialFullConvolution(_FullConvolution):
    """Transposed convolution: (N, nInputPlane, H, W) to (N, nOutputPlane, H', W').

    ``H' = (H - 1) dH - 2 padH + dilation (kH - 1) + 1 + adjH``. By position kW, kH, dW, dH (1),
    padW (0), padH (padW), adjW, adjH (0); by keyword ``kernel_size``, ``stride``, ``padding``,
    ``output_padding``, ``dilation`` as (height, width), and ``groups``. ``weight`` is (nInputPlane,
    nOutputPlane / groups, kH, kW). (cudnn.SpatialFullConvolution; PyTorch's ConvTranspose2d.)

    >>> SpatialFullConvolution(8, 4, 4, 4, 2, 2, 1, 1)
    nn.SpatialFullConvolution(8 -> 4, 4x4, 2,2, 1,1)
    """

    ndim = 2

    def __init__(
        self, nInputPlane: int, nOutputPlane: int, kW: int | None = None, kH: int | None = None,
        dW: int | None = None, dH: int | None = None, padW: int | None = None,
        padH: int | None = None, adjW: int | None = None, adjH: int | None = None, *,
        groups: int = 1, kernel_size: PerAxis | None = None, stride: PerAxis | None = None,
        padding: BorderMode | None = None, output_padding: PerAxis | None = None,
        dilation: PerAxis | None = 1, bias: bool = True,
        weight_init: Callable[..., Any] | None = None, bias_init: Callable[..., Any] | None = None,
        dtype: str | None = None,
    ) -> None:  # fmt: skip
        name = type(self).__name__
        self.kernel = sizes(f"{name}: kW, kH or kernel_size=", 2, (kH, kW), kernel_size)
        self.stride = sizes(f"{name}: dW, dH or stride=", 2, (dH, dW), stride, 1)
        padH = padW if padH is None else padH
        self.padding = sizes(f"{name}: padW, padH or padding=", 2, (padH, padW), padding, 0)
        self.adjust = sizes(f"{name}: adjW, adjH or output_padding=", 2, (adjH, adjW),
                            output_padding, 0)  # fmt: skip
        self.dilation = sizes(f"{name}: dilation", 2, (None, None), dilation)
        check_output_padding(name, self.adjust, self.stride, self.dilation)
        self._make((nInputPlane, nOutputPlane), groups, bias, weight_init, bias_init, dtype)


class VolumetricFullConvolution(_FullConvolution):
    """Transposed convolution of volumes, time first: kT, kW, kH, dT, dW, dH, padT, ..., adjT, ...

    Else as :class:`SpatialFullConvolution`. (cudnn.VolumetricFullConvolution; ConvTranspose3d.)
    """

    ndim = 3

    def __init__(
        self, nInputPlane: int, nOutputPlane: int, kT: int | None = None, kW: int | None = None,
        kH: int | None = None, dT: int | None = None, dW: int | None = None, dH: int | None = None,
        padT: int | None = None, padW: int | None = None, padH: int | None = None,
        adjT: int | None = None, adjW: int | None = None, adjH: int | None = None, *,
        groups: int = 1, kernel_size: PerAxis | None = None, stride: PerAxis | None = None,
        padding: BorderMode | None = None, output_padding: PerAxis | None = None,
        dilation: PerAxis | None = 1, bias: bool = True,
        weight_init: Callable[..., Any] | None = None, bias_init: Callable[..., Any] | None = None,
        dtype: str | None = None,
    ) -> None:  # fmt: skip
        name = type(self).__name__
        self.kernel = sizes(f"{name}: kT, kW, kH or kernel_size=", 3, (kT, kH, kW), kernel_size)
        self.stride = sizes(f"{name}: dT, dW, dH or stride=", 3, (dT, dH, dW), stride, 1)
        padW = padT if padW is None else padW
        padH = padW if padH is None else padH
        what = f"{name}: padT, padW, padH or padding="
        self.padding = sizes(what, 3, (padT, padH, padW), padding, 0)
        what = f"{name}: adjT, adjW, adjH or output_padding="
        self.adjust = sizes(what, 3, (adjT, adjH, adjW), output_padding, 0)
        self.dilation = sizes(f"{name}: dilation", 3, (None,) * 3, dilation)
        check_output_padding(name, self.adjust, self.stride, self.dilation)
        self._make((nInputPlane, nOutputPlane), groups, bias, weight_init, bias_init, dtype)


class TemporalFullConvolution(_FullConvolution, _Temporal):
    """Transposed convolution of sequences: (N, frames, inputFrameSize) to (N, frames', out).

    ``frames' = (frames - 1) dW - 2 padding + dilation (kW - 1) + 1 + output_padding``. By position
    kW and dW (1); else as :class:`TemporalConvolution`. ``weight`` is (inputFrameSize,
    outputFrameSize / groups, kW). (PyTorch's ConvTranspose1d.)
    """

    def __init__(
        self, inputFrameSize: int, outputFrameSize: int, kW: int | None = None,
        dW: int | None = None, *, kernel_size: PerAxis | None = None, stride: PerAxis | None = None,
        padding: BorderMode | None = 0, output_padding: PerAxis | None = 0,
        dilation: PerAxis | None = 1, groups: int = 1, channels_first: bool = False,
        bias: bool = True, weight_init: Callable[..., Any] | None = None,
        bias_init: Callable[..., Any] | None = None, dtype: str | None = None,
    ) -> None:  # fmt: skip
        name = type(self).__name__
        self.kernel = sizes(f"{name}: kW or kernel_size=", 1, (kW,), kernel_size)
        self.stride = sizes(f"{name}: dW or stride=", 1, (dW,), stride, 1)
        self.padding = sizes(f"{name}: padding", 1, (None,), padding)
        self.adjust = sizes(f"{name}: output_padding", 1, (None,), output_padding)
        self.dilation = sizes(f"{name}: dilation", 1, (None,), dilation)
        self.channels_first = channels_first
        check_output_padding(name, self.adjust, self.stride, self.dilation)
        planes = (inputFrameSize, outputFrameSize)
        self._make(planes, groups, bias, weight_init, bias_init, dtype)


#: The transposed convolutions, which pad with zeros alone.
TRANSPOSED = (SpatialFullConvolution, VolumetricFullConvolution, TemporalFullConvolution)
