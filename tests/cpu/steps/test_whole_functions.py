"""Functions with loops as one compiled function each, against the same functions step by step."""

import gc
import weakref
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import control
from symdnn.compile.call.fast import Calls
from symdnn.config import config
from symdnn.cpu.execution import arena as arena_module
from symdnn.cpu.execution import whole_function, whole_loop
from symdnn.cpu.execution.plan import CpuPlan
from symdnn.errors import IndexOutOfRange
from symdnn.ops.core.gradient_control import Identity

WITH_ALL = "one compiled function with all around it"


@pytest.fixture
def ran(monkeypatch):
    """The results of calls of whole functions; None where they failed."""
    found = []
    run = whole_function._Function.of_arrays

    def noted(self, arrays):
        found.append(run(self, arrays))
        return found[-1]

    monkeypatch.setattr(whole_function._Function, "of_arrays", noted)
    return found


@pytest.fixture(autouse=True)
def _always():
    with config.change_flags(**{"cpu.compile": "always"}):
        yield


def decays(x, n):
    """What is before a loop and behind it, and a loop of so many steps."""
    first = T.exp(x - x.max())
    return control.fori_loop(0, n, lambda i, v: v * 0.5 + i, first).sum(), first


def test_outputs_are_in_their_order_and_new_at_each_call(ran):
    f = symdnn.jit(lambda x: (decays(x, 4), x * 2, (x > 0).sum()))
    x, y = np.linspace(-1, 1, 6), np.linspace(0, 3, 6)
    f(x)
    ((total, first), double, count) = f(x)
    kept = [first.copy(), double.copy()]
    f(y)
    assert len(ran) == 2
    np.testing.assert_allclose(first, np.exp(x - 1))
    for a, b in zip((first, double), kept, strict=True):
        np.testing.assert_array_equal(a, b)
    wanted = np.exp(x - 1)
    for i in range(4):
        wanted = wanted * 0.5 + i
    np.testing.assert_allclose(total, wanted.sum())
    assert count == 3
    assert WITH_ALL in str(f.compiled(x).lowering_report())


def test_of_too_many_shapes_the_oldest_is_forgotten(monkeypatch):
    monkeypatch.setattr(Calls, "most_entries", 2)
    f = symdnn.jit(lambda x: decays(x, 4))
    for n in (2, 3, 4, 2):
        f(np.ones(n))
    assert list(f.compiled(np.ones(2))._fast.entries) == [(4,), (2,)]


def test_sizes_of_arguments_and_numbers_that_sizes_depend_on(ran):
    f = symdnn.jit(lambda x, n: control.scan(lambda c, i: (c + i * x.sum(), c), 0.0, T.arange(n)))
    for n in (3, 5, 3, 5, 2, 2):
        for m in (2, 4):
            last, before = f(np.ones(m), n)
            assert last == m * n * (n - 1) / 2
            np.testing.assert_allclose(before, [m * k * (k - 1) / 2 for k in range(n)])
    assert len(ran) == 6  # the first call of each is step by step
    assert None not in ran


def test_arguments_that_are_converted(ran):
    f = symdnn.jit(lambda x, a: control.fori_loop(0, 3, lambda i, v: v * a, x.T).sum())
    x = np.arange(6.0).reshape(2, 3)
    for given in (x, x, np.asfortranarray(x), x[:, ::-1], x.astype("float64")):
        np.testing.assert_allclose(f(given, 2.0), 8 * 15)
        np.testing.assert_allclose(f(given, np.float64(2)), 8 * 15)
    assert None not in ran
    assert len(ran) >= 4


def test_shared_variables_are_read_and_updated_at_each_call(ran):
    w = symdnn.shared(np.array([1.0, 2.0]))
    x = T.dvector()
    last = control.fori_loop(0, 3, lambda i, v: v * w, x)
    f = symdnn.function([x], last, updates=[(w, w + last)])
    wanted = np.array([1.0, 2.0])
    for k in range(5):
        if k == 3:
            w.set_value(np.array([0.5, -1.0]))
            wanted = np.array([0.5, -1.0])
        now = f(np.ones(2))
        np.testing.assert_allclose(now, wanted**3)
        wanted = wanted + wanted**3
        np.testing.assert_allclose(w.get_value(), wanted)
    assert len(ran) == 4


def test_what_fails_raises_the_error_of_the_loop(ran):
    f = symdnn.jit(lambda x, i: control.fori_loop(0, 3, lambda k, v: v + x[i + k], 0.0))
    x = np.arange(6.0)
    for _ in range(2):
        assert f(x, 1) == 6
    for _ in range(12):
        with pytest.raises(IndexOutOfRange):
            f(x, 5)
    assert f(x, 2) == 9
    assert ran.count(None) == 8  # then it is not tried again
    assert f._known
    assert not f.compiled(x, 1)._fast.entries


def test_loops_of_unknown_length_are_bounded(ran, monkeypatch):
    """So that Ctrl-C stops them: the rest of the steps run as a loop alone."""
    monkeypatch.setattr(whole_loop, "WORK_AT_ONCE", 1 << 12)
    f = symdnn.jit(
        lambda x: control.while_loop(
            lambda v: v[0] < x, lambda v: (v[0] + 1, v[1] * 0.5 + 1), (0, 0.0)
        )
    )
    for n in (10, 20, 10, 30000, 30000, 20):
        count, last = f(np.int64(n))
        assert count == n
        np.testing.assert_allclose(last, 2 * (1 - 0.5**n))
    assert [r is None for r in ran] == [False, False, True, True, False]


def test_nothing_is_compiled_of_large_steps_or_where_no_loop_may_be(ran):
    small = lambda x: control.fori_loop(0, 3, lambda i, v: v * 0.5, x)  # noqa: E731
    for flags, size in (({}, 1 << 23), ({"cpu.compile": "never"}, 4), (
        {"cpu.compile": "auto", "deterministic": "more"}, 4)):  # fmt: skip
        with config.change_flags(**flags):
            f = symdnn.jit(small)
            for _ in range(3):
                f(np.ones(size))
            assert WITH_ALL not in str(f.compiled(np.ones(size)).lowering_report())
    assert not ran


def test_a_function_is_compiled_after_some_calls(ran):
    with config.change_flags(**{"cpu.compile": "auto"}):
        f = symdnn.jit(lambda x: decays(x, 3)[0])
        for _ in range(60):
            f(np.ones(3))
    assert len(ran) == 10


# -- sums of exponentials --------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1, (0, 1)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_logarithms_of_sums_of_exponentials_inside_of_loops(axis, dtype, ran):
    x = np.random.default_rng(0).normal(size=(7, 9)).astype(dtype) * 30
    x[1], x[:, 2], x[3, 4], x[5, 5] = -np.inf, -np.inf, np.inf, np.nan
    x[6, 6], x[2, 7] = 700, -700
    make = lambda: lambda x: control.scan(lambda c, e: (c + 1, T.logsumexp(e + c, axis)), 0.0, x)[1]  # noqa: E731
    given = np.stack([x, x[::-1], np.nan_to_num(x)])
    with config.change_flags(**{"cpu.compile": "never"}):
        wanted = symdnn.jit(make())(given)
    f = symdnn.jit(make())
    for _ in range(2):
        np.testing.assert_allclose(f(given), wanted, rtol=1e-5 if dtype == "float32" else 1e-12)
    assert len(ran) == 1


@pytest.mark.parametrize("count", [1, 3, 4, 7, 12, 16, 17, 33])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "bool"])
def test_short_loops_of_any_length_in_vectors(count, dtype, ran):
    """Elements, sums along both axes, and softmax of matrices of few columns."""
    x = (np.random.default_rng(1).normal(size=(5, 3, count)) * 2).astype(dtype)

    def step(c, e):
        total = e.sum(0).astype(c.dtype) + c
        return total * 0.5, (
            e.max(0),
            e.sum(1),
            e * c + 1,
            T.nnet.softmax(e.astype(c.dtype), 1),
            total,
        )

    kind = dtype if dtype.startswith("float") else "float64"
    make = lambda: lambda x: control.scan(step, x[0, 0].astype(kind) * 0, x)  # noqa: E731
    with config.change_flags(**{"cpu.compile": "never"}):
        wanted = symdnn.jit(make())(x)
    f = symdnn.jit(make())
    for _ in range(2):
        last, rest = f(x)
        for a, b in zip((last, *rest), (wanted[0], *wanted[1]), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-5)
    assert len(ran) == 1


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6])
def test_parts_of_no_elements_around_a_loop_and_in_it(n, ran):
    """Short prefixes have halves of no entries: what works on them does nothing."""
    x = T.TensorType("float64", (None, 2, 2))()
    y = control.associative_scan(lambda a, b: T.batched_dot(b, a), x)
    prefixes, cost = symdnn.function([x], y), symdnn.function([x], symdnn.grad((y**2).sum(), x))
    m = np.random.default_rng(n).normal(size=(n, 2, 2))
    slopes = [cost(m) for _ in range(3)]
    for _ in range(3):
        found = prefixes(m)
    for f in (prefixes, cost):
        assert WITH_ALL in str(f.lowering_report())
    wanted = np.eye(2)
    for k in range(n):
        wanted = m[k] @ wanted
        np.testing.assert_allclose(found[k], wanted)
    np.testing.assert_allclose(slopes[2], slopes[0])
    ends = [(prefixes(m + s * np.ones_like(m)) ** 2).sum() for s in (1e-6, -1e-6)]
    np.testing.assert_allclose(slopes[2].sum(), (ends[0] - ends[1]) / 2e-6, rtol=1e-6)


@pytest.mark.parametrize(
    "made",
    [
        lambda v, k: v[k:].sum(),
        lambda v, k: T.prod(v[k:]) * v[0],
        lambda v, k: T.concatenate([v[k:], v * 2]).sum(),
        lambda v, k: T.set_subtensor(v[k:], 7.0).sum(),
        lambda v, k: T.inc_subtensor(v[k:], v[k:] * 2).sum(),
        lambda v, k: T.dot(v[k:], v[k:]),
        lambda v, k: control.fori_loop(0, 2, lambda i, w: w * 2, v[k:]).shape[0] * v.sum(),
    ],
)
def test_what_makes_elements_of_none_is_right(made, ran):
    f = symdnn.jit(
        lambda v, k: control.fori_loop(0, 3, lambda i, s: s + made(v + s, k), 0.0), static_argnums=1
    )
    v = np.array([0.5, 0.25, 1.5])
    with config.change_flags(**{"cpu.compile": "never"}):
        wanted = [symdnn.jit(lambda v: f(v, k))(v) for k in (1, 3)]  # noqa: B023
    for k, want in zip((1, 3), wanted, strict=True):
        for _ in range(3):
            np.testing.assert_allclose(f(v, k), want)


def test_a_checkpointed_step_and_complex_arguments_are_compiled():
    def step(h, x):
        return T.tanh(h * 0.5 + x), h

    def cost(x):
        return (control.scan(symdnn.checkpoint(step), x[0] * 0, x)[1] ** 2).sum()

    slope = symdnn.jit(symdnn.grad(cost))
    x = np.random.default_rng(0).normal(size=(40, 5))
    want = symdnn.grad(lambda x: (control.scan(step, x[0] * 0, x)[1] ** 2).sum())(x)
    turn = symdnn.jit(
        lambda a, b: control.scan(lambda c, g: (c * g[0] + g[1],) * 2, b[0], (a, b))[1]
    )
    z = np.exp(1j * x[:, 0])
    first = turn(z, z)
    for _ in range(120):
        got, last = slope(x), turn(z, z)
    np.testing.assert_allclose(got, want, rtol=1e-12)
    np.testing.assert_allclose(last, first, rtol=1e-12)
    for f in (slope.compiled(x), turn.compiled(z, z)):
        loops = f.lowering_report().loops
        assert loops
        assert all(WITH_ALL in line for line in loops), loops


def test_plans_give_their_memory_back_when_all_runs_as_one_function():
    def cost(x):
        return (control.scan(lambda h, v: (T.tanh(h + v),) * 2, x[0] * 0, x)[1] ** 2).sum()

    slope = symdnn.jit(symdnn.grad(cost))
    x = np.random.default_rng(0).normal(size=(50, 400))
    first = slope(x)
    f = slope.compiled(x)
    bound = [p.bound for p in f.plans()]
    for plan in bound:  # as if other processes had wanted a processor
        plan.fewer[0] = CpuPlan(plan.runtime, plan.spec, plan.memory, plan)
    fewer = [weakref.ref(plan.fewer[0]) for plan in bound]
    for _ in range(200):
        got = slope(x)
    gc.collect()
    assert not any(plan() for plan in fewer)
    assert bound
    assert all(b.scratch is None and not any(v is not None for v in b.results.last) for b in bound)
    np.testing.assert_allclose(got, first, rtol=1e-12)
    np.testing.assert_allclose(slope(x[::-1][::-1].T.copy().T), first, rtol=1e-12)  # by plans again


@dataclass(frozen=True)
class _Calling(Identity):
    """``x``; a user's function runs beside it, which may call compiled functions."""

    host_callback: ClassVar[bool] = True
    unmergeable: ClassVar[bool] = True

    call: Any

    def reference(self, *inputs: Any) -> Any:
        self.call()
        return inputs[0]


def test_plans_keep_their_memory_in_a_nested_call_and_give_it_back_later(monkeypatch):
    monkeypatch.setattr(arena_module, "_MIN_BYTES_TO_SHRINK", 1 << 13)

    def cost(x):
        sums = T.cumsum(T.cumsum(x, 0) ** 2, 1)
        return (control.scan(lambda h, v: (T.tanh(h + v),) * 2, x[0] * 0, sums)[1] ** 2).sum()

    slope, calls = symdnn.jit(symdnn.grad(cost)), [0]
    x = np.random.default_rng(0).normal(size=(20, 200))
    for _ in range(3):
        slope(x)

    def inside():
        for _ in range(calls[0]):
            slope(x)

    y, v = T.dvector("y"), np.arange(500.0)
    sums = T.cumsum(T.sqrt(y))
    around = symdnn.function([y], T.cumsum(sums[::-1]) + _Calling(inside)(sums))
    for _ in range(4):
        want = around(v)
    (own,) = (p.bound for p in around.plans())
    within = [p.bound for p in slope.compiled(x).plans()]
    assert max(p.memory.arena_bytes for p in within) > max(1 << 13, 2 * own.memory.arena_bytes)
    arena, calls[0] = own.scratch, 70
    np.testing.assert_array_equal(around(v), want)
    assert own.scratch is arena, "the memory of a plan that was running was freed"
    for _ in range(70):
        slope(x)
    assert all(b.scratch is None for b in within)
