"""VGG (Simonyan and Zisserman 2014): 3x3 convolutions only, with or without normalisation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from symdnn.nn import init
from symdnn.nn.layers.activation import ReLU
from symdnn.nn.layers.adaptive_pooling import SpatialAdaptiveAveragePooling
from symdnn.nn.layers.containers import Sequential
from symdnn.nn.layers.dropout import Dropout
from symdnn.nn.layers.linear import Linear
from symdnn.nn.layers.norm import SpatialBatchNormalization
from symdnn.nn.layers.pooling import SpatialMaxPooling
from symdnn.nn.models.parts import Stages, as_torchvision, conv, flat, numbered
from symdnn.nn.modules.module import Module

__all__ = ["vgg16", "vgg19"]

#: How many convolutions each of the five blocks has.
BLOCKS = {16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
WIDTHS = (64, 128, 256, 512, 512)


@as_torchvision
def vgg16(
    classes: int = 1000, batch_norm: bool = False, dropout: float = 0.5, hidden: int = 4096
) -> Stages:
    """VGG-16, configuration D: 138,357,544 parameters, 138,365,992 with ``batch_norm``.

    Names as torchvision's ``vgg16`` and ``vgg16_bn``. Images are (N, 3, 224, 224), or any size of
    at least 32: the last feature maps are averaged to 7x7. ``hidden`` is the width of the two
    dense layers.
    """
    return _vgg(BLOCKS[16], classes, batch_norm, dropout, hidden)


@as_torchvision
def vgg19(
    classes: int = 1000, batch_norm: bool = False, dropout: float = 0.5, hidden: int = 4096
) -> Stages:
    """VGG-19, configuration E: 143,667,240 parameters, 143,678,248 with ``batch_norm``.

    The arguments are those of :func:`vgg16`.
    """
    return _vgg(BLOCKS[19], classes, batch_norm, dropout, hidden)


def _vgg(
    blocks: Sequence[int], classes: int, batch_norm: bool, dropout: float, hidden: int
) -> Stages:
    classifier = Sequential(
        _dense(512 * 7 * 7, hidden),
        ReLU(True),
        Dropout(dropout),
        _dense(hidden, hidden),
        ReLU(True),
        Dropout(dropout),
        _dense(hidden, classes),
    )
    return Stages(
        features=numbered(_features(blocks, batch_norm)),
        avgpool=SpatialAdaptiveAveragePooling(7, 7),
        flatten=flat(512 * 7 * 7),
        classifier=classifier,
    )


def _features(blocks: Sequence[int], batch_norm: bool) -> Iterator[Module]:
    before = 3
    for count, width in zip(blocks, WIDTHS):
        for _ in range(count):
            yield conv(before, width, 3, padding=1, bias=True)
            if batch_norm:
                yield SpatialBatchNormalization(width)
            yield ReLU(True)
            before = width
        yield SpatialMaxPooling(2, 2, 2, 2)


def _dense(inputs: int, outputs: int) -> Linear:
    return Linear(inputs, outputs, weight_init=init.normal(0.01), bias_init=init.zeros)
