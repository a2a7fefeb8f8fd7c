"""Selected elements of the sorted order, against NumPy's sort; and quantiles made of them."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.autodiff import grad
from symdnn.config import config
from symdnn.errors import IndexOutOfRange
from symdnn.graph.evaluate import evaluate
from symdnn.ops.array.order_statistics import MIN_SELECTED, OrderStatistics
from symdnn.ops.array.sort import Sort

SIZES = [1, 2, 50, MIN_SELECTED, 3 * MIN_SELECTED]
#: What elements may be besides normal numbers.
SPECIAL = {
    "normal": [], "NaN": [np.nan], "infinite": [np.inf, -np.inf], "ties": [0.0, -0.0, 1.0, 1.0],
}  # fmt: skip


def drawn(rng, shape, dtype, special, share=0.5):
    x = rng.normal(size=shape)
    if special:
        x = np.where(rng.random(shape) < share, rng.choice(special, shape), x)
    return x.astype(dtype)


def places_of(size):
    return sorted({0, 1, size // 3, size // 3 + 1, size // 2, size - 2, size - 1} & {*range(size)})


@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("size", SIZES)
def test_places(rng, size, dtype, special):
    x = T.tensor(dtype, (None, None))
    p = T.lvector()
    f = symdnn.function([x, p], OrderStatistics(1)(x, p))
    places = np.array(places_of(size))
    for some in (places, places[::-1], places[:1], places[-1:], np.repeat(places, 2), places[:0]):
        a = drawn(rng, (3, size), dtype, SPECIAL[special])
        np.testing.assert_array_equal(f(a, some), np.sort(a, 1)[:, some])


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("size", [5, MIN_SELECTED])
def test_axes_and_strides(rng, axis, size):
    shape = [2, 3, 4]
    shape[axis] = size
    x = T.tensor("float32", (None,) * 3)
    places = np.array([4, 0, size // 2])
    f = symdnn.function([x], OrderStatistics(axis)(x, places))
    a = rng.normal(size=shape[::-1]).astype("float32").T
    for given in (a, a[::-1, ::-1, ::-1], np.ascontiguousarray(a)):
        want = np.take(np.sort(given, axis), places, axis)
        np.testing.assert_array_equal(f(given), want)


def test_many_lines_are_the_same_for_any_number_of_threads(rng):
    x = T.dmatrix()
    f = symdnn.function([x], [OrderStatistics(1)(x, np.array([3, 7])), T.median(x, 1)])
    for shape in ((700, 30), (5, MIN_SELECTED)):
        a = rng.normal(size=shape)
        for count in (1, 2, 5):
            with config.change_flags(**{"openmp.threads": count}):
                found, middle = f(a)
            np.testing.assert_array_equal(found, np.sort(a, 1)[:, [3, 7]])
            np.testing.assert_allclose(middle, np.median(a, 1), rtol=1e-12)


def test_no_elements_and_places_out_of_range():
    x, p = T.dmatrix(), T.lvector()
    f = symdnn.function([x, p], OrderStatistics(1)(x, p))
    assert f(np.empty((0, 4)), np.array([1, 3])).shape == (0, 2)
    np.testing.assert_array_equal(f(np.empty((2, 0)), np.array([0])), [[np.nan], [np.nan]])
    for size in (4, MIN_SELECTED):
        for place in (-1, size):
            with pytest.raises(IndexOutOfRange, match=f"place {place} is not within 0"):
                f(np.zeros((2, size)), np.array([0, place]))


@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize("size", [7, MIN_SELECTED + 1])
@pytest.mark.parametrize("q", [0.3, [0, 0.25, 1], [[0.5, 0.1], [0.9, 1.0]], np.linspace(0, 1, 20)])
def test_quantiles(rng, size, special, q):
    x, m = T.dvector(), T.dmatrix()
    outs = [T.quantile(x, q), T.nanquantile(x, q), T.quantile(m, q, axis=0), T.median(m)]
    a, b = (drawn(rng, s, "float64", SPECIAL[special], 0.2) for s in (size, (size, 2)))
    found = symdnn.function([x, m], outs)(a, b)
    with np.errstate(invalid="ignore"):
        want = [np.quantile(a, q), np.nanquantile(a, q), np.quantile(b, q, axis=0), np.median(b)]
    if special == "infinite":  # between two of one sign NumPy has NaN
        want = [np.where(np.isnan(w), f, w) for f, w in zip(found, want)]
    for f, w in zip(found, want, strict=True):
        np.testing.assert_allclose(f, w, rtol=1e-12, atol=1e-12)


def test_gradient_and_second_derivative_of_a_long_line(rng):
    x = T.dvector()
    y = T.quantile(x**3, 0.37) ** 2
    first = grad(y, x)
    second = grad((first * np.arange(1, MIN_SELECTED + 1)).sum(), x)
    run = symdnn.function([x], [first, second])
    a, d = rng.normal(size=MIN_SELECTED), rng.normal(size=MIN_SELECTED)
    (g, h), e = run(a), 1e-7
    weights = np.arange(1, MIN_SELECTED + 1)
    value = symdnn.function([x], y)
    at = np.argsort(a)[int(0.37 * (MIN_SELECTED - 1)) :][:2]
    assert set(np.nonzero(g)[0]) <= set(at)
    d = np.where(np.isin(np.arange(a.size), at), d, 0)
    close = {"rtol": 1e-4, "atol": 1e-9}
    np.testing.assert_allclose(
        (g * d).sum(), (value(a + e * d) - value(a - e * d)) / (2 * e), **close
    )
    slopes = [(run(a + s * e * d)[0] * weights).sum() for s in (1, -1)]
    np.testing.assert_allclose((h * d).sum(), (slopes[0] - slopes[1]) / (2 * e), **close)


def test_a_gpu_sorts(rng):
    x, m = T.dvector(), T.dmatrix()
    outs = [T.quantile(m, [0.1, 0.9], axis=1), T.nanquantile(x, 0.3), T.median(x)]
    f = symdnn.function([x, m], outs, mode=symdnn.Mode(target="cuda:sm_90"))
    kinds = {type(node.op) for node in f.fgraph.apply_nodes}
    assert Sort in kinds
    assert OrderStatistics not in kinds
    a, b = rng.normal(size=9), rng.normal(size=(3, 7))
    found = evaluate(f.fgraph.outputs, dict(zip(f.fgraph.inputs, (a, b), strict=True)))
    want = [np.quantile(b, [0.1, 0.9], axis=1), np.nanquantile(a, 0.3), np.median(a)]
    for got, w in zip(found, want, strict=True):
        np.testing.assert_allclose(got, w, rtol=1e-12)
