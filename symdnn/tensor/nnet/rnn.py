"""Recurrent networks of several layers with one flat vector of parameters: ``RNNBlock``."""

from symdnn.ops.nn.rnn import RNNBlock
from symdnn.ops.nn.rnn_params import RNNPart

__all__ = ["RNNBlock", "RNNPart"]
