"""Pieces of the LLVM IR of nests: words, addresses, states of lanes, programs of a fold."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

import numpy as np

from symdnn.cpu.compiler import jit
from symdnn.cpu.ir.loops_ir import (
    ACCESS,
    AROUND,
    BRIEF,
    EVERY,
    METADATA,
    MIN_COST_TO_INTERLEAVE,
    WIDE,
    LoopOperand,
    data_of,
    word,
)
from symdnn.cpu.ir.pack_ir import pack_call
from symdnn.cpu.ir.program_ir import LoopBuilder
from symdnn.cpu.ir.scalar_ir import STORED, VALUES, dealt, store_as
from symdnn.cpu.nest.infinities_ir import defined, hidden, unknown_infinities
from symdnn.cpu.nest.schedule import PACKED, SOUGHT, Schedule, word_names
from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.ops.core.scalar import Builder
from symdnn.ops.nest.monoid import Monoid
from symdnn.ops.nest.nest import Fold

Monoids = Sequence[Monoid]
#: Lanes of the widest vectors of float32; those of a tile are a multiple.
_WHOLE_LANES = 16
#: Up to so many lanes are in registers.
_LANES_IN_REGISTERS = 32
#: Bytes that are looked at together for an extreme: assembling the bits of more takes longer.
_BYTES_SOUGHT = 128


def _adds_wide(fold: Fold, schedule: Schedule) -> bool:
    """Whether float32 numbers are added in float64, and nothing else is computed.

    Processors convert in the units that add, and multiply in others. So the sums are multiply-adds
    by 1, which have the same roundings: on Zen 4 they take 0.6 of the time. Beside other operations
    it is no gain.
    """
    return all(m.name == "sum" for m in fold.monoids) and _only_widens(fold) and schedule.long


def _only_widens(fold: Fold) -> bool:
    """Whether float32 numbers are folded in float64 as they are."""
    wide = all(m.state == ("float64",) for m in fold.monoids)
    return wide and not fold.program.body and {*fold.program.inputs} == {"float32"}


def _computes_narrow(fold: Fold) -> bool:
    """Whether what is folded in 64 bits is computed in 32 or fewer: LLVM would make vectors of as
    many numbers as there are in those of states, half as wide as the processor's."""
    body = [step.dtype for step in fold.program.body]
    wide = [d for d in (*fold.program.inputs, *body) if numpy_dtype(d).itemsize > 4]
    states = {numpy_dtype(d).itemsize for m in fold.monoids for d in m.state}
    return states == {8} and bool(body) and not wide


def metadata_of(fold: Fold, schedule: Schedule) -> list[str]:
    """As of all loops; where conversions of halves of vectors are faster, those are preferred."""
    halves = _adds_wide(fold, schedule) or (schedule.shape == "bundles" and _only_widens(fold))
    if not (halves and jit.halves_vectors()):
        return METADATA
    narrow = 'width"="256" "min-legal-vector-width"="0"'
    return [line.replace('width"="512"', narrow) for line in METADATA]


class NestPieces(LoopBuilder):
    """Appends pieces of the functions of a nest; ``%w`` is the block of parameters."""

    # LLVM 20 makes masked loads of AVX-512 of a select, with which loops of reductions take three
    # times as long on Zen 4 (elementwise loops do not).
    whole_loads = True

    def __init__(self, fold: Fold, schedule: Schedule) -> None:
        super().__init__()
        self.fold, self.schedule = fold, schedule
        self.at_word = {name: i for i, name in enumerate(word_names(schedule))}
        self.states = [d for m in fold.monoids for d in m.state]
        #: The monoids for a few elements, if all of the fold's have one.
        self.few: Monoids = [m.few for m in fold.monoids if m.few]
        self.few = self.few if len(self.few) == len(fold.monoids) else ()
        #: Whether loops have vectors of narrower numbers than their states.
        self.wide = bool(self.few) or _computes_narrow(fold)
        # Where conversions of halves of vectors are faster, those are left to short programs.
        if jit.halves_vectors() and fold.program.cost < MIN_COST_TO_INTERLEAVE:
            self.wide = False
        #: The monoids of values alone, where places are looked for afterwards.
        self.sought: Monoids = []
        if schedule.shape == "rows" and any(m.sought for m in fold.monoids):
            self.sought = [m.sought or m for m in fold.monoids]
        #: The monoids for parts of rows, if all of the fold's have one.
        self.brief: Monoids = [m.brief for m in fold.monoids if m.brief]
        if schedule.shape != "rows" or len(self.brief) != len(fold.monoids) or self.few:
            self.brief = ()
        #: The register of a 1 that LLVM does not know, where sums are multiply-adds.
        self.unit = "%unit" if _adds_wide(fold, schedule) else ""
        #: Registers of infinities that LLVM does not know, by their constants.
        self.unknown = unknown_infinities(fold)
        #: Numbers that are the same for all lanes, by their addresses.
        self.loaded = dict[str, list[str]]()

    # -- pieces -----------------------------------------------------------------------------------

    def words(self) -> list[str]:
        """Lines that load all words, and the addresses of operands."""
        lines, constants = [], dict(self.schedule.constants)
        if self.unit:
            bits = int(np.float64(1).view("int64"))
            lines.append(f'%unit_bits = call i64 asm "", "=r,0"(i64 {bits})')
            lines.append(f"{self.unit} = bitcast i64 %unit_bits to double")
        lines += defined(self.unknown)
        for name, i in self.at_word.items():
            if name == "partial":
                lines += word("%partial", i, "ptr")
            elif name in self.named:
                lines += data_of(f"%{name}.data", i)
            elif name in constants:
                lines.append(f"%{name} = add i64 {constants[name]}, 0")
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

    def lane(self, base: str, name: str, j: str) -> str:
        """The address of lane ``j`` of an operand."""
        o = self.named[name]
        if o.inner == "one":
            return base
        if o.inner in ("dense", "turned") or o.inner.startswith(PACKED):
            return self.new(f"getelementptr i{o.bits}, ptr {base}, i64 {j}")
        if o.inner.startswith(EVERY):
            place = self.new(f"mul nsw i64 {j}, {o.inner.removeprefix(EVERY)}")
            return self.new(f"getelementptr i{o.bits}, ptr {base}, i64 {place}")
        return self.bytes_at(base, (j, f"%{name}.i"))

    def packs(self) -> dict[str, tuple[int, int]]:
        """Operands that are packed, with the bytes of their numbers and their steps."""
        return {
            n: (o.bits // 8, int(o.inner.split()[-1]))
            for n, o in self.named.items()
            if o.inner.startswith(PACKED)
        }

    def packed(self, bases: Sequence[str], begin: str, count: str) -> list[str]:
        """Addresses of the reads whose elements from ``begin`` on, of those that are packed, are
        in buffers."""
        found = list(bases)
        for i, name in enumerate(self.named):
            if name not in self.packs():
                continue
            size, step = self.packs()[name]
            source = self.new(
                f"getelementptr i{8 * size}, ptr {bases[i]}, i64 {self.affine(begin, step)}"
            )
            self.put(pack_call(size, step, source, f"%tile_{name}", count))
            back = self.minus(0, begin)
            found[i] = self.new(f"getelementptr i{8 * size}, ptr %tile_{name}, i64 {back}")
        return found

    def value(self, dtype: str, pointer: str, more: str = ACCESS) -> str:
        """Load a number, which no other iteration of a loop over lanes writes."""
        return super().value(dtype, pointer, more)

    def keep(
        self, dtype: str, value: str | Sequence[str], pointer: str, more: str = ACCESS
    ) -> None:
        """Store a number, or both parts of a complex one."""
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

    def started(self, monoids: Monoids = ()) -> list[str]:
        return [v for m in monoids or self.fold.monoids for v in self.program(m.start, [])]

    def by_monoid(self, states: Sequence[str], monoids: Monoids = ()) -> list[list[str]]:
        """The states of each monoid."""
        rest = iter(states)
        return [[next(rest) for _ in m.state] for m in monoids or self.fold.monoids]

    def stepped(
        self, states: Sequence[str], pointers: Sequence[str], first: str, lane: str = "0",
        monoids: Monoids = (), alone: bool = False,
    ) -> list[str]:  # fmt: skip
        """The states after the element at these addresses, whose number is ``first + lane``; of
        the fold's monoids or of these in their place. ``alone``: it is the first one."""
        monoids = monoids or self.fold.monoids
        inputs = [
            v
            for o, p in zip(self.schedule.reads, pointers, strict=True)
            for v in self.loaded.get(p) or self.parts_of(o.dtype, p, ACCESS)
        ]
        begun = len(self.lines)
        values = self.program(self.fold.program, inputs)
        self.lines[begun:] = hidden(self.lines[begun:], self.unknown)
        number = self.plus(first, lane)
        parts = [self.new(f"trunc i64 {v} to i32") for v in (first, lane)]
        narrow = self.new(f"add i32 {parts[0]}, {parts[1]}")
        found = []
        every = zip(
            monoids, self.by_monoid(states, monoids), self.fold.element_numbers(), strict=True
        )
        for m, own, taken in every:
            k = number if m.number == "int64" else narrow
            free = self.schedule.shape == "rows"
            unit = "" if alone else self.unit
            found += self.program(m.step, [*own, *(values[i] for i in taken), k], free, unit)
        return found

    def combined(
        self, a: Sequence[str], b: Sequence[str], monoids: Monoids = (), free: bool = False,
        unit: str = "",
    ) -> list[str]:  # fmt: skip
        """The states of two stretches together; ``free``: in any order. ``unit``: see
        :meth:`program`."""
        monoids = monoids or self.fold.monoids
        every = zip(monoids, self.by_monoid(a, monoids), self.by_monoid(b, monoids), strict=True)
        return [
            v for m, one, two in every for v in self.program(m.combine, [*one, *two], free, unit)
        ]

    def widened(self, states: Sequence[str], monoids: Monoids = ()) -> list[str]:
        """The states of the fold that those of :attr:`few` are, or of other such monoids."""
        monoids = monoids or self.few
        every = zip(monoids, self.by_monoid(states, monoids), strict=True)
        return [v for m, own in every for v in self.program(m.leave, own)]

    def places_of_best(self) -> list[str]:
        """Lines that allocate what :meth:`placed` writes."""
        best = [
            f"%best{i}_{n} = alloca {VALUES[d]}"
            for i, m in enumerate(self.fold.monoids)
            for n, d in enumerate(m.state)
        ]
        return best if self.sought else []

    def placed(
        self, sofar: Sequence[str], values: Sequence[str], line: str, begin: str, end: str,
        first: str,
    ) -> list[str]:  # fmt: skip
        """The states with a part of a line: :attr:`sought` has found these values in it.

        Element 0 of the line has the number ``first``.
        """
        found, name = [], self.named["x0"].dtype
        every = zip(
            self.fold.monoids,
            self.by_monoid(sofar),
            self.by_monoid(values, self.sought),
            strict=True,
        )
        for i, (m, own, (value,)) in enumerate(every):
            if m.sought is None:
                found += self.program(m.combine, [*own, value], free=True)
                continue
            kinds, slots = [VALUES[d] for d in m.state], [f"%best{i}_{n}" for n in range(2)]
            for kind, v, slot in zip(kinds, own, slots, strict=True):
                self.put(f"store {kind} {v}, ptr {slot}")
            last = str(np.iinfo(m.number).max)  # a tie is not better
            _, number = self.program(m.combine, [*own, value, last])

            def look(m: Monoid = m, value: str = value, slots: list[str] = slots) -> None:
                place = self._place_of(m, value, line, begin, end)
                (element,) = self.parts_of(name, self.lane(line, "x0", place), ACCESS)
                b = Builder([name])
                (best,) = self.program(b.program([b.cast(b.input(0), m.state[0])]), [element])
                at = self.plus(first, place)
                at = at if m.number == "int64" else self.new(f"trunc i64 {at} to i32")
                for d, v, slot in zip(m.state, (best, at), slots, strict=True):
                    self.put(f"store {VALUES[d]} {v}, ptr {slot}")

            better = self.new(f"icmp eq {kinds[1]} {number}, {last}")
            with self.when(self.tag(), better):
                look()
            found += [self.new(f"load {k}, ptr {s}") for k, s in zip(kinds, slots, strict=True)]
        return found

    def _place_of(self, m: Monoid, value: str, line: str, begin: str, end: str) -> str:
        """The number in the line of the first element from ``begin`` on that is this value."""
        kind = VALUES[m.state[0]]
        if not TensorType(m.state[0]).is_float:
            return self._first_place(m, f"icmp eq {kind}", value, line, begin, end)
        tag, places = self.tag(), []

        def look(none: bool, _: str) -> None:
            test, sought = ("fcmp uno", "0.0") if none else ("fcmp oeq", value)
            place = self._first_place(m, f"{test} {kind}", sought, line, begin, end)
            places.append(f"[{place}, %{self.block}]")

        self.choose(tag, self.new(f"fcmp uno {kind} {value}, {value}"), look)
        return self.new(f"phi i64 {', '.join(places)}")

    def _first_place(
        self, m: Monoid, test: str, sought: str, line: str, begin: str, end: str
    ) -> str:
        """The number in the line of the first element from ``begin`` on that passes a test."""
        dtype, tag = self.named["x0"].dtype, self.tag()
        count = min(SOUGHT, _BYTES_SOUGHT // numpy_dtype(m.state[0]).itemsize)
        word, kind = test.rsplit(" ", 1)
        vector, flags, before = f"<{count} x {kind}>", f"<{count} x i1>", self.block
        sought = self._splat(count, kind, sought)
        self.put(f"br label %look{tag}")
        self.label(f"look{tag}")
        self.put(f"%at{tag} = phi i64 [{begin}, %{before}], [%further{tag}, %on{tag}]")
        # The last elements begin early enough to be as many: those before are worse.
        first = self.least(f"%at{tag}", self.minus("%n", count))
        x = self._together(dtype, count, vector, self.lane(line, "x0", first))
        same = self.new(f"{word} {vector} {x}, {sought}")
        bits = self.new(f"bitcast {flags} {same} to i{count}")
        found = self.new(f"icmp ne i{count} {bits}, 0")
        self.put(f"br i1 {found}, label %there{tag}, label %on{tag}")
        self.label(f"on{tag}")
        self.put(f"%further{tag} = add i64 %at{tag}, {count}")
        more = self.new(f"icmp slt i64 %further{tag}, {end}")
        self.put(f"br i1 {more}, label %look{tag}, label %there{tag}, !llvm.loop {AROUND}")
        self.label(f"there{tag}")
        self.declared.add(f"declare i{count} @llvm.cttz.i{count}(i{count}, i1)")
        zeros = self.new(f"call i{count} @llvm.cttz.i{count}(i{count} {bits}, i1 false)")
        if count < 64:
            zeros = self.new(f"zext i{count} {zeros} to i64")
        return self.plus(first, zeros)

    def _together(self, dtype: str, count: int, vector: str, pointer: str) -> str:
        """Neighbours in memory, in the dtype of extremes."""
        size = numpy_dtype(dtype).itemsize
        stored = {"bfloat16": "i16", "float16": "half"}.get(dtype, STORED[dtype])
        x = self.new(f"load <{count} x {stored}>, ptr {pointer}, align {size}")
        if dtype == "float16":
            return self.new(f"fpext <{count} x half> {x} to {vector}")
        if dtype != "bfloat16":
            return x
        words = f"<{count} x i32>"
        high = self.new(f"zext <{count} x i16> {x} to {words}")
        high = self.new(f"shl {words} {high}, {self._splat(count, 'i32', '16')}")
        return self.new(f"bitcast {words} {high} to {vector}")

    def _splat(self, count: int, kind: str, value: str) -> str:
        vector, lanes = f"<{count} x {kind}>", f"<{count} x i32>"
        one = self.new(f"insertelement {vector} poison, {kind} {value}, i64 0")
        return self.new(f"shufflevector {vector} {one}, {vector} poison, {lanes} zeroinitializer")

    def left(self, states: Sequence[str], pointers: Sequence[str]) -> None:
        """Write the results of states to these addresses."""
        every = zip(self.fold.monoids, self.by_monoid(states), strict=True)
        values = [v for m, own in every for v in self.program(m.leave, own)]
        writes = self.schedule.writes
        shown = dealt([o.dtype for o in writes], values)
        for o, v, p in zip(writes, shown, pointers, strict=True):
            self.keep(o.dtype, v, p)

    def begun(self, count: str) -> None:
        """Append the loop over lanes that sets their states to those of no elements."""
        first = self.started()
        with self.over_lanes(count, brief=not count.isdigit()) as j:
            self.hold(first, j)

    def load_once(self, pointers: Sequence[str]) -> None:
        """Load the reads at these addresses that are the same for all lanes."""
        for o, p in zip(self.schedule.reads, pointers, strict=True):
            if o.inner == "one":
                self.loaded[p] = [*self.parts_of(o.dtype, p, ACCESS)]

    def in_registers(self, lanes: int) -> bool:
        """Whether so many lanes are few enough for registers."""
        return lanes <= _LANES_IN_REGISTERS

    def over_lanes(
        self, count: str, brief: bool = False, wide: bool = False
    ) -> AbstractContextManager[str]:
        """A loop over lanes 0 to below ``count``; ``brief``: in which little of the time goes;
        ``wide``: over elements.

        A few lanes, of a constant number, are in registers: LLVM writes out all loops over them.
        """

        few = count.isdigit() and self.in_registers(int(count))
        way: bool | str = BRIEF if brief and not few else True
        way = WIDE if wide and self.wide and not few else way
        return self.each(self.tag(), 0, count, parallel=way)

    def bases(self, kind: str, outer: str, first: str = "0") -> list[str]:
        """Addresses of the reads (``x``) or writes (``y``) at an outer index and a first lane."""
        indices = self.split(outer, "k", self.schedule.kept)
        names = [n for n in self.named if n[0] == kind]
        found = []
        for n in names:
            base = self.moved(self.bytes_at(f"%{n}.data", f"%{n}.o"), n, "k", indices)
            found.append(self.bytes_at(base, (first, f"%{n}.i")))
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
        low = self.times(chunk, "%Q")
        return low, self.least(self.plus(low, "%Q"), "%QT")

    # -- tiles ------------------------------------------------------------------------------------

    def whole_vectors(self, count: str) -> str:
        """So many lanes, or up to whole vectors if all operands are in tiles.

        What is left of lanes would be computed one by one. Nobody reads those that are too many.
        """
        kinds = [o.inner for n, o in self.named.items() if n[0] == "x"]
        tiles = all(k in ("one", "turned") or k.startswith(PACKED) for k in kinds)
        if not tiles or not self.schedule.rows or self.schedule.meet:
            return count
        more = self.plus(count, _WHOLE_LANES - 1)
        return self.new(f"and i64 {more}, {-_WHOLE_LANES}")

    def at_row(self, kind: str, bases: Sequence[str], row: str) -> list[str]:
        """Addresses of the reads or writes so many rows on."""
        names = [n for n in self.named if n[0] == kind]
        return [
            self.bytes_at(base, self.times(row, self.row_step(n)))
            for base, n in zip(bases, names, strict=True)
        ]

    def row_step(self, name: str) -> str:
        """Bytes from one row of columns to the next, in a tile where an operand is turned."""
        o = self.named[name]
        tile = o.inner == "turned" or name in self.packs()
        return str(self.schedule.lanes * o.bits // 8) if tile else f"%{name}.s"

    def tiled(self, bases: Sequence[str], count: str, length: str) -> list[str]:
        """Addresses of the first row of the reads, after those that are turned or packed are in
        tiles."""
        found = []
        for base, (name, o) in zip(bases, self.named.items()):
            if o.inner == "turned":
                given = f"ptr {base}, i64 %{name}.i, ptr %tile_{name}, i64 {self.row_step(name)}"
                self.put(f"call void @tile{o.bits}({given}, i64 {count}, i64 {length})")
                base = f"%tile_{name}"
            if name in self.packs():
                self.pack_rows(name, base, count, length)
                base = f"%tile_{name}"
            found.append(base)
        return found

    def pack_rows(self, name: str, base: str, count: str, length: str) -> None:
        """Append the loop that packs rows of an operand into its tile."""
        size, step = self.packs()[name]
        with self.each(self.tag(), 0, length) as k:
            source = self.bytes_at(base, (k, f"%{name}.s"))
            to = self.bytes_at(f"%tile_{name}", self.times(k, self.schedule.lanes * size))
            self.put(pack_call(size, step, source, to, count))
