"""Captured plans on an emulated device: what a call enqueues, and that replays are right."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.compile.modes.monitor import MonitorMode
from symdnn.errors import DimensionMismatch, IndexOutOfRange
from symdnn.gpu.execution.plan import CudaPlan
from symdnn.ops.elementwise.arithmetic import Cast
from symdnn.ops.nn.channels_last import Reorder
from tests.gpu.fake_device import STEP_SECONDS
from tests.seeded import new_rng

CUDA = symdnn.Mode(target="cuda:sm_90").excluding("cudnn")
CPU = symdnn.Mode(target="cpu")


def rng():
    return new_rng()


def floats(*shape):
    return rng().standard_normal(shape).astype("float32")


def training(mode, start):
    """A step that picks rows, checks labels, and updates by momentum: (function, variables)."""
    rows, weights = (symdnn.shared(v) for v in start)
    x, i, t = T.fmatrix("x"), T.lvector("i"), T.lvector("t")
    scores = (x + rows[i]) * weights
    loss = T.nnet.categorical_crossentropy(T.nnet.softmax(scores), t).sum()
    updates, every = [], [rows, weights]
    for p in (rows, weights):
        v = symdnn.shared(np.zeros_like(p.get_value()))
        new = np.float32(0.9) * v + T.grad(loss, p)
        updates += [(v, new), (p, p - np.float32(0.1) * new)]
        every.append(v)
    return symdnn.function([x, i, t], loss, updates=updates, mode=mode), every


def pair():
    start = floats(6, 4) / 4, floats(4) / 4
    return training(CUDA, start), training(CPU, start)


def batch(n=5):
    return floats(n, 4), rng().integers(0, 6, n), rng().integers(0, 4, n)


def assert_same(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a.get_value(), b.get_value(), rtol=2e-4, atol=2e-5)


def test_a_step_is_one_graph_from_its_second_call(fake_device):
    (f, ps), (g, qs) = pair()
    for call in range(5):
        args = batch()
        np.testing.assert_allclose(f(*args), g(*args), rtol=2e-4)
        if call > 0:
            assert fake_device.take_log() == ["graph", "wait"]
        fake_device.take_log()
    assert_same(ps, qs)
    (plan,) = f.plans()
    assert plan.bound.not_captured == ""


def test_shapes_that_alternate_keep_their_graphs(fake_device):
    (f, ps), (g, qs) = pair()
    for call in range(12):
        args = batch((5, 2, 7)[call % 3])
        fake_device.take_log()
        np.testing.assert_allclose(f(*args), g(*args), rtol=2e-4)
        if call >= 6:
            assert fake_device.take_log() == ["graph", "wait"]
    assert_same(ps, qs)
    assert len(f.plans()) == 3


def test_values_set_from_outside_are_seen(fake_device):
    (f, ps), (g, qs) = pair()
    for call in range(9):
        args = batch()
        if call in (3, 4, 7):
            value = floats(6, 4)
            for v in (ps[0], qs[0]):
                v.set_value(value, borrow=call == 7)
        if call == 5:
            for v in (ps[1], qs[1]):
                v.set_value(v.get_value() * 2)
        np.testing.assert_allclose(f(*args), g(*args), rtol=2e-4)
    assert_same(ps, qs)


def test_a_new_shape_makes_a_new_plan_and_leaves_the_old_one(fake_device):
    w = symdnn.shared(floats(3))
    f = symdnn.function([], updates=[(w, w * 2)], mode=CUDA)
    for shape in ((3,), (5,), (3,)):
        value = floats(*shape)
        w.set_value(value)
        for _ in range(3):
            f()
        np.testing.assert_allclose(w.get_value(), value * 8, rtol=1e-6)
    assert len(f.plans()) == 2


def test_another_function_may_run_in_between(fake_device):
    (f, ps), (g, qs) = pair()
    x = T.fvector("x")
    other = symdnn.function([x], T.exp(x - x).sum(), mode=CUDA)
    double = symdnn.function([], updates=[(ps[0], ps[0] * 2)], mode=CUDA)
    on_cpu = symdnn.function([], updates=[(qs[0], qs[0] * 2)], mode=CPU)
    for call in range(6):
        args = batch()
        np.testing.assert_allclose(f(*args), g(*args), rtol=2e-4)
        assert other(floats(100 * call + 1)) == 100 * call + 1
        double()
        on_cpu()
    assert_same(ps, qs)


def test_a_function_for_the_cpu_may_share_the_variables(fake_device):
    w = symdnn.shared(floats(4))
    value = w.get_value()
    on_gpu = symdnn.function([], updates=[(w, w + 1)], mode=CUDA)
    on_cpu = symdnn.function([], updates=[(w, w * 2)], mode=CPU)
    for _ in range(5):
        on_gpu()
        on_cpu()
        value = (value + 1) * 2
    np.testing.assert_allclose(w.get_value(), value, rtol=1e-5)


@pytest.mark.parametrize("calls_before", [0, 1, 3])
def test_a_call_that_fails_changes_nothing(fake_device, calls_before):
    (f, ps), (g, qs) = pair()
    for _ in range(calls_before):
        args = batch()
        f(*args)
        g(*args)
    before = [p.get_value() for p in ps]
    x, i, t = batch()
    for bad in ((x, np.full(5, 6), t), (x, i, np.full(5, 4))):
        with pytest.raises(IndexOutOfRange, match="test_capture.py"):
            f(*bad)
        for p, value in zip(ps, before, strict=True):
            np.testing.assert_array_equal(p.get_value(), value)
    for _ in range(3):
        args = batch()
        np.testing.assert_allclose(f(*args), g(*args), rtol=2e-4)
    assert_same(ps, qs)


@pytest.mark.parametrize("calls_before", [1, 3])
def test_without_results_the_error_is_raised_later_and_nothing_was_changed(
    fake_device, calls_before
):
    rows, count = symdnn.shared(floats(6, 4)), symdnn.shared(np.float32(0))
    i = T.lvector("i")
    f = symdnn.function(
        [i], updates=[(rows, rows - rows[i].sum(axis=0)), (count, count + 1)], mode=CUDA
    )
    for _ in range(calls_before):
        f(np.array([1, 2]))
    before = rows.get_value()
    f(np.array([1, 9]))
    with pytest.raises(IndexOutOfRange, match="9"):
        f(np.array([1, 2]))
    np.testing.assert_array_equal(rows.get_value(), before)
    f(np.array([1, 9]))
    with pytest.raises(IndexOutOfRange, match="9"):
        rows.get_value()
    np.testing.assert_array_equal(rows.get_value(), before)
    assert count.get_value() == calls_before


def test_updates_that_swap_read_old_values(fake_device):
    a, b = symdnn.shared(floats(4)), symdnn.shared(floats(4))
    x, y = a.get_value(), b.get_value()
    f = symdnn.function([], updates=[(a, b), (b, a)], mode=CUDA)
    g = symdnn.function([], updates=[(a, b + a), (b, b - a)], mode=CUDA)
    h = symdnn.function([], updates=[(a, a + b.sum()), (b, b * a.sum())], mode=CUDA)
    for _ in range(4):
        f()
        x, y = y, x
        g()
        x, y = y + x, y - x
        h()
        x, y = x + y.sum(), y * x.sum()
        np.testing.assert_allclose(a.get_value(), x, rtol=1e-4)
        np.testing.assert_allclose(b.get_value(), y, rtol=1e-4)


def test_many_parameters_are_updated_by_one_kernel(fake_device):
    ps = [symdnn.shared(floats(*s)) for s in ((3, 4), (5,), (4097,), (2,), (2, 1, 3))]
    vs = [symdnn.shared(np.zeros_like(p.get_value())) for p in ps]
    want = [(p.get_value(), v.get_value()) for p, v in zip(ps, vs, strict=True)]
    lr = symdnn.shared(np.float32(0.1))
    updates = []
    for p, v in zip(ps, vs, strict=True):
        new = np.float32(0.9) * v + p
        updates += [(v, new), (p, p - lr * new)]
    f = symdnn.function([], updates=updates, mode=CUDA)
    for call in range(4):
        fake_device.take_log()
        f()
        want = [
            (p - np.float32(0.1) * (np.float32(0.9) * v + p), np.float32(0.9) * v + p)
            for p, v in want
        ]
        if call == 0:
            assert fake_device.take_log().count("batched") == 1
    for p, v, (x, y) in zip(ps, vs, want, strict=True):
        np.testing.assert_allclose(p.get_value(), x, rtol=1e-5)
        np.testing.assert_allclose(v.get_value(), y, rtol=1e-5)
    (plan,) = f.plans()
    assert plan.bound.replay.nodes == 1


def test_kernels_that_read_what_others_write_come_after_them(fake_device):
    """Each of the second kind reads the old value of one of the first."""
    ps = [symdnn.shared(floats(n)) for n in (3, 5, 8)]
    qs = [symdnn.shared(floats(n, 1)) for n in (3, 5, 8)]
    updates = [(p, p * 2) for p in ps]
    updates += [(q, q + p[:, None]) for p, q in zip(ps, qs, strict=True)]
    f = symdnn.function([], updates=updates, mode=CUDA)
    want = [(p.get_value(), q.get_value()) for p, q in zip(ps, qs, strict=True)]
    for _ in range(3):
        f()
        want = [(p * 2, q + p[:, None]) for p, q in want]
    for p, q, (x, y) in zip(ps, qs, want, strict=True):
        np.testing.assert_allclose(p.get_value(), x, rtol=1e-6)
        np.testing.assert_allclose(q.get_value(), y, rtol=1e-6)


def test_inputs_on_the_device_may_come_from_anywhere(fake_device):
    x = T.fvector("x")
    w = symdnn.shared(floats(7))
    f = symdnn.function([x], (x * w).sum(), mode=CUDA)
    ring = [floats(7) for _ in range(8)]
    there = [fake_device.array(a) for a in ring]
    for call in range(30):
        fake_device.take_log()
        got = f(there[call % 8])
        np.testing.assert_allclose(got, (ring[call % 8] * w.get_value()).sum(), rtol=2e-5)
        log = [name for name in fake_device.take_log() if name != "copy out"]
        if call >= 2:
            assert log in (["graph", "wait"], ["copy", "graph", "wait"])
        if call >= 16:
            assert log == ["graph", "wait"]
    np.testing.assert_allclose(f(ring[0]), (ring[0] * w.get_value()).sum(), rtol=2e-5)


def test_inputs_on_the_device_are_read_where_they_are_and_never_written(fake_device):
    x = T.fmatrix("x")
    y = T.tanh(x.T) * 2 + x.T[::-1]
    outputs = [y, y.sum(axis=0), T.exp(x).sum()]
    f = symdnn.function([x], outputs, mode=CUDA)
    g = symdnn.function([x], outputs, mode=CPU)
    a = floats(4, 6)
    there = fake_device.array(a)
    for _ in range(4):
        for got, want in zip(f(there), g(a), strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6)
        np.testing.assert_array_equal(fake_device.memory.download(there), a)
    (graph,) = f.plans()[0].bound.replay.graphs.values()
    assert "copy" not in graph.names


def test_inputs_that_pass_to_later_segments(fake_device):
    """What one segment copies to the device, another reads; the CPU has its part in between."""
    x, y = T.fmatrix("x"), T.fmatrix("y")
    w = symdnn.shared(floats(3))
    chosen = symdnn.ifelse(T.gt(x.sum(), y.sum()), x * w, y + w)
    rows = x[T.nonzero(y[:, 0] > 0)[0]]
    outputs, updates = [chosen, rows * 2, x + y], [(w, w + x.sum(axis=0))]
    other = symdnn.shared(w.get_value())
    f = symdnn.function([x, y], outputs, updates=updates, mode=CUDA)
    g = symdnn.function([x, y], outputs, givens={w: other}, mode=CPU)
    for call in range(8):
        a, b = floats(4, 3), floats(4, 3)
        args = (a, b) if call < 4 else (fake_device.array(a), fake_device.array(b))
        for _ in range(2):
            for got, want in zip(f(*args), g(a, b), strict=True):
                np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5)
            other.set_value(other.get_value() + a.sum(axis=0))
    np.testing.assert_allclose(w.get_value(), other.get_value(), rtol=2e-4, atol=2e-5)


def test_segments_on_the_cpu_hold_it(fake_device, monkeypatch):
    """Also when no function for the CPU has run before."""
    from symdnn.cpu.execution.runtime import runtime

    monkeypatch.setattr(runtime(), "arenas", [])
    x = T.fmatrix("x")
    f = symdnn.function([x], T.exp(T.unique(x, axis=0)).sum(), mode=CUDA)
    assert {str(s.place) for s in f.stages.program.segments()} == {"cpu", "cuda0"}
    for _ in range(3):
        a = floats(4, 5)
        np.testing.assert_allclose(f(a), np.exp(a).sum(), rtol=1e-5)
    assert runtime().depth == -1


def test_inputs_on_the_device_that_start_anywhere(fake_device):
    from symdnn.gpu.device.array import RawArray

    x = T.fvector("x")
    f = symdnn.function([x], x * 2, mode=CUDA)
    a = floats(8)
    there = fake_device.array(a)
    part = RawArray(there.ptr + 4, (5,), "float32", (4,), there)
    for _ in range(4):
        np.testing.assert_array_equal(f(part), a[1:6] * 2)


def test_inputs_on_the_device_with_gaps(fake_device):
    x = T.fvector("x")
    f = symdnn.function([x], (x * 2).sum(), mode=CUDA)
    whole = fake_device.array(floats(6, 2))
    host = fake_device.memory.download(whole)
    from symdnn.gpu.device.array import RawArray

    column = RawArray(whole.ptr, (6,), "float32", (8,), whole)
    row = RawArray(whole.ptr, (6,), "float32", (4,), whole)
    for _ in range(3):
        np.testing.assert_allclose(f(column), host[:, 0].sum() * 2, rtol=1e-5)
        np.testing.assert_allclose(f(row), host.reshape(-1)[:6].sum() * 2, rtol=1e-5)


def test_a_minibatch_is_a_copy_and_a_graph(fake_device):
    data = symdnn.shared(floats(12, 3))
    x, i = T.fmatrix("x"), T.lscalar("i")
    f = symdnn.function([i], (x * 2).sum(), givens={x: data[i * 4 : (i + 1) * 4]}, mode=CUDA)
    for call in range(9):
        k = call % 3
        fake_device.take_log()
        want = data.get_value()[4 * k : 4 * k + 4].sum() * 2
        fake_device.take_log()
        np.testing.assert_allclose(f(k), want, rtol=2e-5)
        if call > 1:
            assert fake_device.take_log() == ["copy", "graph", "wait"]
    assert len(f.plans()) == 1


def test_lent_results_hold_until_the_next_call(fake_device):
    x = T.fvector("x")
    f = symdnn.function([x], [symdnn.Out(x * 2, borrow=True), x + 1], mode=CUDA)
    for _ in range(4):
        a = floats(3)
        lent, fresh = f(a)
        np.testing.assert_array_equal(fake_device.memory.download(lent), a * 2)
        np.testing.assert_array_equal(fresh, a + 1)


def test_results_that_stay_are_in_memory_of_their_own(fake_device):
    x = T.fvector("x")
    f = symdnn.function([x], [symdnn.Out(x * 2, stay=True), x + 1], mode=CUDA)
    values = [floats(3) for _ in range(5)]
    results = [f(v)[0] for v in values]
    for v, r in zip(values, results, strict=True):
        np.testing.assert_array_equal(fake_device.memory.download(r), v * 2)
    assert len({r.ptr for r in results}) == 5


def test_results_are_fresh(fake_device):
    x = T.fvector("x")
    f = symdnn.function([x], x * 2, mode=CUDA)
    values = [floats(3) for _ in range(4)]
    results = [f(v) for v in values]
    for v, r in zip(values, results, strict=True):
        np.testing.assert_array_equal(r, v * 2)


def test_a_failed_capture_is_reported_and_the_plan_runs(fake_device):
    (f, ps), (g, qs) = pair()
    fake_device.context.refuse_capture = "the driver says no"
    for _ in range(3):
        args = batch()
        np.testing.assert_allclose(f(*args), g(*args), rtol=2e-4)
    assert_same(ps, qs)
    (plan,) = f.plans()
    assert plan.bound.not_captured == "the driver says no"
    assert "not captured: the driver says no" in str(f.lowering_report())


def test_a_capture_that_failed_once_is_tried_again(fake_device):
    (f, ps), (g, qs) = pair()
    for refused in ("", "busy", "", ""):
        fake_device.context.refuse_capture = refused
        args = batch()
        np.testing.assert_allclose(f(*args), g(*args), rtol=2e-4)
    assert_same(ps, qs)
    assert "plan 0: captured" in str(f.lowering_report())


def test_the_report_says_what_is_captured(fake_device):
    x = T.fvector("x")
    f = symdnn.function([x], x * 2, mode=CUDA)
    f(floats(3))
    assert "plan 0: not captured yet" in str(f.lowering_report())
    f(floats(3))
    assert "plan 0: captured" in str(f.lowering_report())


def test_gpu_graph_off(fake_device):
    with symdnn.config.change_flags(**{"gpu.graph": "off"}):
        (f, ps), (g, qs) = pair()
        for _ in range(3):
            args = batch()
            np.testing.assert_allclose(f(*args), g(*args), rtol=2e-4)
    assert_same(ps, qs)
    assert f.plans()[0].bound.not_captured == "gpu.graph=off"


def test_graphs_and_nodes_go_with_their_plans(fake_device):
    (f, _), _ = pair()
    gc.collect()
    before = len(fake_device._nodes)
    for _ in range(3):
        f(*batch())
    assert len(fake_device._nodes) > before
    import weakref

    graph = weakref.ref(next(iter(f.plans()[0].bound.replay.graphs.values())))
    f.free()
    gc.collect()
    assert graph() is None
    assert len(fake_device._nodes) == before
    f(*batch())


def test_a_dropped_plan_is_let_go(fake_device):
    x = T.fvector("x")
    f = symdnn.function([x], x * 2, mode=CUDA)
    with symdnn.config.change_flags(plan_cache_size=2):
        for n in (3, 3, 3, 4, 4, 4, 5, 5, 5):
            a = floats(n)
            np.testing.assert_array_equal(f(a), a * 2)
        assert len(f.plans()) == 2
        assert len(f._fast.entries) <= 2


def test_watched_calls_write_nothing_before_they_succeed(fake_device):
    w = symdnn.shared(floats(4))
    x = T.fvector("x")
    seen, broken = [], []

    def look(i, node, moment):
        seen.append(node)
        if broken and "HostFromGpu" not in str(node.op):
            raise RuntimeError("stop")

    mode = MonitorMode(post_func=look, target=CUDA.target)
    f = symdnn.function([x], updates=[(w, w + x)], mode=mode)
    value = w.get_value()
    a = floats(4)
    for _ in range(3):
        f(a)
        value = value + a
        np.testing.assert_allclose(w.get_value(), value, rtol=1e-6)
    assert seen

    broken.append(True)
    with pytest.raises(RuntimeError, match="stop"):
        f(a)
    np.testing.assert_allclose(w.get_value(), value, rtol=1e-6)


def test_trusted_arguments(fake_device):
    x, y = T.fvector("x"), T.fscalar("y")
    f = symdnn.function([x, y], x * y, mode=CUDA)
    f.trust_input = True
    for _ in range(4):
        a, b = floats(3), np.float32(rng().standard_normal())
        np.testing.assert_array_equal(f(a, b), a * b)


def test_arguments_that_need_conversion_go_the_long_way(fake_device):
    x = T.fvector("x")
    f = symdnn.function([x], x * 2, mode=CUDA, allow_input_downcast=True)
    for a in (floats(3), floats(3), [1, 2, 3], floats(3).astype("float64"), floats(6)[::2]):
        np.testing.assert_allclose(f(a), np.asarray(a, "float32") * 2)
    with pytest.raises(DimensionMismatch):
        f(floats(2, 2))
    with pytest.raises(TypeError):
        f()


def test_new_values_that_are_views_are_copied_once(fake_device):
    """As running statistics are: a row of sums, seen as a vector; and one that is transposed."""
    x = T.fmatrix("x")
    mean, other = symdnn.shared(floats(2)), symdnn.shared(floats(2, 3))
    sums = T.exp(x).sum(axis=0, keepdims=True)
    updates = [(mean, sums.dimshuffle(1)), (other, (x * sums).T)]
    f = symdnn.function([x], [], updates=updates, mode=CUDA)
    for _ in range(4):
        a = floats(3, 2)
        f(a)
        sums = np.exp(a).sum(0)
        np.testing.assert_allclose(mean.get_value(), sums, rtol=1e-5)
        np.testing.assert_allclose(other.get_value(), (a * sums).T, rtol=1e-5)
    (plan,) = f.plans()
    views = [n for n in plan.specialised.segment.nodes if n.op.views]
    assert len(views) == 2
    assert plan.memory.aliases.issuperset(views)
    assert set(plan.memory.copied.values()) == {mean, other}


def test_variables_that_swap_views_of_each_other(fake_device):
    a, b = symdnn.shared(floats(3, 3)), symdnn.shared(floats(3, 3))
    f = symdnn.function([], [], updates=[(a, b.T), (b, a.T)], mode=CUDA)
    for _ in range(4):
        old = a.get_value(), b.get_value()
        f()
        np.testing.assert_array_equal(a.get_value(), old[1].T)
        np.testing.assert_array_equal(b.get_value(), old[0].T)


@pytest.mark.parametrize("size", [1, 2])
def test_another_order_of_dimensions_of_one_is_a_view(fake_device, size):
    """Of a kernel of 1 x 1, which its own update must not change before all have read it."""
    w, x = symdnn.shared(floats(3, 2, size, size)), T.ftensor4("x")
    last = Reorder((0, 2, 3, 1))(w)
    y = (x * last).sum(axis=3, keepdims=True)
    late = (T.exp(y) * last).sum()
    f = symdnn.function([x], late, updates=[(w, w * np.float32(0.5))], mode=CUDA)
    for _ in range(4):
        a, old = floats(3, size, size, 2), w.get_value().transpose(0, 2, 3, 1)
        terms = np.exp((a * old).sum(3, keepdims=True)) * old
        most = np.abs(terms).sum()
        np.testing.assert_allclose(f(a), terms.sum(), rtol=1e-4, atol=1e-5 * most)
        np.testing.assert_array_equal(w.get_value().transpose(0, 2, 3, 1), old * np.float32(0.5))
    (plan,) = f.plans()
    (node,) = [n for n in plan.specialised.segment.nodes if isinstance(n.op, Reorder)]
    assert (node in plan.memory.aliases) == (size == 1)


def test_parameters_are_rounded_together(fake_device):
    """All contiguous ones, in one launch."""
    shapes = (5,), (3, 4), (2, 3, 2), (300,)
    ps = [symdnn.shared(floats(*s)) for s in shapes]
    turned = symdnn.shared(floats(4, 6))
    x = T.fvector("x")
    h = [p.astype("float16") for p in (*ps, turned.T)]
    total = sum((v.astype("float32").sum(axis=None) * x).sum() for v in h)
    news = [(p, p * np.float32(0.5)) for p in (*ps, turned)]
    f = symdnn.function([x], [total, *h], updates=news, mode=CUDA.excluding("fusion"))
    for _ in range(4):
        a, old = floats(3), [p.get_value() for p in (*ps, turned)]
        want = [v.astype("float16") for v in (*old[:-1], old[-1].T)]
        got = f(a)
        total = sum(v.astype("f8").sum() for v in want) * a.sum(dtype="f8")
        np.testing.assert_allclose(got[0], total, rtol=1e-3, atol=1e-2)
        for g, w in zip(got[1:], want, strict=True):
            np.testing.assert_array_equal(g, w)
        for p, o in zip((*ps, turned), old, strict=True):
            np.testing.assert_array_equal(p.get_value(), o * np.float32(0.5))
    (plan,) = f.plans()
    casts = [s for s in plan.bound.steps.middle if s.node.op == Cast("float16")]
    assert len(casts) == 1


def test_a_profile_has_the_devices_times_and_copies_only_results(fake_device):
    x, w = T.fmatrix("x"), symdnn.shared(floats(6))
    loss = T.tanh(x * w)[::2]
    f = symdnn.function([x], loss, profile=True, mode=CUDA)
    v = floats(5, 6)
    f(v)
    fake_device.take_log()
    out = f(v)
    assert fake_device.take_log() == ["copy in", "elementwise", "copy out", "wait"]
    np.testing.assert_allclose(out, np.tanh(v * w.get_value())[::2], rtol=1e-5)
    nodes = f.profile.nodes.values()
    assert nodes
    assert {n.seconds for n in nodes} == {2 * STEP_SECONDS}
    assert all(n.bytes_moved > 0 for n in nodes)


def test_a_plan_that_is_captured_at_once_runs_without_a_trace_before(fake_device, monkeypatch):
    """As those of ranks with collectives that others have captured."""
    monkeypatch.setattr(CudaPlan, "at_once", True)
    (f, ps), (g, qs) = pair()
    for n in (5, 2, 2, 5, 3):
        args, new = batch(n), n not in [p.signature[0][0] for p in f.plans()]
        fake_device.take_log()
        np.testing.assert_allclose(f(*args), g(*args), rtol=2e-4)
        log = fake_device.take_log()
        assert log[-2:] == ["graph", "wait"]
        assert (len(log) > 2) == new  # kernels run alone first
    assert_same(ps, qs)
    before = [p.get_value() for p in ps]
    x, i, t = batch(7)
    with pytest.raises(IndexOutOfRange):
        f(x, i, t + 4)
    for p, value in zip(ps, before):
        np.testing.assert_array_equal(p.get_value(), value)
    np.testing.assert_allclose(f(x, i, t), g(x, i, t), rtol=2e-4)
    assert_same(ps, qs)
    assert all(p.bound.capture_state.startswith("captured") for p in f.plans())


def test_a_capture_at_once_that_fails_is_run_step_by_step(fake_device, monkeypatch):
    monkeypatch.setattr(CudaPlan, "at_once", True)
    monkeypatch.setattr(fake_device.context, "refuse_capture", "no graph now")
    (f, ps), (g, qs) = pair()
    for _ in range(3):
        args = batch()
        np.testing.assert_allclose(f(*args), g(*args), rtol=2e-4)
    assert_same(ps, qs)
    assert "no graph now" in f.plans()[0].bound.capture_state
