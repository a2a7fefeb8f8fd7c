"""Depthwise convolution in NHWC and its gradient of the input as LLVM IR.

Vectors are of channels. A tile of some rows and columns of results has its sums in registers. Each
vector of the input is loaded once for all its products in a tile. Which of them are beyond the left
and right border is known at compile time. Each thread first reorders the weights, so that those of
one tap are contiguous.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from symdnn.cpu.conv.depthwise_ir import activated, taps_of
from symdnn.cpu.conv.depthwise_plan import DepthwisePlan
from symdnn.cpu.conv.winograd_tiles_ir import by_vectors
from symdnn.cpu.ir.builder import (
    MASK,
    ROWS,
    VECTOR,
    WIDTH,
    Builder,
    first_lanes,
    vector_module,
)
from symdnn.cpu.ir.loops_ir import data_of, next_task

#: Rows and columns of a tile; of a tile for filters with more weights than the third number, or
#: with few registers.
_TILE_SIZE, _SMALL_TILE_SIZE, _MAX_WEIGHTS_OF_FULL_TILE = 4, 2, 25


def depthwise_nhwc_ir(plan: DepthwisePlan) -> str:
    """The module of ``kernel``, of kind ``forward`` or ``grad_input`` with a multiplier of 1.

    Words of its block: threads, :func:`nhwc_tasks`, 1, and the operands.
    """
    return vector_module(_TileResults(plan).text())


def nhwc_tasks(plan: DepthwisePlan, samples: int) -> int:
    """The number of tasks: rows of tiles of all samples."""
    return samples * -(-plan.block_extent[0] // tile_of(plan)[0])


def tile_of(plan: DepthwisePlan) -> tuple[int, int]:
    """Rows and columns of a tile; multiples of the stride in a gradient."""
    many = plan.narrow or plan.kernel[0] * plan.kernel[1] > _MAX_WEIGHTS_OF_FULL_TILE
    edge = _SMALL_TILE_SIZE if many else _TILE_SIZE
    units = plan.stride if plan.kind == "grad_input" else (1, 1)
    rows, columns = (max(1, edge // u) * u for u in units)
    return rows, columns


@dataclass(frozen=True)
class TileColumns:
    """Neighbouring tiles with the same number of columns and the same masks."""

    first: int
    wide: int
    count: int = 1


class TileSource:
    """The builder of all kinds: rows of tiles, with masks for rows and columns beyond a border."""

    def __init__(self, plan: DepthwisePlan) -> None:
        self.plan, self.s = plan, Builder()
        self.high, self.wide = tile_of(plan)
        self.padded = -(-plan.channels // WIDTH) * WIDTH
        self.area = plan.kernel[0] * plan.kernel[1]

    def begin(self, *more: str) -> None:
        """Append the head of the function ``rows``, the operands and ``more`` lines."""
        names = enumerate(self.plan.operands, 3)
        self.s.lines += [ROWS, "entry:", *(line for i, n in names for line in data_of(f"%{n}", i))]
        self.s.lines += more

    def tasks(self) -> None:
        """Begin the loop over tasks; :func:`~symdnn.cpu.ir.loops_ir.next_task` ends it."""
        before = self.s.block
        self.s.lines.append("br label %task")
        self.s.label("task")
        self.s.lines.append(f"%r = phi i64 [%r0, %{before}], [%r_next, %task_end]")

    # -- rows -------------------------------------------------------------------------------------

    def row_of_tiles(self, image: str, block: str) -> None:
        """Append all tiles of row of tiles ``block`` of a sample."""
        s, plan = self.s, self.plan
        rows = plan.block_extent[0]
        blocks, left = -(-rows // self.high), rows % self.high
        step, backward = plan.stride[0], plan.kind == "grad_input"
        self.place = s.affine(block, self.high // step if backward else self.high * step)
        row = s.plus(s.affine(image, rows), s.affine(block, self.high))
        self.made = s.affine(row, plan.block_extent[1] * plan.channels)
        size = plan.input_extent[0] * plan.input_extent[1] * plan.channels
        self.image = s.at("%dy" if backward else "%x", s.affine(image, size))
        if blocks == 1:
            self._rows("all", left or self.high, masked=True)
        elif not left:
            self._whole_rows()
        else:
            last = s.new(f"icmp eq i64 {block}, {blocks - 1}")
            s.choose("last", last, lambda yes, n: self._last_rows(n, left) if yes else
                     self._whole_rows())  # fmt: skip

    def _last_rows(self, name: str, left: int) -> None:
        self._rows(name, left, masked=True)

    def _whole_rows(self) -> None:
        """Append the rows of a whole tile, without masks if all rows that they read exist."""
        s, offsets = self.s, list(self._offsets(self.high))
        low = s.new(f"icmp sge i64 {self.place}, {-min(offsets)}")
        high = s.new(f"icmp slt i64 {self.place}, {self.plan.input_extent[0] - max(offsets)}")
        inside = s.new(f"and i1 {low}, {high}")
        s.choose("whole", inside, lambda yes, n: self._rows(n, self.high, masked=not yes))

    def _offsets(self, count: int) -> Iterator[int]:
        return (t.offset for i in range(count) for t in taps_of(self.plan, 0, i))

    def _rows(self, name: str, count: int, masked: bool) -> None:
        """Append the results of ``count`` rows; ``masked``: rows that they read may not exist."""
        s, plan = self.s, self.plan
        rows = {}
        for offset in sorted({*self._offsets(count)}):
            row = s.affine(self.place, 1, offset)
            exists = s.new(f"icmp ult i64 {row}, {plan.input_extent[0]}") if masked else ""
            rows[offset] = (
                s.at(self.image, s.affine(row, plan.input_extent[1] * plan.channels)),
                exists,
            )
        backward, step = plan.kind == "grad_input", plan.stride[1]
        for n, c in enumerate(self._columns()):
            if c.count == 1:
                self.tile(f"{name}{n}", c, count, rows, "", "")
                continue

            with s.each(f"{name}_tiles{n}", 0, str(c.count)) as i:
                made = s.affine(i, c.wide * plan.channels)
                moved = c.wide // step if backward else c.wide * step
                read = s.affine(i, moved * plan.channels)
                self.tile(f"{name}{n}", c, count, rows, made, read)

    # -- columns ----------------------------------------------------------------------------------

    def _columns(self) -> list[TileColumns]:
        """All tiles of a row; those without masks are one loop."""
        found: list[TileColumns] = []
        for first in range(0, self.plan.block_extent[1], self.wide):
            c = TileColumns(first, min(self.wide, self.plan.block_extent[1] - first))
            before = found[-1] if found else None
            if before and before.wide == c.wide and self._whole(c) and self._whole(before):
                found[-1] = TileColumns(before.first, c.wide, before.count + 1)
            else:
                found.append(c)
        return found

    def source(self, c: TileColumns) -> int:
        """The input column at which the window of the first of these columns begins."""
        step = self.plan.stride[1]
        return c.first // step if self.plan.kind == "grad_input" else c.first * step

    def _whole(self, c: TileColumns) -> bool:
        begin, wide = self.source(c), self.plan.input_extent[1]
        offsets = [t.offset for q in range(c.wide) for t in taps_of(self.plan, 1, q)]
        return all(0 <= begin + offset < wide for offset in offsets)

    # -- tiles ------------------------------------------------------------------------------------

    def tile(
        self, name: str, c: TileColumns, count: int, rows: dict[int, tuple[str, str]], made: str,
        read: str,
    ) -> None:  # fmt: skip
        """Append one tile, over all channels.

        ``rows`` maps offsets to (address, whether the row exists, "" if it does). ``made`` and
        ``read`` are offsets in floats from the first of equal tiles, in results and in the input.
        """
        raise NotImplementedError

    def row_masks(self, rows: dict[int, tuple[str, str]], lanes: str) -> dict[int, str]:
        """The mask of lanes that are loaded from each row."""
        there = f"{MASK} {lanes or first_lanes(WIDTH)}"
        select = f"{there}, {MASK} zeroinitializer"
        return {
            offset: self.s.new(f"select i1 {exists}, {select}") if exists else lanes
            for offset, (_, exists) in rows.items()
        }

    def users(
        self, c: TileColumns, count: int
    ) -> dict[tuple[int, int], list[tuple[int, int, int]]]:
        """For each input pixel of a tile, by offsets of row and column, all its products.

        A product is (row, column, weight): of the result, and the index of the weight.
        """
        plan = self.plan
        found: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        for i, q in product(range(count), range(c.wide)):
            for a, b in product(taps_of(plan, 0, i), taps_of(plan, 1, q)):
                if 0 <= self.source(c) + b.offset < plan.input_extent[1]:
                    weight = a.weight * plan.kernel[1] + b.weight
                    found.setdefault((a.offset, b.offset), []).append((i, q, weight))
        return found


class _TileResults(TileSource):
    """A task is a row of tiles of results."""

    def text(self) -> Builder:
        """The lines of the function ``rows``."""
        s = self.s
        self.begin(f"%turned = alloca [{self.area * self.padded} x float], align 64")
        with by_vectors(s, "weights", self.plan.channels) as (first, lanes):
            self._reorder_weights(first, lanes)
        self.tasks()
        blocks = -(-self.plan.block_extent[0] // self.high)
        self.row_of_tiles(s.new(f"udiv i64 %r, {blocks}"), s.new(f"urem i64 %r, {blocks}"))
        s.lines += next_task("task")
        return s

    def _reorder_weights(self, first: str | int, lanes: str) -> None:
        """Append the reorder of the weights of a vector of channels."""
        s = self.s
        steps = ", ".join(f"i64 {i * self.area}" for i in range(WIDTH))
        begin = s.affine(first, self.area) if isinstance(first, str) else first * self.area
        for t in range(self.area):
            base = s.at("%weights", begin, t)
            places = s.new(f"getelementptr float, ptr {base}, <{WIDTH} x i64> <{steps}>")
            value = s.new(
                f"call {VECTOR} @llvm.masked.gather.v16f32.v16p0(<{WIDTH} x ptr> {places}, i32 4, "
                f"{MASK} {lanes or first_lanes(WIDTH)}, {VECTOR} zeroinitializer)"
            )
            s.store(value, s.at("%turned", t * self.padded, first))

    def tile(
        self, name: str, c: TileColumns, count: int, rows: dict[int, tuple[str, str]], made: str,
        read: str,
    ) -> None:  # fmt: skip
        s, plan, users = self.s, self.plan, self.users(c, count)
        with by_vectors(s, name, plan.channels) as (first, lanes):
            masks = self.row_masks(rows, lanes)
            start = s.load(s.at("%bias", first), lanes) if plan.bias else "zeroinitializer"
            sums = {(i, q): start for i in range(count) for q in range(c.wide)}
            weights = {
                t: s.load(s.at("%turned", t * self.padded, first))
                for t in sorted({t for found in users.values() for _, _, t in found})
            }
            for row, column in sorted(users):
                at = (self.source(c) + column) * plan.channels
                value = s.load(s.at(rows[row][0], read, at, first), masks[row])
                for i, q, t in users[row, column]:
                    sums[i, q] = s.multiply_add(weights[t], value, sums[i, q])
            for (i, q), total in sums.items():
                at = (i * plan.block_extent[1] + c.first + q) * plan.channels
                self._put(total, (self.made, made, at, first), lanes)

    def _put(self, value: str, place: tuple[str | int, ...], lanes: str) -> None:
        """Append the epilogue and the store of a vector of results."""
        s, plan = self.s, self.plan
        if plan.residual:
            value = s.add(value, s.load(s.at("%z", *place), lanes))
        value = activated(s, value, plan.activation)
        s.store(value, s.at("%out", *place), lanes)
