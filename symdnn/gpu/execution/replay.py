"""A captured plan: fixed places for all that enters and leaves, and one graph between them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from symdnn.gpu.device.array import ALIGNMENT, RawArray
from symdnn.gpu.device.capture import CaptureFailed
from symdnn.gpu.device.memory import PendingCopy
from symdnn.gpu.execution.batched_updates import copy_bytes
from symdnn.gpu.execution.run_ahead import Ahead
from symdnn.gpu.kernels.copy import strided_copy
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Variable
from symdnn.ops.vendor.transfer import GpuFromHost

if TYPE_CHECKING:
    from symdnn.gpu.execution.plan import CudaPlan
    from symdnn.gpu.execution.runtime import CudaRuntime

__all__ = ["Replay"]

_HOST, _GAPS = -1, -2
_SMALL = 1 << 20  # bytes that a kernel copies from and to the host as fast as the copy engine
#: From so many bytes on kernels take longer than the host needs to launch them.
_LARGE = 64 << 20
_MOST_GRAPHS = 20
_MOST_MET = 256
#: Calls between two events, if what they read is no more than so many bytes in all.
_MOST_AHEAD, _HELD = 16, 4 << 20


class Pinned:
    """Memory of the host, as an array, that copies to and from the device need not stage."""

    def __init__(self, rt: CudaRuntime, shape: tuple[int, ...], dtype: str) -> None:
        self.array: Any = np.empty(shape, TensorType(dtype).numpy)
        self.nbytes, self.address = int(self.array.nbytes), 0
        if self.nbytes:
            raw = rt.memory.pinned(self.nbytes)
            self.address = int(raw.ctypes.data)
            self.array = raw.view(self.array.dtype).reshape(shape)


class Place:
    """Where an input is copied to, by its index among what enters.

    ``views`` are the value there and what shares its memory: ``(variable, view)``. They may as well
    be in the memory of an array on the device. There are none where the place itself is a result.
    """

    def __init__(self, rt: CudaRuntime, index: int, target: RawArray, views: Any) -> None:
        self.rt, self.index, self.target, self.views = rt, index, target, views
        self.staged: list[Pinned | None] = [None, None]

    def lend(self, value: Any, values: dict[Variable, Any]) -> bool:
        """Let the graph read ``value`` where it is; False where it has to be copied."""
        if not (isinstance(value, RawArray) and self.views) or value.ptr % ALIGNMENT:
            return False
        for v, view in self.views:
            at = value.ptr + view.offset
            values[v] = RawArray(at, view.shape, value.dtype, view.strides)
        return True

    def stage(self, value: Any, turn: int) -> None:
        """Copy a value of the host to pinned memory."""
        staged = self.staged[turn]
        if staged is None:
            staged = Pinned(self.rt, self.target.shape, self.target.dtype)
            self.staged[turn] = staged
        np.copyto(staged.array, value)

    def copy_of(self, value: Any, turn: int) -> tuple[int, int, int] | None:
        """A small copy from pinned memory: target, source, bytes."""
        staged = self.staged[turn]
        if isinstance(value, RawArray) or staged is None or staged.nbytes > _SMALL:
            return None
        return self.target.ptr, staged.address, staged.nbytes

    def fill(self, value: Any, turn: int) -> None:
        """Enqueue the copy to the place, from the device or from pinned memory."""
        target, staged = self.target, self.staged[turn]
        if not isinstance(value, RawArray):
            if staged is not None and staged.nbytes:
                self.rt.queue.copy_in(target.ptr, staged.address, staged.nbytes)
        elif value.contiguous:
            if value.nbytes:
                self.rt.queue.copy(target.ptr, value.ptr, value.nbytes)
        else:
            strided_copy(self.rt.env(), value, target)


class Replay:
    """The middle of a plan as a graph, between the copies of what enters and of what leaves.

    If a result goes to the host, a call waits and takes it from pinned memory. A call without such
    results does not wait, except for earlier ones (:class:`Ahead`): there are two sets of pinned
    memory for what enters, and what a call reads is kept until it is done. Copies from pinned
    memory are part of the graph. Arrays on the device that are met again get a graph that reads
    them where they are; others are copied to their places before.
    """

    def __init__(self, plan: CudaPlan, entering: Sequence[Any]) -> None:
        self.plan, self.rt = plan, plan.rt
        self.arena_bytes = plan.memory.arena_bytes
        self.inputs: tuple[Variable, ...] = plan.spec.segment.inputs
        self.values = plan.values(entering)
        found = {id(v): v.nbytes for v in self.values.values() if isinstance(v, RawArray)}
        self.large = sum(found.values()) >= _LARGE
        self.results: dict[Variable, Pinned] = {}
        #: Graphs with the copies of inputs, by where those come from; and what was met once.
        self.graphs: dict[Any, Any] = {}
        self.met: set[Any] = set()
        with self.rt.memory.keeping() as self.kept:
            plan.make_leaving(self.values)
            self._find_places(entering)
            self._pin_results()
            values = self._given(entering)
            plan.run_steps(self.head, values)  # outside of the graph: its results are remembered
            self.waits = bool(plan.outs) or any(isinstance(v, PendingCopy) for v in values.values())
            self.values = {k: v for k, v in values.items() if not isinstance(v, PendingCopy)}
            from_host = all(not isinstance(entering[p.index], RawArray) for p in self.places)
            #: The graph without copies of inputs, once it was needed.
            self.graph: Any = None
            if not (self.places and from_host) or self.head:
                self.graph = self._bare()
            else:  # capture fails now or never
                for place in self.places:
                    place.stage(entering[place.index], 0)
                self.graphs[self._key(entering)[0]] = self._with_copies(entering, 0)
        left = dict(self.values)
        plan.settle(left)
        self.left = [(self.results.get(v), left.get(v), v) for v in plan.spec.segment.outputs]
        for k in {p.index for p in self.places} - plan.moved:
            del self.values[self.inputs[k]]  # the arguments of this call
        self.most = _MOST_GRAPHS if self.places and self._may_repeat() and not self.head else 0
        self.written = plan.written(entering)
        self.reports = plan.reports
        self.ahead = None if self.waits else Ahead(self.rt.queue, self._most_ahead())
        #: What leaves, where that is the same arrays each time.
        self.fixed: list[Any] | None = None
        if all(pinned is None and fixed is not None for pinned, fixed, _ in self.left):
            self.fixed = [fixed for _, fixed, _ in self.left]

    def _most_ahead(self) -> int:
        """Calls in half of what may be under way: few of large arrays, which are kept meanwhile.

        A call that may find an error is seldom far ahead of the one that raises it.
        """
        if self.reports:
            return 1
        held = sum(p.target.nbytes for p in self.places)
        return max(1, min(_MOST_AHEAD, _HELD // max(held, 1)))

    def _may_repeat(self) -> bool:
        """Whether further graphs may make what kernels allocate themselves again: a little, and
        nothing that leaves."""
        views = self.plan.memory.views
        made = {v for v, view in views.items() if view.buffer.kind == "made"}
        return not made or (self.nbytes <= _SMALL and made.isdisjoint(self.plan.memory.leaving))

    def _find_places(self, entering: Sequence[Any]) -> None:
        """Which inputs are copied by a plain copy, and which steps of the head are left."""
        at = {v: k for k, v in enumerate(self.inputs)}
        self.places: list[Place] = []
        self.head = []
        for step in self.plan.head:
            k = at.get(step.node.inputs[0]) if step.node.inputs else None
            if isinstance(step.node.op, GpuFromHost) and k is not None:
                v = step.node.outputs[0]
                views = [] if v in self.plan.memory.leaving else self.plan.sharing(v)
                self.places.append(Place(self.rt, k, self.values[v], views))
            else:
                self.head.append(step)
        for k in self.plan.moved:
            target = self.rt.memory.empty(entering[k].shape, entering[k].dtype)
            self.values[self.inputs[k]] = target
            views = [(self.inputs[k], self.plan.memory.views[self.inputs[k]])]
            self.places.append(Place(self.rt, k, target, views))

    def _pin_results(self) -> None:
        for node in self.plan.outs:
            v = node.inputs[0]
            view = self.plan.memory.views[v]
            self.results[node.outputs[0]] = Pinned(self.rt, view.shape, v.type.dtype)

    def _enqueue(self, values: dict[Variable, Any]) -> None:
        """What every graph has."""
        plan, queue = self.plan, self.rt.queue
        plan.run_middle(values)
        small: list[tuple[int, int, int]] = []
        for node in plan.outs:
            source = plan.operand(node, 0, node.inputs[0], values)
            pinned = self.results[node.outputs[0]]
            if pinned.nbytes:
                source = plan.dense(source, source.contiguous)
            if pinned.nbytes <= _SMALL:
                small.append((pinned.address, source.ptr, pinned.nbytes))
            else:
                queue.copy_out(pinned.address, source.ptr, pinned.nbytes)
        if plan.reports:
            small.append(self.rt.word_copy())
        copy_bytes(self.rt.env(), small)

    def _given(self, entering: Sequence[Any]) -> dict[Variable, Any]:
        """All values before the graph runs: those that never change, and those of this call."""
        values = dict(self.values)
        moved = self.plan.moved
        values.update(
            (v, a) for k, (v, a) in enumerate(zip(self.inputs, entering)) if k not in moved
        )
        return values

    @property
    def nbytes(self) -> int:
        """Memory on the device that only this graph uses."""
        return sum(int(getattr(owner, "size", 0)) for owner in self.kept)

    def run(self, entering: Sequence[Any], owners: Any = None) -> list[Any]:
        """What leaves the segment. Raises what a kernel found wrong with the data.

        ``owners`` keep the memory of arrays on the device alive that do not do so themselves.
        """
        if self.rt.busy:
            return self.rt.aside(lambda: self.run(entering, owners))
        self.rt.arena.reserve(self.arena_bytes)
        key, host = self._key(entering)
        ahead, turn = self.ahead, 0
        if ahead is not None:
            if ahead.begin((entering, owners), host):  # which stay until they were copied
                self.rt.look()
            turn = ahead.half
        if host:
            key = (turn, *key[1:])
            self._stage(entering, turn)
        graph = self.graphs.get(key)
        values = self.values
        if graph is None:
            graph = self._graph(key, entering, turn)
            if graph is self.graph:
                for place in self.places:
                    place.fill(entering[place.index], turn)
                if self.head:
                    values = self._given(entering)
                    self.plan.run_steps(self.head, values)
        graph.launch()
        if ahead is None:
            self.rt.memory.synchronize()
            self.rt.look()
        else:
            ahead.end()
            self.rt.unread |= self.reports
        if self.fixed is not None:
            return self.fixed.copy()
        return [
            pinned.array.copy() if pinned is not None else self._of(v, fixed, values)
            for pinned, fixed, v in self.left
        ]

    def _stage(self, entering: Sequence[Any], turn: int) -> None:
        for place in self.places:
            value = entering[place.index]
            if not isinstance(value, RawArray):
                place.stage(value, turn)

    def _key(self, entering: Sequence[Any]) -> tuple[tuple[int, ...], bool]:
        """(where inputs come from, whether any comes from the host): the set of pinned memory, to
        be filled in where there is a choice, then addresses of arrays without gaps."""
        key, host = [0], False
        for place in self.places:
            value = entering[place.index]
            if not isinstance(value, RawArray):
                key.append(_HOST)
                host = True
            else:
                key.append(value.ptr if value.strides == place.target.strides else _GAPS)
        return tuple(key), host

    def _graph(self, key: tuple[int, ...], entering: Sequence[Any], turn: int) -> Any:
        """A new graph with the copies of inputs, or the one without them.

        An address that is met for the first time may never come again. Updates come last, so what
        lies where they write is copied before.
        """
        again = key in self.met or all(at == _HOST for at in key[1:])
        again = again and not self._is_written(entering)
        if len(self.graphs) < self.most and again and _GAPS not in key:
            try:
                self.graphs[key] = self._with_copies(entering, turn)
                return self.graphs[key]
            except CaptureFailed:
                self.most = 0
        if len(self.met) < _MOST_MET:
            self.met.add(key)
        if self.graph is None:
            self.graph = self._bare()
        return self.graph

    def _is_written(self, entering: Sequence[Any]) -> bool:
        """Whether an argument lies where new values of shared variables are written."""
        given = [entering[p.index] for p in self.places]
        extents = [a.extent for a in given if isinstance(a, RawArray) and a.ptr]
        return any(a < d and c < b for a, b in extents for c, d in self.written)

    def _bare(self) -> Any:
        with self.rt.memory.keeping() as inside:
            graph = self.rt.capture(lambda: self._enqueue(self.values))
        graph.separate_launches = self.large
        self.kept += inside
        return graph

    def _with_copies(self, entering: Sequence[Any], turn: int) -> Any:
        """A graph that copies inputs from where they are now, or reads them there."""
        values = dict(self.values)
        copied = [p for p in self.places if not p.lend(entering[p.index], values)]

        def enqueue() -> None:
            copies = [c for p in copied if (c := p.copy_of(entering[p.index], turn)) is not None]
            copy_bytes(self.rt.env(), copies)
            for place in copied:
                if place.copy_of(entering[place.index], turn) is None:
                    place.fill(entering[place.index], turn)
            self._enqueue(values)

        with self.rt.memory.keeping() as inside:
            graph = self.rt.capture(enqueue)
        graph.separate_launches = self.large
        self.kept += inside
        return graph

    @property
    def nodes(self) -> int:
        """How many kernels and copies a step launches."""
        return int(next(g for g in (*self.graphs.values(), self.graph) if g is not None).nodes)

    @staticmethod
    def _of(v: Variable, fixed: Any, values: dict[Variable, Any]) -> Any:
        """A result that is no copy from the graph: it stays on the device, or came before."""
        if fixed is not None:
            return fixed
        value = values[v]
        return value.finish() if isinstance(value, PendingCopy) else value

    def __del__(self) -> None:
        # Pinned memory must not be used for something else while the device still reads it.
        with contextlib.suppress(Exception):
            if self.ahead is not None:
                self.ahead.finish()
