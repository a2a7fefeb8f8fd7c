"""Small matrices as one compiled call: values, faults, and that plans need no Python for it."""

from __future__ import annotations

import numpy as np
import pytest

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


def test_a_solution_is_one_call_without_python():
    a, b = T.dmatrices("a", "b")
    f = symdnn.function([a, b], L.solve(a, b))
    m, v = RNG.standard_normal((4, 4)), RNG.standard_normal((4, 2))
    f(m, v)
    f(m, v)
    (plan,) = f.plans()
    native = [s.launch.native is not None for s in plan.bound.steps]
    assert native == [True, True]
