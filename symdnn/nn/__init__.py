"""Layers over symbolic graphs: the modules of cudnn.torch, their training, and known networks.

::

    from symdnn import nn

    net = nn.Sequential(nn.SpatialConvolution(1, 20, 5, 5), nn.ReLU(), nn.SpatialMaxPooling(2, 2))
    y = net(T.tensor4("x"))
"""

from typing import TYPE_CHECKING as _CHECKED

from symdnn.graph.names.elsewhere import refusing as _refusing
from symdnn.nn import functional, init, models, optim, parallel, schedule, training, utils, weights
from symdnn.nn.backend import convert, cudnn
from symdnn.nn.layers import (
    activation,
    adaptive_pooling,
    adaptive_softmax,
    containers,
    conv,
    dropout,
    embedding_bag,
    fractional,
    linear,
    norm,
    pooling,
    recurrent,
    shaping,
    softmax,
    table,
    torch7_images,
    torch7_layers,
    torch_layers,
    torch_names,
    torchvision_layers,
    upsample,
    windows,
)
from symdnn.nn.layers.activation import *
from symdnn.nn.layers.adaptive_pooling import *
from symdnn.nn.layers.adaptive_softmax import *
from symdnn.nn.layers.containers import *
from symdnn.nn.layers.conv import *
from symdnn.nn.layers.dropout import *
from symdnn.nn.layers.embedding_bag import *
from symdnn.nn.layers.fractional import *
from symdnn.nn.layers.linear import *
from symdnn.nn.layers.norm import *
from symdnn.nn.layers.pool_places import MaxUnpool1d, MaxUnpool2d, MaxUnpool3d
from symdnn.nn.layers.pooling import *
from symdnn.nn.layers.recurrent import *
from symdnn.nn.layers.shaping import *
from symdnn.nn.layers.softmax import *
from symdnn.nn.layers.table import *
from symdnn.nn.layers.torch7_images import *
from symdnn.nn.layers.torch7_layers import *
from symdnn.nn.layers.torch_layers import *
from symdnn.nn.layers.torch_names import *
from symdnn.nn.layers.torchvision_layers import *
from symdnn.nn.layers.upsample import *
from symdnn.nn.layers.windows import *
from symdnn.nn.losses import (
    criterion,
    criterion_margin,
    criterion_values,
    torch7_losses,
    torch_losses,
    torch_losses_margin,
)
from symdnn.nn.losses.criterion import *
from symdnn.nn.losses.criterion_margin import *
from symdnn.nn.losses.criterion_values import *
from symdnn.nn.losses.torch7_losses import *
from symdnn.nn.losses.torch_losses import *
from symdnn.nn.losses.torch_losses_margin import *
from symdnn.nn.modules import lists
from symdnn.nn.modules.lists import *
from symdnn.nn.modules.module import BACKENDS, Module, Parameter, random_states, state_updates
from symdnn.nn.modules.summary import Row, Summary, flops, summary
from symdnn.nn.optimizers import clip
from symdnn.nn.optimizers.clip import *
from symdnn.nn.quantization.quantize import Quantized
from symdnn.nn.quantization.quantize import quantize_network as quantize
from symdnn.nn.training import *
from symdnn.nn.transformers import attention, cache, decoder, encoder, rotary
from symdnn.nn.transformers.attention import *
from symdnn.nn.transformers.cache import *
from symdnn.nn.transformers.decoder import *
from symdnn.nn.transformers.encoder import *
from symdnn.nn.transformers.rotary import *
from symdnn.nn.weights import *

__all__ = [
    "BACKENDS", "Module", "Parameter", "Quantized", "Row", "Summary", "flops", "functional", "init",
    "quantize",
    "random_states", "state_updates", "summary",
    *activation.__all__, *adaptive_pooling.__all__, *adaptive_softmax.__all__,
    *containers.__all__, *conv.__all__,
    *dropout.__all__, *embedding_bag.__all__, *fractional.__all__, *linear.__all__, *lists.__all__,
    *norm.__all__,
    *pooling.__all__,
    *shaping.__all__, *softmax.__all__, *table.__all__, *torch_names.__all__, *upsample.__all__,
    *windows.__all__, "MaxUnpool1d", "MaxUnpool2d", "MaxUnpool3d",
    *recurrent.__all__, "convert", "cudnn",
    *criterion.__all__, *criterion_margin.__all__, *criterion_values.__all__,
    *torch7_images.__all__, *torch7_layers.__all__, *torch_layers.__all__,
    *torchvision_layers.__all__,
    *torch7_losses.__all__, *torch_losses.__all__, *torch_losses_margin.__all__,
    *clip.__all__, *attention.__all__, *cache.__all__, *decoder.__all__,
    *encoder.__all__, *rotary.__all__,
    "models", *weights.__all__,
    "optim",
    "parallel",
    "schedule",
    *training.__all__,
    "utils",
]  # fmt: skip

if not _CHECKED:  # a checker of types would believe that every name exists
    __getattr__ = _refusing(__name__, "NN")
