"""The parent's end: processes that hold a side each, and what else the machine did meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["AVX2", "ROOT", "Process", "Processes", "Window", "environment", "wait_for_calm"]

_REST_S = 1.0
#: By which the libraries use no AVX-512.
AVX2 = {
    "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2",
    "XLA_FLAGS": "--xla_cpu_max_isa=AVX2", "OPENBLAS_CORETYPE": "Haswell",
    "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",
}  # fmt: skip
ROOT = Path(__file__).resolve().parents[2]


def environment(threads: int, **more: str) -> dict[str, str]:
    """The same number of threads for all, and how they wait left to each library."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "MKL_", "OPENBLAS_"))}
    flags = f"device=cpu,{kept.get('SYMDNN_FLAGS', '')}".strip(",")
    path = os.pathsep.join(filter(None, [str(ROOT), kept.get("PYTHONPATH")]))
    ours = {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": path, "SYMDNN_FLAGS": flags}
    return {**kept, **ours, **more}


@dataclass(frozen=True)
class Window:
    """Milliseconds a call, and of the fastest one; processors that others used meanwhile (1.0: one
    of them); milliseconds of processors that a call used, waiting threads included.
    """

    ms: float
    least: float
    foreign: float
    cpu_ms: float = 0.0


class Process:
    """A framework's worker."""

    def __init__(
        self, python: str, framework: str, env: dict[str, str], tiny: bool, nice: int = 0
    ) -> None:
        command = [python, "-m", "benchmarks.cpu.worker", framework] + ["--tiny"] * tiny
        command += ["--avx2"] * (AVX2.items() <= env.items())
        processors = sorted(os.sched_getaffinity(0))[: int(env["OMP_NUM_THREADS"])]

        def start() -> None:
            os.sched_setaffinity(0, processors)
            if nice:
                os.nice(nice)

        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=env,
            stderr=None if os.environ.get("BENCHMARK_STDERR") else subprocess.DEVNULL,
            preexec_fn=start,
        )  # fmt: skip
        if "ready" not in self._read():
            raise RuntimeError(f"{' '.join(command)} did not start")

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return json.loads(line) if line else {"error": "the process ended", "ended": True}

    def ask(self, do: str, **more: Any) -> dict[str, Any]:
        """An order's answer; ``error`` says what went wrong, ``ended`` that nobody is left."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **more}) + "\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):  # ended, or the pipe closed by end()
            return {"error": "the process ended", "ended": True}
        return self._read()

    def window(self, variant: str, calls: int) -> Window:
        """A window of calls."""
        before, began = _busy_seconds(), time.perf_counter()
        answer = self.ask("run", variant=variant, calls=calls)
        passed = time.perf_counter() - began
        if "error" in answer:
            raise RuntimeError(answer["error"])
        foreign = (_busy_seconds() - before - answer["cpu"]) / passed
        per_call = 1e3 / calls
        return Window(
            answer["s"] * per_call, answer["least"] * 1e3, max(0.0, foreign),
            answer["cpu"] * per_call,
        )  # fmt: skip

    def used(self) -> float:
        """Seconds of processors that its threads have used, waiting in a loop included (Linux)."""
        used = 0
        for file in Path(f"/proc/{self._process.pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):  # a thread that has just ended
                used += int(file.read_text().split()[0])
        return used * 1e-9

    def end(self) -> None:
        """Let the process go."""
        try:
            self._process.communicate(timeout=10)  # closes the pipes
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


def _busy_seconds() -> float:
    """Seconds that all processors were busy since the machine started, stolen ones included."""
    try:
        numbers = [int(n) for n in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    except OSError:  # not Linux
        return 0.0
    idle = numbers[3] + numbers[4]
    return (sum(numbers) - idle) / os.sysconf("SC_CLK_TCK")


def wait_for_calm(seconds: float, wanted: float = 0.2) -> bool:
    """Whether others came to use no more processors than this, at most so much later."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        before = _busy_seconds()
        time.sleep(0.3)
        if (_busy_seconds() - before) / 0.3 <= wanted:
            return True
    return False


class Processes:
    """The workers by framework, started when they are first needed and again when they ended."""

    def __init__(
        self, peers_python: str, threads: int, tiny: bool, nice: int = 0, avx2: bool = False
    ) -> None:
        self.peers_python, self.threads, self.avx2 = peers_python, threads, avx2
        self.tiny, self.nice = tiny, nice
        self.running: dict[str, Process] = {}
        self.missing: dict[str, str] = {}

    def python(self, framework: str) -> str:
        """The interpreter that has the framework."""
        return sys.executable if framework == "symdnn" else self.peers_python

    def of(self, variant: str) -> Process | None:
        """The process of a variant's framework; None where that cannot be loaded."""
        framework = variant.split(".")[0]
        if framework in self.missing:
            return None
        if framework not in self.running:
            env = environment(self.threads, **(AVX2 if self.avx2 else {}))
            try:
                python = self.python(framework)
                process = Process(python, framework, env, self.tiny, self.nice)
            except (RuntimeError, OSError) as error:
                self.missing[framework] = str(error)
                return None
            self.running[framework] = process
        return self.running[framework]

    def wait_for_rest(self) -> bool:
        """Whether no worker's threads use a processor any more, at most :data:`_REST_S` later.

        OpenBLAS's threads look for work for 0.1 s after their last product, libgomp's for 15 ms:
        whoever runs next to them has one processor less.
        """
        end = time.monotonic() + _REST_S
        while time.monotonic() < end:
            before = [p.used() for p in self.running.values()]
            time.sleep(0.01)
            now = [p.used() for p in self.running.values()]
            if sum(now) - sum(before) < 5e-4:
                return True
        return False

    def drop(self) -> None:
        """Forget all jobs; who does not answer any more is started again later."""
        for framework, process in list(self.running.items()):
            if process.ask("drop").get("ended"):
                process.end()
                del self.running[framework]

    def end(self) -> None:
        """Let all go."""
        for process in self.running.values():
            process.end()
        self.running.clear()
