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
    lists,
    models,
    norm,
    optim,
    pooling,
    recurrent,
    schedule,
    shaping,
    softmax,
    table,
    torch_layers,
    torch_losses,
    torch_losses_margin,
    torch_names,
    training,
    weights,
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
from symdnn.nn.lists import *
from symdnn.nn.module import BACKENDS, Module, random_states, state_updates
from symdnn.nn.norm import *
from symdnn.nn.pooling import *
from symdnn.nn.recurrent import *
from symdnn.nn.shaping import *
from symdnn.nn.softmax import *
from symdnn.nn.summary import Row, Summary, flops, summary
from symdnn.nn.table import *
from symdnn.nn.torch_layers import *
from symdnn.nn.torch_losses import *
from symdnn.nn.torch_losses_margin import *
from symdnn.nn.torch_names import *
from symdnn.nn.training import *
from symdnn.nn.weights import *

__all__ = [
    "BACKENDS", "Module", "Row", "Summary", "flops", "init", "random_states", "state_updates",
    "summary",
    *activation.__all__, *adaptive_pooling.__all__, *containers.__all__, *conv.__all__,
    *dropout.__all__, *linear.__all__, *lists.__all__, *norm.__all__, *pooling.__all__,
    *shaping.__all__, *softmax.__all__, *table.__all__, *torch_names.__all__,
    *recurrent.__all__, "convert", "cudnn",
    *criterion.__all__, *criterion_margin.__all__, *criterion_values.__all__,
    *torch_layers.__all__, *torch_losses.__all__, *torch_losses_margin.__all__,
    *clip.__all__,
    "models", *weights.__all__,
    "optim",
    "schedule",
    *training.__all__,
]  # fmt: skip
