"""The elements that index arrays select, and kernels over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple

import numpy as np

from symdnn.gpu.codegen.device_source import CTYPES, specialised
from symdnn.gpu.codegen.launches import (
    ERROR_WORD,
    NODE,
    WORKSPACE,
    KernelLaunch,
    Pointer,
    View,
    Views,
    blocks_for,
)
from symdnn.gpu.codegen.loop_source import Move
from symdnn.gpu.device.array import c_strides
from symdnn.graph.values.strides import merged
from symdnn.ops.array.advanced_index import AdvancedSubtensor
from symdnn.ops.array.slices import fill_in

__all__ = [
    "How", "Selected", "Space", "Together", "arrays_alone", "indexed", "positions", "selected",
    "space_of", "together", "width_of",
]  # fmt: skip

_THREADS = 256
_INDEX_DTYPES = {
    "int8": 0, "int16": 1, "int32": 2, "int64": 3, "uint8": 4, "uint16": 5, "uint32": 6,
    "uint64": 7,
}  # fmt: skip
#: Neighbouring float32 that are added together.
_ADDED_ELEMENTS = 4
_BITS_CTYPES = {1: "u8", 2: "u16", 4: "u32", 8: "u64", 16: "bytes16"}
#: The C types of atomic additions.
_ADDED_CTYPES = {**CTYPES, "int64": "u64"}


class How(NamedTuple):
    """Whether indices out of range are reported, and whether nothing is written after an error."""

    checked: bool = True
    guarded: bool = False


_CHECKED = How()


@dataclass(frozen=True)
class Space:
    """The index space of an advanced index: its shape, and strides of ``x`` and the index arrays.

    ``common`` are the dimensions of the arrays. An index of an array is below ``limits`` and moves
    by ``jumps`` elements of ``x``.
    """

    x: View
    shape: tuple[int, ...]
    common: tuple[int, ...]
    x_steps: tuple[int, ...]
    arrays: tuple[View, ...]
    index_steps: tuple[tuple[int, ...], ...]
    limits: tuple[int, ...]
    jumps: tuple[int, ...]


@dataclass(frozen=True)
class Selected:
    """A view whose elements index arrays select.

    ``view`` has the shape of what they select, and strides but along the dimensions of the arrays
    ``index``, which have that shape, too. An index is below ``limits`` and moves by ``jumps``
    elements. Those that are ``checked`` are reported if they are out of range.
    """

    view: View
    index: tuple[View, ...]
    limits: tuple[int, ...]
    jumps: tuple[int, ...]
    checked: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """That of what is selected."""
        return self.view.shape

    def permuted(self, pattern: Sequence[int | str]) -> Selected:
        """With dimensions in another order, and new ones where the pattern has ``"x"``."""
        view, *index = (_permuted(v, pattern) for v in (self.view, *self.index))
        return replace(self, view=view, index=tuple(index))

    def bits(self, like: View) -> Selected:
        """The bits of elements as ``like`` has them, of which there may be several for one."""
        new = len(like.shape) - len(self.shape)
        strides = (*self.view.strides, *[like.itemsize] * new)
        view = replace(self.view, dtype=like.dtype, shape=like.shape, strides=strides)
        pattern = [*range(len(self.shape)), *["x"] * new]
        index = tuple(_permuted(a, pattern) for a in self.index)
        jumps = tuple(j * (self.view.itemsize // like.itemsize) for j in self.jumps)
        return replace(self, view=view, index=index, jumps=jumps)

    def broadcast_to(self, shape: Sequence[int]) -> Selected:
        """With elements that repeat."""
        index = tuple(v.broadcast_to(shape) for v in self.index)
        return replace(self, view=self.view.broadcast_to(shape), index=index)


def selected(op: AdvancedSubtensor, x: View, rest: Sequence[Any]) -> Selected:
    """What ``x`` with the index arrays and bounds ``rest`` selects."""
    space = space_of(op, x, rest)
    view = replace(
        space.x, shape=space.shape, strides=tuple(n * space.x.itemsize for n in space.x_steps)
    )
    index = tuple(
        replace(a, shape=space.shape, strides=tuple(n * a.itemsize for n in steps))
        for a, steps in zip(space.arrays, space.index_steps, strict=True)
    )
    return Selected(view, index, space.limits, space.jumps, not op.in_bounds)


class Together(NamedTuple):
    """Operands of a kernel: the views of all, then the index arrays by which they move.

    For each operand there are its moves, and the limits of its indices and how far they jump.
    """

    views: list[View]
    moves: list[tuple[Move, ...]]
    limits: list[tuple[int, ...]]
    jumps: list[tuple[int, ...]]

    @property
    def checked(self) -> bool:
        """Whether an index may be reported."""
        return any(m.checked for own in self.moves for m in own)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Those of the index arrays."""
        return tuple(v.dtype for v in self.views[len(self.moves) :])

    def parameters(self) -> list[Any]:
        """Limits and jumps of all operands, and where errors are reported."""
        pairs = [zip(*own) for own in zip(self.limits, self.jumps)]
        numbers = [n for own in pairs for pair in own for n in pair]
        return [*numbers, Pointer(ERROR_WORD), Pointer(NODE) if self.checked else 0]

    @property
    def reach(self) -> int:
        """The farthest that index arrays move an operand."""
        pairs = zip(self.limits, self.jumps)
        return max((sum(n * abs(j) for n, j in zip(*own)) for own in pairs), default=0)


def together(operands: Sequence[View | Selected]) -> Together:
    """Operands of one shape; operands share index arrays that are the same in memory."""
    arrays = dict[Any, tuple[int, View]]()
    found = Together([], [], [], [])
    for v in operands:
        if isinstance(v, View):
            v = Selected(v, (), (), (), False)
        own = list[Move]()
        for a in v.index:
            place = a.alias_of if a.alias_of >= 0 else a.slot
            key = place, a.dtype, a.strides, a.offset
            number, _ = arrays.setdefault(key, (len(arrays), a))
            own.append(Move(number, v.checked))
        found.views.append(v.view)
        found.moves.append(tuple(own))
        found.limits.append(v.limits)
        found.jumps.append(v.jumps)
    found.views.extend(a for _, a in arrays.values())
    return found


def _permuted(v: View, pattern: Sequence[int | str]) -> View:
    shape = tuple(1 if d == "x" else v.shape[int(d)] for d in pattern)
    strides = tuple(0 if d == "x" else v.strides[int(d)] for d in pattern)
    return replace(v, shape=shape, strides=strides)


def space_of(op: AdvancedSubtensor, x: View, rest: Sequence[Any]) -> Space:
    """The space of ``x`` with the index arrays and bounds ``rest``."""
    arrays, bounds = rest[: len(op.arrays)], rest[len(op.arrays) :]
    entries = fill_in(op.index, bounds)
    part = x[tuple(slice(None) if e == "a" else slice(*e) for e in entries if e != "x")]
    common = np.broadcast_shapes(*(a.shape for a in arrays))
    block = [(n, 0, j) for j, n in enumerate(common)]
    dims: list[tuple[int, int, int | None]] = [] if op.side_by_side else list(block)
    limits, jumps, axis = [], [], 0
    for k, e in enumerate(entries):
        if e == "x":
            dims.append((1, 0, None))
            continue
        size, step = part.shape[axis], part.steps[axis]
        axis += 1
        if e != "a":
            dims.append((size, step, None))
            continue
        if op.side_by_side and k == op.arrays[0]:
            dims += block
        limits.append(size)
        jumps.append(step)
    wide = [a.broadcast_to(common) for a in arrays]
    return Space(
        part,
        tuple(n for n, _, _ in dims),
        tuple(d for d, (_, _, j) in enumerate(dims) if j is not None),
        tuple(s for _, s, _ in dims),
        tuple(arrays),
        tuple(tuple(0 if j is None else a.steps[j] for _, _, j in dims) for a in wide),
        tuple(limits),
        tuple(jumps),
    )


def indexed(
    names: Sequence[str],
    space: Space,
    y: View | None,
    sums: View | None = None,
    how: How = _CHECKED,
    reduce: str = "",
    claimed: bool = False,
) -> list[KernelLaunch]:
    """Kernels of index.cu over the whole space, to whose shape ``y`` broadcasts.

    ``add`` adds to ``sums``, ``combine`` changes them by ``reduce``. With ``claimed`` the owners of
    all targets are at the start of the workspace.
    """
    y_view = space.x if y is None else y.broadcast_to(space.shape)
    y_steps = (0,) * len(space.shape) if y is None else y_view.steps
    number = [_position_steps(space)] if claimed else []
    sizes, (x_step, y_step, *index) = merged(
        space.shape, [space.x_steps, y_steps, *space.index_steps, *number]
    )
    jumps, width = space.jumps, 1
    if y is not None:
        moved = [y_view] if sums is not None else [space.x, y_view]
        width = width_of(sizes, [x_step, y_step], index, jumps, moved)
    if sums is not None:
        width = _ADDED_ELEMENTS if _adds_in_vectors(sums, width) else 1
    sizes = (*sizes[:-1], sizes[-1] // width)
    x_step, y_step = ((*(n // width for n in s[:-1]), s[-1]) for s in (x_step, y_step))
    jumps = tuple(j // width for j in jumps)
    count = prod(sizes)
    itemsize = space.x.itemsize * (width if sums is None else 1)
    owner = 8 if prod(positions(space)) >= 2**32 - 1 or "rank" in names else 4
    combining = {"COMBINE": f"s_{reduce}", "WORD": _BITS_CTYPES[space.x.itemsize]} if reduce else {}
    text = specialised(
        "scalar.cuh", "lines.cuh", "selected.cuh", "index.cu", D=len(sizes), ARRAYS=len(jumps),
        T=_BITS_CTYPES[itemsize] if sums is None else CTYPES[space.x.dtype],
        A=_BITS_CTYPES[4] if sums is None else _ADDED_CTYPES[sums.dtype],
        ADDS=2 if reduce else int(sums is not None or "rank" in names),
        COUNT="u32" if count < 2**31 else "u64", CLAIMED=int(claimed),
        OWNER=_BITS_CTYPES[owner], V=1 if sums is None else width, CHECKED=int(how.checked),
        GUARDED=int(how.guarded), **combining,
    )  # fmt: skip
    owners = [c_strides(space.limits, 1), *index[len(jumps) :]] if claimed else []
    parameters = (
        space.x.pointer, y_view.pointer, sums.pointer if sums is not None else 0,
        Pointer(WORKSPACE), count, Pointer(ERROR_WORD),
        Pointer(NODE) if how.checked else 0,
        *(a.pointer for a in space.arrays), *(_INDEX_DTYPES[a.dtype] for a in space.arrays),
        *space.limits, *jumps, *sizes, *x_step, *y_step,
        *(n for s in index[: len(jumps)] for n in s),
        *(n for s in owners for n in s),
    )  # fmt: skip
    grid = (blocks_for(count, _THREADS),)
    return [KernelLaunch(text, name, grid, (_THREADS,), parameters) for name in names]


def _adds_in_vectors(sums: View, width: int) -> bool:
    """Whether neighbours are added together, where ``width`` neighbours may be read together."""
    return sums.dtype == "float32" and width >= _ADDED_ELEMENTS and sums.aligned_to(16)


def width_of(
    sizes: Sequence[int],
    moved: Sequence[tuple[int, ...]],
    index: Sequence[tuple[int, ...]],
    jumps: Sequence[int],
    views: Views,
) -> int:
    """Elements of a vector, up to 16 bytes, within a row of ``x`` and ``y``."""
    if any(s[-1] != 1 for s in moved) or any(s[-1] != 0 for s in index):
        return 1
    itemsize = views[0].itemsize
    numbers = [sizes[-1], *jumps, *(n for s in moved for n in s[:-1])]
    width = max(1, 16 // itemsize)
    while width > 1 and not (
        all(n % width == 0 for n in numbers) and all(v.aligned_to(itemsize * width) for v in views)
    ):
        width //= 2
    return width


def positions(space: Space) -> tuple[int, ...]:
    """The shape of the index arrays."""
    return tuple(space.shape[d] for d in space.common)


def _position_steps(space: Space) -> tuple[int, ...]:
    """How the number of a position of the index arrays moves along the space."""
    own = dict(zip(space.common, c_strides(positions(space), 1)))
    return tuple(own.get(d, 0) for d in range(len(space.shape)))


def arrays_alone(space: Space) -> Space:
    """The positions of the index arrays, without what one of them selects."""
    common = space.common
    return replace(
        space,
        shape=positions(space),
        common=tuple(range(len(common))),
        x_steps=(0,) * len(common),
        index_steps=tuple(tuple(s[d] for d in common) for s in space.index_steps),
    )
