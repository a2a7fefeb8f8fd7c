"""Asks a descriptor of cuDNN for its data type: scaling factors are doubles for doubles only."""

from __future__ import annotations

from ctypes import byref, c_int
from functools import cache
from typing import Any

from symdnn.gpu.binding import cudnn_library
from symdnn.gpu.binding.cudnn_types import POINTER

__all__ = ["filter_data_type", "tensor_data_type"]


def tensor_data_type(descriptor: Any) -> int:
    """The ``cudnnDataType_t`` of a tensor's descriptor, as a number; 0 where it has none yet."""
    data_type, ignored = c_int(), c_int()
    other = byref(ignored)
    if descriptor:  # with NULL the function that is to be called says what is wrong
        ask = _function("cudnnGetTensorNdDescriptor")
        ask(POINTER.from_param(descriptor), c_int(1), byref(data_type), other, other, other)
    return data_type.value


def filter_data_type(descriptor: Any) -> int:
    """The ``cudnnDataType_t`` of a filter's descriptor, as a number; 0 where it has none yet."""
    data_type, ignored = c_int(), c_int()
    other = byref(ignored)
    if descriptor:
        ask = _function("cudnnGetFilterNdDescriptor")
        ask(POINTER.from_param(descriptor), c_int(1), byref(data_type), other, other, other)
    return data_type.value


@cache
def _function(name: str) -> Any:
    return cudnn_library.library().cdll[name]
