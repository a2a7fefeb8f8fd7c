"""A GEMM's epilogue by our own kernels, for calls where cuBLASLt has no such epilogue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from symdnn.gpu.device.array import RawArray
from symdnn.graph.kernel import Call, kernels_for, sized
from symdnn.graph.origin import NO_HINTS
from symdnn.graph.type import TensorType
from symdnn.ops.array.reduce import Sum
from symdnn.ops.core.dtype import work_dtype
from symdnn.ops.core.scalar import Builder
from symdnn.ops.lowered.fused import FusedElemwise
from symdnn.ops.vendor.gpublas import GpuGemm, GpuGemmBase, GpuGemmBiasGrad

if TYPE_CHECKING:
    from symdnn.gpu.device.env import LaunchEnv


@dataclass(frozen=True)
class Step:
    """A kernel of the table, bound to types."""

    op: Any
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]

    @property
    def call(self) -> Call:
        return Call(self.op, sized(*self.inputs), sized(*self.outputs), NO_HINTS)

    @cached_property
    def _kernel(self) -> Any:
        return next(k for k in kernels_for(type(self.op), "cuda") if k.refuses(self.call) is None)

    @property
    def workspace_bytes(self) -> int:
        """The kernel's workspace."""
        return int(self._kernel.workspace_bytes(self.call))

    @cached_property
    def launch(self) -> Any:
        """The bound kernel."""
        return self._kernel.bind(self.call)


class Unfused:
    """The steps of a GEMM's call that cuBLASLt does not do, bound on first use."""

    def __init__(self, call: Call) -> None:
        self.op, self.call = call.op, call

    @property
    def workspace_bytes(self) -> int:
        """The workspace of the sums."""
        return self._sums.workspace_bytes if isinstance(self.op, GpuGemmBiasGrad) else 0

    def without_gemm(self, env: LaunchEnv, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """The whole call, for operands without elements."""
        out = outputs[0]
        addend = self.op.addend if isinstance(self.op, GpuGemmBase) else None
        if addend is not None and out.size:
            self._addend.launch(env, [inputs[addend]], [out])
        elif out.size:
            env.zero(out.ptr, out.extent[1] - out.ptr)
        self.after_gemm(env, inputs, outputs)

    def after_gemm(self, env: LaunchEnv, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """The epilogue of ``alpha x y + beta c``, in place."""
        out = outputs[0]
        if isinstance(self.op, GpuGemmBiasGrad) and outputs[1].size:
            self._sum(env, inputs[self.op.summed], outputs[1])
        if isinstance(self.op, GpuGemm) and (self.op.bias or self.op.activation) and out.size:
            self._epilogue.launch(env, [out, *inputs[len(inputs) - self.op.bias :]], [out])

    def _sum(self, env: LaunchEnv, y: RawArray, out: RawArray) -> None:
        if y.size:
            self._sums.launch(env, [y], [out])
        else:
            env.zero(out.ptr, out.nbytes)

    @cached_property
    def _result(self) -> TensorType:
        (found, *_) = self.call.outputs
        assert isinstance(found, TensorType)
        return found

    @cached_property
    def _addend(self) -> Step:
        assert isinstance(self.op, GpuGemmBase)
        dtype = self._result.dtype
        p = Builder((dtype,))
        scaled = p.input(0).cast(work_dtype(dtype)) * float(self.op.residual)
        program = p.program([scaled.cast(dtype)])
        return Step(FusedElemwise(program), (self._result,), (self._result,))

    @cached_property
    def _epilogue(self) -> Step:
        assert isinstance(self.op, GpuGemm)
        t = self._result
        rest = replace(self.op.terms, alpha=1.0, residual=0.0)
        program = rest.epilogue(t.dtype, self.op.rules.op_of(rest.activation)).after(t.dtype)
        row = TensorType(t.dtype, (1,) * (t.ndim - 1) + t.shape[-1:])
        return Step(FusedElemwise(program), (t, row)[: 1 + rest.bias], (t,))

    @cached_property
    def _sums(self) -> Step:
        assert isinstance(self.op, GpuGemmBiasGrad)
        y, out = self.call.inputs[self.op.summed], self.call.outputs[1]
        assert isinstance(y, TensorType), "products are of tensors"
        assert isinstance(out, TensorType), "products are of tensors"
        return Step(Sum(self.op.sums[:1], False, out.dtype, work_dtype(out.dtype)), (y,), (out,))
