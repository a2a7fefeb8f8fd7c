"""Small matrices in registers, in the emulator: LAPACK's factors and solutions; singular ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from symdnn.errors import LinAlgError
from symdnn.gpu import registry
from symdnn.gpu.device.error_codes import exception_of
from symdnn.graph.kernel import kernels_for
from symdnn.ops.matrix.lu import LUFactor, LUSolve
from symdnn.ops.matrix.solve import MatrixInverse
from tests.gpu import emulator
from tests.gpu.table import concrete
from tests.seeded import new_rng

pytestmark = pytest.mark.skipif(not emulator.AVAILABLE, reason="there is no g++")
registry.load()
sides = pytest.mark.parametrize("side", [1, 2, 3, 6])
dtypes = pytest.mark.parametrize("dtype", ["float32", "float64"])
pivoted = pytest.mark.parametrize("how", ["rows", "columns"])


def launched(op: Any, *arrays: np.ndarray) -> tuple[list[np.ndarray], Any]:
    """The results of the small kernel, and its environment."""
    quiet = op if isinstance(op, LUFactor) else replace(op, on_error="nan")
    call = replace(concrete(quiet, list(arrays)), op=op)
    kernel = next(k for k in kernels_for(type(op), "cuda") if k.refuses(call) is None)
    assert kernel.name.startswith("cuda.small")
    return emulator.run(kernel, call, list(arrays))


def drawn(dtype: str, *shape: int) -> np.ndarray:
    return new_rng().standard_normal(shape).astype(dtype)


def tolerance(dtype: str) -> float:
    return 2e-3 if dtype == "float32" else 1e-9


@sides
@dtypes
@pivoted
def test_factors(side: int, dtype: str, how: str) -> None:
    """With LAPACK's pivots; a singular matrix has some, too."""
    a = drawn(dtype, 3, 5, side, side)
    a[0, 0] = 0
    a[1, 1, :, 0] = a[1, 1, :, -1]
    op = LUFactor(how)
    (f, pivots), _ = launched(op, a)
    want, places = op.reference(a)
    np.testing.assert_array_equal(pivots[2:], places[2:])
    np.testing.assert_allclose(f, want, tolerance(dtype), tolerance(dtype))


@sides
@dtypes
@pivoted
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("shared", ["", "factors", "right side"])
def test_solutions(side: int, dtype: str, how: str, transposed: bool, shared: str) -> None:
    a = drawn(dtype, *((1,) if shared == "factors" else (7,)), side, side)
    a += 2 * np.eye(side, dtype=dtype)
    b = drawn(dtype, *((1,) if shared == "right side" else (7,)), side, 3)
    f, pivots = LUFactor(how).reference(a)
    (x,), env = launched(LUSolve(how, transposed), f, pivots, b)
    want = np.linalg.solve(np.swapaxes(a, -1, -2) if transposed else a, b)
    np.testing.assert_allclose(x, want, tolerance(dtype), tolerance(dtype))
    assert env.error[0] == 0


@sides
@dtypes
def test_inverses(side: int, dtype: str) -> None:
    a = drawn(dtype, 9, side, side) + 2 * np.eye(side, dtype=dtype)
    (x,), _ = launched(MatrixInverse(), a)
    np.testing.assert_allclose(x, np.linalg.inv(a), tolerance(dtype), tolerance(dtype))


@pytest.mark.parametrize("on_error", ["raise", "nan"])
@pytest.mark.parametrize("inverse", [False, True])
def test_singular_matrices(on_error: str, inverse: bool) -> None:
    """The others have results; the error names the matrix of the stack."""
    a = np.stack([np.eye(3), np.ones((3, 3)), 2 * np.eye(3)])
    if inverse:
        (x,), env = launched(MatrixInverse(on_error), a)
    else:
        f, pivots = LUFactor("columns").reference(a)
        (x,), env = launched(LUSolve("columns", False, on_error), f, pivots, np.ones((3, 3, 1)))
    assert np.isnan(x[1]).all()
    assert np.isfinite(x[[0, 2]]).all()
    if on_error == "nan":
        assert env.error[0] == 0
        return
    code, _, value, limit = env.error
    with pytest.raises(LinAlgError, match="matrix 1 of the stack is singular"):
        raise exception_of(code, value, limit)
