"""The normal distribution's logarithm, against SciPy in float64."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special

import symdnn
import symdnn.tensor as T

POINTS = [-200, -30, -5, -1, -0.1, -1e-6, 0, 1e-6, 0.1, 0.5, 1, 2, 3, 5, 8, 12]


@pytest.mark.parametrize("optimizer", ["fast_run", "None"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_log_ndtr_and_its_gradients_on_both_sides(rng, dtype, optimizer):
    points = np.array([*POINTS, *rng.uniform(-13, 13, 200)], dtype)
    x = T.vector(dtype=dtype)
    y = T.log_ndtr(x)
    slope = T.grad(y.sum(), x)
    bend = T.grad(slope.sum(), x)
    f = symdnn.function([x], [y, slope, bend], mode=symdnn.Mode(optimizer=optimizer))
    wide = points.astype("float64")
    value = scipy.special.log_ndtr(wide)
    density = np.exp(-wide * wide / 2 - value) / np.sqrt(2 * np.pi)
    # Below 0 SciPy's value is -x^2/2, so the density over it comes of a difference.
    low = np.sqrt(2 / np.pi) / scipy.special.erfcx(-wide / np.sqrt(2))
    density = np.where(wide < 0, low, density)
    # One unit in the last place of x moves the right tail by x^2 of them.
    rtol = (8 + wide * wide) * np.finfo(dtype).eps
    y, slope, bend = f(points)
    assert (np.abs(y / value - 1) <= rtol).all()
    assert (np.abs(slope / density - 1) <= rtol + 4 * np.finfo(dtype).eps).all()
    near = wide > -5
    wanted = (-density * (wide + density))[near]
    np.testing.assert_allclose(bend[near], wanted, rtol=1e-3, atol=64 * np.finfo(dtype).eps)


def test_log_ndtr_at_the_ends():
    x = T.dvector()
    y = T.log_ndtr(x)
    f = symdnn.function([x], [y, T.grad(y.sum(), x)])
    y, slope = f([-np.inf, np.inf, np.nan, 1e200, 40.0])
    np.testing.assert_array_equal(y, [-np.inf, 0, np.nan, 0, 0])
    np.testing.assert_allclose(slope[1:], [0, np.nan, 0, 0], atol=1e-300)
