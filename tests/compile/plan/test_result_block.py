"""With a bound on memory values lie where results will be."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.compile.plan import rerun_exact, result_block
from symdnn.compile.plan.packing import Buffer, fill

LAYERS, WIDE, BATCH = 5, 64, 160


@pytest.fixture(autouse=True)
def _without_the_integer_program(monkeypatch):
    """It takes seconds, and the search is enough here."""
    monkeypatch.setattr(rerun_exact, "_MOST_PAIRS", 0)


def gradients(budget=None, more=(), **words):
    """A function of a batch: the gradients of a network of which each layer has a matrix."""
    rng = np.random.default_rng(0)
    ws = [symdnn.shared(rng.standard_normal((WIDE, WIDE)) / 10) for _ in range(LAYERS)]
    x = h = T.dmatrix("x")
    for w in ws:
        a, b = T.split(T.dot(h, w), [WIDE // 2] * 2, 2, axis=1)
        h = h + T.concatenate([T.sin(b), T.cos(a)], axis=1)
    outs = symdnn.grad((h**2).sum(), ws)
    outs = [*outs, *(f(outs) for f in more)]
    return symdnn.function([x], outs, memory_budget=budget, **words)


def points(seed=0):
    return np.random.default_rng(seed).standard_normal((BATCH, WIDE))


def bounded(share, **words):
    """The function without a bound, and with that share of its activations beside the results."""
    free = gradients(**words)
    made = sum(a.nbytes for a in free(points()))
    rest = free.memory_report().peak - made
    return free, gradients(int(made + share * rest), **words)


MORE = {
    "nothing more": (),
    "views": (lambda g: g[0].T, lambda g: g[1].reshape((-1,)), lambda g: g[2][::2, 1:]),
    "a result twice": (lambda g: g[3],),
    "results of results": (lambda g: g[0] * 2, lambda g: T.tanh(g[0] * 3), lambda g: g[1].sum()),
    "halves": (lambda g: T.split(g[4] + 1, [WIDE // 2] * 2, 2)[0],),
    "one whose size depends on data": (lambda g: g[0].nonzero()[0],),
}


@pytest.mark.cpu
@pytest.mark.parametrize("more", list(MORE))
@pytest.mark.parametrize("mode", [None, "NanGuardMode"])
def test_results_are_the_same_bits(more, mode):
    free, f = bounded(0.5, more=MORE[more], mode=mode)
    wanted = [free(points(seed)) for seed in range(4)]
    kept = [f(points(seed)) for seed in range(4)]  # later calls write nothing into earlier results
    for got, want in zip(kept, wanted):
        for a, b in zip(got, want, strict=True):
            np.testing.assert_array_equal(a, b)
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
    assert f.plans()[0].memory.block is not None


@pytest.mark.cpu
def test_less_is_computed_again_than_beside_the_results(monkeypatch):
    _, f = bounded(0.5)
    f(points())
    with monkeypatch.context() as patch:
        patch.setattr(result_block, "_LEAST_BYTES", 1 << 40)
        _, g = bounded(0.5)
        g(points())
    assert f.memory_report().peak <= g.memory_report().recomputed[0].budget
    with_block, beside = (h.memory_report().recomputed[0].share for h in (f, g))
    assert with_block < 0.5 * beside


@pytest.mark.cpu
def test_the_report_counts_arena_and_block():
    _, f = bounded(0.5)
    made = sum(a.nbytes for a in f(points()))
    memory, report = f.plans()[0].memory, f.memory_report()
    assert report.peak == memory.arena_bytes + memory.views[memory.block].buffer.nbytes
    assert made <= report.peak - memory.arena_bytes < made + 64 * LAYERS


@pytest.mark.cpu
def test_values_that_are_live_together_do_not_overlap():
    _, f = bounded(0.5)
    f(points())
    views = f.plans()[0].memory.views.values()
    inside = list({id(v.buffer): v.buffer for v in views if v.buffer.kind == "in block"}.values())
    assert sum(b.variable not in f.fgraph.outputs for b in inside) > 3
    for i, a in enumerate(inside):
        for b in inside[:i]:
            together = a.first <= b.last and b.first <= a.last
            apart = a.offset + a.nbytes <= b.offset or b.offset + b.nbytes <= a.offset
            assert apart or not together


def test_a_bound_that_holds_anyway_has_results_of_their_own():
    free = gradients()
    free(points())
    f = gradients(free.memory_report().peak)
    first = f(points())[0]
    assert f.plans()[0].memory.block is None
    assert first.base is None or first.base.nbytes == first.nbytes


def test_fill_takes_the_lowest_places_and_leaves_what_has_none():
    placed = [Buffer(None, "in block", 100, 5, 9, 0), Buffer(None, "in block", 100, 3, 9, 128)]
    early, late, long = (Buffer(None, "arena", 128, *steps) for steps in ((0, 2), (3, 4), (0, 4)))
    before = Buffer(None, "arena", 100, 0, 2)
    assert fill(256, placed, [early, late, long, before]) == [early, late, before]
    assert (early.offset, late.offset, before.offset) == (0, 0, 128)
