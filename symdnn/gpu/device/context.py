"""The CUDA context: PyCUDA's primary context and one compute stream for each device.

The only module, with :mod:`symdnn.gpu.device.memory` and :mod:`symdnn.gpu.device.interop`, that
imports PyCUDA.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from symdnn.config import config
from symdnn.errors import CudaUnavailable, SymdnnError
from symdnn.gpu.binding.libcuda import driver
from symdnn.gpu.device.env import TICKET_COUNT, TICKETS_AT
from symdnn.graph.place import Place

__all__ = ["Context", "CudaUnavailable", "card", "context", "existing"]

_INSTALL = (
    "PyCUDA is missing. tools/install_cuda.sh builds it, with g++ and NVIDIA's wheels; or have it "
    "from conda-forge (docs/gpu.md, Installing)"
)

#: Shared memory that any kernel may ask for; more has to be allowed first.
_SHARED_BYTES = 48 * 1024

#: What cuBLAS reads when a handle of its is made: eight buffers of 4 MiB each.
_ONE_BUFFER_SIZE = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


class Context:
    """Device ``index``: its primary context, stream, loaded modules, library handles."""

    def __init__(self, index: int) -> None:
        driver = _driver()
        from cuda.bindings.driver import cuCtxGetCurrent

        self._current: Callable[[], Any] = cuCtxGetCurrent
        self._hold = _Hold(self)
        self.index = index
        self.place = Place("cuda", index)
        self._process = _forks[0]
        self._lock = threading.RLock()
        self._device = driver.Device(index)
        self._primary = self._device.retain_primary_context()
        self._handle = int(self._primary.handle)
        self._modules: dict[tuple[Any, ...], Any] = {}
        self._handles: dict[str, int] = {}
        #: How many kernels of ours were enqueued.
        self.launched = 0
        #: Called at the end of the process, while the context can still be current.
        self.at_exit: list[Callable[[], None]] = []
        if str(config.deterministic) == "more":
            os.environ.setdefault(*_ONE_BUFFER_SIZE)  # before any library reads it
        with self.current():
            self._stream = driver.Stream()
            self.stream = int(self._stream.handle)
            words = TICKETS_AT // 4 + TICKET_COUNT
            self._error = driver.mem_alloc(4 * words)
            self.error_word = int(self._error)
            driver.memset_d32(self.error_word, 0, words)

    def current(self) -> contextlib.AbstractContextManager[None]:
        """Hold the device, its context current in this thread."""
        return self._hold

    def _make_current(self) -> bool:
        """Make the context current; whether it has to be popped afterwards.

        A thread without a context keeps this one, since PyCUDA's pools need one at any time; a
        thread with another context gets that back.
        """
        now = int(self._current()[1])
        first = self.index not in _thread.kept
        ours = now == self._handle
        if ours and not first:
            return False
        self._primary.push()  # on PyCUDA's own stack, which does not know of the driver's
        if first and (ours or now == 0):
            _thread.kept[self.index] = _Attachment(self._primary)
            return False
        return True

    @property
    def capability(self) -> tuple[int, int]:
        """Compute capability."""
        major, minor = self._device.compute_capability()
        return int(major), int(minor)

    @property
    def name(self) -> str:
        """The card's name."""
        return str(self._device.name())

    def total_memory(self) -> int:
        """Bytes on the card."""
        return int(self._device.total_memory())

    def synchronize(self) -> None:
        """Wait for everything enqueued so far."""
        self._stream.synchronize()

    def wait_for(self, stream: int | None) -> None:
        """Let what is enqueued from now on wait for another stream; None is nothing to wait for."""
        if stream is None:
            return
        from cuda.bindings import driver

        event = _checked(driver.cuEventCreate(2))  # CU_EVENT_DISABLE_TIMING
        _checked(driver.cuEventRecord(event, stream))
        _checked(driver.cuStreamWaitEvent(self.stream, event, 0))
        _checked(driver.cuEventDestroy(event))

    def function(self, source: str, name: str, options: Sequence[str] = ()) -> Any:
        """Kernel ``name`` of CUDA C ``source``, compiled by NVRTC and loaded once."""
        key = (source, tuple(options))
        if key not in self._modules:
            self._modules[key] = self._module(source, options)
        return self._modules[key].get_function(name)

    def _module(self, source: str, options: Sequence[str]) -> Any:
        """A module of the driver. Device code from disk that it refuses is made anew, once."""
        from symdnn.gpu.binding.nvrtc import compile_cubin, forget_cubin

        asked = (source, self.capability, options)
        try:
            return _driver().module_from_buffer(compile_cubin(*asked))
        except (_driver().LogicError, _driver().RuntimeError):  # no image that it knows
            forget_cubin(*asked)
            return _driver().module_from_buffer(compile_cubin(*asked))

    def launch(
        self, function: Any, grid: Sequence[int], block: Sequence[int], shared: int, args: Any
    ) -> None:
        """Enqueue a kernel; an int among ``args`` is a pointer."""
        packed = [np.intp(a) if isinstance(a, int) else _as_numpy(a) for a in args]
        self.launched += 1
        if shared > _SHARED_BYTES:
            attribute = _driver().function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES
            function.set_attribute(attribute, shared)
        function(
            *packed, block=_three(block), grid=_three(grid), shared=shared, stream=self._stream
        )

    def zero(self, ptr: int, nbytes: int) -> None:
        """Enqueue setting bytes to zero."""
        if nbytes:
            _driver().memset_d8_async(ptr, 0, nbytes, self._stream)

    @property
    def cudnn(self) -> int:
        """The device's ``cudnnHandle_t``, made on first use, on the compute stream."""
        return self._cudnn("cudnn")

    @property
    def cudnn_fixed(self) -> int:
        """Another one, for recurrent nets whose bits must be the same each time.

        cuDNN multiplies their matrices by cuBLAS on several streams. By default cuBLAS has buffers
        of two sizes, and takes another kernel where only a small one is free at the moment. With
        one size it has no choice (NVIDIA's release notes of cuDNN, "Limitations").
        """
        os.environ.setdefault(*_ONE_BUFFER_SIZE)
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
        """The device's ``cublasLtHandle_t``, made on first use."""
        if "cublaslt" not in self._handles:
            from symdnn.gpu.binding import libcublaslt

            self._handles["cublaslt"] = libcublaslt.create()
        return self._handles["cublaslt"]


def _checked(result: Any) -> Any:
    """The value of a driver call; raises where it failed."""
    status, *values = result
    if int(status) != 0:
        raise SymdnnError(f"CUDA driver: {status!r}")
    return values[0] if values else None


def _three(sizes: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = (*sizes, 1, 1)[:3]
    return int(x), int(y), int(z)


def _as_numpy(value: Any) -> Any:
    if isinstance(value, ctypes._SimpleCData):
        return np.dtype(type(value)).type(value.value)
    return value


def _driver() -> Any:
    try:
        import pycuda.driver as driver
    except ModuleNotFoundError as error:
        raise CudaUnavailable(f"{_INSTALL} ({error})") from error
    except ImportError as error:  # a library that it was linked with: the driver's, or libcurand
        raise CudaUnavailable(f"PyCUDA is installed and does not load: {error}") from error
    try:
        driver.init()
    except Exception as error:
        raise CudaUnavailable(f"the CUDA driver does not start: {error}") from error
    return driver


_contexts: dict[int, Context] = {}
_contexts_lock = threading.Lock()
_forks = [0]


def _after_fork() -> None:
    _forks[0] += 1


os.register_at_fork(after_in_child=_after_fork)


class _OfThread(threading.local):
    """What each thread has of its own."""

    def __init__(self) -> None:
        #: The contexts that it holds, the current one last, and which to pop afterwards.
        self.held: list[tuple[Context, bool]] = []
        #: Devices whose context stays current in it.
        self.kept: dict[int, _Attachment] = {}


_thread = _OfThread()


class _Hold:
    """Holds a device, in any thread and any number of times: what it needs is the thread's."""

    __slots__ = ("ctx",)

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx

    def __enter__(self) -> None:
        ctx = self.ctx
        if ctx._process != _forks[0]:
            raise CudaUnavailable(
                "CUDA was used before this process was forked, and a context does not survive a "
                "fork. Start workers with the 'spawn' method, or use the GPU in the child only"
            )
        ctx._lock.acquire()
        try:
            _thread.held.append((ctx, ctx._make_current()))
        except BaseException:
            ctx._lock.release()
            raise

    def __exit__(self, *_: object) -> None:
        ctx, pushed = _thread.held.pop()
        if pushed:
            ctx._primary.pop()
        ctx._lock.release()


class _Attachment:
    """A context that stays current in a thread until the thread ends.

    PyCUDA aborts the process when a thread ends and leaves something on its stack of contexts;
    Python drops a thread's own values, and with them this one, before that.
    """

    def __init__(self, primary: Any) -> None:
        self._primary, self._thread = primary, threading.get_ident()

    def detach(self) -> None:
        """Leave the stack as it was."""
        primary, self._primary = self._primary, None
        if primary is not None and threading.get_ident() == self._thread:
            with contextlib.suppress(Exception):
                primary.pop()

    __del__ = detach


def existing() -> Context | None:
    """The context that this thread holds, else the first that was made; None without any.

    Makes none: kernels ask it whether a plan is for a device or for a described one.
    """
    return _thread.held[-1][0] if _thread.held else next(iter(_contexts.values()), None)


def card() -> dict[str, Any] | None:
    """The device and its driver, as keys of measured choices name them; None without a device."""
    found = existing()
    return None if found is None else {"gpu": found.name, "driver": list(driver().version or ())}


def context(index: int = 0) -> Context:
    """The process's context of device ``index``; raises :class:`CudaUnavailable`."""
    with _contexts_lock:
        if index not in _contexts:
            _contexts[index] = Context(index)
        return _contexts[index]


@atexit.register
def _detach() -> None:
    """Let the pools go, and leave the main thread's stack of contexts empty."""
    for ctx in _contexts.values():
        with contextlib.suppress(Exception), ctx.current():
            for last in ctx.at_exit:
                last()
    for attachment in _thread.kept.values():
        attachment.detach()
