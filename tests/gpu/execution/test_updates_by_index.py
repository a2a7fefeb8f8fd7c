"""Updates by index arrays are checked, then written to the shared variable's own memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.errors import IndexOutOfRange
from symdnn.graph.type import numpy_dtype
from symdnn.ops.array.advanced_index import AdvancedIncSubtensor, InBounds
from tests.seeded import new_rng

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
TARGETS = ["cpu", "cuda:sm_90"]


def written(f: Any, **shapes: Any) -> int:
    """New values that are written to the memory of their variables."""
    return sum(len(p.memory.stored) for p in f.stages.specialise(shapes))


@pytest.fixture
def device(request: Any) -> Any:
    """The device of the test's parameter."""
    if request.param == "cuda":
        request.getfixturevalue("cuda")
    return request.param


@pytest.fixture
def table() -> Any:
    return symdnn.shared(np.zeros((50, 6), "float32"), "table", shape=(50, 6))


def sparse_step(table: Any, set_: bool = False, **options: Any) -> Any:
    i, y = T.TensorType("int64", (8,))("i"), T.TensorType("float32", (8, 6))("y")
    change = T.set_subtensor if set_ else T.inc_subtensor
    return symdnn.function([i, y], [], updates=[(table, change(table[i], y))], **options)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("set_", [False, True])
def test_the_table_is_not_copied(table: Any, target: str, set_: bool) -> None:
    f = sparse_step(table, set_, mode=symdnn.Mode(target=target))
    kinds = [type(n.op) for n in f.maker.fgraph.toposort()]
    assert kinds.count(InBounds) == 1
    assert written(f, i=(8,), y=(8, 6)) == 1


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_no_update_is_not_checked_apart(table: Any, target: str) -> None:
    i = T.TensorType("int64", (8,))("i")
    changed = T.inc_subtensor(table[i], 1)
    f = symdnn.function([i], changed, mode=symdnn.Mode(target=target))
    other = symdnn.function(
        [i], [], updates=[(table, T.tanh(changed))], mode=symdnn.Mode(target=target)
    )
    for g in (f, other):
        ops = [n.op for n in g.maker.fgraph.toposort()]
        assert not any(isinstance(op, InBounds) for op in ops)
        assert not any(isinstance(op, AdvancedIncSubtensor) and op.in_bounds for op in ops)


@pytest.mark.parametrize("target", TARGETS)
def test_a_value_that_is_read_later_is_copied(table: Any, target: str) -> None:
    i = T.TensorType("int64", (8,))("i")
    new = T.set_subtensor(table[i], table[:8] * 2)
    f = symdnn.function([i], (table + new).sum(), updates=[(table, new)],
                        mode=symdnn.Mode(target=target))  # fmt: skip
    assert written(f, i=(8,)) == 0


@pytest.mark.parametrize("device", DEVICES, indirect=True)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
@pytest.mark.parametrize("set_", [False, True])
def test_values(device: str, dtype: str, set_: bool) -> None:
    rng = new_rng()
    start = rng.integers(-9, 9, (50, 6)).astype(numpy_dtype(dtype))
    with config.change_flags(device=device):
        table = symdnn.shared(start, "table")
        i, y = T.lvector("i"), T.matrix("y", dtype=dtype)
        change = T.set_subtensor if set_ else T.inc_subtensor
        f = symdnn.function([i, y], table.sum(), updates=[(table, change(table[i], y))])
    wanted = np.float64(start)
    for count in (8, 1, 0, 8):
        index = rng.integers(-50, 50, count)
        value = rng.integers(-9, 9, (count, 6)).astype(numpy_dtype(dtype))
        before = wanted.sum()
        for k, v in zip(index, np.float64(value)):
            wanted[k] = v if set_ else wanted[k] + v
        assert float(np.float64(f(index, value))) == pytest.approx(before, rel=0.02)
        np.testing.assert_array_equal(np.float64(table.get_value()), wanted)


@pytest.mark.parametrize("device", DEVICES, indirect=True)
def test_an_index_out_of_range_changes_nothing(table: Any, device: str) -> None:
    with config.change_flags(device=device):
        other = symdnn.shared(np.ones((50, 6), "float32"))
        mine = symdnn.shared(np.ones((50, 6), "float32"))
        i, y = T.lvector("i"), T.matrix("y", dtype="float32")
        updates = [(mine, T.inc_subtensor(mine[i], y)), (other, other * 2)]
        f = symdnn.function([i, y], y.sum(), updates=updates)
    good = np.arange(3)
    for bad in ([3, 50, 2], [0, -51, 2]):
        with pytest.raises(IndexOutOfRange, match=str(bad[1])):
            float(np.asarray(f(np.array(bad), np.ones((3, 6), "float32"))))
        assert np.all(mine.get_value() == 1)
        assert np.all(other.get_value() == 1)
    f(good, np.ones((3, 6), "float32"))
    assert mine.get_value().sum() == 300 + 18
    assert np.all(other.get_value() == 2)


@pytest.mark.parametrize("device", DEVICES, indirect=True)
def test_rows_that_are_set_to_rows_of_the_variable_itself(device: str) -> None:
    start = np.arange(12, dtype="float32").reshape(6, 2)
    with config.change_flags(device=device):
        table, order = symdnn.shared(start), T.lvector("order")
        f = symdnn.function([order], [], updates=[(table, T.set_subtensor(table[order], table))])
        g = symdnn.function(
            [order], [], updates=[(table, T.set_subtensor(table[1:3], table[3:5]))],
            on_unused_input="ignore",
        )  # fmt: skip
    order_ = np.array([5, 4, 3, 2, 1, 0])
    f(order_)
    np.testing.assert_array_equal(table.get_value(), start[::-1])
    g(order_)
    wanted = start[::-1].copy()
    wanted[1:3] = wanted[3:5]
    np.testing.assert_array_equal(table.get_value(), wanted)


@pytest.mark.parametrize("device", DEVICES, indirect=True)
def test_several_index_arrays_and_whole_axes(device: str) -> None:
    rng = new_rng()
    start = rng.standard_normal((4, 5, 6, 3)).astype("float32")
    with config.change_flags(device=device):
        table = symdnn.shared(start)
        i, j = T.lvector("i"), T.ivector("j")
        new = T.set_subtensor(table[:, i, :, j], 7)
        f = symdnn.function([i, j], [], updates=[(table, new)])
    a, b = np.array([0, -1, 2]), np.array([2, 1, 0], "int32")
    f(a, b)
    wanted = start.copy()
    wanted[:, a, :, b] = 7
    np.testing.assert_array_equal(table.get_value(), wanted)


@pytest.mark.parametrize("target", TARGETS)
def test_gradient_descent_touches_the_rows_that_were_read(target: str) -> None:
    w = symdnn.shared(np.zeros((50, 6), "float32"), "w", shape=(50, 6))
    i, rate = T.TensorType("int64", (8,))("i"), T.fscalar("rate")
    cost = T.tanh(w[i]).sum()
    for scale in (0.1, rate):
        f = symdnn.function(
            [i, rate], [], updates=[(w, w - scale * T.grad(cost, w))],
            mode=symdnn.Mode(target=target), on_unused_input="ignore",
        )  # fmt: skip
        shapes = [v.type.shape for n in f.maker.fgraph.toposort() for v in n.outputs]
        assert shapes.count((50, 6)) == 1
        assert written(f, i=(8,), rate=()) == 1


def test_momentum_and_two_readers_stay_dense() -> None:
    w, v = (symdnn.shared(np.zeros((50, 6), "float32")) for _ in range(2))
    i = T.TensorType("int64", (8,))("i")
    g = T.grad(T.tanh(w[i]).sum(), w)
    new = 0.9 * v - 0.1 * g
    for updates in ([(v, new), (w, w + new)], [(w, w - 0.1 * g), (v, g)]):
        f = symdnn.function([i], [], updates=updates, mode=symdnn.Mode(target="cpu"))
        ops = [n.op for n in f.maker.fgraph.toposort()]
        assert not any(isinstance(op, AdvancedIncSubtensor) and op.in_bounds for op in ops)


@pytest.mark.parametrize("device", DEVICES, indirect=True)
@pytest.mark.parametrize("index", ["array", "slice", "negative slice"])
def test_gradient_descent_on_rows(device: str, index: str) -> None:
    rng = new_rng()
    start = rng.standard_normal((9, 4)).astype("float32")
    at = {"array": np.array([1, 1, -2, 5]), "slice": np.s_[2:5], "negative slice": np.s_[::-2]}
    with config.change_flags(device=device):
        w = symdnn.shared(start)
        read = w[T.constant(at["array"])] if index == "array" else w[at[index]]
        cost = (T.tanh(read) ** 2).sum()
        f = symdnn.function([], cost, updates=[(w, w - np.float32(0.5) * T.grad(cost, w))])
    wanted = np.float64(start)
    for _ in range(3):
        rows = wanted[at[index]]
        slope = 2 * np.tanh(rows) * (1 - np.tanh(rows) ** 2)
        dense = np.zeros_like(wanted)
        np.add.at(dense, at[index], slope)
        assert float(np.asarray(f())) == pytest.approx((np.tanh(rows) ** 2).sum(), rel=1e-5)
        wanted = wanted - 0.5 * dense
        np.testing.assert_allclose(w.get_value(), wanted, rtol=1e-5, atol=1e-6)
