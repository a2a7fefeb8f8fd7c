"""The safetensors format. The header is one entry of its metadata, ``symdnn``: JSON.

A file is eight bytes with the header's length, the header (JSON: dtype, shape and place of each
array), and the arrays' numbers, one after the other without holes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from symdnn.errors import FileFormatError
from symdnn.graph.type import numpy_dtype
from symdnn.io.reading import array_of, opened, read_into

__all__ = ["read", "read_from", "write"]

HEADER = "symdnn"
#: The format's names of dtypes.
DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32",
    "I32": "int32", "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16",
    "F32": "float32", "F64": "float64", "C64": "complex64",
}  # fmt: skip
_LENGTH_BYTES = 8
#: The format allows no longer header.
_HEADER_BYTES = 100_000_000

Array = np.ndarray[Any, Any]
Entry = Mapping[str, Any]


def write(arrays: Mapping[str, Array], header: str, path: Path) -> bytes:
    """The file's bytes; raises ``FileFormatError`` for a dtype that the format lacks."""
    from safetensors.numpy import save

    for name, array in arrays.items():
        if array.dtype.name not in DTYPES.values():
            raise FileFormatError(
                f"{path}: safetensors has no dtype {array.dtype.name}, which {name} has; "
                "write an .npz"
            )
    return bytes(save(dict(arrays), metadata={HEADER: header}))


def read(path: Path) -> tuple[dict[str, Array], str]:
    """Arrays and the header's text; raises ``FileFormatError``.

    A file of another program has no header of ours: one is made, with its metadata.
    """
    with opened(path, "safetensors file") as (file, nbytes):
        arrays, metadata = read_from(file, nbytes, path)
    if HEADER in metadata:
        return arrays, str(metadata[HEADER])
    listed = {n: [a.dtype.name, list(a.shape)] for n, a in arrays.items()}
    foreign = {
        "kind": "symdnn parameters", "version": 0, "arrays": listed, "metadata": metadata,
    }  # fmt: skip
    return arrays, json.dumps(foreign)


def read_from(file: Any, nbytes: int, path: Path) -> tuple[dict[str, Array], dict[str, str]]:
    """Arrays and metadata of a stream of so many bytes, a part of the file ``path``.

    Raises ``ValueError``, and what reading JSON raises.
    """
    entries, begin = _entries(file, nbytes)
    metadata = dict(entries.pop("__metadata__", {}) or {})
    if not all(isinstance(v, str) for v in metadata.values()):
        raise ValueError("its metadata are no texts")
    return _arrays(file, entries, nbytes - begin, path), metadata


def _entries(file: Any, nbytes: int) -> tuple[dict[str, Entry], int]:
    """What the header says of each array, and where the numbers begin."""
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    if length > min(_HEADER_BYTES, nbytes - _LENGTH_BYTES):
        raise ValueError(f"a header of {length} bytes in a file of {nbytes}")
    text = file.read(length)
    if not text.startswith(b"{"):
        raise ValueError("its header is no JSON")
    found = json.loads(text.decode(), object_pairs_hook=_once)
    return found, _LENGTH_BYTES + length


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("two entries of its header have one name")
    return found


def _arrays(file: Any, entries: Mapping[str, Entry], nbytes: int, path: Path) -> dict[str, Array]:
    """The arrays in the order of the header; they are read in that of the file."""
    found: dict[str, Array] = {}
    at = 0
    for name, entry in sorted(entries.items(), key=lambda item: _place(item[1])):
        begin, end = _place(entry)
        if begin != at or not at <= end <= nbytes:
            raise ValueError(f"the numbers of {name!r:.60} are not where they should be")
        if entry["dtype"] not in DTYPES:
            raise FileFormatError(
                f"{path}: {name:.60} has dtype {entry['dtype']!s:.20}, which symdnn lacks"
            )
        dtype = numpy_dtype(DTYPES[entry["dtype"]])
        found[name] = array_of(entry["shape"], dtype, end - begin)
        read_into(found[name], file)
        at = end
    if at != nbytes:
        raise ValueError(f"{nbytes - at} bytes belong to no array")
    return {name: found[name] for name in entries}


def _place(entry: Entry) -> tuple[int, int]:
    begin, end = entry["data_offsets"]
    if type(begin) is not int or type(end) is not int or not 0 <= begin <= end:
        raise ValueError(f"a place of {begin!r:.30} to {end!r:.30}")
    return begin, end
