"""Convolutions, their gradients and their shapes: ``T.nnet.abstract_conv``."""

from symdnn.ops.nn import conv_abstract as _conv_abstract
from symdnn.ops.nn.conv_abstract import *
from symdnn.ops.nn.conv_builders import *
from symdnn.ops.nn.upsample import bilinear_kernel_1D, bilinear_kernel_2D, bilinear_upsampling

__all__ = [
    "bilinear_kernel_1D", "bilinear_kernel_2D", "bilinear_upsampling", "causal_conv1d", "conv1d",
    "conv1d_grad_wrt_inputs", "conv1d_grad_wrt_weights", "conv1d_transpose", "conv2d",
    "conv2d_grad_wrt_inputs", "conv2d_grad_wrt_weights", "conv2d_transpose", "conv3d",
    "conv3d_grad_wrt_inputs", "conv3d_grad_wrt_weights", "conv3d_transpose", "separable_conv2d",
    *_conv_abstract.__all__,
]  # fmt: skip
