"""Hashes of sources and libraries, for the keys of cache entries.

They are of the content. Times and sizes of files do not identify it: reproducible builds can have
the same ones for different contents.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

#: When the package was imported. A file that was changed later is not the code that runs.
_IMPORTED_NS = time.time_ns()
_PACKAGE = Path(__file__).parent.parent
#: Bytes of a library's file that are read at either end. They include the identifier of its build,
#: and tables with the size and offset of everything in it.
_SAMPLE_BYTES = 1 << 16


@cache
def sources_digest(*parts: str) -> str:
    """A hash of the sources of these folders and modules of symdnn, and of Python and NumPy.

    Empty if the running code is not known: there are no files, or they were changed after the
    import.
    """
    import numpy as np

    found = hashlib.sha256(repr((sys.version, object.__basicsize__, np.__version__)).encode())
    count = 0
    for part in parts:
        for path in sorted(_sources(str(_PACKAGE / part))):
            handle = os.open(path, os.O_RDONLY)
            try:
                status = os.fstat(handle)
                if status.st_ctime_ns > _IMPORTED_NS:
                    return ""
                content = os.read(handle, status.st_size + 1)
            finally:
                os.close(handle)
            name = os.path.relpath(path, _PACKAGE) if os.sep != "/" else path[len(str(_PACKAGE)) :]
            found.update(f"{name}\0{len(content)}\0".encode())
            found.update(content)
            count += 1
    return found.hexdigest() if count else ""


def library_digest(paths: Iterator[Path] | list[Path]) -> str:
    """A hash that identifies libraries: of the size of each file, and of both of its ends."""
    found = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            nbytes = os.fstat(file.fileno()).st_size
            found.update(f"{path.name}\0{nbytes}\0".encode())
            found.update(file.read(_SAMPLE_BYTES))
            file.seek(max(nbytes - _SAMPLE_BYTES, 0))
            found.update(file.read(_SAMPLE_BYTES))
    return found.hexdigest()


def _sources(part: str) -> Iterator[str]:
    """Source files and compiled files of a module or below a folder, without ``__pycache__``."""
    try:
        with os.scandir(part) as entries:
            for entry in entries:
                if entry.name.endswith((".py", ".pyc")):
                    yield entry.path
                elif entry.name != "__pycache__" and entry.is_dir():
                    yield from _sources(entry.path)
    except OSError:
        yield from filter(os.path.isfile, (f"{part}.py", f"{part}.pyc"))
