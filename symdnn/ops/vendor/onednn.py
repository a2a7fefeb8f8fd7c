"""The ``OneDnn*`` ops: calls of oneDNN as plain data, which need no library.

Each has the neutral op that computes the same, from which types, shapes and reference come
(:mod:`symdnn.ops.lowered.lowered`). :mod:`symdnn.libraries.onednn` makes them, after gradients are
taken; :mod:`symdnn.cpu` runs them. With ``layout="NHWC"`` activations are (N, \\*sizes, C). The
filters of a convolution are (K, C, \\*sizes) in both layouts, since oneDNN reorders them anyway.
Most of the classes have no fields of their own: a name, and the function of oneDNN that it stands
for.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from symdnn.graph.op import Op
from symdnn.ops.elementwise.activations import GeluTanh, Relu, Sigmoid
from symdnn.ops.elementwise.math import Tanh
from symdnn.ops.lowered.activation import (
    HARD_SIGMOID,
    HARD_SWISH,
    RELU6,
    SILU,
    Activation,
)
from symdnn.ops.lowered.epilogue import EpilogueOp, EpilogueRules
from symdnn.ops.lowered.lowered import LoweredLate

#: Activation functions of epilogues, by oneDNN's names. Not ``soft_relu`` and ``gelu_erf``: in
#: oneDNN 3.2 they have no right digit in their tails (softplus(-20) is -2e-6), gelu(inf) is NaN.
ACTIVATIONS: dict[str, Activation] = {
    "relu": Relu(), "tanh": Tanh(), "logistic": Sigmoid(), "gelu_tanh": GeluTanh(), "clip": RELU6,
    "hardsigmoid": HARD_SIGMOID, "hardswish": HARD_SWISH, "swish": SILU,
}  # fmt: skip
#: A GEMM before SiLU is one of a gated network: its kernel computes the product with the gate, too.
_NOT_OF_PRODUCTS = ("swish",)


@dataclass(frozen=True)
class OneDnnBase(LoweredLate):
    """Base of oneDNN's ops. ``op`` is the neutral op, in NCHW."""

    abstract: ClassVar[bool] = True
    dtypes: ClassVar[tuple[str, ...]] = ("float32",)
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


class _ByChannel(OneDnnBase):
    """Base of the ops that oneDNN has in both layouts, and in bfloat16."""

    abstract: ClassVar[bool] = True
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "bfloat16")
    layouts: ClassVar[tuple[str, ...]] = ("NCHW", "NHWC")


# -- GEMM ------------------------------------------------------------------------------------------

_EPILOGUES = EpilogueRules(tuple(ACTIVATIONS.items()), ("float32", "bfloat16"))


@dataclass(frozen=True)
class OneDnnMatmul(EpilogueOp, OneDnnBase):
    """A GEMM or batched GEMM. (``dnnl_matmul`` with bias, sum and eltwise post-ops)"""

    rules: ClassVar[EpilogueRules] = replace(
        _EPILOGUES, through_reshape=True,
        activations=tuple(a for a in ACTIVATIONS.items() if a[0] not in _NOT_OF_PRODUCTS),
    )  # fmt: skip
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "bfloat16")


# -- convolution -----------------------------------------------------------------------------------


class OneDnnConvolution(_ByChannel):
    """Base of the three directions."""

    abstract: ClassVar[bool] = True
    packed_filter: ClassVar[int | None] = 1

    @property
    def ndim(self) -> int:
        """Number of spatial dimensions."""
        op: Any = self.op
        return int(op.ndim)

    def channels_last(self, ndim: int) -> Self | None:
        op: Any = self.op
        volumes = self.ndim == 3 and op.groups > 1  # whose kernels read planes
        return super().channels_last(ndim) if self.ndim in (2, 3) and not volumes else None


@dataclass(frozen=True)
class OneDnnConv(EpilogueOp, OneDnnConvolution):
    """Convolution of (x, w[, z][, bias]). (``dnnl_convolution_forward`` with bias, sum and eltwise
    post-ops)"""

    rules: ClassVar[EpilogueRules] = _EPILOGUES
    bias_axis: ClassVar[int] = 1


class OneDnnConvGradI(OneDnnConvolution):
    """The gradient of the input, of (w, dy, \\*sizes). (``dnnl_convolution_backward_data``)"""

    packed_filter: ClassVar[int | None] = 0


class OneDnnConvGradW(OneDnnConvolution):
    """The gradient of the filters, of (x, dy, \\*sizes). (``dnnl_convolution_backward_weights``)"""

    packed_filter: ClassVar[int | None] = -1


# -- quantised ------------------------------------------------------------------------------------


class OneDnnQuantized(_ByChannel):
    """A product of quantised numbers, ``op`` a :class:`QuantizedProduct`.

    (``dnnl_convolution_forward`` and ``dnnl_matmul`` with scales and zero points)
    """

    dtypes: ClassVar[tuple[str, ...]] = ()  # of its scales and results: the lowering asks more
    packed_filter: ClassVar[int | None] = 1

    def channels_last(self, ndim: int) -> Self | None:
        op: Any = self.op
        return super().channels_last(ndim) if op.is_conv and op.op.ndim in (2, 3) else None


# -- other ops -------------------------------------------------------------------------------------


class OneDnnPool(_ByChannel):
    """Pooling. (``dnnl_pooling_forward``)"""


class OneDnnPoolGrad(_ByChannel):
    """The gradient of pooling: of (x, y, dy) for a maximum, of (dy, \\*sizes) for a mean.

    oneDNN runs that of a mean (``dnnl_pooling_backward``). Its gradient of a maximum passes ``dy``
    to the first of equal elements. symdnn's passes it to all, so symdnn has its own kernel.
    """


class OneDnnBatchNorm(_ByChannel):
    """Batch normalisation in training. (``dnnl_batch_normalization_forward``)"""


class OneDnnBatchNormInference(_ByChannel):
    """Batch normalisation with given statistics. (``dnnl_batch_normalization_forward``)"""


class OneDnnBatchNormGrad(_ByChannel):
    """The gradient of batch normalisation. (``dnnl_batch_normalization_backward``)"""


class OneDnnLayerNorm(OneDnnBase):
    """Layer normalisation over the last dimension. (``dnnl_layer_normalization_forward``)"""


class OneDnnLayerNormGrad(OneDnnBase):
    """Its gradient. (``dnnl_layer_normalization_backward``)"""
