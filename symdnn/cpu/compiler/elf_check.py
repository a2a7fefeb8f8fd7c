"""Whether a shared library's file is whole: the loader touches what is cut off, and that kills."""

from __future__ import annotations

import os
import struct

__all__ = ["cut_off"]

#: Of a 64-bit file: its magic, class and byte order; then where its program headers are.
_MAGIC = b"\x7fELF\x02\x01"
_HEADER_BYTES, _ENTRY_BYTES = 64, 56


def cut_off(path: str) -> str:
    """Why the loader must not be given the file; empty when it may, or when it knows better.

    Looked at are 64-bit little-endian ELF files: all that is to be mapped must lie in the file.
    """
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(_HEADER_BYTES)
            if not head.startswith(_MAGIC) or len(head) < _HEADER_BYTES:
                return ""
            (start,) = struct.unpack_from("<Q", head, 32)
            entry_bytes, count = struct.unpack_from("<HH", head, 54)
            file.seek(start)
            table = file.read(entry_bytes * count)
    except OSError:
        return ""  # the loader will say why
    if entry_bytes < _ENTRY_BYTES or len(table) < entry_bytes * count:
        return f"the file is cut off after {size} bytes"
    for i in range(count):
        offset, *_, length = struct.unpack_from("<4Q", table, entry_bytes * i + 8)
        if offset + length > size:
            return f"the file is cut off after {size} of {offset + length} bytes or more"
    return ""
