"""A plan on the CPU: steps bound to kernels, values bound to an arena, and its runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

import numpy as np

from symdnn.config import config
from symdnn.cpu.compiler import jit
from symdnn.cpu.execution import tier_up
from symdnn.cpu.execution.arena import Arenas, array_at
from symdnn.cpu.execution.fastcall_groups import BaseAndView, FastCallGroups
from symdnn.cpu.execution.guard import with_checks
from symdnn.cpu.execution.output_buffers import (
    OutputBuffers,
    fresh_outputs,
    kind_of,
    output_parts,
    outside_views,
    whole_outputs,
)
from symdnn.cpu.execution.step_codegen import Frame, PlanStep, StepFunction
from symdnn.cpu.execution.stepwise import launch_all, wait_for_code
from symdnn.cpu.execution.tier_up import HOT_CALLS, WARM_CALLS
from symdnn.cpu.execution.view_ops import view_of
from symdnn.cpu.launch.launch import CpuLaunch, as_launch
from symdnn.cpu.launch.scratch import empty_aligned
from symdnn.cpu.reference.kernels import uncompiled_launch
from symdnn.cpu.threads import thread_pools, threads
from symdnn.cpu.threads.contention import CONTENTION
from symdnn.errors import KernelCompileError
from symdnn.graph.kernel import Traits
from symdnn.graph.runtime import BoundPlan, Watcher
from symdnn.graph.typing import Array
from symdnn.graph.values.storage import LENDINGS
from symdnn.graph.variable import Apply, Constant, Variable

__all__ = ["CpuPlan"]

#: Bytes of values that a plan may have beside those of the arena; arguments with fewer are small.
_MOST_BYTES_APART = 1 << 16


class CpuPlan(BoundPlan):
    """A plan's steps, whose operands are indices into one list of values.

    Constants and views of the arena are in a template that each run copies. So a nested run of the
    same plan has values of its own, and nothing of a call is kept after it.

    A plan with ``full`` is that plan for fewer threads. It replaces it while other processes want
    the processors (:func:`symdnn.cpu.threads.threads.usable`).
    """

    #: Whether it is for arguments with the strides of those of its first run.
    strided_arguments = False
    #: Whether kernels use libgomp's threads, another pool's (BLAS's), both, or any of them.
    threaded = has_pools = calls_blas = parallel = False

    def __init__(
        self, runtime: Arenas, spec: Any, memory: Any, full: CpuPlan | None = None
    ) -> None:
        self.runtime, self.spec, self.memory = runtime, spec, memory
        self.index: dict[Variable, int] = {v: i for i, v in enumerate(memory.views)}
        self.entering = self.plain_entering()
        self.arena_bytes: int = memory.arena_bytes
        #: Results whose axes lie in another order than C's in memory, and that order.
        self.orders: dict[int, tuple[int, ...]] = {}
        self.leaving = [self.index[v] for v in spec.segment.outputs]
        self.results: OutputBuffers = self._output_buffers() if full is None else full.results
        #: Shared variables that are updated in place: indices of (new value, old value).
        self.stored = [(self.index[new], self.index[old]) for new, old in memory.stored.items()]
        #: Values in the memory of outputs: index, index of that memory, a view of which it is.
        self.in_outputs = output_parts(memory, self.index)
        #: Values that are made in the memory of outputs: (index, index of the output).
        self.early = whole_outputs(memory, self.index)
        self.storages = [old.storage for old in memory.stored.values()]
        self.lendings = -1
        #: Values in the memory of a loop's states: indices of (new value, old value).
        self.carried = [(self.index[new], self.index[old]) for new, old in memory.carried.items()]
        self.workspaces: list[tuple[int, Any]] = []
        #: Compiled kernels that have replaced NumPy's by tier-up.
        self.tier_up_kernels: dict[Apply, Any] = {} if full is None else full.tier_up_kernels
        self._look_at_traits()
        #: Whether all steps but views are compiled; whether NumPy cannot warn. Set when bound.
        self.compiled = self.silent = False
        #: Whether a run is only a call of ``run_all``: no updates, and BLAS keeps its threads.
        self.simple = False
        #: How many threads it was bound for.
        self.threads = thread_pools.set_threads() if self.parallel else 1
        self.may_yield = full is None and str(config.deterministic) != "more"
        self.yields = self._yields()
        #: Number of threads -> the plan for so many.
        self.fewer: dict[int, CpuPlan] = {}
        self.steps: list[PlanStep] = []
        self.calls = 0 if full is None else HOT_CALLS
        #: The call at which small kernels are looked at again, and code that they wait for.
        self.next_look = min(WARM_CALLS, HOT_CALLS)
        self.missing: list[jit.Code] = []
        self.template: list[Any] = [None] * (len(self.index) + len(memory.workspaces))
        for v, i in self.index.items():
            if isinstance(v, Constant):
                self.template[i] = v.data
            elif v in spec.sizes:
                self.template[i] = spec.sizes[v]
        #: Views of constants and sizes, which are bound once.
        self.fixed_views = {n for n in spec.segment.nodes if self._fix(n)}
        self._bind_steps()
        self.scratch: Array | None = None

    def plain_entering(self) -> list[tuple[int, int]]:
        """Pairs (number of an input, index of its value)."""
        inputs = enumerate(self.spec.segment.inputs)
        return [(k, i) for k, v in inputs if (i := self.index.get(v)) is not None]

    def _bind_steps(self) -> None:
        self.parallel_requests = threads.parallel_requests()
        self.workspaces.clear()
        self.fewer.clear()
        segment = self.spec.segment
        self.steps = [s for n in segment.nodes if (s := self._step(n)) is not None]
        if segment.guard is not None:
            self.steps = with_checks(self.steps, segment.watched, self.index, segment.guard)
        #: Functions of all steps: with spans that need no Python, and with each step called from
        #: Python. None until the second run.
        self.step_function: StepFunction | None = None
        self.python_function: StepFunction | None = None
        #: These functions bound to the current arena.
        self.run_all: Any = None
        self.python_run: Any = None
        self.runs, self.grouped, self.compiled, self.silent = 0, False, False, False
        self.quick = False  # whether a run is one call, without kernels that may warn
        #: A call as one function (:meth:`whole`); False where it is more, None at first.
        self.direct: Any = None
        self.spans: FastCallGroups | None = None

    @property
    def nbytes(self) -> int:
        """An estimate of the memory of the plan itself, without its values in the shared arena."""
        fewer = sum(p.nbytes for p in self.fewer.values())
        return fewer + 512 * len(self.index) + 1024 * len(self.steps)

    def _output_buffers(self) -> OutputBuffers:
        kind = kind_of(self.spec.segment.kept)
        return kind(fresh_outputs(self.spec, self.memory, self.index))

    def _step(self, node: Apply) -> PlanStep | None:
        by_view = node in self.memory.aliases
        if node in self.fixed_views:
            return None
        if by_view and self.memory.views[node.outputs[0]].static and self._bound_once(node):
            return None
        inputs = tuple(self.index[v] for v in node.inputs)
        outputs = tuple(self.index[v] for v in node.outputs)
        if by_view:
            return PlanStep(node, self._view_of(node), inputs, outputs, True)
        return PlanStep(node, self._launch(node), inputs, outputs, False, self._workspace(node))

    def _fix(self, node: Apply) -> bool:
        """Bind the result of a view of values that are the same in every run, if it is one."""
        inputs = [self.template[self.index[v]] for v in node.inputs if v in self.index]
        if node not in self.memory.aliases or len(inputs) < len(node.inputs):
            return False
        if any(value is None for value in inputs):
            return False
        (made,) = self._view_of(node)(*inputs)
        self.template[self.index[node.outputs[0]]] = made
        return True

    def _view_of(self, node: Apply) -> Callable[..., Any]:
        shape = self.memory.views[node.outputs[0]].shape
        return view_of(node.op, getattr(node.inputs[0].type, "ndim", 0), shape)

    def _launch(self, node: Apply) -> CpuLaunch:
        try:
            if node not in self.tier_up_kernels:
                return as_launch(self.spec.launch(node))
            with config.change_flags(**{"cpu.compile": "always"}):
                return as_launch(self.tier_up_kernels[node].bind(self.spec.call(node)))
        except KernelCompileError as error:
            return as_launch(uncompiled_launch(self.spec.call(node), error))

    def _look(self) -> None:
        """Tier up with what code there is; once the plan is hot, with all."""
        if self.calls >= HOT_CALLS:
            self._tier_up()
            return
        again = self.calls == WARM_CALLS
        if self.missing and all(code.ended for code in self.missing):
            self.missing.clear()
            again = True
        if again:
            self._tier_up()
        # Only the next run asks for all code that is missing.
        self.next_look = min(2 * self.calls, HOT_CALLS) if self.missing or again else HOT_CALLS

    def _tier_up(self) -> None:
        """Compile kernels that were too small to compile at first, and bind the steps again."""
        early = self.calls < HOT_CALLS
        with jit.only_cached(self.missing) if early else contextlib.nullcontext():
            self.tier_up_kernels = tier_up.compiled_kernels(self.spec, self.memory.aliases)
        if early:  # these may go back to kernels that want their workspaces
            for node in self.memory.workspaces:
                self.tier_up_kernels.pop(node, None)
        if self.tier_up_kernels:
            self._bind_steps()
            self.scratch = None  # other steps have workspaces now
            self._look_at_traits()
            self.threads = thread_pools.set_threads()
            self.yields = self._yields()

    def _workspace(self, node: Apply) -> int | None:
        buffer = self.memory.workspaces.get(node)
        if buffer is None or node in self.tier_up_kernels:  # which allocate their own
            return None
        self.workspaces.append((len(self.index) + len(self.workspaces), buffer))
        return self.workspaces[-1][0]

    def _bound_once(self, node: Apply) -> bool:
        return self.memory.views[node.outputs[0]].buffer.kind in ("arena", "in block")

    def _attach(self) -> None:
        """Create the views of the arena."""
        arena = self.runtime.arenas[self.runtime.depth].reserve(self.arena_bytes, self)
        self.scratch, self.run_all, self.python_run, self.quick = arena, None, None, False
        self._place(arena)

    def _place(self, arena: Array) -> None:
        for v, view in self.memory.views.items():
            if view.buffer.kind == "arena" and view.static:
                self.template[self.index[v]] = array_at(arena, view, v.type)
        for i, buffer in self.workspaces:
            self.template[i] = arena[buffer.offset : buffer.offset + buffer.nbytes]

    def detach(self) -> None:
        """Drop all views of the arena; the next run binds to the arena that there is then."""
        self.scratch = self.run_all = self.python_run = None
        self.quick = False
        for v, view in self.memory.views.items():
            if view.buffer.kind == "arena":
                self.template[self.index[v]] = None
        for i, _ in self.workspaces:
            self.template[i] = None

    def become_hot(self) -> None:
        self.calls = max(self.calls, HOT_CALLS - 1)
        self.next_look = self.calls + 1

    def run(self, entering: Sequence[Any], watcher: Watcher | None = None) -> list[Any]:
        """Run every step; outputs are fresh arrays."""
        self.calls += 1
        if self.calls == self.next_look:
            self._look()
        runtime, scratch = self.runtime, self.scratch
        if scratch is None or scratch is not runtime.arenas[runtime.depth].bytes:
            self._attach()
        if self.parallel and self.must_look():
            count = self._usable_threads()
            if count < self.threads:
                return self._run_with_fewer(count, entering, watcher)
        run = self.run_all
        if run is not None and self.simple and watcher is None:
            try:
                return run(entering)
            except Exception as error:
                self.step_function.explain(error)  # type: ignore[union-attr]
                raise
        if self.calls_blas:
            with thread_pools.SingleThreadedBlas():
                return self._run(entering, watcher)
        return self._run(entering, watcher)

    def repeats(self) -> bool:
        """Whether all of its steps are one function that needs no Python."""
        return any(p.is_one_function() for p in (self, *self.fewer.values()))

    def whole(self, arguments: Sequence[Any], *more: Any) -> Any:
        """A call as one function (:meth:`FastCallGroups.whole`), of a hot plan that needs little
        memory beside its operands. That is its own, since nothing holds the arena then."""
        beside, function = self.arena_bytes, self.step_function
        hot = self.quick and self.compiled and self.calls > self.next_look
        if not hot or self.spans is None or function is None or beside > _MOST_BYTES_APART:
            return None
        # Libraries ask the calling thread for its number, and a number above one may change.
        if self.parallel and (self.threads > 1 or any(t.vendor for t in self._traits().values())):
            return None
        if beside:
            self._place(empty_aligned(beside))
            function.bind(self.template)
            self.detach()  # the next run binds to the arena again
        return self.spans.whole(arguments, self.parallel, self.runtime, *more)

    def is_one_function(self) -> bool:
        """:meth:`repeats` for the number of threads of this plan."""
        if self.run_all is None or not (self.simple and self.compiled) or self.spans is None:
            return False
        return self.scratch is self.runtime.arenas[self.runtime.depth].bytes

    def repeat(
        self, times: int, entering: Sequence[tuple[Any, bool]], outputs: Sequence[Any]
    ) -> int:
        """A loop of compiled code."""
        if self.parallel and self.must_look() and (n := self._usable_threads()) < self.threads:
            plan = self.fewer.get(n)
            with thread_pools.limited(n):
                return 0 if plan is None else plan.repeat(times, entering, outputs)
        if not self.is_one_function():
            return 0
        assert self.spans is not None
        return self.spans.repeat(times, entering, outputs)

    def must_look(self) -> bool:
        """Whether the number of threads may have to change."""
        if (other := thread_pools.set_threads() != self.threads) or not self.yields:
            return other
        return not (CONTENTION.free >= self.threads and monotonic() < CONTENTION.next_check)

    def _usable_threads(self) -> int:
        """How many threads this run uses; binds the steps again if the flag has changed."""
        if (count := thread_pools.set_threads()) != self.threads:
            if count < self.threads and threads.limit():
                return count
            self.threads = count
            if self.threaded:
                self._bind_steps()
                self._attach()  # other steps may have other memory
            self.yields = self._yields()
        return threads.usable(self.threads) if self.yields else self.threads

    def _yields(self) -> bool:
        """Whether it may run with fewer threads, which changes the rounding of sums."""
        return self.may_yield and threads.may_yield(self.threads)

    def _with_fewer(self) -> CpuPlan:
        return CpuPlan(self.runtime, self.spec, self.memory, self)

    def _run_with_fewer(
        self, count: int, entering: Sequence[Any], watcher: Watcher | None
    ) -> list[Any]:
        if threads.limit() == count and (plan := self.fewer.get(count)) is not None:
            return plan.run(entering, watcher)
        with thread_pools.limited(count):
            if not self.threaded:
                with thread_pools.SingleThreadedBlas():
                    return self._run(entering, watcher)
            plan = self.fewer.get(count)
            if plan is None:
                plan = self.fewer[count] = self._with_fewer()
            found = plan.run(entering, watcher)
        if not plan.parallel:  # it has found that no step has work for two threads
            self.threaded = self.parallel = False
        return found

    def _run(self, entering: Sequence[Any], watcher: Watcher | None) -> list[Any]:
        if watcher is not None or self.runs == 0 or (self.stored and self._is_borrowed()):
            return self._run_by_step(entering, watcher)
        run = self.run_all
        if run is None:
            run = self._bind_step_function(entering)
        try:
            return run(entering)
        except Exception as error:
            if self.step_function is not None:
                self.step_function.explain(error)
            raise

    def _run_from_python(self, entering: Sequence[Any]) -> list[Any]:
        """A run that calls every step from Python, for arguments that are not contiguous."""
        function = self.python_function
        if function is None:
            function = self.python_function = StepFunction(self.steps, self._frame())
        if self.python_run is None:
            self.python_run = function.bind(self.template)
        try:
            return self.python_run(entering)
        except Exception as error:
            function.explain(error)
            raise

    def _is_borrowed(self) -> bool:
        """Whether a user holds an updated variable's memory, and may pass it as an argument."""
        if (lendings := LENDINGS[0]) == self.lendings:
            return False  # none was lent since the last look
        found = any([s.version is None for s in self.storages])
        self.lendings = -1 if found else lendings
        return found

    def _bind_step_function(self, entering: Sequence[Any]) -> Any:
        """All steps as one function, generated at the second run of a plan."""
        if self.step_function is None:
            if not self.grouped:
                views = self._views_outside()
                self.spans = FastCallGroups.of(
                    self.steps, self._frame(), views, self.template, entering,
                    self.strided_arguments,
                )  # fmt: skip
                self.grouped = True
            if self.spans is not None and not self.spans.fits(entering):
                return self._run_from_python
            frame = self._frame()
            self.step_function = StepFunction(self.steps, frame, self.spans, self._run_from_python)
        self.run_all = self.step_function.bind(self.template)
        apart, traits = self.step_function.apart, self._traits()
        self.compiled, self.silent = not apart, all(n in traits and traits[n].quiet for n in apart)
        if self.parallel_requests == threads.parallel_requests():
            # No step has work for two threads, so the number of threads does not matter.
            self.threaded = any(t.threaded and not t.asks_threads for t in traits.values())
            self.calls_blas = self.calls_blas and self.threaded
            self.parallel = self.threaded or self.has_pools
        self.simple = not (self.stored or self.carried or self.calls_blas)
        self.quick = self.silent and self.simple
        return self.run_all

    def _views_outside(self) -> dict[int, BaseAndView]:
        return outside_views(self.memory, self.index, self.template)

    def _look_at_traits(self) -> None:
        traits = set(self._traits().values())
        self.threaded = any(t.threaded for t in traits)
        #: Whether all kernels are closed: no user's code runs inside of a run.
        self.closed = all(t.closed for t in traits)
        self.has_pools = any(t.has_pool for t in traits)
        self.calls_blas = self.threaded and self.has_pools
        self.parallel = self.threaded or self.has_pools

    def _traits(self) -> dict[Apply, Traits]:
        """The traits of the kernels that run; views and checks have none."""
        kernels = {n: choice.kernel for n, choice in self.spec.choices.items()}
        kernels |= self.tier_up_kernels
        return {n: k.traits for n, k in kernels.items() if n not in self.memory.aliases}

    def _frame(self) -> Frame:
        fixed = [i for i, value in enumerate(self.template) if value is not None]
        same = [*self.stored, *self.carried, *self.early]
        return Frame(
            self.entering, self.results, same, fixed, self.leaving, self.orders, self.in_outputs
        )

    def _run_by_step(self, entering: Sequence[Any], watcher: Watcher | None) -> list[Any]:
        """Run step by step: the first run, which compiles, watched runs, and borrowed variables.

        In the last two new values of shared variables get memory of their own.
        """
        values = self.template.copy()
        for k, i in self.entering:
            values[i] = entering[k]
        for k, (i, _, _) in enumerate(self.results.places):
            order = self.orders.get(i)
            make, given = self.results.maker(k, order) if order else (self.results.make, (k,))
            values[i] = make(*given)
        apart = watcher is not None or self._is_borrowed()
        for new, old in self.stored:
            values[new] = np.empty_like(values[old]) if apart else values[old]
        for new, old in self.carried:
            values[new] = values[old]
        for i, base, make in self.in_outputs:
            values[i] = make(values[base])
        for i, out in self.early:
            values[i] = values[out]
        if self.runs == 0:
            self._prepare(values)
        news = {new for new, _ in self.stored}
        writers = (k for k, s in enumerate(self.steps) if not news.isdisjoint(s.outputs))
        first = next(writers, None)
        launch_all(self.spec, self.steps[:first], values, watcher)
        if first is not None:  # behind this a failure would leave some variables updated
            wait_for_code(self.steps[first:], values)
            launch_all(self.spec, self.steps[first:], values, watcher)
        self.runs += 1
        return [values[i] for i in self.leaving]

    def _prepare(self, values: Sequence[Any]) -> None:
        """Pass the operands' strides to the launches, which queue the code that they need."""
        known = list(values)
        for step in self.steps:
            inputs, outputs = [known[i] for i in step.inputs], [known[o] for o in step.outputs]
            if self.calls < HOT_CALLS and step.node in self.tier_up_kernels:
                self._keep_if_cached(step, inputs, outputs)
                continue
            if any(a is None for a in (*inputs, *([] if step.by_view else outputs))):
                continue
            with contextlib.suppress(Exception):  # the step itself raises the error
                sizes = not any(isinstance(a, np.ndarray) for a in inputs[1:])
                if step.by_view and sizes and not step.node.op.unmergeable:
                    known[step.outputs[0]] = step.launch(*inputs)[0]
                elif not step.by_view and step.launch.prepare is not None:
                    step.launch.prepare(inputs, outputs)

    def _keep_if_cached(self, step: PlanStep, inputs: Any, outputs: Any) -> None:
        """Bind a step to the kernel that it had, unless all code of its new one is cached."""
        with contextlib.suppress(Exception), jit.only_cached(self.missing):
            if step.launch.prepare is not None and all(a is not None for a in (*inputs, *outputs)):
                step.launch.prepare(inputs, outputs)
                return
        del self.tier_up_kernels[step.node]
        step.launch = self._launch(step.node)
        self._look_at_traits()
