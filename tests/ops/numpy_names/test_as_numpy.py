"""NumPy's functions of arrays, numbers, polynomials and sets: the same calls of both."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.errors import InputError, OptionError, ShapeMismatch
from symdnn.graph.evaluate import evaluate
from symdnn.graph.variable import Variable

RNG = np.random.default_rng(0)
M, V, P = RNG.normal(size=(4, 5)), RNG.normal(size=7), RNG.normal(size=4)
INTS, J = RNG.integers(-20, 20, (4, 5)), RNG.integers(-20, 20, 5)
HOLES = M.copy()
HOLES[0, 1] = HOLES[2, 3] = HOLES[2, 1] = np.nan
FLOATS = np.array([0, 1, -1, 0.5, 1e-30, -3.7, 8, 1e30, np.inf, -np.inf, np.nan, 2**-140.0])
BITS = RNG.integers(0, 2, (8, 3))

EXACT = {
    "gcd": (lambda m, a, b: m.gcd(a, b), [INTS, J]),
    "lcm": (lambda m, a, b: m.lcm(a, b), [INTS, J]),
    "fix": (lambda m, a: m.fix(a), [FLOATS]), "modf": (lambda m, a: m.modf(a), [FLOATS[:-4]]),
    "frexp": (lambda m, a: m.frexp(a), [FLOATS]),
    "ldexp": (lambda m, a, n: m.ldexp(a, n), [FLOATS[:-1], RNG.integers(-40, 40, 11)]),
    "nextafter": (lambda m, a, b: m.nextafter(a, b), [FLOATS, np.roll(FLOATS, 1)]),
    "spacing": (lambda m, a: m.spacing(a), [FLOATS[:8]]),
    "unique rows": (lambda m, a: m.unique(a, axis=0), [BITS]),
    "unique all": (
        lambda m, a: m.unique(
            a, return_index=True, return_inverse=True, return_counts=True, axis=1
        ),
        [BITS],
    ),
    "union1d": (lambda m, a, b: m.union1d(a, b), [J, np.arange(9)]),
    "intersect1d": (lambda m, a, b: m.intersect1d(a, b), [J, np.arange(9)]),
    "setdiff1d": (lambda m, a, b: m.setdiff1d(a, b), [J, np.arange(9)]),
    "setxor1d": (lambda m, a, b: m.setxor1d(a, b), [J, np.arange(9)]),
    "lexsort": (lambda m, a, b: m.lexsort((a, b)), [V, np.array([1, 0, 1, 0, 1, 0, 1])]),
    "indices": (lambda m, a: m.indices((2, 3)), [V]),
    "array_equal": (lambda m, a: m.array_equal(a, a), [M]),
    "concatenate flat": (lambda m, a, b: m.concatenate([a, b, [1]], axis=None), [INTS, J]),
    "diff after a number": (lambda m, a: m.diff(a, prepend=0.0), [M]),
    "diff before a number": (lambda m, a: m.diff(a, append=2, axis=0), [INTS]),
    "diff between arrays": (lambda m, a: m.diff(a, 2, 1, a[:, :2], a[:, 1:]), [M]),
    "diff not at all": (lambda m, a: m.diff(a, 0, prepend=1.0), [V]),
    "diff of nothing": (lambda m, a: m.diff(a[:0], prepend=1.0), [V]),
}  # fmt: skip
CLOSE = {
    "polyval": (lambda m, p, x: m.polyval(p, x), [P, M]),
    "polyder": (lambda m, p: m.polyder(p, 2), [P]), "polyint": (lambda m, p: m.polyint(p), [P]),
    "polyadd": (lambda m, a, b: m.polyadd(a, b), [P, V]),
    "polysub": (lambda m, a, b: m.polysub(a, b), [V, P]),
    "polymul": (lambda m, a, b: m.polymul(a, b), [P, V]), "poly": (lambda m, a: m.poly(a), [P]),
    "roots": (lambda m, a: m.sort(m.abs(m.roots(a))), [P]),
    "vander": (lambda m, a: m.vander(a, 3), [P]),
    "vander far": (lambda m, a: m.vander(a, 3), [FLOATS]),
    "polyfit": (lambda m, x, y: m.polyfit(x, y, 2), [V, V**2 + P[0]]),
    "gradient": (lambda m, a: m.gradient(a), [M]),
    "gradient 2": (lambda m, a: m.gradient(a, 0.5, axis=1, edge_order=2), [M]),
    "gradient at": (
        lambda m, a, x: m.gradient(a, x, edge_order=2), [V, np.cumsum(np.abs(V) + 0.1)],
    ),
    "cov": (lambda m, a: m.cov(a), [M]),
    "cov weighted": (
        lambda m, a: m.cov(a, fweights=np.array([1, 2, 1, 3, 1]), aweights=np.arange(1, 6.0)), [M],
    ),
    "cov of a row": (lambda m, a: m.cov(a), [M[:1]]),
    "cov of a column": (lambda m, a: m.cov(a, rowvar=False), [M[:, :1]]),
    "cov of a row and another": (lambda m, a, b: m.cov(a, b), [M[:1], M[1]]),
    "corrcoef": (lambda m, a, b: m.corrcoef(a, b), [V, V**2]),
    "corrcoef of a row": (lambda m, a: m.corrcoef(a), [M[:1]]),
    "delete": (lambda m, a: m.delete(a, [0, -1], axis=0), [M]),
    "delete slice": (lambda m, a: m.delete(a, slice(1, 3), axis=1), [M]),
    "insert": (lambda m, a: m.insert(a, 1, 5.0, axis=1), [M]),
    "insert row": (lambda m, a, b: m.insert(a, 1, b, axis=0), [M, M[0]]),
    "insert several": (lambda m, a: m.insert(a, [0, 2, 2], [7.0, 8.0, 9.0]), [V]),
    "apply": (lambda m, a: m.apply_along_axis(lambda r: r.sum() * r, 1, a), [M]),
    "apply over": (lambda m, a: m.apply_over_axes(m.sum, a, [0, 1]), [M]),
    "select": (lambda m, a: m.select([a > 1, a > 0], [a, a * 2], -1.0), [M]),
    "piecewise": (lambda m, a: m.piecewise(a, [a < 0, a >= 0], [lambda x: -x, 2.0]), [M]),
    "extract": (lambda m, a: m.extract(a > 0, a), [M]),
    "broadcast": (lambda m, a, b: m.broadcast_arrays(a, b), [M, M[0]]),
    "block": (lambda m, a: m.block([[a, a], [a, a * 2]]), [M]),
    "diagflat": (lambda m, a: m.diagflat(a, 1), [M]),
    "ix_": (lambda m, a: a[m.ix_([0, 2], [1, 3])], [M]),
    "resize": (lambda m, a: m.resize(a, (3, 8)), [M]),
    "vecdot": (lambda m, a: m.vecdot(a, a), [M]),
    "matvec": (lambda m, a, b: m.matvec(a, b), [M, M[0]]),
    "vecmat": (lambda m, a, b: m.vecmat(b, a), [M, M[:, 0]]),
    "histogram2d": (lambda m, a, b: m.histogram2d(a, b, bins=(3, 4), density=True), [V, V**2]),
    "unwrap": (lambda m, a: m.unwrap(a * 5, axis=1), [M]),
    "ediff1d": (lambda m, a: m.ediff1d(a, to_begin=0.0), [M]),
    "cumulative": (lambda m, a: m.cumulative_sum(a, axis=1, include_initial=True), [M]),
    "around": (lambda m, a: m.around(a, 2), [M]), "round": (lambda m, a: m.round(a, -1), [M * 9]),
    "amax": (lambda m, a: m.amax(a, axis=1, keepdims=True), [M]),
    "nanmedian": (lambda m, a: m.nanmedian(a, axis=1, keepdims=True), [HOLES]),
    "nanquantile": (lambda m, a: m.nanquantile(a, [0.2, 0.7], axis=0), [HOLES]),
    "nancumsum": (lambda m, a: m.nancumsum(a, axis=1), [HOLES]),
    "nancumprod": (lambda m, a: m.nancumprod(a, axis=0), [HOLES]),
}  # fmt: skip
PADS = [
    {"mode": mode} for mode in ("linear_ramp", "maximum", "mean", "median", "minimum")
] + [
    {"mode": "linear_ramp", "end_values": ((1, 2), (3, 4))}, {"mode": "mean", "stat_length": 2},
    {"constant_values": ((1, 2), (3, 4))}, {"mode": "reflect", "reflect_type": "odd"},
    {"mode": "symmetric", "reflect_type": "odd"},
]  # fmt: skip


def results(function, arrays):
    """What both make, as lists."""
    xs = [T.tensor(str(a.dtype), a.shape) for a in arrays]
    got, wanted = function(T, *xs), function(np, *arrays)
    got = list(got) if isinstance(got, list | tuple) else [got]
    wanted = list(wanted) if isinstance(wanted, list | tuple) else [wanted]
    assert all(isinstance(g, Variable) for g in got)
    return evaluate(got, dict(zip(xs, arrays, strict=True))), wanted


@pytest.mark.parametrize("name", EXACT)
def test_exactly(name):
    for got, wanted in zip(*results(*EXACT[name]), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("name", CLOSE)
def test_close(name):
    for got, wanted in zip(*results(*CLOSE[name]), strict=True):
        assert got.shape == np.shape(wanted)
        np.testing.assert_allclose(got, wanted, 1e-6, 1e-6)


@pytest.mark.parametrize("n", [0, 1, 4])
def test_polynomials_of_a_length_that_is_known_in_a_call(n):
    c, d, x = T.dvectors(3)
    made = [T.polyval(c, x), T.polyder(c), T.polyint(c, 2), T.polyadd(c, d), T.polysub(c, d)]
    slopes = T.grad(T.polyval(c, x).sum(), [c, x])
    p, q, at = np.arange(1.0, n + 1), np.array([2.0, -1]), np.array([0.5, 3, -2])
    *got, dc, dx = evaluate([*made, *slopes], {c: p, d: q, x: at})
    wanted = [
        np.polyval(p, at), np.polyder(p) if n else p, np.polyint(p, 2), np.polyadd(p, q),
        np.polysub(p, q),
    ]  # fmt: skip
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b, 1e-12)
    np.testing.assert_allclose(dc, np.vander(at, n).sum(0), 1e-12)
    np.testing.assert_allclose(dx, np.polyval(np.polyder(p), at) if n else 0 * at, 1e-12)
    assert T.polyval(T.lvector(), x).dtype == "float64"


@pytest.mark.parametrize("options", PADS, ids=str)
def test_padding(options):
    for array in (M, INTS):
        (got,), (wanted,) = results(lambda m, a: m.pad(a, ((1, 2), (3, 0)), **options), [array])
        np.testing.assert_allclose(got, wanted, 1e-6)
    T.verify_grad(
        lambda x: T.pad(x, ((1, 2), (0, 1)), **options), [M[:3, :3]], rng=np.random.RandomState(1)
    )


@pytest.mark.parametrize("kind", ["even", "odd"])
@pytest.mark.parametrize("mode", ["reflect", "symmetric"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_padding_wider_than_the_array(mode, kind, size):
    widths = ((7, 8), (0, 9))
    for array in (M[:size, :3], INTS[:size, :3]):
        (got,), (wanted,) = results(lambda m, a: m.pad(a, widths, mode, reflect_type=kind), [array])
        np.testing.assert_allclose(got, wanted, 1e-6)
    T.verify_grad(
        lambda x: T.pad(x, widths, mode, reflect_type=kind), [M[:size, :3]],
        rng=np.random.RandomState(1),
    )  # fmt: skip


def test_constants():
    assert (T.pi, T.inf, T.newaxis) == (np.pi, np.inf, None)
    assert T.asarray([T.constant(1.0), 2], T.float32).eval().tolist() == [1, 2]
    np.testing.assert_allclose(T.hanning(7).eval(), np.hanning(7), 1e-6)
    np.testing.assert_allclose(T.logspace(0, 2, 5).eval(), np.logspace(0, 2, 5), 1e-5)
    np.testing.assert_allclose(T.geomspace(1, 100, 5).eval(), np.geomspace(1, 100, 5), 1e-5)
    for name in ("logspace", "geomspace"):
        mine, wanted = getattr(T, name), getattr(np, name)
        for dtype in ("float64", "int64"):
            args = (1, 4, 4)
            np.testing.assert_allclose(mine(*args, dtype=dtype).eval(), wanted(*args, dtype=dtype))


def test_ends_of_dtypes_and_shapes_are_as_numpys():
    """Products that wrap, masks as indices, no elements: found by the fuzzer."""
    a, b = np.meshgrid(*[np.arange(-128, 128, 7, "int8")] * 2)
    np.testing.assert_array_equal(T.lcm(T.constant(a), T.constant(b)).eval(), np.lcm(a, b))
    mask = np.array([True, False, True])
    (got,) = T.ix_(T.constant(mask))
    assert got.eval().tolist() == [0, 2]
    x = T.TensorType("float64", (None,) * 3)("x")
    assert T.nanmedian(x, axis=(1, 2)).eval({x: np.zeros((0, 3, 2))}).shape == (0,)


def test_what_is_wrong_is_said():
    with pytest.raises(OptionError, match="reflect_type"):
        T.pad(T.matrix("x"), 1, mode="reflect", reflect_type="even?")
    with pytest.raises(InputError, match="select: wanted as many choices"):
        T.select([T.bvector("b")], [])


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m.eye(2.5), lambda m: m.eye(2, 2.5), lambda m: m.tri(2.5),
        lambda m: m.linspace(0, 1, 2.5), lambda m: m.logspace(0, 1, 2.5),
        lambda m: m.vander(np.ones(3), 2.5), lambda m: m.diagonal(np.ones((3, 3)), 1.5),
        lambda m: m.partition(np.ones(3), 1.5), lambda m: m.argpartition(np.ones(3), 1.5),
        lambda m: m.diff(np.ones(3), 1.5),
    ],
)  # fmt: skip
def test_a_count_that_is_no_whole_number_is_refused(call):
    with pytest.raises(TypeError):
        call(T)


@pytest.mark.parametrize(
    "call",
    [
        lambda m, one: m.average(m.arange(3.0), weights=one),
        lambda m, one: m.average(m.ones((3, 4)), axis=0, weights=one),
        lambda m, one: m.bincount(m.arange(3), one),
        lambda m, one: m.histogram(m.arange(3.0), 2, weights=one),
    ],
)
def test_one_weight_is_not_that_of_all(call):
    with pytest.raises((ValueError, TypeError)):
        call(np, np.ones(1))
    with pytest.raises(ShapeMismatch, match="weights"):
        call(T, np.ones(1))


def test_the_next_number_keeps_the_digits_of_integers_beside_float64():
    a, b = np.array([2**63 + 2**41, 2**53 - 1, 0], "uint64"), np.array([0.0, 1e300, -1.0])
    x, y = T.TensorType("uint64", (None,))("x"), T.dvector("y")
    found = evaluate([T.nextafter(x, y), T.nextafter(y, x)], {x: a, y: b})
    for got, want in zip(found, [np.nextafter(a, b), np.nextafter(b, a)], strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
)
def test_bits_are_counted(rng, dtype):
    """Of both ends of each dtype, too; on both sides the result is uint8."""
    low, high = (0, 1) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    values = rng.integers(low, high, 20, dtype="bool" if dtype == "bool" else dtype, endpoint=True)
    values[:4] = [low, high, 0, 1]
    v = T.TensorType(dtype, (None,))("v")
    got = symdnn.function([v], T.bitwise_count(v))(values)
    assert got.dtype == np.uint8
    np.testing.assert_array_equal(got, np.bitwise_count(values))
    with pytest.raises(TypeError, match="bitwise_count"):
        T.bitwise_count(T.dvector())


def test_the_gradient_of_the_next_number_is_that_of_the_first():
    x, y, m = T.dvector("x"), T.dvector("y"), T.dmatrix("m")
    cost = (T.nextafter(x, y) * np.arange(1.0, 5)).sum()
    wrt = T.grad(cost, [x, y], disconnected_inputs="ignore")
    given = {x: np.array([0.0, 1.0, 0.5, 0.5]), y: np.array([1.0, 1.0, 0.7, 0.2])}
    dx, dy = evaluate(wrt, given)
    np.testing.assert_array_equal(dx, [1, 2, 3, 4])
    np.testing.assert_array_equal(dy, 0)
    (dx,) = evaluate([T.grad(T.nextafter(x, m).sum(), x)], {x: np.ones(2), m: np.zeros((3, 2))})
    np.testing.assert_array_equal(dx, 3)
