"""Factors and solutions of small matrices, written out for their number of rows.

Each op becomes an expression of as many elementwise steps as the matrix has rows, for stacks of
matrices as well. Where LAPACK reports a failure an assertion fails, and the loop runs step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from symdnn.graph.operators import operator
from symdnn.graph.variable import Apply, Variable, constant
from symdnn.ops.array.argreduce import argmax
from symdnn.ops.array.join import join, stack
from symdnn.ops.core.gradient_control import Assert
from symdnn.ops.elementwise.arithmetic import abs as absolute
from symdnn.ops.elementwise.arithmetic import sgn
from symdnn.ops.elementwise.comparison import eq, switch
from symdnn.ops.elemwise import like
from symdnn.ops.matrix.cholesky import Cholesky
from symdnn.ops.matrix.determinant import Det, SLogDet
from symdnn.ops.matrix.lu import LUFactor, LUSolve
from symdnn.ops.matrix.qr import QR
from symdnn.ops.matrix.solve import MatrixInverse, Solve
from symdnn.ops.steps.block import Block, Rule
from symdnn.ops.steps.statements import Statement

#: Rows of a matrix that is written out, at most.
_MOST_ROWS = 12
#: Rows or columns of one that is reflected, of which the other number is that small.
_LONGEST = 64


def _written_out(made: Callable[[Any, int, Sequence[Variable]], Sequence[Variable] | None]) -> Rule:
    """A rule by an expression of the op, the number of rows and the inputs."""

    def rule(block: Block, node: Apply) -> list[Statement] | None:
        rows, columns = block.shape(node.inputs[0])[-2:]
        dtype = node.inputs[0].type.dtype
        if rows != columns or rows > _MOST_ROWS or dtype not in ("float32", "float64"):
            return None
        if any(v.type.ndim != node.inputs[0].type.ndim for v in node.inputs[-1:]):
            return None
        found = made(node.op, rows, node.inputs)
        return None if found is None else block.expression(node, found)

    return rule


# -- parts of matrices -----------------------------------------------------------------------------


def _turned(a: Variable) -> Variable:
    ndim = a.type.ndim
    return a.dimshuffle(*range(ndim - 2), ndim - 1, ndim - 2)


def _row(v: Variable) -> Variable:
    """A vector of the stack as a matrix of one row."""
    return v.dimshuffle(*range(v.type.ndim - 1), "x", v.type.ndim - 1)


def _column(v: Variable) -> Variable:
    return v.dimshuffle(*range(v.type.ndim), "x")


def _checked(op: Any, value: Variable, fine: Variable) -> Variable:
    """A value where all matrices are fine; else a failure, or NaN for those that are not."""
    if op.on_error == "raise":
        return Assert(str(op))(value, fine.all())
    return switch(_column(_column(fine)), value, np.nan)


# -- triangles -------------------------------------------------------------------------------------


def _substituted(t: Variable, b: Variable, n: int, lower: bool, unit: bool) -> Variable:
    """The solution of ``t x = b`` by one triangle of ``t``."""
    order = range(n) if lower else range(n - 1, -1, -1)
    found: list[Variable] = []
    for i in order:
        x = b[..., 0 if lower else i, :]
        if not unit:
            x = x / _column(t[..., i, i])
        found.append(x)
        if len(found) == n:
            break
        rest, below = (
            (b[..., 1:, :], t[..., i + 1 :, i]) if lower else (b[..., :i, :], t[..., :i, i])
        )
        b = rest - _column(below) * _row(x)
    return stack(found if lower else found[::-1], axis=-2)


def _diagonal(a: Variable, n: int) -> Variable:
    return stack([a[..., i, i] for i in range(n)], axis=-1)


# -- Cholesky --------------------------------------------------------------------------------------


def _root(a: Variable, n: int) -> tuple[Variable, Variable]:
    """(the lower factor by the lower triangle, whether it exists)"""
    columns, pivots, left = list[Variable](), list[Variable](), a
    for j in range(n):
        pivots.append(left[..., 0, 0])
        column = left[..., :, 0] / _column(operator("sqrt")(pivots[-1]))
        above = [column[..., :1].zeros_like()] * j
        columns.append(join(-1, *above, column) if above else column)
        low = column[..., 1:]
        left = left[..., 1:, 1:] - _column(low) * _row(low)
    return stack(columns, axis=-1), (stack(pivots, axis=-1) > 0).all(axis=-1)


def _cholesky(op: Any, n: int, inputs: Sequence[Variable]) -> list[Variable]:
    (a,) = inputs
    root, fine = _root(a if op.lower else _turned(a), n)
    return [_checked(op, root if op.lower else _turned(root), fine)]


# -- LU --------------------------------------------------------------------------------------------


def _factors(a: Variable, n: int) -> tuple[Variable, list[Variable]]:
    """(``l`` and ``u`` in one matrix, the pivots), with pivots among the rows, as by getrf."""
    rows, pivots, left = list[Variable](), list[Variable](), a
    for i in range(n):
        at = argmax(absolute(left[..., :, i]), axis=-1)
        pivots.append(at + i)
        chosen = eq(constant(np.arange(n - i)), _column(at))
        row = switch(_column(chosen), left, 0).sum(axis=-2)
        rows.append(row)
        if i == n - 1:
            break
        first = left[..., 0, :]
        left = switch(_column(chosen[..., 1:]), _row(first), left[..., 1:, :])
        pivot = _column(row[..., i])
        factor = left[..., :, i] / switch(eq(pivot, 0), 1, pivot)
        right = left[..., :, i + 1 :] - _column(factor) * _row(row[..., i + 1 :])
        left = (
            join(-1, left[..., :, :i], _column(factor), right)
            if i
            else join(-1, _column(factor), right)
        )
    return stack(rows, axis=-2), pivots


def _exchanged(b: Variable, pivots: Sequence[tuple[int, Variable]], n: int) -> Variable:
    """Rows exchanged by pairs of a place and its pivot, in turn."""
    rows = constant(np.arange(n))
    for i, at in pivots:
        chosen = eq(rows, _column(at))
        row = switch(_column(chosen), b, 0).sum(axis=-2)
        there = switch(_column(chosen), _row(b[..., i, :]), b)
        b = switch(constant((np.arange(n) == i)[:, None]), _row(row), there)
    return b


def _solved(f: Variable, pivots: Sequence[Variable], b: Variable, n: int, turned: bool) -> Variable:
    if not turned:
        low = _substituted(f, _exchanged(b, list(enumerate(pivots)), n), n, True, True)
        return _substituted(f, low, n, False, False)
    high = _substituted(_turned(f), b, n, True, False)
    found = _substituted(_turned(f), high, n, False, True)
    return _exchanged(found, list(enumerate(pivots))[::-1], n)


def _lu_factor(op: Any, n: int, inputs: Sequence[Variable]) -> list[Variable]:
    columns = op.pivoted == "columns"
    f, pivots = _factors(_turned(inputs[0]) if columns else inputs[0], n)
    return [_turned(f) if columns else f, stack(pivots, axis=-1).astype("int32")]


def _lu_solve(op: Any, n: int, inputs: Sequence[Variable]) -> list[Variable]:
    f, pivots, b = inputs
    columns = op.pivoted == "columns"
    each = [pivots[..., i].astype("int64") for i in range(n)]
    fine = operator("neq")(_diagonal(f, n), 0).all(axis=-1)
    found = _solved(_turned(f) if columns else f, each, b, n, op.transposed != columns)
    return [_checked(op, found, fine)]


def _solve(op: Any, n: int, inputs: Sequence[Variable]) -> list[Variable] | None:
    a, b = inputs
    if op.triangular:
        lower = op.reads_lower
        t = _turned(a) if op.transposed else a
        found = _substituted(t, b, n, lower != op.transposed, op.unit_diagonal)
        fine = operator("neq")(_diagonal(a, n), 0).all(axis=-1)
        return [found if op.unit_diagonal else _checked(op, found, fine)]
    if op.A_structure == "positive_definite":
        root, fine = _root(a if op.lower else _turned(a), n)
        low = _substituted(root, b, n, True, False)
        return [_checked(op, _substituted(_turned(root), low, n, False, False), fine)]
    if op.A_structure != "general":  # a symmetric matrix of which one triangle is read
        read = np.tri(n, dtype=bool) if op.lower else np.tri(n, dtype=bool).T
        a = switch(constant(read.reshape((1,) * (a.type.ndim - 2) + (n, n))), a, _turned(a))
    f, pivots = _factors(a, n)
    fine = operator("neq")(_diagonal(f, n), 0).all(axis=-1)
    return [_checked(op, _solved(f, pivots, b, n, op.transposed), fine)]


def _inverse(op: Any, n: int, inputs: Sequence[Variable]) -> list[Variable]:
    (a,) = inputs
    f, pivots = _factors(a, n)
    identity = constant(np.eye(n, dtype=a.type.dtype).reshape((1,) * (a.type.ndim - 2) + (n, n)))
    fine = operator("neq")(_diagonal(f, n), 0).all(axis=-1)
    return [_checked(op, _solved(f, pivots, a * 0 + identity, n, False), fine)]


def _sign_and_diagonal(a: Variable, n: int) -> tuple[Variable, Variable]:
    f, pivots = _factors(a, n)
    moved = [operator("neq")(at, i).astype("int8") for i, at in enumerate(pivots)]
    odd = sum(moved[1:], moved[0]) % 2
    return switch(odd > 0, -1, 1).astype(a.type.dtype), _diagonal(f, n)


def _det(op: Any, n: int, inputs: Sequence[Variable]) -> list[Variable]:
    sign, diagonal = _sign_and_diagonal(inputs[0], n)
    return [sign * diagonal.prod(axis=-1)]


def _slogdet(op: Any, n: int, inputs: Sequence[Variable]) -> list[Variable]:
    sign, diagonal = _sign_and_diagonal(inputs[0], n)
    size = operator("log")(absolute(diagonal)).sum(axis=-1)
    return [sign * sgn(diagonal).prod(axis=-1), size]


# -- orthonormal columns ---------------------------------------------------------------------------


def _qr(block: Block, node: Apply) -> list[Statement] | None:
    """By Householder's reflections, with LAPACK's signs."""
    op: Any = node.op
    (a,) = node.inputs
    m, n = block.shape(a)[-2:]
    if min(m, n) > _MOST_ROWS or max(m, n) > _LONGEST or a.type.dtype not in ("float32", "float64"):
        return None
    first, rows, steps = like(0, a), np.arange(m), min(m, n)
    reflections: list[tuple[Variable, Variable]] = []
    r = a
    for k in range(min(steps, m - 1)):
        below, top = r[..., k + 1 :, k], r[..., k, k]
        rest = operator("sqr")(below).sum(axis=-1)
        size = operator("sqrt")(operator("sqr")(top) + rest)
        end = switch(top < 0, size, -size)
        none = eq(rest, 0)  # a column that is reflected already stays
        scale = 1 / switch(none, like(1, a), top - end)
        own = constant((rows == k).astype(a.type.dtype))
        vector = switch(constant(rows > k), r[..., :, k] * _column(scale), own)
        share = switch(none, first, (end - top) / switch(none, like(1, a), end))
        reflections.append((vector, share))
        r = _reflected(r, vector, share)
    width = m if op.mode == "complete" else steps
    upper = np.arange(width if op.mode != "r" else steps)[:, None] <= np.arange(n)
    made = [switch(constant(upper), r[..., : len(upper), :], first)]
    if op.mode != "r":
        q = np.eye(m, width, dtype=a.type.dtype) + _column(_column(a[..., 0, 0].zeros_like()))
        for vector, share in reversed(reflections):
            q = _reflected(q, vector, share)
        made.insert(0, q)
    return block.expression(node, made)


def _reflected(a: Variable, vector: Variable, share: Variable) -> Variable:
    """``a - share * vector (vector^T a)``."""
    along = (_column(vector) * a).sum(axis=-2)
    return a - _column(vector * _column(share)) * _row(along)


MATRICES: dict[type, Rule] = {
    QR: _qr,
    Cholesky: _written_out(_cholesky), LUFactor: _written_out(_lu_factor),
    LUSolve: _written_out(_lu_solve), Solve: _written_out(_solve),
    MatrixInverse: _written_out(_inverse), Det: _written_out(_det),
    SLogDet: _written_out(_slogdet),
}  # fmt: skip
