"""Residual networks (He et al. 2015), the form called v1.5: a bottleneck's 3x3 has the stride."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from symdnn.graph.variable import Variable
from symdnn.nn.layers.activation import ReLU
from symdnn.nn.layers.adaptive_pooling import SpatialAdaptiveAveragePooling
from symdnn.nn.layers.containers import Sequential
from symdnn.nn.layers.linear import Linear
from symdnn.nn.layers.norm import SpatialBatchNormalization
from symdnn.nn.layers.pooling import SpatialMaxPooling
from symdnn.nn.models.parts import as_torchvision, conv, flat
from symdnn.nn.modules.module import Module

__all__ = [
    "BasicBlock", "Bottleneck", "ResNet", "resnet18", "resnet34", "resnet50", "resnet101",
    "resnet152",
]  # fmt: skip


class Residual(Module):
    """``relu(x + body(x))``; where the shapes differ, ``downsample`` projects x."""

    #: Features of the output for each of ``width``.
    expansion = 1

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        self.relu = ReLU(True)
        self.downsample: Sequential | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = Sequential(
                conv(inputs, outputs, 1, stride), SpatialBatchNormalization(outputs)
            )

    def body(self, x: Any) -> Any:
        """The residual, which is added to the input."""
        raise NotImplementedError

    def forward(self, x: Variable) -> Any:
        """(N, outputs, height / stride, width / stride)."""
        across = x if self.downsample is None else self.downsample(x)
        return self.relu(self.body(x) + across)


class BasicBlock(Residual):
    """Two 3x3 convolutions."""

    def __init__(self, inputs: int, width: int, stride: int = 1) -> None:
        self.conv1 = conv(inputs, width, 3, stride, 1)
        self.bn1 = SpatialBatchNormalization(width)
        self.conv2 = conv(width, width, 3, padding=1)
        self.bn2 = SpatialBatchNormalization(width)
        super().__init__(inputs, width, stride)

    def body(self, x: Any) -> Any:
        x = self.relu(self.bn1(self.conv1(x)))
        return self.bn2(self.conv2(x))


class Bottleneck(Residual):
    """1x1, 3x3, 1x1 convolutions; the output has four times ``width`` features."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int = 1) -> None:
        self.conv1 = conv(inputs, width, 1)
        self.bn1 = SpatialBatchNormalization(width)
        self.conv2 = conv(width, width, 3, stride, 1)
        self.bn2 = SpatialBatchNormalization(width)
        self.conv3 = conv(width, 4 * width, 1)
        self.bn3 = SpatialBatchNormalization(4 * width)
        super().__init__(inputs, 4 * width, stride)

    def body(self, x: Any) -> Any:
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        return self.bn3(self.conv3(x))


class ResNet(Module):
    """Four stages of ``blocks`` residual blocks for images (N, 3, 224, 224), or of other sizes.

    Names as torchvision's: ``conv1``, ``bn1``, ``layer1`` to ``layer4``, ``fc``.
    """

    def __init__(
        self, block: type[BasicBlock | Bottleneck], blocks: Sequence[int], classes: int = 1000
    ) -> None:
        self.conv1 = conv(3, 64, 7, 2, 3)
        self.bn1 = SpatialBatchNormalization(64)
        self.relu = ReLU(True)
        self.maxpool = SpatialMaxPooling(3, 3, 2, 2, 1, 1)
        inputs = 64
        for i, count in enumerate(blocks):
            width = 64 << i
            strides = [1 if i == 0 else 2] + [1] * (count - 1)
            stage = Sequential()
            for stride in strides:
                stage.add(block(inputs, width, stride))
                inputs = block.expansion * width
            setattr(self, f"layer{i + 1}", stage)
        self.avgpool = SpatialAdaptiveAveragePooling(1, 1)
        self.flatten = flat(inputs)
        self.fc = Linear(inputs, classes)

    def features(self, x: Any) -> Any:
        """The head's input before averaging: (N, features, height / 32, width / 32)."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for name, module in self.children().items():
            x = module(x) if name.startswith("layer") else x
        return x

    def forward(self, x: Variable) -> Any:
        """Class scores (N, classes)."""
        return self.fc(self.flatten(self.avgpool(self.features(x))))


@as_torchvision
def resnet18(classes: int = 1000) -> ResNet:
    """ResNet-18: 11,689,512 parameters."""
    return ResNet(BasicBlock, (2, 2, 2, 2), classes)


@as_torchvision
def resnet34(classes: int = 1000) -> ResNet:
    """ResNet-34: 21,797,672 parameters."""
    return ResNet(BasicBlock, (3, 4, 6, 3), classes)


@as_torchvision
def resnet50(classes: int = 1000) -> ResNet:
    """ResNet-50: 25,557,032 parameters."""
    return ResNet(Bottleneck, (3, 4, 6, 3), classes)


@as_torchvision
def resnet101(classes: int = 1000) -> ResNet:
    """ResNet-101: 44,549,160 parameters."""
    return ResNet(Bottleneck, (3, 4, 23, 3), classes)


@as_torchvision
def resnet152(classes: int = 1000) -> ResNet:
    """ResNet-152: 60,192,808 parameters."""
    return ResNet(Bottleneck, (3, 8, 36, 3), classes)
