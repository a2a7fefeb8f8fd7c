"""Where kernels ask cuDNN something before they run: the one place that knows whether there is a
device.

Workspace sizes and heuristics need a ``cudnnHandle_t``. A plan for a real device is made while its
context exists; for a described one there is none, and kernels answer with estimates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from symdnn.config import config
from symdnn.gpu.device.context import Context, existing

__all__ = ["ask", "asked", "device_index", "free_bytes"]

T = TypeVar("T")


def device_index() -> int | None:
    """The device that can be asked; None where plans are made for a described one."""
    found = existing()
    return None if found is None else found.index


def ask(question: Callable[[Any], T], estimate: T) -> T:
    """``question(handle)``, or the estimate where there is no device to ask."""
    found = existing()
    if found is None:
        return estimate
    with found.current():
        return question(found.cudnn)


def asked() -> Context:
    """The device that :func:`ask` asks; only while it does."""
    found = existing()
    assert found is not None, "no device is being asked"
    return found


#: Free memory that a workspace does not get: the rest of the plan needs some, too.
_RESERVE = 256 << 20


def free_bytes() -> int:
    """What a workspace may take of the card as the driver sees it now; at least 1.

    Half of what is left in a nearly full card; never more than the flag ``gpu.memory_limit``.
    """
    from cuda.bindings import driver

    _, free, _ = driver.cuMemGetInfo()
    limit = int(config.gpu.memory_limit)
    most = max(int(free) - _RESERVE, int(free) // 2, 1)
    return min(most, limit) if limit else most
