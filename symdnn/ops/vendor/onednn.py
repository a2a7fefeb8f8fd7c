"""The ``OneDnn*`` ops: plain data that says what oneDNN is to run. No library is needed for them.

Each holds the device-neutral op of the same meaning, from which types, shapes and reference come
(:mod:`symdnn.ops.core.lowered`). :mod:`symdnn.opt.lower.lower_onednn` builds them, after gradients
are taken; :mod:`symdnn.cpu` runs them. With ``layout="NHWC"`` images are (N, \\*sizes, C); the
kernels of a convolution are (K, C, \\*sizes) in both layouts, since oneDNN reorders them anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import NonDifferentiable
from symdnn.graph.dims import Shape
from symdnn.graph.op import Grads, Host, Op, Vars
from symdnn.ops.core.lowered import Lowered
from symdnn.ops.core.shape import dimshuffle
from symdnn.ops.elementwise.activations import Gelu, GeluTanh, Relu, Sigmoid, Softplus
from symdnn.ops.elementwise.math import Tanh
from symdnn.ops.elemwise import Elemwise
from symdnn.ops.nn.channels_last import (
    ChannelsLast,
    first_order,
    first_shape,
    in_layout,
    last_order,
    last_shape,
)
from symdnn.ops.vendor.epilogue import EpilogueOp, EpilogueRules

__all__ = [
    "ACTIVATIONS", "OneDnnBase", "OneDnnBatchNorm", "OneDnnBatchNormGrad",
    "OneDnnBatchNormInference", "OneDnnConv", "OneDnnConvGradI", "OneDnnConvGradW",
    "OneDnnConvolution", "OneDnnLayerNorm", "OneDnnLayerNormGrad",
    "OneDnnMatmul", "OneDnnPool", "OneDnnPoolGrad", "OneDnnRNN",
    "OneDnnRNNGrad", "OneDnnSoftmax", "OneDnnSoftmaxGrad",
]  # fmt: skip

#: What a convolution or product may end with, by oneDNN's names of its element-wise algorithms.
ACTIVATIONS: dict[str, Elemwise] = {
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

    def _words(self) -> list[str]:
        """The settings of the neutral op, and the layout."""
        text = str(self.op).removeprefix(type(self.op).__name__).strip("{}")
        return [text] * bool(text) + [f"layout={self.layout}"] * (self.layout != "NCHW")

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        raise NonDifferentiable(f"{self} has no gradient: it is made after gradients are taken")

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        raise NonDifferentiable(f"{self} has no gradient: it is made after gradients are taken")


# -- products --------------------------------------------------------------------------------------

_EPILOGUES = EpilogueRules(tuple(ACTIVATIONS.items()), ("float32",))


@dataclass(frozen=True)
class OneDnnMatmul(EpilogueOp, OneDnnBase):
    """A product of matrices or of stacks of them. (``dnnl_matmul``; its bias, sum and eltwise
    post-ops.)"""

    rules: ClassVar[EpilogueRules] = _EPILOGUES

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
class OneDnnConv(EpilogueOp, OneDnnConvolution):
    """Convolution of (x, w[, z][, bias]). (``dnnl_convolution_forward``; its bias, sum and eltwise
    post-ops.)"""

    rules: ClassVar[EpilogueRules] = _EPILOGUES

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
