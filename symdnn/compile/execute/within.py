"""Runs the program that fits a memory budget at the sizes of a call."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from symdnn.compile.execute.executor import Executor
from symdnn.compile.execute.targets import Devices
from symdnn.compile.plan.call_memory import sizes_of_values
from symdnn.compile.plan.loop_budget import LoopBudget, LoopWithin, Within
from symdnn.compile.plan.loop_choice import known_sizes
from symdnn.compile.plan.plan import Plan, PlanCache
from symdnn.compile.plan.stages import Stages
from symdnn.compile.program.program import copied_results
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.runtime import Watcher
from symdnn.graph.traverse import leaves, toposort
from symdnn.graph.variable import Apply, Shared, Variable
from symdnn.ops.control.scan import Scan

__all__ = ["ExecutorWithin", "executor_of"]

Values = dict[Variable, Any]

#: The most programs that are kept, for the sizes that were met last.
_MOST = 16


def executor_of(stages: Stages) -> Executor:
    """What runs a function's program, or several by the sizes of a call."""
    devices = Devices(stages.target)
    if stages.loops is not None:
        return ExecutorWithin(stages.loops, stages.fgraph, devices)
    return Executor(stages.program, devices)


class ExecutorWithin(Executor):
    """Runs one of several programs of a function, by the sizes of the call.

    The first call of new sizes judges the plain program, and may compile another one.
    """

    def __init__(self, loops: LoopBudget, fgraph: FunctionGraph, devices: Devices) -> None:
        super().__init__(loops.program, devices)
        self.loops_within, self.inputs, self.count = loops, fgraph.inputs, len(fgraph.outputs)
        self._found: OrderedDict[Any, tuple[Within, Executor]] = OrderedDict()
        steps = [n.inputs[0] for n in fgraph.toposort() if isinstance(n.op, Scan)]
        numbers = [v for v in leaves(steps) if v.type.is_integer_scalar]
        self._steps = (
            steps if any(v in self.inputs or isinstance(v, Shared) for v in numbers) else []
        )
        self._of_steps = toposort(self._steps)
        self._copied = set(copied_results(loops.program, self.count))

    def run(self, values: Values, watcher: Watcher | None = None) -> list[Any]:
        """Values of the program's outputs."""
        shapes, numbers = sizes_of_values(values)
        key = self._key(shapes, numbers)
        if key in self._found:
            self._found.move_to_end(key)
        else:
            self._found[key] = self._made(shapes, numbers)
            if len(self._found) > _MOST:
                self._found.popitem(last=False)
        within, executor = self._found[key]
        if within.inputs is None:
            return executor.run(values, watcher)
        own = dict(zip(self.inputs, within.inputs, strict=True))
        results = executor.run({own.get(v, v): a for v, a in values.items()}, watcher)
        more = set(copied_results(within.program, self.count)) - self._copied
        return self.runtime.fresh_all(results, sorted(more)) if more else results

    def _key(self, shapes: dict[Variable, tuple[int, ...]], numbers: Values) -> Any:
        key: tuple[Any, ...] = tuple(shapes.values())
        if self._steps:
            _, found = known_sizes(self._of_steps, shapes, numbers)
            key += tuple(None if v not in found else int(found[v]) for v in self._steps)
        return key

    def _made(
        self, shapes: dict[Variable, tuple[int, ...]], numbers: Values
    ) -> tuple[Within, Executor]:
        found = self.loops_within.within(self.inputs, shapes, numbers)
        return found, Executor(found.program, self.devices)

    # -- of all programs ------------------------------------------------------------------------

    def plan_caches(self) -> Iterator[PlanCache]:
        for _, executor in self._found.values():
            yield from executor.plan_caches()

    def loop_states(self) -> Iterator[tuple[Apply, str]]:
        for _, executor in self._found.values():
            yield from executor.loop_states()

    def plans(self) -> list[Plan]:
        return [p for cache in self.plan_caches() for p in cache.plans.values()]

    @property
    def is_current(self) -> bool:
        return all(executor.is_current for _, executor in self._found.values())

    def of_last_call(self, sizes: Any) -> tuple[int, tuple[LoopWithin, ...]]:
        within, _ = (None, None) if sizes is None else self._found.get(self._key(*sizes), (None, 0))
        if within is None:
            return 0, ()
        return 0 if within.memory is None else within.memory.peak, within.loops
