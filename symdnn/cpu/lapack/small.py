"""Small matrices: what the kernels of :mod:`symdnn.cpu.lapack.kernels` do, as one compiled call."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from symdnn.cpu.lapack.sequence import Sequenced, SequenceLaunch
from symdnn.cpu.lapack.stacks_ir import LANES, StackPlan
from symdnn.graph.kernel import Call
from symdnn.ops.matrix.cholesky import Cholesky
from symdnn.ops.matrix.determinant import Det, SLogDet
from symdnn.ops.matrix.eigen import Eigh, Eigvalsh
from symdnn.ops.matrix.expm import Expm
from symdnn.ops.matrix.lu import LUFactor, LUSolve
from symdnn.ops.matrix.qr import QR
from symdnn.ops.matrix.solve import MatrixInverse, Solve
from symdnn.ops.matrix.svd import SVD

#: Matrices of up to so many rows cost less than their launch from Python.
_MAX_ROWS = 64
#: Matrices of up to so many rows are computed in the lanes of vectors, if they fill one.
_MAX_ROWS_OF_LANES = 12


def fits(call: Call[Any], tasks: int) -> bool:
    """Whether :func:`small_launch` is for a call: small real matrices, which one thread computes.

    Determinants are of float64: NumPy computes those of float32 in float64 too.
    """
    if stack_plan(call) is not None:
        return True
    operands = (*call.inputs, *call.outputs)
    dtype = call.outputs[0].dtype
    n = max(max(t.shape[-2:]) for t in operands if t.ndim > 1)
    if tasks > 1 or n > _MAX_ROWS or dtype not in ("float32", "float64"):
        return False
    if isinstance(call.op, Det | SLogDet) and dtype == "float32":
        return False
    return all(t.ndim < 2 or t.dtype == dtype for t in operands if t.dtype != "int32")


def small_launch(call: Call[Any], tasks: int, slow: Any) -> SequenceLaunch | None:
    """The launch of a call on small matrices that one thread computes, or on a stack of very small
    ones; None for others.

    ``slow`` is the kernel's own launch, for arrays of other strides and for faults.
    """
    if (plan := stack_plan(call)) is not None:
        return _start(call, call.inputs[0].shape[:-2]).in_lanes(plan, len(call.inputs), slow)
    make = _MAKERS.get(type(call.op))
    return make(call, slow) if make is not None and fits(call, tasks) else None


def stack_plan(call: Call[Any]) -> StackPlan | None:
    """How the matrices of a stack are computed in the lanes of vectors; None if they are not."""
    op, x, y = call.op, call.inputs[0], call.outputs[0]
    stored = {"float32": "float", "float64": "double"}.get(y.dtype)
    n, count = x.shape[-1], prod(x.shape[:-2])
    if stored is None or x.dtype != y.dtype or x.shape[-2] != n or not 1 < n <= _MAX_ROWS_OF_LANES:
        return None
    if isinstance(op, Det | SLogDet):
        plan = StackPlan("det" if isinstance(op, Det) else "slogdet", n, stored)
    elif isinstance(op, MatrixInverse):
        plan = StackPlan("inverse", n, stored, raises=op.on_error == "raise")
    elif isinstance(op, LUFactor):
        plan = StackPlan("factor", n, stored, turned=op.pivoted == "columns")
    elif (
        isinstance(op, LUSolve) and call.inputs[2].shape == y.shape and y.shape[:-2] == x.shape[:-2]
    ):
        turned, columns = op.pivoted == "columns", y.shape[-1]
        plan = StackPlan("solve", n, stored, columns, turned, op.transposed != turned,
                         op.on_error == "raise")  # fmt: skip
        if columns > _MAX_ROWS_OF_LANES or call.inputs[1].shape[:-1] != y.shape[:-2]:
            return None
    else:
        return None
    return plan if count >= LANES[plan.work] else None


def _start(call: Call[Any], lead: tuple[int, ...]) -> Sequenced:
    return Sequenced(call.outputs[0].dtype, prod(lead), len(call.inputs) + len(call.outputs))


def _ended(
    s: Sequenced, call: Call[Any], x: int, count: int, slow: Any, *more: tuple[int, int]
) -> SequenceLaunch:
    """The launch whose faults raise, or where the op says so make the result ``x`` NaN (and
    ``more``)."""
    if call.op.on_error != "raise":
        s.void((x, count), *more)
    return s.launch(len(call.inputs), slow)


def _factor(s: Sequenced, matrix: int, behind: int, last: int, n: int, lower: bool) -> int:
    """``potrf`` in place and 0 in the other triangle, whose part beside the diagonal begins at
    ``behind``; returns the place of the status."""
    info = s.memory(4)
    s.call("potrf", "U" if lower else "L", n, None, n, None, at=[matrix, info])
    s.info(info)
    s.nan(last)  # OpenBLAS does not report a NaN, which goes on to the last element
    if n > 1:
        s.call("laset", "L" if lower else "U", n - 1, n - 1, 0.0, 0.0, None, n, at=[behind])
    return info


def _cholesky(call: Call[Cholesky], slow: Any) -> SequenceLaunch | None:
    (a,), n, lower = call.inputs, call.inputs[0].shape[-1], call.op.lower
    s = _start(call, a.shape[:-2])
    source, to = s.array(0, n * n), s.array(1, n * n)
    behind, last = s.array(1, n * n, 1 if lower else n), s.array(1, n * n, n * n - 1)
    s.copy(to, source, n * n)
    _factor(s, to, behind, last, n, lower)
    return _ended(s, call, to, n * n, slow)


def _triangle(
    s: Sequenced, a: int, x: int, n: int, columns: int, lower: bool, how: str, unit: bool = False
) -> None:
    """As :func:`~symdnn.cpu.lapack.kernels.triangle_calls`."""
    uplo, diag = "U" if lower else "L", "U" if unit else "N"
    if columns == 1:
        turned = "T" if how == "N" else "N"
        s.call("trsv", uplo, turned, diag, n, None, n, None, 1, at=[a, x])
        return
    how = "T" if how == "C" else how
    s.call("trsm", "R", uplo, how, diag, columns, n, 1.0, None, n, None, columns, at=[a, x])


def _solve(call: Call[Solve], slow: Any) -> SequenceLaunch | None:
    op, (a, b), (out,) = call.op, call.inputs, call.outputs
    n, columns = out.shape[-2:]
    lead = out.shape[:-2]
    one = prod(a.shape[:-2]) == 1
    if b.shape != out.shape or not (one or a.shape[:-2] == lead):
        return None
    s = _start(call, lead)
    matrix = s.array(0, 0 if one else n * n)
    source, x = s.array(1, n * columns), s.array(2, n * columns)
    if op.triangular:
        if not op.unit_diagonal:
            s.diagonal(matrix, n)
        s.copy(x, source, n * columns)
        how = "T" if op.transposed else "N"
        _triangle(s, matrix, x, n, columns, op.reads_lower, how, op.unit_diagonal)
        return _ended(s, call, x, n * columns, slow)
    if one and prod(lead) > 1:
        return None  # it would be factored for each right side
    part = s.elements(n * n)
    behind, last = s.beside(part, 1 if op.lower else n), s.beside(part, n * n - 1)
    s.copy(part, matrix, n * n)
    _factor(s, part, behind, last, n, op.lower)
    s.copy(x, source, n * columns)
    for how in ("N", "C") if op.lower else ("C", "N"):
        _triangle(s, part, x, n, columns, op.lower, how)
    return s.launch(2, slow, native=False)  # what has no Cholesky factor may have a solution


def _lu_factor(call: Call[LUFactor], slow: Any) -> SequenceLaunch | None:
    m, n = call.inputs[0].shape[-2:]
    by_columns = call.op.pivoted == "columns"
    s = _start(call, call.inputs[0].shape[:-2])
    source, to, pivots = s.array(0, m * n), s.array(1, m * n), s.pivots(2, min(m, n))
    info = s.memory(4)
    if by_columns:
        s.copy(to, source, m * n)
        s.call("getrf", n, m, None, n, None, None, at=[to, pivots, info])
    else:
        whole = s.elements(m * n)
        s.turn(whole, source, m, n)
        s.call("getrf", m, n, None, m, None, None, at=[whole, pivots, info])
        s.turn(to, whole, n, m)
    s.add(pivots, pivots, min(m, n), -1)
    return s.launch(1, slow)


def _lu_solve(call: Call[LUSolve], slow: Any) -> SequenceLaunch | None:
    op, (f, pivots, b), (out,) = call.op, call.inputs, call.outputs
    n, columns = out.shape[-2:]
    lead = out.shape[:-2]
    if b.shape != out.shape or f.shape[:-2] != lead or pivots.shape[:-1] != lead:
        return None
    s, by_columns = _start(call, lead), op.pivoted == "columns"
    factors, given = s.array(0, n * n), s.pivots(1, n)
    source, x = s.array(2, n * columns), s.array(3, n * columns)
    s.diagonal(factors, n)
    if not by_columns:
        turned = s.elements(n * n)
        s.turn(turned, factors, n, n)
        factors = turned
    exchanged, info = s.memory(4 * n), s.memory(4)
    s.add(exchanged, given, n, 1)
    right = x if columns == 1 else s.elements(n * columns)
    if columns == 1:
        s.copy(right, source, n)
    else:
        s.turn(right, source, n, columns)
    how = "N" if op.transposed == by_columns else "T"
    s.call("getrs", how, n, columns, None, n, None, None, n, None,
           at=[factors, exchanged, right, info])  # fmt: skip
    if columns > 1:
        s.turn(x, right, columns, n)
    return _ended(s, call, x, n * columns, slow)


def _inverse(call: Call[MatrixInverse], slow: Any) -> SequenceLaunch | None:
    n, length = call.outputs[0].shape[-1], call.outputs[0].shape[-1] * 64
    s = _start(call, call.outputs[0].shape[:-2])
    source, to = s.array(0, n * n), s.array(1, n * n)
    pivots, info, work = s.memory(4 * n), s.memory(4), s.elements(length)
    s.copy(to, source, n * n)
    s.call("getrf", n, n, None, n, None, None, at=[to, pivots, info])
    s.info(info)
    s.call("getri", n, None, n, None, None, length, None, at=[to, pivots, work, info])
    s.info(info)
    return _ended(s, call, to, n * n, slow)


def _qr(call: Call[QR], slow: Any) -> SequenceLaunch | None:
    """Of matrices with at least as many rows as columns, reduced."""
    m, n = call.inputs[0].shape[-2:]
    if m < n or call.op.mode != "reduced":
        return None
    length = n * (1 if n <= 32 else 32)
    s = _start(call, call.inputs[0].shape[:-2])
    source, q, r = s.array(0, m * n), s.array(1, m * n), s.array(2, n * n)
    beside = s.array(2, n * n, n)
    tau, work, info = s.elements(n), s.elements(length), s.memory(4)
    s.copy(q, source, m * n)
    s.call("gelqf", n, m, None, n, None, None, length, None, at=[q, tau, work, info])
    s.copy(r, q, n * n)
    if n > 1:
        s.call("laset", "U", n - 1, n - 1, 0.0, 0.0, None, n, at=[beside])
    s.call("orglq", n, m, n, None, n, None, None, length, None, at=[q, tau, work, info])
    return s.launch(1, slow)


def _eigen(call: Call[Eigh | Eigvalsh], slow: Any) -> SequenceLaunch:
    n, vectors = call.inputs[0].shape[-1], isinstance(call.op, Eigh)
    s = _start(call, call.inputs[0].shape[:-2])
    source, values, matrix = s.array(0, n * n), s.array(1, n), s.elements(n * n)
    length = (1 + 6 * n + 2 * n * n if vectors else 2 * n + 1) + 32 * n
    work, whole = s.elements(length), s.memory(4 * (3 + 5 * n))
    info = s.memory(4)
    triangle = call.op.UPLO
    s.finite(source, n, n, triangle)
    s.copy(matrix, source, n * n)
    s.call("syevd", "V" if vectors else "N", "U" if triangle == "L" else "L", n, None, n, None,
           None, length, None, 3 + 5 * n, None, at=[matrix, values, work, whole, info],
           sound=True)  # fmt: skip
    s.info(info)
    if not vectors:
        return _ended(s, call, values, n, slow)
    made = s.array(2, n * n)
    s.turn(made, matrix, n, n)
    return _ended(s, call, values, n, slow, (made, n * n))


def _svd(call: Call[SVD], slow: Any) -> SequenceLaunch:
    """LAPACK sees ``a.T``, whose vectors are those of ``a`` exchanged."""
    op, (m, n) = call.op, call.inputs[0].shape[-2:]
    k, most = min(m, n), max(m, n)
    s = _start(call, call.inputs[0].shape[:-2])
    source, matrix, info = s.array(0, m * n), s.elements(m * n), s.memory(4)
    length = (4 * k * k + 7 * k if op.compute_uv else 10 * k) + 64 * most
    columns, rows = (m, n) if op.full_matrices and op.compute_uv else (k, k)  # of u and vh
    if op.compute_uv:
        u, values, vh = s.array(1, m * columns), s.array(2, k), s.array(3, rows * n)
    else:
        values = s.array(1, k)
        u = vh = s.elements(1)
    s.finite(source, m, n)
    s.copy(matrix, source, m * n)
    job = "N" if not op.compute_uv else "A" if op.full_matrices else "S"
    s.call("gesdd", job, n, m, None, n, None, None, n, None, columns, None, length, None, None,
           at=[matrix, values, vh, u, s.elements(length), s.memory(32 * k), info],
           sound=True)  # fmt: skip
    s.info(info)
    if not op.compute_uv:
        return _ended(s, call, values, k, slow)
    return _ended(s, call, values, k, slow, (u, m * columns), (vh, rows * n))


def _determinant(call: Call[Det | SLogDet], slow: Any) -> SequenceLaunch:
    n = call.inputs[0].shape[-1]
    s = _start(call, call.inputs[0].shape[:-2])
    source, matrix = s.array(0, n * n), s.elements(n * n)
    pivots, info = s.memory(4 * n), s.memory(4)
    s.copy(matrix, source, n * n)
    s.call("getrf", n, n, None, n, None, None, at=[matrix, pivots, info])
    results = [s.array(1 + i, 1) for i in range(len(call.outputs))]
    s.determinant([matrix, pivots, info], results, n)
    return s.launch(1, slow)


def expm_launch(call: Call[Expm], slow: Any) -> SequenceLaunch:
    """The launch of exponentials of real matrices."""
    n = call.inputs[0].shape[-1]
    s = _start(call, call.inputs[0].shape[:-2])
    s.expm(s.array(0, n * n), s.array(1, n * n), n)
    return s.launch(1, slow)


_MAKERS: dict[type, Callable[[Call[Any], Any], SequenceLaunch | None]] = {
    Cholesky: _cholesky, Solve: _solve, LUFactor: _lu_factor, LUSolve: _lu_solve,
    MatrixInverse: _inverse, QR: _qr, Eigh: _eigen, Eigvalsh: _eigen, SVD: _svd,
    Det: _determinant, SLogDet: _determinant, Expm: expm_launch,
}  # fmt: skip
