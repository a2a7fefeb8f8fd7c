"""Neural network functions, under Theano's names: ``T.nnet``."""

from typing import TYPE_CHECKING as _CHECKED

from symdnn.graph.names.elsewhere import refusing as _refusing
from symdnn.ops.array.boxes import nms
from symdnn.ops.nn.conv_builders import (
    causal_conv1d,
    conv1d,
    conv1d_transpose,
    conv2d,
    conv2d_transpose,
    conv3d,
    conv3d_transpose,
    separable_conv2d,
)
from symdnn.ops.nn.neighbours import images2neibs, neibs2images
from symdnn.tensor.nnet import abstract_conv, basic, bn, conv, ctc, neighbours, quantized, rnn
from symdnn.tensor.nnet.basic import *
from symdnn.tensor.nnet.bn import *
from symdnn.tensor.nnet.quantized import dequantize, quantize
from symdnn.tensor.nnet.rnn import RNNBlock

__all__ = [
    *basic.__all__,
    *bn.__all__,
    "RNNBlock",
    "abstract_conv",
    "basic",
    "bn",
    "causal_conv1d",
    "conv",
    "conv1d",
    "conv1d_transpose",
    "conv2d",
    "conv2d_transpose",
    "conv3d",
    "conv3d_transpose",
    "ctc",
    "dequantize",
    "images2neibs",
    "neibs2images",
    "neighbours",
    "nms",
    "quantize",
    "quantized",
    "rnn",
    "separable_conv2d",
]

if not _CHECKED:  # a checker of types would believe that every name exists
    __getattr__ = _refusing(__name__, "NNET")
