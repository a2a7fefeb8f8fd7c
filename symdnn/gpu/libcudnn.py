"""cuDNN's C API under its own names: every function, enum and structure of the headers.

Functions return the values that C writes through pointers (several as a tuple), and raise an
exception for each status other than success. They take integers for pointers and handles, names or
numbers for enums, sequences for arrays in host memory, numbers for ``alpha`` and ``beta``::

    from symdnn.gpu import libcudnn

    desc = libcudnn.cudnnCreateTensorDescriptor()
    libcudnn.cudnnSetTensor4dDescriptor(desc, "CUDNN_TENSOR_NCHW", "CUDNN_DATA_FLOAT", 1, 3, 8, 8)
    libcudnn.cudnnGetTensorSizeInBytes(desc).value

Each enum is a dict, ``cudnnTensorFormat["CUDNN_TENSOR_NCHW"]``, and an ``IntEnum``,
``cudnnTensorFormat_t``; enumerators also have their C names, ``CUDNN_TENSOR_NCHW``. The first call
finds and loads the library, see ``symdnn.gpu.binding.cudnn_library``.
"""

from __future__ import annotations

from typing import Any

from symdnn.errors import CudnnArgumentError, CudnnError
from symdnn.gpu.binding import libcudnn_table as table
from symdnn.gpu.binding.cudnn_call import CudnnMissingFunction, CudnnStatusError
from symdnn.gpu.binding.cudnn_removed import (
    cudnnConvolutionBwdDataPreference,
    cudnnConvolutionBwdDataPreference_t,
    cudnnConvolutionBwdFilterPreference,
    cudnnConvolutionBwdFilterPreference_t,
    cudnnConvolutionFwdPreference,
    cudnnConvolutionFwdPreference_t,
    cudnnGetConvolutionBackwardDataAlgorithm,
    cudnnGetConvolutionBackwardFilterAlgorithm,
    cudnnGetConvolutionForwardAlgorithm,
)
from symdnn.gpu.binding.cudnn_types import CudnnEnum
from symdnn.gpu.binding.libcudnn_table import *  # noqa: F403 - the table is the namespace

__all__ = [
    *table.__all__,
    "CudnnArgumentError", "CudnnError", "CudnnMissingFunction", "CudnnStatusError", "absent",
    "cudnnConvolutionBwdDataPreference", "cudnnConvolutionBwdDataPreference_t",
    "cudnnConvolutionBwdFilterPreference", "cudnnConvolutionBwdFilterPreference_t",
    "cudnnConvolutionFwdPreference", "cudnnConvolutionFwdPreference_t",
    "cudnnGetConvolutionBackwardDataAlgorithm", "cudnnGetConvolutionBackwardFilterAlgorithm",
    "cudnnGetConvolutionForwardAlgorithm",
]  # fmt: skip

_PREFERENCES: tuple[type[CudnnEnum], ...] = (
    cudnnConvolutionFwdPreference_t,
    cudnnConvolutionBwdDataPreference_t,
    cudnnConvolutionBwdFilterPreference_t,
)
_ENUMERATORS = {
    name: member
    for kind in (*table.ENUMS, *_PREFERENCES)
    for name, member in kind.__members__.items()
}


def absent() -> list[str]:
    """Functions of the table that the cuDNN in use does not have. Loads the library."""
    return [each.__name__ for each in table.FUNCTIONS if not each.present]


def __getattr__(name: str) -> Any:
    """An enumerator by its C name."""
    try:
        return _ENUMERATORS[name]
    except KeyError:
        raise AttributeError(f"cuDNN {table.VERSION} has no {name!r}") from None


def __dir__() -> list[str]:
    return sorted([*globals(), *_ENUMERATORS])
