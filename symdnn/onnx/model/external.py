"""Tensors in files of their own beside the model."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from onnx import ModelProto, TensorProto, numpy_helper

from symdnn.errors import ModelError
from symdnn.graph.typing import Array
from symdnn.onnx.model.kinds import BITS, kind_of, numpy_kind

#: Elements of fewer than 8 bits are packed.
_BITS = {**BITS, "float4_e2m1fn": 4, "float6_e2m3fn": 6, "float6_e3m2fn": 6}
#: Tensors of fewer bytes stay in the file of the model.
_LEAST_BYTES = 1024
#: Where a tensor begins in a file of data: at a multiple, as mapping and reading them wants.
_ALIGNMENT_BYTES = 4096


def external_array(tensor: Any, kind: str, dims: tuple[int, ...], folder: str | None) -> Array:
    """The elements of a tensor in another file, mapped and not copied.

    The file must lie in the folder of the model, or in one below it. Raises :class:`ModelError`
    for a path that leads elsewhere, and for a file that is too short.
    """
    what = f"the tensor {tensor.name!r}"
    entries = {e.key: e.value for e in tensor.external_data}
    path = _inside(entries.get("location", ""), folder, what)
    n_bytes = _bytes_of(kind, dims)
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
        inside = TensorProto(data_type=tensor.data_type, dims=dims, raw_data=raw.tobytes())
        return np.asarray(numpy_helper.to_array(inside))
    return raw.view(numpy_kind(kind)).reshape(dims)


def _bytes_of(kind: str, dims: Iterable[int]) -> int:
    """The bytes of a tensor in a file."""
    bits = _BITS.get(kind, 8 * numpy_kind(kind).itemsize)
    return (math.prod(dims) * bits + 7) // 8


def _inside(location: str, folder: str | None, what: str) -> Path:
    """The file of ``location``, which must lie in ``folder``."""
    if folder is None:
        raise ModelError(f"{what} is in another file; load the model by its path")
    root = Path(folder).resolve()
    path = (root / location).resolve()
    if not location or os.path.isabs(location) or not path.is_relative_to(root):
        raise ModelError(f"{what}: its file {location!r} is outside of the model's folder")
    if not path.is_file():
        raise ModelError(f"{what}: its file {location!r} is missing")
    return path


def _number(text: str, what: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 18:
        raise ModelError(f"{what}: offset or length {text!r} is no number of bytes")
    return int(text)


def with_data_in(location: str, model: Any) -> Any:
    """``model`` with its large initialisers in the file that :func:`write_data` writes."""
    outside = ModelProto()
    for part, value in model.ListFields():
        if part.name != "graph":
            _set(outside, part, value)
    for part, value in model.graph.ListFields():
        if part.name != "initializer":
            _set(outside.graph, part, value)
    places = {k: (offset, n_bytes) for k, offset, n_bytes in _places(model)}
    for k, tensor in enumerate(model.graph.initializer):
        if k not in places:
            outside.graph.initializer.add().CopyFrom(tensor)
            continue
        made = outside.graph.initializer.add(
            name=tensor.name, data_type=tensor.data_type, dims=tensor.dims,
            data_location=TensorProto.EXTERNAL,
        )  # fmt: skip
        entries = dict(zip(("location", "offset", "length"), (location, *places[k])))
        for key, entry in entries.items():
            made.external_data.add(key=key, value=str(entry))
    return outside


def _set(message: Any, part: Any, value: Any) -> None:
    """A field of a message, with a copy of ``value``."""
    if isinstance(value, str | bytes | int | float):
        setattr(message, part.name, value)
    elif hasattr(value, "extend"):
        getattr(message, part.name).extend(value)
    else:
        getattr(message, part.name).CopyFrom(value)


def write_data(out: BinaryIO, model: Any) -> None:
    """The large initialisers of ``model``, one after the other."""
    for k, offset, _ in _places(model):
        out.seek(offset)
        out.write(model.graph.initializer[k].raw_data)


def _places(model: Any) -> Iterator[tuple[int, int, int]]:
    """Of large initialisers: the index, where it begins in the file of data, and its bytes."""
    offset = 0
    for k, tensor in enumerate(model.graph.initializer):
        n_bytes = _bytes_of(kind_of(tensor.data_type, tensor.name), tensor.dims)
        if n_bytes >= _LEAST_BYTES:
            yield k, offset, n_bytes
            offset += -(-n_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
