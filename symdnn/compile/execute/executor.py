"""Runs a program: host nodes, plans by signature, lazy branches, loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

from symdnn.compile.execute.as_whole import AsWhole
from symdnn.compile.execute.joined import Joined
from symdnn.compile.execute.loop import LoopRunner
from symdnn.compile.execute.retry import run_segment
from symdnn.compile.execute.targets import Devices
from symdnn.compile.plan.call_memory import call_memory, dead_after
from symdnn.compile.plan.loop_budget import LoopWithin
from symdnn.compile.plan.plan import Plan, PlanCache
from symdnn.compile.program.host import HostProgram
from symdnn.compile.program.parameter_cache import ParameterCache
from symdnn.compile.program.program import If, Loop, Program, Region, Segment
from symdnn.errors import SymdnnError
from symdnn.graph.kernel import Versions
from symdnn.graph.place import HOST, Place
from symdnn.graph.runtime import Runtime, Watcher
from symdnn.graph.variable import Apply, Constant, Shared, Variable

Values = dict[Variable, object]


class Executor:
    """Runs a program, with the plans made for its segments so far.

    With ``inside`` the program is a branch or the body of a loop, whose outputs stay on the device
    where values of their types are stored.
    """

    def __init__(self, program: Program, devices: Devices, inside: bool = False) -> None:
        self.program, self.devices, self.inside = program, devices, inside
        #: The runtime of the target.
        self.runtime: Runtime = devices.main
        #: Segments of the parameter cache, which run only after a parameter has changed.
        self._kept = [_KeptRunner(s, devices) for s in _kept(program)]
        #: Whether there is a parameter cache.
        self.keeps = bool(self._kept)
        versions = {v: tell for k in self._kept for v, tell in k.state.versions().items()}
        self._runners = [_runner(r, devices, versions) for r in program.called_regions]
        #: For each region the values that nothing reads after it: their memory is free then.
        self._dead = dead_after(program, program.called_regions)
        joins = not inside and Joined.may_run(program, devices.main)
        self._joined = Joined(program, self._runners, self._dead, devices.main) if joins else None
        whole = not inside and AsWhole.may_run(program, devices.main)
        self._whole = AsWhole(program, self._runners, devices.main) if whole else None

    def run(self, values: Values, watcher: Watcher | None = None) -> list[Any]:
        """Values of the program's outputs. ``values`` has the inputs; results are added to it."""
        for kept in self._kept:
            kept.run(values, watcher)
        if self._joined is not None and watcher is None:
            return self._joined.run(values)
        whole = self._whole if watcher is None else None
        if whole is not None and (found := whole.run(values)) is not None:
            return found
        for runner, dead in zip(self._runners, self._dead):
            runner.run(values, watcher)
            for v in dead:
                values.pop(v, None)
        place = self.runtime if self.inside else None
        outputs = [_value(v, values, place) for v in self.program.outputs]
        if whole is not None:
            whole.learn(outputs)
        return outputs

    def of_last_call(self, sizes: Any) -> tuple[int, tuple[LoopWithin, ...]]:
        """The bytes of a call of these shapes and integers, and what its loops do for a budget.

        0 where sizes follow from data, or are None.
        """
        if sizes is not None:
            with suppress(SymdnnError, KeyError):
                return call_memory(self.program, *sizes).peak, ()
        return 0, ()

    @property
    def is_current(self) -> bool:
        """Whether the parameter cache is up to date."""
        return all(k.state.is_current for k in self._kept)

    @property
    def cached_variables(self) -> Iterator[Variable]:
        """The variables of the parameter cache."""
        return (v for k in self._kept for v in k.segment.outputs)

    @property
    def only_cache(self) -> PlanCache:
        """The plans of a program that is one segment besides the parameter cache."""
        (runner,) = self._runners
        (cache,) = runner.plan_caches()
        return cache

    def only_host(self, values: Values) -> None:
        """Evaluate the host nodes of a program that is one segment."""
        (runner,) = self._runners
        assert isinstance(runner, _SegmentRunner)
        runner.host(values)

    def plan_caches(self) -> Iterator[PlanCache]:
        """The plan cache of each segment, also in branches and loops; the parameter cache last."""
        for runner in (*self._runners, *self._kept):
            yield from runner.plan_caches()

    def loop_states(self) -> Iterator[tuple[Apply, str]]:
        """How each loop has run, also those in branches and loops."""
        state = "" if self._whole is None else self._whole.state
        for runner in self._runners:
            yield from ((node, state or own) for node, own in runner.loop_states())

    def loops(self) -> Iterator[LoopRunner]:
        """The loops outside of branches, and those in their steps."""
        for runner in self._runners:
            yield from runner.loops()

    def plans(self) -> list[Plan]:
        """All plans made so far."""
        return [p for cache in self.plan_caches() for p in cache.plans.values()]


def _kept(program: Program) -> list[Segment]:
    return [r for r in program.regions if isinstance(r, Segment) and r.kept]


def _runner(
    region: Region, devices: Devices, versions: Versions
) -> _SegmentRunner | _IfRunner | _LoopRunner:
    if isinstance(region, Segment):
        return _SegmentRunner(region, devices, versions)
    if isinstance(region, Loop):
        return _LoopRunner(region, devices)
    return _IfRunner(region, devices)


class _SegmentRunner:
    def __init__(self, segment: Segment, devices: Devices, versions: Versions) -> None:
        self.segment, self.host = segment, HostProgram(segment.host, devices.main)
        place = segment.place
        self.cache = PlanCache(segment, devices.oracle(place), devices.runtime(place), versions)
        self.held = _held(devices, [segment])

    def run(self, values: Values, watcher: Watcher | None) -> None:
        self.host(values)
        if not self.segment.nodes:
            return
        entering = [values[v] for v in self.segment.inputs]
        with self.held():
            left = run_segment(self.cache, entering, values, watcher)
        values.update(zip(self.segment.outputs, left))

    def plan_caches(self) -> Iterator[PlanCache]:
        yield self.cache

    def loop_states(self) -> Iterator[tuple[Apply, str]]:
        yield from ()

    def loops(self) -> Iterator[LoopRunner]:
        yield from ()

    def is_captured(self) -> bool:
        return all(p.bound.is_captured for p in self.last_plans())

    def is_whole(self) -> bool:
        return True

    def last_plans(self) -> list[Plan]:
        latest = self.cache.latest
        return [] if latest is None else [latest]


class _KeptRunner(_SegmentRunner):
    """Runs a segment only if a shared variable that it reads has changed since."""

    def __init__(self, segment: Segment, devices: Devices) -> None:
        super().__init__(segment, devices, {})
        self.homes = [
            (v, devices.home(v).memory)
            for v in dict.fromkeys((*segment.inputs, *segment.sources))
            if isinstance(v, Shared)
        ]
        places: dict[Variable, Place] = {v: memory.place for v, memory in self.homes}
        self.state = ParameterCache(segment, places.__getitem__)

    def run(self, values: Values, watcher: Watcher | None) -> None:
        if not self.state.is_current:
            self.state.renew(lambda: self._computed(values, watcher))
        values.update(self.state.values())

    def _computed(self, values: Values, watcher: Watcher | None) -> list[Any]:
        values.update((v, v.storage.on(memory)) for v, memory in self.homes)
        super().run(values, watcher)
        return [values[v] for v in self.segment.outputs]


class _IfRunner:
    def __init__(self, region: If, devices: Devices) -> None:
        self.region, self.runtime = region, devices.main
        self.branches = {
            True: Executor(region.then, devices, inside=True),
            False: Executor(region.orelse, devices, inside=True),
        }
        self.given = {
            True: _must_copy(region.then, region.then_values),
            False: _must_copy(region.orelse, region.else_values),
        }

    def run(self, values: Values, watcher: Watcher | None) -> None:
        taken = bool(self.runtime.to_host(_value(self.region.condition, values)))
        results = self.branches[taken].run(values, watcher)
        fresh = [
            self.runtime.fresh(r) if given else r for r, given in zip(results, self.given[taken])
        ]
        values.update(zip(self.region.results, fresh, strict=True))

    def plan_caches(self) -> Iterator[PlanCache]:
        for executor in self.branches.values():
            yield from executor.plan_caches()

    def loop_states(self) -> Iterator[tuple[Apply, str]]:
        for executor in self.branches.values():
            yield from executor.loop_states()

    def loops(self) -> Iterator[LoopRunner]:
        yield from ()

    def is_captured(self) -> bool:
        return False

    def is_whole(self) -> bool:
        return False

    def last_plans(self) -> list[Plan]:
        return []


class _LoopRunner:
    def __init__(self, region: Loop, devices: Devices) -> None:
        self.node, self.views = region.node, region.views
        self.body = Executor(region.body, devices, inside=True)
        self.runner = LoopRunner(region, self.body, devices.main)
        self.held = _held(devices, region.body.segments())

    def run(self, values: Values, watcher: Watcher | None) -> None:
        known = values if not self.views else dict(values)
        for n in self.views:
            (known[n.outputs[0]],) = n.op.compute(known[n.inputs[0]])
        inputs = [_value(v, known, self.runner.runtime) for v in self.node.inputs]
        with self.held():
            results = self.runner.run(inputs, watcher)
        values.update(zip(self.node.outputs, results, strict=True))

    def plan_caches(self) -> Iterator[PlanCache]:
        return self.body.plan_caches()

    def loop_states(self) -> Iterator[tuple[Apply, str]]:
        if self.runner.whole is not None:
            yield self.node, self.runner.whole.state
        yield from self.body.loop_states()

    def loops(self) -> Iterator[LoopRunner]:
        yield self.runner
        yield from self.body.loops()

    def is_captured(self) -> bool:
        return self.runner.is_captured

    def is_whole(self) -> bool:
        return self.runner.ran_whole

    def last_plans(self) -> list[Plan]:
        return self.runner.last_plans


_NO_CONTEXT = nullcontext()


def _held(
    devices: Devices, segments: Sequence[Segment]
) -> Callable[[], AbstractContextManager[None]]:
    """A context that locks the CPU for segments on it, where the call locks only a GPU."""
    if all(s.place == devices.target.place for s in segments):
        return lambda: _NO_CONTEXT
    return devices.runtime(HOST).exclusive


def _must_copy(program: Program, results: Sequence[Variable]) -> list[bool]:
    """For each result of a branch whether it must be copied: inputs, and repeated results."""
    made = {v for s in program.segments() for n in s.nodes for v in n.outputs}
    return [v not in made or v in results[:i] for i, v in enumerate(results)]


def _value(v: Variable, values: Values, place: Runtime | None = None) -> Any:
    """A value; a constant in the memory of ``place``, without one on the host."""
    if not isinstance(v, Constant):
        return values[v]
    return v.data if place is None else place.placed(v)
