"""The CUDA device as a runtime: plans bound to addresses, transfers, guarded updates."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from symdnn.config import config
from symdnn.errors import SymdnnError
from symdnn.gpu import kernels
from symdnn.gpu.arena import Arena
from symdnn.gpu.array import DeviceArray
from symdnn.gpu.budget import MemoryUse
from symdnn.gpu.capture import CaptureFailed, Graph
from symdnn.gpu.context import Context, context
from symdnn.gpu.faults import fault
from symdnn.gpu.foreign import as_gpuarray, device_array
from symdnn.gpu.k_copy import guarded_copy, strided_copy
from symdnn.gpu.memory import CudaMemory
from symdnn.gpu.plan import CudaPlan, Env
from symdnn.graph.evaluate import describe_failure
from symdnn.graph.variable import Apply, Constant

__all__ = ["CudaRuntime", "runtime"]

kernels.load()

_MOST_UPDATE_GRAPHS = 64


class CudaRuntime:
    """One device: its context, arena, memory, and the nodes that may report errors on data."""

    def __init__(self, ctx: Context) -> None:
        self.context = ctx
        self.memory = CudaMemory(ctx)
        with ctx.current():
            self.arena = Arena(ctx, self.memory.budget)
        self.watched_nodes: list[Apply] = []
        self.pending_check = False
        self.memory.before_reading = self._check_pending
        self._constants: dict[Any, DeviceArray] = {}
        self._update_graphs: OrderedDict[Any, Graph | None] = OrderedDict()

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

    def update(self, pairs: Sequence[tuple[Any, Any]]) -> None:
        """Write new values into storages, unless the error word is set; one graph when repeated."""
        copies: list[tuple[Any, Any, Any]] = []
        others: list[tuple[Any, Any, Any]] = []
        for storage, value in pairs:
            target = storage.on(self.memory)
            same = isinstance(value, DeviceArray) and target.shape == value.shape
            (copies if same else others).append((storage, value, target))
        if copies:
            self._copy_all([(value, target) for _, value, target in copies])
        for storage, _, _ in copies:
            storage.written(self.context.device)
        if others:
            self.check_errors()
        for storage, value, _ in others:
            storage.set(self.to_host(value))

    def _copy_all(self, copies: Sequence[tuple[DeviceArray, DeviceArray]]) -> None:
        """Guarded copies; what is asked for again at the same addresses is captured."""
        key = tuple((s.ptr, s.strides, t.ptr, t.shape, t.dtype) for s, t in copies)
        if key not in self._update_graphs:
            self._update_graphs[key] = None
            while len(self._update_graphs) > _MOST_UPDATE_GRAPHS:
                self._update_graphs.popitem(last=False)
            self._enqueue_copies(copies)
            return
        graph = self._update_graphs[key]
        if graph is None and config.gpu.graph != "off":
            try:
                graph = Graph(self.context, lambda: self._enqueue_copies(copies))
            except CaptureFailed:
                graph = None
            self._update_graphs[key] = graph
        if graph is None:
            self._enqueue_copies(copies)
        else:
            graph.launch()

    def _enqueue_copies(self, copies: Sequence[tuple[DeviceArray, DeviceArray]]) -> None:
        env = self.env()
        for source, target in copies:
            guarded_copy(env, source, target)

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

    def memory_use(self) -> MemoryUse:
        """What is taken of the card's memory."""
        return self.memory.budget.use()

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


_runtimes: dict[int, CudaRuntime] = {}


def runtime(index: int = 0) -> CudaRuntime:
    """The process's runtime of device ``index``; raises ``CudaUnavailable``."""
    if index not in _runtimes:
        _runtimes[index] = CudaRuntime(context(index))
    return _runtimes[index]
