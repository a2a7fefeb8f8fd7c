"""Solutions of linear systems, and inverses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import OptionError
from symdnn.graph.dims import same_dim
from symdnn.graph.names.torch_words import torch_words
from symdnn.graph.op import Grads, Vars
from symdnn.graph.typing import Array, TensorLike
from symdnn.graph.variable import Variable
from symdnn.ops.array.create import Diagonal, tril, triu
from symdnn.ops.array.reduce import all as all_
from symdnn.ops.core.gradient_control import zero_grad
from symdnn.ops.elementwise.comparison import neq
from symdnn.ops.elemwise import conjugate, pad_left, unbroadcast
from symdnn.ops.matrix.base import (
    MatrixOp,
    adjoint,
    column,
    each_matrix,
    matrices,
    matrix_of,
    mm,
    on_error,
    square_dim,
    transposed,
    triangle_gradient,
)

__all__ = ["STRUCTURES", "MatrixInverse", "Solve", "inv", "solve", "solve_triangular", "system"]

#: What is known of the matrix of a :class:`Solve`. Of the last four one triangle is read.
STRUCTURES = (
    "general", "hermitian", "positive_definite", "lower_triangular", "upper_triangular",
)  # fmt: skip
_SELF_ADJOINT = ("hermitian", "positive_definite")


@dataclass(frozen=True)
class Solve(MatrixOp):
    """The solution ``x`` of ``a x = b``, or of ``a.T x = b`` (``transposed``); ``b`` is a matrix.

    ``A_structure`` is one of :data:`STRUCTURES`. ``lower`` says which triangle of a Hermitian or
    positive definite matrix is read; real Hermitian matrices are symmetric. A Hermitian matrix
    is tried as a positive definite one first. With ``unit_diagonal`` the diagonal of a triangular
    matrix is taken as 1 and not read. (LAPACK's ``gesv``, ``posv``, ``trtrs``; Theano's ``Solve``.)

    Gradients: M. B. Giles, "Collected matrix derivative results for forward and reverse mode
    algorithmic differentiation", 2008, section 2.2.
    """

    A_structure: str = "general"
    lower: bool = True
    transposed: bool = False
    unit_diagonal: bool = False
    on_error: str = "raise"
    singular: ClassVar[str] = "singular"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.A_structure not in STRUCTURES:
            words = ", ".join(STRUCTURES)
            raise OptionError(f"Solve: A_structure is one of {words}, got {self.A_structure!r}")

    @property
    def triangular(self) -> bool:
        """Whether the matrix is a triangle."""
        return self.A_structure.endswith("triangular")

    @property
    def reads_lower(self) -> bool:
        """Whether the triangle that is read is the lower one."""
        return self.A_structure == "lower_triangular" if self.triangular else self.lower

    @property
    def problem(self) -> str:
        """What a matrix is for which there is no solution."""
        pos = self.A_structure == "positive_definite"
        return "not positive definite" if pos else "singular"

    def dims(self, *matrices: tuple[Any, ...]) -> Sequence[tuple[Any, ...]]:
        a, b = matrices
        square_dim(self, a)
        known = [d for d in (*a, b[0]) if d is not None]
        wanted = "as many rows of b as the square matrix a has"
        return [(same_dim(self, known, wanted, [a, b]) if known else None, b[1])]

    def whole(self, a: Any) -> Any:
        """The matrix that the part of ``a`` stands for which is read (an array)."""
        if self.A_structure == "general":
            return a
        part = np.tril(a) if self.reads_lower else np.triu(a)
        diagonal = np.einsum("...ii->...i", part)
        if self.unit_diagonal:
            diagonal[...] = 1
        if self.triangular:
            return part
        diagonal[...] = diagonal.real
        other = np.tril(a, -1) if self.lower else np.triu(a, 1)
        return part + np.swapaxes(other, -1, -2).conj()

    def _one(self, a: Array, b: Array) -> Any:
        diagonal = np.diagonal(a, axis1=-2, axis2=-1)
        if self.triangular and not self.unit_diagonal and not diagonal.all():
            raise np.linalg.LinAlgError
        whole = self.whole(a)
        if self.A_structure == "positive_definite":
            np.linalg.cholesky(whole)
        return np.linalg.solve(np.swapaxes(whole, -1, -2) if self.transposed else whole, b)

    def reference(self, a: Array, b: Array) -> Array:
        made = [(b.shape[-2:], b.dtype)]
        return each_matrix(self, self._one, self.problem, made, a, b, at_once=True)[0]

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        (a, b), (x,), (g,) = inputs, outputs, cotangents
        if self.A_structure in _SELF_ADJOINT:
            if self.transposed:
                db = conjugate(replace(self, transposed=False)(a, conjugate(g)))
            else:
                db = self(a, g)
        else:
            db = conjugate(replace(self, transposed=not self.transposed)(a, conjugate(g)))
        da = -mm(conjugate(x), transposed(db)) if self.transposed else -mm(db, adjoint(x))
        return [unbroadcast(self.of_part(da), a), unbroadcast(db, b)]

    def of_part(self, da: Variable) -> Variable:
        """The gradient with respect to what is read, from that of the whole matrix."""
        if self.A_structure == "general":
            return da
        if self.triangular:
            edge = 1 if self.unit_diagonal else 0
            return tril(da, -edge) if self.reads_lower else triu(da, edge)
        return triangle_gradient((da + adjoint(da)) / 2, self.lower)


@dataclass(frozen=True)
class MatrixInverse(MatrixOp):
    """The inverse of each matrix. (LAPACK's ``getri``; Theano's ``MatrixInverse``.)

    Gradient: Giles 2008, section 2.2.3.
    """

    on_error: str = "raise"

    def reference(self, a: Array) -> Array:
        return each_matrix(
            self, np.linalg.inv, "singular", [(a.shape[-2:], a.dtype)], a, at_once=True
        )[0]

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        y = adjoint(outputs[0])
        return [-mm(y, cotangents[0], y)]

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        (y,), (t,) = outputs, tangents
        return [None if t is None else -mm(y, t, y)]


# -- builders -------------------------------------------------------------------------------------

#: SciPy's words for ``assume_a``, and the structures that they are.
_ASSUMED = {
    "gen": "general", "general": "general", "her": "hermitian", "hermitian": "hermitian",
    "pos": "positive_definite", "positive definite": "positive_definite",
    "lower triangular": "lower_triangular", "upper triangular": "upper_triangular",
    "sym": "symmetric", "symmetric": "symmetric", "diagonal": "diagonal",
}  # fmt: skip


def solve(
    a: TensorLike, b: TensorLike, assume_a: str = "gen", lower: bool = False,
    transposed: bool = False, check: bool = True,
) -> Variable:  # fmt: skip
    """The solution of ``a x = b`` for each matrix of a stack.

    ``a`` has the shape (..., n, n), ``b`` is a vector (n,) or matrices (..., n, k). Leading
    dimensions broadcast, where they are statically 1.

    Args:
        assume_a: what is known of ``a``, in SciPy's words: ``gen``, ``sym``, ``her``, ``pos``,
            ``diagonal``, ``lower triangular`` or ``upper triangular``. Of all but ``gen`` only one
            triangle is read, by default the upper one; ``lower`` says that it is the lower one.
        check: raise :class:`~symdnn.errors.LinAlgError` for a matrix that is singular, or not
            positive definite where ``assume_a="pos"``; else its solution is NaN.

    With ``transposed`` it is the solution of ``a.T x = b``.
    Several solutions with one matrix share its factors.
    (``numpy.linalg.solve``, ``scipy.linalg.solve``.)

    >>> from symdnn.graph.evaluate import evaluate
    >>> x = solve(np.array([[2.0, 0.0], [0.0, 4.0]]), np.array([1.0, 1.0]))
    >>> evaluate([x], {})[0].tolist()
    [0.5, 0.25]
    """
    if assume_a not in _ASSUMED:
        raise OptionError(f"solve: assume_a is one of {', '.join(_ASSUMED)}, got {assume_a!r}")
    structure = _ASSUMED[assume_a]
    m, v, as_given = system("solve", a, b)
    if structure == "diagonal":
        return as_given(_by_diagonal(m, v, on_error(check)))
    if structure == "symmetric":
        if m.type.is_complex:
            half = tril(m, -1) if lower else triu(m, 1)
            m = half + (tril(m) if lower else triu(m)).swapaxes(-1, -2)
        structure = "general" if m.type.is_complex else "hermitian"
    part = bool(lower) if structure in _SELF_ADJOINT else True
    return as_given(Solve(structure, part, bool(transposed), False, on_error(check))(m, v))


def _by_diagonal(m: Variable, b: Variable, on_error: str) -> Variable:
    """``b`` over the diagonal. A system of size 1 for each matrix, with the answer 1, is what
    raises or gives NaN for a diagonal with a 0."""
    d = Diagonal()(m)
    regular = column(all_(neq(d, 0), axis=-1, keepdims=True).astype(d.type.dtype))
    one: Variable = Solve("lower_triangular", on_error=on_error)(regular, regular.ones_like())
    return b / (column(d) * zero_grad(one))


@torch_words("solve_triangular", "upper", "left", "unitriangular")
def solve_triangular(
    a: TensorLike, b: TensorLike, trans: int | str = 0, lower: bool = False,
    unit_diagonal: bool = False, check: bool = True,
) -> Variable:  # fmt: skip
    """The solution of ``a x = b`` for triangular matrices, of which the other triangle is not read.

    ``trans`` is 0 or ``"N"``, 1 or ``"T"`` for ``a.T x = b``, 2 or ``"C"`` for the adjoint of
    ``a``. Shapes and ``check`` are as for :func:`solve`. (``scipy.linalg.solve_triangular``; with
    ``upper``, ``left`` or ``unitriangular`` that of ``torch.linalg``.)
    """
    kinds = {0: "N", 1: "T", 2: "C"}
    kind = kinds.get(trans, trans) if isinstance(trans, int) else trans
    if kind not in kinds.values():
        raise OptionError(f"solve_triangular: trans is 0, 1, 2, 'N', 'T' or 'C', got {trans!r}")
    m, v, as_given = system("solve_triangular", a, b)
    structure = "lower_triangular" if lower else "upper_triangular"
    op = Solve(structure, lower, kind != "N", unit_diagonal, on_error(check))
    if kind == "C":
        return as_given(conjugate(op(m, conjugate(v))))
    return as_given(op(m, v))


def system(
    name: str, a: TensorLike, b: TensorLike
) -> tuple[Variable, Variable, Callable[[Variable], Variable]]:
    """``a`` and ``b`` with one number of dimensions, a vector as a column; and the function that
    makes a vector of such a column again."""
    m, v = matrices(name, a, b, ndim=1)
    m = matrix_of(name, m)
    vector = v.type.ndim == 1
    v = column(v) if vector else v
    ndim = max(m.type.ndim, v.type.ndim)

    def as_given(x: Variable) -> Variable:
        return x.dimshuffle([*range(x.type.ndim - 1)]) if vector else x

    return pad_left(m, ndim), pad_left(v, ndim), as_given


def inv(a: TensorLike, check: bool = True) -> Variable:
    """The inverse of square matrices (..., n, n).

    ``check``: raise :class:`~symdnn.errors.LinAlgError` for a singular one, else its inverse is
    NaN. ``inv(a) @ b`` is computed as :func:`solve`, unless ``b`` is known to have eight times
    as many columns as ``a``. (``numpy.linalg.inv``.)
    """
    return MatrixInverse(on_error(check))(matrix_of("inv", a))
