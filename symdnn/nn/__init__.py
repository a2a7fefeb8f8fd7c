"""Layers over symbolic graphs: the modules of cudnn.torch, their training, and known networks.

::

    from symdnn import nn

    net = nn.Sequential(nn.SpatialConvolution(1, 20, 5, 5), nn.ReLU(), nn.SpatialMaxPooling(2, 2))
    y = net(T.tensor4("x"))
"""

from symdnn.nn import criterion, criterion_margin, criterion_values, init
from symdnn.nn.containers import Container, Sequential
from symdnn.nn.criterion import *
from symdnn.nn.criterion_margin import *
from symdnn.nn.criterion_values import *
from symdnn.nn.module import BACKENDS, Module, state_updates

__all__ = [
    "BACKENDS", "Container", "Module", "Sequential", "init", "state_updates",
    *criterion.__all__, *criterion_margin.__all__, *criterion_values.__all__,
]  # fmt: skip
