"""Depthwise convolution of planes (NCHW) and its gradient of the input as LLVM IR.

There are no sums over channels, so vectors are along the rows of a plane. A vector of the input is
loaded once for all its products in a block of several rows. Sizes are constants of the code, so
that masks of lanes beyond a border are known at compile time. Rows beyond a border are read from a
row of zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from symdnn.cpu.compiler import jit
from symdnn.cpu.conv.depthwise_plan import DepthwisePlan
from symdnn.cpu.ir.builder import (
    MASK,
    ROWS,
    VECTOR,
    WIDTH,
    Builder,
    first_lanes,
    splat,
    vector_module,
)
from symdnn.cpu.ir.loops_ir import data_of, next_task
from symdnn.cpu.ir.vector_activations_ir import activation_declarations, sigmoid

#: Filters with more weights do not stay in registers; each weight is loaded where it is used.
_MAX_REGISTER_WEIGHTS = 16
_ZERO = f"{VECTOR} zeroinitializer"


def depthwise_ir(plan: DepthwisePlan) -> str:
    """The module of ``kernel``, of kind ``forward`` or ``grad_input``.

    Words of its block: threads, :meth:`DepthwisePlan.tasks`, 1, and the operands.
    """
    return vector_module(_PlaneResults(plan).text())


# -- taps ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tap:
    """A weight of a filter along one dimension: its index, and the offset of its factor.

    The offset is relative to the result's position, in ``grad_input`` to that divided by the
    stride.
    """

    weight: int
    offset: int


def taps_of(plan: DepthwisePlan, axis: int, place: int) -> list[Tap]:
    """The taps of the result ``place`` rows (columns) behind the first of a block."""
    count, step = plan.kernel[axis], plan.stride[axis]
    found = []
    for k in range(count):
        weight = count - 1 - k if plan.flip else k
        reach = k * plan.dilation[axis]
        if plan.kind == "grad_input":
            offset, rest = divmod(place + plan.pad[axis] - reach, step)
            if rest:
                continue
        else:
            offset = place * step + reach - plan.pad[axis]
        found.append(Tap(weight, offset))
    return found


def mask_of(valid: Sequence[bool]) -> str:
    """The mask of these lanes; "" if all are valid."""
    if all(valid):
        return ""
    return f"<{', '.join(f'i1 {int(v)}' for v in valid)}>"


@dataclass(frozen=True)
class ColumnVectors:
    """Vectors of results with the same masks: the first column, and how many vectors follow."""

    first: int
    count: int = 1


class PlaneSource:
    """The builder of all kinds: rows that may not exist, vectors of columns and their masks."""

    def __init__(self, plan: DepthwisePlan) -> None:
        self.plan, self.s = plan, Builder()
        zeros = (
            f"@zeros = internal constant [{plan.input_extent[1]} x float] zeroinitializer, align 64"
        )
        self.s.put(zeros, ROWS, "entry:")

    def text(self) -> Builder:
        """The lines of the function ``rows``."""
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
        """Append lines before the loop over tasks."""

    def task(self) -> None:
        """Append one task, ``%r``."""
        raise NotImplementedError

    def part(self, i: str, size: int) -> tuple[str, str]:
        """(i // size, i % size)"""
        return self.s.new(f"udiv i64 {i}, {size}"), self.s.new(f"urem i64 {i}, {size}")

    # -- rows -------------------------------------------------------------------------------------

    def rows(
        self, plane: str, first: str, offsets: Iterator[int], there: str = ""
    ) -> dict[int, str]:
        """Addresses of the rows ``first + offset`` of a plane; of zeros for rows beyond it, and of
        a plane that is not ``there``."""
        s, (high, wide) = self.s, self.plan.input_extent
        found = {}
        for offset in sorted(set(offsets)):
            row = s.affine(first, 1, offset)
            exists = s.new(f"icmp ult i64 {row}, {high}")
            exists = s.new(f"and i1 {exists}, {there}") if there else exists
            begin = s.at(plane, s.affine(row, wide))
            found[offset] = s.new(f"select i1 {exists}, ptr {begin}, ptr @zeros")
        return found

    def blocks(self, name: str, number: str, body: Callable[[int, str], None]) -> None:
        """``body(rows, name)`` for block ``number``; the last block may have fewer rows."""
        plan = self.plan
        left = plan.block_extent[0] % plan.block
        if not left or plan.blocks == 1:
            body(left or plan.block, name)
            return
        last = self.s.new(f"icmp eq i64 {number}, {plan.blocks - 1}")
        self.s.choose(name, last, lambda is_last, n: body(left if is_last else plan.block, n))

    # -- columns ----------------------------------------------------------------------------------

    @property
    def span(self) -> int:
        """Columns of a vector of results; in ``grad_input`` of one vector for each phase."""
        return WIDTH * (self.plan.stride[1] if self.plan.kind == "grad_input" else 1)

    def columns(self, moves: bool) -> list[ColumnVectors]:
        """All columns of a row. ``moves``: the last vector may begin earlier and repeat some."""
        wide, span = self.plan.block_extent[1], self.span
        starts = list(range(0, wide, span))
        if moves and wide >= span == WIDTH:
            starts[-1] = wide - span
        found: list[ColumnVectors] = []
        for first in starts:
            before = found[-1] if found else None
            alike = before is not None and first == before.first + before.count * span
            if before is not None and alike and self._whole(first) and self._whole(before.first):
                found[-1] = ColumnVectors(before.first, before.count + 1)
            else:
                found.append(ColumnVectors(first))
        return found

    def _whole(self, first: int) -> bool:
        """Whether no lane of these columns is beyond a border."""
        plan, wide = self.plan, self.plan.block_extent[1]
        phases = self.span // WIDTH
        taps = [t for phase in range(phases) for t in taps_of(plan, 1, phase)]
        return first + self.span <= wide and not any(
            m for t in taps for m in self.masks(first, t.offset)
        )

    @property
    def step(self) -> int:
        """The stride between the columns that neighbouring lanes read."""
        return 1 if self.plan.kind == "grad_input" else self.plan.stride[1]

    def source(self, first: int) -> int:
        """The column of the input at which the window of a column of results begins."""
        plan = self.plan
        return first // plan.stride[1] if plan.kind == "grad_input" else first * plan.stride[1]

    def masks(self, first: int, offset: int) -> list[str]:
        """The masks of the vectors that are loaded for the tap ``offset`` at columns ``first``."""
        begin, wide, step = self.source(first) + offset, self.plan.input_extent[1], self.step
        if step > 2:
            lanes = [0 <= begin + step * i < wide for i in range(WIDTH)]
            return [mask_of(lanes)]
        return [
            mask_of([0 <= begin + WIDTH * v + i < wide for i in range(WIDTH)]) for v in range(step)
        ]

    def each(
        self, name: str, columns: Sequence[ColumnVectors], carried: Sequence[str],
        body: Callable[[ColumnVectors, str, str, list[str]], list[str]],
    ) -> list[str]:  # fmt: skip
        """``body(columns, made, read, values)`` for each vector; equal ones are a loop.

        ``made`` and ``read`` are offsets ("" for none) from the first column of results and of the
        input. ``values`` are loop-carried, ``carried`` the first ones.
        """
        s, values = self.s, list(carried)
        for n, c in enumerate(columns):
            if c.count == 1:
                values = body(c, "", "", values)
                continue

            def step(i: str, held: list[str], c: ColumnVectors = c) -> list[str]:
                made = s.affine(i, self.span)
                return body(c, made, s.affine(i, self.source(self.span)), held)

            values = s.loop(f"{name}_columns{n}", str(c.count), step, values)
        return values

    def loaded(self, row: str, c: ColumnVectors, moved: str, offset: int) -> str:
        """The factor of a tap: a vector of a row, with 0 in lanes beyond the border."""
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


# -- forward, and the gradient of the input --------------------------------------------------------


class _PlaneResults(PlaneSource):
    """A task is a block of rows of a plane of the result."""

    def task(self) -> None:
        s, plan = self.s, self.plan
        plane, block = self.part("%r", plan.blocks)
        high, wide = plan.block_extent
        backward = plan.kind == "grad_input"
        channels = plan.channels * (1 if backward else plan.multiplier)
        volume, self.level = self.part(plane, plan.planes[1])
        channel = s.new(f"urem i64 {volume}, {channels}")
        area = plan.filter_size
        each = plan.multiplier if backward else 1
        self.weights = s.at("%weights", s.affine(channel, area * each))
        self.held: dict[int, str] = {}
        if area * each <= _MAX_REGISTER_WEIGHTS:
            for i in range(area * each):
                self.held[i] = s.broadcast(s.at(self.weights, i))
        if plan.bias:
            self.bias = s.broadcast(s.at("%bias", channel))
        source = s.affine(volume, plan.multiplier) if backward else volume
        if not backward and plan.multiplier > 1:
            source = s.new(f"udiv i64 {volume}, {plan.multiplier}")
        source = s.at("%dy" if backward else "%x", s.affine(source, self.volume))
        first = s.affine(block, plan.block)
        at = s.affine(s.plus(s.affine(plane, high), first), wide)
        self.out = s.at("%out", at)
        self.more = s.at("%z", at) if plan.residual else ""
        step = plan.block * plan.stride[0]
        place = s.affine(block, plan.block // plan.stride[0] if backward else step)
        self.blocks("block", block, lambda count, name: self._rows(name, source, place, count))

    def _rows(self, name: str, source: str, place: str, count: int) -> None:
        """Append the results of ``count`` rows."""
        plan, each = self.plan, self.plan.multiplier if self.plan.kind == "grad_input" else 1
        rows = [
            self.rows(
                begin, place,
                (t.offset for i in range(count) for t in taps_of(plan, 0, i)), there,
            )
            for n in range(each)
            for begin, there in self._levels(self.s.at(source, n * self.volume))
        ]  # fmt: skip

        def vector(c: ColumnVectors, made: str, read: str, held: list[str]) -> list[str]:
            phases = [
                self._sums(rows, c, read, phase, count) for phase in range(self.span // WIDTH)
            ]
            for i in range(count):
                self._put(i, c, made, [p[i] for p in phases])
            return held

        self.each(name, self.columns(not plan.residual), [], vector)

    @property
    def volume(self) -> int:
        """Numbers of a channel of the input."""
        return self.plan.input_extent[0] * self.plan.input_extent[1] * self.plan.planes[0]

    def _levels(self, source: str) -> Iterator[tuple[str, str]]:
        """(address, whether it exists) of the plane of the input for each plane of the filter."""
        s, depth, area = self.s, self.plan.depth, prod(self.plan.input_extent)
        if depth is None:
            yield source, ""
            return
        for k in range(depth.kernel):
            reach = (depth.kernel - 1 - k if self.plan.flip else k) * depth.dilation
            if self.plan.kind == "forward":
                place = s.affine(s.affine(self.level, depth.stride), 1, reach - depth.pad)
                there = s.new(f"icmp ult i64 {place}, {self.plan.planes[0]}")
            else:
                far = s.affine(self.level, 1, depth.pad - reach)
                place = s.new(f"sdiv i64 {far}, {depth.stride}")
                there = s.new(f"icmp ult i64 {place}, {self.plan.planes[0]}")
                inside = s.new(f"icmp sge i64 {far}, 0")
                whole = s.new(f"icmp eq i64 {s.affine(place, depth.stride)}, {far}")
                there = s.new(f"and i1 {there}, {s.new(f'and i1 {inside}, {whole}')}")
            yield s.at(source, s.affine(place, area)), there

    def _sums(
        self, rows: list[dict[int, str]], c: ColumnVectors, read: str, phase: int, count: int
    ) -> list[str]:
        """For each row the sums of one phase of columns."""
        plan, s = self.plan, self.s
        sums = [self.bias if plan.bias else "zeroinitializer"] * count
        users: dict[int, list[tuple[int, int]]] = {}
        for i in range(count):
            for t in taps_of(plan, 0, i):
                users.setdefault(t.offset, []).append((i, t.weight))
        area = plan.kernel[0] * plan.kernel[1]  # of a plane of the filter
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
                        sums[i] = s.multiply_add(weights[k], value, sums[i])
        return sums

    def _weight(self, index: int) -> str:
        return self.held.get(index) or self.s.broadcast(self.s.at(self.weights, index))

    def _put(self, row: int, c: ColumnVectors, made: str, phases: Sequence[str]) -> None:
        """Append the epilogue and the stores of one row of results."""
        plan, s, wide = self.plan, self.s, self.plan.block_extent[1]
        place = row * wide + c.first
        for v, value in enumerate(_interleaved(s, phases)):
            first = c.first + v * WIDTH
            if first >= wide:
                continue
            mask = mask_of([first + i < wide for i in range(WIDTH)]) if c.count == 1 else ""
            offsets: list[str | int] = [made or 0, place + v * WIDTH]
            if plan.residual:
                value = s.add(value, s.load(s.at(self.more, *offsets), mask))
            value = activated(s, value, plan.activation)
            s.store(value, s.at(self.out, *offsets), mask)


#: Activation functions by oneDNN's names.
ACTIVATIONS = ("relu", "clip", "hardsigmoid", "hardswish", "swish")


def activated(s: Builder, value: str, activation: str) -> str:
    """An activation function of a vector; NaN stays."""
    if activation == "relu":
        return _limited(s, value, "olt", "zeroinitializer")
    if activation == "clip":
        return _limited(s, _limited(s, value, "olt", "zeroinitializer"), "ogt", splat(6.0, WIDTH))
    if not activation:
        return value
    if activation == "swish":
        width = jit.vector_width()
        s.declared.update(activation_declarations(width))
        return s.new(f"fmul {VECTOR} {value}, {sigmoid(s, value, width)}")
    line = s.add(s.scaled(value, 1 / 6), splat(0.5, WIDTH))
    limited = _limited(s, _limited(s, line, "olt", "zeroinitializer"), "ogt", splat(1.0, WIDTH))
    return s.new(f"fmul {VECTOR} {value}, {limited}") if activation == "hardswish" else limited


def _limited(s: Builder, value: str, beyond: str, limit: str) -> str:
    over = s.new(f"fcmp {beyond} {VECTOR} {value}, {limit}")
    return s.new(f"select {MASK} {over}, {VECTOR} {limit}, {VECTOR} {value}")


def _interleaved(s: Builder, phases: Sequence[str]) -> list[str]:
    """Interleave vectors of every ``len(phases)``-th column to vectors of neighbouring columns."""
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
