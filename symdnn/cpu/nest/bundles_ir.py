"""LLVM IR of bundles: some rows at a time, of each of which a vector of neighbours is the lanes.

The last elements of a row begin early enough to be as many as all; those that were taken count as
nothing. The lanes of all rows of a bundle meet together, once their states are transposed. All is
written in vectors: of loops over so few lanes LLVM makes something else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from symdnn.cpu.ir.loops_ir import AROUND
from symdnn.cpu.ir.scalar_ir import STORED, VALUES
from symdnn.cpu.ir.vector_printer_ir import VectorPrinter
from symdnn.cpu.nest.nest_pieces_ir import NestPieces
from symdnn.cpu.nest.schedule import BUNDLE
from symdnn.ops.core.scalar import ScalarProgram

__all__ = ["BundlePieces"]

#: Addresses of operands, or states, of each row of a bundle.
Rows = list[list[str]]


class BundlePieces(NestPieces):
    """Appends the loops of a bundle, whose states are vectors in registers."""

    def bundle(self) -> None:
        """Append the loops over the rows of a task: the last bundle begins early enough to be
        whole, so some rows are computed twice."""
        first = self.least(self.times("%r", BUNDLE), self.minus("%m", BUNDLE))
        rows = [self.affine(first, 1, k) for k in range(BUNDLE)]
        reads, writes = ([self.bases(kind, row) for row in rows] for kind in "xy")

        def part(q: str, sofar: list[str]) -> list[str]:
            row, place = self.new(f"udiv i64 {q}, %S"), self.new(f"urem i64 {q}, %S")
            begin = self.times(place, "%seg")
            end = self.least(self.plus(begin, "%seg"), "%n")
            here = [self.rows_at("x", bases, row) for bases in reads]
            found = self._part(here, begin, end)
            every = zip(self._of_rows(sofar), self._of_rows(found), strict=True)
            return [v for a, b in every for v in self._joined(a, b, self.schedule.lanes)]

        if self.schedule.along or ("S", 1) not in self.schedule.constants:
            begun = [v for _ in rows for v in self._starts()]
            found = self.counted("part", 0, "%QT", part, begun, self._kinds, parallel=AROUND)
        else:
            found = self._part(reads, "0", "%n")
        self._leave_rows(self._of_rows(found), writes)

    def _of_rows(self, values: Sequence[str]) -> Rows:
        count = len(self.states)
        return [list(values[k * count : (k + 1) * count]) for k in range(BUNDLE)]

    @property
    def _kinds(self) -> list[str]:
        return [f"<{self.schedule.lanes} x {VALUES[d]}>" for d in self.states] * BUNDLE

    def _starts(self) -> list[str]:
        """The states of no elements."""
        every = zip(self.states, self.started(), strict=True)
        return [self._splat(self.schedule.lanes, VALUES[d], v) for d, v in every]

    # -- elements ---------------------------------------------------------------------------------

    def _part(self, reads: Rows, begin: str, end: str) -> list[str]:
        """The states after a part of each row: its last elements, then as many as there are lanes
        at a time."""
        lanes = self.schedule.lanes
        last = self.new(f"sub i64 {self.new(f'sub i64 {end}, 1')}, {begin}")
        whole = self.new(f"sub i64 {last}, {self.new(f'urem i64 {last}, {lanes}')}")
        middle, early = self.plus(begin, whole), self.minus(end, lanes)
        taken = self.new(f"trunc i64 {self.new(f'sub i64 {middle}, {early}')} to i32")
        numbers = f"<{', '.join(f'i32 {j}' for j in range(lanes))}>"
        bound = self._splat(lanes, "i32", taken)
        inside = self.new(f"icmp sge <{lanes} x i32> {numbers}, {bound}")
        states = []
        for bases in reads:
            start = self._starts()
            found = self._taken(start, self.lanes_at("x", bases, early), alone=True)
            for t, v, none in zip(self._kinds, found, start):
                states.append(self.new(f"select <{lanes} x i1> {inside}, {t} {v}, {t} {none}"))

        def some(i: str, values: list[str]) -> list[str]:
            every = zip(self._of_rows(values), reads, strict=True)
            return [v for own, x in every for v in self._taken(own, self.lanes_at("x", x, i))]

        before, tag, after = self.block, self.tag(), list[str]()
        with self.when(tag, self.new(f"icmp sgt i64 {whole}, 0")):
            name, kinds = f"{tag}_some", self._kinds
            # Written out over several vectors it takes as long, and half as long again to compile.
            after.extend(self.counted(
                name, begin, middle, some, states, kinds, step=lanes, parallel=AROUND
            ))  # fmt: skip
        every = zip(self._kinds, states, after, strict=True)
        ends = f"%{tag}_some_end"
        return [self.new(f"phi {t} [{a}, %{before}], [{b}, {ends}]") for t, a, b in every]

    def _taken(
        self, states: Sequence[str], pointers: Sequence[str], alone: bool = False
    ) -> list[str]:
        """The states after the elements at these addresses, one for each lane; ``alone``: they are
        the first ones."""
        lanes, inputs = self.schedule.lanes, []
        for o, p in zip(self.schedule.reads, pointers, strict=True):
            if o.inner == "one":
                inputs.append(self._splat(lanes, VALUES[o.dtype], self.value(o.dtype, p)))
                continue
            kind = f"<{lanes} x {STORED[o.dtype]}>"
            value = self.new(f"load {kind}, ptr {p}, align {o.bits // 8}")
            if o.dtype == "bool":
                value = self.new(f"trunc {kind} {value} to <{lanes} x i1>")
            inputs.append(value)
        values = self._vectors(self.fold.program, inputs, lanes)
        found = []
        every = zip(
            self.fold.monoids, self.by_monoid(states), self.fold.element_numbers(), strict=True
        )
        for m, own, at in every:
            # The number of an element is of no interest to these monoids.
            given = [*own, *(values[i] for i in at), "0"]
            found += self._vectors(m.step, given, lanes, "" if alone else self.unit)
        return found

    def _joined(self, a: Sequence[str], b: Sequence[str], lanes: int) -> list[str]:
        """The states of two sets of elements together, in each lane."""
        every = zip(self.fold.monoids, self.by_monoid(a), self.by_monoid(b), strict=True)
        return [v for m, one, two in every for v in self._vectors(m.combine, [*one, *two], lanes)]

    def _vectors(
        self, program: ScalarProgram, inputs: Sequence[str], lanes: int, unit: str = ""
    ) -> list[str]:
        """Append a program on vectors; with ``unit`` additions are multiply-adds by it."""
        printer = VectorPrinter(program, f"{self.tag()}_", lanes)
        results, lines = printer.emit(inputs), printer.lines
        if unit:
            t, one = f"<{lanes} x double>", self._splat(lanes, "double", unit)
            function = f"@llvm.fmuladd.v{lanes}f64"
            self.declared.add(f"declare {t} {function}({t}, {t}, {t})")
            fused = rf"call {t} {function}({t} \2, {t} {one}, {t} \1)"
            lines = [re.sub(rf"fadd {t} (\S+), (\S+)$", fused, line) for line in lines]
        self.put(*lines)
        self.declared |= printer.declared
        return results

    # -- the end of rows --------------------------------------------------------------------------

    def _leave_rows(self, states: Rows, writes: Rows) -> None:
        """Append what combines the lanes of each row, and writes its results."""
        count, beside = self.schedule.lanes, self.schedule.beside
        while count > BUNDLE:
            count //= 2
            halves = [self._halves(own, count) for own in states]
            states = [self._joined(a, b, count) for a, b in halves]
        columns = [
            self.transposed(f"<{count} x {VALUES[d]}>", [own[i] for own in states])
            for i, d in enumerate(self.states)
        ]
        lanes = [[column[c] for column in columns] for c in range(count)]
        while count > beside:
            count //= 2
            lanes = [self._joined(lanes[c], lanes[c + count], BUNDLE) for c in range(count)]
        for b, own in enumerate(lanes):
            every = zip(self.fold.monoids, self.by_monoid(own), strict=True)
            values = [v for m, state in every for v in self._vectors(m.leave, state, BUNDLE)]
            for k, bases in enumerate(writes):
                places = self.lanes_at("y", bases, str(b))
                for o, v, place in zip(self.schedule.writes, values, places, strict=True):
                    t = f"<{BUNDLE} x {VALUES[o.dtype]}>"
                    self.keep(o.dtype, self.new(f"extractelement {t} {v}, i32 {k}"), place)

    def _halves(self, states: Sequence[str], half: int) -> tuple[list[str], list[str]]:
        """The first and the second so many lanes of states."""

        def lanes(first: int) -> list[str]:
            every = zip(self.states, states, strict=True)
            places = range(first, first + half)
            return [self.shuffled(f"<{2 * half} x {VALUES[d]}>", v, v, places) for d, v in every]

        return lanes(0), lanes(half)
