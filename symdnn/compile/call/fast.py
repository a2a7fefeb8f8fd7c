"""The fast path of repeated calls on a device: the arguments enter, a captured plan is replayed.

A step of a small network takes less time on a GPU than the look-up of its plan takes in Python,
with a shared variable for each parameter. For a function whose program is one captured segment most
of that is unnecessary. While no storage has moved or changed its owner
(:data:`symdnn.graph.values.storage.CHANGES`), the shapes of the arguments determine the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from symdnn.compile.call.arguments import Arguments
from symdnn.compile.call.named_sizes import NamedSizes
from symdnn.compile.execute.executor import Executor
from symdnn.compile.plan.plan import Plan, PlanCache
from symdnn.compile.plan.stages import Stages
from symdnn.compile.program.host import scalar_function
from symdnn.compile.program.program import Segment
from symdnn.config import config
from symdnn.errors import InputError, NanDetected
from symdnn.graph.place import HOST
from symdnn.graph.values.interop import is_on_device
from symdnn.graph.values.storage import CHANGES, note_writes
from symdnn.graph.variable import Apply, Shared, Variable

#: What the fast path does with a function and its arguments.
Attempt = Callable[["CallSite", Sequence[Any]], list[Any] | None]


class CallSite(Protocol):
    """The parts of a function that its fast path uses."""

    arguments: Arguments
    stages: Stages
    updated: list[Shared]
    lent: list[bool]
    #: The sizes that several arguments and shared variables have in common, by name.
    named: NamedSizes
    #: Which outputs are copied on the device for the user.
    own: list[bool]
    trust_input: bool
    #: What a call tries first of all; None where it has to do something else before.
    at_once: Attempt | None
    #: The executor of the program; None before the first call.
    executor_or_none: Executor | None

    @property
    def executor(self) -> Executor:
        """The executor of the program, made on first use."""

    def get_shared(self) -> list[Shared]:
        """The shared variables that the function reads or updates."""

    def update(self, new_values: Sequence[Any]) -> None:
        """Write new values into the updated shared variables."""

    def run(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], failed: NanDetected | None = None
    ) -> list[Any]:
        """The outputs by the full path; with ``failed`` of a call that the fast path began."""


class _Entry(NamedTuple):
    """A plan with its inputs except arguments, valid for one count of changes.

    ``replay`` is its graph; None where it is never captured.
    """

    plan: Plan
    replay: Any
    cache: PlanCache
    entering: list[Any]
    changes: int


class Calls:
    """The fast path of one function.

    ``entries`` are what runs, by the shapes of the arguments.
    """

    entries: dict[Any, Any]
    #: Whether a call may fail by sizes that the full path has not met: that error names a layer.
    may_fail = False
    #: The most entries that the fast path of one function keeps.
    most_entries = 64

    def __init__(self, function: CallSite) -> None:
        self.slots = function.arguments.slots
        self.allow_downcast = function.arguments.allow_downcast
        self.arguments = [s.variable for s in self.slots]
        self.entries = {}

    def attempt(self, function: CallSite, args: Sequence[Any]) -> list[Any] | None:
        """A call's results; None if the fast path does not apply, so the full path must run."""
        raise NotImplementedError

    def attempt_for(self, guarded: bool) -> Attempt:
        """:meth:`attempt`, for a ``guarded`` function with a wait for what its checks find."""
        return self._attempt_checked if guarded else self.attempt

    def _attempt_checked(self, function: CallSite, args: Sequence[Any]) -> list[Any] | None:
        runtime = function.executor.runtime
        try:
            with runtime.exclusive():
                found = self.attempt(function, args)
                if found is not None:
                    runtime.settle()
        except NanDetected as error:
            return function.run(args, {}, error)
        return found

    def learn(self, function: CallSite, values: dict[Variable, Any]) -> None:
        """Remember what a call that took the full path runs."""
        raise NotImplementedError

    def at_first(self, function: CallSite, values: dict[Variable, Any]) -> list[Any] | None:
        """The program's outputs, where no call may round as the full path does; else None."""
        return None

    def remember(self, key: Any, entry: Any) -> None:
        """Keep ``entry``, in place of the one that was kept first if there are too many."""
        if key not in self.entries and len(self.entries) >= self.most_entries:
            del self.entries[next(iter(self.entries))]
        self.entries[key] = entry

    @property
    def loop_states(self) -> dict[Apply, str]:
        """How loops run, for reports, where all of the function is one compiled function."""
        return {}


class SegmentCalls(Calls):
    """The fast path of a function whose program is one segment, common to CPU and GPU."""

    def __init__(self, function: CallSite, segment: Segment) -> None:
        super().__init__(function)
        self.segment = segment
        at = {v: k for k, v in enumerate(segment.inputs)}
        self.entries_of = [(i, at[v]) for i, v in enumerate(self.arguments) if v in at]
        self.made = {v for n in segment.host for v in n.outputs}
        self.from_host = [(at[v], v) for v in segment.inputs if v in self.made]
        read = (*segment.dims, *(v for n in segment.host for v in n.inputs))
        self.shared = [v for v in dict.fromkeys(read) if isinstance(v, Shared)]
        #: Whether the parameter cache has values, which may be out of date.
        self.keeps = any(s.kept for s in function.stages.program.segments())
        #: Whether the plan depends on values too: sizes that are arguments, or computed from them.
        self.by_value = bool(segment.host or segment.dims)
        #: Makes these sizes, and then what enters the plan, of the arguments and shared variables
        #: where that is arithmetic of integers on the host.
        self.from_integers: Callable[..., tuple[Any, ...]] | None = None
        if segment.place == HOST or not self.shared:
            self.from_integers = scalar_function(
                segment.host, [*self.arguments, *self.shared], segment.dims,
                [v for _, v in self.from_host],
            )  # fmt: skip
        self.misses = 0

    def places_of(self, outputs: Sequence[Variable]) -> list[int]:
        """Where values are among the results of the segment."""
        at = {v: k for k, v in enumerate(self.segment.outputs)}
        return [at[v] for v in outputs]

    def _host_values(
        self, executor: Executor, bound: Sequence[Any]
    ) -> tuple[tuple[int, ...], Sequence[Any]]:
        """Sizes that the plan depends on, and what enters it from the host, at these arguments."""
        if self.from_integers is not None:
            found = self.from_integers(*bound, *[v.storage.host() for v in self.shared])
            count = len(self.segment.dims)
            return found[:count], found[count:]
        values: dict[Variable, Any] = dict(zip(self.arguments, bound))
        for v in self.shared:
            values[v] = v.storage.on(executor.devices.home(v).memory)
        with np.errstate(all="ignore"):
            executor.only_host(values)
        dims = tuple([int(values[d]) for d in self.segment.dims])
        return dims, [values[v] for _, v in self.from_host]

    def _may_change(self, function: CallSite) -> bool:
        """Whether the user may write memory of shared variables without a storage's knowledge."""
        home = function.executor.devices.home
        return any(v.storage.is_lent_off(home(v).memory.place) for v in function.get_shared())

    def _have_moved(self, function: CallSite, values: dict[Variable, Any]) -> bool:
        """Whether the call's own updates gave shared variables other buffers, as of new shapes."""
        home = function.executor.devices.home
        there = [v for v in function.get_shared() if v in values]
        return any(values[v] is not v.storage.on(home(v).memory) for v in there)

    def _inputs_in_place(self, executor: Any, values: dict[Variable, Any]) -> list[Any]:
        """The plan's inputs that stay in place until storages change; None for the others."""
        kept = set(executor.cached_variables)
        inputs = self.segment.inputs
        return [values.get(v) if isinstance(v, Shared) or v in kept else None for v in inputs]

    def _dims(self, plan: Plan) -> tuple[int, ...]:
        """The sizes in the signature of ``plan``; an update may have changed them since."""
        return plan.signature[len(plan.signature) - len(self.segment.dims) :]

    def _learnable(
        self, function: CallSite, values: dict[Variable, Any]
    ) -> tuple[Any, PlanCache, list[Any], Any] | None:
        """The plan of a call that took the full path, its cache, inputs in place, and its key.

        None if the fast path must not run it.
        """
        executor = function.executor
        cache = executor.only_cache
        self._drop_stale(cache)
        plan = cache.latest
        if plan is None or plan.postponed or any(v not in values for v in self.arguments):
            return None
        if self._may_change(function) or self._have_moved(function, values):
            return None
        shapes = [np.shape(values[v]) for v in self.arguments]
        key: Any = shapes[0] if len(shapes) == 1 else tuple(shapes)
        if self.by_value:
            key = (key, *self._dims(plan))
        return plan, cache, self._inputs_in_place(executor, values), key

    def _drop_stale(self, cache: PlanCache) -> None:
        """Forget plans that the cache has dropped."""
        if cache.misses != self.misses:
            self.misses, kept = cache.misses, set(map(id, cache.plans.values()))
            self.entries = {k: e for k, e in self.entries.items() if id(e.plan) in kept}


class DeviceArguments:
    """Takes the arguments of one function, if they need no conversion.

    Shapes are not compared with those of types: who asks knows the shapes that the full path took.
    """

    def __init__(self, arguments: Arguments) -> None:
        self.allow_downcast = arguments.allow_downcast
        self.kinds = [
            (s, s.dtype, s.ndim, getattr(s.variable.type, "dtype", "")) for s in arguments.slots
        ]

    def bound(
        self, runtime: Any, args: Sequence[Any], trusted: bool, owned: bool = False
    ) -> list[Any] | None:
        """The arguments as inputs of plans; None where one has to be converted.

        ``owned`` arrays on the device keep their memory alive.
        """
        if len(args) != len(self.kinds):
            return None
        found = []
        for (slot, dtype, ndim, name), value in zip(self.kinds, args):
            if type(value) is np.ndarray:
                if not trusted and (value.dtype != dtype or value.ndim != ndim):
                    return None
            elif isinstance(value, float | int | np.generic):
                if ndim or dtype is None:
                    return None
                value = slot.convert(value, self.allow_downcast)
            else:
                there = runtime.known(value)
                taken = owned if there is not None else dtype is not None and is_on_device(value)
                if taken:
                    there = _taken(runtime, value, slot.text)
                if there is None or there.dtype != name or len(there.shape) != ndim:
                    return None
                value = there if slot.may_stay else runtime.to_host(there)
            found.append(value)
        return found


def _taken(runtime: Any, value: object, what: str) -> Any:
    """An array of another library; None where the full path will say why it takes none."""
    try:
        return runtime.adopt(value, what)
    except (InputError, BufferError):
        return None


class FastCalls(SegmentCalls):
    """The fast path of a function whose program is one segment on a device that captures it, or
    that never does."""

    def __init__(self, function: CallSite, segment: Segment) -> None:
        super().__init__(function, segment)
        self._taking = DeviceArguments(function.arguments)
        outputs = function.stages.program.outputs
        count = len(outputs) - len(function.updated)
        self.places = self.places_of(outputs[:count])
        self.in_order = self.places == list(range(len(segment.outputs)))
        self.lent = function.lent
        self.own = [i for i, own in enumerate(function.own) if own]
        self.updates = bool(function.updated)
        #: The number of calls that have written the updated variables.
        self.counter = [0]

    def attempt(self, function: CallSite, args: Sequence[Any]) -> list[Any] | None:
        """See :class:`Calls`."""
        if not self.entries:
            return None
        executor = function.executor
        runtime: Any = executor.runtime
        context = runtime.context
        with context.lock:  # as runtime.exclusive() does, in less time
            pushed = context.enter()
            try:
                runtime.begin_call()
                found = self._found(function, executor, runtime, args)
                if found is not None and self.own:
                    found = runtime.fresh_all(found, self.own)
            finally:
                context.leave(pushed)
        if found is None:
            return None
        return [runtime.lend(r) if lent else r for r, lent in zip(found, self.lent)]

    def _found(
        self, function: CallSite, executor: Executor, runtime: object, args: Sequence[Any]
    ) -> list[Any] | None:
        """The outputs, or None as in :meth:`attempt`. The device's lock must be held."""
        bound = self._taking.bound(runtime, args, function.trust_input)
        if bound is None:
            return None
        made: Sequence[Any] = ()
        key: Any = bound[0].shape if len(bound) == 1 else tuple([a.shape for a in bound])
        if self.by_value:
            dims, made = self._host_values(executor, bound)
            key = (key, *dims)
        entry = self.entries.get(key)
        if entry is None:
            return None
        plan, replay, cache, entering, stamp = entry
        if stamp != CHANGES[0] or (self.keeps and not executor.is_current):
            return None
        if replay is not plan.bound.replay or not cache.used(plan):
            del self.entries[key]
            return None
        entering = entering.copy()
        for i, k in self.entries_of:
            entering[k] = bound[i]
        for (k, _), value in zip(self.from_host, made):
            entering[k] = value
        outputs = plan.bound.run(entering) if replay is None else replay.run(entering, args)
        if function.updated:
            note_writes(self.counter)
        return outputs if self.in_order else [outputs[k] for k in self.places]

    def learn(self, function: CallSite, values: dict[Variable, Any]) -> None:
        """Remember the plan of a call that took the full path, if it is captured by now, or never
        will be."""
        latest = function.executor.only_cache.latest
        if latest is None or latest.postponed:
            return
        if not self._is_settled(latest) and not self.entries:
            return
        found = self._learnable(function, values)
        if found is None or not self._is_settled(found[0]):
            return
        if self.updates and not self._writes_updates(function, found[0]):
            return
        plan, cache, entering, key = found
        for v in function.updated:
            v.storage.counts(self.counter)
        self.remember(key, _Entry(plan, plan.bound.replay, cache, entering, CHANGES[0]))

    def _writes_updates(self, function: CallSite, plan: Plan) -> bool:
        """Whether a plan writes all new values: not where a result is a view of an old one."""
        bound: Any = plan.bound
        memory = bound.memory
        return {*memory.stored.values(), *memory.copied.values()}.issuperset(function.updated)

    def _is_settled(self, plan: Plan) -> bool:
        """Whether a plan's next calls run as this one did. A graph writes new values itself."""
        never = plan.bound.never_captured and not self.updates
        return never or plan.bound.replay is not None


class RegionCalls(Calls):
    """The fast path of a function that its executor runs by regions, with a look-up of plans in
    each call: sizes may follow from data.

    Entries are the shapes of arguments that the full path has taken.
    """

    may_fail = True

    def __init__(self, function: CallSite) -> None:
        super().__init__(function)
        self._taking = DeviceArguments(function.arguments)
        self._count = len(function.lent)
        self._own = [i for i, own in enumerate(function.own) if own]

    @staticmethod
    def may_run(function: CallSite) -> bool:
        """Whether the target is a device, and a call leaves nothing for checks and reports."""
        stages = function.stages
        return (
            stages.target.place != HOST and stages.mode.guard is None and not stages.has_plain_loops
        )

    def attempt(self, function: CallSite, args: Sequence[Any]) -> list[Any] | None:
        """See :class:`~symdnn.compile.call.fast.Calls`."""
        if not self.entries:
            return None
        executor = function.executor
        runtime: Any = executor.runtime
        with runtime.exclusive(), np.errstate(all="ignore"):
            bound = self._taking.bound(runtime, args, function.trust_input, owned=True)
            if bound is None or tuple([a.shape for a in bound]) not in self.entries:
                return None
            values: dict[Variable, Any] = dict(zip(self.arguments, bound))
            for v in function.get_shared():
                values[v] = v.storage.on(executor.devices.home(v).memory)
            if function.named:
                function.named.check(values)
            results = executor.run(values)
            if self._own:
                results = runtime.fresh_all(results, self._own)
            if function.updated:
                function.update(results[self._count :])
                del results[self._count :]
        return [
            runtime.lend(r) if lent else runtime.to_host(r)
            for r, lent in zip(results, function.lent)
        ]

    def learn(self, function: CallSite, values: dict[Variable, Any]) -> None:
        """Remember the shapes of the arguments, of a call that tells nothing of its plans."""
        if not config.dnn.verbose and all(v in values for v in self.arguments):
            self.remember(tuple([np.shape(values[v]) for v in self.arguments]), True)
