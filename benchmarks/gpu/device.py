"""What a benchmark needs of the machine: flags, arrays on the device, waiting, ceilings, memory."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.workloads import pcommon

#: The peers search for algorithms and use TF32 too, and their relu has slope 0 at 0.
FLAGS = "performance=max,print_active_device=False"
ROOT = Path(__file__).resolve().parents[2]


def set_flags(on_gpu: bool) -> None:
    """Choose the device and :data:`FLAGS`; what ``SYMDNN_FLAGS`` already says comes last and wins.

    To be called before symdnn is imported.
    """
    own = os.environ.get("SYMDNN_FLAGS", "")
    given = [f"device={'cuda' if on_gpu else 'cpu'}", FLAGS, own]
    os.environ["SYMDNN_FLAGS"] = ",".join(g for g in given if g)


#: Seconds after which an error is raised again that a callback of the interpreter has lost.
_AGAIN_S = 1.0


@contextmanager
def time_limit(seconds: float, error: Exception) -> Iterator[None]:
    """Raise ``error`` in the main thread, between two calls of C, after so many seconds.

    Within another limit the earlier one counts.
    """

    def late(*_: Any) -> None:
        raise error

    left, begin = signal.getitimer(signal.ITIMER_REAL)[0], time.monotonic()
    if 0 < left < seconds:
        yield
        return
    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if left:
            rest = max(left - (time.monotonic() - begin), 1e-3)
            signal.setitimer(signal.ITIMER_REAL, rest, _AGAIN_S)


def wide(value: Any) -> np.ndarray:
    """In float64 or complex128."""
    array = np.asarray(value)
    return array.astype("complex128" if array.dtype.kind == "c" else "float64")


class Device:
    """The GPU, or the CPU to check the programs."""

    def __init__(self, on_gpu: bool, min_time: float = 0.6, warm_time: float = 0.25) -> None:
        self.on_gpu, self.min_time, self.warm_time = on_gpu, min_time, warm_time
        if on_gpu:
            from symdnn.gpu.device.driver_api import bindings, checked
            from symdnn.gpu.execution.runtime import runtime

            self.driver, self.runtime, self._checked = bindings(), runtime(0), checked

    def put(self, array: np.ndarray) -> Any:
        """The array where a user of this device has it: on the GPU, or itself on the CPU."""
        array = np.asarray(array, order="C")  # a number stays one
        if not self.on_gpu:
            return array
        with self.runtime.exclusive():
            return self.runtime.lend(self.runtime.memory.upload(array, None))

    def host(self, value: Any) -> np.ndarray:
        """A result on the host."""
        if self.on_gpu and not isinstance(value, np.ndarray | np.generic):
            with self.runtime.exclusive():
                return self.runtime.adopt(value, "a result", on_host=True)
        return np.array(value)

    def get(self, value: Any) -> np.ndarray:
        """A result on the host, in float64 or complex128."""
        return wide(self.host(value))

    def copy(self, target: Any, source: Any, nbytes: int) -> None:
        """Enqueue a copy between arrays of the GPU."""
        self.runtime.queue.copy(int(target.gpudata), int(source.gpudata), nbytes)

    def sync(self) -> None:
        """Wait for everything on the device."""
        if self.on_gpu:
            self._checked(self.driver.cuCtxSynchronize())

    def used_bytes(self) -> int:
        """Bytes of the card that are taken, by whatever."""
        if not self.on_gpu:
            return 0
        _, free, total = self.driver.cuMemGetInfo()
        return int(total - free)

    def cleanup(self) -> None:
        """Drop what the last case left."""
        gc.collect()
        self.sync()

    def time(self, call: Any, latency: bool = False, min_time: float = 0.0) -> dict[str, Any]:
        """``pcommon.time_loop``'s record, by the synchronised host clock."""
        warm = self.warm_time if self.on_gpu else 0.01
        record: dict[str, Any] = pcommon.time_loop(
            call, self.sync, None, min_t=min_time or self.min_time, warm_t=warm
        )
        if latency:
            record["lat_ms"] = pcommon.latency(call, self.sync, 30 if self.on_gpu else 3)
        return record


def facts(device: Device) -> dict[str, Any]:
    """Versions, and the ceilings: copies of 1 GiB, and products of matrices."""
    import symdnn
    from symdnn.gpu import dnn

    found: dict[str, Any] = {"commit": commit(), "flags": os.environ.get("SYMDNN_FLAGS", "")}
    if not device.on_gpu:
        return {**found, "device": "cpu"}
    from symdnn.gpu.binding.libcuda import driver

    major, minor = driver().version or (0, 0)
    found["device"], found["runtime"] = driver().devices[0].name, device.runtime.context.runtime
    found["driver"], found["cudnn"] = 1000 * major + 10 * minor, dnn.version()
    found["numpy"], found["symdnn"] = np.__version__, getattr(symdnn, "__version__", "")
    found["copy_gbs"] = copy_rate(device)
    for name, dtype, n in (("tf32", "float32", 4096), ("bf16", "bfloat16", 8192)):
        try:
            found[f"mm_{name}_tflops"] = product_rate(device, dtype, n)
        except Exception as error:
            found[f"mm_{name}_error"] = f"{type(error).__name__}: {str(error)[:200]}"
    return found


def copy_rate(device: Device, nbytes: int = 1 << 30) -> float:
    """GB/s of a copy on the device, bytes read and written counted."""
    value = np.full(nbytes // 4, 1.1, np.float32)
    a, b = device.put(value), device.put(value)
    record = device.time(lambda: device.copy(b, a, nbytes), min_time=0.15)
    return float(2 * nbytes / record["ms"] / 1e6)


def product_rate(device: Device, dtype: str, n: int) -> float:
    """TFLOP/s of symdnn's product of two square matrices."""
    import symdnn
    import symdnn.tensor as T
    from benchmarks.gpu.symdnn_nets import symdnn_dtype

    rng = np.random.default_rng(0)
    a, b = (
        symdnn.shared(rng.standard_normal((n, n), np.float32).astype(symdnn_dtype(dtype)))
        for _ in range(2)
    )
    f = symdnn.function([], symdnn.Out(T.dot(a, b), borrow=True))
    return float(2 * n**3 / device.time(f, min_time=0.1)["ms"] / 1e9)


def commit() -> str:
    """The commit that is measured: ``SYMDNN_COMMIT``, or git's."""
    named = os.environ.get("SYMDNN_COMMIT")
    if named:
        return named
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip()
