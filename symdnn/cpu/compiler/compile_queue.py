"""Modules that are to be compiled, while this process does something else.

A plan says early which kernels it will run. They wait in a queue, from which a second process
compiles one after the other. This process takes what it needs at once out of the queue and compiles
it itself; what the other one has begun it waits for, and compiles what is left in the queue
meanwhile. LLVM in threads would do as well, but llvmlite lets one thread in at a time.

What is not proven (:mod:`symdnn.cpu.compiler.proven`) is for the other process alone: LLVM may end
it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from symdnn.config import config
from symdnn.cpu.compiler import llvm_worker

__all__ = ["Job", "Queue"]

#: The other process ends after so many seconds without work.
_IDLE_S = 5.0
_threads = config.reader("openmp.threads")


class Job:
    """A module's text, and its object code once somebody has compiled it."""

    def __init__(self, text: str, kinds: frozenset[str] = frozenset(), proven: bool = True) -> None:
        self.text, self._process = text, os.getpid()
        #: Kinds of its instructions, and whether LLVM is known to compile all of them.
        self.kinds, self.proven = kinds, proven
        self.code: bytes | None = None
        #: How LLVM ended the process that compiled it; empty where it did not.
        self.harm = ""
        self._ended = threading.Event()

    @property
    def inherited(self) -> bool:
        """Whether a parent's other process has it, which knows nothing of this one."""
        return self._process != os.getpid()

    @property
    def ended(self) -> bool:
        """Whether nothing more will come of it."""
        return self._ended.is_set()

    def wait(self, seconds: float | None = None) -> bool:
        """Until it has ended, or for so long; whether it has."""
        return self._ended.wait(seconds)

    def end(self, code: bytes | None) -> None:
        """Note what came of it; None: nothing, who needs it has to compile it."""
        self.code = code
        self._ended.set()

    def do(self, compiled: Callable[[str], bytes | None]) -> None:
        """Compile it. It has ended then, with Ctrl-C too: somebody else may wait for it."""
        code = None
        try:
            code = compiled(self.text)
        except Harmed as harm:
            self.harm = str(harm)
        finally:
            self.end(code)


class Harmed(Exception):
    """LLVM has ended the process that compiled a text; says how."""


class Queue:
    """Jobs in the order of their arrival, and the process that works on them."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[int, Job] = OrderedDict()
        self._changed = threading.Condition()
        self._worker: _Worker | None = None
        self._closed = False

    def add(self, job: Job) -> None:
        """Have a job done some time."""
        with self._changed:
            self._jobs[id(job)] = job
            self._changed.notify()
            several = len(self._jobs) > 1
        if several:
            self.wake()

    def hurry(self, job: Job) -> bool:
        """Have the other process do a job next; False where there is none."""
        with self._changed:
            if id(job) in self._jobs:
                self._jobs.move_to_end(id(job), last=False)
        self.wake(alone=True)
        with self._changed:
            return not self._closed

    def wake(self, alone: bool = False) -> None:
        """Start the other process, where there is none and a processor for it (or it is ``alone``
        to do what waits)."""
        with self._changed:
            if self._worker is not None or self._closed or not (alone or _second_processor()):
                return
            worker = self._worker = _Worker(self)
        try:
            worker.start()
        except RuntimeError:  # there can be no more threads: the program is about to end
            self.close()

    def take(self, job: Job | None = None) -> Job | None:
        """A job out of the queue: that one, or the last that this process may do; None where it is
        not there."""
        with self._changed:
            if job is not None:
                return self._jobs.pop(id(job), None)
            ours = next((k for k in reversed(self._jobs) if self._jobs[k].proven), None)
            return None if ours is None else self._jobs.pop(ours)

    def next(self) -> Job | None:
        """The first job, for the other process; None after some time without any."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._closed, _IDLE_S)
            if self._closed or not self._jobs:
                self._worker = None
                return None
            return self._jobs.popitem(last=False)[1]

    def close(self) -> None:
        """No other process is wanted any more, or can be had."""
        with self._changed:
            self._worker, self._closed = None, True
            self._changed.notify()

    def left(self, worker: _Worker) -> None:
        """A worker's process has ended: the next one that is wanted is another."""
        with self._changed:
            if self._worker is worker:
                self._worker = None


class _Worker(threading.Thread):
    """Hands one job at a time to a process, and ends it when there are no more."""

    def __init__(self, queue: Queue) -> None:
        super().__init__(name="symdnn-compile", daemon=True)
        self._queue, self._owner = queue, os.getpid()
        self._process: Any = None

    def run(self) -> None:
        self._process = process = _started()
        if process is None:
            self._queue.close()
            return
        atexit.register(self._leave)
        while (job := self._queue.next()) is not None:
            job.do(partial(_compiled_by, process))
            if job.harm:
                self._queue.left(self)
                break
            if process.poll() is not None:
                self._queue.close()
        atexit.unregister(self._leave)
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):  # what was to be written to it
                pipe.close()

    def _leave(self) -> None:
        """The program ends: so does the other process, unless it is a parent's."""
        if self._owner != os.getpid():
            return  # locks may have been taken when this process was forked
        self._queue.close()
        self._process.kill()
        self.join()


def _second_processor() -> bool:
    """Whether this program may keep two processors busy."""
    alone = int(_threads()) == 1 or os.environ.get("OMP_NUM_THREADS") == "1"
    return not alone and len(os.sched_getaffinity(0)) > 1


def _started() -> Any:
    """The process, or None where it cannot be started."""
    name = os.path.basename(sys.executable or "")
    if not name.startswith("python") or getattr(sys, "frozen", False):
        return None  # a program with a Python in it: started again it would do something else
    try:
        import llvmlite

        folder = str(Path(str(llvmlite.__file__)).parents[1])
        command = [sys.executable, "-I", "-S", str(Path(str(llvm_worker.__file__))), folder]
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except (OSError, ImportError, ValueError):
        return None


def _compiled_by(process: Any, text: str) -> bytes | None:
    """The object code; None where LLVM refuses the text, or the process has gone."""
    try:
        llvm_worker.write_frame(process.stdin, text.encode())
        answer = llvm_worker.read_frame(process.stdout)
    except (OSError, ValueError):
        answer = None
    if answer is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1)
        process.kill()
        ended = process.wait()
        if ended > 0 or -ended in _HARM:
            raise Harmed(f"exit {ended}" if ended > 0 else signal.Signals(-ended).name)
        return None
    return answer[1:] if answer[:1] == b"\1" else None


#: Signals by which LLVM ends a process: others come from outside.
_HARM = {
    signal.SIGABRT,
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGILL,
    signal.SIGFPE,
    signal.SIGTRAP,
}
