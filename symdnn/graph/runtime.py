"""What a target's runtime gives to ``compile``: storages' memory, and plans bound to a device."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from symdnn.graph.values.storage import DeviceMemory, Storage
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


class BoundPlan(Protocol):
    """A plan at real addresses. Running it is: copy in, launch, copy out."""

    @property
    def nbytes(self) -> int:
        """Memory that it keeps for itself, besides the arena."""

    def run(self, entering: Sequence[Any], watcher: Watcher | None = None) -> list[Any]:
        """Values that leave, given those that enter, in the order of the segment."""


class Runtime(Protocol):
    """A device as ``compile`` sees it."""

    memory: DeviceMemory

    def bind(self, specialised: Any, memory_plan: Any) -> BoundPlan:
        """Bind a plan to the device."""

    def exclusive(self) -> contextlib.AbstractContextManager[None]:
        """Calls on one device, one at a time."""

    def to_host(self, value: Any) -> Any:
        """A value as a NumPy array."""

    def lend(self, value: Any) -> Any:
        """A value where it is, as an array that users know."""

    def fresh(self, value: Any) -> Any:
        """A copy that the user may keep."""

    def placed(self, v: Any) -> Any:
        """A constant where values of its type are kept."""

    def loop_arrays(self) -> Any:
        """What a loop's buffers are (:class:`symdnn.ops.control.scan_loop.LoopArrays`)."""

    def loop_graphs(self) -> Any:
        """What runs a whole loop as one launch where it can; None on a device without graphs."""

    def update(self, pairs: Sequence[tuple[Storage, Any]]) -> None:
        """Write new values into the storages of shared variables."""

    def facts(self) -> Mapping[str, Any]:
        """What reports print of the device."""
