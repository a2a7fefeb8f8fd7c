"""The arena that all plans of a device share: a range of addresses that grows without moving."""

from __future__ import annotations

from typing import Any

from symdnn.gpu.device.budget import Budget, OutOfDeviceMemory
from symdnn.gpu.device.clock import is_capturing
from symdnn.gpu.device.context import Context
from symdnn.gpu.device.driver_api import bindings, checked

_MIN_GROWTH_BYTES = 32 << 20


class Arena:
    """A reserved range of addresses into which memory is mapped as it is needed.

    Addresses never change, so bound plans and captured graphs stay valid when it grows or is
    trimmed (``cuMemAddressReserve``, ``cuMemCreate``, ``cuMemMap``, ``cuMemUnmap``).
    """

    def __init__(self, context: Context, budget: Budget) -> None:
        driver: Any = bindings()
        self._driver = driver
        self._context, self._budget = context, budget
        self._properties = driver.CUmemAllocationProp()
        self._properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        self._properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        self._properties.location.id = context.index
        flag = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
        self._granularity = int(
            checked(driver.cuMemGetAllocationGranularity(self._properties, flag))
        )
        self._limit = self._round_up(context.total_memory())
        self.base = int(checked(driver.cuMemAddressReserve(self._limit, 0, 0, 0)))
        self.nbytes = self.needed = 0
        #: Bytes that an outer plan needs while a nested call of a watcher runs.
        self.outer_bytes = 0
        #: Sizes of the mapped pieces, in the order of their addresses.
        self._pieces: list[int] = []
        budget.reliefs.append(self.trim)

    def reserve(self, nbytes: int) -> int:
        """Map at least ``nbytes`` for the current call. Returns the arena's first address."""
        self.needed = max(nbytes, self.outer_bytes)
        if nbytes > self.nbytes:
            least = self._round_up(nbytes - self.nbytes)
            step = max(least, self._round_up(min(_MIN_GROWTH_BYTES, self._limit - self.nbytes)))
            more = least if self._budget.limit else step
            self._budget.allocate("the arena", more, lambda: self._grow(more))
        return self.base

    def trim(self) -> None:
        """Unmap pieces that the current call does not need.

        During a capture it unmaps nothing, because the stream cannot be synchronised then.
        """
        if is_capturing(self._context):
            return
        kept = self.nbytes
        while self._pieces and kept - self._pieces[-1] >= self.needed:
            if kept == self.nbytes:
                self._context.synchronize()
            size = self._pieces.pop()
            kept -= size
            checked(self._driver.cuMemUnmap(self.base + kept, size))
        self.nbytes = self._budget.arena_bytes = kept

    def _grow(self, more: int) -> None:
        if self.nbytes + more > self._limit:
            raise OutOfDeviceMemory(f"the card has {self._limit} bytes in all")
        driver = self._driver
        handle = checked(driver.cuMemCreate(more, self._properties, 0))
        at = self.base + self.nbytes
        try:
            checked(driver.cuMemMap(at, more, 0, handle, 0))
        finally:
            checked(driver.cuMemRelease(handle))  # mapped memory stays until it is unmapped
        access = driver.CUmemAccessDesc()
        access.location = self._properties.location
        access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        checked(driver.cuMemSetAccess(at, more, [access], 1))
        self._pieces.append(more)
        self.nbytes += more
        self._budget.arena_bytes = self.nbytes
        self._budget.update_peak()

    def _round_up(self, n: int) -> int:
        return -(-n // self._granularity) * self._granularity
