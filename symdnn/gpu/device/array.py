"""An array on the device as plain data: a pointer, a shape, strides."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache, cached_property
from math import prod
from typing import Any

from symdnn.graph.type import numpy_dtype

#: Alignment in bytes of all device memory that symdnn allocates; kernels rely on it.
ALIGNMENT = 256


def c_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Strides in bytes of a C-contiguous array."""
    strides, step = [], itemsize
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


@cache
def _itemsize(dtype: str) -> int:
    return int(numpy_dtype(dtype).itemsize)


@dataclass(frozen=True)
class RawArray:
    """``ptr`` is a device address, ``strides`` are in bytes, ``dtype`` a name of ``TensorType``.

    ``owner`` keeps the memory alive, unless the array is in the arena. ``read_only`` memory of
    another library is read, and never becomes that of a shared variable.
    """

    ptr: int
    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] = ()
    owner: Any = field(default=None, compare=False, repr=False)
    read_only: bool = field(default=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if len(self.strides) != len(self.shape):
            object.__setattr__(self, "strides", c_strides(self.shape, self.itemsize))

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return _itemsize(self.dtype)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @cached_property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self.size * self.itemsize

    @property
    def extent(self) -> tuple[int, int]:
        """The range of its elements' addresses: the first, and the end."""
        if not self.size:
            return self.ptr, self.ptr
        steps = [(n - 1) * s for n, s in zip(self.shape, self.strides)]
        low, high = sum(min(s, 0) for s in steps), sum(max(s, 0) for s in steps)
        return self.ptr + low, self.ptr + high + self.itemsize

    @cached_property
    def contiguous(self) -> bool:
        """Whether the array is C-contiguous."""
        step = self.itemsize
        for size, stride in zip(reversed(self.shape), reversed(self.strides)):
            if size == 1:
                continue
            if stride != step:
                return False
            step = stride * size
        return True

    def is_like(self, shape: tuple[int, ...], dtype: str) -> bool:
        """Whether it can replace a new array: same shape and dtype, contiguous, aligned."""
        return (
            (self.shape, self.dtype) == (shape, dtype)
            and self.contiguous
            and self.ptr % ALIGNMENT == 0
        )

    def __getitem__(self, index: Any) -> RawArray:
        """A view: ``x[i, ...]`` is one entry, ``x[:n]`` the first ones."""
        first = index[0] if isinstance(index, tuple) else index
        if isinstance(first, slice):
            count = len(range(self.shape[0])[first])
            shape, strides, start = (count, *self.shape[1:]), self.strides, first.start or 0
        else:
            shape, strides, start = self.shape[1:], self.strides[1:], int(first)
        at = self.ptr + start * self.strides[0]
        return RawArray(at, shape, self.dtype, strides, self.owner or self)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """For PyCUDA, CuPy, Numba, PyTorch: the array without a copy."""
        return {
            "shape": self.shape,
            "typestr": numpy_dtype(self.dtype).str,
            "data": (self.ptr, False),
            "strides": None if self.contiguous else self.strides,
            "version": 3,
        }
