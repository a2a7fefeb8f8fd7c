"""Blocks of Winograd's tiles as LLVM IR: loops over tiles, their transformation, their GEMM.

A thread's scratch memory has room for one block: ``%before`` for the transformed tiles of the
input, ``%after`` for the tiles of results, each as 36 matrices (tiles x channels).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from symdnn.cpu.conv.winograd_plan import TAPS, TILE, WinogradPlan, padded
from symdnn.cpu.conv.winograd_transforms_ir import (
    both_directions,
    transform_pixels,
    transform_result_gradient,
)
from symdnn.cpu.ir.builder import WIDTH, Builder, first_lanes
from symdnn.cpu.ir.loops_ir import data_of, word

#: A function of (address of the pixels, buffer of the tile, mask of lanes, whether pixels exist by
#: row and column, empty if all do).
Vector = Callable[[str, str, str, Sequence[Sequence[str]]], None]


@dataclass(frozen=True)
class Window:
    """The part of a sample that a tile reads or adds to: ``edge`` pixels in each direction."""

    array: str
    edge: int
    pad: tuple[int, int]
    size: tuple[int, int]
    channels: int


@contextmanager
def by_vectors(s: Builder, name: str, channels: int) -> Iterator[tuple[str | int, str]]:
    """A loop over vectors of channels, in this context: the first channel, and the mask.

    "" is the mask of a full vector. A single vector has no loop.
    """
    count, rest = -(-channels // s.width), channels % s.width
    if count == 1:
        yield 0, first_lanes(rest, s.width) if rest else ""
        return
    with s.each(f"vectors_{name}", 0, str(count)) as i:
        first = s.affine(i, s.width)
        yield first, s.lanes_below(first, channels) if rest else ""


def parts(channels: int, heights: Mapping[int, int], lanes: int) -> Iterator[tuple[int, int, int]]:
    """(first vector, number of vectors, rows at once) for groups of vectors of channels."""
    vectors = padded(channels) // lanes
    for first in range(0, vectors, max(heights)):
        width = min(vectors - first, max(heights))
        yield first, width, heights[width]


class Tiles:
    """The builder of functions ``rows`` whose tasks are blocks of tiles of ``%images``."""

    def __init__(self, plan: WinogradPlan) -> None:
        self.plan, self.s = plan, Builder(plan.lanes)

    def begin(self, matrices: str, arrays: Mapping[str, int], own: Sequence[str] = ()) -> None:
        """Append the head up to ``%first``, the task's first tile, and ``%count``, its tiles.

        Words of the block from 3 on: all tiles, the addresses of ``matrices`` and of scratch
        memory, and ``arrays`` at their indices. ``own`` are further lines for each thread.
        """
        plan = self.plan
        vector = self.s.vector
        nothing = [f"%{name} = alloca {vector}, align 64" for name in ("no_pixel", "nowhere")]
        self.s.tasks([
            *nothing, f"store {vector} zeroinitializer, ptr %no_pixel, align 64",
            *word("%tiles", 3), *word(matrices, 4, "ptr"), *word("%scratch", 5, "ptr"),
            *(line for name, at in arrays.items() for line in data_of(name, at)),
            "%thread32 = call i32 @omp_get_thread_num()", "%thread = zext i32 %thread32 to i64",
            f"%own = mul i64 %thread, {plan.thread_floats}",
            "%before = getelementptr float, ptr %scratch, i64 %own",
            f"%after = getelementptr float, ptr %before, i64 {TAPS * plan.tile_steps[0]}", *own,
        ])  # fmt: skip
        self.s.lines += [
            f"%first = mul i64 %r, {plan.block}",
            "%left = sub i64 %tiles, %first",
            f"%full = icmp sgt i64 %left, {plan.block}",
            f"%count = select i1 %full, i64 {plan.block}, i64 %left",
        ]

    # -- positions of tiles ---------------------------------------------------------------------

    def tile(self, t: str) -> tuple[str, str, str]:
        """The sample, row and column of tile ``t`` of the block."""
        s, (high, wide) = self.s, self.plan.tiles
        number = s.plus("%first", t)
        image = s.new(f"udiv i64 {number}, {high * wide}")
        rest = s.new(f"urem i64 {number}, {high * wide}")
        return image, s.new(f"udiv i64 {rest}, {wide}"), s.new(f"urem i64 {rest}, {wide}")

    def inside(self, begin: str, count: int, size: int) -> tuple[str, list[str]]:
        """(whether all of ``count`` rows from ``begin`` exist, whether each does)"""
        s = self.s
        each = [s.new(f"icmp ult i64 {s.affine(begin, 1, i)}, {size}") for i in range(count)]
        return s.new(f"and i1 {each[0]}, {each[-1]}"), each

    def pixels(self, rows: Sequence[str], columns: Sequence[str]) -> list[list[str]]:
        """Whether each pixel exists, by whether its row and its column does."""
        return [[self.s.new(f"and i1 {r}, {c}") for c in columns] for r in rows]

    def place(self, pointer: str, exists: str, other: str) -> str:
        """The address of a pixel; for one that does not exist zeros (``%no_pixel``), or what nobody
        reads (``%nowhere``)."""
        if not exists:
            return pointer
        return self.s.new(f"select i1 {exists}, ptr {pointer}, ptr {other}")

    def pixel(self, image: str, y: str, x: str, size: tuple[int, int], channels: int) -> str:
        """The offset of a pixel in an array, in floats."""
        s = self.s
        row = s.plus(s.affine(image, size[0]), y)
        pixel = s.plus(s.affine(row, size[1]), x)
        return s.affine(pixel, channels)

    def never_outside(self) -> bool:
        """Whether all pixels of all tiles of the input exist."""
        plan = self.plan
        last = ((t - 1) * plan.m - p + TILE for t, p in zip(plan.tiles, plan.pad))
        return max(plan.pad) <= 0 and all(n <= size for n, size in zip(last, plan.size))

    def all_whole(self) -> bool:
        """Whether all results of all tiles exist."""
        return not any(n % self.plan.m for n in self.plan.out)

    def choose(
        self, name: str, always: bool, whole: tuple[str, str], body: Callable[[bool, str], None]
    ) -> None:
        """``body(whether all pixels exist, name)``; a branch for border tiles unless ``always``."""
        if always:
            body(True, name)
            return
        self.s.choose(name, self.s.new(f"and i1 {whole[0]}, {whole[1]}"), body)

    # -- reading tiles --------------------------------------------------------------------------

    @property
    def input_window(self) -> Window:
        """The window of a tile of the input."""
        plan = self.plan
        return Window("%images", TILE, plan.pad, plan.size, plan.channels)

    def read(self, t: str) -> None:
        """Append the transformation of a tile of the input to ``%before``."""
        vector = self.transformed(self.input_window, transform_pixels, self.plan.tile_steps[0])
        self.windowed(t, "inside", self.input_window, "%before", self.never_outside(), vector)

    def read_gradient(self, t: str) -> None:
        """Append the transformation of a tile of dy, ``%gradient``, to ``%after``."""
        plan = self.plan
        window = Window("%gradient", plan.m, (0, 0), plan.out, plan.outputs)
        vector = self.transformed(window, transform_result_gradient, plan.tile_steps[1])
        self.windowed(t, "within", window, "%after", self.all_whole(), vector)

    def transformed(
        self, w: Window, way: Callable[[Builder, Sequence[str]], list[str]], step: int
    ) -> Vector:
        """A function that stores the 36 values of a window by ``way``, ``step`` floats apart."""
        s = self.s

        def vector(base: str, target: str, lanes: str, there: Sequence[Sequence[str]]) -> None:
            def pixel(i: int, j: int) -> str:
                place = s.at(base, (i * w.size[1] + j) * w.channels)
                return s.load(self.place(place, there[i][j] if there else "", "%no_pixel"), lanes)

            for i, j, value in both_directions(w.edge, lambda d: way(s, d), pixel):
                s.store(value, s.at(target, (i * TILE + j) * step))

        return vector

    def windowed(
        self, t: str, name: str, w: Window, buffer: str, always: bool, vector: Vector
    ) -> None:
        """``vector(pixels, buffer, lanes, masks)`` for all channels of the window of a tile.

        There are no masks if the whole window is within the sample: ``always``, or by a branch.
        """
        s, plan = self.s, self.plan
        image, row, column = self.tile(t)
        y, x = (s.affine(i, plan.m, -p) for i, p in zip((row, column), w.pad))
        all_rows, rows = self.inside(y, w.edge, w.size[0])
        all_columns, columns = self.inside(x, w.edge, w.size[1])
        base = s.at(w.array, self.pixel(image, y, x, w.size, w.channels))
        kept = s.at(buffer, s.affine(t, padded(w.channels)))

        def body(whole: bool, part: str) -> None:
            there = [] if whole else self.pixels(rows, columns)
            with by_vectors(s, part, w.channels) as (first, lanes):
                vector(s.at(base, first), s.at(kept, first), lanes, there)

        self.choose(name, always, (all_rows, all_columns), body)

    # -- GEMM -----------------------------------------------------------------------------------

    def multiply(
        self, tap: str, source: tuple[str, int, int], target: tuple[str, int, int], step: int
    ) -> None:
        """Append one of the 36 matrix products of a block of tiles and the filters.

        ``source`` and ``target`` are (name, floats between matrices, columns); ``step`` is the
        number of floats between matrices of filters.
        """
        s = self.s
        before = s.at(source[0], s.affine(tap, source[1]))
        after = s.at(target[0], s.affine(tap, target[1]))
        kernels = s.at("%kernels", s.affine(tap, step))
        columns = source[2], target[2]
        for first, width, height in parts(target[2], self.plan.unroll_rows, s.width):
            more = s.plus("%count", height - 1)
            blocks = s.new(f"udiv i64 {more}, {height}")
            with s.each(f"rows{first}", 0, blocks) as b:
                a = s.at(before, s.affine(b, height * padded(columns[0])))
                y = s.at(after, s.affine(b, height * padded(columns[1])), first * s.width)
                panel = first * s.width * (columns[0] if self.plan.half else 1)
                at = a, s.at(kernels, panel), y
                self._product(f"c{first}", at, columns, (width, height))

    def _product(
        self, name: str, at: tuple[str, str, str], columns: tuple[int, int], size: tuple[int, int]
    ) -> None:
        """Append ``size`` (rows of tiles, vectors of outputs) of a product over channels."""
        s, (width, height) = self.s, size

        def channel(c: str, sums: list[str]) -> list[str]:
            if self.plan.half:
                self._fetch(s.at(at[1], s.affine(c, WIDTH, WIDTH * columns[0])))
            row_floats = WIDTH if self.plan.half else padded(columns[1])
            kernel = s.at(at[1], s.affine(c, row_floats))
            weights = [s.load(s.at(kernel, w * s.width)) for w in range(width)]
            tiles = s.at(at[0], c)
            made = []
            for row in range(height):
                every = s.broadcast(s.at(tiles, row * padded(columns[0])))
                for w in range(width):
                    made.append(s.multiply_add(every, weights[w], sums[row * width + w]))
            return made

        zeros = ["zeroinitializer"] * (width * height)
        sums = s.loop(name, str(columns[0]), channel, zeros)
        for i, value in enumerate(sums):
            row, w = divmod(i, width)
            s.store(value, s.at(at[2], row * padded(columns[1]) + w * s.width))

    def _fetch(self, place: str) -> None:
        """Append the fetch of a line of the next panel of filters."""
        self.s.declared.add("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        self.s.put(f"call void @llvm.prefetch.p0(ptr {place}, i32 0, i32 2, i32 1)")
