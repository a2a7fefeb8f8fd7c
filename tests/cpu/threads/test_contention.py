"""Fewer threads while other processes want the processors: when that is, and that it is right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf
from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.config import config
from symdnn.cpu.compiler import jit
from symdnn.cpu.onednn import library as libdnnl
from symdnn.cpu.threads import contention, thread_pools, threads
from symdnn.cpu.threads.contention import ContentionMonitor

CPU = symdnn.Mode(target="cpu")


class Machine:
    """A fake machine: a clock, its processors, its threads, and Linux's counters of them.

    ``alone`` is how many of our threads run without waiting; any further one waits half of the
    time.
    """

    def __init__(self) -> None:
        self.now, self.processors, self.alone = 100.0, 2, 2
        self.ready, self.counts = 1, True
        self.ran = self.waited = 0
        self.looks = 0

    def waits(self) -> dict[str, tuple[int, int]]:
        self.looks += 1
        return {"7": (self.ran, self.waited), "8": (10, 0)} if self.counts else {}

    def pass_by(self, monitor: ContentionMonitor, seconds: float, wanted: int = 2) -> list[int]:
        """A call each 5 ms; returns the number of threads of each."""
        found = []
        for _ in range(round(seconds / 0.005)):
            self.now += 0.005
            found.append(monitor.usable(wanted))
            self.ran += 2_500_000
            self.waited += 2_500_000 if found[-1] > self.alone else 1000
        return found


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine()
    monkeypatch.setattr(contention.time, "monotonic", lambda: found.now)
    monkeypatch.setattr(contention, "thread_times", found.waits)
    monkeypatch.setattr(contention, "runnable_threads", lambda: found.ready)
    monkeypatch.setattr(contention, "_processors", lambda: found.processors)
    return found


def test_an_idle_machine_gives_all_threads_and_few_looks(machine: Machine) -> None:
    assert set(machine.pass_by(ContentionMonitor(), 10)) == {2}
    assert machine.looks <= 10 / 0.05 + 2


def test_who_waits_goes_on_alone_until_processors_are_free(machine: Machine) -> None:
    monitor = ContentionMonitor()
    machine.pass_by(monitor, 1)
    machine.alone, machine.ready = 1, 3
    found = machine.pass_by(monitor, 4)
    assert found.count(2) <= 0.06 / 0.005 + 1
    assert found[-1] == 1
    machine.alone, machine.ready = 2, 1
    found = machine.pass_by(monitor, 2)
    assert found.count(1) <= 0.11 / 0.005 + 1
    assert found[-1] == 2


def test_one_busy_process_of_two_processors_is_enough(machine: Machine) -> None:
    monitor = ContentionMonitor()
    machine.alone, machine.ready = 1, 2
    assert machine.pass_by(monitor, 1)[-1] == 1


def test_others_of_low_priority_change_nothing(machine: Machine) -> None:
    machine.ready = 9  # ready to run, and none of our threads waits for them
    assert set(machine.pass_by(ContentionMonitor(), 10)) == {2}


def test_what_seems_free_and_is_not_is_tried_less_and_less(machine: Machine) -> None:
    monitor = ContentionMonitor()
    machine.alone, machine.ready = 1, 0  # not known, or of other processors
    found = machine.pass_by(monitor, 30)
    assert found[: round(2 / 0.005)].count(2) < 80
    assert found[-round(15 / 0.005) :].count(2) < 30


def test_a_long_hold_ends_soon_after_the_others_have_gone(machine: Machine) -> None:
    monitor = ContentionMonitor()
    machine.alone, machine.ready = 1, 1  # others run by fits, and are never seen
    machine.pass_by(monitor, 20)
    machine.ready = 3
    machine.pass_by(monitor, 1)
    machine.alone, machine.ready = 2, 1
    found = machine.pass_by(monitor, 2)
    assert found[0] == 1
    assert found.count(1) <= 0.7 / 0.005
    assert found[-1] == 2


def test_what_others_have_taken_is_tried_again_in_the_end(machine: Machine) -> None:
    monitor = ContentionMonitor()
    machine.pass_by(monitor, 1)
    machine.alone, machine.ready = 1, 3
    machine.pass_by(monitor, 1)
    machine.alone = 2  # they are still there, at a lower priority
    found = machine.pass_by(monitor, 30)
    assert found[0] == 1
    assert found[-1] == 2


def test_of_many_threads_half_stay(machine: Machine) -> None:
    monitor = ContentionMonitor()
    machine.processors = machine.alone = 16
    machine.pass_by(monitor, 1, 16)
    machine.alone, machine.ready = 15, 17
    assert machine.pass_by(monitor, 1, 16)[-1] == 8
    machine.alone, machine.ready = 2, 8 + 14
    assert machine.pass_by(monitor, 1, 16)[-1] == 2
    machine.alone, machine.ready = 16, 2
    assert machine.pass_by(monitor, 1, 16)[-1] == 16


@pytest.mark.parametrize(("ready", "last"), [(3, 1), (2, 2), (0, 2)])
def test_where_waits_are_not_counted_those_ready_to_run_are(
    machine: Machine, ready: int, last: int
) -> None:
    machine.counts, machine.ready = False, ready
    assert machine.pass_by(ContentionMonitor(), 1)[-1] == last


def test_what_cannot_be_read_is_no_contention(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError

    monkeypatch.setattr("builtins.open", refuse)
    assert contention.runnable_threads() == 0
    assert contention.thread_times() == {}
    assert ContentionMonitor().usable(2) == 2


def test_linux_counts_both() -> None:
    found = contention.thread_times()
    assert all(ran >= 0 and waited >= 0 for ran, waited in found.values())
    assert contention.runnable_threads() >= 0


# -- calls ----------------------------------------------------------------------------------------


@pytest.fixture
def contended(monkeypatch: pytest.MonkeyPatch) -> Iterator[ContentionMonitor]:
    """The process's monitor, which measures nothing: the test sets ``free``."""
    monkeypatch.setattr(contention.CONTENTION, "free", inf)
    monkeypatch.setattr(contention.CONTENTION, "next_check", inf)
    monkeypatch.setattr(threads, "_processors", lambda: 2)
    with config.change_flags(**{"openmp.threads": 2}):
        yield contention.CONTENTION


def _normal(rng: np.random.Generator, *shape: int) -> Any:
    return (rng.standard_normal(shape) * 0.1).astype("float32")


def _convolution(rng: np.random.Generator) -> Callable[[], Any]:
    x = T.ftensor4("x")
    y = T.nnet.relu(T.nnet.conv2d(x, symdnn.shared(_normal(rng, 16, 3, 3, 3))))
    f = symdnn.function([x], T.nnet.conv2d(y, symdnn.shared(_normal(rng, 16, 16, 3, 3))), mode=CPU)
    images = _normal(rng, 8, 3, 20, 20)
    return lambda: f(images)


def _scan(rng: np.random.Generator) -> Callable[[], Any]:
    x, w = T.ftensor3("x"), symdnn.shared(_normal(rng, 128, 128))
    states, _ = symdnn.scan(
        lambda step, h: T.tanh(step + T.dot(h, w)), sequences=[x], outputs_info=[T.zeros((64, 128))]
    )
    f = symdnn.function([x], states, mode=CPU)
    values = _normal(rng, 6, 64, 128)
    return lambda: f(values)


def _lstm(rng: np.random.Generator) -> Callable[[], Any]:
    x = T.ftensor3("x")
    out = nn.LSTM(64, 128, 1)(x)
    f = symdnn.function([x], out[0] if isinstance(out, tuple | list) else out, mode=CPU)
    values = _normal(rng, 12, 16, 64)
    return lambda: f(values)


def _product_by_blas(rng: np.random.Generator) -> Callable[[], Any]:
    x = T.dmatrix("x")
    f = symdnn.function([x], T.dot(x, x.T), mode=CPU)
    values = rng.standard_normal((150, 150))
    return lambda: f(values)


def _training(rng: np.random.Generator) -> Callable[[], Any]:
    """A step from the same parameters each time: the loss, and the new parameters."""
    x, labels = T.ftensor4("x"), T.ivector("labels")
    kernels = symdnn.shared(_normal(rng, 16, 16, 3, 3))
    more, w = symdnn.shared(_normal(rng, 16, 16, 5, 5)), symdnn.shared(_normal(rng, 16 * 196, 10))
    start = [p.get_value() for p in (kernels, more, w)]
    h = T.nnet.relu(T.nnet.conv2d(x, kernels))
    h = T.tanh(T.nnet.conv2d(h, more)).flatten(2)
    p = T.nnet.softmax(T.dot(h, w))
    loss = T.nnet.categorical_crossentropy(p, labels).mean()
    made = [kernels, more, w]
    updates = [(v, v - 0.1 * g) for v, g in zip(made, T.grad(loss, made), strict=True)]
    f = symdnn.function([x, labels], loss, updates=updates, mode=CPU)
    images, wanted = _normal(rng, 32, 16, 20, 20), (np.arange(32) % 10).astype("int32")

    def step() -> Any:
        for variable, value in zip(made, start, strict=True):
            variable.set_value(value)
        return np.concatenate(
            [np.ravel(f(images, wanted)), *(np.ravel(v.get_value()) for v in made)]
        )

    return step


@pytest.mark.skipif(bool(jit.problem() or threads.problem() or libdnnl.problem()),
                    reason="a library is missing")  # fmt: skip
@pytest.mark.parametrize(
    "make", [_convolution, _scan, _lstm, _product_by_blas, _training], ids=lambda m: m.__name__[1:]
)
def test_values_are_right_under_contention_and_after_it(
    make: Callable[[Any], Any], contended: ContentionMonitor, rng: np.random.Generator
) -> None:
    call = make(rng)
    wanted = call().copy()
    for free in (1, 1, 1, 2, 1, 2, 2):
        contended.free = free
        np.testing.assert_allclose(call(), wanted, rtol=1e-4, atol=1e-5)
        assert threads.limit() == 0
        assert thread_pools.set_threads() == 2


def _threads_of_libgomp(monkeypatch: pytest.MonkeyPatch, call: Callable[[], Any]) -> list[int]:
    """What libgomp is contended while a call runs."""
    library, seen = threads.openmp(), []

    class Library:
        def omp_set_num_threads(self, count: Any) -> None:
            seen.append(count.value)
            library.omp_set_num_threads(count)

    with monkeypatch.context() as here:
        here.setattr(threads, "openmp", Library)
        call()
    return seen


@pytest.mark.skipif(bool(libdnnl.problem()), reason="oneDNN is missing")
def test_a_plan_runs_by_one_thread_and_by_all_again(
    contended: ContentionMonitor, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = T.ftensor4("x")
    f = symdnn.function([x], T.nnet.conv2d(x, _normal(rng, 16, 16, 3, 3)), mode=CPU)
    images = _normal(rng, 8, 16, 20, 20)
    f(images)
    (plan,) = f.plans()
    assert (plan.bound.threads, plan.bound.fewer) == (2, {})
    contended.free = 1
    assert _threads_of_libgomp(monkeypatch, lambda: f(images)) == [1, 2]
    fewer = plan.bound.fewer[1]
    assert (plan.bound.threads, fewer.threads) == (2, 1)
    f(images)
    calls = fewer.calls
    contended.free = 2
    assert _threads_of_libgomp(monkeypatch, lambda: f(images)) == []
    contended.free = 1
    f(images)
    assert plan.bound.fewer == {1: fewer}
    assert fewer.calls == calls + 1


@pytest.mark.skipif(bool(jit.problem() or threads.problem()), reason="nothing is compiled")
def test_a_small_plan_needs_no_look_once_one_thread_has_run_it(
    contended: ContentionMonitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = T.fmatrix("x")
    with config.change_flags(**{"cpu.compile": "always"}):
        f = symdnn.function([x], T.exp(x).sum(axis=0), mode=CPU)
        contended.free = 1
        small, large = np.ones((3, 4), "float32"), np.ones((2000, 1000), "float32")
        for given in [small] * 3 + [large] * 3:
            f(given)
    plans = {p.signature: p.bound for p in f.plans()}
    bound = {shapes[0]: plan for shapes, plan in plans.items()}
    assert not bound[3, 4].parallel
    assert bound[2000, 1000].parallel
    assert _threads_of_libgomp(monkeypatch, lambda: f(small)) == []
    np.testing.assert_allclose(f(small), np.full(4, 3 * np.e), rtol=1e-6)


def test_nothing_is_compiled_again_for_fewer_threads(
    contended: ContentionMonitor, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = _training(rng)
    step()
    compiled: list[Any] = []
    compile_generated = jit.compile_generated

    def noted(make: Any, given: Any, *rest: Any) -> Any:
        compiled.append((make, given))
        return compile_generated(make, given, *rest)

    monkeypatch.setattr(jit, "compile_generated", noted)
    contended.free = 1
    step()
    assert compiled == []


def test_the_same_bits_are_asked_for_and_given(
    contended: ContentionMonitor, rng: np.random.Generator
) -> None:
    with config.change_flags(deterministic="more"):
        step = _training(rng)
        wanted = step().copy()
        contended.free = 1
        np.testing.assert_array_equal(step(), wanted)


def test_a_recurrent_layer_gives_the_same_bits(
    contended: ContentionMonitor, rng: np.random.Generator
) -> None:
    call = _lstm(rng)
    alone = call().copy()
    contended.free = 1
    np.testing.assert_array_equal(call(), alone)


def test_more_threads_than_processors_are_somebodys_wish(contended: ContentionMonitor) -> None:
    contended.free = 1
    assert threads.usable(3) == 3
    assert threads.usable(2) == 1
