"""Loops of small steps as one compiled function, against the same steps one by one."""

from collections import Counter

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import control
from symdnn.config import config
from symdnn.cpu.execution import whole_loop
from symdnn.cpu.execution.whole_function import CpuWholeFunction
from symdnn.errors import AssertionFailed, IndexOutOfRange
from symdnn.graph.values.tree import flatten
from symdnn.ops.steps.whole_loop import Functions
from tests.cpu.steps.drawn_loops import drawn

N = 3000


@pytest.fixture
def ran(monkeypatch):
    """How often compiled loops ran, by the name of the scan, and why others were refused."""
    found = Counter()
    run, of = whole_loop._Function.run, Functions.of

    def counted(self, inputs):
        results = run(self, inputs)
        found[str(self.op.name) if results is not None else "failed"] += 1
        return results

    def noted(self, loop, inputs):
        function = of(self, loop, inputs)
        if function is None and not isinstance(loop, CpuWholeFunction):
            found[f"refused {loop.op.name}: {self.refused}"] += 1
        return function

    monkeypatch.setattr(whole_loop._Function, "run", counted)
    monkeypatch.setattr(Functions, "of", noted)
    return found


def both(make, *arguments):
    """The leaves of a function's results, step by step and as a whole.

    The second call of a function that is compiled runs all of it as one function, where it can.
    """
    found = []
    for mode, calls in (("never", 1), ("always", 2)):
        with config.change_flags(**{"cpu.compile": mode}):
            f = symdnn.jit(make())
            leaves = [v for _ in range(calls) for v in flatten(f(*arguments))[0]]
        found.append([np.asarray(v) for v in leaves])
    return found[0] * 2, found[1]


def agree(make, *arguments, tolerance=1e-9):
    """Check that both ways give the same."""
    for by_steps, whole in zip(*both(make, *arguments), strict=True):
        assert by_steps.dtype == whole.dtype
        np.testing.assert_allclose(whole, by_steps, tolerance, tolerance)


# -- drawn bodies ---------------------------------------------------------------------------------


def check_drawn(seed, dtype, kind, gradient):
    def make():
        d = drawn(seed, dtype, gradient)
        return d.loss(kind) if gradient else d.loop(kind)

    d = drawn(seed, dtype, gradient)
    leaves = d.leaves[1:] if gradient else d.leaves
    agree(make, leaves, d.xs, d.w, tolerance=1e-8 if dtype == "float64" else 3e-3)


@pytest.mark.parametrize("kind", ["fori", "while", "scan"])
def test_drawn_bodies(kind, ran):
    check_drawn(8, "float64", kind, False)
    assert set(ran) & {"fori_loop", "while_loop", "scan"}
    assert not any("refused" in name for name in ran), ran


def test_gradients_of_a_drawn_body(ran):
    check_drawn(9, "float32", "fori", True)
    assert {"fori_loop", "grad_of_fori_loop"} <= set(ran)
    assert not any("refused" in name for name in ran), ran


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_many_drawn_bodies(seed, ran):
    for kind in ("fori", "while", "scan"):
        for dtype, gradient in (("float64", False), ("float32", False), ("float64", True)):
            check_drawn(seed, dtype, kind, gradient)
    assert not any("refused" in name for name in ran), ran


# -- what a body may be ---------------------------------------------------------------------------


def integers(x):
    """Products that wrap around, divisions, bits."""
    step = lambda i, v: (v[0] * 6364136223846793005 + i, v[1] // 3 + v[0] % (i + 1), v[2] ^ i)  # noqa: E731
    return control.fori_loop(0, 40, step, (x, x * 0, x))


def narrow(x):
    """16-bit floats, which are rounded where a state is stored."""
    return control.fori_loop(0, 20, lambda i, v: T.sin(v * 1.5) + 0.1, x.astype("float16"))


def infinite(x):
    """NaN and infinities."""
    return control.fori_loop(
        0, 9, lambda i, v: (v[0] * np.float64(1e200), T.log(v[1]) / v[0]), (x, x)
    )


def second_order(x):
    """Taps of two steps, a sequence from the end, and a condition."""

    def step(e, a, b):
        return [a - 0.5 * b + e], symdnn.until(a > 40)

    values, _ = symdnn.scan(step, x, outputs_info=[{"initial": x[:2], "taps": [-1, -2]}],
                            go_backwards=True)  # fmt: skip
    return [values, values.shape[0]]


def swapped(x):
    """States that change places."""
    return control.fori_loop(0, 7, lambda i, v: (v[1], v[2], v[0] + 1), (x, 2 * x, 3 * x))


def collatz(n):
    """A lazy choice in a loop in a loop."""

    def length(k):
        step = lambda v: control.cond(  # noqa: E731
            T.eq(v[0] % 2, 0), lambda a, c: (a // 2, c + 1), lambda a, c: (3 * a + 1, c + 1), *v
        )
        return control.while_loop(lambda v: v[0] > 1, step, (k, 0))[1]

    return control.fori_loop(1, 30, lambda i, best: T.maximum(best, length(i + n)), 0)


def increments(x):
    """Increments of a state all of whose values are kept, and of one that is overwritten."""

    def step(v, e):
        new = (T.inc_subtensor(v[0][1:3], e), T.set_subtensor(v[1][0], v[0][1]))
        return new, new[0] * 2

    return list(flatten(control.scan(step, (x[:4], x[:4]), x))[0])


@pytest.mark.parametrize("body", [integers, narrow, infinite, second_order, swapped, collatz,
                                  increments])  # fmt: skip
def test_bodies(body, ran):
    kind = np.arange(1, 7.0) if body in (second_order, increments) else np.float64(1.25)
    x = np.int64(5) if body in (integers, collatz) else kind
    agree(lambda: body, x, tolerance=1e-12 if body is not narrow else 1e-3)
    assert ran
    assert not any("refused" in name for name in ran), ran


def test_products_of_all_sizes(ran):
    """Rows, columns, stacks, transposed factors: tiles of every width, and what is left."""
    for m, k, n in ((1, 1, 1), (1, 5, 37), (7, 3, 2), (13, 17, 19), (5, 64, 1), (3, 2, 70)):
        r = np.random.default_rng(m + n)
        w, v = r.normal(size=(k, n)), r.normal(size=(n, k))

        def loop(x, w, v, m=m):
            def step(i, h):
                one = T.dot(h, w) if m > 1 else T.dot(h[0], w).dimshuffle("x", 0)
                back = T.dot(one, w.T) + T.dot(one, v)
                return T.tanh(
                    back + T.batched_dot(one.dimshuffle("x", 0, 1), v.dimshuffle("x", 0, 1))[0]
                )

            return control.fori_loop(0, 3, step, x)

        agree(lambda loop=loop: loop, r.normal(size=(m, k)), w, v)
    assert ran["fori_loop"] == 6, ran


# -- when it runs ---------------------------------------------------------------------------------


def test_a_loop_of_unknown_length_is_taken_over_after_many_steps(ran):
    step = lambda v: (v[0] + 0.5, v[1] + 1)  # noqa: E731
    f = symdnn.jit(lambda x: control.while_loop(lambda v: v[1] < N, step, (x, 0)))
    assert f(np.float64(1))[0] == 1 + N / 2
    assert ran["while_loop"] == 1
    assert f(np.float64(3))[0] == 3 + N / 2
    assert ran["while_loop"] == 2


def test_short_loops_are_compiled_in_time(ran, monkeypatch):
    monkeypatch.setattr(whole_loop, "HOT_CALLS", 50)
    f = symdnn.jit(lambda x: control.fori_loop(0, 10, lambda i, v: v * 1.5, x))
    for _ in range(8):
        assert f(np.float64(1)) == 1.5**10
    assert ran["fori_loop"] == 4  # from the fifth call on


@pytest.mark.parametrize("flags", [{"cpu.compile": "never"}, {"deterministic": "more"}])
def test_flags_that_forbid_it(flags, ran):
    with config.change_flags(**flags):
        f = symdnn.jit(lambda x: control.fori_loop(0, N, lambda i, v: v + 1, x))
        assert f(np.float64(0)) == N
    assert not ran


def test_large_steps_and_effects_are_left_to_kernels(ran):
    with config.change_flags(**{"cpu.compile": "always", "openmp.threads": 4}):
        f = symdnn.jit(lambda x: control.fori_loop(0, 9, lambda i, v: T.sin(v), x))
        np.testing.assert_allclose(f(np.ones(100_000)), f(np.ones(1))[0])
    assert ran["refused fori_loop: its steps are large"] == 1
    assert ran["fori_loop"] == 1


# -- errors ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("always")
def test_an_index_out_of_range_is_the_same_error(ran):
    f = symdnn.jit(lambda x, n: control.fori_loop(0, n, lambda i, v: v + x[i * 2], 0.0))
    x = np.arange(6.0)
    assert f(x, np.int64(3)) == 6
    with pytest.raises(IndexOutOfRange, match="out of range") as caught:
        f(x, np.int64(5))
    assert __file__ in str(caught.value.__notes__)
    assert f(x, np.int64(2)) == 2


@pytest.mark.usefixtures("always")
def test_a_failed_assertion_is_the_same_error(ran):
    def step(i, v):
        return T.Assert("too large")(v * 2, v < 100)

    f = symdnn.jit(lambda x, n: control.fori_loop(0, n, step, x))
    assert f(np.float64(1), np.int64(5)) == 32
    with pytest.raises(AssertionFailed, match="too large"):
        f(np.float64(1), np.int64(9))
    assert ran["failed"] == 1


@pytest.mark.usefixtures("always")
def test_lengths_and_empty_loops(ran):
    f = symdnn.jit(lambda x, n: control.fori_loop(0, n, lambda i, v: v * 2, x))
    assert f(np.ones(3), np.int64(0)).tolist() == [1, 1, 1]
    assert f(np.ones(0), np.int64(4)).shape == (0,)
    assert f(np.ones(3), np.int64(70)).tolist() == [2.0**70] * 3
    g = symdnn.jit(lambda x: control.scan(lambda c, e: (c + e, c), 0.0, x))
    last, values = g(np.zeros(0))
    assert (float(last), values.shape) == (0, (0,))


def test_a_guard_sees_each_step(ran):
    x = T.dscalar("x")
    values, _ = symdnn.scan(lambda v: T.log(v - 1), outputs_info=[x], n_steps=N)
    with config.change_flags(**{"cpu.compile": "always"}):
        f = symdnn.function([x], values[-1], mode=symdnn.NanGuardMode(target="cpu"))
        with pytest.raises(symdnn.errors.NanDetected):
            f(2.0)
    assert not ran


def test_large_steps_of_one_thread_are_compiled(ran):
    with config.change_flags(**{"cpu.compile": "always", "openmp.threads": 1}):
        f = symdnn.jit(lambda x: control.fori_loop(0, 9, lambda i, v: T.sin(v), x))
        np.testing.assert_allclose(f(np.ones(100_000)), f(np.ones(1))[0])
    assert ran["fori_loop"] == 2


def test_running_sums_of_complex_numbers_stay_steps(ran):
    make = lambda: lambda z: control.fori_loop(0, 3, lambda i, v: T.cumsum(v * 0.5), z)  # noqa: E731
    agree(make, np.exp(1j * np.arange(4)))
    assert any("refused" in name for name in ran), ran
