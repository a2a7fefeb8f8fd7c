"""cuDNN's convolution with what follows it: an addend, a bias of the channels, an activation.

It is made late, by ``opt/epilogue/epilogue_conv.py``; gradients exist only before that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from symdnn.errors import NonDifferentiable, TypeMismatch
from symdnn.graph.dims import Shape, same_dim
from symdnn.graph.op import Grads, Host, Vars
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Variable
from symdnn.ops.core.dtype import is_narrow_float
from symdnn.ops.elementwise.activations import Gelu, GeluTanh, Relu, Sigmoid, Softplus
from symdnn.ops.elementwise.math import Tanh
from symdnn.ops.vendor.gpudnn_conv import GpuDnnConv, scaled

__all__ = ["CONV_ACTIVATIONS", "GpuDnnConvBiasActivation"]

#: What a convolution may end with, by the words of cuDNN's graph API in :mod:`symdnn.gpu`.
CONV_ACTIVATIONS: dict[str, Any] = {
    "relu": Relu(), "sigmoid": Sigmoid(), "tanh": Tanh(), "softplus": Softplus(), "gelu": Gelu(),
    "gelu_tanh": GeluTanh(),
}  # fmt: skip


@dataclass(frozen=True)
class GpuDnnConvBiasActivation(GpuDnnConv):
    """``activation(alpha * convolution + residual * z + bias)`` of (img, kern[, z][, bias]).

    ``residual`` is the factor of ``z``, which has the result's shape; 0: there is none. ``bias``
    has a value for each channel, and size 1 in the other dimensions. What happens in between is
    float32 for 16-bit types. (A graph of cuDNN's; ``cudnnConvolutionBiasActivationForward``.)
    """

    residual: float = field(default=0.0, kw_only=True)
    bias: bool = field(default=False, kw_only=True)
    activation: str = field(default="", kw_only=True)

    @property
    def count(self) -> int:
        """How many inputs."""
        return 2 + (self.residual != 0) + self.bias

    def plain(self) -> GpuDnnConv:
        """The convolution alone."""
        return GpuDnnConv(
            self.algo, self.inplace, self.num_groups, padding=self.padding, stride=self.stride,
            dilation=self.dilation, conv_mode=self.conv_mode, precision=self.precision,
            layout=self.layout,
        )  # fmt: skip

    @property
    def channel_axis(self) -> int:
        """Which dimension of the result the channels are."""
        return 1 if self.layout == "NCHW" else self.ndim + 1

    def split(self, inputs: Sequence[Any]) -> tuple[Any, Any]:
        """(z, bias) among the inputs, None for what is not there."""
        z = inputs[2] if self.residual != 0 else None
        return z, inputs[-1] if self.bias else None

    def infer(self, *inputs: Any) -> Any:
        if len(inputs) != self.count or self.beta != 0:
            raise TypeMismatch(self, f"{self.count} operands and no beta", list(inputs))
        (y,) = self.neutral().output_types(inputs[:2])
        assert isinstance(y, TensorType)
        z, bias = self.split(inputs)
        if z is not None and not y.accepts(z):
            raise TypeMismatch(self, f"an operand to add of type {y}", z)
        wanted = y.with_shape(self._bias_shape(y.shape))
        if bias is not None and not (wanted.accepts(bias) and _ones(wanted, bias)):
            raise TypeMismatch(self, f"a bias of type {wanted}", bias)
        if self.activation and self.activation not in CONV_ACTIVATIONS:
            raise TypeMismatch(self, f"one of {sorted(CONV_ACTIVATIONS)}", self.activation)
        return y

    def _bias_shape(self, shape: Shape) -> tuple[Any, ...]:
        return tuple(d if i == self.channel_axis else 1 for i, d in enumerate(shape))

    def shapes(
        self, types: Sequence[Any], shapes: Sequence[Shape], host: Host
    ) -> Sequence[Shape] | None:
        found = self.neutral().shapes(types[:2], shapes[:2], host)
        if found is None:
            return None
        z, bias = self.split(shapes)
        for other, wanted in ((z, found[0]), (bias, self._bias_shape(found[0]))):
            for a, b in zip(wanted, other or ()):
                same_dim(self, (a, b), f"an operand of shape {tuple(wanted)}", tuple(other))
        return found

    def reference(self, *inputs: Any) -> Any:
        (y,) = self.neutral().compute(*inputs[:2])
        work = np.float32 if is_narrow_float(y.dtype.name) else y.dtype.type
        z, bias = self.split(inputs)
        total = y.astype(work) * work(self.alpha)
        if z is not None:
            total = total + z.astype(work) * work(self.residual)
        if bias is not None:
            total = total + bias.astype(work)
        if self.activation:
            total = CONV_ACTIVATIONS[self.activation].reference(total)
        return np.asarray(total).astype(y.dtype, copy=False)

    def expanded(self, *inputs: Variable) -> list[Variable] | None:
        total: Any = scaled(self.neutral()(*inputs[:2]), self.alpha)
        z, bias = self.split(inputs)
        if z is not None:
            total = total + scaled(z, self.residual)
        if bias is not None:
            total = total + bias
        return [CONV_ACTIVATIONS[self.activation](total) if self.activation else total]

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        raise NonDifferentiable(f"{self} has no gradient: it is made after gradients are taken")

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Vars) -> Grads | None:
        raise NonDifferentiable(f"{self} has no gradient: it is made after gradients are taken")


def _ones(wanted: TensorType, bias: TensorType) -> bool:
    """Whether the bias broadcasts where it must."""
    return all(b == 1 for a, b in zip(wanted.shape, bias.shape) if a == 1)
