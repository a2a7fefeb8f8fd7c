"""PyTorch's own files (.pt, .pth) without PyTorch: a zip of a pickle and the numbers.

A pickle is a program. This one may have the steps that containers of tensors need and no others,
and is run by an unpickler that knows a handful of names, all of them functions of this file that
only describe arrays; any other name is an error, so a file can load arrays and do nothing else. The
numbers are read from the zip's members of raw bytes.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from symdnn.errors import FileFormatError
from symdnn.graph.type import numpy_dtype
from symdnn.io.reading import checked_members, opened, refuse_more

Array = np.ndarray[Any, Any]

#: What a file is to be made into when it cannot be read here.
ADVICE = (
    "Where PyTorch is installed, make a safetensors file of it: "
    'safetensors.torch.save_file(torch.load(path)["..."] or model.state_dict(), '
    '"weights.safetensors")'
)

#: Classes of storages by name, as the pickle refers to them.
STORAGES = {
    "DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16", "LongStorage": "int64", "IntStorage": "int32",
    "ShortStorage": "int16", "CharStorage": "int8", "ByteStorage": "uint8",
    "BoolStorage": "bool", "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
}  # fmt: skip

#: The steps of a pickle that are let through: containers, numbers, texts, names and their calls.
STEPS = frozenset({
    "APPEND", "APPENDS", "BINBYTES", "BINFLOAT", "BINGET", "BININT", "BININT1", "BININT2",
    "BINPERSID", "BINPUT", "BINUNICODE", "BINUNICODE8", "BUILD", "EMPTY_DICT", "EMPTY_LIST",
    "EMPTY_TUPLE", "FRAME", "GLOBAL", "LONG1", "LONG_BINGET", "LONG_BINPUT", "MARK", "MEMOIZE",
    "NEWFALSE", "NEWTRUE", "NONE", "POP", "PROTO", "REDUCE", "SETITEM", "SETITEMS",
    "SHORT_BINBYTES", "SHORT_BINUNICODE", "STACK_GLOBAL", "STOP", "TUPLE", "TUPLE1", "TUPLE2",
    "TUPLE3",
})  # fmt: skip


def read_torch_zip(path: Path) -> Any:
    """What ``torch.save`` wrote: dicts, lists and numbers with NumPy arrays for the tensors.

    Raises :class:`~symdnn.errors.FileFormatError` for anything but containers of tensors (a whole
    pickled model, say), for files from before PyTorch 1.6, and for damaged ones.
    """
    with opened(path, "zip file of torch.save, which is newer than PyTorch 1.5", ADVICE) as found:
        file, size = found
        with zipfile.ZipFile(file) as archive:
            return _read(archive, size, path)


def _read(archive: zipfile.ZipFile, size: int, path: Path) -> Any:
    every = checked_members(archive, size)
    members = {_inner(info.filename): info for info in every}
    if len(members) != len(every):
        raise ValueError("two members have one name")
    if "data.pkl" not in members:
        raise FileFormatError(f"{path} holds no data.pkl, so torch.save did not write it. {ADVICE}")
    if any(i.compress_type != zipfile.ZIP_STORED for i in members.values()):
        raise FileFormatError(f"{path} is compressed, which torch.save never does")
    order = archive.read(members["byteorder"]) if "byteorder" in members else b"little"
    if order not in (b"little", b"big"):
        raise ValueError(f"its byte order is {order!r:.20}")
    text = archive.read(members["data.pkl"])
    _check_steps(text, path)
    storages = _Storages(archive, members, "<" if order == b"little" else ">", path)
    return _Unpickler(io.BytesIO(text), storages, _Room(size), path).load()


class _Room:
    """How many bytes the tensors of a file may have together: many can share one storage."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes, self.taken = nbytes, 0

    def take(self, nbytes: int) -> None:
        """Note a tensor; raises ``ValueError`` where there are too many."""
        self.taken += nbytes
        refuse_more(self.taken, self.nbytes)


def _check_steps(text: bytes, path: Path) -> None:
    """Refuse a pickle with other steps, or one whose list of remembered values would be huge."""
    for step, argument, _ in pickletools.genops(text):
        if step.name not in STEPS:
            raise FileFormatError(f"{path} has a {step.name} in its pickle. {ADVICE}")
        if step.name.endswith("PUT") and argument is not None and argument > len(text):
            raise FileFormatError(f"{path} is damaged: it remembers value {argument}")


def _inner(name: str) -> str:
    """A member's name without the archive's own, ``model/data/0``: ``data/0``."""
    return name.partition("/")[2]


class _Kind:
    """A class of storages, as the pickle names it."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype


class _Storages:
    """The arrays of numbers in the archive; each is read once, when it is asked for."""

    def __init__(
        self, archive: zipfile.ZipFile, members: Mapping[str, Any], order: str, path: Path
    ) -> None:
        self.archive, self.members, self.order, self.path = archive, members, order, path
        self.read: dict[tuple[str, str], Array] = {}

    def get(self, dtype: str, key: str) -> Array:
        """The storage ``key`` as a flat array."""
        if (dtype, key) not in self.read:
            member = self.members.get(f"data/{key}")
            if member is None:
                raise FileFormatError(f"{self.path} is damaged: it has no storage {key}")
            self.read[dtype, key] = self._numbers(dtype, self.archive.read(member))
        return self.read[dtype, key]

    def _numbers(self, dtype: str, raw: bytes) -> Array:
        kind = numpy_dtype(dtype)
        if self.order == "<" or kind.itemsize == 1:
            return np.frombuffer(bytearray(raw), kind)
        wide = np.frombuffer(raw, np.dtype(f"u{kind.itemsize}").newbyteorder(">"))
        return wide.astype(wide.dtype.newbyteorder("<")).view(kind)


class _Unpickler(pickle.Unpickler):
    """An unpickler for which only the names of :meth:`find_class` exist."""

    def __init__(self, file: io.BytesIO, storages: _Storages, room: _Room, path: Path) -> None:
        super().__init__(file)
        self.storages, self.room, self.path = storages, room, path

    def find_class(self, module: str, name: str) -> Any:
        """New functions and classes for each file, so that none can change the next one's."""
        if module in ("torch", "torch.storage") and name in STORAGES:
            return _Kind(STORAGES[name])
        found = {
            ("collections", "OrderedDict"): lambda *items: type("State", (dict,), {})(*items),
            ("torch", "Size"): lambda sizes=(): tuple(sizes),
            ("torch", "device"): lambda *names: ":".join(map(str, names)),
            ("torch._utils", "_rebuild_tensor_v2"): lambda *a: _strided(self.room, *a[:4]),
            ("torch._utils", "_rebuild_tensor"): lambda *a: _strided(self.room, *a[:4]),
            ("torch._utils", "_rebuild_parameter"): lambda tensor, *rest: tensor,
            ("torch.nn.parameter", "_rebuild_parameter"): lambda tensor, *rest: tensor,
        }
        if (module, name) not in found:
            raise FileFormatError(
                f"{self.path} needs {module}.{name}; only tensors in dicts and lists are read "
                f"here, never code. {ADVICE}"
            )
        return found[module, name]

    def persistent_load(self, saved: object) -> Array:
        """A storage: ("storage", class, key, device, number of elements)."""
        if not (isinstance(saved, tuple) and len(saved) == 5 and saved[0] == "storage"):
            raise FileFormatError(f"{self.path} is damaged: {saved!r:.80} is no storage")
        _, kind, key, _, count = saved
        known = isinstance(kind, _Kind) and kind.dtype in STORAGES.values()
        if not known or not isinstance(key, str) or not isinstance(count, int):
            raise FileFormatError(f"{self.path} is damaged: {saved!r:.80} is no storage")
        numbers = self.storages.get(kind.dtype, key)
        if len(numbers) < count:
            raise FileFormatError(
                f"{self.path} is damaged: storage {key} has {len(numbers)} elements, wanted {count}"
            )
        return numbers


def _strided(
    room: _Room, storage: Array, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]
) -> Array | None:
    """A copy of the elements that a tensor of this shape and these strides has."""
    if not isinstance(storage, np.ndarray) or len(shape) != len(strides):
        raise ValueError("a tensor without its storage")
    if offset < 0 or min((*shape, *strides), default=0) < 0:
        raise ValueError(f"a tensor with offset {offset}, shape {shape}, strides {strides}")
    if 0 in shape:
        return np.zeros(shape, storage.dtype)
    last = offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    # A stride of 0 repeats elements: a small file could ask for any amount of memory.
    if last >= len(storage) or math.prod(shape) > len(storage):
        raise ValueError(f"a tensor of shape {shape} in a storage of {len(storage)}")
    room.take(math.prod(shape) * storage.itemsize)
    steps = [s * storage.itemsize for s in strides]
    return np.lib.stride_tricks.as_strided(storage[offset:], shape, steps).copy()
