"""A loop of small steps as LLVM IR: one function that runs a stretch of the steps.

Its parameter is a block of words: 0 the first step, 1 the end of the stretch, 2 (written) the
number of steps done in all, 3 (written) whether the condition ended the loop, 4 (written) whether a
check failed, 5 the address of the larger buffers; then the address of each array of the caller.
Smaller buffers are on the stack, and LLVM keeps single numbers of them in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from symdnn.cpu.compiler import jit
from symdnn.cpu.ir.builder import PARALLEL
from symdnn.cpu.ir.loops_ir import ACCESS, METADATA, word
from symdnn.cpu.ir.math_ir import definitions
from symdnn.cpu.ir.scalar_ir import VALUES, literal, store_as
from symdnn.cpu.steps.products_ir import ProductBuilder, Tiles
from symdnn.cpu.steps.widths_ir import in_vectors, loop_kind, width_metadata
from symdnn.graph.type import numpy_dtype
from symdnn.graph.values.strides import merged
from symdnn.ops.core.scalar import Builder as ProgramBuilder
from symdnn.ops.nest.monoid import Monoid
from symdnn.ops.steps.statements import (
    Branch,
    Check,
    Folding,
    Index,
    LoopProgram,
    Map,
    Product,
    Repeat,
    Statement,
    View,
)

#: Words of the block; arrays begin at the last one.
DONE, ENDED, FAILED, SCRATCH, ARRAYS = 2, 3, 4, 5, 6
#: Buffers of more bytes are not on the stack.
_MOST_ON_STACK = 4096
_LINE = 64
#: The fewest and the most neighbouring results that a fold computes together, as vectors.
_FEWEST_ACROSS, _MOST_ACROSS = 4, 512


def large_buffers(program: LoopProgram) -> dict[int, int]:
    """The offset of each buffer that is not on the stack; the size of all is at -1."""
    found, at = {}, 0
    for i, size in enumerate(program.buffers):
        if size > _MOST_ON_STACK:
            found[i] = at
            at += -(-size // _LINE) * _LINE
    return {**found, -1: at}


def is_across(s: Folding) -> bool:
    """Whether neighbouring results of a fold are computed together, as vectors."""
    kept = [d for d in range(len(s.sizes)) if d not in s.along]
    if s.fold.scan or not kept or 0 in s.sizes or s.sizes[kept[-1]] < _FEWEST_ACROSS:
        return False
    own = [(v.steps[kept[-1]], numpy_dtype(v.dtype).itemsize) for v in s.reads if v.base]
    return (
        any(step for step, _ in own)
        and all(step in (0, size) for step, size in own)
        and all(v.steps[kept[-1]] == numpy_dtype(v.dtype).itemsize for v in s.writes)
    )


def steps_ir(program: LoopProgram) -> str:
    """The module of the function ``kernel`` of a program."""
    b = _StepBuilder()
    b.memory(program)
    b.put(*word("%first", 0), *word("%end", 1))
    b.block_of(program.before)
    first = b.new("icmp eq i64 %first, 0")
    b.choose("stretch", first, lambda yes, _: b.block_of(program.begin if yes else program.resume))
    b.own_loop(program.loop)
    b.block_of(program.after)
    b.put("ret void", "fail:", f"%failed_at = getelementptr i64, ptr %w, i64 {FAILED}",
          "store i64 1, ptr %failed_at", "ret void", "}")  # fmt: skip
    lines = [*sorted(b.declared), *definitions(b.helpers)]
    lines += ["define void @kernel(ptr %w) #0 {", "entry:", *b.reserved, *b.lines]
    return "\n".join([*lines, *METADATA, *width_metadata()]) + "\n"


_Body = Callable[[list[str], list[str]], None]


class _StepBuilder(ProductBuilder):
    """Builds the function; ``%a0`` are addresses of arrays, ``%b0`` of buffers, ``%t0`` indices."""

    def memory(self, program: LoopProgram) -> None:
        """Load addresses, and reserve buffers."""
        large = large_buffers(program)
        self.put(*word("%scratch", SCRATCH, "ptr"))
        for i in range(program.arrays):
            self.put(*word(f"%a{i}", ARRAYS + i, "ptr"))
        for i, size in enumerate(program.buffers):
            if i in large:
                self.put(f"%b{i} = getelementptr i8, ptr %scratch, i64 {large[i]}")
            else:
                self.put(f"%b{i} = alloca [{size} x i8], align {_LINE}")
        #: Lines that reserve memory for states of folds.
        self.reserved: list[str] = []
        self.in_vectors = in_vectors(program)
        #: Whether the loops of the statement that is written have widths.
        self.wide = False

    # -- places ---------------------------------------------------------------------------------

    def place(self, view: View) -> str:
        """The address of a view's first element."""
        base = self.bytes_at(f"%{view.base}", view.offset)
        for name, factor in view.moves:
            base = self.bytes_at(base, (f"%{name}", factor))
        return base

    def number(self, view: View, place: str = "", more: str = "") -> str:
        """The number at a place of a view; in a register."""
        if not view.base:
            return literal(view.literal, view.dtype)
        return self.value(view.dtype, place or self.place(view), more)

    def integer(self, view: View) -> str:
        """The integer of a view as one of 64 bits."""
        b = ProgramBuilder([view.dtype])
        program = b.program([b.cast(b.input(0), "int64")])
        return self.program(program, [self.number(view)])[0]

    def holds(self, view: View) -> str:
        """Whether the number of a view is not zero."""
        b = ProgramBuilder([view.dtype])
        program = b.program([b.cast(b.input(0), "bool")])
        return self.program(program, [self.number(view)])[0]

    def loops(
        self, sizes: Sequence[int], places: Sequence[str], steps: Sequence[Sequence[int]],
        body: _Body, parallel: Sequence[View] | None = None,
    ) -> None:  # fmt: skip
        """Nested loops; ``body(places, indices)`` writes what is inside of the innermost one.

        That one's iterations, over these views, are independent of each other if ``parallel``.
        """

        def inside(d: int, at: Sequence[str], indices: list[str]) -> None:
            if d == len(sizes):
                body(list(at), indices)
                return
            if sizes[d] == 1:
                inside(d + 1, at, [*indices, "0"])
                return

            last = parallel is not None and d == len(sizes) - 1
            kind = PARALLEL if last else ""
            if last and self.wide:
                kind = loop_kind(sizes[d], parallel or ())
            with self.each(self.tag(), 0, str(sizes[d]), parallel=kind) as i:
                moved = [
                    self.bytes_at(p, (i, s[d])) if s[d] and p else p
                    for p, s in zip(at, steps, strict=True)
                ]
                inside(d + 1, moved, [*indices, i])

        inside(0, places, [])

    # -- statements -----------------------------------------------------------------------------

    def block_of(self, block: Sequence[Statement]) -> None:
        """Write statements one after the other."""
        for s in block:
            self.wide = id(s) in self.in_vectors
            _WRITERS[type(s)](self, s)

    def map(self, s: Map) -> None:
        """Write an elementwise loop."""
        views = (*s.reads, *s.writes)
        sizes, steps = merged(s.shape, [v.steps for v in views])
        n = len(s.reads)
        places = [self.place(v) if v.base else "" for v in views]
        #: Numbers that all elements share.
        shared = {
            i: self.number(v, places[i])
            for i, v in enumerate(s.reads)
            if not v.base or (not any(steps[i]) and sizes != (1,))
        }

        def element(at: list[str], _: list[str]) -> None:
            given = [
                shared[i] if i in shared else self.number(v, at[i], ACCESS)
                for i, v in enumerate(s.reads)
            ]
            for v, p, value in zip(s.writes, at[n:], self.program(s.program, given), strict=True):
                self.keep(v.dtype, value, p, ACCESS)

        merged_views = [
            replace(v, shape=sizes, steps=tuple(k)) for v, k in zip(views, steps, strict=True)
        ]
        self.loops(sizes, places, steps, element, merged_views)

    def keep(self, dtype: str, value: str, place: str, more: str = "") -> None:
        """Store a number."""
        if dtype == "bool":
            wide = self.new(f"zext i1 {value} to i8")
            self.put(f"store i8 {wide}, ptr {place}{more}")
        else:
            self.put(*store_as(dtype, value, place, more))

    def folding(self, s: Folding) -> None:
        """Write a fold: loops over the kept axes, in them those over the folded ones.

        Where results are neighbours, and so are what they read, the innermost loop is over them.
        """
        if is_across(s):
            self._across(s)
            return
        views, n = (*s.reads, *s.writes), len(s.reads)
        kept = [d for d in range(len(s.sizes)) if d not in s.along]
        outer = [[v.steps[d] for d in kept] for v in views]
        inner = [[v.steps[d] for d in s.along] for v in views]
        places = [self.place(v) if v.base else "" for v in views]
        sizes = [s.sizes[d] for d in s.along]

        def line(at: list[str], _: list[str]) -> None:
            self._line(s, at, sizes, inner, n)

        self.loops([s.sizes[d] for d in kept], places, outer, line)

    def _across(self, s: Folding) -> None:
        views = (*s.reads, *s.writes)
        *outer, last = [d for d in range(len(s.sizes)) if d not in s.along]
        whole, rest = divmod(s.sizes[last], _MOST_ACROSS)
        steps = [[*(v.steps[d] for d in outer), v.steps[last] * _MOST_ACROSS] for v in views]
        places = [self.place(v) if v.base else "" for v in views]
        sizes = [s.sizes[d] for d in outer]
        if whole:
            self.loops([*sizes, whole], places, steps,
                       lambda at, _: self._neighbours(s, at, last, _MOST_ACROSS))  # fmt: skip
        if rest:
            begin = [
                self.bytes_at(p, str(k[-1] * whole)) if p and k[-1] * whole else p
                for p, k in zip(places, steps, strict=True)
            ]
            self.loops(sizes, begin, [k[:-1] for k in steps],
                       lambda at, _: self._neighbours(s, at, last, rest))  # fmt: skip

    def _state(self, dtype: str, count: int) -> str:
        """Memory for states of a fold, of its own: LLVM keeps what is small in registers."""
        name = f"%{self.tag()}"
        size = numpy_dtype(dtype).itemsize * count
        self.reserved.append(f"{name} = alloca [{size} x i8], align {_LINE}")
        return name

    def _neighbours(self, s: Folding, at: Sequence[str], last: int, count: int) -> None:
        """So many neighbouring results; their states are in memory while the fold goes on."""
        n, dtypes = len(s.reads), [d for m in s.fold.monoids for d in m.state]
        states = [self._state(d, count) for d in dtypes]
        own = [[numpy_dtype(d).itemsize] for d in dtypes]

        def each(places: Sequence[str], steps: Sequence[Sequence[int]], body: _Body) -> None:
            kinds = [View("", d) for d in (*dtypes, *(v.dtype for v in (*s.reads, *s.writes)))]
            self.loops([count], [*places, *states], [*steps, *own], body, kinds)

        def leave_states(values: Sequence[str], places: Sequence[str]) -> None:
            for d, value, place in zip(dtypes, values, places, strict=True):
                self.keep(d, value, place, ACCESS)

        def states_at(places: Sequence[str]) -> list[str]:
            return [self.value(d, p, ACCESS) for d, p in zip(dtypes, places, strict=True)]

        def begin(places: list[str], _: list[str]) -> None:
            leave_states([v for m in s.fold.monoids for v in self.program(m.start, [])], places)

        def end(places: list[str], _: list[str]) -> None:
            self._leave(s, states_at(places[len(s.writes) :]), places[: len(s.writes)], ACCESS)

        def entry(places: list[str], indices: list[str]) -> None:
            number = "0"
            for i, size in zip(indices, (s.sizes[d] for d in s.along), strict=True):
                number = self.new(f"add i64 {self.new(f'mul i64 {number}, {size}')}, {i}")
            shared = {
                i: self.number(v, places[i])
                for i, v in enumerate(s.reads)
                if not v.base or not v.steps[last]
            }

            def one(inside: list[str], _: list[str]) -> None:
                given = [
                    shared[i] if i in shared else self.number(v, inside[i], ACCESS)
                    for i, v in enumerate(s.reads)
                ]
                after = self._after(s, given, number, states_at(inside[n:]), free=False)
                leave_states(after, inside[n:])

            each(places, [[v.steps[last]] for v in s.reads], one)

        each([], [], begin)
        inner = [[v.steps[d] for d in s.along] for v in s.reads]
        self.loops([s.sizes[d] for d in s.along], at[:n], inner, entry)
        each(at[n:], [[v.steps[last]] for v in s.writes], end)

    def _line(
        self,
        s: Folding,
        at: list[str],
        sizes: Sequence[int],
        steps: Sequence[Sequence[int]],
        n: int,
    ) -> None:
        monoids = s.fold.monoids
        first = [v for m in monoids for v in self.program(m.start, [])]
        kinds = [VALUES[d] for m in monoids for d in m.state]
        free = not s.fold.scan

        def inside(d: int, places: list[str], number: str, state: list[str]) -> list[str]:
            if d == len(sizes):
                return self._taken(s, places, n, number, state, free)

            def one(i: str, state: list[str]) -> list[str]:
                moved = [
                    self.bytes_at(p, (i, k[d])) if k[d] and p else p
                    for p, k in zip(places, steps, strict=True)
                ]
                there = self.times(number, sizes[d]) if d else "0"
                return inside(d + 1, moved, self.plus(there, i), state)

            return self.counted(self.tag(), 0, str(sizes[d]), one, state, kinds)

        last = inside(0, at, "0", first)
        if not s.fold.scan:
            self._leave(s, last, at[n:])

    def _taken(
        self, s: Folding, places: list[str], n: int, number: str, state: list[str], free: bool
    ) -> list[str]:
        """The state after one more element; a scan's result is written."""
        given = [self.number(v, p) for v, p in zip(s.reads, places[:n], strict=True)]
        after = self._after(s, given, number, state, free)
        if s.fold.scan:
            self._leave(s, after if s.fold.scan == "inclusive" else state, places[n:])
        return after

    def _after(
        self, s: Folding, given: Sequence[str], number: str, state: Sequence[str], free: bool
    ) -> list[str]:
        elements = self.program(s.fold.program, given)
        after, at = [], 0
        for m, taken in zip(s.fold.monoids, s.fold.element_numbers(), strict=True):
            own = state[at : at + len(m.state)]
            at += len(m.state)
            told = self._numbered(m, number)
            after += self.program(m.step, [*own, *(elements[i] for i in taken), told], free)
        return after

    def _numbered(self, m: Monoid, number: str) -> str:
        kind = VALUES[m.number]
        return number if kind == "i64" else self.new(f"trunc i64 {number} to {kind}")

    def _leave(
        self, s: Folding, state: Sequence[str], places: Sequence[str], more: str = ""
    ) -> None:
        values, at = [], 0
        for m in s.fold.monoids:
            values += self.program(m.leave, state[at : at + len(m.state)])
            at += len(m.state)
        for v, value, place in zip(s.writes, values, places, strict=True):
            self.keep(v.dtype, value, place, more)

    def product(self, s: Product) -> None:
        """Write the products of stacks of matrices."""
        x, y, out = s.x, s.y, s.out
        dtype = out.dtype
        lanes = jit.vector_width() // (2 if dtype == "float64" else 1)
        (stack, m, k), n = x.shape, y.shape[2]
        tiles = Tiles(m, k, n, x.steps[1], x.steps[2], y.steps[1], out.steps[1])

        def one(at: list[str], _: list[str]) -> None:
            self.matrices(dtype, lanes, tiles, *at)

        steps = [[v.steps[0]] for v in (x, y, out)]
        self.loops([stack], [self.place(v) for v in (x, y, out)], steps, one)

    def index(self, s: Index) -> None:
        """Define an index; go to ``fail`` if it is out of range."""
        i, tag = self.integer(s.view), self.tag()
        below = self.new(f"icmp slt i64 {i}, 0")
        wrapped = self.plus(i, s.size)
        self.put(f"%{s.name} = select i1 {below}, i64 {wrapped}, i64 {i}")
        if s.checked:
            self._unless(self.new(f"icmp ult i64 %{s.name}, {s.size}"), tag)

    def check(self, s: Check) -> None:
        """Go to ``fail`` where a condition is false."""
        self._unless(self.holds(s.view), self.tag())

    def _unless(self, fine: str, tag: str) -> None:
        self.put(f"br i1 {fine}, label %{tag}_fine, label %fail")
        self.label(f"{tag}_fine")

    def branch(self, s: Branch) -> None:
        """Write a choice."""
        self.choose(
            self.tag(), self.holds(s.condition),
            lambda yes, _: self.block_of(s.yes if yes else s.no),
        )  # fmt: skip

    # -- loops ----------------------------------------------------------------------------------

    def own_loop(self, s: Repeat) -> None:
        """Write the program's loop, over the stretch that the caller gives."""
        steps, ended = self._steps(s, "%first", "%end")
        self.put(f"%done_at = getelementptr i64, ptr %w, i64 {DONE}",
                 f"store i64 {steps}, ptr %done_at",
                 f"%ended_at = getelementptr i64, ptr %w, i64 {ENDED}",
                 f"store i64 {ended}, ptr %ended_at")  # fmt: skip

    def repeat(self, s: Repeat) -> None:
        """Write a loop inside of a step."""
        assert s.count is not None
        if isinstance(s.count, int):
            steps, _ = self._steps(s, "0", str(s.count))
        else:
            tag, count = self.tag(), self.integer(s.count)
            before = self.block
            some = self.new(f"icmp sgt i64 {count}, 0")
            self.put(f"br i1 {some}, label %{tag}_some, label %{tag}_after")
            self.label(f"{tag}_some")
            found = self._bounded(s, count)
            last = self.block
            self.put(f"br label %{tag}_after")
            self.label(f"{tag}_after")
            steps = self.new(f"phi i64 [0, %{before}], [{found}, %{last}]")
        if s.done is not None:
            self.keep("int64", steps, self.place(s.done))

    def _bounded(self, s: Repeat, count: str) -> str:
        """A loop of so many steps; goes to ``fail`` where the loop has more than it may have."""
        if s.most is None:
            return self._steps(s, "0", count)[0]
        few = self.new(f"icmp sle i64 {count}, {s.most}")
        if s.until is None:
            self._unless(few, self.tag())
            return self._steps(s, "0", count)[0]
        high = self.new(f"select i1 {few}, i64 {count}, i64 {s.most}")
        found, ended = self._steps(s, "0", high)
        whole = self.new(f"trunc i64 {ended} to i1")
        self._unless(self.new(f"or i1 {few}, {whole}"), self.tag())
        return found

    def _steps(self, s: Repeat, low: str, high: str) -> tuple[str, str]:
        """A loop that runs at least once: (the index after its last step, 1 if ``until`` held)."""
        tag, before, index = self.tag(), self.block, f"%{s.name}"
        self.put(f"br label %{tag}_step")
        self.label(f"{tag}_step")
        at = len(self.lines)
        self.put("")
        self.block_of(s.body)
        self.block_of(s.after)
        following = self.new(f"add nsw i64 {index}, 1")
        stop = "false" if s.until is None else self.holds(s.until)
        more = self.new(f"icmp slt i64 {following}, {high}")
        on = self.new(f"select i1 {stop}, i1 false, i1 {more}")
        self.lines[at] = f"{index} = phi i64 [{low}, %{before}], [{following}, %{self.block}]"
        self.put(f"br i1 {on}, label %{tag}_step, label %{tag}_end")
        self.label(f"{tag}_end")
        return following, self.new(f"zext i1 {stop} to i64")


_WRITERS: dict[type, Callable[..., None]] = {
    Map: _StepBuilder.map, Folding: _StepBuilder.folding, Product: _StepBuilder.product,
    Index: _StepBuilder.index, Check: _StepBuilder.check, Branch: _StepBuilder.branch,
    Repeat: _StepBuilder.repeat,
}  # fmt: skip
