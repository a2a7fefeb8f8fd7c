"""The ``OneDnn*`` ops: calls of oneDNN as plain data, which need no library.

Each has the neutral op that computes the same, from which types, shapes and reference come
(:mod:`symdnn.ops.lowered.lowered`). :mod:`symdnn.libraries.onednn` makes them, after gradients are
taken; :mod:`symdnn.cpu` runs them. With ``layout="NHWC"`` activations are (N, \\*sizes, C). The
filters of a convolution are (K, C, \\*sizes) in both layouts, since oneDNN reorders them anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from symdnn.errors import NonDifferentiable
from symdnn.graph.dims import Shape
from symdnn.graph.op import Grads, Host, Op, Vars
from symdnn.graph.typing import Array
from symdnn.ops.core.shape import dimshuffle
from symdnn.ops.elementwise.activations import Gelu, GeluTanh, Relu, Sigmoid, Softplus
from symdnn.ops.elementwise.math import Tanh
from symdnn.ops.elemwise import Elemwise
from symdnn.ops.lowered.epilogue import EpilogueOp, EpilogueRules
from symdnn.ops.lowered.lowered import Lowered
from symdnn.ops.nn.channels_last import (
    ChannelsLast,
    first_order,
    first_shape,
    last_order,
    last_shape,
)

if TYPE_CHECKING:
    from symdnn.graph.type import TensorType

__all__ = [
    "ACTIVATIONS", "OneDnnBase", "OneDnnBatchNorm", "OneDnnBatchNormGrad",
    "OneDnnBatchNormInference", "OneDnnConv", "OneDnnConvGradI", "OneDnnConvGradW",
    "OneDnnConvolution", "OneDnnLayerNorm", "OneDnnLayerNormGrad",
    "OneDnnMatmul", "OneDnnPool", "OneDnnPoolGrad", "OneDnnRNN",
    "OneDnnRNNGrad", "OneDnnSoftmax", "OneDnnSoftmaxGrad",
]  # fmt: skip

#: Activation functions of epilogues, by oneDNN's names.
ACTIVATIONS: dict[str, Elemwise] = {
    "relu": Relu(), "tanh": Tanh(), "logistic": Sigmoid(), "soft_relu": Softplus(),
    "gelu_erf": Gelu(), "gelu_tanh": GeluTanh(),
}  # fmt: skip


@dataclass(frozen=True)
class OneDnnBase(Lowered):
    """Base of oneDNN's ops. ``op`` is the neutral op, in NCHW."""

    abstract: ClassVar[bool] = True
    op: Op
    layout: str = field(default="NCHW", kw_only=True)

    @classmethod
    def of(cls, op: Op, **settings: Any) -> Self:
        return cls(op, **settings)

    @property
    def unlowered(self) -> Op:
        return self.op

    def _words(self) -> list[str]:
        """The settings of the neutral op, and the layout."""
        text = str(self.op).removeprefix(type(self.op).__name__).strip("{}")
        return [text] * bool(text) + [f"layout={self.layout}"] * (self.layout != "NCHW")

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        raise NonDifferentiable(f"{self} has no gradient: it is made after gradients are taken")

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        raise NonDifferentiable(f"{self} has no gradient: it is made after gradients are taken")


# -- GEMM ------------------------------------------------------------------------------------------

_EPILOGUES = EpilogueRules(tuple(ACTIVATIONS.items()), ("float32",))


@dataclass(frozen=True)
class OneDnnMatmul(EpilogueOp, OneDnnBase):
    """A GEMM or batched GEMM. (``dnnl_matmul`` with bias, sum and eltwise post-ops)"""

    rules: ClassVar[EpilogueRules] = _EPILOGUES

    def channel_axis(self, ndim: int) -> int:
        return ndim - 1


# -- convolution -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class FilterFirst(ChannelsLast):
    """:class:`ChannelsLast` whose filter is (K, C, \\*sizes): input ``filter_index``, or -1 for the
    result."""

    abstract: ClassVar[bool] = True
    filter_index: int = 1

    def _moved_in(self, values: Sequence[Any], move: Any) -> list[Any]:
        return [move(v) if i == self.filter_index else v for i, v in enumerate(values)]

    def _moved_out(self, values: Sequence[Any], move: Any) -> tuple[Any, ...]:
        return tuple(move(v) for v in values) if self.filter_index < 0 else tuple(values)

    def output_types(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        given = self._moved_in(inputs, lambda t: t.with_shape(last_shape(t.shape)))
        found = super().output_types(given)
        return self._moved_out(found, lambda t: t.with_shape(first_shape(t.shape)))

    def compute(self, *inputs: Array) -> tuple[Array, ...]:
        given = self._moved_in(inputs, lambda a: a.transpose(last_order(a.ndim)))
        found = super().compute(*given)
        return self._moved_out(
            found, lambda a: np.ascontiguousarray(a.transpose(first_order(a.ndim)))
        )

    def shapes(
        self, types: Sequence[TensorType], shapes: Sequence[Shape], host: Host
    ) -> Sequence[Shape] | None:
        given_types = self._moved_in(types, lambda t: t.with_shape(last_shape(t.shape)))
        found = super().shapes(given_types, self._moved_in(shapes, last_shape), host)
        return found and list(self._moved_out(found, first_shape))

    def __call__(self, *inputs: Any, **words: Any) -> Any:
        """``op`` on inputs and with a result of this layout."""
        given = self._moved_in(inputs, lambda v: dimshuffle(v, last_order(v.type.ndim)))
        out = super().__call__(*given, **words)
        return dimshuffle(out, first_order(out.type.ndim)) if self.filter_index < 0 else out


@dataclass(frozen=True)
class OneDnnConvolution(OneDnnBase):
    """Base of the three directions."""

    abstract: ClassVar[bool] = True
    layouts: ClassVar[tuple[str, ...]] = ("NCHW", "NHWC")
    packed_filter: ClassVar[int | None] = 1

    @property
    def ndim(self) -> int:
        """Number of spatial dimensions."""
        op: Any = self.op
        return int(op.ndim)

    def channels_last(self, ndim: int) -> Self | None:
        return super().channels_last(ndim) if self.ndim in (2, 3) else None

    def neutral(self) -> Op:
        assert self.packed_filter is not None
        return self.op if self.layout == "NCHW" else FilterFirst(self.op, self.packed_filter)


@dataclass(frozen=True)
class OneDnnConv(EpilogueOp, OneDnnConvolution):
    """Convolution of (x, w[, z][, bias]). (``dnnl_convolution_forward`` with bias, sum and eltwise
    post-ops)"""

    rules: ClassVar[EpilogueRules] = _EPILOGUES

    def channel_axis(self, ndim: int) -> int:
        return 1 if self.layout == "NCHW" else ndim - 1


@dataclass(frozen=True)
class OneDnnConvGradI(OneDnnConvolution):
    """The gradient of the input, of (w, dy, \\*sizes). (``dnnl_convolution_backward_data``)"""

    packed_filter: ClassVar[int | None] = 0


@dataclass(frozen=True)
class OneDnnConvGradW(OneDnnConvolution):
    """The gradient of the filters, of (x, dy, \\*sizes). (``dnnl_convolution_backward_weights``)"""

    packed_filter: ClassVar[int | None] = -1


# -- other ops -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OneDnnPool(OneDnnBase):
    """Pooling. (``dnnl_pooling_forward``)"""

    layouts: ClassVar[tuple[str, ...]] = ("NCHW", "NHWC")


@dataclass(frozen=True)
class OneDnnPoolGrad(OneDnnBase):
    """The gradient of pooling: of (x, y, dy) for a maximum, of (dy, \\*sizes) for a mean.

    oneDNN runs that of a mean (``dnnl_pooling_backward``). Its gradient of a maximum passes ``dy``
    to the first of equal elements. symdnn's passes it to all, so symdnn has its own kernel.
    """

    layouts: ClassVar[tuple[str, ...]] = ("NCHW", "NHWC")


@dataclass(frozen=True)
class OneDnnSoftmax(OneDnnBase):
    """Softmax along the last axis. (``dnnl_softmax_forward``)"""


@dataclass(frozen=True)
class OneDnnSoftmaxGrad(OneDnnBase):
    """The gradient of softmax or log-softmax. (``dnnl_softmax_backward``)"""


@dataclass(frozen=True)
class OneDnnBatchNorm(OneDnnBase):
    """Batch normalisation in training. (``dnnl_batch_normalization_forward``)"""

    layouts: ClassVar[tuple[str, ...]] = ("NCHW", "NHWC")


@dataclass(frozen=True)
class OneDnnBatchNormInference(OneDnnBase):
    """Batch normalisation with given statistics. (``dnnl_batch_normalization_forward``)"""

    layouts: ClassVar[tuple[str, ...]] = ("NCHW", "NHWC")


@dataclass(frozen=True)
class OneDnnBatchNormGrad(OneDnnBase):
    """The gradient of batch normalisation. (``dnnl_batch_normalization_backward``)"""

    layouts: ClassVar[tuple[str, ...]] = ("NCHW", "NHWC")


@dataclass(frozen=True)
class OneDnnLayerNorm(OneDnnBase):
    """Layer normalisation over the last dimension. (``dnnl_layer_normalization_forward``)"""


@dataclass(frozen=True)
class OneDnnLayerNormGrad(OneDnnBase):
    """Its gradient. (``dnnl_layer_normalization_backward``)"""


@dataclass(frozen=True)
class OneDnnRNN(OneDnnBase):
    """A recurrent network; :class:`OneDnnRNNGrad` reads its reserve.

    (``dnnl_vanilla_rnn_forward``, ``dnnl_lstm_forward``, ``dnnl_lbr_gru_forward``)
    """


@dataclass(frozen=True)
class OneDnnRNNGrad(OneDnnBase):
    """The gradient of a recurrent network.

    (``dnnl_vanilla_rnn_backward``, ``dnnl_lstm_backward``, ``dnnl_lbr_gru_backward``)
    """
