"""Calls of the CUDA driver by PyCUDA where it is installed, else by cuda-bindings.

The flag ``gpu.runtime`` chooses, and this is the only module that imports PyCUDA. A
:class:`DriverApi` has the calls for which PyCUDA has objects that users meet: its stack of
contexts, streams, and arrays. Both work in the device's primary context. All other calls (kernels,
memory, copies, events, graphs) take plain numbers for streams and addresses. cuda-bindings makes
these calls even where PyCUDA is installed.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Sequence
from functools import cache
from typing import Any, Protocol

import numpy as np

from symdnn.config import config
from symdnn.errors import CudaUnavailable, OutOfDeviceMemory, SymdnnError
from symdnn.gpu.device.array import RawArray
from symdnn.gpu.device.device_array import DeviceArray, ReadByHost
from symdnn.graph.type import numpy_dtype

NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
_NOT_READY = 600  # CUDA_ERROR_NOT_READY

_NO_BINDINGS = (
    "the Python package cuda-bindings is missing: pip install 'symdnn[cuda]' (symdnn[cuda12] for a "
    "driver of CUDA 12), or pip install -e '.[cuda]' in a checkout (docs/gpu.md, Installing)"
)
_NO_PYCUDA = (
    "PyCUDA is missing, which gpu.runtime=pycuda asks for. tools/install_cuda.sh builds it, with "
    "g++ and NVIDIA's wheels; or have it from conda-forge (docs/gpu.md, Installing); or let "
    "cuda-bindings serve, with gpu.runtime=auto"
)


class CudaError(SymdnnError, RuntimeError):
    """A call of the CUDA driver failed."""


class Primary(Protocol):
    """The primary context of a device; ``handle`` is the ``CUcontext`` as an int."""

    handle: int

    def push(self) -> None:
        """Make it current in this thread."""

    def pop(self) -> None:
        """Make current what was current before."""


class DriverApi(Protocol):
    """The calls that differ. All but ``primary`` need a current context.

    They raise :class:`CudaError`, or :class:`~symdnn.errors.OutOfDeviceMemory`.
    """

    name: str

    def primary(self, index: int) -> Primary:
        """Retain the primary context of device ``index``."""

    def stream(self) -> Any:
        """A new stream; ``int(stream.handle)`` is the ``CUstream``."""

    def module(self, image: bytes) -> Any:
        """Load device code; :class:`CudaError` if the driver refuses it."""

    def function(self, module: Any, name: str) -> Any:
        """A kernel of a module."""

    def allow_shared(self, function: Any, nbytes: int) -> None:
        """Allow a kernel ``nbytes`` of dynamic shared memory."""

    def launch(
        self, function: Any, grid: Sequence[int], block: Sequence[int], shared_bytes: int,
        arguments: Sequence[Any], stream: Any, early: bool = False,
    ) -> None:  # fmt: skip
        """Enqueue a kernel. ``grid`` and ``block`` have three sizes.

        Arguments are NumPy scalars. An ``early`` launch does not wait for the kernel before it; the
        kernel itself does.
        """

    def for_users(self, array: RawArray, memory: Any) -> Any:
        """The array for users, which keeps the memory alive.

        ``memory`` is the device's :class:`~symdnn.gpu.device.memory.CudaMemory`.
        """


def checked(result: Any) -> Any:
    """The value of a call of cuda-bindings, which returns ``(status, value)``.

    Raises :class:`CudaError`, or :class:`~symdnn.errors.OutOfDeviceMemory`.
    """
    status, *values = result
    if int(status) == _OUT_OF_MEMORY:
        raise OutOfDeviceMemory("the CUDA driver has no memory left")
    if int(status) != 0:
        raise CudaError(f"CUDA driver: {status!r}")
    return values[0] if values else None


def is_done(result: Any) -> bool:
    """Whether ``cuStreamQuery`` or ``cuEventQuery`` found the work done; else as ``checked``."""
    if int(result[0]) == _NOT_READY:
        return False
    checked(result)
    return True


def bindings() -> Any:
    """``cuda.bindings.driver``; raises :class:`~symdnn.errors.CudaUnavailable` without it."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise CudaUnavailable(f"{_NO_BINDINGS} ({error})") from error
    return driver


# --- kernels --------------------------------------------------------------------------------------


class _Kernels:
    """Modules and launches by cuda-bindings, whose launch takes less time than PyCUDA's."""

    def __init__(self) -> None:
        self._driver: Any = bindings()

    def module(self, image: bytes) -> Any:
        """``cuModuleLoadData``."""
        return checked(self._driver.cuModuleLoadData(image))

    def function(self, module: Any, name: str) -> Any:
        """``cuModuleGetFunction``."""
        return checked(self._driver.cuModuleGetFunction(module, name.encode()))

    def allow_shared(self, function: Any, nbytes: int) -> None:
        """``cuFuncSetAttribute``."""
        attribute = self._driver.CUfunction_attribute
        most = attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        checked(self._driver.cuFuncSetAttribute(function, most, nbytes))

    def launch(
        self, function: Any, grid: Sequence[int], block: Sequence[int], shared_bytes: int,
        arguments: Sequence[Any], stream: Any, early: bool = False,
    ) -> None:  # fmt: skip
        """``cuLaunchKernel``, which copies the arguments from the given pointers."""
        values = [np.asarray(a) for a in arguments]
        places = [v.__array_interface__["data"][0] for v in values]
        pointers = (ctypes.c_void_p * len(places))(*places)
        given = ctypes.addressof(pointers)
        if early:
            how = self._early(grid, block, shared_bytes, stream)
            checked(self._driver.cuLaunchKernelEx(how, function, given, 0))
            return
        checked(
            self._driver.cuLaunchKernel(
                function, *grid, *block, shared_bytes, stream.handle, given, 0
            )
        )

    def _early(
        self, grid: Sequence[int], block: Sequence[int], shared_bytes: int, stream: Any
    ) -> Any:
        """The ``CUlaunchConfig`` of a launch that overlaps with the kernel before it."""
        driver = self._driver
        value, attribute = driver.CUlaunchAttributeValue(), driver.CUlaunchAttribute()
        value.programmaticStreamSerializationAllowed = 1
        ids = driver.CUlaunchAttributeID
        attribute.id = ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value = value
        how = driver.CUlaunchConfig()
        how.gridDimX, how.gridDimY, how.gridDimZ = grid
        how.blockDimX, how.blockDimY, how.blockDimZ = block
        how.sharedMemBytes, how.hStream = shared_bytes, driver.CUstream(int(stream.handle))
        how.attrs, how.numAttrs = [attribute], 1
        return how


# --- PyCUDA ---------------------------------------------------------------------------------------


class PyCuda(_Kernels):
    """PyCUDA's context and streams; users get its ``GPUArray``."""

    name = "PyCUDA"

    def __init__(self) -> None:
        super().__init__()
        try:
            import pycuda.driver as driver
        except ModuleNotFoundError as error:
            raise CudaUnavailable(f"{_NO_PYCUDA} ({error})") from error
        except ImportError as error:  # a library that it is linked with is missing, as libcurand
            raise CudaUnavailable(
                f"PyCUDA is installed and does not load: {error}. gpu.runtime=cuda-bindings does "
                "without it"
            ) from error
        self._pycuda: Any = driver
        driver.init()

    def primary(self, index: int) -> Primary:
        """By PyCUDA, which has a stack of contexts for each thread: only it may push and pop."""
        return _PyCudaPrimary(self._pycuda.Device(index).retain_primary_context())

    def stream(self) -> Any:
        """``pycuda.driver.Stream``."""
        return self._pycuda.Stream()

    def for_users(self, array: RawArray, memory: Any) -> Any:
        """``pycuda.gpuarray.GPUArray``, which NumPy can read too."""
        return _readable_gpuarray()(
            array.shape, numpy_dtype(array.dtype), base=array.owner, gpudata=array.ptr,
            strides=array.strides,
        )  # fmt: skip


@cache
def _readable_gpuarray() -> Any:
    """PyCUDA's class, of which NumPy else makes an array of objects, element by element."""
    from pycuda import gpuarray

    own = {"__doc__": gpuarray.GPUArray.__doc__, "__module__": gpuarray.__name__}
    return type("GPUArray", (ReadByHost, gpuarray.GPUArray), own)


class _PyCudaPrimary:
    """A ``pycuda.driver.Context``, on PyCUDA's own stack, which does not know of the driver's."""

    def __init__(self, context: Any) -> None:
        self.handle = int(context.handle)
        self.push, self.pop = context.push, context.pop


# --- cuda-bindings --------------------------------------------------------------------------------


class CudaBindings(_Kernels):
    """NVIDIA's Python bindings; users get a :class:`~symdnn.gpu.DeviceArray`."""

    name = "cuda-bindings"

    def __init__(self) -> None:
        super().__init__()
        checked(self._driver.cuInit(0))

    def primary(self, index: int) -> Primary:
        """``cuDevicePrimaryCtxRetain``."""
        return _Primary(self._driver, index)

    def stream(self) -> Any:
        """``cuStreamCreate``."""
        return Stream(int(checked(self._driver.cuStreamCreate(0))))

    def for_users(self, array: RawArray, memory: Any) -> Any:
        """:class:`~symdnn.gpu.device.device_array.DeviceArray`."""
        return DeviceArray(array, memory)


class _Primary:
    """A ``CUcontext``."""

    def __init__(self, driver: Any, index: int) -> None:
        self._driver = driver
        self._context = checked(driver.cuDevicePrimaryCtxRetain(checked(driver.cuDeviceGet(index))))
        self.handle = int(self._context)

    def push(self) -> None:
        """``cuCtxPushCurrent``."""
        checked(self._driver.cuCtxPushCurrent(self._context))

    def pop(self) -> None:
        """``cuCtxPopCurrent``."""
        checked(self._driver.cuCtxPopCurrent())


class Stream:
    """A ``CUstream``, which its owner destroys; ours live as long as the process."""

    def __init__(self, handle: int) -> None:
        self.handle = handle


# --- the choice -----------------------------------------------------------------------------------


def wanted() -> str:
    """``"pycuda"`` or ``"cuda-bindings"``, as the flag ``gpu.runtime`` and the machine say."""
    flag = str(config.gpu.runtime)
    if flag != "auto":
        return flag
    return "cuda-bindings" if importlib.util.find_spec("pycuda") is None else "pycuda"


@cache
def driver_api() -> DriverApi:
    """The API by the flag ``gpu.runtime`` when the first GPU is used; it does not change later.

    Raises :class:`~symdnn.errors.CudaUnavailable` where it is not installed or does not start.
    """
    bindings()  # required with PyCUDA, too
    try:
        return PyCuda() if wanted() == "pycuda" else CudaBindings()
    except CudaUnavailable:
        raise
    except Exception as error:  # of the driver, or of the search for its library
        reason = str(error).rstrip(".")
        raise CudaUnavailable(
            f"the CUDA driver does not start: {reason}. `symdnn doctor` says what is there; "
            "a function for a GPU that is absent can be looked at (symdnn.dprint), not called"
        ) from error
