"""Increments of rows of zeros in sums: they are made in the other term, near misses, values."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.compile.function import function
from symdnn.config import config
from symdnn.errors import IndexOutOfRange
from symdnn.ops.array.advanced_index import AdvancedIncSubtensor
from symdnn.ops.core.shape import Alloc
from symdnn.opt.lower.increments import sum_with_rows_of_zeros
from symdnn.rewriting.facts import is_zero

RNG = np.random.default_rng(8)
A, B = RNG.standard_normal((6, 3)), RNG.standard_normal((3, 4))
ROWS, AT = RNG.standard_normal((5, 4)), np.array([3, 0, 3, -1, 2])


def bases(f: Any) -> list[bool]:
    """Whether the first operand of each write by index is zeros."""
    writes = [n for n in f.fgraph.toposort() if isinstance(n.op, AdvancedIncSubtensor)]
    return [is_zero(n.inputs[0]) or isinstance(n.inputs[0].owner.op, Alloc) for n in writes]


def scattered(dtype: str = "float64") -> tuple[list[Any], Any, Any]:
    a, b, rows = (T.matrix(n, dtype=dtype) for n in ("a", "b", "rows"))
    at = T.lvector("at")
    product = T.dot(a, b)
    return [a, b, rows, at], product, T.inc_subtensor(T.zeros_like(product)[at], rows)


def wanted(times: int = 1) -> Any:
    found = A @ B
    np.add.at(found, AT, times * ROWS)
    return found


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("swapped", [False, True])
def test_increments_are_made_in_the_product(dtype: str, swapped: bool) -> None:
    inputs, product, rows = scattered(dtype)
    f = function(inputs, rows + product if swapped else product + rows)
    assert bases(f) == [False]
    values = [v.astype(dtype) for v in (A, B, ROWS)]
    np.testing.assert_allclose(f(*values, AT), wanted(), 1e-5, 1e-6)
    with pytest.raises(IndexOutOfRange, match="index 6 is out of range"):
        f(*values, np.full(5, 6))
    assert f(*values[:2], values[2][:0], AT[:0]).shape == (6, 4)


def test_several_increments_are_made_one_after_another() -> None:
    inputs, product, rows = scattered()
    twice = T.inc_subtensor(rows[inputs[3]], inputs[2])
    f = function(inputs, product + twice)
    assert bases(f) == [False, False]
    np.testing.assert_allclose(f(A, B, ROWS, AT), wanted(2))
    others = T.inc_subtensor(T.zeros_like(product)[-1 - inputs[3]], inputs[2])
    g = function(inputs, (product + rows) + others)
    found = wanted()
    np.add.at(found, -1 - AT, ROWS)
    assert bases(g) == [False, False]
    np.testing.assert_allclose(g(A, B, ROWS, AT), found)


def test_gradients_of_several_gathers_are_added_to_one_array() -> None:
    x = T.TensorType("float32", (3, 4, 2))("x")
    i, j = T.lvectors("i", "j")
    cost = sum(((k + 1) * x[i, (j + k) % 4] ** 2).sum() for k in range(3))
    f = function([x, i, j], T.grad(cost, x))
    assert bases(f) == [True, False, False]
    values = (
        RNG.standard_normal((3, 4, 2)).astype("float32"),
        np.array([0, 2, 2]),
        np.array([1, 3, 3]),
    )
    g = function([x, i, j], T.grad(cost, x), mode=symdnn.Mode(optimizer="None"))
    np.testing.assert_allclose(f(*values), g(*values), 1e-6)


@pytest.mark.parametrize(
    "which", ["assigned", "columns", "elementwise", "argument", "read twice", "broadcast"]
)
def test_other_sums_stay(which: str) -> None:
    inputs, product, rows = scattered()
    _, _, given, at = inputs
    zeros = T.zeros_like(product)
    outs = {
        "assigned": [product + T.set_subtensor(zeros[at], given)],
        "columns": [product + T.inc_subtensor(zeros[:, at], T.zeros((6, 5)) + given[0, 0])],
        "elementwise": [T.exp(product) + rows],
        "argument": [inputs[0][:, :1].dot(inputs[1][:1]), inputs[0].sum(), rows + zeros],
        "read twice": [product + rows, rows * 2],
        "broadcast": [T.dot(inputs[0].sum(0, keepdims=True), inputs[1]) + rows],
    }[which]
    f = function(inputs, outs)
    g = function(inputs, outs, mode=symdnn.Mode(optimizer="None"))
    for found, right in zip(f(A, B, ROWS, AT % 4), g(A, B, ROWS, AT % 4), strict=True):
        np.testing.assert_allclose(found, right)
    assert all(bases(f))
    assert bases(f)


def test_the_gradient_of_tied_embeddings_has_no_zeros() -> None:
    table, ids = T.matrix("table", dtype="float32"), T.lmatrix("ids")
    labels = T.lvector("labels")
    x = T.tanh(table[ids]).reshape((-1, table.shape[1]))
    scores = T.dot(x, table.T)
    loss = T.nnet.categorical_crossentropy(T.nnet.softmax(scores), labels).mean()
    values = [
        RNG.standard_normal((11, 8)).astype("float32"), RNG.integers(0, 11, (2, 5)),
        RNG.integers(0, 11, 10),
    ]  # fmt: skip
    f = function([table, ids, labels], T.grad(loss, table))
    assert bases(f) == [False]
    excluded = symdnn.Mode().excluding("sum_with_rows_of_zeros")
    g = function([table, ids, labels], T.grad(loss, table), mode=excluded)
    assert bases(g) == [True]
    np.testing.assert_allclose(f(*values), g(*values), 1e-4, 1e-6)
    gpu = symdnn.Mode(target="cuda:sm_90").excluding("fuse_scatters")
    with config.change_flags(amp="bf16"):
        h = function([table, ids, labels], T.grad(loss, table), mode=gpu)
    assert bases(h) == [False]
    (write,) = [n for n in h.fgraph.toposort() if isinstance(n.op, AdvancedIncSubtensor)]
    assert write.inputs[0].type.dtype == "float32"  # the product's sums are not rounded before


def test_a_sum_of_other_terms_asks_for_no_shapes():
    """Most sums are: expressions of all their sizes took a tenth of the compile time of a net."""
    x, y = T.matrices("x", "y")
    node = (T.dot(x, y) + T.dot(y, x)).owner
    knows_no_shapes: Any = SimpleNamespace(only_user=lambda v: True)
    assert sum_with_rows_of_zeros.function(node, knows_no_shapes) is None
