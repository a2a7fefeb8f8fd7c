"""Pooling in NHWC and its gradients as LLVM IR.

A step of the loops is a window (forward) or a group of ``stride`` pixels (backward). Inside a step
is a loop over vectors of channels, the last one masked. So which windows contain a pixel of a group
is known at compile time, and each operand is read once. The borders have loops of their own with
bounds checks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from symdnn.cpu.ir.builder import FunctionBuilder
from symdnn.cpu.ir.loops_ir import METADATA, THREADS, data_of, next_task
from symdnn.cpu.ir.scalar_ir import VALUES, literal
from symdnn.cpu.pool.pool_ir import PoolPlan, weight_tables

#: Size of a vector.
_VECTOR_BYTES = 64
_BITS = {"float": 32, "double": 64}


def pool_nhwc_ir(plan: PoolPlan, channels: int) -> str:
    """The module of ``kernel`` for (N, rows, columns, ``channels``), of any kind but ``gather``.

    Its block is that of :func:`~symdnn.cpu.pool.pool_ir.pool_ir`, with N times the first of
    :func:`step_counts` as the number of rows.
    """
    source = (_Backward if plan.backward else _Forward)(plan, channels)
    text = source.text()
    lines = [*sorted(source.declared), *THREADS, *weight_tables(plan), *text, *METADATA]
    return "\n".join(lines) + "\n"


def step_counts(plan: PoolPlan) -> tuple[int, int]:
    """The numbers of steps along the rows and the columns of a sample."""
    if not plan.backward:
        rows, columns = plan.out
        return rows, columns
    rows, columns = ((n - 1 + p) // s + 1 for n, p, s in zip(plan.size, plan.pad, plan.stride))
    return rows, columns


@dataclass(frozen=True)
class _Position:
    """A row or column of an operand: offset in elements, whether it exists ("": always), factor."""

    offset: str
    exists: str
    weight: str = ""


class _NhwcPoolSource(FunctionBuilder):
    """Builds the function ``rows``, a task of which is a row of steps."""

    def __init__(self, plan: PoolPlan, channels: int) -> None:
        super().__init__()
        self.plan, self.channels, self.t = plan, channels, VALUES[plan.dtype]
        self.zero = literal("0x0p0", plan.dtype)
        self.width = 8 * _VECTOR_BYTES // _BITS[self.t]

    # -- lines ------------------------------------------------------------------------------------

    def loop(self, name: str, low: int, high: int, body: Callable[[str], None]) -> None:
        """A loop over numbers from ``low`` to below ``high``; nothing if there are none."""

        if low < high:
            with self.each(name, low, str(high)) as i:
                body(i)

    def both(self, *conditions: str) -> str:
        """The conjunction of conditions; "" if all are ""."""
        asked = [c for c in conditions if c]
        if len(asked) < 2:
            return "".join(asked)
        return self.new(f"and i1 {asked[0]}, {asked[1]}")

    def place(self, i: str, size: int, step: int, checked: bool) -> _Position:
        """Row or column ``i`` of ``size``, with stride ``step``; clamped if checked."""
        exists = ""
        if checked:
            exists = self.new(f"icmp ult i64 {i}, {size}")
            i = self.new(f"select i1 {exists}, i64 {i}, i64 0")
        return _Position(self.new(f"mul nsw i64 {i}, {step}"), exists)

    def weighted(self, axis: str, i: str, size: int, step: int, checked: bool) -> _Position:
        """A row (``y``) or column (``x``) of windows, with its factor for means."""
        place = self.place(i, size, step, checked)
        if not self.plan.weights:
            return place
        index = self.new(f"udiv exact i64 {place.offset}, {step}") if checked else i
        pointer = self.new(f"getelementptr {self.t}, ptr @weights_{axis}, i64 {index}")
        weight = self.new(f"load {self.t}, ptr {pointer}")
        return _Position(place.offset, place.exists, weight)

    # -- vectors ----------------------------------------------------------------------------------

    def vector(self, count: int) -> tuple[str, str, str]:
        """(type, suffix of intrinsics, mask or "") of a vector of ``count`` channels."""
        width = 1 << (count - 1).bit_length()
        mask = ", ".join(f"i1 {'true' if i < count else 'false'}" for i in range(width))
        masked = f"<{width} x i1> <{mask}>" if width != count else ""
        return f"<{width} x {self.t}>", f"v{width}f{_BITS[self.t]}", masked

    def load(self, base: str, offset: str, count: int) -> str:
        """Load ``count`` channels from ``offset`` elements on."""
        kind, name, mask = self.vector(count)
        pointer = self.new(f"getelementptr {self.t}, ptr {base}, i64 {offset}")
        align = _BITS[self.t] // 8
        if not mask:
            return self.new(f"load {kind}, ptr {pointer}, align {align}")
        function = f"@llvm.masked.load.{name}.p0"
        width = mask.partition(">")[0] + ">"
        self.declared.add(f"declare {kind} {function}(ptr, i32, {width}, {kind})")
        rest = f"ptr {pointer}, i32 {align}, {mask}, {kind} zeroinitializer"
        return self.new(f"call {kind} {function}({rest})")

    def store(self, value: str, base: str, offset: str, count: int) -> None:
        """Store ``count`` channels at ``offset`` elements."""
        kind, name, mask = self.vector(count)
        pointer = self.new(f"getelementptr {self.t}, ptr {base}, i64 {offset}")
        align = _BITS[self.t] // 8
        if not mask:
            self.lines.append(f"store {kind} {value}, ptr {pointer}, align {align}")
            return
        function = f"@llvm.masked.store.{name}.p0"
        width = mask.partition(">")[0] + ">"
        self.declared.add(f"declare void {function}({kind}, ptr, i32, {width})")
        rest = f"{kind} {value}, ptr {pointer}, i32 {align}, {mask}"
        self.lines.append(f"call void {function}({rest})")

    def kept(self, condition: str, value: str, count: int) -> str:
        """The vector, or 0 if the scalar condition is false."""
        if not condition:
            return value
        kind = self.vector(count)[0]
        return self.new(f"select i1 {condition}, {kind} {value}, {kind} zeroinitializer")

    def scaled(self, value: str, weight: str, count: int) -> str:
        """The vector times a number; unchanged without one."""
        if not weight:
            return value
        kind = self.vector(count)[0]
        width = kind[1:].partition(" ")[0]
        one = self.new(f"insertelement {kind} poison, {self.t} {weight}, i64 0")
        zeros = f"<{width} x i32> zeroinitializer"
        every = self.new(f"shufflevector {kind} {one}, {kind} poison, {zeros}")
        return self.new(f"fmul {kind} {value}, {every}")

    def added(self, total: str, value: str, count: int) -> str:
        """``total + value``; ``value`` if the total is "" yet."""
        return self.new(f"fadd {self.vector(count)[0]} {total}, {value}") if total else value

    # -- loops ------------------------------------------------------------------------------------

    def text(self) -> list[str]:
        """The lines of the function: borders with checks, the interior without."""
        high, _ = step_counts(self.plan)
        names = ["x", "y", "v"][: self.plan.reads] + ["out"]
        self.tasks(line for i, n in enumerate(names) for line in data_of(f"%{n}", 3 + i))
        self.lines += [f"%image = udiv i64 %r, {high}", f"%row = urem i64 %r, {high}"]
        low, end = self.inside(0)
        moved = self.minus("%row", low)
        within = self.new(f"icmp ult i64 {moved}, {end - low}")
        self.lines.append(f"br i1 {within}, label %whole, label %edge")
        self.label("whole")
        self._columns("w", checked=False)
        self.lines.append("br label %task_end")
        self.label("edge")
        self._columns("e", checked=True)
        self.lines += next_task("task")
        return self.lines

    def _columns(self, name: str, checked: bool) -> None:
        """All steps of a row, which itself needs checks or not."""
        self.checked_rows = checked
        self.rows()
        low, end = self.inside(1)
        last = step_counts(self.plan)[1]
        for part, first, stop in (("left", 0, low), ("middle", low, end), ("right", end, last)):
            self.checked = part != "middle"
            self.where = f"{name}_{part}"
            self.loop(self.where, first, stop, self.step)

    def by_channels(self, body: Callable[[str, int], None]) -> None:
        """``body(first channel, count)`` for each vector of channels."""
        whole, rest = divmod(self.channels, self.width)
        if whole == 1:
            body("0", self.width)
        elif whole:
            w = self.width
            self.loop(f"{self.where}_c", 0, whole, lambda i: body(self.affine(i, w, 0), w))
        if rest:
            body(str(whole * self.width), rest)

    def offset(self, row: _Position, column: _Position, channel: str) -> str:
        """The offset of a channel of a pixel, in elements."""
        pixel = self.new(f"add nsw i64 {row.offset}, {column.offset}")
        return pixel if channel == "0" else self.new(f"add nsw i64 {pixel}, {channel}")

    def sample(self, base: str, size: tuple[int, ...]) -> str:
        """The address of this task's sample of an operand."""
        at = self.times("%image", size[0] * size[1] * self.channels)
        return self.new(f"getelementptr {self.t}, ptr {base}, i64 {at}")

    # -- what differs -----------------------------------------------------------------------------

    def inside(self, axis: int) -> tuple[int, int]:
        """The range of steps that need no bounds checks along rows (0) or columns (1)."""
        raise NotImplementedError

    def rows(self) -> None:
        """Append the positions of the rows of all operands that a row of steps needs."""
        raise NotImplementedError

    def step(self, i: str) -> None:
        """Append one step."""
        raise NotImplementedError


class _Forward(_NhwcPoolSource):
    """A step is an output, which gathers its window."""

    def inside(self, axis: int) -> tuple[int, int]:
        p = self.plan
        low = min(-(-p.pad[axis] // p.stride[axis]), p.out[axis])
        high = (p.size[axis] - p.ws[axis] + p.pad[axis]) // p.stride[axis] + 1
        return low, max(low, min(high, p.out[axis]))

    def rows(self) -> None:
        p, c = self.plan, self.channels
        self.x = self.sample("%x", p.size)
        self.out = self.sample("%out", p.out)
        first = self.affine("%row", p.stride[0], -p.pad[0])
        self.taps = [
            self.place(self.affine(first, 1, k), p.size[0], p.size[1] * c, self.checked_rows)
            for k in range(p.ws[0])
        ]
        self.out_row = self.weighted("y", "%row", p.out[0], p.out[1] * c, False)

    def step(self, i: str) -> None:
        p, c = self.plan, self.channels
        first = self.affine(i, p.stride[1], -p.pad[1])
        columns = [
            self.place(self.affine(first, 1, k), p.size[1], c, self.checked) for k in range(p.ws[1])
        ]
        out = self.weighted("x", i, p.out[1], c, False)

        def window(channel: str, count: int) -> None:
            total = ""
            for row, column in itertools.product(self.taps, columns):
                value = self.load(self.x, self.offset(row, column, channel), count)
                total = self._joined(total, value, self.both(row.exists, column.exists), count)
            for weight in (self.out_row.weight, out.weight):
                total = self.scaled(total, weight, count)
            self.store(total, self.out, self.offset(self.out_row, out, channel), count)

        self.by_channels(window)

    def _joined(self, total: str, value: str, exists: str, count: int) -> str:
        kind, name, _ = self.vector(count)
        if self.plan.kind == "sum":
            return self.added(total, self.kept(exists, value, count), count)
        if exists:
            least = f"{self.t} {literal('-inf', self.plan.dtype)}"
            width = int(kind[1:].partition(" ")[0])
            none = f"<{', '.join([least] * width)}>"
            value = self.new(f"select i1 {exists}, {kind} {value}, {kind} {none}")
        if not total:
            return value
        function = f"@llvm.maximum.{name}"
        self.declared.add(f"declare {kind} {function}({kind}, {kind})")
        return self.new(f"call nsz {kind} {function}({kind} {total}, {kind} {value})")


class _Backward(_NhwcPoolSource):
    """A step is a group of ``stride`` pixels, the first of which is the start of a window."""

    @property
    def overlap(self) -> tuple[int, int]:
        """How many windows can contain a pixel, along rows and along columns."""
        rows, columns = (-(-w // s) for w, s in zip(self.plan.ws, self.plan.stride))
        return rows, columns

    def inside(self, axis: int) -> tuple[int, int]:
        p = self.plan
        s = p.stride[axis]
        low = max(-(-p.pad[axis] // s), self.overlap[axis] - 1)
        high = min((p.size[axis] - s + p.pad[axis]) // s + 1, p.out[axis])
        low = min(low, step_counts(p)[axis])
        return low, max(low, high)

    def rows(self) -> None:
        p, c, checked = self.plan, self.channels, self.checked_rows
        self.out = self.sample("%out", p.size)
        self.x = self.sample("%x", p.size) if p.kind == "max_grad" else ""
        self.y = self.sample("%y", p.out) if p.kind == "max_grad" else ""
        self.dy = self.sample("%v" if p.kind == "max_grad" else "%x", p.out)
        first = self.affine("%row", p.stride[0], -p.pad[0])
        self.pixel_rows = [
            self.place(self.affine(first, 1, k), p.size[0], p.size[1] * c, checked)
            for k in range(p.stride[0])
        ]
        self.window_rows = [
            self.weighted("y", self.affine("%row", 1, -k), p.out[0], p.out[1] * c, checked)
            for k in range(self.overlap[0])
        ]

    def step(self, i: str) -> None:
        p, c, checked = self.plan, self.channels, self.checked
        first = self.affine(i, p.stride[1], -p.pad[1])
        pixels = [
            self.place(self.affine(first, 1, k), p.size[1], c, checked) for k in range(p.stride[1])
        ]
        windows = [
            self.weighted("x", self.affine(i, 1, -k), p.out[1], c, checked)
            for k in range(self.overlap[1])
        ]

        def group(channel: str, count: int) -> None:
            found = {
                (a, b): self._window(row, column, channel, count)
                for a, row in enumerate(self.window_rows)
                for b, column in enumerate(windows)
            }
            for a, row in enumerate(self.pixel_rows):
                for b, column in enumerate(pixels):
                    held = [
                        found[k, m]
                        for k, m in found
                        if a + k * p.stride[0] < p.ws[0] and b + m * p.stride[1] < p.ws[1]
                    ]
                    self._pixel(row, column, channel, count, held)

        self.by_channels(group)

    def _window(
        self, row: _Position, column: _Position, channel: str, count: int
    ) -> tuple[str, str]:
        """(maxima, cotangents) of a window; the cotangents of one that does not exist are 0."""
        offset = self.offset(row, column, channel)
        value = self.load(self.dy, offset, count)
        for weight in (row.weight, column.weight):
            value = self.scaled(value, weight, count)
        value = self.kept(self.both(row.exists, column.exists), value, count)
        return self.load(self.y, offset, count) if self.y else "", value

    def _pixel(
        self,
        row: _Position,
        column: _Position,
        channel: str,
        count: int,
        held: list[tuple[str, str]],
    ) -> None:
        """Store the sum over the windows that contain a pixel, if the pixel exists."""
        exists = self.both(row.exists, column.exists)
        after = f"after{self._count}"
        if exists:
            self.lines.append(f"br i1 {exists}, label %in_{after}, label %{after}")
            self.label(f"in_{after}")
        kind, offset = self.vector(count)[0], self.offset(row, column, channel)
        x = self.load(self.x, offset, count) if self.x else ""
        total = ""
        for y, value in held:
            if x:
                same = self.new(f"fcmp oeq {kind} {x}, {y}")
                width = f"<{kind[1:].partition(' ')[0]} x i1>"
                value = self.new(f"select {width} {same}, {kind} {value}, {kind} zeroinitializer")
            total = self.added(total, value, count)
        self.store(total or "zeroinitializer", self.out, offset, count)
        if exists:
            self.lines.append(f"br label %{after}")
            self.label(after)
