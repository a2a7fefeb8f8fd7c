"""Energy of work on the device, by the counter of NVIDIA's management library (NVML).

The counter (``nvmlDeviceGetTotalEnergyConsumption``) is updated every few tens of milliseconds.
Work is repeated until one update more or less hardly matters.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

from symdnn.errors import SymdnnError
from symdnn.gpu.device.context import Context

_MEASURED_MIN_MS = 400.0


class Meter:
    """Reads the energy counter of one device."""

    def __init__(self, context: Context, read: Callable[[], float]) -> None:
        self.context, self._read = context, read

    def millijoules(
        self, enqueue: Callable[[], None], about_ms: float, least_ms: float = _MEASURED_MIN_MS
    ) -> float:
        """Energy of the whole card, idle power included, for one ``enqueue`` of ``about_ms``.

        It is repeated for ``least_ms`` milliseconds.
        """
        count = max(1, round(least_ms / max(about_ms, 1e-3)))
        self._await_counter_step()
        before = self._read()
        for _ in range(count):
            enqueue()
        self.context.synchronize()
        self._await_counter_step()
        return (self._read() - before) / count

    def _await_counter_step(self) -> None:
        """Wait until the counter changes, for at most 0.2 s."""
        value, end = self._read(), time.perf_counter() + 0.2
        while self._read() == value and time.perf_counter() < end:
            time.sleep(0.001)


def meter(context: Context) -> Meter:
    """The meter of a device; raises :class:`SymdnnError` where NVML or the counter is missing."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        device = ctypes.c_void_p()
        _checked(nvml.nvmlInit_v2())
        _checked(nvml.nvmlDeviceGetHandleByPciBusId_v2(_bus(context), ctypes.byref(device)))
        reader = _reader(nvml, device)
        reader()
    except (OSError, AttributeError, SymdnnError) as error:
        raise SymdnnError(
            f"dnn.conv.objective=energy reads NVML's energy counter, which can't be had ({error}): "
            "choose by time or memory"
        ) from error
    return Meter(context, reader)


def _reader(nvml: Any, device: ctypes.c_void_p) -> Callable[[], float]:
    """A function that reads the counter, in millijoules since the driver was loaded."""

    def read() -> float:
        value = ctypes.c_ulonglong()
        _checked(nvml.nvmlDeviceGetTotalEnergyConsumption(device, ctypes.byref(value)))
        return float(value.value)

    return read


def _checked(status: int) -> None:
    if status:
        raise SymdnnError(f"NVML returned {status}")


def _bus(context: Context) -> bytes:
    """The card's PCI bus id. NVML's indices would ignore CUDA_VISIBLE_DEVICES."""
    from cuda.bindings import driver

    _, device = driver.cuDeviceGet(context.index)
    _, name = driver.cuDeviceGetPCIBusId(32, device)
    return bytes(name).split(b"\0")[0]
