"""cuDNN's convolution with an epilogue: an addend, a bias, an activation function.

``libraries/cudnn/epilogue.py`` makes it, after gradients are taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from symdnn.ops.elementwise.activations import Gelu, GeluTanh, Relu, Sigmoid, Softplus
from symdnn.ops.elementwise.math import Tanh
from symdnn.ops.lowered.activation import RELU6, SILU, Activation
from symdnn.ops.lowered.epilogue import EpilogueRules
from symdnn.ops.vendor.gpudnn_conv import GpuDnnConv

#: Activation functions by the names of :mod:`symdnn.gpu` for cuDNN's graph API.
CONV_ACTIVATIONS: dict[str, Activation] = {
    "relu": Relu(), "relu6": RELU6, "sigmoid": Sigmoid(), "tanh": Tanh(),
    "softplus": Softplus(), "gelu": Gelu(), "gelu_tanh": GeluTanh(), "swish": SILU,
}  # fmt: skip


class GpuDnnConvBiasActivation(GpuDnnConv):
    """``activation(alpha * convolution + residual * z + bias)`` of (img, kern[, z][, bias]).

    It runs as one kernel of cuDNN, or as a convolution and a kernel for the epilogue's program. So
    the result never overwrites z. (A graph of cuDNN's; ``cudnnConvolutionBiasActivationForward``.)
    """

    may_overwrite: ClassVar[Mapping[int, tuple[int, ...]]] = {}
    rules: ClassVar[EpilogueRules] = EpilogueRules(
        tuple(CONV_ACTIVATIONS.items()), ("float16", "bfloat16", "float32"), scales=True,
        scales_residual=True, rounds_operands=True, measured=("swish",),
    )  # fmt: skip

    def plain(self) -> GpuDnnConv:
        """The convolution without the epilogue."""
        return GpuDnnConv.of(self, epilogue=None)

    @property
    def output_index(self) -> int | None:
        return None
