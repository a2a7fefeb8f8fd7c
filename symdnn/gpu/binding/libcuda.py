"""The GPUs of this machine, as CUDA's driver lists them. Needs no Python package, only libcuda."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Any

from symdnn.detect import ABSENT, CUDA_DRIVER, cuda_driver_candidates, first_found

_COMPUTE_CAPABILITY = (75, 76)  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR


@dataclass(frozen=True)
class Device:
    """A GPU as plain facts; ``index`` is CUDA's, after ``CUDA_VISIBLE_DEVICES``."""

    index: int
    name: str
    compute_capability: tuple[int, int]
    memory_bytes: int


@dataclass(frozen=True)
class Driver:
    """The driver's version and devices, or the ``problem`` why there are none."""

    version: tuple[int, int] | None
    devices: tuple[Device, ...]
    problem: str

    def __str__(self) -> str:
        names = ", ".join(f"{d.index}: {d.name}" for d in self.devices)
        return self.problem or names


@cache
def library() -> ctypes.CDLL:
    """libcuda; raises ``OSError`` where it can't be loaded."""
    found = first_found(cuda_driver_candidates())
    return ctypes.CDLL(found.path if found else CUDA_DRIVER[0])


@cache
def driver() -> Driver:
    """Query the driver, once per process. Makes no context, so that a caller may choose one."""
    try:
        lib = library()
    except OSError as error:
        candidates = cuda_driver_candidates()
        wrong = [f"{c.path}: {c.state}" for c in candidates if c.state != ABSENT]
        return Driver(None, (), f"NVIDIA's driver can't be loaded: {'; '.join(wrong) or error}")
    status = lib.cuInit(0)
    if status:
        return Driver(version(), (), f"the driver does not start: {_error_name(lib, status)}")
    count = ctypes.c_int()
    lib.cuDeviceGetCount(ctypes.byref(count))
    devices = tuple(_device(lib, index) for index in range(count.value))
    return Driver(version(), devices, "" if devices else "the driver knows no GPU")


@cache
def version() -> tuple[int, int] | None:
    """The newest CUDA that the driver serves, such as (12, 8); None without a driver.

    It does not start the driver. (``cuDriverGetVersion``)
    """
    try:
        lib = library()
    except OSError:
        return None
    number = ctypes.c_int()
    lib.cuDriverGetVersion(ctypes.byref(number))
    return number.value // 1000, number.value % 1000 // 10


def _device(lib: Any, index: int) -> Device:
    handle, value = ctypes.c_int(), ctypes.c_int()
    lib.cuDeviceGet(ctypes.byref(handle), index)
    capability = []
    for attribute in _COMPUTE_CAPABILITY:
        lib.cuDeviceGetAttribute(ctypes.byref(value), attribute, handle)
        capability.append(value.value)
    name, memory = ctypes.create_string_buffer(256), ctypes.c_size_t()
    lib.cuDeviceGetName(name, len(name), handle)
    lib.cuDeviceTotalMem_v2(ctypes.byref(memory), handle)
    return Device(index, name.value.decode(), (capability[0], capability[1]), memory.value)


def _error_name(lib: Any, status: int) -> str:
    name = ctypes.c_char_p()
    lib.cuGetErrorName(status, ctypes.byref(name))
    return f"{(name.value or b'CUDA error').decode()} ({status})"
