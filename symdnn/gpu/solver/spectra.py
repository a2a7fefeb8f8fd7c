"""Eigenvalues, singular values and QR factors by cuSOLVER.

Routines of eigenvalues and singular values iterate, and read on the host how far they are, so no
CUDA graph records them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from symdnn.gpu.codegen.device_source import CTYPES, specialised
from symdnn.gpu.device.array import RawArray
from symdnn.gpu.device.error_codes import NOT_CONVERGED
from symdnn.gpu.solver import library
from symdnn.gpu.solver.factors import code_of, turn, with_host
from symdnn.gpu.solver.jacobi import JacobiEighKernel, JacobiSVDKernel
from symdnn.gpu.solver.library import FILL, JOB
from symdnn.gpu.solver.work import (
    Layout,
    Matrices,
    SolverKernel,
    Work,
    enqueue,
    question,
    small,
)
from symdnn.graph.kernel import Call, Row
from symdnn.ops.matrix.base import real_dtype
from symdnn.ops.matrix.eigen import Eigh, Eigvalsh
from symdnn.ops.matrix.qr import QR
from symdnn.ops.matrix.svd import SVD

#: The largest matrices of the batched Jacobi routine, which is one kernel.
_MOST_ROWS_OF_JACOBI = 32
_FULL, _ECONOMY = 0, 1
#: Both triangles, where 0 is the upper and 1 the lower one.
_ALL = 2
_MOST_BLOCKS = 1 << 16
#: Static shared memory of a block, of which a matrix and its reflections take a part.
_SHARED_BYTES = 47 << 10


@cache
def jacobi() -> int:
    """Parameters of Jacobi's method: ``gesvdjInfo_t`` with its defaults."""
    return library.solver().create_gesvdj_info()


@cache
def generic() -> int:
    """Parameters of generic routines: ``cusolverDnParams_t`` with its defaults."""
    return library.solver().create_params()


class EighKernel(SolverKernel[Any]):
    """``syevd`` and ``heevd``; of a stack ``cusolverDnXsyevBatched``."""

    recordable = False

    def plan(self, call: Call[Any], layout: Layout) -> Callable[..., None]:
        """Of a transposed copy, which is the matrix as the library sees it."""
        op, m = call.op, Matrices(call.inputs[0].dtype, call.inputs[0].shape)
        n, vectors, code = m.rows, isinstance(op, Eigh), code_of(op, NOT_CONVERGED)
        # A transposed copy: its lower triangle is the library's, too.
        fill = FILL["upper" if op.UPLO == "L" else "lower"]
        copy, info = layout.part(m.nbytes), layout.part(4 * m.count)
        how = (JOB[vectors], fill, n)
        calls = (_stack_of_eigh if m.count > 1 else _one_eigh)(how, m, layout)

        def run(work: Work, inputs: Sequence[RawArray], outputs: Sequence[RawArray]) -> None:
            at, status = work.at(copy), work.at(info)
            turn(work, inputs[0].ptr, at, m.count, n, n)
            calls(work, at, outputs[0].ptr, status)
            if vectors:
                turn(work, at, outputs[1].ptr, m.count, n, n)
            find_not_finite(work, inputs[0].ptr, m, status, int(op.UPLO == "L"))
            for y in outputs:
                work.settle(y, m.count, status, code)

        return run


def _one_eigh(how: tuple[int, ...], m: Matrices, layout: Layout) -> Callable[..., None]:
    """A function of the addresses of the matrix, the values and the status."""
    n = m.rows
    length = question("syevd", m.dtype, 4 * n * n + 64 * n, *how, 0, n, 0)
    scratch = layout.part(length * m.itemsize)

    def run(work: Work, at: int, w: int, status: int) -> None:
        work.solver("syevd", *how, at, n, w, work.at(scratch), length, status)

    return run


def _stack_of_eigh(how: tuple[int, ...], m: Matrices, layout: Layout) -> Callable[..., None]:
    """The same for a stack."""
    n, kind = m.rows, library.DATA_TYPE[m.dtype]
    kinds = kind, library.DATA_TYPE[real_dtype(m.dtype)]

    def given(at: int, w: int) -> tuple[int, ...]:
        return *how, kinds[0], at, n, kinds[1], w, kind

    parameters = 0 if library.without_device() or library.problem() else generic()
    estimate = 8 * m.nbytes, 0
    device, host = question("xsyev_batched", m.dtype, estimate, parameters, *given(0, 0), m.count)
    scratch, own = layout.part(device), np.empty(max(host, 1), np.uint8)

    def run(work: Work, at: int, w: int, status: int) -> None:
        work.solver(
            "xsyev_batched", generic(), *given(at, w), work.at(scratch), device, own.ctypes.data,
            host, status, m.count,
        )  # fmt: skip

    return run


def find_not_finite(work: Work, at: int, m: Matrices, info: int, part: int = _ALL) -> None:
    """A status for each matrix with an infinity or a NaN: the library reports these for some
    routines and sizes only."""
    work.small(
        "not_finite", x=at, info=info, count=m.count, rows=m.rows, columns=m.columns,
        x_step=m.size, x_ld=m.columns, value=part,
    )  # fmt: skip


class SVDKernel(SolverKernel[SVD]):
    """``gesvdj``, which takes wide and tall matrices; small ones by
    ``gesvdjBatched``."""

    recordable = False

    def plan(self, call: Call[SVD], layout: Layout) -> Callable[..., None]:
        """Of the transpose, whose left vectors are the right ones here."""
        op, m = call.op, Matrices(call.inputs[0].dtype, call.inputs[0].shape)
        r, c, k = m.columns, m.rows, min(m.rows, m.columns)
        in_batch = m.count > 1 and max(r, c) <= _MOST_ROWS_OF_JACOBI
        econ = _FULL if op.full_matrices or in_batch else _ECONOMY
        left, right = (r, c) if econ == _FULL else (k, k)
        real = m.itemsize // (2 if m.dtype.startswith("complex") else 1)
        copy, info = layout.part(m.nbytes), layout.part(4 * m.count)
        values = layout.part(m.count * k * real)
        u = layout.part(m.count * r * left * m.itemsize)
        v = layout.part(m.count * c * right * m.itemsize)
        job = JOB[op.compute_uv]
        name = "gesvdj_batched" if in_batch else "gesvdj"
        begin = (job,) if in_batch else (job, econ)
        asked = 0 if library.without_device() or library.problem() else jacobi()
        end = (asked, *((m.count,) if in_batch else ()))
        estimate = (m.count if in_batch else 1) * 8 * max(r, c) ** 2
        length = question(name, m.dtype, estimate, *begin, r, c, 0, r, 0, 0, r, 0, c, *end)
        scratch, code = layout.part(length * m.itemsize), code_of(op, NOT_CONVERGED)

        def run(work: Work, inputs: Sequence[RawArray], outputs: Sequence[RawArray]) -> None:
            at, status, s = work.at(copy), work.at(info), work.at(values)
            work.copy(inputs[0], at)
            for i in range(1 if in_batch else m.count):
                work.solver(
                    name, *begin, r, c, at + i * m.step, r, s + i * k * real,
                    work.at(u) + i * r * left * m.itemsize, r,
                    work.at(v) + i * c * right * m.itemsize, c,
                    work.at(scratch), length, status + 4 * i, jacobi(),
                    *((m.count,) if in_batch else ()),
                )  # fmt: skip
            found = outputs[1 if op.compute_uv else 0]
            small(
                work.env, found.dtype, "take", x=s, y=found.ptr, count=m.count, rows=1, columns=k,
                x_step=k, y_step=k,
            )  # fmt: skip
            if op.compute_uv:
                _give_vectors(work, m, (work.at(u), left), (work.at(v), right), outputs)
            find_not_finite(work, inputs[0].ptr, m, status)
            for y in outputs:
                work.settle(y, m.count, status, code)

        return run


def _give_vectors(
    work: Work, m: Matrices, u: tuple[int, int], v: tuple[int, int],
    outputs: Sequence[RawArray],
) -> None:  # fmt: skip
    """``vh`` is the memory of the library's ``u``, and ``u`` the conjugate of its ``v``."""
    (at_u, left), (at_v, right) = u, v
    r, c = m.columns, m.rows
    rows = outputs[2].shape[-2]
    work.small(
        "take", x=at_u, y=outputs[2].ptr, count=m.count, rows=rows, columns=r, x_step=left * r,
        y_step=rows * r, x_ld=r, y_ld=r,
    )  # fmt: skip
    columns = outputs[0].shape[-1]
    work.small(
        "turn", x=at_v, y=outputs[0].ptr, count=m.count, rows=c, columns=columns,
        x_step=right * c, y_step=c * columns, x_ld=c, y_ld=columns, value=1,
    )  # fmt: skip


class QRKernel(SolverKernel[QR]):
    """``geqrf``, and ``orgqr`` or ``ungqr``, of a transposed copy; a stack of matrices that fit
    into shared memory by one kernel of ours."""

    def plan(self, call: Call[QR], layout: Layout) -> Callable[..., None]:
        """The reflectors are in the workspace."""
        op, m = call.op, Matrices(call.inputs[0].dtype, call.inputs[0].shape)
        r, c, k = m.rows, m.columns, min(m.rows, m.columns)
        made = 0 if op.mode == "r" else r if op.mode == "complete" else k
        wide = max(c, made) * r
        if m.count > 1 and (wide + k) * m.itemsize <= _SHARED_BYTES:
            return _shared_qr(m, made, r if op.mode == "complete" else k)
        copy, info = layout.part(m.count * wide * m.itemsize), layout.part(4)
        tau = layout.part(k * m.itemsize)
        length = question("geqrf", m.dtype, 64 * max(r, c), r, c, 0, r)
        if made:
            asked = question("orgqr", m.dtype, 64 * max(r, c), r, made, k, 0, r, 0)
            length = max(length, asked)
        scratch = layout.part(length * m.itemsize)

        def run(work: Work, inputs: Sequence[RawArray], outputs: Sequence[RawArray]) -> None:
            at, triangle = work.at(copy), outputs[-1]
            work.small(
                "turn", x=inputs[0].ptr, y=at, count=m.count, rows=c, columns=r, x_step=m.size,
                y_step=wide, x_ld=c, y_ld=r,
            )  # fmt: skip
            own = work.at(scratch), length, work.at(info)
            for i in range(m.count):
                place = at + i * wide * m.itemsize
                work.solver("geqrf", r, c, place, r, work.at(tau), *own)
                _give_triangle(work, place, triangle, i, m)
                if made:
                    work.solver("orgqr", r, made, k, place, r, work.at(tau), *own)
            if made:
                work.small(
                    "turn", x=at, y=outputs[0].ptr, count=m.count, rows=r, columns=made,
                    x_step=wide, y_step=r * made, x_ld=r, y_ld=made,
                )  # fmt: skip

        return run


def _shared_qr(m: Matrices, made: int, kept: int) -> Callable[..., None]:
    """The launch of ``qr.cu`` for Q of ``made`` columns and R of ``kept`` rows.

    A warp has some eight columns. Sizes of shared memory are powers of 2, so that few texts are
    compiled.
    """
    wide = max(m.columns, made)
    tile = 1 << (wide * m.rows - 1).bit_length()
    if tile * m.itemsize > _SHARED_BYTES // 2:
        tile = wide * m.rows
    source = specialised(
        "scalar.cuh", "lanes.cuh", "number.cuh", "qr.cu", T=CTYPES[real_dtype(m.dtype)],
        PARTS=2 if m.dtype.startswith("complex") else 1, TILE=tile,
        REFLECTIONS=min(m.rows, m.columns),
    )  # fmt: skip
    threads = 32 * max(1, min(8, wide // 8))

    def run(work: Work, inputs: Sequence[RawArray], outputs: Sequence[RawArray]) -> None:
        places = inputs[0].ptr, outputs[0].ptr if made else 0, outputs[-1].ptr
        sizes = m.count, m.rows, m.columns, made, kept
        enqueue(work.env, source, "qr", min(m.count, _MOST_BLOCKS), threads, (*places, *sizes))

    return run


def _give_triangle(work: Work, at: int, out: RawArray, i: int, m: Matrices) -> None:
    """The upper triangle of a matrix by columns, as the ``i``-th one of ``out``."""
    rows, columns = out.shape[-2:]
    y = out.ptr + i * rows * columns * m.itemsize
    work.small("turn", x=at, y=y, count=1, rows=rows, columns=columns, x_ld=m.rows, y_ld=columns)
    work.small("triangle", y=y, count=1, rows=rows, columns=columns, y_ld=columns, value=0)


KERNELS: tuple[Row, ...] = (
    with_host(Eigh, JacobiEighKernel(), EighKernel("syevd")),
    with_host(Eigvalsh, JacobiEighKernel(), EighKernel("syevd")),
    with_host(SVD, JacobiSVDKernel(), SVDKernel("gesvdj")),
    with_host(QR, QRKernel("geqrf")),
)
