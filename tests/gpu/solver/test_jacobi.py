"""Eigenvalues and singular values by our own kernel, computed here: values, vectors, edges."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import Mode
from symdnn.errors import LinAlgError
from symdnn.gpu import registry
from symdnn.gpu.device.error_codes import exception_of
from symdnn.gpu.solver.jacobi import JacobiEighKernel, JacobiSVDKernel
from symdnn.graph.kernel import kernels_for
from symdnn.graph.op import Op
from symdnn.ops.matrix.eigen import Eigh, Eigvalsh
from symdnn.ops.matrix.svd import SVD
from tests.gpu import emulator
from tests.gpu.table import concrete
from tests.seeded import new_rng, sampled

pytestmark = pytest.mark.skipif(not emulator.AVAILABLE, reason="there is no g++")
registry.load()
DTYPES = ("float32", "float64", "complex64", "complex128")


def drawn(dtype: str, *shape: int) -> np.ndarray:
    rng = new_rng()
    x = rng.standard_normal(shape)
    if dtype.startswith("complex"):
        x = x + 1j * rng.standard_normal(shape)
    return x.astype(dtype)


def adjoint(a: np.ndarray) -> np.ndarray:
    return np.swapaxes(a, -1, -2).conj()


def launched(op: Any, a: np.ndarray) -> tuple[list[np.ndarray], Any]:
    call = replace(concrete(replace(op, on_error="nan"), [a]), op=op)
    kernel = kernels_for(type(op), "cuda")[0]
    assert isinstance(kernel, JacobiEighKernel | JacobiSVDKernel)
    assert kernel.refuses(call) is None
    return emulator.run(kernel, call, [a])


def bound(a: np.ndarray) -> float:
    """Rounding errors of some operations, as a part of the largest value."""
    return 64 * max(a.shape[-2:]) * float(np.finfo(a.dtype).eps) * max(np.abs(a).max(), 1e-300)


def check_eigh(a: np.ndarray, word: str = "L") -> None:
    (w, v), env = launched(Eigh(word), a)
    half = np.tril(a, -1) if word == "L" else np.triu(a, 1)
    whole = half + adjoint(half)
    whole = whole + np.einsum("...ii->...i", a).real[..., None] * np.eye(a.shape[-1], dtype=a.dtype)
    close = bound(whole)
    assert np.abs(w - np.linalg.eigvalsh(whole)).max() <= close
    assert np.abs(v * w[..., None, :] - whole @ v).max() <= close
    assert (
        np.abs(adjoint(v) @ v - np.eye(a.shape[-1])).max()
        <= 64 * a.shape[-1] * np.finfo(a.dtype).eps
    )
    (alone,), _ = launched(Eigvalsh(word), a)
    np.testing.assert_array_equal(alone, w)
    assert env.error[0] == 0


def check_svd(a: np.ndarray) -> None:
    a = np.ascontiguousarray(a)
    close, k = bound(a), min(a.shape[-2:])
    wanted = np.linalg.svd(a)[1]
    for full in (False, True):
        (u, s, vh), env = launched(SVD(full), a)
        assert np.abs(s - wanted).max() <= close
        assert np.abs((u[..., :k] * s[..., None, :]) @ vh[..., :k, :] - a).max() <= close
        for x in (adjoint(u) @ u, vh @ adjoint(vh)):
            assert (
                np.abs(x - np.eye(x.shape[-1])).max() <= 64 * max(a.shape) * np.finfo(a.dtype).eps
            )
        assert env.error[0] == 0
    (alone,), _ = launched(SVD(False, False), a)
    np.testing.assert_array_equal(alone, s)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "words"),
    sampled([((1, 1), "LU"), ((4, 4), "LU"), ((2, 2, 5, 5), "U"), ((33, 33), "L")], every=2),
)
def test_eigenvalues(dtype, shape, words):
    for word in words:
        check_eigh(drawn(dtype, *shape), word)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("stack", "rows", "columns"),
    sampled([((), 4, 4), ((2,), 5, 3), ((2,), 3, 5), ((), 1, 3), ((), 40, 3)], every=3),
)
def test_singular_values(dtype, stack, rows, columns):
    check_svd(drawn(dtype, *stack, rows, columns))


def special(dtype: str, n: int) -> list[np.ndarray]:
    """Zeros, equal values, values that are no sums of the others, and of all sizes."""
    q = np.linalg.qr(drawn(dtype, n, n))[0]
    tiny = np.finfo(dtype).tiny ** 0.9
    kept = [
        np.zeros((n, n)), np.eye(n), np.ones((n, n)), np.diag(np.arange(n) - 2.0),
        (q * np.repeat([1.0, -1.0], [n // 2, n - n // 2])) @ adjoint(q),
        (q * np.where(np.arange(n) < 2, 1.0, 0.0)) @ adjoint(q),
        (q * 10.0 ** -np.arange(n)) @ adjoint(q),
        (q * np.arange(n)) @ adjoint(q) * tiny, (q * np.arange(n)) @ adjoint(q) / tiny,
        np.triu(np.ones((n, n))),
    ]  # fmt: skip
    return [np.asarray(a, dtype) for a in kept]


@pytest.mark.parametrize("dtype", sampled(DTYPES, every=2))
def test_special_matrices(dtype):
    for a in special(dtype, 7):
        check_eigh(a)
        check_svd(a)
        check_svd(a[:, :4])


@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_as_large_and_small_as_there_are(dtype):
    a = np.array([[2, 1, 0], [1, 3, 0.5], [0, 0.5, 1]])
    limits = np.finfo(dtype)
    for size in (limits.max / 4, limits.tiny / 64, limits.smallest_subnormal * 64):
        scaled, size = (a * float(size)).astype(dtype), float(size)
        wanted = np.linalg.eigvalsh(a)
        for op, want in ((Eigvalsh(), wanted), (SVD(False, False), wanted[::-1])):
            (found,), env = launched(op, scaled)
            np.testing.assert_allclose(found.astype("float64") / size, want, rtol=1e-2)
            assert env.error[0] == 0


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_matrix_that_is_not_finite_is_an_error_or_nan(dtype, value):
    a = drawn(dtype, 3, 5, 4)
    a[1, 3, 0] = value
    ops: list[tuple[Op, np.ndarray]] = [
        (Eigh(), a[:, :4]), (Eigvalsh(), a[:, :4]), (SVD(), a), (SVD(False), a),
        (SVD(False, False), a), (SVD(), adjoint(a)),
    ]  # fmt: skip
    for op, x in ops:
        found, env = launched(replace(op, on_error="nan"), np.ascontiguousarray(x))
        assert env.error[0] == 0
        for y in found:
            assert np.isnan(y[1]).all()
            assert np.isfinite(y[[0, 2]]).all()
        _, env = launched(replace(op, on_error="raise"), np.ascontiguousarray(x))
        code, node, number, limit = env.error
        assert (node, number) == (7, 1)
        with pytest.raises(LinAlgError, match="matrix 1 of the stack is without eigenvalues"):
            raise exception_of(code, number, limit)
    # What the other triangle has is not read.
    found, env = launched(Eigh("U", "raise"), np.ascontiguousarray(a[:, :4]))
    assert all(np.isfinite(y).all() for y in found)
    assert env.error[0] == 0


def test_larger_matrices_and_those_without_known_sizes():
    for op, shape in ((Eigh(), (65, 65)), (SVD(), (80, 3)), (SVD(), (2, 64, 64))):
        call = concrete(op, [np.ones(shape)])
        first, second = kernels_for(type(op), "cuda")[:2]
        assert "too large" in first.refuses(call)
        assert second.name.startswith("cusolver.")


def test_they_are_planned_on_the_device():
    a = T.dmatrix("a")
    w, v = T.linalg.eigh(a)
    cost = (w**2).sum() + (v**4).sum() + (T.linalg.svd(a, False)[0] ** 3).sum()
    f = symdnn.function([a], [cost, T.grad(cost, a)], mode=Mode(target="cuda:sm_90"))
    assert "on the host" not in str(f.lowering_report())
