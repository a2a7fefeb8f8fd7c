"""GEMMs of cuBLASLt, with an epilogue.

``libraries/cublaslt/rules.py`` makes them of GEMMs and the elementwise ops behind them, after
gradients are taken.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import TypeMismatch
from symdnn.graph.op import Host, MultiOp, Op, Shapes, Types
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array
from symdnn.graph.variable import Variable
from symdnn.ops.array.reduce import Sum
from symdnn.ops.core.composed import Composed
from symdnn.ops.core.dtype import is_narrow_float
from symdnn.ops.core.shape import dimshuffle
from symdnn.ops.elementwise.activations import Gelu, GeluTanh, Relu
from symdnn.ops.linalg.dot import BatchedDot, Dot
from symdnn.ops.lowered.activation import SILU, Activation
from symdnn.ops.lowered.epilogue import Affine, EpilogueOp, EpilogueRules
from symdnn.ops.lowered.lowered import LoweredLate

__all__ = [
    "ACTIVATIONS", "FEWEST_SMALL_PRODUCTS", "MOST_SMALL_SIDE", "GpuGemm", "GpuGemmBase",
    "GpuGemmBiasGrad", "GpuGemmKept", "GpuQuantizedGemm",
]  # fmt: skip

#: Activation functions: cuBLASLt's relu and gelu, which is the approximation by tanh, then those of
#: cuDNN's products. Where neither library is the faster, the GEMM and one kernel behind it run.
ACTIVATIONS: dict[str, Activation] = {
    "relu": Relu(), "gelu": GeluTanh(), "gelu_erf": Gelu(), "silu": SILU,
}  # fmt: skip

#: So many products of matrices of up to so many rows and columns are elementwise.
FEWEST_SMALL_PRODUCTS, MOST_SMALL_SIDE = 4096, 4

_EPILOGUES = EpilogueRules(
    tuple(ACTIVATIONS.items()), ("float16", "bfloat16", "float32"), ("float64",),
    scales=True, scales_residual=True, widens=True, saves_sums=True, through_reshape=True,
    measured=("gelu_erf", "silu"),
)  # fmt: skip


@dataclass(frozen=True)
class GpuGemmBase(EpilogueOp):
    """Base of all: ``op`` is a ``Dot`` of matrices and vectors, or a ``BatchedDot``."""

    never_fails: ClassVar[bool] = True
    abstract: ClassVar[bool] = True
    op: Op = field(default_factory=Dot)

    @property
    def unlowered(self) -> Op:
        return self.op

    @property
    def batched(self) -> bool:
        """Whether it multiplies batches of matrices."""
        return isinstance(self.op, BatchedDot)

    @property
    def addend(self) -> int | None:
        """The index of the input c; None without one."""
        return 2 if self.residual else None

    def _words(self) -> list[str]:
        return ["batched"] * self.batched + self.terms.words()


class GpuGemm(GpuGemmBase):
    """``activation(alpha x y + beta c + bias)`` by one call of cuBLASLt.

    Inputs are x and y, then as the epilogue has them c, of the result's shape, and a bias along the
    last dimension, of size 1 in the others. The activation function is one of :data:`ACTIVATIONS`.
    With 16-bit x and y the result may be float32; c and the bias then are, too.
    (``cublasLtMatmul`` with ``CUBLASLT_EPILOGUE_*``; Theano's ``GpuGemm``, ``GpuDot22``.)
    """

    rules: ClassVar[EpilogueRules] = _EPILOGUES


class GpuGemmKept(GpuGemmBase, MultiOp):
    """``activation(x y + bias)`` and ``x y + bias``, which the gradient reads, by one call.

    Inputs are those of :class:`GpuGemm`. (cuDNN's graph of a product with two results.)
    """

    rules: ClassVar[EpilogueRules] = _EPILOGUES

    def linear(self) -> GpuGemm:
        """The op of the second result alone."""
        rest = replace(self.terms, activation="")
        if self.epilogue is None or rest == Affine():
            return GpuGemm(self.op)
        return GpuGemm(self.op, epilogue=rest.epilogue(self.epilogue.dtype, None))

    def infer(self, *inputs: TensorType) -> Any:
        total = self._result_type(inputs)
        return total, total

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        found = super().shapes(types, shapes, host)
        return None if found is None else [found[0], found[0]]

    def reference(self, *inputs: Array) -> Any:
        return self._value(inputs), self.linear()._value(inputs)

    def expanded(self, *inputs: Variable) -> list[Variable] | None:
        return [self._expanded_value(inputs), self.linear()._expanded_value(inputs)]


@dataclass(frozen=True)
class GpuGemmBiasGrad(GpuGemmBase, MultiOp):
    """``alpha x y + beta c``, and the sums of one factor over what is multiplied, by one call.

    x and y are matrices. The sums are those of y over its first dimension, with ``left`` of x over
    its last one. Where that factor is the gradient of a dense layer's result, and the other one its
    input, these are the gradients of its weights and bias. With 16-bit x and y both may be float32.
    (``CUBLASLT_EPILOGUE_BGRADA``, with ``left`` ``CUBLASLT_EPILOGUE_BGRADB``.)
    """

    rules: ClassVar[EpilogueRules] = EpilogueRules()
    left: bool = field(default=False, kw_only=True)

    @property
    def summed(self) -> int:
        """The index of the input that is summed."""
        return int(not self.left)

    @property
    def sums(self) -> tuple[int, int]:
        """The dimension of that input over which it is summed, and the one that stays."""
        return (1, 0) if self.left else (0, 1)

    def _words(self) -> list[str]:
        return [*super()._words(), *["left"] * self.left]

    def infer(self, *inputs: TensorType) -> Any:
        total = self._result_type(inputs)
        if total.ndim != 2 or any(t.ndim != 2 for t in inputs[:2]):
            raise TypeMismatch(self, "two matrices", list(inputs[:2]))
        return total, TensorType(total.dtype, (inputs[self.summed].shape[self.sums[1]],))

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        found = super().shapes(types, shapes, host)
        return None if found is None else [found[0], (shapes[self.summed][self.sums[1]],)]

    def reference(self, *inputs: Array) -> Any:
        total, v = self._value(inputs), inputs[self.summed]
        work = np.float32 if is_narrow_float(v.dtype.name) else v.dtype
        sums = v.sum(self.sums[0], dtype=work)
        return total, np.asarray(sums).astype(total.dtype, copy=False)

    def expanded(self, *inputs: Variable) -> list[Variable] | None:
        total, v = self._expanded_value(inputs), inputs[self.summed]
        wanted = total.type.dtype
        accumulated = "float32" if is_narrow_float(v.type.dtype) else wanted
        return [total, Sum(self.sums[:1], False, wanted, accumulated)(v)]


@dataclass(frozen=True)
class GpuQuantizedGemm(Composed, LoweredLate):
    """A product of int8 or float8 matrices, of which the second is given transposed.

    Inputs are x (.., m, k), y (.., n, k), and for float8 their scales; both have their sums along
    contiguous memory, the only form of which tensor cores multiply 8 bits. ``op`` is a
    :class:`QuantizedProduct` of x (.., m, k) and (.., k, n). Sums of int8 are int32, those of
    float8 are float32, scaled and then rounded to the result's dtype. (``cublasLtMatmul`` with
    ``CUBLAS_COMPUTE_32I``, and with ``CUDA_R_8F_E4M3`` and ``CUDA_R_8F_E5M2``.)
    """

    op: Op

    @property
    def unlowered(self) -> Op:
        return self.op

    def expanded(self, *inputs: Variable) -> list[Variable] | None:
        x, y, *scales = inputs
        *lead, row, column = range(y.type.ndim)
        return [self.op(x, dimshuffle(y, (*lead, column, row)), *scales)]
