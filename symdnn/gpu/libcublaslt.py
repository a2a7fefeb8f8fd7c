"""The few functions of cuBLASLt that matrix products need, by ctypes.

Names and numbers are those of ``cublasLt.h`` and ``library_types.h`` (CUDA 12 and 13).
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_float, c_int, c_int64, c_size_t, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cache
from typing import Any

from symdnn.detect import CUBLASLT, cuda_library_candidates, first_found
from symdnn.errors import SymdnnError

__all__ = ["CublasError", "MatmulPlan", "create", "library"]

CUDA_TYPE = {
    "float32": 0, "float64": 1, "float16": 2, "complex64": 4, "complex128": 5, "bfloat16": 14,
}  # fmt: skip
COMPUTE_32F, COMPUTE_64F, COMPUTE_32F_FAST_TF32 = 68, 70, 77
_TRANSA, _TRANSB = 3, 4
_BATCH_COUNT, _BATCH_OFFSET = 5, 6
_MAX_WORKSPACE = 1
_STATUS = {
    1: "NOT_INITIALIZED", 3: "ALLOC_FAILED", 7: "INVALID_VALUE", 8: "ARCH_MISMATCH",
    11: "MAPPING_ERROR", 13: "EXECUTION_FAILED", 14: "INTERNAL_ERROR", 15: "NOT_SUPPORTED",
}  # fmt: skip


class CublasError(SymdnnError, RuntimeError):
    """A function of cuBLASLt failed; the message names it and its status."""


class Algorithm(ctypes.Structure):
    """``cublasLtMatmulAlgo_t``: opaque."""

    _fields_ = [("data", c_uint64 * 8)]


class Heuristic(ctypes.Structure):
    """``cublasLtMatmulHeuristicResult_t``."""

    _fields_ = [
        ("algo", Algorithm),
        ("workspace_bytes", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    ]


@cache
def library() -> ctypes.CDLL:
    """The library; raises :class:`CublasError` naming every place that was tried."""
    tried = cuda_library_candidates(CUBLASLT)
    found = first_found(tried)
    if found is None:
        places = "\n".join(f"  {c.path} ({c.source}): {c.state}" for c in tried)
        raise CublasError(f"cuBLASLt was not found. Tried:\n{places}")
    return ctypes.CDLL(found.path)


def call(name: str, *args: Any) -> None:
    """Call a function that returns a status; raise when it is not success."""
    status = getattr(library(), name)(*args)
    if status != 0:
        raise CublasError(f"{name}: CUBLAS_STATUS_{_STATUS.get(status, status)}")


def create() -> int:
    """A ``cublasLtHandle_t`` for the current context."""
    handle = c_void_p()
    call("cublasLtCreate", byref(handle))
    return int(handle.value or 0)


@dataclass(frozen=True)
class Matrix:
    """A column-major matrix: ``rows`` by ``columns`` with leading dimension ``ld``, in a stack."""

    rows: int
    columns: int
    ld: int
    transposed: bool = False
    batch_offset: int = 0


class MatmulPlan:
    """One product ``D = op(A) op(B)``, its descriptors made and its algorithm chosen."""

    def __init__(
        self,
        handle: int,
        dtype: str,
        a: Matrix,
        b: Matrix,
        d: Matrix,
        batch: int,
        workspace_bytes: int,
        allow_tf32: bool,
    ) -> None:
        self.handle = c_void_p(handle)
        wide = dtype in ("float64", "complex128")
        compute = COMPUTE_64F if wide else COMPUTE_32F
        if dtype == "float32" and allow_tf32:
            compute = COMPUTE_32F_FAST_TF32
        self._scalar = _scalar_type(dtype)
        self.description = c_void_p()
        scale = CUDA_TYPE[dtype] if dtype not in ("float16", "bfloat16") else CUDA_TYPE["float32"]
        call("cublasLtMatmulDescCreate", byref(self.description), c_int(compute), c_int(scale))
        for attribute, matrix in ((_TRANSA, a), (_TRANSB, b)):
            self._set("MatmulDesc", self.description, attribute, c_int(int(matrix.transposed)))
        self.layouts = [self._layout(dtype, m, batch) for m in (a, b, d)]
        self.algorithm, self.workspace_bytes = self._choose(workspace_bytes)

    def _layout(self, dtype: str, m: Matrix, batch: int) -> c_void_p:
        layout = c_void_p()
        kind = c_int(CUDA_TYPE[dtype])
        call(
            "cublasLtMatrixLayoutCreate", byref(layout), kind,
            c_uint64(m.rows), c_uint64(m.columns), c_int64(m.ld),
        )  # fmt: skip
        if batch != 1:
            self._set("MatrixLayout", layout, _BATCH_COUNT, c_int(batch))
            self._set("MatrixLayout", layout, _BATCH_OFFSET, c_int64(m.batch_offset))
        return layout

    @staticmethod
    def _set(kind: str, what: c_void_p, attribute: int, value: Any) -> None:
        size = c_size_t(ctypes.sizeof(value))
        call(f"cublasLt{kind}SetAttribute", what, c_int(attribute), byref(value), size)

    def _choose(self, workspace_bytes: int) -> tuple[Algorithm, int]:
        preference = c_void_p()
        call("cublasLtMatmulPreferenceCreate", byref(preference))
        limit = c_size_t(workspace_bytes)
        self._set("MatmulPreference", preference, _MAX_WORKSPACE, limit)
        a, b, d = self.layouts
        results, count = (Heuristic * 1)(), c_int()
        try:
            call(
                "cublasLtMatmulAlgoGetHeuristic", self.handle, self.description, a, b, d, d,
                preference, c_int(1), results, byref(count),
            )  # fmt: skip
        finally:
            call("cublasLtMatmulPreferenceDestroy", preference)
        if count.value == 0:
            raise CublasError("cublasLtMatmulAlgoGetHeuristic: no algorithm takes this product")
        return results[0].algo, int(results[0].workspace_bytes)

    def run(
        self, a: int, b: int, d: int, workspace: int, workspace_bytes: int, stream: int
    ) -> None:
        """Enqueue it on pointers."""
        one, zero = self._scalar(1), self._scalar(0)
        la, lb, ld = self.layouts
        call(
            "cublasLtMatmul", self.handle, self.description, byref(one),
            c_void_p(a), la, c_void_p(b), lb, byref(zero), c_void_p(d), ld, c_void_p(d), ld,
            byref(self.algorithm), c_void_p(workspace), c_size_t(workspace_bytes),
            c_void_p(stream),
        )  # fmt: skip


def _scalar_type(dtype: str) -> Any:
    if dtype == "complex64":
        return lambda v: (c_float * 2)(v, 0)
    if dtype == "complex128":
        return lambda v: (ctypes.c_double * 2)(v, 0)
    return ctypes.c_double if dtype == "float64" else c_float
