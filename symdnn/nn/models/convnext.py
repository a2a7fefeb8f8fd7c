"""ConvNeXt (Liu et al. 2022), with torchvision's names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from symdnn.graph.variable import Shared, Variable
from symdnn.nn import init
from symdnn.nn.layers.activation import GELU
from symdnn.nn.layers.containers import Sequential
from symdnn.nn.layers.conv import SpatialConvolution
from symdnn.nn.layers.linear import Linear
from symdnn.nn.layers.norm import LayerNorm
from symdnn.nn.layers.shaping import Flatten, Identity
from symdnn.nn.layers.torchvision_layers import (
    Conv2dNormActivation,
    LayerNorm2d,
    Permute,
    StochasticDepth,
)
from symdnn.nn.models.parts import Classifier, as_torchvision
from symdnn.nn.modules.module import Module

__all__ = ["convnext", "convnext_tiny"]

#: What is added to variances.
EPS = 1e-6
_norm = partial(LayerNorm2d, eps=EPS)
_near, _none = init.normal(0.02), init.zeros
_conv = partial(SpatialConvolution, weight_init=_near, bias_init=_none)
_linear = partial(Linear, weight_init=_near, bias_init=_none)


class _Block(Module):
    """A depthwise 7x7 convolution and a network for each pixel, scaled and added to the input."""

    layer_scale: Shared

    def __init__(self, width: int, scale: float, depth: float) -> None:
        self.block = Sequential(
            _conv(width, width, kernel_size=7, padding=3, groups=width),
            Permute((0, 2, 3, 1)),
            LayerNorm(width, EPS),
            _linear(width, 4 * width),
            GELU(),
            _linear(4 * width, width),
            Permute((0, 3, 1, 2)),
        )
        self.parameter("layer_scale", (width, 1, 1), init.constant(scale))
        self.stochastic_depth = StochasticDepth(depth)

    def forward(self, x: Variable) -> Variable:
        y: Variable = self.stochastic_depth(self.layer_scale * self.block(x)) + x
        return y


@as_torchvision
def convnext(
    blocks: Sequence[int], widths: Sequence[int], classes: int = 1000,
    depth_dropout: float = 0.0, layer_scale: float = 1e-6,
) -> Classifier:  # fmt: skip
    """A ConvNeXt with stages of ``blocks`` blocks and of ``widths`` planes.

    Images are (N, 3, height, width), at least 32 each way with four stages. Residual branches begin
    with a factor of ``layer_scale`` and are left out in training with a probability that grows
    from 0 to ``depth_dropout``.
    """
    return Classifier(
        Sequential(*_layers(blocks, widths, depth_dropout, layer_scale)),
        Sequential(_norm(widths[-1]), Flatten(), _linear(widths[-1], classes)),
        Identity(),
    )


@as_torchvision
def convnext_tiny(classes: int = 1000, depth_dropout: float = 0.1) -> Classifier:
    """ConvNeXt-T: 28,589,128 parameters; else as :func:`convnext`."""
    return convnext((3, 3, 9, 3), (96, 192, 384, 768), classes, depth_dropout)


def _layers(
    blocks: Sequence[int], widths: Sequence[int], left_out: float, scale: float
) -> Iterator[Module]:
    yield Conv2dNormActivation(
        3, widths[0], 4, 4, 0, norm_layer=_norm, activation_layer=None, bias=True,
        weight_init=_near, bias_init=_none,
    )  # fmt: skip
    number, steps = 0, max(1, sum(blocks) - 1)
    for i, (count, width) in enumerate(zip(blocks, widths, strict=True)):
        if i:
            before = widths[i - 1]
            yield Sequential(_norm(before), _conv(before, width, kernel_size=2, stride=2))
        yield Sequential(
            *(_Block(width, scale, left_out * (number + j) / steps) for j in range(count))
        )
        number += count
