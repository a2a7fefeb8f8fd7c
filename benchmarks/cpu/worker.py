"""One side in a process of its own: it prepares a case, and runs windows of calls when told to.

    python -m benchmarks.cpu.worker symdnn|torch|jax|pytensor [--tiny] [--avx2]

A line of JSON in, a line of JSON out. Nothing here is started by hand: ``run`` does.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.cpu import spec
from benchmarks.cpu.jobs import Job, checksums
from tests.cpu import older_processor

__all__ = ["Worker", "main"]


class Worker:
    """The prepared jobs of one framework, by variant."""

    def __init__(self, framework: str, tiny: bool = False) -> None:
        began = time.perf_counter()
        self.side = importlib.import_module(f"benchmarks.cpu.side_{framework}")
        self.tiny = tiny
        self.import_s = time.perf_counter() - began
        self.jobs: dict[str, Job] = {}

    def answer(self, order: dict[str, Any]) -> dict[str, Any]:
        """What an order gives; an exception is an answer too."""
        try:
            do: Callable[..., dict[str, Any]] = getattr(self, order.pop("do"))
            return do(**order)
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"[:400]}

    def facts(self) -> dict[str, Any]:
        """Versions and threads, and the seconds that loading took."""
        return {**self.side.facts(), "import_s": self.import_s}

    def prepare(self, case: str, variant: str) -> dict[str, Any]:
        """Build a case, run it once, and say what it gave."""
        began = time.perf_counter()
        job = self.side.prepare(spec.find(case, self.tiny), variant)
        out = job.step()
        first = time.perf_counter() - began
        self.jobs[variant] = job
        sums = checksums(job.results(out))
        job.step()
        return {"first_s": first, "checks": sums, "ms": self._estimate(job) * 1e3}

    def _estimate(self, job: Job) -> float:
        """Seconds of a call, roughly."""
        calls = 1
        while True:
            began = time.perf_counter()
            for _ in range(calls):
                job.step()
            passed = time.perf_counter() - began
            if passed > 0.02 or calls > 10**5:
                return passed / calls
            calls *= 4

    def run(self, variant: str, calls: int) -> dict[str, Any]:
        """The seconds of a window of calls, of the fastest one, and of this process's processors.

        The first call, which finds other data in the caches, is made before.
        """
        step, clock, least = self.jobs[variant].step, time.perf_counter, float("inf")
        step()
        busy = _processor_seconds()
        began = clock()
        if calls > 2000:  # too short to be timed one by one
            for _ in range(calls):
                step()
        else:
            before = began
            for _ in range(calls):
                step()
                now = clock()
                least, before = min(least, now - before), now
        passed = clock() - began
        least = min(least, passed / calls)
        return {"s": passed, "least": least, "cpu": _processor_seconds() - busy}

    def memory(self, case: str, variant: str) -> dict[str, Any]:
        """Resident MB before the case and at the peak of its steady state (Linux)."""
        before = _status("VmRSS")
        self.prepare(case, variant)
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak of compiling
        self.run(variant, 3)
        return {"before_mb": before, "peak_mb": _status("VmHWM")}

    def drop(self) -> dict[str, Any]:
        """Forget all jobs."""
        self.jobs.clear()
        self.side.drop()
        gc.collect()
        return {}


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _status(key: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) / 1e3
    raise KeyError(key)


def main() -> None:
    """Serve until the input ends."""
    # What a library prints must not get between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if "--avx2" in sys.argv and sys.argv[1] == "symdnn":
        older_processor.pretend()
    worker = Worker(sys.argv[1], "--tiny" in sys.argv)
    answers.write('{"ready": true}\n')
    answers.flush()
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        for line in sys.stdin:
            answers.write(json.dumps(worker.answer(json.loads(line))) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
