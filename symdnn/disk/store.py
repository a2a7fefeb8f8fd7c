"""Cache entries on disk that processes share: compiled code, measured choices. Keys are hashes.

Each entry is a file with a checksum of its content and its key. An entry that is damaged, or stored
under another key, is dropped with a warning. Writes are atomic. Entries are read only from folders
and files that :mod:`symdnn.disk.trust` trusts.
"""

from __future__ import annotations

import hashlib
import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from symdnn.config import config
from symdnn.disk import overlay, space, trust
from symdnn.disk.atomic import locked, write_atomically

_HASH_BYTES = 32
#: A file's time is that of its last use, updated at most once in so many seconds.
_TOUCH_INTERVAL_S = 6 * 3600.0
#: Seconds that a process waits for another one that is making the same entry.
_MOST_WAIT_S = 120.0


def base() -> Path:
    """The folder of the flag ``base_compiledir``."""
    return _as_path(str(config.base_compiledir))


_as_path = cache(Path)


@dataclass(frozen=True)
class Store:
    """Entries of one kind: the folder's name, the files' suffix, and their magic first bytes.

    ``what`` an entry is, how it is ``made`` and the ``flag`` of its folder are for warnings. With
    ``branches`` the folder has a folder for the first two characters of the keys. With
    ``first_stays`` an entry is never written again.
    """

    kind: str
    suffix: str
    magic: bytes = b""
    what: str = "compiled kernel"
    made: str = "compiled"
    flag: str = "base_compiledir"
    branches: bool = False
    first_stays: bool = False

    def get(
        self, key: str, folder: Path | None = None, problem_of: Callable[[bytes], str] | None = None
    ) -> bytes | None:
        """The content of the entry ``key``; None if there is no trusted and undamaged one.

        One of :mod:`symdnn.disk.overlay` comes first.

        ``problem_of`` returns why a content is invalid, or "".
        """
        body = overlay.find(self._name(key))
        if body is not None and (problem_of is None or not problem_of(body)):
            overlay.note(self._name(key), body)
            return body
        path = self._path(key, folder)
        if path is None:
            return None
        try:
            data, status = trust.read(path)
        except OSError:
            return None
        except trust.Untrusted as error:
            self._drop(path, str(error))
            return None
        body = self.content(key, data)
        reason = "" if body is None or problem_of is None else problem_of(body)
        if body is None or reason:
            self._drop(path, f"is damaged ({reason})" if reason else "is damaged")
            return None
        if time.time() - status.st_mtime > _TOUCH_INTERVAL_S:
            with suppress(OSError):
                os.utime(path)
        overlay.note(self._name(key), body)
        return body

    def put(self, key: str, body: bytes, folder: Path | None = None) -> bool:
        """Write an entry, and return whether there is one.

        If the folder cannot be written to, a warning is given once.
        """
        overlay.note(self._name(key), body)
        path = self._path(key, folder)
        if path is None:
            return False
        data = self.packed(key, body)
        own = path.parents[1 if self.branches else 0]
        try:
            trust.make(path.parent)
            write_atomically(path, data, private=True, sync=False, replace=not self.first_stays)
        except OSError as error:
            self._say_once(str(own), str(error))
            return False
        space.written(len(data), own.parent if own.name == self.kind else own)
        return True

    @contextmanager
    def making(self, key: str, folder: Path | None = None) -> Iterator[None]:
        """Hold the lock of the entry ``key``, so that one process of a machine makes it.

        Others wait for it, at most :data:`_MOST_WAIT_S`, and look for the entry again.
        """
        path = self._path(key, folder)
        if path is None:
            yield
            return
        with suppress(OSError):
            trust.make(path.parent)
        with locked(path.with_name(f".{key}.lock"), _MOST_WAIT_S):
            yield

    def packed(self, key: str, body: bytes) -> bytes:
        """The bytes of a file with this content."""
        return self.magic + self._checksum(key, body) + body

    def content(self, key: str, data: bytes) -> bytes | None:
        """The content in the bytes of a file; None if it is damaged or has another key."""
        head = len(self.magic) + _HASH_BYTES
        body = data[head:]
        whole = data[:head] == self.magic + self._checksum(key, body)
        return body if whole else None

    def drop(self, key: str, folder: Path | None = None) -> None:
        """Remove an entry."""
        path = self._path(key, folder)
        if path is not None:
            with suppress(OSError):
                path.unlink()

    def _name(self, key: str) -> str:
        return f"{self.kind}/{key}{self.suffix}"

    def _checksum(self, key: str, body: bytes) -> bytes:
        found = hashlib.sha256(self.magic + key.encode() + b"\0")
        found.update(body)
        return found.digest()

    def folder(self, given: Path | None = None) -> Path | None:
        """The folder of the entries, or the one to use instead; None if none can be used."""
        if given is not None:
            return trust.usable(given)
        return trust.usable(base() / self.kind, own_levels=2)

    def _path(self, key: str, given: Path | None) -> Path | None:
        """The path of an entry; None if no folder can be used."""
        found = self.folder(given)
        if found is not None and self.branches:
            found = trust.usable(found / key[:2])
        return None if found is None else found / f"{key}{self.suffix}"

    def _drop(self, path: Path, reason: str) -> None:
        with suppress(OSError):  # in a read-only folder it stays
            path.unlink()
        warnings.warn(
            f"the {self.what} in {path} {reason}: dropped, {self.made} anew",
            RuntimeWarning,
            stacklevel=4,
        )

    def _say_once(self, folder: str, reason: str) -> None:
        if (self.what, folder) in _said:
            return
        _said.add((self.what, folder))
        warnings.warn(
            f"{self.what}s cannot be kept in {folder} ({reason}); "
            f"set the flag {self.flag} to a folder that can be written to",
            RuntimeWarning,
            stacklevel=5,
        )


#: What cannot be kept, and where.
_said: set[tuple[str, str]] = set()
