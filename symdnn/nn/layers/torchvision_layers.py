"""Layers of torchvision that neither Torch7 nor PyTorch has, under torchvision's names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from symdnn.errors import InputError, TypeMismatch, UnknownWord
from symdnn.graph.variable import Variable
from symdnn.nn.layers.activation import ReLU, Sigmoid
from symdnn.nn.layers.adaptive_pooling import SpatialAdaptiveAveragePooling
from symdnn.nn.layers.containers import Sequential
from symdnn.nn.layers.conv import SpatialConvolution
from symdnn.nn.layers.dropout import Dropout
from symdnn.nn.layers.norm import LayerNorm, SpatialBatchNormalization
from symdnn.nn.modules.arguments import as_batch, positive, tensor_input
from symdnn.nn.modules.module import Module
from symdnn.options import as_int, as_list

__all__ = [
    "Conv2dNormActivation", "LayerNorm2d", "Permute", "SqueezeExcitation", "StochasticDepth",
]  # fmt: skip

IMAGES = "(batch, planes, height, width) or (planes, height, width)"


class Permute(Module):
    """The axes in the order ``dims``, counted from 0, the batch among them."""

    def __init__(self, dims: Sequence[int]) -> None:
        given = as_list("Permute: dims", dims, "axes")
        self.dims = tuple(as_int("Permute: an axis", d) for d in given)
        if sorted(self.dims) != list(range(len(self.dims))):
            raise InputError(f"Permute: dims={dims!r}; wanted each axis once")

    def forward(self, x: Variable) -> Variable:
        if x.type.ndim != len(self.dims):
            raise TypeMismatch("Permute", f"a tensor of {len(self.dims)} dimensions", x.type)
        return x.dimshuffle(*self.dims)

    def describe(self) -> str:
        return f"({', '.join(map(str, self.dims))})"


class LayerNorm2d(LayerNorm):
    """:class:`LayerNorm` over the planes of each pixel of (N, planes, H, W), or of one image.

    ``weight`` and ``bias`` are (planes,).

    >>> LayerNorm2d(64)
    nn.LayerNorm2d(64)
    """

    def __init__(
        self, planes: int, eps: float = 1e-5, affine: bool = True, bias: bool = True, *,
        dtype: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(planes, eps, affine, bias, dtype=dtype)

    def forward(self, x: Variable) -> Variable:
        batch, restore = as_batch(self, x, 4, IMAGES)
        return restore(super().forward(batch.dimshuffle(0, 2, 3, 1)).dimshuffle(0, 3, 1, 2))


class StochasticDepth(Dropout):
    """In training each example is 0 with probability ``p``, the others divided by ``1 - p``.

    ``mode="batch"`` has one decision for the whole batch, ``"row"`` one for each example. It stands
    at the end of a residual branch, which is so left out at random (Huang et al. 2016). Numbers are
    drawn as by :class:`Dropout`.

    >>> StochasticDepth(0.2)
    nn.StochasticDepth(0.2, row)
    """

    _shown = "{0.p:g}, {0.mode}"

    def __init__(self, p: float, mode: str = "row", *, seed: int | None = None) -> None:
        super().__init__(p, seed=seed)
        if mode not in ("row", "batch"):
            raise UnknownWord(f"StochasticDepth: mode={mode!r}; wanted 'row' or 'batch'")
        self.mode = mode

    def _shared_axes(self, x: Variable) -> tuple[int, ...]:
        return tuple(range(1 if self.mode == "row" else 0, x.type.ndim))


class SqueezeExcitation(Module):
    """Planes scaled by factors that follow from the averages of all planes (Hu et al. 2017).

    (N, input_channels, H, W), or one image. ``fc1`` takes the averages to ``squeeze_channels``,
    ``fc2`` back; both are 1x1 convolutions, behind which are ``activation`` and
    ``scale_activation``, functions that make modules.
    """

    _shown = "{0.fc1.nInputPlane} -> {0.fc1.nOutputPlane}"

    def __init__(
        self, input_channels: int, squeeze_channels: int,
        activation: Callable[[], Module] = ReLU, scale_activation: Callable[[], Module] = Sigmoid,
        *, weight_init: Callable[..., Any] | None = None,
        bias_init: Callable[..., Any] | None = None,
    ) -> None:  # fmt: skip
        positive("SqueezeExcitation: channels", input_channels, squeeze_channels)
        drawn: dict[str, Any] = {"weight_init": weight_init, "bias_init": bias_init}
        self.avgpool = SpatialAdaptiveAveragePooling(1, 1)
        self.fc1 = SpatialConvolution(input_channels, squeeze_channels, 1, 1, **drawn)
        self.fc2 = SpatialConvolution(squeeze_channels, input_channels, 1, 1, **drawn)
        self.activation, self.scale_activation = activation(), scale_activation()

    def forward(self, x: Variable) -> Variable:
        tensor_input(self, x, f"a float tensor {IMAGES}", 4, 3)
        squeezed = self.activation(self.fc1(self.avgpool(x)))
        factors: Variable = self.scale_activation(self.fc2(squeezed))
        return x * factors


def _made(name: str, make: Callable[..., Module], *args: object) -> Module:
    """The module that ``make`` makes; raises :class:`InputError` where it does not."""
    try:
        found = make(*args)
    except TypeError as error:
        raise InputError(
            f"Conv2dNormActivation: {name}: wanted a function of {len(args)} arguments that makes "
            f"a module, got {make!r}: {error}"
        ) from error
    if not isinstance(found, Module):
        raise InputError(
            f"Conv2dNormActivation: {name}: wanted a function that makes a module, got {make!r}, "
            f"which made {found!r}"
        )
    return found


class Conv2dNormActivation(Sequential):
    """A convolution, normalisation and an activation, either of which may be None.

    ``norm_layer`` makes a module for a number of planes, ``activation_layer`` one of no arguments.
    ``padding=None`` keeps the size at stride 1; a bias is there where no normalisation is, unless
    ``bias`` says otherwise. Further options are those of :class:`SpatialConvolution`.
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int = 3, stride: int = 1,
        padding: int | None = None, groups: int = 1,
        norm_layer: Callable[[int], Module] | None = SpatialBatchNormalization,
        activation_layer: Callable[[], Module] | None = ReLU, dilation: int = 1,
        bias: bool | None = None, **options: Any,
    ) -> None:  # fmt: skip
        around = (kernel_size - 1) // 2 * dilation if padding is None else padding
        layers: list[Module] = [
            SpatialConvolution(
                in_channels, out_channels, kernel_size=kernel_size, stride=stride, padding=around,
                dilation=dilation, groups=groups, bias=norm_layer is None if bias is None else bias,
                **options,
            )
        ]  # fmt: skip
        if norm_layer is not None:
            layers.append(_made("norm_layer", norm_layer, out_channels))
        if activation_layer is not None:
            layers.append(_made("activation_layer", activation_layer))
        super().__init__(*layers)
