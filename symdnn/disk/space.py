"""The size of the cache: bounded, least recently used entries removed first.

``symdnn cache`` lists and clears entries. Only files with an entry's name are counted and removed,
since the user may have other files in the folder.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from symdnn.config import config
from symdnn.disk import trust
from symdnn.disk.atomic import LEFTOVER, abandoned

#: An entry's file name: a hash and a suffix.
_NAME = re.compile(r"(?P<key>[0-9a-f]{64})\.[a-z]{1,8}")
#: A file whose time is that of the last scan.
_STAMP_NAME = ".bounded"
_limit = config.reader("base_compiledir_bytes")
#: A folder is scanned again after so many seconds, or when this process has written more than this
#: fraction (1 / 32) of the limit.
_SCAN_INTERVAL_S, _SCAN_FRACTION = 24 * 3600.0, 32
#: Entries are removed until the rest takes this part of the limit.
_TARGET_FILL = 0.9
#: Age at which abandoned temporary files are removed.
_LEFTOVER_AGE_S = 3600.0
_written_bytes: dict[str, int] = {}


class Entry(NamedTuple):
    """A file of the cache: its kind, key, path, size, and the time of its last use."""

    kind: str
    key: str
    path: Path
    nbytes: int
    used: float


def entries(base: Path) -> Iterator[Entry]:
    """All entries below a folder; those directly in it have the kind ``""``."""
    for kind, folder in _folders(base):
        for found in _files(folder):
            named = _NAME.fullmatch(found.name)
            if named is not None:
                with suppress(OSError):
                    status = found.stat(follow_symlinks=False)
                    path = Path(found.path)
                    yield Entry(kind, named["key"], path, status.st_size, status.st_mtime)


def written(nbytes: int, base: Path) -> None:
    """Note a new entry of ``nbytes`` below ``base``; from time to time bound the folder."""
    limit, name = int(_limit()), str(base)
    first = name not in _written_bytes
    _written_bytes[name] = _written_bytes.get(name, 0) + nbytes
    if not limit:
        return
    if _written_bytes[name] > limit // _SCAN_FRACTION or (first and _scan_is_due(base)):
        _written_bytes[name] = 0
        bound(base, limit)


def bound(base: Path, limit: int) -> int:
    """Remove the least recently used entries until the others take at most ``limit`` bytes.

    Measured choices are removed last. Abandoned temporary files are removed too. Returns the number
    of removed files.
    """
    removed = clean(base)
    found = sorted(entries(base), key=lambda e: (e.kind == "tuning", e.used))
    total = sum(e.nbytes for e in found)
    if total > limit:
        for entry in found:
            if total <= limit * _TARGET_FILL:
                break
            with suppress(OSError):
                entry.path.unlink()
                removed += 1
            total -= entry.nbytes
    _stamp(base)
    return removed


def clean(base: Path) -> int:
    """Remove abandoned temporary files; returns their number."""
    removed = 0
    for _, folder in _folders(base):
        for found in _files(folder):
            if LEFTOVER.fullmatch(found.name):
                with suppress(OSError):
                    removed += abandoned(Path(found.path), _LEFTOVER_AGE_S)
    return removed


def clear(base: Path) -> int:
    """Remove all entries and abandoned temporary files; returns their number."""
    removed = clean(base)
    for entry in list(entries(base)):
        with suppress(OSError):
            entry.path.unlink()
            removed += 1
    for _, folder in _folders(base):
        for inner in _inner(folder):
            with suppress(OSError):  # a folder with other files stays
                os.rmdir(inner)
    return removed


# -- steps ----------------------------------------------------------------------------------------


def _folders(base: Path) -> Iterator[tuple[str, Path]]:
    """(kind, folder): the folder itself, and the folder of each kind below it."""
    yield "", base
    for kind in trust.KINDS:
        if not (base / kind).is_symlink():
            yield kind, base / kind


def _inner(folder: Path) -> list[str]:
    """Subfolders that are named by the first two digits of the entries in them."""
    with suppress(OSError), os.scandir(folder) as found:
        return [
            e.path
            for e in found
            if re.fullmatch("[0-9a-f]{2}", e.name) and e.is_dir(follow_symlinks=False)
        ]
    return []


def _files(folder: Path) -> Iterator[os.DirEntry[str]]:
    for each in (str(folder), *_inner(folder)):
        with suppress(OSError), os.scandir(each) as found:
            yield from [e for e in found if e.is_file(follow_symlinks=False)]


def _scan_is_due(base: Path) -> bool:
    try:
        return time.time() - os.lstat(base / _STAMP_NAME).st_mtime > _SCAN_INTERVAL_S
    except OSError:
        return True


def _stamp(base: Path) -> None:
    with suppress(OSError):
        flags = os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        handle = os.open(base / _STAMP_NAME, flags, 0o600)
        try:
            os.fchmod(handle, 0o600)
            os.utime(handle)
        finally:
            os.close(handle)
