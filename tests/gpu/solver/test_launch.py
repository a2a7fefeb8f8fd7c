"""What kernels ask of cuSOLVER and cuBLAS, computed here: every record of the op table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from symdnn.errors import LinAlgError
from symdnn.gpu import registry
from symdnn.gpu.device.error_codes import exception_of
from symdnn.gpu.solver import library, spectra
from symdnn.gpu.solver.work import SolverKernel
from symdnn.graph.kernel import kernels_for
from symdnn.graph.op import Op
from symdnn.ops.matrix.cholesky import Cholesky
from symdnn.ops.matrix.eigen import Eigh, Eigvalsh
from symdnn.ops.matrix.expm import Expm
from symdnn.ops.matrix.lu import LUFactor, LUSolve, PivotsToPermutation
from symdnn.ops.matrix.qr import QR
from symdnn.ops.matrix.solve import MatrixInverse, Solve
from symdnn.ops.matrix.svd import SVD
from tests.gpu import emulator
from tests.gpu.solver.computing import Library
from tests.gpu.table import concrete
from tests.seeded import new_rng

pytestmark = pytest.mark.skipif(not emulator.AVAILABLE, reason="there is no g++")
registry.load()
DTYPES = ("float32", "float64", "complex64", "complex128")


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Library, Library]]:
    """The two libraries, which compute here."""
    found = Library("solver"), Library("blas")
    monkeypatch.setattr(library, "solver", lambda: found[0])
    monkeypatch.setattr(library, "blas", lambda: found[1])
    monkeypatch.setattr(library, "_handles", {})
    monkeypatch.setattr(emulator.HostEnv, "place", "here", raising=False)
    monkeypatch.setattr(
        emulator.HostEnv, "zero",
        lambda self, at, nbytes: np.frombuffer(_bytes(at, nbytes), np.uint8).fill(0),
        raising=False,
    )  # fmt: skip
    monkeypatch.setattr(
        emulator.HostEnv, "download",
        lambda self, a: np.frombuffer(_bytes(a.ptr, a.nbytes), a.dtype).reshape(a.shape).copy(),
        raising=False,
    )  # fmt: skip
    for parameters in (spectra.jacobi, spectra.generic):
        parameters.cache_clear()
    yield found
    for parameters in (spectra.jacobi, spectra.generic):
        parameters.cache_clear()


def _bytes(at: int, nbytes: int) -> Any:
    import ctypes

    return (ctypes.c_uint8 * nbytes).from_address(at)


def drawn(dtype: str, *shape: int, positive: bool = False) -> np.ndarray:
    rng = new_rng()
    x = rng.standard_normal(shape)
    if dtype.startswith("complex"):
        x = x + 1j * rng.standard_normal(shape)
    if positive:
        x = x @ np.swapaxes(x, -1, -2).conj() + shape[-1] * np.eye(shape[-1])
    return x.astype(dtype)


def launched(op: Op, *arrays: np.ndarray) -> Any:
    """(results, environment, kernel) of the first kernel by a library that takes the call."""
    call = replace(concrete(_quiet(op), list(arrays)), op=op)
    known = kernels_for(type(op), "cuda")
    kernels = [k for k in known if isinstance(k, SolverKernel)] or known
    kernel = next(k for k in kernels if k.refuses(call) is None)
    found, env = emulator.run(kernel, call, list(arrays))
    return found, env, kernel


def _quiet(op: Any) -> Op:
    """The op whose reference raises nothing: for the types of its results."""
    raises = any(f.name == "on_error" for f in fields(op))
    return replace(op, on_error="nan") if raises else op


def assert_near(found: np.ndarray, wanted: np.ndarray) -> None:
    tolerance = 1e-3 if found.dtype.itemsize == 4 or found.dtype == np.complex64 else 1e-9
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


def same_as_reference(op: Op, *arrays: np.ndarray) -> None:
    found, env, kernel = launched(op, *arrays)
    assert isinstance(kernel, SolverKernel) or isinstance(op, PivotsToPermutation)
    for a, b in zip(found, op.compute(*arrays), strict=True):
        assert_near(a, b)
    assert env.error[0] == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(4, 4), (3, 5, 5), (2, 300, 300)], ids=str)
def test_cholesky(libraries, dtype, shape):
    for lower in (True, False):
        same_as_reference(Cholesky(lower), drawn(dtype, *shape, positive=True))
    names = set(libraries[0].calls)
    assert any(n.endswith("batched") for n in names) == (shape == (3, 5, 5))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("stacks", [((), ()), ((3,), (3,)), ((1,), (3,)), ((2, 2), (2, 2))])
def test_triangles(libraries, dtype, columns, stacks):
    a = drawn(dtype, *stacks[0], 4, 4) + 4 * np.eye(4, dtype=dtype)
    b = drawn(dtype, *stacks[1], 4, columns)
    for structure in ("lower_triangular", "upper_triangular"):
        for transposed, unit in ((False, False), (True, False), (False, True)):
            same_as_reference(Solve(structure, True, transposed, unit), a, b)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pivoted", ["rows", "columns"])
def test_lu(libraries, dtype, pivoted):
    for shape in ((4, 4), (3, 4, 4), (5, 3), (2, 3, 5)):
        a = drawn(dtype, *shape)
        same_as_reference(LUFactor(pivoted), a)
    f, pivots = LUFactor().compute(drawn(dtype, 3, 5, 4))
    same_as_reference(PivotsToPermutation(), pivots, f)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("stacks", [((), ()), ((3,), (3,)), ((1,), (3,))])
def test_lu_solve(libraries, dtype, columns, stacks):
    a, b = drawn(dtype, *stacks[0], 4, 4), drawn(dtype, *stacks[1], 4, columns)
    for pivoted in ("rows", "columns"):
        f, pivots = LUFactor(pivoted).compute(a)
        for transposed in (False, True):
            same_as_reference(LUSolve(pivoted, transposed), f, pivots, b)


@pytest.mark.parametrize("dtype", DTYPES)
def test_inverses(libraries, dtype):
    for shape in ((4, 4), (3, 5, 5), (0, 3, 3), (2, 0, 0)):
        same_as_reference(MatrixInverse(), drawn(dtype, *shape))


@pytest.mark.parametrize("dtype", DTYPES)
def test_eigenvalues(libraries, dtype):
    for shape in ((4, 4), (3, 5, 5), (2, 40, 40)):
        a = drawn(dtype, *shape)
        for word in "LU":
            same_as_reference(Eigvalsh(word), a)
            (w, v), _, _ = launched(Eigh(word), a)
            half = np.tril(a, -1) if word == "L" else np.triu(a, 1)
            whole = half + np.swapaxes(half, -1, -2).conj()
            whole = whole + np.einsum("...ii->...i", a).real[..., None] * np.eye(shape[-1])
            assert_near((v * w[..., None, :]).astype(dtype), (whole @ v).astype(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (3, 5), (2, 5, 3), (2, 3, 5), (2, 40, 3)])
def test_singular_values(libraries, dtype, shape):
    a = drawn(dtype, *shape)
    same_as_reference(SVD(False, False), a)
    k = min(shape[-2:])
    for full in (False, True):
        (u, s, vh), _, _ = launched(SVD(full), a)
        assert_near(s, np.linalg.svd(a)[1])
        assert_near(((u[..., :k] * s[..., None, :]) @ vh[..., :k, :]).astype(dtype), a)
        assert_near(u @ np.swapaxes(u, -1, -2).conj() @ u, u)
        assert_near(vh @ np.swapaxes(vh, -1, -2).conj() @ vh, vh)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape", [(4, 4), (5, 3), (3, 5), (2, 5, 3), (3, 3, 5), (2, 40, 3), (2, 33, 33), (2, 120, 120)]
)
def test_qr(libraries, dtype, shape):
    for mode in ("reduced", "complete", "r"):
        same_as_reference(QR(mode), drawn(dtype, *shape))
    # A stack of matrices that fit into shared memory is one kernel.
    assert bool(libraries[0].calls) == (len(shape) == 2 or shape[-1] == 120)


@pytest.mark.parametrize("dtype", DTYPES)
def test_qr_of_columns_without_a_reflection(libraries, dtype):
    a = drawn(dtype, 4, 6, 6)
    a[0] = np.eye(6)
    a[1, :, 2] = 0
    a[2] = np.triu(a[2])
    a[3] *= 1e-30 if a.real.dtype == np.float32 else 1e-200  # whose squares are 0
    scale = np.array([1, 1, 1, abs(a[3]).max()])[:, None, None]
    (q, r), _, _ = launched(QR(), a)
    wanted = QR().compute(a)
    assert_near(q, wanted[0])
    assert_near((r / scale).astype(dtype), (wanted[1] / scale).astype(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (4, 4), (3, 5, 5), (2, 2, 3, 3), (2, 60, 60)])
def test_exponentials(libraries, dtype, shape):
    a = drawn(dtype, *shape) / np.sqrt(shape[-1])
    if len(shape) == 3:  # each matrix is squared as often as it needs
        a = (a * np.array([1e-3, 1, 9, 0.1])[: shape[0], None, None]).astype(dtype)
    same_as_reference(Expm(), a)


def test_the_exponential_of_a_matrix_that_is_not_finite(libraries):
    a = drawn("float64", 3, 4, 4)
    a[1, 2, 3], a[2, 0, 0] = np.nan, np.inf
    (y,), env, _ = launched(Expm(), a)
    assert_near(y[0], Expm().compute(a[:1])[0][0])
    assert np.isnan(y[1:]).all()
    assert env.error[0] == 0


# -- matrices without a result --------------------------------------------------------------------


def failing() -> list[tuple[str, Any, list[np.ndarray], str]]:
    good = drawn("float64", 3, 4, 4, positive=True)
    wrong, singular, unknown = good.copy(), good.copy(), good.copy()
    wrong[1] *= -1
    singular[1, :, 2] = 0
    singular[1, 2, :] = 0
    unknown[1, 0, 0] = np.nan
    corner = good[:, :, :3].copy()
    corner[1, 3, 0] = np.inf  # below the diagonal of a tall matrix
    small = unknown[:, :2, :2].copy()  # of which LAPACK reports no NaN
    f, pivots = LUFactor("columns").compute(singular)
    b = drawn("float64", 3, 4, 2)
    return [
        ("not positive definite", lambda e: Cholesky(on_error=e), [wrong], "0"),
        ("singular", lambda e: Solve("lower_triangular", on_error=e), [singular, b], "0"),
        ("singular", lambda e: LUSolve("columns", on_error=e), [f, pivots, b], "0"),
        ("singular", lambda e: MatrixInverse(e), [singular], "0"),
        ("without eigenvalues", lambda e: Eigh(on_error=e), [unknown], "0"),
        ("without eigenvalues", lambda e: SVD(False, on_error=e), [unknown], "0"),
        ("without eigenvalues", lambda e: SVD(False, False, on_error=e), [corner], "0"),
        ("not positive definite", lambda e: Cholesky(on_error=e), [small], "0"),
        ("not positive definite", lambda e: Cholesky(False, on_error=e), [unknown], "0"),
        ("without eigenvalues", lambda e: Eigh(on_error=e), [small], "0"),
        ("without eigenvalues", lambda e: Eigvalsh(on_error=e), [small], "0"),
    ]


@pytest.mark.parametrize("which", range(11))
def test_a_matrix_without_a_result_is_an_error_or_nan(libraries, which):
    what, op, arrays, _ = failing()[which]
    found, env, _ = launched(op("nan"), *arrays)
    assert env.error[0] == 0
    for y in found:
        assert np.isnan(y[1]).all()
        assert np.isfinite(y[[0, 2]]).all()
    _, env, _ = launched(op("raise"), *arrays)
    code, node, value, limit = env.error
    assert (node, value) == (7, 1)
    with pytest.raises(LinAlgError, match=f"matrix 1 of the stack is {what}"):
        raise exception_of(code, value, limit)


def test_of_one_matrix_for_all_the_status_is_that_of_all(libraries):
    a, b = np.zeros((1, 3, 3)), drawn("float64", 2, 3, 1)
    f, pivots = LUFactor("columns").compute(a)
    for op, inputs in (
        (LUSolve("columns", on_error="nan"), [f, pivots, b]),
        (Solve("upper_triangular", on_error="nan"), [a, b]),
    ):
        (x,), _, _ = launched(op, *inputs)
        assert np.isnan(x).all()


def test_without_the_libraries_the_host_computes(monkeypatch):
    call = concrete(Cholesky(), [np.eye(3)])
    monkeypatch.setattr(library, "without_device", lambda: False)
    monkeypatch.setattr(library, "problem", lambda: "cuSOLVER can't be used (no such file)")
    first, second = kernels_for(Cholesky, "cuda")[:2]
    assert first.refuses(call) == "cuSOLVER can't be used (no such file)"
    assert second.refuses(call) is None
    assert second.name == "cusolver.on_host"
    assert not second.capturable(call)
