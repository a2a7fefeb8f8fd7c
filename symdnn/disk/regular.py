"""Reading files that somebody names: regular ones only, and no more than is wanted."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

__all__ = ["NotRegular", "TooLarge", "open_regular", "read_regular"]

_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
_KINDS = {
    stat.S_IFIFO: "a pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder", stat.S_IFSOCK: "a socket",
}  # fmt: skip


class NotRegular(OSError):
    """What is there is a device, a pipe or a folder: reading it may never end."""


class TooLarge(OSError):
    """The file has more bytes than it may have."""


def open_regular(path: Path) -> tuple[BinaryIO, int]:
    """A regular file (or what a link points at) to read from, and how many bytes it has.

    Raises :class:`NotRegular`, and ``OSError`` where it cannot be opened. It never waits.
    """
    try:
        handle = os.open(path, _FLAGS | getattr(os, "O_BINARY", 0))
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            raise NotRegular("it is no regular file") from None
        raise
    try:
        told = os.fstat(handle)
        if not stat.S_ISREG(told.st_mode):
            kind = _KINDS.get(stat.S_IFMT(told.st_mode), "something else")
            raise NotRegular(f"it is {kind}, no regular file")
        return open(handle, "rb"), told.st_size
    except BaseException:
        os.close(handle)
        raise


def read_regular(path: Path, most_bytes: int) -> bytes:
    """The content of a regular file of at most so many bytes.

    Raises :class:`TooLarge`, and what :func:`open_regular` does.
    """
    file, nbytes = open_regular(path)
    with file:
        content = file.read(most_bytes + 1)  # files of /proc say that they have none
    if max(nbytes, len(content)) > most_bytes:
        raise TooLarge(f"it has more than the {most_bytes} bytes allowed")
    return content
