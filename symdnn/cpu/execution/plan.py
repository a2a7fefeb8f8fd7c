"""A plan on the CPU: its steps bound to kernels, its values to an arena, and its runs."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from time import monotonic
from typing import Any

import numpy as np

from symdnn.config import config
from symdnn.cpu.execution import tier_up
from symdnn.cpu.execution.arena import Arenas
from symdnn.cpu.execution.fastcall_groups import Grouping
from symdnn.cpu.execution.output_buffers import KeptResults, Results
from symdnn.cpu.execution.step_codegen import Driver, Frame, Step
from symdnn.cpu.execution.tier_up import HOT_CALLS
from symdnn.cpu.execution.view_ops import look_of
from symdnn.cpu.launch.launch import CpuLaunch, as_launch
from symdnn.cpu.reference.kernels import uncompiled_launch
from symdnn.cpu.threads import thread_pools, threads
from symdnn.cpu.threads.crowd import CROWD
from symdnn.errors import KernelCompileError
from symdnn.graph.evaluate import describe_failure
from symdnn.graph.kernel import Traits
from symdnn.graph.runtime import BoundPlan, Watcher
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Apply, Constant, Variable

__all__ = ["CpuPlan"]

Array = Any


class CpuPlan(BoundPlan):
    """Steps over one list of values.

    Constants and views of the arena are in a template that each run copies, so a run inside of a
    run of the same plan does not meet it, and nothing of a call is kept after it.

    ``full`` is the plan of all threads that this one, by fewer, takes the place of while other
    processes want the processors (:func:`symdnn.cpu.threads.threads.fitting`).
    """

    def __init__(
        self, runtime: Arenas, spec: Any, memory: Any, full: CpuPlan | None = None
    ) -> None:
        self.runtime, self.spec, self.memory = runtime, spec, memory
        self.index: dict[Variable, int] = {v: i for i, v in enumerate(memory.views)}
        self.entering = [
            (k, i)
            for k, v in enumerate(spec.segment.inputs)
            if (i := self.index.get(v)) is not None
        ]
        self.leaving = [self.index[v] for v in spec.segment.outputs]
        kind = KeptResults if spec.segment.kept else Results
        self.results: Results = kind(self._fresh_outputs()) if full is None else full.results
        #: New values that are made in the storages of shared variables, and what those held.
        self.stored = [(self.index[new], self.index[old]) for new, old in memory.stored.items()]
        self.storages = [old.storage for old in memory.stored.values()]
        self.workspaces: list[tuple[int, Any]] = []
        #: Kernels that have taken the place of those of the table, since the plan is called often.
        self.warm: dict[Apply, Any] = {} if full is None else full.warm
        traits = self._traits()
        #: Whether threads of libgomp run kernels of it, and how many these were made for.
        self.threaded = any(t.threaded for t in traits)
        #: Whether all kernels are closed: nothing of the user's runs inside of a run.
        self.closed = all(t.closed for t in traits)
        #: Whether all steps but views are compiled, so that NumPy cannot warn; settled when bound.
        self.silent = False
        #: Whether a run is its driver's and no more: nothing is updated, BLAS is not looked at.
        self.simple = False
        #: Whether a kernel may call BLAS, which has threads of its own.
        self.calls_blas = self.threaded and not self.closed
        #: Whether several threads may run it, libgomp's or those of BLAS.
        self.parallel = self.threaded or not self.closed
        self.threads = thread_pools.settle() if self.parallel else 1
        self.may_yield = full is None and str(config.deterministic) != "more"
        self.yields = self._yields()
        #: Number of threads -> the plan that runs by so few.
        self.fewer: dict[int, CpuPlan] = {}
        self.steps: list[Step] = []
        self.calls = 0 if full is None else HOT_CALLS
        self._bind_steps()
        self.scratch: Array = None
        self.template: list[Any] = [None] * (len(self.index) + len(self.workspaces))
        for v, i in self.index.items():
            if isinstance(v, Constant):
                self.template[i] = v.data
            elif v in spec.sizes:
                self.template[i] = spec.sizes[v]

    def _bind_steps(self) -> None:
        self.asked = threads.asked()
        self.workspaces.clear()
        self.fewer.clear()
        self.steps = [s for n in self.spec.segment.nodes if (s := self._step(n)) is not None]
        #: What runs them all, and calls each from Python; None until the second run of the steps.
        self.driver: Driver | None = None
        self.plain: Driver | None = None
        self.run_all: Any = None
        self.plain_run: Any = None
        self.runs, self.silent, self.grouped = 0, False, False
        self.spans: Grouping | None = None

    @property
    def nbytes(self) -> int:
        """About how much memory the plan itself keeps (its values lie in the shared arena)."""
        fewer = sum(p.nbytes for p in self.fewer.values())
        return fewer + 512 * len(self.index) + 1024 * len(self.steps)

    def _fresh_outputs(self) -> list[tuple[int, Any, Any]]:
        """What is made outside of the arena: results, and what results are views of."""
        made = []
        for v in (v for node in self.spec.segment.nodes for v in node.outputs):
            view = self.memory.views[v]
            if view.buffer.kind == "outside" and view.buffer.variable is v:
                made.append((self.index[v], view.shape, v.type.numpy))
        return made

    def _step(self, node: Apply) -> Step | None:
        by_view = node in self.memory.aliases
        if by_view and self.memory.views[node.outputs[0]].static and self._bound_once(node):
            return None
        call_inputs = tuple(self.index[v] for v in node.inputs)
        outputs = tuple(self.index[v] for v in node.outputs)
        if by_view:
            ndim = getattr(node.inputs[0].type, "ndim", 0)
            return Step(node, look_of(node.op, ndim), call_inputs, outputs, True)
        at = self._workspace(node)
        return Step(node, self._launch(node), call_inputs, outputs, False, at)

    def _launch(self, node: Apply) -> CpuLaunch:
        try:
            if node not in self.warm:
                return as_launch(self.spec.launch(node))
            with config.change_flags(**{"cpu.compile": "always"}):
                return as_launch(self.warm[node].bind(self.spec.call(node)))
        except KernelCompileError as error:
            return as_launch(uncompiled_launch(self.spec.call(node), error))

    def _warm(self) -> None:
        """Compile what was too little to be worth it, and make one function of more steps."""
        self.warm = tier_up.compiled_instead(self.spec)
        if self.warm:
            self._bind_steps()
            self.threaded = self.threaded or any(t.threaded for t in self._traits())
            self.parallel = self.threaded or not self.closed
            self.threads = thread_pools.settle()
            self.yields = self._yields()

    def _workspace(self, node: Apply) -> int | None:
        buffer = self.memory.workspaces.get(node)
        if buffer is None:
            return None
        self.workspaces.append((len(self.index) + len(self.workspaces), buffer))
        return self.workspaces[-1][0]

    def _bound_once(self, node: Apply) -> bool:
        return bool(self.memory.views[node.outputs[0]].buffer.kind == "arena")

    def _attach(self) -> None:
        """Bind every view of the arena to its place."""
        arena = self.runtime.arenas[self.runtime.depth].reserve(self.memory.arena_bytes, self)
        self.scratch, self.run_all, self.plain_run = arena, None, None
        for v, view in self.memory.views.items():
            if view.buffer.kind == "arena" and view.static:
                self.template[self.index[v]] = _array_at(arena, view, v.type)
        for i, buffer in self.workspaces:
            self.template[i] = arena[buffer.offset : buffer.offset + buffer.nbytes]

    def detach(self) -> None:
        """Let go of the arena; the next run binds to the one of then."""
        self.scratch = self.run_all = self.plain_run = None
        for v, view in self.memory.views.items():
            if view.buffer.kind == "arena":
                self.template[self.index[v]] = None
        for i, _ in self.workspaces:
            self.template[i] = None

    def run(self, entering: Sequence[Any], watcher: Watcher | None = None) -> list[Any]:
        """Run every step; values that leave are fresh arrays."""
        self.calls += 1
        if self.calls == HOT_CALLS:
            self._warm()
        runtime, scratch = self.runtime, self.scratch
        if scratch is None or scratch is not runtime.arenas[runtime.depth].bytes:
            self._attach()
        if self.parallel and (
            thread_pools.settle() != self.threads
            or (self.yields and (CROWD.free < self.threads or monotonic() >= CROWD.next))
        ):
            count = self._fitting()
            if count < self.threads:
                return self._run_by_fewer(count, entering, watcher)
        run = self.run_all
        if run is not None and self.simple and watcher is None:
            try:
                return run(entering)
            except Exception as error:
                self.driver.explain(error)  # type: ignore[union-attr]
                raise
        if self.calls_blas:
            with thread_pools.SingleThreadedBlas():
                return self._run(entering, watcher)
        return self._run(entering, watcher)

    def _fitting(self) -> int:
        """How many threads this run is for; binds the steps anew where the flag has changed."""
        count = thread_pools.settle()
        if count != self.threads:
            if count < self.threads and threads.limit():
                return count
            self.threads = count
            if self.threaded:
                self._bind_steps()
            self.yields = self._yields()
        return threads.fitting(self.threads) if self.yields else self.threads

    def _yields(self) -> bool:
        """Whether it may run by fewer threads. Their sums differ in rounding."""
        return self.may_yield and threads.may_share(self.threads)

    def _run_by_fewer(
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
                plan = CpuPlan(self.runtime, self.spec, self.memory, self)
                self.fewer[count] = plan
            return plan.run(entering, watcher)

    def _run(self, entering: Sequence[Any], watcher: Watcher | None) -> list[Any]:
        if watcher is not None or self.runs == 0 or (self.stored and self._lent()):
            return self._run_by_step(entering, watcher)
        run = self.run_all
        if run is None:
            run = self._bind_driver(entering)
        try:
            return run(entering)
        except Exception as error:
            if self.driver is not None:
                self.driver.explain(error)
            raise

    def _run_plainly(self, entering: Sequence[Any]) -> list[Any]:
        """A run in which every step is called from Python."""
        plain = self.plain
        if plain is None:
            plain = self.plain = Driver(self.steps, self._frame())
        if self.plain_run is None:
            self.plain_run = plain.bind(self.template)
        try:
            return self.plain_run(entering)
        except Exception as error:
            plain.explain(error)
            raise

    def _lent(self) -> bool:
        """Whether a user has the memory of a variable that is updated, and may pass it in too."""
        return any([s.version is None for s in self.storages])

    def _bind_driver(self, entering: Sequence[Any]) -> Any:
        """All steps as one function; made when a plan is used again."""
        if self.driver is None:
            frame = self._frame()
            if not self.grouped:
                views = self._views()
                self.spans = Grouping.of(self.steps, frame, views, self.template, entering)
                self.grouped = True
            if self.spans is not None and not self.spans.fits(entering):
                return self._run_plainly
            self.driver = Driver(self.steps, frame, self.spans, self._run_plainly)
        self.run_all = self.driver.bind(self.template)
        self.silent = self.driver.whole
        self.simple = not self.stored and not self.calls_blas
        if self.silent and self.asked == threads.asked():
            # No step has work for two threads, so another number of them changes nothing.
            self.threaded = self.threaded and not all(t.asks_threads for t in self._traits())
            self.parallel = self.threaded or not self.closed
        return self.run_all

    def _traits(self) -> set[Traits]:
        """The traits of the kernels that run; of views none does."""
        kernels = {n: choice.kernel for n, choice in self.spec.choices.items()} | self.warm
        return {k.traits for n, k in kernels.items() if n not in self.memory.aliases}

    def _frame(self) -> Frame:
        fixed = [i for i, value in enumerate(self.template) if value is not None]
        return Frame(self.entering, self.results, self.stored, fixed, self.leaving)

    def _views(self) -> dict[int, tuple[int, Any]]:
        """Values that are known views of what enters or leaves: place of that, and the view."""
        return {
            i: (self.index[view.buffer.variable], view)
            for v, i in self.index.items()
            if (view := self.memory.views[v]).buffer.kind == "outside"
            and view.buffer.variable is not v
            and view.buffer.variable in self.index
            and -1 not in view.strides
        }

    def _run_by_step(self, entering: Sequence[Any], watcher: Watcher | None) -> list[Any]:
        """The first run, in which kernels are compiled, those that are watched, or may not write.

        New values of shared variables are made beside them: this run may fail at any step.
        """
        values = self.template.copy()
        for k, i in self.entering:
            values[i] = entering[k]
        for k, (i, _, _) in enumerate(self.results.places):
            values[i] = self.results.make(k)
        for new, old in self.stored:
            values[new] = np.empty_like(values[old])
        if self.runs == 0:
            self._prepare(values)
        self._launch_all(values, watcher)
        self.runs += 1
        return [values[i] for i in self.leaving]

    def _prepare(self, values: Sequence[Any]) -> None:
        """Tell launches how their operands lie, so that what they need is compiled meanwhile."""
        known = list(values)
        for step in self.steps:
            inputs, outputs = [known[i] for i in step.inputs], [known[o] for o in step.outputs]
            if any(a is None for a in (*inputs, *([] if step.by_view else outputs))):
                continue
            with contextlib.suppress(Exception):  # what is wrong is said when the step runs
                if step.by_view and len(inputs) == 1 and not step.node.op.unmergeable:
                    known[step.outputs[0]] = step.launch(*inputs)[0]
                elif not step.by_view and step.launch.prepare is not None:
                    step.launch.prepare(inputs, outputs)

    def _launched(self, step: Step, inputs: Any, outputs: Any, values: Sequence[Any]) -> Any:
        """What a step gives; by NumPy where LLVM does not compile its kernel."""
        more = () if step.workspace is None else (values[step.workspace],)
        try:
            return step.launch(inputs, outputs, *more)
        except KernelCompileError as error:
            step.launch = as_launch(uncompiled_launch(self.spec.call(step.node), error))
            step.workspace = None
            return step.launch(inputs, outputs)

    def _launch_all(self, values: list[Any], watcher: Watcher | None) -> None:
        step: Step | None = None
        try:
            for step in self.steps:
                inputs = [values[i] for i in step.inputs]
                if watcher is not None:
                    watcher(step.node, inputs, None)
                if step.by_view:
                    values[step.outputs[0]] = step.launch(*inputs)[0]
                else:
                    outputs = [values[o] for o in step.outputs]
                    results = self._launched(step, inputs, outputs, values)
                    if results is not None:
                        for o, result in zip(step.outputs, results):
                            values[o] = result
                if watcher is not None:
                    watcher(step.node, inputs, [values[o] for o in step.outputs])
        except Exception as error:
            if step is not None:
                error.add_note(describe_failure(step.node, [values[i] for i in step.inputs]))
            raise


def _array_at(arena: Array, view: Any, type_: Any) -> Array:
    assert isinstance(type_, TensorType)
    if 0 in view.shape:
        return np.empty(view.shape, type_.numpy)
    start = view.buffer.offset + view.offset
    return np.ndarray(view.shape, type_.numpy, arena, start, view.strides)
