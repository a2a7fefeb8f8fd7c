"""What a target's runtime gives to ``compile``: storages' memory, and plans bound to a device."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from symdnn.graph.values.storage import Storage
from symdnn.graph.variable import Apply

__all__ = ["BoundPlan", "Runtime", "Watcher", "garbage"]


class Watcher:
    """Told around each node of a watched run; all that it sees is on the host."""

    #: Whether a device's kernels are to find garbage where they write.
    garbage = False

    def __call__(self, node: Apply, inputs: Sequence[Any], outputs: Sequence[Any] | None) -> None:
        """``outputs`` is None before the node runs."""


def garbage(shape: Sequence[int], dtype: Any) -> Any:
    """An array of what nobody would compute: very large numbers, or True."""
    raw = np.full(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize, 0x7F, np.uint8)
    if dtype == np.bool_:
        raw[:] = 1
    return raw.view(dtype).reshape(shape)


class BoundPlan:
    """A plan at real addresses. Running it is: copy in, launch, copy out."""

    #: Whether it runs no code of a user's and no BLAS.
    closed: bool = False
    #: The captured graph that runs it, where there is one.
    replay: Any = None

    @property
    def nbytes(self) -> int:
        """Memory that it keeps for itself, besides the arena."""
        raise NotImplementedError

    @property
    def capture_state(self) -> str:
        """Whether it is a captured graph, or why it is none; empty on a device without graphs."""
        return ""

    def run(self, entering: Sequence[Any], watcher: Watcher | None = None) -> list[Any]:
        """Values that leave, given those that enter, in the order of the segment."""
        raise NotImplementedError

    def become_hot(self) -> None:
        """Have the next run compile what runs of a plan that is called often have compiled."""


class Runtime:
    """A device as ``compile`` sees it."""

    #: Its :class:`~symdnn.graph.values.storage.DeviceMemory`.
    memory: Any
    #: ``adopt(value, what)`` takes an array that lies on the device; None: there are no such.
    adopt: Callable[..., Any] | None = None

    def settle(self) -> None:
        """Wait for what was enqueued, and raise what kernels found wrong."""

    def trim(self) -> None:
        """Give memory back to the system that nothing uses: here, of the C library's heap."""
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only GNU's has it
        if trim is not None:
            trim(ctypes.c_size_t(0))

    def memory_use(self) -> Any:
        """What symdnn has taken of a device with memory of its own; None for the host."""
        return None

    def bind(self, specialised: Any, memory_plan: Any) -> BoundPlan:
        """Bind a plan to the device."""
        raise NotImplementedError

    def exclusive(self) -> contextlib.AbstractContextManager[None]:
        """Calls on one device, one at a time."""
        raise NotImplementedError

    def to_host(self, value: Any) -> Any:
        """A value as a NumPy array."""
        raise NotImplementedError

    def lend(self, value: Any) -> Any:
        """A value where it is, as an array that users know."""
        raise NotImplementedError

    def fresh(self, value: Any) -> Any:
        """A copy that the user may keep."""
        raise NotImplementedError

    def placed(self, v: Any) -> Any:
        """A constant where values of its type are kept."""
        raise NotImplementedError

    def loop_arrays(self) -> Any:
        """What a loop's buffers are (:class:`symdnn.ops.control.scan_loop.LoopArrays`)."""
        raise NotImplementedError

    def loop_graphs(self) -> Any:
        """What runs a whole loop as one launch where it can; None on a device without graphs."""
        raise NotImplementedError

    def update(self, pairs: Sequence[tuple[Storage, Any]]) -> None:
        """Write new values into the storages of shared variables."""
        raise NotImplementedError

    def facts(self) -> Mapping[str, Any]:
        """What reports print of the device."""
        raise NotImplementedError
