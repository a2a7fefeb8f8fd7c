"""Linear algebra beyond the op table: degenerate spectra, matrices without a result, dtypes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.linalg
import scipy.stats

import symdnn
import symdnn.tensor as T
from symdnn import Mode
from symdnn.config import config
from symdnn.errors import (
    AssertionFailed,
    DataError,
    LinAlgError,
    NdimMismatch,
    OptionError,
    ShapeMismatch,
    TypeMismatch,
)
from symdnn.graph.evaluate import evaluate
from symdnn.graph.type import TensorType
from symdnn.ops.matrix.cholesky import Cholesky
from symdnn.ops.matrix.determinant import Adjugate, AdjugateGrad, SLogDet
from symdnn.ops.matrix.lu import LUFactor, LUSolve
from symdnn.ops.matrix.solve import MatrixInverse, Solve

L = T.linalg
CPU = Mode(target="cpu")


def compiled(inputs, outputs):
    return symdnn.function(inputs, outputs, mode=CPU)


def gradient(build, *arrays):
    """The gradients of a cost, compiled."""
    vs = [T.tensor(a.dtype.name, (None,) * a.ndim) for a in arrays]
    return compiled(vs, T.grad(build(*vs), vs))(*arrays)


def count(f, op):
    return sum(isinstance(node.op, op) for node in f.fgraph.apply_nodes)


# -- equal eigenvalues and singular values --------------------------------------------------------


def repeated(rng, values):
    q = np.linalg.qr(rng.standard_normal((len(values), len(values))))[0]
    return (q * np.asarray(values, "float64")) @ q.T


@pytest.mark.parametrize("values", [(1, 1, 1), (2, 2, 5), (0, 0, 3), (1, 1 + 1e-15, 4)], ids=str)
def test_costs_of_eigenvalues_have_their_gradient_where_these_are_equal(rng, values):
    a = repeated(rng, values)
    (found,) = gradient(lambda x: T.exp(L.eigh((x + x.T) / 2)[0]).sum(), a)
    np.testing.assert_allclose(found, scipy.linalg.expm(a), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("values", [(1, 1, 1), (2, 2, 5), (0, 0, 3)], ids=str)
def test_costs_that_no_choice_of_vectors_changes_have_finite_gradients(rng, values):
    a = repeated(rng, values)

    def projector(x):
        w, v = L.eigh(x)
        return (T.dot(v, v.T) ** 2).sum() + (w**2).sum()

    def parts(x):
        u, s, vh = L.svd(x, full_matrices=False)
        return (T.dot(u * s, vh) ** 2).sum() + s.sum()

    for build in (projector, parts):
        (found,) = gradient(build, a)
        assert np.isfinite(found).all()
    (found,) = gradient(lambda x: parts(x) - L.svdvals(x).sum(), a)
    np.testing.assert_allclose(found, 2 * a, atol=1e-7)


def test_the_zero_matrix_has_finite_gradients():
    zero = np.zeros((3, 3))
    for build in (
        lambda x: L.svdvals(x).sum(), lambda x: L.eigvalsh(x).sum(), lambda x: L.expm(x).sum(),
        lambda x: L.norm(x, "nuc"), lambda x: L.norm(x, 2), L.norm, L.det,
    ):  # fmt: skip
        assert np.isfinite(gradient(build, zero)[0]).all()


def test_the_gradient_of_a_determinant_exists_at_singular_matrices(rng):
    u, v = rng.standard_normal((2, 3, 2))
    a = u @ v.T
    (found,) = gradient(L.det, a)
    cofactors = np.array(
        [
            [(-1) ** (i + j) * np.linalg.det(np.delete(np.delete(a, i, 0), j, 1)) for j in range(3)]
            for i in range(3)
        ]
    )
    np.testing.assert_allclose(found, cofactors, atol=1e-9)


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
@pytest.mark.parametrize("kind", ["real", "complex"])
def test_second_derivatives_of_a_determinant_exist_at_singular_matrices(rank, kind, rng):
    """By those of the polynomial that a determinant is."""
    parts = [T.dmatrix("x"), T.dmatrix("y")] if kind == "complex" else [T.dmatrix("x")]
    z = T.complex(*parts) if kind == "complex" else parts[0]
    found, expanded = L.det(z), 0
    for order in itertools.permutations(range(3)):
        sign = round(np.linalg.det(np.eye(3)[list(order)]))
        expanded += sign * z[0, order[0]] * z[1, order[1]] * z[2, order[2]]
    weights = [rng.standard_normal((3, 3)) for _ in parts]
    at = [(rng.standard_normal((3, rank)) @ rng.standard_normal((rank, 3))) for _ in parts[:1]]
    at += [at[0] @ np.diag([0.5, -1, 2]) for _ in parts[1:]]

    def second(d):
        cost = (T.real(d) + 0.3 * T.imag(d) if kind == "complex" else d) ** 2
        slope = sum((g * w).sum() for g, w in zip(symdnn.grad(cost, parts), weights, strict=True))
        return symdnn.grad(slope, parts)

    for a, b in zip(*(compiled(parts, second(d))(*at) for d in (found, expanded)), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-9)


# -- matrices without a result --------------------------------------------------------------------

WRONG = [
    ("cholesky", lambda a, check: L.cholesky(a, check=check), -np.eye(3), "not positive definite"),
    ("inv", lambda a, check: L.inv(a, check=check), np.ones((3, 3)), "singular"),
    ("solve", lambda a, check: L.solve(a, a, check=check), np.zeros((3, 3)), "singular"),
    ("pos", lambda a, check: L.solve(a, a, "pos", check=check), -np.eye(3),
     "not positive definite"),
    ("her", lambda a, check: L.solve(a, a, "her", check=check), np.zeros((3, 3)), "singular"),
    ("triangle", lambda a, check: L.solve_triangular(a, a, check=check), np.zeros((3, 3)),
     "singular"),
    ("diagonal", lambda a, check: L.solve(a, a, "diagonal", check=check), np.diag([1.0, 0, 2]),
     "singular"),
    ("logdet", lambda a, check: L.slogdet(a, "pos", check=check)[1], -np.eye(3),
     "not positive definite"),
    ("eigh", lambda a, check: L.eigh(a, check=check)[1], np.full((3, 3), np.nan), "without eigen"),
    ("eigvals", lambda a, check: abs(L.eigvals(a, check=check)), np.full((3, 3), np.nan),
     "without eigen"),
    ("svd", lambda a, check: L.svd(a, check=check)[0], np.full((3, 3), np.nan), "without singular"),
    ("svd of infinities", lambda a, check: L.svd(a, check=check)[0], np.diag([1, np.inf, 2.0]),
     "without singular"),
    ("pinv", lambda a, check: L.pinv(a, check=check), np.full((3, 3), np.nan), "without singular"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "build", "wrong", "what"), WRONG)
def test_a_matrix_without_a_result_is_an_error_or_nan_in_its_place(name, build, wrong, what):
    good = np.diag([1.0, 2, 3])
    stack = np.stack([good, wrong, good])
    a = T.dtensor3("a")
    quiet, loud = (build(a, check) for check in (False, True))
    f = compiled([a], quiet)
    for found in (f(stack), evaluate([quiet], {a: stack})[0]):
        assert np.isnan(found[1]).all()
        assert np.isfinite(found[[0, 2]]).all()
    with pytest.raises(LinAlgError, match=f"matrix 1 of the stack is {what}") as error:
        compiled([a], loud)(stack)
    assert isinstance(error.value, DataError | np.linalg.LinAlgError | ValueError)
    assert np.isfinite(compiled([a], loud)(stack[[0, 2]])).all()


@pytest.mark.parametrize("n", [1, 2, 3, 20, 60])
@pytest.mark.parametrize(
    "build",
    [
        L.cholesky,
        L.eigvalsh,
        lambda a, check: L.eigh(a, check=check)[1],
        lambda a, check: L.cholesky(a, lower=False, check=check),
        lambda a, check: L.slogdet(a, "pos", check=check)[1],
    ],
)
def test_a_nan_is_found_in_matrices_of_all_sizes(build, n):
    """LAPACK reports it for some sizes only."""
    stack, a = np.stack([np.eye(n), np.eye(n)]), T.dtensor3("a")
    stack[1, 0, 0] = stack[1, -1, 0] = stack[1, 0, -1] = np.nan
    quiet, loud = (build(a, check=check) for check in (False, True))
    for found in (compiled([a], quiet)(stack), evaluate([quiet], {a: stack})[0]):
        assert np.isnan(found[1]).all()
        assert np.isfinite(found[0]).all()
    with pytest.raises(LinAlgError, match="matrix 1 of the stack"):
        compiled([a], loud)(stack)


def test_a_triangle_that_is_not_read_may_be_anything(rng):
    a = rng.standard_normal((4, 4))
    p, b = a @ a.T + np.eye(4), rng.standard_normal((4, 2))
    lower = np.where(np.tri(4, dtype=bool), p, np.nan)
    x, y = T.dmatrices("x", "y")
    outs = [
        L.cholesky(x), L.eigvalsh(x), L.solve_triangular(x, y, lower=True),
        L.solve(x, y, "pos", lower=True), L.solve(x, y, "her", lower=True),
    ]  # fmt: skip
    found = compiled([x, y], outs)(lower, b)
    wanted = [
        np.linalg.cholesky(p), np.linalg.eigvalsh(p), np.linalg.solve(np.tril(p), b),
        np.linalg.solve(p, b), np.linalg.solve(p, b),
    ]  # fmt: skip
    for one, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, want, rtol=1e-9, atol=1e-9)


# -- operands -------------------------------------------------------------------------------------


def test_ints_are_computed_as_floats_and_dtypes_are_kept():
    i, h = T.imatrix("i"), T.matrix("h", dtype="float16")
    for floating in ("float32", "float64"):
        with config.change_flags(floatX=floating):
            assert L.inv(i).dtype == L.det(i).dtype == L.svdvals(i).dtype == floating
    reals = {"float32": "float32", "complex64": "float32", "complex128": "float64"}
    for dtype, real in reals.items():
        a = T.matrix("a", dtype=dtype)
        assert L.cholesky(a).dtype == dtype
        assert [v.dtype for v in L.svd(a)] == [dtype, real, dtype]
        assert [v.dtype for v in L.slogdet(a)] == [dtype, real]
        assert L.eigvals(a).dtype.startswith("complex")
    assert L.solve(T.fmatrix(), T.dvector()).dtype == "float64"
    with pytest.raises(TypeMismatch, match="cast it to float32"):
        L.inv(h)


def test_operands_that_do_not_fit_are_refused():
    with pytest.raises(NdimMismatch, match="a matrix or a stack of them"):
        L.inv(T.vector())
    square, tall = T.dmatrix("s"), T.tensor("float64", (3, 2))
    for build in (L.inv, L.det, L.eigh, L.cholesky, L.expm, lambda a: L.matrix_power(a, 2)):
        with pytest.raises(ShapeMismatch, match="square matrices"):
            build(tall)
    with pytest.raises(ShapeMismatch, match="as many rows of b"):
        L.solve(T.tensor("float64", (3, 3)), T.tensor("float64", (4, 2)))
    f = compiled([square], L.inv(square))
    with pytest.raises(ShapeMismatch, match="square matrices"):
        f(np.ones((2, 3)))
    g = compiled([square], L.solve(square, np.ones((4, 1))))
    with pytest.raises(ShapeMismatch, match="as many rows of b"):
        g(np.eye(3))


@pytest.mark.parametrize(
    ("build", "what"),
    [
        (lambda a: L.solve(a, a, "band"), "assume_a is one of gen"),
        (lambda a: L.solve_triangular(a, a, "X"), "trans is 0, 1, 2"),
        (lambda a: L.slogdet(a, "sym"), "assume_a is 'gen' or 'pos'"),
        (lambda a: L.eigh(a, "X"), "UPLO is 'L' or 'U'"),
        (lambda a: L.qr(a, "raw"), "mode is one of reduced"),
        (lambda a: L.norm(a, "two"), "the order of a matrix's norm"),
        (lambda a: L.matrix_power(a, 0.5), "wanted an int"),
        (lambda a: L.multi_dot([a]), "at least two factors"),
        (lambda a: L.lu_solve(L.lu_factor(a), a, 3), "trans is 0, 1 or 2"),
        (lambda a: L.tensorinv(a, 3), "wanted ind in 1..1"),
        (lambda a: Cholesky(on_error="stop"), "on_error is one of"),
        (lambda a: Solve("banded"), "A_structure is one of"),
    ],
)
def test_words_that_are_not_taken_are_named(build, what):
    with pytest.raises(OptionError, match=what):
        build(T.dmatrix())


FULL = {
    "svd": lambda a, k: (L.svd(a)[0][:, :k] * np.arange(1.0, k + 1)).sum() + L.svd(a)[2][:k].sum(),
    "qr": lambda a, k: (L.qr(a, "complete")[0][:, :k] * np.arange(1.0, k + 1)).sum(),
}


@pytest.mark.cpu
@pytest.mark.parametrize("name", FULL)
def test_gradients_that_do_not_exist_are_refused(name):
    cubes = {"svd": lambda a: L.svd(a)[0], "qr": lambda a: L.qr(a, "complete")[0]}[name]
    slope = symdnn.grad(lambda a: (cubes(a) ** 3).sum())
    a = np.random.default_rng(0).normal(size=(4, 3))
    with pytest.raises(AssertionFailed, match=r"no function of the matrix.*Use the reduced"):
        slope(a)
    assert slope(a.T).shape == (3, 4)  # all vectors of q, or of u, are functions of it


@pytest.mark.cpu
@pytest.mark.parametrize("name", FULL)
@pytest.mark.parametrize("shape", [(4, 4), (4, 3), (3, 4)])
def test_full_factors_have_derivatives_of_every_order_without_static_sizes(name, shape):
    rng = np.random.default_rng(1)
    a, way = rng.normal(size=(2, 5, *shape))
    slope = symdnn.grad(lambda v: FULL[name](v, min(shape)))
    both = symdnn.vmap(lambda v, t: symdnn.jvp(slope, (v,), (t,))[1])
    change = [(slope(x + 1e-6 * t) - slope(x - 1e-6 * t)) / 2e-6 for x, t in zip(a, way)]
    np.testing.assert_allclose(symdnn.jit(both)(a, way), change, rtol=1e-4, atol=1e-5)


def test_stacks_broadcast_in_solutions(rng):
    a = rng.standard_normal((2, 1, 3, 3)) + 3 * np.eye(3)
    b = rng.standard_normal((1, 4, 3, 2))
    x, y = T.tensor("float64", (2, 1, 3, 3)), T.tensor("float64", (1, 4, 3, 2))
    outs = [
        L.solve(x, y), L.solve_triangular(x, y, lower=True), L.solve(x, y, "her"),
        *T.grad((L.solve(x, y) ** 2).sum(), [x, y]),
    ]  # fmt: skip
    found = compiled([x, y], outs)(a, b)
    np.testing.assert_allclose(found[0], np.linalg.solve(a, b), rtol=1e-9)
    np.testing.assert_allclose(found[1], np.linalg.solve(np.tril(a), b), rtol=1e-9)
    up = np.triu(a) + np.swapaxes(np.triu(a, 1), -1, -2)
    np.testing.assert_allclose(found[2], np.linalg.solve(up, b), rtol=1e-9)
    assert found[3].shape == a.shape
    assert found[4].shape == b.shape


def test_a_vector_is_solved_for_each_matrix_of_a_stack(rng):
    a, b = rng.standard_normal((2, 2, 2)), rng.standard_normal(2)
    p = a @ np.swapaxes(a, -1, -2) + np.eye(2)
    x, y = T.dtensor3("x"), T.dvector("y")
    outs = [
        L.solve(x, y), L.solve(x, y, "pos"), L.cho_solve(L.cho_factor(x), y),
        L.cho_solve(L.cho_factor(x, lower=True), y), L.lu_solve(L.lu_factor(x), y),
    ]  # fmt: skip
    wanted = np.linalg.solve(p, np.broadcast_to(b[:, None], (2, 2, 1)))[..., 0]
    for found in compiled([x, y], outs)(p, b):
        np.testing.assert_allclose(found, wanted, rtol=1e-10)


def test_every_name_of_numpys_linalg_is_there_and_takes_the_last_axes(rng):
    missing = {n for n in np.linalg.__all__ if n.islower() and not hasattr(L, n)}
    assert not missing, missing
    a, x = rng.standard_normal((2, 3, 4)), T.dtensor3("x")
    for offset in (-1, 0, 2):
        found = compiled([x], L.diagonal(x, offset))(a)
        np.testing.assert_array_equal(found, np.linalg.diagonal(a, offset=offset))


def test_a_diagonal_system_reads_the_diagonal_and_has_its_gradient(rng):
    a, b = rng.standard_normal((2, 3, 3)), rng.standard_normal((2, 3, 2))
    x, y = T.dtensor3s("x", "y")
    found = L.solve(x, y, "diagonal")
    d = np.einsum("...ii->...i", a)[..., None]
    np.testing.assert_allclose(compiled([x, y], found)(a, b), b / d)
    T.verify_grad(lambda *v: L.solve(*v, "diagonal"), [a, b], rng=rng)


def test_products_of_many_matrices_and_vectors(rng):
    a, b, c = (rng.standard_normal(s) for s in ((4, 5), (5, 3), (3, 6)))
    x, y, z = (T.tensor("float64", s) for s in ((4, 5), (5, 3), (3, 6)))
    u, v = T.tensor("float64", (4,)), T.tensor("float64", (6,))
    outs = [L.multi_dot([x, y, z]), L.multi_dot([u, x, y, z, v]), L.multi_dot([x, y])]
    left, right = rng.standard_normal(4), rng.standard_normal(6)
    found = compiled([x, y, z, u, v], outs)(a, b, c, left, right)
    np.testing.assert_allclose(found[0], a @ b @ c, rtol=1e-9)
    np.testing.assert_allclose(found[1], left @ a @ b @ c @ right, rtol=1e-9)
    np.testing.assert_allclose(found[2], a @ b, rtol=1e-9)


def test_the_condition_of_a_singular_matrix_is_infinite():
    a = T.dmatrix("a")
    f = compiled([a], [L.cond(a), L.cond(a, 1), L.cond(a, "fro")])
    assert all(np.isinf(v) for v in f(np.zeros((2, 2))) if not np.isnan(v))
    assert all(np.isnan(v) for v in compiled([a], [L.cond(a, 1)])(np.full((2, 2), np.nan)))


# -- shared factors -------------------------------------------------------------------------------


def test_one_cholesky_factor_serves_a_gaussian_process(rng):
    k, y = T.dmatrix("k"), T.dvector("y")
    cost = T.dot(y, L.solve(k, y, "pos", lower=True)) + L.slogdet(k, "pos", lower=True)[1]
    f = compiled([k, y], [cost, *T.grad(cost, [k, y]), L.cholesky(k)])
    assert count(f, Cholesky) == 1
    assert count(f, MatrixInverse) == 0
    x = rng.standard_normal((5, 5))
    p, t = x @ x.T + np.eye(5), rng.standard_normal(5)
    value, dk, dy, _ = f(p, t)
    inverse = np.linalg.inv(p)
    np.testing.assert_allclose(value, t @ inverse @ t + np.linalg.slogdet(p)[1], rtol=1e-9)
    alpha = inverse @ t
    np.testing.assert_allclose(dk + dk.T, 2 * (inverse - np.outer(alpha, alpha)), atol=1e-9)
    np.testing.assert_allclose(dy, 2 * alpha, rtol=1e-9)


def test_one_lu_serves_solutions_their_gradients_and_determinants(rng):
    a, b = T.dmatrices("a", "b")
    x = L.solve(a, b)
    cost = (x**2).sum() + L.solve(a.T, b).sum() + T.log(abs(L.det(a))) * 0.5
    f = compiled([a, b], [cost, T.grad((x**2).sum(), b), L.det(a)])
    assert count(f, LUFactor) == 1
    assert count(f, LUSolve) == 3
    m, v = rng.standard_normal((4, 4)) + 3 * np.eye(4), rng.standard_normal((4, 2))
    value, slope, size = f(m, v)
    solved = np.linalg.solve(m, v)
    wanted = (solved**2).sum() + np.linalg.solve(m.T, v).sum() + np.linalg.slogdet(m)[1] / 2
    np.testing.assert_allclose(value, wanted, rtol=1e-9)
    np.testing.assert_allclose(slope, np.linalg.solve(m.T, 2 * solved), rtol=1e-9)
    np.testing.assert_allclose(size, np.linalg.det(m), rtol=1e-9)


def test_one_lu_serves_solutions_and_the_determinant_of_a_product_with_its_transpose(rng):
    """The evidence of Bayesian linear regression."""
    x, t, a = T.dmatrix("x"), T.dvector("t"), T.dscalar("a")
    precision = a * T.eye(4) + T.dot(x.T, x)
    mean = T.dot(L.inv(precision), T.dot(x.T, t))
    cost = (mean**2).sum() - T.log(L.det(precision)) / 2
    f = compiled([x, t, a], [cost, T.grad(cost, a)])
    assert count(f, LUFactor) == 1
    assert count(f, (Solve, SLogDet)) == 0
    xv, tv = rng.standard_normal((9, 4)), rng.standard_normal(9)

    def wanted(a):
        p = a * np.eye(4) + xv.T @ xv
        return (np.linalg.solve(p, xv.T @ tv) ** 2).sum() - np.linalg.slogdet(p)[1] / 2

    slope = (wanted(0.5 + 1e-6) - wanted(0.5 - 1e-6)) / 2e-6
    np.testing.assert_allclose(f(xv, tv, 0.5), [wanted(0.5), slope], rtol=1e-7)


def test_a_triangle_beside_a_determinant_of_the_whole_matrix_stays_one(rng):
    a, b = T.dmatrices("a", "b")
    f = compiled([a, b], [L.solve(a, b, "her"), L.slogdet(a)[1]])
    assert count(f, LUFactor) == 0
    m, v = rng.standard_normal((3, 3)), rng.standard_normal((3, 2))
    whole = np.triu(m) + np.triu(m, 1).T
    found, log = f(m, v)
    np.testing.assert_allclose(found, np.linalg.solve(whole, v))
    np.testing.assert_allclose(log, np.linalg.slogdet(m)[1])


def test_logarithms_of_determinants_that_no_float_holds(rng):
    a = T.fmatrix("a")
    x = (rng.standard_normal((200, 200)) * 1e-3).astype("float32")
    x[0] *= np.sign(np.linalg.slogdet(x)[0])
    outs = [T.log(abs(L.det(a))), T.log(L.det(a)), T.grad(T.log(L.det(a)), a), L.det(a)]
    value, log_det, slope, size = compiled([a], outs)(x)
    wanted = np.linalg.slogdet(x.astype("float64"))[1]
    assert size == 0
    np.testing.assert_allclose([value, log_det], wanted, rtol=1e-5)
    inverse = np.linalg.inv(x.astype("float64")).T
    np.testing.assert_allclose(slope, inverse, atol=1e-2 * abs(inverse).max())


def test_large_matrices_run_with_threads_of_blas(rng):
    a, b = T.fmatrices("a", "b")
    x = rng.standard_normal((300, 300)).astype("float32")
    p, y = x @ x.T / 300 + np.eye(300, dtype="float32"), x[:, :5]
    f = compiled([a, b], [T.exp(-L.solve(a, b)), L.cholesky(a), L.inv(a)])
    found = f(p, y)
    np.testing.assert_allclose(found[0], np.exp(-np.linalg.solve(p, y)), rtol=1e-3)
    np.testing.assert_allclose(found[1], np.linalg.cholesky(p), atol=1e-3)
    np.testing.assert_allclose(found[2], np.linalg.inv(p), atol=1e-2)


def test_many_small_matrices_are_divided_between_threads(rng):
    x = rng.standard_normal((5000, 4, 4))
    p = x @ np.swapaxes(x, -1, -2) + np.eye(4)
    a = T.dtensor3("a")
    f = compiled([a], [L.cholesky(a), L.inv(a), L.solve(a, a[:, :, :1])])
    found = f(p)
    wanted = np.linalg.cholesky(p), np.linalg.inv(p), np.linalg.solve(p, p[:, :, :1])
    for one, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, want, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_exponentials_of_stacks_are_those_of_each_matrix(dtype, rng):
    """For norms of every degree of the approximation, and of matrices that need several."""
    a = T.TensorType(dtype, (None, None, None))()
    f = compiled([a], [L.expm(a)])
    eps = np.finfo(dtype).eps
    for scale in (1e-4, 0.01, 0.1, 0.5, 1.5, 10, [1e-3, 0.3, 2, 9, 40]):
        stack = rng.standard_normal((5, 6, 6))
        if "complex" in dtype:
            stack = stack + 1j * rng.standard_normal((5, 6, 6))
        stack = (stack * np.reshape(scale, (-1, 1, 1)) / 6).astype(dtype)
        found, wanted = f(stack)[0], scipy.linalg.expm(stack.astype("complex128"))
        wrong = np.abs(found - wanted).max((1, 2)) / np.abs(wanted).max((1, 2))
        assert (wrong < 300 * eps).all()
    stack[2, 0, 1] = np.inf
    found = f(stack)[0]
    assert np.isnan(found[2]).all()
    assert np.isfinite(np.delete(found, 2, 0)).all()


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7])
def test_adjugates_of_regular_singular_and_other_matrices(rows, dtype):
    """``a adj(a) = det(a)``; of a matrix without one row's worth the products of minors."""
    rng = np.random.default_rng(rows)
    a = rng.normal(size=(5, rows, rows)) + 1j * rng.normal(size=(5, rows, rows))
    a = a if dtype == "complex128" else a.real
    a[1, -1] = a[1, 0] * (rows > 1)
    a[2] *= 1e-3
    a[3, -1] = a[3, 0] * (1 + 1e-9)
    a[4, 0, 0] = np.nan
    a = a.astype(dtype)
    x = TensorType(dtype, (None,) * 3)()
    found = symdnn.function([x], Adjugate()(x), mode="Mode")(a)
    assert found.dtype == dtype
    for m, adjugate in zip(a[:4], found):
        wide = m.astype(np.result_type(m, "float64"))
        wanted = np.empty_like(wide)
        for i, j in np.ndindex(rows, rows):
            minor = np.delete(np.delete(wide, i, 0), j, 1)
            wanted[j, i] = (-1) ** (i + j) * np.linalg.det(minor)
        atol = (1e-6 if dtype == "float32" else 1e-11) * np.abs(wanted).max()
        np.testing.assert_allclose(adjugate, wanted, rtol=0, atol=atol)
    assert rows == 1 or np.isnan(found[4]).any()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("values", [(1, 1e-30, 1e-36), (2, 1, 1e-28, 1e-33), (1, 0, 0), (3, 2, 1)])
def test_gradients_of_adjugates_of_tiny_singular_values(values, dtype):
    """Two of which have a product that is 0: what is left of the matrix is not lost."""
    rng = np.random.default_rng(len(values))
    power = 1 if dtype == "float32" else 6  # 1e-36 is near the least float32, 1e-216 of float64
    a = np.diag([float(v) ** power if v < 1e-20 else float(v) for v in values]).astype(dtype)
    turns = [scipy.stats.ortho_group.rvs(len(a), random_state=rng) for _ in "uv"]
    g = rng.normal(size=a.shape).astype(dtype)
    x, of = (TensorType(dtype, (None,) * 2)() for _ in "xg")
    f = symdnn.function([x, of], AdjugateGrad().parts([x, of]), mode=CPU)
    for matrix in (a, (turns[0] @ a @ turns[1]).astype(dtype)):
        (found,) = f(matrix, g)
        wanted = AdjugateGrad().reference(matrix.astype("float64"), g.astype("float64"))
        np.testing.assert_allclose(found, wanted, atol=1e-5 if dtype == "float32" else 1e-12)
