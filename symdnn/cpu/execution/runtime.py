"""The CPU as a runtime: its memory, its lock, an arena for each depth of nested calls."""

from __future__ import annotations

import contextlib
import contextvars
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from symdnn.config import config
from symdnn.cpu import registry
from symdnn.cpu.compiler import jit, object_cache
from symdnn.cpu.execution.arena import Arena
from symdnn.cpu.execution.argument_copies import ArgumentCopies
from symdnn.cpu.execution.laid_out import in_layout
from symdnn.cpu.execution.output_buffers import LoopBuffers
from symdnn.cpu.execution.plan import CpuPlan
from symdnn.cpu.execution.whole_function import CpuWholeFunction
from symdnn.cpu.execution.whole_loop import CpuWholeLoop
from symdnn.cpu.threads import thread_pools
from symdnn.graph.place import HOST
from symdnn.graph.runtime import Runtime
from symdnn.graph.typing import Array
from symdnn.graph.variable import Constant

__all__ = ["CpuRuntime", "runtime"]


class HostMemory:
    """Memory of storages on the CPU: the host array itself."""

    place = HOST

    def upload(self, array: Array, into: Any) -> Any:
        """The array itself."""
        return array

    def download(self, buffer: Any) -> Array:
        """The array itself."""
        return buffer

    def lend(self, buffer: Any) -> Array:
        """The array itself."""
        return buffer


def _quiet_context() -> contextvars.Context | None:
    """A context in which NumPy does not warn; None for NumPy 1, whose setting is per thread."""
    if int(np.__version__.partition(".")[0]) < 2:
        return None
    context = contextvars.Context()
    context.run(np.seterr, all="ignore")
    return context


class CpuRuntime(Runtime):
    """One lock, and an arena for each depth of nested calls (by a user's callback)."""

    def __init__(self) -> None:
        self.memory = HostMemory()
        self.lock = threading.RLock()
        self.arenas: list[Arena] = []
        self.depth = -1
        self._copies = ArgumentCopies()
        self.quiet = _quiet_context()
        os.register_at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        # A thread that does not exist in the child may have held the lock.
        self.lock, self.depth = threading.RLock(), -1
        self.quiet = _quiet_context()

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the lock for one call, with an arena of its own in a nested one.

        Ctrl-C may fall between any two steps of Python's. ``with`` and a generator lose no lock: it
        is released at the latest with the error's traceback.
        """
        with self.lock:
            depth = self.depth
            if depth + 1 == len(self.arenas):
                self.arenas.append(Arena())
            self.depth = depth + 1
            try:
                yield
            finally:
                if self.depth > depth:  # what a traceback held may end in any order
                    self.depth = depth

    def dense(self, array: Array) -> Array:
        """A copy in C order."""
        with self.lock:
            return self._copies(array)

    def in_layout(self, plan: CpuPlan, arrays: Sequence[Any]) -> CpuPlan | None:
        """A plan for arrays with the strides of these; None where it takes contiguous ones."""
        with thread_pools.limited(0):
            return in_layout(plan, arrays)

    def trim(self) -> None:
        """Return memory of freed plans to the system; does nothing inside of a call."""
        with self.lock:
            if self.depth >= 0:
                return
            for arena in self.arenas:
                arena.shrink()
            object_cache.clear()
            jit.forget_recent()
            super().trim()

    def quietly(self, run: Any, entering: Sequence[Any], closed: bool) -> Any:
        """``run(entering)`` without NumPy's warnings, with the lock held.

        ``closed`` says that no user's code runs inside. Then it runs in a context of its own, which
        takes less than a tenth of the time of ``np.errstate``; but not while flags are changed for
        a block, which that context would not see.
        """
        if closed and self.quiet is not None and not config.is_changed_here:
            return self.quiet.run(run, entering)
        with np.errstate(all="ignore"):
            return run(entering)

    def bind(self, specialised: Any, memory_plan: Any) -> CpuPlan:
        """Bind the launches. Buffers are bound at the first run, and again when the arena grows."""
        with thread_pools.limited(0):
            return CpuPlan(self, specialised, memory_plan)

    def to_host(self, value: Any) -> Array:
        """The array itself."""
        return value

    def lend(self, value: Any) -> Array:
        """The array itself."""
        return value

    def fresh(self, value: Any) -> Array:
        """A contiguous copy."""
        return np.array(value, order="C", copy=True)

    def loop_graphs(self, fresh: bool) -> None:
        """There are no graphs on a CPU."""

    def placed(self, v: Constant) -> Array:
        """A constant's value."""
        return v.data

    def loop_arrays(self) -> LoopBuffers:
        """NumPy's arrays, in memory that is recycled."""
        return LoopBuffers()

    def whole_loop(self, op: Any) -> CpuWholeLoop:
        """The runner of a scan of small steps."""
        return CpuWholeLoop(op)

    def whole_function(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> CpuWholeFunction:
        """The runner of a graph with loops of small steps."""
        return CpuWholeFunction(inputs, outputs)

    def update(self, pairs: Sequence[tuple[Any, Any]]) -> None:
        """Write new values of storages: into their buffers, or a new one for another shape.

        A value that a plan has computed in the storage's own buffer is only marked as written.
        """
        for storage, value in pairs:
            if value.shape == storage.shape:
                host = storage.host()
                if value is not host:
                    np.copyto(host, value)
                storage.written(HOST)
            else:
                storage.set(value)

    def facts(self) -> Mapping[str, Any]:
        """The device, and the version of NumPy."""
        return {"device": str(HOST), "kernels": f"NumPy {np.__version__}"}


registry.load()
_runtime = CpuRuntime()


def runtime() -> CpuRuntime:
    """The process's CPU runtime."""
    return _runtime
