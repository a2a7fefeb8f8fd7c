"""EfficientNet (Tan and Le 2019): inverted residuals of scaled planes, with torchvision's names."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

from symdnn.nn import init
from symdnn.nn.layers.activation import SiLU
from symdnn.nn.layers.containers import Sequential
from symdnn.nn.layers.dropout import Dropout
from symdnn.nn.layers.linear import Linear
from symdnn.nn.layers.norm import SpatialBatchNormalization
from symdnn.nn.layers.shaping import Flatten
from symdnn.nn.layers.torchvision_layers import SqueezeExcitation
from symdnn.nn.models.mobilenet import ConvNorm, InvertedResidual
from symdnn.nn.models.parts import Classifier, as_torchvision, make_divisible
from symdnn.nn.modules.module import Module

__all__ = ["efficientnet", "efficientnet_b0"]

#: Expansion, kernel, stride of the first block, planes, blocks.
_STAGES = (
    (1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3), (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4), (6, 3, 1, 320, 1),
)  # fmt: skip
_layer = partial(ConvNorm, activation_layer=SiLU)


@as_torchvision
def efficientnet(
    width: float,
    depth: float,
    classes: int = 1000,
    dropout: float = 0.2,
    depth_dropout: float = 0.2,
) -> Classifier:
    """An EfficientNet whose planes are multiplied by ``width``, whose blocks by ``depth``.

    Images are (N, 3, height, width). Residual branches are left out in training with a probability
    that grows from 0 to ``depth_dropout``.
    """
    last = 4 * make_divisible(320 * width)
    bound = init.uniform(1 / math.sqrt(classes))
    return Classifier(
        Sequential(*_layers(width, depth, depth_dropout, last)),
        Sequential(
            Dropout(dropout), Linear(last, classes, weight_init=bound, bias_init=init.zeros)
        ),
        Flatten(),
    )


@as_torchvision
def efficientnet_b0(
    classes: int = 1000, dropout: float = 0.2, depth_dropout: float = 0.2
) -> Classifier:
    """EfficientNet-B0: 5,288,548 parameters; else as :func:`efficientnet`."""
    return efficientnet(1.0, 1.0, classes, dropout, depth_dropout)


def _layers(width: float, depth: float, left_out: float, last: int) -> Iterator[Module]:
    inputs = make_divisible(32 * width)
    yield _layer(3, inputs, 3, 2)
    counts = [math.ceil(blocks * depth) for *_, blocks in _STAGES]
    number = 0
    for (expansion, kernel, stride, planes, _), count in zip(_STAGES, counts, strict=True):
        outputs, stage = make_divisible(planes * width), Sequential()
        for i in range(count):
            stage.add(
                InvertedResidual(
                    inputs, make_divisible(expansion * inputs), outputs, kernel,
                    stride if i == 0 else 1, SpatialBatchNormalization, SiLU,
                    partial(_squeeze, max(1, inputs // 4)), left_out * number / sum(counts),
                )
            )  # fmt: skip
            inputs, number = outputs, number + 1
        yield stage
    yield _layer(inputs, last, 1)


def _squeeze(squeezed: int, planes: int, **drawn: Any) -> SqueezeExcitation:
    return SqueezeExcitation(planes, squeezed, SiLU, **drawn)
