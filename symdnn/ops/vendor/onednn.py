"""The ``OneDnn*`` ops: plain data that says what oneDNN is to run. No library is needed for them.

Each holds the device-neutral op of the same meaning, from which types, shapes and reference come
(:mod:`symdnn.ops.core.lowered`). :mod:`symdnn.opt.lower.lower_onednn` builds them, after gradients
are taken; :mod:`symdnn.cpu` runs them. With ``layout="NHWC"`` images are (N, \\*sizes, C); the
kernels of a convolution are (K, C, \\*sizes) in both layouts, since oneDNN reorders them anyway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import NonDifferentiable, TypeMismatch
from symdnn.graph.dims import Shape, same_dim
from symdnn.graph.op import Grads, Host, Op, Vars
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Variable
from symdnn.ops.core.dtype import is_narrow_float
from symdnn.ops.core.lowered import Lowered
from symdnn.ops.core.shape import dimshuffle
from symdnn.ops.elementwise.activations import Gelu, GeluTanh, Relu, Sigmoid, Softplus
from symdnn.ops.elementwise.math import Tanh
from symdnn.ops.nn.channels_last import (
    ChannelsLast,
    first_order,
    first_shape,
    in_layout,
    last_order,
    last_shape,
)

__all__ = [
    "ACTIVATIONS", "OneDnnBase", "OneDnnBatchNorm", "OneDnnBatchNormGrad",
    "OneDnnBatchNormInference", "OneDnnConv", "OneDnnConvGradI", "OneDnnConvGradW",
    "OneDnnConvolution", "OneDnnEpilogue", "OneDnnLayerNorm", "OneDnnLayerNormGrad",
    "OneDnnMatmul", "OneDnnPool", "OneDnnPoolGrad", "OneDnnRNN",
    "OneDnnRNNGrad", "OneDnnSoftmax", "OneDnnSoftmaxGrad",
]  # fmt: skip

#: What a convolution or product may end with, by oneDNN's names of its element-wise algorithms.
ACTIVATIONS: dict[str, Op] = {
    "relu": Relu(), "tanh": Tanh(), "logistic": Sigmoid(), "soft_relu": Softplus(),
    "gelu_erf": Gelu(), "gelu_tanh": GeluTanh(),
}  # fmt: skip


@dataclass(frozen=True)
class OneDnnBase(Lowered):
    """Base of the ops that oneDNN runs. ``op`` is the neutral op, on images in its own order."""

    abstract: ClassVar[bool] = True
    op: Op
    layout: str = field(default="NCHW", kw_only=True)

    def neutral(self) -> Op:
        return in_layout(self.op, self.layout)

    def __str__(self) -> str:
        """The settings of the neutral op under this name."""
        text = str(self.op).removeprefix(type(self.op).__name__).strip("{}")
        words = [text] if text else []
        words += self._words()
        if self.layout != "NCHW":
            words.append(f"layout={self.layout}")
        return f"{type(self).__name__}{{{', '.join(words)}}}" if words else type(self).__name__

    def _words(self) -> list[str]:
        return []

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        raise NonDifferentiable(f"{self} has no gradient: it is made after gradients are taken")

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Vars) -> Grads | None:
        raise NonDifferentiable(f"{self} has no gradient: it is made after gradients are taken")


# -- what may follow a product or a convolution ----------------------------------------------------


@dataclass(frozen=True)
class OneDnnEpilogue(OneDnnBase):
    """Base of those that may end with ``activation(product + z + bias)``.

    ``residual`` says that ``z`` is an input after the operands, of the result's shape; ``bias``
    that the last input has a value for each channel (1 in the other dimensions);
    ``activation`` is a key of :data:`ACTIVATIONS`, or empty. (oneDNN's bias, sum and eltwise
    post-ops.)
    """

    abstract: ClassVar[bool] = True
    residual: bool = field(default=False, kw_only=True)
    bias: bool = field(default=False, kw_only=True)
    activation: str = field(default="", kw_only=True)

    @property
    def is_plain(self) -> bool:
        """Whether nothing follows."""
        return not (self.residual or self.bias or self.activation)

    @property
    def may_overwrite(self) -> Mapping[int, tuple[int, ...]]:
        """``z``, where it is the third input: of a product and a convolution it always is."""
        return {0: (2,)} if self.residual else {}

    def channel_axis(self, ndim: int) -> int:
        """Which dimension of a result of ``ndim`` dimensions the bias has."""
        raise NotImplementedError

    def split(self, inputs: Sequence[Any]) -> tuple[Sequence[Any], Any, Any]:
        """(operands, z, bias); None for what is not there."""
        count = len(inputs) - self.residual - self.bias
        z = inputs[count] if self.residual else None
        return inputs[:count], z, inputs[-1] if self.bias else None

    def _bias_shape(self, shape: Shape) -> tuple[Any, ...]:
        axis = self.channel_axis(len(shape))
        return tuple(d if i == axis else 1 for i, d in enumerate(shape))

    def infer(self, *inputs: Any) -> Any:
        operands, z, bias = self.split(inputs)
        (y,) = self.neutral().output_types(operands)
        assert isinstance(y, TensorType)
        if z is not None and not y.accepts(z):
            raise TypeMismatch(self, f"an operand to add of type {y}", z)
        if bias is not None:
            wanted = y.with_shape(self._bias_shape(y.shape))
            spread = any(w == 1 and b != 1 for w, b in zip(wanted.shape, bias.shape))
            if spread or not wanted.accepts(bias):
                raise TypeMismatch(self, f"a bias of type {wanted}", bias)
        if self.activation and self.activation not in ACTIVATIONS:
            raise TypeMismatch(self, f"one of {sorted(ACTIVATIONS)}", self.activation)
        return y

    def shapes(
        self, types: Sequence[Any], shapes: Sequence[Shape], host: Host
    ) -> Sequence[Shape] | None:
        operands, z, bias = self.split(shapes)
        found = self.neutral().shapes(types[: len(operands)], operands, host)
        if found is None:
            return None
        for other, wanted in ((z, found[0]), (bias, self._bias_shape(found[0]))):
            for a, b in zip(wanted, other or ()):
                same_dim(self, (a, b), f"an operand of shape {tuple(wanted)}", tuple(other))
        return found

    def reference(self, *inputs: Any) -> Any:
        operands, z, bias = self.split(inputs)
        (y,) = self.neutral().compute(*operands)
        work = np.float32 if is_narrow_float(y.dtype.name) else y.dtype.type
        total = y.astype(work, copy=False)
        for more in (z, bias):
            if more is not None:
                total = total + more.astype(work, copy=False)
        if self.activation:
            (total,) = ACTIVATIONS[self.activation].compute(total)
        return np.asarray(total).astype(y.dtype, copy=False)

    def expanded(self, *inputs: Variable) -> list[Variable] | None:
        operands, z, bias = self.split(inputs)
        total: Any = self.neutral()(*operands)
        for more in (z, bias):
            total = total if more is None else total + more
        return [ACTIVATIONS[self.activation](total) if self.activation else total]

    def _words(self) -> list[str]:
        return [w for w, on in (("residual", self.residual), ("bias", self.bias)) if on] + (
            [self.activation] if self.activation else []
        )


@dataclass(frozen=True)
class OneDnnMatmul(OneDnnEpilogue):
    """A product of matrices or of stacks of them. (``dnnl_matmul``)"""

    def channel_axis(self, ndim: int) -> int:
        return ndim - 1


# -- convolution -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class KernelsFirst(ChannelsLast):
    """:class:`ChannelsLast` where kernels stay (K, C, \\*sizes): input ``kernel``, or -1."""

    abstract: ClassVar[bool] = True
    kernel: int = 1

    def _moved_in(self, values: Sequence[Any], move: Any) -> list[Any]:
        return [move(v) if i == self.kernel else v for i, v in enumerate(values)]

    def _moved_out(self, values: Sequence[Any], move: Any) -> tuple[Any, ...]:
        return tuple(move(v) for v in values) if self.kernel < 0 else tuple(values)

    def output_types(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        given = self._moved_in(inputs, lambda t: t.with_shape(last_shape(t.shape)))
        found = super().output_types(given)
        return self._moved_out(found, lambda t: t.with_shape(first_shape(t.shape)))

    def compute(self, *inputs: Any) -> tuple[Any, ...]:
        given = self._moved_in(inputs, lambda a: a.transpose(last_order(a.ndim)))
        found = super().compute(*given)
        return self._moved_out(
            found, lambda a: np.ascontiguousarray(a.transpose(first_order(a.ndim)))
        )

    def shapes(
        self, types: Sequence[Any], shapes: Sequence[Shape], host: Host
    ) -> Sequence[Shape] | None:
        given_types = self._moved_in(types, lambda t: t.with_shape(last_shape(t.shape)))
        found = super().shapes(given_types, self._moved_in(shapes, last_shape), host)
        return found and list(self._moved_out(found, first_shape))

    def __call__(self, *inputs: Any, **words: Any) -> Any:
        """``op`` on the inputs in its own order, the result in this one."""
        given = self._moved_in(inputs, lambda v: dimshuffle(v, last_order(v.type.ndim)))
        out = super().__call__(*given, **words)
        return dimshuffle(out, first_order(out.type.ndim)) if self.kernel < 0 else out


@dataclass(frozen=True)
class OneDnnConvolution(OneDnnBase):
    """Base of the three directions."""

    abstract: ClassVar[bool] = True
    #: Which operand the kernels are; -1: the result.
    kernel: ClassVar[int] = 1

    @property
    def ndim(self) -> int:
        """Number of spatial dimensions."""
        op: Any = self.op
        return int(op.ndim)

    def neutral(self) -> Op:
        if self.layout == "NCHW":
            return self.op
        return KernelsFirst(self.op, self.kernel)


@dataclass(frozen=True)
class OneDnnConv(OneDnnConvolution, OneDnnEpilogue):
    """Convolution of (x, w[, z][, bias]). (``dnnl_convolution_forward``)"""

    def channel_axis(self, ndim: int) -> int:
        return 1 if self.layout == "NCHW" else ndim - 1


@dataclass(frozen=True)
class OneDnnConvGradI(OneDnnConvolution):
    """The gradient in the images, of (w, dy, \\*sizes). (``dnnl_convolution_backward_data``)"""

    kernel: ClassVar[int] = 0


@dataclass(frozen=True)
class OneDnnConvGradW(OneDnnConvolution):
    """The gradient in the kernels, of (x, dy, \\*sizes). (``dnnl_convolution_backward_weights``)"""

    kernel: ClassVar[int] = -1


# -- the others ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OneDnnPool(OneDnnBase):
    """Pooling. (``dnnl_pooling_forward``)"""


@dataclass(frozen=True)
class OneDnnPoolGrad(OneDnnBase):
    """The gradient of pooling: of (x, y, dy) for a maximum, of (dy, \\*sizes) for a mean.

    oneDNN has that of the mean (``dnnl_pooling_backward``); that of a maximum gives a tie's ``dy``
    to its first element, where ours gives it to all, so that it is a kernel of ours.
    """


@dataclass(frozen=True)
class OneDnnSoftmax(OneDnnBase):
    """Softmax or its logarithm. (``dnnl_softmax_forward``)"""


@dataclass(frozen=True)
class OneDnnSoftmaxGrad(OneDnnBase):
    """The gradient of either. (``dnnl_softmax_backward``)"""


@dataclass(frozen=True)
class OneDnnBatchNorm(OneDnnBase):
    """Batch normalisation in training. (``dnnl_batch_normalization_forward``)"""


@dataclass(frozen=True)
class OneDnnBatchNormInference(OneDnnBase):
    """Batch normalisation by given statistics. (``dnnl_batch_normalization_forward``)"""


@dataclass(frozen=True)
class OneDnnBatchNormGrad(OneDnnBase):
    """The gradient of batch normalisation. (``dnnl_batch_normalization_backward``)"""


@dataclass(frozen=True)
class OneDnnLayerNorm(OneDnnBase):
    """Layer normalisation over the last dimension. (``dnnl_layer_normalization_forward``)"""


@dataclass(frozen=True)
class OneDnnLayerNormGrad(OneDnnBase):
    """Its gradient. (``dnnl_layer_normalization_backward``)"""


@dataclass(frozen=True)
class OneDnnRNN(OneDnnBase):
    """A recurrent net; its reserve is what :class:`OneDnnRNNGrad` needs.

    (``dnnl_vanilla_rnn_forward``, ``dnnl_lstm_forward``, ``dnnl_lbr_gru_forward``)
    """


@dataclass(frozen=True)
class OneDnnRNNGrad(OneDnnBase):
    """The gradient of a recurrent net. (``dnnl_lstm_backward`` and its kin)"""
