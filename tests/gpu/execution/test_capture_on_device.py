"""Captured steps on a GPU against the same programs on the CPU, whatever happens between calls."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.errors import IndexOutOfRange
from symdnn.ops.random.random_stream import RandomStreams
from tests.compile.call.test_files_of_a_call import steady_files

pytestmark = pytest.mark.gpu

SIZES = (3, 5, 4100, 1, 70_000)


def rng(seed=None):
    return np.random.default_rng(seed)


def on_both(build):
    """What ``build`` makes for the GPU, and for the CPU."""
    made = []
    for device in ("cuda", "cpu"):
        with symdnn.config.change_flags(device=device):
            made.append(build())
    return made


def floats(*shape):
    return rng().standard_normal(shape).astype("float32")


def on_device(cuda, value):
    with cuda.context.current():
        return cuda.lend(cuda.memory.upload(np.asarray(value), None))


def assert_same(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a.get_value(), b.get_value(), rtol=2e-5, atol=2e-5)


def perceptron():
    """Three functions that train one net: with a result, without, with one that is lent."""
    r = rng(1)
    x, t = T.fmatrix("x"), T.ivector("t")
    shapes = ((20, 30), (30,), (30, 5), (5,))
    ps = [symdnn.shared(r.standard_normal(s).astype("float32") * np.float32(0.1)) for s in shapes]
    hidden = T.tanh(T.dot(x, ps[0]) + ps[1])
    scores = T.nnet.softmax(T.dot(hidden, ps[2]) + ps[3])
    loss = T.nnet.categorical_crossentropy(scores, t).mean()
    updates, every = [], list(ps)
    for p, g in zip(ps, T.grad(loss, ps), strict=True):
        v = symdnn.shared(np.zeros_like(p.get_value()))
        new = np.float32(0.9) * v + g
        updates += [(v, new), (p, p - np.float32(0.1) * new)]
        every.append(v)
    lent = symdnn.Out(loss, borrow=True)
    made = [symdnn.function([x, t], out, updates=updates) for out in (loss, None, lent)]
    return made, every


def thrice(step):
    """A step that returns nothing tells of an error within two calls."""
    for _ in range(3):
        step(*batch())


def batch(n=16):
    return floats(n, 20), rng().integers(0, 5, n).astype("int32")


@pytest.mark.usefixtures("cuda")
def test_a_step_is_one_graph():
    ((f, *_), ps), ((g, *_), qs) = on_both(perceptron)
    for _ in range(8):
        args = batch()
        np.testing.assert_allclose(f(*args), g(*args), rtol=2e-5)
    assert_same(ps, qs)
    (plan,) = f.plans()
    assert plan.bound.capture_state.startswith("captured")
    assert f._fast.entries


def test_shapes_and_functions_alternate_and_values_are_set(card):
    (ours, ps), (theirs, qs) = on_both(perceptron)
    for call in range(24):
        args = batch((16, 7, 1)[call % 3])
        there = tuple(on_device(card, a) for a in args)
        want = theirs[0](*args)
        if call % 4 == 0:
            np.testing.assert_allclose(ours[0](*args), want, rtol=2e-5)
        elif call % 4 == 2:
            np.testing.assert_allclose(ours[2](*there).get(), want, rtol=2e-5)
        else:
            ours[1](*(args if call % 4 == 1 else there))
        if call in (10, 15):
            value = floats(20, 30) if call == 10 else ps[0].get_value() * 2
            for variables in (ps, qs):
                variables[0].set_value(value)
    assert_same(ps, qs)


def test_a_ring_of_inputs_stays_captured(card):
    (ours, ps), (theirs, qs) = on_both(perceptron)
    ring = [batch() for _ in range(8)]
    there = [tuple(on_device(card, a) for a in args) for args in ring]
    for call in range(40):
        got, want = ours[2](*there[call % 8]), theirs[0](*ring[call % 8])
        if call % 5 == 0:
            np.testing.assert_allclose(got.get(), want, rtol=2e-5)
    assert_same(ps, qs)
    assert len(ours[2].plans()[0].bound.replay.graphs) == 8


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("calls", [0, 1, 4])
def test_a_label_out_of_range_changes_nothing(calls):
    (ours, ps), (theirs, qs) = on_both(perceptron)
    for _ in range(calls):
        args = batch()
        ours[0](*args)
        ours[1](*args)
        theirs[0](*args)
        theirs[0](*args)
    x, t = batch()
    t[3] = 9
    before = [p.get_value() for p in ps]
    with pytest.raises(IndexOutOfRange, match="9"):
        ours[0](x, t)
    ours[1](x, t)
    with pytest.raises(IndexOutOfRange, match="9"):
        ps[0].get_value()
    ours[1](x, t)
    with pytest.raises(IndexOutOfRange, match="9"):
        thrice(ours[1])
    for p, value in zip(ps, before, strict=True):
        np.testing.assert_array_equal(p.get_value(), value)
    args = batch()
    np.testing.assert_allclose(ours[0](*args), theirs[0](*args), rtol=2e-5)
    assert_same(ps, qs)


@pytest.mark.usefixtures("cuda")
def test_an_index_out_of_range_in_a_program_of_many_segments():
    def build():
        r = rng(5)
        w = symdnn.shared(r.standard_normal((6, 4)).astype("float32"))
        count, u = symdnn.shared(np.zeros(6, "float32")), symdnn.shared(np.ones(4, "float32"))
        x, i = T.fmatrix("x"), T.lvector("i")
        start = T.zeros((4,), dtype="float32")
        sums, _ = symdnn.scan(lambda row, acc: acc + row, sequences=[x], outputs_info=[start])
        y = w[i].sum(axis=0) + sums[-1]
        updates = [(w, w * np.float32(0.5) + y), (count, count + 1), (u, u + y)]
        return symdnn.function([x, i], y.sum(), updates=updates), (w, count, u)

    (f, ps), (g, qs) = on_both(build)
    x = floats(3, 4)
    for call in range(6):
        i = rng().integers(0, 6, 5)
        if call in (0, 3):
            before = [p.get_value() for p in ps]
            with pytest.raises(IndexOutOfRange):
                f(x, np.array([0, 99]))
            for p, value in zip(ps, before, strict=True):
                np.testing.assert_array_equal(p.get_value(), value)
        np.testing.assert_allclose(f(x, i), g(x, i), rtol=1e-4)
    assert_same(ps, qs)


@pytest.mark.usefixtures("cuda")
def test_all_expressions_read_old_values():
    def build():
        a, b = (symdnn.shared(np.arange(5, dtype="float32") + k) for k in (0, 10))
        swap = symdnn.function([], updates=[(a, b), (b, a)])
        both = symdnn.function([], updates=[(a, b - a), (b, a + 1)])
        sums = symdnn.function([], updates=[(a, a - b.sum() / 8), (b, b - a.sum() / 8)])
        return (swap, both, sums), (a, b)

    (ours, ps), (theirs, qs) = on_both(build)
    for _ in range(5):
        for f, g in zip(ours, theirs, strict=True):
            f()
            g()
    assert_same(ps, qs)


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_many_parameters_are_updated_by_one_kernel(dtype):
    def build():
        r = rng(2)
        rate = symdnn.shared(np.asarray(0.1, dtype))
        updates, every = [], []
        for n in SIZES:
            p, v = (symdnn.shared(r.standard_normal(n).astype(dtype)) for _ in range(2))
            new = (0.5 * v + p).astype(dtype)
            updates += [(v, new), (p, (p - rate * new).astype(dtype))]
            every += [p, v]
        return symdnn.function([], updates=updates), every

    (f, ps), (g, qs) = on_both(build)
    for _ in range(4):
        f()
        g()
    tolerance = {"float16": 1e-2, "float32": 1e-5, "float64": 1e-12}[dtype]
    for a, b in zip(ps, qs, strict=True):
        np.testing.assert_allclose(a.get_value(), b.get_value(), rtol=tolerance, atol=tolerance)
    (plan,) = f.plans()
    assert plan.bound.replay is not None, plan.bound.capture_state
    assert plan.bound.replay.nodes <= 2


@pytest.mark.usefixtures("cuda")
def test_minibatches_of_shared_data():
    def build():
        r = rng(1)
        data = symdnn.shared(r.standard_normal((64, 20)).astype("float32"))
        labels = symdnn.shared(r.integers(0, 5, 64).astype("int32"))
        w = symdnn.shared(r.standard_normal((20, 5)).astype("float32"))
        x, t, i = T.fmatrix("x"), T.ivector("t"), T.lscalar("i")
        loss = T.nnet.categorical_crossentropy(T.nnet.softmax(T.dot(x, w)), t).mean()
        part = slice(i * 8, (i + 1) * 8)
        updates = [(w, w - np.float32(0.1) * T.grad(loss, w))]
        givens = {x: data[part], t: labels[part]}
        return symdnn.function([i], loss, updates=updates, givens=givens), (w,)

    (f, ps), (g, qs) = on_both(build)
    for call in range(20):
        np.testing.assert_allclose(f(call % 8), g(call % 8), rtol=2e-5)
    assert_same(ps, qs)
    assert len(f.plans()) == 1


@pytest.mark.usefixtures("cuda")
def test_the_arena_may_grow_in_between():
    (ours, ps), (theirs, qs) = on_both(perceptron)
    z = T.fmatrix("z")
    with symdnn.config.change_flags(device="cuda"):
        other = symdnn.function([z], T.exp(T.dot(z, z) * 0).sum())
    for call in range(7):
        args = batch()
        ours[1](*args)
        theirs[1](*args)
        n = 64 << call
        assert other(np.ones((n, n), "float32")) == n * n
    assert_same(ps, qs)


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("graph", ["auto", "off"])
def test_random_numbers_advance_at_each_replay(graph):
    def build():
        x = T.fvector("x")
        w = symdnn.shared(np.zeros(50, "float32"))
        u = RandomStreams(7).uniform((50,)).astype("float32")
        return symdnn.function([x], (u * x).sum(), updates=[(w, w + u)]), (w,)

    with symdnn.config.change_flags(**{"gpu.graph": graph}):
        (f, ps), (g, qs) = on_both(build)
        x = np.ones(50, "float32")
        for _ in range(6):
            np.testing.assert_allclose(f(x), g(x), rtol=2e-5)
    assert_same(ps, qs)
    captured = f.plans()[0].bound.capture_state
    assert captured.startswith("captured" if graph == "auto" else "not captured: gpu.graph=off")


@pytest.mark.usefixtures("cuda")
def test_rows_of_a_table_and_tables_of_new_shapes():
    def build():
        table, i = symdnn.shared(np.ones((6, 3), "float32")), T.lvector("i")
        return symdnn.function([i], updates=[(table, T.inc_subtensor(table[i], 1.0))]), (table,)

    (f, ps), (g, qs) = on_both(build)
    for call in range(9):
        i = rng().integers(0, 6, 4)
        f(i)
        g(i)
        if call in (3, 6):
            value = floats(9 if call == 3 else 6, 3)
            for (table,) in (ps, qs):
                table.set_value(value)
    assert_same(ps, qs)


@pytest.mark.usefixtures("card")
def test_a_call_runs_through_few_files():
    """Those of the emulated device (test_repeated_calls), and arena, graph and context."""
    found = steady_files(symdnn.Mode(target="cuda"))
    assert "gpu/execution/replay.py" in found
    assert len(found) <= 9, sorted(found)


@pytest.mark.parametrize("view", [lambda s: s.T, lambda s: s.flatten(), lambda s: s[1]])
def test_a_view_of_an_old_value_leaves_new_values_written(cuda, view):
    start = floats(3, 4)

    def build():
        s, t = symdnn.shared(start), symdnn.shared(start + 1)
        return symdnn.function([], view(s), updates=[(s, t * 2), (t, s + 1)]), (s, t)

    (f, ours), (g, theirs) = on_both(build)
    for _ in range(6):  # nothing reads the variables in between
        np.testing.assert_allclose(np.asarray(f()), g(), rtol=1e-5)
    assert_same(ours, theirs)
