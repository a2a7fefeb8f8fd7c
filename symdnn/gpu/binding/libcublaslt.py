"""The few functions of cuBLASLt that a GEMM needs, by ctypes.

Names and numbers are those of ``cublasLt.h`` and ``library_types.h`` (CUDA 12 and 13).
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_float, c_int, c_size_t, c_uint64, c_void_p
from functools import cache
from typing import Any

from symdnn.detect import CUBLASLT, cuda_library_candidates, first_found
from symdnn.errors import SymdnnError
from symdnn.gpu.binding import cuda_version

#: ``cudaDataType``
CUDA_TYPE = {
    "float32": 0, "float64": 1, "float16": 2, "complex64": 4, "complex128": 5, "bfloat16": 14,
}  # fmt: skip
#: ``cudaDataType`` of quantised operands, and of their int32 sums.
CODE_TYPE = {"int8": 3, "int32": 10, "float8_e4m3fn": 28, "float8_e5m2": 29}
#: ``cublasComputeType_t``
COMPUTE = {"float32": 68, "float64": 70, "int32": 72, "tf32": 77}
#: ``cublasLtMatmulDescAttributes_t``
MATMUL = {
    "transa": 3,
    "transb": 4,
    "epilogue": 7,
    "bias_pointer": 8,
    "a_scale_pointer": 17,
    "b_scale_pointer": 18,
}
#: ``cublasLtMatrixLayoutAttribute_t``
LAYOUT = {"batch_count": 5, "batch_offset": 6}
#: ``cublasLtMatmulPreferenceAttributes_t``
PREFERENCE = {
    "workspace_bytes": 1, "reduction_schemes": 3, "alignment_a": 5, "alignment_b": 6,
    "alignment_c": 7, "alignment_d": 8,
}  # fmt: skip
#: ``cublasLtMatmulAlgoConfigAttributes_t``
ALGORITHM = {"id": 0, "tile": 1, "split_k": 2, "reduction": 3, "stages": 6}
#: ``cublasLtEpilogue_t``, those that are worth it. The gradients DRELU_BGRAD and DGELU_BGRAD took
#: 6 us more than the GEMM alone (128 x 2048 x 2048, H200, cuBLASLt of CUDA 13.0). An elementwise
#: kernel and a sum take less. The mask of RELU_AUX also gives relu the slope 1 at 0.
EPILOGUE = {
    "": 1,
    "relu": 2,
    "bias": 4,
    "relu_bias": 6,
    "gelu": 32,
    "gelu_bias": 36,
    "bgrada": 256,
    "bgradb": 512,
}
#: ``CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE``: partial sums of a split-K GEMM are added in the
#: accumulator's type, not rounded to the result's before. No scheme adds in an order that varies.
REDUCE_IN_COMPUTE_TYPE = 2
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
    tried = cuda_library_candidates(CUBLASLT, majors=cuda_version.served())
    found = first_found(tried)
    if found is None:
        places = "\n".join(f"  {c.path} ({c.source}): {c.state}" for c in tried)
        raise CublasError(f"cuBLASLt was not found. Tried:\n{places}")
    return ctypes.CDLL(found.path)


def version() -> int:
    """The library's version, such as 130002 (``cublasLtGetVersion``)."""
    function = library().cublasLtGetVersion
    function.restype = c_size_t
    return int(function())


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


def create_descriptor(kind: str, *args: Any) -> c_void_p:
    """A new ``cublasLt<kind>_t``. The caller destroys it by ``cublasLt<kind>Destroy``."""
    descriptor = c_void_p()
    call(f"cublasLt{kind}Create", byref(descriptor), *args)
    return descriptor


def set_attribute(kind: str, descriptor: c_void_p, attribute: int, value: Any) -> None:
    """``cublasLt<kind>SetAttribute`` with a ctypes value."""
    size = c_size_t(ctypes.sizeof(value))
    call(f"cublasLt{kind}SetAttribute", descriptor, c_int(attribute), byref(value), size)


def get_attribute(algorithm: Algorithm, attribute: int) -> int:
    """A 32-bit attribute of an algorithm (``cublasLtMatmulAlgoConfigGetAttribute``)."""
    value, written = c_int(), c_size_t()
    call(
        "cublasLtMatmulAlgoConfigGetAttribute", byref(algorithm), c_int(attribute), byref(value),
        c_size_t(4), byref(written),
    )  # fmt: skip
    return value.value
