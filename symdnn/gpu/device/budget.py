"""Accounting of a device's memory: use, limit, and what is freed when there is no room."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from symdnn.config import config
from symdnn.errors import OutOfDeviceMemory
from symdnn.graph.place import Place

__all__ = ["Budget", "MemoryUse", "OutOfDeviceMemory"]

T = TypeVar("T")
_limit = config.reader("gpu.memory_limit")


@dataclass(frozen=True)
class MemoryUse:
    """Bytes that symdnn uses on the device ``place``.

    ``live`` is the memory of shared variables, inputs and results, ``held`` that of free blocks in
    the pool, ``registered`` that of collectives' operands which NCCL has allocated. ``peak`` is the
    maximum of ``arena + live + registered`` since the process began. ``limit`` is the flag's; 0 is
    no limit.
    """

    arena: int
    live: int
    held: int
    peak: int
    limit: int
    place: Place
    registered: int = 0

    def __str__(self) -> str:
        limit = f", limit {self.limit} (gpu.memory_limit)" if self.limit else ""
        more = f", registered {self.registered}" if self.registered else ""
        return f"arena {self.arena}, live {self.live}, held {self.held}{more} bytes{limit}"


class Budget:
    """Accounts for the arena and the pool of one device.

    When an allocation fails, ``reliefs`` free memory: each is called in order, then it is tried
    again.
    """

    def __init__(self, pool: Any, place: Place) -> None:
        self.pool, self.place = pool, place
        self.arena_bytes = 0
        #: Bytes of NCCL's allocator, which it registers with other ranks.
        self.registered_bytes = 0
        self.peak = 0
        self.reliefs: list[Callable[[], None]] = []

    def use(self) -> MemoryUse:
        """The bytes in use now."""
        live = int(self.pool.active_bytes)
        held = int(self.pool.managed_bytes) - live
        return MemoryUse(
            self.arena_bytes, live, held, self.peak, self.limit, self.place, self.registered_bytes
        )

    @property
    def limit(self) -> int:
        """The flag ``gpu.memory_limit``; 0 is no limit."""
        return int(_limit())

    def allocate(self, what: str, nbytes: int, attempt: Callable[[], T]) -> T:
        """``attempt()``, repeated after each of ``reliefs`` while there is no room for ``nbytes``.

        Raises :class:`OutOfDeviceMemory`, with the memory in use and what to do.
        """
        why = ""
        for relief in (None, *self.reliefs):
            if relief is not None:
                relief()
            if not self._allows(nbytes):
                why = "the flag gpu.memory_limit forbids more"
                continue
            try:
                return attempt()
            except OutOfDeviceMemory as error:
                why = (str(error).splitlines() or [type(error).__name__])[0]
        raise OutOfDeviceMemory(
            f"no room for {nbytes} more bytes of {what}: {why}. Taken: {self.use()}. "
            "Make the batch smaller, free other functions (f.free()) and shared variables, bound "
            f"the workspaces of convolutions (dnn.conv.workspace_limit){self._limit_advice()}"
        )

    def _limit_advice(self) -> str:
        return ", or raise gpu.memory_limit" if self.limit else ""

    def update_peak(self) -> None:
        """Update the peak, after an allocation."""
        other = self.arena_bytes + self.registered_bytes
        if other + int(self.pool.most_active_bytes) > self.peak:
            self.peak = max(self.peak, other + int(self.pool.active_bytes))

    def _allows(self, nbytes: int) -> bool:
        limit = self.limit
        # Free blocks of the pool do not count: they will be reused, or freed by a relief.
        taken = self.arena_bytes + self.registered_bytes + int(self.pool.active_bytes)
        return not limit or taken + nbytes <= limit
