"""Arrays of other libraries by DLPack: to arrays over the same memory, and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from symdnn.errors import InputError
from symdnn.graph.values.dlpack import HostExport, as_numpy_view
from symdnn.graph.values.interop import has_device_memory, place

__all__ = ["as_dlpack", "from_dlpack"]


def from_dlpack(value: object) -> Any:
    """An array over the memory of any object with ``__dlpack__``, without a copy.

    Memory of the host (pinned memory, too) gives a NumPy array of any shape, strides and dtype of
    symdnn's, bfloat16 and complex included; read-only where the library says so. Memory of a GPU
    gives PyCUDA's ``GPUArray``, or where that is not installed a
    :class:`symdnn.gpu.DeviceArray`; its stream waits for the work that writes the values. The array
    keeps the memory alive.

    Functions, :func:`shared` and ``set_value`` take such objects as they are.

    Raises :class:`~symdnn.errors.InputError` for an object without ``__dlpack__``, for elements
    that symdnn does not know, and for memory that it cannot read.

    >>> import numpy as np, symdnn
    >>> x = np.arange(3.0)
    >>> y = symdnn.from_dlpack(x)
    >>> y[0] = 7
    >>> float(x[0])
    7.0
    """
    if not hasattr(value, "__dlpack__"):
        raise InputError(f"from_dlpack: a {type(value).__name__} has no __dlpack__")
    if isinstance(value, np.ndarray):  # whose own __dlpack__ knows no bfloat16
        return value.view()
    if has_device_memory(value):
        return place(value, "from_dlpack").shown()
    return as_numpy_view(value, "from_dlpack")


def as_dlpack(array: object) -> Any:
    """``array`` as an object with ``__dlpack__`` and ``__dlpack_device__``, over the same memory.

    NumPy exports its own dtypes; this exports bfloat16 as well: ``torch.from_dlpack(
    symdnn.as_dlpack(f(x)))``. Shared variables, and arrays that functions leave on a GPU, have
    ``__dlpack__`` and are given back as they are.

    Raises :class:`~symdnn.errors.InputError` for what is no array.

    >>> import numpy as np, symdnn
    >>> np.from_dlpack(symdnn.as_dlpack(np.float32([1, 2])))
    array([1., 2.], dtype=float32)
    """
    if isinstance(array, np.ndarray):
        return HostExport(array)
    if not hasattr(array, "__dlpack__"):
        raise InputError(f"as_dlpack: wanted an array, got a {type(array).__name__}")
    return array
