"""Fourier transforms along an axis of short lines, as LLVM IR: as many lines at a time as a vector
has lanes.

A task reads its lines into a tile (:mod:`symdnn.cpu.fourier.butterflies_ir`), transforms them and
writes them. Lines that are dense are transposed in registers, by blocks; lines across other axes
are neighbours in memory. What a lane computes does not depend on the others.

A line of 2 m real numbers is one of m complex ones: with Z its transform, X[k] = E + w^k O for
E = (Z[k] + conj Z[m - k]) / 2 and O = (Z[k] - conj Z[m - k]) / 2i, w = exp(-pi i / m); and
backwards. Odd lines of real numbers are complex ones whose imaginary parts are 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from symdnn.cpu.compiler.jit import SKIP_PASSES
from symdnn.cpu.fourier.butterflies_ir import MOST_PRIME, Butterflies, Pair, Tile, root
from symdnn.cpu.ir.builder import first_lanes
from symdnn.cpu.ir.loops_ir import data_of, word

#: The words of the kernel's block: array objects; the lines that are neighbours and the bands of
#: them; bytes from one group of neighbours to the next, and from one number of a line (or, of dense
#: lines, from one line) to the next.
WORDS = ("threads", "tasks", "one", "x", "y", "count", "bands", "x_group", "y_group", "x_step",
         "y_step")  # fmt: skip


@dataclass(frozen=True)
class Lines:
    """``kind`` is ``complex``, or ``widened``: of real numbers to complex ones, ``halved``: to the
    first half of these, or ``real``: back from them. ``size`` counts the numbers of a whole line.

    ``sign`` is that of the exponent, ``dense`` whether a line is one run of memory, ``dtype`` that
    of a part of a number. ``lanes`` are those of a vector.
    """

    kind: str
    size: int
    sign: int
    dense: bool
    dtype: str
    scale: float
    lanes: int

    @property
    def reads(self) -> int:
        """Real numbers of an operand's line."""
        return {"complex": 2 * self.size, "real": 2 * (self.size // 2 + 1)}.get(
            self.kind, self.size
        )

    @property
    def writes(self) -> int:
        """Real numbers of a result's line."""
        return {"real": self.size, "halved": 2 * (self.size // 2 + 1)}.get(self.kind, 2 * self.size)

    @property
    def passed(self) -> int:
        """Complex numbers that are transformed."""
        return self.size // 2 if self.folded else self.size

    @property
    def folded(self) -> bool:
        """Whether two real numbers are one complex one."""
        return self.kind in ("halved", "real") and self.size % 2 == 0


def lines_ir(plan: Lines) -> str:
    """The module of ``kernel``."""
    b = _LinesBuilder(plan)
    b.source()
    return SKIP_PASSES + b.task_module(*b.tables)


class _LinesBuilder(Butterflies):
    """Builds the function of tasks, each of which is a band of lines."""

    def __init__(self, plan: Lines) -> None:
        super().__init__(plan.lanes, plan.dtype, plan.sign)
        self.plan = plan

    def source(self) -> None:
        """Append the function ``rows`` but its end."""
        plan, lanes = self.plan, self.width
        entry = [*data_of("%x", WORDS.index("x")), *data_of("%y", WORDS.index("y"))]
        for name in WORDS[5:]:
            entry += word(f"%{name}", WORDS.index(name))
        most = max(plan.reads, plan.writes, 2 * plan.passed, 2 * plan.size if self._odd else 0)
        room = -(-most // lanes) * lanes + 2 * MOST_PRIME  # gaps
        for name in "ab":
            entry.append(f"%{name} = alloca [{room} x {self.vector}], align 64")
        self.tasks(entry, "task")
        group = self.new("udiv i64 %r, %bands")
        band = self.new("urem i64 %r, %bands")
        self.first = self.times(band, lanes)
        left = self.minus("%count", self.first)
        self.whole = self.new(f"icmp sge i64 {left}, {lanes}")
        self.x = self.bytes_at("%x", (group, "%x_group"))
        self.y = self.bytes_at("%y", (group, "%y_group"))
        first, passed = Tile("%a"), Tile("%a", self.gap(plan.passed))
        before = self._before
        (self._read_dense if plan.dense else self._read_across)(first if before else passed)
        if before:
            passed = Tile("%b", passed.period)
            before(first, passed)
        made, other = self.passes(plan.passed, passed, "%a" if before else "%b")
        if after := self._after:
            made, source = Tile(other), made
            after(source, made)
        (self._write_dense if plan.dense else self._write_across)(made)

    @property
    def _odd(self) -> bool:
        """Whether real numbers are complex ones without imaginary parts."""
        return self.plan.kind != "complex" and not self.plan.folded

    # -- lines and tiles --------------------------------------------------------------------------

    def _rows(self, base: str, step: str, clamped: bool) -> list[str]:
        """The addresses of the lines of the band; of those that are not there the last one's."""
        rows = [self.plus(self.first, i) for i in range(self.width)]
        if clamped:
            last = self.minus("%count", 1)
            rows = [self.least(row, last) for row in rows]
        return [self.bytes_at(base, (row, step)) for row in rows]

    def _blocks(self, count: int, block: Callable[[str, str], None]) -> None:
        """``block(first, mask)`` for each block of ``count`` numbers of the lines."""
        whole, rest = divmod(count, self.width)
        if whole > 2:
            with self.each(self.tag(), 0, str(whole)) as i:
                block(self.times(i, self.width), "")
        else:
            for k in range(whole):
                block(str(k * self.width), "")
        if rest:
            block(str(whole * self.width), first_lanes(rest, self.width))

    def _read_dense(self, tile: Tile) -> None:
        rows = self._rows(self.x, "%x_step", True)

        def block(first: str, mask: str) -> None:
            loaded = [self.load(self.at(row, first), mask) for row in rows]
            at = self.real_at(tile, first)
            for k, column in enumerate(self.transposed(self.vector, loaded)):
                self.store(column, self.at(at, k * self.width))

        self._blocks(self.plan.reads, block)

    def _write_dense(self, tile: Tile) -> None:
        rows = self._rows(self.y, "%y_step", False)

        def write(whole: bool) -> None:
            def block(first: str, mask: str) -> None:
                at = self.real_at(tile, first)
                found = [
                    self._scaled(self.load(self.at(at, k * self.width))) for k in range(self.width)
                ]
                for i, line in enumerate(self.transposed(self.vector, found)):
                    place, stored = self.at(rows[i], first), mask
                    if not whole:
                        stored = self._if_there(i, mask)
                    self.store(line, place, stored)

            self._blocks(self.plan.writes, block)

        self.choose(self.tag(), self.whole, lambda holds, _: write(holds))

    def _if_there(self, i: int, mask: str) -> str:
        """The mask of a line that may be beyond the last one."""
        there = self.new(f"icmp slt i64 {self.plus(self.first, i)}, %count")
        lanes = mask or first_lanes(self.width, self.width)
        return self.new(f"select i1 {there}, {self.mask} {lanes}, {self.mask} zeroinitializer")

    def _read_across(self, tile: Tile) -> None:
        of_two = self.plan.kind in ("complex", "real")
        low, high = (list(range(i, 2 * self.width, 2)) for i in (0, 1))

        def number(base: str, to: str, masks: Sequence[str]) -> None:
            parts = [self.load(self.at(base, i * self.width), m) for i, m in enumerate(masks)]
            if of_two:
                a, b = parts
                parts = [self.shuffled(self.vector, a, b, order) for order in (low, high)]
            for i, part in enumerate(parts):
                self.store(part, self.at(to, i * self.width))

        self._across(self.x, "%x_step", tile, self.plan.reads, 1 + of_two, number)

    def _write_across(self, tile: Tile) -> None:
        of_two = self.plan.kind != "real"
        lanes = range(self.width)
        order = [k for i in lanes for k in (i, i + self.width)]

        def number(base: str, from_: str, masks: Sequence[str]) -> None:
            parts = [
                self._scaled(self.load(self.at(from_, i * self.width))) for i in range(len(masks))
            ]
            if of_two:
                half = (order[: self.width], order[self.width :])
                a, b = parts
                parts = [self.shuffled(self.vector, a, b, some) for some in half]
            for i, (part, mask) in enumerate(zip(parts, masks, strict=True)):
                self.store(part, self.at(base, i * self.width), mask)

        self._across(self.y, "%y_step", tile, self.plan.writes, 1 + of_two, number)

    def _across(
        self, base: str, step: str, tile: Tile, reals: int, parts: int,
        number: Callable[[str, str, Sequence[str]], None],
    ) -> None:  # fmt: skip
        """``number(address, tile, masks)`` for each number of the lines, of so many ``parts``."""
        base = self.at(base, self.times(self.first, parts))

        def run(whole: bool) -> None:
            masks = [""] * parts
            if not whole:
                left = self.times(self.minus("%count", self.first), parts)
                masks = [self.lanes_below(str(i * self.width), left) for i in range(parts)]
            with self.each(self.tag(), 0, str(reals // parts)) as j:
                to = self.number_at(tile, j) if parts > 1 else self.real_at(tile, j)
                number(self.bytes_at(base, (j, step)), to, masks)

        self.choose(self.tag(), self.whole, lambda holds, _: run(holds))

    def _scaled(self, value: str) -> str:
        if self.plan.scale == 1:
            return value
        return self.times_number(value, self.everywhere(self.plan.scale))

    # -- real numbers -----------------------------------------------------------------------------

    @property
    def _before(self) -> Callable[[Tile, Tile], None] | None:
        """What makes the numbers of the passes."""
        plan = self.plan
        if plan.kind == "real":
            return self._unfold if plan.folded else self._complete
        return self._widen if self._odd else None

    @property
    def _after(self) -> Callable[[Tile, Tile], None] | None:
        """What makes the results from those of the passes."""
        plan = self.plan
        if plan.kind == "halved" and plan.folded:
            return self._fold
        return self._narrow if plan.kind == "real" and not plan.folded else None

    def _widen(self, source: Tile, target: Tile) -> None:
        """Complex numbers from real ones."""
        with self.each(self.tag(), 0, str(self.plan.size)) as j:
            value = self.load(self.real_at(source, j))
            self.put_pair(self.number_at(target, j), (value, "zeroinitializer"))

    def _narrow(self, source: Tile, target: Tile) -> None:
        """The real parts."""
        with self.each(self.tag(), 0, str(self.plan.size)) as j:
            real, _ = self.pair(self.number_at(source, j))
            self.store(real, self.real_at(target, j))

    def _mirrored(
        self, n: int, high: int, number: Callable[[str, str, Pair], None], sign: int = 0
    ) -> None:
        """``number(k, n - k, w)`` for k from 1 to below ``high``; w is ``exp(sign pi i k / n)``."""
        if high <= 1:
            return
        roots = [part for k in range(1, high) for part in root(sign * k, 2 * n)]
        table = self.table(roots) if sign else ""
        with self.each(self.tag(), 1, str(high)) as k:
            at = self.at(table, self.times(self.minus(k, 1), 2)) if sign else ""
            w = (self.broadcast(at), self.broadcast(self.at(at, 1))) if sign else ("", "")
            number(k, self.minus(n, k), w)

    def _complete(self, source: Tile, target: Tile) -> None:
        """All numbers of an odd line from the first half of them."""
        n = self.plan.size

        def number(k: str, mirror: str, _: Pair) -> None:
            re, im = self.pair(self.number_at(source, k))
            self.put_pair(self.number_at(target, k), (re, im))
            self.put_pair(self.number_at(target, mirror), (re, self.minus_of(im)))

        self.put_pair(
            self.number_at(target, 0), (self.pair(self.number_at(source, 0))[0], "zeroinitializer")
        )
        self._mirrored(n, n // 2 + 1, number)

    def _fold(self, source: Tile, target: Tile) -> None:
        """The first half of the transform of real numbers from that of their pairs."""
        m, half = self.plan.passed, self.everywhere(0.5)

        def number(k: str, mirror: str, w: Pair) -> None:
            a, b = (self.pair(self.number_at(source, i)) for i in (k, mirror))
            even = self.add(a[0], b[0]), self.sub(a[1], b[1])
            odd = self.add(a[1], b[1]), self.sub(b[0], a[0])
            even, odd = (
                (self.times_number(v[0], half), self.times_number(v[1], half)) for v in (even, odd)
            )
            turned = self.product(odd, w)
            self.put_pair(self.number_at(target, k), self.sum_of(even, turned))
            re, im = self.difference(even, turned)
            self.put_pair(self.number_at(target, mirror), (re, self.minus_of(im)))

        re, im = self.pair(self.number_at(source, 0))
        self.put_pair(self.number_at(target, 0), (self.add(re, im), "zeroinitializer"))
        self.put_pair(self.number_at(target, m), (self.sub(re, im), "zeroinitializer"))
        self._mirrored(m, (m + 1) // 2, number, self.sign)
        if m % 2 == 0:
            re, im = self.pair(self.number_at(source, m // 2))
            self.put_pair(self.number_at(target, m // 2), (re, self.minus_of(im)))

    def _unfold(self, source: Tile, target: Tile) -> None:
        """The transform of pairs of real numbers from the first half of that of the numbers."""
        m = self.plan.passed

        def number(k: str, mirror: str, w: Pair) -> None:
            a, b = (self.pair(self.number_at(source, i)) for i in (k, mirror))
            even = self.add(a[0], b[0]), self.sub(a[1], b[1])
            odd = self.product((self.sub(a[0], b[0]), self.add(a[1], b[1])), w)
            self.put_pair(
                self.number_at(target, k), (self.sub(even[0], odd[1]), self.add(even[1], odd[0]))
            )
            self.put_pair(
                self.number_at(target, mirror),
                (self.add(even[0], odd[1]), self.sub(odd[0], even[1])),
            )  # fmt: skip

        first, last = (
            self.pair(self.number_at(source, 0))[0],
            self.pair(self.number_at(source, m))[0],
        )
        self.put_pair(self.number_at(target, 0), (self.add(first, last), self.sub(first, last)))
        self._mirrored(m, (m + 1) // 2, number, self.sign)
        if m % 2 == 0:
            re, im = self.pair(self.number_at(source, m // 2))
            self.put_pair(
                self.number_at(target, m // 2), (self.add(re, re), self.minus_of(self.add(im, im)))
            )
