"""Determinants, their logarithms, and adjugates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import OptionError
from symdnn.graph.op import Grads, Vars
from symdnn.graph.operators import operator
from symdnn.graph.typing import Array, TensorLike
from symdnn.graph.variable import Variable
from symdnn.ops.array.create import Diagonal, alloc_diag, eye
from symdnn.ops.array.reduce import prod
from symdnn.ops.array.reduce import sum as sum_
from symdnn.ops.core.composed import vjp_of_expression
from symdnn.ops.core.shape import shape_i
from symdnn.ops.elementwise.arithmetic import Abs, Sgn, true_div
from symdnn.ops.elementwise.comparison import le, neq, switch
from symdnn.ops.elementwise.math import log
from symdnn.ops.elemwise import conjugate, like, pad_left
from symdnn.ops.matrix.base import (
    MatrixOp,
    adjoint,
    column,
    each_matrix,
    matrix_of,
    mm,
    on_error,
    real_dtype,
    row,
    square_dim,
    triangle_gradient,
)
from symdnn.ops.matrix.cholesky import Cholesky
from symdnn.ops.matrix.solve import MatrixInverse, Solve
from symdnn.ops.matrix.svd import SVD

__all__ = [
    "Adjugate",
    "AdjugateGrad",
    "Det",
    "PositiveLogDet",
    "SLogDet",
    "det",
    "sign_and_log",
    "slogdet",
]


@dataclass(frozen=True)
class Det(MatrixOp):
    """The determinant of each matrix. (LAPACK's ``getrf``; Theano's ``Det``.)

    Gradient: Giles 2008, section 2.2.4, with the adjugate, which singular matrices have too.
    """

    def dims(self, *matrices: tuple[Any, ...]) -> Sequence[tuple[Any, ...]]:
        square_dim(self, matrices[0])
        return [()]

    def reference(self, a: Array) -> Array:
        return np.asarray(np.linalg.det(a))

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        return [column(column(cotangents[0])) * adjoint(Adjugate()(inputs[0]))]


@dataclass(frozen=True)
class Adjugate(MatrixOp):
    """``det(a) inv(a)``, which singular matrices have too: their gradient of ``det``.

    From the singular values: G. W. Stewart, "On the adjugate matrix", 1998, equation 2. A
    processor takes these of matrices that are near to singular; up to three rows have minors.
    """

    def reference(self, a: Array) -> Array:
        made = [(a.shape[-2:], a.dtype)]
        wide = a.astype(np.result_type(a, np.float64), copy=False)
        return each_matrix(self, adjugates, "not finite", made, wide, at_once=True)[0]

    on_error: ClassVar[str] = "nan"  # type: ignore[misc]

    def parts(self, inputs: Vars) -> list[Variable]:
        """The expression in other ops."""
        (a,) = inputs
        u, s, vh = SVD(False, True, "nan")(a)
        n = shape_i(s, -1)
        others = prod(switch(eye(n, dtype="bool"), like(1, s), row(s)), axis=-1)
        sign = column(column(Det()(u) * Det()(vh)))
        return [sign * mm(adjoint(vh) * row(others), adjoint(u))]

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        return [AdjugateGrad()(inputs[0], cotangents[0])]


#: The condition up to which the adjugate is that of the inverse, whose error grows with it.
_WELL_CONDITIONED = 1e5
#: The least determinant that has all its digits.
_LEAST_DETERMINANT = 1e-290


def adjugates(a: Array) -> Array:
    """The adjugate of each matrix of a stack in double precision."""
    rows = a.shape[-1]
    if rows <= 3:
        return _minors(a)
    size, identity = np.linalg.det(a), np.eye(rows)
    regular = np.isfinite(size) & (np.abs(size) > _LEAST_DETERMINANT)
    inverse = np.linalg.inv(np.where(regular[..., None, None], a, identity))
    norms = [np.abs(m).sum(-1).max(-1) for m in (a, inverse)]
    regular &= norms[0] * norms[1] < _WELL_CONDITIONED
    found: Array = np.where(regular, size, 0)[..., None, None] * inverse
    found[~regular] = _by_singular_values(a[~regular])
    return found


def _minors(a: Array) -> Array:
    """The adjugates of matrices of up to three rows, whose minors are a few products."""
    if a.shape[-1] < 2:
        return np.ones_like(a)
    if a.shape[-1] == 2:
        swapped: Array = a[..., ::-1, ::-1].swapaxes(-1, -2) * np.array([[1, -1], [-1, 1]])
        return swapped
    turned = np.roll(a, -1, -2), np.roll(a, -2, -2)
    crossed: Array = np.cross(*turned)
    return crossed.swapaxes(-1, -2)


def _by_singular_values(a: Array) -> Array:
    u, s, vh = np.linalg.svd(a)
    others = np.where(np.eye(s.shape[-1], dtype=bool), 1, s[..., None, :]).prod(-1)
    sign = (np.linalg.det(u) * np.linalg.det(vh))[..., None, None]
    adjoints = (m.conj().swapaxes(-1, -2) for m in (vh * others[..., None], u))
    found: Array = sign * np.matmul(*adjoints)
    return found


@dataclass(frozen=True)
class AdjugateGrad(MatrixOp):
    """The gradient of :class:`Adjugate` for the cotangent ``g``, which singular matrices have too.

    In the bases of the singular vectors ``adj(diag(s) + h)`` is linear in small ``h``: with
    ``p_ij``, the product of all ``s`` but ``s_i`` and ``s_j``, its element ``ij`` is
    ``-p_ij h_ij``, and its element ``ii`` the sum of ``p_ij h_jj`` over ``j != i``. Gradients of
    this op are those of the formula for regular matrices.
    """

    on_error: ClassVar[str] = "nan"  # type: ignore[misc]

    def _one(self, a: Array, g: Array) -> Any:
        u, s, vh = np.linalg.svd(a)
        different = ~np.eye(len(s), dtype=bool)
        others = different[:, None, :] & different[None, :, :]
        pairs = np.where(others, s, 1).prod(-1) * different
        sign = (np.linalg.det(u) * np.linalg.det(vh)).conj()
        inner = sign * vh @ g @ u
        return u @ (np.diag(pairs @ np.diagonal(inner)) - pairs * inner) @ vh

    def reference(self, a: Array, g: Array) -> Array:
        made = [(a.shape[-2:], a.dtype)]
        return each_matrix(self, self._one, "not finite", made, a, g)[0]

    def parts(self, inputs: Vars) -> list[Variable]:
        """The expression in other ops, of n^2 numbers: ``p_ij`` by quotients.

        Singular values far below the rounding error of their sum count as 0: of two of them
        the product may be 0, and then the quotient, too.
        """
        a, g = inputs
        u, s, vh = SVD(False, True, "nan")(a)
        floor = float(np.finfo(s.type.numpy).eps) ** 1.5
        zero = le(s, like(floor, s) * sum_(s, axis=-1, keepdims=True))
        factors = switch(zero, like(1, s), s)
        others = sum_(zero, axis=-1, keepdims=True) - zero.astype("int64")
        missing = neq(column(others), row(zero.astype("int64")))
        missing = missing | eye(shape_i(s, -1), dtype="bool")
        quotients = column(true_div(prod(factors, axis=-1, keepdims=True), factors)) / row(factors)
        pairs = switch(missing, like(0, s), quotients).astype(a.type.dtype)
        sign = conjugate(column(column(Det()(u) * Det()(vh))))
        inner = sign * mm(vh, g, u)
        sums = mm(pairs, column(Diagonal()(inner)))[..., 0]
        return [mm(u, alloc_diag(sums) - pairs * inner, vh)]

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        def regular(a: Variable, g: Variable) -> Any:
            size, y = conjugate(column(column(Det()(a)))), adjoint(MatrixInverse("nan")(a))
            trace = column(column(sum_(Diagonal()(mm(adjoint(g), adjoint(y))), axis=-1)))
            return size * (conjugate(trace) * y - mm(y, g, y))

        return vjp_of_expression(regular, inputs, cotangents[0])


@dataclass(frozen=True)
class SLogDet(MatrixOp):
    """Sign and logarithm of the modulus of each determinant: (0, -inf) of a singular matrix.

    Gradient: Giles 2008, section 2.2.4; of the complex sign by ``d log(det) = tr(inv(a) da)``.
    """

    out_dtypes: ClassVar[Any] = {1: real_dtype}

    def dims(self, *matrices: tuple[Any, ...]) -> Sequence[tuple[Any, ...]]:
        square_dim(self, matrices[0])
        return [(), ()]

    def reference(self, a: Array) -> Any:
        sign, value = np.linalg.slogdet(a)
        return np.asarray(sign), np.asarray(value)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Grads) -> Grads:
        (a,), (sign, _), (of_sign, of_log) = inputs, outputs, cotangents
        slope = of_log
        if a.type.is_complex and of_sign is not None:
            turn = -(conjugate(of_sign) * sign).imag
            slope = operator("complex")(turn.zeros_like() if of_log is None else of_log, turn)
        if slope is None:
            return [a.zeros_like()]
        return [column(column(slope)) * adjoint(MatrixInverse("nan")(a))]


@dataclass(frozen=True)
class PositiveLogDet(MatrixOp):
    """The logarithm of the determinant of positive definite matrices, of which a triangle is read.

    It is the sum of logarithms of the Cholesky factor's diagonal. Gradient: the inverse, by the
    same factor.
    """

    lower: bool = True
    on_error: str = "raise"
    out_dtypes: ClassVar[Any] = {0: real_dtype}

    def dims(self, *matrices: tuple[Any, ...]) -> Sequence[tuple[Any, ...]]:
        square_dim(self, matrices[0])
        return [()]

    def reference(self, a: Array) -> Array:
        factor = Cholesky(self.lower, self.on_error).reference(a)
        diagonal = np.diagonal(factor, axis1=-2, axis2=-1).real
        return np.asarray(2 * np.log(diagonal).sum(-1), real_dtype(a.dtype.name))

    def parts(self, inputs: Vars) -> list[Variable]:
        """The expression in other ops."""
        (a,) = inputs
        diagonal = Diagonal()(Cholesky(self.lower, self.on_error)(a))
        value = sum_(log(diagonal.real if a.type.is_complex else diagonal), axis=-1)
        return [like(2, value) * value]

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        (a,) = inputs
        identity = eye(shape_i(a, -1), dtype=a.type.dtype)
        solved = Solve("positive_definite", self.lower, on_error=self.on_error)
        inverse = solved(a, pad_left(identity, a.type.ndim))
        slope = column(column(cotangents[0]))
        return [slope * triangle_gradient((inverse + adjoint(inverse)) / 2, self.lower)]


def sign_and_log(diagonal: Variable) -> list[Variable]:
    """Sign and logarithm of the modulus of the product of a diagonal."""
    size = Abs()(diagonal)
    if diagonal.type.is_complex:
        turns = true_div(diagonal, size.astype(diagonal.type.dtype))
    else:
        turns = Sgn()(diagonal)
    return [prod(turns, axis=-1), sum_(log(size), axis=-1)]


def det(a: TensorLike) -> Variable:
    """The determinant of square matrices (..., n, n); 1 of an empty one.

    Its logarithm is computed as :func:`slogdet`, which does not overflow. The gradient is that of
    the adjugate, so it is right at singular matrices too. (``numpy.linalg.det``.)
    """
    return Det()(matrix_of("det", a))


def slogdet(
    a: TensorLike, assume_a: str = "gen", lower: bool = True, check: bool = True
) -> tuple[Variable, Variable]:
    """Sign and logarithm of the modulus of the determinant of square matrices (..., n, n).

    ``assume_a="pos"``: the matrix is positive definite, and its Cholesky factor is used, which it
    shares with ``solve(a, b, assume_a="pos", lower=...)``; ``lower`` and ``check`` are those of
    :func:`~symdnn.tensor.linalg.cholesky`. Else a singular matrix has (0, -inf).
    (``numpy.linalg.slogdet``.)

    >>> from symdnn.graph.evaluate import evaluate
    >>> sign, value = slogdet(np.diag([-1e200, 1e200]))
    >>> [round(float(v), 3) for v in evaluate([sign, value], {})]
    [-1.0, 921.034]
    """
    m = matrix_of("slogdet", a)
    if assume_a == "gen":
        return SLogDet()(m)  # type: ignore[return-value]
    if assume_a != "pos":
        raise OptionError(f"slogdet: assume_a is 'gen' or 'pos', got {assume_a!r}")
    value = PositiveLogDet(bool(lower), on_error(check))(m)
    return value.ones_like().astype(m.type.dtype), value
