"""The parameter cache: values are computed when parameters change, and are right whoever changes
them.
"""

from __future__ import annotations

import copy
import pickle
import threading

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.compile.program.program import Segment
from symdnn.graph.place import HOST
from symdnn.graph.values.storage import Storage, note_writes, writes
from tests.seeded import new_rng


def floats(*shape):
    return new_rng().standard_normal(shape).astype("float32")


def kept_of(f):
    """The nodes that do not run at each call."""
    regions = f.stages.program.regions
    return [n for s in regions if isinstance(s, Segment) and s.kept for n in s.nodes]


def times(f):
    """How often the cached values were computed, by their versions."""
    return [k.state.version for k in f.executor._kept]


class Scaled:
    """``x . (w * exp(s)) + (s + 1)``, with a fresh pair of parameters."""

    def __init__(self, n=6, mode=None, **options):
        self.w = symdnn.shared(floats(n, n), name="w")
        self.s = symdnn.shared(floats(n), name="s")
        self.x = T.fmatrix("x")
        y = T.dot(self.x, self.w * T.exp(self.s)) + (self.s + np.float32(1))
        self.f = symdnn.function([self.x], y, mode=mode, **options)

    def check(self, rows=3):
        x = floats(rows, self.w.get_value().shape[0])
        w, s = self.w.get_value().astype("float64"), self.s.get_value().astype("float64")
        want = x @ (w * np.exp(s)) + s + 1
        np.testing.assert_allclose(self.f(x), want, rtol=1e-4, atol=1e-4)


def test_it_is_computed_once_for_many_calls():
    net = Scaled()
    assert kept_of(net.f)
    seen = set()
    for rows in (3, 3, 3, 5, 5, 3):
        net.check(rows)
        seen.add(tuple(times(net.f)))
    assert len(seen) == 1


def test_set_value_of_one_of_them_shows_at_the_next_call():
    net = Scaled()
    net.check()
    for _ in range(3):
        before = times(net.f)
        net.s.set_value(floats(6))
        net.check()
        after = times(net.f)
        assert after != before
        net.check()
        assert times(net.f) == after


def test_an_update_of_another_function_shows():
    net = Scaled()
    step = symdnn.function([], [], updates=[(net.w, net.w * np.float32(0.5) + net.s)])
    for i in range(6):
        if i % 2:
            step()
        before = times(net.f) if i else None
        net.check()
        assert i == 0 or (times(net.f) != before) == bool(i % 2)


@pytest.mark.cpu
def test_a_borrowed_array_that_is_written_shows_at_each_call():
    net = Scaled()
    net.check()
    mine = net.w.get_value(borrow=True)
    for _ in range(4):
        mine *= np.float32(1.5)
        net.check()
    part = mine[2:]
    del mine
    part[...] = 3
    net.check()
    del part
    net.check()
    done = times(net.f)
    net.check()
    assert times(net.f) == done, "nobody has it any more"


@pytest.mark.cpu
def test_an_array_that_was_given_with_borrow_shows():
    w = floats(4, 4)
    shared = symdnn.shared(w, borrow=True)
    x = T.fmatrix("x")
    f = symdnn.function([x], T.dot(x, T.tanh(shared) * 2))
    a = floats(2, 4)
    for _ in range(3):
        np.testing.assert_allclose(f(a), a @ (np.tanh(w) * 2), rtol=1e-4, atol=1e-5)
        w += 1


@pytest.mark.cpu
def test_data_of_a_container_shows():
    net = Scaled()
    net.check()
    net.w.container.data = floats(6, 6)
    net.check()
    net.w.container.data[0] = 7
    net.check()


def test_another_shape_gives_another_plan():
    net = Scaled()
    for n in (6, 9, 6, 2):
        net.w.set_value(floats(n, n))
        net.s.set_value(floats(n))
        for _ in range(3):
            net.check()


def test_a_function_that_updates_the_parameter_computes_it_at_each_call():
    w, x = symdnn.shared(floats(3, 3)), T.fmatrix("x")
    y = T.dot(x, T.exp(w)).sum()
    step = symdnn.function([x], y, updates=[(w, w - np.float32(0.01) * T.grad(y, w))])
    assert not kept_of(step)
    a = floats(2, 3)
    for _ in range(3):
        want = (a @ np.exp(w.get_value())).sum()
        np.testing.assert_allclose(step(a), want, rtol=1e-4, atol=1e-3)


def test_training_and_testing_in_turn():
    net = Scaled()
    loss = (T.dot(net.x, net.w * T.exp(net.s)) ** 2).mean()
    grads = T.grad(loss, [net.w, net.s])
    pairs = [(p, p - np.float32(0.05) * g) for p, g in zip([net.w, net.s], grads, strict=True)]
    step = symdnn.function([net.x], loss, updates=pairs)
    for i in range(12):
        step(floats(4, 6))
        if i % 3:
            net.check()
            net.check()


def test_a_failing_update_leaves_what_is_kept_right():
    net = Scaled()
    i = T.lscalar("i")
    step = symdnn.function([i], [], updates=[(net.w, net.w + net.w[i])])
    net.check()

    def fail():
        step(77)
        net.w.get_value()  # a GPU says so where its results are read

    with pytest.raises(IndexError):
        fail()
    net.check()


@pytest.mark.cpu
def test_what_depends_on_parameters_alone_is_left_as_it_is():
    w = symdnn.shared(floats(5, 5))
    f = symdnn.function([], T.exp(w).sum(axis=0))
    assert not kept_of(f)
    assert not kept_of(symdnn.function([], T.nnet.softmax(w)))


def test_a_value_that_is_kept_and_a_result_is_the_callers_own():
    w, x = symdnn.shared(floats(4)), T.fvector("x")
    scaled = T.exp(w) * 2
    f = symdnn.function([x], [x * x[0] + T.cumsum(scaled), T.cumsum(x) + scaled, scaled])
    a = floats(4)
    first = f(a)[2]
    want = np.exp(w.get_value()) * 2
    first[...] = -1
    np.testing.assert_allclose(f(a)[2], want, rtol=1e-5)


def test_views_of_parameters_are_no_work():
    w, x = symdnn.shared(floats(4, 6)), T.fmatrix("x")
    f = symdnn.function([x], T.dot(x, w.T) + w.reshape((24,))[:4])
    assert not kept_of(f)


def test_parts_of_parameters_are_joined_once():
    """Slices never fail, and an int within a known size neither."""
    w, x = symdnn.shared(floats(2, 4, 3), shape=(2, 4, 3)), T.fmatrix("x")
    whole = T.concatenate([w[1, 2:], w[0, :2]])
    f = symdnn.function([x], T.dot(x, whole))
    assert kept_of(f)
    a, now = floats(5, 4), w.get_value()
    np.testing.assert_allclose(f(a), a @ np.concatenate([now[1, 2:], now[0, :2]]), rtol=1e-5)


def test_an_index_that_may_be_out_of_range_is_read_at_each_call():
    w, x = symdnn.shared(floats(2, 3)), T.fvector("x")
    f = symdnn.function([x], T.dot(x, T.concatenate([w[1], w[0]])))
    assert not kept_of(f)


def test_a_lazy_branch_is_not_computed_before():
    from symdnn.ops.control.control import ifelse

    w, x, c = symdnn.shared(floats(3)), T.fvector("x"), T.lscalar("c")
    f = symdnn.function([x, c], ifelse(T.eq(c, 0), x * T.cumsum(T.exp(w)), x))
    assert not kept_of(f)


def test_random_numbers_are_drawn_at_each_call():
    from symdnn.ops.random.random_stream import RandomStreams

    x = T.fvector("x")
    f = symdnn.function([x], x + RandomStreams(3).normal((4,)))
    assert not kept_of(f)
    assert (f(np.zeros(4, "float32")) != f(np.zeros(4, "float32"))).any()


def test_the_flag_and_modes_that_look_inside_switch_it_off():
    with symdnn.config.change_flags(keep_prepared=False):
        assert not kept_of(Scaled().f)
    for mode in ("DebugMode", "NanGuardMode"):
        net = Scaled(mode=mode)
        assert not kept_of(net.f)
        net.check()


def test_reports_tell_of_it():
    net = Scaled()
    net.check()
    memory = net.f.memory_report()
    assert memory.kept == 4 * (36 + 6)
    assert f"kept of what they give    {memory.kept} bytes" in str(memory)
    rows = [r for r in net.f.lowering_report().rows if "parameter has changed" in r.why]
    assert {r.node for r in rows} == {n for n in kept_of(net.f) if not n.op.views}
    assert "run when their inputs have changed" in str(net.f.stages.program)
    with symdnn.config.change_flags(keep_prepared=False):
        other = Scaled()
    other.check()
    assert other.f.memory_report().kept == 0


def test_copies_and_pickles_have_their_own():
    net = Scaled()
    net.check()
    other = symdnn.shared(floats(6, 6))
    swapped = net.f.copy(swap={net.w: other})
    deep, back = copy.deepcopy(net.f), pickle.loads(pickle.dumps(net.f))
    old = net.w.get_value()
    net.w.set_value(floats(6, 6))
    net.check()
    x = floats(3, 6)
    s = net.s.get_value()
    for f, w in ((swapped, other.get_value()), (deep, old), (back, old)):
        for _ in range(2):
            np.testing.assert_allclose(f(x), x @ (w * np.exp(s)) + s + 1, rtol=1e-4, atol=1e-4)
    other.set_value(floats(6, 6))
    want = x @ (other.get_value() * np.exp(s)) + s + 1
    np.testing.assert_allclose(swapped(x), want, rtol=1e-4, atol=1e-4)


def test_plans_that_are_dropped_are_made_again():
    with symdnn.config.change_flags(plan_cache_size=1):
        net = Scaled()
        for n in (6, 3, 6, 3):
            net.w.set_value(floats(n, n))
            net.s.set_value(floats(n))
            net.check()
            net.check()
    net.f.free()
    net.check()


def test_a_loop_reads_what_is_kept():
    w, x = symdnn.shared(floats(3, 3)), T.fmatrix("x")
    scaled = T.tanh(w) * np.float32(0.5)
    h, _ = symdnn.scan(
        lambda row, h, m: T.tanh(row + T.dot(h, m)), sequences=x,
        outputs_info=T.zeros((3,), "float32"), non_sequences=scaled,
    )  # fmt: skip
    f = symdnn.function([x], h[-1])
    for _ in range(3):
        a, state, m = floats(5, 3), np.zeros(3), np.tanh(w.get_value()) * 0.5
        for row in a:
            state = np.tanh(row + state @ m)
        np.testing.assert_allclose(f(a), state, rtol=1e-4, atol=1e-5)
        w.set_value(floats(3, 3))


def test_threads_that_set_and_call_end_with_the_last_value():
    net = Scaled()
    stop = threading.Event()

    def sets():
        while not stop.is_set():
            net.s.set_value(floats(6))

    def calls():
        for _ in range(200):
            net.f(floats(3, 6))

    writer, reader = threading.Thread(target=sets), threading.Thread(target=calls)
    writer.start()
    reader.start()
    reader.join()
    stop.set()
    writer.join()
    net.check()


# -- versions of storages --------------------------------------------------------------------------


def test_a_counter_counts_as_a_write_of_all_that_it_stands_for():
    counter = [0]
    storages = [Storage(np.zeros(2)) for _ in range(3)]
    for s in storages[:2]:
        s.counts(counter)
        s.counts(counter)
    before, was = [s.version for s in storages], writes()
    note_writes(counter)
    after = [s.version for s in storages]
    assert [a != b for a, b in zip(before, after, strict=True)] == [True, True, False]
    assert writes() > was
    assert all(a is not None for a in after)


def test_writes_grow_with_every_value_and_loan():
    s = Storage(np.zeros(2))
    seen = [writes()]
    for change in (
        lambda: s.set(np.ones(2)), lambda: s.set(np.ones(3)), lambda: s.written(HOST),
        lambda: s.get(borrow=True), lambda: Storage(np.zeros(1)),
    ):  # fmt: skip
        change()
        seen.append(writes())
    assert sorted(set(seen)) == seen
    s.get()
    assert writes() == seen[-1]


@pytest.mark.parametrize("other", ["result", "filled", "sorted", "summed"])
def test_a_node_with_a_result_that_is_not_kept(other):
    """One node makes two values of parameters: one that an input meets, and one made in
    each call.
    """
    s, x = symdnn.shared(floats(6), name="s"), T.fmatrix("x")
    base = T.exp(s) + np.float32(1)
    inverse = np.float32(1) / base
    more = {
        "result": lambda: inverse,
        "filled": lambda: T.alloc(inverse.sum(), 3),
        "sorted": lambda: T.sort(inverse),
        "summed": lambda: T.cumsum(inverse) * x.sum(),
    }[other]()
    outputs = [T.dot(x, base), more, (x * base * inverse).sum(0)]
    f = symdnn.function([x], outputs)
    for _ in range(3):
        a = floats(4, 6)
        want = s.get_value().astype("float64")
        want = np.exp(want) + 1
        y, other_value, ones = f(a)
        np.testing.assert_allclose(y, a @ want, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(ones, a.sum(0), rtol=1e-4, atol=1e-4)
        wanted = {
            "result": 1 / want, "filled": np.full(3, (1 / want).sum()), "sorted": np.sort(1 / want),
            "summed": np.cumsum(1 / want) * a.sum(),
        }[other]  # fmt: skip
        np.testing.assert_allclose(other_value, wanted, rtol=1e-3, atol=1e-4)
        s.set_value(floats(6))


def test_labels_that_are_shared_may_be_left_out():
    """Cross-entropy's labels and weights come from one node, which reads no input."""
    labels = symdnn.shared(np.array([1, -100, 3, 0]), name="labels")
    w, x = symdnn.shared(floats(5, 4), name="w"), T.tensor("float32", (4, 5), name="x")
    loss = symdnn.nn.functional.cross_entropy(T.dot(x, w), labels)
    step = symdnn.function([x], loss, updates=symdnn.nn.optim.sgd(loss, [w], 0.1))
    a = floats(4, 5)
    for _ in range(3):
        scores = a.astype("float64") @ w.get_value()
        logs = scores - np.log(np.exp(scores).sum(1, keepdims=True))
        want = -np.mean([logs[i, k] for i, k in enumerate(labels.get_value()) if k >= 0])
        np.testing.assert_allclose(step(a), want, rtol=1e-5)


# -- the CPU's own layouts -------------------------------------------------------------------------


def test_onednns_layout_follows_what_is_kept():
    """Kernels that are computed of parameters are reordered for oneDNN when they change only."""
    w, s, x = symdnn.shared(floats(16, 8, 3, 3)), symdnn.shared(floats(16)), T.ftensor4("x")
    scaled = w * T.exp(s).dimshuffle(0, "x", "x", "x")
    f = symdnn.function([x], T.nnet.conv2d(x, scaled, border_mode="half"))
    with symdnn.config.change_flags(keep_prepared=False, optimizer="None"):
        plain = symdnn.function([x], T.nnet.conv2d(x, scaled, border_mode="half"))
    assert kept_of(f)
    for call in range(12):
        if call % 4 == 3:
            (w if call % 8 == 3 else s).set_value(
                floats(*(16, 8, 3, 3)[: 4 if call % 8 == 3 else 1])
            )
        a = floats(2, 8, 6, 6)
        np.testing.assert_allclose(f(a), plain(a), rtol=1e-3, atol=1e-3)
