"""Device arrays of other libraries as inputs, without a copy.

An array has ``__cuda_array_interface__`` (PyCUDA, CuPy, Numba, PyTorch) or ``__dlpack__``. Reading
these descriptions needs no device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from symdnn.errors import InputError
from symdnn.gpu.device.array import RawArray
from symdnn.gpu.device.context import Context
from symdnn.gpu.device.device_array import raw_of
from symdnn.graph.place import Place
from symdnn.graph.type import TensorType
from symdnn.graph.values.dlpack import describe, request

_OTHER_CONTEXT = (
    "symdnn uses the device's primary context. With PyCUDA import pycuda.autoprimaryctx, not "
    "pycuda.autoinit, before you make arrays"
)

#: DLPack's number of the legacy default stream, whose handle is 0.
_LEGACY_STREAM = 1


def device_array(value: Any, ctx: Context, what: str) -> RawArray:
    """The memory of ``value`` as our array. The compute stream waits for the work that writes it.

    Raises :class:`~symdnn.errors.InputError`, with ``what`` as the array's name, for memory of
    another context or device.
    """
    if isinstance(value, RawArray):
        return value
    if (own := raw_of(value, ctx)) is not None:
        return own
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is None:
        array = from_dlpack(request(value, stream=ctx.stream or _LEGACY_STREAM), what)
    else:
        array = from_interface(interface, value, what)
        ctx.wait_for(interface.get("stream"))
    if array.nbytes:
        _check_owner(array, ctx, what)
    return array


# --- descriptions ---------------------------------------------------------------------------------


def from_interface(interface: Mapping[str, Any], owner: Any, what: str) -> RawArray:
    """The array that a ``__cuda_array_interface__`` describes."""
    if interface.get("mask") is not None:
        raise InputError(f"{what}: arrays with a mask are not taken")
    dtype = _dtype_name(interface["typestr"], what)
    shape = tuple(int(n) for n in interface["shape"])
    strides = interface.get("strides")
    at = () if strides is None else tuple(int(s) for s in strides)
    address, read_only = interface["data"]
    return RawArray(int(address or 0), shape, dtype, at, owner, bool(read_only))


def from_dlpack(capsule: Any, what: str) -> RawArray:
    """The array that a DLPack capsule describes; the capsule keeps its memory alive."""
    found = describe(capsule, what)
    return RawArray(
        found.ptr, found.shape, found.dtype, found.strides, found.owner, found.read_only
    )


def _dtype_name(typestr: str, what: str) -> str:
    if typestr == "<V2":  # NumPy has no bfloat16: it is shown as two opaque bytes
        return "bfloat16"
    try:
        return TensorType(np.dtype(typestr)).dtype
    except (TypeError, ValueError) as error:
        raise InputError(f"{what}: arrays of {typestr} are not taken") from error


# --- owners ---------------------------------------------------------------------------------------


def _check_owner(array: RawArray, ctx: Context, what: str) -> None:
    """Raise ``InputError`` for memory that kernels of this context cannot read."""
    from cuda.bindings import driver

    attribute = driver.CUpointer_attribute
    owner = driver.cuPointerGetAttribute(attribute.CU_POINTER_ATTRIBUTE_CONTEXT, array.ptr)
    if int(owner[0]) != 0:
        raise InputError(f"{what}: {array.ptr:#x} is no memory of a CUDA device ({owner[0]!r})")
    if int(owner[1]) == ctx._handle:
        return
    # Memory of a driver's pool, or of a mapped range, has a device but no context.
    if int(owner[1]) != 0:
        raise InputError(f"{what}: the array is in another context. {_OTHER_CONTEXT}")
    ordinal = attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    status, index = driver.cuPointerGetAttribute(ordinal, array.ptr)
    if int(status) == 0 and int(index) != ctx.index:
        found = Place("cuda", int(index))
        raise InputError(f"{what}: the array is on {found}, the function on {ctx.place}")
