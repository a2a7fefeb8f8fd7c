"""Launches of kernels as plain data: source, grid, and parameters with slots for addresses.

A kernel (:class:`CudaKernel`) makes a list of :class:`KernelLaunch` from a call and the strides of
its operands. The list depends on no address, so it is cached for each layout; a launch only fills
in addresses. It needs no device either: tests compile the sources, and run them on a CPU.

Every kernel takes one struct of 8-byte fields by value: pointers, counts, doubles.
"""

from __future__ import annotations

import operator
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd, prod
from typing import Any, NamedTuple

import numpy as np

from symdnn.config import config
from symdnn.gpu.device.array import RawArray, c_strides
from symdnn.gpu.device.env import LaunchEnv
from symdnn.gpu.device.error_codes import TICKETS_AT
from symdnn.graph.kernel import Call, Kernel, Traits
from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.graph.typing import OpT
from symdnn.ops.vendor.gpudnn import DnnBase

#: Every result that is no part of another begins at a multiple of this.
_RESULT_ALIGNMENT_BYTES = 64
#: Slots of addresses other than the operands'.
NODE, ERROR_WORD, WORKSPACE = -3, -2, -1


class Pointer(NamedTuple):
    """A parameter: the address in ``slot`` plus ``offset`` bytes."""

    slot: int
    offset: int = 0


#: The counters by which a kernel's blocks find the last one: uint32, zero between kernels.
TICKETS = Pointer(ERROR_WORD, TICKETS_AT)


@dataclass(frozen=True)
class View:
    """An operand of a kernel: its slot, dtype, shape, strides and offset in bytes.

    The slot's address is a multiple of ``alignment`` (at most 16). ``alias_of`` is the first slot
    with the same address, which for an output written in place is an input's.
    """

    slot: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    alignment: int = 16
    alias_of: int = -1

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return int(numpy_dtype(self.dtype).itemsize)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def pointer(self) -> Pointer:
        """The address of the first element."""
        return Pointer(self.slot, self.offset)

    @property
    def steps(self) -> tuple[int, ...]:
        """Strides in elements."""
        size = self.itemsize
        return tuple([s // size for s in self.strides])

    @property
    def contiguous(self) -> bool:
        """Whether the view is C-contiguous."""
        wanted = c_strides(self.shape, self.itemsize)
        return all(n == 1 or a == b for n, a, b in zip(self.shape, self.strides, wanted))

    def aligned_to(self, nbytes: int) -> bool:
        """Whether the first element's address is a multiple of ``nbytes`` (1 to 16)."""
        return self.alignment % nbytes == 0 and self.offset % nbytes == 0

    def __getitem__(self, index: tuple[Any, ...]) -> View:
        """The view by ints and slices of leading dimensions, without bounds checks."""
        offset, shape, strides = self.offset, [], []
        rest = len(self.shape) - len(index)
        for item, size, stride in zip((*index, *[slice(None)] * rest), self.shape, self.strides):
            if isinstance(item, slice):
                numbers = range(*item.indices(size))
                offset += numbers.start * stride if len(numbers) else 0
                shape.append(len(numbers))
                strides.append(stride * numbers.step)
            else:
                offset += (int(item) + size if item < 0 else int(item)) * stride
        return replace(self, offset=offset, shape=tuple(shape), strides=tuple(strides))

    def transposed(self, order: Sequence[int]) -> View:
        """The view with permuted dimensions."""
        return replace(
            self,
            shape=tuple(self.shape[d] for d in order),
            strides=tuple(self.strides[d] for d in order),
        )

    def broadcast_to(self, shape: Sequence[int]) -> View:
        """The view broadcast to ``shape``."""
        lead = len(shape) - len(self.shape)
        strides = [0] * lead + [
            0 if n == 1 else stride for n, stride in zip(self.shape, self.strides)
        ]
        return replace(self, shape=tuple(shape), strides=tuple(strides))

    def reshaped(self, shape: Sequence[int]) -> View:
        """A contiguous view in another shape. Raises ``ValueError`` for a strided one."""
        if not self.contiguous:
            raise ValueError(f"reshape of a strided view {self}")
        return replace(self, shape=tuple(shape), strides=c_strides(tuple(shape), self.itemsize))

    def as_dtype(self, dtype: str) -> View:
        """The view with another dtype of the same size."""
        return replace(self, dtype=dtype)


#: The operands of a launch.
Views = Sequence[View]


def scratch(offset: int, dtype: str, shape: Sequence[int]) -> View:
    """A contiguous array in the workspace."""
    strides = c_strides(tuple(shape), numpy_dtype(dtype).itemsize)
    return View(WORKSPACE, dtype, tuple(shape), strides, offset)


@dataclass(frozen=True, eq=False)
class KernelLaunch:
    """The launch of one kernel: source, name, grid, block, fields of its parameter struct."""

    source: str
    name: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    parameters: tuple[Any, ...]
    shared_bytes: int = 0

    @cached_property
    def _template(self) -> tuple[Any, Any, Any]:
        """The fields without addresses, and the indices and slots of those that are addresses."""
        bits = [_bits(p.offset if isinstance(p, Pointer) else p) for p in self.parameters]
        found = [(i, p.slot) for i, p in enumerate(self.parameters) if isinstance(p, Pointer)]
        places, slots = np.array(found, np.intp).reshape(-1, 2).T
        return np.array(bits, np.uint64).view(np.int64), places, slots

    def link(self, addresses: Any) -> Any:
        """The parameter struct, as bytes, for the addresses of all slots (an int64 array)."""
        fields, places, slots = self._template
        linked = fields.copy()
        linked[places] += addresses[slots]
        return np.void(linked.tobytes())

    def enqueue(self, env: LaunchEnv, addresses: Any) -> None:
        """Enqueue the kernel for the addresses of all slots; it is compiled on first use."""
        function = env.module(self.source, self.name)
        env.launch(function, self.grid, self.block, self.shared_bytes, (self.link(addresses),))


def _bits(value: Any) -> int:
    """The 64 bits of a number."""
    if isinstance(value, float):
        return int.from_bytes(struct.pack("=d", value), sys.byteorder)
    return operator.index(value) & 0xFFFFFFFFFFFFFFFF


#: The most blocks along the second and the third dimension of a grid.
MOST_BLOCKS_BESIDE = 65535


def blocks_for(threads: int, block: int, most: int = 8192) -> int:
    """The number of blocks for ``threads``, at most ``most``. Kernels have grid-stride loops."""
    return max(1, min(-(-threads // block), most))


def blocks_beside(threads: int, block: int) -> int:
    """The number of blocks for ``threads`` along the second dimension of a grid."""
    return blocks_for(threads, block, MOST_BLOCKS_BESIDE)


class CudaKernel(Kernel[OpT]):
    """Base of the kernels in CUDA C; see :class:`symdnn.graph.kernel.Kernel`.

    ``dtypes`` restricts the operands' dtypes. ``contiguous_inputs`` are the indices of inputs that
    must be contiguous (True: all).
    """

    traits = Traits("cuda")
    dtypes: frozenset[str] | None = None

    def refuses(self, call: Call[OpT]) -> str | None:
        """Why it cannot run this call: here, an unsupported dtype."""
        for t in (*call.inputs, *call.outputs):
            if self.dtypes is not None and isinstance(t, TensorType) and t.dtype not in self.dtypes:
                return f"it has no code for {t.dtype}"
        return None

    def launches(
        self, call: Call[OpT], inputs: Sequence[Any], outputs: Sequence[View]
    ) -> Sequence[KernelLaunch]:
        """The launches of a call. ``inputs`` are views, or ints where the op reads host values."""
        raise NotImplementedError

    def bind(self, call: Call[OpT]) -> Any:
        """A bound kernel that caches its launches for each layout of its operands."""
        return BoundKernel(self, call)

    def writes(self, call: Call[OpT], index: int, array: Any) -> bool:
        """Whether it writes a result there: in any layout, or in one piece like all memory."""
        whole = bool(array.contiguous) and array.ptr % _RESULT_ALIGNMENT_BYTES == 0
        return self.writes_any_layout or whole

    def sources(self, call: Call[OpT], host: Sequence[int] = ()) -> list[str]:
        """The CUDA C sources for contiguous operands; ``host`` are the ints read on the host."""
        values = iter(host)
        read = set(call.op.host_inputs)
        inputs = [
            next(values) if i in read else contiguous_view(i, t) for i, t in enumerate(call.inputs)
        ]
        outputs = [contiguous_view(len(inputs) + i, t) for i, t in enumerate(call.outputs)]
        found = self.launches(call, inputs, outputs)
        return list(dict.fromkeys(launch.source for launch in found))


def contiguous_view(slot: int, type_: Any) -> View:
    """A contiguous operand of this type."""
    strides = c_strides(type_.shape, numpy_dtype(type_.dtype).itemsize)
    return View(slot, type_.dtype, tuple(type_.shape), strides)


#: Layouts that a bound kernel caches launches for.
_MAX_LAYOUTS = 64


class GuardableKernel(CudaKernel[OpT]):
    """Base of kernels that may write new values of shared variables.

    A ``guarded`` one writes nothing once the error word is set.
    """

    def __init__(self, guarded: bool = False) -> None:
        self.guarded = guarded

    def bind_guarded(self, call: Call[OpT]) -> BoundKernel:
        """A launch that writes nothing once the error word is set."""
        return BoundKernel(type(self)(guarded=True), call)


class BoundKernel:
    """A kernel bound to a call. It makes its launches once for each layout of the operands."""

    def __init__(self, kernel: CudaKernel, call: Call) -> None:
        self.kernel, self.call = kernel, call
        self._layouts: dict[Any, list[tuple[Any, KernelLaunch]]] = {}
        self._last: tuple[Any, ...] = ()
        self._enqueue: list[tuple[Any, ...]] = []

    def __call__(self, env: LaunchEnv, inputs: Sequence[Any], outputs: Sequence[RawArray]) -> None:
        """Enqueue the kernels of this call."""
        operands = (*inputs, *outputs)
        if not self._is_last(operands, env):
            self._link(operands, len(inputs), env)
        for function, grid, block, shared_bytes, args in self._enqueue:
            env.launch(function, grid, block, shared_bytes, args)

    def _is_last(self, operands: tuple[Any, ...], env: LaunchEnv) -> bool:
        """Whether operands and environment are the objects of the last call."""
        last = self._last
        return (
            len(last) == len(operands) + 1
            and last[-1] is env
            and all(a is b for a, b in zip(operands, last))
        )

    def _link(self, operands: tuple[Any, ...], count: int, env: LaunchEnv) -> None:
        at = [a.ptr if isinstance(a, RawArray) else -1 for a in operands]
        aliases = [at.index(p) for p in at]
        key = tuple(
            (a.strides, a.ptr & 15, alias) if isinstance(a, RawArray) else _integer(a)
            for a, alias in zip(operands, aliases)
        )
        found = self._layouts.get(key)
        if found is None:
            if len(self._layouts) >= _MAX_LAYOUTS:  # a host value changes at each call
                self._layouts.clear()
            views = [view_of(i, a, alias) for i, (a, alias) in enumerate(zip(operands, aliases))]
            found = self._layouts[key] = self._lay_out(views, count, env)
        addresses = np.array([*at, env.node, env.error_word, env.workspace], np.int64)
        self._enqueue = [
            (function, k.grid, k.block, k.shared_bytes, (k.link(addresses),))
            for function, k in found
        ]
        # Only operands in the arena are remembered, so that other arrays are not kept alive.
        kept = all(getattr(a, "owner", None) is None for a in operands)
        self._last = (*operands, env) if kept else ()

    def _lay_out(
        self, views: list[Any], count: int, env: LaunchEnv
    ) -> list[tuple[Any, KernelLaunch]]:
        launches = self.kernel.launches(self.call, views[:count], views[count:])
        if any(isinstance(p, Pointer) and p.slot == NODE for k in launches for p in k.parameters):
            env.reports = True
        return [(env.module(k.source, k.name), k) for k in launches]


def _integer(value: Any) -> int:
    """A host operand as an int. Raises ``AssertionError`` for other host arrays."""
    a = np.asarray(value)
    if a.ndim or a.dtype.kind not in "biu":
        raise AssertionError(f"{a.dtype} of shape {a.shape} is on the host, not on the device")
    return int(a)


def view_of(slot: int, value: Any, alias_of: int = -1) -> Any:
    """A device array as a view; a host value as an int."""
    if not isinstance(value, RawArray):
        return _integer(value)
    alignment = 16 if value.ptr % 16 == 0 else value.ptr & -value.ptr
    return View(slot, value.dtype, value.shape, value.strides, 0, alignment, alias_of)


def prefers_cudnn(call: Call) -> str | None:
    """The flag by which our kernels leave a cuDNN op to cuDNN; None without it."""
    if str(config.gpu.prefer) == "cudnn" and isinstance(call.op, DnnBase):
        return "gpu.prefer=cudnn"
    return None


def alignment_of(*views: View) -> int:
    """The common alignment in bytes of all addresses."""
    return min(gcd(v.alignment, v.offset or 16) for v in views)
