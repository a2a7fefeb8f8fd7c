"""Weights of other programs: PyTorch's, Keras's, Theano's and Torch7's, into networks and back."""

from symdnn.nn.weights_file import read_weights
from symdnn.nn.weights_keras import load_keras
from symdnn.nn.weights_slots import Loaded
from symdnn.nn.weights_theano import load_theano, load_torch7
from symdnn.nn.weights_torch import load_torch, to_torch

__all__ = [
    "Loaded", "load_keras", "load_theano", "load_torch", "load_torch7", "read_weights", "to_torch",
]  # fmt: skip
