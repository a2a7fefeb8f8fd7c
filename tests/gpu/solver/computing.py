"""cuSOLVER and cuBLAS that compute on this machine's memory, by LAPACK at the same addresses.

With the emulator's device kernels whole launches run here, so a wrong pointer, order of elements,
leading dimension or workspace gives wrong results.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from symdnn.cpu.lapack.library import routine

_REAL = {"s": np.float32, "d": np.float64, "c": np.float32, "z": np.float64}
_DTYPES = {"s": "float32", "d": "float64", "c": "complex64", "z": "complex128"}
_UPLO, _TRANS, _DIAG, _SIDE = "LU", "NTC", "NU", "LR"


def array(at: int, count: int, dtype: Any) -> np.ndarray:
    """Elements at an address."""
    nbytes = count * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_uint8 * nbytes).from_address(at), dtype)


def matrix(at: int, rows: int, columns: int, ld: int, dtype: Any) -> np.ndarray:
    """A matrix stored by columns."""
    if not columns:
        return np.empty((rows, 0), dtype)
    flat = array(at, ld * (columns - 1) + rows, dtype)
    step = flat.itemsize
    return np.lib.stride_tricks.as_strided(flat, (rows, columns), (step, ld * step))


def call(name: str, *arguments: Any) -> None:
    """A routine of LAPACK or BLAS, with numbers, letters and addresses (:class:`Address`)."""
    kept = [
        a
        if isinstance(a, Address)
        else ctypes.c_char(a.encode())
        if isinstance(a, str)
        else ctypes.c_int(a)
        for a in arguments
    ]
    pointers = [
        ctypes.c_void_p(a.at) if isinstance(a, Address) else ctypes.c_void_p(ctypes.addressof(a))
        for a in kept
    ]
    ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(pointers))(routine(name))(*pointers)


class Address:
    def __init__(self, at: int) -> None:
        self.at = at


class Library:
    """Stands for a binding module; ``calls`` are the names of what was called."""

    def __init__(self, name: str) -> None:
        self.__name__ = name
        self.calls: list[str] = []

    def create(self) -> int:
        return 77

    def set_stream(self, handle: int, stream: int) -> None:
        assert handle == 77

    def create_params(self) -> int:
        return 1

    def create_gesvdj_info(self) -> int:
        return 2

    def __getattr__(self, name: str) -> Any:
        letter, short = name[0], name[1:].replace("heev", "syev").replace("ungqr", "orgqr")
        function = getattr(self, f"_{short}")

        def run(handle: int, *arguments: Any) -> None:
            assert handle == 77
            self.calls.append(name)
            function(letter, *arguments)

        return run

    # -- cuSOLVER ---------------------------------------------------------------------------------

    def _potrf(self, t: str, uplo: int, n: int, a: int, lda: int, work: int, lwork: int, info: int):
        call(f"{t}potrf", _UPLO[uplo], n, Address(a), lda, Address(info))

    def _potrf_batched(self, t, uplo, n, table, lda, info, count) -> None:
        for i, a in enumerate(array(table, count, np.int64)):
            self._potrf(t, uplo, n, int(a), lda, 0, 0, info + 4 * i)

    def _getrf(self, t, m, n, a, lda, work, pivots, info) -> None:
        call(f"{t}getrf", m, n, Address(a), lda, Address(pivots), Address(info))

    def _getrs(self, t, trans, n, columns, a, lda, pivots, b, ldb, info) -> None:
        call(f"{t}getrs", _TRANS[trans], n, columns, Address(a), lda, Address(pivots), Address(b),
             ldb, Address(info))  # fmt: skip

    def _syevd(self, t, job, uplo, n, a, lda, w, work, lwork, info) -> None:
        x, status = matrix(a, n, n, lda, _DTYPES[t]), array(info, 1, np.int32)
        try:
            values, vectors = np.linalg.eigh(x, _UPLO[uplo])
        except np.linalg.LinAlgError:
            status[0] = 3
            return
        status[0] = 0
        array(w, n, _REAL[t])[:] = values
        x[...] = vectors if job else np.nan
        array(work, lwork, _DTYPES[t])[:] = 7

    def xsyev_batched(
        self, handle, how, job, uplo, n, kind, a, lda, real_kind, w, compute, device, device_bytes,
        host, host_bytes, info, count,
    ) -> None:  # fmt: skip
        assert (handle, how, compute, kind % 4, real_kind) == (77, 1, kind, kind % 4, kind % 4)
        t = "sd__cz"[kind]
        self.calls.append("xsyev_batched")
        step = n * lda * np.dtype(_DTYPES[t]).itemsize
        real = n * np.dtype(_REAL[t]).itemsize
        for i in range(count):
            self._syevd(t, job, uplo, n, a + i * step, lda, w + i * real, device, 0, info + 4 * i)
        array(device, device_bytes, np.uint8)[:] = 7

    def _gesvdj(
        self, t, job, econ, m, n, a, lda, s, u, ldu, v, ldv, work, lwork, info, how
    ) -> None:
        assert how == 2
        status, k = array(info, 1, np.int32), min(m, n)
        status[0] = 0
        given = matrix(a, m, n, lda, _DTYPES[t])
        if not np.isfinite(given).all():  # an H200 gives NaN, and the status of a success
            array(s, k, _REAL[t])[:] = np.nan
            return
        left, values, right = np.linalg.svd(given, full_matrices=not econ)
        array(s, k, _REAL[t])[:] = values
        array(work, lwork, _DTYPES[t])[:] = 7
        if job:
            matrix(u, m, left.shape[1], ldu, _DTYPES[t])[...] = left
            matrix(v, n, right.shape[0], ldv, _DTYPES[t])[...] = right.conj().T

    def _gesvdj_batched(
        self, t, job, m, n, a, lda, s, u, ldu, v, ldv, work, lwork, info, how, count
    ) -> None:
        assert max(m, n) <= 32
        size, real = np.dtype(_DTYPES[t]).itemsize, np.dtype(_REAL[t]).itemsize
        for i in range(count):
            self._gesvdj(
                t, job, 0, m, n, a + i * lda * n * size, lda, s + i * min(m, n) * real,
                u + i * ldu * m * size, ldu, v + i * ldv * n * size, ldv, work, lwork,
                info + 4 * i, how,
            )  # fmt: skip

    def _geqrf(self, t, m, n, a, lda, tau, work, lwork, info) -> None:
        call(f"{t}geqrf", m, n, Address(a), lda, Address(tau), Address(work), lwork, Address(info))

    def _orgqr(self, t, m, n, k, a, lda, tau, work, lwork, info) -> None:
        name = "ungqr" if t in "cz" else "orgqr"
        call(f"{t}{name}", m, n, k, Address(a), lda, Address(tau), Address(work), lwork,
             Address(info))  # fmt: skip

    # -- cuBLAS -----------------------------------------------------------------------------------

    def _trsm(self, t, side, uplo, trans, diag, m, n, alpha, a, lda, b, ldb) -> None:
        call(f"{t}trsm", _SIDE[side], _UPLO[uplo], _TRANS[trans], _DIAG[diag], m, n,
             Address(alpha), Address(a), lda, Address(b), ldb)  # fmt: skip

    def _trsm_batched(self, t, *arguments) -> None:
        *how, alpha, left, lda, right, ldb, count = arguments
        for a, b in zip(array(left, count, np.int64), array(right, count, np.int64), strict=True):
            self._trsm(t, *how, alpha, int(a), lda, int(b), ldb)

    def _getrf_batched(self, t, n, table, lda, pivots, info, count) -> None:
        for i, a in enumerate(array(table, count, np.int64)):
            self._getrf(t, n, n, int(a), lda, 0, pivots + 4 * n * i, info + 4 * i)

    def _getrs_batched(
        self, t, trans, n, columns, left, lda, pivots, right, ldb, status, count
    ) -> None:
        info = np.zeros(1, np.int32)
        pairs = zip(array(left, count, np.int64), array(right, count, np.int64), strict=True)
        for i, (a, b) in enumerate(pairs):
            at = pivots + 4 * n * i
            self._getrs(t, trans, n, columns, int(a), lda, at, int(b), ldb, info.ctypes.data)
        array(status, 1, np.int32)[0] = 0

    def _getri_batched(self, t, n, left, lda, pivots, right, ldc, info, count) -> None:
        pairs = zip(array(left, count, np.int64), array(right, count, np.int64), strict=True)
        work = np.zeros(n * n, _DTYPES[t])
        for i, (a, c) in enumerate(pairs):
            out = matrix(int(c), n, n, ldc, _DTYPES[t])
            out[...] = matrix(int(a), n, n, lda, _DTYPES[t])
            call(f"{t}getri", n, Address(int(c)), ldc, Address(pivots + 4 * n * i),
                 Address(work.ctypes.data), n * n, Address(info + 4 * i))  # fmt: skip

    def _gemm_strided_batched(
        self, t, transa, transb, m, n, k, alpha, a, lda, a_step, b, ldb, b_step, beta, c, ldc,
        c_step, count,
    ) -> None:  # fmt: skip
        kind = _DTYPES[t]
        size = np.dtype(kind).itemsize
        for i in range(count):
            left = matrix(a + i * a_step * size, m, k, lda, kind)
            right = matrix(b + i * b_step * size, k, n, ldb, kind)
            out = matrix(c + i * c_step * size, m, n, ldc, kind)
            kept = array(beta, 1, kind)[0] * out if array(beta, 1, kind)[0] else 0
            out[...] = array(alpha, 1, kind)[0] * (left @ right) + kept
