"""Compiled code kept on disk, shared by processes.

Each entry is a file with a checksum in front. It is written beside its place and renamed, so that
a crash leaves nothing half written; one that is damaged is dropped with a warning.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import warnings
from contextlib import suppress
from pathlib import Path

__all__ = ["keep", "kept"]

_HASH_BYTES = 32


def kept(path: Path, magic: bytes) -> bytes | None:
    """The content of an entry that begins with ``magic``; None where there is none."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    head = len(magic) + _HASH_BYTES
    body = data[head:]
    if data[: len(magic)] == magic and hashlib.sha256(body).digest() == data[len(magic) : head]:
        return body
    with suppress(OSError):  # in a folder that can only be read it stays
        path.unlink(missing_ok=True)
    warnings.warn(
        f"the cached kernel {path} is damaged: dropped, compiled anew", RuntimeWarning, stacklevel=4
    )
    return None


def keep(path: Path, magic: bytes, body: bytes) -> None:
    """Write an entry; where the folder cannot be written to, that is said once."""
    data = magic + hashlib.sha256(body).digest() + body
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
        temporary = ""
    except OSError as error:
        _say_once(str(path.parent.parent), str(error))
    finally:  # Ctrl-C, or a warning that is an error, leaves nothing behind either
        if temporary:
            with suppress(OSError):
                Path(temporary).unlink(missing_ok=True)


_said: set[str] = set()


def _say_once(folder: str, reason: str) -> None:
    if folder in _said:
        return
    _said.add(folder)
    warnings.warn(
        f"compiled kernels cannot be kept in {folder} ({reason}); "
        "set the flag base_compiledir to a folder that can be written to",
        RuntimeWarning,
        stacklevel=5,
    )
