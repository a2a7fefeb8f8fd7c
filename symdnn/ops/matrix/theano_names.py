"""Linear algebra by Theano's conventions (``theano.tensor.nlinalg`` and ``slinalg``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from symdnn.errors import NdimMismatch, OptionError
from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.array import create
from symdnn.ops.elementwise.complexes import real
from symdnn.ops.matrix import eigen, functions, svd
from symdnn.ops.matrix.eigen import Eig, Eigvalsh
from symdnn.ops.matrix.qr import QR
from symdnn.ops.matrix.qr import qr as numpy_qr
from symdnn.ops.matrix.solve import MatrixInverse
from symdnn.ops.matrix.solve import Solve as SolveOp
from symdnn.ops.matrix.solve import solve as scipy_solve

__all__ = [
    "AllocDiag", "Eig_", "Eigvalsh_", "ExtractDiag", "Named", "QRFull", "QRIncomplete", "Solve",
    "TensorInv", "TensorSolve", "eig", "eigvalsh", "lstsq", "norm", "qr", "solve",
    "solve_lower_triangular", "solve_upper_triangular", "svd_", "trace",
]  # fmt: skip


class Named:
    """A class of Theano's whose ops are of another class here, or several.

    Calling it with Theano's arguments gives a function of variables; ``isinstance(node.op, it)``
    asks for the op that this makes.
    """

    def __init__(self, name: str, op: type, build: Callable[..., Any], doc: str = "") -> None:
        self.__name__, self._op, self._build = name, op, build
        self.__doc__ = doc

    def __call__(self, *arguments: Any, **options: Any) -> Callable[..., Any]:
        """The function of variables."""

        def apply(*variables: TensorLike) -> Any:
            return self._build(*arguments, **options)(*variables)

        self._build(*arguments, **options)  # wrong arguments are refused now
        return apply

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, self._op)

    def __repr__(self) -> str:
        return f"<{self.__name__}, as {self._op.__name__}>"


#: Theano's words for ``A_structure``, and SciPy's.
_STRUCTURES = {
    "general": "gen", "symmetric": "sym", "hermitian": "her",
    "lower_triangular": "lower triangular", "upper_triangular": "upper triangular",
}  # fmt: skip


def _solve(
    A_structure: str = "general", lower: bool = False, overwrite_A: bool = False,
    overwrite_b: bool = False,
) -> Callable[[TensorLike, TensorLike], Variable]:  # fmt: skip
    if A_structure not in _STRUCTURES:
        words = ", ".join(_STRUCTURES)
        raise OptionError(f"Solve: A_structure is one of {words}, got {A_structure!r}")
    return lambda a, b: scipy_solve(a, b, _STRUCTURES[A_structure], lower)


Solve = Named("Solve", SolveOp, _solve)


def solve(a: TensorLike, b: TensorLike) -> Variable:
    """The solution of ``a x = b`` for a vector or matrix ``b``. (Theano's ``slinalg.solve``.)"""
    return scipy_solve(a, b)


def solve_lower_triangular(a: TensorLike, b: TensorLike) -> Variable:
    """The solution of ``a x = b`` for a lower triangle ``a``; the other triangle is not read."""
    return scipy_solve(a, b, "lower triangular")


def solve_upper_triangular(a: TensorLike, b: TensorLike) -> Variable:
    """The solution of ``a x = b`` for an upper triangle ``a``; the other triangle is not read."""
    return scipy_solve(a, b, "upper triangular")


def eigvalsh(a: TensorLike, b: TensorLike | None, lower: bool = True) -> Variable:
    """Eigenvalues of the Hermitian ``a``; with a positive definite ``b`` of ``a v = b v w``."""
    return eigen.eigvalsh(a, "L" if lower else "U", True, b)


Eigvalsh_ = Named("Eigvalsh", Eigvalsh, lambda lower=True: lambda a, b=None: eigvalsh(a, b, lower))


def eig(a: TensorLike) -> tuple[Variable, Variable]:
    """Eigenvalues and eigenvectors of a matrix; of a real one their real parts, as in Theano.

    :func:`symdnn.tensor.linalg.eig` has the complex ones.
    """
    v = as_variable(a)
    found = eigen.eig(v)
    return found if v.type.is_complex else (real(found[0]), real(found[1]))


Eig_ = Named("Eig", Eig, lambda: eig)


def svd_(a: TensorLike, full_matrices: bool = True, compute_uv: bool = True) -> Any:
    """Singular values of a matrix, as :func:`symdnn.tensor.linalg.svd`."""
    return svd.svd(a, bool(full_matrices), bool(compute_uv))


def qr(a: TensorLike, mode: str = "reduced") -> Any:
    """The QR factorisation of a matrix, as :func:`symdnn.tensor.linalg.qr`.

    NumPy's old words: ``full`` is ``reduced``, ``economic`` is ``r``.
    """
    return numpy_qr(a, {"full": "reduced", "economic": "r"}.get(mode, mode))


QRFull = Named("QRFull", QR, lambda mode="reduced": lambda a: qr(a, mode))
QRIncomplete = Named("QRIncomplete", QR, lambda mode="r": lambda a: qr(a, mode))


def _lstsq(a: TensorLike, b: TensorLike, rcond: Any = None) -> Sequence[Variable]:
    number = None if rcond is None or rcond == -1 else float(as_variable(rcond).data)  # type: ignore[attr-defined]
    return svd.lstsq(a, b, number)


#: Theano's ``lstsq()(a, b, rcond)``: solution, residuals, rank, singular values.
lstsq = Named("lstsq", svd.Lstsq, lambda: _lstsq)


def trace(X: TensorLike) -> Variable:
    """The sum of the diagonal of a matrix."""
    return functions.trace(X)


def norm(x: TensorLike, ord: Any) -> Variable:
    """A norm of a vector or matrix by Theano's words: ``None``, ``"fro"``, ``"inf"``, ``"-inf"`` or
    a number."""
    v = as_variable(x)
    if v.type.ndim not in (1, 2):
        raise NdimMismatch("norm", "a vector or a matrix", v.type)
    return functions.norm(v, {"inf": float("inf"), "-inf": -float("inf")}.get(ord, ord))


TensorInv = Named("TensorInv", MatrixInverse, lambda ind=2: lambda a: functions.tensorinv(a, ind))
TensorSolve = Named(
    "TensorSolve", SolveOp, lambda axes=None: lambda a, b: functions.tensorsolve(a, b, axes)
)


def _diagonals_into(offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """The inverse of the op of diagonals: its last dimension over the axes of a new array."""

    def allocate(x: TensorLike) -> Variable:
        made = create.alloc_diag(x, offset)
        first, second = sorted((axis1 % made.type.ndim, axis2 % made.type.ndim))
        order = list(range(made.type.ndim - 2))
        order.insert(first, made.type.ndim - 2)
        order.insert(second, made.type.ndim - 1)
        return made.transpose(*order)

    return allocate


AllocDiag = Named("AllocDiag", create.AllocDiag, _diagonals_into)
ExtractDiag = Named(
    "ExtractDiag",
    create.Diagonal,
    lambda offset=0, axis1=0, axis2=1, view=False: (
        lambda x: create.diagonal(x, offset, axis1, axis2)
    ),
)
