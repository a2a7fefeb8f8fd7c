"""A captured plan: fixed places for all that enters and leaves, and one graph between them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from symdnn.gpu.array import DeviceArray
from symdnn.gpu.k_copy import strided_copy
from symdnn.gpu.memory import PendingCopy
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Variable
from symdnn.ops.transfer import GpuFromHost

if TYPE_CHECKING:
    from symdnn.gpu.plan import CudaPlan
    from symdnn.gpu.runtime import CudaRuntime

__all__ = ["Replay"]


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
    """Where an input is copied to, by its index among what enters."""

    def __init__(self, index: int, target: DeviceArray) -> None:
        self.index, self.target = index, target
        self.staged: list[Pinned | None] = [None, None]

    def fill(self, rt: CudaRuntime, value: Any, turn: int) -> None:
        """Enqueue the copy, from the device or from pinned memory."""
        target = self.target
        if isinstance(value, DeviceArray):
            if value.contiguous:
                rt.queue.copy(target.ptr, value.ptr, value.nbytes)
            else:
                strided_copy(rt.env(), value, target)
            return
        staged = self.staged[turn]
        if staged is None:
            staged = self.staged[turn] = Pinned(rt, target.shape, target.dtype)
        if staged.nbytes:
            np.copyto(staged.array, value)
            rt.queue.copy_in(target.ptr, staged.address, staged.nbytes)


class Replay:
    """The middle of a plan as a graph, with the copies to the host behind it.

    Inputs are copied to their places, then the graph is launched, then, if a result goes to the
    host, the call waits and takes results from pinned memory. A call without such results does not
    wait, except for the one before the last: there are two sets of pinned memory for what enters.
    """

    def __init__(self, plan: CudaPlan, entering: Sequence[Any]) -> None:
        self.plan, self.rt = plan, plan.rt
        self.arena_bytes = plan.memory.arena_bytes
        self.inputs: tuple[Variable, ...] = plan.spec.segment.inputs
        self.values = plan.values(entering)
        self.results: dict[Variable, Pinned] = {}
        with self.rt.memory.keeping() as self.kept:
            self._find_places(entering)
            plan.make_leaving(self.values)
            self._pin_results()
            values = self._given(entering)
            plan.run_steps(self.head, values)  # outside of the graph: its results are remembered
            self.waits = bool(plan.outs) or any(isinstance(v, PendingCopy) for v in values.values())
            self.values = {k: v for k, v in values.items() if not isinstance(v, PendingCopy)}
            self.graph = self.rt.capture(self._enqueue)
        plan.settle(self.values)
        self.turn = 0
        self.events = [self.rt.queue.event() for _ in range(0 if self.waits else 2)]
        self.held: list[Any] = [None, None]
        self.reports = plan.reports
        self.left = [
            (self.results.get(v), self.values.get(v), v) for v in plan.spec.segment.outputs
        ]

    def _find_places(self, entering: Sequence[Any]) -> None:
        """Which inputs are copied by a plain copy, and which steps of the head are left."""
        at = {v: k for k, v in enumerate(self.inputs)}
        self.places: list[Place] = []
        self.head = []
        for step in self.plan.head:
            k = at.get(step.node.inputs[0]) if step.node.inputs else None
            if isinstance(step.node.op, GpuFromHost) and k is not None:
                self.places.append(Place(k, self.values[step.node.outputs[0]]))
            else:
                self.head.append(step)
        for k in self.plan.moved:
            target = self.rt.memory.empty(entering[k].shape, entering[k].dtype)
            self.values[self.inputs[k]] = target
            self.places.append(Place(k, target))

    def _pin_results(self) -> None:
        for node in self.plan.outs:
            v = node.inputs[0]
            view = self.plan.memory.views[v]
            self.results[node.outputs[0]] = Pinned(self.rt, view.shape, v.type.dtype)

    def _enqueue(self) -> None:
        """What is captured."""
        plan, queue = self.plan, self.rt.queue
        plan.run_steps(plan.middle, self.values)
        for node in plan.outs:
            source = plan.operand(node, 0, node.inputs[0], self.values)
            pinned = self.results[node.outputs[0]]
            if pinned.nbytes:
                source = plan.dense(source, source.contiguous)
                queue.copy_out(pinned.address, source.ptr, pinned.nbytes)
        if plan.reports:
            self.rt.copy_word()

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
        self.rt.arena.reserve(self.arena_bytes)
        turn = self.turn
        if not self.waits:
            turn = self.turn = 1 - turn
            self.events[turn].wait()
            self.rt.look()
            self.held[turn] = entering, owners  # arrays of the user stay until they were copied
        for place in self.places:
            place.fill(self.rt, entering[place.index], turn)
        values = self.values
        if self.head:
            values = self._given(entering)
            self.plan.run_steps(self.head, values)
        self.graph.launch()
        if self.waits:
            self.rt.memory.synchronize()
            self.rt.look()
        else:
            self.events[turn].record()
            self.rt.unread |= self.reports
        return [
            pinned.array.copy() if pinned is not None else self._of(v, fixed, values)
            for pinned, fixed, v in self.left
        ]

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
            for event in self.events:
                event.wait()
