"""Compiled functions of programs over all numbers: float32 within 4 units in the last place of the
exact value, float64 within 2 of what NumPy reaches (tan and inverse functions within 2.5)."""

import math
from functools import partial

import mpmath
import numpy as np
import pytest
import scipy.special as sp

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.graph.evaluate import evaluate
from symdnn.graph.type import TensorType
from tests.cpu.harness import needs_compiler
from tests.seeded import new_rng

pytestmark = needs_compiler

EXACT = np.longdouble
long_double = pytest.mark.skipif(
    np.finfo(EXACT).nmant < 60, reason="nothing here is more exact than float64"
)


def sigmoid(x):
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, e) / (1 + e)


def softplus(x):
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def elu(x):
    return np.where(x > 0, x, np.expm1(x))


#: name -> (of a graph, of an array of a wider type)
FUNCTIONS = {
    **{
        name: (getattr(T, name), getattr(np, name))
        for name in (
            "exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "sin", "cos", "tan", "arcsin",
            "arccos", "arctan", "sinh", "cosh", "tanh", "arcsinh", "arccosh", "arctanh", "sqrt",
        )
    },
    "reciprocal": (T.inv, lambda x: 1 / x),
    "sigmoid": (T.nnet.sigmoid, sigmoid),
    "softplus": (T.nnet.softplus, softplus),
    "log_sigmoid": (lambda x: T.log(T.nnet.sigmoid(x)), lambda x: -softplus(-x)),
    "elu": (T.nnet.elu, elu),
}  # fmt: skip
#: The same, of which NumPy's wider type has nothing: SciPy's in float64.
SPECIAL = {
    "erf": (T.erf, sp.erf), "erfc": (T.erfc, sp.erfc), "erfinv": (T.erfinv, sp.erfinv),
    "gamma": (T.gamma, sp.gamma), "gammaln": (T.gammaln, sp.gammaln), "psi": (T.psi, sp.psi),
}  # fmt: skip


def numbers(dtype):
    """Of every exponent and sign, near what is special, and usual ones."""
    rng, facts = new_rng(), np.finfo(dtype)
    words = rng.integers(0, 2 ** (8 * np.dtype(dtype).itemsize), 100_000, np.uint64, False)
    edges = [0, 1, 0.5, 2, np.inf, np.nan, facts.tiny, facts.smallest_subnormal, facts.max]
    edges += [1 + facts.eps, 1 - facts.epsneg, 88.72, 88.73, 103.9, 104, 709.7, 745.1, 746]
    parts = [
        edges, np.negative(edges), words.astype(f"u{np.dtype(dtype).itemsize}").view(dtype),
        rng.normal(size=50_000), rng.normal(size=50_000) * 20, rng.normal(size=20_000) * 300,
        1 + rng.normal(size=20_000) * 1e-3, rng.uniform(-1, 1, 50_000),
        rng.normal(size=20_000) * np.logspace(np.log10(facts.tiny), 2, 20_000),
        np.arange(-2000, 2000) * (np.pi / 4),
    ]  # fmt: skip
    return np.concatenate([np.asarray(part, dtype) for part in parts])


def compiled(function, x):
    """What a program of the CPU gives for it."""
    v = TensorType(x.dtype.name, (None,))()
    with config.change_flags(**{"cpu.compile": "always"}):
        return symdnn.function([v], function(v), mode=symdnn.Mode(target="cpu"))(x)


def off(y, exact, dtype):
    """By how many units in the last place each result is off; NaN and infinities must be right."""
    wanted = exact.astype(dtype)
    np.testing.assert_array_equal(np.isnan(y), np.isnan(wanted))
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(y[~finite], wanted[~finite])
    unit = np.spacing(np.maximum(np.abs(wanted[finite]), np.finfo(dtype).tiny))
    return np.abs(y[finite].astype(EXACT) - exact[finite]) / unit


@pytest.mark.parametrize("name", [*FUNCTIONS, *SPECIAL])
def test_float32_is_within_four_units(name):
    x = numbers("float32")
    if name == "gammaln":
        x = x[x > -np.inf]  # there C has +inf and SciPy -inf
    graph, function = {**FUNCTIONS, **SPECIAL}[name]
    with np.errstate(all="ignore"):
        exact = function(x.astype("float64"))
        y = compiled(graph, x)
        assert off(y, exact, "float32").max() <= 4
        zeros = exact.astype("float32") == 0
    np.testing.assert_array_equal(np.signbit(y[zeros]), np.signbit(exact[zeros]))


@long_double
@pytest.mark.parametrize("name", FUNCTIONS)
def test_float64_is_as_exact_as_numpy(name):
    x = numbers("float64")
    graph, function = FUNCTIONS[name]
    with np.errstate(all="ignore"):
        exact = function(x.astype(EXACT))
        theirs = function(x)
        kept = np.isfinite(theirs) & np.isfinite(exact.astype("float64"))
        unit = np.spacing(np.maximum(np.abs(theirs[kept]), np.finfo("float64").tiny))
        numpys = float((np.abs(theirs[kept] - exact[kept]) / unit).max())
        more = 2.5 if name in ("tan", "arcsin", "arccos", "arctan") else 2
        assert off(compiled(graph, x), exact, "float64").max() <= numpys + more


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rare_arguments_among_others(dtype):
    """Lanes that need slow code, beside lanes that do not."""
    x = np.linspace(-3, 3, 1001).astype(dtype)
    x[::7] = np.float64(3e6) ** np.arange(len(x[::7])).clip(0, 5) * 1.3
    x[5], x[8], x[10] = np.nan, np.inf, -0.0
    y = np.linspace(0.1, 3, 1001).astype(dtype)
    with np.errstate(all="ignore"):
        for graph, function in (FUNCTIONS[name] for name in ("sin", "cos", "tan")):
            exact = function(x.astype(EXACT if dtype == "float64" else "float64"))
            assert off(compiled(graph, x), exact, dtype).max() <= 4
        v, w = TensorType(dtype, (None,))(), TensorType(dtype, (None,))()
        with config.change_flags(**{"cpu.compile": "always"}):
            f = symdnn.function([v, w], [v % w, v // w], mode=symdnn.Mode(target="cpu"))
        for found, wanted in zip(f(x, y), (x % y, x // y)):
            np.testing.assert_array_equal(found, wanted)


def test_powers_have_exact_logarithms():
    tens, twos = np.arange(-300.0, 308), np.arange(-1074.0, 1024)
    np.testing.assert_array_equal(compiled(T.log10, 10**tens), np.log10(10**tens))
    np.testing.assert_array_equal(compiled(T.log2, 2**twos), twos)
    np.testing.assert_array_equal(compiled(T.exp2, twos), 2**twos)


POWERS = [0.0, 1, 0.5, 1.5, 2, 3, np.inf, np.nan, 5e-324, 2.0**-1022, 1e-310, 1e300, 1e-300,
          2.0**52 + 1, 2.0**53, 2.0**53 - 1, 1 + 2.0**-52, 1 - 2.0**-53, 709.8, 1024,
          1074, 1075]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_powers_are_within_one_unit(dtype):
    """Edges are those of C; numbers those of mpmath."""
    rng, facts = new_rng(), np.finfo(dtype)
    with np.errstate(over="ignore"):
        edges = [*POWERS, facts.tiny, facts.smallest_subnormal, facts.max, 1 + facts.eps, 88.8, 150]
        edges = np.concatenate([edges, np.negative(edges)]).astype(dtype)
    x, y = (np.ascontiguousarray(a.ravel()) for a in np.meshgrid(edges, edges))
    exact = np.array([_as_in_c(a, b) for a, b in zip(x.tolist(), y.tolist())])
    found = powers(x, y)
    with np.errstate(over="ignore"):
        assert off(found, exact, dtype).max() <= 1
    known = ~np.isnan(exact)
    np.testing.assert_array_equal(np.signbit(found[known]), np.signbit(exact[known]))
    x, y = _numbers_with_powers(rng, facts)
    with mpmath.workdps(50):
        exact = [mpmath.mpf(a) ** b for a, b in zip(x.tolist(), y.tolist())]
        for a, b, got, want in zip(x, y, powers(x, y).tolist(), exact):
            unit = np.spacing(np.asarray(max(float(want), facts.tiny), dtype))
            assert abs(mpmath.mpf(got) - want) / float(unit) <= 1, (a, b)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_whole_powers_and_roots_that_are_numbers_are_exact(dtype):
    most = 2 ** (np.finfo(dtype).nmant + 1)
    pairs = [(x, y) for x in range(1, 1000) for y in range(24) if x**y <= most]
    x, y = (np.array(v, dtype) for v in zip(*pairs))
    exact = np.array([a**b for a, b in pairs], dtype)
    np.testing.assert_array_equal(powers(x, y), exact)
    np.testing.assert_array_equal(powers(-x, y), np.where(y % 2 == 1, -exact, exact))
    squares = np.arange(1, 4000, dtype=dtype) ** 2
    np.testing.assert_array_equal(powers(squares, np.full_like(squares, 0.5)), np.sqrt(squares))


def powers(x, y):
    v, w = TensorType(x.dtype.name, (None,))(), TensorType(x.dtype.name, (None,))()
    with config.change_flags(**{"cpu.compile": "always"}):
        return symdnn.function([v, w], v**w, mode=symdnn.Mode(target="cpu"))(x, y)


def _numbers_with_powers(rng, facts):
    """Bases about 1, usual ones and of all exponents, to powers that are numbers of the dtype."""
    near = rng.normal(size=400) * 10 ** rng.uniform(np.log10(facts.eps), -1, 400)
    ends = np.log([facts.smallest_subnormal, facts.max])
    size = np.concatenate([rng.normal(size=400), rng.uniform(*ends * 0.99, 400), near])
    x = np.exp(np.concatenate([size, size])).astype(facts.dtype)
    x[x == 1] = 2
    y = rng.uniform(*ends * 0.999, len(x)) / np.log(x.astype("float64"))
    y[:400] = rng.normal(size=400) * 3
    return x, y.astype(facts.dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_powers_do_not_depend_on_their_neighbours(dtype):
    """Negative numbers, denormals and infinite results take more steps, where there are any."""
    rng = new_rng()
    x = (rng.normal(size=200) * 3).astype(dtype)
    y = rng.integers(-3, 4, 200).astype(dtype)
    x[::17], y[::23] = np.finfo(dtype).smallest_subnormal, 1e30
    whole = powers(x, y)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(whole, np.power(x, y), rtol=4 * np.finfo(dtype).eps)
    order = rng.permutation(200)
    np.testing.assert_array_equal(powers(x[order], y[order]), whole[order])
    for count in (1, 3, 9, 17):
        np.testing.assert_array_equal(powers(x[:count], y[:count]), whole[:count])


def _as_in_c(x, y):
    try:
        return math.pow(x, y)
    except OverflowError:
        return math.copysign(np.inf, x) if abs(math.fmod(y, 2)) == 1 else np.inf
    except ValueError:  # a pole, or no real number
        odd = abs(math.fmod(y, 2)) == 1
        return np.nan if x else math.copysign(np.inf, x) if odd else np.inf


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32"])
def test_integer_quotients_are_exact(dtype):
    rng, facts = new_rng(), np.iinfo(dtype)
    ends = np.array([facts.min, facts.max, facts.max - 1, facts.min + 1, 1, 2, 3, 7], dtype)
    a = np.concatenate([rng.integers(facts.min, facts.max, 20_000, dtype, True), ends.repeat(8)])
    b = np.concatenate([rng.integers(facts.min, facts.max, 20_000, dtype, True), np.tile(ends, 8)])
    b[:10_000] = b[:10_000] % 50 + 1
    v, w = TensorType(dtype, (None,))(), TensorType(dtype, (None,))()
    with config.change_flags(**{"cpu.compile": "always"}), np.errstate(all="ignore"):
        f = symdnn.function([v, w], [v // w, v % w, v // 7], mode=symdnn.Mode(target="cpu"))
        for found, wanted in zip(f(a, b), (a // b, a % b, a // np.array(7, dtype))):
            np.testing.assert_array_equal(found, wanted)


def scaled_bessel(order, x):
    return mpmath.besseli(order, x) * mpmath.exp(-abs(x))


#: name -> (of a graph, exact, units in the last place where x > 0, and where x < 0)
OF_FLOAT64 = {
    "erf": (T.erf, mpmath.erf, 1, 1),
    "erfc": (T.erfc, mpmath.erfc, 4, 2),
    "psi": (T.psi, mpmath.digamma, 4, None),  # by two terms whose difference may be 0
    "tri_gamma": (T.tri_gamma, partial(mpmath.psi, 1), 4, 5),
    "i0e": (T.i0e, partial(scaled_bessel, 0), 4, 4),
    "i1e": (T.i1e, partial(scaled_bessel, 1), 4, 4),
}


@pytest.mark.parametrize("order", [0, 1])
def test_scaled_bessel_functions_of_float32_are_rounded_once(rng, order):
    x = np.concatenate([rng.uniform(-20, 20, 400), 10 ** rng.uniform(-20, 20, 200), [8, 7.99999]])
    x = x.astype("float32")
    y = compiled((T.i0e, T.i1e)[order], x)
    wanted = np.array([float(scaled_bessel(order, mpmath.mpf(v))) for v in x.tolist()])
    assert (abs(y - wanted) / np.spacing(abs(wanted).astype("float32"))).max() <= 0.51


@pytest.mark.parametrize("order", [-1, 0, 1])
def test_modified_bessel_functions_of_known_orders(rng, order):
    """Programs that have the order as a constant."""
    x = np.concatenate([rng.uniform(-80, 80, 300), 10 ** rng.uniform(-20, 1, 100), [8, 7.99999]])
    for dtype, most in (("float32", 0.51), ("float64", 5)):
        given = x.astype(dtype)
        y = compiled(lambda v: T.iv(order, v * 0.5) * 2, given)
        wanted = [2 * mpmath.besseli(order, mpmath.mpf(v) / 2) for v in given.tolist()]
        off = np.array([float(abs(mpmath.mpf(v) - w)) for v, w in zip(y.tolist(), wanted)])
        assert (off / np.spacing(np.abs(np.array([*map(float, wanted)], dtype)))).max() <= most


@pytest.mark.parametrize("name", OF_FLOAT64)
def test_special_functions_of_float64(name):
    graph, exact, right, left = OF_FLOAT64[name]
    rng = new_rng()
    parts = [
        rng.uniform(0, 12, 200), 10 ** rng.uniform(-150, 0, 50), rng.uniform(12, 26, 50),
        1.4616321449683622 + rng.normal(size=50) * 1e-3, 1 + rng.normal(size=50) * 1e-8,
        [0.25, 0.5, 1, 1.5, 2, 7, 8, 9],
    ]  # fmt: skip
    x = np.concatenate(parts)
    for sign, units in ((1, right), (-1, left)):
        at = sign * x if sign > 0 else -x[x != np.rint(x)]
        y = compiled(graph, at)
        with mpmath.workdps(40):
            wanted = [exact(mpmath.mpf(v)) for v in at.tolist()]
            errors = [float(abs(mpmath.mpf(v) - w)) for v, w in zip(y.tolist(), wanted)]
        size = np.abs(np.array(wanted, "float64"))
        if units is None:
            units, size = right, np.maximum(size, np.abs(sp.psi(1 - at)))
        assert (np.array(errors) / np.spacing(size)).max() <= units


@pytest.mark.parametrize("name", OF_FLOAT64)
def test_special_functions_of_float64_at_their_ends(name):
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -1, -2, -1e300, 1e300, 5e-324, 27.2, 1e-160])
    variable = T.dvector()
    (wanted,) = evaluate([OF_FLOAT64[name][0](variable)], {variable: x})
    np.testing.assert_allclose(compiled(OF_FLOAT64[name][0], x), wanted, 1e-15, 1e-300)
