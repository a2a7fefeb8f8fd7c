"""Cholesky and LU factors, solutions and inverses by cuSOLVER and cuBLAS.

The libraries' matrices are stored by columns, so they see each of ours transposed. Routines are
called for that transpose, without copies for the order. Stacks of small matrices go to batched
routines, stacks of large ones matrix by matrix.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any

import numpy as np

from symdnn.gpu.codegen.device_source import specialised
from symdnn.gpu.codegen.launches import CudaKernel, KernelLaunch, blocks_for
from symdnn.gpu.cudnn.fallback import HostKernel
from symdnn.gpu.device.array import RawArray
from symdnn.gpu.device.error_codes import NOT_POSITIVE, SINGULAR
from symdnn.gpu.solver.library import FILL, OPERATION
from symdnn.gpu.solver.small import SmallFactors, SmallInverse, SmallSolutions
from symdnn.gpu.solver.work import Layout, Matrices, SolverKernel, Work, question
from symdnn.graph.kernel import Call, Kernel, Row
from symdnn.ops.matrix.cholesky import Cholesky
from symdnn.ops.matrix.lu import LUFactor, LUSolve, PivotsToPermutation
from symdnn.ops.matrix.solve import MatrixInverse, Solve

#: Rows of the largest matrices that go to a batched routine.
_MOST_ROWS_OF_BATCHES = 256
#: Rows of matrices whose transposes are worth their copies.
_LEAST_ROWS_TO_TURN = 64
_POINTER = 8
_LEFT, _RIGHT = 0, 1


def batched(m: Matrices) -> bool:
    """Whether the stack goes to a batched routine."""
    return m.count > 1 and max(m.rows, m.columns) <= _MOST_ROWS_OF_BATCHES


@cache
def one(dtype: str) -> Any:
    """The number 1 in memory of the host, for factors."""
    return np.ones(1, dtype)


def code_of(op: Any, code: int) -> int:
    """The error to report for an op that raises; 0 for one that gives NaN."""
    return code if op.on_error == "raise" else 0


class CholeskyKernel(SolverKernel[Cholesky]):
    """``potrf`` or ``potrfBatched``, in the result's own memory, or of transposes."""

    def plan(self, call: Call[Cholesky], layout: Layout) -> Callable[..., None]:
        """Factors a copy; the other triangle becomes 0.

        The library's routine for its upper triangle takes twice the time of that for the lower one.
        """
        op, m = call.op, Matrices(call.inputs[0].dtype, call.inputs[0].shape)
        n, in_batch = m.rows, batched(m)
        turned = op.lower and not in_batch and n >= _LEAST_ROWS_TO_TURN
        fill = FILL["lower" if op.lower and not turned else "upper"]
        info, code = layout.part(4 * m.count), code_of(op, NOT_POSITIVE)
        place = layout.part(m.nbytes) if turned else 0
        if in_batch:
            pointers, length, scratch = layout.part(_POINTER * m.count), 0, 0
        else:
            length = question("potrf", m.dtype, 64 * n * n, fill, n, 0, n)
            pointers, scratch = 0, layout.part(length * m.itemsize)

        def run(work: Work, inputs: Sequence[RawArray], outputs: Sequence[RawArray]) -> None:
            (y,), at = outputs, work.at(info)
            factors = work.at(place) if turned else y.ptr
            if turned:
                turn(work, inputs[0].ptr, factors, m.count, n, n)
            else:
                work.copy(inputs[0], factors)
            if in_batch:
                table = work.pointers(y.ptr, m.size, m.count, work.at(pointers))
                work.solver("potrf_batched", fill, n, table, n, at, m.count)
            for i in range(0 if in_batch else m.count):
                work.solver(
                    "potrf", fill, n, factors + i * m.step, n, work.at(scratch), length, at + 4 * i
                )
            if turned:
                turn(work, factors, y.ptr, m.count, n, n)
            work.small(
                "triangle", y=y.ptr, count=m.count, rows=n, columns=n, y_step=m.size, y_ld=n,
                value=int(op.lower),
            )  # fmt: skip
            # A NaN of the matrix is on the factor's diagonal, and no status says so for sure.
            work.small("not_numbers", x=y.ptr, info=at, count=m.count, rows=n, x_step=m.size,
                       x_ld=n)  # fmt: skip
            work.settle(y, m.count, at, code)

        return run


class TriangularKernel(SolverKernel[Solve]):
    """``trsm`` or ``trsmBatched``, in the result's own memory."""

    def refuses(self, call: Call[Solve]) -> str | None:
        """Matrices that are no triangles, and stacks that broadcast in part."""
        if not call.op.triangular:
            return f"it is for triangles, not for {call.op.A_structure} matrices"
        return super().refuses(call) or _partly_broadcast(call, 0)

    def plan(self, call: Call[Solve], layout: Layout) -> Callable[..., None]:
        """``x.T m = b.T`` for the transpose ``m`` that cuBLAS sees; vectors are not transposed."""
        op, (a, _), (out,) = call.op, call.inputs, call.outputs
        m, x = Matrices(a.dtype, a.shape), Matrices(out.dtype, out.shape)
        n, columns, shared = x.rows, x.columns, m.count == 1
        info, code = layout.part(4 * m.count), code_of(op, SINGULAR)
        vectors = columns == 1 and shared
        in_batch = batched(x) and not vectors
        tables = [layout.part(_POINTER * x.count) for _ in range(2)] if in_batch else []
        how = [
            _LEFT if vectors else _RIGHT, FILL["lower" if op.reads_lower else "upper"],
            OPERATION["T" if op.transposed != vectors else "N"], int(op.unit_diagonal),
            *((n, x.count) if vectors else (columns, n)),
        ]  # fmt: skip
        ld, calls = (n, 1) if vectors else (columns, x.count)

        def run(work: Work, inputs: Sequence[RawArray], outputs: Sequence[RawArray]) -> None:
            (t, b), (y,), alpha = inputs, outputs, one(m.dtype).ctypes.data
            spread(work, b, y)
            step = 0 if shared else m.size
            if in_batch:
                left = work.pointers(t.ptr, step, x.count, work.at(tables[0]))
                right = work.pointers(y.ptr, x.size, x.count, work.at(tables[1]))
                work.blas("trsm_batched", *how, alpha, left, n, right, ld, x.count)
            for i in range(0 if in_batch else calls):
                left, right = t.ptr + i * step * m.itemsize, y.ptr + i * x.step
                work.blas("trsm", *how, alpha, left, n, right, ld)
            if not op.unit_diagonal:
                find_zeros(work, t.ptr, m, work.at(info))
                work.settle(y, x.count, work.at(info), code, shared)

        return run


def find_zeros(work: Work, at: int, m: Matrices, info: int) -> None:
    """A status for each matrix with a 0 on its diagonal."""
    work.env.zero(info, 4 * m.count)
    work.small("zeros", x=at, info=info, count=m.count, rows=m.rows, x_step=m.size, x_ld=m.columns)


def spread(work: Work, b: RawArray, y: RawArray) -> None:
    """Copy ``b``, or one matrix for all of ``y``."""
    count, size = prod(y.shape[:-2]), y.shape[-2] * y.shape[-1]
    work.small(
        "take", x=b.ptr, y=y.ptr, count=count, rows=1, columns=size,
        x_step=0 if b.size < y.size else size, y_step=size,
    )  # fmt: skip


def _partly_broadcast(call: Call, *which: int) -> str | None:
    """A reason where a stack broadcasts against others in some dimensions only."""
    if not call.has_sizes:
        return None
    lead = call.outputs[0].shape[:-2]
    for t in call.inputs:
        own = t.shape[:-2] if t.dtype != "int32" else t.shape[:-1]
        if own != lead and prod(own) != 1:
            return "its stacks broadcast in some dimensions only"
    return None


class LUFactorKernel(SolverKernel[LUFactor]):
    """``getrf``, for square matrices of a stack cuBLAS's ``getrfBatched``."""

    def plan(self, call: Call[LUFactor], layout: Layout) -> Callable[..., None]:
        """Factors a copy, which is transposed for exchanged rows."""
        op, m = call.op, Matrices(call.inputs[0].dtype, call.inputs[0].shape)
        columns = op.pivoted == "columns"
        # What the library sees: rows and columns of the factored matrix.
        r, c = (m.columns, m.rows) if columns else (m.rows, m.columns)
        info, k = layout.part(4 * m.count), min(r, c)
        turned = 0 if columns else layout.part(m.nbytes)
        calls = lu_calls(m, r, c, layout)

        def run(work: Work, inputs: Sequence[RawArray], outputs: Sequence[RawArray]) -> None:
            (a,), (f, pivots) = inputs, outputs
            place = f.ptr if columns else work.at(turned)
            if columns:
                work.copy(a, place)
            else:
                turn(work, a.ptr, place, m.count, m.columns, m.rows)
            calls(work, place, pivots.ptr, work.at(info))
            work.small("shift", x=pivots.ptr, y=pivots.ptr, count=m.count, columns=k, value=-1)
            if not columns:
                turn(work, place, f.ptr, m.count, m.rows, m.columns)

        return run


def turn(
    work: Work, x: int, y: int, count: int, rows: int, columns: int, conjugate: bool = False
) -> None:
    """Write transposes: ``y`` has ``rows`` and ``columns``."""
    work.small(
        "turn", x=x, y=y, count=count, rows=rows, columns=columns, x_step=rows * columns,
        y_step=rows * columns, x_ld=rows, y_ld=columns, value=int(conjugate),
    )  # fmt: skip


def lu_calls(m: Matrices, r: int, c: int, layout: Layout) -> Callable[[Work, int, int, int], None]:
    """A function of the addresses of matrices, pivots (from 1) and statuses."""
    if batched(m) and r == c:
        table = layout.part(_POINTER * m.count)

        def at_once(work: Work, at: int, pivots: int, info: int) -> None:
            pointers = work.pointers(at, m.size, m.count, work.at(table))
            work.blas("getrf_batched", r, pointers, r, pivots, info, m.count)

        return at_once
    length = question("getrf", m.dtype, 64 * max(r, c), r, c, 0, r)
    scratch = layout.part(length * m.itemsize)

    def one_by_one(work: Work, at: int, pivots: int, info: int) -> None:
        for i in range(m.count):
            work.solver(
                "getrf", r, c, at + i * m.step, r, work.at(scratch), pivots + 4 * i * min(r, c),
                info + 4 * i,
            )  # fmt: skip

    return one_by_one


class LUSolveKernel(SolverKernel[LUSolve]):
    """``getrs``; right sides of several columns are transposed for it."""

    def refuses(self, call: Call[LUSolve]) -> str | None:
        """Stacks that broadcast in part."""
        return super().refuses(call) or _partly_broadcast(call)

    def plan(self, call: Call[LUSolve], layout: Layout) -> Callable[..., None]:
        """Solves by columns, and transposes the result."""
        op, (f, _, _), (out,) = call.op, call.inputs, call.outputs
        m, x = Matrices(f.dtype, f.shape), Matrices(out.dtype, out.shape)
        n, columns, shared = x.rows, x.columns, m.count == 1
        by_columns = op.pivoted == "columns"
        how = OPERATION["N" if op.transposed == by_columns else "T"]
        info, from_one = layout.part(4 * max(m.count, x.count)), layout.part(4 * m.count * n)
        factors = 0 if by_columns else layout.part(m.nbytes)
        turned = layout.part(x.nbytes) if columns > 1 else 0
        solve = solve_calls(how, m, x, shared, layout)
        code = code_of(op, SINGULAR)

        def run(work: Work, inputs: Sequence[RawArray], outputs: Sequence[RawArray]) -> None:
            (lu, pivots, b), (y,) = inputs, outputs
            place = lu.ptr if by_columns else work.at(factors)
            if not by_columns:
                turn(work, lu.ptr, place, m.count, n, n)
            ones = work.at(from_one)
            work.small("shift", x=pivots.ptr, y=ones, count=m.count, columns=n, value=1)
            spread(work, b, y)
            at = work.at(turned) if columns > 1 else y.ptr
            if columns > 1:
                turn(work, y.ptr, at, x.count, columns, n)
            solve(work, place, ones, at, work.at(info))
            if columns > 1:
                turn(work, at, y.ptr, x.count, n, columns)
            find_zeros(work, lu.ptr, m, work.at(info))
            work.settle(y, x.count, work.at(info), code, shared)

        return run


def solve_calls(
    how: int, m: Matrices, x: Matrices, shared: bool, layout: Layout
) -> Callable[[Work, int, int, int, int], None]:
    """A function of the addresses of factors, pivots (from 1), right sides and statuses.

    The right sides are stored by columns, so those of one shared matrix are one matrix themselves.
    """
    n, step = x.rows, m.size
    if batched(x) and not shared:
        tables = [layout.part(_POINTER * x.count) for _ in range(2)]
        status = ctypes.c_int()

        def at_once(work: Work, at: int, pivots: int, b: int, info: int) -> None:
            left = work.pointers(at, step, x.count, work.at(tables[0]))
            right = work.pointers(b, x.size, x.count, work.at(tables[1]))
            # This status is of the arguments, and the host's.
            work.blas(
                "getrs_batched", how, n, x.columns, left, n, pivots, right, n,
                ctypes.addressof(status), x.count,
            )  # fmt: skip

        return at_once

    calls, columns = (1, x.columns * x.count) if shared else (x.count, x.columns)

    def one_by_one(work: Work, at: int, pivots: int, b: int, info: int) -> None:
        for i in range(calls):
            work.solver(
                "getrs", how, n, columns, at + i * step * m.itemsize, n, pivots + 4 * i * n,
                b + i * x.step, n, info,
            )  # fmt: skip

    return one_by_one


class InverseKernel(SolverKernel[MatrixInverse]):
    """``getrf``, then ``getriBatched``, or ``getrs`` on the identity for single matrices."""

    def plan(self, call: Call[MatrixInverse], layout: Layout) -> Callable[..., None]:
        """Factors a copy in the workspace."""
        op, m = call.op, Matrices(call.inputs[0].dtype, call.inputs[0].shape)
        n, code = m.rows, code_of(op, SINGULAR)
        copy, pivots, info = (layout.part(b) for b in (m.nbytes, 4 * m.count * n, 4 * m.count))
        factor = lu_calls(m, n, n, layout)
        in_batch = batched(m)
        tables = [layout.part(_POINTER * m.count) for _ in range(2)] if in_batch else []
        status = layout.part(4 * m.count)
        solve = solve_calls(OPERATION["N"], m, m, False, layout)

        def run(work: Work, inputs: Sequence[RawArray], outputs: Sequence[RawArray]) -> None:
            (a,), (y,), at = inputs, outputs, work.at(copy)
            work.copy(a, at)
            factor(work, at, work.at(pivots), work.at(info))
            if in_batch:
                left = work.pointers(at, m.size, m.count, work.at(tables[0]))
                right = work.pointers(y.ptr, m.size, m.count, work.at(tables[1]))
                work.blas(
                    "getri_batched", n, left, n, work.at(pivots), right, n, work.at(status), m.count
                )
            else:
                work.small(
                    "identity", y=y.ptr, count=m.count, rows=n, columns=n, y_step=m.size, y_ld=n
                )
                solve(work, at, work.at(pivots), y.ptr, work.at(status))
            work.settle(y, m.count, work.at(info), code)

        return run


class PermutationKernel(CudaKernel):
    """A thread for each matrix, whose exchanges follow one another."""

    name = "cuda.permutation"
    contiguous_inputs = True

    def launches(
        self, call: Call, inputs: Sequence[Any], outputs: Sequence[Any]
    ) -> Sequence[KernelLaunch]:
        """One kernel."""
        (pivots, _), (order,) = inputs, outputs
        count, rows = prod(order.shape[:-1]), order.shape[-1]
        if order.size == 0:
            return []
        source = specialised("matrix.cu", T="float", PARTS=1)
        numbers = (count, rows, pivots.shape[-1], 0, 0, 0, 0, 0)
        parameters = (pivots.pointer, order.pointer, 0, *numbers, 0, 0)
        return [KernelLaunch(source, "permutation", (blocks_for(count, 256),), (256,), parameters)]


def with_host(op: type, *kernels: Kernel) -> Row:
    """The row of an op: its kernels, then the reference on the host for what they refuse."""
    return (op,), (*kernels, HostKernel(kernels, "cusolver.on_host"))


KERNELS: tuple[Row, ...] = (
    with_host(Cholesky, CholeskyKernel("potrf")),
    with_host(Solve, TriangularKernel("trsm")),
    with_host(LUFactor, SmallFactors(), LUFactorKernel("getrf")),
    with_host(LUSolve, SmallSolutions(), LUSolveKernel("getrs")),
    with_host(MatrixInverse, SmallInverse(), InverseKernel("getri")),
    ((PivotsToPermutation,), (PermutationKernel(),)),
)
