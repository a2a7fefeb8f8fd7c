"""Asks a descriptor of cuDNN for its data type: scaling factors are doubles for doubles only."""

from __future__ import annotations

import ctypes
from typing import Any

from symdnn.gpu import cudnn_library
from symdnn.gpu.cudnn_types import POINTER

__all__ = ["filter_data_type", "tensor_data_type"]


def tensor_data_type(descriptor: Any) -> int:
    """The ``cudnnDataType_t`` of a tensor's descriptor, as a number; 0 where it has none yet."""
    data_type, dims, one = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    return _asked("cudnnGetTensorNdDescriptor", descriptor, 1, data_type, dims, one, ctypes.c_int())


def filter_data_type(descriptor: Any) -> int:
    """The ``cudnnDataType_t`` of a filter's descriptor, as a number; 0 where it has none yet."""
    data_type, layout, dims, one = (ctypes.c_int() for _ in range(4))
    return _asked("cudnnGetFilterNdDescriptor", descriptor, 1, data_type, layout, dims, one)


def _asked(name: str, descriptor: Any, requested: int, *outputs: ctypes.c_int) -> int:
    if not descriptor:  # NULL: the function itself will say so
        return 0
    ask = getattr(cudnn_library.library().cdll, name)
    address = POINTER.from_param(descriptor)
    status = ask(address, ctypes.c_int(requested), *map(ctypes.byref, outputs))
    return 0 if status else outputs[0].value
