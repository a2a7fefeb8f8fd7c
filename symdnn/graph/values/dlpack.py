"""DLPack: reading capsules, NumPy arrays over their memory, and capsules of arrays.

The structures are those of dlpack.h (versions 0 and 1), the protocol is the Python array API
standard's (``__dlpack__``, ``__dlpack_device__``). An array on a GPU is only described here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from symdnn.errors import InputError
from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.graph.typing import Array

#: ``DLDeviceType``: memory of the host, of a card, pinned, and what both can read.
CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
_ON_HOST = (CPU, CUDA_HOST, CUDA_MANAGED)
_VERSION = (1, 0)  # the newest version that is requested and written
_PLAIN, _VERSIONED = b"dltensor", b"dltensor_versioned"  # capsules that were not consumed yet
_READ_ONLY, _COPIED = 1, 2  # DLPACK_FLAG_BITMASK_*
_TYPE_CODES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}


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
    """``DLManagedTensor``, of version 0."""

    _fields_ = (
        ("dl_tensor", _DLTensor),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", _Deleter),
    )


class _DLManagedTensorVersioned(ctypes.Structure):
    """``DLManagedTensorVersioned``, of version 1."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", _Deleter),
        ("flags", ctypes.c_uint64),
        ("dl_tensor", _DLTensor),
    )


# --- import ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Described:
    """The contents of a capsule: ``dtype`` is a name of ``TensorType``, ``strides`` are in bytes.

    ``owner`` keeps the memory alive.
    """

    ptr: int
    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...]
    device: tuple[int, int]
    read_only: bool
    owner: Any


def request(value: Any, **words: Any) -> Any:
    """``value.__dlpack__(**words)``, of version 1 where the library has that."""
    try:
        return value.__dlpack__(max_version=_VERSION, **words)
    except TypeError:  # a library from before version 1
        return value.__dlpack__(**words)


def describe(capsule: object, what: str) -> Described:
    """The contents of a capsule of either version. It is not consumed: it keeps the memory alive.

    Raises :class:`~symdnn.errors.InputError`, naming ``what``, for elements or a version that
    symdnn does not know.
    """
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    flags = 0
    if _is_valid(capsule, _VERSIONED):
        managed = _DLManagedTensorVersioned.from_address(pointer(capsule, _VERSIONED))
        if managed.major != _VERSION[0]:
            raise InputError(f"{what}: DLPack of version {managed.major}, wanted 0 or 1")
        tensor, flags = managed.dl_tensor, managed.flags
    else:
        tensor = _DLTensor.from_address(pointer(capsule, _PLAIN))
    dtype = _dlpack_dtype(tensor, what)
    shape = tuple(tensor.shape[: tensor.ndim])
    itemsize = int(numpy_dtype(dtype).itemsize)
    steps = tensor.strides[: tensor.ndim] if tensor.strides else _dense(shape)
    return Described(
        (tensor.data or 0) + tensor.byte_offset, shape, dtype,
        tuple(int(s) * itemsize for s in steps), (tensor.device_type, tensor.device_id),
        bool(flags & _READ_ONLY), capsule,
    )  # fmt: skip


def _dense(shape: Sequence[int]) -> list[int]:
    steps, step = [], 1
    for size in reversed(shape):
        steps.append(step)
        step *= max(size, 1)
    return steps[::-1]


def _is_valid(capsule: object, name: bytes) -> bool:
    check = ctypes.pythonapi.PyCapsule_IsValid
    check.restype, check.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]
    return bool(check(capsule, name))


def _dlpack_dtype(tensor: _DLTensor, what: str) -> str:
    kind = _TYPE_CODES.get(tensor.code, f"code {tensor.code}, ")
    name = "bool" if kind == "bool" else f"{kind}{tensor.bits}"
    if tensor.lanes != 1:
        raise InputError(f"{what}: arrays of {name} in groups of {tensor.lanes} are not taken")
    try:
        return TensorType(name).dtype
    except (TypeError, ValueError) as error:
        raise InputError(f"{what}: arrays of {name} are not taken") from error


class _Interface:
    """The array interface that NumPy reads, over memory that ``owner`` keeps alive."""

    def __init__(self, found: Described, typestr: str) -> None:
        self.owner = found.owner
        self.__array_interface__ = {
            "shape": found.shape, "typestr": typestr, "strides": found.strides, "version": 3,
            "data": (found.ptr, found.read_only),
        }  # fmt: skip


def as_numpy_view(value: object, what: str) -> Array:
    """A NumPy array over the host memory of an object with ``__dlpack__``; bfloat16, too.

    Raises :class:`~symdnn.errors.InputError` for memory that the host cannot read.
    """
    found = describe(request(value), what)
    if found.device[0] not in _ON_HOST:
        raise InputError(f"{what}: the array is on device {found.device}, not on the host")
    dtype = numpy_dtype(found.dtype)
    if 0 in found.shape:  # its address may be none
        return np.empty(found.shape, dtype)
    opaque = f"<u{dtype.itemsize}" if dtype.kind == "V" else dtype.str
    return np.asarray(_Interface(found, opaque)).view(dtype)


# --- export ---------------------------------------------------------------------------------------

#: Objects that exported capsules keep alive, by the address of the capsule's structure.
_exported: dict[int, Any] = {}


def element_strides(strides: Sequence[int], itemsize: int) -> list[int]:
    """Strides in elements; ``BufferError`` where they are no multiples of an element."""
    if any(s % itemsize for s in strides):
        raise BufferError(f"DLPack has strides in elements, and {strides} bytes are none")
    return [s // itemsize for s in strides]


def capsule_of(
    array: Described, max_version: tuple[int, int] | None = None, copied: bool = False
) -> Any:
    """A capsule of ``array``, of version 1 where ``max_version`` allows it. It holds ``owner``.

    The owner is released when the consumer calls the deleter, or with a capsule that was never
    consumed. Raises ``BufferError`` for a read-only array if only version 0 is allowed.
    """
    versioned = max_version is not None and int(max_version[0]) >= 1
    if array.read_only and not versioned:
        raise BufferError("DLPack before version 1 has no read-only arrays: export a copy")
    itemsize = int(numpy_dtype(array.dtype).itemsize)
    ndim, steps = len(array.shape), element_strides(array.strides, itemsize)
    shape, strides = (ctypes.c_int64 * ndim)(*array.shape), (ctypes.c_int64 * ndim)(*steps)
    managed: Any = _DLManagedTensorVersioned() if versioned else _DLManagedTensor()
    kind = array.dtype.rstrip("0123456789")
    (code,) = (c for c, name in _TYPE_CODES.items() if name == kind)
    address = array.ptr if 0 not in array.shape else None
    managed.dl_tensor = _DLTensor(
        address, *array.device, ndim, code, 8 * itemsize, 1, shape, strides, 0
    )
    if versioned:
        managed.major, managed.minor = _VERSION
        managed.flags = _READ_ONLY * array.read_only | _COPIED * copied
    managed.deleter = _deleter
    at = ctypes.addressof(managed)
    _exported[at] = managed, shape, strides, array.owner
    return _new_capsule(at, _VERSIONED if versioned else _PLAIN, _drop_unconsumed)


def _release(address: int, exported: dict[int, Any] = _exported) -> None:
    """The deleter of both versions; it may be called from any thread, also while Python ends."""
    exported.pop(address, None)


def _release_unconsumed(capsule: int) -> None:
    """The capsule's destructor. A consumed capsule has another name, and its deleter does this."""
    for name in (_PLAIN, _VERSIONED):
        if _is_capsule(capsule, name):
            _exported.pop(_address_in(capsule, name), None)


_deleter, _drop_unconsumed = _Deleter(_release), _Deleter(_release_unconsumed)


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


class HostExport:
    """A NumPy array of any of symdnn's dtypes for libraries that read DLPack: bfloat16, too."""

    def __init__(self, array: Array) -> None:
        self._array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        """``(kDLCPU, 0)``."""
        return CPU, 0

    def __dlpack__(
        self,
        *,
        stream: object = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A capsule of the array's own memory, or with ``copy=True`` of a copy.

        Raises ``BufferError`` for another device, for a read-only array if ``max_version`` is below
        1, and for an array whose strides are not whole elements, or of another byte order.
        """
        if dl_device is not None and tuple(map(int, dl_device)) != (CPU, 0):
            raise BufferError(f"the array is on the host, not on {tuple(dl_device)}")
        array = self._array.copy() if copy else self._array
        if not array.dtype.isnative:
            raise BufferError("DLPack has no arrays of the other byte order: export a copy")
        name = TensorType(array.dtype).dtype
        at = Described(
            array.ctypes.data, array.shape, name, array.strides, (CPU, 0),
            not array.flags.writeable, array,
        )  # fmt: skip
        return capsule_of(at, max_version, bool(copy))
