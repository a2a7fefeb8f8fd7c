"""Arrays of other libraries on the device, taken without a copy; and ours, handed out as theirs.

Taken is what has ``__cuda_array_interface__`` (PyCUDA, CuPy, Numba, PyTorch) or ``__dlpack__``;
handed out is PyCUDA's ``GPUArray``. Only reading what such an object says needs no device.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np

from symdnn.errors import InputError
from symdnn.gpu.device.array import RawArray, c_strides
from symdnn.gpu.device.context import Context
from symdnn.graph.place import Place
from symdnn.graph.type import TensorType, numpy_dtype

__all__ = ["as_gpuarray", "device_array", "from_dlpack", "from_interface"]

_OTHER_CONTEXT = (
    "symdnn uses the device's primary context: import pycuda.autoprimaryctx, not pycuda.autoinit, "
    "before you make arrays with PyCUDA"
)


def device_array(value: Any, ctx: Context, what: str) -> RawArray:
    """The memory of ``value`` as our array; the work that makes its content is waited for.

    Raises :class:`~symdnn.errors.InputError` for memory of another context or device, naming
    ``what``.
    """
    if isinstance(value, RawArray):
        return value
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is None:
        array = from_dlpack(value.__dlpack__(stream=ctx.stream), what)
    else:
        array = from_interface(interface, value, what)
        ctx.wait_for(interface.get("stream"))
    if array.nbytes:
        _check_owner(array, ctx, what)
    return array


# --- what they say of themselves ------------------------------------------------------------------


def from_interface(interface: Mapping[str, Any], owner: Any, what: str) -> RawArray:
    """The array that a ``__cuda_array_interface__`` describes."""
    if interface.get("mask") is not None:
        raise InputError(f"{what}: arrays with a mask are not taken")
    dtype = _dtype_name(interface["typestr"], what)
    shape = tuple(int(n) for n in interface["shape"])
    strides = interface.get("strides")
    at = () if strides is None else tuple(int(s) for s in strides)
    return RawArray(int(interface["data"][0] or 0), shape, dtype, at, owner)


def _dtype_name(typestr: str, what: str) -> str:
    if typestr == "<V2":  # what NumPy's rules leave of bfloat16
        return "bfloat16"
    try:
        return TensorType(np.dtype(typestr)).dtype
    except (TypeError, ValueError) as error:
        raise InputError(f"{what}: arrays of {typestr} are not taken") from error


class _DLTensor(ctypes.Structure):
    """``DLTensor`` of dlpack.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_DLPACK_CODES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}


def from_dlpack(capsule: Any, what: str) -> RawArray:
    """The array in a DLPack capsule, which keeps the memory alive; it is not used up."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    tensor = _DLTensor.from_address(pointer(capsule, b"dltensor"))
    dtype = _dlpack_dtype(tensor, what)
    shape = tuple(tensor.shape[: tensor.ndim])
    itemsize = int(numpy_dtype(dtype).itemsize)
    strides = c_strides(shape, itemsize)
    if tensor.strides:
        strides = tuple(s * itemsize for s in tensor.strides[: tensor.ndim])
    return RawArray((tensor.data or 0) + tensor.byte_offset, shape, dtype, strides, capsule)


def _dlpack_dtype(tensor: _DLTensor, what: str) -> str:
    kind = _DLPACK_CODES.get(tensor.code, f"code {tensor.code}, ")
    name = "bool" if kind == "bool" else f"{kind}{tensor.bits}"
    try:
        return TensorType(name).dtype if tensor.lanes == 1 else _refuse(what, name, tensor.lanes)
    except (TypeError, ValueError) as error:
        raise InputError(f"{what}: arrays of {name} are not taken") from error


def _refuse(what: str, name: str, lanes: int) -> str:
    raise InputError(f"{what}: arrays of {name} in groups of {lanes} are not taken")


# --- whose they are -------------------------------------------------------------------------------


def _check_owner(array: RawArray, ctx: Context, what: str) -> None:
    """Refuse memory that work in this context may not read."""
    from cuda.bindings import driver

    attribute = driver.CUpointer_attribute
    owner = driver.cuPointerGetAttribute(attribute.CU_POINTER_ATTRIBUTE_CONTEXT, array.ptr)
    if int(owner[0]) != 0:
        raise InputError(f"{what}: {array.ptr:#x} is no memory of a CUDA device ({owner[0]!r})")
    # Memory of a pool or of a mapped range belongs to no context, but to a device.
    if int(owner[1]) not in (0, ctx._handle):
        raise InputError(f"{what}: the array is in another context. {_OTHER_CONTEXT}")
    ordinal = attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    _, index = driver.cuPointerGetAttribute(ordinal, array.ptr)
    if int(index) != ctx.index:
        found = Place("cuda", int(index))
        raise InputError(f"{what}: the array is on {found}, the function on {ctx.place}")


def as_gpuarray(array: RawArray) -> Any:
    """The memory as a PyCUDA ``GPUArray``, which keeps it alive."""
    from pycuda import gpuarray

    return gpuarray.GPUArray(
        array.shape, numpy_dtype(array.dtype), base=array.owner, gpudata=array.ptr,
        strides=array.strides,
    )  # fmt: skip
