"""Loops within a memory budget: classes of loops, values, the bound, and what the report says."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.compile.plan.call_memory import call_memory, dead_after, entering, sizes_of_values
from symdnn.errors import OverBudget
from symdnn.ops.random.random_stream import RandomStream
from tests.seeded import new_rng

STEPS, BATCH, WIDE = 24, 8, 16


def weights(rng, *shape):
    return symdnn.shared(rng.standard_normal(shape) / shape[0] ** 0.5)


def simple(v, h, w):
    return T.tanh(T.dot(h, w) + v)


def of_simple(x, h, rng):
    w = weights(rng, WIDE, WIDE)
    return (symdnn.scan(simple, x, h, w)[0][-1] ** 2).sum(), [w, x, h]


def of_hoisted(x, h, rng):
    """A product of the sequence, which is moved out of the loop."""
    w, u = weights(rng, WIDE, WIDE), weights(rng, WIDE, WIDE)
    last = symdnn.scan(lambda v, b: T.tanh(T.dot(v, u) + T.dot(b, w)), x, h)[0][-1]
    return (last**2).sum(), [w, u]


def of_all_values(x, h, rng):
    w = weights(rng, WIDE, WIDE)
    return (symdnn.scan(simple, x, h, w)[0] ** 2).sum(), [w, h]


def of_lstm(x, h, rng):
    w = weights(rng, WIDE, 4 * WIDE)

    def step(v, before, cell):
        z = T.dot(before, w) + T.concatenate([v] * 4, axis=1)
        i, f, o, g = (z[:, k * WIDE : (k + 1) * WIDE] for k in range(4))
        cell = T.nnet.sigmoid(f) * cell + T.nnet.sigmoid(i) * T.tanh(g)
        return T.nnet.sigmoid(o) * T.tanh(cell), cell

    return (symdnn.scan(step, x, [h, T.zeros_like(h)])[0][0][-1] ** 2).sum(), [w, h]


def of_two_layers(x, h, rng):
    w, u = weights(rng, WIDE, WIDE), weights(rng, WIDE, WIDE)
    first = symdnn.scan(simple, x, h, w)[0]
    return (symdnn.scan(simple, first, h, u)[0][-1] ** 2).sum(), [w, u, h]


def of_two_taps(x, h, rng):
    w = weights(rng, WIDE, WIDE)
    start = {"initial": T.stack([h, 2 * h]), "taps": [-2, -1]}
    found = symdnn.scan(lambda v, a, b: T.tanh(T.dot(a, w) + b / 2 + v), x, [start])[0]
    return (found[-1] ** 2).sum(), [w, h]


def of_collected(x, h, rng):
    w = weights(rng, WIDE, WIDE)

    def step(v, before):
        new = simple(v, before, w)
        return new, (new * v).sum()

    return (symdnn.scan(step, x, [h, None])[0][1] ** 2).sum(), [w, x]


def of_fori(x, h, rng):
    w = weights(rng, WIDE, WIDE)
    last = symdnn.control.fori_loop(0, STEPS, lambda i, a: T.tanh(T.dot(a, w) + x[i]), h)
    return (last**2).sum(), [w, h]


def of_backwards(x, h, rng):
    w = weights(rng, WIDE, WIDE)
    return (symdnn.scan(simple, x, h, w, go_backwards=True)[0][-1] ** 2).sum(), [w, x]


#: Bounds in proportion to the memory without: results and sequences take a large part of some.
SHARES = {"two_layers": 0.9, "two_taps": 0.85, "backwards": 0.9, "simple": 0.8, "all_values": 0.9}
KINDS = {name[3:]: f for name, f in globals().items() if name.startswith("of_")}


def compiled(kind, budget=None):
    """A function of one kind of loop, the same parameters each time, and its arguments."""
    x, h = T.dtensor3("x"), T.dmatrix("h")
    cost, wrt = KINDS[kind](x, h, np.random.default_rng(5))
    outs = [cost, *symdnn.grad(cost, wrt)]
    f = symdnn.function([x, h], outs, memory_budget=budget, on_unused_input="ignore")
    rng = np.random.default_rng(6)
    return f, (rng.standard_normal((STEPS, BATCH, WIDE)), rng.standard_normal((BATCH, WIDE)))


def close(found, wanted):
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_values_and_the_bound(kind):
    plain, given = compiled(kind)
    want, peak = plain(*given), plain.memory_report().peak
    f, _ = compiled(kind, int(peak * SHARES.get(kind, 0.6)))
    close(f(*given), want)
    report = f.memory_report()
    assert report.peak <= int(peak * SHARES.get(kind, 0.6))
    assert any(loop.pieces for loop in report.loops)
    assert all(loop.steps in (0, STEPS) for loop in report.loops)


def test_a_bound_with_room_changes_nothing():
    plain, given = compiled("simple")
    want = plain(*given)
    f, _ = compiled("simple", plain.memory_report().peak)
    for a, b in zip(f(*given), want, strict=True):
        np.testing.assert_array_equal(a, b)
    (loop,) = f.memory_report().loops
    assert (loop.pieces, loop.why) == ((), "the budget has room for it")


def test_states_are_bitwise_equal():
    """Steps are the same; only sums over the steps are divided."""
    plain, given = compiled("lstm")
    want = plain(*given)
    f, _ = compiled("lstm", int(plain.memory_report().peak * 0.5))
    np.testing.assert_array_equal(f(*given)[0], want[0])
    assert f.memory_report().loops[0].pieces


@pytest.mark.cpu
def test_less_memory_stores_fewer_steps():
    """On a GPU the workspace of one product of all steps is most of this program's memory."""
    peak = run(256)[0].memory_report().peak
    again = []
    for share in (0.5, 0.3, 0.15):
        f = run(256, int(peak * share))[0]
        assert f.memory_report().peak <= peak * share
        (loop,) = f.memory_report().loops
        again.append(loop.steps_again)
    assert again == sorted(again)
    assert again[-1] > again[0]


def run(steps, budget=None):
    """A recurrence of many steps: the function, and what it returns."""
    rng = np.random.default_rng(0)
    x, h = T.dmatrix("x"), T.dmatrix("h")
    w = weights(rng, 32, 32)
    cost = (symdnn.scan(simple, x, h, w)[0][-1] ** 2).sum()
    f = symdnn.function([x, h], [cost, *symdnn.grad(cost, [w, h])], memory_budget=budget)
    return f, f(rng.standard_normal((steps, 32)), rng.standard_normal((16, 32)))


def test_each_length_has_its_own_choice():
    rng = np.random.default_rng(0)
    f, _ = run(256, int(run(256)[0].memory_report().peak * 0.5))
    assert f.memory_report().loops[0].steps == 256
    for steps in (255, 16, 256):
        given = rng.standard_normal((steps, 32)), rng.standard_normal((16, 32))
        x, h = (v.copy() for v in given)
        w = f.get_shared()[0].get_value()
        states = [h]
        for v in x:
            states.append(np.tanh(states[-1] @ w + v))
        np.testing.assert_allclose(f(*given)[0], (states[-1] ** 2).sum(), rtol=1e-9)
        assert f.memory_report().loops[0].steps in ((0,) if steps == 16 else (steps,))


def test_a_number_of_steps_is_an_argument():
    n, h, w = T.lscalar("n"), T.dmatrix("h"), weights(np.random.default_rng(0), WIDE, WIDE)

    def made(budget):
        last = symdnn.scan(lambda a: T.tanh(T.dot(a, w)), outputs_info=h, n_steps=n)[0][-1]
        outs = [(last**2).sum(), *symdnn.grad((last**2).sum(), [w, h])]
        return symdnn.function([n, h], outs, memory_budget=budget)

    start = new_rng().standard_normal((BATCH, WIDE))
    plain = made(None)
    plain(96, start)
    f = made(int(plain.memory_report().peak * 0.4))
    for steps, whole in ((96, False), (3, True), (90, False)):
        close(f(steps, start), plain(steps, start))
        (loop,) = f.memory_report().loops
        assert loop.steps == (0 if whole else steps)


def test_masks_are_the_same_when_steps_run_again():
    def trained(budget):
        rng, stream = np.random.default_rng(2), RandomStream(3)
        x, h, w = T.dtensor3("x"), T.dmatrix("h"), weights(rng, WIDE, WIDE)

        def step(v, before):
            return T.nnet.dropout(simple(v, before, w), 0.4, stream)

        last, updates = symdnn.scan(step, x, h)
        cost = (last[-1] ** 2).sum()
        outs = [cost, *symdnn.grad(cost, [w, h])]
        f = symdnn.function([x, h], outs, updates=updates, memory_budget=budget)
        given = rng.standard_normal((STEPS, BATCH, WIDE)), rng.standard_normal((BATCH, WIDE))
        return f, [f(*given), f(*given)]

    plain, (first, second) = trained(None)
    for share in (0.5, 0.4, 0.3, 0.25):
        f, found = trained(int(plain.memory_report().peak * share))
        if f.memory_report().loops[0].steps_again:
            break
    assert f.memory_report().loops[0].steps_again
    close(found[0], first)
    close(found[1], second)
    assert not np.allclose(first[0], second[0])


def test_parameters_are_updated():
    def trained(budget):
        rng = np.random.default_rng(2)
        x, h, w = T.dtensor3("x"), T.dmatrix("h"), weights(rng, WIDE, WIDE)
        cost = (symdnn.scan(simple, x, h, w)[0][-1] ** 2).mean()
        updates = [(w, w - 0.1 * symdnn.grad(cost, w))]
        f = symdnn.function([x, h], cost, updates=updates, memory_budget=budget)
        given = rng.standard_normal((STEPS, BATCH, WIDE)), rng.standard_normal((BATCH, WIDE))
        return f, [f(*given), f(*given), f(*given), w.get_value()]

    plain, want = trained(None)
    f, found = trained(int(plain.memory_report().peak * 0.6))
    assert f.memory_report().loops[0].pieces
    close(found, want)


@pytest.mark.parametrize(
    ("word", "why"),
    [("until", "only after the loop"), ("truncated", "only after the loop"), ("twice", "gradient")],
)
def test_what_stays_is_named(word, why):
    x, h, w = T.dtensor3("x"), T.dmatrix("h"), weights(new_rng(), WIDE, WIDE)
    if word == "until":
        found = symdnn.scan(
            lambda v, a: (simple(v, a, w), {}, symdnn.until((a**2).sum() < 0)), x, h
        )[0]
    else:
        found = symdnn.scan(simple, x, h, w, truncate_gradient=5 if word == "truncated" else -1)[0]
    cost = (found[-1] ** 2).sum()
    wrt = symdnn.grad(cost, w)
    if word == "twice":
        wrt = symdnn.grad((wrt**2).sum(), w)
    f = symdnn.function([x, h], [cost, wrt], memory_budget="1GB")
    left = f.stages.loops.left
    assert left
    assert any(why in reason for reason in left.values()), list(left.values())


def test_an_impossible_bound_says_the_least():
    _, given = compiled("simple")
    f, _ = compiled("simple", 1000)
    with pytest.raises(OverBudget, match="is the least that was found"):
        f(*given)


def test_memory_of_a_call_counts_what_passes_between_regions():
    f, given = compiled("hoisted")
    values = dict(zip(f.fgraph.inputs, given, strict=True))
    values |= {v: v.get_value() for v in f.get_shared()}
    f(*given)
    memory = call_memory(f.stages.program, *sizes_of_values(values))
    each = BATCH * WIDE * 8
    assert memory.peak > 2 * STEPS * each
    assert memory.peak == f.memory_report().peak
    assert len(memory.own) == len(f.stages.program.regions)


@pytest.mark.parametrize("kind", KINDS)
def test_what_enters_a_program_is_what_no_region_of_it_makes(kind):
    f, _ = compiled(kind)
    program = f.stages.program
    assert set(entering(program)) <= set(program.inputs)
    assert set(entering(program)) >= set(f.stages.fgraph.inputs)


def test_values_that_nothing_reads_are_dropped():
    f, _ = compiled("hoisted")
    program = f.stages.program
    dead = dead_after(program, program.regions)
    gone = [v for those in dead for v in those]
    assert gone
    assert len(set(gone)) == len(gone)
    assert not set(gone) & set(program.outputs)
