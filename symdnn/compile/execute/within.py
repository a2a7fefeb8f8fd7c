"""Runs the program that fits a memory budget at the sizes of a call."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from symdnn.compile.execute.executor import Executor
from symdnn.compile.execute.targets import Devices
from symdnn.compile.plan.call_memory import sizes_of_values
from symdnn.compile.plan.known_sizes import known_sizes
from symdnn.compile.plan.loop_budget import LoopBudget, LoopWithin, Within
from symdnn.compile.plan.plan import Plan, PlanCache
from symdnn.compile.plan.stages import Stages
from symdnn.compile.program.program import copied_results
from symdnn.errors import OverBudget
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.runtime import Watcher
from symdnn.graph.traverse import leaves, toposort
from symdnn.graph.variable import Apply, Shared, Variable
from symdnn.ops.control.scan import Scan

Values = dict[Variable, Any]

#: The most programs that are kept, for the sizes that were met last.
_MOST = 16


def executor_of(stages: Stages) -> Executor:
    """What runs a function's program, or several by the sizes of a call."""
    devices = Devices(stages.target)
    if stages.loops is not None:
        return ExecutorWithin(stages.loops, stages.fgraph, devices)
    return Executor(stages.program, devices)


@dataclass(frozen=True)
class _Found:
    """What runs calls of some sizes.

    ``own`` has the program's own inputs for those of the plain one, where it has others. The
    results ``fresh`` are copied, which are in memory of their own in the plain program.
    """

    within: Within
    executor: Executor
    own: Mapping[Variable, Variable] = field(default_factory=dict)
    fresh: Sequence[int] = ()


class ExecutorWithin(Executor):
    """Runs one of several programs of a function, by the sizes of the call.

    The first call of new sizes judges the plain program, and may compile another one.
    """

    def __init__(self, loops: LoopBudget, fgraph: FunctionGraph, devices: Devices) -> None:
        super().__init__(loops.program, devices)
        self.loops_within, self.inputs, self.count = loops, fgraph.inputs, len(fgraph.outputs)
        self._found: OrderedDict[Any, _Found] = OrderedDict()
        self._last: Within | None = None
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
        key, self._last = self._key(shapes, numbers), None
        if key in self._found:
            self._found.move_to_end(key)
        else:
            self._found[key] = self._made(shapes, numbers)
            if len(self._found) > _MOST:
                self._found.popitem(last=False)
        found = self._found[key]
        self._last = found.within
        try:
            return self._run(found, values, watcher)
        except OverBudget as error:
            whole = self.loops_within.budget
            error.add_note(f"Of memory_budget={whole} the rest waits for other parts of the call.")
            raise

    def _run(self, found: _Found, values: Values, watcher: Watcher | None) -> list[Any]:
        own = found.own
        given = {own.get(v, v): a for v, a in values.items()} if own else values
        results = found.executor.run(given, watcher)
        return self.runtime.fresh_all(results, found.fresh) if found.fresh else results

    def _key(self, shapes: dict[Variable, tuple[int, ...]], numbers: Values) -> Any:
        key: tuple[Any, ...] = tuple(shapes.values())
        if self._steps:
            _, found = known_sizes(self._of_steps, shapes, numbers)
            key += tuple(None if v not in found else int(found[v]) for v in self._steps)
        return key

    def _made(self, shapes: dict[Variable, tuple[int, ...]], numbers: Values) -> _Found:
        within = self.loops_within.within(self.inputs, shapes, numbers)
        executor = Executor(within.program, self.devices)
        if within.inputs is None:
            return _Found(within, executor)
        own = dict(zip(self.inputs, within.inputs, strict=True))
        fresh = sorted(set(copied_results(within.program, self.count)) - self._copied)
        return _Found(within, executor, own, fresh)

    # -- of all programs ------------------------------------------------------------------------

    def plan_caches(self) -> Iterator[PlanCache]:
        for found in self._found.values():
            yield from found.executor.plan_caches()

    def loop_states(self) -> Iterator[tuple[Apply, str]]:
        for found in self._found.values():
            yield from found.executor.loop_states()

    def plans(self) -> list[Plan]:
        return [p for cache in self.plan_caches() for p in cache.plans.values()]

    @property
    def is_current(self) -> bool:
        return all(found.executor.is_current for found in self._found.values())

    def of_last_call(self, sizes: Any) -> tuple[int, tuple[LoopWithin, ...]]:
        """As of other executors; the sizes are known here."""
        within = self._last
        if within is None:
            return 0, ()
        return 0 if within.memory is None else within.memory.peak, within.loops
