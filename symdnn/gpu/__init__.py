"""The CUDA target. Importing it touches no device and needs neither PyCUDA nor a driver."""

from symdnn.gpu.shared import gpuarray_shared_constructor

__all__ = ["gpuarray_shared_constructor"]
