"""Convolutions by Winograd's algorithm as LLVM IR, on images with channels last.

A tile of 6 x 6 pixels gives 7 - r results in each direction of a kernel of r x r, by 36 products
for each pair of channels instead of r * r for each result (Lavin and Gray 2016). Tiles are read in
blocks: transformed to 36 matrices (tiles x channels), multiplied by 36 of the transformed kernels,
and transformed back, all within a thread's part of the second cache.

The points of the interpolation are 0, infinity and the roots of 1/2 and 2 with both signs. Products
of theirs are small numbers, so that errors are about twice those of plain sums; the usual points 0,
1, -1, 2, -2 lose three times as many digits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt

from symdnn.cpu.loops_ir import data_of, next_task, word
from symdnn.cpu.vector_ir import (
    MASK,
    ROWS,
    VECTOR,
    WIDTH,
    VectorSource,
    first_lanes,
    vector_module,
)

__all__ = [
    "POINTS", "TAPS", "TILE", "KernelPlan", "Tiles", "Window", "WinogradPlan", "by_vectors",
    "kernels_ir", "padded", "winograd_ir",
]  # fmt: skip

#: (pixels, what is kept of a tile, lanes, masks of pixels by row and column or none: all are there)
Vector = Callable[[str, str, str, Sequence[Sequence[str]]], None]

#: Pixels of a tile in each direction, transformed values of one.
TILE, TAPS = 6, 36
#: The positive points, and the products of the differences of either from all others.
POINTS = ((sqrt(0.5), -1.5), (sqrt(2.0), 6.0))
#: Rows of tiles that are multiplied at once, by how many vectors of results: 24 accumulators.
_ROWS = {1: 24, 2: 12, 3: 8, 4: 6}
#: A multiple of all of these.
_MOST_ROWS = 24
#: Floats between matrices: a cache line, so that they do not all meet in the same sets.
_APART = 16


def padded(channels: int) -> int:
    """Channels in whole vectors."""
    return -(-channels // WIDTH) * WIDTH


@dataclass(frozen=True)
class Window:
    """The part of a tile's image that is read or added to: ``edge`` pixels in each direction."""

    array: str
    edge: int
    pad: tuple[int, int]
    size: tuple[int, int]
    channels: int


@dataclass(frozen=True)
class WinogradPlan:
    """One kernel: sizes of images and results, channels of both, what follows, tiles of a block."""

    size: tuple[int, int]
    out: tuple[int, int]
    channels: int
    outputs: int
    r: int
    pad: tuple[int, int]
    block: int
    bias: bool = False
    residual: bool = False
    relu: bool = False

    @property
    def m(self) -> int:
        """Results of a tile in each direction."""
        return TILE + 1 - self.r

    @property
    def tiles(self) -> tuple[int, int]:
        """Tiles along the rows and columns of an image."""
        return -(-self.out[0] // self.m), -(-self.out[1] // self.m)

    @property
    def kernel_step(self) -> int:
        """Floats from one matrix of transformed kernels to the next."""
        return self.channels * padded(self.outputs) + _APART

    @property
    def tile_steps(self) -> tuple[int, int]:
        """Likewise of tiles before and after the products."""
        rows = -(-self.block // _MOST_ROWS) * _MOST_ROWS
        return rows * padded(self.channels) + _APART, rows * padded(self.outputs) + _APART

    @property
    def thread_floats(self) -> int:
        """Scratch memory of a thread."""
        return TAPS * sum(self.tile_steps)


@dataclass(frozen=True)
class KernelPlan:
    """The transformation of kernels (outputs, channels, r, r).

    ``swapped``: they lie as (channels, outputs, r, r); ``mirrored``: rows and columns are reversed.
    """

    channels: int
    outputs: int
    r: int
    swapped: bool
    mirrored: bool

    @property
    def step(self) -> int:
        """Floats from one matrix to the next."""
        return self.channels * padded(self.outputs) + _APART


# -- transformations in one direction -------------------------------------------------------------


def _of_pixels(s: VectorSource, d: Sequence[str]) -> list[str]:
    """6 values of 6 pixels."""
    first = s.fma(-2.5, d[2], s.add(d[4], d[0]))
    found = [first]
    for point, other in ((POINTS[0][0], 2.0), (POINTS[1][0], 0.5)):
        even, odd = s.fma(-other, d[2], d[4]), s.fma(-other, d[1], d[3])
        found += [s.fma(point, odd, even), s.fma(-point, odd, even)]
    return [*found, s.fma(-2.5, d[3], s.add(d[5], d[1]))]


def _of_products(s: VectorSource, p: Sequence[str], m: int) -> list[str]:
    """m results of 6 products."""
    sums = s.add(p[1], p[2]), s.add(p[3], p[4])
    differences = s.sub(p[1], p[2]), s.sub(p[3], p[4])
    found = []
    for i in range(m):
        a, b = differences if i % 2 else sums
        value = (
            s.add(a, b) if i == 0 else s.fma(POINTS[1][0] ** i, b, s.scaled(a, POINTS[0][0] ** i))
        )
        if i == 0:
            value = s.add(value, p[0])
        found.append(s.add(value, p[5]) if i == m - 1 else value)
    return found


def _of_kernel(s: VectorSource, g: Sequence[str]) -> list[str]:
    """6 values of r weights."""
    found = [g[0]]
    for point, norm in POINTS:
        halves = []
        for first in (0, 1):
            value = s.scaled(g[first], point**first / norm)
            for i in range(first + 2, len(g), 2):
                value = s.fma(point**i / norm, g[i], value)
            halves.append(value)
        found += [s.add(*halves), s.sub(*halves)]
    return [*found, g[-1]]


# -- kernels --------------------------------------------------------------------------------------


def kernels_ir(plan: KernelPlan) -> str:
    """The module of ``kernel``; its block: threads, channels, 1, kernels, address of the result."""
    s = VectorSource()
    area = plan.r * plan.r
    step = (area, plan.outputs * area) if plan.swapped else (plan.channels * area, area)
    s.lines += [
        ROWS, "entry:", *data_of("%kernels", 3), *word("%made", 4, "ptr"),
        "br label %task", "task:", "%r = phi i64 [%r0, %entry], [%r_next, %task_end]",
    ]  # fmt: skip
    s.block = "task"
    base = s.at("%kernels", s.affine("%r", step[1]))
    row = s.at("%made", s.affine("%r", padded(plan.outputs)))
    steps = ", ".join(f"i64 {i * step[0]}" for i in range(WIDTH))

    def vector(first: str | int, lanes: str) -> None:
        begin = s.at(base, s.affine(first, step[0]) if isinstance(first, str) else first * step[0])
        weights = [[_gathered(s, plan, begin, steps, (i, j), lanes) for j in range(plan.r)]
                   for i in range(plan.r)]  # fmt: skip
        columns = [_of_kernel(s, [weights[i][j] for i in range(plan.r)]) for j in range(plan.r)]
        for i in range(TILE):
            for j, value in enumerate(_of_kernel(s, [c[i] for c in columns])):
                s.store(value, s.at(row, (i * TILE + j) * plan.step, first))

    by_vectors(s, "k", plan.outputs, vector)
    s.lines += next_task("task")
    return vector_module(s)


def _gathered(
    s: VectorSource, plan: KernelPlan, base: str, steps: str, place: tuple[int, int], lanes: str
) -> str:
    """One weight of several outputs."""
    i, j = (plan.r - 1 - n for n in place) if plan.mirrored else place
    begin = s.at(base, i * plan.r + j)
    pointers = s.new(f"getelementptr float, ptr {begin}, <{WIDTH} x i64> <{steps}>")
    return s.new(
        f"call {VECTOR} @llvm.masked.gather.v16f32.v16p0(<{WIDTH} x ptr> {pointers}, i32 4, "
        f"{MASK} {lanes or first_lanes(WIDTH)}, {VECTOR} zeroinitializer)"
    )


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


# -- convolution ----------------------------------------------------------------------------------

_WORDS = ("images", "out", "bias", "more")


def winograd_ir(plan: WinogradPlan) -> str:
    """The module of ``kernel``.

    Its block: threads, blocks of tiles, 1, tiles, the addresses of transformed kernels and of
    scratch memory, the arrays of images, results, bias and addend (the last two may be left out).
    """
    return vector_module(_Convolution(plan).source())


class Tiles:
    """Where tiles are, and how those of the images are read."""

    def __init__(self, plan: WinogradPlan) -> None:
        self.plan, self.s = plan, VectorSource()

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

    def mask(self, exists: str, lanes: str) -> str:
        """The lanes of a pixel that may not exist."""
        there = f"{MASK} {lanes or first_lanes(WIDTH)}"
        return self.s.new(f"select i1 {exists}, {there}, {MASK} zeroinitializer")

    def pixel(self, image: str, y: str, x: str, size: tuple[int, int], channels: int) -> str:
        """Floats from the first pixel of an array to one."""
        s = self.s
        row = s.new(f"add i64 {s.affine(image, size[0])}, {y}")
        pixel = s.new(f"add i64 {s.affine(row, size[1])}, {x}")
        return s.affine(pixel, channels)

    # -- tiles are read -------------------------------------------------------------------------

    def read(self, t: str, _: list[str]) -> list[str]:
        plan = self.plan
        return self.windowed(
            t, "inside", Window("%images", TILE, plan.pad, plan.size, plan.channels), "%before",
            self.never_outside(), self._read_vector,
        )  # fmt: skip

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
                masks = [] if whole else [
                    [self.mask(s.new(f"and i1 {a}, {b}"), lanes) for b in columns] for a in rows
                ]  # fmt: skip
                vector(s.at(base, first), s.at(kept, first), lanes, masks)

            by_vectors(s, part, w.channels, each)

        self.choose(name, always, (all_rows, all_columns), body)
        return []

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

    def _read_vector(
        self, base: str, target: str, lanes: str, masks: Sequence[Sequence[str]]
    ) -> None:
        """The 36 transformed values of some channels of a tile."""
        s, plan = self.s, self.plan
        columns = []
        for j in range(TILE):
            pixels = [
                s.load(s.at(base, (i * plan.size[1] + j) * plan.channels),
                       masks[i][j] if masks else lanes)
                for i in range(TILE)
            ]  # fmt: skip
            columns.append(_of_pixels(s, pixels))
        for i in range(TILE):
            for j, value in enumerate(_of_pixels(s, [c[i] for c in columns])):
                s.store(value, s.at(target, (i * TILE + j) * plan.tile_steps[0]))

    # -- products -------------------------------------------------------------------------------

    def multiply(
        self, tap: str, source: tuple[str, int, int], target: tuple[str, int, int], step: int
    ) -> None:
        """One of the 36 products of a block of tiles and the kernels.

        ``source`` and ``target`` are a name, the floats between matrices, and how many columns;
        ``step`` are those between matrices of kernels.
        """
        s = self.s
        before = s.at(source[0], s.affine(tap, source[1]))
        after = s.at(target[0], s.affine(tap, target[1]))
        kernels = s.at("%kernels", s.affine(tap, step))
        columns = source[2], target[2]
        vectors = padded(target[2]) // WIDTH
        for first in range(0, vectors, max(_ROWS)):
            width = min(vectors - first, max(_ROWS))
            height = _ROWS[width]
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


class _Convolution(Tiles):
    """The function ``rows``: a block of tiles after the other."""

    def source(self) -> VectorSource:
        """All lines."""
        s, plan = self.s, self.plan
        left_out = {"bias": not plan.bias, "more": not plan.residual}
        given = [n for n in _WORDS if not left_out.get(n)]
        s.lines += [
            ROWS, "entry:", *word("%tiles", 3), *word("%kernels", 4, "ptr"),
            *word("%scratch", 5, "ptr"),
            *(x for n in given for x in data_of(f"%{n}", 6 + _WORDS.index(n))),
            "%thread32 = call i32 @omp_get_thread_num()", "%thread = zext i32 %thread32 to i64",
            f"%own = mul i64 %thread, {plan.thread_floats}",
            "%before = getelementptr float, ptr %scratch, i64 %own",
            f"%after = getelementptr float, ptr %before, i64 {TAPS * plan.tile_steps[0]}",
            "br label %task", "task:", "%r = phi i64 [%r0, %entry], [%r_next, %task_end]",
            f"%first = mul i64 %r, {plan.block}",
            "%left = sub i64 %tiles, %first",
            f"%full = icmp sgt i64 %left, {plan.block}",
            f"%count = select i1 %full, i64 {plan.block}, i64 %left",
        ]  # fmt: skip
        s.block = "task"
        s.loop("read", "%count", self.read)
        s.loop("multiply", str(TAPS), self._multiply)
        s.loop("write", "%count", self._write)
        s.lines += next_task("task")
        return s

    def _multiply(self, tap: str, _: list[str]) -> list[str]:
        plan = self.plan
        steps = plan.tile_steps
        source, target = ("%before", steps[0], plan.channels), ("%after", steps[1], plan.outputs)
        self.multiply(tap, source, target, plan.kernel_step)
        return []

    # -- results are written --------------------------------------------------------------------

    def _write(self, t: str, _: list[str]) -> list[str]:
        s, plan = self.s, self.plan
        image, row, column = self.tile(t)
        y, x = s.affine(row, plan.m), s.affine(column, plan.m)
        all_rows, rows = self.inside(y, plan.m, plan.out[0])
        all_columns, columns = self.inside(x, plan.m, plan.out[1])
        at = self.pixel(image, y, x, plan.out, plan.outputs)
        source = s.at("%after", s.affine(t, padded(plan.outputs)))

        def write(whole: bool, name: str) -> None:
            def vector(first: str | int, lanes: str) -> None:
                masks = [] if whole else [
                    [self.mask(s.new(f"and i1 {a}, {b}"), lanes) for b in columns] for a in rows
                ]  # fmt: skip
                self._write_vector(s.at(source, first), at, first, lanes, masks)

            by_vectors(s, name, plan.outputs, vector)

        self.choose("within", self.all_whole(), (all_rows, all_columns), write)
        return []

    def _write_vector(
        self, source: str, at: str, first: str | int, lanes: str, masks: Sequence[Sequence[str]]
    ) -> None:
        """The results of a tile in some channels."""
        s, plan = self.s, self.plan
        columns = []
        for j in range(TILE):
            products = [
                s.load(s.at(source, (i * TILE + j) * plan.tile_steps[1])) for i in range(TILE)
            ]
            columns.append(_of_products(s, products, plan.m))
        bias = s.load(s.at("%bias", first), lanes) if plan.bias else ""
        for i in range(plan.m):
            for j, value in enumerate(_of_products(s, [c[i] for c in columns], plan.m)):
                step = (i * plan.out[1] + j) * plan.outputs
                mask = masks[i][j] if masks else lanes
                self._store_result(value, (at, first, step), mask, bias)

    def _store_result(
        self, value: str, place: tuple[str, str | int, int], mask: str, bias: str
    ) -> None:
        """One vector of results, with what follows the convolution."""
        s, plan = self.s, self.plan
        if plan.bias:
            value = s.add(value, bias)
        if plan.residual:
            value = s.add(value, s.load(s.at("%more", *place), mask))
        if plan.relu:  # NaN stays
            low = s.new(f"fcmp olt {VECTOR} {value}, zeroinitializer")
            value = s.new(f"select {MASK} {low}, {VECTOR} zeroinitializer, {VECTOR} {value}")
        s.store(value, s.at("%out", *place), mask)
