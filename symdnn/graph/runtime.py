"""The interface of a target's runtime: memory for storages, and plans bound to a device."""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from symdnn.graph.values.storage import Storage
from symdnn.graph.variable import Apply

__all__ = ["COMPILE_CLOCK", "BoundPlan", "CompileClock", "Runtime", "Watcher", "garbage"]


class CompileClock:
    """The seconds in which launches of this process waited for their kernels to be compiled."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Count the time inside."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - start


COMPILE_CLOCK = CompileClock()


class Watcher:
    """Called before and after each node of a watched run, with arrays on the host."""

    #: Whether it looks at values; to one that does not, a device gives its own arrays.
    reads_values = True
    #: After a node that ran on a device, what it took there.
    device_seconds: float | None = None

    #: Whether output buffers on a device are filled with garbage before kernels write them.
    garbage = False

    def __call__(self, node: Apply, inputs: Sequence[Any], outputs: Sequence[Any] | None) -> None:
        """``outputs`` is None before the node runs."""


def garbage(shape: Sequence[int], dtype: Any) -> Any:
    """An array of values that are unlikely as results: very large numbers, or True."""
    raw = np.full(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize, 0x7F, np.uint8)
    if dtype == np.bool_:
        raw[:] = 1
    return raw.view(dtype).reshape(shape)


class Together(Protocol):
    """What ranks that run the same collectives agree on, so that their calls are graphs alike."""

    @property
    def why(self) -> str:
        """Why a rank can't capture plans with these collectives; empty if all can."""

    @property
    def first(self) -> bool:
        """Whether the ranks have not captured any yet, and may."""

    def captured(self, failure: str) -> str:
        """Tell the other ranks, in the call in which all capture for the first time, why it failed
        here (empty: it did not); returns why one of them failed.

        Later no rank waits for another one: raises
        :class:`~symdnn.errors.DistributedError` for a failure.
        """


class BoundPlan:
    """A plan at real addresses. Running it is: copy in, launch, copy out."""

    #: Whether it runs no user's code and no BLAS.
    closed: bool = False
    #: The captured graph that runs it, if there is one.
    replay: Any = None
    #: Why it can't be captured; empty if it can be, and on a device without CUDA graphs.
    not_captured: str = ""
    #: Whether its next run is a captured graph even if it is the first, as those of other ranks.
    at_once: bool = False
    #: What it has to agree on with other ranks; None without collectives of several ranks.
    together: Together | None = None
    #: How many bytes collectives have in registered memory, or why none; empty if none ask for it.
    registered_state: str = ""

    @property
    def never_captured(self) -> bool:
        """Whether every call enqueues its steps one by one, whatever other ranks do."""
        return bool(self.not_captured) and self.together is None

    @property
    def nbytes(self) -> int:
        """Memory that it keeps for itself, besides the arena."""
        raise NotImplementedError

    @property
    def capture_state(self) -> str:
        """Whether it is captured, or the reason why not; empty on a device without CUDA graphs."""
        return ""

    @property
    def is_captured(self) -> bool:
        """Whether a graph runs it, or it enqueues nothing that a graph could have."""
        return False

    def join(self, what: str) -> None:
        """It is part of a larger graph from now on, for reports ``what``."""

    def run(self, entering: Sequence[Any], watcher: Watcher | None = None) -> list[Any]:
        """The segment's outputs, given its inputs, both in the segment's order."""
        raise NotImplementedError

    def repeats(self) -> bool:
        """Whether :meth:`repeat` may be worth a call now."""
        return False

    def repeat(
        self, times: int, entering: Sequence[tuple[Any, bool]], outputs: Sequence[Any]
    ) -> int:
        """Run so often at once, with results in ``outputs``, which have an entry for each time.

        ``entering`` are pairs of an array and whether it has an entry for each time too. Returns
        how often it ran, which may be less: 0 where it cannot, or up to a failure.
        """
        return 0

    def become_hot(self) -> None:
        """Have the next run compile what runs of a plan that is called often have compiled."""


class Runtime:
    """A device as ``compile`` sees it."""

    #: Its :class:`~symdnn.graph.values.storage.DeviceMemory`.
    memory: Any
    #: ``adopt(value, what)`` takes an array on the device; None if there are no such arrays.
    adopt: Callable[..., Any] | None = None

    def known(self, value: object) -> Any:
        """An array on the device that was taken before and is where it was; else None."""

    def dense(self, array: Any) -> Any:
        """A copy in C order of an array on the host."""
        return array.copy()

    def settle(self) -> None:
        """Wait for enqueued work, and raise the errors that kernels reported."""

    def trim(self) -> None:
        """Give memory back to the system that nothing uses: here, of the C library's heap."""
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only GNU's has it
        if trim is not None:
            trim(ctypes.c_size_t(0))

    def memory_use(self) -> Any:
        """symdnn's use of the device's own memory; None for the host."""
        return None

    def begin(self, call: Any, kernel: Any) -> None:
        """A kernel was chosen for a call of a plan that is being made: it may begin to compile."""

    def bind(self, specialised: Any, memory_plan: Any) -> BoundPlan:
        """Bind a plan to the device."""
        raise NotImplementedError

    def exclusive(self) -> contextlib.AbstractContextManager[None]:
        """A context for a call: calls on one device exclude each other."""
        raise NotImplementedError

    def to_host(self, value: Any) -> Any:
        """A value as a NumPy array."""
        raise NotImplementedError

    def lend(self, value: Any) -> Any:
        """A value in its place, without a copy, as an array of a type for users."""
        raise NotImplementedError

    def fresh(self, value: Any) -> Any:
        """A copy that the user may keep."""
        raise NotImplementedError

    def fresh_all(self, values: Sequence[Any], which: Sequence[int]) -> list[Any]:
        """The values, of which ``which`` are copies."""
        copied = set(which)
        return [self.fresh(v) if i in copied else v for i, v in enumerate(values)]

    def placed(self, v: Any) -> Any:
        """The value of a constant in the memory for values of its type."""
        raise NotImplementedError

    def loop_arrays(self) -> Any:
        """The maker of a loop's buffers (:class:`symdnn.ops.control.scan_loop.LoopArrays`)."""
        raise NotImplementedError

    def loop_graphs(self, fresh: bool) -> Any:
        """The runner of whole loops as one launch; None on a device without CUDA graphs.

        With ``fresh`` its results are in new memory each time.
        """
        raise NotImplementedError

    def whole_loop(self, op: Any) -> Any:
        """The runner of a scan's loop as one compiled function; None on a device without."""
        return None

    def whole_function(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
        """The runner of a graph with loops as one compiled function; None on a device without."""
        return None

    def update(self, pairs: Sequence[tuple[Storage, Any]]) -> None:
        """Write new values into the storages of shared variables."""
        raise NotImplementedError

    def facts(self) -> Mapping[str, Any]:
        """Facts about the device for reports."""
        raise NotImplementedError
