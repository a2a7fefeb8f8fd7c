"""The safetensors format. The header is one entry of its metadata, ``symdnn``: JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from symdnn.errors import FileFormatError
from symdnn.graph.type import numpy_dtype

__all__ = ["read", "write"]

HEADER = "symdnn"
#: The format's names of dtypes.
DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32",
    "I32": "int32", "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16",
    "F32": "float32", "F64": "float64", "C64": "complex64",
}  # fmt: skip

Array = np.ndarray[Any, Any]


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


def read(data: bytes, path: Path) -> tuple[dict[str, Array], str]:
    """Arrays and the header's text; raises ``FileFormatError``.

    A file of another program has no header of ours: one is made, with its metadata.
    """
    from safetensors import SafetensorError, deserialize

    try:
        entries = deserialize(data)  # type: ignore[no-untyped-call]
        size = int.from_bytes(data[:8], "little")
        metadata = json.loads(data[8 : 8 + size]).get("__metadata__") or {}
    except (SafetensorError, ValueError) as error:
        raise FileFormatError(
            f"{path} is no safetensors file, or it is damaged or cut short ({error})"
        ) from None
    arrays = {name: _array(name, entry, path) for name, entry in entries}
    if HEADER in metadata:
        return arrays, str(metadata[HEADER])
    listed = {n: [a.dtype.name, list(a.shape)] for n, a in arrays.items()}
    foreign = {
        "kind": "symdnn parameters", "version": 0, "arrays": listed, "metadata": metadata,
    }  # fmt: skip
    return arrays, json.dumps(foreign)


def _array(name: str, entry: Mapping[str, Any], path: Path) -> Array:
    if entry["dtype"] not in DTYPES:
        raise FileFormatError(f"{path}: {name} has dtype {entry['dtype']}, which symdnn lacks")
    dtype = numpy_dtype(DTYPES[entry["dtype"]])
    return np.frombuffer(bytearray(entry["data"]), dtype).reshape(entry["shape"])
