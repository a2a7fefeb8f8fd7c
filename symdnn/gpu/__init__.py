"""The CUDA target. Importing it touches no device and needs no Python package of CUDA."""

from typing import TYPE_CHECKING as _CHECKED

from symdnn.gpu.device.device_array import DeviceArray
from symdnn.gpu.shared import gpuarray_shared_constructor
from symdnn.graph.names.elsewhere import refusing as _refusing

__all__ = ["DeviceArray", "gpuarray_shared_constructor"]

if not _CHECKED:  # a checker of types would believe that every name exists
    __getattr__ = _refusing(__name__, submodules=("dnn", "libcudnn"))
