"""Choices of a program of several processes: one rank measures, and all run the same kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from symdnn.tuning import store
from symdnn.world import process


class Shared:
    """The record that another rank sent (``told``), or this rank's result for all (``found``)."""

    def __init__(self, told: dict[str, Any] | None = None) -> None:
        self.told = told
        self.found: dict[str, Any] | None = None


@contextmanager
def of_all_ranks(key: Mapping[str, Any] | None) -> Iterator[Shared]:
    """The choice for a key, which the first rank that asks makes while others wait for it.

    Ranks with other devices or libraries have other keys. A program of one process has no exchange.
    """
    world = process.current()
    if key is None or world.store is None:
        yield Shared()
        return
    name = f"the choice {store.name_of(key)}"
    shared = Shared(world.claim(name))
    try:
        yield shared
    finally:
        if shared.told is None:
            world.tell(name, shared.found)
