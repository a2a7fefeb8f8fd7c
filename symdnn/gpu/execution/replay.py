"""A captured plan: a CUDA graph, and memory with fixed addresses for its inputs and results."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from symdnn.gpu.device.array import ALIGNMENT, RawArray
from symdnn.gpu.device.capture import CaptureFailed
from symdnn.gpu.device.memory import PendingCopy
from symdnn.gpu.execution.batched_updates import copy_bytes
from symdnn.gpu.execution.bound_steps import BoundSteps
from symdnn.gpu.execution.operands import Device, Values
from symdnn.gpu.execution.run_ahead import InFlightCalls
from symdnn.gpu.kernels.copy import strided_copy
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Variable
from symdnn.ops.array.index import Subtensor
from symdnn.ops.lowered.transfer import GpuFromHost

_FROM_HOST, _STRIDED = -1, -2
#: Up to this size a kernel copies from and to the host as fast as the copy engine.
_KERNEL_COPY_MAX_BYTES = 1 << 20
#: For plans with arrays of this size, kernels take longer than the host needs to launch them.
_SEPARATE_LAUNCH_MIN_BYTES = 64 << 20
_MAX_GRAPHS = 20
_MAX_SEEN_KEYS = 256
#: Calls in half of the in-flight limit, and the bytes of arguments that they may keep alive.
_MAX_CALLS_PER_HALF, _MAX_HELD_BYTES = 16, 4 << 20


class PinnedArray:
    """An array in pinned memory of the host."""

    def __init__(self, device: Device, shape: tuple[int, ...], dtype: str) -> None:
        self.array: Any = np.empty(shape, TensorType(dtype).numpy)
        self.nbytes, self.address = int(self.array.nbytes), 0
        if self.nbytes:
            raw = device.memory.pinned(self.nbytes)
            self.address = int(raw.ctypes.data)
            self.array = raw.view(self.array.dtype).reshape(shape)


class InputSlot:
    """The memory that input ``index`` of the segment is copied to.

    ``views`` are the input's value and all that share its memory: ``(variable, view)``. Their
    addresses may be in another array on the device instead. A slot that is itself a result has no
    views.
    """

    def __init__(self, device: Device, index: int, target: RawArray, views: Any) -> None:
        self.device, self.index, self.target, self.views = device, index, target, views
        self.staged: list[PinnedArray | None] = [None, None]

    def read_in_place(self, value: object, values: Values) -> bool:
        """Let the graph read ``value`` where it is. False if it has to be copied."""
        if not (isinstance(value, RawArray) and self.views) or value.ptr % ALIGNMENT:
            return False
        for v, view in self.views:
            at = value.ptr + view.offset
            values[v] = RawArray(at, view.shape, value.dtype, view.strides)
        return True

    def stage(self, value: Any, half: int) -> None:
        """Copy a value of the host to pinned memory."""
        staged = self.staged[half]
        if staged is None:
            staged = PinnedArray(self.device, self.target.shape, self.target.dtype)
            self.staged[half] = staged
        np.copyto(staged.array, value)

    def small_copy(self, value: object, half: int) -> tuple[int, int, int] | None:
        """A copy from pinned memory (target, source, bytes), if a kernel should make it."""
        staged = self.staged[half]
        if isinstance(value, RawArray) or staged is None:
            return None
        if staged.nbytes > _KERNEL_COPY_MAX_BYTES:
            return None
        return self.target.ptr, staged.address, staged.nbytes

    def fill(self, value: Any, half: int) -> None:
        """Enqueue the copy to the slot, from the device or from pinned memory."""
        target, staged = self.target, self.staged[half]
        if not isinstance(value, RawArray):
            if staged is not None and staged.nbytes:
                self.device.queue.copy_in(target.ptr, staged.address, staged.nbytes)
        elif value.contiguous:
            if value.nbytes:
                self.device.queue.copy(target.ptr, value.ptr, value.nbytes)
        else:
            strided_copy(self.device.env(), value, target)


class Replay:
    """The middle of a plan as a CUDA graph, between copies of its inputs and of its results.

    A call with results on the host waits for them, and takes them from pinned memory. Any other
    call only waits for the in-flight limit (:class:`InFlightCalls`): there are two sets of pinned
    memory for inputs, and arguments are kept alive until their call is done.

    Copies from pinned memory are part of the graph. Device arrays at addresses that were seen
    before get a graph that reads them in place. Others are copied to their slots before the graph.
    An argument of which steps before the graph take slices, and nothing else, is not copied.

    ``copied`` are the indices of device inputs that always have slots.
    """

    def __init__(self, steps: BoundSteps, entering: Sequence[Any], copied: Collection[int]) -> None:
        self.steps, self.operands = steps, steps.operands
        self.device, self.memory = steps.operands.device, steps.operands.memory
        segment = self.operands.spec.segment
        self.inputs: tuple[Variable, ...] = segment.inputs
        self.copied = frozenset(copied)
        self.values = steps.values(entering)
        found = {id(v): v.nbytes for v in self.values.values() if isinstance(v, RawArray)}
        self.large = sum(found.values()) >= _SEPARATE_LAUNCH_MIN_BYTES
        self.results: dict[Variable, PinnedArray] = {}
        #: Graphs with the copies of inputs, by their sources (:meth:`_key`).
        self.graphs: dict[Any, Any] = {}
        #: Keys that were seen once.
        self.seen: set[Any] = set()
        with self.device.memory.keeping() as self.kept:
            steps.allocate_results(self.values)
            self._find_slots(entering)
            self._pin_results()
            values = self._call_values(entering)
            if self.head:  # before the capture: its results are remembered
                self._stage(entering, 0)
                for slot in self.slots:
                    slot.fill(entering[slot.index], 0)
                steps.run(self.head, values)
            pending = any(isinstance(v, PendingCopy) for v in values.values())
            self.waits = bool(steps.outs) or pending
            self.values = {k: v for k, v in values.items() if not isinstance(v, PendingCopy)}
            from_host = all(not isinstance(entering[s.index], RawArray) for s in self.slots)
            #: The graph without copies of inputs, once it is needed.
            self.graph: Any = None
            if not (self.slots and from_host) or self.head:
                self.graph = self._without_copies()
            else:  # capture now, so that a failure is raised here
                for slot in self.slots:
                    slot.stage(entering[slot.index], 0)
                self.graphs[self._key(entering)[0]] = self._with_copies(entering, 0)
        left = dict(self.values)
        steps.redirect_updates(left)
        self.left = [(self.results.get(v), left.get(v), v) for v in segment.outputs]
        for k in {*(s.index for s in self.slots), *self.sliced} - self.copied:
            del self.values[self.inputs[k]]  # the arguments of this call
        for v in self.sliced.values():
            del self.values[v]
        repeats = bool(self.slots) and self._may_repeat() and not self.head
        self.max_graphs = _MAX_GRAPHS if repeats else 0
        self.written = steps.written(entering)
        self.reports = self.operands.reports
        limit = None if self.waits else self._max_calls_per_half()
        self.in_flight = None if limit is None else InFlightCalls(self.device.queue, limit)
        #: The results, if they are the same arrays in each call.
        self.fixed: list[Any] | None = None
        if all(pinned is None and fixed is not None for pinned, fixed, _ in self.left):
            self.fixed = [fixed for _, fixed, _ in self.left]

    def _max_calls_per_half(self) -> int:
        """Calls in half of the in-flight limit: fewer with large arguments, which are kept alive.

        It is 1 for a plan that can report errors, so that these are raised by one of the next
        calls.
        """
        if self.reports:
            return 1
        held = sum(s.target.nbytes for s in self.slots)
        return max(1, min(_MAX_CALLS_PER_HALF, _MAX_HELD_BYTES // max(held, 1)))

    def _may_repeat(self) -> bool:
        """Whether there may be more graphs. Each has its own memory for arrays that kernels
        allocate, so these must be small and not be results."""
        made = {v for v, view in self.memory.views.items() if view.buffer.kind == "made"}
        small = self.nbytes <= _KERNEL_COPY_MAX_BYTES
        return not made or (small and made.isdisjoint(self.memory.leaving))

    def _find_slots(self, entering: Sequence[Any]) -> None:
        """Make slots for inputs that are only copied; other steps of the head stay in ``head``."""
        at = {v: k for k, v in enumerate(self.inputs)}
        self.slots: list[InputSlot] = []
        #: The copies of inputs that would be read for slices alone, by the inputs' indices.
        self.sliced: dict[int, Variable] = {}
        self.head = []
        for step in self.steps.head:
            k = at.get(step.node.inputs[0]) if step.node.inputs else None
            if isinstance(step.node.op, GpuFromHost) and k is not None:
                v = step.node.outputs[0]
                if k not in self.sliced and self._is_sliced(v):
                    self.sliced[k] = v
                    continue
                views = [] if v in self.memory.leaving else self.operands.sharing(v)
                self.slots.append(InputSlot(self.device, k, self.values[v], views))
            else:
                self.head.append(step)
        for k in self.copied:
            target = self.device.memory.empty(entering[k].shape, entering[k].dtype)
            self.values[self.inputs[k]] = target
            views = [(self.inputs[k], self.memory.views[self.inputs[k]])]
            self.slots.append(InputSlot(self.device, k, target, views))

    def _is_sliced(self, v: Variable) -> bool:
        """Whether only steps before the graph read ``v``, each of them for a slice."""
        readers = [n for n, _ in self.operands.spec.segment.readers.get(v, ())]
        early = {s.node for s in self.steps.head if isinstance(s.node.op, Subtensor)}
        return v not in self.memory.leaving and early.issuperset(readers)

    def _pin_results(self) -> None:
        for node in self.steps.outs:
            v = node.inputs[0]
            view = self.memory.views[v]
            self.results[node.outputs[0]] = PinnedArray(self.device, view.shape, v.type.dtype)

    def _enqueue(self, values: Values) -> None:
        """The work of every graph: the steps, and the copies of results to the host."""
        self.steps.run_middle(values)
        small: list[tuple[int, int, int]] = []
        for node in self.steps.outs:
            source = self.operands.operand(node, 0, node.inputs[0], values)
            pinned = self.results[node.outputs[0]]
            if pinned.nbytes:
                source = self.operands.contiguous(source, source.contiguous)
            if pinned.nbytes <= _KERNEL_COPY_MAX_BYTES:
                small.append((pinned.address, source.ptr, pinned.nbytes))
            else:
                self.device.queue.copy_out(pinned.address, source.ptr, pinned.nbytes)
        if self.operands.reports:
            small.append(self.device.error_word_copy())
        copy_bytes(self.device.env(), small)

    def _call_values(self, entering: Sequence[Any]) -> Values:
        """All values before the graph: those of all calls, and the inputs of this call."""
        values = dict(self.values)
        values.update(
            (v, a) for k, (v, a) in enumerate(zip(self.inputs, entering)) if k not in self.copied
        )
        values.update((v, entering[k]) for k, v in self.sliced.items())
        return values

    @property
    def nbytes(self) -> int:
        """Device memory that only this replay uses."""
        return sum(int(getattr(owner, "size", 0)) for owner in self.kept)

    def run(self, entering: Sequence[Any], owners: Any = None) -> list[Any]:
        """The results of the segment. Raises errors of the data that a kernel reports.

        ``owners`` are objects that keep the memory of device arguments alive.
        """
        if self.device.is_watched:
            return self.device.run_nested(lambda: self.run(entering, owners))
        self.device.arena.reserve(self.memory.arena_bytes)
        key, host = self._key(entering)
        in_flight, half = self.in_flight, 0
        if in_flight is not None:
            if in_flight.begin((entering, owners), host):
                self.device.raise_finished_errors()
            half = in_flight.half
        if host:
            key = (half, *key[1:])
            self._stage(entering, half)
        graph = self.graphs.get(key)
        values = self.values
        if graph is None:
            graph = self._graph(key, entering, half)
            if graph is self.graph:
                for slot in self.slots:
                    slot.fill(entering[slot.index], half)
                if self.head:
                    values = self._call_values(entering)
                    self.steps.run(self.head, values)
        graph.launch()
        if in_flight is None:
            self.device.memory.synchronize()
            self.device.raise_finished_errors()
        else:
            in_flight.end()
            self.device.unread |= self.reports
        if self.fixed is not None:
            return self.fixed.copy()
        return [
            pinned.array.copy() if pinned is not None else self._result(v, fixed, values)
            for pinned, fixed, v in self.left
        ]

    def _stage(self, entering: Sequence[Any], half: int) -> None:
        for slot in self.slots:
            value = entering[slot.index]
            if not isinstance(value, RawArray):
                slot.stage(value, half)

    def _key(self, entering: Sequence[Any]) -> tuple[tuple[int, ...], bool]:
        """The key of a graph, and whether an input is on the host.

        The key has the set of pinned memory (0 here), then for each slot the address of a
        contiguous device array, ``_STRIDED`` or ``_FROM_HOST``.
        """
        key, host = [0], False
        for slot in self.slots:
            value = entering[slot.index]
            if not isinstance(value, RawArray):
                key.append(_FROM_HOST)
                host = True
            else:
                key.append(value.ptr if value.strides == slot.target.strides else _STRIDED)
        return tuple(key), host

    def _graph(self, key: tuple[int, ...], entering: Sequence[Any], half: int) -> Any:
        """A new graph with the copies of inputs, or the graph without them.

        A new graph is made when a key is seen again, since a new address may never repeat. Updates
        come last in a graph, so an argument that overlaps with a storage they write is copied.
        """
        again = key in self.seen or all(at == _FROM_HOST for at in key[1:])
        again = again and not self._is_written(entering)
        if len(self.graphs) < self.max_graphs and again and _STRIDED not in key:
            try:
                self.graphs[key] = self._with_copies(entering, half)
                return self.graphs[key]
            except CaptureFailed:
                self.max_graphs = 0
        if len(self.seen) < _MAX_SEEN_KEYS:
            self.seen.add(key)
        if self.graph is None:
            self.graph = self._without_copies()
        return self.graph

    def _is_written(self, entering: Sequence[Any]) -> bool:
        """Whether an argument overlaps with memory that updates write."""
        arguments = [entering[s.index] for s in self.slots]
        extents = [a.extent for a in arguments if isinstance(a, RawArray) and a.ptr]
        return any(a < d and c < b for a, b in extents for c, d in self.written)

    def _without_copies(self) -> Any:
        with self.device.memory.keeping() as inside:
            graph = self.device.capture(lambda: self._enqueue(self.values))
        graph.separate_launches = self.large
        self.kept += inside
        return graph

    def _with_copies(self, entering: Sequence[Any], half: int) -> Any:
        """A graph that copies inputs from their current addresses, or reads them in place."""
        values = dict(self.values)
        copied = [s for s in self.slots if not s.read_in_place(entering[s.index], values)]

        def enqueue() -> None:
            small = [(s, s.small_copy(entering[s.index], half)) for s in copied]
            copy_bytes(self.device.env(), [c for _, c in small if c is not None])
            for slot, copy in small:
                if copy is None:
                    slot.fill(entering[slot.index], half)
            self._enqueue(values)

        with self.device.memory.keeping() as inside:
            graph = self.device.capture(enqueue)
        graph.separate_launches = self.large
        self.kept += inside
        return graph

    @property
    def nodes(self) -> int:
        """The number of kernels and copies of a call."""
        return int(next(g for g in (*self.graphs.values(), self.graph) if g is not None).nodes)

    @staticmethod
    def _result(v: Variable, fixed: object, values: Values) -> Any:
        """A result that the graph does not copy to the host."""
        if fixed is not None:
            return fixed
        value = values[v]
        return value.finish() if isinstance(value, PendingCopy) else value

    def __del__(self) -> None:
        # Pinned memory must not be reused while the device still reads it.
        with contextlib.suppress(Exception):
            if self.in_flight is not None:
                self.in_flight.finish()
