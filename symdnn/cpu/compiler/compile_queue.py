"""A queue of LLVM modules to compile, and a second process that compiles them in the background.

A plan names early the kernels that it will run. Their modules are queued, and a worker process
compiles one after the other. When this process needs a module at once, it takes it out of the queue
and compiles it itself. If the worker has already begun it, this process waits, and compiles other
queued modules meanwhile. Threads would not help: llvmlite lets one thread in at a time.

A module with instructions that LLVM has never compiled here (:mod:`symdnn.cpu.compiler.proven`) is
left to the worker, since LLVM may abort the process.
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

#: Idle time after which the worker process ends.
_MAX_IDLE_S = 5.0
_threads = config.reader("openmp.threads")


class Job:
    """A module's text, and its object code once it is compiled."""

    def __init__(
        self,
        text: str,
        kinds: frozenset[str] = frozenset(),
        proven: bool = True,
        made: Callable[[Callable[[], bytes | None]], bytes | None] | None = None,
    ) -> None:
        self.text, self._process = text, os.getpid()
        #: What calls the compiler, unless another rank of the program has compiled the module.
        self.made = made
        #: Kinds of its instructions, and whether LLVM has compiled all of them before.
        self.kinds, self.proven = kinds, proven
        self.code: bytes | None = None
        #: The exit status or signal of a worker process that crashed on it; empty if none did.
        self.crash = ""
        self._ended = threading.Event()

    @property
    def inherited(self) -> bool:
        """Whether it was queued before a fork: the worker belongs to the parent."""
        return self._process != os.getpid()

    @property
    def ended(self) -> bool:
        """Whether nobody works on it any more: compiled, refused or handed back."""
        return self._ended.is_set()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it has ended or the time is over; returns whether it has ended."""
        return self._ended.wait(seconds)

    def end(self, code: bytes | None) -> None:
        """Store its object code. None means there is none: whoever needs it compiles it."""
        self.code = code
        self._ended.set()

    def run(self, compile_text: Callable[[str], bytes | None]) -> None:
        """Compile it. It ends even when an exception is raised: another thread may wait for it."""
        code = None
        try:
            if self.made is None:
                code = compile_text(self.text)
            else:
                code = self.made(lambda: compile_text(self.text))
        except WorkerCrashed as crash:
            self.crash = str(crash)
        finally:
            self.end(code)


class WorkerCrashed(Exception):
    """LLVM crashed the worker process; the text is the exit status or the signal."""


class Queue:
    """Jobs in the order of their arrival, and the worker process that compiles them."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[int, Job] = OrderedDict()
        self._changed = threading.Condition()
        self._worker: _WorkerThread | None = None
        self._closed = False

    def add(self, job: Job) -> None:
        """Queue a job; the worker starts with the second one that waits."""
        with self._changed:
            self._jobs[id(job)] = job
            self._changed.notify()
            several = len(self._jobs) > 1
        if several:
            self.wake()

    def prioritize(self, job: Job) -> bool:
        """Make a job the worker's next one; False if there can be no worker."""
        with self._changed:
            if id(job) in self._jobs:
                self._jobs.move_to_end(id(job), last=False)
        self.wake(alone=True)
        with self._changed:
            return not self._closed

    def may_work(self) -> bool:
        """Whether the worker process may compile now, beside this one."""
        return not self._closed and _may_use_second_processor()

    def wake(self, alone: bool = False) -> None:
        """Start the worker process, if there is none yet and a second processor is free.

        ``alone`` starts it without a second processor too, for jobs that only it may compile.
        """
        with self._changed:
            if (
                self._worker is not None
                or self._closed
                or not (alone or _may_use_second_processor())
            ):
                return
            worker = self._worker = _WorkerThread(self)
        try:
            worker.start()
        except RuntimeError:  # there can be no more threads: the program is about to end
            self.close()

    def take(self, job: Job | None = None) -> Job | None:
        """Remove a job from the queue: this one, or the newest that this process may compile.

        None if the job is not queued any more, or there is none.
        """
        with self._changed:
            if job is not None:
                return self._jobs.pop(id(job), None)
            newest = next((k for k in reversed(self._jobs) if self._jobs[k].proven), None)
            return None if newest is None else self._jobs.pop(newest)

    def next(self) -> Job | None:
        """Remove the oldest job, for the worker; None after :data:`_MAX_IDLE_S` without any."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._closed, _MAX_IDLE_S)
            if self._closed or not self._jobs:
                self._worker = None
                return None
            return self._jobs.popitem(last=False)[1]

    def close(self) -> None:
        """Have no worker process from now on."""
        with self._changed:
            self._worker, self._closed = None, True
            self._changed.notify()

    def forget(self, worker: _WorkerThread) -> None:
        """Note that a worker's process has crashed, so that the next job starts another."""
        with self._changed:
            if self._worker is worker:
                self._worker = None


class _WorkerThread(threading.Thread):
    """Sends one job at a time to the worker process, and ends it when the queue stays empty."""

    def __init__(self, queue: Queue) -> None:
        super().__init__(name="symdnn-compile", daemon=True)
        self._queue, self._owner = queue, os.getpid()
        self._process: Any = None

    def run(self) -> None:
        self._process = process = _start_process()
        if process is None:
            self._queue.close()
            return
        atexit.register(self._stop_at_exit)
        while (job := self._queue.next()) is not None:
            job.run(partial(_compile_in, process))
            if job.crash:
                self._queue.forget(self)
                break
            if process.poll() is not None:
                self._queue.close()
        atexit.unregister(self._stop_at_exit)
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):  # closing flushes into a pipe without a reader
                pipe.close()

    def _stop_at_exit(self) -> None:
        """End the worker process when the program ends, unless a parent process owns it."""
        if self._owner != os.getpid():
            return  # another thread may have held the locks at the fork
        self._queue.close()
        self._process.kill()
        self.join()


def _may_use_second_processor() -> bool:
    """Whether this program may keep two processors busy."""
    alone = int(_threads()) == 1 or os.environ.get("OMP_NUM_THREADS") == "1"
    return not alone and len(os.sched_getaffinity(0)) > 1


def _start_process() -> Any:
    """Start a worker process; None if it cannot be started."""
    name = os.path.basename(sys.executable or "")
    if not name.startswith("python") or getattr(sys, "frozen", False):
        return None  # an embedded or frozen Python: the executable would run something else
    try:
        import llvmlite

        folder = str(Path(str(llvmlite.__file__)).parents[1])
        command = [sys.executable, "-I", "-S", str(Path(str(llvm_worker.__file__))), folder]
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except (OSError, ImportError, ValueError):
        return None


def _compile_in(process: Any, text: str) -> bytes | None:
    """The object code; None if LLVM refuses the text, or the process was ended from outside.

    Raises :class:`WorkerCrashed` if LLVM crashed it.
    """
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
        if ended > 0 or -ended in _CRASH_SIGNALS:
            raise WorkerCrashed(f"exit {ended}" if ended > 0 else signal.Signals(-ended).name)
        return None
    return answer[1:] if answer[:1] == b"\1" else None


#: Signals of a crash; any other signal was sent by somebody else.
_CRASH_SIGNALS = {
    signal.SIGABRT,
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGILL,
    signal.SIGFPE,
    signal.SIGTRAP,
}
