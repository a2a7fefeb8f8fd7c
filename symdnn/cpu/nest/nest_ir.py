"""LLVM IR of nests: see :mod:`symdnn.cpu.nest.schedule` for the shapes of loops.

Loops over lanes have independent iterations of scalar code, which LLVM vectorises for whatever
processor this is; states of lanes are arrays on the stack.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from symdnn.cpu.ir.builder import FunctionBuilder
from symdnn.cpu.ir.loops_ir import ACCESS, METADATA, THREADS, LoopOperand, data_of, next_task, word
from symdnn.cpu.ir.math_ir import definitions
from symdnn.cpu.ir.scalar_ir import STORED, VALUES, Printer, load_as, store_as
from symdnn.cpu.nest.schedule import Schedule, word_names
from symdnn.graph.type import numpy_dtype
from symdnn.ops.core.scalar import ScalarProgram
from symdnn.ops.nest.nest import Fold

__all__ = ["nest_ir"]


def nest_ir(fold: Fold, schedule: Schedule) -> str:
    """The module of ``kernel``; the words of its block are :func:`word_names`."""
    tasks = _NestBuilder(fold, schedule)
    tasks.loops()
    declared, helpers = set(tasks.declared), set(tasks.helpers)
    lines, whole = [*tasks.lines, *next_task("task")], list(THREADS)
    if not fold.scan:
        finish = _NestBuilder(fold, schedule)
        finish.finish()
        declared, helpers = declared | finish.declared, helpers | finish.helpers
        lines += finish.lines
        whole = [line.replace("@kernel(", "@parts(") for line in THREADS]
        lines += [
            "define void @kernel(ptr %w) {", "entry:", "call void @parts(ptr %w)",
            *word("%C", word_names(schedule).index("C")),
            "%several = icmp sgt i64 %C, 1",
            "br i1 %several, label %rest, label %done",
            "rest:", "call void @finish(ptr %w)", "br label %done",
            "done:", "ret void", "}",
        ]  # fmt: skip
    return "\n".join([*sorted(declared), *definitions(helpers), *whole, *lines, *METADATA]) + "\n"


class _NestBuilder(FunctionBuilder):
    """Builds the functions of a nest; ``%w`` is the block of parameters."""

    def __init__(self, fold: Fold, schedule: Schedule) -> None:
        super().__init__()
        self.fold, self.schedule = fold, schedule
        self.helpers: set[str] = set()
        self.at_word = {name: i for i, name in enumerate(word_names(schedule))}
        self.states = [d for m in fold.monoids for d in m.state]
        self._tags = 0

    # -- pieces -----------------------------------------------------------------------------------

    def tag(self) -> str:
        """A suffix for names that are made once."""
        self._tags += 1
        return f"t{self._tags}"

    def program(self, program: ScalarProgram, inputs: Sequence[str]) -> list[str]:
        """Append a scalar program; returns its results."""
        printer = Printer(program, f"{self.tag()}_")
        results = printer.emit(inputs)
        self.put(*printer.lines)
        self.declared |= printer.declared
        self.helpers |= printer.helpers
        return results

    def words(self) -> list[str]:
        """Lines that load all words, and the addresses of operands."""
        lines = []
        for name, i in self.at_word.items():
            if name == "partial":
                lines += word("%partial", i, "ptr")
            elif name in self.named:
                lines += data_of(f"%{name}.data", i)
            else:
                lines += word(f"%{name}", i)
        return lines

    @property
    def named(self) -> dict[str, LoopOperand]:
        """The operands by their names."""
        s = self.schedule
        return {
            **{f"x{i}": o for i, o in enumerate(s.reads)},
            **{f"y{i}": o for i, o in enumerate(s.writes)},
        }

    def split(self, index: str, kind: str, count: int) -> list[str]:
        """The indices in ``count`` axes of this kind that an index stands for."""
        found = []
        for d in reversed(range(1, count)):
            found.append(self.new(f"urem i64 {index}, %{kind}n{d}"))
            index = self.new(f"udiv i64 {index}, %{kind}n{d}")
        return ([index] if count else []) + found[::-1]

    def moved(self, base: str, name: str, kind: str, indices: Sequence[str]) -> str:
        """The address ``base`` of an operand plus indices times its steps of a kind."""
        for d, index in enumerate(indices):
            base = self.bytes_at(base, self.new(f"mul i64 {index}, %{name}.{kind}{d}"))
        return base

    def lane(self, base: str, name: str, j: str) -> str:
        """The address of lane ``j`` of an operand."""
        o = self.named[name]
        if o.inner == "one":
            return base
        if o.inner == "dense":
            bits = 8 * int(numpy_dtype(o.dtype).itemsize)
            return self.new(f"getelementptr i{bits}, ptr {base}, i64 {j}")
        return self.bytes_at(base, self.new(f"mul i64 {j}, %{name}.i"))

    def value(self, dtype: str, pointer: str, more: str = ACCESS) -> str:
        """Load a number."""
        name = f"%{self.tag()}"
        self.put(*load_as(dtype, name, pointer, more))
        return name

    def keep(self, dtype: str, value: str, pointer: str, more: str = ACCESS) -> None:
        """Store a number."""
        self.put(*store_as(dtype, value, self.new(f"getelementptr i8, ptr {pointer}, i64 0"), more))

    def held(self, j: str) -> list[str]:
        """The states of lane ``j``."""
        return [self.value(d, self.slot(i, j)) for i, d in enumerate(self.states)]

    def hold(self, values: Sequence[str], j: str) -> None:
        """Set the states of lane ``j``."""
        for i, (d, v) in enumerate(zip(self.states, values, strict=True)):
            self.keep(d, v, self.slot(i, j, "hidden"))

    def slot(self, i: int, j: str, array: str = "state") -> str:
        return self.new(f"getelementptr {STORED[self.states[i]]}, ptr %{array}{i}, i64 {j}")

    def started(self) -> list[str]:
        return [v for m in self.fold.monoids for v in self.program(m.start, [])]

    def each(self, states: Sequence[str]) -> list[list[str]]:
        """The states of each monoid."""
        rest = iter(states)
        return [[next(rest) for _ in m.state] for m in self.fold.monoids]

    def stepped(
        self, states: Sequence[str], pointers: Sequence[str], first: str, lane: str = "0"
    ) -> list[str]:
        """The states after the element at these addresses, whose number is ``first + lane``."""
        inputs = [
            self.value(o.dtype, p) for o, p in zip(self.schedule.reads, pointers, strict=True)
        ]
        values = self.program(self.fold.program, inputs)
        number = self.new(f"add i64 {first}, {lane}")
        parts = [self.new(f"trunc i64 {v} to i32") for v in (first, lane)]
        narrow = self.new(f"add i32 {parts[0]}, {parts[1]}")
        found = []
        every = zip(self.fold.monoids, self.each(states), self.fold.element_numbers(), strict=True)
        for m, own, taken in every:
            k = number if m.number == "int64" else narrow
            found += self.program(m.step, [*own, *(values[i] for i in taken), k])
        return found

    def combined(self, a: Sequence[str], b: Sequence[str]) -> list[str]:
        """The states of two stretches together."""
        every = zip(self.fold.monoids, self.each(a), self.each(b), strict=True)
        return [v for m, one, two in every for v in self.program(m.combine, [*one, *two])]

    def left(self, states: Sequence[str], pointers: Sequence[str]) -> None:
        """Write the results of states to these addresses."""
        every = zip(self.fold.monoids, self.each(states), strict=True)
        values = [v for m, own in every for v in self.program(m.leave, own)]
        for o, v, p in zip(self.schedule.writes, values, pointers, strict=True):
            self.keep(o.dtype, v, p)

    def begun(self, count: str) -> None:
        """Append the loop over lanes that sets their states to those of no elements."""
        first = self.started()
        self.over_lanes(count, lambda j: self.hold(first, j))

    def over_lanes(self, count: str, body: Callable[[str], None]) -> None:
        """A loop over lanes 0 to below ``count``."""

        def one(j: str, _: list[str]) -> list[str]:
            body(j)
            return []

        self.counted(self.tag(), 0, count, one, parallel=True)

    def bases(self, kind: str, outer: str, first: str = "0") -> list[str]:
        """Addresses of the reads (``x``) or writes (``y``) at an outer index and a first lane."""
        indices = self.split(outer, "k", self.schedule.kept)
        names = [n for n in self.named if n[0] == kind]
        found = []
        for n in names:
            base = self.moved(self.bytes_at(f"%{n}.data", f"%{n}.o"), n, "k", indices)
            found.append(self.bytes_at(base, self.new(f"mul i64 {first}, %{n}.i")))
        return found

    def lanes_at(self, kind: str, bases: Sequence[str], j: str) -> list[str]:
        """Addresses of lane ``j`` of the reads or writes."""
        names = [n for n in self.named if n[0] == kind]
        return [self.lane(base, n, j) for base, n in zip(bases, names, strict=True)]

    def rows_at(self, kind: str, bases: Sequence[str], index: str) -> list[str]:
        """Addresses of the reads or writes at an index along the folded axes outside of lanes."""
        names = [n for n in self.named if n[0] == kind]
        indices = self.split(index, "a", self.schedule.along)
        return [self.moved(base, n, "a", indices) for base, n in zip(bases, names, strict=True)]

    def parts(self, chunk: str) -> tuple[str, str]:
        """The range of the parts of a chunk."""
        low = self.new(f"mul i64 {chunk}, %Q")
        return low, self.least(self.new(f"add i64 {low}, %Q"), "%QT")

    # -- the function of tasks --------------------------------------------------------------------

    def loops(self) -> None:
        """Append the function ``rows`` but its end."""
        entry = self.words()
        if self.schedule.shape != "lines":  # its states are in registers
            for i, d in enumerate(self.states):
                entry.append(f"%state{i} = alloca [{self.schedule.lanes} x {STORED[d]}], align 64")
                # Stores go to a copy of the address that LLVM takes for another. It would make a
                # masked store of a choice between what is there and something new, and some
                # processors take 20 cycles for that.
                entry.append(f'%hidden{i} = call ptr asm "", "=r,0"(ptr %state{i})')
        self.tasks(entry, "task")
        getattr(self, f"_{self.schedule.shape}")()

    def _band(self, group: str) -> tuple[str, str, str]:
        """(outer index, first column, number of columns) of a band."""
        outer, band = self.new(f"udiv i64 {group}, %JB"), self.new(f"urem i64 {group}, %JB")
        first = self.new(f"mul i64 {band}, %W")
        return outer, first, self.least(self.new(f"sub i64 %m, {first}"), "%W")

    def _columns(self) -> None:
        chunk, group = self.new("urem i64 %r, %C"), self.new("udiv i64 %r, %C")
        outer, first, count = self._band(group)
        reads, writes = self.bases("x", outer, first), self.bases("y", outer, first)
        self.begun(count)
        low, high = self.parts(chunk)

        def row(k: str, _: list[str]) -> list[str]:
            x_row = self.rows_at("x", reads, k)
            y_row = self.rows_at("y", writes, k) if self.fold.scan else []

            def column(j: str) -> None:
                before = self.held(j)
                after = self.stepped(before, self.lanes_at("x", x_row, j), k)
                self.hold(after, j)
                if self.fold.scan:
                    shown = before if self.fold.scan == "exclusive" else after
                    self.left(shown, self.lanes_at("y", y_row, j))

            self.over_lanes(count, column)
            return []

        self.counted("k", low, high, row)
        if not self.fold.scan:
            self._end(
                lambda: self.over_lanes(
                    count, lambda j: self.left(self.held(j), self.lanes_at("y", writes, j))
                ),
                lambda: self.over_lanes(count, lambda j: self._leave_partial("%r", j)),
            )

    def _lanes(self) -> None:
        chunk, outer = self.new("urem i64 %r, %C"), self.new("udiv i64 %r, %C")
        reads, writes = self.bases("x", outer), self.bases("y", outer)
        self.begun(str(self.schedule.lanes))
        low, high = self.parts(chunk)

        def part(q: str, _: list[str]) -> list[str]:
            row, place = self.new(f"udiv i64 {q}, %S"), self.new(f"urem i64 {q}, %S")
            x_row = self.rows_at("x", reads, row)
            begin = self.new(f"mul i64 {place}, %seg")
            end = self.least(self.new(f"add i64 {begin}, %seg"), "%n")
            number = self.new(f"mul i64 {row}, %n")

            def some(i: str, _: list[str]) -> list[str]:
                count = self.least(self.new(f"sub i64 {end}, {i}"), str(self.schedule.lanes))
                begun = self.lanes_at("x", x_row, i)
                before = self.new(f"add i64 {number}, {i}")

                def lane(j: str) -> None:
                    pointers = self.lanes_at("x", begun, j)
                    self.hold(self.stepped(self.held(j), pointers, before, j), j)

                self.over_lanes(count, lane)
                return []

            self.counted("some", begin, end, some, step=self.schedule.lanes)
            return []

        self.counted("part", low, high, part)
        half = self.schedule.lanes // 2
        while half:
            self.over_lanes(str(half), lambda j, half=half: self._meet(j, half))  # type: ignore[misc]
            half //= 2
        self._end(
            lambda: self.left(self.held("0"), writes),
            lambda: self._leave_partial("%r", "0"),
        )

    def _meet(self, j: str, half: int) -> None:
        other = self.held(self.new(f"add i64 {j}, {half}"))
        self.hold(self.combined(self.held(j), other), j)

    def _lines(self) -> None:
        lanes = self.schedule.lanes
        # The last lines begin early enough to be as many as all: some are computed twice.
        wanted = self.new(f"mul i64 %r, {lanes}")
        first = self.least(wanted, self.new(f"sub i64 %m, {lanes}"))
        lines = [self.new(f"add i64 {first}, {n}") for n in range(lanes)]
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

    def _end(self, alone: Callable[[], None], partly: Callable[[], None]) -> None:
        """The end of a task: results of a whole fold, or states of a chunk."""
        whole = self.new("icmp eq i64 %C, 1")
        self.choose("end", whole, lambda holds, _: alone() if holds else partly())

    def _partial(self, task: str, i: int, j: str) -> str:
        """The address where a task leaves state ``i`` of lane ``j``: 8 bytes each."""
        number = self.affine(task, len(self.states), i)
        if self.schedule.shape == "columns":
            number = self.new(f"mul i64 {number}, %W")
        return self.new(
            f"getelementptr i64, ptr %partial, i64 {self.new(f'add i64 {number}, {j}')}"
        )

    def _leave_partial(self, task: str, j: str) -> None:
        for i, (d, v) in enumerate(zip(self.states, self.held(j), strict=True)):
            self.keep(d, v, self._partial(task, i, j))

    def finish(self) -> None:
        """Append the function ``finish``, which combines the chunks of each fold in order."""
        self.put("define internal void @finish(ptr %w) {", "entry:", *self.words())
        self.put("%groups = udiv i64 %tasks, %C")

        def group(g: str, _: list[str]) -> list[str]:
            outer, first, count = g, "0", "1"
            if self.schedule.shape == "columns":
                outer, first, count = self._band(g)
            writes = self.bases("y", outer, first)
            task = self.new(f"mul i64 {g}, %C")

            def lane(j: str, _: list[str]) -> list[str]:
                def chunk(c: str, sofar: list[str]) -> list[str]:
                    at = self.new(f"add i64 {task}, {c}")
                    return self.combined(sofar, self._partials(at, j))

                kinds = [VALUES[d] for d in self.states]
                found = self.counted("chunk", 1, "%C", chunk, self._partials(task, j), kinds)
                self.left(found, self.lanes_at("y", writes, j))
                return []

            self.counted("lane", 0, count, lane)
            return []

        self.counted("group", 0, "%groups", group)
        self.put("ret void", "}")

    def _partials(self, task: str, j: str) -> list[str]:
        return [self.value(d, self._partial(task, i, j)) for i, d in enumerate(self.states)]
