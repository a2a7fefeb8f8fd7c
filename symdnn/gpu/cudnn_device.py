"""Where kernels ask cuDNN something before they run: the one place that knows whether there is a
device.

Workspace sizes and heuristics need a ``cudnnHandle_t``. A plan for a real device is made while its
context exists; for a described one there is none, and kernels answer with estimates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from symdnn.gpu.context import existing

__all__ = ["ask", "device_index"]

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
