"""Integers added to short vectors by tables, and one-hot vectors, beside NumPy's."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.cpu.elementwise.scatter import ScatterKernel, _CountsLaunch
from symdnn.errors import IndexOutOfRange
from symdnn.graph.kernel import Call
from symdnn.graph.origin import NO_HINTS
from symdnn.graph.type import TensorType
from symdnn.ops.array.advanced_index import AdvancedIncSubtensor
from tests.cpu.harness import compiled

pytestmark = compiled
CPU = symdnn.Mode(target="cpu")


def launch_of(*arrays):
    types = tuple(TensorType(a.dtype.name, a.shape) for a in arrays)
    call = Call(AdvancedIncSubtensor(("a",)), types, (types[0],), NO_HINTS)
    kernel = ScatterKernel()
    assert kernel.refuses(call) is None
    return kernel.bind(call)


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "int64", "uint64"])
@pytest.mark.parametrize("index", ["int64", "int32", "int8", "uint8"])
@pytest.mark.parametrize(("size", "count"), [(1, 9), (3, 2049), (40, 6151), (2048, 20001)])
def test_sums_of_integers_are_numpys(rng, dtype, index, size, count):
    low = -size if index.startswith("i") else 0
    at = rng.integers(low, size, count).astype(index)
    x, y = (rng.integers(0, 50, n).astype(dtype) for n in (size, count))
    for places, values in ((at, y), (at[::-1], y[::2].repeat(2)[:count]), (at, y[:1])):
        launch, wanted = launch_of(x, values, places), x.copy()
        assert isinstance(getattr(launch, "_launch", launch), _CountsLaunch)  # or a guarded one
        np.add.at(wanted, places, values)
        out = np.full_like(x, 7)
        launch([x, values, places], [out])
        np.testing.assert_array_equal(out, wanted)
        twice = np.zeros((size, 2), dtype)[:, 0]
        launch([x, values, places], [twice])
        np.testing.assert_array_equal(twice, wanted)
        own = x.copy()
        launch([own, values, places], [own])
        np.testing.assert_array_equal(own, wanted)


def test_floats_and_long_vectors_keep_their_order():
    few, many, ones = np.zeros(5), np.zeros(5000, np.int64), np.ones(3000, np.int64)
    at = np.arange(3000) % 5
    assert not isinstance(launch_of(few, ones.astype(float), at), _CountsLaunch)
    assert not isinstance(launch_of(many, ones, at), _CountsLaunch)


@pytest.mark.parametrize(("size", "count"), [(0, 0), (5, 0), (1, 1), (3, 24)])
def test_few_or_no_sums_where_all_is_compiled(size, count):
    x, i, y = T.lvector(), T.lvector(), T.lvector()
    with config.change_flags(**{"cpu.compile": "always"}):
        f = symdnn.function([x, i, y], T.inc_subtensor(x[i], y), mode=CPU)
        at, values = np.zeros(count, np.int64), np.arange(count)
        wanted = np.zeros(size, np.int64)
        np.add.at(wanted, at, values)
        for _ in range(3):
            np.testing.assert_array_equal(f(np.zeros(size, np.int64), at, values), wanted)


def test_code_that_looks_at_indices_alone_is_not_compiled():
    x, y, at = np.zeros(5, np.int64), np.ones(9000, np.int64), np.zeros(9000, np.int64)
    launch = launch_of(x, y, at)
    launch.prepare([x, y, at], [x])
    assert launch._change._blocks
    assert not launch._check._blocks


@pytest.mark.parametrize("wrong", [-41, 40, 1 << 40, -(1 << 62)])
@pytest.mark.parametrize("where", [0, 2500, 6999])
def test_a_wrong_index_is_an_error_and_changes_nothing(rng, wrong, where):
    at, x = rng.integers(-40, 40, 7000), rng.integers(0, 9, 40)
    launch, own = launch_of(x, np.ones(7000, np.int64), at), x.copy()
    at[where] = wrong
    with pytest.raises(IndexOutOfRange, match=str(wrong)):
        launch([own, np.ones(7000, np.int64), at], [own])
    np.testing.assert_array_equal(own, x)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_counts_by_any_number_of_threads(rng, count):
    v = T.lvector("v")
    values = rng.integers(0, 40, 100_003)
    with config.change_flags(**{"openmp.threads": count}):
        f = symdnn.function([v], T.bincount(v, None, 40), mode=CPU)
        for _ in range(3):
            np.testing.assert_array_equal(f(values), np.bincount(values, minlength=40))


@pytest.mark.parametrize("dtype", ["float32", "int8", "float16", "bool", "complex64"])
@pytest.mark.parametrize("kind", ["int64", "uint8", "int16"])
@pytest.mark.parametrize("shape", [(0,), (1,), (90,), (3, 31)])
def test_one_hot_vectors(rng, dtype, kind, shape):
    labels = T.TensorType(kind, (None,) * len(shape))("labels")
    f = symdnn.function([labels], T.to_one_hot(labels, 90, dtype), mode=CPU)
    for _ in range(3):
        own = rng.integers(0, 90, shape).astype(kind)
        np.testing.assert_array_equal(f(own), np.eye(90, dtype=dtype)[own])
    np.testing.assert_array_equal(
        f(own.T[..., ::-1].T), np.eye(90, dtype=dtype)[own.T[..., ::-1].T]
    )
    if own.size and dtype != "complex64":
        assert "llvm.one_hot" in str(f.lowering_report())
    if own.size:
        own.flat[-1] = 90
        with pytest.raises(IndexOutOfRange, match=r"label 90 .* is not in 0\.\.89"):
            f(own)
        if kind != "uint8":
            own.flat[-1] = -1
            with pytest.raises(IndexOutOfRange, match="label -1"):
                f(own)
