"""U-Net (Ronneberger et al. 2015) with convolutions that keep the size."""

from __future__ import annotations

from typing import Any

from symdnn.nn.layers.activation import ReLU
from symdnn.nn.layers.containers import Sequential
from symdnn.nn.layers.conv import SpatialConvolution, SpatialFullConvolution
from symdnn.nn.layers.norm import SpatialBatchNormalization
from symdnn.nn.layers.pooling import SpatialMaxPooling
from symdnn.nn.models.parts import PLANES, Stages, as_torchvision, conv, numbered
from symdnn.nn.modules.module import Module
from symdnn.ops.array.join import concatenate

__all__ = ["UNet", "unet"]

DEPTH = 4


class Up(Module):
    """Twice the size and half the features, joined with the encoder's features of this size."""

    def __init__(self, inputs: int, batch_norm: bool) -> None:
        self.up = SpatialFullConvolution(inputs, inputs // 2, 2, 2, 2, 2)
        self.conv = _double(inputs, inputs // 2, batch_norm)

    def forward(self, x: Any, across: Any) -> Any:
        """(N, inputs / 2, 2 height, 2 width)."""
        return self.conv(concatenate([across, self.up(x)], axis=PLANES))


class UNet(Module):
    """See :func:`unet`."""

    def __init__(
        self, channels: int = 3, classes: int = 2, width: int = 64, batch_norm: bool = True
    ) -> None:
        self.inc = _double(channels, width, batch_norm)
        for i in range(DEPTH):
            inner = Sequential(
                SpatialMaxPooling(2, 2, 2, 2), _double(width << i, width << (i + 1), batch_norm)
            )
            setattr(self, f"down{i + 1}", Stages(maxpool_conv=inner))
        for i in range(DEPTH):
            setattr(self, f"up{i + 1}", Up(width << (DEPTH - i), batch_norm))
        self.outc = Stages(conv=SpatialConvolution(width, classes, 1, 1))

    def forward(self, x: Any) -> Any:
        """Class scores of each pixel, (N, classes, height, width)."""
        kept = [self.inc(x)]
        for i in range(DEPTH):
            kept.append(getattr(self, f"down{i + 1}")(kept[-1]))
        x = kept.pop()
        for i in range(DEPTH):
            x = getattr(self, f"up{i + 1}")(x, kept.pop())
        return self.outc(x)


@as_torchvision
def unet(channels: int = 3, classes: int = 2, width: int = 64, batch_norm: bool = True) -> UNet:
    """U-Net: 31,037,698 parameters with 3 channels and 2 classes.

    Images are (N, channels, height, width), both divisible by 16; the scores have the same size.
    ``width`` is the number of features at full size, twice as many at each of the four halvings.
    Without ``batch_norm`` the convolutions have biases, as in the paper: 31,031,685 parameters with
    one channel and one class. The paper's convolutions have no padding, so its output is smaller.
    """
    return UNet(channels, classes, width, batch_norm)


def _double(inputs: int, outputs: int, batch_norm: bool) -> Stages:
    """Two 3x3 convolutions, each with its ReLU."""

    def steps() -> Any:
        for before in (inputs, outputs):
            yield conv(before, outputs, 3, padding=1, bias=not batch_norm)
            if batch_norm:
                yield SpatialBatchNormalization(outputs)
            yield ReLU(True)

    return Stages(double_conv=numbered(steps()))
