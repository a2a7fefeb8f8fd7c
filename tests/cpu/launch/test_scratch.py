"""Long-lived memory in blocks: where its parts lie, and when a block is freed."""

import gc
import weakref

import numpy as np
import pytest

from symdnn.cpu.launch import scratch


@pytest.fixture(autouse=True)
def block(monkeypatch):
    """A block of its own, of 1 MB."""
    monkeypatch.setattr(scratch, "_BLOCK", 1 << 20)
    monkeypatch.setattr(scratch, "_block", [np.empty(0, np.uint8)])


def test_parts_begin_at_cache_lines_and_share_nothing():
    sizes = [1, 64, 100, 70_000, 262_144, 3, 262_145, 2_000_000, 262_144, 262_144, 262_144, 0]
    parts = [scratch.empty_kept(n) for n in sizes]
    for k, part in enumerate(parts):
        part[:] = k
    for k, (n, part) in enumerate(zip(sizes, parts)):
        assert part.nbytes == n
        assert n == 0 or scratch.address(part) % 64 == 0
        assert (part == k).all()


def test_small_parts_lie_side_by_side():
    first, second = scratch.empty_kept(100), scratch.empty_kept(100)
    assert scratch.address(second) - scratch.address(first) == 128
    assert scratch.address(first) % (1 << 21) == 0


def test_a_block_is_freed_with_the_last_of_its_parts():
    parts = [scratch.empty_kept(200_000) for _ in range(6)]  # five fill a block
    whole = weakref.ref(parts[0].base)
    assert parts[4].base is whole() is not parts[5].base
    del parts[:4]
    gc.collect()
    assert whole() is not None
    del parts[0]
    gc.collect()
    assert whole() is None
