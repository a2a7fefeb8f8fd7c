"""What made an entry, by content: sources and libraries. Times and sizes of files say nothing:
reproducible builds have the same ones for other contents.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

__all__ = ["library_digest", "sources_digest"]

#: When the package was imported. What is in a file that was changed since is not what runs.
_IMPORTED_NS = time.time_ns()
_PACKAGE = Path(__file__).parent.parent
#: So much of a library's file is read at either end: the identifier of its build is there, and
#: tables with the size and place of everything in it.
_SAMPLE_BYTES = 1 << 16


@cache
def sources_digest(*folders: str) -> str:
    """A hash of the sources in these folders of symdnn, and of Python and NumPy.

    Empty where it is not known what runs: there are no files, or they have changed meanwhile.
    """
    import numpy as np

    found = hashlib.sha256(repr((sys.version, object.__basicsize__, np.__version__)).encode())
    count = 0
    for folder in folders:
        for path in sorted(_sources(str(_PACKAGE / folder))):
            handle = os.open(path, os.O_RDONLY)
            try:
                told = os.fstat(handle)
                if told.st_ctime_ns > _IMPORTED_NS:
                    return ""
                content = os.read(handle, told.st_size + 1)
            finally:
                os.close(handle)
            name = os.path.relpath(path, _PACKAGE) if os.sep != "/" else path[len(str(_PACKAGE)) :]
            found.update(f"{name}\0{len(content)}\0".encode())
            found.update(content)
            count += 1
    return found.hexdigest() if count else ""


def library_digest(paths: Iterator[Path] | list[Path]) -> str:
    """A hash of what identifies libraries: the size of each file, and both of its ends."""
    found = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            nbytes = os.fstat(file.fileno()).st_size
            found.update(f"{path.name}\0{nbytes}\0".encode())
            found.update(file.read(_SAMPLE_BYTES))
            file.seek(max(nbytes - _SAMPLE_BYTES, 0))
            found.update(file.read(_SAMPLE_BYTES))
    return found.hexdigest()


def _sources(folder: str) -> Iterator[str]:
    """Files with sources, or with what was compiled from them where there are none."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith((".py", ".pyc")):
                    yield entry.path
                elif entry.name != "__pycache__" and entry.is_dir():
                    yield from _sources(entry.path)
    except OSError:
        return
