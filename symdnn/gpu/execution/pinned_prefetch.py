"""Arrays of the host that go to a device again and again, from a thread beside the computing one.

Each slot has pinned memory and a place on the device for every array of an item. A thread writes
the pinned memory without holding the device; only the copy is enqueued under its lock, on the
compute stream: behind what was launched before, and so behind the work that read the slot's last
item. Addresses come again, so a captured plan reads its arguments where they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from symdnn.gpu.device.array import RawArray
from symdnn.gpu.execution.runtime import CudaRuntime, runtime
from symdnn.graph.type import TensorType

__all__ = ["Staging"]

_MOST_SHAPES = 16


class Staging:
    """Slots for items of device ``index``. Raises ``CudaUnavailable`` where it can't be used."""

    def __init__(self, index: int = 0) -> None:
        self._runtime: CudaRuntime = runtime(index)
        self._places: dict[tuple[int, int], _Place] = {}

    def put(self, slot: int, arrays: Sequence[Any]) -> list[Any]:
        """Enqueue copies of ``arrays`` to ``slot``; they are there for all work enqueued later.

        Returns arrays on the device, as users know them, that hold until the slot is used again.
        The caller sees to it that work on the slot's last arrays was enqueued before.
        """
        rt, given = self._runtime, [np.ascontiguousarray(a) for a in arrays]
        with rt.context.current():
            places = [self._place(slot, i, a.nbytes) for i, a in enumerate(given)]
        for place, array in zip(places, given, strict=True):
            # Without the device, which others may use meanwhile; its context stays the thread's.
            place.wait()
            place.fill(array)
        with rt.context.current():
            return [p.send(a.shape, a.dtype.name) for p, a in zip(places, given, strict=True)]

    def _place(self, slot: int, index: int, nbytes: int) -> _Place:
        place = self._places.get((slot, index))
        if place is None or place.nbytes < nbytes:
            place = self._places[slot, index] = _Place(self._runtime, nbytes)
        return place

    def close(self) -> None:
        """Give the memory back, once the copies from it are done."""
        with self._runtime.context.current():
            for place in self._places.values():
                place.wait()
            self._places.clear()


class _Place:
    """Memory for one array: pinned on the host, and as much on the device."""

    def __init__(self, rt: CudaRuntime, nbytes: int) -> None:
        self.rt, self.nbytes = rt, nbytes
        self.target = rt.memory.empty((nbytes,), "uint8")
        self.pinned: Any = rt.memory.pinned(nbytes) if nbytes else None
        self.event = rt.queue.event()
        #: What was handed out by shape: the same objects again, which functions then know.
        self.shown: dict[Any, Any] = {}

    def wait(self) -> None:
        """Wait for the last copy from here."""
        self.event.wait()

    def fill(self, array: Any) -> None:
        """Write the pinned memory."""
        if array.nbytes:
            np.copyto(self.pinned[: array.nbytes], array.reshape(-1).view(np.uint8))

    def send(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Enqueue the copy; the array that it makes."""
        key = shape, dtype
        if key not in self.shown:
            if len(self.shown) >= _MOST_SHAPES:
                self.shown.clear()
            name = TensorType(dtype, shape).dtype
            array = RawArray(self.target.ptr, shape, name, (), self.target.owner)
            self.shown[key] = array.nbytes, self.rt.lend(array)
        nbytes, shown = self.shown[key]
        if nbytes:
            self.rt.queue.copy_in(self.target.ptr, int(self.pinned.ctypes.data), nbytes)
            self.event.record()
        return shown
