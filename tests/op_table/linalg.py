from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.linalg

from symdnn.ops.elementwise.arithmetic import abs as abs_
from symdnn.ops.elementwise.complexes import complex as complex_
from symdnn.ops.elementwise.complexes import imag, real
from symdnn.ops.matrix import determinant as D
from symdnn.ops.matrix.cholesky import Cholesky, cho_solve, cholesky
from symdnn.ops.matrix.eigen import Eig, Eigh, Eigvalsh, eig, eigh, eigvals, eigvalsh
from symdnn.ops.matrix.expm import Expm, expm, matrix_power
from symdnn.ops.matrix.functions import block_diag, cond, norm, tensorinv, tensorsolve
from symdnn.ops.matrix.lu import (
    LUFactor,
    LUSolve,
    PivotsToPermutation,
    lu,
    lu_factor,
    lu_solve,
)
from symdnn.ops.matrix.qr import QR, qr
from symdnn.ops.matrix.solve import MatrixInverse, Solve, inv, solve, solve_triangular
from symdnn.ops.matrix.svd import (
    SVD,
    Lstsq,
    MatrixPinv,
    lstsq,
    matrix_rank,
    pinv,
    svd,
    svdvals,
)
from tests.op_table.record import Draw, OpCase, normal

T_ = lambda x: np.swapaxes(x, -1, -2)  # noqa: E731


def regular(*shape: int, dtype: str = "float64") -> Draw:
    """Matrices far from singular, with distinct eigenvalues and singular values."""
    n = shape[-1]

    def draw(rng: np.random.Generator) -> np.ndarray:
        return (0.3 * rng.standard_normal(shape) + np.diag(1.0 + np.arange(n))).astype(dtype)

    return draw


def positive(*shape: int, dtype: str = "float64") -> Draw:
    """Positive definite matrices; the triangle that is not read is wrong."""

    def draw(rng: np.random.Generator) -> np.ndarray:
        x = rng.standard_normal(shape)
        return (x @ T_(x) / 3 + np.diag(1.0 + np.arange(shape[-1]))).astype(dtype)

    return draw


def symmetric(x: np.ndarray, lower: bool = True) -> np.ndarray:
    """The symmetric matrix of which a triangle is given."""
    return np.tril(x) + T_(np.tril(x, -1)) if lower else np.triu(x) + T_(np.triu(x, 1))


def hermitian(x: np.ndarray) -> np.ndarray:
    half = np.tril(x, -1)
    return half + T_(half).conj() + np.einsum("...ii->...i", x).real[..., None] * np.eye(len(x))


def of_parts(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` of the complex matrix of two real ones, and the parts of its results."""

    def build(x: Any, y: Any, *rest: Any) -> Any:
        found = function(complex_(x, y), *rest)
        found = found if isinstance(found, list | tuple) else [found]
        return [p for f in found for p in ((real(f), imag(f)) if f.type.is_complex else (f,))]

    return build


def of_parts_numpy(function: Callable[..., Any]) -> Callable[..., Any]:
    def expected(x: np.ndarray, y: np.ndarray, *rest: Any) -> Any:
        found = function(x + 1j * y, *rest)
        found = found if isinstance(found, list | tuple) else [found]
        return [p for f in found for p in ((f.real, f.imag) if np.iscomplexobj(f) else (f,))]

    return expected


def adjugate_grad(a: np.ndarray, g: np.ndarray) -> np.ndarray:
    """Of regular matrices."""
    y = T_(np.linalg.inv(a))
    trace = np.einsum("...ij,...ji->...", g, y)[..., None, None]
    return np.linalg.det(a)[..., None, None] * (trace * y - y @ g @ y)


# -- factors whose signs are arbitrary ------------------------------------------------------------


def eigh_moduli(a: Any, **options: Any) -> Any:
    w, v = eigh(a, **options)
    return [w, abs_(v)]


def eigh_moduli_numpy(a: np.ndarray) -> Any:
    w, v = np.linalg.eigh(a)
    return [w, abs(v)]


def eig_parts(a: Any) -> Any:
    w, v = eig(a)
    return [real(w), imag(w), abs_(v)]


def eig_parts_numpy(a: np.ndarray) -> Any:
    w, v = np.linalg.eig(a)
    return [w.real, w.imag, abs(v)]


def svd_moduli(full: bool = False) -> Callable[..., Any]:
    def build(a: Any) -> Any:
        u, s, vh = svd(a, full)
        k = min(a.type.ndim, 1)
        return [abs_(u), s, abs_(vh)][: 3 * k]

    return build


def svd_moduli_numpy(full: bool = False) -> Callable[..., Any]:
    def expected(a: np.ndarray) -> Any:
        u, s, vh = np.linalg.svd(a, full)
        return [abs(u), s, abs(vh)]

    return expected


def loops(function: Callable[..., Any]) -> Callable[..., Any]:
    """SciPy's function of single matrices, of a stack."""

    def expected(*stacks: np.ndarray) -> Any:
        found = [function(*m) for m in zip(*stacks, strict=True)]
        if isinstance(found[0], tuple):
            return [np.stack(f) for f in zip(*found, strict=True)]
        return np.stack(found)

    return expected


def low(trans: int = 0, lower: bool = True, unit: bool = False) -> Callable[..., Any]:
    return lambda a, b: scipy.linalg.solve_triangular(a, b, trans, lower, unit)


N, B = regular(4, 4), normal(4, 3)
STACK = regular(2, 3, 3)
PARTS = (regular(3, 3), normal(3, 3, scale=0.2))
POS = positive(4, 4)
POS_PARTS = (positive(3, 3), normal(3, 3, scale=0.1))


def permuted(a: Any) -> Any:
    f, pivots = lu_factor(a)
    return f, PivotsToPermutation()(pivots, f)


def permuted_numpy(a: np.ndarray) -> Any:
    f, pivots = scipy.linalg.lu_factor(a)
    order = np.arange(len(a))
    for i, j in enumerate(pivots):
        order[[i, j]] = order[[j, i]]
    return [f, order]


CASES = [
    # Cholesky
    OpCase("cholesky", (Cholesky,), cholesky, (POS,), np.linalg.cholesky),
    OpCase("cholesky_upper", (Cholesky,), lambda a: cholesky(a, lower=False), (POS,),
           scipy.linalg.cholesky),
    OpCase("cholesky_stack", (Cholesky,), cholesky, (positive(2, 3, 3),), np.linalg.cholesky),
    OpCase("cholesky_complex", (Cholesky,), of_parts(cholesky), POS_PARTS,
           of_parts_numpy(lambda a: np.linalg.cholesky(hermitian(a)))),
    OpCase("cholesky_empty", (Cholesky,), cholesky, (normal(0, 0),), lambda a: a, grad=False),
    OpCase("cholesky_no_matrices", (Cholesky,), cholesky, (normal(0, 3, 3),), lambda a: a,
           grad=False),
    OpCase("cholesky_nan", (Cholesky,), lambda a: cholesky(-a, check=False), (POS,),
           lambda a: np.full_like(a, np.nan), grad=False),
    OpCase("cho_solve", (Solve,), lambda a, b: cho_solve((cholesky(a), True), b), (POS, B),
           np.linalg.solve),
    # solutions
    OpCase("solve", (Solve,), solve, (N, B), np.linalg.solve),
    OpCase("solve_vector", (Solve,), solve, (N, normal(4)), np.linalg.solve),
    OpCase("solve_transposed", (Solve,), lambda a, b: solve(a, b, transposed=True), (N, B),
           lambda a, b: np.linalg.solve(a.T, b)),
    OpCase("solve_stack", (Solve,), solve, (STACK, normal(2, 3, 2)), np.linalg.solve),
    OpCase("solve_one_matrix", (Solve,), solve, (regular(3, 3), normal(2, 3, 2)), np.linalg.solve),
    OpCase("solve_one_right_side", (Solve,), solve, (STACK, normal(3, 1)), np.linalg.solve),
    OpCase("solve_complex", (Solve,), of_parts(lambda a, b: solve(a, b)), (*PARTS, normal(3, 2)),
           of_parts_numpy(np.linalg.solve)),
    OpCase("solve_pos", (Solve,), lambda a, b: solve(a, b, "pos"), (POS, B),
           lambda a, b: np.linalg.solve(symmetric(a, False), b)),
    OpCase("solve_pos_lower", (Solve,), lambda a, b: solve(a, b, "pos", lower=True),
           (positive(2, 3, 3), normal(2, 3, 2)),
           lambda a, b: np.linalg.solve(symmetric(a), b)),
    OpCase("solve_pos_complex", (Solve,), of_parts(lambda a, b: solve(a, b, "pos", lower=True)),
           (*POS_PARTS, normal(3, 2)),
           of_parts_numpy(lambda a, b: np.linalg.solve(hermitian(a), b))),
    OpCase("solve_sym", (Solve,), lambda a, b: solve(a, b, "sym"), (N, B),
           lambda a, b: np.linalg.solve(symmetric(a, False), b)),
    OpCase("solve_sym_complex", (Solve,), of_parts(lambda a, b: solve(a, b, "sym", lower=True)),
           (*PARTS, normal(3, 2)), of_parts_numpy(lambda a, b: np.linalg.solve(symmetric(a), b))),
    OpCase("solve_her", (Solve,), of_parts(lambda a, b: solve(a, b, "her", lower=True)),
           (*PARTS, normal(3, 2)), of_parts_numpy(lambda a, b: np.linalg.solve(hermitian(a), b))),
    OpCase("solve_indefinite", (Solve,), lambda a, b: solve(a - 2.5 * np.eye(4), b, "her"), (N, B),
           lambda a, b: np.linalg.solve(symmetric(a, False) - 2.5 * np.eye(4), b)),
    OpCase("solve_diagonal", (), lambda a, b: solve(a, b, "diagonal"), (N, B),
           lambda a, b: b / np.diag(a)[:, None]),
    OpCase("solve_singular", (Solve,), lambda a, b: solve(a * 0, b, check=False), (N, B),
           lambda a, b: np.full_like(b, np.nan), grad=False),
    OpCase("solve_empty", (Solve,), solve, (normal(0, 0), normal(0, 2)), lambda a, b: b,
           grad=False),
    OpCase("solve_no_columns", (Solve,), solve, (N, normal(4, 0)), lambda a, b: b, grad=False),
    *[
        OpCase(f"solve_{'lower' if lower else 'upper'}_{trans}{'_unit' * unit}", (Solve,),
               lambda a, b, t=trans, lo=lower, u=unit: solve_triangular(a, b, t, lo, u), (N, B),
               low(trans, lower, unit))
        for lower in (True, False) for trans in (0, 1) for unit in (False, True)
    ],
    OpCase("solve_triangular_stack", (Solve,), lambda a, b: solve_triangular(a, b, lower=True),
           (STACK, normal(2, 3, 2)), loops(low())),
    OpCase("solve_triangular_one", (Solve,), lambda a, b: solve_triangular(a, b, lower=True),
           (regular(3, 3), normal(2, 3, 2)),
           lambda a, b: np.linalg.solve(np.tril(a), b)),
    OpCase("solve_triangular_adjoint", (Solve,),
           of_parts(lambda a, b: solve_triangular(a, b, "C", lower=True)), (*PARTS, normal(3, 2)),
           of_parts_numpy(low(2))),
    OpCase("matrix_inverse", (MatrixInverse,), inv, (N,), np.linalg.inv),
    OpCase("matrix_inverse_stack", (MatrixInverse,), inv, (STACK,), np.linalg.inv),
    OpCase("matrix_inverse_complex", (MatrixInverse,), of_parts(inv), PARTS,
           of_parts_numpy(np.linalg.inv)),
    OpCase("matrix_inverse_empty", (MatrixInverse,), inv, (normal(2, 0, 0),), np.linalg.inv,
           grad=False),
    # determinants
    OpCase("det", (D.Det, D.Adjugate), D.det, (N,), np.linalg.det),
    OpCase("det_stack", (D.Det,), D.det, (STACK,), np.linalg.det),
    OpCase("det_complex", (D.Det,), of_parts(D.det), PARTS, of_parts_numpy(np.linalg.det)),
    OpCase("det_empty", (D.Det,), D.det, (normal(0, 0),), np.linalg.det, grad=False),
    OpCase("adjugate", (D.Adjugate,), D.Adjugate(), (N,),
           lambda a: np.linalg.det(a) * np.linalg.inv(a)),
    OpCase("adjugate_grad", (D.AdjugateGrad,), D.AdjugateGrad(), (N, normal(4, 4)), adjugate_grad),
    OpCase("adjugate_grad_stack", (D.AdjugateGrad,), D.AdjugateGrad(), (STACK, normal(2, 3, 3)),
           adjugate_grad),
    OpCase("slogdet", (D.SLogDet,), D.slogdet, (STACK,), np.linalg.slogdet),
    OpCase("logdet", (D.SLogDet,), lambda a: D.slogdet(a)[1], (N,),
           lambda a: np.linalg.slogdet(a)[1]),
    OpCase("slogdet_complex", (D.SLogDet,), of_parts(D.slogdet), PARTS,
           of_parts_numpy(np.linalg.slogdet)),
    OpCase("slogdet_pos", (D.PositiveLogDet,), lambda a: D.slogdet(a, "pos")[::-1], (POS,),
           lambda a: np.linalg.slogdet(symmetric(a))[::-1]),
    OpCase("slogdet_pos_upper", (D.PositiveLogDet,), lambda a: D.slogdet(a, "pos", False)[1],
           (positive(2, 3, 3),), lambda a: np.linalg.slogdet(symmetric(a, False))[1]),
    OpCase("slogdet_pos_complex", (D.PositiveLogDet,), of_parts(lambda a: D.slogdet(a, "pos")[1]),
           POS_PARTS, of_parts_numpy(lambda a: np.linalg.slogdet(hermitian(a))[1])),
    OpCase("slogdet_singular", (D.SLogDet,), lambda a: D.slogdet(a * 0), (N,),
           lambda a: [0.0, -np.inf], grad=False),
    # LU
    OpCase("lu_factor", (LUFactor, PivotsToPermutation), permuted, (N,), permuted_numpy),
    OpCase("lu_columns", (LUFactor,), lambda a: LUFactor("columns")(a)[0], (N,),
           lambda a: scipy.linalg.lu_factor(a.T)[0].T),
    OpCase("lu_tall", (LUFactor,), lambda a: lu(a)[1:], (normal(4, 3),),
           lambda a: scipy.linalg.lu(a)[1:]),
    OpCase("lu_wide", (LUFactor,), lambda a: lu(a, permute_l=True), (normal(2, 3, 4),),
           loops(lambda a: scipy.linalg.lu(a, permute_l=True))),
    OpCase("lu_order", (LUFactor,), lambda a: lu(a, p_indices=True), (normal(2, 4, 4),),
           lambda a: scipy.linalg.lu(a, p_indices=True), grad=False),
    OpCase("lu_solve", (LUSolve,), lambda a, b: lu_solve(lu_factor(a), b), (N, B),
           np.linalg.solve),
    OpCase("lu_solve_transposed", (LUSolve,), lambda a, b: lu_solve(lu_factor(a), b, 1),
           (STACK, normal(2, 3, 2)), lambda a, b: np.linalg.solve(T_(a), b)),
    *[
        OpCase(f"lu_solve_columns_{trans}", (LUSolve,),
               lambda a, b, t=trans: LUSolve("columns", t)(*LUFactor("columns")(a), b),
               (N, B), lambda a, b, t=trans: np.linalg.solve(a.T if t else a, b))
        for trans in (False, True)
    ],
    OpCase("lu_solve_adjoint", (LUSolve,), of_parts(lambda a, b: lu_solve(lu_factor(a), b, 2)),
           (*PARTS, normal(3, 2)), of_parts_numpy(lambda a, b: np.linalg.solve(a.conj().T, b))),
    # eigenvalues
    OpCase("eigh", (Eigh,), eigh_moduli, (N,), lambda a: eigh_moduli_numpy(symmetric(a))),
    OpCase("eigh_upper", (Eigh,), lambda a: eigh_moduli(a, UPLO="U"), (STACK,),
           lambda a: eigh_moduli_numpy(symmetric(a, False))),
    OpCase("eigh_complex", (Eigh,), of_parts(eigh_moduli), PARTS,
           of_parts_numpy(lambda a: eigh_moduli_numpy(hermitian(a)))),
    OpCase("eigh_generalised", (Eigh,), lambda a, b: eigh_moduli(a, b=b), (N, POS),
           lambda a, b: [f(x) for f, x in zip((np.array, abs), scipy.linalg.eigh(a, b))]),
    OpCase("eigh_empty", (Eigh,), eigh, (normal(2, 0, 0),), np.linalg.eigh, grad=False),
    OpCase("eigvalsh", (Eigvalsh,), eigvalsh, (N,), np.linalg.eigvalsh),
    OpCase("eigvalsh_upper", (Eigvalsh,), lambda a: eigvalsh(a, "U"), (STACK,),
           lambda a: np.linalg.eigvalsh(a, "U")),
    OpCase("eig", (Eig,), eig_parts, (N,), eig_parts_numpy),
    OpCase("eig_complex", (Eig,), lambda x, y: eig_parts(complex_(x, y)), PARTS,
           lambda x, y: eig_parts_numpy(x + 1j * y)),
    OpCase("eigvals", (Eig,), lambda a: real(eigvals(a)), (STACK,),
           lambda a: np.linalg.eigvals(a).real),
    # singular values
    *[
        OpCase(f"svd_{word}", (SVD,), svd_moduli(), (regular(*shape),), svd_moduli_numpy(),
               grad_tol=1e-4)
        for word, shape in (("square", (3, 3)), ("stack", (2, 3, 3)))
    ],
    OpCase("svd_tall", (SVD,), svd_moduli(), (normal(5, 3),), svd_moduli_numpy()),
    OpCase("svd_wide", (SVD,), svd_moduli(), (normal(3, 5),), svd_moduli_numpy()),
    OpCase("svd_full", (SVD,), lambda a: svd_moduli(True)(a)[1], (normal(2, 3, 4),),
           lambda a: np.linalg.svd(a)[1], grad=False),
    OpCase("svd_full_square", (SVD,), svd_moduli(True), (N,), svd_moduli_numpy(True),
           static=((4, 4),)),
    OpCase("svd_complex", (SVD,), of_parts(svd_moduli()), (normal(4, 3), normal(4, 3)),
           of_parts_numpy(svd_moduli_numpy())),
    OpCase("svd_empty", (SVD,), lambda a: svd(a, False), (normal(0, 3),),
           lambda a: np.linalg.svd(a, False), grad=False),
    OpCase("svdvals", (SVD,), svdvals, (normal(2, 3, 4),), np.linalg.svdvals),
    OpCase("pinv_tall", (MatrixPinv,), pinv, (normal(4, 3),), np.linalg.pinv),
    OpCase("pinv_wide", (MatrixPinv,), pinv, (normal(2, 3, 4),), np.linalg.pinv),
    OpCase("pinv_complex", (MatrixPinv,), of_parts(pinv), (normal(4, 3), normal(4, 3)),
           of_parts_numpy(np.linalg.pinv)),
    OpCase("lstsq", (Lstsq,), lambda a, b: lstsq(a, b)[0], (normal(5, 3), normal(5, 2)),
           lambda a, b: np.linalg.lstsq(a, b)[0]),
    OpCase("lstsq_wide", (Lstsq,), lambda a, b: lstsq(a, b)[0], (normal(3, 5), normal(3)),
           lambda a, b: np.linalg.lstsq(a, b)[0]),
    OpCase("lstsq_all", (Lstsq,), lstsq, (normal(5, 3), normal(5, 2)),
           lambda a, b: list(np.linalg.lstsq(a, b))),
    OpCase("matrix_rank", (), lambda a: matrix_rank(a * np.array([1.0, 0, 1])), (normal(2, 4, 3),),
           lambda a: np.array([2, 2])),
    # QR
    OpCase("qr_tall", (QR,), qr, (normal(5, 3),), lambda a: list(np.linalg.qr(a))),
    OpCase("qr_wide", (QR,), qr, (normal(3, 5),), lambda a: list(np.linalg.qr(a))),
    OpCase("qr_stack", (QR,), qr, (STACK,), lambda a: list(np.linalg.qr(a))),
    OpCase("qr_complex", (QR,), of_parts(qr), (normal(4, 3), normal(4, 3)),
           of_parts_numpy(lambda a: list(np.linalg.qr(a)))),
    OpCase("qr_r", (QR,), lambda a: qr(a, "r"), (normal(4, 3),), lambda a: np.linalg.qr(a, "r")),
    OpCase("qr_complete", (QR,), lambda a: qr(a, "complete"), (normal(5, 3),),
           lambda a: list(np.linalg.qr(a, "complete")), grad=False),
    OpCase("qr_complete_wide", (QR,), lambda a: qr(a, "complete"), (normal(2, 3, 4),),
           lambda a: list(np.linalg.qr(a, "complete")), static=((None, 3, 4),)),
    # functions
    OpCase("expm", (Expm,), expm, (normal(3, 3),), scipy.linalg.expm),
    OpCase("expm_stack", (Expm,), expm, (normal(2, 3, 3),), scipy.linalg.expm),
    OpCase("expm_complex", (Expm,), of_parts(expm), PARTS, of_parts_numpy(scipy.linalg.expm)),
    *[
        OpCase(f"matrix_power_{n}", (), lambda a, n=n: matrix_power(a, n), (STACK,),
               lambda a, n=n: np.linalg.matrix_power(a, n), grad=n != 0)
        for n in (-2, 0, 1, 5)
    ],
    *[
        OpCase(f"norm_{order}_{axis}".replace("-", "m"), (),
               lambda x, o=order, a=axis: norm(x, o, a, True), (normal(2, 3, 4),),
               lambda x, o=order, a=axis: np.linalg.norm(x, o, a, True))
        for order, axis in (
            (None, None), (None, 1), (3, 0), (np.inf, 2), (-np.inf, 1), (1, (0, 2)), (-1, (2, 1)),
            (2, (1, 2)), (-2, (0, 1)), ("nuc", (2, 0)), ("fro", (1, 2)), (np.inf, (0, 1)),
        )
    ],
    *[
        OpCase(f"cond_{p}".replace("-", "m"), (), lambda a, p=p: cond(a, p), (STACK,),
               lambda a, p=p: np.linalg.cond(a, p))
        for p in (None, 1, -2, "fro")
    ],
    OpCase("block_diag", (), block_diag, (normal(2, 3), normal(3), normal(1, 2)),
           scipy.linalg.block_diag),
    OpCase("tensorinv", (), lambda a: tensorinv(a.reshape((2, 2, 4)), 2), (N,),
           lambda a: np.linalg.tensorinv(a.reshape(2, 2, 4), 2)),
    OpCase("tensorsolve", (), lambda a, b: tensorsolve(a.reshape((2, 2, 2, 2)), b),
           (N, normal(2, 2)), lambda a, b: np.linalg.tensorsolve(a.reshape(2, 2, 2, 2), b)),
]  # fmt: skip
