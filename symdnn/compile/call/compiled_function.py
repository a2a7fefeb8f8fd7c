"""``Function``, the result of :func:`symdnn.function`: calls, stored values, copies, reports."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from symdnn.compile.call.arguments import Arguments, In, Out, Stored
from symdnn.compile.call.fast import Calls
from symdnn.compile.call.fast_host import fast_calls
from symdnn.compile.call.layer_errors import tell_layer
from symdnn.compile.call.named_sizes import NamedSizes
from symdnn.compile.call.signature import FunctionSignature, Structure
from symdnn.compile.call.structured import subset_of
from symdnn.compile.execute.executor import Executor
from symdnn.compile.execute.within import executor_of
from symdnn.compile.plan.call_memory import sizes_of_values
from symdnn.compile.plan.loop_budget import LoopBudget
from symdnn.compile.plan.plan import Plan
from symdnn.compile.plan.stages import Stages
from symdnn.compile.program.mode import Mode, OnHost, Watch, Watches
from symdnn.compile.program.placing import program_of
from symdnn.compile.program.program import copied_results, with_budget
from symdnn.compile.report.distributed_report import DistributedReport, distributed_report
from symdnn.compile.report.dnn_report import DnnReport, dnn_report
from symdnn.compile.report.profile import FunctionProfile
from symdnn.compile.report.report import (
    LoweringReport,
    MemoryReport,
    lowering_report,
    memory_report,
)
from symdnn.compile.report.verbose import print_new_plans
from symdnn.config import config
from symdnn.errors import InputError, NanDetected, TypeMismatch
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.names.elsewhere import no_attribute
from symdnn.graph.operators import operator
from symdnn.graph.pickling import Bundle
from symdnn.graph.place import HOST
from symdnn.graph.traverse import substituted
from symdnn.graph.variable import Shared, Variable
from symdnn.ops.collective.overlapped import has_collectives
from symdnn.ops.core.shape import ShapeI
from symdnn.ops.lowered.transfer import GpuFromHost
from symdnn.world import process


class Function:
    """A compiled function. Call it with values by position or by keyword.

    ``f.stages`` has the rewritten graph and the program, ``f.plans()`` the plans made so far.
    ``f["lr"]`` reads and sets the value kept for an input declared with ``In(value=...)``.
    ``f.trust_input = True`` skips the conversion and checks of arguments.
    """

    def __init__(
        self, signature: FunctionSignature, stages: Stages, profile: FunctionProfile | None = None
    ) -> None:
        self.signature, self.stages, self.profile = signature, stages, profile
        self.name, self.updated, self.trust_input = signature.name, list(signature.updated), False
        self.arguments = Arguments(
            signature.name, signature.declared, stages.fgraph.inputs, signature.states,
            signature.allow_downcast,
        )  # fmt: skip
        #: How many arguments by position are all inputs; none are where one is implicit.
        positional, count = len(self.arguments.positional), len(self.arguments.slots)
        self._arity = count if positional == count else -1
        self._count = len(stages.fgraph.outputs) - len(self.updated)
        entering = (v for v in stages.program.inputs if isinstance(v, Shared))
        self._shared = list(dict.fromkeys([*stages.fgraph.shared(), *entering]))
        slots = [
            (s.variable, s.declared.variable, s.text.partition(": ")[2])
            for s in self.arguments.slots
        ]
        shared_ones = [(v, v, f"the shared variable {v}") for v in self._shared]
        self.named = NamedSizes(signature.name, [*slots, *shared_ones])
        self._copied = copied_results(stages.program, self._count)
        self._watched = type(stages.mode).watch is not Mode.watch
        on_gpu = stages.target.place != HOST
        stay = signature.stay or (False,) * len(signature.borrow)
        self.own = [s and on_gpu for s in stay]
        self._fresh = sorted({*self._copied, *(i for i, own in enumerate(self.own) if own)})
        self.lent = [(b or s) and on_gpu for b, s in zip(signature.borrow, stay, strict=True)]
        for slot in self.arguments.slots:
            slot.changes = any(slot.default is s.storage for s in self.updated)
            slot.may_stay = on_gpu and _read_by_device_only(stages.fgraph, slot.variable)
        self._changes_kept = any(s.changes for s in self.arguments.slots)
        self.executor_or_none: Executor | None = None
        self._guarded = stages.mode.guard is not None
        full = self._watched or profile is not None or stages.loops is not None
        self._fast: Calls | None = None if full else fast_calls(self, bool(self._copied))
        self._attempt = None if self._fast is None else self._fast.attempt_for(self._guarded)
        self._collective = has_collectives(stages.fgraph.apply_nodes)
        self._one, self._forms = signature.structure == Structure("one"), signature.forms
        #: What is tried first of all, where there is nothing to do before.
        later = self._collective or self._forms is not None
        later = later or (self._fast is not None and self._fast.may_fail)
        self.at_once = None if later else self._attempt
        self._keeps_sizes = stages.has_plain_loops
        self._sizes: Any = None  # of the last call, for the memory report of loops
        self._profiled_ids: list[int] = []  # of the plans whose kernels the profile knows
        self._printed_plans: list[Plan] = []  # the plans that ``dnn.verbose`` has printed

    def _repr_html_(self) -> str:
        """The HTML form for notebooks: the signature and the rewritten graph."""
        return str(operator("repr_html")(self))

    @property
    def executor(self) -> Executor:
        """The executor of the program, made on first use, when the device is first needed."""
        if self.executor_or_none is None:
            self.executor_or_none = executor_of(self.stages)
        return self.executor_or_none

    def __call__(self, *given: Any, **kwargs: Any) -> Any:
        """Run the function. Shared variables change only if all of it succeeds."""
        if self.at_once is not None:
            if kwargs or len(given) != self._arity:
                found = self._attempt_filled(given, kwargs)
            else:
                found = self.at_once(self, given)
            if found is not None:
                return found[0] if self._one else self.signature.structure.pack(found)
        if "output_subset" in kwargs and "output_subset" not in self.arguments.by_name:
            return subset_of(kwargs.pop("output_subset"), lambda: self(*given, **kwargs))
        args: Sequence[Any] = given
        try:
            if self._collective:
                process.current().check()
            if self._forms is not None:
                args, kwargs = self._forms.flat(args, kwargs)
            all_given = not kwargs and len(args) == self._arity
            if self._attempt is not None and self.at_once is None and all_given:
                found = self._attempt(self, args)
                if found is not None:
                    return self.signature.structure.pack(found)
            return self.signature.structure.pack(self.run(args, kwargs))
        except BaseException as error:
            tell_layer(error, self.arguments, args, kwargs)
            if self._collective:  # other ranks wait for this one
                process.current().fail(error)
            raise

    def _attempt_filled(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any] | None:
        """What is tried first of all in a call with keywords or without kept values."""
        runtime: Any = None if self.executor_or_none is None else self.executor_or_none.runtime
        if runtime is None or (self._changes_kept and self.stages.target.place != HOST):
            return None
        # Other threads update kept values neither while they are read nor until the call does.
        with runtime.lock if self._changes_kept else nullcontext():
            values = self.arguments.in_order(args, kwargs)
            return None if values is None else self.at_once(self, values)  # type: ignore[misc]

    def run(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], failed: NanDetected | None = None
    ) -> list[Any]:
        """The outputs as a list, by the full path; ``failed`` is what the fast path has raised."""
        executor = self.executor_or_none or self.executor
        runtime, fast = executor.runtime, self._fast
        with runtime.exclusive(), np.errstate(all="ignore"):
            values = self.arguments.bind(args, kwargs, self.trust_input, runtime)
            for v in self._shared:
                values[v] = v.storage.on(executor.devices.home(v).memory)
            if self.named:
                self.named.check(values)
            run = partial(self._run_guarded, failed) if self._guarded else self._run_watched
            self._sizes = sizes_of_values(values) if self._keeps_sizes else None
            found = None if fast is None else fast.at_first(self, values)
            results = run(executor, values) if found is None else found
            if config.dnn.verbose:
                self._printed_plans = print_new_plans(
                    self.name, self.stages, self.plans(), self._printed_plans
                )
            if self._fresh:
                results = runtime.fresh_all(results, self._fresh)
            if self.updated:
                self.update(results[self._count :])
                del results[self._count :]
            if fast is not None:
                fast.learn(self, values)
        return [
            runtime.lend(r) if lent else runtime.to_host(r) for r, lent in zip(results, self.lent)
        ]

    def _run_watched(self, executor: Executor, values: dict[Variable, Any]) -> list[Any]:
        if not self._watched and self.profile is None:
            return executor.run(values)
        to_host = executor.runtime.to_host
        watch = self.stages.mode.watch(self.stages, OnHost(dict(values), to_host))
        watches: list[Watch] = [] if watch is None else [watch]
        if self.profile is not None:
            watches.append(self.profile.watch())
        watcher = Watches(watches)
        results = executor.run(values, watcher)
        watcher.finish([to_host(r) for r in results])
        if self.profile is not None and (ids := list(map(id, self.plans()))) != self._profiled_ids:
            self._profiled_ids = ids
            self.profile.name_kernels(self.plans())
        return results

    def _run_guarded(
        self, failed: NanDetected | None, executor: Executor, values: dict[Variable, Any]
    ) -> list[Any]:
        before = dict(values)
        try:
            if failed is not None:
                raise failed
            results = self._run_watched(executor, values)
            executor.runtime.settle()  # before anything else is done with faulty values
        except NanDetected as error:
            return self.stages.mode.run_again(self.stages, executor.devices, before, error)
        return results

    def update(self, new_values: Sequence[Any]) -> None:
        """Write new values into the updated shared variables, all of them or none."""
        for variable, new in zip(self.updated, new_values):
            if new.shape != variable.storage.shape:
                variable.type.check_value_shape(new.shape, f"update of {variable}")
        devices = self.executor.devices
        if self.stages.target.place == HOST:
            devices.main.update([(v.storage, new) for v, new in zip(self.updated, new_values)])
            return
        pairs: dict[Any, list[tuple[Any, Any]]] = {}
        for variable, new in zip(self.updated, new_values):
            pairs.setdefault(devices.home(variable), []).append((variable.storage, new))
        if any(home is not devices.main for home in pairs):
            devices.main.settle()  # read the device's errors before values on the host change
        for home, updates in pairs.items():
            home.update(updates)

    @property
    def value(self) -> Stored:
        """The values kept for inputs."""
        return Stored(self.arguments, storages=False)

    @property
    def container(self) -> Stored:
        """The storages of the values kept for inputs."""
        return Stored(self.arguments, storages=True)

    @property
    def input_storage(self) -> list[Any]:
        """Storages of inputs, then of shared variables; Theano's programs read them."""
        return [*self.arguments.storages(), *(v.storage for v in self.get_shared())]

    if not TYPE_CHECKING:  # a checker of types would believe that every attribute exists

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, "'Function' object", name, "FUNCTION")

    def __getitem__(self, key: object) -> Any:
        return self.value[key]

    def __setitem__(self, key: object, value: object) -> None:
        self.value[key] = value

    def __contains__(self, key: object) -> bool:
        return key in self.value

    def copy(
        self,
        share_memory: bool = False,
        swap: Mapping[Shared, Shared] | None = None,
        delete_updates: bool = False,
        name: str | None = None,
        profile: object = None,
    ) -> Function:
        """Another function of the same graph, with plans of its own.

        It reads and updates the same shared variables, except those that ``swap`` maps to others
        of equal type; ``delete_updates`` leaves all updates out. Values kept for inputs are
        copied. ``share_memory`` is accepted for Theano's sake: all functions share one arena.
        """
        swaps: dict[Any, Any] = dict(swap or {})
        for old, new in swaps.items():
            _check_swap(self, old, new)
        fgraph = self.stages.fgraph
        outputs = fgraph.outputs[: self._count] if delete_updates else fgraph.outputs
        other = FunctionGraph(fgraph.inputs, outputs, replace=swaps)
        states = {v: swaps.get(s) or _own_state(s, d) for v, s, d in self._states()}
        own = {s: states[v] for v, s, _ in self._states()}
        targets = (
            () if delete_updates else tuple(own.get(s) or swaps.get(s, s) for s in self.updated)
        )
        sources = tuple(substituted(self.signature.sources[: len(outputs)], swaps))
        signature = replace(
            self.signature, name=name or self.name, states=states, updated=targets, sources=sources
        )
        return self._with(signature, other, self._source_with(swaps, len(outputs)), profile)

    def _source_with(self, swaps: Mapping[Any, Any], count: int) -> FunctionGraph | None:
        """The first outputs of the graph whose loops may run in segments; None without them."""
        if self.stages.loops is None:
            return None
        source = self.stages.loops.source
        return FunctionGraph(source.inputs, source.outputs[:count], replace=swaps)

    def _states(self) -> list[tuple[Variable, Shared, In]]:
        declared = {d.variable: d for d in self.signature.declared}
        return [(v, s, declared[v]) for v, s in self.signature.states.items()]

    def _with(
        self, signature: FunctionSignature, fgraph: FunctionGraph, source: FunctionGraph | None,
        profile: object = None,
    ) -> Function:  # fmt: skip
        wanted = self.profile is not None if profile is None else profile
        compiled = None if self.stages.loops is None else self.stages.loops.compiled
        rest = self.stages.mode, self.stages.target, self.stages.rewrites, compiled
        return _compiled(signature, fgraph, source, rest, self.trust_input, wanted)

    def __deepcopy__(self, memo: dict[int, object]) -> Function:
        swaps: dict[Any, Any] = {s: copy.deepcopy(s, memo) for s in self.get_shared()}
        fgraph = self.stages.fgraph
        other = FunctionGraph(fgraph.inputs, fgraph.outputs, replace=swaps)
        states = {v: copy.deepcopy(s, memo) for v, s in self.signature.states.items()}
        updated = tuple(copy.deepcopy(s, memo) for s in self.updated)
        sources = tuple(substituted(self.signature.sources, swaps))
        signature = replace(self.signature, states=states, updated=updated, sources=sources)
        return self._with(signature, other, self._source_with(swaps, len(other.outputs)))

    def __copy__(self) -> Function:
        return self.copy()

    def __reduce__(self) -> tuple[object, ...]:
        fgraph = self.stages.fgraph
        loops = self.stages.loops
        of_loops = [] if loops is None else [*loops.source.inputs, *loops.source.outputs]
        graph = Bundle([*fgraph.inputs, *fgraph.outputs, *self.signature.sources, *of_loops])
        compiled = None if loops is None else loops.compiled
        rest = (self.stages.mode, self.stages.target, self.stages.rewrites, compiled)
        declared = tuple(_without_expressions(d) for d in self.declared)
        signature = replace(self.signature, declared=declared, sources=())
        profiled = self.profile is not None
        counts = len(fgraph.inputs), len(fgraph.outputs)
        return _unpickle, (graph, counts, signature, rest, self.trust_input, profiled)

    # -- reports ------------------------------------------------------------------------------

    def plans(self) -> list[Any]:
        """The plans made so far, over all segments."""
        return [] if self.executor_or_none is None else self.executor_or_none.plans()

    def free(self) -> None:
        """Drop all plans and give their memory back to the system.

        The next call makes new plans.
        """
        runtime = None if self.executor_or_none is None else self.executor_or_none.runtime
        self.executor_or_none = None
        self._profiled_ids = []
        if self._fast is not None:
            self._fast.entries.clear()
            self.at_once = self.at_once and self._attempt
        if runtime is not None:
            runtime.trim()

    def lowering_report(self) -> LoweringReport:
        """For each node its kernel (or view), why others refused it, and the user's line."""
        executor = self.executor_or_none
        ran = {} if executor is None else dict(executor.loop_states())
        ran |= {} if self._fast is None else self._fast.loop_states
        return lowering_report(self.stages, self.plans(), ran)

    def dnn_report(self) -> DnnReport:
        """For each convolution the algorithm that was requested and the one that runs."""
        return dnn_report(self.plans())

    def distributed_report(self, all_ranks: bool = False) -> DistributedReport:
        """For each collective of several ranks its bytes, the nodes that run meanwhile and, with a
        profile, its times; the timeline of the last call on this rank, or on ``all_ranks``, which
        all call it then."""
        return distributed_report(self.plans(), self.profile, all_ranks)

    def memory_report(self) -> MemoryReport:
        """Bytes of plans, shared variables and constants."""
        executor = self.executor_or_none
        peak, loops = (0, ()) if executor is None else executor.of_last_call(self._sizes)
        device = self.device_memory()
        return memory_report(self.plans(), self.fgraph, self.get_shared(), device, peak, loops)

    def device_memory(self) -> Any:
        """The memory that symdnn uses on the GPU; None on a CPU, and before the first call."""
        return None if self.executor_or_none is None else self.executor_or_none.runtime.memory_use()

    @property
    def maker(self) -> Function:
        """Theano programs read ``f.maker.fgraph``."""
        return self

    @property
    def inputs(self) -> list[In]:
        """The inputs as declared, as a list; Theano programs read ``f.maker.inputs``."""
        return list(self.signature.declared)

    @property
    def outputs(self) -> list[Out]:
        """The outputs: ``f.outputs[0].variable`` is the user's expression."""
        signature = self.signature
        stay = signature.stay or (False,) * self._count
        each = zip(signature.sources[: self._count], signature.borrow, stay)
        return [Out(v, borrow, own) for v, borrow, own in each]

    @property
    def fn(self) -> Function:
        """Theano programs call ``f.fn()`` and ``f.fn.free()``."""
        return self

    @property
    def mode(self) -> Mode:
        """The mode it was compiled with."""
        return self.stages.mode

    @property
    def fgraph(self) -> FunctionGraph:
        """The rewritten graph."""
        return self.stages.fgraph

    @property
    def declared(self) -> tuple[In, ...]:
        """The inputs as declared."""
        return self.signature.declared

    def get_shared(self) -> list[Shared]:
        """The shared variables that the function reads or updates."""
        return list(dict.fromkeys([*self._shared, *self.updated]))

    def __repr__(self) -> str:
        return f"<symdnn function {self.name}({self.arguments.signature()})>"


def _read_by_device_only(fgraph: FunctionGraph, v: Variable) -> bool:
    """Whether no node on the host reads the elements of an input."""
    return all(n is not None and isinstance(n.op, GpuFromHost | ShapeI) for n, _ in fgraph.users(v))


def _check_swap(function: Function, old: Shared, new: Shared) -> None:
    if old not in function.get_shared():
        raise InputError(f"copy: {old} is no shared variable of {function.name}")
    if not isinstance(new, Shared):
        raise InputError(f"copy: {old} must be swapped for a shared variable, got {new!r}")
    if old.type != new.type:
        raise TypeMismatch(f"copy: swap of {old}", str(old.type), new.type)


def _own_state(state: Shared, declared: In) -> Shared:
    """A copy of the value kept for an input; a user's shared variable is not copied."""
    return state if isinstance(declared.value, Shared) else copy.deepcopy(state)


def _without_expressions(declared: In) -> In:
    # The update's expression is in the graph, the value in the state.
    other = copy.copy(declared)
    other.update = None
    return other


def _unpickle(
    graph: Bundle,
    counts: tuple[int, int],
    signature: FunctionSignature,
    rest: Any,
    trusted: bool,
    profiled: bool,
) -> Function:
    ins, outs = counts
    found = iter(graph.variables)
    inputs, outputs, sources, *of_loops = (
        list(islice(found, n)) for n in (ins, outs, outs, ins, outs)
    )
    signature = replace(signature, sources=tuple(sources))
    source = FunctionGraph(*of_loops) if any(of_loops) else None
    return _compiled(signature, FunctionGraph(inputs, outputs), source, rest, trusted, profiled)


def _compiled(
    signature: FunctionSignature, fgraph: FunctionGraph, source: FunctionGraph | None, rest: Any,
    trusted: bool, profiled: object,
) -> Function:  # fmt: skip
    """A function of a graph that was rewritten; ``source`` is that of its loops, before that."""
    mode, target, rewrites, compiled = rest
    signature.mark_updates(fgraph)
    with config.change_flags(compute_test_value="off"):
        program = program_of(fgraph, target, mode)
    budget, loops = signature.memory_budget, None
    if budget is not None and source is not None:
        signature.mark_updates(source)
        loops = LoopBudget(budget, source, program, target.place, compiled)
    stages = Stages(mode, target, fgraph, with_budget(program, budget), rewrites, loops=loops)
    profile = FunctionProfile.of(profiled, signature.name, rewrites)
    function = Function(signature, stages, profile)
    function.trust_input = trusted
    return function
