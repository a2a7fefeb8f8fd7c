"""What several ranks of one machine need: one of them makes it, and all take it from the disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from symdnn.disk.store import Store
from symdnn.world import process

Made = TypeVar("Made", bytes, bytes | None)


def made_once(
    store: Store,
    key: str,
    make: Callable[[], Made],
    folder: Path | None = None,
    problem_of: Callable[[bytes], str] | None = None,
) -> Made | bytes:
    """The entry ``key`` that ``make`` returns, or that another rank of this machine has made.

    The rank that has the entry's lock makes and stores it, while the others wait. A program of one
    process on this machine calls ``make``, and stores nothing here.
    """
    if process.current().place.local_size <= 1:
        return make()
    with store.making(key, folder):
        found = store.get(key, folder, problem_of)
        if found is not None:
            return found
        made = make()
        if made is not None and not (problem_of and problem_of(made)):
            store.put(key, made, folder)
        return made
