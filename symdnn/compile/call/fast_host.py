"""The fast path of repeated calls on a CPU: no conversion, no look-up of shared variables or plans.

See :mod:`symdnn.compile.call.fast` for its conditions.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import Any, NamedTuple

import numpy as np

from symdnn.compile.call.accepting import accepting, shortcut
from symdnn.compile.call.fast import (
    Attempt,
    Calls,
    CallSite,
    FastCalls,
    RegionCalls,
    SegmentCalls,
)
from symdnn.compile.call.fast_loops import LoopCalls
from symdnn.compile.execute.retry import smaller_limits
from symdnn.compile.plan.plan import Plan, PlanCache
from symdnn.compile.program.host import scalar_function
from symdnn.compile.program.program import Segment
from symdnn.config import config
from symdnn.graph.place import HOST
from symdnn.graph.type import TensorType
from symdnn.graph.values.storage import CHANGES, note_writes
from symdnn.graph.variable import Constant, Shared, Variable

__all__ = ["HostCalls", "fast_calls"]

#: At so many calls with the same strides a plan for these is made; up to then arguments are copied.
_LAID_OUT_AT = 3


def fast_calls(function: CallSite, copies: bool = False) -> Calls | None:
    """The fast path of a function of one segment, with loops on a CPU, or of several regions on a
    device; None for others.

    A call ``copies`` results that are no new arrays: only those without kernels do so here.
    """
    if copies:
        return HostProgramCalls(function) if HostProgramCalls.may_run(function) else None
    program = function.stages.program
    regions = program.called_regions
    if len(regions) != 1 or not isinstance(regions[0], Segment):
        if LoopCalls.may_run(function):
            return LoopCalls(function)
        return RegionCalls(function) if RegionCalls.may_run(function) else None
    segment, first = regions[0], len(program.outputs) - len(function.updated)
    if segment.place == HOST:
        if function.stages.target.place != HOST:
            return None  # the device is locked during a call, and may report an error
        all_made = set(program.outputs) <= set(segment.outputs)
        return HostCalls(function, segment) if segment.nodes and all_made else None
    written = {new for new, _ in segment.updates}
    all_made = set(program.outputs[:first]) <= set(segment.outputs)
    if not all_made or any(v not in written for v in program.outputs[first:]):
        return None
    return FastCalls(function, segment)


class HostProgramCalls(Calls):
    """The fast path of a function without kernels on a CPU: its results are sizes, numbers,
    constants or arguments, which are copied.

    Entries are the shapes of arguments that the full path has taken.
    """

    def __init__(self, function: CallSite) -> None:
        super().__init__(function)
        self.outputs = function.stages.program.outputs
        self._accept = accepting(self)
        segments = list(function.stages.program.segments())
        nodes = [n for s in segments for n in s.host]
        self._runs = bool(segments)
        leaves = not {v for n in nodes for v in n.outputs}.issuperset(self.outputs)
        self._from_integers = None
        if not leaves:
            self._from_integers = scalar_function(nodes, self.arguments, (), self.outputs)

    @staticmethod
    def may_run(function: CallSite) -> bool:
        """Whether host nodes alone, which run no code of the user's, make all results that are not
        constants or arguments."""
        stages, nodes = function.stages, function.stages.fgraph.apply_nodes
        known = {v for n in nodes for v in n.outputs}
        known.update(s.variable for s in function.arguments.slots)
        known.update(v for v in stages.program.outputs if isinstance(v, Constant))
        return (
            stages.target.place == HOST
            and stages.mode.guard is None
            and not (function.updated or stages.fgraph.shared())
            and not any(s.nodes for s in stages.program.segments())
            and [type(r) for r in stages.program.regions] in ([], [Segment])
            and known.issuperset(stages.program.outputs)
            and all(isinstance(v.type, TensorType) for v in stages.program.outputs)
            and not any(n.op.host_callback or n.op.unmergeable or n.op.ordered for n in nodes)
        )

    def attempt(self, function: CallSite, args: Sequence[Any]) -> list[Any] | None:
        """See :class:`~symdnn.compile.call.fast.Calls`."""
        executor = function.executor_or_none
        bound = None if executor is None else self._accept(args, function.trust_input, np.asarray)
        if executor is None or bound is None or bound[0] not in self.entries:
            return None
        if self._from_integers is not None:
            return list(self._from_integers(*bound[1]))
        values: dict[Variable, Any] = dict(zip(self.arguments, bound[1]))
        runtime: Any = executor.runtime
        with runtime.lock:
            if runtime.depth >= 0:
                return None  # inside of another call
            if self._runs:
                runtime.quietly(executor.only_host, values, True)
            return [
                np.array(v.data if isinstance(v, Constant) else values[v], order="C")
                for v in self.outputs
            ]

    def learn(self, function: CallSite, values: dict[Variable, Any]) -> None:
        """Remember the shapes of the arguments."""
        shapes = [values[v].shape for v in self.arguments]
        self.remember(shapes[0] if len(shapes) == 1 else tuple(shapes), True)


class _Entry(NamedTuple):
    """A plan with its inputs except arguments, valid for one count of changes."""

    plan: Plan
    bound: Any
    cache: PlanCache
    entering: list[Any]
    changes: int
    #: Whether no code of the user's runs inside of a call.
    closed: bool
    #: Whether there is no parameter cache, which may be out of date.
    plain: bool


class HostCalls(SegmentCalls):
    """The fast path of a function whose program is one segment on the CPU."""

    def __init__(self, function: CallSite, segment: Segment) -> None:
        super().__init__(function, segment)
        outputs = function.stages.program.outputs
        self.count = len(outputs) - len(function.updated)
        self.updates = bool(function.updated)
        #: The updated variables' memory where a plan writes all of it in place, the count of
        #: changes for which that holds, and the number of calls that did so.
        self.written: list[Any] = []
        self.written_stamp, self.counter = -1, [0]
        self.shortcut: Any = None
        #: Whether the shapes of arguments determine all that a call does.
        self.by_shapes = False
        #: The argument that each of the plan's inputs is, -1 for a shared variable; None where
        #: others enter.
        self.read: list[int] | None = None
        if all(v in self.arguments or isinstance(v, Shared) for v in segment.inputs):
            at = {v: i for i, v in enumerate(self.arguments)}
            self.read = [at.get(v, -1) for v in segment.inputs]
        self.places = self.places_of(outputs)
        self.in_order = self.places == list(range(len(segment.outputs)))
        #: Whether the inputs of the plan are the arguments, in their order.
        self.only_arguments = self.arguments == list(segment.inputs)
        # Sums in other orders may be rounded in another way than those of the first calls.
        self._accept = accepting(self, strided=str(config.deterministic) != "more")
        #: How often shapes came with certain strides, before there is an entry for them.
        self._counts: dict[Any, int] = {}

    def attempt_for(self, guarded: bool) -> Attempt:
        """See :class:`~symdnn.compile.call.fast.Calls`; with a shortcut for most functions."""
        attempt = super().attempt_for(guarded)
        if guarded or not self.arguments or (self.by_value and self.from_integers is None):
            return attempt
        places = [] if self.in_order else self.places
        self.by_shapes = self.read is not None and not (self.by_value or self.updates)
        self.shortcut = shortcut(self, attempt, places, self.only_arguments, self.by_shapes)
        return self.shortcut  # type: ignore[no-any-return]

    def take_over(
        self, function: CallSite, bound: Any, arguments: Sequence[Any], entering: Sequence[Any]
    ) -> None:
        """Have calls of hot plans that need no Python run as one compiled function.

        It reads shared variables among ``entering`` until storages change.
        """
        if function.executor.keeps:
            return
        if bound.direct is None:
            direct = bound.whole(arguments, self.read, self.places, self.shortcut)
            bound.direct = direct or False
        if bound.direct:
            if self.read is not None and -1 in self.read:
                bound.spans.keep(bound.direct, entering, self.read)
            function.at_once = bound.direct

    def attempt(self, function: CallSite, args: Sequence[Any]) -> list[Any] | None:
        """See :class:`~symdnn.compile.call.fast.Calls`."""
        executor = function.executor_or_none
        if executor is None:
            return None
        runtime: Any = executor.runtime
        bound = self._accept(args, function.trust_input, runtime.dense)
        if bound is None:
            return None
        with runtime.lock:
            if runtime.depth >= 0:
                return None  # inside of another call
            runtime.depth = 0
            try:
                outputs = self._outputs(function, executor, *bound)
                if outputs is not None:
                    if not self.in_order:
                        outputs = [outputs[k] for k in self.places]
                    if self.updates:
                        self.update(function, outputs)
                return outputs
            finally:
                runtime.depth = -1

    def update(self, function: CallSite, found: list[Any]) -> list[Any]:
        """Write the updates among results, and give the others. One number notes all of them where
        the plan has written them itself."""
        new = found[self.count :]
        if self.written_stamp == CHANGES[0] and all(map(is_, new, self.written)):
            note_writes(self.counter)
        else:
            function.update(new)
        del found[self.count :]
        return found

    def _learn_updates(self, function: CallSite) -> None:
        stamp, storages = CHANGES[0], [v.storage for v in function.updated]
        if all(s.is_only_on(HOST) for s in storages):
            for s in storages:
                s.counts(self.counter)
            self.written, self.written_stamp = [s.host() for s in storages], stamp

    def _outputs(
        self, function: CallSite, executor: Any, key: Any, arguments: list[Any], strides: Any = None
    ) -> list[Any] | None:
        """The outputs of the segment, or None as in :meth:`attempt`."""
        made: Sequence[Any] = ()
        if self.by_value:
            dims, made = self._host_values(executor, arguments)
            key = (key, *dims)
        entry = self.entries.get(key)
        if entry is None or entry.changes != CHANGES[0]:
            return None
        if executor.keeps and not executor.is_current:
            return None
        plan, bound, cache = entry.plan, entry.bound, entry.cache
        if plan is cache.latest:
            cache.hits += 1
        elif not cache.used(plan):
            del self.entries[key]
            return None
        entering = self._entering(entry, arguments, made)
        if strides is not None and (bound := self._laid_out(entry, key, strides, entering)) is None:
            dense = executor.runtime.dense
            arguments = [a if a.flags.c_contiguous else dense(a) for a in arguments]
            bound, entering = entry.bound, self._entering(entry, arguments, made)
        try:
            if not bound.silent:
                quietly = executor.runtime.quietly
                return quietly(bound.run, entering, entry.closed)  # type: ignore[no-any-return]
            outputs: list[Any] = bound.run(entering)
        except MemoryError:
            if not smaller_limits(plan.memory):
                raise
            return None  # the full path tries smaller workspaces
        if self.shortcut is not None and self.by_shapes and bound.calls > bound.next_look:
            self.take_over(function, bound, arguments, entering)
        return outputs

    def _entering(self, entry: _Entry, arguments: list[Any], made: Sequence[Any]) -> list[Any]:
        """The inputs of the plan."""
        if self.only_arguments:
            return arguments
        entering = entry.entering.copy()
        for i, k in self.entries_of:
            entering[k] = arguments[i]
        for (k, _), value in zip(self.from_host, made):
            entering[k] = value
        return entering

    def _laid_out(self, entry: _Entry, key: Any, strides: Any, entering: Sequence[Any]) -> Any:
        """The plan for arguments with these strides; None where they have to be copied."""
        found = self.entries.get((key, strides))
        if found is not None and found.plan is entry.plan:
            return found.bound
        count = self._counts.pop((key, strides), 0) + 1
        self._counts[key, strides] = count
        if len(self._counts) > self.most_entries:
            del self._counts[next(iter(self._counts))]
        if count != _LAID_OUT_AT:
            return None
        runtime = entry.bound.runtime
        bound = runtime.in_layout(entry.bound, entering)
        if bound is not None:
            self.remember((key, strides), entry._replace(bound=bound))
        return bound

    def learn(self, function: CallSite, values: dict[Variable, Any]) -> None:
        """Remember the plan of a call that took the full path."""
        if (found := self._learnable(function, values)) is not None:
            plan, cache, entering, key = found
            if self.updates:
                self._learn_updates(function)
            closed = plan.bound.closed
            plain = not function.executor.keeps
            bound, changes = plan.bound, CHANGES[0]
            self.remember(key, _Entry(plan, bound, cache, entering, changes, closed, plain))
