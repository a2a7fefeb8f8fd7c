"""Whether the file of a shared library is truncated: loading one ends the process by SIGBUS."""

from __future__ import annotations

import os
import struct

#: Magic, class (64 bits) and byte order (little-endian).
_MAGIC = b"\x7fELF\x02\x01"
_HEADER_BYTES, _PROGRAM_HEADER_BYTES = 64, 56


def truncation(path: str) -> str:
    """Why the loader must not load the file: it is truncated; empty if it is not.

    Only 64-bit little-endian ELF files are checked: each segment must end within the file. The
    loader itself reports what is wrong with any other file.
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
    if entry_bytes < _PROGRAM_HEADER_BYTES or len(table) < entry_bytes * count:
        return f"the file is cut off after {size} bytes"
    for i in range(count):
        offset, *_, length = struct.unpack_from("<4Q", table, entry_bytes * i + 8)
        if offset + length > size:
            return f"the file is cut off after {size} of {offset + length} bytes or more"
    return ""
