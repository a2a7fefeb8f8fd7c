"""First and second derivatives far out, where squares and exponentials leave the dtype's range."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.special as sp

import symdnn
import symdnn.tensor as T
from symdnn.graph.evaluate import evaluate
from symdnn.tensor import elementwise

SIZES = (1e-300, 1e-20, 1e-5, 0.1, 0.5, 0.9, 1.5, 3, 7, 9.5, 20, 27, 40, 82.5, 400, 709, 720, 1e3,
         1e5, 1e10, 1e20, 1e100, 1e160, 1e200)  # fmt: skip
POINTS = np.array([0.0, *SIZES, *(-s for s in SIZES)])


def derivatives(function, dtype):
    """The operand, the value, and the first and second derivative; None where there is none."""
    x = T.TensorType(dtype, (None,))()
    try:
        y = function(x)
        if y.type.dtype != dtype:
            return None
        first = T.grad(y.sum(), x)
        second = T.grad(first.sum(), x, disconnected_inputs="ignore")
    except Exception:  # another arity, discrete, not differentiable
        return None
    return x, [y, first, second]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_no_derivative_is_nan_where_the_value_is_finite(dtype):
    with np.errstate(all="ignore"):
        points = POINTS.astype(dtype)
    points = points[np.isfinite(points)]
    seen, wrong = 0, {}
    for name in elementwise.__all__:
        found = derivatives(getattr(T, name), dtype)
        if found is None:
            continue
        seen += 1
        with np.errstate(all="ignore"):
            value, *slopes = evaluate(found[1], {found[0]: points})
        for order, slope in enumerate(slopes, 1):
            bad = np.isfinite(value) & np.isnan(slope)
            if bad.any():
                wrong[name, order] = points[bad]
    assert seen > 40
    assert not wrong


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_derivatives_of_the_logarithm_of_factorials(dtype):
    points = np.array([-5.5, -1.5, 0.25, 1, 30, 40, 171, 172, 1e5])
    for form in (lambda v: T.log(T.gamma(v)), lambda v: T.log(abs(T.gamma(v)))):
        x, expressions = derivatives(form, dtype)
        value, first, second = symdnn.function([x], expressions)(points.astype(dtype))
        rtol = 1e-5 if dtype == "float32" else 1e-12
        np.testing.assert_allclose(value, sp.gammaln(points), rtol, rtol)
        np.testing.assert_allclose(first, sp.psi(points), rtol)
        np.testing.assert_allclose(second, sp.polygamma(1, points), rtol)
    x, (value, first, _) = derivatives(lambda v: T.log(T.gamma(v)), dtype)
    assert np.isnan(symdnn.function([x], value)(np.array([-0.5, -2.5, -1.0], dtype))).all()


@pytest.mark.parametrize(("dtype", "rtol"), [("float64", 1e-11), ("float32", 1e-4)])
@pytest.mark.parametrize("name", ["log_erfc", "log_half_erfc"])
def test_derivatives_of_log_erfc_below_0(name, dtype, rtol):
    points = np.concatenate([np.linspace(-8.5, 0, 60), [-20.0, -60.0]])
    x, (_, *slopes) = derivatives(getattr(symdnn.ops.elementwise.special, name), dtype)
    f = symdnn.function([x], slopes)
    first = -2 / np.sqrt(np.pi) * np.exp(-(points**2)) / sp.erfc(points)
    wanted = first, -first * (2 * points + first)
    for a, b in zip(f(points.astype(dtype)), wanted):
        at = points.astype(dtype) == points
        np.testing.assert_allclose(a[at], b[at], rtol=rtol, atol=1e-30)


def test_log_erfc_of_float16_below_0():
    points = np.linspace(-5, 0, 41)
    x, (_, first, _) = derivatives(symdnn.ops.elementwise.special.log_erfc, "float16")
    wanted = -2 / np.sqrt(np.pi) * np.exp(-(points**2)) / sp.erfc(points)
    found = symdnn.function([x], first)(points.astype("float16"))
    np.testing.assert_allclose(found.astype("f8"), wanted, rtol=2e-2, atol=1e-6)


@pytest.mark.parametrize("size", [1e-170, 1e-20, 1.0, 1e20, 1e150])
def test_gradient_of_an_angle_of_any_size(size):
    a, b = 0.6 * size, -0.8 * size
    y, x = T.dscalars("y", "x")
    z = T.complex(x, y)
    slopes = [*T.grad(T.arctan2(y, x), [y, x]), *T.grad(T.angle(z), [y, x])]
    found = symdnn.function([y, x], slopes)(a, b)
    np.testing.assert_allclose(np.array(found) * size, [-0.8, -0.6, -0.8, -0.6], rtol=1e-13)


def test_the_angle_of_a_real_number_has_no_slope():
    x = T.dvector()
    np.testing.assert_array_equal(
        symdnn.function([x], T.grad(T.angle(x).sum(), x))([-2.0, 0.0, 1e-300]), np.zeros(3)
    )


def test_polygamma_of_a_huge_order_far_below_0_is_infinite():
    n, x = T.dvector(), T.dvector()
    f = symdnn.function([n, x], T.polygamma(n, x))
    found = f([171.0, 800, 800, 1e20], [-2000.3, -2000.3, -2000.7, -1e4 - 0.25])
    np.testing.assert_array_equal(found, [np.inf, np.inf, -np.inf, np.inf])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_log_of_gamma_is_nan_where_gamma_is_negative(dtype):
    """Also far below 0, where gamma is too small for a number, and has no sign."""
    x = T.vector("x", dtype)
    x_data = np.array([-200.5, -40.5, -0.5, -201.5, -41.5, -1.5, 0.5, 200.5], dtype)
    found = symdnn.function([x], T.log(T.gamma(x)))(x_data)
    assert np.isnan(found[:3]).all()
    np.testing.assert_allclose(found[3:], [math.lgamma(v) for v in x_data[3:]], rtol=1e-6)
