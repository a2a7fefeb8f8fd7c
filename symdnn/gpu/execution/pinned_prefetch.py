"""Prefetch of host arrays to a device by pinned memory, from a thread beside the computing one.

Each slot has pinned memory and device memory for every array of an item. A thread writes the pinned
memory without holding the device's lock. It takes the lock only to enqueue the copy on the compute
stream, after the work that reads the slot's last item. Slots keep their addresses, so that captured
plans can read arguments in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from symdnn.gpu.device.array import RawArray
from symdnn.gpu.execution.runtime import CudaRuntime, runtime
from symdnn.graph.type import TensorType

#: Shapes and dtypes of a slot for which arrays are cached.
_MAX_SHAPES = 16


class PinnedPrefetch:
    """Slots for items on device ``index``. Raises ``CudaUnavailable`` if it can't be used."""

    def __init__(self, index: int = 0) -> None:
        self._runtime: CudaRuntime = runtime(index)
        self._places: dict[tuple[int, int], _Slot] = {}

    def put(self, slot: int, arrays: Sequence[Any]) -> list[Any]:
        """Enqueue copies of ``arrays`` to ``slot``, for all work that is enqueued later.

        Returns arrays on the device for users, which are valid until the slot is used again. The
        caller must have enqueued the work on the slot's last arrays before.
        """
        rt, given = self._runtime, [np.ascontiguousarray(a) for a in arrays]
        with rt.context.current():
            places = [self._place(slot, i, a.nbytes) for i, a in enumerate(given)]
        for place, array in zip(places, given, strict=True):
            # Without the device's lock, so that other threads can use it meanwhile.
            place.wait()
            place.fill(array)
        with rt.context.current():
            return [p.send(a.shape, a.dtype.name) for p, a in zip(places, given, strict=True)]

    def _place(self, slot: int, index: int, nbytes: int) -> _Slot:
        place = self._places.get((slot, index))
        if place is None or place.nbytes < nbytes:
            place = self._places[slot, index] = _Slot(self._runtime, nbytes)
        return place

    def close(self) -> None:
        """Wait for the copies, and free the memory."""
        with self._runtime.context.current():
            for place in self._places.values():
                place.wait()
            self._places.clear()


class _Slot:
    """Memory for one array: pinned on the host, and of the same size on the device."""

    def __init__(self, rt: CudaRuntime, nbytes: int) -> None:
        self.rt, self.nbytes = rt, nbytes
        self.target = rt.memory.empty((nbytes,), "uint8")
        self.pinned: Any = rt.memory.pinned(nbytes) if nbytes else None
        self.event = rt.queue.event()
        #: (nbytes, array for users) by shape and dtype. The same objects are returned again, which
        #: functions recognise.
        self.shown: dict[Any, Any] = {}

    def wait(self) -> None:
        """Wait for the last copy from this slot."""
        self.event.wait()

    def fill(self, array: Any) -> None:
        """Write the pinned memory."""
        if array.nbytes:
            np.copyto(self.pinned[: array.nbytes], array.reshape(-1).view(np.uint8))

    def send(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Enqueue the copy, and return the array on the device."""
        key = shape, dtype
        if key not in self.shown:
            if len(self.shown) >= _MAX_SHAPES:
                self.shown.clear()
            name = TensorType(dtype, shape).dtype
            array = RawArray(self.target.ptr, shape, name, (), self.target.owner)
            self.shown[key] = array.nbytes, self.rt.lend(array)
        nbytes, shown = self.shown[key]
        if nbytes:
            self.rt.queue.copy_in(self.target.ptr, int(self.pinned.ctypes.data), nbytes)
            self.event.record()
        return shown
