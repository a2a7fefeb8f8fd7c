"""Products of int8 and float8 matrices by cuBLASLt, on tensor cores.

int8 is summed exactly in int32; scales, bias and rounding are one elementwise kernel behind it.
float8 is summed in float32 and scaled by two numbers on the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from symdnn.gpu.binding.libcublaslt import CODE_TYPE
from symdnn.gpu.device.array import RawArray
from symdnn.gpu.gemm.choice import choose, mode_by_flags
from symdnn.gpu.gemm.matmul import as_matrix
from symdnn.gpu.gemm.plan import (
    WORKSPACE_BYTES,
    GemmPlan,
    GemmSignature,
    Matrix,
    Pointers,
    alignment_of,
)
from symdnn.graph.kernel import Call, Kernel, Row, Traits
from symdnn.ops.vendor.gpublas import GpuQuantizedGemm

if TYPE_CHECKING:
    from symdnn.gpu.device.env import LaunchEnv


class QuantizedGemmKernel(Kernel):
    """GEMM of 8-bit operands by ``cublasLtMatmul``."""

    name = "cublaslt.matmul8"
    traits = Traits("cublaslt")
    contiguous_inputs = True

    def refuses(self, call: Call) -> str | None:
        """Integers that are not int8; sizes that fill no 16 bytes."""
        product: Any = call.op
        product = product.op
        kinds = product.kinds if product.is_float8 else [t.dtype for t in call.inputs[:2]]
        if not all(kind in CODE_TYPE for kind in kinds):
            return f"cuBLASLt has no product of {kinds[0]} and {kinds[1]}"
        k, n = call.inputs[1].shape[-1], call.inputs[1].shape[-2]
        if (k and k % 16) or (n and n % 16):
            return f"rows of {k} and {n} elements are no multiples of 16"
        return None

    def workspace_bytes(self, call: Call) -> int:
        """cuBLASLt's workspace with room for alignment."""
        return WORKSPACE_BYTES + 256

    def bind(self, call: Call) -> Any:
        """A launch that keeps cuBLASLt's plans, by the alignment of the operands."""
        return _Bound(call)


class _Bound:
    """A GEMM at its shapes."""

    def __init__(self, call: Call) -> None:
        op: Any = call.op
        self.product, self.mode = op.op, mode_by_flags()
        self.plans: dict[GemmSignature, GemmPlan] = {}

    def __call__(
        self, env: LaunchEnv, inputs: Sequence[RawArray], outputs: Sequence[RawArray]
    ) -> None:
        """Enqueue the GEMM."""
        x, y, out = as_matrix(inputs[0], 0), as_matrix(inputs[1], 0), outputs[0]
        if out.size == 0 or x.shape[2] == 0:
            if out.size:
                env.zero(out.ptr, out.nbytes)
            return
        s = self._signature(x, y, out)
        plan = self.plans.get(s) or self.plans.setdefault(s, GemmPlan(env.cublaslt, s))
        x_scale, y_scale = (v.ptr for v in inputs[2:4]) if s.scaled else (0, 0)
        at = Pointers(y.ptr, x.ptr, out.ptr, a_scale=y_scale, b_scale=x_scale)
        choice = choose(plan, self.mode, env, at, (1.0, 0.0))
        choice.enqueue(plan, env, at, (1.0, 0.0))

    def _signature(self, x: RawArray, y: RawArray, out: RawArray) -> GemmSignature:
        """A row-major ``x y'`` is the column-major GEMM ``y' x`` of transposed and plain."""
        float8 = self.product.is_float8
        first, second = self.product.kinds[::-1] if float8 else (y.dtype, x.dtype)
        (batch, m, k), n = x.shape, y.shape[1]
        return GemmSignature(
            first, out.dtype, "float32" if float8 else "int32",
            Matrix(k, n, k, True, n * k), Matrix(k, m, k, False, m * k),
            Matrix(n, m, n, False, m * n), None, batch,
            alignment=tuple(map(alignment_of, (y.ptr, x.ptr, out.ptr, out.ptr))),  # type: ignore[arg-type]
            workspace_limit=WORKSPACE_BYTES, dtype_b=second, scaled=float8,
        )  # fmt: skip


KERNELS: tuple[Row, ...] = (((GpuQuantizedGemm,), (QuantizedGemmKernel(),)),)
