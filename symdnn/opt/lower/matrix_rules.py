"""Solutions and determinants by factors, which several of one matrix share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from symdnn.graph.variable import Apply, Variable
from symdnn.ops.array.create import Diagonal, arange
from symdnn.ops.array.reduce import prod, sum
from symdnn.ops.core.shape import shape_i
from symdnn.ops.elementwise.arithmetic import mul
from symdnn.ops.elementwise.comparison import neq
from symdnn.ops.elemwise import like
from symdnn.ops.matrix.base import hermitian_of
from symdnn.ops.matrix.cholesky import factored
from symdnn.ops.matrix.determinant import (
    Adjugate,
    AdjugateGrad,
    Det,
    PositiveLogDet,
    SLogDet,
    sign_and_log,
)
from symdnn.ops.matrix.eigen import Eig, Eigh, Eigvalsh
from symdnn.ops.matrix.lu import LUFactor, LUSolve
from symdnn.ops.matrix.qr import QR
from symdnn.ops.matrix.solve import Solve
from symdnn.ops.matrix.svd import SVD, Lstsq, MatrixPinv
from symdnn.rewriting.matrix_facts import self_adjoint
from symdnn.rewriting.rewrite import Context, Family, node_rewrite

FAMILY = Family("lower", ("fast_compile",))
on = FAMILY.on


@on(Solve)
def solve_by_cholesky(node: Apply[Solve], context: Context) -> Variable | None:
    """A positive definite system by its Cholesky factor."""
    if node.op.A_structure != "positive_definite":
        return None
    return factored(node.op, *node.inputs)


@on(Solve)
def solve_by_lu(node: Apply[Solve], context: Context) -> Variable | None:
    """A general system by the LU factors of its matrix, as LAPACK finds it in memory."""
    op, (a, b) = node.op, node.inputs
    if op.A_structure != "general":
        return None
    f, pivots = LUFactor("columns")(a)
    return LUSolve("columns", op.transposed, op.on_error)(f, pivots, b)


@on(Solve)
def hermitian_by_lu(node: Apply[Solve], context: Context) -> Variable | None:
    """A Hermitian system on a GPU, which has no kernel that tries a Cholesky factor first."""
    op, (a, b) = node.op, node.inputs
    if op.A_structure != "hermitian" or context.target.kind == "cpu":
        return None
    return replace(op, A_structure="general", lower=True)(hermitian_of(a, op.lower), b)


@on(Solve)
def hermitian_beside_det(node: Apply[Solve], context: Context) -> Variable | None:
    """A solve with ``x.T @ x`` (or a similar product) by the LU factors that its determinant needs
    anyway: a Cholesky factor would be a second factorisation.
    """
    op, (a, b) = node.op, node.inputs
    if op.A_structure != "hermitian" or not self_adjoint(a):
        return None
    if not any(_gives_lu(n, i) for n, i in context.fgraph.clients.get(a, {})):
        return None
    return replace(op, A_structure="general", lower=True)(a, b)


def _gives_lu(node: Any, index: int) -> bool:
    return _factors_it(node, index) or (node is not None and isinstance(node.op, Det | SLogDet))


@on(Det, SLogDet)
def det_by_lu(node: Apply, context: Context) -> Sequence[Variable] | None:
    """A determinant by LU factors: on a GPU, and where a system of the same matrix is solved."""
    (a,) = node.inputs
    shared = any(_factors_it(n, i) for n, i in context.fgraph.clients.get(a, {}))
    if not shared and context.target.kind == "cpu":  # LAPACK's, of whole stacks, by NumPy
        return None
    f, pivots = LUFactor("columns")(a)
    diagonal = Diagonal()(f)
    exchanged = neq(pivots, arange(shape_i(pivots, -1)).astype("int32"))
    count = sum(exchanged, axis=-1) % 2
    sign = (like(1, a) - (2 * count).astype(a.type.dtype)).astype(a.type.dtype)
    if isinstance(node.op, Det):
        return [mul(sign, prod(diagonal, axis=-1))]
    turns, value = sign_and_log(diagonal)
    return [mul(sign, turns), value]


def _factors_it(node: Any, index: int) -> bool:
    if node is None or index != 0:
        return False
    op = node.op
    general = isinstance(op, Solve) and op.A_structure == "general"
    return general or (isinstance(op, LUFactor) and op.pivoted == "columns")


@node_rewrite(Adjugate, phase="lower", tags=("fast_compile",), target="cuda")
def adjugate_by_factors(node: Apply, context: Context) -> Sequence[Variable] | None:
    """Adjugates by singular values; a processor knows which matrices need them."""
    return node.op.parts(node.inputs)  # type: ignore[no-any-return, attr-defined]


@on(AdjugateGrad, MatrixPinv, Lstsq, PositiveLogDet)
def by_factors(node: Apply, context: Context) -> Sequence[Variable] | None:
    """Pseudoinverses, least squares and gradients of adjugates by singular values; a Cholesky
    factor's log."""
    return node.op.parts(node.inputs)  # type: ignore[no-any-return, attr-defined]


# -- vectors that nothing reads -------------------------------------------------------------------


@on(Eigh, Eig, SVD, QR)
def without_vectors(node: Apply, context: Context) -> Sequence[Variable | None] | None:
    """Only eigenvalues, singular values or the triangle, where nothing reads the vectors."""
    op, outs = node.op, node.outputs
    if len(outs) == 1:
        return None
    at = _VALUES[type(op)]
    if any(not context.unread(v) for i, v in enumerate(outs) if i != at):
        return None
    if isinstance(op, QR) and op.mode != "reduced":
        return None
    alone = _alone(op)(node.inputs[0])
    return [alone if i == at else None for i in range(len(outs))]


#: The output that has the values.
_VALUES: dict[type, int] = {Eigh: 0, Eig: 0, SVD: 1, QR: 1}


def _alone(op: Any) -> Any:
    """The op that computes only the values."""
    if isinstance(op, Eigh):
        return Eigvalsh(op.UPLO, op.on_error)
    if isinstance(op, Eig):
        return replace(op, compute_v=False)
    return QR("r") if isinstance(op, QR) else SVD(False, False, op.on_error)


@on(Eigvalsh, Eig, SVD)
def of_the_vectors(node: Apply, context: Context) -> Variable | None:
    """Values that are computed with vectors of the same matrix anyway."""
    if len(node.outputs) != 1:
        return None
    for other, _ in context.fgraph.clients.get(node.inputs[0], {}):
        if other is None or len(other.outputs) == 1 or type(other.op) not in _VALUES:
            continue
        at = _VALUES[type(other.op)]
        read = any(not context.unread(v) for i, v in enumerate(other.outputs) if i != at)
        if read and not isinstance(other.op, QR) and _alone(other.op) == node.op:
            return other.outputs[at]
    return None


RULES = (
    solve_by_cholesky, solve_by_lu,
    hermitian_by_lu, hermitian_beside_det, det_by_lu, adjugate_by_factors, by_factors,
    without_vectors, of_the_vectors,
)  # fmt: skip
