"""The array on a GPU that users get where PyCUDA's ``GPUArray`` is not used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from symdnn.gpu.device.array import RawArray
from symdnn.graph.type import numpy_dtype
from symdnn.graph.values.dlpack import CPU, CUDA, Described, HostExport, capsule_of

#: Stream numbers of the array API standard: the legacy default stream, and "do not wait".
_LEGACY_STREAM, _NO_WAIT = 1, -1


def raw_of(value: Any, context: object) -> RawArray | None:
    """The raw array of a :class:`DeviceArray` of this context; None for everything else."""
    own = isinstance(value, DeviceArray) and value._memory.context is context
    return value._array if own else None


class ReadByHost:
    """What NumPy, Python's numbers and texts read of an array on a GPU: each copies it by ``get``.

    Numbers are those of arrays of one element, as in NumPy; others raise its ``TypeError``, or its
    ``ValueError`` for the truth of several elements.
    """

    __slots__ = ()

    if TYPE_CHECKING:
        get: Callable[..., Any]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """For NumPy, which waits for the work that writes the values."""
        if copy is False:
            raise ValueError("an array on a GPU becomes one of NumPy by a copy: use get()")
        return self.get() if dtype is None else self.get().astype(dtype)

    def item(self) -> Any:
        """The only element as a Python number."""
        return self.get().item()

    def tolist(self) -> Any:
        """Nested lists of Python numbers."""
        return self.get().tolist()

    def __float__(self) -> float:
        return float(self.get())

    def __int__(self) -> int:
        return int(self.get())

    def __complex__(self) -> complex:
        return complex(self.get())

    def __bool__(self) -> bool:
        return bool(self.get())

    def __format__(self, spec: str) -> str:
        """A number by ``spec``: ``f"{loss:.3f}"``."""
        return format(self.get().item(), spec) if spec else str(self)


class DeviceArray(ReadByHost, NDArrayOperatorsMixin):
    """An array in a GPU's memory, with :meth:`get` and the protocols of other libraries.

    ``shape`` is a tuple of ints, ``dtype`` a NumPy dtype (for bfloat16 that of ``ml_dtypes``),
    ``strides`` are in bytes; ``ptr`` is the address, also by PyCUDA's name ``gpudata``.

    Functions return such arrays for ``Out(borrow=True)``, shared variables for
    ``get_value(borrow=True, return_internal_type=True)``. Functions accept them as arguments, like
    arrays of PyCUDA, CuPy, Numba and PyTorch. Other libraries use them without a copy:
    ``cupy.from_dlpack(a)``, ``torch.from_dlpack(a)``, ``jax.dlpack.from_dlpack(a)``,
    ``numba.cuda.as_cuda_array(a)``. The memory lives as long as the array or a library's view of
    it. It belongs to the device's primary context.

    Operators, comparisons, indices, loops and NumPy's functions compute with copies on the host, so
    programs need not know where a result is. As keys of dicts the arrays are objects.
    """

    __slots__ = ("__weakref__", "_array", "_memory")

    def __init__(self, array: RawArray, memory: Any) -> None:
        """``memory`` is the device's :class:`~symdnn.gpu.device.memory.CudaMemory`."""
        # A copy, because the runtime stores this object with the original: a reference cycle.
        own = RawArray(
            array.ptr, array.shape, array.dtype, array.strides, array.owner, array.read_only
        )
        self._array, self._memory = own, memory

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the dimensions."""
        return self._array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the elements."""
        return numpy_dtype(self._array.dtype)

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one element to the next along each dimension."""
        return self._array.strides

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self._array.ndim

    @property
    def size(self) -> int:
        """The number of elements."""
        return self._array.size

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self._array.nbytes

    @property
    def ptr(self) -> int:
        """The address of the first element."""
        return self._array.ptr

    gpudata = ptr

    def get(self) -> Any:
        """A copy as a NumPy array in C order; waits for the work that writes the values.

        Raises the errors of that work (:class:`~symdnn.errors.DataError`, ``IndexError``).
        """
        array = self._array
        low, high = array.extent
        raw = self._memory.download(RawArray(low, (high - low,), "uint8"))
        seen = np.ndarray(array.shape, self.dtype, raw, array.ptr - low, array.strides)
        return np.asarray(seen, order="C")

    __hash__ = object.__hash__

    def __array_ufunc__(
        self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **options: Any
    ) -> Any:
        """Of copies on the host; ``a += b`` gives the name another value, of NumPy."""
        if out is not None and not any(isinstance(v, DeviceArray) for v in out):
            options["out"] = out
        given = [v.get() if isinstance(v, DeviceArray) else v for v in inputs]
        return getattr(ufunc, method)(*given, **options)

    def __getitem__(self, index: Any) -> Any:
        return self.get()[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.get())

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array without dimensions")
        return self.shape[0]

    def __repr__(self) -> str:
        place = self._memory.context.place
        return f"<DeviceArray {self.dtype.name}{self.shape} on {place} at {self.ptr:#x}>"

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3, with the stream that writes the values. For bfloat16 use DLPack."""
        if self._array.dtype == "bfloat16":
            raise AttributeError("__cuda_array_interface__ knows no bfloat16: use __dlpack__")
        stream = self._memory.context.stream
        return {**self._array.__cuda_array_interface__, "stream": stream}

    def __dlpack_device__(self) -> tuple[int, int]:
        """The type of device (``kDLCUDA``) and its index."""
        return CUDA, self._memory.context.index

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A DLPack capsule, of version 1 where ``max_version`` allows it, else of version 0.

        ``stream`` is the consumer's stream, which will wait for the values: a ``CUstream`` as an
        int; 1 or None is the legacy default stream, 2 the thread's default stream, -1 none.
        ``dl_device=(1, 0)``, the host, gives a copy there unless ``copy=False``.
        Raises ``ValueError`` for stream 0, which the standard leaves undefined, and ``BufferError``
        for another device or a copy on this one.
        """
        here = self.__dlpack_device__()
        there = here if dl_device is None else tuple(map(int, dl_device))
        if there == (CPU, 0) and copy is not False:
            return HostExport(self.get()).__dlpack__(max_version=max_version)
        if there != here:
            raise BufferError(f"the array is on {here}, not on {there}: get() copies it")
        if copy:
            raise BufferError("DLPack gives out the memory itself: get() copies it")
        wanted = _LEGACY_STREAM if stream is None else int(stream)
        if wanted == 0 or wanted < _NO_WAIT:
            raise ValueError(f"stream {wanted} is none: 1 is the legacy default, 2 the thread's")
        context = self._memory.context
        with context.current():
            if wanted not in (_NO_WAIT, context.stream):
                context.make_wait(wanted)
            array = self._array
            return capsule_of(
                Described(array.ptr, array.shape, array.dtype, array.strides, here,
                          array.read_only, self),
                max_version,
            )  # fmt: skip
