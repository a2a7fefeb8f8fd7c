"""A function's loops, and the segments around them, as one CUDA graph.

At first each loop is a graph, and so is each segment. Between two of them the host looks up plans
and passes arrays on, which takes longer than short loops. Once all of them are graphs or kernels,
they are captured together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import numpy as np

from symdnn.compile.plan.call_memory import entering
from symdnn.compile.plan.plan import Plan, PlanCache
from symdnn.compile.program.program import Loop, Program, Segment
from symdnn.graph.place import HOST
from symdnn.graph.runtime import Runtime, Watcher
from symdnn.graph.variable import Constant, Variable
from symdnn.ops.control.scan import Scan
from symdnn.ops.lowered.transfer import HostFromGpu

Values = dict[Variable, Any]


class OneLoop(Protocol):
    """A loop's runner."""

    #: What captures it as a whole, by signature; None if nothing does.
    graphs: Any


class Runner(Protocol):
    """What runs a region."""

    def run(self, values: Values, watcher: Watcher | None) -> None:
        """Add the values of the region's results."""

    def plan_caches(self) -> Iterator[PlanCache]:
        """The plan cache of each segment in it."""

    def loops(self) -> Iterator[OneLoop]:
        """The loops in it, outside of branches."""

    def is_captured(self) -> bool:
        """Whether its last run was graphs and kernels of whole loops, and will stay so."""

    def last_plans(self) -> list[Plan]:
        """The plans of its last run."""


class Joined:
    """Runs regions, as one graph where they repeat. It has the interface of a loop's steps."""

    #: The most kernels and copies in one graph: of more the host's work is a small part, and a
    #: second capture would need their memory twice for a while.
    most_nodes = 2048

    def __init__(
        self, program: Program, runners: Sequence[Runner], dead: Sequence[Sequence[Variable]],
        runtime: Runtime,
    ) -> None:  # fmt: skip
        self.runners, self.dead, self.outputs = runners, dead, program.outputs
        self.entering = entering(program)
        self._numbers = [v.type.is_integer_scalar for v in self.entering]
        self.graphs = runtime.loop_graphs(False)

    @staticmethod
    def may_run(program: Program, runtime: Runtime) -> bool:
        """Whether there are loops, and the device needs nothing from the host in between."""
        regions = program.called_regions
        return (
            len(regions) > 1
            and any(isinstance(r, Loop) for r in regions)
            and is_enqueued(program)
            and not any(s.updates for s in program.segments())
            and runtime.loop_graphs(False) is not None
        )

    def run(self, values: Values) -> list[Any]:
        """The program's outputs. Arrays of the host are no part of a graph, only numbers are."""
        inputs = [values[v] for v in self.entering]
        if any(isinstance(a, np.ndarray) and not n for a, n in zip(inputs, self._numbers)):
            return self.work(inputs)
        found: list[Any] = self.graphs.run(inputs, self)
        return found

    def work(self, inputs: Sequence[Any]) -> list[Any]:
        """Run one region after the other."""
        values: Values = dict(zip(self.entering, inputs))
        for runner, dead in zip(self.runners, self.dead):
            runner.run(values, None)
            for v in dead:
                values.pop(v, None)
        return [v.data if isinstance(v, Constant) else values[v] for v in self.outputs]

    def steps(self, inputs: Sequence[Any]) -> int:
        """How often a call runs the regions."""
        return 1

    @property
    def plans(self) -> list[Plan]:
        """The plans of the last run."""
        return [p for runner in self.runners for p in runner.last_plans()]

    def is_ready(self) -> bool:
        """Whether a graph of all would have the same kernels as the graphs that there are."""
        return all(runner.is_captured() for runner in self.runners)

    def is_current(self, plans: Sequence[Plan]) -> bool:
        """Whether plans are still in their caches; counts as a use of them."""
        return are_current(plans, list(self._plan_caches()))

    def forgetting_plans_if_it_fails(self) -> AbstractContextManager[None]:
        """Drop the plans that were made inside, if an error leaves this context."""
        return forgetting_new_plans(list(self._plan_caches()))

    def forget_inner_graphs(self) -> None:
        """Free the graphs of the loops: they are part of a graph of the whole."""
        for runner in self.runners:
            for loop in runner.loops():
                if loop.graphs is not None:
                    loop.graphs.signatures.clear()

    def note_captured(self, plans: Sequence[Plan], inputs: Sequence[Any]) -> None:
        """Free the graphs of segments, and say for reports what runs them."""
        for runner in self.runners:
            if not any(True for _ in runner.loops()):
                for p in runner.last_plans():
                    p.bound.join("captured with the function's loops")

    def refuse(self, plans: Sequence[Plan], why: str) -> None:
        """There can be no graph of all; those of the parts stay."""

    def _plan_caches(self) -> Iterator[PlanCache]:
        for runner in self.runners:
            yield from runner.plan_caches()


def is_enqueued(body: Program) -> bool:
    """Whether the host reads no results of a step, and does no more than arithmetic of sizes."""
    for region in body.regions:
        if isinstance(region, Loop):
            op = region.node.op
            if not isinstance(op, Scan) or op.until or not is_enqueued(region.body):
                return False
            continue
        if not isinstance(region, Segment) or region.guard is not None:
            return False
        if region.nodes and region.place == HOST:
            return False
        nodes = (*region.host, *region.nodes)
        if any(isinstance(n.op, HostFromGpu) for n in nodes):
            return False
        if any(n.op.host_callback or n.op.ordered for n in region.host):
            return False
    return True


def are_current(plans: Sequence[Plan], caches: Sequence[PlanCache]) -> bool:
    """Whether each of the plans is still in one of the caches; counts as a use of it."""
    return all(any(cache.used(p) for cache in caches) for p in plans)


@contextmanager
def forgetting_new_plans(caches: Sequence[PlanCache]) -> Iterator[None]:
    """Drop the plans that were made inside, if an error leaves this context."""
    before = [p for cache in caches for p in cache.plans.values()]
    try:
        yield
    except BaseException:  # Ctrl-C, too
        for cache in caches:
            for plan in [p for p in cache.plans.values() if not any(p is q for q in before)]:
                cache.forget(plan)
        raise
