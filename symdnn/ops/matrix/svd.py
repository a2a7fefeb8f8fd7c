"""Singular values, and what follows from them: pseudoinverses and least squares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from symdnn.errors import ShapeMismatch
from symdnn.graph.dims import dim_min, same_dim
from symdnn.graph.op import Grads, Vars
from symdnn.graph.typing import Array, TensorLike
from symdnn.graph.variable import Variable
from symdnn.ops.array.create import Diagonal, alloc_diag
from symdnn.ops.array.reduce import sum as sum_
from symdnn.ops.core.gradient_control import zero_grad
from symdnn.ops.core.shape import dims_of, shape_i
from symdnn.ops.elementwise.arithmetic import abs as abs_
from symdnn.ops.elementwise.arithmetic import cast, maximum, sqr, sqrt
from symdnn.ops.elementwise.comparison import gt, le
from symdnn.ops.elemwise import like, unbroadcast
from symdnn.ops.matrix.base import (
    MatrixOp,
    adjoint,
    column,
    each_matrix,
    first_columns,
    is_square,
    matrix_of,
    mm,
    on_error,
    real_dtype,
    row,
    safe_ratio,
    transposed,
)
from symdnn.ops.matrix.solve import system
from symdnn.options import as_number

__all__ = [
    "SVD", "Lstsq", "MatrixPinv", "lstsq", "matrix_rank", "negligible", "pinv", "svd", "svdvals",
]  # fmt: skip

_NO_VALUES = "without singular values (NaN?)"


def negligible(value: Variable, of: Variable) -> Variable:
    """Where ``value`` is rounding beside the numbers ``of``, which are real.

    The bound is n eps times the 2-norm of the n numbers. ``value`` has one axis more.
    """
    n = cast(shape_i(of, -1), of.type.dtype)
    size = sqrt(sum_(sqr(zero_grad(of)), axis=-1))
    bound = size * n * like(float(np.finfo(of.type.dtype).eps), of)
    return le(abs_(value), column(column(bound)))


@dataclass(frozen=True)
class SVD(MatrixOp):
    """Singular values ``s``, descending, with ``a = u diag(s) vh``: outputs ``u, s, vh``, or ``s``.

    With ``full_matrices`` ``u`` and ``vh`` are square. (LAPACK's ``gesdd``; Theano's ``SVD``.)

    Gradients: J. Townsend, "Differentiating the singular value decomposition", 2016; M. Seeger et
    al., "Auto-differentiating linear algebra", 2017; complex: Z. Wan and S. Zhang, "Automatic
    differentiation for complex valued SVD", 2019. Terms of equal singular values are left out,
    which is right where the cost does not depend on the choice of their vectors.
    """

    full_matrices: bool = True
    compute_uv: bool = True
    on_error: str = "raise"

    @property
    def out_dtypes(self) -> Any:  # type: ignore[override]
        """The functions of the matrix's dtype that give those of results, by number."""
        return {1: real_dtype} if self.compute_uv else {0: real_dtype}

    def dims(self, *matrices: tuple[Any, ...]) -> Sequence[tuple[Any, ...]]:
        ((m, n),) = matrices
        k = None if m is None or n is None else dim_min(m, n)
        if not self.compute_uv:
            return [(k,)]
        return [(m, m), (k,), (n, n)] if self.full_matrices else [(m, k), (k,), (k, n)]

    def _one(self, a: Array) -> Any:
        if not np.isfinite(a).all():  # of an infinity LAPACK may never return
            raise np.linalg.LinAlgError("not finite")
        function: Any = np.linalg.svd
        return function(a, self.full_matrices, self.compute_uv)

    def comparable(self, results: Sequence[Any]) -> Sequence[Any]:
        if not self.compute_uv:
            return results
        u, s, vh = results
        k = s.shape[-1]
        product = (u[..., :k] * s[..., None, :]) @ vh[..., :k, :]
        return [product, s, product]

    def reference(self, a: Array) -> Any:
        m, n = a.shape[-2:]
        k, real = min(m, n), real_dtype(a.dtype.name)
        made: list[tuple[Any, Any]] = [((k,), real)]
        if self.compute_uv:
            u, vh = ((m, m), (n, n)) if self.full_matrices else ((m, k), (k, n))
            made = [(u, a.dtype), *made, (vh, a.dtype)]
        return tuple(each_matrix(self, self._one, _NO_VALUES, made, a, at_once=True))

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Grads) -> Grads:
        (a,) = inputs
        if not self.compute_uv:
            u, _, vh = SVD(False, True, self.on_error)(a)
            (ds,) = cotangents
            assert ds is not None, "no cotangent"
            return [mm(u * row(_in(ds, a)), vh)]
        (u, s, vh), (du, ds, dvh) = outputs, cotangents
        if self.full_matrices:
            if du is None and dvh is None:
                u, _, vh = SVD(False, True, self.on_error)(a)
            elif not is_square(a):
                k = dims_of(s)[-1]
                u, vh = u[..., :k], vh[..., :k, :]
                du = None if du is None else first_columns(self, du, k)
                dvh = None if dvh is None else transposed(first_columns(self, transposed(dvh), k))
        return [_svd_vjp(a, (u, s, vh), (du, ds, dvh))]


def _in(v: Variable, a: Variable) -> Variable:
    """``v`` in the dtype of ``a``, which may be complex."""
    return v if v.type.dtype == a.type.dtype else v.astype(a.type.dtype)


def _svd_vjp(a: Variable, found: Vars, cotangents: Grads) -> Variable:
    (u, s, vh), (du, ds, dvh) = found, cotangents
    gap = row(s) - column(s)
    equal = negligible(gap, s)
    over_gaps = safe_ratio(like(1, s), gap * (row(s) + column(s)), equal)
    none = sum_(negligible(column(s), s).astype(s.type.dtype), axis=-1) > 0
    over_s = safe_ratio(like(1, s), s, none)
    inner = None if ds is None else alloc_diag(_in(ds, a))
    terms = []
    if du is not None:
        turn = mm(adjoint(u), du)
        skew = turn - adjoint(turn)
        terms.append(skew * _in(over_gaps * row(s), a))
        if a.type.is_complex:
            terms.append(alloc_diag(Diagonal()(skew) * _in(over_s / 2, a)))
    if dvh is not None:
        turn_v = mm(vh, adjoint(dvh))
        terms.append(_in(column(s) * over_gaps, a) * (turn_v - adjoint(turn_v)))
    for term in terms:
        inner = term if inner is None else inner + term
    assert inner is not None, "no cotangent"
    total = mm(u, inner, vh)
    m, n = a.type.shape[-2:]
    if du is not None and not (m is not None and n is not None and m <= n):
        total = total + mm((du - mm(u, turn)) * _in(row(over_s), a), vh)
    if dvh is not None and not (m is not None and n is not None and n <= m):
        rest = dvh - mm(mm(dvh, adjoint(vh)), vh)
        total = total + mm(u, _in(column(over_s), a) * rest)
    return total


@dataclass(frozen=True)
class MatrixPinv(MatrixOp):
    """The Moore-Penrose pseudoinverse: singular values up to ``rtol`` times the largest are 0.

    ``rtol`` None is eps times the larger size. (Theano's ``MatrixPinv``.)

    Gradient: G. H. Golub and V. Pereyra, "The differentiation of pseudo-inverses and nonlinear
    least squares problems whose variables separate", 1973, for a constant rank.
    """

    rtol: float | None = None
    on_error: str = "raise"

    def dims(self, *matrices: tuple[Any, ...]) -> Sequence[tuple[Any, ...]]:
        ((m, n),) = matrices
        return [(n, m)]

    def _one(self, a: Array) -> Any:
        return np.linalg.pinv(a, _rtol_of(self.rtol, a))

    def reference(self, a: Array) -> Array:
        made = [(a.shape[:-3:-1], a.dtype)]
        return each_matrix(self, self._one, _NO_VALUES, made, a, at_once=True)[0]

    def parts(self, inputs: Vars) -> list[Variable]:
        """The expression in other ops."""
        (a,) = inputs
        u, s, vh = SVD(False, True, self.on_error)(a)
        over = safe_ratio(like(1, s), s, le(s, _bound(s, a, self.rtol)))
        return [mm(adjoint(vh) * _in(row(over), a), adjoint(u))]

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        (a,), (y,), (g,) = inputs, outputs, cotangents
        yh, gh = adjoint(y), adjoint(g)
        left = mm(gh, y, yh)
        right = mm(yh, y, gh)
        return [left - mm(a, y, left) + right - mm(right, y, a) - mm(yh, g, yh)]


def _rtol_of(rtol: float | None, a: Array) -> float:
    return max(a.shape[-2:]) * float(np.finfo(a.dtype).eps) if rtol is None else rtol


def _bound(s: Variable, a: Variable, rtol: float | None) -> Variable:
    """The largest of the sorted values that counts as 0 (with a last axis of 1)."""
    m, n = dims_of(a)[-2:]
    if rtol is None:
        size = maximum(m, n) if isinstance(m, Variable) or isinstance(n, Variable) else max(m, n)
        eps = like(float(np.finfo(s.type.dtype).eps), s)
        factor = eps * (cast(size, s.type.dtype) if isinstance(size, Variable) else like(size, s))
    else:
        factor = like(rtol, s)
    first, last = (sum_(part, axis=-1, keepdims=True) for part in (s[..., :1], s[..., -1:]))
    return factor * maximum(first, last)


@dataclass(frozen=True)
class Lstsq(MatrixOp):
    """The shortest ``x`` that minimises ``|a x - b|``; ``rtol`` as for :class:`MatrixPinv`.

    (LAPACK's ``gelsd``.) Gradient: that of ``pinv(a) b``, Golub and Pereyra 1973.
    """

    rtol: float | None = None
    on_error: str = "raise"

    def dims(self, *matrices: tuple[Any, ...]) -> Sequence[tuple[Any, ...]]:
        (m, n), (rows, k) = matrices
        known = [d for d in (m, rows) if d is not None]
        if known:
            same_dim(self, known, "as many rows of b as of a", matrices)
        return [(n, k)]

    def _one(self, a: Array, b: Array) -> Any:
        return np.linalg.lstsq(a, b, _rtol_of(self.rtol, a))[0]

    def reference(self, a: Array, b: Array) -> Array:
        if a.shape[-2] != b.shape[-2]:
            raise ShapeMismatch(self, "as many rows of b as of a", [a.shape, b.shape])
        made = [((a.shape[-1], b.shape[-1]), a.dtype)]
        return each_matrix(self, self._one, _NO_VALUES, made, a, b)[0]

    def parts(self, inputs: Vars) -> list[Variable]:
        """The expression in other ops."""
        a, b = inputs
        u, s, vh = SVD(False, True, self.on_error)(a)
        over = safe_ratio(like(1, s), s, le(s, _bound(s, a, self.rtol)))
        return [mm(adjoint(vh), _in(column(over), a) * mm(adjoint(u), b))]

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        (a, b), (x,), (g,) = inputs, outputs, cotangents
        y = MatrixPinv(self.rtol, self.on_error)(a)
        yh = adjoint(y)
        db = mm(yh, g)
        da = -mm(db, adjoint(x)) + mm(b - mm(a, x), adjoint(mm(y, db)))
        da = da + mm(mm(yh, x), adjoint(g - mm(y, a, g)))
        return [unbroadcast(da, a), unbroadcast(db, b)]


# -- builders -------------------------------------------------------------------------------------


def svd(
    a: TensorLike, full_matrices: bool = True, compute_uv: bool = True, check: bool = True
) -> Any:
    """Singular values of matrices (..., m, n): ``u, s, vh`` with ``a = u @ diag(s) @ vh``.

    Args:
        full_matrices: ``u`` is (..., m, m) and ``vh`` (..., n, n), else (..., m, k) and
            (..., k, n) with k = min(m, n). Gradients by ``u`` and ``vh`` need False, unless m = n.
        check: raise :class:`~symdnn.errors.LinAlgError` for a matrix with NaN, else the result is
            NaN.

    Without ``compute_uv`` ``s`` alone is returned.
    ``s`` (..., k) is real and descending. The signs (complex: phases) of pairs of vectors are
    arbitrary, and so are the vectors of equal singular values: gradients are right for costs that
    do not depend on that choice, and finite for all. (``numpy.linalg.svd``.)
    """
    return SVD(bool(full_matrices), bool(compute_uv), on_error(check))(matrix_of("svd", a))


def svdvals(a: TensorLike, check: bool = True) -> Variable:
    """The singular values of matrices (..., m, n), descending. (``numpy.linalg.svdvals``.)"""
    found: Variable = svd(a, False, False, check)
    return found


def pinv(a: TensorLike, rtol: float | None = None, check: bool = True) -> Variable:
    """The pseudoinverse (..., n, m) of matrices (..., m, n).

    Singular values of at most ``rtol`` times the largest are 0; None is eps times the larger of m
    and n. The gradient is that for a constant rank. (``numpy.linalg.pinv``.)
    """
    least = None if rtol is None else as_number("pinv: rtol", rtol)
    return MatrixPinv(least, on_error(check))(matrix_of("pinv", a))


def lstsq(
    a: TensorLike, b: TensorLike, rcond: float | None = None, check: bool = True
) -> tuple[Variable, Variable, Variable, Variable]:
    """Least squares: ``x, residuals, rank, s`` for matrices ``a`` (..., m, n).

    ``b`` is a vector (m,) or matrices (..., m, k). ``x`` is the shortest of the best solutions.
    The residuals are ``|a x - b|^2`` of each column, also where NumPy gives an empty array. The
    rank counts the singular values ``s`` above ``rcond`` times the largest (None: eps times the
    larger of m and n). (``numpy.linalg.lstsq``.)
    """
    rtol = None if rcond is None else as_number("lstsq: rcond", rcond)
    m, v, as_given = system("lstsq", a, b)
    x = Lstsq(rtol, on_error(check))(m, v)
    residual = sum_(sqr(abs_(v - mm(m, x))), axis=-2)
    s = svdvals(m, check)
    rank = sum_(gt(s, _bound(s, m, rtol)), axis=-1)
    return as_given(x), as_given(residual), rank, s


def matrix_rank(
    A: TensorLike, tol: TensorLike | None = None, hermitian: bool = False,
    rtol: float | None = None,
) -> Variable:  # fmt: skip
    """The number of singular values of matrices (..., m, n) above ``tol``, an int64.

    ``tol`` None is ``rtol`` (None: eps times the larger size) times the largest singular value.
    ``hermitian``: they are the moduli of eigenvalues. (``numpy.linalg.matrix_rank``.)
    """
    from symdnn.ops.matrix.eigen import eigvalsh

    a = matrix_of("matrix_rank", A)
    s = abs_(eigvalsh(a)) if hermitian else svdvals(a)
    return sum_(gt(s, _bound(s, a, rtol) if tol is None else tol), axis=-1)
