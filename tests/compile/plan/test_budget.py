"""Algorithms chosen together: the plan's own memory is the measure, all choices the reference."""

from dataclasses import dataclass, replace
from itertools import product
from math import inf, sqrt

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.compile.plan.memory import plan_memory
from symdnn.compile.plan.offline_plan import DescribedOracle
from symdnn.compile.plan.packing import Buffer, end_at, room_at
from symdnn.compile.plan.specialise import Choice
from symdnn.config import config
from symdnn.errors import OverBudget
from symdnn.graph.kernel import Alternative, Kernel

GPU = symdnn.Mode(target="cuda:sm_90")


@dataclass(frozen=True)
class FakeConv(Kernel):
    """A convolution with a known table; ``chosen`` is the row that it settled to."""

    table: tuple[Alternative, ...] = ()
    chosen: int = -1
    name: str = "fake.conv"

    def alternatives(self, call, room_bytes):
        return [replace(a, kernel=replace(self, chosen=i)) for i, a in enumerate(self.table)]

    def workspace_bytes(self, call):
        return 10**9  # what it needs where nothing is chosen together


class Oracle:
    """Gives each convolution a random table of up to four rows."""

    def __init__(self, rng):
        self.rng = rng

    def choose(self, call):
        if not type(call.op).__name__.startswith("GpuDnnConv"):
            return DescribedOracle().choose(call)
        rng = self.rng
        rows = [
            Alternative(FakeConv(), int(rng.integers(0, 5000)), float(rng.integers(1, 30)),
                        float(rng.integers(1, 30)), float(rng.choice([0.0, 1e-6, 2e-5, 3e-4])))
            for _ in range(rng.integers(1, 4))
        ]  # fmt: skip
        rows.append(Alternative(FakeConv(), int(rng.integers(0, 700)), 40.0, 40.0, 1e-7))
        kernel = FakeConv(tuple(rows))
        return Choice(kernel, kernel.workspace_bytes(call))


def net(layers):
    """Training of some convolutions of different widths, with a branch."""
    x = T.ftensor4("x")
    filters, h, old = [], x, None
    for i in range(layers):
        inside = 3 if i == 0 else 4
        filters.append(symdnn.shared(np.zeros((4, inside, 3, 3), "float32"), f"w{i}"))
        h = T.nnet.relu(T.nnet.conv2d(h, filters[-1], border_mode=1))
        if old is not None and i % 2:
            h = h + old
        old = h
    loss = h.sum()
    updates = [(w, w - 0.1 * T.grad(loss, w)) for w in filters[:1]]
    return symdnn.function([x], loss, updates=updates, mode=GPU)


FUNCTIONS = {n: net(n) for n in (1, 2)}


def planned(layers, rng, **flags):
    """(the plan with most nodes, the flags) of a net."""
    with config.change_flags({k.replace("__", "."): v for k, v in flags.items()}):
        plans = FUNCTIONS[layers].stages.specialise({"x": (2, 3, 6, 5)}, Oracle(rng))
    return max(plans, key=lambda p: len(p.specialised.choices))


def convolutions(spec):
    return [n for n, c in spec.choices.items() if isinstance(c.kernel, FakeConv)]


def arena_of(spec, nodes, rows):
    """The arena of the plan in which these nodes run these rows of their tables."""
    choices = dict(spec.choices)
    for n, row in zip(nodes, rows):
        choices[n] = replace(choices[n], workspace_bytes=row.workspace_bytes)
    made = replace(spec, choices=choices, budgeted=frozenset(nodes))
    return plan_memory(made).arena_bytes


def least_cost(spec, nodes, budget, bound):
    """The least time of all choices whose arena is within the budget; infinite without one."""
    tables = [spec.choices[n].kernel.table for n in nodes]
    none = [Alternative(FakeConv(), 0)] * len(nodes)
    limit, best = arena_of(spec, nodes, none) + budget, inf
    for rows in product(*tables):
        if bound and sqrt(sum(r.error**2 for r in rows)) > bound:
            continue
        ms = sum(r.ms for r in rows)
        if ms < best and arena_of(spec, nodes, rows) <= limit:
            best = ms
    return best


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("seed", range(8))
def test_the_choice_is_the_fastest_of_all_whose_arena_is_within_the_budget(layers, seed, rng):
    """Random tables, budgets and bounds; every choice is planned by the real planner."""
    budget, bound = int(rng.integers(1, 4000)), float(rng.choice([0.0, 2e-5, 3.1e-4]))
    free = planned(layers, np.random.default_rng(seed))
    nodes = convolutions(free.specialised)
    assert len(nodes) == (2 if layers == 1 else 4)
    wanted = least_cost(free.specialised, nodes, budget, bound)
    flags = {"dnn__workspace_budget": budget, "dnn__conv__error_bound": bound}
    if wanted == inf:
        with pytest.raises(OverBudget):
            planned(layers, np.random.default_rng(seed), **flags)
        return
    found = planned(layers, np.random.default_rng(seed), **flags)
    spec = found.specialised
    rows = [spec.choices[n].kernel.table[spec.choices[n].kernel.chosen] for n in nodes]
    assert sum(r.ms for r in rows) == wanted
    none = [Alternative(FakeConv(), 0)] * len(nodes)
    assert found.memory.arena_bytes == arena_of(spec, nodes, rows)
    assert found.memory.arena_bytes <= arena_of(spec, nodes, none) + budget
    assert {n: b.nbytes for n, b in found.memory.workspaces.items()} == {
        n: r.workspace_bytes for n, r in zip(nodes, rows) if r.workspace_bytes
    }


def test_without_a_budget_each_chooses_for_itself(rng):
    plan = planned(1, rng)
    assert plan.specialised.budgeted == frozenset()
    assert {c.kernel.chosen for c in plan.specialised.choices.values()
            if isinstance(c.kernel, FakeConv)} == {-1}  # fmt: skip


class OneRow(Oracle):
    """Every convolution needs the same workspace."""

    def choose(self, call):
        found = super().choose(call)
        if isinstance(found.kernel, FakeConv):
            row = Alternative(FakeConv(), 100_000, 1.0, error=1e-3)
            found = replace(found, kernel=FakeConv((row,)))
        return found


def test_a_budget_that_is_too_small_says_which_would_do(rng, monkeypatch):
    monkeypatch.setitem(globals(), "Oracle", OneRow)
    with pytest.raises(OverBudget, match=r"=5 is too small: .* needs a workspace of 100000") as e:
        planned(1, rng, dnn__workspace_budget=5)
    assert __file__ in "".join(e.value.__notes__)
    would_do = int(str(e.value).split("dnn.workspace_budget=")[2].split()[0])
    planned(1, rng, dnn__workspace_budget=would_do)
    with pytest.raises(OverBudget):
        planned(1, rng, dnn__workspace_budget=would_do - 64)


def test_an_error_bound_that_nothing_keeps_says_the_least(rng, monkeypatch):
    monkeypatch.setitem(globals(), "Oracle", OneRow)
    flags = {"dnn__workspace_budget": 1 << 20, "dnn__conv__error_bound": 1e-4}
    with pytest.raises(OverBudget, match=r"error_bound=0.0001 .* at least 0.00141"):
        planned(1, rng, **flags)


@pytest.mark.parametrize("objective", ["time", "energy", "memory", "0.5*time+0.5*energy"])
def test_objectives_decide(objective, monkeypatch, rng):
    rows = {"time": (4000, 1.0, 9.0), "energy": (3000, 9.0, 1.0), "memory": (0, 8.0, 8.0),
            "0.5*time+0.5*energy": (2000, 2.0, 2.0)}  # fmt: skip

    class Known(Oracle):
        def choose(self, call):
            found = super().choose(call)
            if isinstance(found.kernel, FakeConv):
                table = tuple(Alternative(FakeConv(), *row) for row in rows.values())
                found = replace(found, kernel=FakeConv(table))
            return found

    monkeypatch.setitem(globals(), "Oracle", Known)
    flags = {"dnn__workspace_budget": 1 << 20, "dnn__conv__objective": objective}
    spec = planned(1, rng, **flags).specialised
    assert {spec.choices[n].kernel.chosen for n in convolutions(spec)} == {
        list(rows).index(objective)
    }


def test_rooms_between_placed_buffers():
    placed = [Buffer(None, "arena", 100, 0, 5, 0), Buffer(None, "arena", 64, 2, 3, 512)]
    assert room_at(1, placed, 1000) == 960 - 128
    assert room_at(2, placed, 1000) == 384  # of two gaps the larger one
    assert room_at(2, placed, 1300) == 1280 - 576
    assert room_at(6, placed, 1000) == 960
    assert (end_at(2, placed, 384), end_at(2, placed, 385)) == (512, 576 + 448)
