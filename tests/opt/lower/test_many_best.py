"""Top-k of many elements on a CPU is a partition and a sort of a part; ranks on a GPU a scatter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.ops.array.advanced_index import AdvancedIncSubtensor
from symdnn.ops.array.order_statistics import ArgPartition
from symdnn.ops.array.sort import ArgSort, Sort, TopK
from tests.opt.lowering import CPU, GPU, assert_same_values, rewritten
from tests.seeded import new_rng


def counts(fgraph: Any) -> list[int]:
    nodes = fgraph.toposort()
    return [sum(isinstance(n.op, kind) for n in nodes) for kind in (TopK, ArgPartition)]


def drawn(dtype: str, *shape: int) -> np.ndarray:
    """Numbers many of which are equal, with NaN, infinities and both zeros where there are any."""
    rng, kind = new_rng(), T.tensor(dtype, ()).type
    a = rng.integers(0 if dtype.startswith("u") else -40, 40, shape)
    if not kind.is_float:
        return a.astype(kind.numpy)
    a = a / 8.0
    for value in (np.nan, np.inf, -np.inf, -0.0):
        a[rng.random(shape) < 0.03] = value
    return a.astype(kind.numpy)


DTYPES = ["float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", [40, -40, 150, -150, 1, -1])
def test_the_best_are_those_of_the_op(dtype, k):
    """Of equal elements the first ones, with their own bits; NaN is the largest."""
    a = drawn(dtype, 60, 150)
    x = T.tensor(dtype, a.shape)
    outputs = T.topk_and_argtopk(x, k, idx_dtype="int32")
    assert counts(rewritten([x], outputs, CPU)) == ([1, 0] if abs(k) == 1 else [0, 1])
    found = symdnn.function([x], outputs)(a)
    wanted = TopK(1, "int32", k).reference(a, np.array(k))
    np.testing.assert_array_equal(found[1], wanted[1])
    assert found[0].dtype == a.dtype
    assert found[0].tobytes() == wanted[0].tobytes()


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_along_any_axis_with_gradients(axis):
    value = new_rng().standard_normal((30, 30, 30))
    x = T.tensor("float64", value.shape)
    values, places = T.topk_and_argtopk(x, 20, axis)
    dx = symdnn.grad((values**2 * (places + 1)).sum(), x)
    fgraph = rewritten([x], [values, places, dx], CPU)
    assert counts(fgraph) == [0, 1]
    assert_same_values(fgraph, [x], [values, places, dx], [value])


LEFT: dict[str, tuple[str, tuple[int | None, ...], int]] = {
    "few of many": ("float32", (60, 10_000), 20),
    "a short call": ("float32", (4, 100), 50),
    "a length that is not known": ("float32", (60, None), 200),
    "booleans": ("bool", (60, 1000), 200),
    "none": ("float32", (60, 1000), 0),
}


@pytest.mark.parametrize("why", LEFT)
def test_left_alone(why):
    dtype, shape, k = LEFT[why]
    x = T.tensor(dtype, shape)
    assert counts(rewritten([x], [T.topk(x, k)], CPU)) == [1, 0]


def test_a_gpu_keeps_its_own():
    x = T.tensor("float32", (60, 1000))
    assert counts(rewritten([x], [T.topk(x, 200)], GPU)) == [1, 0]


# -- ranks ----------------------------------------------------------------------------------------


def ranks_of(fgraph: Any) -> list[int]:
    nodes = fgraph.toposort()
    return [sum(isinstance(n.op, op) for n in nodes) for op in (ArgSort, AdvancedIncSubtensor)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize(("shape", "axis"), [((40,), 0), ((9, 1), 0), ((5, 8, 7), 1), ((0, 3), 0)])
def test_ranks_are_scattered_on_a_gpu(dtype, shape, axis):
    a = drawn(dtype, *shape)
    x = T.tensor(dtype, (None,) * len(shape))
    ranks = T.argsort(T.argsort(x, axis), axis)
    fgraph = rewritten([x], [ranks])
    assert ranks_of(fgraph) == [1, 1]
    assert_same_values(fgraph, [x], [ranks], [a])
    assert ranks_of(rewritten([x], [ranks], CPU)) == [2, 0]


@pytest.mark.parametrize("axis", [0, 1, None])
def test_the_gradient_of_a_sort_sorts_once(axis):
    x = T.dmatrix()
    y = T.sort(x, axis)
    dx = symdnn.grad((y**2 * T.arange(y.shape[0])[(...,) + (None,) * (y.ndim - 1)]).sum(), x)
    fgraph = rewritten([x], [y, dx])
    assert ranks_of(fgraph) == [1, 1]
    assert not any(isinstance(n.op, Sort) for n in fgraph.toposort())
    (scatter,) = [n for n in fgraph.toposort() if isinstance(n.op, AdvancedIncSubtensor)]
    assert scatter.op.set_instead_of_inc  # of the gradient, not of its ranks
    for given in (new_rng().standard_normal((6, 11)), np.zeros((3, 4)), np.zeros((0, 4))):
        assert_same_values(fgraph, [x], [y, dx], [given])


def test_values_at_ranks_of_something_else_are_gathered():
    """Of another axis, of fewer places, and of ranks that broadcast."""
    x, g = T.dmatrix("x"), T.dmatrix("g")
    ranks = T.argsort(T.argsort(x, 1), 1)
    first = T.argsort(T.argsort(x[:1], 1), 1)
    made = [
        T.take_along_axis(g, ranks, 0), T.take_along_axis(g, first, 1),
        T.take_along_axis(g, T.argsort(x, 1), 1), T.take_along_axis(x[:2], ranks[:2], 1),
    ]  # fmt: skip
    fgraph = rewritten([x, g], made)
    found = [n.op for n in fgraph.toposort() if isinstance(n.op, AdvancedIncSubtensor)]
    assert not any(op.set_instead_of_inc for op in found)
    rng = new_rng()
    assert_same_values(fgraph, [x, g], made, [rng.normal(size=(5, 5)), rng.normal(size=(5, 5))])


def test_sorts_along_other_axes_are_no_ranks():
    x = T.fmatrix()
    other = T.argsort(T.argsort(x, 0), 1)
    less = T.argsort(-T.argsort(x, 0), 0)
    assert ranks_of(rewritten([x], [other, less])) == [3, 0]
