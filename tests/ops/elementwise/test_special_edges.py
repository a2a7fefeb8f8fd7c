"""Special functions at the ends of their ranges, far out, and of NaN: against stored values.

The numbers are mpmath's at 60 digits (``mpmath.betainc``, ``mpmath.zeta``, ``mpmath.quad``, ...).
"""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special as sp

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.graph.evaluate import evaluate
from symdnn.graph.variable import constant
from symdnn.nn import functional as F
from tests.cpu.harness import needs_compiler

INF, NAN = np.inf, np.nan
ENDS = [-INF, -2.5, -1.0, -0.0, 0.0, 0.5, 1.0, 2.5, INF, NAN]

TAILS = [
    ("betainc", (0.5, 30.0, 1e-20), 6.1546903805141707e-10),
    ("betainc", (200.0, 0.5, 0.001), 3.98891522526513e-602),
    ("betaincc", (2.0, 3.0, 0.999999999), 3.9999996576168324e-27),
    ("betaincc", (30.0, 40.0, 0.97), 1.2188412385658558e-42),
    ("betaln", (100000000.0, 0.01), 4.415273070651998),
    ("betaln", (1000000.0, 10000000.0), -3351003.0120031909),
    ("i0e", (1000000.0,), 0.00039894233026924578),
    ("i1e", (-1000000.0,), -0.00039894213079803078),
    ("i1e", (1e-12,), 4.9999999999949999e-13),
    ("logit", (0.5000000000001,), 4.0012437807490642e-13),
    ("logit", (1e-300,), -690.77552789821371),
    ("ndtri", (1e-300,), -37.047096299361199),
    ("owens_t", (8.0, 0.5), 3.1103239107887044e-16),
    ("owens_t", (0.1, 1000000.0), 0.23008608136148551),
    ("zeta", (1.000001, 3.0), 999999.07729835093),
    ("zeta", (40.0, 0.001), 9.9999999999999917e+119),
]  # fmt: skip


@pytest.mark.parametrize(("name", "operands", "wanted"), TAILS)
def test_tails(name, operands, wanted):
    (got,) = evaluate([getattr(T, name)(*(constant(np.float64(v)) for v in operands))], {})
    np.testing.assert_allclose(got, wanted, rtol=2e-13)


@pytest.mark.parametrize("name", ["i0e", "i1e", "ndtri", "logit"])
def test_ends_of_functions_of_one_operand(name):
    x = T.vector("x", dtype="float64")
    f = symdnn.function([x], getattr(T, name)(x))
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(f(ENDS), getattr(sp, name)(np.array(ENDS)), rtol=1e-14)


@pytest.mark.parametrize("name", ["xlogy", "xlog1py"])
def test_no_nan_is_hidden_by_a_factor_of_0(name):
    a, b = (v.ravel() for v in np.meshgrid(ENDS, ENDS))
    x, y = T.dvectors("x", "y")
    found = getattr(T, name)(x, y)
    f = symdnn.function([x, y], [found, *symdnn.grad(found.sum(), [x, y])])
    with np.errstate(all="ignore"):
        got, to_x, to_y = f(a, b)
        np.testing.assert_allclose(got, getattr(sp, name)(a, b), rtol=1e-14)
    assert np.isnan(to_x[np.isnan(b)]).all()
    assert np.isnan(to_y[np.isnan(b)]).all()


@needs_compiler
def test_relative_entropy_of_infinities_and_no_numbers():
    a, b = (v.ravel() for v in np.meshgrid(ENDS, ENDS))
    x, y = T.dvectors("x", "y")
    with config.change_flags({"cpu.compile": "always"}):
        got = symdnn.function([x, y], T.rel_entr(x, y))(a, b)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(got, sp.rel_entr(a, b), rtol=1e-14)


@pytest.mark.parametrize("name", ["betainc", "betaincc", "betaincinv", "betainccinv"])
def test_float32_has_the_digits_of_float32(name, rng):
    """Those of SciPy's loops of float32 are one or two, of large and of unequal operands."""
    a, b = np.float32(10 ** rng.uniform(-3, 6, (2, 200)))
    x = np.float32(rng.uniform(0, 1, 200))
    found = symdnn.function([], getattr(T, name)(a, b, x))()
    wanted = getattr(sp, name)(*(v.astype("float64") for v in (a, b, x)))
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-38)


@pytest.mark.parametrize("name", ["zeta", "owens_t", "gammaincinv", "gammainccinv"])
def test_ends_of_functions_of_two_operands(name):
    a, b = (v.ravel() for v in np.meshgrid(ENDS, ENDS))
    x, y = T.dvectors("x", "y")
    f = symdnn.function([x, y], getattr(T, name)(x, y))
    with np.errstate(all="ignore"):
        wanted = getattr(sp, name)(a, b)
        if name == "zeta":  # SciPy's is NaN
            wanted[(a == INF) & (b == 2.5)] = 0
        np.testing.assert_allclose(f(a, b), wanted, rtol=1e-12)


@pytest.mark.parametrize("name", ["betainc", "betaincc", "betaincinv", "betainccinv"])
def test_ends_of_incomplete_beta_functions(name):
    a, b, p = (v.ravel() for v in np.meshgrid(ENDS, ENDS, ENDS))
    vs = T.dvectors("a", "b", "p")
    f = symdnn.function(vs, getattr(T, name)(*vs))
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(f(a, b, p), getattr(sp, name)(a, b, p), rtol=1e-12)


def test_gradients_of_a_beta_tail_keep_their_digits():
    """Of the logarithm of a tail of 1e-300: both derivatives are that of the leading term."""
    a, b, x = T.dscalars("a", "b", "x")
    slopes = T.grad(T.log(T.betainc(a, b, x)), [a, b, x])
    found = symdnn.function([a, b, x], slopes)(30.0, 5.0, 1e-10)
    wanted = [np.log(1e-10) - sp.psi(30) + sp.psi(35) - 1 / 30, sp.psi(35) - sp.psi(5), 30e10]
    np.testing.assert_allclose(found, wanted, rtol=1e-8)


@pytest.mark.parametrize("name", ["xlogy", "xlog1py"])
@pytest.mark.parametrize("compiled", ["never", "always"])
def test_reference_and_kernel_agree_at_the_ends(name, compiled):
    a, b = (v.ravel() for v in np.meshgrid(ENDS, ENDS))
    x, y = T.dvectors("x", "y")
    with symdnn.config.change_flags({"cpu.compile": compiled}), np.errstate(all="ignore"):
        found = symdnn.function([x, y], getattr(T, name)(x, y))(a, b)
        np.testing.assert_allclose(found, getattr(sp, name)(a, b), rtol=1e-14)


def test_slopes_of_remainders_and_norms_at_zero():
    """A remainder rounded towards 0 is ``x`` near 0; no power can be lowered below 0."""
    x, y = T.dvector(), T.dvector()
    a = np.array([5.5, -5.5, 0.0, -0.0, 6.0, -6.0])
    b = np.array([2.0, 2.0, 2.0, 2.0, 3.0, -3.0])
    rest = T.fmod(x, y)
    value, *slopes = symdnn.function([x, y], [rest, *T.grad(rest.sum(), [x, y])])(a, b)
    np.testing.assert_array_equal(value, np.fmod(a, b))
    np.testing.assert_array_equal(np.signbit(value), np.signbit(a))
    np.testing.assert_array_equal(slopes[0], np.ones(6))
    np.testing.assert_array_equal(slopes[1], -np.trunc(a / b))
    rows = T.dmatrix()
    for order in (1.5, 2, 3):
        slope = symdnn.function([rows], T.grad(rows.norm(order, axis=1).sum(), rows))
        found = slope(np.array([[0.0, 0.0], [3.0, 0.0]]))
        np.testing.assert_allclose(found, [[0.0, 0.0], [1.0, 0.0]])


def test_nan_is_within_no_bound():
    x = T.dvector()
    made = [F.hardshrink(x), F.softshrink(x), F.threshold(x, 0.5, 7.0), F.hardtanh(x)]
    found = symdnn.function([x], made)(np.array([NAN, 0.5, 1.5]))
    np.testing.assert_array_equal(found, [[NAN, 0, 1.5], [NAN, 0, 1], [NAN, 7, 1.5], [NAN, 0.5, 1]])


def test_a_term_of_relative_entropy_of_numbers_whose_quotient_overflows():
    x, y = np.array([1e-200, 3e-200]), np.array([2e200, 5e200])
    found = T.rel_entr(constant(x), constant(y)).eval()
    np.testing.assert_allclose(found, x * (np.log(x) - np.log(y)), rtol=1e-13)


@pytest.mark.parametrize(
    "spelling",
    [
        lambda x: (T.exp(x) - 1) / x,
        lambda x: (-1 + T.exp(x)) / x,
        lambda x: T.expm1(x) / x,
        lambda x: (1 - T.exp(-x)) / x,
        lambda x: -T.expm1(-x) / x,
    ],
    ids=["exp_less_1", "minus_1_plus_exp", "expm1", "1_less_exp", "minus_expm1"],
)
def test_the_quotient_of_expm1_and_its_operand_has_gradients_at_0(spelling):
    x, points = T.dvector("x"), np.array([0.0, 1e-9, -1e-5])
    value = spelling(x)
    sign = 1 if spelling(constant(1.0)).eval() > 1 else -1
    f = symdnn.function([x], [value, T.grad(value.sum(), x)])
    found, slopes = f(points)
    np.testing.assert_allclose(found, 1 + sign * points / 2, rtol=1e-10)
    np.testing.assert_allclose(slopes, sign * (0.5 + sign * points / 3), rtol=1e-9)


SMALL = {
    dtype: np.multiply.outer([1.0, -1.0], [least, 3 * least, tiny, eps, 1e-4]).ravel()
    for dtype, (least, tiny, eps) in {
        "float32": (1e-45, 1.2e-38, 1e-7), "float64": (5e-324, 2.3e-308, 2e-16),
    }.items()
}  # fmt: skip


@pytest.mark.parametrize("dtype", SMALL)
@pytest.mark.parametrize(("name", "slope", "second"), [
    ("i0e", lambda x: 1.5 * x - np.sign(x), lambda x: 1.5), ("i0", lambda x: x / 2, lambda x: 0.5),
    ("i1e", lambda x: 0.5 - abs(x), lambda x: -np.sign(x)), ("i1", lambda x: 0.5, lambda x: 0.0),
    ("j0", lambda x: -x / 2, lambda x: -0.5), ("j1", lambda x: 0.5, lambda x: 0.0),
])  # fmt: skip
def test_slopes_of_bessel_functions_beside_0(dtype, name, slope, second):
    """Down to the smallest subnormal numbers, whose products and quotients have no digits."""
    x = T.vector("x", dtype=dtype)
    values = SMALL[dtype].astype(dtype)
    d = T.grad(getattr(T, name)(x).sum(), x)
    found, found_2 = symdnn.function([x], [d, T.grad(d.sum(), x)])(values)
    np.testing.assert_allclose(found, np.vectorize(slope)(values), rtol=2e-6, atol=2e-45)
    np.testing.assert_allclose(found_2, np.vectorize(second)(values), atol=4e-3)


@pytest.mark.parametrize("n", [-3, -1, 0, 1, 2, 5, 0.5, -0.5, 1.5])
def test_bessel_functions_of_the_smallest_numbers(n):
    x = T.vector("x", dtype="float64")
    values = np.array([5e-324, 1e-310, 2.3e-308, 1e-306, 1e-200, 1e-60, -1e-310, -1e-300])
    whole = n == int(n)
    with np.errstate(all="ignore"):
        wanted = values ** (abs(n) if whole else n) * 2.0 ** -(abs(n) if whole else n)
        wanted /= sp.gamma((abs(n) if whole else n) + 1)
    found, modified = symdnn.function([x], [T.jv(n, x), T.iv(n, x)])(values)
    np.testing.assert_allclose(modified, wanted, rtol=1e-12, atol=1e-323)
    np.testing.assert_allclose(found, wanted * (-1 if n in (-1, -3) else 1), 1e-12, 1e-323)


def _derivative(name: str, x: np.ndarray, k: int) -> np.ndarray:
    """That of ``jv(1, x)``, ``iv(1, x)`` or ``exp(-|x|) iv(1, x)``; ``|x|`` has none at 0."""
    if name != "i1e":
        return (sp.jvp if name == "jv" else sp.ivp)(1, x, k)
    terms = [sp.binom(k, j) * (-np.sign(x)) ** (k - j) * sp.ivp(1, x, j) for j in range(k + 1)]
    return np.exp(-np.abs(x)) * sum(terms)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["jv", "iv", "i1e"])
def test_derivatives_of_order_1_near_0(name, dtype):
    """Of the first three, none is a difference of large quotients."""
    x = T.TensorType(dtype, (None,))("x")
    sizes = np.concatenate([np.zeros(1), np.logspace(-12, 0.5, 60), [0.4999, 0.5001, 15.0]])
    points = np.concatenate([sizes, -sizes]).astype(dtype)
    made, found = T.i1e(x) if name == "i1e" else getattr(T, name)(1, x), []
    for _ in range(3):
        made = symdnn.grad(made.sum(), x)
        found.append(made)
    for k, got in enumerate(symdnn.function([x], found)(points), 1):
        want = _derivative(name, points.astype("float64"), k)
        tolerance = 2e-5 if dtype == "float32" else 1e-13
        np.testing.assert_allclose(got, want, 10 * tolerance, tolerance)


@needs_compiler
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_logit_of_all_sizes(dtype):
    """Subnormal numbers, the ends, around 1/2 and the sizes where its code changes; in a loop."""
    least = np.finfo(dtype).smallest_subnormal
    sizes = [0, *(n * least for n in (1, 3, 1e5)), *2.0 ** np.arange(-126, 0), 0.75, 1, 0.49, 0.51]
    edges = [2.0**-120 * (1 + k * 1e-6) for k in (-2, -1, 0, 1, 2)]
    points = np.resize(np.array([*sizes, *edges, -least, -1, 1.5, np.nan, np.inf], dtype), 5000)
    x = T.TensorType(dtype, (None,))("x")
    found = symdnn.function([x], 2 * T.logit(x))(points)
    with np.errstate(all="ignore"):
        wanted = 2 * sp.logit(points.astype("float64"))
    np.testing.assert_allclose(found, wanted, 4 * np.finfo(dtype).eps, 2 * float(least))
