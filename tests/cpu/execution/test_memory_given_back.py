"""Memory of what was compiled and of large values goes with the functions that needed it."""

from __future__ import annotations

import gc
import subprocess
import sys
import tracemalloc
import weakref

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.cpu.compiler import jit, object_cache
from symdnn.cpu.execution import output_buffers
from symdnn.cpu.execution.arena import Arena
from symdnn.cpu.execution.output_buffers import LoopBuffers, OutputBuffers
from symdnn.cpu.execution.runtime import runtime
from symdnn.cpu.threads import threads

pytestmark = pytest.mark.usefixtures("own_garbage")


class Plan:
    """What an arena knows of a plan."""

    detached = 0

    def detach(self):
        """Count it."""
        self.detached += 1


def test_the_arena_goes_with_the_last_plan():
    arena, plan = Arena(), Plan()
    assert arena.reserve(5 << 20, plan).nbytes >= 5 << 20
    del plan
    gc.collect()
    assert arena.bytes.nbytes == 0


def test_the_arena_shrinks_to_the_largest_plan_that_is_left():
    arena, small, large = Arena(), Plan(), Plan()
    arena.reserve(1000, small)
    arena.reserve(64 << 20, large)
    assert small.detached == 1
    arena.reserve(1000, small)
    arena.shrink()
    assert arena.bytes.nbytes >= 64 << 20  # the large one is there
    del large
    gc.collect()
    arena.shrink()
    assert small.detached == 2
    assert arena.reserve(1000, small).nbytes == 1000


def test_a_small_arena_stays_as_it_is():
    arena, small, large = Arena(), Plan(), Plan()
    arena.reserve(1000, small)
    arena.reserve(100_000, large)
    arena.reserve(1000, small)
    del large
    gc.collect()
    arena.shrink()
    assert (small.detached, arena.bytes.nbytes) == (1, 100_000)


@pytest.mark.skipif(bool(jit.problem()), reason="LLVM is missing")
def test_a_kernel_goes_with_its_function(rng):
    x = T.vector("x")
    with config.change_flags(**{"cpu.compile": "always"}):
        f = symdnn.function([x], T.exp(x * 1.0372) + 3.25)
        value = rng.standard_normal(1000).astype("float32")
        np.testing.assert_allclose(f(value), np.exp(value * np.float32(1.0372)) + 3.25, rtol=1e-5)
    before = set(jit._functions)
    f.free()
    del f
    gc.collect()
    assert len(set(jit._functions)) < len(before)


@pytest.mark.skipif(bool(jit.problem()), reason="LLVM is missing")
def test_machine_code_stays_while_its_address_is_used(rng):
    """Of two functions with one kernel, what stays runs after the other has gone."""
    x = T.vector("x")
    value = rng.standard_normal(500).astype("float32")
    with config.change_flags(**{"cpu.compile": "always"}):
        functions = [symdnn.function([x], T.tanh(x * 1.0421) - 0.75) for _ in range(3)]
        first = functions[0](value)
        for f in functions:
            for _ in range(4):
                f(value)
        last = functions.pop()
        while functions:
            functions.pop().free()
            gc.collect()
            jit.forget_recent()
            np.testing.assert_array_equal(last(value), first)


def test_pages_go_with_the_function():
    run = threads.elf_loader.run_bytes(threads._PAUSE_LOOP, threads.ctypes.c_void_p)
    pages = weakref.ref(run.placed.pages)
    assert pages() is not None
    del run
    gc.collect()
    assert pages() is None


def test_what_is_kept_of_a_library_is_bounded():
    made = []

    @object_cache.cached(1 << 20)
    def thing(i):
        made.append(i)
        return [i]

    object_cache.clear()
    most = object_cache.most_bytes() >> 20
    assert thing(0) is thing(0)
    for i in range(most):
        thing(i)
    assert thing(1) == [1]
    assert len(made) == most
    thing(most)  # one more than there is room for: the least recently used goes
    assert thing(1) == [1]
    assert len(made) == most + 1
    thing(0)
    assert len(made) == most + 2
    object_cache.clear()
    thing(0)
    assert len(made) == most + 3
    object_cache.clear()


def test_freeing_inside_of_a_call_is_harmless():
    inner = symdnn.function([], T.arange(3).sum())
    inner()

    with runtime().exclusive():
        inner.free()
    assert inner() == 3


def grown(program):
    """What a program prints, a number of KB, in a process of its own."""
    head = (
        "import gc, numpy as np, symdnn, symdnn.tensor as T; symdnn.config.device = 'cpu'\n"
        "rss = lambda: int(open('/proc/self/statm').read().split()[1]) * 4\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", head + program], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

BIG = """
x = T.matrix('x'); f = symdnn.function([x], T.tanh(x.T + 1).cumsum(0).sum())
f(np.ones((900, 2000), 'float32')); before = rss()  # LLVM is loaded
f(np.ones((9000, 2000), 'float32')); f.free(); gc.collect()
print(rss() - before)
"""


@linux
def test_free_gives_a_large_temporary_back():
    assert grown(BIG) < 30_000  # the values are 72 MB each


CYCLES = """
def once(i):
    x = T.matrix('x'); f = symdnn.function([x], (T.tanh(x * float(i + 1) + i) * 2).sum(0))
    f(np.ones((300, 300), 'float32'))
for i in range(40): once(i)
gc.collect(); before = rss()
for i in range(40, 240): once(i)
gc.collect(); print((rss() - before) / 200)
"""


@linux
@pytest.mark.slow
def test_growth_per_function_compiled_and_dropped():
    """Each has a kernel of its own."""
    assert grown(CYCLES) < 10


SIZES = """
x = T.tensor4('x'); w = symdnn.shared(np.ones((8, 3, 3, 3), 'float32'))
c = T.tanh(T.nnet.conv2d(x, w)).sum(); f = symdnn.function([x], [c, symdnn.grad(c, w)])
with symdnn.config.change_flags({'cpu.compile': 'always'}):  # LLVM has its memory
    for i in range(8): f(np.ones((2, 3, 16 + i, 16), 'float32'))
gc.collect(); before = rss()
for i in range(1000): f(np.ones((2, 3, 24 + i // 30, 16 + i % 30), 'float32'))
gc.collect(); print(rss() - before)
"""


@linux
@pytest.mark.slow
def test_growth_over_a_thousand_sizes():
    assert grown(SIZES) < 50_000


def test_buffers_of_results_of_many_plans_are_bounded(monkeypatch):
    """Eight plans keep theirs; of more, those that allocated first let go."""
    monkeypatch.setattr(output_buffers, "_kept", output_buffers._Kept())
    size = 3 << 16  # less than what one plan takes from another
    monkeypatch.setattr(output_buffers, "_MOST_KEPT_BYTES", 10 * 4 * size)
    plans = [OutputBuffers([(0, (size,), np.dtype("float32"))]) for _ in range(20)]
    for buffers in plans:
        buffers.make(0)
    assert [b.last[0] is not None for b in plans] == [False] * 10 + [True] * 10
    monkeypatch.setattr(output_buffers, "_MOST_KEPT_BYTES", 0)
    held = plans[0].make(0)
    assert [b.last[0] is not None for b in plans] == [True] + [False] * 12 + [True] * 7
    del plans[13:], buffers
    for b in plans[1:8]:
        b.make(0)
    assert plans[0].last[0] is held  # it is among eight
    assert plans[0].make(0) is not held  # a caller has it


def large(mb):
    return OutputBuffers([(0, (mb << 18,), np.dtype("float32"))])


def test_a_plan_takes_memory_that_another_one_needs_no_more(monkeypatch):
    monkeypatch.setattr(output_buffers, "_kept", output_buffers._Kept())
    first, second, small, other = large(9), large(9), large(4), large(8)
    a = first.make(0)
    place = a.ctypes.data
    assert second.make(0).ctypes.data != place  # a caller has it
    view = a[5:][::2]
    del a
    assert large(9).make(0).ctypes.data != place  # as a view
    del view
    assert small.make(0).ctypes.data != place  # it would waste half of it
    assert other.make(0).ctypes.data == place
    assert first.last == [None]
    again = first.make(0)
    assert again.nbytes == 9 << 20
    assert again.ctypes.data == place  # all of it is still there
    assert other.last == [None]


def test_what_is_held_in_any_way_is_not_recycled(monkeypatch):
    """Counts of references are those of this interpreter, in which a name may count or not."""
    monkeypatch.setattr(output_buffers, "_kept", output_buffers._Kept())
    views = {
        "name": lambda a: a, "view": lambda a: a[1:, None], "list": lambda a: [a],
        "memoryview": memoryview, "bytes": lambda a: np.frombuffer(a, "int8"),
        "export": lambda a: a.__dlpack__(), "import": np.from_dlpack, "flat": lambda a: a.flat,
    }  # fmt: skip
    plan = large(2)
    for how, hold in views.items():
        place = plan.make(0).ctypes.data
        assert plan.make(0).ctypes.data == place, how
        held = hold(plan.make(0))
        assert large(2).make(0).ctypes.data != place, how
        assert plan.make(0).ctypes.data != place, how
        del held


@pytest.mark.parametrize("call", ["add", "taken"])
def test_plans_that_are_garbage_end_at_any_moment(monkeypatch, call):
    """As the looking through plans makes an object, which begins a collection."""
    monkeypatch.setattr(output_buffers, "_kept", kept := output_buffers._Kept())
    before, plan = gc.get_threshold(), large(2)
    pairs = [(k, call) for k in range(3000)]  # Python has no memory of pairs left: each is new
    try:
        for later in range(1, 40):
            gc.collect()
            gc.disable()
            garbage = [OutputBuffers([(0, (1 << 15,), np.dtype("float32"))]) for _ in range(5)]
            for own in garbage:
                own.make(0)
                own.cycle = own
            del garbage, own
            gc.set_threshold(later + gc.get_count()[0], *before[1:])
            gc.enable()
            assert (kept.add(plan, 1) if call == "add" else kept.taken(1 << 20)) is None
    finally:
        gc.set_threshold(*before)
        gc.enable()
    gc.collect()
    assert len(kept._bytes) == (call == "add")
    assert len(pairs) == 3000


def test_arrays_of_loops_are_recycled_and_bounded(monkeypatch):
    monkeypatch.setattr(output_buffers, "_kept", output_buffers._Kept())
    monkeypatch.setattr(output_buffers, "_MOST_KEPT_BYTES", 10 << 20)
    loop = LoopBuffers()
    a = loop.empty((3, 1 << 18), "float32")
    part, place = a[1:], a.ctypes.data
    del a
    b = loop.empty((3, 1 << 18), np.dtype("float32"))
    assert b.ctypes.data != place
    del part
    assert loop.empty((3 << 18,), "float32").ctypes.data == place
    assert loop.empty((100,), "int8").nbytes == 100
    for k in range(4, 40):
        loop.empty((k, 1 << 17), "float64")
        kept = sum(len(x.base) for x in loop.last if x is not None)
        assert kept <= (10 << 20) + 2 * (k << 20)


def training_loop():
    """A step of a loop's parameter, whose sequences and states of all steps are 4 MB each."""
    x, w = T.ftensor3("x"), symdnn.shared(np.full((256, 256), 0.01, "float32"))
    zero = T.zeros((64, 256), "float32")
    states, _ = symdnn.scan(
        lambda a, h: T.tanh(a + T.dot(h, w)), [T.dot(x.reshape((-1, 256)), w).reshape(x.shape)],
        [zero],
    )  # fmt: skip
    loss = (states[-1] ** 2).sum()
    given = T.grad(loss, w)
    mode = symdnn.Mode(target="cpu")
    return symdnn.function([x], [loss, given], updates=[(w, w - 0.01 * given)], mode=mode), w


def test_calls_of_a_loop_that_is_trained_allocate_nothing_large(rng):
    f, w = training_loop()
    x = (rng.normal(size=(64, 64, 256)) * 0.1).astype("float32")
    start, wanted = w.get_value(), f(x)
    held = f(x)
    values = [np.copy(v) for v in held]
    for _ in range(2):
        f(x)
    tracemalloc.start()
    f(x)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < x.nbytes // 2
    assert all(np.array_equal(a, b) for a, b in zip(held, values, strict=True))
    w.set_value(start)
    assert all(np.array_equal(a, b) for a, b in zip(f(x), wanted, strict=True))
