"""A plan on the device: steps with their operands, captured into a CUDA graph when it repeats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from symdnn.config import config
from symdnn.gpu.array import DeviceArray
from symdnn.gpu.capture import CaptureFailed, Graph
from symdnn.gpu.context import Context
from symdnn.gpu.k_copy import strided_copy
from symdnn.gpu.memory import CudaMemory, PendingCopy
from symdnn.graph.evaluate import describe_failure
from symdnn.graph.runtime import Watcher
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.transfer import GpuFromHost, HostFromGpu

if TYPE_CHECKING:
    from symdnn.gpu.runtime import CudaRuntime

__all__ = ["CudaPlan", "Env", "reads_at_call"]


class Env:
    """See :class:`symdnn.gpu.env.LaunchEnv`."""

    def __init__(self, ctx: Context, workspace: int, node: int, memory: CudaMemory) -> None:
        self.context, self.workspace, self.node = ctx, workspace, node
        self.empty, self.copy_in, self.download = memory.empty, memory.copy_in, memory.download
        self.stream, self.error_word = ctx.stream, ctx.error_word

    @property
    def cudnn(self) -> int:
        """The ``cudnnHandle_t``."""
        return self.context.cudnn

    @property
    def cublaslt(self) -> int:
        """The ``cublasLtHandle_t``."""
        return self.context.cublaslt

    def module(self, source: str, name: str, options: Sequence[str] = ()) -> Any:
        """A kernel of generated source."""
        return self.context.function(source, name, options)

    def zero(self, ptr: int, nbytes: int) -> None:
        """Enqueue setting bytes to zero."""
        self.context.zero(ptr, nbytes)

    def launch(
        self,
        function: Any,
        grid: Sequence[int],
        block: Sequence[int],
        shared_bytes: int,
        args: Sequence[Any],
    ) -> None:
        """Enqueue a kernel."""
        self.context.launch(function, grid, block, shared_bytes, args)


def reads_at_call(node: Apply, sizes: Mapping[Variable, Any]) -> bool:
    """Whether the node reads host values that may differ from call to call."""
    return any(
        not isinstance(node.inputs[i], Constant) and node.inputs[i] not in sizes
        for i in node.op.run_time_inputs
    )


def _acceptor(kernel: Any) -> Any:
    """Which layouts a kernel takes: its ``accepts(index, array)``, or ``contiguous_inputs``."""
    if hasattr(kernel, "accepts"):
        return lambda i, x: not isinstance(x, DeviceArray) or kernel.accepts(i, x)
    which = getattr(kernel, "contiguous_inputs", False)
    if which is False:
        return None
    return lambda i, x: (
        not isinstance(x, DeviceArray) or x.contiguous or not (which is True or i in which)
    )


class CudaPlan:
    """Steps with their operands: arena addresses bound once, what enters and leaves per call."""

    def __init__(self, rt: CudaRuntime, spec: Any, memory: Any) -> None:
        self.rt, self.spec, self.memory = rt, spec, memory
        self.bound: dict[Variable, Any] = {}
        self._bind_values()
        self.steps = [self._step(node) for node in spec.segment.nodes]
        self.returns_to_host = any(isinstance(n.op, HostFromGpu) for n in spec.segment.nodes)
        self.graph: Graph | None = None
        self.not_captured = ""
        self.last: list[int | None] | None = None
        self.static: dict[Variable, Any] = {}
        self.kept: list[Any] = []
        self._divide()

    def _bind_values(self) -> None:
        base = self.rt.arena.base
        for v, view in self.memory.views.items():
            if isinstance(v, Constant):
                continue
            if v in self.spec.sizes:
                self.bound[v] = self.spec.sizes[v]
            elif view.buffer.kind == "arena":
                at = base + view.buffer.offset + view.offset
                self.bound[v] = DeviceArray(at, view.shape, v.type.dtype, view.strides)

    def _step(self, node: Apply) -> tuple[Apply, Any]:
        if isinstance(node.op, GpuFromHost):
            return node, self._copy_in
        if isinstance(node.op, HostFromGpu):
            return node, self._copy_out
        if node in self.memory.aliases:
            return node, self._alias
        launch = self.spec.launch(node)
        workspace = self.memory.workspaces.get(node)
        at = self.rt.arena.base + workspace.offset if workspace is not None else 0
        env = self.rt.env(at, self.rt.number_of(node))
        kernel = self.spec.choices[node].kernel
        accepts = _acceptor(kernel)

        def run(node: Apply, values: dict[Variable, Any]) -> None:
            inputs = [self._operand(node, i, v, values) for i, v in enumerate(node.inputs)]
            if accepts is not None:
                inputs = [self._dense(x, accepts(i, x)) for i, x in enumerate(inputs)]
            outputs = [values.get(v) for v in node.outputs]
            results = launch(env, inputs, outputs)
            if results is not None:
                values.update(zip(node.outputs, results))

        return node, run

    def _operand(self, node: Apply, i: int, v: Variable, values: dict[Variable, Any]) -> Any:
        if isinstance(v, Constant):
            return v.data if i in node.op.host_inputs else self.rt.constant(v)
        return values[v]

    def _dense(self, x: Any, accepted: bool) -> Any:
        """``x``, copied to contiguous memory unless its layout is accepted."""
        if accepted or not isinstance(x, DeviceArray):
            return x
        target = self.rt.memory.empty(x.shape, x.dtype)
        strided_copy(self.rt.env(), x, target)
        return target

    def _copy_in(self, node: Apply, values: dict[Variable, Any]) -> None:
        source, target = node.inputs[0], values[node.outputs[0]]
        value = source.data if isinstance(source, Constant) else values[source]
        if isinstance(value, DeviceArray):
            strided_copy(self.rt.env(), value, target)
        else:
            self.rt.memory.copy_in(np.asarray(value), target)

    def _copy_out(self, node: Apply, values: dict[Variable, Any]) -> None:
        source = self._operand(node, 0, node.inputs[0], values)
        source = self._dense(source, source.contiguous)
        values[node.outputs[0]] = self.rt.memory.copy_out(source)

    def _alias(self, node: Apply, values: dict[Variable, Any]) -> None:
        out = node.outputs[0]
        if out in self.bound:
            return
        view = self.memory.views[out]
        owner = values.get(view.buffer.variable) if view.buffer.variable is not None else None
        if owner is None:
            owner = self._operand(node, 0, node.inputs[0], values)
        at = owner.ptr + view.offset
        values[out] = DeviceArray(at, view.shape, out.type.dtype, view.strides, owner)

    @property
    def nbytes(self) -> int:
        """Memory of its own: none, since the arena is shared."""
        return 0

    def run(self, entering: Sequence[Any], watcher: Watcher | None = None) -> list[Any]:
        """Enqueue every step; waits only where a value goes to the host.

        The middle of a plan that runs again with the same addresses is captured into a graph.
        """
        self.rt.arena.reserve(self.memory.arena_bytes)
        addresses = [
            a.ptr if fixed and isinstance(a, DeviceArray) else None
            for a, fixed in zip(entering, self.fixed)
        ]
        again, self.last = addresses == self.last, addresses
        if watcher is None and again and self._capture(entering):
            values = self._replay(entering)
        else:
            self.graph = self.graph if again else None
            values = self._values(entering)
            self._make_leaving(values)
            for node, step in self.steps:
                self._run_step(node, step, values, watcher)
        if self.returns_to_host:
            self.rt.check_errors()  # waits for the copies too
        else:
            self.rt.pending_check = True
        left = [values[v] for v in self.spec.segment.outputs]
        return [v.finish() if isinstance(v, PendingCopy) else v for v in left]

    def _values(self, entering: Sequence[Any]) -> dict[Variable, Any]:
        values = dict(self.bound)
        values.update(zip(self.spec.segment.inputs, entering))
        return values

    def _capture(self, entering: Sequence[Any]) -> bool:
        """Make sure of a graph; False when there can be none (``not_captured`` says why)."""
        if self.graph is not None:
            return True
        if self.not_captured:
            return False
        values = self._values(entering)
        self._make_leaving(values)
        self._run_steps(self.head, values)
        with self.rt.memory.keeping() as kept:
            try:
                self.graph = Graph(self.rt.context, lambda: self._run_steps(self.middle, values))
            except CaptureFailed as error:
                self.not_captured = str(error)
                return False
        self.static, self.kept = values, kept
        return True

    def _replay(self, entering: Sequence[Any]) -> dict[Variable, Any]:
        values = dict(self.static)
        values.update(zip(self.spec.segment.inputs, entering))
        self._run_steps(self.head, values)
        assert self.graph is not None
        self.graph.launch()
        self._run_steps(self.tail, values)
        return values

    def _run_steps(self, steps: Sequence[tuple[Apply, Any]], values: dict[Variable, Any]) -> None:
        for node, step in steps:
            self._run_step(node, step, values, None)

    def _divide(self) -> None:
        """Steps before the graph (copies in, bounds read at each call), in it, and after it."""
        nodes = [n for n, _ in self.steps]
        start = next((i for i, n in enumerate(nodes) if not self._before_graph(n)), len(nodes))
        end = len(nodes)
        while end > start and isinstance(nodes[end - 1].op, HostFromGpu):
            end -= 1
        self.head, self.middle, self.tail = (
            self.steps[:start],
            self.steps[start:end],
            self.steps[end:],
        )
        self.not_captured = self._obstacle()
        # What enters is part of a graph by its address, unless it is only copied in before that.
        read = {v for n in nodes if not isinstance(n.op, GpuFromHost) for v in n.inputs}
        self.fixed = [v in read for v in self.spec.segment.inputs]

    def _before_graph(self, node: Apply) -> bool:
        return isinstance(node.op, GpuFromHost) or reads_at_call(node, self.spec.sizes)

    def _obstacle(self) -> str:
        """Why the plan cannot be captured; empty when it can be tried."""
        if config.gpu.graph == "off":
            return "gpu.graph=off"
        if not self.spec.segment.capture:
            return "the body of a loop is enqueued step by step"
        if len(self.middle) < 2:
            return "there is too little to capture"
        for node, _ in self.middle:
            if self._before_graph(node) or isinstance(node.op, HostFromGpu):
                return f"{node.op} needs the host in the middle of the segment"
            arrays = set(getattr(node.op, "host_values", ())) - set(node.op.host_inputs)
            if node.op.has_effect or arrays:
                return f"{node.op} reads arrays on the host"
            if not self._capturable(node):
                return f"{node.op} by {self.spec.choices[node].kernel.name} needs the host"
        return ""

    def _capturable(self, node: Apply) -> bool:
        """What the chosen kernel says of this call, where it says something."""
        kernel: Any = self.spec.choices[node].kernel
        says = getattr(kernel, "capturable", None)
        return says is None or bool(says(self.spec.call(node)))

    def _make_leaving(self, values: dict[Variable, Any]) -> None:
        for v in self.spec.segment.outputs:
            view = self.memory.views[v]
            fresh = view.buffer.kind == "outside" and view.buffer.variable is v
            if fresh and v.owner is not None and not isinstance(v.owner.op, HostFromGpu):
                values[v] = self.rt.memory.empty(view.shape, v.type.dtype)

    def _run_step(
        self, node: Apply, step: Any, values: dict[Variable, Any], watcher: Watcher | None
    ) -> None:
        try:
            if watcher is None:
                step(node, values)
                return
            inputs = [
                self._seen(self._operand(node, i, v, values)) for i, v in enumerate(node.inputs)
            ]
            watcher(node, inputs, None)
            step(node, values)
            watcher(node, inputs, [self._seen(values[v]) for v in node.outputs])
        except Exception as error:
            error.add_note(describe_failure(node, [values.get(v) for v in node.inputs]))
            raise

    def _seen(self, value: Any) -> Any:
        """A value as a watcher sees it: on the host."""
        if isinstance(value, DeviceArray):
            return self.rt.to_host(self._dense(value, value.contiguous))
        if isinstance(value, PendingCopy):
            self.rt.memory.synchronize()
            return value.finish()
        return value
