"""Memory for the outputs of a plan: large buffers are recycled once the caller has dropped them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from sys import getrefcount
from threading import Lock
from typing import Any
from weakref import ref

import numpy as np

from symdnn.cpu.launch.scratch import empty_aligned
from symdnn.graph.type import numpy_dtype
from symdnn.graph.typing import Array
from symdnn.graph.variable import Variable
from symdnn.ops.control.scan_loop import NumpyArrays
from symdnn.ops.core.shape import DimShuffle
from symdnn.ops.elemwise import Elemwise
from symdnn.ops.lowered.fused import FusedComplex, FusedElemwise

__all__ = [
    "LoopBuffers", "OutputBuffers", "PersistentOutputBuffers", "fresh_outputs", "kind_of",
    "memory_order", "order_follows", "output_parts", "outside_views", "view_of_base",
    "whole_outputs",
]  # fmt: skip


#: Outputs of at least this size are recycled.
_MIN_BYTES_TO_RECYCLE = 1 << 16
#: Memory of at least this size is taken from other plans, if it is at most an eighth too large.
_MIN_BYTES_TO_TAKE = 1 << 20
#: Bytes of recycled buffers of all plans: beyond, those of all but the last few plans that
#: allocated some are let go. A function of sizes that change has many plans.
_MOST_KEPT_BYTES, _PLANS_WITH_BUFFERS = 64 << 20, 8


def _references(kept: list[Any], k: int) -> tuple[Any, int]:
    """An entry of a list, and its reference count."""
    entry = kept[k]
    return entry, getrefcount(entry)


#: The count of an entry that only the list has: local names and arguments count in some
#: interpreters.
_UNHELD = _references([object()], 0)[1]


_in_fortran_order: Any = partial(np.empty, order="F")


class _Kept:
    """The plans that have recycled buffers, in the order in which they allocated them.

    Python may end plans that are garbage wherever it makes an object: entries go without the lock.
    So no loop goes over the dict itself, only over lists that take no new objects.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        #: id of a plan's buffers -> they, and their bytes.
        self._bytes: dict[int, tuple[ref[OutputBuffers], int]] = {}

    def add(self, owner: OutputBuffers, nbytes: int) -> None:
        """``owner`` has allocated ``nbytes``; the oldest ones are let go where that is too much."""
        with self._lock:
            _, before = self._bytes.pop(id(owner), (None, 0))
            known = ref(owner, partial(self._drop, id(owner)))
            self._bytes[id(owner)] = known, before + nbytes
            entries = list(self._bytes.values())
            total = sum(size for _, size in entries)
            for key in list(self._bytes)[:-_PLANS_WITH_BUFFERS]:
                if total <= _MOST_KEPT_BYTES:
                    return
                oldest, size = self._bytes.pop(key, (None, 0))
                total -= size
                if oldest is not None and (buffers := oldest()) is not None:
                    buffers.let_go()

    def taken(self, nbytes: int) -> Any:
        """Memory of so many bytes that a plan keeps and nobody holds, from now on another's.

        What a call has no more use for serves the rest of it. None if there is none.
        """
        if nbytes < _MIN_BYTES_TO_TAKE:
            return None
        with self._lock:
            for key in list(self._bytes):
                known, size = self._bytes.get(key, (None, 0))
                owner = None if known is None else known()
                memory = None if owner is None else owner.give_up(nbytes)
                if known is not None and memory is not None:
                    self._bytes[key] = known, size - len(memory)
                    return memory
        return None

    def _drop(self, key: int, _: ref[OutputBuffers]) -> None:
        self._bytes.pop(key, None)


_kept = _Kept()


class OutputBuffers:
    """Allocates the outputs of a plan; recycles large buffers that nobody holds any more.

    Large fresh memory costs page faults in each call, which can take longer than the kernels.
    """

    def __init__(self, places: Sequence[tuple[int, tuple[int, ...], Any]]) -> None:
        self.places = list(places)
        self.last: list[Any] = [None] * len(places)

    def large(self, k: int) -> bool:
        """Whether the buffer of output ``k`` is large enough to be recycled."""
        _, shape, dtype = self.places[k]
        return prod(shape) * dtype.itemsize >= _MIN_BYTES_TO_RECYCLE

    def make(self, k: int) -> Array:
        """Memory for output ``k``."""
        if self.last[k] is not None:
            last, references = _references(self.last, k)
            if references == _UNHELD:
                return last
        _, shape, dtype = self.places[k]
        if not self.large(k):
            return np.empty(shape, dtype)
        nbytes = prod(shape) * dtype.itemsize
        return self._keep(k, shape, dtype, _kept.taken(nbytes) or _memory(nbytes))

    def _keep(self, k: int, shape: tuple[int, ...], dtype: Any, memory: Any) -> Array:
        """An array in memory that is kept as that of output ``k``."""
        before = self.last[k]
        # A view of a view refers to the array that has the memory: here to this one, whose
        # references are counted, since the memory is no array's.
        made = self.last[k] = np.ndarray(shape, dtype, memory)
        _kept.add(self, len(memory) - (0 if before is None else len(before.base)))
        return made

    def give_up(self, nbytes: int) -> Any:
        """Recycle memory for so many bytes no more, which nobody holds, and return it."""
        for k in range(len(self.last)):
            last, references = _references(self.last, k)
            if last is None or not nbytes <= len(last.base) <= nbytes + nbytes // 8:
                continue
            if references == _UNHELD:
                self.last[k] = None
                return last.base
        return None

    def make_as(self, k: int, shape: tuple[int, ...]) -> Array:
        """Memory for output ``k`` as an array of another shape."""
        return self.make(k).reshape(shape)

    def maker(self, k: int, order: Sequence[int]) -> tuple[Callable[..., Array], tuple[Any, ...]]:
        """What makes output ``k`` with its axes in this order in memory, the outermost first: a
        function and its arguments."""
        _, shape, dtype = self.places[k]
        if not self.large(k) and list(order) == sorted(order, reverse=True):
            return _in_fortran_order, (shape, dtype)
        axes = tuple(order.index(d) for d in range(len(order)))
        return partial(self._make_turned, tuple(shape[d] for d in order), axes), (k,)

    def _make_turned(self, shape: tuple[int, ...], axes: tuple[int, ...], k: int) -> Array:
        return self.make(k).reshape(shape).transpose(axes)

    def let_go(self) -> None:
        """Recycle none of the buffers that there are."""
        self.last = [None] * len(self.places)


def _memory(nbytes: int) -> Any:
    """New memory that begins at a cache line.

    Vectors that lie across cache lines take half as long again in loops bound by memory.
    """
    array: Any = empty_aligned(nbytes)
    return (ctypes.c_char * nbytes).from_buffer(array)


def memory_order(array: Array) -> tuple[int, ...]:
    """The axes of an array from the outermost to the innermost in memory."""
    axes = range(array.ndim)
    if array.flags.c_contiguous or 0 in array.strides:
        return (*axes,)
    return tuple(sorted(axes, key=lambda d: -abs(array.strides[d])))


def order_follows(segment: Any, memory: Any, index: Mapping[Variable, int]) -> dict[int, list[int]]:
    """Results of elementwise ops, and the arguments of their shapes: the indices of both.

    In memory the axes of such a result have the order of those of the arguments, as NumPy's have.
    So a loop over transposed arguments transposes nothing. A result may be its transpose.
    """
    turned = {n.outputs[0] for n in memory.aliases if isinstance(n.op, DimShuffle)}
    turned = {v for v in turned if v in segment.outputs}
    read = {v for n in segment.nodes if turned.isdisjoint(n.outputs) for v in n.inputs}
    taken = {*read, *memory.early, *memory.early.values(), *memory.stored, *memory.carried}
    results = {*segment.outputs, *(v.owner.inputs[0] for v in turned)}
    found = {}
    for v in results - taken:
        view, node = memory.views.get(v), v.owner
        if (
            view is not None
            and v in index
            and view.buffer.kind == "outside"
            and view.buffer.variable is v
            and node is not None
            and isinstance(node.op, Elemwise | FusedElemwise | FusedComplex)
        ):
            same = [x for x in node.inputs if x in segment.inputs and x in index]
            same = [x for x in same if memory.views[x].shape == view.shape]
            found[index[v]] = [index[x] for x in same]
    return found


class LoopBuffers(NumpyArrays, OutputBuffers):
    """The arrays of a loop's results. Their memory serves what runs behind it, and later calls."""

    def __init__(self) -> None:
        OutputBuffers.__init__(self, [])

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """A new array."""
        kind = dtype if isinstance(dtype, np.dtype) else numpy_dtype(dtype)
        nbytes = prod(shape) * kind.itemsize
        if nbytes < _MIN_BYTES_TO_TAKE:
            return np.empty(shape, kind)
        memory = _kept.taken(nbytes) or _memory(nbytes)
        kept = [a for a in self.last if a is not None]
        if sum(len(a.base) for a in kept) > _MOST_KEPT_BYTES + nbytes:
            kept = []
        self.last = [*kept, None]
        return self._keep(len(kept), shape, kind, memory)

    def let_go(self) -> None:
        """Recycle none of the arrays that there are."""
        self.last = []


class PersistentOutputBuffers(OutputBuffers):
    """Outputs of a segment whose results are kept (prepacked parameters): the same in each run."""

    def large(self, k: int) -> bool:
        """Always."""
        return True

    def make(self, k: int) -> Array:
        """Memory for output ``k``."""
        if self.last[k] is None:
            _, shape, dtype = self.places[k]
            self.last[k] = np.empty(shape, dtype)
        return self.last[k]


def kind_of(kept: bool) -> type[OutputBuffers]:
    """The buffers of a segment; those of results that are ``kept`` are the same in each run."""
    return PersistentOutputBuffers if kept else OutputBuffers


def fresh_outputs(
    spec: Any, memory: Any, index: Mapping[Variable, int]
) -> list[tuple[int, Any, Any]]:
    """Values that each run allocates: outputs, bases of outputs that are views, or their block."""
    made = [v for node in spec.segment.nodes for v in node.outputs]
    made += [] if memory.block is None else [memory.block]
    views = ((v, memory.views[v]) for v in made)
    return [
        (index[v], view.shape, v.type.numpy) for v, view in views
        if view.buffer.kind == "outside" and view.buffer.variable is v
    ]  # fmt: skip


def outside_views(
    memory: Any, index: Mapping[Variable, int], values: Sequence[Any]
) -> dict[int, tuple[int, Any]]:
    """Values that are views of arguments or outputs at known offsets: (index of base, view).

    Those among ``values`` are known anyway.
    """
    found = {}
    for v, i in index.items():
        view = memory.views[v]
        base, buffer = view.buffer.variable, view.buffer
        if buffer.kind == "in block":
            base, view = memory.block, replace(view, offset=buffer.offset + view.offset)
        elif buffer.kind != "outside" or base is v or base not in index:
            continue
        if view.placed and values[i] is None:
            found[i] = index[base], view
    return found


def whole_outputs(memory: Any, index: Mapping[Variable, int]) -> list[tuple[int, int]]:
    """Values in the memory of an output of their shape, and these outputs: the indices of both."""
    shapes = {v: view.shape for v, view in memory.views.items()}
    return [(index[v], index[out]) for v, out in memory.early.items() if shapes[v] == shapes[out]]


def output_parts(
    memory: Any, index: Mapping[Variable, int]
) -> list[tuple[int, int, Callable[[Array], Array]]]:
    """Values in the block of outputs, and those of another shape in the memory of one output.

    Each with its index, that of the memory, and what makes a view of it.
    """
    found: list[tuple[int, int, Callable[[Array], Array]]] = []
    for v, view in memory.views.items():
        whole, shape = memory.early.get(v), view.shape
        if view.buffer.kind == "in block":
            whole, offset = memory.block, view.buffer.offset + view.offset
        elif whole is None or memory.views[whole].shape == shape:
            continue
        else:
            offset = view.offset
        if view.static or v.owner not in memory.aliases:
            placed = replace(view, offset=offset)
            make = partial(view_of_base, view=placed, dtype=v.type.numpy)
            found.append((index[v], index[whole], make))
    return found


def view_of_base(base: Array, view: Any, dtype: Any) -> Array:
    """The part of an array's memory that a value has."""
    return np.ndarray(view.shape, dtype, base, view.offset, view.strides)
