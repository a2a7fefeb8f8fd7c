"""LeNet: Caffe's form, and that of 1998."""

from __future__ import annotations

from symdnn.nn.layers.activation import ReLU, Tanh
from symdnn.nn.layers.containers import Sequential
from symdnn.nn.layers.conv import SpatialConvolution
from symdnn.nn.layers.linear import Linear
from symdnn.nn.layers.pooling import SpatialAveragePooling, SpatialMaxPooling
from symdnn.nn.models.parts import as_torchvision, flat

__all__ = ["lenet", "lenet5"]


@as_torchvision
def lenet(classes: int = 10, channels: int = 1, size: int = 28) -> Sequential:
    """LeNet as Caffe's example has it: 431,080 parameters for images (N, 1, 28, 28).

    Two convolutions of 20 and 50 features with max pooling, a dense layer of 500, one of
    ``classes``. ``size`` is the height and width of the images, at least 16.
    """
    left = ((size - 4) // 2 - 4) // 2
    return Sequential(
        SpatialConvolution(channels, 20, 5, 5),
        SpatialMaxPooling(2, 2, 2, 2),
        SpatialConvolution(20, 50, 5, 5),
        SpatialMaxPooling(2, 2, 2, 2),
        flat(50 * left * left),
        Linear(50 * left * left, 500),
        ReLU(),
        Linear(500, classes),
    )


@as_torchvision
def lenet5(classes: int = 10, channels: int = 1) -> Sequential:
    """LeNet-5 (LeCun et al. 1998) with whole connections: 61,706 parameters.

    Images are (N, 1, 32, 32). Pooling has no weights of its own and the last layer is a dense
    one, as usual today; the paper's 60,000 come of a sparse second convolution.
    """
    return Sequential(
        SpatialConvolution(channels, 6, 5, 5),
        Tanh(),
        SpatialAveragePooling(2, 2, 2, 2),
        SpatialConvolution(6, 16, 5, 5),
        Tanh(),
        SpatialAveragePooling(2, 2, 2, 2),
        SpatialConvolution(16, 120, 5, 5),
        Tanh(),
        flat(120),
        Linear(120, 84),
        Tanh(),
        Linear(84, classes),
    )
