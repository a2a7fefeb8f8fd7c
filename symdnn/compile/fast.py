"""Calls of a function that find all as it was: arguments in, one launch, results out.

A step of a small net takes less time on a GPU than looking up its plan takes in Python, with a
shared variable for each parameter. A function whose program is one segment on a device needs
little of that once the segment is captured: while no storage anywhere has moved or changed hands
(:func:`symdnn.graph.storage.changes`), the shapes of the arguments tell the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from symdnn.compile.plan import Plan, PlanCache
from symdnn.compile.program import Segment
from symdnn.graph.storage import HOST, changes
from symdnn.graph.variable import Shared, Variable

if TYPE_CHECKING:
    from symdnn.compile.callable import Function

__all__ = ["FastCalls", "fast_calls"]

_MOST = 64


class _Entry(NamedTuple):
    """A captured plan, what enters it but for the arguments, and the state that this holds for."""

    plan: Plan
    replay: Any
    entering: list[Any]
    changes: int


def fast_calls(function: Function) -> FastCalls | None:
    """The fast calls of a function, where its program is one segment on a device."""
    program = function.stages.program
    if len(program.regions) != 1 or not isinstance(program.regions[0], Segment):
        return None
    segment, first = program.regions[0], len(program.outputs) - len(function.updated)
    written = {new for new, _ in segment.updates}
    left = all(v in segment.outputs for v in program.outputs[:first])
    if segment.device == HOST or not left or any(v not in written for v in program.outputs[first:]):
        return None
    return FastCalls(function, segment)


class FastCalls:
    """See :func:`fast_calls`. ``call`` answers, or gives None for a call that goes the long way."""

    def __init__(self, function: Function, segment: Segment) -> None:
        self.segment = segment
        self.slots = function.arguments.slots
        self.kinds = [
            (s, s.dtype, s.ndim, getattr(s.variable.type, "dtype", "")) for s in self.slots
        ]
        self.allow_downcast = function.arguments.allow_downcast
        outputs = function.stages.program.outputs
        count = len(outputs) - len(function.updated)
        self.places = [segment.outputs.index(v) for v in outputs[:count]]
        self.arguments = [s.variable for s in self.slots]
        at = {v: k for k, v in enumerate(segment.inputs)}
        self.entries_of = [(i, at[v]) for i, v in enumerate(self.arguments) if v in at]
        self.made = {v for n in segment.host for v in n.outputs}
        self.from_host = [(at[v], v) for v in segment.inputs if v in self.made]
        self.entries: dict[Any, _Entry] = {}
        self.misses = 0

    def call(self, function: Function, args: Sequence[Any]) -> list[Any] | None:
        """The outputs; None where something is not as it was. The device must be held."""
        executor = function.executor
        bound = self._bound(function, executor.runtime, args)
        if bound is None:
            return None
        values: dict[Variable, Any] | None = None
        key: Any = tuple([a.shape for a in bound])
        if self.segment.host:
            values = self._host_values(executor, bound)
            key = (*key, *(int(values[d]) for d in self.segment.dims))
        entry = self.entries.get(key)
        if entry is None or entry.changes != changes():
            return None
        plan: Any = entry.plan
        if entry.replay is not plan.bound.replay or not executor.only_cache.used(plan):
            del self.entries[key]
            return None
        entering = entry.entering.copy()
        for i, k in self.entries_of:
            entering[k] = bound[i]
        if values is not None:
            for k, v in self.from_host:
                entering[k] = values[v]
        left = entry.replay.run(entering, args)
        return [left[k] for k in self.places]

    def _bound(self, function: Function, runtime: Any, args: Sequence[Any]) -> list[Any] | None:
        """The arguments as they enter; None where one has to be converted."""
        if len(args) != len(self.slots):
            return None
        trusted, found = function.trust_input, []
        for (slot, dtype, ndim, name), value in zip(self.kinds, args):
            if type(value) is np.ndarray:
                if not trusted and (value.dtype != dtype or value.ndim != ndim):
                    return None
            elif isinstance(value, float | int | np.generic):
                if ndim or dtype is None:
                    return None
                value = slot.convert(value, self.allow_downcast)
            else:
                value = runtime.known(value) if slot.may_stay else None
                if value is None or value.dtype != name or len(value.shape) != ndim:
                    return None
            found.append(value)
        return found

    def _host_values(self, executor: Any, bound: Sequence[Any]) -> dict[Variable, Any]:
        """Values of the host program at these arguments."""
        values: dict[Variable, Any] = dict(zip(self.arguments, bound))
        for node in self.segment.host:
            for v in node.inputs:
                if isinstance(v, Shared):
                    values[v] = v.storage.on(executor.devices.home(v).memory)
        with np.errstate(all="ignore"):
            executor.only_host(values)
        return values

    def learn(self, function: Function, values: dict[Variable, Any]) -> None:
        """Remember a call that went the long way, if its plan is captured by now."""
        executor = function.executor
        self._drop(executor.only_cache)
        plan: Any = executor.only_cache.latest
        replay = getattr(plan.bound, "replay", None) if plan is not None else None
        if replay is None or any(v not in values for v in self.arguments):
            return
        key: Any = tuple([np.shape(values[v]) for v in self.arguments])
        if self.segment.host:
            key = (*key, *(int(values[d]) for d in self.segment.dims))
        if len(self.entries) >= _MOST:
            self.entries.clear()
        entering = [values.get(v) if isinstance(v, Shared) else None for v in self.segment.inputs]
        self.entries[key] = _Entry(plan, replay, entering, changes())

    def _drop(self, cache: PlanCache) -> None:
        """Let go of plans that the cache has dropped to make room for a new one."""
        if cache.misses != self.misses:
            self.misses, kept = cache.misses, set(map(id, cache.plans.values()))
            self.entries = {k: e for k, e in self.entries.items() if id(e.plan) in kept}
