"""Common parts of the known networks: named stages, convolution with normalisation, heads."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ParamSpec, TypeVar

import numpy as np

from symdnn.errors import ArgumentError
from symdnn.graph.names.torch_words import advises
from symdnn.graph.typing import Array
from symdnn.graph.variable import Variable
from symdnn.nn.layers.activation import ReLU
from symdnn.nn.layers.adaptive_pooling import SpatialAdaptiveAveragePooling
from symdnn.nn.layers.containers import Sequential
from symdnn.nn.layers.conv import SpatialConvolution
from symdnn.nn.layers.norm import SpatialBatchNormalization
from symdnn.nn.layers.shaping import View
from symdnn.nn.modules.arguments import as_batch
from symdnn.nn.modules.module import Module

__all__ = [
    "PLANES", "Classifier", "ConvNorm", "Stages", "as_torchvision", "conv", "flat", "he_fan_out",
    "make_divisible", "numbered",
]  # fmt: skip

P = ParamSpec("P")
R = TypeVar("R")

#: The channel axis, of a batch of images and of one image.
PLANES = -3


def as_torchvision(build: Callable[P, R]) -> Callable[P, R]:
    """A decorator of a function that builds a network: torchvision's arguments serve, too.

    ``num_classes`` is ``classes``. ``weights`` and ``pretrained`` may say that none are wanted.
    """

    @functools.wraps(build)
    def built(*args: P.args, **kwargs: P.kwargs) -> R:
        if "num_classes" in kwargs:
            kwargs.setdefault("classes", kwargs.pop("num_classes"))
        for word in {"weights", "pretrained", "progress"}.intersection(kwargs):
            given = kwargs.pop(word)
            if given not in (None, False) and word != "progress":
                raise ArgumentError(
                    f"{build.__name__}: wanted no {word}, got {given!r:.60}: no weights come with "
                    "it; nn.load_torch(net, state_dict) takes those of torchvision"
                )
        return checked(*args, **kwargs)

    checked = advises()(build)
    return built


def he_fan_out(shape: Sequence[int], rng: np.random.Generator) -> Array:
    """Normal of variance 2 / fan-out, which preserves the size of gradients (He et al. 2015)."""
    return rng.normal(0, math.sqrt(2 / (shape[0] * math.prod(shape[2:]))), shape)


def conv(
    inputs: int,
    outputs: int,
    size: int,
    stride: int = 1,
    padding: int = 0,
    *,
    bias: bool = False,
    initial: Any = he_fan_out,
) -> SpatialConvolution:
    """A square convolution."""
    s, p = stride, padding
    return SpatialConvolution(
        inputs, outputs, size, size, s, s, p, p, bias=bias, weight_init=initial
    )


class Stages(Module):
    """Modules one after the other, saved under names: ``Stages(conv0=..., norm0=...)``."""

    def __init__(self, **modules: Module) -> None:
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, x: Any) -> Any:
        """The last module's output."""
        for module in self.children().values():
            x = module(x)
        return x


class ConvNorm(Module):
    """Convolution without bias, batch normalisation, ReLU: ``conv``, ``bn``."""

    def __init__(
        self, inputs: int, outputs: int, size: int, stride: int = 1, padding: int = 0,
        eps: float = 1e-5,
    ) -> None:  # fmt: skip
        self.conv = conv(inputs, outputs, size, stride, padding)
        self.bn = SpatialBatchNormalization(outputs, eps)
        self.relu = ReLU(True)

    def forward(self, x: Variable) -> Any:
        """(N, outputs, height, width)."""
        return self.relu(self.bn(self.conv(x)))


class Classifier(Module):
    """``features`` averaged over all positions, ``flatten``, ``classifier``."""

    def __init__(self, features: Module, classifier: Module, flatten: Module) -> None:
        self.features = features
        self.avgpool = SpatialAdaptiveAveragePooling(1, 1)
        self.flatten = flatten
        self.classifier = classifier

    def forward(self, x: Variable) -> Any:
        """Class scores (N, classes) of images (N, 3, height, width), or of one image."""
        batch, restore = as_batch(self, x, 4, "(batch, 3, height, width) or (3, height, width)")
        return restore(self.classifier(self.flatten(self.avgpool(self.features(batch)))))


def make_divisible(planes: float, divisor: int = 8) -> int:
    """The multiple of ``divisor`` nearest to ``planes``, at least ``divisor`` and 0.9 of it."""
    nearest = max(divisor, int(planes + divisor / 2) // divisor * divisor)
    return nearest if nearest >= 0.9 * planes else nearest + divisor


def flat(features: int) -> View:
    """(N, planes, height, width) to (N, features), and one image to (features,)."""
    return View(features).setNumInputDims(3)


def numbered(modules: Iterator[Module]) -> Sequential:
    """A ``Sequential`` of the modules of a generator."""
    return Sequential(*modules)
