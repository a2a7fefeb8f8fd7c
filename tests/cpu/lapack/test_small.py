"""Small matrices as one compiled call: values, faults, and that plans need no Python for it."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import scipy.linalg

import symdnn
import symdnn.tensor as T
from symdnn.cpu.compiler import jit

L = T.linalg
RNG = np.random.default_rng(3)
pytestmark = pytest.mark.skipif(bool(jit.problem()), reason="nothing is compiled here")


def _inputs(dtype, lead, n, columns):
    a = RNG.standard_normal((*lead, n, n)) + 2 * n * np.eye(n)
    p = a @ a.swapaxes(-1, -2)
    b = RNG.standard_normal((*lead, n, columns))
    return [v.astype(dtype) for v in (a, p, b)]


@pytest.mark.parametrize(
    ("lead", "n", "columns"), [((), 1, 3), ((), 7, 1), ((3,), 4, 3), ((2, 1), 33, 2)]
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values(dtype, lead, n, columns):
    values = _inputs(dtype, lead, n, columns)
    a, p, b = (T.TensorType(dtype, (None,) * v.ndim)(name) for v, name in zip(values, "apb"))
    q, r = L.qr(a)
    made = [
        L.cholesky(p), L.cholesky(p, lower=False), L.inv(a), L.solve(a, b), L.solve(p, b, "pos"),
        L.solve(p, b, "sym"), L.solve_triangular(a, b, lower=True),
        L.solve_triangular(a, b, lower=False, trans=1), T.matmul(q, r),
        L.solve(T.matrix_transpose(a), b),
    ]  # fmt: skip
    f = symdnn.function([a, p, b], made)
    av, pv, bv = (v.astype("float64") for v in values)
    root = np.linalg.cholesky(pv)
    wanted = [
        root, root.swapaxes(-1, -2), np.linalg.inv(av), np.linalg.solve(av, bv),
        np.linalg.solve(pv, bv), np.linalg.solve(pv, bv), np.linalg.solve(np.tril(av), bv),
        np.linalg.solve(np.triu(av).swapaxes(-1, -2), bv), av,
        np.linalg.solve(av.swapaxes(-1, -2), bv),
    ]  # fmt: skip
    tolerance = 1e-11 if dtype == "float64" else 1e-3
    for got, right in zip(f(*values), wanted, strict=True):
        assert got.dtype == dtype
        np.testing.assert_allclose(got, right, rtol=tolerance, atol=tolerance)
    turned = [np.asarray(v.swapaxes(-1, -2), order="C").swapaxes(-1, -2) for v in values]
    for got, right in zip(f(*turned), wanted, strict=True):
        np.testing.assert_allclose(got, right, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("check", [True, False])
def test_matrices_without_a_result(check):
    a, b = T.dtensor3s("a", "b")
    singular = np.stack([np.eye(3), np.diag([1.0, 0.0, 2.0]), 2 * np.eye(3)])
    unknown = np.stack([np.eye(3), np.full((3, 3), np.nan), 2 * np.eye(3)])
    right = RNG.standard_normal((3, 3, 2))
    cases = [
        (L.cholesky(a, check=check), -singular + 1.5 * np.eye(3)),
        (L.cholesky(a, check=check), unknown),
        (L.inv(a, check=check), singular),
        (L.solve(a, b, check=check), singular),
        (L.solve_triangular(a, b, lower=True, check=check), singular),
        (L.solve(a, b, "pos", check=check), unknown),
    ]
    for made, values in cases:
        f = symdnn.function([a, b], made, on_unused_input="ignore")
        fine = np.broadcast_to(3 * np.eye(3), (3, 3, 3))
        assert np.isfinite(f(fine, right)).all()
        for _ in range(2):  # the first call plans, the second is native
            if check:
                with pytest.raises(np.linalg.LinAlgError, match="matrix [01] of the stack"):
                    f(values, right)
            else:
                found = f(values, right)
                assert np.isnan(found[1]).all()
        assert np.isfinite(f(fine, right)).all()


def test_an_indefinite_matrix_has_a_solution_by_another_way():
    a, b = T.dmatrices("a", "b")
    m, v = np.diag([1.0, -2.0, 3.0]), RNG.standard_normal((3, 2))
    f = symdnn.function([a, b], L.solve(a, b, "sym"))
    for _ in range(2):
        np.testing.assert_allclose(f(m, v), np.linalg.solve(m, v))


@pytest.mark.parametrize(
    ("lead", "m", "n"), [((), 1, 1), ((3,), 7, 4), ((2, 2), 4, 7), ((), 40, 40), ((5,), 3, 3)]
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_spectra_and_determinants(dtype, lead, m, n):
    value = RNG.standard_normal((*lead, m, n)).astype(dtype)
    a = T.TensorType(dtype, (None,) * value.ndim)("a")
    tolerance = 1e-10 if dtype == "float64" else 3e-4
    near = partial(np.testing.assert_allclose, rtol=tolerance, atol=tolerance)
    made = [*L.svd(a, full_matrices=False), *L.svd(a), L.svdvals(a)]
    u, s, vh, wide, _, high, values = symdnn.function([a], made)(value)
    near((u * s[..., None, :]) @ vh, value)
    near(values, np.linalg.svd(value, compute_uv=False))
    for vectors, size in ((wide, m), (high, n)):
        near(vectors @ vectors.swapaxes(-1, -2), np.broadcast_to(np.eye(size), vectors.shape))
    if m != n:
        return
    made = [*L.eigh(a), *L.eigh(a, UPLO="U"), L.eigvalsh(a), L.det(a), *L.slogdet(a)]
    w, v, w_upper, v_upper, alone, det, sign, log = symdnn.function([a], made)(value)
    lower, upper = np.tril(value), np.triu(value)
    for part, own, vectors in ((lower, w, v), (upper, w_upper, v_upper)):
        whole = part + part.swapaxes(-1, -2) - value * np.eye(n)
        near(whole @ vectors, vectors * own[..., None, :])
    near(alone, w)
    near(det, np.linalg.det(value))
    near([sign, log], np.stack(np.linalg.slogdet(value)))


def test_determinants_beyond_the_numbers_of_a_float64():
    a = T.dmatrix("a")
    f = symdnn.function([a], [L.det(a), *L.slogdet(a)])
    cases = [
        [1e200, 1e200, 1e-200, 1e-200], [1e200, 1e200], [-1e-200, 1e-200], [1e-155, 1e-155],
        [0.0, 1.0], [1 + 1e-9, 1.0], [3e-308, 0.9], [1.7e308, 0.9],
    ]  # fmt: skip
    for diagonal in cases:
        m = np.ascontiguousarray(np.diag(diagonal)[::-1])  # by an exchange of rows
        with np.errstate(all="ignore"):
            det, (sign, log) = np.linalg.det(m), np.linalg.slogdet(m)
        found = f(m)
        np.testing.assert_allclose(found[:2], [det, sign], rtol=1e-12)
        np.testing.assert_allclose(found[2], log, rtol=1e-14, atol=1e-15)
    assert np.isnan(f(np.full((2, 2), np.nan))).tolist() == [True, False, True]


@pytest.mark.parametrize("check", [True, False])
def test_spectra_of_what_is_not_finite(check):
    a = T.dtensor3("a")
    fine = np.stack([np.eye(3), np.diag([3.0, 1.0, 2.0]), 2 * np.eye(3)])
    wrong, beside = fine.copy(), fine.copy()
    wrong[1, 2, 0], beside[1, 0, 2] = np.inf, np.nan
    for made in (L.eigh(a, check=check), L.svd(a, check=check), [L.eigvalsh(a, check=check)]):
        f = symdnn.function([a], list(made))
        for _ in range(2):
            if check:
                with pytest.raises(np.linalg.LinAlgError, match="matrix 1 of the stack"):
                    f(wrong)
            else:
                for found in f(wrong):
                    assert np.isnan(found).reshape(3, -1).all(1).tolist() == [False, True, False]
            assert all(np.isfinite(found).all() for found in f(fine))
    for found in symdnn.function([a], list(L.eigh(a, check=check)))(beside):
        assert np.isfinite(found).all()  # the other triangle is not read


@pytest.mark.parametrize(("lead", "n"), [((), 1), ((5, 2), 3), ((), 20), ((2,), 70)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_exponentials(dtype, lead, n):
    """Of all degrees and numbers of squarings, beside each other in a stack."""
    a = T.TensorType(dtype, (None,) * (len(lead) + 3))("a")
    f = symdnn.function([a], L.expm(a))
    sizes = np.array([0, 1e-30, 1e-3, 0.1, 0.7, 1.5, 3, 10, 20])[(...,) + (None,) * (len(lead) + 2)]
    value = (RNG.standard_normal((9, *lead, n, n)) / n * sizes).astype(dtype)
    wanted = scipy.linalg.expm(value.astype("float64"))
    tolerance = 1e-11 if dtype == "float64" else 2e-5
    turned = np.asarray(value.swapaxes(-1, -2), order="C").swapaxes(-1, -2)
    for given in (value, value, turned):
        found = f(given)
        assert found.dtype == dtype
        errors = abs(found - wanted).max((-1, -2)) / abs(wanted).max((-1, -2))
        assert errors.max() < tolerance


def test_an_exponential_of_what_is_not_finite_is_nan_in_its_place():
    a = T.dtensor3("a")
    f = symdnn.function([a], L.expm(a))
    stack = np.stack(
        [np.eye(3), np.diag([1, np.nan, 2]), np.diag([1, -np.inf, 2]), -1e300 * np.eye(3)]
    )
    for _ in range(2):
        found = f(stack)
        assert np.isnan(found).reshape(4, -1).all(1).tolist() == [False, True, True, False]
        np.testing.assert_allclose(found[0], np.e * np.eye(3))
        np.testing.assert_array_equal(found[3], np.zeros((3, 3)))


SPECTRA = (L.eigh, L.eigvalsh, L.svd, L.svdvals, L.det, L.slogdet, L.expm)


@pytest.mark.parametrize("make", [L.solve, *SPECTRA])
def test_a_result_is_calls_without_python(make):
    a, b = T.dmatrices("a", "b")
    made = make(a, b) if make is L.solve else make(a)
    outs = [made] if isinstance(made, T.TensorVariable) else list(made)
    f = symdnn.function([a, b], outs, on_unused_input="ignore")
    m, v = RNG.standard_normal((4, 4)), RNG.standard_normal((4, 2))
    f(m, v)
    f(m, v)
    (plan,) = f.plans()
    assert all(s.launch.native is not None for s in plan.bound.steps)
