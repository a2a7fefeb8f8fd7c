"""A plan bound to a device: its steps in the order of their launches, and its calls."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from symdnn.config import config
from symdnn.gpu.codegen.launches import view_of
from symdnn.gpu.device.array import RawArray
from symdnn.gpu.device.capture import CaptureFailed
from symdnn.gpu.device.memory import PendingCopy
from symdnn.gpu.execution.batched_casts import batched_run, cast_groups, with_batched_casts
from symdnn.gpu.execution.batched_updates import copy_all, update_launches
from symdnn.gpu.execution.bound_steps import BoundSteps
from symdnn.gpu.execution.guard import with_checks
from symdnn.gpu.execution.operands import Device, Operands, Step, Values, place_of_part
from symdnn.gpu.execution.plan_constants import PlanConstants
from symdnn.gpu.execution.registered import Registered
from symdnn.gpu.execution.replay import Replay
from symdnn.gpu.kernels.copy import split_views, strided_copy
from symdnn.graph.kernel import Kernel
from symdnn.graph.runtime import BoundPlan, Watcher
from symdnn.graph.variable import Apply, Constant, Shared, Variable
from symdnn.ops.array.index import Subtensor
from symdnn.ops.lowered.transfer import GpuFromHost, HostFromGpu
from symdnn.tuning.allowance import Runs

#: A capture that fails once may have met with work of another library, and is tried again.
_MAX_FAILED_CAPTURES = 2
_NOTHING = "there is nothing to capture"


def reads_at_call(node: Apply, sizes: Mapping[Variable, Any]) -> bool:
    """Whether the node reads host values that may differ from call to call."""
    return any(
        not isinstance(node.inputs[i], Constant) and node.inputs[i] not in sizes
        for i in node.op.run_time_inputs
    )


def _acceptor(kernel: Kernel) -> Any:
    """A function that says which operands a kernel reads in place; None if it reads all so."""
    if kernel.reads_any_layout:
        return None
    return lambda i, x: not isinstance(x, RawArray) or kernel.accepts(i, x)


class CudaPlan(BoundPlan):
    """Steps with their operands. Arena addresses are bound once, inputs and results per call.

    ``steps`` has their order: copies to the device, the part that can be captured, copies to the
    host. New values of shared variables are written at the end of the captured part.
    """

    def __init__(self, device: Device, spec: Any, memory: Any) -> None:
        self.device, self.spec, self.memory = device, spec, memory
        self.registered = Registered(device, memory)
        self.operands = Operands(device, spec, memory, self.registered.spans)
        self.registered_state = self.registered.state
        self.nodes: tuple[Apply, ...] = spec.segment.nodes
        self.bound: Values = {}
        self._bind_values()
        constants = PlanConstants(self.operands, self.bound)
        self.bound.update(constants.at)
        for node in constants.computed:
            self._run_of(node)(node, self.bound)
        #: The function that enqueues each node.
        self.runs = {n: self._run_of(n) for n in self.nodes if n not in constants.nodes}
        self.steps = self._ordered_steps()
        updated = bool(memory.stored or memory.copied)
        #: Whether results have to be made contiguous: then updates must not come before them, since
        #: the allocation could fail.
        self.strided_results = updated and any(
            not memory.views[n.inputs[0]].contiguous for n in self.steps.outs
        )
        self.replay: Replay | None = None
        self.failed_captures = 0
        self._ran = False
        self._runs = Runs()
        #: Addresses of the inputs of the last call.
        self.last: list[int | None] | None = None
        #: The capture state as a part of a larger graph.
        self.loop_state = ""
        #: Inputs whose addresses change, which are copied to memory of their own.
        self.copied_inputs: set[int] = set()
        numbers = [env.node for env in self.operands.envs if env.node >= 0]
        weakref.finalize(self, device.forget_nodes, numbers).atexit = False

    # -- binding ------------------------------------------------------------------------------

    def _bind_values(self) -> None:
        base = self.device.arena.base
        for v, view in self.memory.views.items():
            if isinstance(v, Constant):
                continue
            if v in self.spec.sizes:
                self.bound[v] = self.spec.sizes[v]
            elif view.buffer.kind in ("arena", "registered"):
                begin = self.registered.begin(view.buffer.memory, base)
                at = begin + view.buffer.offset + view.offset
                self.bound[v] = RawArray(at, view.shape, v.type.dtype, view.strides)

    def _run_of(self, node: Apply) -> Any:
        """The function that enqueues a node."""
        if isinstance(node.op, GpuFromHost):
            return self._copy_in
        if isinstance(node.op, HostFromGpu):
            return self._copy_out
        if node in self.memory.aliases:
            return self._alias
        if isinstance(node.op, Subtensor) and reads_at_call(node, self.spec.sizes):
            return self._part
        if node in self.memory.parts:
            return self._copy_pieces(node)
        kernel: Kernel = self.spec.choices[node].kernel
        if any(v in self.memory.stored for v in node.outputs):
            launch = kernel.bind_guarded(self.spec.call(node))
        elif any(v in self.memory.beside for v in node.outputs):
            launch = kernel.bind_beside(self.spec.call(node))
        else:
            launch = self.spec.launch(node)
        workspace = self.memory.workspaces.get(node)
        at = self.device.arena.base + workspace.offset if workspace is not None else 0
        operands = self.operands
        env = operands.env(at, self.device.number_of(node, self.spec.call(node).inputs))
        env.overwritable, env.slots = self._overwritable(node), self.registered.slots(node)
        accepts = _acceptor(kernel)

        def run(node: Apply, values: Values) -> None:
            inputs = [operands.operand(node, i, v, values) for i, v in enumerate(node.inputs)]
            if accepts is not None:
                inputs = [operands.contiguous(x, accepts(i, x)) for i, x in enumerate(inputs)]
            outputs = [values.get(v) for v in node.outputs]
            results = launch(env, inputs, outputs)
            if results is not None:
                values.update(zip(node.outputs, results))

        return run

    def _copy_pieces(self, node: Apply) -> Any:
        """A join or split that copies the pieces which do not lie in the whole already."""
        joins = len(node.outputs) == 1
        whole, pieces = (node.outputs[0], node.inputs) if joins else (node.inputs[0], node.outputs)
        copied = [i for i in range(len(pieces)) if i not in self.memory.parts[node]]
        env, operands = self.operands.env(), self.operands
        op: Any = node.op

        def run(node: Apply, values: Values) -> None:
            arrays = [operands.operand(node, i, v, values) for i, v in enumerate(pieces)]
            places = split_views(view_of(0, values[whole]), arrays, op.axis)
            for i, seen in enumerate(places):
                if i in copied:
                    at = values[whole].ptr + seen.offset
                    place = RawArray(at, seen.shape, seen.dtype, seen.strides, values[whole])
                    strided_copy(env, *((arrays[i], place) if joins else (place, arrays[i])))

        return run

    def _overwritable(self, node: Apply) -> frozenset[int]:
        """Inputs of a node that a kernel allocated and that no later node reads."""
        made = {i: self.memory.views[v].buffer for i, v in enumerate(node.inputs)
                if self.memory.views[v].buffer.kind == "made"}  # fmt: skip
        step = self.nodes.index(node) if made else 0
        return frozenset(i for i, buffer in made.items() if buffer.last <= step)

    def _copy_in(self, node: Apply, values: Values) -> None:
        source = node.inputs[0]
        value = source.data if isinstance(source, Constant) else values[source]
        self.operands.copy_to(value, values[node.outputs[0]])

    def _copy_out(self, node: Apply, values: Values) -> None:
        source = self._contiguous_source(node, values)
        values[node.outputs[0]] = self.device.memory.copy_out(source)

    def _contiguous_source(self, node: Apply, values: Values) -> Any:
        source = self.operands.operand(node, 0, node.inputs[0], values)
        return self.operands.contiguous(source, source.contiguous)

    def _part(self, node: Apply, values: Values) -> None:
        """Copy a slice whose bounds are known only in the call to the node's output."""
        x = self.operands.operand(node, 0, node.inputs[0], values)
        target = values[node.outputs[0]]
        bounds = tuple(
            [int(v.data if isinstance(v, Constant) else values[v]) for v in node.inputs[1:]]
        )
        if isinstance(x, RawArray):
            offset, shape, strides = place_of_part(node.op, x.shape, x.dtype, x.strides, bounds)
            part: Any = RawArray(x.ptr + offset, shape, x.dtype, strides, x)
        else:
            part = node.op.compute(x, *bounds)[0]
        if target.size:
            self.operands.copy_to(part, target)

    def _alias(self, node: Apply, values: Values) -> None:
        out = node.outputs[0]
        view = self.memory.views[out]
        root = view.buffer.variable
        if out in self.bound or root is out:
            return
        assert root is not None
        owner = self.device.constant(root) if isinstance(root, Constant) else values[root]
        at = owner.ptr + view.offset
        values[out] = RawArray(at, view.shape, out.type.dtype, view.strides, owner)

    # -- order --------------------------------------------------------------------------------

    def _ordered_steps(self) -> BoundSteps:
        """Divide the steps: before the graph (copies in, bounds of the call), in it, after it."""
        nodes = [n for n in self.nodes if n in self.runs]
        end = len(nodes)
        while end > 0 and isinstance(nodes[end - 1].op, HostFromGpu):
            end -= 1
        start = next((i for i in range(end) if not self._before_graph(nodes[i])), end)
        last = update_launches(self.spec, self.memory)
        last_nodes = {n for _, group in last.launches for n in group}
        head = [Step(n, self.runs[n]) for n in nodes[:start]]
        kept = [n for n in nodes[start:end] if n not in last_nodes]
        middle = with_batched_casts(self.operands, self.runs, kept)
        if self.spec.segment.guard is not None:
            groups = [g for _, g in cast_groups(self.spec, self.memory, kept)]
            middle = with_checks(self.operands, middle, groups, [s.node for s in head])
        updates = [
            Step(
                group[0],
                self.runs[group[0]] if form is None else batched_run(self.operands, form, group),
            )
            for form, group in last.launches
        ]
        if self.memory.copied:
            maker = next(iter(self.memory.copied)).owner
            assert maker is not None
            updates.append(Step(maker, self._copy_updates()))
        self.not_captured = self._obstacle(nodes[start:end])
        # A graph reads an input by its address, unless the input is only copied before the graph.
        read = {v for n in nodes if not isinstance(n.op, GpuFromHost) for v in n.inputs}
        read.update(self.memory.copied.values(), self.memory.stored.values())
        self.read_in_place = [v in read for v in self.spec.segment.inputs]
        return BoundSteps(self.operands, self.bound, head, middle, updates, nodes[end:])

    def _copy_updates(self) -> Any:
        """One step that copies all new values that are not computed in their storages."""
        env = self.operands.env()

        def run(node: Apply, values: Values) -> None:
            pairs = [(values[new], values[old]) for new, old in self.memory.copied.items()]
            copy_all(env, pairs)

        return run

    def _before_graph(self, node: Apply) -> bool:
        if isinstance(node.op, HostFromGpu):
            return node.inputs[0].owner not in self.runs
        return isinstance(node.op, GpuFromHost) or reads_at_call(node, self.spec.sizes)

    def _obstacle(self, middle: Sequence[Apply]) -> str:
        """Why the plan cannot be captured; empty if a capture can be tried."""
        if config.gpu.graph == "off":
            return "gpu.graph=off"
        if not self.spec.segment.capture:
            return "the body of a loop is enqueued step by step"
        if not middle and not self._copies_results():
            return _NOTHING
        for node in middle:
            if self._before_graph(node) or isinstance(node.op, HostFromGpu):
                return f"{node.op} needs the host in the middle of the segment"
        return self._host_work(middle)

    def _copies_results(self) -> bool:
        """Whether copies of inputs to results are all that the plan enqueues."""
        outs = {v for n in self.runs for v in n.outputs}
        copies = all(isinstance(n.op, GpuFromHost) for n in self.runs)
        return copies and bool(outs) and outs <= set(self.memory.leaving)

    def loop_obstacle(self) -> str:
        """Why the loop of which this is the body can't be captured; empty if it can be."""
        if self.steps.outs:
            return "a step gives values to the host"
        return self._host_work([n for n in self.runs if not isinstance(n.op, GpuFromHost)])

    def _host_work(self, nodes: Sequence[Apply]) -> str:
        """Which node does work on the host in each run; empty if none does."""
        for node in nodes:
            arrays = set(getattr(node.op, "host_values", ())) - set(node.op.host_inputs)
            if node.op.host_callback or arrays:
                return f"{node.op} reads arrays on the host"
            kernel: Kernel = self.spec.choices[node].kernel
            if not kernel.capturable(self.spec.call(node)):
                return f"{node.op} by {kernel.name} needs the host"
        return ""

    # -- calls --------------------------------------------------------------------------------

    @property
    def nbytes(self) -> int:
        """Memory of its own: that of a replay, and results of a kept segment, not the arena."""
        kept = sum(a.nbytes for a in self.steps.results.values())
        return kept if self.replay is None else kept + self.replay.nbytes

    @property
    def _why_not(self) -> str:
        """Why it can't be captured, or another rank can't; empty if it can be."""
        return self.not_captured or ("" if self.together is None else self.together.why)

    @property
    def capture_state(self) -> str:
        """Whether the plan is a captured graph, or why it is not."""
        why = self._why_not
        if self.replay is not None and not why:
            return f"captured, {self.replay.nodes} kernels and copies"
        if why:
            return self.loop_state or f"not captured: {why}"
        return self.loop_state or "not captured yet: it has to be called again"

    @property
    def is_captured(self) -> bool:
        """Whether a graph runs it, or it enqueues nothing that a graph could have."""
        return self.replay is not None or self.not_captured == _NOTHING

    def join(self, what: str) -> None:
        """It is part of a larger graph from now on, and needs none of its own."""
        self.replay = self.last = None
        self.loop_state = what

    @property
    def reports(self) -> bool:
        """Whether a kernel that has run here can report an error of the data."""
        return self.operands.reports

    def run(
        self, entering: Sequence[Any], watcher: Watcher | None = None, targets: Sequence[Any] = ()
    ) -> list[Any]:
        """Enqueue all steps; wait only for results on the host.

        A plan that runs again with the same shared variables is captured into a graph. For the body
        of a loop, ``targets`` is memory for the results.
        """
        if self.device.is_watched:
            return self.device.run_nested(lambda: self.run(entering, watcher, targets))
        self.device.arena.reserve(self.memory.arena_bytes)
        within = self.device.memory.captures_host_values
        if watcher is not None:
            self._lets_none("it runs step by step, to be watched")
        elif not within and (replay := self._replay(entering)) is not None:
            return replay.run(entering)
        self._ran = True
        self.device.enqueued += len(self.runs)
        if within:
            self.device.memory.keep(self)
        separate = watcher is not None or self.strided_results or self._overlaps_updates(entering)
        values = self.steps.values(entering, separate)
        self.steps.allocate_results(values, targets)
        # The body of a loop returns at once, and a graph of it is captured without measurements.
        waits = self.spec.segment.capture and self.together is None and not within
        with self._runs.run(waits):
            if separate:
                self.steps.run(self._separate_steps(), values, watcher)
            else:
                self._run_in_order(values)
        return self._results(values)

    def _separate_steps(self) -> list[Step]:
        """All steps one by one."""
        steps = [Step(n, self.runs[n]) for n in self.nodes if n in self.runs]
        return steps if self.spec.segment.guard is None else with_checks(self.operands, steps)

    def _run_in_order(self, values: Values) -> None:
        """Run head, middle and updates, then the copies to the host.

        Nothing may fail after the updates, so pinned memory is allocated first.
        """
        outs, memory = self.steps.outs, self.device.memory
        staged = [memory.pinned(max(self._nbytes(n), 1)) for n in outs]
        self.steps.run(self.steps.head, values)
        self.steps.run_middle(values)
        for node, pinned in zip(outs, staged):
            source = self._contiguous_source(node, values)
            values[node.outputs[0]] = memory.copy_out(source, pinned)
        self.steps.redirect_updates(values)

    def _results(self, values: Values) -> list[Any]:
        """The results; waits for those on the host."""
        if self.reports and not self.device.memory.captures_host_values:
            self.device.copy_error_word()
        left = [values[v] for v in self.spec.segment.outputs]
        if any(isinstance(v, PendingCopy) for v in left):
            self.device.memory.synchronize()
            self.device.raise_finished_errors()
        elif self.reports:
            self.device.pending_check = True
        return [v.finish() if isinstance(v, PendingCopy) else v for v in left]

    def _nbytes(self, node: Apply) -> int:
        """Bytes that a node copies to the host."""
        view = self.memory.views[node.inputs[0]]
        return int(np.prod(view.shape, dtype=np.int64)) * node.inputs[0].type.numpy.itemsize

    # -- capture ------------------------------------------------------------------------------

    def _replay(self, entering: Sequence[Any]) -> Replay | None:
        """The replay for these inputs, made when addresses repeat; None if there can be none.

        Results of another segment may have other addresses in each call. Such inputs are copied to
        memory of their own from then on. A plan that is captured ``at_once``, since other ranks
        capture theirs in this call, waits for no repetition. One that guessed measures before.
        """
        now = [
            a.ptr if in_place and k not in self.copied_inputs and isinstance(a, RawArray) else None
            for k, (a, in_place) in enumerate(zip(entering, self.read_in_place))
        ]
        last, self.last = self.last, now
        if self._why_not or self._runs.postponed:
            return None
        if last != now:
            self.replay = None
            changed = {k for k, (a, b) in enumerate(zip(last or now, now)) if a != b}
            inputs = self.spec.segment.inputs
            moved = {k for k in changed if not self._keeps_address(inputs[k])}
            if not self.at_once and (last is None or moved != changed):
                return None
            self.copied_inputs.update(moved)
            self.last = [None if k in self.copied_inputs else a for k, a in enumerate(now)]
        if self.replay is None and self._overlaps_updates(entering):
            self._lets_none("an input shares the memory of an updated variable")
        elif self.replay is None:
            self._capture(entering)
        return self.replay

    def _lets_none(self, why: str) -> None:
        """Tell other ranks, if they are about to capture their first graphs, that this can't."""
        if self.at_once and self.together is not None and self.together.first:
            self.together.captured(why)

    def _capture(self, entering: Sequence[Any]) -> None:
        """Try to capture the plan. Where other ranks do so in this call, it is tried again now."""
        for _ in range(1 if self.together is None else _MAX_FAILED_CAPTURES):
            try:
                if not self._ran:
                    self._run_alone(entering)
                self.replay, failure = Replay(self.steps, entering, self.copied_inputs), ""
                break
            except CaptureFailed as error:
                self.failed_captures, failure = self.failed_captures + 1, str(error)
        if self.together is not None:
            if self.together.captured(failure):
                self.replay = None
        elif self.failed_captures == _MAX_FAILED_CAPTURES:
            self.not_captured = failure

    def _run_alone(self, entering: Sequence[Any]) -> None:
        """A first run without the other ranks, before a capture: kernels are loaded, measured and
        checked. It changes no variable, and errors that it finds are not raised: those of the data
        are found again."""
        self._ran = True
        self.device.settle()
        envs, env = self.operands.envs, self.operands.env()
        for each in envs:
            each.alone = True
        try:
            values = self.steps.values(entering)
            self.steps.allocate_results(values)
            self.steps.run(self.steps.head, values)
            self.steps.run_middle(values, updates=False)
        finally:
            for each in envs:
                each.alone = False
            env.zero(env.error_word, 16)

    def _keeps_address(self, v: Variable) -> bool:
        """Whether an input keeps its address until it gets another shape, or another owner."""
        return isinstance(v, Shared) or v in self.spec.versions

    def _overlaps_updates(self, entering: Sequence[Any]) -> bool:
        """Whether another input overlaps with memory that updates write."""
        written = set(self.steps.written(entering))
        if not written:
            return False
        spans = sorted(a.extent for a in entering if isinstance(a, RawArray) and a.ptr)
        any_end = written_end = 0
        for low, high in spans:
            if low < (any_end if (low, high) in written else written_end):
                return True
            any_end = max(any_end, high)
            if (low, high) in written:
                written_end = max(written_end, high)
        return False
