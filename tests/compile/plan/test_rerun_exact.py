"""The integer program of what runs again: it is exact, and the search comes near to it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.compile.plan.memory_order import eager
from symdnn.compile.plan.recompute import Rebuilt
from symdnn.compile.plan.rerun_exact import Solver
from symdnn.compile.plan.rerun_search import search
from symdnn.compile.plan.reruns import Found, Reruns, Way
from tests.compile.plan.test_recompute import live_bytes, problem


def random_step(seed, count=7):
    """The gradients of a random graph of products and elementwise nodes, with its arguments."""
    rng = np.random.default_rng(seed)
    x, ws = T.fmatrix("x"), []
    values = [x]
    for _ in range(count):
        a, b = (values[-1 - int(rng.integers(min(len(values), 4)))] for _ in range(2))
        if rng.random() < 0.4:
            wide = 64
            ws.append(symdnn.shared((rng.standard_normal((wide, wide)) / 8).astype("float32")))
            values.append(T.tanh(T.dot(a, ws[-1])) + b)
        else:
            z = a - a.mean(axis=1, keepdims=True)
            values.append(
                [T.sin(z) * b, z + T.nnet.sigmoid(b), T.exp(-(z**2)) - b][rng.integers(3)]
            )
    cost = (values[-1] ** 2).mean()
    outs = [cost, *symdnn.grad(cost, [x, *ws], disconnected_inputs="ignore")]
    return [x], outs, [rng.standard_normal((256, 64)).astype("float32")]


def reruns_of(inputs, outs, arrays):
    f = symdnn.function(inputs, outs)
    f(*arrays)
    return Reruns(eager(f.plans()[0].specialised))


@pytest.mark.parametrize("seed", range(3))
def test_the_program_finds_the_best_of_all_schedules(seed):
    """Of those in which three units may run before any stage."""
    reruns = problem(layers=2)
    rng = np.random.default_rng(seed)
    reruns.free = sorted(rng.choice(reruns.free, 3, replace=False).tolist())
    stages, found = range(len(reruns.stages)), []
    of_stage = [
        list(itertools.compress(reruns.free, on)) for on in itertools.product((0, 1), repeat=3)
    ]
    for chosen in itertools.product(of_stage, repeat=len(stages)):
        runs = list(zip(stages, chosen, strict=True))
        seconds = sum(reruns.cost[u] for units in chosen for u in units)
        found.append((reruns.peak_of(runs), seconds))
    whole, least = reruns.peak_of([]), min(peak for peak, _ in found)
    for bound in (whole, 0.97 * whole, 0.93 * whole, (whole + least) / 2, least):
        best = min((seconds for peak, seconds in found if peak <= bound * (1 + 1e-9)), default=None)
        exact = Solver(reruns, 20.0).improved(bound * (1 + 1e-9), Found(np.inf, np.inf))
        if best is None:
            assert exact.found.peak == np.inf
        else:
            assert exact.found.seconds == pytest.approx(best, rel=1e-4, abs=1e-4 * reruns.total)
            assert exact.found.peak <= bound * (1 + 1e-9)
            assert exact.least_seconds <= exact.found.seconds
    assert Solver(reruns).improved(0.9 * least, Found(np.inf, np.inf)).found.peak == np.inf


@pytest.mark.parametrize("seed", range(8))
def test_the_search_is_near_the_best_in_random_graphs(seed):
    reruns = reruns_of(*random_step(seed))
    whole = reruns.cost_of([Way.KEPT] * len(reruns.units)).peak
    for share, most in {0.9: 0.02, 0.75: 0.1, 0.6: 0.15}.items():
        choice = search(reruns, share * whole)
        assert choice is not None
        exact = Solver(reruns).improved(share * whole, choice.found)
        if choice.found.peak <= share * whole:
            assert exact.found.peak <= share * whole
            assert exact.found.seconds <= choice.found.seconds
            assert exact.least_seconds is not None
            assert choice.found.seconds - exact.least_seconds <= most * reruns.total
        made = Rebuilt(reruns, exact.found)
        again = sum(reruns.seconds[made.first[n]] for n in made.again)
        assert again == pytest.approx(exact.found.seconds)
        assert live_bytes(reruns, made) <= exact.found.peak * 1.02


@pytest.mark.parametrize("seed", range(4))
def test_random_graphs_keep_to_the_bound_and_have_the_same_numbers(seed):
    inputs, outs, arrays = random_step(seed, count=6)
    free = symdnn.function(inputs, outs)
    want = free(*arrays)
    budget = int(0.75 * free.memory_report().peak)
    f = symdnn.function(inputs, outs, memory_budget=budget)
    try:
        got = f(*arrays)
    except symdnn.errors.OverBudget:
        return
    (said,) = f.memory_report().recomputed
    assert f.memory_report().peak == said.peak <= budget
    assert said.gap is not None
    assert 0 <= said.gap <= said.share
    assert "no choice takes less than" in str(said)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_large_segment_has_no_program():
    reruns = problem(layers=2)
    solver = Solver(reruns)
    reruns.stages = reruns.stages * 1000
    assert solver.small
    assert not Solver(reruns).small
    found = Found(np.inf, 1.0)
    assert Solver(reruns).improved(0.0, found).found is found
    assert Solver(reruns, seconds=0.0).improved(0.0, found).gap(1.0) is None
