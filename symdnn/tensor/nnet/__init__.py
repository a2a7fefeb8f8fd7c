"""Neural network functions, under Theano's names: ``T.nnet``."""

from symdnn.ops.conv_builders import (
    causal_conv1d,
    conv1d,
    conv1d_transpose,
    conv2d,
    conv2d_transpose,
    conv3d,
    conv3d_transpose,
    separable_conv2d,
)
from symdnn.ops.neighbours import images2neibs
from symdnn.tensor.nnet import abstract_conv, conv, neighbours

__all__ = [
    "abstract_conv",
    "causal_conv1d",
    "conv",
    "conv1d",
    "conv1d_transpose",
    "conv2d",
    "conv2d_transpose",
    "conv3d",
    "conv3d_transpose",
    "images2neibs",
    "neighbours",
    "separable_conv2d",
]
