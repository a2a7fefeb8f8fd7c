"""GEMMs in training that also keep what is before the activation function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from symdnn.gpu.device.array import RawArray
from symdnn.gpu.gemm.matmul import BoundGemm, MatmulKernel
from symdnn.gpu.gemm.one_kernel import OneKernel
from symdnn.gpu.gemm.plan import WORKSPACE_BYTES
from symdnn.gpu.gemm.unfused import Step
from symdnn.graph.kernel import Call, Row
from symdnn.graph.type import TensorType
from symdnn.ops.lowered.activation import program_of
from symdnn.ops.lowered.fused import FusedElemwise
from symdnn.ops.vendor.gpublas import GpuGemmKept

if TYPE_CHECKING:
    from symdnn.gpu.device.env import LaunchEnv


class KeptKernel(MatmulKernel):
    """cuBLASLt's GEMM and an elementwise kernel, or one kernel of cuDNN that is faster."""

    def workspace_bytes(self, call: Call) -> int:
        """The workspace limit, with room for alignment."""
        return WORKSPACE_BYTES + 256

    def writes(self, call: Call, index: int, array: RawArray) -> bool:
        """As for one result."""
        return super().writes(call, 0, array)

    def bind(self, call: Call) -> Any:
        """Both ways."""
        return _Bound(call, self)


class _Bound:
    """A call at its shapes."""

    def __init__(self, call: Call, kernel: KeptKernel) -> None:
        op, before = call.op, call.outputs[1]
        assert isinstance(op, GpuGemmKept), "the kernel of that op"
        assert isinstance(before, TensorType), "products are of tensors"
        alone = replace(call, op=op.linear(), outputs=call.outputs[1:])
        self.linear = BoundGemm(alone, [] if kernel.ran is None else kernel.ran)
        activation = op.rules.op_of(op.activation)
        program = None if activation is None else program_of(activation, before.dtype)
        assert program is not None, "an op that keeps has an activation function"
        self.second = Step(FusedElemwise(program), (before,), (before,))
        self.one_kernel = OneKernel(op.activation, op.bias, self.linear.mode)

    def __call__(
        self, env: LaunchEnv, inputs: Sequence[RawArray], outputs: Sequence[RawArray]
    ) -> None:
        """Enqueue the way that was measured to be faster."""
        if not self.one_kernel(env, inputs, outputs, self._two_kernels):
            self._two_kernels(env, inputs, outputs)

    def _two_kernels(
        self, env: LaunchEnv, inputs: Sequence[RawArray], outputs: Sequence[RawArray]
    ) -> None:
        self.linear(env, inputs, outputs[1:])
        if outputs[0].size:
            self.second.launch(env, [outputs[1]], [outputs[0]])


KERNELS: tuple[Row, ...] = (((GpuGemmKept,), (KeptKernel(),)),)
