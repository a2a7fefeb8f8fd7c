"""NumPy's zip of arrays. The header is one more array, ``__symdnn__``: JSON in bytes.

NumPy cannot name bfloat16 in a file, so such an array is stored as uint16 and the header says so.
Files are read here and not by ``numpy.load``: that takes a file's word for the size of an array.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from symdnn.errors import FileFormatError
from symdnn.graph.type import numpy_dtype
from symdnn.io.reading import array_of, checked_members, opened, read_into

__all__ = ["read", "read_array", "write"]

HEADER = "__symdnn__"
#: A fixed time, so that equal parameters give equal files.
TIME = (1980, 1, 1, 0, 0, 0)
_MAGIC = b"\x93NUMPY"
#: Kinds of dtypes that are numbers or text; not Python's objects, nor records of several.
_KINDS = "biufcSU"

Array = np.ndarray[Any, Any]


def write(arrays: Mapping[str, Array], header: str, path: Path) -> bytes:
    """The file's bytes."""
    out = io.BytesIO()
    members = {HEADER: np.frombuffer(header.encode(), np.uint8), **arrays}
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name, array in members.items():
            stored = array.view(np.uint16) if array.dtype.name == "bfloat16" else array
            with archive.open(
                zipfile.ZipInfo(f"{name}.npy", TIME), "w", force_zip64=True
            ) as member:
                np.lib.format.write_array(member, stored, allow_pickle=False)
    return out.getvalue()


def read(path: Path) -> tuple[dict[str, Array], str | None]:
    """Arrays and the header's text (None: there is none); raises ``FileFormatError``."""
    with opened(path, ".npz of arrays") as (file, nbytes):
        if file.read(len(_MAGIC)) == _MAGIC:
            raise FileFormatError(f"{path} is no .npz: it is a single array (.npy)")
        with zipfile.ZipFile(file) as archive:
            members = checked_members(archive, nbytes)
            arrays = {_name(m.filename): _array(archive, m) for m in members}
            stored = arrays.pop(HEADER, None)
            if stored is None:
                return arrays, None
            text = bytes(stored).decode(errors="replace")
            return {n: _restored(a, n, text) for n, a in arrays.items()}, text


def _name(member: str) -> str:
    if not member.endswith(".npy"):
        raise ValueError(f"its member {member!r:.60} is no array")
    return member.removesuffix(".npy")


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    """An array, read in pieces until the member's checksum has been looked at."""
    with archive.open(member) as file:
        return read_array(file, member.file_size, member.filename)


def read_array(file: Any, nbytes: int, name: str) -> Array:
    """The array of a stream of so many bytes, a ``.npy``; raises ``ValueError``."""
    shape, mirrored, dtype = _header(file)
    if dtype.kind not in _KINDS:
        what = "pickled objects, which are never opened" if dtype.hasobject else f"{dtype!s:.40}"
        raise ValueError(f"{name!r:.60} holds {what}")
    array = array_of(shape[::-1] if mirrored else shape, dtype, nbytes - file.tell())
    read_into(array, file)
    if file.read(1):  # which also compares the checksum of a zip's member
        raise ValueError(f"{name!r:.60} is longer than it says")
    native = array if dtype.isnative else array.astype(dtype.newbyteorder("="))
    return native.T if mirrored else native


def _header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether the first dimension is the innermost one, and dtype."""
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(file)
    raise ValueError(f"an array of format version {version}")


def _restored(array: Array, name: str, header: str) -> Array:
    """A bfloat16 array from its stored form; a damaged header is reported elsewhere."""
    try:
        dtype = json.loads(header)["arrays"][name][0]
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        return array
    if dtype == "bfloat16" and array.dtype == np.uint16:
        return array.view(numpy_dtype("bfloat16"))
    return array
