"""Pooling of planes (NCHW) or volumes and its gradients as LLVM IR.

Sizes are constants of the code, so that LLVM vectorises rows as short as 12 columns. Forward, each
output gathers its window. Backward, each element gathers from all windows that contain it. So every
tie gets the whole gradient. Of large windows a row is taken after the other, and results are joined
in memory; else a window is taken whole, and no memory is written twice.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from symdnn.cpu.ir.builder import FunctionBuilder
from symdnn.cpu.ir.loops_ir import ACCESS, METADATA, THREADS, data_of, next_task
from symdnn.cpu.ir.scalar_ir import VALUES, literal


@dataclass(frozen=True)
class PoolPlan:
    """One kernel, of one of these kinds:

    * ``max``, ``sum``: (x) to y;
    * ``gather``: (x, y, v) to the sum of ``v`` where ``x`` is its window's maximum ``y``;
    * ``max_grad``: (x, y, dy) to dx; ``sum_grad``: (dy) to dx.

    Tuples are (rows, columns) or (layers, rows, columns): ``size`` of x, ``out`` of y, windows
    ``ws``, ``stride``, ``pad``. For means, ``weights`` are the factors of windows along each.
    """

    kind: str
    dtype: str
    size: tuple[int, ...]
    out: tuple[int, ...]
    ws: tuple[int, ...]
    stride: tuple[int, ...]
    pad: tuple[int, ...]
    weights: tuple[tuple[float, ...], ...] | None = None

    @property
    def backward(self) -> bool:
        """Whether the result has the size of x."""
        return self.kind.endswith("grad")

    @property
    def reads(self) -> int:
        """The number of operands."""
        return {"max": 1, "sum": 1, "gather": 3, "max_grad": 3, "sum_grad": 1}[self.kind]

    @property
    def taps(self) -> tuple[int, ...]:
        """Of how many rows, along each dimension but the last, a result is gathered."""
        if not self.backward:
            return self.ws[:-1]
        return tuple(-(-w // s) for w, s in zip(self.ws[:-1], self.stride[:-1]))

    @property
    def looped(self) -> bool:
        """Whether the code has one of these rows, in a loop: all would be too much code."""
        return prod(self.taps) * self.ws[-1] > _MAX_TAPS


#: Elements of a window that the code takes one by one.
_MAX_TAPS = 36
_DIMENSIONS = "zyx"


def pool_ir(plan: PoolPlan) -> str:
    """The module of ``kernel``. Words of its block: threads, rows, 1, the operands, the result."""
    source = _Backward(plan) if plan.backward else _Forward(plan)
    t = VALUES[plan.dtype]
    lines = [f"declare {t} @{_maximum(plan.dtype)}({t}, {t})", *THREADS, *weight_tables(plan)]
    lines += [*source.text(), *METADATA, "!3 = distinct !{!3, !4, !2}", _NO_VECTORS]
    return "\n".join(lines) + "\n"


def _maximum(dtype: str) -> str:
    """The intrinsic of the larger of two numbers."""
    t = VALUES[dtype]
    if t in ("float", "double"):
        return f"llvm.maximum.{'f32' if t == 'float' else 'f64'}"
    return f"llvm.{'u' if dtype.startswith('u') else 's'}max.{t}"


def weight_tables(plan: PoolPlan) -> list[str]:
    """Constants for the factors of rows (``@weights_y``) and columns (``@weights_x``), if any."""
    t, lines = VALUES[plan.dtype], []
    for name, weights in zip(_DIMENSIONS[-len(plan.ws) :], plan.weights or ()):
        values = ", ".join(f"{t} {_number(w, plan.dtype)}" for w in weights)
        lines.append(f"@weights_{name} = internal constant [{len(weights)} x {t}] [{values}]")
    return lines


_NO_VECTORS = '!4 = !{!"llvm.loop.vectorize.enable", i1 false}'


def _number(value: float, dtype: str) -> str:
    if dtype == "float32":
        (value,) = struct.unpack("<f", struct.pack("<f", value))
    return literal(float(value).hex(), dtype)


class _PoolSource(FunctionBuilder):
    """Builds the function ``rows``: a task is a row of the result, with loops over its columns.

    The borders, left and right, have loops of their own with bounds checks.
    """

    def __init__(self, plan: PoolPlan) -> None:
        super().__init__()
        self.joined = False
        self.taken: list[tuple[str, ...]] = []
        self.plan, self.t = plan, VALUES[plan.dtype]
        self.real = self.t in ("float", "double")
        self.zero = literal("0x0p0" if self.real else "0", plan.dtype)

    def text(self) -> list[str]:
        """The lines of the function."""
        p = self.plan
        *outer, columns = p.size if p.backward else p.out
        rows = prod(outer)
        names = ["x", "y", "v"][: p.reads] + ["out"]
        self.tasks(line for i, n in enumerate(names) for line in data_of(f"%{n}", 3 + i))
        self.lines += [
            f"%plane = udiv i64 %r, {rows}",
            f"%row = urem i64 %r, {rows}",
            f"%out_at = mul i64 %r, {columns}",
            f"%out_row = getelementptr {self.t}, ptr %out, i64 %out_at",
        ]
        self.place(self.unravelled("%row", outer))
        self.joined = p.looped
        if not p.looped:
            self.taken = [self.tap([str(t) for t in taps]) for taps in product(*map(range, p.taps))]
            self._columns()
        else:
            first = self.lowest() if p.kind == "max" else self.zero
            self._loop("begin", 0, columns, lambda i: self.write(i, first))
            with self.each("tap", 0, str(prod(p.taps))) as k:
                self.taken = [self.tap(self.unravelled(k, p.taps))]
                self._columns()
            if p.weights and not p.backward:
                self._loop("end", 0, columns, lambda i: self.write(i, self.weighted(i)))
        self.lines += next_task("task")
        return self.lines

    def _columns(self) -> None:
        low, high = self.inside()
        self._loop("left", 0, low, self.border, scalar=True)
        self._loop("middle", low, high, self.interior)
        self._loop("right", high, self.steps(), self.border, scalar=True)

    def _loop(
        self, name: str, start: int, end: int, body: Callable[[str], None], scalar: bool = False
    ) -> None:
        if start < end:
            with self.each(name, start, str(end), parallel="!3" if scalar else True) as i:
                body(i)

    # -- arithmetic on indices and values ------------------------------------------------------

    def lowest(self) -> str:
        """No number is less."""
        return "0xFFF0000000000000" if self.real else str(np.iinfo(self.plan.dtype).min)

    def sum(self, a: str, b: str) -> str:
        """a + b"""
        return self.new(f"{'fadd' if self.real else 'add'} {self.t} {a}, {b}")

    def same(self, a: str, b: str) -> str:
        """Whether two values are equal."""
        return self.new(f"{'fcmp oeq' if self.real else 'icmp eq'} {self.t} {a}, {b}")

    def clamped(self, i: str, size: int) -> tuple[str, str]:
        """(``i`` clamped to 0 .. size - 1, whether it was in that range)"""
        valid = self.new(f"icmp ult i64 {i}, {size}")
        return self.least(self.most(i, 0), size - 1), valid

    def flat(self, indices: Sequence[str], sizes: Sequence[int]) -> str:
        """The index over all, of indices along dimensions of these sizes."""
        whole, *rest = indices
        for i, n in zip(rest, sizes[1:]):
            whole = self.plus(self.affine(whole, n), i)
        return whole

    def both(self, conditions: Sequence[str]) -> str:
        """Whether all hold."""
        whole, *rest = conditions
        for c in rest:
            whole = self.new(f"and i1 {whole}, {c}")
        return whole

    def at(self, base: str, i: str) -> str:
        """Load element ``i`` of a row."""
        pointer = self.new(f"getelementptr {self.t}, ptr {base}, i64 {i}")
        return self.new(f"load {self.t}, ptr {pointer}{ACCESS}")

    def row_of(self, base: str, row: str, sizes: Sequence[int]) -> str:
        """The address of a row in this task's plane of an operand."""
        plane = self.times("%plane", prod(sizes[:-1]))
        index = self.plus(plane, row)
        offset = self.times(index, sizes[-1])
        return self.new(f"getelementptr {self.t}, ptr {base}, i64 {offset}")

    def weight(self, axis: str, i: str) -> str:
        """Load the factor of a row (``y``) or column (``x``) of windows."""
        pointer = self.new(f"getelementptr {self.t}, ptr @weights_{axis}, i64 {i}")
        return self.new(f"load {self.t}, ptr {pointer}")

    def row_weight(self, rows: Sequence[str]) -> str:
        """The factor of the windows at these indices along all dimensions but the last."""
        names = _DIMENSIONS[-len(self.plan.ws) : -1]
        found, *rest = [self.weight(n, i) for n, i in zip(names, rows, strict=True)]
        for w in rest:
            found = self.new(f"fmul {self.t} {found}, {w}")
        return found

    def write(self, i: str, value: str) -> None:
        """Store one result."""
        pointer = self.new(f"getelementptr {self.t}, ptr %out_row, i64 {i}")
        self.lines.append(f"store {self.t} {value}, ptr {pointer}{ACCESS}")

    def chosen(self, valid: Sequence[str], value: str) -> str:
        """The value, or 0 if a condition is false."""
        for v in valid:
            value = self.new(f"select i1 {v}, {self.t} {value}, {self.t} {self.zero}")
        return value

    # -- what differs ----------------------------------------------------------------------------

    def place(self, rows: Sequence[str]) -> None:
        """Note where the row of the result is."""
        raise NotImplementedError

    def tap(self, taps: Sequence[str]) -> tuple[str, ...]:
        """The addresses of a row that the row of the result needs, and whether it exists."""
        raise NotImplementedError

    def weighted(self, i: str) -> str:
        """The mean of a sum in memory."""
        raise NotImplementedError

    def inside(self) -> tuple[int, int]:
        """The range of steps that need no bounds checks."""
        raise NotImplementedError

    def steps(self) -> int:
        """The number of steps of a row."""
        raise NotImplementedError

    def interior(self, i: str) -> None:
        """Append one step without bounds checks."""
        raise NotImplementedError

    def border(self, i: str) -> None:
        """Append one step with bounds checks."""
        raise NotImplementedError


class _Forward(_PoolSource):
    def place(self, rows: Sequence[str]) -> None:
        p = self.plan
        self.first = [self.affine(r, s, -pad) for r, s, pad in zip(rows, p.stride, p.pad)]
        if p.kind == "gather":
            self.y_row = self.row_of("%y", "%row", p.out)
        if p.weights:
            self.factor = self.row_weight(rows)

    def tap(self, taps: Sequence[str]) -> tuple[str, ...]:
        p = self.plan
        moved = [self.new(f"add nsw i64 {f}, {t}") for f, t in zip(self.first, taps)]
        places = [self.clamped(i, n) for i, n in zip(moved, p.size)]
        row = self.flat([i for i, _ in places], p.size)
        v = self.row_of("%v", row, p.size) if p.kind == "gather" else ""
        return self.row_of("%x", row, p.size), v, self.both([valid for _, valid in places])

    def inside(self) -> tuple[int, int]:
        p = self.plan
        low = -(-p.pad[-1] // p.stride[-1])
        high = (p.size[-1] - p.ws[-1] + p.pad[-1]) // p.stride[-1] + 1
        low = min(low, p.out[-1])
        return low, max(low, min(high, p.out[-1]))

    def steps(self) -> int:
        return self.plan.out[-1]

    def interior(self, i: str) -> None:
        self._window(i, checked=False)

    def border(self, i: str) -> None:
        self._window(i, checked=True)

    def _window(self, i: str, checked: bool) -> None:
        p, total = self.plan, self.at("%out_row", i) if self.joined else ""
        y = self.at(self.y_row, i) if p.kind == "gather" else ""
        first = self.affine(i, p.stride[-1], -p.pad[-1])
        for k in range(p.ws[-1]):
            column, inside = self.affine(first, 1, k), []
            if checked:
                column, valid = self.clamped(column, p.size[-1])
                inside = [valid]
            for x_row, v_row, row_valid in self.taken:
                value = self.at(x_row, column)
                if p.kind == "gather":
                    same = self.same(value, y)
                    value = self.chosen([same], self.at(v_row, column))
                if p.kind != "max":  # a clamped element repeats another: the maximum is the same
                    value = self.chosen([*inside, *self._needed(row_valid)], value)
                total = self._join(total, value)
        if p.weights and not self.joined:
            total = self._mean(i, total)
        self.write(i, total)

    def weighted(self, i: str) -> str:
        return self._mean(i, self.at("%out_row", i))

    def _mean(self, i: str, total: str) -> str:
        total = self.new(f"fmul {self.t} {total}, {self.factor}")
        return self.new(f"fmul {self.t} {total}, {self.weight('x', i)}")

    def _needed(self, valid: str) -> list[str]:
        """The check of a row; none if all windows are within the plane."""
        p = self.plan
        beyond = [
            pad or (m - 1) * s + w > n
            for n, m, w, s, pad in zip(p.size[:-1], p.out, p.ws, p.stride, p.pad)
        ]
        return [valid] if any(beyond) else []

    def _join(self, total: str, value: str) -> str:
        if not total:
            return value
        if self.plan.kind != "max":
            return self.sum(total, value)
        name, flags = _maximum(self.plan.dtype), "nsz " if self.real else ""
        return self.new(f"call {flags}{self.t} @{name}({self.t} {total}, {self.t} {value})")


class _Backward(_PoolSource):
    """A step is a group of ``stride`` columns, the first of which is the start of a window."""

    def place(self, rows: Sequence[str]) -> None:
        p = self.plan
        if p.kind == "max_grad":
            self.x_row = self.row_of("%x", "%row", p.size)
        moved = [self.affine(r, 1, pad) for r, pad in zip(rows, p.pad)]
        self.last = [self.new(f"udiv i64 {m}, {s}") for m, s in zip(moved, p.stride)]
        self.phase = [self.new(f"urem i64 {m}, {s}") for m, s in zip(moved, p.stride)]

    def tap(self, taps: Sequence[str]) -> tuple[str, ...]:
        p, places, held = self.plan, [], []
        for t, last, phase, d in zip(taps, self.last, self.phase, range(len(taps))):
            places.append(self.clamped(self.new(f"sub nsw i64 {last}, {t}"), p.out[d]))
            tap = self.new(f"add nsw i64 {phase}, {self.new(f'mul i64 {t}, {p.stride[d]}')}")
            held += [places[-1][1], self.new(f"icmp slt i64 {tap}, {p.ws[d]}")]
        indices = [i for i, _ in places]
        row = self.flat(indices, p.out)
        y = self.row_of("%y", row, p.out) if p.kind == "max_grad" else ""
        dy = self.row_of("%v" if p.kind == "max_grad" else "%x", row, p.out)
        weight = self.row_weight(indices) if p.weights else ""
        return y, dy, self.both(held), weight

    @property
    def overlap(self) -> int:
        """How many windows, along a row, can contain an element."""
        return -(-self.plan.ws[-1] // self.plan.stride[-1])

    def inside(self) -> tuple[int, int]:
        p = self.plan
        s = p.stride[-1]
        low = max(-(-p.pad[-1] // s), self.overlap - 1)
        high = min((p.size[-1] - s + p.pad[-1]) // s + 1, p.out[-1])
        low = min(low, self.steps())
        return low, max(low, high)

    def steps(self) -> int:
        p = self.plan
        return (p.size[-1] - 1 + p.pad[-1]) // p.stride[-1] + 1

    def interior(self, i: str) -> None:
        p = self.plan
        first = self.affine(i, p.stride[-1], -p.pad[-1])
        for phase in range(p.stride[-1]):
            column = self.affine(first, 1, phase)
            self.write(column, self._gathered(i, phase, column, checked=False))

    def border(self, i: str) -> None:
        p = self.plan
        first = self.affine(i, p.stride[-1], -p.pad[-1])
        for phase in range(p.stride[-1]):
            column, exists = self.clamped(self.affine(first, 1, phase), p.size[-1])
            value = self._gathered(i, phase, column, checked=True)
            # A column that does not exist is clamped: its old value is stored again.
            pointer = self.new(f"getelementptr {self.t}, ptr %out_row, i64 {column}")
            old = self.new(f"load {self.t}, ptr {pointer}")
            kept = self.new(f"select i1 {exists}, {self.t} {value}, {self.t} {old}")
            self.lines.append(f"store {self.t} {kept}, ptr {pointer}")

    def _gathered(self, i: str, phase: int, column: str, checked: bool) -> str:
        """The sum over the windows that contain a column."""
        p, total = self.plan, self.at("%out_row", column) if self.joined else ""
        x = self.at(self.x_row, column) if p.kind == "max_grad" else ""
        for t in range(self.overlap):
            if phase + t * p.stride[-1] >= p.ws[-1]:
                continue
            window, inside = self.affine(i, 1, -t), []
            if checked:
                window, valid = self.clamped(window, p.out[-1])
                inside = [valid]
            weight = self.weight("x", window) if p.weights else ""
            for y_row, dy_row, row_valid, row_weight in self.taken:
                value = self.at(dy_row, window)
                if p.weights:
                    value = self.new(f"fmul {self.t} {value}, {row_weight}")
                    value = self.new(f"fmul {self.t} {value}, {weight}")
                checks = [*inside, row_valid]
                if p.kind == "max_grad":
                    y = self.at(y_row, window)
                    checks.append(self.same(x, y))
                value = self.chosen(checks, value)
                total = self.sum(total, value) if total else value
        return total or self.zero
