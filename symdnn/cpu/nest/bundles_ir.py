"""LLVM IR of bundles: some rows at a time, of each of which a vector of neighbours is the lanes.

The last elements of a row begin early enough to be as many as all; those that were taken count as
nothing. The lanes of all rows of a bundle meet together, once their states are transposed. All is
written in vectors: of loops over so few lanes LLVM makes something else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from symdnn.cpu.ir.loops_ir import AROUND, LoopOperand
from symdnn.cpu.ir.scalar_ir import STORED, VALUES
from symdnn.cpu.ir.turn_ir import PREFETCH
from symdnn.cpu.ir.vector_printer_ir import VectorPrinter, has_vectors
from symdnn.cpu.nest.nest_pieces_ir import Monoids, NestPieces
from symdnn.cpu.nest.schedule import BUNDLE
from symdnn.ops.core.scalar import ScalarProgram

#: Vectors whose elements are folded by a monoid for few.
_FOUR = 4
_LINE_BYTES = 64
#: Addresses of operands, or states, of each row of a bundle.
Rows = list[list[str]]


class BundlePieces(NestPieces):
    """Appends the loops of a bundle, whose states are vectors in registers."""

    #: Addresses of operands of the rows that are fetched meanwhile.
    _ahead: Rows = []

    def bundle(self) -> None:
        """Append the loops over the rows of a task: the last bundle begins early enough to be
        whole, so some rows are computed twice."""
        first = self.least(self.times("%r", BUNDLE), self.minus("%m", BUNDLE))
        rows = [self.affine(first, 1, k) for k in range(BUNDLE)]
        reads, writes = ([self.bases(kind, row) for row in rows] for kind in "xy")

        # Memory is read in order where it is far: what fetches ahead follows one run of addresses.
        groups = [[bases] for bases in reads] if self.schedule.in_turn else [reads]
        if self.schedule.fetches:
            self._ahead = [self.bases("x", self.affine(row, 1, BUNDLE)) for row in rows]
        found = [v for some in groups for v in self._whole_rows(some)]
        self._leave_rows(self._of_rows(found), writes)

    def _whole_rows(self, reads: Rows) -> list[str]:
        """The states after all elements of these rows."""

        def part(q: str, sofar: list[str]) -> list[str]:
            row, place = self.new(f"udiv i64 {q}, %S"), self.new(f"urem i64 {q}, %S")
            begin = self.times(place, "%seg")
            end = self.least(self.plus(begin, "%seg"), "%n")
            here = [self.rows_at("x", bases, row) for bases in reads]
            ahead, self._ahead = self._ahead, [self.rows_at("x", b, row) for b in self._ahead]
            found = self._part(here, begin, end)
            self._ahead = ahead
            every = zip(self._of_rows(sofar), self._of_rows(found), strict=True)
            return [v for a, b in every for v in self._joined(a, b, self.schedule.lanes)]

        if not self.schedule.along and ("S", 1) in self.schedule.constants:
            return self._part(reads, "0", "%n")
        begun = [v for _ in reads for v in self._starts()]
        kinds = self._kinds(len(reads))
        return self.counted(self.tag(), 0, "%QT", part, begun, kinds, parallel=AROUND)

    def _of_rows(self, values: Sequence[str]) -> Rows:
        count = len(self.states)
        return [list(values[k : k + count]) for k in range(0, len(values), count)]

    def _kinds(self, rows: int = BUNDLE) -> list[str]:
        return [f"<{self.schedule.lanes} x {VALUES[d]}>" for d in self.states] * rows

    def _starts(self, monoids: Monoids = ()) -> list[str]:
        """The states of no elements."""
        states = [d for m in monoids or self.fold.monoids for d in m.state]
        every = zip(states, self.started(monoids), strict=True)
        return [self._splat(self.schedule.lanes, VALUES[d], v) for d, v in every]

    # -- one row ----------------------------------------------------------------------------------

    def has_vectors(self) -> bool:
        """Whether parts of a row can be taken as vectors."""
        dense = all(o.inner in ("dense", "one") for o in self.schedule.reads)
        every = [*self.fold.monoids, *self.few]
        programs = [self.fold.program, *(p for m in every for p in (m.step, m.combine, m.leave))]
        return dense and all(map(has_vectors, programs))

    def quarters(
        self, x_row: Sequence[str], begin: int | str, quarter: str
    ) -> tuple[list[str], str]:
        """The states after what there are of whole vectors in the four quarters of a part of a row,
        and the number of the first element that is not in them."""
        quarter = self.new(f"and i64 {quarter}, {-_FOUR * self.schedule.lanes}")
        firsts = [self.new(f"add i64 {begin}, {self.times(quarter, k)}") for k in range(BUNDLE + 1)]
        reads = [self.lanes_at("x", x_row, first) for first in firsts[:-1]]
        begun = [v for _ in reads for v in self._starts()]
        rows = self._of_rows(self._some(reads, "0", quarter, begun, _FOUR))
        lanes = self.schedule.lanes
        while len(rows) > 1:
            rows = [self._joined(a, b, lanes) for a, b in zip(rows[::2], rows[1::2], strict=True)]
        (states,) = rows
        while lanes > 1:
            lanes //= 2
            states = self._joined(*self._halves(states, lanes), lanes)
        kinds = [f"<1 x {VALUES[d]}>" for d in self.states]
        found = zip(kinds, states, strict=True)
        return [self.new(f"extractelement {t} {v}, i32 0") for t, v in found], firsts[-1]

    # -- elements ---------------------------------------------------------------------------------

    def _part(self, reads: Rows, begin: str, end: str) -> list[str]:
        """The states after a part of each row: its last elements, then as many as there are lanes
        at a time; of folds that have a monoid for few elements first those of four vectors."""
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
            found = self._taken(start, self._loaded(self.lanes_at("x", bases, early)), alone=True)
            for t, v, none in zip(self._kinds(1), found, start):
                states.append(self.new(f"select <{lanes} x i1> {inside}, {t} {v}, {t} {none}"))

        if self.few:
            some = self.new(f"urem i64 {whole}, {_FOUR * lanes}")
            there = self.minus(middle, some)
            states = self._some(reads, begin, there, states, _FOUR)
            begin = there
        return self._some(reads, begin, middle, states, 1)

    def _some(
        self, reads: Rows, low: str, high: str, states: list[str], together: int
    ) -> list[str]:
        """The states after the elements from ``low`` to below ``high``, which may be none, so many
        vectors at a time."""
        lanes = self.schedule.lanes

        def some(i: str, values: list[str]) -> list[str]:
            self._fetch(i, together * lanes)
            found = []
            for own, x in zip(self._of_rows(values), reads, strict=True):
                if together == 1:
                    found += self._taken(own, self._loaded(self.lanes_at("x", x, i)))
                else:
                    found += self._joined(own, self._four(x, i), lanes)
            return found

        before, tag, after = self.block, self.tag(), list[str]()
        with self.when(tag, self.new(f"icmp slt i64 {low}, {high}")):
            name, kinds = f"{tag}_some", self._kinds(len(reads))
            # Written out over several vectors it takes as long, and half as long again to compile.
            after.extend(self.counted(
                name, low, high, some, states, kinds, step=together * lanes, parallel=AROUND
            ))  # fmt: skip
        every = zip(kinds, states, after, strict=True)
        ends = f"%{tag}_some_end"
        return [self.new(f"phi {t} [{a}, %{before}], [{b}, {ends}]") for t, a, b in every]

    def _fetch(self, i: str, count: int) -> None:
        """Append code that fetches so many elements of the rows of the next bundle."""
        for bases in self._ahead:
            for o, place in zip(self.schedule.reads, self.lanes_at("x", bases, i), strict=True):
                for k in range(0, count * o.bits // 8 if o.inner != "one" else 0, _LINE_BYTES):
                    line = self.new(f"getelementptr i8, ptr {place}, i64 {k}")
                    self.declared.add(PREFETCH)
                    self.put(f"call void @llvm.prefetch.p0(ptr {line}, i32 0, i32 2, i32 1)")

    def _four(self, x: Sequence[str], i: str) -> list[str]:
        """The states of the fold after four vectors of a row from element ``i`` on alone."""
        lanes, start = self.schedule.lanes, self._starts(self.few)
        pairs = self._in_pairs()
        every = [self.affine(i, 1, u * lanes) for u in range(0, _FOUR, 2 if pairs else 1)]
        loaded = []
        for at in every:
            pointers = self.lanes_at("x", x, at)
            loaded += self._loaded_pairs(pointers) if pairs else [self._loaded(pointers)]
        alone = [self._taken(start, inputs, True, self.few) for inputs in loaded]
        while len(alone) > 1:
            alone = [
                self._joined(a, b, lanes, self.few)
                for a, b in zip(alone[::2], alone[1::2], strict=True)
            ]
        each = zip(self.few, self.by_monoid(alone[0], self.few), strict=True)
        return [v for m, own in each for v in self._vectors(m.leave, own, lanes)]

    def _in_pairs(self) -> bool:
        """Whether all that differs between lanes are bfloat16 of one row: two of them in a word of
        32 bits, whose halves are where those of float32 belong."""
        kinds = {o.dtype for o in self.schedule.reads if o.inner != "one"}
        return kinds == {"bfloat16"} and self.schedule.beside == 1

    def _loaded_pairs(self, pointers: Sequence[str]) -> list[list[str]]:
        """The even and the odd ones of twice as many elements as lanes, of each read."""
        lanes, found = self.schedule.lanes, list[tuple[str, str]]()
        words, halves = f"<{lanes} x i32>", f"<{lanes} x i16>"
        for o, p in zip(self.schedule.reads, pointers, strict=True):
            if o.inner == "one":
                found.append((self._of_all(o, p),) * 2)
                continue
            both = self.new(f"load {words}, ptr {p}, align 2")
            upper = self.new(f"lshr {words} {both}, {self._splat(lanes, 'i32', '16')}")
            even, odd = (self.new(f"trunc {words} {v} to {halves}") for v in (both, upper))
            found.append((even, odd))
        return [[pair[k] for pair in found] for k in range(2)]

    def _of_all(self, o: LoopOperand, pointer: str) -> str:
        """The number that all lanes have."""
        return self._splat(self.schedule.lanes, VALUES[o.dtype], self.value(o.dtype, pointer))

    def _loaded(self, pointers: Sequence[str]) -> list[str]:
        """The elements at these addresses, one for each lane."""
        lanes, inputs = self.schedule.lanes, []
        for o, p in zip(self.schedule.reads, pointers, strict=True):
            if o.inner == "one":
                inputs.append(self._of_all(o, p))
                continue
            kind = f"<{lanes} x {STORED[o.dtype]}>"
            value = self.new(f"load {kind}, ptr {p}, align {o.bits // 8}")
            if o.dtype == "bool":
                value = self.new(f"trunc {kind} {value} to <{lanes} x i1>")
            inputs.append(value)
        return inputs

    def _taken(
        self, states: Sequence[str], inputs: Sequence[str], alone: bool = False,
        monoids: Monoids = (),
    ) -> list[str]:  # fmt: skip
        """The states after these elements, one for each lane; ``alone``: they are the first ones.
        Of the fold's monoids, or of these in their place."""
        lanes = self.schedule.lanes
        values = self._vectors(self.fold.program, inputs, lanes)
        found, monoids = list[str](), monoids or self.fold.monoids
        every = zip(
            monoids, self.by_monoid(states, monoids), self.fold.element_numbers(), strict=True
        )
        for m, own, at in every:
            # The number of an element is of no interest to these monoids.
            given = [*own, *(values[i] for i in at), "0"]
            found += self._vectors(m.step, given, lanes, "" if alone else self.unit)
        return found

    def _joined(
        self, a: Sequence[str], b: Sequence[str], lanes: int, monoids: Monoids = ()
    ) -> list[str]:
        """The states of two sets of elements together, in each lane."""
        monoids = monoids or self.fold.monoids
        every = zip(monoids, self.by_monoid(a, monoids), self.by_monoid(b, monoids), strict=True)
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
        self.helpers |= printer.helpers
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
