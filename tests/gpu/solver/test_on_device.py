"""Linear algebra on a GPU against NumPy and SciPy in float64."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.errors import LinAlgError
from symdnn.graph.type import TensorType

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda")]

L = T.linalg
DTYPES = ("float32", "float64", "complex64", "complex128")
#: One matrix, stacks for batched routines (Jacobi's take up to 32 rows), and large ones.
SHAPES = ((5, 5), (7, 4, 4), (3, 2, 8, 8), (4, 48, 48), (2, 300, 300), (700, 700))


def on_gpu(inputs, outputs):
    with config.change_flags(device="cuda"):
        return symdnn.function(inputs, outputs)


def drawn(dtype, *shape, positive=False):
    rng = np.random.default_rng([*shape, positive])
    x = rng.standard_normal(shape)
    if "complex" in dtype:
        x = x + 1j * rng.standard_normal(shape)
    if positive:
        x = x @ np.swapaxes(x, -1, -2).conj() / shape[-1] + np.eye(shape[-1])
    return x.astype(dtype)


def variable(a):
    return TensorType(a.dtype.name, (None,) * a.ndim)()


def results(build, *arrays):
    vs = [variable(a) for a in arrays]
    found = build(*vs)
    f = on_gpu(vs, list(found) if isinstance(found, list | tuple) else [found])
    for _ in range(3):  # step by step, then as a graph where it is captured
        made = f(*arrays)
    return made


def close(found, wanted, scale=1.0):
    single = found.dtype in (np.float32, np.complex64)
    size = np.max(np.abs(wanted), initial=1)
    tolerance = (2e-3 if single else 1e-9) * scale
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance * size)


def wide(a):
    return a.astype("complex128" if np.iscomplexobj(a) else "float64")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_factors_and_solutions(dtype, shape):
    p, b = drawn(dtype, *shape, positive=True), drawn(dtype, *shape[:-1], 3)
    (c,) = results(L.cholesky, p)
    close(c, np.linalg.cholesky(wide(p)))
    for word in ("gen", "pos", "her"):
        (x,) = results(lambda a, y, w=word: L.solve(a, y, w), p, b)
        close(x, np.linalg.solve(wide(p), wide(b)))
    (x,) = results(lambda a, y: L.solve_triangular(a, y, lower=True), p, b)
    close(x, np.linalg.solve(np.tril(wide(p)), wide(b)))
    (y,) = results(L.inv, p)
    close(y, np.linalg.inv(wide(p)))
    sign, value = results(L.slogdet, p)
    close(value, np.linalg.slogdet(wide(p))[1])
    close(sign, np.ones(shape[:-2], dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(5, 5), (7, 3), (3, 7), (4, 9, 6), (4, 6, 9), (3, 40, 20)])
def test_singular_values_qr_and_lu(dtype, shape):
    a, k = drawn(dtype, *shape), min(shape[-2:])
    u, s, vh = results(lambda x: L.svd(x, False), a)
    close(s, np.linalg.svd(wide(a))[1])
    close((u * s[..., None, :]) @ vh, wide(a))
    close(np.swapaxes(u, -1, -2).conj() @ u, np.broadcast_to(np.eye(k), (*shape[:-2], k, k)))
    for mode in ("reduced", "complete"):
        q, r = results(lambda x, m=mode: L.qr(x, m), a)
        close(q @ r, wide(a))
        close(np.abs(r), np.abs(np.linalg.qr(wide(a), mode)[1]))
    p, low, up = results(L.lu, a)
    close(p @ low @ up, wide(a))
    close(low, scipy.linalg.lu(wide(a))[1])
    (y,) = results(L.pinv, a)
    close(y, np.linalg.pinv(wide(a)), 10)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_eigenvalues(dtype, shape):
    p = drawn(dtype, *shape, positive=True)
    w, v = results(L.eigh, p)
    close(w, np.linalg.eigvalsh(wide(p)))
    close(v * w[..., None, :], wide(p) @ v)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradients_agree_with_the_processors(dtype):
    p, b = drawn(dtype, 3, 6, 6, positive=True), drawn(dtype, 3, 6, 2)
    a, y = variable(p), variable(b)
    w, v = L.eigh(a)
    u, s, vh = L.svd(a, False)
    q, r = L.qr(a)
    cost = (
        (L.solve(a, y) ** 2).sum() + L.slogdet(a)[1].sum() + (L.cholesky(a) ** 3).sum()
        + (w**2).sum() + (v**4).sum() + s.sum() + (abs(u) ** 3).sum() + (abs(vh) ** 3).sum()
        + (q * r).sum() + L.norm(L.lstsq(a, y)[0])
    )  # fmt: skip
    outs = [cost, *T.grad(cost, [a, y])]
    with config.change_flags(device="cpu"):
        wanted = symdnn.function([a, y], outs)(p, b)
    for found, want in zip(on_gpu([a, y], outs)(p, b), wanted, strict=True):
        close(found, want, 5)


@pytest.mark.parametrize(
    ("build", "what"),
    [
        (lambda a, check: L.cholesky(-a, check=check), "not positive definite"),
        (lambda a, check: L.inv(a * 0, check=check), "singular"),
        (lambda a, check: L.solve(a * 0, a, check=check), "singular"),
        (lambda a, check: L.solve_triangular(a * 0, a, check=check), "singular"),
        (lambda a, check: L.eigvalsh(a * np.nan, check=check), "without eigenvalues"),
        (lambda a, check: L.svdvals(a * np.nan, check=check), "without singular values|without e"),
    ],
)
def test_a_matrix_without_a_result(build, what):
    p = drawn("float32", 3, 4, 4, positive=True)
    (found,) = results(lambda a: build(a, False), p)
    assert np.isnan(found).all()
    with pytest.raises(LinAlgError, match=what):
        results(lambda a: build(a, True), p)


def test_no_update_happens_after_an_error():
    state = symdnn.shared(np.eye(3, dtype="float32"))
    x = T.fmatrix("x")
    with config.change_flags(device="cuda"):
        f = symdnn.function([x], updates=[(state, L.cholesky(state + x))])
    f(np.zeros((3, 3), "float32"))
    wrong = -5 * np.eye(3, dtype="float32")
    with pytest.raises(LinAlgError):
        [f(wrong) for _ in range(4)]
    np.testing.assert_array_equal(state.get_value(), np.eye(3))


def test_empty_stacks_and_matrices():
    for shape in ((0, 3, 3), (2, 0, 0)):
        a = np.zeros(shape, "float32")
        for build in (L.cholesky, L.inv, L.eigvalsh, L.svdvals, lambda v: L.qr(v)[1], L.det):
            (found,) = results(build, a)
            assert np.isfinite(found).all()


def test_factors_are_captured():
    p, b = drawn("float32", 64, 8, 8, positive=True), drawn("float32", 64, 8, 2)
    a, y = variable(p), variable(b)
    cost = (L.solve(a, y, "pos") ** 2).sum() + L.slogdet(a, "pos")[1].sum()
    f = on_gpu([a, y], [cost, T.grad(cost, a)])
    for _ in range(4):
        f(p, b)
    assert "captured" in str(f.plans()[0].bound.capture_state)
