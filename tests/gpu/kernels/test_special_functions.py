"""Functions that CUDA has not, in the emulator, against SciPy and by their own identities."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import scipy.special

from symdnn.ops.elementwise.bessel import I0e, I1e
from symdnn.ops.elementwise.incomplete import (
    BetaInc,
    BetaIncC,
    BetaIncSlopeA,
    BetaIncSlopeB,
    GammaDrawSlope,
    GammaInc,
    GammaIncC,
    OwensT,
    VonMisesDrawSlope,
)
from symdnn.ops.elementwise.special import Ndtri, PolyGamma, Psi, TriGamma, Zeta
from tests.gpu import emulator
from tests.gpu.recorder import generated_kernels
from tests.gpu.table import concrete

pytestmark = pytest.mark.skipif(not emulator.AVAILABLE, reason="there is no g++")


def computed(op, *arrays):
    call = concrete(op, list(arrays))
    (kernel,) = generated_kernels(call)
    (result,), _ = emulator.run(kernel, call, list(arrays))
    return result


@pytest.mark.parametrize("op", [GammaInc(), GammaIncC()])
@pytest.mark.parametrize("low", [1e-2, 1.0, 1e2, 1e4, 1e6, 1e9, 1e14])
def test_incomplete_gamma_functions_of_any_size(rng, op, low):
    """Near their middle, where a large order takes many terms, and in both tails."""
    a = low * 100 ** rng.random(300)
    # SciPy's own are wrong in the seventh digit beyond 4.5 deviations of large orders.
    spread = rng.uniform(-4, 4, 300) if low >= 1e4 else rng.normal(size=300) * 6
    x = np.maximum(a + spread * np.sqrt(a), 1e-3)
    upper = isinstance(op, GammaIncC)
    wanted = (scipy.special.gammaincc if upper else scipy.special.gammainc)(a, x)
    found = computed(op, a, x)
    # One unit in the last place of x moves the result by so much.
    slope = np.exp(scipy.special.xlogy(a, x) - x - scipy.special.gammaln(a)) if low < 1e3 else 1
    noise = np.finfo(float).eps * (slope + np.sqrt(a))
    np.testing.assert_array_less(np.abs(found - wanted), 1e-13 + 64 * noise + 1e-11 * wanted)


def test_trigamma_of_any_sign_and_size(rng):
    """Beside poles, by reflection far from zero, by the series, and at the ends."""
    x = np.concatenate([rng.uniform(0, 20, 100), -(10 ** rng.uniform(-3, 3, 100)), [1e-9, 1e9]])
    x = np.append(x, np.round(x[100:150]) + 1e-6)
    wanted = [float(mpmath.psi(1, v)) for v in x]
    np.testing.assert_allclose(computed(TriGamma(), x), wanted, rtol=1e-13)
    np.testing.assert_allclose(computed(PolyGamma(), np.ones_like(x), x), wanted, rtol=1e-13)
    ends = computed(TriGamma(), np.array([0.0, -3.0, np.inf, np.nan]))
    np.testing.assert_array_equal(ends, [np.inf, np.inf, 0, np.nan])


def test_the_two_incomplete_gamma_functions_sum_to_one(rng):
    a = 10 ** rng.uniform(-2, 16, 500)
    x = a * (1 + rng.normal(size=500) / np.sqrt(a + 1)).clip(1e-3)
    both = computed(GammaInc(), a, x) + computed(GammaIncC(), a, x)
    np.testing.assert_allclose(both, 1, atol=1e-12)


@pytest.mark.parametrize("order", [0, 1, 2])
def test_polygamma_functions_near_their_poles(rng, order):
    """As near as float64 has numbers: at 0 these are the smallest that there are."""
    pole = -rng.integers(0, 9, 300).astype(float)
    near = pole + 10 ** rng.uniform(-15, -0.4, 300) * rng.choice([-1, 1], 300)
    tiny = 10 ** rng.uniform(-90, -1, 40) * rng.choice([-1, 1], 40)
    x = np.concatenate([near[near != np.rint(near)], tiny])
    with mpmath.workdps(50):
        wanted = np.array([float(mpmath.psi(order, mpmath.mpf(v))) for v in x])
    found = computed(Psi(), x) if order == 0 else computed(PolyGamma(), np.full_like(x, order), x)
    np.testing.assert_allclose(found, wanted, rtol=2e-13, atol=1e-13)


ENDS = np.array([-np.inf, -2.5, -1.0, -0.0, 0.0, 0.5, 1.0, 2.5, 40.0, np.inf, np.nan])
OF_ONE = {"i0e": I0e(), "i1e": I1e(), "ndtri": Ndtri()}
OF_TWO = {"zeta": Zeta(), "owens_t": OwensT()}
OF_THREE = {"betainc": BetaInc(), "betaincc": BetaIncC()}


@pytest.mark.parametrize("name", [*OF_ONE, *OF_TWO, *OF_THREE])
def test_ends_are_those_of_scipy(name):
    op = {**OF_ONE, **OF_TWO, **OF_THREE}[name]
    operands = [v.ravel() for v in np.meshgrid(*[ENDS] * op.arity)]
    with np.errstate(all="ignore"):
        wanted = getattr(scipy.special, name)(*operands)
    found = computed(op, *operands)
    if name == "zeta":  # at a pole SciPy's is inf of NaN, and NaN at an infinite s where it is 0
        sound = np.isfinite(operands[0])
        found, wanted = found[sound], wanted[sound]
    np.testing.assert_allclose(found, wanted, rtol=1e-11, atol=1e-50)


@pytest.mark.parametrize("high", [1.0, 1e2, 1e4, 1e6])
def test_incomplete_beta_functions_of_any_size(rng, high):
    a, b = 10 ** rng.uniform(-2, np.log10(high), (2, 300))
    x = scipy.special.betaincinv(a, b, rng.uniform(0.001, 0.999, 300))
    for op, wanted in ((BetaInc(), "betainc"), (BetaIncC(), "betaincc")):
        found = computed(op, a, b, x)
        np.testing.assert_allclose(found, getattr(scipy.special, wanted)(a, b, x), rtol=1e-9)


@pytest.mark.parametrize(("slope", "low", "high"), [
    (GammaDrawSlope(), 1e-3, 1e7), (BetaIncSlopeA(), 1e-2, 1e4), (BetaIncSlopeB(), 1e-2, 1e4),
])  # fmt: skip
def test_derivatives_in_orders_are_those_of_the_reference(rng, slope, low, high):
    a, b = np.exp(rng.uniform(np.log(low), np.log(high), (2, 300)))
    p = rng.uniform(1e-4, 1 - 1e-4, 300)
    if slope.arity == 2:
        operands = [a, np.log(np.maximum(scipy.special.gammaincinv(a, p), 1e-300))]
    else:
        operands = [a, b, scipy.special.betaincinv(a, b, p)]
    wanted = slope.reference(*operands)
    found = computed(slope, *operands)
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12 * np.abs(wanted).max())


def test_slopes_of_angles_are_those_of_the_reference(rng):
    k = 10 ** rng.uniform(-3, 9, 300)
    x = np.clip(rng.normal(size=300) / np.sqrt(k), -3.1, 3.1)
    op = VonMisesDrawSlope()
    np.testing.assert_allclose(computed(op, k, x), op.reference(k, x), rtol=1e-8)


def test_owens_t_in_both_parts(rng):
    h, a = rng.normal(size=(2, 500)) * np.array([[4.0], [20.0]])
    np.testing.assert_allclose(computed(OwensT(), h, a), scipy.special.owens_t(h, a), rtol=1e-12)


@pytest.mark.parametrize(("op", "order"), [(I0e(), 0), (I1e(), 1)])
def test_bessel_functions_of_float32_in_float32(op, order):
    """On both sides of where the series change, and at the ends; in float32 alone."""
    sizes = [np.linspace(0, 9, 200), np.linspace(9, 40, 200), [0, 1e-30, 1e30, np.inf, np.nan]]
    x = np.concatenate([*sizes, -np.linspace(0.1, 30, 50)]).astype("float32")
    wanted = scipy.special.ive(order, x.astype("float64"))
    exact = scipy.special.i0e if order == 0 else scipy.special.i1e
    wanted = np.where(np.isfinite(wanted), wanted, exact(x.astype("float64")))
    np.testing.assert_allclose(computed(op, x), wanted, rtol=8 * 2.0**-24)
