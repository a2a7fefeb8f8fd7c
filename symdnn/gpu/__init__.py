"""The CUDA target. Importing it touches no device and needs no Python package of CUDA."""

from symdnn.gpu.device.device_array import DeviceArray
from symdnn.gpu.shared import gpuarray_shared_constructor

__all__ = ["DeviceArray", "gpuarray_shared_constructor"]
