"""Entries kept on disk, shared by processes: compiled code, facts, by the hash of what made them.

Each is a file with a checksum in front, of its content and its name: one that is damaged, or stored
under another's name, is dropped with a warning. It is written beside its place and renamed, so that
a crash leaves nothing half written. It is read from folders and files that
:mod:`symdnn.disk.trust` believes.
"""

from __future__ import annotations

import hashlib
import os
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from symdnn.config import config
from symdnn.disk import space, trust
from symdnn.disk.atomic import write_atomically

__all__ = ["Store", "base"]

_HASH_BYTES = 32
#: The time of an entry is when it was used last, to within so many seconds.
_USED_S = 6 * 3600.0


def base() -> Path:
    """The folder of the flag ``base_compiledir``."""
    return Path(str(config.base_compiledir))


@dataclass(frozen=True)
class Store:
    """Entries of one kind: the folder's name, the files' suffix, and how each begins."""

    kind: str
    suffix: str
    magic: bytes

    def get(
        self, key: str, folder: Path | None = None, wrong: Callable[[bytes], str] | None = None
    ) -> bytes | None:
        """The content of the entry ``key``; None where there is none that is believed and whole.

        ``wrong`` says why a content cannot be what it should be, or nothing.
        """
        path = self._path(key, folder)
        if path is None:
            return None
        try:
            data, told = trust.read(path)
        except OSError:
            return None
        except trust.Untrusted as error:
            self._drop(path, str(error))
            return None
        body = self.content(key, data)
        reason = "" if body is None or wrong is None else wrong(body)
        if body is None or reason:
            self._drop(path, f"is damaged ({reason})" if reason else "is damaged")
            return None
        if time.time() - told.st_mtime > _USED_S:
            with suppress(OSError):
                os.utime(path)
        return body

    def put(self, key: str, body: bytes, folder: Path | None = None) -> None:
        """Keep an entry; where the folder cannot be written to, that is said once."""
        path = self._path(key, folder)
        if path is None:
            return
        data = self.magic + self._checksum(key, body) + body
        try:
            trust.make(path.parent)
            write_atomically(path, data, private=True, sync=False)
        except OSError as error:
            _say_once(str(path.parent), str(error))
        else:
            space.written(len(data), path.parent if folder is not None else path.parent.parent)

    def content(self, key: str, data: bytes) -> bytes | None:
        """What a file with this name holds; None where it is damaged, or another's."""
        head = len(self.magic) + _HASH_BYTES
        body = data[head:]
        whole = data[:head] == self.magic + self._checksum(key, body)
        return body if whole else None

    def drop(self, key: str, folder: Path | None = None) -> None:
        """Remove an entry that turned out to be of no use."""
        path = self._path(key, folder)
        if path is not None:
            with suppress(OSError):
                path.unlink()

    def _checksum(self, key: str, body: bytes) -> bytes:
        found = hashlib.sha256(self.magic + key.encode() + b"\0")
        found.update(body)
        return found.digest()

    def _path(self, key: str, folder: Path | None) -> Path | None:
        """Where an entry is; None where no folder can be used."""
        if folder is not None:
            found = trust.usable(folder)
        else:
            found = trust.usable(base() / self.kind, ours=2)
        return None if found is None else found / f"{key}{self.suffix}"

    def _drop(self, path: Path, reason: str) -> None:
        with suppress(OSError):  # in a folder that can only be read it stays
            path.unlink()
        warnings.warn(
            f"the cached kernel {path} {reason}: dropped, compiled anew",
            RuntimeWarning,
            stacklevel=4,
        )


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
