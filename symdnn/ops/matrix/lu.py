"""LU factors with partial pivoting, and solutions by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import OptionError, TypeMismatch
from symdnn.graph.dims import dim_min, same_dim
from symdnn.graph.op import Axes, Batched, Grads, Vars
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array, TensorLike
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.array.create import arange, eye, tril, triu
from symdnn.ops.array.join import join
from symdnn.ops.array.sort import argsort
from symdnn.ops.array.take import take_along_axis
from symdnn.ops.core.composed import vjp_of_expressions
from symdnn.ops.core.lanes import on_lanes
from symdnn.ops.core.shape import dims_of, shape_i
from symdnn.ops.elementwise.comparison import eq
from symdnn.ops.elemwise import conjugate, pad_left
from symdnn.ops.matrix.base import (
    MatrixOp,
    adjoint,
    column,
    each_matrix,
    lead_dims,
    matrices,
    matrix_of,
    mm,
    on_error,
    square_dim,
    transposed,
)
from symdnn.ops.matrix.solve import solve_triangular
from symdnn.options import as_list

__all__ = [
    "LUFactor", "LUSolve", "PivotsToPermutation", "lu", "lu_factor", "lu_solve",
]  # fmt: skip

_PIVOTED = ("rows", "columns")


def _check_pivoted(op: Any) -> None:
    if op.pivoted not in _PIVOTED:
        raise OptionError(f"{type(op).__name__}: pivoted is one of {_PIVOTED}, got {op.pivoted!r}")


@dataclass(frozen=True)
class LUFactor(MatrixOp):
    """The factors ``l`` (unit diagonal) and ``u`` of ``a`` with exchanged rows, in one matrix, and
    the pivots: row ``i`` was exchanged with row ``pivots[i]``. (LAPACK's ``getrf``.)

    ``pivoted="columns"`` are the factors of ``a.T``, transposed: the arrays that LAPACK and
    cuSOLVER, whose matrices are stored by columns, make of ``a`` without a copy.

    Gradient: F. de Hoog, R. S. Anderssen and M. A. Lukas, "Differentiation of matrix functionals
    using triangular factorization", 2011, for rectangular matrices by blocks.
    """

    pivoted: str = "rows"
    out_dtypes: ClassVar[Any] = {1: lambda dtype: "int32"}
    on_error: ClassVar[str] = "nan"  # type: ignore[misc]

    def __post_init__(self) -> None:
        _check_pivoted(self)

    def dims(self, *matrices: tuple[Any, ...]) -> Sequence[tuple[Any, ...]]:
        ((m, n),) = matrices
        return [(m, n), (None if m is None or n is None else dim_min(m, n),)]

    def _one(self, a: Array) -> Any:
        from scipy.linalg import get_lapack_funcs

        if 0 in a.shape:
            return a, np.zeros(0, np.int32)
        columns = self.pivoted == "columns"
        (getrf,) = get_lapack_funcs(("getrf",), (a,))
        lu, pivots, _ = getrf(a.T if columns else a)
        return lu.T if columns else lu, pivots

    def reference(self, a: Array) -> Any:
        k = min(a.shape[-2:])
        return tuple(
            each_matrix(self, self._one, "", [(a.shape[-2:], a.dtype), ((k,), "int32")], a)
        )

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Grads) -> Grads:
        (a,), (f, pivots), (g, _) = inputs, outputs, cotangents
        if g is None:
            return [a.zeros_like()]
        if self.pivoted == "columns":
            return [transposed(_lu_vjp(transposed(a), transposed(f), pivots, transposed(g)))]
        return [_lu_vjp(a, f, pivots, g)]


def _lu_vjp(a: Variable, f: Variable, pivots: Variable, g: Variable) -> Variable:
    """Of ``p a = l u``, where ``l = [l1; l2]`` is tall and ``u = [u1, u2]`` wide."""
    k = dims_of(pivots)[-1]
    l1, u1 = f[..., :k, :k], f[..., :k, :k]
    l2, u2, dl2, du2 = f[..., k:, :k], f[..., :k, k:], g[..., k:, :k], g[..., :k, k:]
    unit_l = tril(l1, -1) + eye(k, dtype=f.type.dtype)
    low = mm(adjoint(unit_l), tril(g[..., :k, :k], -1)) - mm(du2, adjoint(u2))
    high = mm(triu(g[..., :k, :k]), adjoint(triu(u1))) - mm(adjoint(l2), dl2)
    inner = tril(low, -1) + triu(high)
    left = _triangular(l1, inner, "C", True, True)
    top_left = adjoint(_triangular(u1, adjoint(left), "N", False, False))
    top = join(-1, top_left, _triangular(l1, du2, "C", True, True))
    bottom_left = adjoint(_triangular(u1, adjoint(dl2), "N", False, False))
    bottom = join(-1, bottom_left, f[..., k:, k:].zeros_like())
    whole = join(-2 % a.type.ndim, top, bottom)
    order = argsort(PivotsToPermutation()(pivots, f), axis=-1)
    return take_along_axis(whole, column(order), axis=-2)


def _triangular(a: Variable, b: Variable, trans: str, lower: bool, unit: bool) -> Variable:
    return solve_triangular(a, b, trans, lower, unit, check=False)


@dataclass(frozen=True)
class PivotsToPermutation(MatrixOp):
    """The rows of ``a`` in the order that pivots give: ``a[order] = l u``.

    Inputs: the pivots (..., k), and the factors (..., m, n), of which only the shape is read.
    """

    no_gradients: ClassVar[bool] = True

    def infer(self, *inputs: TensorType) -> Any:
        pivots, f = inputs
        if pivots.dtype != "int32" or f.ndim != pivots.ndim + 1:
            raise TypeMismatch(self, "int32 pivots and the factors", list(inputs))
        return TensorType("int32", f.shape[:-1])

    def shapes(self, types: Any, shapes: Any, host: Any) -> Any:
        return [shapes[1][:-1]]

    def reference(self, pivots: Array, f: Array) -> Array:
        order = np.empty(f.shape[:-1], np.int32)
        order[...] = np.arange(f.shape[-2])
        for i in np.ndindex(*pivots.shape[:-1]):
            for at, other in enumerate(pivots[i]):
                order[i][[at, other]] = order[i][[other, at]]
        return order

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return on_lanes(self, inputs, axes)


@dataclass(frozen=True)
class LUSolve(MatrixOp):
    """The solution of ``a x = b``, or of ``a.T x = b`` (``transposed``), from an :class:`LUFactor`.

    Inputs: factors, pivots, ``b``. A 0 on the diagonal of ``u`` is a singular matrix.
    (LAPACK's ``getrs``.)
    """

    pivoted: str = "rows"
    transposed: bool = False
    on_error: str = "raise"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_pivoted(self)

    def infer(self, *inputs: TensorType) -> Any:
        f, pivots, b = inputs
        if f.dtype != b.dtype or f.ndim != b.ndim or pivots.ndim != f.ndim - 1:
            raise TypeMismatch(self, "factors, pivots and matrices of one stack", list(inputs))
        lead = lead_dims(self, (f, b), (f.shape, b.shape))
        return TensorType(b.dtype, (*lead, *self._solution(f.shape[-2:], b.shape[-2:])))

    def _solution(self, f: Any, b: Any) -> tuple[Any, Any]:
        square_dim(self, f)
        known = [d for d in (*f, b[0]) if d is not None]
        wanted = "as many rows of b as the square matrix has"
        return (same_dim(self, known, wanted, [f, b]) if known else None, b[1])

    def shapes(self, types: Any, shapes: Any, host: Any) -> Any:
        f, _, b = shapes
        lead = lead_dims(self, (types[0], types[2]), (f, b))
        return [(*lead, *self._solution(f[-2:], b[-2:]))]

    def reference(self, f: Array, pivots: Array, b: Array) -> Array:
        wide = np.broadcast_to(pivots[..., None], (*pivots.shape, 1))
        return each_matrix(self, self._one, "singular", [(b.shape[-2:], b.dtype)], f, wide, b)[0]

    def _one(self, f: Array, pivots: Array, b: Array) -> Array:
        from scipy.linalg import lu_solve

        if not np.diagonal(f).all():
            raise np.linalg.LinAlgError
        columns = self.pivoted == "columns"
        trans = int(self.transposed != columns)
        if b.size == 0:
            return b
        solution: Array = lu_solve((f.T if columns else f, pivots[:, 0]), b, trans, False, False)
        return solution

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        f, pivots, b = inputs

        def by_triangles(f: Variable, b: Variable) -> list[Variable]:
            return [solution(self, f, pivots, b)]

        df, db = vjp_of_expressions(by_triangles, [f, b], list(cotangents))
        return [df, None, db]

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return on_lanes(self, inputs, axes)


def solution(op: LUSolve, f: Variable, pivots: Variable, b: Variable) -> Variable:
    """The solution by triangular ones."""
    columns = op.pivoted == "columns"
    f = transposed(f) if columns else f
    order = PivotsToPermutation()(pivots, f)
    if op.transposed != columns:
        half = _triangular(f, b, "T", False, False)
        found = _triangular(f, half, "T", True, True)
        order = argsort(order, axis=-1)
        return take_along_axis(found, column(order), axis=-2)
    b = take_along_axis(b, column(order), axis=-2)
    half = _triangular(f, b, "N", True, True)
    return _triangular(f, half, "N", False, False)


# -- builders -------------------------------------------------------------------------------------


def lu_factor(a: TensorLike) -> tuple[Variable, Variable]:
    """LU factors of matrices (..., m, n): ``(lu, pivots)``, as :func:`lu_solve` takes them.

    ``lu`` has ``l`` below the diagonal, whose own diagonal is 1, and ``u`` above. ``pivots`` are
    int32: row ``i`` was exchanged with row ``pivots[i]``. (``scipy.linalg.lu_factor``.)
    """
    return LUFactor()(matrix_of("lu_factor", a))  # type: ignore[return-value]


def lu_solve(
    lu_and_piv: tuple[TensorLike, TensorLike], b: TensorLike, trans: int = 0, check: bool = True
) -> Variable:
    """The solution of ``a x = b`` from ``(lu, pivots)`` of ``a``.

    ``trans``: 0; 1 for ``a.T x = b``; 2 for the adjoint. Shapes and ``check`` are as for
    :func:`~symdnn.tensor.linalg.solve`. (``scipy.linalg.lu_solve``.)
    """
    if trans not in (0, 1, 2):
        raise OptionError(f"lu_solve: trans is 0, 1 or 2, got {trans!r}")
    given = as_list("lu_solve: lu_and_piv", lu_and_piv, "factors and pivots")
    if len(given) != 2:
        raise OptionError(f"lu_solve: wanted a pair (factors, pivots), got {len(given)} entries")
    f, pivots = given[0], as_variable(given[1])
    m, v = matrices("lu_solve", f, b, ndim=1)
    vector = v.type.ndim == 1
    v = column(v) if vector else v
    ndim = max(m.type.ndim, v.type.ndim)
    m, v, pivots = pad_left(m, ndim), pad_left(v, ndim), pad_left(pivots, ndim - 1)
    op = LUSolve("rows", trans != 0, on_error(check))
    x = conjugate(op(m, pivots, conjugate(v))) if trans == 2 else op(m, pivots, v)
    return x.dimshuffle([*range(x.type.ndim - 1)]) if vector else x


def lu(a: TensorLike, permute_l: bool = False, p_indices: bool = False) -> Any:
    """``p, l, u`` of matrices (..., m, n) with ``a = p @ l @ u``. (``scipy.linalg.lu``.)

    With ``permute_l`` it is ``(p @ l, u)``; with ``p_indices`` ``p`` is a permutation (..., m)
    with ``a = l[p] @ u``, an int32.
    """
    m = matrix_of("lu", a)
    f, pivots = LUFactor()(m)
    k = dims_of(pivots)[-1]
    lower = tril(f[..., :, :k], -1) + eye(shape_i(f, -2), k, dtype=f.type.dtype)
    upper = triu(f[..., :k, :])
    order = argsort(PivotsToPermutation()(pivots, f), axis=-1)
    if permute_l:
        return take_along_axis(lower, column(order), axis=-2), upper
    if p_indices:
        return order.astype("int32"), lower, upper
    places = arange(shape_i(f, -2))
    return (
        eq(column(order), pad_left(places, order.type.ndim + 1)).astype(f.type.dtype),
        lower,
        upper,
    )
