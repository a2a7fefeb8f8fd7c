"""Exponentials of small matrices by one kernel, computed here, against the reference."""

from __future__ import annotations

import numpy as np
import pytest

from symdnn.gpu import registry
from symdnn.gpu.solver.expm import BlockExpmKernel
from symdnn.graph.kernel import kernels_for
from symdnn.ops.matrix.expm import Expm
from tests.gpu import emulator
from tests.gpu.table import concrete
from tests.seeded import new_rng

pytestmark = pytest.mark.skipif(not emulator.AVAILABLE, reason="there is no g++")
registry.load()


def exponentials(a: np.ndarray) -> np.ndarray:
    call = concrete(Expm(), [a])
    kernel = kernels_for(Expm, "cuda")[0]
    assert isinstance(kernel, BlockExpmKernel)
    assert kernel.refuses(call) is None
    (found,), _ = emulator.run(kernel, call, [a])
    return found


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("shape", [(1, 1), (4, 4, 4), (5, 11, 11)], ids=str)
def test_exponentials(dtype, shape):
    rng = new_rng()
    a = rng.standard_normal(shape) + (1j * rng.standard_normal(shape) if "c" in dtype else 0)
    if len(shape) == 3:  # each matrix is squared as often as it needs; one has to exchange rows
        a *= np.array([1e-3, 1, 9, 0.1, 2])[: shape[0], None, None]
        a[1] = a[1] * 1e-2 + 5 * np.roll(np.eye(shape[-1]), 1, 0)
    a = a.astype(dtype)
    wanted = Expm().compute(a.astype("complex128" if "c" in dtype else "float64"))[0]
    tolerance = 2e-5 if dtype in ("float32", "complex64") else 1e-13
    for found, want in zip(
        exponentials(a).reshape(-1, *shape[-2:]), wanted.reshape(-1, *shape[-2:])
    ):
        assert np.abs(found - want).max() <= tolerance * np.abs(want).max()


def test_matrices_that_are_not_finite_and_large_ones():
    a = new_rng().standard_normal((4, 3, 3))
    a[1, 2, 0], a[2, 0, 0] = np.nan, np.inf
    found = exponentials(a)
    assert np.isnan(found[1:3]).all()
    np.testing.assert_allclose(found[[0, 3]], Expm().compute(a[[0, 3]])[0], 1e-12)
    first, second = kernels_for(Expm, "cuda")[:2]
    large = concrete(Expm(), [np.zeros((40, 40))])
    assert "too large" in first.refuses(large)
    assert second.name == "cusolver.expm"
    assert first.refuses(concrete(Expm(), [np.zeros((40, 40), "float32")])) is None
    assert exponentials(np.zeros((0, 3, 3))).shape == (0, 3, 3)
