"""Eigenvalues, singular values and QR factors by cuSOLVER.

These routines iterate, and read on the host how far they are, so no CUDA graph records them; QR's
do not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from symdnn.gpu.device.array import RawArray
from symdnn.gpu.device.error_codes import NOT_CONVERGED
from symdnn.gpu.solver import library
from symdnn.gpu.solver.factors import code_of, turn, with_host
from symdnn.gpu.solver.library import FILL, JOB
from symdnn.gpu.solver.work import Layout, Matrices, SolverKernel, Work, question, small
from symdnn.graph.kernel import Call, Row
from symdnn.ops.matrix.eigen import Eigh, Eigvalsh
from symdnn.ops.matrix.qr import QR
from symdnn.ops.matrix.svd import SVD

__all__ = ["KERNELS"]

#: The largest matrices of the batched Jacobi routines, which are one kernel, for one matrix too.
_MOST_ROWS_OF_JACOBI = 32
_FULL, _ECONOMY = 0, 1
#: Both triangles, where 0 is the upper and 1 the lower one.
_ALL = 2


@cache
def jacobi(kind: str) -> int:
    """Parameters of Jacobi's method: ``syevjInfo_t`` or ``gesvdjInfo_t`` with their defaults."""
    made: int = getattr(library.solver(), f"create_{kind}_info")()
    return made


class EighKernel(SolverKernel[Any]):
    """``syevd`` and ``heevd``; small matrices by ``syevjBatched``, which is one kernel."""

    recordable = False

    def plan(self, call: Call[Any], layout: Layout) -> Callable[..., None]:
        """Of a transposed copy, which is the matrix as the library sees it."""
        op, m = call.op, Matrices(call.inputs[0].dtype, call.inputs[0].shape)
        n, real = m.rows, m.itemsize // (2 if m.dtype.startswith("complex") else 1)
        vectors, code = isinstance(op, Eigh), code_of(op, NOT_CONVERGED)
        # A transposed copy: its lower triangle is the library's, too.
        fill = FILL["upper" if op.UPLO == "L" else "lower"]
        how = (JOB[vectors], fill, n, 0, n, 0)
        in_batch = n <= _MOST_ROWS_OF_JACOBI
        copy, info = layout.part(m.nbytes), layout.part(4 * m.count)
        if in_batch:
            more = (_parameters("syevj"), m.count)
            length = question("syevj_batched", m.dtype, 8 * n * n * m.count, *how, *more)
        else:
            length = question("syevd", m.dtype, 4 * n * n + 64 * n, *how)
        scratch = layout.part(length * m.itemsize)

        def run(work: Work, inputs: Sequence[RawArray], outputs: Sequence[RawArray]) -> None:
            at, w, status = work.at(copy), outputs[0].ptr, work.at(info)
            turn(work, inputs[0].ptr, at, m.count, n, n)
            if in_batch:
                work.solver(
                    "syevj_batched", JOB[vectors], fill, n, at, n, w, work.at(scratch), length,
                    status, jacobi("syevj"), m.count,
                )  # fmt: skip
            for i in range(0 if in_batch else m.count):
                work.solver(
                    "syevd", JOB[vectors], fill, n, at + i * m.step, n, w + i * n * real,
                    work.at(scratch), length, status + 4 * i,
                )  # fmt: skip
            if vectors:
                turn(work, at, outputs[1].ptr, m.count, n, n)
            find_not_finite(work, inputs[0].ptr, m, status, int(op.UPLO == "L"))
            for y in outputs:
                work.settle(y, m.count, status, code)

        return run


def find_not_finite(work: Work, at: int, m: Matrices, info: int, part: int = _ALL) -> None:
    """A status for each matrix with an infinity or a NaN: the library reports these for some
    routines and sizes only."""
    work.small(
        "not_finite", x=at, info=info, count=m.count, rows=m.rows, columns=m.columns,
        x_step=m.size, x_ld=m.columns, value=part,
    )  # fmt: skip


def _parameters(kind: str) -> int:
    """:func:`jacobi` for a question, which is not asked without a device."""
    return 0 if library.without_device() or library.problem() else jacobi(kind)


class SVDKernel(SolverKernel[SVD]):
    """``gesvdj``, which takes wide and tall matrices; small ones by
    ``gesvdjBatched``."""

    recordable = False

    def plan(self, call: Call[SVD], layout: Layout) -> Callable[..., None]:
        """Of the transpose, whose left vectors are the right ones here."""
        op, m = call.op, Matrices(call.inputs[0].dtype, call.inputs[0].shape)
        r, c, k = m.columns, m.rows, min(m.rows, m.columns)
        in_batch = max(r, c) <= _MOST_ROWS_OF_JACOBI
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
        end = (_parameters("gesvdj"), *((m.count,) if in_batch else ()))
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
                    work.at(scratch), length, status + 4 * i, jacobi("gesvdj"),
                    *((m.count,) if in_batch else ()),
                )  # fmt: skip
            found = outputs[1 if op.compute_uv else 0]
            small(
                work.env, found.dtype, "take", x=s, y=found.ptr, count=m.count, rows=1, columns=k,
                x_step=k, y_step=k,
            )  # fmt: skip
            if op.compute_uv:
                _give_vectors(work, op, m, (work.at(u), left), (work.at(v), right), outputs)
            find_not_finite(work, inputs[0].ptr, m, status)
            for y in outputs:
                work.settle(y, m.count, status, code)

        return run


def _give_vectors(
    work: Work, op: SVD, m: Matrices, u: tuple[int, int], v: tuple[int, int],
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
    """``geqrf``, and ``orgqr`` or ``ungqr``, of a transposed copy."""

    def plan(self, call: Call[QR], layout: Layout) -> Callable[..., None]:
        """The reflectors are in the workspace."""
        op, m = call.op, Matrices(call.inputs[0].dtype, call.inputs[0].shape)
        r, c, k = m.rows, m.columns, min(m.rows, m.columns)
        made = 0 if op.mode == "r" else r if op.mode == "complete" else k
        wide = max(c, made) * r
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


def _give_triangle(work: Work, at: int, out: RawArray, i: int, m: Matrices) -> None:
    """The upper triangle of a matrix by columns, as the ``i``-th one of ``out``."""
    rows, columns = out.shape[-2:]
    y = out.ptr + i * rows * columns * m.itemsize
    work.small("turn", x=at, y=y, count=1, rows=rows, columns=columns, x_ld=m.rows, y_ld=columns)
    work.small("triangle", y=y, count=1, rows=rows, columns=columns, y_ld=columns, value=0)


KERNELS: tuple[Row, ...] = (
    with_host(Eigh, EighKernel("syevd")),
    with_host(Eigvalsh, EighKernel("syevd")),
    with_host(SVD, SVDKernel("gesvdj")),
    with_host(QR, QRKernel("geqrf")),
)
