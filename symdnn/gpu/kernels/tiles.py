"""Elementwise loops in tiles, for operands that are contiguous along different axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import Any

from symdnn.gpu.codegen.cuda_source import iterates
from symdnn.gpu.codegen.launches import ERROR_WORD, KernelLaunch, Pointer, View, blocks_for
from symdnn.gpu.codegen.tile_source import TileLoop, TileOperand, tile_source
from symdnn.graph.type import numpy_dtype
from symdnn.ops.core.scalar import ScalarProgram

#: In elements. Smaller sides would leave most of a tile empty.
_MIN_SIDE = 16
_THREADS = 256
_MAX_SHARED_BYTES = 48 << 10
#: Sides of a thread's block: of elements up to 2 bytes, unless results differ in how their rows
#: begin, and of others.
_NARROW_SIDE, _SIDE = 8, 4


@dataclass(frozen=True)
class _Space:
    """A loop's operands: views or numbers, sizes and steps of the merged dimensions."""

    views: tuple[View | float, ...]
    outputs: int
    sizes: tuple[int, ...]
    steps: tuple[tuple[int, ...], ...]

    @property
    def column(self) -> int:
        """The dimension along which the outputs are dense."""
        return len(self.sizes) - 1

    def turned(self, row: int) -> list[int]:
        """The operands that are dense along ``row`` and not along the columns."""
        return [
            i
            for i, (v, s) in enumerate(zip(self.views, self.steps))
            if isinstance(v, View) and s[row] == 1 and s[self.column] not in (0, 1)
        ]

    def row(self) -> int | None:
        """The dimension along which most bytes have to be turned; None if nothing has to be."""
        last = self.column
        if self.sizes[last] < _MIN_SIDE or any(s[last] != 1 for s in self.steps[-self.outputs :]):
            return None
        gain = {
            d: sum(_itemsize(self.views[i]) for i in self.turned(d))
            for d in range(last)
            if self.sizes[d] >= _MIN_SIDE
        }
        best = max(gain, key=lambda d: gain[d], default=None)
        return best if best is not None and gain[best] else None


def in_tiles(
    program: ScalarProgram,
    dtypes: Sequence[str],
    views: Sequence[View | float],
    outputs: int,
    sizes: Sequence[int],
    steps: Sequence[Sequence[int]],
    guarded: bool,
) -> KernelLaunch | None:
    """The tiled kernel; None where a loop over vectors serves all operands, or iterations take
    longer than reads at any stride: a thread of a tile has up to 64 elements, one of a loop few.

    ``views`` are of inputs, then of ``outputs`` outputs, and have ``dtypes``; ``sizes`` and
    ``steps`` (in elements) are of the merged dimensions.
    """
    space = _Space(tuple(views), outputs, tuple(sizes), tuple(tuple(s) for s in steps))
    row = space.row()
    if row is None or iterates(program):
        return None
    turned = _that_fit(space, row)
    if not turned:
        return None
    widest = max(_itemsize(v) for v in views)
    loop = _loop(space, dtypes, row, turned, guarded, _NARROW_SIDE if widest <= 2 else _SIDE)
    if loop.side > _SIDE and not all(a.vectors for a in _moving(loop)):
        written = range(len(views) - outputs, len(views))
        shifted = _alike(space, written, _NARROW_SIDE)
        side = _NARROW_SIDE if shifted else _SIDE
        loop = _loop(space, dtypes, row, turned, guarded, side, shifted)
    tiles = -(-sizes[row] // (loop.side * loop.down)) * -(-sizes[-1] // (loop.side * loop.across))
    others = _others(space, row)
    tiles *= prod(sizes[d] for d in others)
    parameters = _parameters(space, row, others, loop)
    grid = (blocks_for(tiles, 1),)
    return KernelLaunch(_source(program, loop), "tiles", grid, (loop.threads,), parameters)


def _itemsize(v: View | float) -> int:
    return v.itemsize if isinstance(v, View) else 0


def _others(space: _Space, row: int) -> list[int]:
    return [d for d in range(space.column) if d != row]


def _moving(loop: TileLoop) -> list[TileOperand]:
    return [a for _, a in loop.operands if a.kind in ("turned", "dense")]


def _that_fit(space: _Space, row: int) -> set[int]:
    """The operands to turn: as many as small tiles have shared memory for."""
    found, nbytes = set(), 0
    for i in space.turned(row):
        nbytes += _itemsize(space.views[i]) * (_SIDE * 8) ** 2
        if nbytes <= _MAX_SHARED_BYTES:
            found.add(i)
    return found


def _loop(
    space: _Space,
    dtypes: Sequence[str],
    row: int,
    turned: set[int],
    guarded: bool,
    side: int,
    shifted: bool = False,
) -> TileLoop:
    operands = [_operand(space, i, dtype, row, i in turned, side) for i, dtype in enumerate(dtypes)]
    first = len(operands) - space.outputs
    if shifted:
        operands = [
            replace(a, vectors=_alike(space, (i, first), side)) if a.kind == "dense" else a
            for i, a in enumerate(operands)
        ]
    element = sum(_itemsize(space.views[i]) for i in turned)
    moving = [a for a in operands if a.kind in ("turned", "dense")]
    wide = any(numpy_dtype(a.dtype).itemsize > 1 for a in moving)
    vectors = all(a.vectors for a in moving)
    square = vectors or shifted or not wide
    down, across = _tile(space.sizes[row], space.sizes[-1], side, square)
    if shifted and (down, across) == (16, 16):  # lines of 128 and of 256 bytes
        down, across = (8, 16) if wide else (16, 32)
    while down * across * side * side * element > _MAX_SHARED_BYTES:
        down, across = (down // 2, across) if down >= across else (down, across // 2)
    return TileLoop(
        side, down, across, max(1, len(_others(space, row))), tuple(operands[:first]),
        tuple(operands[first:]), shifted, guarded,
    )  # fmt: skip


def _alike(space: _Space, operands: Sequence[int], side: int) -> bool:
    """Whether each row of these operands begins at the same element of an aligned vector."""
    if len(operands) == 1:
        return True
    places = {tuple(s % side for s in space.steps[i][:-1]) for i in operands}
    views = [v for v in (space.views[i] for i in operands) if isinstance(v, View)]
    return len(places) == 1 and all(v.aligned_to(min(16, side * v.itemsize)) for v in views)


def _tile(rows: int, columns: int, side: int, square: bool) -> tuple[int, int]:
    """Blocks of a tile down and across, narrow for a short side.

    Unless it is ``square``, a warp reads and writes neighbours of one line.
    """
    blocks = -(-min(rows, columns) // side)
    if blocks > 8:
        return (16, 16) if square else (8, 32)
    short = 4 if blocks <= 4 else 8
    return (short, _THREADS // short) if rows < columns else (_THREADS // short, short)


def _operand(space: _Space, i: int, dtype: str, row: int, turned: bool, side: int) -> TileOperand:
    v, steps = space.views[i], space.steps[i]
    if not isinstance(v, View):
        return TileOperand(dtype, "number")
    if turned:
        return TileOperand(dtype, "turned", _whole(space, i, row, side))
    if steps[-1] == 1:
        return TileOperand(dtype, "dense", _whole(space, i, space.column, side))
    return TileOperand(dtype, "row" if steps[-1] == 0 else "strided")


def _whole(space: _Space, i: int, along: int, side: int) -> bool:
    """Whether an operand's lines along a dimension are whole aligned vectors."""
    v, steps = space.views[i], space.steps[i]
    assert isinstance(v, View)
    apart = [s for d, s in enumerate(steps) if d != along]
    whole = all(n % side == 0 for n in (space.sizes[along], *apart))
    return whole and v.aligned_to(min(16, side * v.itemsize))


def _parameters(space: _Space, row: int, others: Sequence[int], loop: TileLoop) -> tuple[Any, ...]:
    batch = [space.sizes[d] for d in others]
    found: list[Any] = [v.pointer if isinstance(v, View) else v for v in space.views]
    found += [space.sizes[row], space.sizes[-1], prod(batch), *(batch or [1])]
    for (_, a), s in zip(loop.operands, space.steps):
        if a.kind != "number":
            found += [s[row], s[-1], *([s[d] for d in others] or [0])]
    return (*found, Pointer(ERROR_WORD)) if loop.guarded else tuple(found)


@cache
def _source(program: ScalarProgram, loop: TileLoop) -> str:
    sizes = {a.dtype: int(numpy_dtype(a.dtype).itemsize) for _, a in loop.operands}
    return tile_source(program, loop, sizes)
