"""How much room the cache takes: bounded, oldest out; listed and cleared by ``symdnn cache``.

Only files that have an entry's name are counted and removed: the folder may be one in which the
user has others.
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

__all__ = ["Entry", "bound", "clear", "entries", "written"]

#: An entry's name: a hash and what it is.
_NAME = re.compile(r"(?P<key>[0-9a-f]{64})\.[a-z]{1,8}")
#: Where it is looked: the kinds' folders, or the folder itself; and their folders of two digits.
_STAMP = ".bounded"
_limit = config.reader("base_compiledir_bytes")
#: A folder is looked through again after so many seconds, or when this process has written such a
#: part of what is allowed.
_AGAIN_S, _PART = 24 * 3600.0, 32
#: So much of the limit is left over when something was removed.
_FILLED = 0.9
#: What a writer that was killed left behind is removed when it is so old.
_LEFT_S = 3600.0
_since: dict[str, int] = {}


class Entry(NamedTuple):
    """A file of the cache: its kind, key, place, size, and when it was used last."""

    kind: str
    key: str
    path: Path
    nbytes: int
    used: float


def entries(base: Path) -> Iterator[Entry]:
    """All entries below a folder; of kind ``""`` what lies in it directly."""
    for kind, folder in _folders(base):
        for found in _files(folder):
            named = _NAME.fullmatch(found.name)
            if named is not None:
                with suppress(OSError):
                    told = found.stat(follow_symlinks=False)
                    yield Entry(kind, named["key"], Path(found.path), told.st_size, told.st_mtime)


def written(nbytes: int, base: Path) -> None:
    """Note that an entry of so many bytes is new below ``base``; from time to time make room."""
    limit, name = int(_limit()), str(base)
    first = name not in _since
    _since[name] = _since.get(name, 0) + nbytes
    if not limit:
        return
    if _since[name] > limit // _PART or (first and _looked_long_ago(base)):
        _since[name] = 0
        bound(base, limit)


def bound(base: Path, limit: int) -> int:
    """Remove the entries that were used longest ago until all take ``limit`` bytes at most, and
    what killed writers left; how many files that were. Measured choices go last."""
    removed = clean(base)
    found = sorted(entries(base), key=lambda e: (e.kind == "tuning", e.used))
    total = sum(e.nbytes for e in found)
    if total > limit:
        for entry in found:
            if total <= limit * _FILLED:
                break
            with suppress(OSError):
                entry.path.unlink()
                removed += 1
            total -= entry.nbytes
    _stamp(base)
    return removed


def clean(base: Path) -> int:
    """Remove what killed writers left behind; how many files that were."""
    removed = 0
    for _, folder in _folders(base):
        for found in _files(folder):
            if LEFTOVER.fullmatch(found.name):
                with suppress(OSError):
                    removed += abandoned(Path(found.path), _LEFT_S)
    return removed


def clear(base: Path) -> int:
    """Remove all entries, and what killed writers left behind; how many files that were."""
    removed = clean(base)
    for entry in list(entries(base)):
        with suppress(OSError):
            entry.path.unlink()
            removed += 1
    for _, folder in _folders(base):
        for inner in _inner(folder):
            with suppress(OSError):  # what is not empty stays
                os.rmdir(inner)
    return removed


# -- steps ----------------------------------------------------------------------------------------


def _folders(base: Path) -> Iterator[tuple[str, Path]]:
    """The kinds' folders below a folder, and that itself."""
    yield "", base
    for kind in trust.KINDS:
        if not (base / kind).is_symlink():
            yield kind, base / kind


def _inner(folder: Path) -> list[str]:
    """Folders that are named by the first two digits of what is in them."""
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


def _looked_long_ago(base: Path) -> bool:
    try:
        return time.time() - os.lstat(base / _STAMP).st_mtime > _AGAIN_S
    except OSError:
        return True


def _stamp(base: Path) -> None:
    with suppress(OSError):
        flags = os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        handle = os.open(base / _STAMP, flags, 0o600)
        try:
            os.fchmod(handle, 0o600)
            os.utime(handle)
        finally:
            os.close(handle)
