"""LLVM IR of nests: see :mod:`symdnn.cpu.nest.schedule` for the shapes of loops.

Loops over lanes have independent iterations of scalar code, which LLVM vectorises for whatever
processor this is; states of lanes are arrays on the stack.
"""

from __future__ import annotations

from collections.abc import Sequence

from symdnn.cpu.compiler import jit
from symdnn.cpu.compiler.jit import FAR_CONSTANTS
from symdnn.cpu.ir.loops_ir import (
    AROUND,
    EIGHT,
    METADATA_OF_BRIEF,
    THREADS,
    WIDE,
    metadata_of_wide,
    next_task,
)
from symdnn.cpu.ir.math_ir import definitions
from symdnn.cpu.ir.pack_ir import pack_function
from symdnn.cpu.ir.scalar_ir import STORED, VALUES
from symdnn.cpu.ir.turn_ir import turn_functions
from symdnn.cpu.nest.bundles_ir import BundlePieces
from symdnn.cpu.nest.nest_pieces_ir import metadata_of
from symdnn.cpu.nest.schedule import PACKED_PART, Schedule
from symdnn.graph.type import numpy_dtype
from symdnn.ops.nest.nest import Fold

#: Rows of columns whose states are loaded and stored once, of folds that cost up to so much.
_ROWS_TOGETHER, _MAX_COST_OF_ROWS = 4, 64


def nest_ir(fold: Fold, schedule: Schedule) -> str:
    """The module of ``kernel``; the words of its block are :func:`word_names`."""
    tasks = _NestBuilder(fold, schedule)
    tasks.loops()
    sizes = {int(numpy_dtype(o.dtype).itemsize) for o in schedule.reads if o.inner == "turned"}
    declared, lines = turn_functions((size, True) for size in sorted(sizes))
    declared, helpers = declared | tasks.declared, set(tasks.helpers)
    lines += [line for kind in sorted({*tasks.packs().values()}) for line in pack_function(*kind)]
    lines += [*tasks.lines, *next_task("task")]
    whole = list(THREADS)
    if schedule.chunked:
        finish = _NestBuilder(fold, schedule)
        finish.finish()
        declared, helpers = declared | finish.declared, helpers | finish.helpers
        lines += finish.lines
        whole = [line.replace("@kernel(", "@parts(") for line in THREADS]
        lines += [
            "define void @kernel(ptr %w) {", "entry:", "call void @parts(ptr %w)",
            "call void @finish(ptr %w)", "ret void", "}",
        ]  # fmt: skip

    far = FAR_CONSTANTS if jit.vector_width() < 16 else ""  # 16 registers
    return (
        far
        + "\n".join(
            [
                *sorted(declared),
                *definitions(helpers),
                *whole,
                *lines,
                *metadata_of(fold, schedule),
                *METADATA_OF_BRIEF,
                *metadata_of_wide(),
            ]
        )
        + "\n"
    )


class _NestBuilder(BundlePieces):
    """Builds the functions of a nest."""

    # -- the function of tasks --------------------------------------------------------------------

    def loops(self) -> None:
        """Append the function ``rows`` but its end."""
        entry = self.words()
        if self.schedule.shape in ("columns", "lanes"):  # others have states in registers
            for i, d in enumerate(self.states):
                entry.append(f"%state{i} = alloca [{self.schedule.lanes} x {STORED[d]}], align 64")
                # Stores go to a copy of the address that LLVM takes for another. It would make a
                # masked store of a choice between what is there and something new, and some
                # processors take 20 cycles for that.
                entry.append(f'%hidden{i} = call ptr asm "", "=r,0"(ptr %state{i})')
        if self.schedule.shape == "rows":
            entry += [f"%sofar{i} = alloca {STORED[d]}" for i, d in enumerate(self.states)]
            entry += self.places_of_best()
        for name, o in self.named.items():
            if o.inner == "turned" or name in self.packs():
                count = self.schedule.lanes * self.schedule.rows or PACKED_PART
                entry.append(f"%tile_{name} = alloca [{count} x i{o.bits}], align 64")
        self.tasks(entry, "task")
        {
            "columns": self._columns, "lanes": self._lanes, "lines": self._lines,
            "rows": self._rows_of_task, "bundles": self.bundle,
        }[self.schedule.shape]()  # fmt: skip

    def _band(self, group: str) -> tuple[str, str, str]:
        """(outer index, first column, number of columns) of a band."""
        outer, band = self.new(f"udiv i64 {group}, %JB"), self.new(f"urem i64 {group}, %JB")
        first = self.times(band, "%W")
        return outer, first, self.least(self.minus("%m", first), "%W")

    def _columns(self) -> None:
        chunk, group = self.new("urem i64 %r, %C"), self.new("udiv i64 %r, %C")
        outer, first, count = self._band(group)
        meet = self.schedule.meet
        reads = self.bases("x", outer, first)
        writes = self.bases("y", outer, "0" if meet else first)
        if self.schedule.length:
            self._unrolled(count, reads, writes)
            return
        self.begun(str(self.schedule.lanes) if meet else count)
        low, high = self.parts(chunk)
        with self.each("part", low, high) as q:
            row, place = self.new(f"udiv i64 {q}, %S"), self.new(f"urem i64 {q}, %S")
            begin = self.times(place, "%seg")
            length = self.new(
                f"sub i64 {self.least(self.new(f'add i64 {begin}, %seg'), '%n')}, {begin}"
            )
            begun = [
                self.bytes_at(base, (begin, f"%{n}.s"))
                for base, n in zip(self.rows_at("x", reads, row), self.named)
            ]
            x_rows = self.tiled(begun, count, length)
            y_rows = self.rows_at("y", writes, row)  # of scans, which have one part
            number = self.times(begin, "%NK")
            number = self.new(f"add i64 {number}, {self.new(f'mul i64 {row}, %NR')}")
            if meet:
                number = self.plus(number, first)
            self._rows(self.whole_vectors(count), length, x_rows, y_rows, number)
        if self.fold.scan:
            return
        if meet:
            self._all_meet()
            self._end("0", writes)
            return
        with self.over_lanes(count, brief=True) as j:
            self._end(j, writes)

    def _unrolled(self, count: str, reads: Sequence[str], writes: Sequence[str]) -> None:
        """Append the loop over lanes, an iteration of which has all rows."""
        with self.over_lanes(count) as j:
            states = self.started()
            for k in map(str, range(self.schedule.length)):
                pointers = self.lanes_at("x", self.at_row("x", reads, k), j)
                before, states = states, self.stepped(states, pointers, k)
                if self.fold.scan:
                    shown = before if self.fold.scan == "exclusive" else states
                    self.left(shown, self.lanes_at("y", self.at_row("y", writes, k), j))
            if not self.fold.scan:
                self.left(states, self.lanes_at("y", writes, j))

    def _rows(
        self, count: str, length: str, reads: Sequence[str], writes: Sequence[str], number: str
    ) -> None:
        """Append the loops over rows and lanes; states stay in registers for a few rows."""
        cost = sum(p.cost for p in self.fold.programs)
        alone = self.fold.scan or self.schedule.in_turn
        few = _ROWS_TOGETHER if cost <= _MAX_COST_OF_ROWS and not alone else 1
        varied = [o for o in self.schedule.reads if o.inner != "one"]
        few *= 2 if len(varied) == 1 and few > 1 and cost <= 8 else 1
        whole = self.new(f"and i64 {length}, {-few}")

        def rows(name: str, low: int | str, high: str, together: int) -> None:
            with self.each(name, low, high, step=together) as k:
                places = [self.affine(k, 1, u) for u in range(together)]
                x = [self.at_row("x", reads, place) for place in places]
                for pointers in x:
                    self.load_once(pointers)
                y = self.at_row("y", writes, k) if self.fold.scan else []
                numbers = [
                    self.new(f"add i64 {number}, {self.new(f'mul i64 {place}, %NK')}")
                    for place in places
                ]
                with self.over_lanes(count, wide=True) as j:
                    before, at = self.held(j), j if self.schedule.meet else "0"
                    places_of = [self.lanes_at("x", bases, j) for bases in x]
                    elements = list(zip(places_of, numbers, strict=True))
                    states = self._stepped_over(before, elements, at)
                    self.hold(states, j)
                    if self.fold.scan:
                        shown = before if self.fold.scan == "exclusive" else states
                        self.left(shown, self.lanes_at("y", y, j))

        if few == 1:
            rows("row", 0, length, 1)
            return
        with self.when("some", self.new(f"icmp sgt i64 {whole}, 0")):
            rows("rows", 0, whole, few)
        with self.when("left", self.new(f"icmp slt i64 {whole}, {length}")):
            rows("row", whole, length, 1)

    def _lanes(self) -> None:
        chunk, outer = self.new("urem i64 %r, %C"), self.new("udiv i64 %r, %C")
        reads, writes = self.bases("x", outer), self.bases("y", outer)
        self.begun(str(self.schedule.lanes))
        low, high = self.parts(chunk)
        with self.each("part", low, high) as q:
            row, place = self.new(f"udiv i64 {q}, %S"), self.new(f"urem i64 {q}, %S")
            x_row = self.rows_at("x", reads, row)
            begin = self.times(place, "%seg")
            end = self.least(self.plus(begin, "%seg"), "%n")
            number = self.times(row, "%n")
            x_row = self.packed(x_row, begin, self.minus(end, begin))
            self._lanes_over(x_row, begin, end, number)
        self._all_meet()
        if self.schedule.beside > 1:
            with self.over_lanes(str(self.schedule.beside)) as j:
                self._end(j, writes)
        else:
            self._end("0", writes)

    def _lanes_over(self, x_row: Sequence[str], begin: str, end: str, number: str) -> None:
        """Append the loops over a part of a line: some times as many elements as lanes, then the
        others."""
        lanes, beside = self.schedule.lanes, self.schedule.beside
        cheap = sum(p.cost for p in self.fold.programs) <= _MAX_COST_OF_ROWS
        few = _ROWS_TOGETHER if cheap and not self.schedule.in_turn else 1

        def loop(name: str, low: str, high: str, together: int) -> None:
            there, step = self.new(f"icmp slt i64 {low}, {high}"), together * lanes
            with self.when(f"{name}_there", there), self.each(name, low, high, step=step) as i:
                left = self.minus(end, i)
                count = str(lanes) if together > 1 else self.least(left, str(lanes))
                places = [self.affine(i, 1, u * lanes) for u in range(together)]
                begun = [self.lanes_at("x", x_row, place) for place in places]
                before = [self.plus(number, place) for place in places]
                if beside > 1:
                    before = [self.new(f"udiv i64 {k}, {beside}") for k in before]

                with self.over_lanes(count, wide=True) as j:
                    pointers = [self.lanes_at("x", x, j) for x in begun]
                    at = j
                    if beside > 1:
                        at = self.new(f"udiv i32 {self.new(f'trunc i64 {j} to i32')}, {beside}")
                        at = self.new(f"zext i32 {at} to i64")
                    elements = list(zip(pointers, before, strict=True))
                    self.hold(self._stepped_over(self.held(j), elements, at), j)

        if few > 1:
            whole = self.minus(end, begin)
            whole = self.new(f"sub i64 {whole}, {self.new(f'urem i64 {whole}, {few * lanes}')}")
            middle = self.plus(begin, whole)
            loop("somes", begin, middle, few)
            begin = middle
        loop("some", begin, end, 1)

    def _stepped_over(
        self, states: Sequence[str], elements: Sequence[tuple[list[str], str]], lane: str
    ) -> list[str]:
        """The states after a lane's elements in some rows: (addresses, number) each.

        Of simple folds they are combined as a tree, so that none waits for all before it.
        """
        if not self.schedule.simple or len(elements) == 1:
            for pointers, number in elements:
                states = self.stepped(states, pointers, number, lane)
            return list(states)
        few, fours = self.few, len(elements) // _ROWS_TOGETHER
        alone = [self.stepped(self.started(few), p, k, lane, few, True) for p, k in elements]
        while len(alone) > 1:
            if few and len(alone) == fours:
                alone, few = [self.widened(a) for a in alone], ()
            pairs = zip(alone[::2], alone[1::2], strict=True)
            alone = [self.combined(a, b, few, unit=self.unit) for a, b in pairs]
        return self.combined(states, self.widened(alone[0]) if few else alone[0], unit=self.unit)

    def _all_meet(self) -> None:
        """Append what combines the states of all lanes in pairs, into those of lane 0, or of one
        lane for each column beside: one loop around another, unless all are in registers."""
        half, beside = self.schedule.lanes // 2, self.schedule.beside
        levels = (self.schedule.lanes // beside).bit_length() - 1

        if levels and not self.in_registers(self.schedule.lanes):
            with self.each(self.tag(), 0, str(levels), parallel=AROUND) as number:
                left = self.new(f"lshr i64 {half}, {number}")
                with self.over_lanes(left, brief=True) as j:
                    self._meet(j, left)
            return
        for k in range(levels):
            with self.over_lanes(str(half >> k)) as j:
                self._meet(j, str(half >> k))

    def _meet(self, j: str, half: str) -> None:
        other = self.held(self.plus(j, half))
        self.hold(self.combined(self.held(j), other), j)

    def _rows_of_task(self) -> None:
        """Append the loops over the parts of a row, each in registers in any order."""
        chunk, outer = self.new("urem i64 %r, %C"), self.new("udiv i64 %r, %C")
        reads, writes = self.bases("x", outer), self.bases("y", outer)
        low, high = self.parts(chunk)
        kinds = [VALUES[d] for d in self.states]

        def some(x_row: Sequence[str], begin: int | str, end: str) -> list[str]:
            own_monoids = self.sought or self.brief

            def element(i: str, own: list[str]) -> list[str]:
                return self.stepped(own, self.lanes_at("x", x_row, i), i, "0", own_monoids)

            states = self.started(own_monoids)
            kinds = [VALUES[d] for m in own_monoids or self.fold.monoids for d in m.state]
            if self.few:
                states, begin = self._fours(x_row, begin, end)
            way = EIGHT if self.unit else WIDE if self.wide else True
            found = self.counted("element", begin, end, element, states, kinds, parallel=way)
            return self.widened(found, self.brief) if self.brief else found

        def part(q: str, sofar: list[str]) -> list[str]:
            row, place = self.new(f"udiv i64 {q}, %S"), self.new(f"urem i64 {q}, %S")
            x_row = self.rows_at("x", reads, row)
            begin = self.times(place, "%seg")
            end = self.least(self.plus(begin, "%seg"), "%n")
            x_row = self.packed(x_row, begin, self.minus(end, begin))
            found = some(x_row, begin, end)
            if not self.sought:
                return self.combined(sofar, found)
            return self.placed(sofar, found, x_row[0], begin, end, self.times(row, "%n"))

        if self.schedule.length:
            length = str(self.schedule.length)
            found = some(self.packed(reads, "0", length), 0, length)
            if self.sought:
                found = self.placed(self.started(), found, reads[0], "0", length, "0")
        else:
            found = self.counted("part", low, high, part, self.started(), kinds)
        self._end("0", writes, found)

    def _fours(self, x_row: Sequence[str], begin: int | str, end: str) -> tuple[list[str], str]:
        """Append the loop over a part of a row, whose iterations have an element of each quarter,
        or vectors of it.

        Returns the states, and where the last elements are, which are one or more.
        """
        kinds = [VALUES[d] for d in self.states]
        quarter = self.new(f"sub i64 {self.new(f'sub i64 {end}, {begin}')}, 1")
        quarter = self.new(f"udiv i64 {quarter}, {_ROWS_TOGETHER}")
        if self.has_vectors():
            return self.quarters(x_row, begin, quarter)
        for i, v in enumerate(self.started()):
            self.put(f"store {kinds[i]} {v}, ptr %sofar{i}")

        def element(i: str, own: list[str]) -> list[str]:
            first = self.plus(begin, i)
            alone = []
            for u in range(_ROWS_TOGETHER):
                at = self.new(f"add i64 {first}, {self.new(f'mul i64 {quarter}, {u}')}")
                pointers = self.lanes_at("x", x_row, at)
                alone.append(self.stepped(self.started(self.few), pointers, at, "0", self.few))
            while len(alone) > 1:
                pairs = zip(alone[::2], alone[1::2], strict=True)
                alone = [self.combined(a, b, self.few) for a, b in pairs]
            return self.combined(own, self.widened(alone[0]), free=True)

        def fours() -> None:
            found = self.counted(
                self.tag(), 0, quarter, element, self.started(), kinds, parallel=True
            )
            for i, v in enumerate(found):
                self.put(f"store {kinds[i]} {v}, ptr %sofar{i}")

        with self.when(self.tag(), self.new(f"icmp sgt i64 {quarter}, 0")):
            fours()
        states = [self.new(f"load {t}, ptr %sofar{i}") for i, t in enumerate(kinds)]
        taken = self.times(quarter, _ROWS_TOGETHER)
        return states, self.plus(begin, taken)

    def _lines(self) -> None:
        lanes = self.schedule.lanes
        # The last lines begin early enough to be as many as all: some are computed twice.
        wanted = self.times("%r", lanes)
        first = self.least(wanted, self.minus("%m", lanes))
        lines = [self.plus(first, n) for n in range(lanes)]
        reads = [self.bases("x", line) for line in lines]
        writes = [self.bases("y", line) for line in lines]
        states = [v for _ in lines for v in self.started()]
        count = len(self.states)

        def element(k: str, sofar: list[str]) -> list[str]:
            found, shown = [], []
            for n in range(lanes):
                own = sofar[n * count : (n + 1) * count]
                after = self.stepped(own, self.lanes_at("x", reads[n], k), k)
                shown.append(own if self.fold.scan == "exclusive" else after)
                found += after
            for n in range(lanes if self.fold.scan else 0):
                self.left(shown[n], self.lanes_at("y", writes[n], k))
            return found

        kinds = [VALUES[d] for d in self.states] * lanes
        states = self.counted("k", 0, "%n", element, states, kinds)
        for n in range(0 if self.fold.scan else lanes):
            self.left(states[n * count : (n + 1) * count], writes[n])

    # -- chunks -----------------------------------------------------------------------------------

    def _end(self, j: str, writes: Sequence[str], states: Sequence[str] = ()) -> None:
        """The end of a task, of lane ``j``: results of a whole fold, or states of a chunk."""
        if self.schedule.chunked:
            self._leave_partial("%r", j, states)
        else:
            found = states or self.held(j)
            self.left(found, writes if j == "0" else self.lanes_at("y", writes, j))

    def _partial(self, task: str, i: int, j: str, base: str = "%partial") -> str:
        """The address where a task leaves state ``i`` of lane ``j``: there are 8 bytes for each."""
        number = self.affine(task, len(self.states), i)
        if self.schedule.beside > 1:
            number = self.times(number, self.schedule.beside)
        if self.schedule.shape == "columns" and not self.schedule.meet:
            number = self.times(number, "%W")
        lanes = self.new(f"getelementptr i64, ptr {base}, i64 {number}")
        return self.new(f"getelementptr {STORED[self.states[i]]}, ptr {lanes}, i64 {j}")

    def _leave_partial(
        self, task: str, j: str, states: Sequence[str] = (), base: str = "%partial"
    ) -> None:
        for i, (d, v) in enumerate(zip(self.states, states or self.held(j), strict=True)):
            self.keep(d, v, self._partial(task, i, j, base))

    def finish(self) -> None:
        """Append the function ``finish``, which combines the chunks of each fold in order."""
        self.put("define internal void @finish(ptr %w) {", "entry:", *self.words())
        self.put("%groups = udiv i64 %tasks, %F")
        self.put('%hidden = call ptr asm "", "=r,0"(ptr %partial)')  # as those of states
        with self.each("group", 0, "%groups", parallel=AROUND) as g:
            outer, first, count = g, "0", str(self.schedule.beside)
            if self.schedule.shape == "columns" and not self.schedule.meet:
                outer, first, count = self._band(g)
            writes = self.bases("y", outer, first)
            task = self.times(g, "%F")
            with self.each("chunk", 1, "%F", parallel=AROUND) as c:
                at = self.plus(task, c)
                with self.over_lanes(count, brief=True) as j:
                    states = self.combined(self._partials(task, j), self._partials(at, j))
                    self._leave_partial(task, j, states, "%hidden")

            with self.over_lanes(count, brief=True) as j:
                self.left(self._partials(task, j), self.lanes_at("y", writes, j))
        self.put("ret void", "}")

    def _partials(self, task: str, j: str) -> list[str]:
        return [self.value(d, self._partial(task, i, j)) for i, d in enumerate(self.states)]
