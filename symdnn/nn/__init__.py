"""Layers over symbolic graphs: the modules of cudnn.torch, their training, and known networks.

::

    from symdnn import nn

    net = nn.Sequential(nn.SpatialConvolution(1, 20, 5, 5), nn.ReLU(), nn.SpatialMaxPooling(2, 2))
    y = net(T.tensor4("x"))
"""

from symdnn.nn import (
    activation,
    adaptive_pooling,
    clip,
    containers,
    conv,
    criterion,
    criterion_margin,
    criterion_values,
    dropout,
    init,
    linear,
    norm,
    optim,
    pooling,
    recurrent,
    schedule,
    shaping,
    softmax,
    table,
    training,
)
from symdnn.nn.activation import *
from symdnn.nn.adaptive_pooling import *
from symdnn.nn.backend import convert, cudnn
from symdnn.nn.clip import *
from symdnn.nn.containers import *
from symdnn.nn.conv import *
from symdnn.nn.criterion import *
from symdnn.nn.criterion_margin import *
from symdnn.nn.criterion_values import *
from symdnn.nn.dropout import *
from symdnn.nn.linear import *
from symdnn.nn.module import BACKENDS, Module, state_updates
from symdnn.nn.norm import *
from symdnn.nn.pooling import *
from symdnn.nn.recurrent import *
from symdnn.nn.shaping import *
from symdnn.nn.softmax import *
from symdnn.nn.table import *
from symdnn.nn.training import *

__all__ = [
    "BACKENDS", "Module", "init", "state_updates",
    *activation.__all__, *adaptive_pooling.__all__, *containers.__all__, *conv.__all__,
    *dropout.__all__, *linear.__all__, *norm.__all__, *pooling.__all__, *shaping.__all__,
    *softmax.__all__, *table.__all__,
    *recurrent.__all__, "convert", "cudnn",
    *criterion.__all__, *criterion_margin.__all__, *criterion_values.__all__,
    *clip.__all__,
    "optim",
    "schedule",
    *training.__all__,
]  # fmt: skip
