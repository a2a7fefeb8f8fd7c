"""``checkpoint``: equal values and gradients, and less memory."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.graph.op import Op
from symdnn.nn.modules.module import state_updates
from symdnn.ops.control.checkpoint import After, Checkpoint
from symdnn.ops.random.random_stream import RandomStream

DEEP, WIDE, BATCH = 16, 32, 64


def weights(seed=0, count=DEEP):
    rng = np.random.default_rng(seed)
    return [
        symdnn.shared(rng.standard_normal((WIDE, WIDE)) / WIDE**0.5, name=f"w{i}")
        for i in range(count)
    ]


def block(h, ws):
    for w in ws:
        h = T.tanh(T.dot(h, w)) * T.sigmoid(h) + h
    return h


def network(wrap, x, ws, each=4):
    for i in range(0, len(ws), each):
        x = wrap(lambda h, i=i: block(h, ws[i : i + each]))(x)
    return x


def plain(f):
    return f


def run(wrap, build, *arrays, mode=None):
    """[the results, the function] of ``build(wrap, *variables)``."""
    vs = [T.TensorType(a.dtype.name, (None,) * a.ndim)() for a in map(np.asarray, arrays)]
    f = symdnn.function(vs, build(wrap, *vs), mode=mode)
    return f(*arrays), f


def same(build, *arrays, exact=True, mode=None):
    """Both functions, after their results have been compared."""
    (got, f), (want, g) = (run(w, build, *arrays, mode=mode) for w in (symdnn.checkpoint, plain))
    for a, b in zip(got, want, strict=True):
        if exact:
            np.testing.assert_array_equal(a, b)
        else:
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
    return f, g


def points(seed=1):
    return np.random.default_rng(seed).standard_normal((BATCH, WIDE))


def test_gradients_are_equal_and_memory_falls():
    ws = weights()

    def build(wrap, x):
        y = network(wrap, x, ws)
        return [y.sum(), *symdnn.grad((y**2).mean(), [x, *ws])]

    f, g = same(build, points())
    arena, before = f.memory_report().arena, g.memory_report().arena
    assert arena < 0.65 * before
    assert any(isinstance(n.op, After) for n in f.fgraph.toposort())
    assert not any(isinstance(n.op, Checkpoint) for n in f.fgraph.toposort())


def test_without_gradients_nothing_is_left_of_it():
    ws = weights(count=2)
    f, g = same(lambda wrap, x: [network(wrap, x, ws)], points())
    assert [str(n.op) for n in f.fgraph.toposort()] == [str(n.op) for n in g.fgraph.toposort()]


@pytest.mark.cpu
def test_products_are_computed_again_once():
    ws = weights(count=4)

    def products(f):
        return sum("atmul" in str(n.op) or "Dot" in str(n.op) for n in f.fgraph.toposort())

    def build(wrap, x):
        return symdnn.grad((network(wrap, x, ws, 2) ** 2).sum(), ws)

    f, g = same(build, points())
    # The last product of each part is not needed again unless its value is.
    assert products(g) < products(f) <= products(g) + 4


@pytest.mark.cpu
def test_nested():
    ws = weights()

    def build(wrap, x):
        def half(h, part):
            return network(wrap, h, part, 4)

        for part in (ws[:8], ws[8:]):
            x = wrap(lambda h, part=part: half(h, part))(x)
        return symdnn.grad((x**2).sum(), ws)

    same(build, points())


def test_trees_integers_and_results_used_outside():
    w = weights(count=1)[0]

    def build(wrap, x):
        def f(args, *, scale):
            a, (b,) = args["a"], args["b"]
            h = T.tanh(T.dot(a, w)) * scale
            return {"y": (h * b, [h.exp()]), "at": h.argmax(axis=1), "n": 3}

        found = wrap(f)({"a": x, "b": (x * 2,)}, scale=x.mean())
        assert found["n"] == 3
        y, (e,) = found["y"]
        cost = (y * e).sum() + (e[T.arange(BATCH), found["at"]] ** 2).sum()
        return [cost, found["at"], y, *symdnn.grad(cost, [x, w])]

    # Products of three factors are rounded by the kernels that compute them.
    same(build, points(), exact=False)


def test_gradient_of_a_gradient_and_tangents():
    ws = weights(count=4)

    def build(wrap, x):
        y = network(wrap, x, ws, 2)
        first = symdnn.grad((y**2).sum(), x)
        second = symdnn.grad((first**2).sum(), ws)
        return [*second, symdnn.Rop(y, x, x * 2), symdnn.Rop(first, x, x * 2)]

    same(build, points(), exact=False)


def test_dropout_draws_the_same_mask_and_advances_once():
    ws = weights(count=4)
    found = []
    for wrap in (symdnn.checkpoint, plain):
        stream = RandomStream(5)

        def part(h, i, stream=stream):
            return T.nnet.dropout(T.tanh(T.dot(h, ws[i])), 0.4, stream)

        x = T.dmatrix("x")
        h = x
        for i in range(4):
            h = wrap(lambda v, i=i: part(v, i))(h)
        f = symdnn.function([x], [h, *symdnn.grad((h**2).sum(), ws)])
        found.append(
            [*f(points()), *f(points()), *(s.get_value() for s, _ in stream.state_updates)]
        )
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_running_statistics_are_updated_once():
    found = []
    for wrap in (symdnn.checkpoint, plain):
        nn.init.seed(3)
        net = nn.Sequential(nn.Linear(WIDE, 8), nn.BatchNorm1d(8), nn.ReLU())
        x = T.dmatrix("x")
        y = wrap(net)(x.astype("float32"))
        params = list(net.parameters())
        grads = symdnn.grad((y**2).sum(), params)
        statistics = state_updates(y)
        assert len(statistics) == 2
        f = symdnn.function([x], [y, *grads], updates=statistics)
        found.append([*f(points()), *f(points(2)), *(s.get_value() for s, _ in statistics)])
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_around_and_inside_of_scan():
    w = weights(count=1)[0]

    def build(wrap, x):
        def steps(h):
            return symdnn.scan(wrap(lambda v: T.tanh(T.dot(v, w)) + v), outputs_info=h, n_steps=5)[
                0
            ]

        y = wrap(steps)(x)[-1]
        return [y, *symdnn.grad((y**2).sum(), [x, w])]

    same(build, points(), exact=False)


def test_in_a_branch():
    w = weights(count=1)[0]

    def build(wrap, x):
        inside = wrap(lambda v: T.tanh(T.dot(v, w)).exp())(x)
        y = symdnn.ifelse(x.sum() > 0, inside, x)
        return [y, *symdnn.grad((y**2).sum(), [x, w])]

    for sign in (1, -1):
        same(build, sign * np.abs(points()))


@pytest.mark.cpu
def test_amp_casts_are_kept():
    ws = [symdnn.shared(w.get_value().astype("float32")) for w in weights(count=4)]

    def build(wrap, x):
        y = network(wrap, x, ws, 2)
        return [y.sum(), *symdnn.grad((y**2).sum(), ws)]

    with symdnn.config.change_flags(amp="bf16"):
        same(build, points().astype("float32"))


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90"])
def test_what_is_computed_again_is_in_the_graph_of_each_target(target):
    ws = [symdnn.shared(w.get_value().astype("float32")) for w in weights(count=4)]
    x = T.fmatrix("x")
    counts = []
    for wrap in (symdnn.checkpoint, plain):
        y = network(wrap, x, ws, 2)
        f = symdnn.function([x], symdnn.grad((y**2).sum(), ws), mode=symdnn.Mode(target=target))
        counts.append(sum("Gemm" in str(n.op) or "atmul" in str(n.op) or "Dot" in str(n.op)
                          for n in f.fgraph.toposort()))  # fmt: skip
    assert counts[0] > counts[1]


def test_a_function_without_arguments_in_its_result():
    x = T.dvector("x")
    found = symdnn.checkpoint(lambda v: T.ones((3,)))(x)
    assert found.eval().tolist() == [1, 1, 1]
    assert symdnn.checkpoint(lambda v: v)(x) is x


def test_it_is_an_op_like_others():
    x = T.dvector("x")
    y = symdnn.checkpoint(lambda v: T.exp(v) * 2)(x)
    assert isinstance(y.owner.op, Op)
    assert "Checkpoint" in str(y.owner.op)
    np.testing.assert_array_equal(y.eval({x: [0.0]}), [2.0])
