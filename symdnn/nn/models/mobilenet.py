"""Networks of inverted residuals, MobileNetV2 and V3 (Sandler et al. 2018, Howard et al. 2019)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from symdnn.graph.variable import Variable
from symdnn.nn import init
from symdnn.nn.layers.activation import HardSigmoid, HardSwish, ReLU, ReLU6
from symdnn.nn.layers.containers import Sequential
from symdnn.nn.layers.dropout import Dropout
from symdnn.nn.layers.linear import Linear
from symdnn.nn.layers.norm import SpatialBatchNormalization
from symdnn.nn.layers.shaping import Flatten
from symdnn.nn.layers.torchvision_layers import (
    Conv2dNormActivation,
    SqueezeExcitation,
    StochasticDepth,
)
from symdnn.nn.models.parts import Classifier, as_torchvision, conv, he_fan_out, make_divisible
from symdnn.nn.modules.module import Module

__all__ = [
    "InvertedResidual", "mobilenet_v2", "mobilenet_v3_large", "mobilenet_v3_small",
]  # fmt: skip

Made = Callable[..., Module]
ConvNorm = partial(Conv2dNormActivation, weight_init=he_fan_out)
#: Of MobileNetV3, whose averages are those of many batches.
_V3_NORM = partial(SpatialBatchNormalization, eps=1e-3, momentum=0.01)


class InvertedResidual(Module):
    """Few planes expanded to many, a depthwise convolution, few planes again; added to the input.

    It is added where stride and planes allow it, unless ``depth`` leaves it out. ``squeeze`` makes
    a squeeze-excitation of the expanded planes. All layers are in ``block``.
    """

    def __init__(
        self, inputs: int, expanded: int, outputs: int, kernel: int, stride: int, norm: Made,
        activation: Made, squeeze: Made | None = None, depth: float = 0.0,
    ) -> None:  # fmt: skip
        layer = partial(ConvNorm, norm_layer=norm)
        layers: list[Module] = []
        if expanded != inputs:
            layers.append(layer(inputs, expanded, 1, activation_layer=activation))
        layers.append(
            layer(
                expanded, expanded, kernel, stride, groups=expanded, activation_layer=activation
            )
        )  # fmt: skip
        if squeeze is not None:
            layers.append(squeeze(expanded, weight_init=he_fan_out, bias_init=init.zeros))
        layers.append(layer(expanded, outputs, 1, activation_layer=None))
        self.block = Sequential(*layers)
        self.stochastic_depth = StochasticDepth(depth)
        self.added = stride == 1 and inputs == outputs

    def forward(self, x: Variable) -> Any:
        """(N, outputs, height / stride, width / stride)."""
        y = self.block(x)
        return self.stochastic_depth(y) + x if self.added else y


class _LinearResidual(Module):
    """The block of the second version, whose last convolution and normalisation are not wrapped."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        expanded = expansion * inputs
        layer = partial(ConvNorm, activation_layer=ReLU6)
        layers: list[Module] = [layer(inputs, expanded, 1)] if expansion != 1 else []
        self.conv = Sequential(
            *layers,
            layer(expanded, expanded, 3, stride, groups=expanded),
            conv(expanded, outputs, 1),
            SpatialBatchNormalization(outputs),
        )
        self.added = stride == 1 and inputs == outputs

    def forward(self, x: Variable) -> Any:
        y = self.conv(x)
        return x + y if self.added else y


# -- the second version ----------------------------------------------------------------------------

#: Expansion, planes, blocks, stride of the first of them.
_V2 = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
    (6, 320, 1, 1),
)  # fmt: skip


@as_torchvision
def mobilenet_v2(classes: int = 1000, width: float = 1.0, dropout: float = 0.2) -> Classifier:
    """MobileNetV2: 3,504,872 parameters; names as torchvision's.

    Images are (N, 3, height, width); ``width`` multiplies all numbers of planes.
    """
    last = make_divisible(1280 * max(1.0, width))
    return Classifier(
        Sequential(*_v2_layers(width, last)),
        Sequential(Dropout(dropout), _scores(last, classes)),
        Flatten(),
    )


def _v2_layers(width: float, last: int) -> Iterator[Module]:
    inputs = make_divisible(32 * width)
    yield ConvNorm(3, inputs, 3, 2, activation_layer=ReLU6)
    for expansion, planes, blocks, stride in _V2:
        outputs = make_divisible(planes * width)
        for i in range(blocks):
            yield _LinearResidual(inputs, outputs, stride if i == 0 else 1, expansion)
            inputs = outputs
    yield ConvNorm(inputs, last, 1, activation_layer=ReLU6)


# -- the third version -----------------------------------------------------------------------------

#: Kernel, expanded planes, planes, whether planes are scaled, hard swish instead of ReLU, stride.
_Block = tuple[int, int, int, bool, bool, int]
_LARGE: tuple[_Block, ...] = (
    (3, 16, 16, False, False, 1), (3, 64, 24, False, False, 2), (3, 72, 24, False, False, 1),
    (5, 72, 40, True, False, 2), (5, 120, 40, True, False, 1), (5, 120, 40, True, False, 1),
    (3, 240, 80, False, True, 2), (3, 200, 80, False, True, 1), (3, 184, 80, False, True, 1),
    (3, 184, 80, False, True, 1), (3, 480, 112, True, True, 1), (3, 672, 112, True, True, 1),
    (5, 672, 160, True, True, 2), (5, 960, 160, True, True, 1), (5, 960, 160, True, True, 1),
)  # fmt: skip
_SMALL: tuple[_Block, ...] = (
    (3, 16, 16, True, False, 2), (3, 72, 24, False, False, 2), (3, 88, 24, False, False, 1),
    (5, 96, 40, True, True, 2), (5, 240, 40, True, True, 1), (5, 240, 40, True, True, 1),
    (5, 120, 48, True, True, 1), (5, 144, 48, True, True, 1), (5, 288, 96, True, True, 2),
    (5, 576, 96, True, True, 1), (5, 576, 96, True, True, 1),
)  # fmt: skip


@as_torchvision
def mobilenet_v3_large(classes: int = 1000, width: float = 1.0, dropout: float = 0.2) -> Classifier:
    """MobileNetV3-Large: 5,483,032 parameters; else as :func:`mobilenet_v2`."""
    return _v3(_LARGE, 1280, classes, width, dropout)


@as_torchvision
def mobilenet_v3_small(classes: int = 1000, width: float = 1.0, dropout: float = 0.2) -> Classifier:
    """MobileNetV3-Small: 2,542,856 parameters; else as :func:`mobilenet_v2`."""
    return _v3(_SMALL, 1024, classes, width, dropout)


def _v3(
    blocks: tuple[_Block, ...], hidden: int, classes: int, width: float, dropout: float
) -> Classifier:
    last, hidden = 6 * make_divisible(blocks[-1][2] * width), make_divisible(hidden * width)
    return Classifier(
        Sequential(*_v3_layers(blocks, width, last)),
        Sequential(_scores(last, hidden), HardSwish(), Dropout(dropout), _scores(hidden, classes)),
        Flatten(),
    )


def _v3_layers(blocks: tuple[_Block, ...], width: float, last: int) -> Iterator[Module]:
    swish = partial(ConvNorm, norm_layer=_V3_NORM, activation_layer=HardSwish)
    inputs = make_divisible(16 * width)
    yield swish(3, inputs, 3, 2)
    for kernel, many, few, scaled, hard, stride in blocks:
        expanded, outputs = make_divisible(many * width), make_divisible(few * width)
        yield InvertedResidual(
            inputs, expanded, outputs, kernel, stride, _V3_NORM, HardSwish if hard else ReLU,
            _v3_squeeze if scaled else None,
        )  # fmt: skip
        inputs = outputs
    yield swish(inputs, last, 1)


def _v3_squeeze(planes: int, **drawn: Any) -> SqueezeExcitation:
    return SqueezeExcitation(planes, make_divisible(planes // 4), ReLU, HardSigmoid, **drawn)


def _scores(inputs: int, outputs: int) -> Linear:
    return Linear(inputs, outputs, weight_init=init.normal(0.01), bias_init=init.zeros)
