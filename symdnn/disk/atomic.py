"""Atomic writes of files, and the removal of temporary files that killed writers have left.

A file is written next to its destination, under a hidden name, and renamed. Meanwhile the writer
holds a lock on it (``flock``), which the system releases when the writer dies. So another process
can distinguish a file that is being written from an abandoned one.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

#: None where there is no ``fcntl`` and so no locks: leftovers are recognised by their age only.
fcntl: Any = import_module("fcntl") if find_spec("fcntl") else None
#: Names of temporary files: ours, and those of earlier versions, which had no lock.
LEFTOVER = re.compile(
    r"\.(?P<stem>.+)\.[0-9a-f]{16}\.part|\..+\.[0-9a-f]{8}\.tmp|\.[a-z0-9_]{8}\.part"
)
#: Age from which on a leftover is abandoned where locks are not available.
ABANDONED_AGE_S = 24 * 3600.0
_MAX_STEM_BYTES = 180
_LOCK_PAUSE_S = 0.005


def write_atomically(
    path: Path, data: bytes | Callable[[BinaryIO], None], *, private: bool = False,
    sync: bool = True, replace: bool = True,
) -> None:  # fmt: skip
    """Write ``data`` next to ``path``, then rename it: a reader sees the old file or the new one.

    ``data`` are bytes, or a function that writes them. A link is followed to its target. The new
    file has the permissions of an existing one; with ``private`` they are 0600 whatever the umask.
    ``sync`` waits until the bytes are on the disk. Without ``replace`` an existing file is left as
    it is. Raises ``OSError``.
    """
    target = Path(os.path.realpath(path))
    handle, beside = _opened_beside(target)
    try:
        _permit(handle, target, private)
        with os.fdopen(handle, "wb", closefd=False) as file:
            if callable(data):
                data(file)
            else:
                file.write(data)
        if sync:
            os.fsync(handle)
        _place(beside, target, replace)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
    finally:
        os.close(handle)  # only after the rename: closing releases the lock


def clean(folder: Path, stem: str = "", old_s: float = ABANDONED_AGE_S) -> int:
    """Remove abandoned temporary files in ``folder``; returns their number.

    Those of the file named ``stem`` are removed at any age, those of others if they are older than
    ``old_s`` seconds.
    """
    removed = 0
    for entry, named in _leftovers(folder):
        with contextlib.suppress(OSError):
            known = named is not None and named == _stem(stem)
            removed += abandoned(Path(entry.path), 0.0 if known else old_s)
    return removed


def abandoned(path: Path, old_s: float = ABANDONED_AGE_S) -> bool:
    """Remove a temporary file if it is older than ``old_s`` and not being written.

    Returns whether it was removed.
    """
    handle = os.open(path, os.O_RDWR | _OPEN_FLAGS)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or time.time() - status.st_mtime < old_s:
            return False
        locked = _locked(handle)
        if locked is False or (locked is None and time.time() - status.st_mtime < ABANDONED_AGE_S):
            return False
        path.unlink()  # while locked: a writer that has just created it will notice
        return True
    finally:
        os.close(handle)


@contextlib.contextmanager
def locked(path: Path, wait_s: float) -> Iterator[bool]:
    """Hold a lock on a file that is there only while it is held; yields whether it is held.

    After ``wait_s`` seconds, in a folder that can't be written to, and where there are no locks,
    the block runs without it. The system releases the lock of a process that dies.
    """
    end, handle = time.monotonic() + wait_s, None
    with contextlib.suppress(OSError):
        while handle is None and time.monotonic() < end:
            handle = _locked_file(path)
            if handle is None:
                time.sleep(_LOCK_PAUSE_S)
    try:
        yield handle is not None
    finally:
        if handle is not None:
            with contextlib.suppress(OSError):
                path.unlink()  # while locked: who waits for it opens another one
            os.close(handle)


def _locked_file(path: Path) -> int | None:
    """A descriptor of the file, locked; None while another process has it. Raises ``OSError``."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | _OPEN_FLAGS, 0o600)
    try:
        got = _locked(handle)
        if got is None:
            raise OSError("there are no locks")
        if got and os.fstat(handle).st_nlink:
            kept, handle = handle, -1
            return kept
        return None  # another process has it, or has just removed it
    finally:
        if handle >= 0:
            os.close(handle)


# -- steps ----------------------------------------------------------------------------------------

_OPEN_FLAGS = (
    getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
)  # fmt: skip


def _stem(name: str) -> str:
    """The part of a file's name in those of its temporary files: names have at most 255 bytes."""
    return name.encode(errors="surrogateescape")[:_MAX_STEM_BYTES].decode(errors="ignore")


def _opened_beside(target: Path) -> tuple[int, Path]:
    """A new temporary file, locked: (descriptor, path)."""
    while True:
        beside = target.with_name(f".{_stem(target.name)}.{secrets.token_hex(8)}.part")
        try:
            handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN_FLAGS, 0o666)
        except OSError as error:  # it names the file that the caller knows
            raise OSError(error.errno, error.strerror, str(target)) from None
        try:
            if _locked(handle) is not False and os.fstat(handle).st_nlink:
                return handle, beside
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # another process has removed it before it was locked


def _locked(handle: int) -> bool | None:
    """Lock a file; False if another process has the lock, None where there are no locks."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
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
    """Temporary files, each with the name of its destination if that is known."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            found = LEFTOVER.fullmatch(entry.name)
            if found is not None:
                yield entry, found["stem"]
