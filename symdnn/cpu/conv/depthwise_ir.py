"""Depthwise convolution of planes (channels first) and its gradient in the images as LLVM IR.

Each channel is convolved by itself: there are no sums over channels, so vectors go along the rows
of a plane, as they lie, and what a vector of the images is loaded for are all products that it is
part of in a block of several rows. Sizes are constants of the source, so that which lanes of a
vector lie beyond a border is known when it is written; rows beyond it are read from a row of zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from symdnn.cpu.ir.loops_ir import data_of, next_task
from symdnn.cpu.ir.vector_ir import (
    MASK,
    ROWS,
    VECTOR,
    WIDTH,
    VectorSource,
    first_lanes,
    vector_module,
)

__all__ = ["Columns", "DepthwisePlan", "PlaneSource", "depthwise_ir", "mask_of", "taps_of"]

#: Rows of a block, and the products of a vector of columns that are written out.
_MOST_ROWS, _MOST_PRODUCTS = 8, 256
#: Weights that stay in registers; others are read where they are used.
_HELD = 16
_ZERO = f"{VECTOR} zeroinitializer"


@dataclass(frozen=True)
class DepthwisePlan:
    """One kernel. ``kind``: ``forward`` (x, w) to y, ``images`` (w, dy) to dx, ``kernels`` (x, dy)
    to dw.

    Pairs are (rows, columns): ``size`` of x, ``out`` of y, the ``kernel``, ``stride``,
    ``dilation``, ``pad`` before the first. ``channels`` are those of x, of which each has
    ``multiplier`` in y. ``flip``: kernels are mirrored. ``bias``, ``residual`` and ``relu`` say
    what follows forward. ``narrow``: a vector takes two registers, of which there are half as many.
    """

    kind: str
    size: tuple[int, int]
    out: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    pad: tuple[int, int]
    channels: int
    multiplier: int
    flip: bool = False
    bias: bool = False
    residual: bool = False
    relu: bool = False
    narrow: bool = False

    @property
    def made(self) -> tuple[int, int]:
        """Rows and columns that blocks are of: of the result, or of dy for the kernels."""
        return self.size if self.kind == "images" else self.out

    @property
    def read(self) -> tuple[int, int]:
        """Rows and columns of the planes that kernels move over."""
        return self.out if self.kind == "images" else self.size

    @property
    def block(self) -> int:
        """Rows of a block: such that few are left over, whole strides of a gradient."""
        unit = self.stride[0] if self.kind == "images" else 1
        area = self.kernel[0] * self.kernel[1]
        most = 4 if self.kind == "kernels" else max(1, min(_MOST_ROWS, _MOST_PRODUCTS // area))
        rows = self.made[0]
        fits = [n for n in range(most, most // 2, -1) if n % unit == 0]
        whole = [n for n in fits if rows % n == 0]
        return min((whole or fits or [unit])[0], -(-rows // unit) * unit)

    @property
    def blocks(self) -> int:
        """Blocks of a plane."""
        return -(-self.made[0] // self.block)

    def tasks(self, images: int) -> int:
        """How many parts there are, for so many images."""
        if self.kind == "kernels":
            return self.channels * self.multiplier
        planes = images * self.channels * (self.multiplier if self.kind == "forward" else 1)
        return planes * self.blocks

    @property
    def operands(self) -> tuple[str, ...]:
        """Whose array objects the words after the third have; the result is the last."""
        names = {"forward": ("x", "weights"), "images": ("weights", "dy"), "kernels": ("x", "dy")}[
            self.kind
        ]
        more = [n for n, on in (("z", self.residual), ("bias", self.bias)) if on]
        return (*names, *more, "out")


def depthwise_ir(plan: DepthwisePlan) -> str:
    """The module of ``kernel``, ``forward`` or ``images``; its block: threads,
    :meth:`DepthwisePlan.tasks`, 1, and the operands."""
    return vector_module(_Planes(plan).text())


# -- where products are ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Tap:
    """A weight of one dimension: its index, and how far from the place of a result (or from that
    divided by the stride, in a gradient in the images) what it multiplies is."""

    weight: int
    offset: int


def taps_of(plan: DepthwisePlan, axis: int, place: int) -> list[Tap]:
    """What makes a result ``place`` rows (columns) behind the first of a block."""
    count, step = plan.kernel[axis], plan.stride[axis]
    found = []
    for k in range(count):
        weight = count - 1 - k if plan.flip else k
        reach = k * plan.dilation[axis]
        if plan.kind == "images":
            offset, rest = divmod(place + plan.pad[axis] - reach, step)
            if rest:
                continue
        else:
            offset = place * step + reach - plan.pad[axis]
        found.append(Tap(weight, offset))
    return found


def mask_of(valid: Sequence[bool]) -> str:
    """The mask of these lanes; "" where all are there."""
    if all(valid):
        return ""
    return f"<{', '.join(f'i1 {int(v)}' for v in valid)}>"


@dataclass(frozen=True)
class Columns:
    """A vector of results: the first column, or how many vectors from there on are alike."""

    first: int
    count: int = 1


class PlaneSource:
    """What both kinds share: rows that may not exist, vectors of columns and their masks."""

    def __init__(self, plan: DepthwisePlan) -> None:
        self.plan, self.s = plan, VectorSource()
        zeros = f"@zeros = internal constant [{plan.read[1]} x float] zeroinitializer, align 64"
        self.s.lines += [
            "declare float @llvm.vector.reduce.fadd.v16f32(float, <16 x float>)", zeros, ROWS,
            "entry:",
        ]  # fmt: skip

    def text(self) -> VectorSource:
        """The function ``rows``."""
        s = self.s
        for i, name in enumerate(self.plan.operands):
            s.lines += data_of(f"%{name}", 3 + i)
        self.begin()
        s.lines += ["br label %task", "task:", "%r = phi i64 [%r0, %entry], [%r_next, %task_end]"]
        s.block = "task"
        self.task()
        s.lines += next_task("task")
        return s

    def begin(self) -> None:
        """Lines before the first task."""

    def task(self) -> None:
        """One task, ``%r``."""
        raise NotImplementedError

    def part(self, i: str, size: int) -> tuple[str, str]:
        """(i // size, i % size)"""
        return self.s.new(f"udiv i64 {i}, {size}"), self.s.new(f"urem i64 {i}, {size}")

    # -- rows -------------------------------------------------------------------------------------

    def rows(self, plane: str, first: str, offsets: Iterator[int]) -> dict[int, str]:
        """Where the rows ``first + offset`` of a plane begin; those beyond it are zeros."""
        s, (high, wide) = self.s, self.plan.read
        found = {}
        for offset in sorted(set(offsets)):
            row = s.affine(first, 1, offset)
            exists = s.new(f"icmp ult i64 {row}, {high}")
            begin = s.at(plane, s.affine(row, wide))
            found[offset] = s.new(f"select i1 {exists}, ptr {begin}, ptr @zeros")
        return found

    def blocks(self, name: str, number: str, body: Callable[[int, str], None]) -> None:
        """``body(rows, a name)`` for block ``number``, of which the last may have fewer rows."""
        plan = self.plan
        left = plan.made[0] % plan.block
        if not left or plan.blocks == 1:
            body(left or plan.block, name)
            return
        last = self.s.new(f"icmp eq i64 {number}, {plan.blocks - 1}")
        self.s.choose(name, last, lambda is_last, n: body(left if is_last else plan.block, n))

    # -- columns ----------------------------------------------------------------------------------

    @property
    def span(self) -> int:
        """Columns of a vector of results, in a gradient in the images of one for each phase."""
        return WIDTH * (self.plan.stride[1] if self.plan.kind == "images" else 1)

    def columns(self, moves: bool) -> list[Columns]:
        """All of a row; ``moves``: the last may begin earlier and make some a second time."""
        wide, span = self.plan.made[1], self.span
        starts = list(range(0, wide, span))
        if moves and wide >= span == WIDTH:
            starts[-1] = wide - span
        found: list[Columns] = []
        for first in starts:
            before = found[-1] if found else None
            alike = before is not None and first == before.first + before.count * span
            if before is not None and alike and self._whole(first) and self._whole(before.first):
                found[-1] = Columns(before.first, before.count + 1)
            else:
                found.append(Columns(first))
        return found

    def _whole(self, first: int) -> bool:
        """Whether no lane of these columns lies beyond a border."""
        plan, wide = self.plan, self.plan.made[1]
        phases = self.span // WIDTH
        taps = [t for phase in range(phases) for t in taps_of(plan, 1, phase)]
        return first + self.span <= wide and not any(
            m for t in taps for m in self.masks(first, t.offset)
        )

    @property
    def step(self) -> int:
        """Columns between what neighbouring lanes read."""
        return 1 if self.plan.kind == "images" else self.plan.stride[1]

    def source(self, first: int) -> int:
        """What column of the planes read a column of results stands for."""
        plan = self.plan
        return first // plan.stride[1] if plan.kind == "images" else first * plan.stride[1]

    def masks(self, first: int, offset: int) -> list[str]:
        """The mask of each vector that is read for the tap ``offset`` at the columns ``first``."""
        begin, wide, step = self.source(first) + offset, self.plan.read[1], self.step
        if step > 2:
            lanes = [0 <= begin + step * i < wide for i in range(WIDTH)]
            return [mask_of(lanes)]
        return [
            mask_of([0 <= begin + WIDTH * v + i < wide for i in range(WIDTH)]) for v in range(step)
        ]

    def each(
        self, name: str, columns: Sequence[Columns], carried: Sequence[str],
        body: Callable[[Columns, str, str, list[str]], list[str]],
    ) -> list[str]:  # fmt: skip
        """``body(columns, made, read, values)`` for each vector; those alike are a loop.

        ``made`` and ``read`` are columns to add to the first of them ("" for none): of results,
        and of what is read.
        """
        s, values = self.s, list(carried)
        for n, c in enumerate(columns):
            if c.count == 1:
                values = body(c, "", "", values)
                continue

            def step(i: str, held: list[str], c: Columns = c) -> list[str]:
                made = s.affine(i, self.span)
                return body(c, made, s.affine(i, self.source(self.span)), held)

            values = s.loop(f"{name}_columns{n}", str(c.count), step, values)
        return values

    def loaded(self, row: str, c: Columns, moved: str, offset: int) -> str:
        """What a tap multiplies: a vector of a row; 0 in lanes beyond the border."""
        s = self.s
        masks = self.masks(c.first, offset)
        if not any(m == "" or "i1 1" in m for m in masks):
            return "zeroinitializer"
        begin = s.at(row, moved or 0, self.source(c.first) + offset)
        if self.step == 1:
            return s.load(begin, masks[0])
        if self.step == 2:
            parts = [s.load(s.at(begin, WIDTH * i), m) for i, m in enumerate(masks)]
            lanes = ", ".join(f"i32 {2 * i}" for i in range(WIDTH))
            return s.new(f"shufflevector {VECTOR} {parts[0]}, {VECTOR} {parts[1]}, "
                         f"<{WIDTH} x i32> <{lanes}>")  # fmt: skip
        steps = ", ".join(f"i64 {self.step * i}" for i in range(WIDTH))
        places = s.new(f"getelementptr float, ptr {begin}, <{WIDTH} x i64> <{steps}>")
        return s.new(
            f"call {VECTOR} @llvm.masked.gather.v16f32.v16p0(<{WIDTH} x ptr> {places}, i32 4, "
            f"{MASK} {masks[0] or first_lanes(WIDTH)}, {_ZERO})"
        )


# -- forward, and the gradient in the images -------------------------------------------------------


class _Planes(PlaneSource):
    """A task is a block of rows of a plane of the result."""

    def task(self) -> None:
        s, plan = self.s, self.plan
        plane, block = self.part("%r", plan.blocks)
        (high, wide), (read_high, read_wide) = plan.made, plan.read
        backward = plan.kind == "images"
        channels = plan.channels * (1 if backward else plan.multiplier)
        channel = s.new(f"urem i64 {plane}, {channels}")
        area = plan.kernel[0] * plan.kernel[1]
        each = plan.multiplier if backward else 1
        self.weights = s.at("%weights", s.affine(channel, area * each))
        self.held: dict[int, str] = {}
        if area * each <= _HELD:
            for i in range(area * each):
                self.held[i] = s.spread(s.at(self.weights, i))
        if plan.bias:
            self.bias = s.spread(s.at("%bias", channel))
        source = s.affine(plane, plan.multiplier) if backward else plane
        if not backward and plan.multiplier > 1:
            source = s.new(f"udiv i64 {plane}, {plan.multiplier}")
        source = s.at("%dy" if backward else "%x", s.affine(source, read_high * read_wide))
        first = s.affine(block, plan.block)
        at = s.affine(s.new(f"add i64 {s.affine(plane, high)}, {first}"), wide)
        self.out = s.at("%out", at)
        self.more = s.at("%z", at) if plan.residual else ""
        step = plan.block * plan.stride[0]
        place = s.affine(block, plan.block // plan.stride[0] if backward else step)
        self.blocks("block", block, lambda count, name: self._rows(name, source, place, count))

    def _rows(self, name: str, source: str, place: str, count: int) -> None:
        """The results of ``count`` rows."""
        plan, each = self.plan, self.plan.multiplier if self.plan.kind == "images" else 1
        area = plan.read[0] * plan.read[1]
        rows = [
            self.rows(
                self.s.at(source, n * area), place,
                (t.offset for i in range(count) for t in taps_of(plan, 0, i)),
            )
            for n in range(each)
        ]  # fmt: skip

        def vector(c: Columns, made: str, read: str, held: list[str]) -> list[str]:
            phases = [
                self._sums(rows, c, read, phase, count) for phase in range(self.span // WIDTH)
            ]
            for i in range(count):
                self._put(i, c, made, [p[i] for p in phases])
            return held

        self.each(name, self.columns(not plan.residual), [], vector)

    def _sums(
        self, rows: list[dict[int, str]], c: Columns, read: str, phase: int, count: int
    ) -> list[str]:
        """For each row the sums of one phase of columns."""
        plan, s = self.plan, self.s
        sums = [self.bias if plan.bias else "zeroinitializer"] * count
        users: dict[int, list[tuple[int, int]]] = {}
        for i in range(count):
            for t in taps_of(plan, 0, i):
                users.setdefault(t.offset, []).append((i, t.weight))
        area = plan.kernel[0] * plan.kernel[1]
        for n, of_plane in enumerate(rows):
            for tap in taps_of(plan, 1, phase):
                weights = {
                    k: self._weight(n * area + k * plan.kernel[1] + tap.weight)
                    for k in sorted({k for found in users.values() for _, k in found})
                }
                for offset in sorted(users):
                    value = self.loaded(of_plane[offset], c, read, tap.offset)
                    if value == "zeroinitializer":
                        continue
                    for i, k in users[offset]:
                        sums[i] = s.product(weights[k], value, sums[i])
        return sums

    def _weight(self, index: int) -> str:
        return self.held.get(index) or self.s.spread(self.s.at(self.weights, index))

    def _put(self, row: int, c: Columns, made: str, phases: Sequence[str]) -> None:
        """Write one row of results."""
        plan, s, wide = self.plan, self.s, self.plan.made[1]
        place = row * wide + c.first
        for v, value in enumerate(_interleaved(s, phases)):
            first = c.first + v * WIDTH
            if first >= wide:
                continue
            mask = mask_of([first + i < wide for i in range(WIDTH)]) if c.count == 1 else ""
            offsets: list[str | int] = [made or 0, place + v * WIDTH]
            if plan.residual:
                value = s.add(value, s.load(s.at(self.more, *offsets), mask))
            if plan.relu:  # what is not a number stays so
                below = s.new(f"fcmp olt {VECTOR} {value}, zeroinitializer")
                value = s.new(f"select {MASK} {below}, {_ZERO}, {VECTOR} {value}")
            s.store(value, s.at(self.out, *offsets), mask)


def _interleaved(s: VectorSource, phases: Sequence[str]) -> list[str]:
    """Vectors of neighbouring columns, of vectors of every ``len(phases)``-th column."""
    count = len(phases)
    if count == 1:
        return list(phases)
    found = []
    for v in range(count):
        made = "zeroinitializer"
        for phase, value in enumerate(phases):
            # Lane i is column v * WIDTH + i, which phase (column % count) has at column // count.
            columns = [v * WIDTH + i for i in range(WIDTH)]
            lanes = ", ".join(
                f"i32 {WIDTH + c // count if c % count == phase else i}"
                for i, c in enumerate(columns)
            )
            made = s.new(
                f"shufflevector {VECTOR} {made}, {VECTOR} {value}, <{WIDTH} x i32> <{lanes}>"
            )
        found.append(made)
    return found
