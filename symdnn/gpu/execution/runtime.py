"""The runtime of a CUDA device: plans bound to addresses, transfers, guarded updates."""

from __future__ import annotations

import contextlib
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from symdnn.config import config
from symdnn.errors import SymdnnError
from symdnn.gpu import registry
from symdnn.gpu.codegen.launches import CudaKernel
from symdnn.gpu.device.arena import Arena
from symdnn.gpu.device.array import ALIGNMENT, RawArray
from symdnn.gpu.device.budget import MemoryUse
from symdnn.gpu.device.capture import CaptureFailed, Graph
from symdnn.gpu.device.clock import Clock
from symdnn.gpu.device.context import Context, context
from symdnn.gpu.device.device_array import DeviceArray
from symdnn.gpu.device.env import Env
from symdnn.gpu.device.error_codes import exception_of
from symdnn.gpu.device.interop import device_array
from symdnn.gpu.device.memory import memory_of
from symdnn.gpu.execution.batched_updates import copy_all
from symdnn.gpu.execution.loop_graph import LoopGraphs
from symdnn.gpu.execution.plan import CudaPlan
from symdnn.gpu.execution.whole_function import GpuWholeFunction
from symdnn.gpu.execution.whole_loop import GpuWholeLoop
from symdnn.gpu.kernels.copy import strided_copy
from symdnn.graph.evaluate import Uncomputed, note_failure
from symdnn.graph.runtime import Runtime
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Apply, Constant
from symdnn.ops.core.gradient_control import Assert
from symdnn.ops.lowered.of_values import SomeChosen

registry.load()

_MAX_UPDATE_GRAPHS = 64
_MAX_ADOPTED = 256


class CudaRuntime(Runtime):
    """One device: its context, arena and memory, and the nodes that may report errors."""

    def __init__(self, ctx: Context) -> None:
        self.context = ctx
        self.memory = memory_of(ctx)
        with ctx.current():
            self.arena = Arena(ctx, self.memory.budget)
            self.queue = self.memory.queue
            self._start(self.memory.pinned(16).view(np.int32))

    def _start(self, word: Any) -> None:
        """Set the initial state; ``word`` is the host memory that the error word is copied to."""
        #: The error word of the last finished call.
        self.word: Any = word
        self.word[:] = 0
        self._word_address = int(self.word.ctypes.data)
        self._nodes: dict[int, tuple[Apply, list[Any]]] = {}
        self._next_number = 0
        #: Whether a call may have written an error: with ``pending_check`` the next call waits for
        #: it, with ``unread`` only a read of a result does.
        self.pending_check = self.unread = False
        self.memory.before_reading = self.settle
        self._constants: dict[Any, RawArray] = {}
        self._update_graphs: OrderedDict[Any, Graph | None] = OrderedDict()
        self._known: dict[int, tuple[Any, int, RawArray]] = {}
        #: The number of nodes that plans and graphs of loops enqueued so far.
        self.enqueued = 0
        #: Bytes of the arena of a plan while its watcher is called, else 0.
        self.watched_bytes = 0
        self.watched_registered: Sequence[RawArray] = ()

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Lock the device; errors of earlier calls are raised here.

        What kernels have found of the data of a call that fails otherwise is no error of the next
        one.
        """
        with self.context.current():
            self.begin_call()
            try:
                yield
            except Exception as error:
                self._forget_errors(error)
                raise

    def begin_call(self) -> None:
        """Raise errors of earlier calls. The device is locked."""
        if self.pending_check:
            self._wait_for_errors()
        else:
            self.raise_finished_errors()

    def _forget_errors(self, failed: Exception) -> None:
        """Note what is in the error word beside the error of a call."""
        try:
            self.check_errors()
        except SymdnnError as error:
            failed.add_note(f"A kernel had reported: {type(error).__name__}: {error}")

    def settle(self) -> None:
        """Raise errors of all calls so far; waits for calls that can report errors."""
        if self.pending_check or self.unread:
            self._wait_for_errors()

    def capture(self, enqueue: Callable[[], None]) -> Graph:
        """The work that ``enqueue`` enqueues, as a graph; raises :class:`CaptureFailed`."""
        return Graph(self.context, enqueue)

    def copy_error_word(self) -> None:
        """Enqueue a copy of the error word to the host."""
        self.queue.copy_out(*self.error_word_copy())

    def error_word_copy(self) -> tuple[int, int, int]:
        """That copy as (target, source, bytes)."""
        return self._word_address, self.context.error_word, 16

    def raise_finished_errors(self) -> None:
        """Raise errors of finished calls; waits only if there is one."""
        if self.word[0]:
            self.check_errors()

    def begin(self, call: Any, kernel: Any) -> None:
        """Threads compile a generated kernel while kernels of later nodes are chosen.

        What fails here does so again when the kernel is launched, and is raised there.
        """
        if isinstance(kernel, CudaKernel) and not call.op.host_inputs:
            with contextlib.suppress(Exception):
                self.context.begin(kernel.sources(call))

    def bind(self, specialised: Any, memory_plan: Any) -> CudaPlan:
        """Bind a plan to the arena."""
        return CudaPlan(self, specialised, memory_plan)

    def seconds_of(self, enqueue: Callable[[], object]) -> float:
        """The device's time for work that is waited for, between events."""
        return Clock(self.context).elapsed_ms(enqueue, 1) * 1e-3

    @contextlib.contextmanager
    def watched(self, nbytes: int, registered: Sequence[RawArray]) -> Iterator[None]:
        """The context of a watcher's call in a plan: the user's code, which may call functions."""
        before = self.watched_bytes, self.watched_registered
        self.watched_bytes, self.watched_registered = nbytes, registered
        try:
            yield
        finally:
            self.watched_bytes, self.watched_registered = before

    @property
    def is_watched(self) -> bool:
        """Whether a call now is that of a watcher in a plan, whose memory must stay."""
        return bool(self.watched_bytes or self.watched_registered)

    def run_nested(self, run: Callable[[], list[Any]]) -> list[Any]:
        """Run a call of a watcher; the contents of the arena and of registered memory are saved and
        restored."""
        nbytes, before = self.watched_bytes, self.arena.outer_bytes
        used = [RawArray(self.arena.base, (nbytes,), "uint8"), *self.watched_registered]
        saved: list[RawArray] = []
        with self.watched(0, ()), self.context.nested():
            try:
                self.arena.outer_bytes = nbytes
                for at in used:
                    saved.append(self.memory.empty(at.shape, at.dtype))
                    self.memory.copy(at, saved[-1])
                return run()
            finally:
                for at, contents in zip(used, saved):
                    self.memory.copy(contents, at)
                self.arena.outer_bytes = before

    def to_host(self, value: Any) -> Any:
        """A value as a NumPy array."""
        if not isinstance(value, RawArray):
            return value
        with self.context.current():
            return self.memory.download(value if value.contiguous else self.fresh(value))

    def adopt(self, value: Any, what: str, on_host: bool = False) -> Any:
        """An array of another library on this device, without a copy unless ``on_host``."""
        found = self.known(value)
        if found is None or isinstance(value, RawArray | DeviceArray):
            array = device_array(value, self.context, what)
        else:  # PyCUDA's array, as it was described and checked before
            at = found.ptr, found.shape, found.dtype, found.strides
            array = RawArray(*at, value, found.read_only)
        self.memory.keep(array)
        mine = isinstance(value, DeviceArray) or type(value).__module__ == "pycuda.gpuarray"
        if mine and found is None:
            # No other stream writes such arrays meanwhile, so they need no check in later calls.
            if len(self._known) >= _MAX_ADOPTED:
                self._known.clear()
            at = array.ptr, array.shape, array.dtype, array.strides
            unowned = RawArray(*at, read_only=array.read_only)
            self._known[id(value)] = weakref.ref(value), array.ptr, unowned
        return self.to_host(array) if on_host else array

    def known(self, value: object) -> RawArray | None:
        """An array that was adopted before, if its address is the same. Does not keep it alive."""
        found = self._known.get(id(value))
        if found is None or found[0]() is not value:
            return None
        if int(value.gpudata or 0) != found[1]:  # PyCUDA's arrays without elements have None
            return None
        return found[2]

    def lend(self, value: Any) -> Any:
        """A result as an array for users, without a copy; a NumPy array if it is on the host."""
        if not isinstance(value, RawArray):
            return value
        shown = value.__dict__.get("_shown")  # a captured plan returns the same array each time
        if shown is None:
            shown = self.context.for_users(value, self.memory)
            object.__setattr__(value, "_shown", shown)
        return shown

    def fresh(self, value: Any) -> Any:
        """A copy that the user may keep."""
        if not isinstance(value, RawArray):
            return np.array(value, order="C", copy=True)
        target = self.memory.empty(value.shape, value.dtype)
        if value.contiguous:
            self.memory.copy(value, target)
        else:
            strided_copy(self.env(), value, target)
        return target

    def fresh_all(self, values: Sequence[Any], which: Sequence[int]) -> list[Any]:
        """Results that are parts of one block (:meth:`CudaMemory.beside`) are copied at once."""
        found, blocks = list(values), dict[int, list[int]]()
        for i in which:
            v = found[i]
            if isinstance(v, RawArray) and v.nbytes and v.owner is not None and v.contiguous:
                blocks.setdefault(id(v.owner), []).append(i)
            else:
                found[i] = self.fresh(v)
        for places in blocks.values():
            parts = [found[i] for i in places]
            spans = sorted(v.extent for v in parts)
            low, nbytes = spans[0][0], spans[-1][1] - spans[0][0]
            shared = any(end > start for (_, end), (start, _) in pairwise(spans))
            if len(parts) == 1 or shared or nbytes > sum(v.nbytes + ALIGNMENT for v in parts):
                copies = [self.fresh(v) for v in parts]
            else:
                whole = self.memory.empty((nbytes,), "uint8")
                self.memory.copy(RawArray(low, (nbytes,), "uint8"), whole)
                copies = [
                    RawArray(whole.ptr + v.ptr - low, v.shape, v.dtype, v.strides, whole.owner)
                    for v in parts
                ]
            for i, copy in zip(places, copies):
                found[i] = copy
        return found

    def trim(self) -> None:
        """Unmap the arena and free the memory that is held for reuse; plans map what they need."""
        with self.exclusive():
            self.arena.needed = self.arena.outer_bytes
            self.arena.trim()
            self.memory.free_held()
        super().trim()

    def loop_graphs(self, fresh: bool) -> LoopGraphs:
        """The graphs of one loop, which capture it as a whole; its results, or copies of them."""
        return LoopGraphs(self, fresh)

    def whole_loop(self, op: Any) -> GpuWholeLoop:
        """The runner of a scan of small steps as one kernel."""
        return GpuWholeLoop(op, self)

    def whole_function(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> GpuWholeFunction:
        """The runner of a graph with loops of small steps as one kernel."""
        return GpuWholeFunction(self, inputs, outputs)

    def loop_arrays(self) -> CudaLoopArrays:
        """Device arrays for a loop's buffers."""
        return CudaLoopArrays(self)

    def update(self, pairs: Sequence[tuple[Any, Any]]) -> None:
        """Write new values into storages, unless the error word is set; one graph when repeated."""
        copies: list[tuple[Any, Any, Any]] = []
        others: list[tuple[Any, Any, Any]] = []
        for storage, value in pairs:
            target = storage.on(self.memory)
            same = isinstance(value, RawArray) and target.shape == value.shape
            (copies if same else others).append((storage, value, target))
        # Values that a plan wrote to their storages need no copy.
        missing = [(value, target) for _, value, target in copies if value.ptr != target.ptr]
        if missing:
            self._copy_all(missing)
        for storage, _, _ in copies:
            storage.written(self.context.place)
        if others:
            self.check_errors()
        for storage, value, _ in others:
            storage.set(self.to_host(value))

    def _copy_all(self, copies: Sequence[tuple[RawArray, RawArray]]) -> None:
        """Guarded copies; those that repeat with the same addresses are captured."""
        key = tuple((s.ptr, s.strides, t.ptr, t.shape, t.dtype) for s, t in copies)
        if key not in self._update_graphs:
            self._update_graphs[key] = None
            while len(self._update_graphs) > _MAX_UPDATE_GRAPHS:
                self._update_graphs.popitem(last=False)
            self._enqueue_copies(copies)
            return
        graph = self._update_graphs[key]
        if graph is None and config.gpu.graph != "off":
            try:
                graph = self.capture(lambda: self._enqueue_copies(copies))
            except CaptureFailed:
                graph = None
            self._update_graphs[key] = graph
        if graph is None:
            self._enqueue_copies(copies)
        else:
            graph.launch()

    def _enqueue_copies(self, copies: Sequence[tuple[RawArray, RawArray]]) -> None:
        copy_all(self.env(), copies)

    def _wait_for_errors(self) -> None:
        """Wait for all calls, each of which copies the error word to the host, and raise errors."""
        self.memory.synchronize()
        self.pending_check = self.unread = False
        self.raise_finished_errors()

    def check_errors(self) -> None:
        """Wait for all calls, and raise the error in the error word."""
        self.pending_check = self.unread = False
        word = self.memory.download(RawArray(self.context.error_word, (4,), "int32"))
        self.word[:] = 0
        if word[0] == 0:
            return
        self.memory.copy_in(np.zeros(4, np.int32), RawArray(self.context.error_word, (4,), "int32"))
        raise self._error(*map(int, word))

    def _error(self, code: int, number: int, value: int, limit: int) -> SymdnnError:
        error = exception_of(code, value, limit)
        made = self._nodes[number][0] if number in self._nodes else None
        if made is not None and isinstance(made.op, Assert | SomeChosen):
            error = made.op.failure(value)
        if number in self._nodes:
            note_failure(error, *self._nodes[number])
        return error

    def env(self, workspace: int = 0, node: int = -1) -> Env:
        """A new launch environment."""
        return Env(self.context, workspace, node, self.memory)

    def number_of(self, node: Apply, types: Sequence[Any]) -> int:
        """The number by which a node's errors are reported, with its inputs' types.

        :meth:`forget_nodes` drops it.
        """
        shown = [
            Uncomputed(t.dtype, t.shape, "on the GPU") if isinstance(t, TensorType) else t
            for t in types
        ]
        self._next_number += 1
        self._nodes[self._next_number] = node, shown
        return self._next_number

    def forget_nodes(self, numbers: Sequence[int]) -> None:
        """Drop the nodes of a plan that was deleted."""
        for number in numbers:
            self._nodes.pop(number, None)

    def constant(self, v: Constant) -> RawArray:
        """A constant's copy on the device, shared by equal constants."""
        key = v.key()
        found = self._constants.get(key)
        if found is None:
            found = self.memory.upload(v.data, None)
            if not self.memory.captures_host_values:  # else it is uploaded when a graph is launched
                self._constants[key] = found
        return found

    def placed(self, v: Constant) -> Any:
        """A constant on the device, or on the host for an integer scalar."""
        return v.data if v.type.is_integer_scalar else self.constant(v)

    def memory_use(self) -> MemoryUse:
        """The use of the device's memory."""
        return self.memory.budget.use()

    def facts(self) -> Mapping[str, Any]:
        """The device's description for reports."""
        ctx, (major, minor) = self.context, self.context.capability
        return {"device": str(ctx.place), "card": ctx.name, "sm": f"{major}{minor}"}


class CudaLoopArrays:
    """Device arrays for a loop (:class:`symdnn.ops.control.scan_loop.LoopArrays`)."""

    ahead = True

    def __init__(self, rt: CudaRuntime) -> None:
        self.rt = rt

    def empty(self, shape: tuple[int, ...], dtype: Any) -> RawArray:
        """A new array."""
        name = dtype if isinstance(dtype, str) else np.dtype(dtype).name
        return self.rt.memory.empty(tuple(shape), name)

    def put(self, target: RawArray, value: Any) -> None:
        """Write a value of the device or the host into a view, unless it is there already."""
        if isinstance(value, RawArray):
            if value.ptr != target.ptr or value.strides != target.strides:
                strided_copy(self.rt.env(), value, target)
        else:
            self.rt.memory.copy_in(np.asarray(value), target)

    def fresh(self, value: Any) -> Any:
        """A contiguous copy on the same device."""
        return self.rt.fresh(value)


_runtimes: dict[int, CudaRuntime] = {}


def runtime(index: int = 0) -> CudaRuntime:
    """The process's runtime of device ``index``; raises ``CudaUnavailable``."""
    if index not in _runtimes:
        _runtimes[index] = CudaRuntime(context(index))
    return _runtimes[index]
