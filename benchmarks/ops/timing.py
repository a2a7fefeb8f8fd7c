"""Times one row, and a copy of as many bytes, on the CPU or a GPU."""

from __future__ import annotations

import gc
import os
import time
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from benchmarks.gpu.device import Device, commit, facts, time_limit
from benchmarks.ops.program import NotThere, build
from benchmarks.ops.rows import Row

__all__ = ["Timer"]

#: Largest relative error of a right result, by the widest dtype that rounds it.
TOLERANCE = {"float32": 2e-4, "float64": 1e-9, "bfloat16": 6e-2, "float16": 1e-2}

#: Rows of large sizes whose calls would take longer are left out.
LONGEST_CALL_S = 10.0

#: So are rows that take longer than this in all: references in NumPy, compiling, repeating.
LONGEST_ROW_S = 60.0


class Timer:
    """Times rows on one device."""

    def __init__(self, on_gpu: bool, seconds: float = 0.03) -> None:
        self.device = Device(on_gpu, seconds)
        self.on_gpu, self.seconds = on_gpu, seconds

    def facts(self) -> dict[str, Any]:
        """Machine, versions, commit and the time of an empty call in ms."""
        found = facts(self.device) if self.on_gpu else {"device": "cpu", "commit": commit()}
        return {**found, "processors": os.cpu_count(), "call_ms": self.call_ms()}

    def record(self, row: Row) -> dict[str, Any]:
        """The row's record: ``ms``, ``floor_ms``, ``nbytes``, ``relerr``; or why there is none."""
        found: dict[str, Any] = {"row": row.id, "op": row.op}
        try:
            late = NotThere(f"the row takes longer than {LONGEST_ROW_S:.0f} s")
            with time_limit(LONGEST_ROW_S, late):
                return {**found, **self._measured(row)}
        except NotThere as reason:
            return {**found, "none": str(reason)[:200]}
        except Exception as error:
            return {**found, "error": f"{type(error).__name__}: {error}"[:300]}
        finally:
            gc.collect()

    def _measured(self, row: Row) -> dict[str, Any]:
        if row.size == "large":
            self._check_duration(replace(row, size="middle"))
        program = build(row)
        arrays = [self.device.put(a) if np.ndim(a) else a for a in program.arrays]
        results = [self.device.host(r) for r in program.function(*arrays)]
        error = program.error(results)
        limit = TOLERANCE.get(row.dtype, 1e-6)
        nbytes = sum(np.asarray(a).nbytes for a in program.arrays) + sum(r.nbytes for r in results)
        del results
        ms = self._time(lambda: program.function(*arrays))
        floor = max(self.call_ms(), self.copy_ms(nbytes))
        record = {"ms": ms, "floor_ms": floor, "nbytes": nbytes, "relerr": error}
        record["compile_s"] = round(program.compile_s, 3)
        if error is not None and not error <= limit and not row.case.stateful:
            record["wrong"] = not error <= program.noise()
        return record

    def _check_duration(self, row: Row) -> None:
        """Raise :class:`NotThere` where 60 times as much work would take too long."""
        program = build(row)
        program.function(*program.arrays)
        began = time.perf_counter()
        program.function(*program.arrays)
        seconds = time.perf_counter() - began
        if 60 * seconds > LONGEST_CALL_S:
            raise NotThere(f"a call of the middle size takes {seconds:.2f} s")

    def _time(self, call: Any) -> float:
        """The best of three medians, in ms."""
        return min(float(self.device.time(call)["ms"]) for _ in range(3))

    @cache  # noqa: B019 (one timer lives as long as the process)
    def call_ms(self) -> float:
        """Milliseconds of a call that adds one to one number."""
        import symdnn
        import symdnn.tensor as T

        x = T.fvector("x")
        f = symdnn.function([x], symdnn.Out(x + 1, borrow=True))
        value = self.device.put(np.ones(1, np.float32))
        return self._time(lambda: f(value))

    @cache  # noqa: B019
    def copy_ms(self, nbytes: int) -> float:
        """Milliseconds of a copy that reads and writes ``nbytes`` in all."""
        half = max(nbytes // 2, 4)
        source = self.device.put(np.zeros(half, np.uint8))
        target = self.device.put(np.zeros(half, np.uint8))
        if not self.on_gpu:
            return self._time(lambda: np.copyto(target, source))
        return self._time(lambda: self.device.copy(target, source, half))
