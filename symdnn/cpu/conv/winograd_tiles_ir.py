"""Blocks of Winograd's tiles as LLVM IR: how a thread goes over them, reads and multiplies them.

A thread's scratch memory has room for a block: ``%before`` for what its tiles of the images are
transformed to, ``%after`` for those of results, each as 36 matrices (tiles x channels).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from symdnn.cpu.conv.winograd_plan import ROWS_AT_ONCE, TAPS, TILE, WinogradPlan, padded
from symdnn.cpu.conv.winograd_transforms_ir import both_directions, of_pixels, of_results
from symdnn.cpu.ir.loops_ir import data_of, word
from symdnn.cpu.ir.vector_ir import MASK, WIDTH, VectorSource, first_lanes

__all__ = ["Tiles", "Window", "by_vectors", "parts"]

#: (pixels, what is kept of a tile, lanes, masks of pixels by row and column or none: all are there)
Vector = Callable[[str, str, str, Sequence[Sequence[str]]], None]


@dataclass(frozen=True)
class Window:
    """The part of a tile's image that is read or added to: ``edge`` pixels in each direction."""

    array: str
    edge: int
    pad: tuple[int, int]
    size: tuple[int, int]
    channels: int


def by_vectors(
    s: VectorSource, name: str, channels: int, body: Callable[[str | int, str], None]
) -> None:
    """``body(first channel, mask)`` for each vector of channels; no mask where all are there.

    It is called once, and what it writes is a loop where there are several.
    """
    count, rest = -(-channels // WIDTH), channels % WIDTH
    if count == 1:
        body(0, first_lanes(rest) if rest else "")
        return

    def each(i: str, _: list[str]) -> list[str]:
        first = s.affine(i, WIDTH)
        body(first, s.lanes_below(first, channels) if rest else "")
        return []

    s.loop(f"vectors_{name}", str(count), each)


def parts(channels: int, heights: Mapping[int, int]) -> Iterator[tuple[int, int, int]]:
    """(first, how many, rows at once) for vectors of channels, as many as rows are known for."""
    vectors = padded(channels) // WIDTH
    for first in range(0, vectors, max(heights)):
        width = min(vectors - first, max(heights))
        yield first, width, heights[width]


class Tiles:
    """The function ``rows``, whose tasks are blocks of tiles; ``%images`` are what they are of."""

    def __init__(self, plan: WinogradPlan) -> None:
        self.plan, self.s = plan, VectorSource()

    def begin(self, matrices: str, arrays: Mapping[str, int], own: Sequence[str] = ()) -> None:
        """Up to a block's first tile, ``%first``, and how many there are, ``%count``.

        Words of the block from 3 on: tiles in all, the addresses of ``matrices`` and of scratch
        memory, and ``arrays`` where they say. ``own`` are lines that follow for each thread.
        """
        plan = self.plan
        self.s.tasks([
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

    # -- where tiles are ------------------------------------------------------------------------

    def tile(self, t: str) -> tuple[str, str, str]:
        """The image, row and column of tile ``t`` of the block."""
        s, (high, wide) = self.s, self.plan.tiles
        number = s.new(f"add i64 %first, {t}")
        image = s.new(f"udiv i64 {number}, {high * wide}")
        rest = s.new(f"urem i64 {number}, {high * wide}")
        return image, s.new(f"udiv i64 {rest}, {wide}"), s.new(f"urem i64 {rest}, {wide}")

    def inside(self, begin: str, count: int, size: int) -> tuple[str, list[str]]:
        """(whether all of ``count`` rows from ``begin`` exist, whether each does)"""
        s = self.s
        each = [s.new(f"icmp ult i64 {s.affine(begin, 1, i)}, {size}") for i in range(count)]
        return s.new(f"and i1 {each[0]}, {each[-1]}"), each

    def masks(self, rows: Sequence[str], columns: Sequence[str], lanes: str) -> list[list[str]]:
        """The lanes of each pixel, of which rows and columns may not exist."""
        s, there = self.s, f"{MASK} {lanes or first_lanes(WIDTH)}"

        def mask(row: str, column: str) -> str:
            exists = s.new(f"and i1 {row}, {column}")
            return s.new(f"select i1 {exists}, {there}, {MASK} zeroinitializer")

        return [[mask(row, column) for column in columns] for row in rows]

    def pixel(self, image: str, y: str, x: str, size: tuple[int, int], channels: int) -> str:
        """Floats from the first pixel of an array to one."""
        s = self.s
        row = s.new(f"add i64 {s.affine(image, size[0])}, {y}")
        pixel = s.new(f"add i64 {s.affine(row, size[1])}, {x}")
        return s.affine(pixel, channels)

    def never_outside(self) -> bool:
        """Whether all pixels of all tiles of the images exist."""
        plan = self.plan
        last = ((t - 1) * plan.m - p + TILE for t, p in zip(plan.tiles, plan.pad))
        return max(plan.pad) <= 0 and all(n <= size for n, size in zip(last, plan.size))

    def all_whole(self) -> bool:
        """Whether all results of all tiles exist."""
        return not any(n % self.plan.m for n in self.plan.out)

    def choose(
        self, name: str, always: bool, whole: tuple[str, str], body: Callable[[bool, str], None]
    ) -> None:
        """``body(whether all pixels exist, a name)``, for tiles at the border apart if need be."""
        if always:
            body(True, name)
            return
        self.s.choose(name, self.s.new(f"and i1 {whole[0]}, {whole[1]}"), body)

    # -- tiles are read -------------------------------------------------------------------------

    @property
    def images(self) -> Window:
        """The window of a tile of the images."""
        plan = self.plan
        return Window("%images", TILE, plan.pad, plan.size, plan.channels)

    def read(self, t: str, _: list[str]) -> list[str]:
        """A tile of the images, to ``%before``."""
        vector = self.transformed(self.images, of_pixels, self.plan.tile_steps[0])
        return self.windowed(t, "inside", self.images, "%before", self.never_outside(), vector)

    def read_gradient(self, t: str, _: list[str]) -> list[str]:
        """A tile of the result's gradient, ``%gradient``, to ``%after``."""
        plan = self.plan
        window = Window("%gradient", plan.m, (0, 0), plan.out, plan.outputs)
        vector = self.transformed(window, of_results, plan.tile_steps[1])
        return self.windowed(t, "within", window, "%after", self.all_whole(), vector)

    def transformed(
        self, w: Window, way: Callable[[VectorSource, Sequence[str]], list[str]], step: int
    ) -> Vector:
        """What writes the 36 values that ``way`` gives of a window, ``step`` floats apart."""
        s = self.s

        def vector(base: str, target: str, lanes: str, masks: Sequence[Sequence[str]]) -> None:
            def pixel(i: int, j: int) -> str:
                place = s.at(base, (i * w.size[1] + j) * w.channels)
                return s.load(place, masks[i][j] if masks else lanes)

            for i, j, value in both_directions(w.edge, lambda d: way(s, d), pixel):
                s.store(value, s.at(target, (i * TILE + j) * step))

        return vector

    def windowed(
        self, t: str, name: str, w: Window, buffer: str, always: bool, vector: Vector
    ) -> list[str]:
        """``vector(pixels, buffer, lanes, masks)`` for all channels of a tile's window of images.

        There are no masks where the whole window is in the image: ``always`` or by a test.
        """
        s, plan = self.s, self.plan
        image, row, column = self.tile(t)
        y, x = (s.affine(i, plan.m, -p) for i, p in zip((row, column), w.pad))
        all_rows, rows = self.inside(y, w.edge, w.size[0])
        all_columns, columns = self.inside(x, w.edge, w.size[1])
        base = s.at(w.array, self.pixel(image, y, x, w.size, w.channels))
        kept = s.at(buffer, s.affine(t, padded(w.channels)))

        def body(whole: bool, part: str) -> None:
            def each(first: str | int, lanes: str) -> None:
                masks = [] if whole else self.masks(rows, columns, lanes)
                vector(s.at(base, first), s.at(kept, first), lanes, masks)

            by_vectors(s, part, w.channels, each)

        self.choose(name, always, (all_rows, all_columns), body)
        return []

    # -- products -------------------------------------------------------------------------------

    def multiply(
        self, tap: str, source: tuple[str, int, int], target: tuple[str, int, int], step: int
    ) -> list[str]:
        """One of the 36 products of a block of tiles and the kernels.

        ``source`` and ``target`` are a name, the floats between matrices, and how many columns;
        ``step`` are those between matrices of kernels.
        """
        s = self.s
        before = s.at(source[0], s.affine(tap, source[1]))
        after = s.at(target[0], s.affine(tap, target[1]))
        kernels = s.at("%kernels", s.affine(tap, step))
        columns = source[2], target[2]
        for first, width, height in parts(target[2], ROWS_AT_ONCE):
            more = s.new(f"add i64 %count, {height - 1}")
            blocks = s.new(f"udiv i64 {more}, {height}")

            def rows(
                b: str, _: list[str], first: int = first, width: int = width, height: int = height
            ) -> list[str]:
                a = s.at(before, s.affine(b, height * padded(columns[0])))
                y = s.at(after, s.affine(b, height * padded(columns[1])), first * WIDTH)
                at = a, s.at(kernels, first * WIDTH), y
                self._product(f"c{first}", at, columns, (width, height))
                return []

            s.loop(f"rows{first}", blocks, rows)
        return []

    def _product(
        self, name: str, at: tuple[str, str, str], columns: tuple[int, int], size: tuple[int, int]
    ) -> None:
        """Rows of tiles times vectors of outputs, summed over channels; ``size``: how many."""
        s, (width, height) = self.s, size

        def channel(c: str, sums: list[str]) -> list[str]:
            kernel = s.at(at[1], s.affine(c, padded(columns[1])))
            weights = [s.load(s.at(kernel, w * WIDTH)) for w in range(width)]
            tiles = s.at(at[0], c)
            made = []
            for row in range(height):
                every = s.spread(s.at(tiles, row * padded(columns[0])))
                for w in range(width):
                    made.append(s.product(every, weights[w], sums[row * width + w]))
            return made

        zeros = ["zeroinitializer"] * (width * height)
        sums = s.loop(name, str(columns[0]), channel, zeros)
        for i, value in enumerate(sums):
            row, w = divmod(i, width)
            s.store(value, s.at(at[2], row * padded(columns[1]) + w * WIDTH))
