"""NumPy's zip of arrays. The header is one more array, ``__symdnn__``: JSON in bytes.

NumPy cannot name bfloat16 in a file, so such an array is stored as uint16 and the header says so.
"""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from symdnn.errors import FileFormatError
from symdnn.graph.type import numpy_dtype

__all__ = ["read", "write"]

HEADER = "__symdnn__"
#: A fixed time, so that equal parameters give equal files.
TIME = (1980, 1, 1, 0, 0, 0)

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


def read(data: bytes, path: Path) -> tuple[dict[str, Array], str | None]:
    """Arrays and the header's text (None: there is none); raises ``FileFormatError``."""
    try:
        loaded = np.load(io.BytesIO(data), allow_pickle=False)
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            raise FileFormatError(f"{path} is no .npz: it is a single array (.npy)")
        with loaded:
            arrays = {name: loaded[name] for name in loaded.files}
    except FileFormatError:
        raise
    except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise FileFormatError(
            f"{path} is no .npz of arrays, or it is damaged or cut short ({error})"
        ) from None
    stored = arrays.pop(HEADER, None)
    if stored is None:
        return arrays, None
    text = bytes(stored).decode(errors="replace")
    return {n: _restored(a, n, text) for n, a in arrays.items()}, text


def _restored(array: Array, name: str, header: str) -> Array:
    """A bfloat16 array from its stored form; a damaged header is reported elsewhere."""
    try:
        dtype = json.loads(header)["arrays"][name][0]
    except (ValueError, KeyError, TypeError, IndexError):
        return array
    if dtype == "bfloat16" and array.dtype == np.uint16:
        return array.view(numpy_dtype("bfloat16"))
    return array
