"""DLPack: import and export of device arrays as capsules. Needs no device.

The structures are those of dlpack.h, the protocol is the Python array API standard's
(``__dlpack__``, ``__dlpack_device__``).
"""

from __future__ import annotations

import ctypes
from typing import Any

from symdnn.errors import InputError
from symdnn.gpu.device.array import RawArray, c_strides
from symdnn.graph.type import TensorType, numpy_dtype

__all__ = ["CUDA", "from_dlpack", "to_dlpack"]

#: ``kDLCUDA``, the type of device of arrays in device memory.
CUDA = 2

_CAPSULE_NAME = b"dltensor"  # of a capsule whose array was not consumed yet


class _DLTensor(ctypes.Structure):
    """``DLTensor``."""

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


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _DLManagedTensor(ctypes.Structure):
    """``DLManagedTensor``."""

    _fields_ = (
        ("dl_tensor", _DLTensor),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", _Deleter),
    )


_TYPE_CODES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}


# --- import ---------------------------------------------------------------------------------------


def from_dlpack(capsule: Any, what: str) -> RawArray:
    """The array in a DLPack capsule. The capsule is not consumed: it keeps the memory alive."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    tensor = _DLTensor.from_address(pointer(capsule, _CAPSULE_NAME))
    dtype = _dlpack_dtype(tensor, what)
    shape = tuple(tensor.shape[: tensor.ndim])
    itemsize = int(numpy_dtype(dtype).itemsize)
    strides = c_strides(shape, itemsize)
    if tensor.strides:
        strides = tuple(s * itemsize for s in tensor.strides[: tensor.ndim])
    return RawArray((tensor.data or 0) + tensor.byte_offset, shape, dtype, strides, capsule)


def _dlpack_dtype(tensor: _DLTensor, what: str) -> str:
    kind = _TYPE_CODES.get(tensor.code, f"code {tensor.code}, ")
    name = "bool" if kind == "bool" else f"{kind}{tensor.bits}"
    try:
        return TensorType(name).dtype if tensor.lanes == 1 else _refuse(what, name, tensor.lanes)
    except (TypeError, ValueError) as error:
        raise InputError(f"{what}: arrays of {name} are not taken") from error


def _refuse(what: str, name: str, lanes: int) -> str:
    raise InputError(f"{what}: arrays of {name} in groups of {lanes} are not taken")


# --- export ---------------------------------------------------------------------------------------

#: Objects that exported capsules keep alive, by the address of the capsule's structure.
_exported: dict[int, Any] = {}


def to_dlpack(array: RawArray, index: int, owner: Any) -> Any:
    """A capsule with an array on device ``index``; it keeps ``owner`` alive.

    ``owner`` is released when the consumer calls the deleter, or with an unconsumed capsule.
    """
    code, bits = _code(array.dtype)
    managed, ndim = _DLManagedTensor(), array.ndim
    shape = (ctypes.c_int64 * ndim)(*array.shape)
    strides = (ctypes.c_int64 * ndim)(*(s // array.itemsize for s in array.strides))
    managed.dl_tensor = _DLTensor(
        array.ptr if array.size else None, CUDA, index, ndim, code, bits, 1, shape, strides, 0
    )
    managed.deleter = _deleter
    address = ctypes.addressof(managed)
    _exported[address] = managed, shape, strides, owner
    return _new_capsule(address, _CAPSULE_NAME, _drop_unconsumed)


def _code(dtype: str) -> tuple[int, int]:
    """The type of an element: its ``DLDataTypeCode`` and its bits."""
    kind = dtype.rstrip("0123456789")
    (code,) = (c for c, name in _TYPE_CODES.items() if name == kind)
    return code, 8 * int(numpy_dtype(dtype).itemsize)


@_Deleter
def _deleter(address: int, exported: dict[int, Any] = _exported) -> None:
    """``DLManagedTensor.deleter``; it may be called from any thread, also while Python ends."""
    exported.pop(address, None)


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _drop_unconsumed(capsule: int) -> None:
    """The capsule's destructor. A consumed capsule has another name, and its deleter does this."""
    if _is_capsule(capsule, _CAPSULE_NAME):
        _exported.pop(_address_in(capsule, _CAPSULE_NAME), None)


# They take the capsule's address, because a destructor may not create references to it.
_api = ctypes.pythonapi
_is_capsule = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", _api)
)
_address_in = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _api)
)
_new_capsule = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
)(("PyCapsule_New", _api))
