"""Queries of a device and of cuDNN by kernels before they run: workspace sizes, heuristics, keys.

Those of cuDNN need a ``cudnnHandle_t``. A plan for a real device is made while its context exists.
A plan for a described device has no context, and kernels use estimates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from symdnn.config import config
from symdnn.gpu.binding.libcuda import driver
from symdnn.gpu.device.context import Context, existing_context

T = TypeVar("T")


def device_index() -> int | None:
    """The index of the device to query; None where plans are made for a described one."""
    found = existing_context()
    return None if found is None else found.index


def query_cudnn(question: Callable[[Any], T], estimate: T) -> T:
    """``question(handle)``, or ``estimate`` where there is no device."""
    found = existing_context()
    if found is None:
        return estimate
    with found.current():
        return question(found.cudnn)


def queried_context() -> Context:
    """The context that :func:`query_cudnn` holds; only to be called inside of a question."""
    found = existing_context()
    assert found is not None, "no device is being queried"
    return found


def device_key(**more: Any) -> dict[str, Any] | None:
    """The device, its driver and ``more``, a key of tuning records; None without a device."""
    found = existing_context()
    if found is None:
        return None
    return {"gpu": found.name, "driver": list(driver().version or ()), **more}


def library_key(library: str, version: int, **more: Any) -> dict[str, Any] | None:
    """A library on this architecture, and ``more``: a key of the block list, or None as above."""
    found = existing_context()
    if found is None:
        return None
    arch = ".".join(map(str, found.capability))
    return {"library": library, "version": version, "arch": arch, **more}


#: Free memory that is left for the rest of the plan.
_RESERVED_BYTES = 256 << 20


def free_bytes() -> int:
    """The bytes that a workspace may have, by the driver's count of free memory; at least 1.

    On a nearly full card it is half of the free memory. The flag ``gpu.memory_limit`` bounds it.
    """
    from cuda.bindings import driver

    _, free, _ = driver.cuMemGetInfo()
    limit = int(config.gpu.memory_limit)
    most = max(int(free) - _RESERVED_BYTES, int(free) // 2, 1)
    return min(most, limit) if limit else most
