"""The account of a device's memory, over a pool that is none."""

import pytest

from symdnn.config import config
from symdnn.gpu.device.budget import Budget, OutOfDeviceMemory
from symdnn.graph.place import Place


class Pool:
    """Counts like the pool of a device."""

    def __init__(self):
        self.active_bytes = self.managed_bytes = 0

    @property
    def most_active_bytes(self):
        return self.active_bytes


def card(capacity, pool):
    """An allocator of a card with ``capacity`` bytes."""

    def take(nbytes):
        if pool.managed_bytes + nbytes > capacity:
            raise OutOfDeviceMemory("out of memory")
        pool.managed_bytes += nbytes
        pool.active_bytes += nbytes
        return nbytes

    return take


def test_held_blocks_are_freed_before_giving_up():
    pool = Pool()
    pool.managed_bytes = 900
    budget, take = Budget(pool, Place("cuda")), card(1000, pool)
    budget.reliefs.append(lambda: setattr(pool, "managed_bytes", pool.active_bytes))
    assert budget.allocate("an array", 600, lambda: take(600)) == 600
    budget.update_peak()
    assert budget.use().peak == 600
    assert budget.use().held == 0


def test_reliefs_are_tried_in_order_and_only_as_far_as_needed():
    pool, done = Pool(), []
    budget, take = Budget(pool, Place("cuda")), card(100, pool)
    pool.managed_bytes = 100
    budget.reliefs += [
        lambda: done.append("first"),
        lambda: (done.append("second"), setattr(pool, "managed_bytes", 0)),
        lambda: done.append("third"),
    ]
    budget.allocate("an array", 50, lambda: take(50))
    assert done == ["first", "second"]


def test_the_limit_counts_arena_and_live_arrays():
    pool = Pool()
    budget, take = Budget(pool, Place("cuda")), card(10**9, pool)
    budget.arena_bytes = 600
    with config.change_flags(**{"gpu.memory_limit": 1000}):
        assert budget.allocate("an array", 400, lambda: take(400)) == 400
        with pytest.raises(OutOfDeviceMemory, match=r"1 more bytes.*gpu\.memory_limit.*arena 600"):
            budget.allocate("an array", 1, lambda: take(1))
    assert budget.allocate("an array", 1, lambda: take(1)) == 1


def test_the_error_is_a_memory_error_that_says_what_to_do():
    pool = Pool()
    budget = Budget(pool, Place("cuda"))
    with pytest.raises(MemoryError, match=r"64 more bytes of the arena: out of memory.*smaller"):
        budget.allocate("the arena", 64, lambda: card(0, pool)(64))


def test_other_errors_pass_through():
    budget = Budget(Pool(), Place("cuda"))
    with pytest.raises(ZeroDivisionError):
        budget.allocate("an array", 8, lambda: 1 // 0)
