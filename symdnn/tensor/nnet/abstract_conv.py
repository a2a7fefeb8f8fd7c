"""Convolutions, their gradients and their shapes: ``T.nnet.abstract_conv``."""

from symdnn.ops.nn.conv_abstract import (
    AbstractConv2d,
    AbstractConv2d_gradInputs,
    AbstractConv2d_gradWeights,
    AbstractConv3d,
    AbstractConv3d_gradInputs,
    AbstractConv3d_gradWeights,
    check_conv_gradinputs_shape,
    get_conv_gradinputs_shape,
    get_conv_gradweights_shape,
    get_conv_output_shape,
    get_conv_shape_1axis,
)
from symdnn.ops.nn.conv_builders import (
    causal_conv1d,
    conv1d,
    conv1d_grad_wrt_inputs,
    conv1d_grad_wrt_weights,
    conv1d_transpose,
    conv2d,
    conv2d_grad_wrt_inputs,
    conv2d_grad_wrt_weights,
    conv2d_transpose,
    conv3d,
    conv3d_grad_wrt_inputs,
    conv3d_grad_wrt_weights,
    conv3d_transpose,
    separable_conv2d,
)
from symdnn.ops.nn.upsample import bilinear_kernel_1D, bilinear_kernel_2D, bilinear_upsampling

__all__ = [
    "AbstractConv2d", "AbstractConv2d_gradInputs", "AbstractConv2d_gradWeights", "AbstractConv3d",
    "AbstractConv3d_gradInputs", "AbstractConv3d_gradWeights", "bilinear_kernel_1D",
    "bilinear_kernel_2D", "bilinear_upsampling", "causal_conv1d", "check_conv_gradinputs_shape",
    "conv1d", "conv1d_grad_wrt_inputs", "conv1d_grad_wrt_weights", "conv1d_transpose", "conv2d",
    "conv2d_grad_wrt_inputs", "conv2d_grad_wrt_weights", "conv2d_transpose", "conv3d",
    "conv3d_grad_wrt_inputs", "conv3d_grad_wrt_weights", "conv3d_transpose",
    "get_conv_gradinputs_shape", "get_conv_gradweights_shape", "get_conv_output_shape",
    "get_conv_shape_1axis", "separable_conv2d",
]  # fmt: skip
