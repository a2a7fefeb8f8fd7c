"""Files that appear complete or not at all, and what writers that were killed left behind.

A file is written beside its place, under a hidden name, and renamed. The writer holds a lock on it
meanwhile (``flock``), which the system lets go when the writer dies: so who comes later can tell a
file that is being written from one that nobody will finish.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

__all__ = ["LEFTOVER", "abandoned", "clean", "write_atomically"]

#: Without it there are no locks: leftovers are known by their age only.
fcntl: Any = import_module("fcntl") if find_spec("fcntl") else None
#: Names beside which a file is written: ours, and those of earlier versions, which had no lock.
LEFTOVER = re.compile(
    r"\.(?P<stem>.+)\.[0-9a-f]{16}\.part|\..+\.[0-9a-f]{8}\.tmp|\.[a-z0-9_]{8}\.part"
)
#: A leftover of this age is nobody's, where locks say nothing.
OLD_S = 24 * 3600.0
_NAME_BYTES = 180


def write_atomically(
    path: Path, data: bytes, *, private: bool = False, sync: bool = True, replace: bool = True
) -> None:
    """Write ``data`` beside ``path``, then rename it: a reader sees the old file or the new one.

    A link is followed to what it points at. A file that is there passes its permissions on; with
    ``private`` they are 0600 whatever the umask. ``sync`` waits until the bytes are on the disk.
    Without ``replace`` a file that is there stays as it is.
    """
    target = Path(os.path.realpath(path))
    handle, beside = _opened_beside(target)
    try:
        _permit(handle, target, private)
        with os.fdopen(handle, "wb", closefd=False) as file:
            file.write(data)
        if sync:
            os.fsync(handle)
        _place(beside, target, replace)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
    finally:
        os.close(handle)  # not before it has its name: the lock says that somebody is at it


def clean(folder: Path, stem: str = "", old_s: float = OLD_S) -> int:
    """Remove what killed writers left in ``folder``; how many files that were.

    Of ``stem``, the name of a file, all that nobody is writing any more; of others what is older
    than ``old_s`` seconds too.
    """
    removed = 0
    for entry, named in _leftovers(folder):
        with contextlib.suppress(OSError):
            known = named is not None and named == _stem(stem)
            removed += abandoned(Path(entry.path), 0.0 if known else old_s)
    return removed


def abandoned(path: Path, old_s: float = OLD_S) -> bool:
    """Remove a leftover that nobody writes and that is older than that; whether it was one."""
    handle = os.open(path, os.O_RDWR | _SAFE)
    try:
        told = os.fstat(handle)
        if not stat.S_ISREG(told.st_mode) or time.time() - told.st_mtime < old_s:
            return False
        locked = _locked(handle)
        if locked is False or (locked is None and time.time() - told.st_mtime < OLD_S):
            return False
        path.unlink()  # with the lock: who has just made it will see that it is gone
        return True
    finally:
        os.close(handle)


# -- steps ----------------------------------------------------------------------------------------

_SAFE = (
    getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
)  # fmt: skip


def _stem(name: str) -> str:
    """What of a file's name is in that of its leftovers: names have 255 bytes at most."""
    return name.encode(errors="surrogateescape")[:_NAME_BYTES].decode(errors="ignore")


def _opened_beside(target: Path) -> tuple[int, Path]:
    """A new file, with its lock."""
    while True:
        beside = target.with_name(f".{_stem(target.name)}.{secrets.token_hex(8)}.part")
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE, 0o666)
        try:
            if _locked(handle) is not False and os.fstat(handle).st_nlink:
                return handle, beside
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # somebody who cleans up was there between the two


def _locked(handle: int) -> bool | None:
    """Whether the lock is this process's now; None where there are no locks."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without them
        return None
    return True


def _permit(handle: int, target: Path, private: bool) -> None:
    if private:
        os.fchmod(handle, 0o600)
        return
    with contextlib.suppress(OSError):
        os.fchmod(handle, stat.S_IMODE(os.stat(target).st_mode))


def _place(beside: Path, target: Path, replace: bool) -> None:
    if replace:
        os.replace(beside, target)
        return
    with contextlib.suppress(FileExistsError):
        try:
            os.link(beside, target)
        except FileExistsError:
            raise
        except OSError:  # a file system without links
            if not target.exists():
                os.replace(beside, target)
                return
    beside.unlink()


def _leftovers(folder: Path) -> Iterator[tuple[os.DirEntry[str], str | None]]:
    """Files of such names, with the name of the file that they were to become, if it is known."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            found = LEFTOVER.fullmatch(entry.name)
            if found is not None:
                yield entry, found["stem"]
