"""Weights of other programs (PyTorch, Keras, Flax, Theano, Torch7), into networks and back."""

from symdnn.nn.formats.file import read_weights
from symdnn.nn.formats.flax import load_flax
from symdnn.nn.formats.keras import load_keras
from symdnn.nn.formats.slots import Loaded
from symdnn.nn.formats.theano import load_theano, load_torch7
from symdnn.nn.formats.torch import load_torch, to_torch

__all__ = [
    "Loaded", "load_flax", "load_keras", "load_theano", "load_torch", "load_torch7",
    "read_weights", "to_torch",
]  # fmt: skip
