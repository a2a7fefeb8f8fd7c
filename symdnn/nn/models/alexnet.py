"""AlexNet (Krizhevsky et al. 2012), and its form in one column (Krizhevsky 2014)."""

from __future__ import annotations

from typing import Any

from symdnn.nn.layers.activation import ReLU
from symdnn.nn.layers.adaptive_pooling import SpatialAdaptiveAveragePooling
from symdnn.nn.layers.containers import Sequential
from symdnn.nn.layers.conv import SpatialConvolution
from symdnn.nn.layers.dropout import Dropout
from symdnn.nn.layers.linear import Linear
from symdnn.nn.layers.norm import SpatialCrossMapLRN
from symdnn.nn.layers.pooling import SpatialMaxPooling
from symdnn.nn.models.parts import Stages, as_torchvision, flat

__all__ = ["alexnet", "alexnet_grouped"]


@as_torchvision
def alexnet(classes: int = 1000, dropout: float = 0.5, hidden: int = 4096) -> Stages:
    """AlexNet in one column, 61,100,840 parameters; names as torchvision's.

    Images are (N, 3, 224, 224), or any size of at least 63: the last feature maps are averaged to
    6x6. ``hidden`` is the width of the two dense layers.
    """
    features = Sequential(
        SpatialConvolution(3, 64, 11, 11, 4, 4, 2, 2),
        ReLU(True),
        SpatialMaxPooling(3, 3, 2, 2),
        SpatialConvolution(64, 192, 5, 5, 1, 1, 2, 2),
        ReLU(True),
        SpatialMaxPooling(3, 3, 2, 2),
        *_same(192, 384),
        *_same(384, 256),
        *_same(256, 256),
        SpatialMaxPooling(3, 3, 2, 2),
    )
    classifier = Sequential(
        Dropout(dropout),
        Linear(256 * 6 * 6, hidden),
        ReLU(True),
        Dropout(dropout),
        Linear(hidden, hidden),
        ReLU(True),
        Linear(hidden, classes),
    )
    pool = SpatialAdaptiveAveragePooling(6, 6)
    return Stages(features=features, avgpool=pool, flatten=flat(256 * 6 * 6), classifier=classifier)


@as_torchvision
def alexnet_grouped(classes: int = 1000, dropout: float = 0.5) -> Sequential:
    """AlexNet as published, its two columns as groups: 60,965,224 parameters (Caffe's layers).

    Images are (N, 3, 227, 227). Local response normalisation follows the first two poolings.
    """
    return Sequential(
        SpatialConvolution(3, 96, 11, 11, 4, 4),
        ReLU(True),
        SpatialMaxPooling(3, 3, 2, 2),
        SpatialCrossMapLRN(5, 1e-4, 0.75, 1.0),
        SpatialConvolution(96, 256, 5, 5, 1, 1, 2, 2, 2),
        ReLU(True),
        SpatialMaxPooling(3, 3, 2, 2),
        SpatialCrossMapLRN(5, 1e-4, 0.75, 1.0),
        *_same(256, 384),
        *_same(384, 384, 2),
        *_same(384, 256, 2),
        SpatialMaxPooling(3, 3, 2, 2),
        flat(256 * 6 * 6),
        Linear(256 * 6 * 6, 4096),
        ReLU(True),
        Dropout(dropout),
        Linear(4096, 4096),
        ReLU(True),
        Dropout(dropout),
        Linear(4096, classes),
    )


def _same(inputs: int, outputs: int, groups: int = 1) -> tuple[Any, ...]:
    """A 3x3 convolution that keeps the size, and its ReLU."""
    return SpatialConvolution(inputs, outputs, 3, 3, 1, 1, 1, 1, groups), ReLU(True)
