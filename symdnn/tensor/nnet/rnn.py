"""Recurrent nets of several layers with one flat vector of parameters: ``RNNBlock``."""

from symdnn.ops.rnn import RNNBlock
from symdnn.ops.rnn_params import RNNPart

__all__ = ["RNNBlock", "RNNPart"]
