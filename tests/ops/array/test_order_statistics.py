"""Selected elements of the sorted order, against NumPy's sort; and quantiles made of them."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.autodiff import grad
from symdnn.config import config
from symdnn.cpu.ir import chosen_ir
from symdnn.cpu.launch.strided_launch import StridedLaunch
from symdnn.cpu.nest.select_ir import _MIX
from symdnn.errors import IndexOutOfRange
from symdnn.graph.evaluate import evaluate
from symdnn.ops.array.order_statistics import (
    MIN_SELECTED,
    ArgPartition,
    OrderStatistics,
    Partition,
)
from symdnn.ops.array.sort import Sort

SIZES = [1, 2, 50, MIN_SELECTED, 3 * MIN_SELECTED]
#: What elements may be besides normal numbers.
SPECIAL = {
    "normal": [], "NaN": [np.nan], "infinite": [np.inf, -np.inf], "ties": [0.0, -0.0, 1.0, 1.0],
}  # fmt: skip


def drawn(rng, shape, dtype, special, share=0.5):
    if np.dtype(dtype).kind in "iu":
        limits = np.iinfo(dtype) if special else (0, 100)
        low, high = (limits.min, limits.max) if special else limits
        return rng.integers(low, high, shape, dtype, endpoint=True)
    x = rng.normal(size=shape)
    if special:
        x = np.where(rng.random(shape) < share, rng.choice(special, shape), x)
    return x.astype(dtype)


def places_of(size):
    return sorted({0, 1, size // 3, size // 3 + 1, size // 2, size - 2, size - 1} & {*range(size)})


@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize(
    "dtype", ["float16", "float32", "float64", "int8", "int32", "uint32", "int64", "uint64"]
)
@pytest.mark.parametrize("size", SIZES)
def test_places(rng, size, dtype, special):
    x = T.tensor(dtype, (None, None))
    p = T.lvector()
    f = symdnn.function([x, p], OrderStatistics(1)(x, p))
    places = np.array(places_of(size))
    for some in (places, places[::-1], places[:1], places[-1:], np.repeat(places, 2), places[:0]):
        a = drawn(rng, (3, size), dtype, SPECIAL[special])
        np.testing.assert_array_equal(f(a, some), np.sort(a, 1)[:, some])


def test_a_kernel_without_places_is_not_run(monkeypatch):
    """It would read the first one."""
    x, p = T.fmatrix(), T.lvector()
    f = symdnn.function([x, p], OrderStatistics(1)(x, p), mode=symdnn.Mode(target="cpu"))
    ran = []
    monkeypatch.setattr(StridedLaunch, "__call__", lambda self, xs, ys: ran.append(ys[0].shape))
    for some in ([], [7], []):
        assert f(np.ones((3, 4096), "float32"), np.array(some, "int64")).shape == (3, len(some))
    assert ran == [(3, 1)]


def parted(a, place, axis):
    """The indices of a partition, from a stable sort and comparisons of places."""
    rank = np.argsort(np.argsort(a, axis, kind="stable"), axis, kind="stable")
    chosen = np.take(np.sort(a, axis), [place], axis)
    same = (a == chosen) | ((a != a) & (chosen != chosen))
    kinds = np.where(same, 1, np.where(rank < place, 0, 2))
    return np.argsort(kinds, axis, kind="stable")


@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64", "uint8", "int32", "uint64"])
@pytest.mark.parametrize("size", [1, 40, 900, 2 * MIN_SELECTED])
def test_partitions(rng, size, dtype, special):
    x, k = T.tensor(dtype, (None, None)), T.lscalar()
    f = symdnn.function([x, k], [T.partition(x, k), T.argpartition(x, k), *T.kthvalue(x, k + 1)])
    a = drawn(rng, (5, size), "float32" if dtype == "bfloat16" else dtype, SPECIAL[special])
    a = a.astype(x.type.numpy)
    wide = a.astype("float32") if dtype == "bfloat16" else a
    last = symdnn.function([x], [T.partition(x, -1), T.argpartition(x, -1)])
    for place in places_of(size):
        values, indices, chosen, at = f(a, place)
        want = np.sort(wide, 1)[:, place]
        same = (wide == want[:, None]) | ((wide != wide) & (want != want)[:, None])
        np.testing.assert_array_equal(chosen.astype(wide.dtype), want)
        np.testing.assert_array_equal(at, same.argmax(1))
        for found in [(values, indices)] + [last(a)] * (place == size - 1):
            order = parted(wide, place, 1)
            np.testing.assert_array_equal(found[1], order)
            moved = np.take_along_axis(wide, order, 1)
            np.testing.assert_array_equal(found[0].astype(wide.dtype), moved)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("size", [30, 1500])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int16"])
def test_partitions_of_axes_and_strides(rng, axis, size, dtype):
    shape = [17, 6, 4]
    shape[axis] = size
    x = T.tensor(dtype, (None,) * 3)
    f = symdnn.function([x], [T.partition(x, 11, axis), T.argpartition(x, 11, axis)])
    a = (100 * rng.normal(size=shape[::-1])).astype(dtype).T
    for given in (a, a[::-1, ::-1, ::-1], np.ascontiguousarray(a)):
        order = parted(given, 11, axis)
        values, indices = f(given)
        np.testing.assert_array_equal(indices, order)
        np.testing.assert_array_equal(values, np.take_along_axis(given, order, axis))


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_a_sample_that_deceives(rng, dtype):
    """Where it has the largest numbers only, so that no window has the place."""
    size = 5 * MIN_SELECTED
    a = (1000 * rng.normal(size=size)).astype(dtype)
    x, p = T.tensor(dtype, (None,)), T.lvector()
    f = symdnn.function([x, p], OrderStatistics(0)(x, p))
    sample = int((1.5 * size) ** (2 / 3))
    each, j = size // sample, np.arange(sample)
    a[j * each + (((j * _MIX & (1 << 32) - 1) >> 8) * each >> 24)] += 10**6
    for place in (0, size // 2, size - 1):
        assert f(a, [place])[0] == np.sort(a)[place]


@pytest.mark.cpu
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_lines_are_parted_one_by_one_where_vectors_have_no_permutation(rng, monkeypatch, dtype):
    monkeypatch.setattr(chosen_ir, "in_vectors", lambda bits: False)
    a = drawn(rng, (5, 2 * MIN_SELECTED), dtype, SPECIAL["NaN"])
    x = T.tensor(dtype, (None, None))
    values, indices = symdnn.function([x], [T.partition(x, 700), T.argpartition(x, 700)])(a)
    np.testing.assert_array_equal(indices, parted(a, 700, 1))
    np.testing.assert_array_equal(values, np.take_along_axis(a, indices, 1))


def test_gradients_of_partitions(rng):
    x, w = T.dmatrix(), rng.normal(size=(3, 2000))
    weighted = (T.partition(x, 700) ** 2 * w).sum() + (T.kthvalue(x, 5).values ** 3).sum()
    f, g = symdnn.function([x], weighted), symdnn.function([x], grad(weighted, x))
    a, d, e = rng.normal(size=(3, 2000)), rng.normal(size=(3, 2000)), 1e-9
    slope = (f(a + e * d) - f(a - e * d)) / (2 * e)
    np.testing.assert_allclose((g(a) * d).sum(), slope, rtol=1e-4)


def test_gradients_of_ties_are_those_of_a_stable_sort(rng):
    x, w = T.dmatrix(), rng.normal(size=(6, 3))
    places = np.array([9, 10, 2])
    selected, ordered = OrderStatistics(1)(x, places), T.sort(x, 1)[:, places]
    f = symdnn.function([x], [grad((v * w).sum(), x) for v in (selected, ordered)])
    a = rng.integers(0, 5, (6, 20)).astype("float64")
    np.testing.assert_array_equal(*f(a))
    median = symdnn.function([x], grad(T.median(x, 1).sum(), x))
    assert median(np.empty((2, 0))).shape == (2, 0)


@pytest.mark.cpu
def test_partitions_of_no_elements_and_of_several_places(rng):
    x = T.fmatrix()
    f = symdnn.function([x], [T.partition(x, 3), T.argpartition(x, 3), T.partition(x, [1, 3])])
    assert [v.shape for v in f(np.empty((0, 9), "float32"))] == [(0, 9)] * 3
    a = rng.normal(size=(4, 9)).astype("float32")
    np.testing.assert_array_equal(f(a)[2], np.sort(a, 1))
    with pytest.raises(IndexOutOfRange, match="place 3 is not within 0"):
        f(a[:, :2])


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
    outs = [OrderStatistics(1)(x, np.array([3, 7])), T.median(x, 1), T.partition(x, 9)]
    f = symdnn.function([x], [*outs, T.argpartition(x, 9)])
    for shape in ((700, 30), (5, MIN_SELECTED)):
        a = rng.normal(size=shape)
        for count in (1, 2, 5):
            with config.change_flags(**{"openmp.threads": count}):
                found, middle, values, indices = f(a)
            np.testing.assert_array_equal(indices, parted(a, 9, 1))
            np.testing.assert_array_equal(values, np.take_along_axis(a, indices, 1))
            np.testing.assert_array_equal(found, np.sort(a, 1)[:, [3, 7]])
            np.testing.assert_allclose(middle, np.median(a, 1), rtol=1e-12)


@pytest.mark.cpu
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
    outs += [T.partition(m, 2), T.argpartition(m, 2)]
    f = symdnn.function([x, m], outs, mode=symdnn.Mode(target="cuda:sm_90"))
    kinds = {type(node.op) for node in f.fgraph.apply_nodes}
    assert Sort in kinds
    assert not kinds & {OrderStatistics, Partition, ArgPartition}
    a, b = rng.normal(size=9), rng.normal(size=(3, 7))
    found = evaluate(f.fgraph.outputs, dict(zip(f.fgraph.inputs, (a, b), strict=True)))
    want = [np.quantile(b, [0.1, 0.9], axis=1), np.nanquantile(a, 0.3), np.median(a)]
    order = parted(b, 2, 1)
    want += [np.take_along_axis(b, order, 1), order]
    for got, w in zip(found, want, strict=True):
        np.testing.assert_allclose(got, w, rtol=1e-12)


@pytest.mark.parametrize("size", [0, 5])
@pytest.mark.parametrize("op", [OrderStatistics(1), Partition(1), ArgPartition(1)], ids=str)
def test_a_gpu_refuses_places_out_of_range(op, size):
    m, p = T.dmatrix(), T.lvector()
    f = symdnn.function([m, p], op(m, p), mode=symdnn.Mode(target="cuda:sm_90"))
    a = np.arange(2.0 * size).reshape(2, size)
    evaluate(f.fgraph.outputs, dict(zip(f.fgraph.inputs, (a, np.array([max(size - 1, 0)])))))
    for place in (-1, -size - 1, max(size, 1)):
        with pytest.raises(IndexOutOfRange):
            evaluate(f.fgraph.outputs, dict(zip(f.fgraph.inputs, (a, np.array([place])))))
        with pytest.raises(IndexOutOfRange):
            op.reference(a, np.array([place]))
