"""Arrays on the card as users have them: PyCUDA's, or symdnn's own where PyCUDA does not serve."""

from __future__ import annotations

from importlib import import_module

import numpy as np

from symdnn.gpu import DeviceArray
from symdnn.gpu.device.array import RawArray
from symdnn.gpu.device.device_array import raw_of

__all__ = ["UsersArrays"]


class UsersArrays:
    """Makes them, for either runtime; the card's context must be current."""

    def __init__(self, rt):
        self.memory, self.context, self._lend = rt.memory, rt.context, rt.lend
        #: The class that functions hand out.
        self.Array = type(rt.lend(rt.memory.empty((1,), "float32")))
        self.of_pycuda = self.Array is not DeviceArray

    def to_gpu(self, value):
        """A copy on the card, in C order: made by PyCUDA where it serves."""
        value = np.ascontiguousarray(value)
        if self.of_pycuda:
            return import_module("pycuda.gpuarray").to_gpu(value)
        return self._lend(self.memory.upload(value, None))

    def empty(self, shape, dtype):
        """One whose values are not set; ``shape`` may be a number."""
        if self.of_pycuda:
            return import_module("pycuda.gpuarray").empty(shape, dtype)
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        return self._lend(self.memory.empty(shape, np.dtype(dtype).name))

    def write(self, array, value):
        """New values in the same memory."""
        raw = raw_of(array, self.context)
        if raw is None:
            array.set(value)
        else:
            self.memory.copy_in(value, raw)

    def transposed(self, array):
        """A view of a matrix with its dimensions exchanged."""
        raw = raw_of(array, self.context)
        return array.T if raw is None else self._view(raw, raw.shape[::-1], raw.strides[::-1], 0)

    def without_first(self, array):
        """A view of all rows but the first."""
        raw = raw_of(array, self.context)
        if raw is None:
            return array[1:]
        return self._view(raw, (raw.shape[0] - 1, *raw.shape[1:]), raw.strides, raw.strides[0])

    def _view(self, raw, shape, strides, start):
        seen = RawArray(raw.ptr + start, shape, raw.dtype, strides, raw.owner)
        return DeviceArray(seen, self.memory)
