"""Layers with a state that are called several times: batch statistics, dropout's numbers."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import InputError

KINDS = {
    "BatchNorm1d": (lambda **k: nn.BatchNorm1d(3, **k), (6, 3)),
    "BatchNorm1d of sequences": (lambda **k: nn.BatchNorm1d(3, **k), (4, 3, 5)),
    "BatchNorm2d": (lambda **k: nn.BatchNorm2d(3, **k), (4, 3, 2, 3)),
    "BatchNorm3d": (lambda **k: nn.BatchNorm3d(3, **k), (2, 3, 2, 2, 3)),
}


def after(net, batches):
    """The running statistics after these batches, one after the other (PyTorch's rule)."""
    mean, var, m = np.zeros(3), np.ones(3), net.momentum
    for x in batches:
        axes = tuple(a for a in range(x.ndim) if a != 1)
        mean = (1 - m) * mean + m * x.mean(axes, dtype="float64")
        var = (1 - m) * var + m * x.var(axes, dtype="float64", ddof=1)
    return mean, var


def check(net, batches):
    mean, var = after(net, batches)
    np.testing.assert_allclose(net.running_mean.get_value(), mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(net.running_var.get_value(), var, rtol=1e-5, atol=1e-6)


def draw(rng, count, shape):
    return [rng.normal(rng.normal(), 2, size=shape).astype("float32") for _ in range(count)]


@pytest.mark.parametrize("momentum", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_each_call_updates_in_the_order_of_the_calls(kind, count, momentum, rng):
    make, shape = KINDS[kind]
    net, values = make(momentum=momentum), draw(rng, count, shape)
    xs = [T.TensorType("float32", (None,) * len(shape))() for _ in values]
    outputs = [net(x) for x in xs]
    # The sum names them in another order than that of the calls.
    loss = sum(T.sqr(y).sum() for y in reversed(outputs))
    updates = nn.optim.sgd(loss, net, 0.0)
    assert [v for v, _ in updates].count(net.running_mean) == 1
    f = symdnn.function(xs, loss, updates=updates)
    f(*values)
    check(net, values)
    f(*reversed(values))
    check(net, [*values, *reversed(values)])


def test_a_call_that_the_loss_does_not_use_updates_nothing(rng):
    net, (value,) = nn.BatchNorm1d(3), draw(rng, 1, (6, 3))
    x = T.fmatrix("x")
    net(T.fmatrix("other"))
    loss = net(x).sum()
    symdnn.function([x], loss, updates=nn.state_updates(loss))(value)
    check(net, [value])


def test_the_same_layer_at_two_places_of_a_network(rng):
    one = nn.BatchNorm1d(3)
    net, (value,) = nn.Sequential(one, nn.Tanh(), one), draw(rng, 1, (6, 3))
    x = T.fmatrix("x")
    loss = net(x).sum()
    symdnn.function([x], loss, updates=nn.state_updates(loss))(value)
    y = np.tanh((value - value.mean(0)) / np.sqrt(value.var(0) + 1e-5))
    check(one, [value, y])


class Counted(nn.Module):
    """A statistic of the user's own: how many rows there were, doubled before each call."""

    def __init__(self):
        self.buffer("count", np.float32(1))

    def forward(self, x):
        y = x * 1
        y.tag.state_updates = [(self.count, 2 * self.count + x.shape[0].astype("float32"))]
        return y


def test_statistics_of_ones_own_layer():
    net, x = Counted(), T.fmatrix("x")
    loss = net(x).sum() + net(net(x)[:2]).sum()
    symdnn.function([x], loss, updates=nn.state_updates(loss))(np.ones((5, 2), "float32"))
    # 1 -> 2 + 5 -> 14 + 5 -> 38 + 2
    assert net.count.get_value() == 40


def test_a_copy_of_the_expression_updates_from_its_own_inputs(rng):
    net, (value,) = nn.BatchNorm1d(3), draw(rng, 1, (6, 3))
    x, other = T.fmatrices("x", "other")
    loss = symdnn.clone(net(x).sum(), replace={x: other})
    symdnn.function([other], loss, updates=nn.state_updates(loss))(value)
    check(net, [value])


@pytest.mark.parametrize("given", [False, True])
def test_each_step_of_a_scan_updates(given, rng):
    net, values = nn.BatchNorm1d(3), draw(rng, 5, (6, 3))
    x = T.ftensor3("x")

    def step(v):
        y = net(v)
        return (y, dict(nn.state_updates(y))) if given else y

    y, updates = symdnn.scan(step, x)
    loss = T.sqr(y).sum()
    assert (net.running_mean in updates) is given
    pairs = [*updates.items(), *nn.optim.sgd(loss, net, 0.0)]
    symdnn.function([x], loss, updates=pairs)(np.stack(values))
    check(net, values)


def test_a_scan_and_a_call_after_it(rng):
    net, values = nn.BatchNorm1d(3), draw(rng, 4, (6, 3))
    x, last = T.ftensor3("x"), T.fmatrix("last")
    h, _ = symdnn.scan(lambda v, h: net(v + net(h)), x, outputs_info=[x[0] * 0])
    loss = h.sum() + net(last).sum()
    f = symdnn.function([x, last], [loss, h], updates=nn.optim.adam(loss, net, 0.0))
    _, found = f(np.stack(values[:3]), values[3])
    calls, before = [], values[0] * 0
    for v, h in zip(values, found):
        normal = (before - before.mean(0)) / np.sqrt(before.var(0) + 1e-5)
        calls, before = [*calls, before, v + normal], h
    check(net, [*calls, values[3]])


def test_inside_of_an_op_from_a_graph_it_is_refused(rng):
    net, x = nn.BatchNorm1d(3), T.fmatrix("x")
    op = symdnn.OpFromGraph([x], [net(x)])
    with pytest.raises(InputError, match=r"updates its statistics.*net\.evaluate\(\)"):
        nn.optim.sgd(op(x).sum(), net, 0.1)
    op = symdnn.OpFromGraph([x], [net.evaluate()(x)])
    assert nn.state_updates(op(x).sum()) == []


@pytest.mark.parametrize("make", [
    lambda: nn.Dropout(0.5), lambda: nn.Dropout2d(0.5), lambda: nn.LSTM(8, 8, 2, dropout=0.5),
])  # fmt: skip
def test_each_call_draws_numbers_of_its_own(make, rng):
    net = make()
    ndim = 4 if "Spatial" in type(net).__name__ else 3
    x = T.TensorType("float32", (None,) * ndim)()
    value = np.abs(rng.normal(size=(4, 6, 8, 8)[-ndim:])).astype("float32") + 0.1
    f = symdnn.function([x], [net(x), net(x)])
    a, b = f(-value)
    c, d = f(-value)
    for one, other in ((a, b), (a, c), (b, d), (c, d)):
        assert (one != other).any()
