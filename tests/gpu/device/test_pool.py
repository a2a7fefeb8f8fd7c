"""Blocks of memory that are used again, over a driver that counts."""

import gc
import threading

import numpy as np
import pytest

from symdnn.errors import OutOfDeviceMemory
from symdnn.gpu.device.pool import HostBlock, Pool, reusing


class Driver:
    """Gives addresses out and takes them back."""

    def __init__(self, room=1 << 40):
        self.out, self.next, self.room = {}, 4096, room

    def take(self, nbytes):
        if sum(self.out.values()) + nbytes > self.room:
            raise OutOfDeviceMemory("no room")
        self.next += 1 << 32
        self.out[self.next] = nbytes
        return self.next

    def give(self, address):
        del self.out[address]


@pytest.fixture
def driver():
    return Driver()


@pytest.fixture
def pool(driver):
    return Pool(driver.take, driver.give)


def test_a_block_is_used_again(driver, pool):
    block = pool.allocate(1000)
    address = int(block)
    assert driver.out[address] >= 1000
    assert (pool.active_bytes, pool.managed_bytes) == (1000, driver.out[address])
    del block
    assert (pool.active_bytes, pool.managed_bytes) == (0, driver.out[address])
    again = pool.allocate(1010)  # of the same class
    assert int(again) == address
    assert pool.allocate(1010).address != address


def test_what_is_held_is_given_back_and_what_lives_is_not(driver, pool):
    kept, dropped = pool.allocate(5000), pool.allocate(70_000)
    del dropped
    pool.free_held()
    assert set(driver.out) == {kept.address}
    assert pool.managed_bytes == driver.out[kept.address]
    assert pool.active_bytes == 5000


def test_a_block_outlives_its_pool(driver):
    pool = Pool(driver.take, driver.give)
    block = pool.allocate(100)
    del pool
    gc.collect()
    del block
    assert len(driver.out) == 1  # the driver takes it back when the process ends


def test_no_room_changes_nothing():
    driver = Driver(room=4096)
    pool = Pool(driver.take, driver.give)
    with pytest.raises(OutOfDeviceMemory):
        pool.allocate(5000)
    assert (pool.active_bytes, pool.managed_bytes) == (0, 0)
    kept = pool.allocate(4000)
    assert (pool.active_bytes, pool.managed_bytes) == (4000, 4096)
    assert kept.nbytes == 4000


@pytest.mark.parametrize("nbytes", [1, 511, 513, 4097, 10**6, 3 * 10**8 + 1])
def test_little_of_a_block_is_unused(driver, pool, nbytes):
    size = driver.out[pool.allocate(nbytes).address]
    assert nbytes <= size <= max(512, nbytes + min(nbytes // 8 + 1, 2 << 20))
    assert size % 64 == 0


def test_blocks_come_back_from_any_thread(driver, pool):
    def work():
        for n in range(200):
            pool.allocate(1 + n % 7 * 1000)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pool.active_bytes == 0
    assert pool.managed_bytes == sum(driver.out.values())
    pool.free_held()
    assert (driver.out, pool.managed_bytes) == ({}, 0)


def test_numpy_sees_a_block_of_the_host_and_keeps_it():
    memory = np.zeros(4096, np.uint8)
    pool = Pool(lambda n: int(memory.ctypes.data), lambda address: None, HostBlock)
    seen = np.asarray(pool.allocate(100))
    assert (seen.shape, seen.dtype) == ((100,), np.uint8)
    part = seen[:8].view(np.float64)
    part[...] = 2.5
    assert memory[:8].view(np.float64) == 2.5
    del seen
    assert pool.active_bytes == 100
    del part
    assert pool.active_bytes == 0


def pool_of(driver):
    return Pool(driver.take, driver.give)


def test_blocks_that_are_free_serve_again_and_are_kept():
    pool, kept = pool_of(Driver()), []
    part = reusing(pool, kept)
    first = part.allocate(1000)
    address = first.address
    del first
    assert part.allocate(1000).address == address
    assert pool.allocate(1000).address != address
    assert len(kept) == 1
    del part
    kept.clear()
    assert address in {pool.allocate(1000).address for _ in range(2)}


def test_a_block_keeps_its_memory_after_the_graph_is_gone():
    pool, kept = pool_of(Driver()), []
    part = reusing(pool, kept)
    block = part.allocate(600)
    del part
    kept.clear()
    assert pool.allocate(600).address != block.address
