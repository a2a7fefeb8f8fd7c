"""The data type of a cuDNN descriptor. Scaling factors are doubles only where it is double."""

from __future__ import annotations

from ctypes import byref, c_int
from functools import cache
from typing import Any

from symdnn.gpu.binding import cudnn_library
from symdnn.gpu.binding.cudnn_types import POINTER


def tensor_data_type(descriptor: Any) -> int:
    """The ``cudnnDataType_t`` of a tensor's descriptor, as a number; 0 where it has none yet."""
    return _data_type("cudnnGetTensorNdDescriptor", descriptor)


def filter_data_type(descriptor: Any) -> int:
    """The ``cudnnDataType_t`` of a filter's descriptor, as a number; 0 where it has none yet."""
    return _data_type("cudnnGetFilterNdDescriptor", descriptor)


def _data_type(getter: str, descriptor: Any) -> int:
    data_type, ignored = c_int(), c_int()
    other = byref(ignored)
    if descriptor:  # with NULL the caller's function reports the error
        get = _function(getter)
        get(POINTER.from_param(descriptor), c_int(1), byref(data_type), other, other, other)
    return data_type.value


@cache
def _function(name: str) -> Any:
    return cudnn_library.library().cdll[name]
