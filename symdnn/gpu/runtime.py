"""The CUDA device as a runtime: plans bound to addresses, transfers, guarded updates."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from symdnn.errors import SymdnnError
from symdnn.gpu import kernels
from symdnn.gpu.array import DeviceArray
from symdnn.gpu.context import Context, context
from symdnn.gpu.faults import fault
from symdnn.gpu.foreign import as_gpuarray, device_array
from symdnn.gpu.k_copy import guarded_copy, strided_copy
from symdnn.gpu.memory import Arena, CudaMemory, PendingCopy
from symdnn.graph.evaluate import describe_failure
from symdnn.graph.runtime import Watcher
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.transfer import GpuFromHost, HostFromGpu

__all__ = ["CudaRuntime", "runtime"]

kernels.load()


class CudaRuntime:
    """One device: its context, arena, memory, and the nodes that may report errors on data."""

    def __init__(self, ctx: Context) -> None:
        self.context = ctx
        self.memory = CudaMemory(ctx)
        with ctx.current():
            self.arena = Arena(ctx)
        self.watched_nodes: list[Apply] = []
        self.pending_check = False
        self.memory.before_reading = self._check_pending
        self._constants: dict[Any, DeviceArray] = {}

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the device; errors that an earlier call left on it are raised here."""
        with self.context.current():
            self._check_pending()
            yield

    def _check_pending(self) -> None:
        if self.pending_check:
            self.check_errors()

    def bind(self, specialised: Any, memory_plan: Any) -> CudaPlan:
        """Bind a plan to the arena."""
        return CudaPlan(self, specialised, memory_plan)

    def to_host(self, value: Any) -> Any:
        """A value as a NumPy array."""
        if not isinstance(value, DeviceArray):
            return value
        with self.context.current():
            return self.memory.download(value if value.contiguous else self.fresh(value))

    def adopt(self, value: Any, what: str, on_host: bool = False) -> Any:
        """An array that another library made on this device, without a copy unless ``on_host``."""
        array = device_array(value, self.context, what)
        self.memory.keep(array)
        return self.to_host(array) if on_host else array

    def lend(self, value: Any) -> Any:
        """A result where it is: a ``GPUArray``, or NumPy's where it was made on the host."""
        return as_gpuarray(value) if isinstance(value, DeviceArray) else value

    def fresh(self, value: Any) -> Any:
        """A copy that the user may keep."""
        if not isinstance(value, DeviceArray):
            return np.array(value, order="C", copy=True)
        target = self.memory.empty(value.shape, value.dtype)
        strided_copy(self.env(), value, target)
        return target

    def loop_arrays(self) -> CudaLoopArrays:
        """Device arrays for a loop's buffers."""
        return CudaLoopArrays(self)

    def update(self, storage: Any, value: Any) -> None:
        """Write a new value into a storage, unless the error word is set."""
        target = storage.on(self.memory)
        if isinstance(value, DeviceArray) and target.shape == value.shape:
            guarded_copy(self.env(), value, target)
            storage.written(self.context.device)
            self.pending_check = True
        else:
            self.check_errors()
            storage.set(self.to_host(value))

    def check_errors(self) -> None:
        """Wait, and raise what a kernel wrote into the error word."""
        self.pending_check = False
        word = self.memory.download(DeviceArray(self.context.error_word, (4,), "int32"))
        if word[0] == 0:
            return
        self.memory.copy_in(
            np.zeros(4, np.int32), DeviceArray(self.context.error_word, (4,), "int32")
        )
        raise self._error(*map(int, word))

    def _error(self, code: int, number: int, value: int, limit: int) -> SymdnnError:
        error = fault(code, value, limit)
        if 0 <= number < len(self.watched_nodes):
            error.add_note(describe_failure(self.watched_nodes[number], []))
        return error

    def env(self, workspace: int = 0, node: int = -1) -> Env:
        """What a launch is given besides its operands."""
        return Env(self.context, workspace, node, self.memory)

    def number_of(self, node: Apply) -> int:
        """The number under which a node's error is reported."""
        self.watched_nodes.append(node)
        return len(self.watched_nodes) - 1

    def constant(self, v: Constant) -> DeviceArray:
        """A constant's copy on the device, one for equal ones."""
        key = v.key()
        if key not in self._constants:
            self._constants[key] = self.memory.upload(v.data, None)
        return self._constants[key]

    def facts(self) -> Mapping[str, Any]:
        """What reports print of the device."""
        major, minor = self.context.capability
        return {"device": self.context.device, "card": self.context.name, "sm": f"{major}{minor}"}


class CudaLoopArrays:
    """Device arrays as :class:`symdnn.ops.scan_loop.LoopArrays`."""

    def __init__(self, rt: CudaRuntime) -> None:
        self.rt = rt

    def empty(self, shape: tuple[int, ...], dtype: Any) -> DeviceArray:
        """A new array."""
        name = dtype if isinstance(dtype, str) else np.dtype(dtype).name
        return self.rt.memory.empty(tuple(shape), name)

    def put(self, target: DeviceArray, value: Any) -> None:
        """Write into a view, from the device or the host."""
        if isinstance(value, DeviceArray):
            strided_copy(self.rt.env(), value, target)
        else:
            self.rt.memory.copy_in(np.asarray(value), target)

    def fresh(self, value: Any) -> Any:
        """A contiguous copy where the value is."""
        return self.rt.fresh(value)


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
        self.scratch_at = memory.arena_bytes
        self.bound: dict[Variable, Any] = {}
        self.scratch_bytes = 0
        self._bind_values()
        self.steps = [self._step(node) for node in spec.segment.nodes]
        self.returns_to_host = any(isinstance(n.op, HostFromGpu) for n in spec.segment.nodes)

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
        owner = values[view.buffer.variable] if view.buffer.variable in values else None
        if owner is None:
            owner = self._operand(node, 0, node.inputs[0], values)
        at = owner.ptr + view.offset
        values[out] = DeviceArray(at, view.shape, out.type.dtype, view.strides, owner)

    @property
    def nbytes(self) -> int:
        """Memory of its own: none, since the arena is shared."""
        return 0

    def run(self, entering: Sequence[Any], watcher: Watcher | None = None) -> list[Any]:
        """Enqueue every step; waits only where a value goes to the host."""
        self.rt.arena.reserve(self.memory.arena_bytes)
        values = dict(self.bound)
        values.update(zip(self.spec.segment.inputs, entering))
        self._make_leaving(values)
        for node, step in self.steps:
            self._run_step(node, step, values, watcher)
        if self.returns_to_host:
            self.rt.check_errors()  # waits for the copies too
        else:
            self.rt.pending_check = True
        left = [values[v] for v in self.spec.segment.outputs]
        return [v.finish() if isinstance(v, PendingCopy) else v for v in left]

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


_runtimes: dict[int, CudaRuntime] = {}


def runtime(index: int = 0) -> CudaRuntime:
    """The process's runtime of device ``index``; raises ``CudaUnavailable``."""
    if index not in _runtimes:
        _runtimes[index] = CudaRuntime(context(index))
    return _runtimes[index]
