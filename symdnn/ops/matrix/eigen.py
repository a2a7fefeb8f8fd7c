"""Eigenvalues and eigenvectors, of Hermitian matrices and of general ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import OptionError
from symdnn.graph.op import Grads, Vars
from symdnn.graph.typing import Array, TensorLike
from symdnn.graph.variable import Variable
from symdnn.ops.array.create import Diagonal, alloc_diag
from symdnn.ops.core.dtype import promote
from symdnn.ops.elemwise import like
from symdnn.ops.matrix.base import (
    MatrixOp,
    adjoint,
    column,
    each_matrix,
    hermitian_of,
    matrices,
    matrix_of,
    mm,
    on_error,
    real_dtype,
    row,
    safe_ratio,
    square_dim,
    triangle_gradient,
)
from symdnn.ops.matrix.cholesky import cholesky
from symdnn.ops.matrix.solve import Solve, solve_triangular
from symdnn.ops.matrix.svd import negligible

__all__ = ["Eig", "Eigh", "Eigvalsh", "eig", "eigh", "eigvals", "eigvalsh"]

_numpy_eigh: Any = np.linalg.eigh
_numpy_eigvalsh: Any = np.linalg.eigvalsh
_NO_EIGENVALUES = "without eigenvalues (NaN?)"


def _check_finite(op: Hermitian, a: Array) -> None:
    """LAPACK gives some small matrices with a NaN finite eigenvalues, without a status."""
    if np.isfinite(a).all():
        return
    if not np.isfinite(np.tril(a) if op.UPLO == "L" else np.triu(a)).all():
        raise np.linalg.LinAlgError


@dataclass(frozen=True)
class Hermitian(MatrixOp):
    """Base of ops on Hermitian matrices, of which the triangle ``UPLO`` is read."""

    abstract: ClassVar[bool] = True
    out_dtypes: ClassVar[Any] = {0: real_dtype}
    UPLO: str = "L"
    on_error: str = "raise"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.UPLO not in ("L", "U"):
            raise OptionError(f"{type(self).__name__}: UPLO is 'L' or 'U', got {self.UPLO!r}")


class Eigh(Hermitian):
    """Eigenvalues, ascending, and eigenvectors (columns) of Hermitian matrices.

    (LAPACK's ``syevd`` and ``heevd``; Theano's ``Eigh``.)

    Gradients: Giles 2008, section 3.1; complex: C. Boeddeker et al., "On the computation of
    complex-valued gradients with application to statistically optimum beamforming", 2017. Terms of
    equal eigenvalues are left out, as in :class:`~symdnn.ops.matrix.svd.SVD`.
    """

    def dims(self, *matrices: tuple[Any, ...]) -> Sequence[tuple[Any, ...]]:
        n = square_dim(self, matrices[0])
        return [(n,), (n, n)]

    def reference(self, a: Array) -> Any:
        n = a.shape[-1]
        made = [((n,), real_dtype(a.dtype.name)), ((n, n), a.dtype)]

        def function(x: Array) -> Any:
            _check_finite(self, x)
            return _numpy_eigh(x, self.UPLO)

        return tuple(each_matrix(self, function, _NO_EIGENVALUES, made, a, at_once=True))

    def comparable(self, results: Sequence[Any]) -> Sequence[Any]:
        w, v = results
        return [w, (v * w[..., None, :]) @ np.conj(np.swapaxes(v, -1, -2))]

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Grads) -> Grads:
        (w, v), (dw, dv) = outputs, cotangents
        vh, inner = adjoint(v), None
        if dw is not None:
            inner = alloc_diag(dw.astype(v.type.dtype))
        if dv is not None:
            gap = row(w) - column(w)
            over = safe_ratio(like(1, w), gap, negligible(gap, w))
            turn = mm(vh, dv)
            term = (turn - adjoint(turn)) * (over / 2).astype(v.type.dtype)
            inner = term if inner is None else inner + term
        assert inner is not None, "no cotangent"
        return [triangle_gradient(mm(v, inner, vh), self.UPLO == "L")]


class Eigvalsh(Hermitian):
    """The eigenvalues of Hermitian matrices, ascending. (LAPACK's ``syevd``; Theano's
    ``Eigvalsh``.)"""

    def dims(self, *matrices: tuple[Any, ...]) -> Sequence[tuple[Any, ...]]:
        return [(square_dim(self, matrices[0]),)]

    def reference(self, a: Array) -> Array:
        made = [((a.shape[-1],), real_dtype(a.dtype.name))]

        def function(x: Array) -> Any:
            _check_finite(self, x)
            return _numpy_eigvalsh(x, self.UPLO)

        return each_matrix(self, function, _NO_EIGENVALUES, made, a, at_once=True)[0]

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        _, v = Eigh(self.UPLO, self.on_error)(inputs[0])
        weighted = v * row(cotangents[0]).astype(v.type.dtype)
        return [triangle_gradient(mm(weighted, adjoint(v)), self.UPLO == "L")]


def _complex_dtype(dtype: str) -> str:
    return promote(dtype, "complex64")


@dataclass(frozen=True)
class Eig(MatrixOp):
    """Eigenvalues, in no order, and eigenvectors (columns of length 1), which are complex; or the
    eigenvalues alone, without ``compute_v``. (LAPACK's ``geev``.)

    Gradients: Giles 2008, section 3.1; Boeddeker et al. 2017, equation 4.77. Terms of equal
    eigenvalues are left out. The phases of the vectors are arbitrary: a cost must not depend on
    them.
    """

    compute_v: bool = True
    on_error: str = "raise"
    out_dtypes: ClassVar[Any] = {0: _complex_dtype, 1: _complex_dtype}

    def dims(self, *matrices: tuple[Any, ...]) -> Sequence[tuple[Any, ...]]:
        n = square_dim(self, matrices[0])
        return [(n,), (n, n)] if self.compute_v else [(n,)]

    def reference(self, a: Array) -> Any:
        n, dtype = a.shape[-1], _complex_dtype(a.dtype.name)
        made: list[tuple[Any, Any]] = [((n,), dtype), ((n, n), dtype)]
        function = np.linalg.eig if self.compute_v else np.linalg.eigvals
        count = 2 if self.compute_v else 1
        made = made[:count]
        return tuple(each_matrix(self, function, _NO_EIGENVALUES, made, a, at_once=True))

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Grads) -> Grads:
        (a,), dw = inputs, cotangents[0]
        w, v = outputs if self.compute_v else Eig(True, self.on_error)(a)
        dv = cotangents[1] if self.compute_v else None
        vh, inner = adjoint(v), None
        if dw is not None:
            inner = alloc_diag(dw)
        if dv is not None:
            turn = mm(vh, dv)
            lengths = row(Diagonal()(turn).real).astype(v.type.dtype)
            gap = (row(w) - column(w)).conj()
            term = safe_ratio(turn - mm(vh, v * lengths), gap, negligible(abs(gap), abs(w)))
            inner = term if inner is None else inner + term
        assert inner is not None, "no cotangent"
        found = Solve("general", on_error="nan")(vh, mm(inner, vh))
        return [found if a.type.is_complex else found.real]


# -- builders -------------------------------------------------------------------------------------


def eigh(
    a: TensorLike, UPLO: str = "L", check: bool = True, b: TensorLike | None = None
) -> tuple[Variable, Variable]:
    """Eigenvalues (..., n), ascending, and eigenvectors (..., n, n), columns, of Hermitian ``a``.

    Args:
        UPLO: the triangle of ``a`` that is read, ``"L"`` or ``"U"``.
        check: as for :func:`~symdnn.tensor.linalg.svd`.
        b: a positive definite matrix of the generalised problem (``scipy.linalg.eigh``).

    With ``b`` it is ``a v = b v diag(w)``, and ``v^H b v`` is the identity.
    Signs (complex: phases) of eigenvectors are arbitrary: see
    :func:`~symdnn.tensor.linalg.svd` for what that means for gradients. (``numpy.linalg.eigh``.)

    >>> from symdnn.graph.evaluate import evaluate
    >>> w, v = eigh(np.array([[2.0, 1.0], [1.0, 2.0]]))
    >>> evaluate([w], {})[0].round(6).tolist()
    [1.0, 3.0]
    """
    if b is None:
        return Eigh(UPLO, on_error(check))(matrix_of("eigh", a))  # type: ignore[return-value]
    factor, reduced = _standard("eigh", a, b, UPLO, check)
    w, v = Eigh("L", on_error(check))(reduced)
    return w, solve_triangular(factor, v, trans="C", lower=True, check=False)


def eigvalsh(
    a: TensorLike, UPLO: str = "L", check: bool = True, b: TensorLike | None = None
) -> Variable:
    """The eigenvalues of :func:`eigh` alone. (``numpy.linalg.eigvalsh``.)"""
    if b is None:
        return Eigvalsh(UPLO, on_error(check))(matrix_of("eigvalsh", a))
    _, reduced = _standard("eigvalsh", a, b, UPLO, check)
    return Eigvalsh("L", on_error(check))(reduced)


def _standard(name: str, a: Any, b: Any, uplo: str, check: bool) -> tuple[Variable, Variable]:
    """The factor ``l`` of ``b``, and ``inv(l) a inv(l)^H``."""
    m, metric = matrices(name, a, b)
    whole = hermitian_of(m, uplo == "L")
    factor = cholesky(metric, uplo == "L", check)
    factor = factor if uplo == "L" else adjoint(factor)
    half = solve_triangular(factor, whole, lower=True, check=False)
    return factor, solve_triangular(factor, adjoint(half), lower=True, check=False)


def eig(a: TensorLike, check: bool = True) -> tuple[Variable, Variable]:
    """Eigenvalues (..., n) and eigenvectors (..., n, n), columns, of square matrices.

    Both are complex always (NumPy's are real where all happen to be). Their order and the phases
    of the vectors are arbitrary; gradients are right for costs that do not depend on the phases.
    ``check``: raise :class:`~symdnn.errors.LinAlgError` for a matrix with NaN, else the result is
    NaN. (``numpy.linalg.eig``.)
    """
    return Eig(True, on_error(check))(matrix_of("eig", a))  # type: ignore[return-value]


def eigvals(a: TensorLike, check: bool = True) -> Variable:
    """The eigenvalues of :func:`eig` alone. (``numpy.linalg.eigvals``.)"""
    return Eig(False, on_error(check))(matrix_of("eigvals", a))
