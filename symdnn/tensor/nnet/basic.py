"""Activations, softmax, losses, normalisation, dropout: the functions of ``T.nnet`` but conv."""

from symdnn.ops.attention.attention import scaled_dot_product_attention
from symdnn.ops.elementwise.activations import *
from symdnn.ops.nn.crossentropy import (
    binary_crossentropy,
    categorical_crossentropy,
    confusion_matrix,
    crossentropy_categorical_1hot,
    crossentropy_softmax_1hot,
    crossentropy_softmax_1hot_with_bias,
    crossentropy_softmax_argmax_1hot_with_bias,
    h_softmax,
    nll_loss,
    prepend_scalar_to_each_row,
    sigmoid_binary_crossentropy,
    softmax_crossentropy,
    spatial_crossentropy,
)
from symdnn.ops.nn.dropout import dropout, spatial_dropout
from symdnn.ops.nn.lrn import local_response_normalization, lrn
from symdnn.ops.nn.normalization import group_norm, instance_norm, layer_norm
from symdnn.ops.nn.softmax import logsoftmax, softmax, softmax_with_bias
from symdnn.ops.nn.spatial_transformer import (
    spatial_transformer,
    transformer_grid,
    transformer_sampler,
)

__all__ = [
    "binary_crossentropy",
    "categorical_crossentropy",
    "clipped_relu",
    "confusion_matrix",
    "crossentropy_categorical_1hot",
    "crossentropy_softmax_1hot",
    "crossentropy_softmax_1hot_with_bias",
    "crossentropy_softmax_argmax_1hot_with_bias",
    "dropout",
    "elu",
    "gelu",
    "group_norm",
    "h_softmax",
    "hard_sigmoid",
    "instance_norm",
    "layer_norm",
    "leaky_relu",
    "local_response_normalization",
    "log_sigmoid",
    "logsoftmax",
    "lrn",
    "nll_loss",
    "prepend_scalar_to_each_row",
    "relu",
    "selu",
    "scaled_dot_product_attention",
    "sigmoid",
    "sigmoid_binary_crossentropy",
    "silu",
    "softmax",
    "softmax_crossentropy",
    "softmax_with_bias",
    "softplus",
    "softsign",
    "spatial_crossentropy",
    "spatial_dropout",
    "spatial_transformer",
    "swish",
    "transformer_grid",
    "transformer_sampler",
    "ultra_fast_sigmoid",
]
