"""The CUDA context: the primary context and one compute stream of each device."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from symdnn.config import config
from symdnn.disk import overlay
from symdnn.errors import CudaUnavailable
from symdnn.gpu.binding.libcuda import Device, driver
from symdnn.gpu.device.array import RawArray
from symdnn.gpu.device.driver_api import (
    NON_BLOCKING,
    CudaError,
    Stream,
    bindings,
    checked,
    driver_api,
    is_done,
)
from symdnn.gpu.device.error_codes import CANCELLED, TICKET_COUNT, TICKETS_AT
from symdnn.gpu.device.side_stream import SideStream
from symdnn.graph.place import Place
from symdnn.graph.runtime import COMPILE_CLOCK

__all__ = [
    "Context",
    "CudaUnavailable",
    "context",
    "existing_context",
    "most_cluster_blocks",
    "most_shared_bytes",
]

#: Shared memory that every kernel may use; for more the driver must be told before the launch.
_DEFAULT_SHARED_BYTES = 48 * 1024
#: The first driver that captures early launches into graphs.
_EARLY_DRIVER = (12, 4)
_early_launch = config.reader("gpu.early_launch")

#: Seconds that cancelled work gets to end.
_CANCEL_S = 5.0

#: The environment variable that cuBLAS reads for a new handle: eight workspaces of 4 MiB each.
_ONE_WORKSPACE_SIZE = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


class Context:
    """Device ``index``: its primary context, stream, loaded modules, library handles."""

    def __init__(self, index: int) -> None:
        self._api = driver_api()
        self._driver: Any = bindings()
        self._current: Callable[[], Any] = self._driver.cuCtxGetCurrent
        self.index = index
        self.place = Place("cuda", index)
        self._process = _forks[0]
        self.lock = threading.RLock()
        self._device_facts = _device_facts(index)
        self._primary = self._api.primary(index)
        self._handle = self._primary.handle
        self._modules: dict[tuple[Any, ...], Any] = {}
        self._functions: dict[tuple[Any, ...], Any] = {}
        #: Ids of the functions that wait for the kernel before them, so that they may start early.
        self._waiting: set[int] = set()
        #: Whether launches are captured into a graph, in which they may be early.
        self.captures = False
        self._handles: dict[str, int] = {}
        #: The number of our kernels that were enqueued.
        self.launched = 0
        self._side: SideStream | None = None
        #: How to wait for the device, in place of the driver's way: until the function it is given
        #: says that it is done. Programs of several ranks look after each other meanwhile.
        self.poll: Callable[[Callable[[], bool]], None] | None = None
        #: Called at the end of the process, with the context current.
        self.at_exit: list[Callable[[], None]] = []
        if str(config.deterministic) == "more":
            os.environ.setdefault(*_ONE_WORKSPACE_SIZE)  # before any library reads it
        with self.current():
            self._stream = self._api.stream()
            self.stream = int(self._stream.handle)
            words = TICKETS_AT // 4 + TICKET_COUNT
            self.error_word = int(checked(self._driver.cuMemAlloc(4 * words)))
            checked(self._driver.cuMemsetD32(self.error_word, 0, words))

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Lock the device, with its context current in this thread. Reentrant.

        No Ctrl-C between two steps loses the lock: it goes at the latest with the traceback.
        """
        with self.lock:
            pushed = self.enter()
            try:
                yield
            finally:
                self.leave(pushed)

    def enter(self) -> bool:
        """What :meth:`current` does with the lock held; the result is for :meth:`leave`."""
        if self._process != _forks[0]:
            raise CudaUnavailable(
                "CUDA was used before this process was forked, and a context does not survive a "
                "fork. Start workers with the 'spawn' method, or use the GPU in the child only"
            )
        pushed = self._make_current()
        _thread.held.append(self)
        return pushed

    def leave(self, pushed: bool) -> None:
        """The end of :meth:`enter`."""
        _thread.held.pop()
        if pushed:
            self._primary.pop()

    @property
    def is_locked(self) -> bool:
        """Whether this thread holds its lock."""
        return bool(self.lock._is_owned())  # type: ignore[attr-defined]

    def _make_current(self) -> bool:
        """Make the context current. Returns whether it has to be popped afterwards.

        In a thread without a context it stays current, so that later calls find it. In a thread
        with another context it is popped, and that one is current again.
        """
        now = int(self._current()[1])
        first = self.index not in _thread.kept
        ours = now == self._handle
        if ours and not first:
            return False
        self._primary.push()
        if first and (ours or now == 0):
            _thread.kept[self.index] = _Attachment(self._primary)
            return False
        return True

    @property
    def capability(self) -> tuple[int, int]:
        """Compute capability."""
        return self._device_facts.compute_capability

    @property
    def name(self) -> str:
        """The card's name."""
        return self._device_facts.name

    @property
    def runtime(self) -> str:
        """The runtime that makes the driver's calls: ``PyCUDA`` or ``cuda-bindings``."""
        return self._api.name

    def total_memory(self) -> int:
        """Bytes on the card."""
        return self._device_facts.memory_bytes

    def synchronize(self) -> None:
        """Wait for everything enqueued so far."""
        if self.poll is None:
            result = self._driver.cuStreamSynchronize(self.stream)
            if result[0]:
                checked(result)
        else:
            self.poll(lambda: is_done(self._driver.cuStreamQuery(self.stream)))

    def cancel(self, end: Callable[[], None]) -> None:
        """Call ``end``, which ends work that will not end by itself, and let updates of shared
        variables behind it write nothing: the error word is set until all that was enqueued is done
        (for some seconds at most)."""
        driver, words = self._driver, 4
        other = checked(driver.cuStreamCreate(NON_BLOCKING))
        checked(driver.cuMemsetD32Async(self.error_word, CANCELLED, 1, other))
        checked(driver.cuStreamSynchronize(other))
        end()
        limit = time.monotonic() + _CANCEL_S
        while not is_done(driver.cuStreamQuery(self.stream)) and time.monotonic() < limit:
            time.sleep(1e-3)
        checked(driver.cuMemsetD32Async(self.error_word, 0, words, self.stream))
        checked(driver.cuStreamDestroy(other))

    def wait_for(self, stream: int | None) -> None:
        """Let work enqueued from now on wait for another stream; None waits for nothing."""
        if stream is not None:
            self._enqueue_wait(stream, self.stream)

    def make_wait(self, stream: int) -> None:
        """Let later work of another stream wait for all work enqueued here so far."""
        self._enqueue_wait(self.stream, stream)

    def _enqueue_wait(self, first: int, then: int) -> None:
        driver = self._driver
        event = checked(driver.cuEventCreate(2))  # CU_EVENT_DISABLE_TIMING
        checked(driver.cuEventRecord(event, first))
        checked(driver.cuStreamWaitEvent(then, event, 0))
        checked(driver.cuEventDestroy(event))

    @property
    def side(self) -> SideStream:
        """The second stream, made when it is first asked for."""
        if self._side is None:
            self._side = SideStream(self.stream)
        return self._side

    @contextlib.contextmanager
    def nested(self) -> Iterator[None]:
        """The context of a call within another one (:meth:`SideStream.apart`)."""
        with contextlib.nullcontext() if self._side is None else self._side.apart():
            yield

    def function(self, source: str, name: str, options: Sequence[str] = ()) -> Any:
        """Kernel ``name`` of CUDA C ``source``, compiled by NVRTC and loaded once."""
        key = (source, tuple(options))
        if key not in self._modules:
            with COMPILE_CLOCK.running():
                self._modules[key] = self._module(source, options)
        elif overlay.is_noting():
            from symdnn.gpu.binding.nvrtc import compile_cubin

            compile_cubin(source, self.capability, options)  # the loaded module stays
        found = self._functions.get((key, name))
        if found is None:
            found = self._functions[key, name] = self._api.function(self._modules[key], name)
            from symdnn.gpu.binding.nvrtc import waiting

            if self._launches_early and waiting(source, self.capability) != source:
                self._waiting.add(id(found))
        return found

    @property
    def _launches_early(self) -> bool:
        """Whether the driver captures early launches."""
        return (driver().version or (0, 0)) >= _EARLY_DRIVER

    def begin(self, sources: Iterable[str]) -> None:
        """Let threads compile the sources that are not loaded, which will likely be asked for."""
        from symdnn.gpu.binding.nvrtc import begin_cubins

        missing = [s for s in sources if (s, ()) not in self._modules]
        if missing:
            begin_cubins(missing, self.capability)

    def _module(self, source: str, options: Sequence[str]) -> Any:
        """A loaded module. A cubin of the cache that the driver refuses is compiled again."""
        from symdnn.gpu.binding.nvrtc import compile_cubin, forget_cubin

        request = (source, self.capability, options)
        try:
            return self._api.module(compile_cubin(*request))
        except CudaError:
            forget_cubin(*request)
            return self._api.module(compile_cubin(*request))

    def launch(
        self, function: Any, grid: Sequence[int], block: Sequence[int], shared: int, args: Any,
        stream: int | None = None,
    ) -> None:  # fmt: skip
        """Enqueue a kernel, on another stream if one is given; an int in ``args`` is a pointer."""
        packed = [np.intp(a) if isinstance(a, int) else _as_numpy(a) for a in args]
        self.launched += 1
        if shared > _DEFAULT_SHARED_BYTES:
            self._api.allow_shared(function, shared)
        if stream is not None:
            self._api.launch(function, _xyz(grid), _xyz(block), shared, packed, Stream(stream))
            return
        early = self.captures and id(function) in self._waiting and _early_launch() == "auto"
        more = {"early": True} if early else {}
        self._api.launch(function, _xyz(grid), _xyz(block), shared, packed, self._stream, **more)

    def zero(self, ptr: int, nbytes: int) -> None:
        """Enqueue setting bytes to zero."""
        if nbytes:
            checked(self._driver.cuMemsetD8Async(ptr, 0, nbytes, self.stream))

    def for_users(self, array: RawArray, memory: Any) -> Any:
        """The array for users: a ``GPUArray``, or a ``DeviceArray`` without PyCUDA."""
        return self._api.for_users(array, memory)

    @property
    def cudnn(self) -> int:
        """The device's ``cudnnHandle_t`` on the compute stream, created on first use."""
        return self._cudnn("cudnn")

    @property
    def cudnn_deterministic(self) -> int:
        """A second handle, for recurrent layers whose bits must be the same each time.

        cuDNN runs their GEMM by cuBLAS on several streams. By default cuBLAS has workspaces of two
        sizes, and uses another kernel when only a small one is free. With workspaces of one size
        it always uses the same kernel (NVIDIA's release notes of cuDNN, "Limitations").
        """
        os.environ.setdefault(*_ONE_WORKSPACE_SIZE)
        return self._cudnn("cudnn of one buffer size")

    def _cudnn(self, name: str) -> int:
        if name not in self._handles:
            from symdnn.gpu import libcudnn

            handle = libcudnn.cudnnCreate()
            libcudnn.cudnnSetStream(handle, self.stream)
            self._handles[name] = handle
        return self._handles[name]

    @property
    def cublaslt(self) -> int:
        """The device's ``cublasLtHandle_t``, created on first use."""
        if "cublaslt" not in self._handles:
            from symdnn.gpu.binding import libcublaslt

            self._handles["cublaslt"] = libcublaslt.create()
        return self._handles["cublaslt"]


def _xyz(sizes: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = (*sizes, 1, 1)[:3]
    return int(x), int(y), int(z)


def _as_numpy(value: object) -> Any:
    if isinstance(value, ctypes._SimpleCData):
        return np.dtype(type(value)).type(value.value)
    return value


def _device_facts(index: int) -> Device:
    """The driver's description of the card."""
    found = driver()
    if not 0 <= index < len(found.devices):
        there = found.problem or f"the driver knows {len(found.devices)}"
        raise CudaUnavailable(f"there is no GPU {index}: {there}")
    return found.devices[index]


_contexts: dict[int, Context] = {}
_contexts_lock = threading.Lock()
_forks = [0]


def _after_fork() -> None:
    _forks[0] += 1


os.register_at_fork(after_in_child=_after_fork)


class _ThreadState(threading.local):
    """The state of each thread."""

    def __init__(self) -> None:
        #: The contexts that it has locked, the current one last.
        self.held: list[Context] = []
        #: The contexts that stay current in it, by device.
        self.kept: dict[int, _Attachment] = {}


_thread = _ThreadState()


class _Attachment:
    """A context that stays current in a thread until the thread ends.

    PyCUDA aborts the process if a thread ends with contexts on its stack. Python deletes a thread's
    local values, including this one, before that. cuda-bindings would not need it.
    """

    def __init__(self, primary: Any) -> None:
        self._primary, self._thread = primary, threading.get_ident()

    def detach(self) -> None:
        """Pop the context from the thread's stack."""
        primary, self._primary = self._primary, None
        if primary is not None and threading.get_ident() == self._thread:
            with contextlib.suppress(Exception):
                primary.pop()

    __del__ = detach


def existing_context() -> Context | None:
    """The context that this thread has locked, else the first that was made; None without any.

    It makes none: None tells kernels that a plan is for a described device.
    """
    held = _thread.held
    while held and not held[-1].is_locked:  # Ctrl-C came as it was left
        held.pop()
    return held[-1] if held else next(iter(_contexts.values()), None)


def most_shared_bytes() -> int:
    """Bytes of shared memory that a block may ask for; without a device, on most of them.

    Some KB less than the tables of the CUDA C++ Programming Guide say, for what kernels declare.
    """
    found = existing_context()
    if found is None:
        return 96 << 10
    if found.capability[0] in (9, 10):
        return 224 << 10
    if found.capability in ((8, 0), (8, 7)):
        return 160 << 10
    return (96 if found.capability >= (8, 0) else 60) << 10


def most_cluster_blocks() -> int:
    """The cluster size that every GPU with clusters supports; 1 without them, or a device."""
    found = existing_context()
    return 8 if found is not None and found.capability[0] in (9, 10) else 1


def context(index: int = 0) -> Context:
    """The process's context of device ``index``; raises :class:`CudaUnavailable`."""
    with _contexts_lock:
        if index not in _contexts:
            _contexts[index] = Context(index)
        return _contexts[index]


@atexit.register
def _detach() -> None:
    """Free the pools, and leave the main thread's stack of contexts empty."""
    for ctx in _contexts.values():
        with contextlib.suppress(Exception), ctx.current():
            for last in ctx.at_exit:
                last()
    for attachment in _thread.kept.values():
        attachment.detach()
