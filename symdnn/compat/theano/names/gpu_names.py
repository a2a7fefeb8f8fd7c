"""Names of ``theano.gpuarray`` and ``theano.sandbox.cuda``: GPUs."""

from __future__ import annotations

from typing import Any

import numpy as np

from symdnn import tensor as T
from symdnn.compat.theano.names import class_names
from symdnn.compat.theano.names.class_names import NAMES
from symdnn.compat.theano.names.compile_names import shared
from symdnn.compat.theano.settings import config
from symdnn.gpu import dnn
from symdnn.gpu.detect import gpu_available
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Shared, Variable, as_variable
from symdnn.ops.lowered.transfer import GpuFromHost, HostFromGpu

__all__ = [
    "ContextNotDefined", "CudaNdarrayConstant", "CudaNdarraySharedVariable", "CudaNdarrayType",
    "CudaNdarrayVariable", "GpuArraySharedVariable", "GpuArrayType", "GpuArrayVariable",
    "GpuContiguous", "GpuCorrMM", "GpuCorrMM_gradInputs", "GpuCorrMM_gradWeights",
    "GpuFromHost", "HostFromGpu", "active_device_name", "active_device_number",
    "as_cuda_ndarray_variable", "as_gpuarray_variable", "dnn",
    "float32_shared_constructor", "get_context", "gpu_alloc_empty", "gpu_contiguous",
    "gpu_from_host", "gpuarray_shared_constructor", "host_from_gpu", "infer_context_name",
    "init_dev", "list_contexts", "set_gpu_default_device", "shared_constructor",
    "transfer", "unuse", "use",
]  # fmt: skip

CorrMM = NAMES["CorrMM"]
CorrMM_gradInputs = NAMES["CorrMM_gradInputs"]
CorrMM_gradWeights = NAMES["CorrMM_gradWeights"]

CudaNdarraySharedVariable = GpuArraySharedVariable = Shared
CudaNdarrayVariable = GpuArrayVariable = Variable
CudaNdarrayConstant = GpuArrayConstant = T.Constant
active_device_number, active_device_name = 0, "symdnn"
GpuCorrMM, GpuCorrMM_gradInputs, GpuCorrMM_gradWeights = (
    CorrMM,
    CorrMM_gradInputs,
    CorrMM_gradWeights,
)


class ContextNotDefined(ValueError):
    """There is no GPU of that name."""


def __getattr__(name: str) -> Any:
    # Asked each time: a program may set the device after import.
    if name in ("cuda_available", "cuda_enabled", "pygpu_activated"):
        return config.device.startswith(("cuda", "gpu")) and gpu_available()
    other = getattr(class_names, name.removeprefix("Gpu").removesuffix("Cuda"), None)
    if name.startswith("Gpu") and other is not None:
        return other  # placing is no property of an op here
    raise AttributeError(name)


def CudaNdarrayType(
    broadcastable: Any, name: str | None = None, dtype: str = "float32"
) -> TensorType:
    """A type of float32 tensors: the compiler places values."""
    return TensorType(dtype, tuple(map(bool, broadcastable)))


def GpuArrayType(
    dtype: str, broadcastable: Any, context_name: object = None, name: str | None = None
) -> TensorType:
    """A type of tensors: the compiler places values."""
    return TensorType(dtype, tuple(map(bool, broadcastable)))


def use(
    device: str = "cuda", force: bool = False, default_to_move_computation_to_gpu: bool = True,
    move_shared_float32_to_gpu: bool = True, enable_cuda: bool = True, test_driver: bool = True,
    **words: object,
) -> None:  # fmt: skip
    """Compile functions for this device from now on."""
    config.write("device", device)


def unuse() -> None:
    """Compile functions for the CPU from now on."""
    config.write("device", "cpu")


def init_dev(dev: str, name: str | None = None, **words: object) -> None:
    """Accepted: a device is made ready when a function first needs it."""


set_gpu_default_device = use


def get_context(name: object = None) -> Any:
    """Theano's context of a GPU."""
    raise ContextNotDefined(
        f"get_context({name!r}): contexts are not offered; symdnn.gpu.detect has what is asked of "
        "one: gpu_available(), version(), cuda_target()"
    )


def list_contexts() -> list[Any]:
    """The names of GPUs: None, the default one, where there is one."""
    return [None] if gpu_available() else []


def infer_context_name(*variables: object) -> Any:
    """The name of the default GPU."""
    return None


def as_gpuarray_variable(x: object, context_name: object = None) -> Variable:
    """``x`` as a variable: the compiler places values."""
    return as_variable(x)


def gpu_contiguous(x: object) -> Variable:
    """``x`` itself: the compiler copies where a kernel needs it."""
    return as_variable(x)


as_cuda_ndarray_variable = gpu_from_host = host_from_gpu = gpu_contiguous
cpu_contiguous = transfer = gpu_contiguous


def GpuContiguous() -> Any:
    """The function :func:`gpu_contiguous`."""
    return gpu_contiguous


def gpu_alloc_empty(*args: Any, **words: Any) -> Any:
    """``gpu_alloc_empty(context, dtype)(*shape)``: an array of zeros."""
    dtype = words.get("dtype", next((a for a in args if isinstance(a, str)), "float32"))
    if args and not any(isinstance(a, str) for a in args) and "dtype" not in words:
        return T.zeros([as_variable(a) for a in args], dtype)
    return lambda *shape: T.zeros(shape, dtype)


GpuAllocEmpty = gpu_alloc_empty


def float32_shared_constructor(value: Any, name: str | None = None, **words: Any) -> Any:
    """A shared variable of a float32 array."""
    return shared(np.asarray(value, "float32"), name, **words)


shared_constructor = gpuarray_shared_constructor = shared


def conv2d_fft(input: Any, filters: Any, image_shape: Any = None, filter_shape: Any = None,
               border_mode: str = "valid", pad_last_dim: bool = False) -> Variable:  # fmt: skip
    """Convolution as ``T.nnet.conv2d``; the compiler chooses the algorithm."""
    return T.nnet.conv2d(input, filters, image_shape, filter_shape, border_mode)
