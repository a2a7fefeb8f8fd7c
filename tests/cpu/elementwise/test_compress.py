"""Elements by a mask, indices of what holds, and counts: values against NumPy, plans, errors."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.cpu.elementwise.compress import CompressKernel, NonzeroKernel
from symdnn.cpu.elementwise.counted import CountKernel
from symdnn.cpu.ir import chosen_ir
from symdnn.errors import AssertionFailed, ShapeMismatch
from symdnn.graph.type import TensorType
from symdnn.ops.array.getitem import Nonzero
from symdnn.ops.lowered.of_values import Compressed, Counted
from tests.cpu.harness import call_of, compiled

pytestmark = compiled

MASKS = {
    "some": lambda rng, n: rng.random(n) < 0.4,
    "none": lambda rng, n: np.zeros(n, bool),
    "all": lambda rng, n: np.ones(n, bool),
    "the last one": lambda rng, n: np.arange(n) == n - 1,
    "the first ones": lambda rng, n: np.arange(n) < 9,
}


@pytest.mark.parametrize("which", MASKS)
@pytest.mark.parametrize(
    ("dtype", "shape", "axis"),
    [
        ("float32", (5003,), 0), ("float64", (2049,), 0), ("int8", (4001,), 0),
        ("bool", (1999,), 0), ("float16", (3001,), 0), ("complex128", (1030,), 0),
        ("float32", (1500, 3), 0), ("int16", (701, 5), 0), ("float32", (70, 130), 0),
        ("float32", (40, 37), 1), ("float64", (3, 501, 2), 1), ("int8", (5, 19, 70), 1),
    ],
)  # fmt: skip
def test_elements_by_a_mask(rng, dtype, shape, axis, which):
    x, mask = (rng.random(shape) * 90).astype(dtype), MASKS[which](rng, shape[axis])
    for a in (x, x[::-1] if axis else x.copy(order="F")):
        call = call_of(Compressed(axis), [a, mask], TensorType(dtype, (None,) * x.ndim))
        assert CompressKernel().refuses(call) is None
        run = CompressKernel().bind(call)
        for m in (mask, mask[::-1]):
            (got,) = run([a, m], [None])
            np.testing.assert_array_equal(got, np.compress(m, a, axis))
            assert got.dtype == a.dtype


@pytest.mark.parametrize("which", MASKS)
@pytest.mark.parametrize("n", [1024, 1031, 5000])
@pytest.mark.parametrize("vectors", [True, False])
def test_indices_of_what_holds(rng, monkeypatch, n, which, vectors):
    if not vectors:
        monkeypatch.setattr(chosen_ir, "in_vectors", lambda bits: False)
    mask = MASKS[which](rng, n)
    call = call_of(Nonzero(), [mask], TensorType("int64", (None,)))
    assert NonzeroKernel().refuses(call) is None
    run = NonzeroKernel().bind(call)
    for m in (mask, mask[::-1]):
        np.testing.assert_array_equal(run([m], [None])[0], np.flatnonzero(m))


@pytest.mark.parametrize("n", [0, 1, 50, 3001])
def test_calls_of_many_lengths_have_one_plan(rng, n):
    x, i = T.matrix(), T.lvector()
    f = symdnn.function([x, i], [x[x[:, 0] > 0], T.bincount(i), T.nonzero(x[:, 0] > 0)[0]])
    for part in (0.2, 0.5, 0.9, 1.1):
        a, at = rng.normal(size=(n, 3)).astype("float32"), rng.integers(0, 1 + int(90 * part), n)
        a[:, 0] = rng.random(n) < part
        rows, counts, places = f(a, at)
        np.testing.assert_array_equal(rows, a[a[:, 0] > 0])
        np.testing.assert_array_equal(counts, np.bincount(at))
        np.testing.assert_array_equal(places, np.flatnonzero(a[:, 0]))
    assert len(f.plans()) == 1


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "uint64", "int64"])
@pytest.mark.parametrize("n", [2048, 2051, 6003])
@pytest.mark.parametrize("high", [1, 13, 100, 3000])
def test_many_counts_are_compiled(rng, dtype, n, high):
    at = rng.integers(0, min(high, np.iinfo(dtype).max), n).astype(dtype)
    for weights in ([], [rng.normal(size=n)], [rng.normal(size=n).astype("float32")]):
        kind = weights[0].dtype.name if weights else "int64"
        for least in (0, 70):
            given = [at, np.array(least), *weights]
            call = call_of(Counted(), given, TensorType(kind, (None,)))
            assert CountKernel().refuses(call) is None
            run = CountKernel().bind(call)
            for part in (slice(None), slice(None, None, -1)):
                some = [at[part], given[1], *(w[part] for w in weights)]
                wanted = np.bincount(some[0].astype("int64"), *some[2:], minlength=least)
                (got,) = run(some, [None])
                np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6)
                assert got.dtype == kind
    if dtype[0] == "i":
        call = call_of(Counted(), [at, np.array(0)], TensorType("int64", (None,)))
        at[n // 2] = -1
        with pytest.raises(AssertionFailed, match="got a negative one"):
            CountKernel().bind(call)([at, np.array(0)], [None])


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("kind", ["", "float32", "float64"])
def test_one_launch_counts_up_to_any_number(rng, kind, count):
    n = 30_001
    weights = [rng.normal(size=n).astype(kind)] if kind else []
    given = [np.zeros(n, np.int64), np.array(0), *weights]
    with config.change_flags(**{"openmp.threads": count}):
        run = CountKernel().bind(call_of(Counted(), given, TensorType(kind or "int64", (None,))))
        for length in (100, 3000, 2048, 2049, 1, 100):
            at = rng.integers(0, length, n)
            at[7] = length - 1
            (got,) = run([at, given[1], *weights], [None])
            # The sums of every fourth number, in order, and then those of them.
            tables = np.zeros((4 if length <= 2048 else 1, length), "float64" if kind else "int64")
            place = np.arange(n) % 4 * (np.arange(n) < n // 4 * 4) * (length <= 2048)
            np.add.at(tables, (place, at), weights[0] if kind else 1)
            np.testing.assert_array_equal(got, sum(tables[1:], tables[0]).astype(got.dtype))


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "uint64", "bool"])
@pytest.mark.parametrize("n", [0, 1, 2001])
def test_counts_and_sums_of_weights(rng, dtype, n):
    i, w, least = T.TensorType(dtype, (None,))("i"), T.vector(), T.lscalar()
    f = symdnn.function([i, w, least], [T.bincount(i, minlength=least), T.bincount(i, w)])
    assert sum(isinstance(node.op, Counted) for node in f.fgraph.toposort()) == 2
    for low in (0, 7, 300):
        at, b = rng.integers(0, 2, n).astype(dtype), rng.normal(size=n).astype("float32")
        counts, sums = f(at, b, low)
        np.testing.assert_array_equal(counts, np.bincount(at.astype("int64"), minlength=low))
        np.testing.assert_allclose(sums, np.bincount(at.astype("int64"), b), rtol=1e-5, atol=1e-5)
        assert sums.dtype == "float32" or not n


@pytest.mark.parametrize("n", [10, 4000])
@pytest.mark.filterwarnings("error")
def test_sums_that_are_too_large_are_infinite_without_a_warning(n):
    i, w = T.lvector(), T.vector()
    f = symdnn.function([i, w], T.bincount(i, w))
    with np.errstate(all="warn"):
        for _ in range(20):
            assert f(np.zeros(n, np.int64), np.full(n, 3e38, "float32")).tolist() == [np.inf]


def test_a_negative_number_is_an_error_and_so_are_more_weights():
    i = T.lvector()
    f = symdnn.function([i], T.bincount(i))
    with pytest.raises(AssertionFailed, match="got a negative one"):
        f(np.array([3, -1]))
    w = T.dvector()
    f = symdnn.function([i, w], T.bincount(i, w))
    with pytest.raises(ShapeMismatch):
        f(np.array([3, 1]), np.ones(3))


def test_a_mask_of_another_size_is_an_error():
    x, m = T.vector(), T.TensorType("bool", (None,))("m")
    f = symdnn.function([x, m], x[m])
    for n in (2, 2000):
        with pytest.raises(ShapeMismatch):
            f(np.ones(n + 1, "float32"), np.ones(n, bool))


def test_a_quiet_plan_is_one_call():
    """A plan whose steps in Python make no warnings runs without NumPy's settings of errors."""
    x = T.vector()
    f = symdnn.function([x], T.nonzero(x > 0)[0])
    for _ in range(3):
        f(np.ones(5, "float32"))
    (plan,) = f.plans()
    assert plan.bound.quick
    assert not plan.bound.compiled
