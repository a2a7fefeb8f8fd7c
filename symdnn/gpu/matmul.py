"""Matrix products by cuBLASLt: transposed views cost nothing, anything else strided is copied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from symdnn.config import config
from symdnn.gpu.array import DeviceArray
from symdnn.gpu.gemm_plan import (
    GemmAlgorithm,
    GemmPlan,
    GemmSignature,
    Matrix,
    Pointers,
    alignment_of,
)
from symdnn.gpu.libcublaslt import CUDA_TYPE
from symdnn.graph.kernel import Call, register_kernel
from symdnn.ops.dot import BatchedDot, Dot

__all__ = ["MatmulKernel", "as_matrix", "operand", "register"]

WORKSPACE_BYTES = 32 << 20  # what NVIDIA advises for Hopper


@dataclass(frozen=True)
class MatmulKernel:
    """``Dot`` and ``BatchedDot`` through ``cublasLtMatmul``.

    float32 is computed in float32 unless the flag ``dnn.conv.allow_tf32`` allows TF32; the
    16-bit floats accumulate in float32.
    """

    name: str = "cublaslt.matmul"

    def refuses(self, call: Call) -> str | None:
        """Floats and complex numbers only."""
        dtype = call.inputs[0].dtype  # type: ignore[attr-defined]
        return None if dtype in CUDA_TYPE else f"cuBLASLt has no product of {dtype}"

    def workspace_bytes(self, call: Call) -> int:
        """Scratch that the heuristic may choose from."""
        return WORKSPACE_BYTES

    def accepts(self, index: int, x: DeviceArray) -> bool:
        """Whether the array's layout can be multiplied without a copy."""
        return operand(as_matrix(x, index)) is not None

    def bind(self, call: Call) -> Any:
        """A launch that keeps one cuBLASLt plan for each layout of its operands."""
        plans: dict[Any, tuple[GemmPlan, GemmAlgorithm]] = {}
        dtype = call.inputs[0].dtype  # type: ignore[attr-defined]
        allow_tf32 = bool(config.dnn.conv.allow_tf32)

        def launch(env: Any, inputs: Any, outputs: Any) -> None:
            x, y, out = as_matrix(inputs[0], 0), as_matrix(inputs[1], 1), outputs[0]
            if out.size == 0:
                return
            if x.shape[2] == 0:
                env.zero(out.ptr, out.nbytes)
                return
            s = signature(dtype, x, y, out, allow_tf32)
            if s not in plans:
                plan = GemmPlan(env.cublaslt, s)
                plans[s] = plan, plan.algorithms(1)[0]
            plan, algorithm = plans[s]
            at = Pointers(y.ptr, x.ptr, out.ptr)
            plan.run(algorithm, at, (1.0, 0.0), env.workspace, env.stream)

        return launch


def as_matrix(x: DeviceArray, index: int) -> DeviceArray:
    """A stack ``(b, rows, columns)``; a vector is a row on the left, a column on the right."""
    if x.ndim == 3:
        return x
    if x.ndim == 2:
        shape, strides = (1, *x.shape), (0, *x.strides)
    elif index == 0:
        shape, strides = (1, 1, *x.shape), (0, 0, *x.strides)
    else:
        shape, strides = (1, *x.shape, 1), (0, *x.strides, 0)
    return DeviceArray(x.ptr, shape, x.dtype, strides, x.owner)


def operand(x: DeviceArray) -> Matrix | None:
    """How the transpose of each matrix of the stack lies for cuBLASLt (column-major), if it can."""
    (b, rows, columns), item = x.shape, x.itemsize
    sb, sr, sc = (s // item for s in x.strides)
    offset = sb if b != 1 else 0
    if columns <= 1 or sc == 1:
        ld = sr if rows > 1 else columns
        if ld >= columns and ld > 0:
            return Matrix(columns, rows, ld, False, offset)
    if rows <= 1 or sr == 1:
        ld = sc if columns > 1 else rows
        if ld >= rows and ld > 0:
            return Matrix(rows, columns, ld, True, offset)
    return None


def signature(
    dtype: str, x: DeviceArray, y: DeviceArray, out: DeviceArray, allow_tf32: bool
) -> GemmSignature:
    """Of ``x y``: a row-major result is the column-major product ``y' x'``."""
    a, b = operand(y), operand(x)
    assert a is not None, "the plan copies operands that accepts() refuses"
    assert b is not None, "the plan copies operands that accepts() refuses"
    m, n = x.shape[1], y.shape[2]
    compute = "float64" if dtype in ("float64", "complex128") else "float32"
    if dtype == "float32" and allow_tf32:
        compute = "tf32"
    d = Matrix(n, m, n, False, m * n)
    at = alignment_of(out.ptr)
    return GemmSignature(
        dtype, dtype, compute, a, b, d, None, max(x.shape[0], y.shape[0]),
        alignment=(alignment_of(y.ptr), alignment_of(x.ptr), at, at),
        workspace_limit=WORKSPACE_BYTES,
    )  # fmt: skip


def register() -> None:
    """Enter the kernels into the table."""
    for op in (Dot, BatchedDot):
        register_kernel(op, "cuda", MatmulKernel())
