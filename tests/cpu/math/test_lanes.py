"""Functions that are written on vectors: beside mpmath's numbers, at their ends, in any lane."""

import mpmath
import numpy as np
import pytest
import scipy.special as sp

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.cpu.math.functions_ir import IN_LANES
from symdnn.graph.type import TensorType
from symdnn.ops.core.incomplete_values import bessel_of, betaln_of, modified_bessel_of
from tests.cpu.harness import needs_compiler
from tests.seeded import new_rng

pytestmark = needs_compiler


def betainc(a, b, x):
    """By the power series, which mpmath does not always sum to its end."""
    if x > (a + 1) / (a + b + 2):
        return 1 - betainc(b, a, 1 - x)
    total = term = mpmath.mpf(1)
    for n in range(1, 4000):
        term *= (a + b + n - 1) / (a + n) * x
        total += term
        if abs(term) < 1e-40 * total:
            break
    return x**a * (1 - x) ** b / (a * mpmath.beta(a, b)) * total


def zeta(s, q):
    steps = max(int(mpmath.ceil(-q)), 0)
    return mpmath.fsum((q + k) ** -int(s) for k in range(steps)) + mpmath.zeta(s, q + steps)


def erfcinv(y):
    """By Newton's method on the logarithm of erfc."""
    if y > 0.1:
        return mpmath.erfinv(1 - y)
    if y == 0:
        return mpmath.inf
    x = mpmath.sqrt(-mpmath.log(y))
    for _ in range(30):
        value = mpmath.erfc(x)
        x += mpmath.log(value / y) * value * mpmath.sqrt(mpmath.pi) / 2 * mpmath.exp(x * x)
    return x


def erfcx(x):
    if x > 1e4:  # by the asymptotic series, of which mpmath takes too many terms
        return (1 - 1 / (2 * x * x)) / (x * mpmath.sqrt(mpmath.pi))
    return mpmath.exp(x * x) * mpmath.erfc(x)


def gammainc(a, x):
    return mpmath.gammainc(a, 0, x, regularized=True)


def _up_to(rng, *highest):
    return [rng.uniform(0, h, 60) for h in highest]


def _small_shapes(rng):
    return [10 ** rng.uniform(-20, 0, 90), 10 ** rng.uniform(-3, 0.3, 90)]


#: name -> (exact, operands, the largest relative error of float64)
CASES = {
    "lgamma": (mpmath.loggamma, lambda r: [10 ** r.uniform(-20, 20, 200)], 6e-16),
    "lgamma near its zeros": (
        mpmath.loggamma, lambda r: [r.choice([1, 2], 90) + r.normal(size=90) * 1e-6], 6e-16,
    ),
    "lgamma below 0": (
        lambda x: mpmath.log(abs(mpmath.gamma(x))), lambda r: [-r.uniform(0.01, 2, 90)], 4e-15,
    ),
    "zeta": (zeta, lambda r: [1 + 10 ** r.uniform(-3, 2, 60), 10 ** r.uniform(-3, 2, 60)], 3e-15),
    "zeta below 0": (zeta, lambda r: [2.0 * r.integers(1, 5, 60), -r.uniform(0, 30, 60)], 3e-15),
    "polygamma": (
        lambda n, x: mpmath.psi(int(n), x),
        lambda r: [r.integers(1, 12, 60).astype("float64"), 10 ** r.uniform(-3, 3, 60)], 3e-15,
    ),
    "betaln": (
        lambda a, b: mpmath.log(mpmath.beta(a, b)),
        lambda r: [10 ** r.uniform(2, 12, 60), 10 ** r.uniform(-3, 12, 60)], 2e-13,
    ),
    "erfinv": (mpmath.erfinv, lambda r: [r.uniform(-1, 1, 300)], 8e-16),
    "erfinv near its ends": (
        mpmath.erfinv, lambda r: [r.choice([-1, 1], 200) * (1 - 10 ** r.uniform(-16, -2, 200))],
        8e-16,
    ),
    "erfinv near 0": (mpmath.erfinv, lambda r: [10 ** r.uniform(-300, -1, 200)], 6e-16),
    "erfcinv": (erfcinv, lambda r: [r.uniform(0, 2, 300)], 8e-16),
    "erfcinv near 0": (erfcinv, lambda r: [10 ** r.uniform(-300, 0, 300)], 8e-16),
    "erfcx": (erfcx, lambda r: [np.concatenate([r.uniform(-26, 40, 300), r.normal(size=90)])],
              8e-16),
    "erfcx far out": (erfcx, lambda r: [10 ** r.uniform(-30, 30, 90)], 6e-16),
    "tgamma": (mpmath.gamma, lambda r: [np.concatenate([r.uniform(-9, 9, 300),
                                                        r.uniform(8, 171, 90)])], 1.2e-15),
    "tgamma near 0": (
        mpmath.gamma, lambda r: [r.choice([-1, 1], 90) * 10 ** r.uniform(-30, 0, 90)], 8e-16),
    "tgamma far below 0": (mpmath.gamma, lambda r: [-r.uniform(9, 150, 200)], 1.2e-15),
    "jv": (mpmath.besselj, lambda r: [*_up_to(r, 12, 60)], 1e-12),
    "jv of whole orders": (
        mpmath.besselj, lambda r: [r.integers(-9, 40, 200) * 1.0, r.uniform(-60, 60, 200)], 1e-11),
    "jv of negative orders": (
        mpmath.besselj, lambda r: [-r.uniform(0, 5, 90), r.uniform(0, 60, 90)], 1e-12),
    "jv of orders 0 and 1": (
        mpmath.besselj, lambda r: [r.integers(-1, 2, 200) * 1.0, r.uniform(-60, 60, 200)], 1e-13),
    "jv of large negative orders": (
        mpmath.besselj, lambda r: [-np.arange(9991.5, 11400, 450), np.full(4, 1e4)], 1e-11),
    "iv": (mpmath.besseli, lambda r: [*_up_to(r, 12, 60)], 2e-14),
    "iv of large orders": (
        mpmath.besseli, lambda r: [10 ** r.uniform(1.5, 2.6, 90), 10 ** r.uniform(2, 2.8, 90)],
        2e-12),
    "iv of large negative orders": (
        mpmath.besseli, lambda r: [-(10 ** r.uniform(0.5, 2.5, 90)), 10 ** r.uniform(1, 2.8, 90)],
        2e-12),
    "iv of whole orders": (
        mpmath.besseli, lambda r: [r.integers(-9, 40, 200) * 1.0, r.uniform(-300, 300, 200)],
        1e-13),
    "iv of orders 0 and 1": (
        mpmath.besseli, lambda r: [r.integers(-1, 2, 200) * 1.0, r.uniform(-700, 700, 200)], 1e-15),
    "ndtri": (
        lambda p: -mpmath.sqrt(2) * erfcinv(2 * p),
        lambda r: [np.concatenate([r.uniform(0, 1, 200), 10 ** r.uniform(-300, 0, 200)])], 1e-15,
    ),
    "gammainc": (gammainc, lambda r: _up_to(r, 30, 20), 2e-13),
    "gammaincc": (lambda a, x: 1 - gammainc(a, x), lambda r: _up_to(r, 30, 40), 2e-13),
    "gammainc of small shapes": (gammainc, lambda r: _small_shapes(r), 4e-15),
    "gammaincc of small shapes": (
        lambda a, x: 1 - gammainc(a, x), lambda r: _small_shapes(r), 2e-14,
    ),
    "betainc": (betainc, lambda r: [*_up_to(r, 30, 20), r.uniform(0, 1, 60)], 2e-13),
    "betaincc": (
        lambda a, b, x: 1 - betainc(a, b, x),
        lambda r: [*_up_to(r, 30, 20), r.uniform(0, 1, 60)], 2e-13,
    ),
}  # fmt: skip
GRAPHS = {"lgamma": T.gammaln, "tgamma": T.gamma}


def compiled(name, arrays):
    """The function of this name, for vectors of these dtypes."""
    name = name.partition(" ")[0]
    vs = [TensorType(a.dtype.name, (None,))() for a in arrays]
    graph = GRAPHS.get(name) or getattr(T, name)
    with config.change_flags({"cpu.compile": "always"}):
        f = symdnn.function(vs, graph(*vs), mode=symdnn.Mode(target="cpu"))
        return f(*arrays)


def test_every_function_has_a_case():
    assert {name.partition(" ")[0] for name in CASES} == IN_LANES


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numbers_are_mpmaths(name, dtype):
    exact, operands, most = CASES[name]
    arrays = [np.asarray(a).astype(dtype) for a in operands(new_rng())]
    found = compiled(name, arrays)
    with mpmath.workdps(60):
        wanted = [exact(*map(mpmath.mpf, at)) for at in zip(*(a.tolist() for a in arrays))]
        off = [float(abs(mpmath.mpf(v) - w)) for v, w in zip(found.tolist(), wanted)]
    wanted = np.array([*map(float, wanted)])
    if dtype == "float64":
        assert (off / np.abs(wanted)).max() <= most
        return
    with np.errstate(over="ignore"):
        rounded = wanted.astype("float32")
    finite = np.isfinite(rounded)
    np.testing.assert_array_equal(found[~finite], rounded[~finite])
    unit = np.spacing(np.maximum(np.abs(rounded[finite]), np.finfo("float32").tiny))
    assert (np.array(off)[finite] / unit).max() <= 0.51


@pytest.mark.parametrize("order", [0, 1])
def test_jv_near_the_largest_number(order):
    x = np.array([1e300, 5.6e307, 5.8e307, 1.7e308])
    found = compiled("jv", [np.full(4, float(order)), x])
    with mpmath.workdps(400):  # the leading term is all that counts
        quarter = mpmath.pi / 4
        at = [mpmath.mpf(v) for v in x.tolist()]
        exact = [
            mpmath.cos(v - quarter * (1 + 2 * order)) / mpmath.sqrt(2 * quarter * v) for v in at
        ]
    np.testing.assert_allclose(found, [*map(float, exact)], rtol=1e-13)


ENDS = np.array([0.0, -0.0, 1, -1, 2, -2.5, 0.5, 1.5, 7.5, 8, 10, 150.5, 1e20, 1e-20, np.inf,
                 -np.inf, np.nan])  # fmt: skip


@pytest.mark.parametrize("name", sorted(IN_LANES - {"betainc", "betaincc", "polygamma"}))
def test_ends_are_scipys(name):
    known = {"lgamma": sp.gammaln, "tgamma": sp.gamma, "betaln": betaln_of}
    known |= {"jv": bessel_of, "iv": modified_bessel_of}
    reference = known.get(name) or getattr(sp, name)
    pairs = [v.ravel() for v in np.meshgrid(ENDS, ENDS)]
    if name == "zeta":  # SciPy does not end, and is NaN where it is a power of a large order
        kept = (pairs[1] > -1e9) & (pairs[0] < 1e9)
        pairs = [v[kept] for v in pairs]
    if name in ("jv", "iv"):  # SciPy has NaN for large orders, and 0 or NaN for infinite ones
        kept = (abs(pairs[0]) < 1e9) & (abs(pairs[1]) != 1e20)
        pairs = [v[kept] for v in pairs]
    # Of -inf C's lgamma is inf, and SciPy's -inf.
    one = {
        "lgamma": [ENDS[~np.isneginf(ENDS)]],
        **{key: [ENDS] for key in ("erfinv", "erfcinv", "ndtri", "tgamma")},
        "erfcx": [np.append(ENDS, [-26.6, -26.65, -26.7, -27, -27.1])],
    }
    arrays = one.get(name, pairs)
    with np.errstate(all="ignore"):
        wanted = reference(*arrays)
    np.testing.assert_allclose(compiled(name, arrays), wanted, rtol=1e-12, atol=2e-15)


@pytest.mark.parametrize("order", [2.0, 2.5, 3.0, 8.0, 15.0])
def test_zeta_of_large_numbers(order):
    """Whose power may be infinite where the sum is not 0."""
    q = 10 ** np.linspace(10, 300 / (order - 1), 40)
    found = compiled("zeta", [np.full(40, order), q])
    np.testing.assert_allclose(found, sp.zeta(order, q), rtol=3e-15)
    np.testing.assert_allclose(found * (order - 1), q ** (1 - order), rtol=1e-9)


def test_polygamma_of_every_order_and_far_below_0():
    n, x = (v.ravel() for v in np.meshgrid(np.arange(4.0), ENDS))
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(compiled("polygamma", [n, x]), sp.polygamma(n, x), rtol=1e-12)
    n, x = np.array([1.0, 172, 0.5, -1, np.nan]), np.array([-1e9 - 0.25, 1, 1, 1, 1])
    wanted = [2 * np.pi**2 - sp.polygamma(1, 1e9), -np.inf, np.nan, np.nan, np.nan]
    np.testing.assert_allclose(compiled("polygamma", [n, x]), wanted, rtol=1e-13)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("exponent", [6, 8, 9, 11, 13, 15])
def test_beta_functions_of_large_orders_have_scipys_shares(exponent, dtype):
    """About the mean, where rounding of ``x`` alone moves the share by so many deviations."""
    rng, x = new_rng(), np.full(200, 0.5)
    a, b = (10**exponent * rng.uniform(0.3, 3, (2, 200))).astype(dtype)
    if dtype == "float64":
        deviation = np.sqrt(a * b / (a + b) ** 3)
        x = a / (a + b) + deviation * rng.normal(size=200) * 2
    else:
        b = (a * (1 + rng.normal(size=200) * 10 ** (-exponent / 2))).astype(dtype)
    x = x.astype(dtype)
    moved = 2e-15 * 10 ** (exponent / 2) + (1e-7 if dtype == "float32" else 1e-12)
    wide = [v.astype("float64") for v in (a, b, x)]
    for name, exact in (("betainc", sp.betainc), ("betaincc", sp.betaincc)):
        np.testing.assert_allclose(compiled(name, [a, b, x]), exact(*wide), rtol=0, atol=moved)
        middle = compiled(name, [a, a, np.full_like(x, 0.5)])
        np.testing.assert_allclose(middle, 0.5, rtol=moved)


@pytest.mark.parametrize("name", sorted(IN_LANES))
def test_a_number_does_not_depend_on_its_neighbours(name):
    """A lane that is done waits for the others, in vectors of any place and number."""
    rng = new_rng()
    arrays = [np.asarray(a) for a in CASES[name][1](rng)]
    whole = compiled(name, arrays)
    order = rng.permutation(len(whole))
    np.testing.assert_array_equal(compiled(name, [a[order] for a in arrays]), whole[order])
    for count in (1, 3, 9):
        part = compiled(name, [a[5 : 5 + count] for a in arrays])
        np.testing.assert_array_equal(part, whole[5 : 5 + count])
