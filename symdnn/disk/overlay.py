"""Cache entries that are in no folder: those that came with a file which the user trusts.

Names are ``kind/key.suffix``, as in the cache's folder. While someone is :func:`noting`, entries
that are read or written are noted, so that such a file can be made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

_given: dict[str, bytes] = {}
_notes: list[dict[str, bytes]] = []


def give(entries: Mapping[str, bytes]) -> None:
    """Let these entries be found from now on, before those of any folder."""
    _given.update(entries)


def find(name: str) -> bytes | None:
    """The content of an entry of the overlay, or None."""
    return _given.get(name)


def has(start: str) -> bool:
    """Whether the overlay has an entry whose name has this prefix."""
    return any(name.startswith(start) for name in _given)


def note(name: str, body: bytes) -> None:
    """Note an entry that was read or written."""
    for each in _notes:
        each[name] = body


def is_noting() -> bool:
    """Whether entries are being recorded: caches in memory must be read again then."""
    return bool(_notes)


@contextmanager
def noting() -> Iterator[dict[str, bytes]]:
    """Inside, all entries that the process reads or writes are added to the result."""
    found: dict[str, bytes] = {}
    _notes.append(found)
    try:
        yield found
    finally:
        _notes[:] = [each for each in _notes if each is not found]
