"""An array of another library, on a device, as the value of a shared variable."""

from __future__ import annotations

from typing import Any

from symdnn.errors import InputError
from symdnn.gpu.device.array import ALIGNMENT, RawArray
from symdnn.gpu.device.memory import CudaMemory
from symdnn.gpu.execution.runtime import CudaRuntime, runtime
from symdnn.gpu.kernels.copy import strided_copy


class PlacedArray:
    """See :class:`symdnn.graph.values.storage.Placed`."""

    def __init__(self, rt: CudaRuntime, array: RawArray) -> None:
        self._runtime, self._array = rt, array

    @property
    def memory(self) -> CudaMemory:
        """The memory of the device."""
        return self._runtime.memory

    @property
    def shape(self) -> tuple[int, ...]:
        """The array's shape."""
        return self._array.shape

    @property
    def dtype(self) -> str:
        """The array's dtype."""
        return self._array.dtype

    def copied(self, into: RawArray | None) -> RawArray:
        """Enqueue the copy; the array is kept alive until the copy is done."""
        rt = self._runtime
        with rt.context.current():
            target = into if into is not None else rt.memory.empty(self.shape, self.dtype)
            strided_copy(rt.env(), self._array, target)
            rt.memory.keep(self._array)
        return target

    def itself(self) -> RawArray | None:
        """The array, if it is contiguous, has our alignment and may be written; else None."""
        array = self._array
        lies_well = array.contiguous and array.ptr % ALIGNMENT == 0
        return array if lies_well and not array.read_only else None

    def shown(self) -> Any:
        """PyCUDA's ``GPUArray``, or a :class:`~symdnn.gpu.DeviceArray`."""
        return self.memory.lend(self._array)


def place(value: Any, what: str) -> PlacedArray:
    """An array with ``__cuda_array_interface__`` or ``__dlpack__`` as a value on its device.

    Raises :class:`~symdnn.errors.InputError` for an array of another context, and
    :class:`~symdnn.errors.CudaUnavailable` if the GPU can't be used.
    """
    rt = runtime(_device_of(value, what))
    with rt.context.current():
        return PlacedArray(rt, rt.adopt(value, what))


def _device_of(value: Any, what: str) -> int:
    """The index of the device."""
    says = getattr(value, "__dlpack_device__", None)
    if says is not None:
        return int(says()[1])
    ptr = int(value.__cuda_array_interface__["data"][0] or 0)
    return _owner(ptr, what) if ptr else 0


def _owner(ptr: int, what: str) -> int:
    from cuda.bindings import driver

    driver.cuInit(0)
    ordinal = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    status, index = driver.cuPointerGetAttribute(ordinal, ptr)
    if int(status) != 0:
        raise InputError(f"{what}: {ptr:#x} is no memory of a CUDA device ({status!r})")
    return int(index)
