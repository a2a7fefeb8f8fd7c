"""A plan on the device: steps with their operands, in the order in which they are enqueued."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from symdnn.config import config
from symdnn.gpu.codegen.launches import view_of
from symdnn.gpu.device.array import RawArray
from symdnn.gpu.device.capture import CaptureFailed
from symdnn.gpu.device.env import Env
from symdnn.gpu.device.memory import PendingCopy
from symdnn.gpu.execution.batched_casts import beginning, together
from symdnn.gpu.execution.batched_updates import copy_all, trailing
from symdnn.gpu.execution.plan_constants import Resident
from symdnn.gpu.execution.replay import Replay
from symdnn.gpu.execution.watched import run_watched
from symdnn.gpu.kernels.copy import strided_copy, view_by_op
from symdnn.graph.evaluate import describe_failure
from symdnn.graph.kernel import Kernel
from symdnn.graph.runtime import BoundPlan, Watcher
from symdnn.graph.variable import Apply, Constant, Shared, Variable
from symdnn.ops.array.index import Subtensor
from symdnn.ops.vendor.transfer import GpuFromHost, HostFromGpu

if TYPE_CHECKING:
    from symdnn.gpu.execution.runtime import CudaRuntime

__all__ = ["CudaPlan", "Env", "reads_at_call"]


def reads_at_call(node: Apply, sizes: Mapping[Variable, Any]) -> bool:
    """Whether the node reads host values that may differ from call to call."""
    return any(
        not isinstance(node.inputs[i], Constant) and node.inputs[i] not in sizes
        for i in node.op.run_time_inputs
    )


def _acceptor(kernel: Kernel) -> Any:
    """Which operands a kernel reads where they are; None where it reads all of them."""
    if kernel.reads_any_layout:
        return None
    return lambda i, x: not isinstance(x, RawArray) or kernel.accepts(i, x)


class Step(NamedTuple):
    """A node, or the first of several that are launched together, and what enqueues it."""

    node: Apply
    run: Any


Values = dict[Variable, Any]


class CudaPlan(BoundPlan):
    """Steps with their operands: arena addresses bound once, what enters and leaves per call.

    ``head`` copies in and reads what only this call knows, ``middle`` can be captured, ``tail``
    copies to the host. New values of shared variables are written at the end of the middle.
    """

    def __init__(self, rt: CudaRuntime, spec: Any, memory: Any) -> None:
        self.rt, self.spec, self.memory = rt, spec, memory
        self.nodes: tuple[Apply, ...] = spec.segment.nodes
        self.envs: list[Env] = []
        self.bound: Values = {}
        self._bind_values()
        resident = Resident(self)
        self.bound.update(resident.at)
        for node in resident.computed:
            self._step(node)(node, self.bound)
        self.steps = {n: self._step(n) for n in self.nodes if n not in resident.nodes}
        self._divide()
        self.returns_to_host = bool(self.outs)
        self.replay: Replay | None = None
        self.last: list[int | None] | None = None
        #: What became of the loop whose body this is.
        self.loop_state = ""
        self.moved: set[int] = set()
        #: What leaves a kept segment: written again where it is.
        self.leaving: Values = {}
        numbers = [env.node for env in self.envs if env.node >= 0]
        weakref.finalize(self, rt.forget_nodes, numbers).atexit = False

    # -- binding ------------------------------------------------------------------------------

    def _bind_values(self) -> None:
        base = self.rt.arena.base
        for v, view in self.memory.views.items():
            if isinstance(v, Constant):
                continue
            if v in self.spec.sizes:
                self.bound[v] = self.spec.sizes[v]
            elif view.buffer.kind == "arena":
                at = base + view.buffer.offset + view.offset
                self.bound[v] = RawArray(at, view.shape, v.type.dtype, view.strides)

    def _step(self, node: Apply) -> Any:
        if isinstance(node.op, GpuFromHost):
            return self._copy_in
        if isinstance(node.op, HostFromGpu):
            return self._copy_out
        if node in self.memory.aliases:
            return self._alias
        if isinstance(node.op, Subtensor) and reads_at_call(node, self.spec.sizes):
            return self._part
        kernel: Kernel = self.spec.choices[node].kernel
        if any(v in self.memory.stored for v in node.outputs):
            launch = kernel.bind_guarded(self.spec.call(node))
        else:
            launch = self.spec.launch(node)
        workspace = self.memory.workspaces.get(node)
        at = self.rt.arena.base + workspace.offset if workspace is not None else 0
        env = self.rt.env(at, self.rt.number_of(node, self.spec.call(node).inputs))
        env.overwritable = self._overwritable(node)
        self.envs.append(env)
        accepts = _acceptor(kernel)

        def run(node: Apply, values: Values) -> None:
            inputs = [self.operand(node, i, v, values) for i, v in enumerate(node.inputs)]
            if accepts is not None:
                inputs = [self.dense(x, accepts(i, x)) for i, x in enumerate(inputs)]
            outputs = [values.get(v) for v in node.outputs]
            results = launch(env, inputs, outputs)
            if results is not None:
                values.update(zip(node.outputs, results))

        return run

    def _overwritable(self, node: Apply) -> frozenset[int]:
        """Inputs of a node that a kernel allocated and nothing else reads from then on."""
        made = {i: self.memory.views[v].buffer for i, v in enumerate(node.inputs)
                if self.memory.views[v].buffer.kind == "made"}  # fmt: skip
        step = self.nodes.index(node) if made else 0
        return frozenset(i for i, buffer in made.items() if buffer.last <= step)

    def sharing(self, v: Variable) -> list[tuple[Variable, Any]]:
        """What a transfer to the device made, and all that shows the same memory."""
        views = self.memory.views
        return [(w, view) for w, view in views.items() if view.buffer is views[v].buffer]

    def operand(self, node: Apply, i: int, v: Variable, values: Values) -> Any:
        """An input of a node, constants where the node reads them."""
        if isinstance(v, Constant):
            return v.data if i in node.op.host_inputs else self.rt.constant(v)
        return values[v]

    def dense(self, x: Any, accepted: bool) -> Any:
        """``x``, copied to contiguous memory unless its layout is accepted."""
        if accepted or not isinstance(x, RawArray):
            return x
        target = self.rt.memory.empty(x.shape, x.dtype)
        strided_copy(self.rt.env(), x, target)
        return target

    def place(self, value: Any, target: RawArray) -> None:
        """Enqueue a copy of what enters, from the host or the device, to ``target``."""
        if not isinstance(value, RawArray):
            self.rt.memory.copy_in(np.asarray(value), target)
        elif value.contiguous and target.contiguous:
            self.rt.memory.copy(value, target)
        else:
            strided_copy(self.rt.env(), value, target)

    def _copy_in(self, node: Apply, values: Values) -> None:
        source = node.inputs[0]
        value = source.data if isinstance(source, Constant) else values[source]
        self.place(value, values[node.outputs[0]])

    def _copy_out(self, node: Apply, values: Values) -> None:
        source = self.operand(node, 0, node.inputs[0], values)
        source = self.dense(source, source.contiguous)
        values[node.outputs[0]] = self.rt.memory.copy_out(source)

    def _part(self, node: Apply, values: Values) -> None:
        """A part of an array whose bounds only this call knows, copied to where it is read."""
        x = self.operand(node, 0, node.inputs[0], values)
        target = values[node.outputs[0]]
        bounds = [int(v.data if isinstance(v, Constant) else values[v]) for v in node.inputs[1:]]
        seen = view_by_op(node.op, view_of(0, x), target.shape, bounds)
        assert seen is not None
        at = RawArray(x.ptr + seen.offset, seen.shape, seen.dtype, seen.strides, x)
        if at.size:
            self.place(at, target)

    def _alias(self, node: Apply, values: Values) -> None:
        out = node.outputs[0]
        if out in self.bound:
            return
        view = self.memory.views[out]
        root = view.buffer.variable
        assert root is not None
        owner = self.rt.constant(root) if isinstance(root, Constant) else values[root]
        at = owner.ptr + view.offset
        values[out] = RawArray(at, view.shape, out.type.dtype, view.strides, owner)

    # -- order --------------------------------------------------------------------------------

    def _divide(self) -> None:
        """Steps before the graph (copies in, bounds read at each call), in it, and after it."""
        nodes = [n for n in self.nodes if n in self.steps]
        end = len(nodes)
        while end > 0 and isinstance(nodes[end - 1].op, HostFromGpu):
            end -= 1
        start = next((i for i in range(end) if not self._before_graph(nodes[i])), end)
        last = trailing(self.spec, self.memory)
        behind = {n for _, group in last.launches for n in group}
        self.head = [Step(n, self.steps[n]) for n in nodes[:start]]
        middle = beginning(self, [n for n in nodes[start:end] if n not in behind])
        self.middle = [Step(n, run) for n, run in middle]
        self.last_steps = [
            Step(group[0], self.steps[group[0]] if form is None else together(self, form, group))
            for form, group in last.launches
        ]
        if self.memory.copied:
            maker = next(iter(self.memory.copied)).owner
            assert maker is not None
            self.last_steps.append(Step(maker, self._copy_updates()))
        self.outs = nodes[end:]
        # Nothing may fail behind the updates, so no memory is taken there.
        self.gaps = bool(self.memory.stored or self.memory.copied) and any(
            not self.memory.views[n.inputs[0]].contiguous for n in self.outs
        )
        self.ready = not self.last_steps
        self.not_captured = self._obstacle(nodes[start:end])
        # What enters is part of a graph by its address, unless it is only copied in before that.
        read = {v for n in nodes if not isinstance(n.op, GpuFromHost) for v in n.inputs}
        read.update(self.memory.copied.values(), self.memory.stored.values())
        self.fixed = [v in read for v in self.spec.segment.inputs]

    def _copy_updates(self) -> Any:
        """One step that writes all new values that could not be made where they belong."""
        env = self.rt.env()
        self.envs.append(env)

        def run(node: Apply, values: Values) -> None:
            pairs = [(values[new], values[old]) for new, old in self.memory.copied.items()]
            copy_all(env, pairs)

        return run

    def _before_graph(self, node: Apply) -> bool:
        if isinstance(node.op, HostFromGpu):
            return node.inputs[0].owner not in self.steps
        return isinstance(node.op, GpuFromHost) or reads_at_call(node, self.spec.sizes)

    def _obstacle(self, middle: Sequence[Apply]) -> str:
        """Why the plan cannot be captured; empty when it can be tried."""
        if config.gpu.graph == "off":
            return "gpu.graph=off"
        if not self.spec.segment.capture:
            return "the body of a loop is enqueued step by step"
        if not middle:
            return "there is nothing to capture"
        for node in middle:
            if self._before_graph(node) or isinstance(node.op, HostFromGpu):
                return f"{node.op} needs the host in the middle of the segment"
        return self._at_each_call(middle)

    def loop_obstacle(self) -> str:
        """Why the loop whose body this is can't be captured as a whole; empty when it can."""
        if self.outs:
            return "a step gives values to the host"
        return self._at_each_call([n for n in self.steps if not isinstance(n.op, GpuFromHost)])

    def _at_each_call(self, nodes: Sequence[Apply]) -> str:
        """Which node does something on the host whenever it runs; empty when none does."""
        for node in nodes:
            arrays = set(getattr(node.op, "host_values", ())) - set(node.op.host_inputs)
            if node.op.host_callback or arrays:
                return f"{node.op} reads arrays on the host"
            if not self._capturable(node):
                return f"{node.op} by {self.spec.choices[node].kernel.name} needs the host"
        return ""

    def _capturable(self, node: Apply) -> bool:
        """What the chosen kernel says of this call."""
        kernel: Kernel = self.spec.choices[node].kernel
        return kernel.capturable(self.spec.call(node))

    # -- running ------------------------------------------------------------------------------

    @property
    def nbytes(self) -> int:
        """Memory of its own: what a graph keeps, what a kept segment gives; the arena is shared."""
        kept = sum(a.nbytes for a in self.leaving.values())
        return kept if self.replay is None else kept + self.replay.nbytes

    @property
    def capture_state(self) -> str:
        """Whether it is a graph by now, or why it is none."""
        if self.loop_state or self.not_captured:
            return self.loop_state or f"not captured: {self.not_captured}"
        if self.replay is None:
            return "not captured yet: it has to be called again"
        return f"captured, {self.replay.nodes} kernels and copies"

    @property
    def reports(self) -> bool:
        """Whether a kernel that has run here can find fault with data."""
        return any(env.reports for env in self.envs)

    def run(
        self, entering: Sequence[Any], watcher: Watcher | None = None, targets: Sequence[Any] = ()
    ) -> list[Any]:
        """Enqueue every step; waits only where a value goes to the host.

        A plan that runs again with the same shared variables is captured into a graph. The plan of
        a loop's body may put what leaves to ``targets``.
        """
        if self.rt.busy:
            return self.rt.aside(lambda: self.run(entering, watcher, targets))
        self.rt.arena.reserve(self.memory.arena_bytes)
        if watcher is None and (replay := self._replay(entering)) is not None:
            return replay.run(entering)
        apart = watcher is not None or self._share(entering) or self.gaps
        values = self.values(entering, apart)
        self.make_leaving(values, targets)
        if apart:
            for node in self.nodes:
                if node in self.steps:
                    self._run_step(Step(node, self.steps[node]), values, watcher)
        else:
            staged = [self.rt.memory.pinned(max(self._nbytes(n), 1)) for n in self.outs]
            self.run_steps(self.head, values)
            self.run_middle(values)
            for node, pinned in zip(self.outs, staged):
                source = self.operand(node, 0, node.inputs[0], values)
                source = self.dense(source, source.contiguous)
                values[node.outputs[0]] = self.rt.memory.copy_out(source, pinned)
            self.settle(values)
        return self._left(values)

    def _left(self, values: Values) -> list[Any]:
        """What leaves, waited for where it goes to the host."""
        if self.reports and not self.rt.memory.captures_host_values:
            self.rt.copy_word()
        left = [values[v] for v in self.spec.segment.outputs]
        if any(isinstance(v, PendingCopy) for v in left):
            self.rt.memory.synchronize()
            self.rt.look()
        elif self.reports:
            self.rt.pending_check = True
        return [v.finish() if isinstance(v, PendingCopy) else v for v in left]

    def values(self, entering: Sequence[Any], apart: bool = False) -> Values:
        """Where values are in a call; ``apart``: no storage is written, new values are arrays."""
        values = dict(self.bound)
        values.update(zip(self.spec.segment.inputs, entering))
        for new, old in self.memory.stored.items():
            at = values[old]
            values[new] = self.rt.memory.empty(at.shape, at.dtype) if apart else at
        return values

    def settle(self, values: Values) -> None:
        """New values are where they were copied to: nobody has to write them again."""
        values.update((new, values[old]) for new, old in self.memory.copied.items())

    def make_leaving(self, values: Values, targets: Sequence[Any] = ()) -> None:
        """New arrays for what leaves and stays on the device, or targets that are like them."""
        for v, target in zip_longest(self.spec.segment.outputs, targets):
            view = self.memory.views[v]
            fresh = view.buffer.kind == "outside" and view.buffer.variable is v
            if fresh and v.owner is not None and not isinstance(v.owner.op, HostFromGpu):
                like = target is not None and target.is_like(view.shape, v.type.dtype)
                found = target if like else self.leaving.get(v)
                values[v] = found or self.rt.memory.empty(view.shape, v.type.dtype)
                if self.spec.segment.kept:
                    self.leaving[v] = values[v]

    def run_steps(self, steps: Sequence[Step], values: Values) -> None:
        """Enqueue some of the steps."""
        for step in steps:
            self._run_step(step, values, None)

    def run_middle(self, values: Values) -> None:
        """Enqueue what a graph has. Updates begin only when all their kernels are there."""
        self.run_steps(self.middle, values)
        if not self.ready:
            for env in self.envs:
                env.load_only = True
            try:
                self.run_steps(self.last_steps, values)
            finally:
                for env in self.envs:
                    env.load_only = False
            self.ready = True
        self.run_steps(self.last_steps, values)

    def _nbytes(self, node: Apply) -> int:
        """Bytes of what a node copies to the host."""
        view = self.memory.views[node.inputs[0]]
        return int(np.prod(view.shape, dtype=np.int64)) * node.inputs[0].type.numpy.itemsize

    def _run_step(self, step: Step, values: Values, watcher: Watcher | None) -> None:
        node = step.node
        try:
            if watcher is None:
                step.run(node, values)
                return
            run_watched(self, step, values, watcher)
        except Exception as error:
            error.add_note(describe_failure(node, [values.get(v) for v in node.inputs]))
            raise

    # -- capture ------------------------------------------------------------------------------

    def _replay(self, entering: Sequence[Any]) -> Replay | None:
        """The graph for what enters, made when addresses repeat; None where there can be none.

        What another segment made may come from another place each time: from then on it is copied
        to a place of its own.
        """
        now = [
            a.ptr if fixed and k not in self.moved and isinstance(a, RawArray) else None
            for k, (a, fixed) in enumerate(zip(entering, self.fixed))
        ]
        last, self.last = self.last, now
        if self.not_captured:
            return None
        if last != now:
            self.replay = None
            changed = [k for k, (a, b) in enumerate(zip(last or now, now)) if a != b]
            inputs = self.spec.segment.inputs
            if last is None or any(self._stays(inputs[k]) for k in changed):
                return None
            self.moved.update(changed)
            self.last = [None if k in self.moved else a for k, a in enumerate(now)]
        if self.replay is None and not self._share(entering):
            try:
                self.replay = Replay(self, entering)
            except CaptureFailed as error:
                self.not_captured = str(error)
        return self.replay

    def _stays(self, v: Variable) -> bool:
        """Whether it is in one place until it gets another shape, or another owner."""
        return isinstance(v, Shared) or v in self.spec.versions

    def _share(self, entering: Sequence[Any]) -> bool:
        """Whether something else that enters lies where a new value is to be written."""
        written = set(self.written(entering))
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

    def written(self, entering: Sequence[Any]) -> list[tuple[int, int]]:
        """The extents of the storages that new values are written to."""
        updated = {*self.memory.stored.values(), *self.memory.copied.values()}
        if not updated:
            return []
        pairs = zip(self.spec.segment.inputs, entering)
        return [a.extent for v, a in pairs if v in updated]
