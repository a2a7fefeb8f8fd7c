"""GoogLeNet (Szegedy et al. 2014) with batch normalisation, and its two auxiliary heads."""

from __future__ import annotations

from typing import Any

import numpy as np

from symdnn.graph.variable import Variable
from symdnn.nn.layers.activation import ReLU
from symdnn.nn.layers.adaptive_pooling import SpatialAdaptiveAveragePooling
from symdnn.nn.layers.containers import Sequential
from symdnn.nn.layers.dropout import Dropout
from symdnn.nn.layers.linear import Linear
from symdnn.nn.layers.pooling import SpatialMaxPooling
from symdnn.nn.models.parts import PLANES, ConvNorm, as_torchvision, flat
from symdnn.nn.modules.module import Module
from symdnn.ops.array.join import concatenate

__all__ = ["GoogLeNet", "Inception", "googlenet"]

EPS = 1e-3

#: Inputs, 1x1, 3x3 (before, out), 5x5 (before, out), pooled; table 1 of the paper.
INCEPTIONS = {
    "inception3a": (192, 64, 96, 128, 16, 32, 32),
    "inception3b": (256, 128, 128, 192, 32, 96, 64),
    "inception4a": (480, 192, 96, 208, 16, 48, 64),
    "inception4b": (512, 160, 112, 224, 24, 64, 64),
    "inception4c": (512, 128, 128, 256, 24, 64, 64),
    "inception4d": (512, 112, 144, 288, 32, 64, 64),
    "inception4e": (528, 256, 160, 320, 32, 128, 128),
    "inception5a": (832, 256, 160, 320, 32, 128, 128),
    "inception5b": (832, 384, 192, 384, 48, 128, 128),
}


class Inception(Module):
    """Four branches over the same input, joined by channels.

    The third is the paper's 5x5; torchvision's weights, whose names and count these are, have a
    3x3 there.
    """

    def __init__(
        self, inputs: int, one: int, before3: int, three: int, before5: int, five: int, pooled: int
    ) -> None:
        self.branch1 = _unit(inputs, one, 1)
        self.branch2 = Sequential(_unit(inputs, before3, 1), _unit(before3, three, 3))
        self.branch3 = Sequential(_unit(inputs, before5, 1), _unit(before5, five, 3))
        self.branch4 = Sequential(
            SpatialMaxPooling(3, 3, 1, 1, 1, 1).ceil(), _unit(inputs, pooled, 1)
        )

    def forward(self, x: Any) -> Variable:
        """(N, one + three + five + pooled, height, width)."""
        return concatenate([branch(x) for branch in self.children().values()], axis=PLANES)


class Auxiliary(Module):
    """A head in the middle, for training: averaged to 4x4, 1x1 convolution, two dense layers."""

    def __init__(self, inputs: int, classes: int, dropout: float) -> None:
        self.pool = SpatialAdaptiveAveragePooling(4, 4)
        self.conv = _unit(inputs, 128, 1)
        self.flatten = flat(2048)
        self.fc1 = Linear(2048, 1024)
        self.relu = ReLU(True)
        self.dropout = Dropout(dropout)
        self.fc2 = Linear(1024, classes)

    def forward(self, x: Any) -> Any:
        """Class scores (N, classes)."""
        x = self.flatten(self.conv(self.pool(x)))
        return self.fc2(self.dropout(self.relu(self.fc1(x))))


class GoogLeNet(Module):
    """See :func:`googlenet`."""

    def __init__(
        self,
        classes: int = 1000,
        auxiliary: bool = False,
        transform_input: bool = False,
        dropout: float = 0.2,
        dropout_aux: float = 0.7,
    ) -> None:
        self.transform_input = transform_input
        self.conv1 = _unit(3, 64, 7, 2)
        self.maxpool1 = SpatialMaxPooling(3, 3, 2, 2).ceil()
        self.conv2 = _unit(64, 64, 1)
        self.conv3 = _unit(64, 192, 3)
        self.maxpool2 = SpatialMaxPooling(3, 3, 2, 2).ceil()
        for name, sizes in INCEPTIONS.items():
            setattr(self, name, Inception(*sizes))
        self.maxpool3 = SpatialMaxPooling(3, 3, 2, 2).ceil()
        self.maxpool4 = SpatialMaxPooling(2, 2, 2, 2).ceil()
        self.aux1 = Auxiliary(512, classes, dropout_aux) if auxiliary else None
        self.aux2 = Auxiliary(528, classes, dropout_aux) if auxiliary else None
        self.avgpool = SpatialAdaptiveAveragePooling(1, 1)
        self.flatten = flat(1024)
        self.dropout = Dropout(dropout)
        self.fc = Linear(1024, classes)

    def _through(self, x: Variable, *names: str) -> Variable:
        for name in names:
            x = getattr(self, name)(x)
        return x

    def forward(self, x: Variable) -> Any:
        """Class scores; in training, with heads: [scores, scores of aux2, scores of aux1]."""
        x = _retransformed(x) if self.transform_input else x
        x = self._through(x, "conv1", "maxpool1", "conv2", "conv3", "maxpool2")
        x = self._through(x, "inception3a", "inception3b", "maxpool3", "inception4a")
        first = self.aux1(x) if self.aux1 is not None and self.training else None
        x = self._through(x, "inception4b", "inception4c", "inception4d")
        second = self.aux2(x) if self.aux2 is not None and self.training else None
        x = self._through(x, "inception4e", "maxpool4", "inception5a", "inception5b")
        scores = self._through(x, "avgpool", "flatten", "dropout", "fc")
        return scores if first is None else [scores, second, first]


@as_torchvision
def googlenet(
    classes: int = 1000, auxiliary: bool = False, transform_input: bool = False
) -> GoogLeNet:
    """GoogLeNet: 6,624,904 parameters, 13,004,888 with the ``auxiliary`` heads.

    Images are (N, 3, 224, 224), or of other sizes from 33 on. With heads, a call in training gives
    a list: the scores, those of the later head (``aux2``), those of the earlier; the paper's loss
    is the first's plus 0.3 times the others'. Names as torchvision's. ``transform_input`` maps
    images that were normalised for the other networks (mean 0.485, 0.456, 0.406; deviation 0.229,
    0.224, 0.225) to the -1 to 1 that the published weights expect.
    """
    return GoogLeNet(classes, auxiliary, transform_input)


def _unit(inputs: int, outputs: int, size: int, stride: int = 1) -> ConvNorm:
    """A unit whose window is centred."""
    return ConvNorm(inputs, outputs, size, stride, size // 2, EPS)


def _retransformed(x: Variable) -> Variable:
    scale = np.array([0.229, 0.224, 0.225]) / 0.5
    shift = (np.array([0.485, 0.456, 0.406]) - 0.5) / 0.5
    scaled, moved = (v.astype(x.dtype).reshape(3, 1, 1) for v in (scale, shift))
    return x * scaled + moved
