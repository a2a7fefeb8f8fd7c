"""Tensors in files of their own beside the model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from symdnn.errors import ModelError
from symdnn.graph.typing import Array
from symdnn.onnx.model.kinds import BITS, numpy_kind

__all__ = ["external_array"]

#: Elements of fewer than 8 bits are packed.
_BITS = {**BITS, "float4_e2m1fn": 4}


def external_array(tensor: Any, kind: str, dims: tuple[int, ...], folder: str | None) -> Array:
    """The elements of a tensor in another file, mapped and not copied.

    The file must lie in the folder of the model, or in one below it. Raises :class:`ModelError`
    for a path that leads elsewhere, and for a file that is too short.
    """
    what = f"the tensor {tensor.name!r}"
    entries = {e.key: e.value for e in tensor.external_data}
    path = _inside(entries.get("location", ""), folder, what)
    count = int(np.prod(dims, dtype=object))
    bits = _BITS.get(kind, 8 * numpy_kind(kind).itemsize)
    n_bytes = (count * bits + 7) // 8
    offset = _number(entries.get("offset", "0"), what)
    length = _number(entries.get("length", str(n_bytes)), what)
    size = os.path.getsize(path)
    if length != n_bytes:
        raise ModelError(f"{what} of shape {dims} needs {n_bytes} bytes, and declares {length}")
    if offset + n_bytes > size:
        raise ModelError(f"{what}: {path.name} has {size} bytes, and it ends at {offset + n_bytes}")
    if n_bytes == 0:
        return np.empty(dims, numpy_kind(kind))
    raw = np.memmap(path, np.uint8, "r", offset, (n_bytes,))
    if kind in _BITS:
        return _unpacked(raw, kind, count).reshape(dims)
    return raw.view(numpy_kind(kind)).reshape(dims)


def _inside(location: str, folder: str | None, what: str) -> Path:
    """The file of ``location``, which must lie in ``folder``."""
    if folder is None:
        raise ModelError(f"{what} is in another file; load the model by its path")
    root = Path(folder).resolve()
    path = (root / location).resolve()
    if not location or os.path.isabs(location) or not path.is_relative_to(root):
        raise ModelError(f"{what}: its file {location!r} lies outside of the model's folder")
    if not path.is_file():
        raise ModelError(f"{what}: its file {location!r} is missing")
    return path


def _number(text: str, what: str) -> int:
    if not text.isdecimal() or len(text) > 18:
        raise ModelError(f"{what}: offset or length {text!r} is no number of bytes")
    return int(text)


def _unpacked(raw: Array, kind: str, count: int) -> Array:
    """Elements of 4 or 2 bits, the lowest bits first."""
    bits = _BITS[kind]
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = ((raw[:, None] >> shifts) & ((1 << bits) - 1)).ravel()[:count]
    if kind.startswith("int"):
        sign = 1 << (bits - 1)
        codes = (codes.astype(np.int8) ^ sign) - sign
        return codes.astype(numpy_kind(kind))
    if kind.startswith("float"):
        return codes.view(numpy_kind(kind))
    return codes.astype(numpy_kind(kind))
