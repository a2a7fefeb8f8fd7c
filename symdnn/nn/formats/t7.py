"""Torch7's binary files, .t7: tensors by their path in tables and modules, read without Torch.

Functions in a file are passed over as bytes; nothing of it runs. Every count is checked against the
bytes that are left before anything is made of it.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

from symdnn.io.reading import opened, refuse_more

Array = np.ndarray[Any, Any]
ADVICE = "Where Torch7 runs, save the tensors by name for NumPy (npy4th), or as a binary .t7"
_DTYPES = {
    "Double": "<f8", "Float": "<f4", "Half": "<f2", "Long": "<i8", "Int": "<i4", "Short": "<i2",
    "Byte": "u1", "Char": "i1", "Cuda": "<f4", "CudaDouble": "<f8", "CudaHalf": "<f2",
    "CudaLong": "<i8", "CudaInt": "<i4", "CudaShort": "<i2", "CudaByte": "u1", "CudaChar": "i1",
}  # fmt: skip
#: Objects may be nested so deeply.
_MOST_LEVELS = 400
#: The tensors of modules that are weights or statistics; others are buffers of calls.
_WEIGHTS = ("weight", "bias", "running_mean", "running_var", "running_std")


class _Module(dict[Any, Any]):
    """A Lua object: its fields, and the name of its class."""

    kind = ""


def read_t7(path: Path) -> dict[str, Array]:
    """Tensors of a binary file of ``torch.save``, by path: ``modules.1.weight``.

    Of modules these are the weights and statistics; buffers of calls are left out. Raises
    :class:`~symdnn.errors.FileFormatError` for other, for damaged and for text files.
    """
    with opened(path, "binary file of Torch7", ADVICE) as (file, size):
        content = file.read(size)
        root = _Reader(content).object()
        found: dict[str, Array] = {}
        _name(root, "", found, set())
        return found


class _Reader:
    """Reads objects from bytes; an object that occurs again is the same one."""

    def __init__(self, content: bytes) -> None:
        self.content, self.at, self.level = content, 0, 0
        self.seen: dict[int, Any] = {}
        self.taken = 0

    def take(self, count: int) -> bytes:
        """The next bytes; raises ``ValueError`` where there are fewer."""
        if not 0 <= count <= len(self.content) - self.at:
            raise ValueError(f"{count} bytes, of {len(self.content) - self.at} left")
        self.at += count
        return self.content[self.at - count : self.at]

    def int32(self) -> int:
        """A 32-bit integer."""
        return int(struct.unpack("<i", self.take(4))[0])

    def longs(self, count: int) -> tuple[int, ...]:
        """64-bit integers."""
        return struct.unpack(f"<{count}q", self.take(8 * count))

    def text(self) -> str:
        """A string."""
        return self.take(self.int32()).decode("latin1")

    def object(self) -> Any:
        """Any object: a number, a string, a table, a tensor, a module."""
        kind = self.int32()
        if kind == 0:
            return None
        if kind == 1:
            number = struct.unpack("<d", self.take(8))[0]
            return (
                int(number)
                if number == number and abs(number) < 2**53 and number % 1 == 0
                else number
            )
        if kind == 2:
            return self.text()
        if kind == 5:
            return bool(self.int32())
        if kind not in (3, 4, 6, 7, 8):
            raise ValueError(f"an object of type {kind}")
        index = self.int32()
        if index in self.seen:
            return self.seen[index]
        self.level += 1
        if self.level > _MOST_LEVELS:
            raise ValueError("objects nested too deeply")
        try:
            return self._made(kind, index)
        finally:
            self.level -= 1

    def _made(self, kind: int, index: int) -> Any:
        if kind == 3:
            table: dict[Any, Any] = {}
            self.seen[index] = table
            return self._fill(table)
        if kind == 4:
            return self._torch(index)
        self.seen[index] = None  # a function: its code is passed over
        self.take(self.int32())
        return self.object() and None

    def _fill(self, table: dict[Any, Any]) -> dict[Any, Any]:
        for _ in range(self._count(8)):
            key = self.object()
            value = self.object()
            if isinstance(key, str | int | float | bool):
                table[key] = value
        return table

    def _count(self, least_bytes: int) -> int:
        count = self.int32()
        if not 0 <= count <= (len(self.content) - self.at) // least_bytes:
            raise ValueError(f"{count} entries")
        return count

    def _torch(self, index: int) -> Any:
        name = self.text()
        if name.startswith("V "):
            name = self.text()
        short = name.removeprefix("torch.")
        for suffix, read in (("Tensor", self._tensor), ("Storage", self._storage)):
            kind = short.removesuffix(suffix)
            if kind != short and kind in _DTYPES and name.startswith("torch."):
                made = read(np.dtype(_DTYPES[kind]))
                self.seen[index] = made
                return made
        module = _Module()
        module.kind = name
        self.seen[index] = module
        fields = self.object()
        if isinstance(fields, dict):
            module.update(fields)
        return module

    def _storage(self, dtype: np.dtype[Any]) -> Array:
        (count,) = self.longs(1)
        if not 0 <= count <= (len(self.content) - self.at) // dtype.itemsize:
            raise ValueError(f"a storage of {count} elements")
        return np.frombuffer(self.take(count * dtype.itemsize), dtype)

    def _tensor(self, dtype: np.dtype[Any]) -> Array:
        ndim = self._count(16)
        sizes, steps = self.longs(ndim), self.longs(ndim)
        (offset,) = self.longs(1)
        storage = self.object()
        if not ndim or storage is None:
            return np.zeros(0, dtype)
        if not isinstance(storage, np.ndarray) or storage.dtype != dtype:
            raise ValueError("a tensor without its storage")
        if min((*sizes, *steps)) < 0 or offset < 1:
            raise ValueError(f"a tensor of sizes {sizes}, strides {steps}")
        if 0 in sizes:
            return np.zeros(sizes, dtype) if max(sizes) < 2**31 else np.zeros(0, dtype)
        count = 1
        for n in sizes:
            count *= n
        last = offset - 1 + sum((n - 1) * s for n, s in zip(sizes, steps))
        if last >= len(storage):
            raise ValueError(f"a tensor of sizes {sizes} in a storage of {len(storage)}")
        self.taken += count * dtype.itemsize
        refuse_more(self.taken, len(self.content))
        strides = [s * dtype.itemsize for s in steps]
        made = np.lib.stride_tricks.as_strided(storage[offset - 1 :], sizes, strides)
        return made.astype(dtype.newbyteorder("="))


def _name(value: object, path: str, found: dict[str, Array], open_: set[int]) -> None:
    """Put the tensors of ``value`` into ``found`` by their paths."""
    if isinstance(value, np.ndarray):
        if value.size and path:
            found[path] = value
        return
    if not isinstance(value, dict) or id(value) in open_:
        return
    open_.add(id(value))
    for key, item in value.items():
        if isinstance(value, _Module) and isinstance(item, np.ndarray) and key not in _WEIGHTS:
            continue
        _name(item, f"{path}.{key}" if path else str(key), found, open_)
    open_.discard(id(value))
