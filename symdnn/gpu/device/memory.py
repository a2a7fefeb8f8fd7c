"""Device memory: a pool for arrays that outlive a call, and pinned memory for copies."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from symdnn.gpu.device.array import ALIGNMENT, RawArray
from symdnn.gpu.device.budget import Budget, OutOfDeviceMemory
from symdnn.gpu.device.capture import CaptureFailed, Queue
from symdnn.gpu.device.context import Context
from symdnn.gpu.device.device_array import DeviceArray
from symdnn.gpu.device.driver_api import bindings, checked
from symdnn.gpu.device.pool import HostBlock, Pool, reusing
from symdnn.graph.type import TensorType, numpy_dtype

_MAX_IN_FLIGHT_BUFFERS = 256
#: The largest array that shares its block with others, which it keeps alive.
_MOST_BESIDE_BYTES = 16 << 10
#: The largest array that is read through the same pinned memory each time.
_FEW_BYTES = 64


class CudaMemory:
    """Buffers of storages, inputs and results; pinned staging for copies to and from the host."""

    def __init__(self, context: Context) -> None:
        driver = bindings()
        self.context = context
        self.place = context.place
        self.queue = Queue(context)
        self._pool = Pool(
            lambda n: int(checked(driver.cuMemAlloc(n))),
            lambda address: checked(driver.cuMemFree(address)),
        )
        self._pinned = Pool(
            lambda n: int(checked(driver.cuMemHostAlloc(n, 0))),
            lambda address: checked(driver.cuMemFreeHost(address)),
            HostBlock,
        )
        context.at_exit += [self._pool.free_held, self._pinned.free_held]
        self.budget = Budget(self._pool, self.place)
        self.budget.reliefs += [self.free_held, self._collect]
        self._in_flight: list[Any] = []
        self._keeping: list[Any] | None = None
        #: Where arrays come from: the pool, or within a capture what :func:`reusing` makes of it.
        self._source = self._pool
        #: During a capture: pinned memory that the graph will copy from at each launch.
        self._graph_staging: list[Any] | None = None
        #: Called before a value is read on the host: raises errors of earlier calls.
        self.before_reading: Callable[[], None] = lambda: None

    def empty(self, shape: tuple[int, ...], dtype: str) -> RawArray:
        """A new array from the pool; its memory returns there when the array is deleted."""
        nbytes = prod(shape) * int(numpy_dtype(dtype).itemsize)
        if nbytes == 0:
            return RawArray(0, shape, dtype)
        owner = self.budget.allocate("an array", nbytes, lambda: self._source.allocate(nbytes))
        self.budget.update_peak()
        if self._keeping is not None and self._source is self._pool:
            self._keeping.append(owner)
        return RawArray(owner.address, shape, dtype, (), owner)

    def beside(self, types: Sequence[tuple[tuple[int, ...], str]]) -> list[RawArray]:
        """New arrays of these shapes and dtypes. Small ones are parts of one block."""
        sizes = [prod(shape) * int(numpy_dtype(dtype).itemsize) for shape, dtype in types]
        places = [0 if 0 < n <= _MOST_BESIDE_BYTES else -1 for n in sizes]
        if places.count(0) < 2:
            return [self.empty(shape, dtype) for shape, dtype in types]
        end = 0
        for i, (place, nbytes) in enumerate(zip(places, sizes)):
            if place == 0:
                places[i], end = end, end + -(-nbytes // ALIGNMENT) * ALIGNMENT
        whole = self.empty((end,), "uint8")
        return [
            self.empty(shape, dtype)
            if place < 0
            else RawArray(whole.ptr + place, shape, dtype, (), whole.owner)
            for place, (shape, dtype) in zip(places, types)
        ]

    def free_held(self) -> None:
        """Return free blocks of the pool to the driver."""
        if self._keeping is None:  # a stream in capture cannot be synchronised
            self.synchronize()
        self._pool.free_held()

    def _collect(self) -> None:
        """Free arrays that only reference cycles keep alive."""
        gc.collect()
        self.free_held()

    def upload(self, array: Any, into: Any) -> RawArray:
        """Copy a host array to the device (:class:`~symdnn.graph.values.storage.DeviceMemory`)."""
        with self.context.current():
            dtype = TensorType(array.dtype, array.shape).dtype
            target = into if into is not None else self.empty(tuple(array.shape), dtype)
            self.copy_in(array, target)
            return target

    def copy_in(self, array: Any, target: RawArray) -> None:
        """Enqueue a host array's copy into ``target``."""
        if target.nbytes == 0:
            return
        staged = self._staged(target.nbytes)
        np.copyto(staged, np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        self.queue.copy_in(target.ptr, int(staged.ctypes.data), target.nbytes)
        self.keep(staged)

    def download(self, buffer: RawArray) -> Any:
        """A fresh host array; waits for it."""
        with self.context.current():
            self.before_reading()
            few = 0 < buffer.nbytes <= _FEW_BYTES and not self.captures_host_values
            copied = self.copy_out(buffer, self._few[: buffer.nbytes] if few else None)
            self.synchronize()
            return copied.finish()

    @cached_property
    def _few(self) -> Any:
        """Pinned memory for a number, which is read at once."""
        return self.pinned(_FEW_BYTES)

    def lend(self, buffer: RawArray) -> Any:
        """The buffer itself, as an array for users."""
        with self.context.current():
            self.before_reading()
            return self.context.for_users(buffer, self)

    def export(self, buffer: RawArray) -> DeviceArray:
        """The buffer itself, as an array with ``__dlpack__``, which PyCUDA's has not."""
        with self.context.current():
            self.before_reading()
        return DeviceArray(buffer, self)

    @contextlib.contextmanager
    def keeping(self, staging: bool = False) -> Iterator[list[Any]]:
        """Collect memory allocated inside, so that a captured graph can keep it alive.

        With ``staging`` it also collects the pinned memory of copies from the host, and memory that
        is free again serves later steps of the graph.
        """
        before = self._keeping, self._graph_staging, self._source
        kept: list[Any] = []
        self._keeping = kept
        self._graph_staging = kept if staging else None
        self._source = reusing(self._pool, kept) if staging else self._pool
        try:
            yield kept
        finally:
            self._keeping, self._graph_staging, self._source = before

    @property
    def captures_host_values(self) -> bool:
        """Whether a capture is under way that keeps the host's current values in the graph."""
        return self._graph_staging is not None

    def keep(self, thing: object) -> None:
        """Keep it alive until the stream is synchronised; in the capture of a loop, as long as the
        graph."""
        (self._in_flight if self._graph_staging is None else self._graph_staging).append(thing)

    def copy_out(self, source: RawArray, staged: Any = None) -> PendingCopy:
        """Enqueue a copy to the host, complete after :meth:`synchronize`.

        ``staged`` is the pinned memory to copy to; None allocates it.
        """
        if source.nbytes == 0:
            staged = None
        else:
            staged = self._staged(source.nbytes) if staged is None else staged
            self.queue.copy_out(int(staged.ctypes.data), source.ptr, source.nbytes)
            self._in_flight.append(staged)
        return PendingCopy(staged, source.shape, TensorType(source.dtype).numpy)

    def copy(self, source: RawArray, target: RawArray) -> None:
        """Enqueue a copy between contiguous device arrays of one size."""
        if source.nbytes:
            self.queue.copy(target.ptr, source.ptr, source.nbytes)

    def synchronize(self) -> None:
        """Wait for the stream; staging memory goes back to its pool."""
        if self.captures_host_values:
            raise CaptureFailed("a value is read on the host")
        self.context.synchronize()
        self._in_flight.clear()

    def pinned(self, nbytes: int) -> Any:
        """Bytes of pinned host memory."""
        try:
            return np.asarray(self._pinned.allocate(nbytes))
        except OutOfDeviceMemory:
            self._pinned.free_held()
            return np.asarray(self._pinned.allocate(nbytes))

    def _staged(self, nbytes: int) -> Any:
        if len(self._in_flight) > _MAX_IN_FLIGHT_BUFFERS and self._graph_staging is None:
            self.synchronize()  # calls without results on the host never synchronise by themselves
        return self.pinned(nbytes)


def memory_of(context: Context) -> CudaMemory:
    """The memory of a device, created on first use with a context."""
    with _memories_lock:
        if context not in _memories:
            _memories[context] = CudaMemory(context)
        return _memories[context]


_memories: dict[Context, CudaMemory] = {}
_memories_lock = threading.Lock()


class PendingCopy:
    """A host array on its way from the device."""

    def __init__(self, staged: Any, shape: tuple[int, ...], dtype: Any) -> None:
        self._staged, self._shape, self._dtype = staged, shape, dtype

    def finish(self) -> Any:
        """The array, in ordinary memory; only after the stream was synchronised."""
        if self._staged is None:
            return np.empty(self._shape, self._dtype)
        return self._staged.view(self._dtype).reshape(self._shape).copy()
