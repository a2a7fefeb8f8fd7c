"""Densely connected networks (Huang et al. 2016)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from symdnn.nn import init
from symdnn.nn.layers.activation import ReLU
from symdnn.nn.layers.adaptive_pooling import SpatialAdaptiveAveragePooling
from symdnn.nn.layers.linear import Linear
from symdnn.nn.layers.norm import SpatialBatchNormalization
from symdnn.nn.layers.pooling import SpatialAveragePooling, SpatialMaxPooling
from symdnn.nn.models.parts import PLANES, Stages, as_torchvision, conv, flat
from symdnn.nn.modules.module import Module
from symdnn.ops.array.join import concatenate

__all__ = ["DenseBlock", "densenet", "densenet121"]


class DenseBlock(Module):
    """Layers each of which sees all outputs before it, joined by channels.

    The output has ``inputs + layers * growth`` features; a layer is normalisation, ReLU, 1x1
    convolution to ``4 * growth``, the same again with 3x3 to ``growth``.
    """

    def __init__(self, inputs: int, layers: int, growth: int) -> None:
        for i in range(layers):
            setattr(self, f"denselayer{i + 1}", _layer(inputs + i * growth, growth))

    def forward(self, x: Any) -> Any:
        """(N, inputs + layers * growth, height, width)."""
        for layer in self.children().values():
            x = concatenate([x, layer(x)], axis=PLANES)
        return x


@as_torchvision
def densenet(
    blocks: Sequence[int], classes: int = 1000, growth: int = 32, features: int = 64
) -> Stages:
    """A DenseNet with compression one half: ``blocks`` is the number of layers of each block.

    Images are (N, 3, height, width), at least 32 each way with four blocks.
    """
    stages: dict[str, Module] = {
        "conv0": conv(3, features, 7, 2, 3, initial=init.he_normal),
        "norm0": SpatialBatchNormalization(features),
        "relu0": ReLU(True),
        "pool0": SpatialMaxPooling(3, 3, 2, 2, 1, 1),
    }
    width = features
    for i, layers in enumerate(blocks):
        stages[f"denseblock{i + 1}"] = DenseBlock(width, layers, growth)
        width += layers * growth
        if i + 1 < len(blocks):
            stages[f"transition{i + 1}"] = _transition(width)
            width //= 2
    stages[f"norm{len(blocks) + 1}"] = SpatialBatchNormalization(width)
    return Stages(
        features=Stages(**stages),
        relu=ReLU(True),
        avgpool=SpatialAdaptiveAveragePooling(1, 1),
        flatten=flat(width),
        classifier=Linear(width, classes),
    )


@as_torchvision
def densenet121(classes: int = 1000) -> Stages:
    """DenseNet-121: 7,978,856 parameters; names as torchvision's."""
    return densenet((6, 12, 24, 16), classes)


def _layer(inputs: int, growth: int) -> Stages:
    return Stages(
        norm1=SpatialBatchNormalization(inputs),
        relu1=ReLU(True),
        conv1=conv(inputs, 4 * growth, 1, initial=init.he_normal),
        norm2=SpatialBatchNormalization(4 * growth),
        relu2=ReLU(True),
        conv2=conv(4 * growth, growth, 3, padding=1, initial=init.he_normal),
    )


def _transition(width: int) -> Stages:
    """Half the features, half the height and width."""
    return Stages(
        norm=SpatialBatchNormalization(width),
        relu=ReLU(True),
        conv=conv(width, width // 2, 1, initial=init.he_normal),
        pool=SpatialAveragePooling(2, 2, 2, 2),
    )
