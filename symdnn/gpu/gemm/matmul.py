"""GEMM by cuBLASLt: transposed operands are read in place, other strided ones are copied.

The bias, addend and activation of a :class:`~symdnn.ops.vendor.gpublas.GpuGemm` are an epilogue of
the same call. Where cuBLASLt has no algorithm with that epilogue, the GEMM runs without it, and
our own kernels compute it afterwards, or cuDNN has both in one kernel
(:mod:`symdnn.gpu.gemm.one_kernel`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any

from symdnn.config import config
from symdnn.gpu.binding.libcublaslt import CUDA_TYPE, EPILOGUE, CublasError
from symdnn.gpu.device.array import RawArray
from symdnn.gpu.gemm.choice import GemmChoice, choose, mode_by_flags, sums_apart
from symdnn.gpu.gemm.integers import IntegerProductKernel
from symdnn.gpu.gemm.long_sums import has_few_results, long_sums_ways
from symdnn.gpu.gemm.one_kernel import OneKernel
from symdnn.gpu.gemm.pieces import Piece, pieces
from symdnn.gpu.gemm.plan import (
    WORKSPACE_BYTES,
    GemmAlgorithm,
    GemmPlan,
    GemmSignature,
    Matrix,
    Pointers,
    alignment_of,
    workspace_for,
)
from symdnn.gpu.gemm.small import SmallProductsKernel
from symdnn.gpu.gemm.split import room_bytes
from symdnn.gpu.gemm.unfused import Unfused
from symdnn.graph.kernel import Call, Kernel, Row, Traits
from symdnn.graph.library_use import LibraryUse
from symdnn.graph.type import numpy_dtype
from symdnn.ops.linalg.dot import BatchedDot, Dot
from symdnn.ops.vendor.gpublas import GpuGemm, GpuGemmBase, GpuGemmBiasGrad

if TYPE_CHECKING:
    from symdnn.gpu.device.env import LaunchEnv

#: cuBLASLt reads a bias and an addend in vectors of this size.
_VECTOR_ALIGNMENT_BYTES = 16
#: The side of a block's part of a result; fewer of these than half of a large card's
#: multiprocessors leave it idle, unless the long sums of each are divided among several blocks.
_TILE_ELEMENTS, _FEW_TILES, _LONG_SUM_TERMS = 128, 64, 4096


@dataclass(frozen=True)
class MatmulKernel(Kernel):
    """GEMM by ``cublasLtMatmul``.

    float32 is computed in float32 unless the flag ``dnn.conv.allow_tf32`` allows TF32. 16-bit
    floats accumulate in float32.
    """

    name: str = "cublaslt.matmul"
    traits = Traits("cublaslt")
    pads_rows = True
    aligned_rows = True
    #: (mode, choice) of the last run; None before :meth:`settled`.
    ran: list[tuple[str, GemmChoice]] | None = field(default=None, compare=False, repr=False)
    #: The workspace for split operands; 0 before :meth:`settled`.
    split_bytes: int = 0
    #: The workspace that cuBLASLt may use.
    limit: int = WORKSPACE_BYTES

    def settled(self, call: Call) -> MatmulKernel:
        """The kernel for one call, which remembers its choice for reports."""
        split = _split_bytes(call)
        return replace(self, ran=[], split_bytes=split, limit=_limit(call, split))

    def library_use(self, call: Call) -> LibraryUse | None:
        """The row of ``f.dnn_report()``; None before the first run."""
        if not self.ran:
            return None
        wanted, choice = self.ran[-1]
        s, algorithm = choice.signature, choice.algorithm
        return LibraryUse(
            requested=wanted, used=str(algorithm).partition(", workspace")[0], api="cublaslt",
            engine=str(algorithm.number), workspace_bytes=algorithm.workspace_bytes,
            deterministic=True, precision=f"{s.dtype} to {s.result}, in {choice.arithmetic}",
            ms=choice.best_ms, why=f"{s}, {choice.why}",
        )  # fmt: skip

    def refuses(self, call: Call) -> str | None:
        """Dtypes other than floats and complex numbers."""
        dtype = call.inputs[0].dtype
        return None if dtype in CUDA_TYPE else f"cuBLASLt has no GEMM for {dtype}"

    def workspace_bytes(self, call: Call) -> int:
        """The workspace limit with room for alignment, or the workspace of unfused kernels."""
        own = self.limit + 256 + self.split_bytes
        return max(own, Unfused(call).workspace_bytes)

    def accepts(self, index: int, array: RawArray) -> bool:
        """Whether the array can be read without a copy."""
        if index < 2:
            return operand(as_matrix(array, index)) is not None
        return array.contiguous and array.ptr % _VECTOR_ALIGNMENT_BYTES == 0

    def writes(self, call: Call, index: int, array: RawArray) -> bool:
        """Rows that begin at multiples of 16 bytes, with anything between them."""
        if index or array.ndim not in (2, 3) or array.shape[-1] == 1:
            return False
        *outer, step = array.strides
        at = (array.ptr, *outer)
        return step == array.itemsize and all(n % _VECTOR_ALIGNMENT_BYTES == 0 for n in at)

    def bind(self, call: Call) -> Any:
        """A launch that caches one cuBLASLt plan for each layout of its operands."""
        ran = [] if self.ran is None else self.ran
        return BoundGemm(call, ran, self.split_bytes, self.limit)


class BoundGemm:
    """A GEMM at its shapes."""

    def __init__(
        self, call: Call, ran: list[tuple[str, GemmChoice]], split_bytes: int = 0,
        limit: int = WORKSPACE_BYTES,
    ) -> None:  # fmt: skip
        op, self.ran, self.split_bytes, self.limit = call.op, ran, split_bytes, limit
        self.op: GpuGemmBase = op if isinstance(op, GpuGemmBase) else GpuGemm()
        self.unfused = Unfused(call)
        self.epilogue = epilogue_of(op)
        self.factors = self.op.alpha, self.op.residual
        self.addend, self.has_bias = self.op.addend, self.op.bias
        self.allow_tf32 = bool(config.dnn.conv.allow_tf32)
        self.mode = mode_by_flags()
        self.one_kernel = OneKernel(self.op.activation, self.op.bias, self.mode)
        self.plans: dict[GemmSignature, tuple[GemmPlan, bool]] = {}

    def __call__(
        self, env: LaunchEnv, inputs: Sequence[RawArray], outputs: Sequence[RawArray]
    ) -> None:
        """Enqueue the GEMM and its epilogue."""
        two = self._two_kernels
        if self.factors != (1.0, 0.0) or not self.one_kernel(env, inputs, outputs, two):
            two(env, inputs, outputs)

    def _two_kernels(
        self, env: LaunchEnv, inputs: Sequence[RawArray], outputs: Sequence[RawArray]
    ) -> None:
        """Enqueue cuBLASLt's GEMM, and one more kernel where cuBLASLt lacks the epilogue."""
        x, y, out = as_matrix(inputs[0], 0), as_matrix(inputs[1], 1), outputs[0]
        if out.size == 0 or x.shape[2] == 0:
            self.unfused.without_gemm(env, inputs, outputs)
            return
        whole = self.addend is not None or isinstance(self.op, GpuGemmBiasGrad) or out.ndim != 2
        parts = [Piece(x, y, out)] if whole else pieces(x, y, as_matrix(out, 0))
        plans = [self._plan(env, self._signature(part)) for part in parts]
        fused = all(own for _, own in plans)
        if fused and self.split_bytes and isinstance(self.op, GpuGemmBiasGrad):
            both = plans[0][0], self._plan(env, replace(plans[0][0].signature, epilogue=""))[0]
            at = self._pointers(parts[0], inputs, outputs)
            fused = not sums_apart(
                both, env, at, self.factors, self.split_bytes,
                lambda: self.unfused.after_gemm(env, inputs, outputs),
            )  # fmt: skip
        for part, (made, own) in zip(parts, plans, strict=True):
            plan = (
                made if own == fused else self._plan(env, replace(made.signature, epilogue=""))[0]
            )
            at = self._pointers(part, inputs, outputs)
            factors = (self.factors[0], 1.0) if part.adds else self.factors
            choice = choose(plan, self.mode, env, at, factors, self.split_bytes)
            self.ran[:] = [(self.mode, choice)]
            choice.enqueue(plan, env, at, factors)
        if not fused:
            self.unfused.after_gemm(env, inputs, outputs)

    def _plan(self, env: LaunchEnv, s: GemmSignature) -> tuple[GemmPlan, bool]:
        """The plan, and whether it includes the epilogue."""
        if s not in self.plans:
            apart = divides_sums(s) or has_few_results(s)
            known = s.epilogue in EPILOGUE and (bool(long_sums_ways(s)) or not apart)
            plan = GemmPlan(env.cublaslt, s if known else replace(s, epilogue=""))
            if known and s.epilogue and not _has_algorithm(plan):
                known, plan = False, GemmPlan(env.cublaslt, replace(s, epilogue=""))
            self.plans[s] = plan, known
        return self.plans[s]

    def _pointers(self, part: Piece, inputs: Sequence[Any], outputs: Sequence[Any]) -> Pointers:
        bias = 0
        if isinstance(self.op, GpuGemmBiasGrad):
            bias = outputs[1].ptr
        elif self.has_bias:
            bias = inputs[-1].ptr + part.column * inputs[-1].itemsize
        c = part.out.ptr if part.adds else 0
        if self.addend is not None:
            c = inputs[self.addend].ptr
        return Pointers(part.y.ptr, part.x.ptr, part.out.ptr, c, bias)

    def _signature(self, part: Piece) -> GemmSignature:
        """A row-major ``x y`` is the column-major GEMM ``y' x'``."""
        x, y, out = part.x, part.y, part.out
        a, b = operand(y), operand(x)
        assert a is not None, "the plan copies operands that accepts() refuses"
        assert b is not None, "the plan copies operands that accepts() refuses"
        m, n = x.shape[1], y.shape[2]
        c = d = Matrix(n, m, n, False, m * n)
        if out.ndim > 1:
            *outer, row, _ = (s // out.itemsize for s in out.strides)
            d = replace(d, ld=max(row, n), batch_offset=outer[0] if outer else m * n)
        at = alignment_of(out.ptr)
        return GemmSignature(
            x.dtype, out.dtype, self._compute(x.dtype), a, b, d,
            None if self.addend is None else c, max(x.shape[0], y.shape[0]),
            self.epilogue if part.ends else "",
            alignment=(
                alignment_of(y.ptr), alignment_of(x.ptr), min(at, _VECTOR_ALIGNMENT_BYTES), at,
            ),
            workspace_limit=self.limit,
        )  # fmt: skip

    def _compute(self, dtype: str) -> str:
        if dtype in ("float64", "complex128"):
            return "float64"
        return "tf32" if dtype == "float32" and self.allow_tf32 else "float32"


def _limit(call: Call, split_bytes: int) -> int:
    """The workspace that cuBLASLt may use; kernels of 16 bits, and split operands, have it all."""
    x, y, out = (*call.inputs[:2], call.outputs[0])
    sizes = (*x.shape, *y.shape, *out.shape)
    if split_bytes or x.dtype in ("float16", "bfloat16") or None in sizes or not call.has_sizes:
        return WORKSPACE_BYTES
    rows, columns = (x.shape[-2] if x.ndim > 1 else 1), (y.shape[-1] if y.ndim > 1 else 1)
    batch = max(t.shape[0] if t.ndim == 3 else 1 for t in (x, y))
    return workspace_for(rows, columns, x.shape[-1], batch, numpy_dtype(x.dtype).itemsize)


def _split_bytes(call: Call) -> int:
    """The workspace for split operands where a measurement may choose to split them."""
    x, y, out = (*call.inputs[:2], call.outputs[0])
    full = all(t.dtype == "float32" for t in (x, y, out)) and not config.dnn.conv.allow_tf32
    if not full or mode_by_flags() != "time" or not call.has_sizes or out.ndim not in (2, 3):
        return 0
    stack = out.shape[0] if out.ndim == 3 else 1
    return room_bytes(out.shape[-1], out.shape[-2], x.shape[-1], stack)


def divides_sums(s: GemmSignature) -> bool:
    """Whether a bias's gradient, an epilogue of undivided sums, would take most blocks away.

    A step with seven 64x64 results of 50000 terms took 0.81 ms on an H200 with it, 0.68 without.
    """
    sides = (-(-n // _TILE_ELEMENTS) for n in (s.d.rows, s.d.columns))
    few = prod(sides) * s.batch < _FEW_TILES
    return s.epilogue.startswith("bgrad") and few and s.k >= _LONG_SUM_TERMS


def _has_algorithm(plan: GemmPlan) -> bool:
    found: list[GemmAlgorithm] = []
    try:
        found = plan.algorithms(1)
    except CublasError:
        pass
    return bool(found)


def epilogue_of(op: object) -> str:
    """The epilogue of an op, as a key of ``libcublaslt.EPILOGUE``, which does not have all."""
    if isinstance(op, GpuGemmBiasGrad):
        return "bgradb" if op.left else "bgrada"
    if not isinstance(op, GpuGemm):
        return ""
    return "_".join(w for w in (op.activation, "bias" if op.bias else "") if w)


def as_matrix(x: RawArray, index: int) -> RawArray:
    """A batch ``(b, rows, columns)``; a vector is a row on the left, a column on the right."""
    if x.ndim == 3:
        return x
    if x.ndim == 2:
        shape, strides = (1, *x.shape), (0, *x.strides)
    elif index == 0:
        shape, strides = (1, 1, *x.shape), (0, 0, *x.strides)
    else:
        shape, strides = (1, *x.shape, 1), (0, *x.strides, 0)
    return RawArray(x.ptr, shape, x.dtype, strides, x.owner)


def operand(x: RawArray) -> Matrix | None:
    """The transpose of each matrix of a batch as a column-major operand; None for other strides."""
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


_MATMUL = MatmulKernel()
KERNELS: tuple[Row, ...] = (
    ((Dot,), (SmallProductsKernel(), IntegerProductKernel(), _MATMUL)),
    ((GpuGemm, GpuGemmBiasGrad), (_MATMUL,)),
    ((BatchedDot,), (SmallProductsKernel(), IntegerProductKernel(), _MATMUL)),
)
