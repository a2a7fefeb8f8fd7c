"""Runs a loop: the body's plan once per step, with states in buffers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from symdnn.compile.execute.joined import are_current, forgetting_new_plans, is_enqueued
from symdnn.compile.plan.plan import Plan
from symdnn.compile.program.carried import carried_states
from symdnn.compile.program.program import Loop, Segment
from symdnn.graph.evaluate import note_failure
from symdnn.graph.place import HOST
from symdnn.graph.runtime import Runtime, Watcher
from symdnn.graph.variable import Constant, Variable
from symdnn.ops.collective.base import Collective
from symdnn.ops.control.scan import Scan
from symdnn.ops.control.scan_loop import run_loop
from symdnn.ops.lowered.positions import counts_of

if TYPE_CHECKING:
    from symdnn.compile.execute.executor import Executor

__all__ = ["LoopRunner"]

Step = Callable[[list[Any], list[Any]], Sequence[Any]]


class LoopRunner:
    """Runs a loop, with the plans made for its body so far."""

    #: The most kernels and copies in one graph of all steps.
    most_nodes = 65536

    def __init__(self, region: Loop, body: Executor, runtime: Runtime) -> None:
        self.region, self.body, self.runtime = region, body, runtime
        op = region.node.op
        assert isinstance(op, Scan)
        self.op, self.inner = op, op.inner
        self.arrays = runtime.loop_arrays()
        self.segment = _only_segment(region)
        if self.segment is not None:
            place = {v: i for i, v in enumerate(op.inner.inputs)}
            self.entering = [place[v] for v in self.segment.inputs]
            self.in_order = self.segment.outputs == op.inner.outputs
            kept = op.inner.outputs[: len(op.states) + op.collected]
            self.kept_at = [[i for i, w in enumerate(kept) if w is v] for v in self.segment.outputs]
        #: States whose memory a step may write.
        self.written = carried_states(op, region.body)
        #: Inputs of which the host reads numbers in each step.
        self.counts = counts_of(region.node)
        #: The plan of a body that is one segment, in the last run.
        self.plan: Plan | None = None
        # The steps of a loop around it keep its results.
        fresh = not region.outer
        self.graphs = runtime.loop_graphs(fresh) if self._may_be_a_graph() else None
        guarded = any(s.guard is not None for s in region.body.segments())
        self.whole = None if guarded else runtime.whole_loop(op)
        #: Whether the last run was one function.
        self.ran_whole = False

    def _may_be_a_graph(self) -> bool:
        """Whether all steps may be captured as one CUDA graph; not those of ``until``, nor with
        collectives: other ranks have other sizes, for which they would capture in other calls."""
        segments = self.region.body.segments()
        if self.op.until or all(s.place == HOST for s in segments):
            return False
        if any(isinstance(n.op, Collective) and n.op.group.size > 1
               for s in segments for n in s.nodes):  # fmt: skip
            return False
        return self.segment is not None or is_enqueued(self.region.body)

    def run(self, inputs: Sequence[Any], watcher: Watcher | None) -> list[Any]:
        """Outputs of the scan."""
        try:
            if self.whole is not None and watcher is None:
                results = self._as_a_whole(inputs)
            else:
                results = self._by_steps(inputs, watcher)
            return [
                self.runtime.to_host(r) if v.type.is_integer_scalar else r
                for v, r in zip(self.region.node.outputs, results, strict=True)
            ]
        except Exception as error:
            note_failure(error, self.region.node, inputs)
            raise

    def _by_steps(self, inputs: Sequence[Any], watcher: Watcher | None = None) -> list[Any]:
        """All steps, one after the other, or captured."""
        inputs = self._counting_on_host(inputs)
        if self.graphs is None or watcher is not None:
            return self.work(inputs, watcher)
        found: list[Any] = self.graphs.run(inputs, self)
        return found

    def _counting_on_host(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Inputs, on the host if each step reads one of their numbers: read once, not each time."""
        if self.runtime.memory.place == HOST or not self.counts:
            return inputs
        found = list(inputs)
        for i in self.counts:
            v = self.region.node.inputs[i]
            found[i] = v.data if isinstance(v, Constant) else self.runtime.to_host(found[i])
        return found

    def _as_a_whole(self, inputs: Sequence[Any]) -> list[Any]:
        """All steps as one function, if there is one for these inputs.

        A loop of unknown length begins step by step. After many steps it begins again.
        """
        assert self.whole is not None
        known = 0 if self.op.until else self.steps(inputs)
        results: list[Any] | None = self.whole.run(inputs, known)
        self.ran_whole = results is not None
        if results is not None:
            if self.graphs is not None and self.graphs.signatures:
                self.graphs.forget(self._counting_on_host(inputs))
            return results
        if not self.op.until:
            return self._by_steps(inputs)
        limit = self.whole.after(inputs)
        given = self._counting_on_host(inputs)
        try:
            results = self.work(given, limit=limit)
        except _ManySteps:
            found: list[Any] | None = self.whole.run(inputs, limit)
            return self.work(given) if found is None else found
        self.whole.run_by_steps(inputs, int(results[-1]))
        return results

    def work(
        self, inputs: Sequence[Any], watcher: Watcher | None = None, limit: int = 0
    ) -> list[Any]:
        """All steps, one after the other; after ``limit`` of them, if there is one, it gives up."""
        step = self._by_plan(watcher) if self.segment is not None else self._by_program(watcher)
        step = self._with_scalars_on_host(self._reading_condition(step))
        if limit:
            step = _limited(step, limit)
        # A device's loop may have a body whose plan is one of the host; its arrays are elsewhere.
        apart = self.segment is None or watcher is not None or self.runtime.memory.place != HOST
        at_once = None if apart else self._at_once
        return run_loop(self.op, inputs, step, self.arrays, at_once, self.written)

    def _at_once(
        self, times: int, arguments: Callable[[], list[tuple[Any, bool]]],
        targets: Callable[[], list[Any]],
    ) -> int:  # fmt: skip
        """Run many steps as one call of the body's plan; how many of them ran."""
        bound = None if self.plan is None else self.plan.bound
        if bound is None or not bound.repeats() or not all(self.kept_at):
            return 0
        if sum(map(len, self.kept_at)) != len(self.inner.outputs):
            return 0  # some are inputs or constants
        given, kept = arguments(), targets()
        done = bound.repeat(
            times, [given[i] for i in self.entering], [kept[at[0]] for at in self.kept_at]
        )
        for first, *more in self.kept_at:
            for i in more:
                self.arrays.put(kept[i][:done], kept[first][:done])
        return done

    @property
    def is_captured(self) -> bool:
        """Whether the last run was one kernel or one graph, and no kernel is to be made yet."""
        if self.ran_whole:
            return True
        decided = self.whole is None or self.whole.is_decided
        return decided and self.graphs is not None and bool(self.graphs.ran_captured)

    @property
    def last_plans(self) -> list[Plan]:
        """The plans of the last run, in which a whole loop's function has none."""
        return [] if self.ran_whole else self.plans

    def steps(self, inputs: Sequence[Any]) -> int:
        """The most steps for these inputs."""
        return int(self.op.split(inputs).steps)

    @property
    def plans(self) -> list[Plan]:
        """The plans of the last run; of a body of several segments all that there are."""
        return self.body.plans() if self.plan is None else [self.plan]

    def is_current(self, plans: Sequence[Plan]) -> bool:
        """Whether plans of the body are still in their caches; counts as a use of them."""
        return are_current(plans, list(self.body.plan_caches()))

    def is_ready(self) -> bool:
        """Whether the steps may be captured in the next call."""
        return True

    def forgetting_plans_if_it_fails(self) -> AbstractContextManager[None]:
        """Drop the plans of the body that were made inside, if an error leaves this context."""
        return forgetting_new_plans(list(self.body.plan_caches()))

    def note_captured(self, plans: Sequence[Plan], inputs: Sequence[Any]) -> None:
        """For reports: what runs these plans."""
        for p in plans:
            p.bound.join(f"captured with its loop, {self.steps(inputs)} steps")

    def refuse(self, plans: Sequence[Plan], why: str) -> None:
        """For reports: why the loop can't be captured."""
        for p in plans:
            p.bound.not_captured = why

    def forget_inner_graphs(self) -> None:
        """Free the graphs of loops in the body: they are part of a graph of the whole."""
        for runner in self.body.loops():
            if runner.graphs is not None:
                runner.graphs.signatures.clear()

    def _reading_condition(self, step: Step) -> Step:
        if not self.op.until:
            return step

        def read(arguments: list[Any], targets: list[Any]) -> Sequence[Any]:
            *results, condition = step(arguments, targets)
            return [*results, self.runtime.to_host(condition)]

        return read

    def _with_scalars_on_host(self, step: Step) -> Step:
        """A step that copies integer scalars among its inputs to the host, as the body expects."""
        if self.runtime.memory.place == HOST:
            return step
        scalars = [i for i, v in enumerate(self.inner.inputs) if v.type.is_integer_scalar]

        def read(arguments: list[Any], targets: list[Any]) -> Sequence[Any]:
            for i in scalars:
                arguments[i] = self.runtime.to_host(arguments[i])
            return step(arguments, targets)

        return read if scalars else step

    def _by_program(self, watcher: Watcher | None) -> Step:
        """A step that may read values on the host, branch, or contain loops."""

        def step(arguments: list[Any], targets: list[Any]) -> Sequence[Any]:
            return self.body.run(dict(zip(self.inner.inputs, arguments)), watcher)

        return step

    def _by_plan(self, watcher: Watcher | None) -> Step:
        """A step that is one plan. Shapes are equal in all steps, so it is looked up once."""
        (cache,) = self.body.plan_caches()
        entering, outputs = self.entering, self.inner.outputs
        run: Any = None

        def step(arguments: list[Any], targets: list[Any]) -> Sequence[Any]:
            nonlocal run
            given = [arguments[i] for i in entering]
            if run is None:
                self.plan = cache.get(given, dict(zip(self.inner.inputs, arguments)))
                run = self.plan.bound.run
            plan_outputs: Sequence[Any] = run(given, watcher, *self._target_buffers(targets))
            return (
                plan_outputs if self.in_order else self._ordered(plan_outputs, arguments, outputs)
            )

        return step

    def _target_buffers(self, targets: list[Any]) -> list[list[Any]]:
        """The buffers into which the plan writes its outputs, as an argument list, or nothing."""
        if not targets or self.segment is None or self.segment.place == HOST:
            return []
        known = [[targets[i] for i in at if targets[i] is not None] for at in self.kept_at]
        return [[at[0] if at else None for at in known]]

    def _ordered(
        self, plan_outputs: Sequence[Any], arguments: Sequence[Any], outputs: Sequence[Variable]
    ) -> list[Any]:
        """The inner outputs from the plan's outputs; some may be inputs or constants."""
        assert self.segment is not None
        known: dict[Variable, Any] = dict(zip(self.inner.inputs, arguments))
        known.update(zip(self.segment.outputs, plan_outputs))
        return [self.runtime.placed(v) if isinstance(v, Constant) else known[v] for v in outputs]


class _ManySteps(Exception):
    """A loop of unknown length has done many steps."""


def _limited(step: Step, limit: int) -> Step:
    left = limit

    def counted(arguments: list[Any], targets: list[Any]) -> Sequence[Any]:
        nonlocal left
        left -= 1
        if left < 0:
            raise _ManySteps
        return step(arguments, targets)

    return counted


def _only_segment(region: Loop) -> Segment | None:
    """The body if it is one segment whose plan depends only on shapes; else None."""
    regions = region.body.regions
    if len(regions) != 1 or not isinstance(regions[0], Segment):
        return None
    segment = regions[0]
    return None if segment.host or segment.dims or not segment.nodes else segment
