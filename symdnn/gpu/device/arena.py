"""The arena that all plans of a device overlay: a range of addresses that grows without moving."""

from __future__ import annotations

from typing import Any

from symdnn.gpu.device.budget import Budget, OutOfDeviceMemory
from symdnn.gpu.device.clock import being_captured
from symdnn.gpu.device.context import Context
from symdnn.gpu.device.driver_api import bindings, checked

__all__ = ["Arena"]

_STEP = 32 << 20  # the arena grows by at least so many bytes


class Arena:
    """A reserved range of addresses into which memory is mapped as it is needed.

    Addresses never change, so bound plans and captured graphs stay valid when it grows or is cut
    (``cuMemAddressReserve``, ``cuMemCreate``, ``cuMemMap``, ``cuMemUnmap``).
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
        self._limit = self._rounded(context.total_memory())
        self.base = int(checked(driver.cuMemAddressReserve(self._limit, 0, 0, 0)))
        self.nbytes = self.needed = 0
        #: What a plan needs that waits for the call at hand to return.
        self.busy = 0
        #: Sizes of the pieces that are mapped, one behind the other.
        self._pieces: list[int] = []
        budget.reliefs.append(self.trim)

    def reserve(self, nbytes: int) -> int:
        """Make sure of ``nbytes`` for the call at hand; the arena's first address."""
        self.needed = max(nbytes, self.busy)
        if nbytes > self.nbytes:
            least = self._rounded(nbytes - self.nbytes)
            step = max(least, self._rounded(min(_STEP, self._limit - self.nbytes)))
            more = least if self._budget.limit else step
            self._budget.allocate("the arena", more, lambda: self._grow(more))
        return self.base

    def trim(self) -> None:
        """Give back whole pieces that the call at hand does not need; none during a capture, when
        the stream cannot be waited for."""
        if being_captured(self._context):
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
            checked(driver.cuMemRelease(handle))  # what is mapped stays until it is unmapped
        access = driver.CUmemAccessDesc()
        access.location = self._properties.location
        access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        checked(driver.cuMemSetAccess(at, more, [access], 1))
        self._pieces.append(more)
        self.nbytes += more
        self._budget.arena_bytes = self.nbytes
        self._budget.took()

    def _rounded(self, n: int) -> int:
        return -(-n // self._granularity) * self._granularity
