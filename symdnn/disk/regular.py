"""Reading files that a user names: only regular files, and at most a given size."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

_OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
_KIND_NAMES = {
    stat.S_IFIFO: "a pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder", stat.S_IFSOCK: "a socket",
}  # fmt: skip


class NotRegular(OSError):
    """The path is a device, a pipe or a folder: reading it may never end."""


class TooLarge(OSError):
    """The file is larger than allowed."""


def open_regular(path: Path) -> tuple[BinaryIO, int]:
    """Open a regular file (or a link's target) for reading: (file, its size in bytes).

    It never blocks. Raises :class:`NotRegular`, and ``OSError`` if it cannot be opened.
    """
    try:
        handle = os.open(path, _OPEN_FLAGS | getattr(os, "O_BINARY", 0))
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            raise NotRegular("it is no regular file") from None
        raise
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            kind = _KIND_NAMES.get(stat.S_IFMT(status.st_mode), "something else")
            raise NotRegular(f"it is {kind}, no regular file")
        return open(handle, "rb"), status.st_size
    except BaseException:
        os.close(handle)
        raise


def read_regular(path: Path, most_bytes: int) -> bytes:
    """The content of a regular file of at most ``most_bytes`` bytes.

    Raises :class:`TooLarge`, and what :func:`open_regular` does.
    """
    file, nbytes = open_regular(path)
    with file:
        content = file.read(most_bytes + 1)  # files of /proc have a size of 0
    if max(nbytes, len(content)) > most_bytes:
        raise TooLarge(f"it has more than the {most_bytes} bytes allowed")
    return content
