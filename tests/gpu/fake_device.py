"""A CUDA runtime on this machine's memory: kernels run by the emulator, graphs by recording.

So plans, capture, replays and updates are tested without a GPU, for programs whose kernels are ours
(no library). Enqueued work runs immediately, except inside of a capture, where it is recorded.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from symdnn.gpu.device.array import RawArray
from symdnn.gpu.device.capture import CaptureFailed
from symdnn.gpu.device.device_array import DeviceArray
from symdnn.gpu.device.error_codes import TICKET_COUNT, TICKETS_AT
from symdnn.gpu.device.memory import CudaMemory, PendingCopy
from symdnn.gpu.execution.runtime import CudaRuntime
from symdnn.graph.place import Place
from symdnn.graph.type import TensorType
from tests.gpu.emulator import AVAILABLE, aligned, library

STEP_SECONDS = 2.0**-10

__all__ = ["FakeRuntime", "fake_device"]


class FakeSide:
    """The second stream: its work runs at once; each arrival must be of work that has begun."""

    def __init__(self) -> None:
        self.keys: set[int] = set()

    def came(self, key: int) -> None:
        self.keys.add(key)

    def arrive(self, key: int) -> None:
        self.keys.remove(key)

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        outer, self.keys = self.keys, set()
        yield
        self.keys = outer


class FakeContext:
    """Records enqueued work during a capture; runs it otherwise."""

    index, stream, capability, name, place = 0, 0, (9, 0), "emulated", Place("cuda")

    def __init__(self) -> None:
        self.word = np.zeros(TICKETS_AT // 4 + TICKET_COUNT, np.int32)
        self.error_word = self.word.ctypes.data
        self.recording: list[Any] | None = None
        self.log: list[str] = []
        self.begun: list[str] = []
        self.asked: list[str] = []
        self.refuse_capture = ""
        self.side = FakeSide()
        self.lock = threading.RLock()

    def current(self) -> Any:
        return self.lock

    def enter(self) -> bool:
        return False

    def leave(self, pushed: bool) -> None:
        assert not pushed

    def enqueue(self, what: str, work: Any) -> None:
        if self.recording is not None:
            self.recording.append((what, work))
        else:
            self.log.append(what)
            work()

    def nested(self) -> Any:
        return self.side.apart()

    def begin(self, sources: Any) -> None:
        self.begun += sources

    def function(self, source: str, name: str, options: Any = ()) -> Any:
        self.asked.append(source)
        return name, library(source, name)

    def launch(
        self, function: Any, grid: Any, block: Any, shared: int, args: Any, stream: Any = None
    ) -> None:
        name, kernel = function
        parameters = np.frombuffer(args[0].tobytes(), np.uint8).copy()
        three = [np.array((*sizes, 1, 1)[:3], np.uint32) for sizes in (grid, block)]

        def work() -> None:
            status = kernel(*(ctypes.c_void_p(a.ctypes.data) for a in (parameters, *three)))
            assert status == 0

        self.enqueue(name, work)

    def zero(self, ptr: int, nbytes: int) -> None:
        self.enqueue("zero", lambda: at(ptr, nbytes).fill(0))

    def wait_for(self, stream: int | None) -> None:
        pass

    make_wait = wait_for

    def for_users(self, array: RawArray, memory: Any) -> DeviceArray:
        return DeviceArray(array, memory)

    def synchronize(self) -> None:
        if self.recording is not None:
            raise RuntimeError("a stream that is captured cannot be waited for")
        self.log.append("wait")


def at(ptr: int, nbytes: int) -> Any:
    """Bytes of this machine's memory."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(ptr))


class Block:
    """A piece of the pool; its contents are undefined."""

    def __init__(self, nbytes: int) -> None:
        self.bytes = aligned(nbytes, 256)
        self.bytes[:] = 0xA5
        self.size, self.address = nbytes, self.bytes.ctypes.data


class FakePool:
    def allocate(self, nbytes: int) -> Block:
        return Block(max(nbytes, 16))


class FakeMemory(CudaMemory):
    def __init__(self, context: FakeContext) -> None:
        self.context, self.place = context, context.place  # type: ignore[assignment]
        self._in_flight, self._keeping, self._graph_staging = [], None, None
        self._pool = self._source = FakePool()  # type: ignore[assignment]
        self.before_reading = lambda: None

    def empty(self, shape: Any, dtype: str) -> RawArray:
        array = RawArray(0, tuple(shape), dtype)
        owner = self._source.allocate(array.nbytes)
        if self._keeping is not None and self._source is self._pool:
            self._keeping.append(owner)
        return RawArray(owner.address, array.shape, dtype, array.strides, owner)

    def free_held(self) -> None:
        """Nothing is held for reuse."""

    def copy_in(self, array: Any, target: RawArray) -> None:
        staged = np.ascontiguousarray(array).reshape(-1).view(np.uint8).copy()
        self._move("copy in", target.ptr, staged.ctypes.data, target.nbytes, staged)

    def copy_out(self, source: RawArray, staged: Any = None) -> PendingCopy:
        staged = np.empty(source.nbytes, np.uint8)
        self._move("copy out", staged.ctypes.data, source.ptr, source.nbytes, staged)
        return PendingCopy(staged, source.shape, TensorType(source.dtype).numpy)

    def copy(self, source: RawArray, target: RawArray) -> None:
        self._move("copy", target.ptr, source.ptr, source.nbytes, None)

    def _move(self, what: str, target: int, source: int, nbytes: int, kept: Any) -> None:
        def work() -> None:
            if nbytes:
                at(target, nbytes)[:] = at(source, nbytes)
            assert kept is None or kept.size >= 0

        self.context.enqueue(what, work)  # type: ignore[attr-defined]

    def pinned(self, nbytes: int) -> Any:
        return aligned(nbytes)


class FakeArena:
    def __init__(self, most: int = 1 << 24) -> None:
        self.memory = aligned(most, 4096)
        self.base, self.nbytes, self.outer_bytes = self.memory.ctypes.data, 0, 0

    def reserve(self, nbytes: int) -> int:
        assert nbytes <= self.memory.size
        self.nbytes = self.needed = max(self.nbytes, nbytes)
        return self.base

    def trim(self) -> None:
        """Addresses stay valid, so that captured graphs continue to work."""
        self.nbytes = self.needed


class FakeGraph:
    def __init__(self, context: FakeContext, enqueue: Any) -> None:
        if context.refuse_capture:
            raise CaptureFailed(context.refuse_capture)
        context.recording = []
        try:
            enqueue()
        except Exception as error:
            raise CaptureFailed(str(error)) from error
        finally:
            self.work, context.recording = context.recording, None
        self.context = context

    @property
    def nodes(self) -> int:
        return len(self.work)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.work]

    def launch(self) -> None:
        self.context.log.append("graph")
        for _, work in self.work:
            work()


class FakeEvent:
    def record(self) -> None:
        pass

    def wait(self) -> None:
        pass


class FakeQueue:
    def __init__(self, memory: FakeMemory) -> None:
        self.memory = memory

    def copy_in(self, target: int, source: int, nbytes: int) -> None:
        self.memory._move("copy in", target, source, nbytes, None)

    def copy_out(self, target: int, source: int, nbytes: int) -> None:
        self.memory._move("copy out", target, source, nbytes, None)

    def copy(self, target: int, source: int, nbytes: int) -> None:
        self.memory._move("copy", target, source, nbytes, None)

    def event(self) -> FakeEvent:
        return FakeEvent()


class FakeRuntime(CudaRuntime):
    """The runtime with every access to a device replaced; ``log`` has the enqueued work."""

    def __init__(self) -> None:
        self.context = FakeContext()  # type: ignore[assignment]
        self.memory = FakeMemory(self.context)  # type: ignore[arg-type]
        self.arena = FakeArena()  # type: ignore[assignment]
        self.queue = FakeQueue(self.memory)  # type: ignore[assignment]
        self._start(np.zeros(4, np.int32))

    def capture(self, enqueue: Any) -> Any:
        return FakeGraph(self.context, enqueue)  # type: ignore[arg-type]

    def seconds_of(self, enqueue: Any) -> float:
        enqueue()
        return STEP_SECONDS

    def known(self, value: Any) -> Any:
        return value if isinstance(value, RawArray) else super().known(value)

    def take_log(self) -> list[str]:
        """The work enqueued since the last call."""
        log, self.context.log = self.context.log, []  # type: ignore[attr-defined]
        return log

    def array(self, value: Any) -> RawArray:
        """A value in the device's memory."""
        return self.memory.upload(np.asarray(value), None)


@pytest.fixture
def fake_device(monkeypatch: Any, own_garbage: None) -> Any:
    """The emulated device as device 0; functions for ``cuda:sm_90`` run on it."""
    if not AVAILABLE:
        pytest.skip("there is no g++ to compile kernels for a CPU")
    import symdnn.gpu.execution.runtime as module

    rt = FakeRuntime()
    monkeypatch.setattr(module, "_runtimes", {0: rt})
    yield rt
    gc.collect()
