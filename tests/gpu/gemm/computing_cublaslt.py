"""A cuBLASLt that multiplies matrices in this machine's memory, and an environment around it."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from symdnn.gpu.device.array import RawArray
from symdnn.graph.type import numpy_dtype
from tests.gpu.emulator import HostEnv, aligned
from tests.gpu.fake_cublaslt import FakeCublasLt

_DTYPES = {0: "float32", 2: "float16", 14: "bfloat16"}


class ComputingCublasLt(FakeCublasLt):
    """Products of float32 and 16 bits are added in float64 and rounded once."""

    def _matmul(self, handle, description, alpha, a, la, b, lb, beta, c, lc, d, ld, *rest) -> None:
        super()._matmul(handle, description, alpha, a, la, b, lb, beta, c, lc, d, ld, *rest)
        run = self.runs[-1]
        left, right, add, result = (
            self._matrices(p.value, self.things[m.value])
            for p, m in ((a, la), (b, lb), (c, lc), (d, ld))
        )
        left, right = (
            np.swapaxes(v, 1, 2) if run.get(word) else v
            for v, word in ((left, "transa"), (right, "transb"))
        )
        factor, old = run["factors"]
        with np.errstate(all="ignore"):
            found = factor * (left.astype("f8") @ right.astype("f8"))
            if old:
                found += old * add.astype("f8")
            if "bias" in run["epilogue"]:
                rows = result.shape[1]
                found += _at(run["bias_pointer"], (1, rows, 1), (0, 4, 0), "float32")
            if "relu" in run["epilogue"]:
                found = np.maximum(found, 0)
            result[...] = found

    @staticmethod
    def _matrices(at: int, layout: dict[str, Any]) -> Any:
        """A stack of column-major matrices."""
        kind, rows, columns, step = layout["made"]
        dtype = _DTYPES[kind]
        size = numpy_dtype(dtype).itemsize
        outer = layout.get("batch_offset", 0) * size
        shape = (layout.get("batch_count", 1), rows, columns)
        return _at(at, shape, (outer, size, step * size), dtype)


def _at(at: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str) -> Any:
    kind = numpy_dtype(dtype)
    last = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + kind.itemsize
    memory = np.frombuffer((ctypes.c_char * last).from_address(at), np.uint8)
    return np.lib.stride_tricks.as_strided(memory.view(kind), shape, strides)


class GemmHostEnv(HostEnv):
    """The emulator's environment, with cuBLASLt's handle and memory for results."""

    cublaslt = 7

    def empty(self, shape: tuple[int, ...], dtype: str) -> RawArray:
        memory = aligned(int(np.prod(shape)) * numpy_dtype(dtype).itemsize)
        return RawArray(memory.ctypes.data, shape, dtype, owner=memory)

    def zero(self, ptr: int, nbytes: int) -> None:
        ctypes.memset(ptr, 0, nbytes)

    def download(self, array: RawArray) -> Any:
        return _at(array.ptr, array.shape, array.strides, array.dtype).copy()
