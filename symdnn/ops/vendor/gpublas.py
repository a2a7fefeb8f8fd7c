"""Products of matrices as cuBLASLt computes them: with what is done to the result at once.

They are made late, by ``opt/epilogue/epilogue_gemm.py``, from products and the elementwise ops
around them; gradients exist only before that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import NonDifferentiable, TypeMismatch
from symdnn.graph.dims import Shape, same_dim
from symdnn.graph.op import Grads, Host, MultiOp, Op, Vars
from symdnn.graph.operators import operator
from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.graph.variable import Variable
from symdnn.ops.array.reduce import Sum
from symdnn.ops.core.dtype import is_narrow_float
from symdnn.ops.core.lowered import Lowered
from symdnn.ops.elementwise.activations import GeluTanh, Relu
from symdnn.ops.elementwise.arithmetic import cast
from symdnn.ops.linalg.dot import BatchedDot, Dot

__all__ = ["ACTIVATIONS", "GpuGemm", "GpuGemmBase", "GpuGemmBiasGrad"]

#: What a product may end with, by cuBLASLt's words; its gelu is the one with a tanh.
ACTIVATIONS: dict[str, Any] = {"relu": Relu(), "gelu": GeluTanh()}


@dataclass(frozen=True)
class GpuGemmBase(Lowered):
    """Base: ``alpha x y + beta c`` in the dtype of the result.

    Inputs are x, y, and c where ``beta`` is not 0. ``dtype`` names that of the result, of c and of
    the bias, where it is not the factors': 16-bit factors may give float32.
    """

    abstract: ClassVar[bool] = True

    alpha: float = 1.0
    beta: float = 0.0
    dtype: str = ""
    batched: bool = False

    def neutral(self) -> Op:
        return BatchedDot() if self.batched else Dot()

    @property
    def addend(self) -> int | None:
        """Which input is c; None without one."""
        return 2 if self.beta != 0 else None

    @property
    def count(self) -> int:
        """How many inputs."""
        return 2 + (self.beta != 0)

    @property
    def may_overwrite(self) -> Mapping[int, tuple[int, ...]]:
        return {} if self.addend is None else {0: (self.addend,)}

    def _product_type(self, inputs: Sequence[Any]) -> TensorType:
        """Type of the result; raises TypeMismatch for an operand that does not fit."""
        if len(inputs) != self.count:
            raise TypeMismatch(self, f"{self.count} operands", list(inputs))
        (y,) = self.neutral().output_types(inputs[:2])
        assert isinstance(y, TensorType)
        if self.dtype:
            y = y.with_dtype(self.dtype)
        if self.addend is not None and not y.accepts(inputs[self.addend]):
            raise TypeMismatch(self, f"an operand to add of type {y}", inputs[self.addend])
        return y

    def infer(self, *inputs: Any) -> Any:
        return self._product_type(inputs)

    def shapes(
        self, types: Sequence[Any], shapes: Sequence[Shape], host: Host
    ) -> Sequence[Shape] | None:
        found = self.neutral().shapes(types[:2], shapes[:2], host)
        if found is None or self.addend is None:
            return found
        added = shapes[self.addend]
        for a, b in zip(found[0], added, strict=True):
            same_dim(self, (a, b), f"an operand to add of shape {tuple(found[0])}", tuple(added))
        return found

    def _sum(self, inputs: Sequence[Any]) -> Any:
        """``alpha x y + beta c``; 16-bit operands in float32, as the kernel accumulates."""
        x, y = (_wide(v) for v in inputs[:2])
        total = np.matmul(x, y)
        total = total * total.dtype.type(self.alpha)
        if self.addend is not None:
            total = total + _wide(inputs[self.addend]) * total.dtype.type(self.beta)
        return total

    def _rounded(self, value: Any, inputs: Sequence[Any]) -> Any:
        dtype = numpy_dtype(self.dtype or inputs[0].dtype.name)
        return np.asarray(value).astype(dtype, copy=False)

    def _expanded_sum(self, inputs: Sequence[Variable]) -> Variable:
        x, y = inputs[:2]
        total: Variable = self.neutral()(x, y)
        if self.dtype:
            total = cast(total, self.dtype)
        total = _times(total, self.alpha)
        if self.addend is None:
            return total
        return total + _times(inputs[self.addend], self.beta)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        raise NonDifferentiable(f"{self} has no gradient: it is made after gradients are taken")

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Vars) -> Grads | None:
        raise NonDifferentiable(f"{self} has no gradient: it is made after gradients are taken")


@dataclass(frozen=True)
class GpuGemm(GpuGemmBase):
    """``activation(alpha x y + beta c + bias)`` by one call of cuBLASLt.

    Inputs: x and y, two matrices or vectors (two stacks with ``batched``); c, of the result's
    shape, where ``beta`` is not 0; a vector along the last dimension with ``bias``.
    ``activation`` is ``""``, ``"relu"`` or ``"gelu"`` (the one with a tanh). 16-bit operands are
    summed in float32 and the result is rounded once. (``cublasLtMatmul`` with
    ``CUBLASLT_EPILOGUE_*``; Theano's ``GpuGemm``, ``GpuDot22``.)
    """

    bias: bool = False
    activation: str = ""

    @property
    def count(self) -> int:
        """How many inputs."""
        return 2 + (self.beta != 0) + self.bias

    def infer(self, *inputs: Any) -> Any:
        y = self._product_type(inputs)
        if self.activation and self.activation not in ACTIVATIONS:
            raise TypeMismatch(self, f"an activation of {sorted(ACTIVATIONS)}", self.activation)
        if self.bias:
            wanted = TensorType(y.dtype, y.shape[-1:])
            if y.ndim == 0 or not wanted.accepts(inputs[-1]):
                raise TypeMismatch(self, f"a bias of type {wanted}", inputs[-1])
        return y

    def shapes(
        self, types: Sequence[Any], shapes: Sequence[Shape], host: Host
    ) -> Sequence[Shape] | None:
        found = super().shapes(types, shapes, host)
        if found is not None and self.bias:
            n, wanted = found[0][-1], f"a bias as long as the last dimension of {tuple(found[0])}"
            same_dim(self, (n, shapes[-1][0]), wanted, tuple(shapes[-1]))
        return found

    def reference(self, *inputs: Any) -> Any:
        total = self._sum(inputs)
        if self.bias:
            total = total + _wide(inputs[-1])
        if self.activation:
            total = ACTIVATIONS[self.activation].reference(np.asarray(total))
        return self._rounded(total, inputs)

    def expanded(self, *inputs: Variable) -> list[Variable] | None:
        total = self._expanded_sum(inputs)
        if self.bias:
            lead = ("x",) * (total.type.ndim - 1)
            total = total + inputs[-1].dimshuffle(*lead, 0)
        return [ACTIVATIONS[self.activation](total) if self.activation else total]


@dataclass(frozen=True)
class GpuGemmBiasGrad(GpuGemmBase, MultiOp):
    """``(alpha x y + beta c, y summed over its first dimension)`` by one call of cuBLASLt.

    x and y are matrices. With the transposed input of a layer and the gradient at its result these
    are the gradients in its weights and its bias. (``CUBLASLT_EPILOGUE_BGRADA``.)
    """

    def infer(self, *inputs: Any) -> Any:
        total = self._product_type(inputs)
        if total.ndim != 2 or inputs[1].ndim != 2 or self.batched:
            raise TypeMismatch(self, "two matrices", list(inputs[:2]))
        return total, TensorType(total.dtype, inputs[1].shape[1:])

    def shapes(
        self, types: Sequence[Any], shapes: Sequence[Shape], host: Host
    ) -> Sequence[Shape] | None:
        found = super().shapes(types, shapes, host)
        return None if found is None else [found[0], tuple(shapes[1][1:])]

    def reference(self, *inputs: Any) -> Any:
        summed = _wide(inputs[1]).sum(0)
        return self._rounded(self._sum(inputs), inputs), self._rounded(summed, inputs)

    def expanded(self, *inputs: Variable) -> list[Variable] | None:
        dtype = self.dtype or inputs[1].type.dtype
        accumulator = "float32" if is_narrow_float(inputs[1].type.dtype) else dtype
        summed = Sum((0,), False, dtype, accumulator)(inputs[1])
        return [self._expanded_sum(inputs), summed]


def _wide(a: Any) -> Any:
    """float32 for the 16-bit floats."""
    return a.astype(np.float32) if is_narrow_float(a.dtype.name) else a


def _times(v: Variable, factor: float) -> Variable:
    """``factor * v`` in the dtype of ``v``; ``v`` itself for 1."""
    if factor == 1:
        return v
    return operator("mul")(v, np.asarray(factor, v.type.numpy))  # type: ignore[no-any-return]
