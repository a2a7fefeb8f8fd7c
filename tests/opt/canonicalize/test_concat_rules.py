"""Rules of joins that no pair of expressions shows."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.errors import ShapeMismatch
from symdnn.graph.evaluate import evaluate
from symdnn.ops.array.index import IncSubtensor
from symdnn.ops.array.join import Join, Split


def put_side_by_side(*parts):
    """Zeros like the first, of which the others are set, four columns each but the last."""
    x, *values = parts
    y = x.zeros_like()
    for k, value in enumerate(values):
        stop = None if k == len(values) - 1 else 4 * (k + 1)
        y = symdnn.tensor.inc_subtensor(y[:, 4 * k : stop], value)
    return y


def test_increments_of_unknown_sizes_are_joined_and_checked(rng):
    """As in the gradient of a loop whose step takes slices."""
    parts = [symdnn.tensor.matrix(n) for n in "xabc"]
    f = symdnn.function(parts, put_side_by_side(*parts))
    made = {type(n.op) for n in f.stages.fgraph.toposort()}
    assert Join in made
    assert IncSubtensor not in made
    x, *values = (rng.normal(size=(3, n)).astype("float32") for n in (10, 4, 4, 2))
    np.testing.assert_array_equal(f(x, *values), np.concatenate(values, 1))
    for wrong in ([values[0], values[2], values[1]], [values[0], values[1], values[1][:2, :2]]):
        with pytest.raises(ShapeMismatch):
            f(x, *wrong)


def test_increments_that_are_spread_are_not_joined(rng):
    x, a = symdnn.tensor.matrix("x"), symdnn.tensor.matrix("a")
    row = symdnn.tensor.row("row")
    f = symdnn.function([x, a, row], put_side_by_side(x, a, row))
    assert Join not in {type(n.op) for n in f.stages.fgraph.toposort()}
    x, a, row = (rng.normal(size=s).astype("float32") for s in ((3, 9), (3, 4), (1, 5)))
    wanted = np.concatenate([a, np.repeat(row, 3, 0)], 1)
    np.testing.assert_array_equal(f(x, a, row), wanted)


def test_gradients_of_joins_read_the_joined_and_check_their_sizes(rng):
    x, y = symdnn.tensor.matrix("x"), symdnn.tensor.matrix("y")
    a = rng.normal(size=(3, 4)).astype("float32")
    shown = symdnn.tensor.tanh(symdnn.tensor.concatenate([x, y], 0))  # read twice by its gradient
    f = symdnn.function([x, y], symdnn.grad((shown**2).sum(), x))
    assert not {Join, Split} & {type(n.op) for n in f.stages.fgraph.toposort()}
    np.testing.assert_allclose(f(a, a), 2 * np.tanh(a) / np.cosh(a) ** 2, 1e-4, 1e-6)
    for made in (symdnn.tensor.concatenate([x, y], 0), symdnn.tensor.stack([x, y], 1)):
        f = symdnn.function([x, y], symdnn.grad((symdnn.tensor.exp(made) ** 2).sum(), x))
        assert not {Join, Split} & {type(n.op) for n in f.stages.fgraph.toposort()}
        np.testing.assert_allclose(f(a, a[::-1]), 2 * np.exp(2 * a), 1e-5)
        with pytest.raises(ShapeMismatch):
            f(a, a[:, :2])


def test_all_slices_are_joined_in_whatever_order_their_gradients_are_added(rng):
    x, p = T.tensor4("x"), T.tensor4("p")
    gates = T.nnet.conv2d(x, p, border_mode="half")
    a, b, c, d = gates[:, :2], gates[:, 2:4], gates[:, 4:6], gates[:, 6:]
    state = T.sigmoid(a) * 0.5 + T.sigmoid(b) * T.tanh(c)
    slope = T.grad((T.sigmoid(d) * T.tanh(state)).sum(), p)
    f = symdnn.function([x, p], slope)
    ops = [type(node.op) for node in f.fgraph.apply_nodes]
    assert ops.count(Join) == 1
    assert IncSubtensor not in ops
    arrays = rng.standard_normal((2, 3, 4, 5)), rng.standard_normal((8, 3, 3, 3))
    given = [v.astype(symdnn.config.floatX) for v in arrays]
    np.testing.assert_allclose(f(*given), evaluate([slope], dict(zip((x, p), given)))[0], rtol=1e-4)
