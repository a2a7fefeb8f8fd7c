"""Safe reading of files that may be damaged or malicious. Sizes that a file declares are compared
with its real size before memory is allocated. Every failure is a ``FileFormatError``.
"""

from __future__ import annotations

import contextlib
import math
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from symdnn.config import config
from symdnn.disk.regular import NotRegular, open_regular
from symdnn.errors import FileFormatError, InputError

__all__ = ["array_of", "checked_members", "opened", "read_into", "refuse_more"]

Array = np.ndarray[Any, Any]
_CHUNK_BYTES = 1 << 20
#: A file may always unpack to this many times its own size.
_TIMES = 16


@contextlib.contextmanager
def opened(path: Path, what: str, advice: str = "") -> Iterator[tuple[BinaryIO, int]]:
    """A regular file and its size; errors inside are ``FileFormatError``: it is no ``what``.

    A file that is missing or may not be read stays an ``OSError``.
    """
    try:
        file, nbytes = open_regular(path)
    except NotRegular as error:
        raise FileFormatError(f"{path}: {error}") from None
    with file:
        try:
            yield file, nbytes
        except (FileFormatError, InputError):
            raise
        except _TooMuch as error:
            raise FileFormatError(f"{path}: {error}") from None
        except Exception as error:  # readers of formats raise anything for bytes that are wrong
            why = str(error) or type(error).__name__
            text = f"{path} is no {what}, or it is damaged or cut short ({why:.200})"
            raise FileFormatError(f"{text}. {advice}" if advice else text) from None


def _limit_of(nbytes: int) -> int:
    """How many bytes a file of this size may unpack to."""
    limit = int(config.load_limit_bytes)
    return max(limit, _TIMES * nbytes) if limit else 1 << 62


class _TooMuch(ValueError):
    """A file would unpack to more than its limit."""


def refuse_more(total: int, nbytes: int) -> None:
    """Raise ``ValueError`` if a file of this size unpacks to more than its limit."""
    most = _limit_of(nbytes)
    if total > most:
        raise _TooMuch(
            f"it has {nbytes} bytes and would unpack to {total}, more than the {most} allowed: see "
            "the flag load_limit_bytes"
        )


def array_of(shape: Sequence[int], dtype: np.dtype[Any], nbytes: int) -> Array:
    """An array for numbers that take ``nbytes`` in a file; raises ``ValueError`` for others."""
    sizes = [_size(n) for n in shape]
    if math.prod(sizes) * dtype.itemsize != nbytes:
        raise ValueError(f"an array of shape {tuple(sizes)!s:.60} in {nbytes} bytes")
    return np.empty(sizes, dtype)


def _size(n: int) -> int:
    if isinstance(n, bool) or not isinstance(n, int) or not 0 <= n < 2**48:
        raise ValueError(f"a size of {n!r:.40}")
    return n


def read_into(array: Array, file: Any) -> None:
    """Fill a contiguous array from a file; raises ``ValueError`` where that ends before."""
    if not array.size:
        return
    wanted = array.reshape(-1).view(np.uint8).data
    at = 0
    while at < len(wanted):
        part = file.read(min(_CHUNK_BYTES, len(wanted) - at))
        if not part:
            raise ValueError("it ends too early")
        wanted[at : at + len(part)] = part
        at += len(part)


def checked_members(archive: zipfile.ZipFile, nbytes: int) -> list[zipfile.ZipInfo]:
    """The members of a zip file of this size. Raises ``ValueError`` unless names are unique,
    members do not overlap, and their total is within the limit.
    """
    members = archive.infolist()
    if len({m.filename for m in members}) != len(members):
        raise ValueError("two members have one name")
    if sum(m.compress_size for m in members) > nbytes:
        raise ValueError("its members overlap")
    if any(m.flag_bits & 1 for m in members):
        raise ValueError("it is encrypted")
    refuse_more(sum(m.file_size for m in members), nbytes)
    return members
