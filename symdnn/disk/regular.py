"""Reading files that somebody names: regular ones only, and no more than is wanted."""

from __future__ import annotations

import os
import stat
from pathlib import Path

__all__ = ["NotRegular", "TooLarge", "read_regular"]

_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
_KINDS = {
    stat.S_IFIFO: "a pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder", stat.S_IFSOCK: "a socket",
}  # fmt: skip


class NotRegular(OSError):
    """What is there is a device, a pipe or a folder: reading it may never end."""


class TooLarge(OSError):
    """The file has more bytes than it may have."""


def read_regular(path: Path, most_bytes: int = 0) -> bytes:
    """The content of a regular file, or of what a link points at.

    Raises :class:`NotRegular`, :class:`TooLarge` where there are more than ``most_bytes`` (0: any
    number), and ``OSError`` where it cannot be read. It never waits.
    """
    handle = os.open(path, _FLAGS | getattr(os, "O_BINARY", 0))
    with open(handle, "rb") as file:
        told = os.fstat(handle)
        if not stat.S_ISREG(told.st_mode):
            kind = _KINDS.get(stat.S_IFMT(told.st_mode), "something else")
            raise NotRegular(f"it is {kind}, no regular file")
        if most_bytes and told.st_size > most_bytes:
            raise TooLarge(f"it has {told.st_size} bytes, more than the {most_bytes} allowed")
        # A file of /proc says 0 and has more; one that is being written to grows.
        content = file.read(told.st_size + 1 if told.st_size else most_bytes or _UNTOLD)
        return content[: told.st_size] if told.st_size else content


#: The most of a file that does not say its size.
_UNTOLD = 1 << 20
