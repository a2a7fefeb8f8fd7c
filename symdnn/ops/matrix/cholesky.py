"""Cholesky factors of positive definite matrices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from symdnn.errors import OptionError
from symdnn.graph.op import Grads, Vars
from symdnn.graph.typing import Array, TensorLike
from symdnn.graph.variable import Variable
from symdnn.ops.array.create import tril
from symdnn.ops.matrix.base import (
    MatrixOp,
    adjoint,
    each_matrix,
    matrix_of,
    mm,
    on_error,
    triangle_gradient,
)
from symdnn.ops.matrix.solve import Solve, solve_triangular, system
from symdnn.options import as_list

__all__ = ["Cholesky", "cho_factor", "cho_solve", "cholesky"]


@dataclass(frozen=True)
class Cholesky(MatrixOp):
    """The triangular factor of each positive definite matrix, of which one triangle is read.

    ``lower``: the lower triangle ``l`` with ``l l^H = a``, else the upper one ``u`` with
    ``u^H u = a``. (LAPACK's ``potrf``; Theano's ``Cholesky``.)

    Gradient: S. P. Smith, "Differentiation of the Cholesky algorithm", 1995, in the form of
    I. Murray, "Differentiation of the Cholesky decomposition", 2016, section 2.2.
    """

    lower: bool = True
    on_error: str = "raise"

    def _one(self, a: Array) -> Array:
        whole = a if self.lower else np.swapaxes(a, -1, -2).conj()
        factor = np.linalg.cholesky(whole)
        # A NaN of the matrix is on the diagonal of the factor; not every LAPACK reports it.
        if np.isnan(np.einsum("...ii", factor)).any():
            raise np.linalg.LinAlgError
        return factor if self.lower else np.swapaxes(factor, -1, -2).conj()

    def reference(self, a: Array) -> Array:
        what = "not positive definite"
        return each_matrix(self, self._one, what, [(a.shape[-2:], a.dtype)], a, at_once=True)[0]

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        (c,), (g,) = outputs, cotangents
        if not self.lower:
            c, g = adjoint(c), adjoint(g)
        inner = mm(adjoint(c), g)
        half = (tril(inner) + tril(inner, -1)) / 2
        left = _by_adjoint(c, half)
        whole = _by_adjoint(c, adjoint(left))
        return [triangle_gradient((whole + adjoint(whole)) / 2, self.lower)]


def _by_adjoint(c: Variable, b: Variable) -> Variable:
    """The solution of ``c^H x = b`` for a factor, whose diagonal is not 0."""
    return solve_triangular(c, b, trans="C", lower=True, check=False)


def cholesky(a: TensorLike, lower: bool = True, check: bool = True) -> Variable:
    """The Cholesky factor of positive definite matrices (..., n, n), symmetric or Hermitian.

    Only the lower triangle of ``a`` is read, or the upper one without ``lower``; gradients are 0
    in the other one. The diagonal of the factor is positive.

    Args:
        lower: the lower triangle ``l`` with ``l l^H = a`` (``numpy.linalg.cholesky``), else the
            upper one ``u`` with ``u^H u = a`` (the default of ``scipy.linalg.cholesky``).
        check: raise :class:`~symdnn.errors.LinAlgError` for a matrix that is not positive
            definite, else its factor is NaN.

    >>> from symdnn.graph.evaluate import evaluate
    >>> evaluate([cholesky(np.array([[4.0, 2.0], [2.0, 5.0]]))], {})[0].tolist()
    [[2.0, 0.0], [1.0, 2.0]]
    """
    return Cholesky(bool(lower), on_error(check))(matrix_of("cholesky", a))


def cho_factor(a: TensorLike, lower: bool = False, check: bool = True) -> tuple[Variable, bool]:
    """The factor and ``lower``, as :func:`cho_solve` takes them. (``scipy.linalg.cho_factor``;
    here the other triangle is 0.)"""
    return cholesky(a, lower, check), bool(lower)


def cho_solve(c_and_lower: tuple[TensorLike, bool], b: TensorLike) -> Variable:
    """The solution of ``a x = b`` from the Cholesky factor of ``a``, given as (factor, lower).

    Shapes are as for :func:`~symdnn.tensor.linalg.solve`. (``scipy.linalg.cho_solve``.)
    """
    given = as_list("cho_solve: c_and_lower", c_and_lower, "the factor and whether it is lower")
    if len(given) != 2:
        raise OptionError(f"cho_solve: wanted a pair (factor, lower), got {len(given)} entries")
    factor, lower = given
    c, v, as_given = system("cho_solve", factor, b)
    first, then = ("N", "C") if lower else ("C", "N")
    half = solve_triangular(c, v, first, lower, check=False)
    return as_given(solve_triangular(c, half, then, lower, check=False))


def factored(op: Solve, a: Variable, b: Variable) -> Variable:
    """The solution of a positive definite system by its Cholesky factor."""
    from symdnn.ops.elemwise import conjugate

    c = Cholesky(op.lower, op.on_error)(a)
    if op.transposed:
        made: Variable = conjugate(cho_solve((c, op.lower), conjugate(b)))
        return made
    return cho_solve((c, op.lower), b)
