"""LLVM IR of rows that are read once: stages of folds over a row, then a result for each element.

The programs are those of :class:`~symdnn.ops.lowered.fused_rows.FusedRows`. Each stage goes over
the row again, which then is in the cache. There are two shapes of loops:

- rows: the innermost folded axis is contiguous. A task is a row, whose values are in registers. The
  length of short rows is a constant of the code.
- bands: a kept axis is contiguous. A task has up to 256 neighbouring rows as lanes, whose values
  are on the stack. The innermost loop is over lanes. Short contiguous rows are such bands too, of
  64 rows: they are transposed into tiles on the stack, and results back.

Both are loops of scalar code that LLVM vectorises for the processor at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from symdnn.cpu.ir.loops_ir import (
    ACCESS,
    METADATA,
    THREADS,
    data_of,
    in_wide_vectors,
    next_task,
    word,
)
from symdnn.cpu.ir.math_ir import definitions
from symdnn.cpu.ir.program_ir import LoopBuilder
from symdnn.cpu.ir.scalar_ir import VALUES, store_as
from symdnn.cpu.ir.turn_ir import TURN_BLOCK, turn_functions
from symdnn.cpu.nest.row_plan import FLAG, LINE, TURNED_LANES, RowPlan, row_words
from symdnn.graph.type import numpy_dtype
from symdnn.ops.core.scalar import Builder
from symdnn.ops.nest.kept_terms import kept_term

#: LLVM writes out short loops of constant length before it makes vectors of them. Where a few
#: operands are read that is as good; with parameters beside, a layer norm took twice as long.
_MANY = [
    *(m.replace("{!1, !2}", "{!1, !2, !3, !4}") for m in METADATA),
    '!3 = !{!"llvm.loop.unroll.disable"}',
    '!4 = !{!"llvm.loop.vectorize.followup_vectorized", !5}',
    '!5 = !{!"llvm.loop.isvectorized", i32 1}',
]
_STARTS = {"sum": "0.0", "max": "0xFFF0000000000000", "min": "0x7FF0000000000000"}


def row_stages_ir(plan: RowPlan) -> str:
    """The module of ``kernel``."""
    tasks = _RowStages(plan)
    tasks.text()
    lines, whole = tasks.lines, list(THREADS)
    if plan.op.sums is not None:
        whole = [line.replace("@kernel(", "@parts(") for line in THREADS]
        finish = _RowStages(plan)
        finish.finish()
        lines = [
            *lines, *finish.lines, "define void @kernel(ptr %w) {", "call void @parts(ptr %w)",
            "call void @finish(ptr %w)", "ret void", "}",
        ]  # fmt: skip
    last = _MANY if len(plan.reads) > plan.op.early else METADATA
    if (plan.work, plan.adds) == ("float32", "float64"):  # whose vectors would be half as wide
        last = in_wide_vectors(last)
    sizes = sorted({int(numpy_dtype(plan.dtype(n)).itemsize) for n in plan.turned})
    declared, turns = turn_functions((size, tile) for size in sizes for tile in (True, False))
    head = [*sorted(declared | tasks.declared), *definitions(tasks.helpers), *turns]
    return "\n".join([*head, *whole, *lines, *last]) + "\n"


class _RowStages(LoopBuilder):
    """Builds the functions of a plan; ``%w`` is the block of parameters.

    A value of a row is a register of rows, an array of bands.
    """

    def __init__(self, plan: RowPlan) -> None:
        super().__init__()
        self.plan, self.op = plan, plan.op
        self.kept = kept_term(plan.op, plan.work, plan.apart)
        self._arrays: list[str] = []
        if self.kept and plan.apart:
            self._arrays.append(f"%terms = alloca [{LINE} x {VALUES[plan.work]}], align 64")

    def entry(self) -> list[str]:
        """Lines that load all words, and the addresses of operands."""
        lines = []
        for i, name in enumerate(row_words(self.plan)):
            if name in self.plan.order:
                lines += data_of(f"%{name}.data", i)
            else:
                lines += word(f"%{name}", i, "ptr" if name == "partial" else "i64")
        return lines

    def text(self) -> None:
        """Append the function ``rows``."""
        at = len(self.lines)
        self.tasks([], "task")
        if self.op.sums is not None:
            self._group()
        else:
            self._row("%r")
        entry = [*self.entry(), *self._arrays]
        begin = self.lines.index("entry:", at) + 1
        self.lines[begin:begin] = entry
        self.put(*next_task("task"))

    # -- rows of a task ---------------------------------------------------------------------------

    def _group(self) -> None:
        """Append the rows of a task that adds over them; its sums are cleared before."""
        assert self.op.sums is not None
        entries = self.times("%count", len(self.op.sums.outputs))
        first = self.times("%r", entries)
        self._sums = self.new(f"getelementptr double, ptr %partial, i64 {first}")
        nbytes = self.affine(entries, 8)
        self.declared.add("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
        self.put(f"call void @llvm.memset.p0.i64(ptr {self._sums}, i8 0, i64 {nbytes}, i1 0)")
        ends = [self.times("%all", r) for r in ("%r", self.affine("%r", 1, 1))]
        low, high = (self.new(f"udiv i64 {end}, %tasks") for end in ends)
        with self.each("member", low, high) as r:
            self._row(r)

    def _row(self, number: str) -> None:
        """Append all stages of a row, or of a band of them."""
        plan, first, lead = self.plan, "0", number
        if plan.bands:
            lead, band = self.new(f"udiv i64 {number}, %JB"), self.new(f"urem i64 {number}, %JB")
            first = self.affine(band, plan.lanes)
            self._lanes = self.least(self.minus("%m", first), plan.lanes)
        places = self.split(lead, "k", plan.kept)
        self._first = {
            n: self._at(n, self.moved(f"%{n}.data", n, "k", places), first)
            for n in plan.names
            if n not in plan.turned
        }
        back = {n: self._tile(n, self.moved(f"%{n}.data", n, "k", places), first)
                for n in plan.turned}  # fmt: skip
        total = self.new("sitofp i64 %count to double")
        rows: list[str] = []
        for s, stage in enumerate(self.op.stages):
            sums = self._fold(s, rows)
            count = self._cast(total, "float64", self.plan.work)
            rows += self._once(
                lambda given, p=stage.rows, c=count: self.program(p, [*given, c]),  # type: ignore[misc]
                [*rows, *sums], len(stage.rows.outputs),
            )  # fmt: skip
        for i, row in zip(self.op.kept, (n for n in plan.order if n[0] == "r")):
            self._leave(row, rows[i])
        if self.op.after.outputs or self.op.sums is not None:
            self._after(rows)
        if plan.label:
            self._labelled()
        for n in (n for n in back if n[0] == "y"):
            self._turn("turn", n, (self._first[n], f"%{n}.i"), (back[n], f"%{n}.l"), False)

    def _tile(self, name: str, base: str, first: str) -> str:
        """Make the tile of an operand whose rows are turned; returns where its rows are."""
        rows = self.bytes_at(base, (first, f"%{name}.l"))
        kind, count = VALUES[self.plan.dtype(name)], -(-self.plan.length // TURN_BLOCK) * TURN_BLOCK
        tile = self._first[name] = f"%tile_{name}"
        self._arrays.append(f"{tile} = alloca [{count * TURNED_LANES} x {kind}], align 64")
        if name[0] == "x":
            self._turn("tile", name, (rows, f"%{name}.l"), (tile, f"%{name}.i"), True)
        return rows

    def _turn(
        self, function: str, name: str, source: tuple[str, str], target: tuple[str, str], to: bool
    ) -> None:
        """Append the call that turns rows into a tile, or back."""
        bits = 8 * int(numpy_dtype(self.plan.dtype(name)).itemsize)
        sizes = [self._lanes, str(self.plan.length)][:: 1 if to else -1]
        (a, step_a), (b, step_b) = source, target
        given = f"ptr {a}, i64 {step_a}, ptr {b}, i64 {step_b}"
        self.put(f"call void @{function}{bits}({given}, i64 {sizes[0]}, i64 {sizes[1]})")

    def _at(self, name: str, base: str, index: str) -> str:
        """The address of so many rows (of bands) or elements on."""
        if index == "0" or self.plan.kind_of(name) == "one":
            return base
        if self.plan.kind_of(name) == "dense":
            bits = 8 * int(numpy_dtype(self.plan.dtype(name)).itemsize)
            return self.new(f"getelementptr i{bits}, ptr {base}, i64 {index}")
        return self.bytes_at(base, (index, f"%{name}.i"))

    # -- loops ------------------------------------------------------------------------------------

    def _elements(
        self, body: Callable[[dict[str, str], str, list[str]], list[str]],
        carried: Sequence[str] = (), kinds: Sequence[str] = (),
    ) -> list[str]:  # fmt: skip
        """Loops over all elements of the task.

        ``body(addresses, lane or number of the element, values)`` returns the values carried on.
        """
        plan = self.plan
        names = [n for n in plan.names if n[0] in "xy"]

        def part(a: str, sofar: list[str]) -> list[str]:
            places = self.split(a, "a", plan.along)
            bases = {n: self.moved(self._first[n], n, "a", places) for n in names}
            number = self.times(a, "%n")

            def element(i: str, own: list[str]) -> list[str]:
                if plan.bands:
                    at = {n: self.bytes_at(b, (i, f"%{n}.i")) for n, b in bases.items()}
                    with self._over_lanes() as j:
                        body(self._all(at, j), j, [])
                    return own
                return body(self._all(bases, i), self.plus(number, i), own)

            high = str(plan.length or "%n")
            return self.counted(self.tag(), 0, high, element, sofar, kinds, parallel=not plan.bands)

        if not plan.along:
            return part("0", list(carried))
        return self.counted(self.tag(), 0, "%A", part, carried, kinds)

    def _all(self, bases: dict[str, str], index: str) -> dict[str, str]:
        return {n: self._at(n, b, index) for n, b in bases.items()}

    def _over_lanes(self) -> AbstractContextManager[str]:
        return self.each(self.tag(), 0, self._lanes, parallel=True)

    # -- values of rows ---------------------------------------------------------------------------

    def _array(self, dtype: str) -> str:
        name = f"%line{len(self._arrays)}"
        self._arrays.append(f"{name} = alloca [{self.plan.lanes} x {VALUES[dtype]}], align 64")
        return name

    def _hidden(self, array: str) -> str:
        """A copy of an array's address that LLVM takes for another: it would make a masked
        store of a choice between what is there and something new, which takes some processors 20
        cycles."""
        self._arrays.append(f'{array}_hidden = call ptr asm "", "=r,0"(ptr {array})')
        return f"{array}_hidden"

    def _slot(self, array: str, j: str, dtype: str) -> str:
        return self.new(f"getelementptr {VALUES[dtype]}, ptr {array}, i64 {j}")

    def _held(self, value: str, j: str, dtype: str = "") -> str:
        """A value of a row, in a loop over lanes or elements."""
        dtype = dtype or self.plan.work
        return self.value(dtype, self._slot(value, j, dtype), ACCESS) if self.plan.bands else value

    def _hold(self, array: str, value: str, j: str, dtype: str = "") -> None:
        dtype = dtype or self.plan.work
        self.put(*store_as(dtype, value, self._slot(array, j, dtype), ACCESS))

    def _once(
        self, make: Callable[[list[str]], list[str]], values: Sequence[str], count: int
    ) -> list[str]:
        """``count`` values of each row that follow from others."""
        if not self.plan.bands:
            return make(list(values))
        found = [self._array(self.plan.work) for _ in range(count)]
        with self._over_lanes() as j:
            results = make([self._held(v, j) for v in values])
            for array, v in zip(found, results, strict=True):
                self._hold(array, v, j)
        return found

    def _leave(self, name: str, value: str) -> None:
        """Store a value of each row where it is wanted."""
        dtype = self.plan.dtype(name)
        with self._over_lanes() if self.plan.bands else nullcontext("0") as j:
            v = self._cast(self._held(value, j), self.plan.work, dtype)
            self.put(*store_as(dtype, v, self._at(name, self._first[name], j)))

    def _cast(self, value: str, source: str, target: str) -> str:
        b = Builder([source])
        return self.program(b.program([b.cast(b.input(0), target)]), [value])[0]

    # -- stages -----------------------------------------------------------------------------------

    def _given(self, at: dict[str, str], rows: Sequence[str], j: str) -> list[str]:
        """What programs of an element take: values, row values, late inputs."""
        read = [self.value(o.dtype, at[f"x{i}"], ACCESS) for i, o in enumerate(self.plan.reads)]
        values = self.program(self.op.before, read[: self.op.early])
        return [*values, *(self._held(v, j) for v in rows), *read[self.op.early :]]

    def _state(self, kind: str) -> str:
        return self.plan.adds if kind == "sum" else self.plan.work

    def _fold(self, s: int, rows: Sequence[str]) -> list[str]:
        """The folds of a stage, in the dtype of row values."""
        stage = self.op.stages[s]
        kinds = [stage.kind(t) for t in range(len(stage.terms.outputs))]
        dtypes = [self._state(k) for k in kinds]
        starts = [_STARTS[k] for k in kinds]
        arrays = [self._array(d) for d in dtypes] if self.plan.bands else []
        hidden = [self._hidden(a) for a in arrays]
        if arrays:
            with self._over_lanes() as j:
                self._hold_all(hidden, starts, j, dtypes)

        def body(at: dict[str, str], j: str, own: list[str]) -> list[str]:
            terms = self.program(stage.terms, self._given(at, rows, j))
            if self.kept and self.kept[0] == s:
                place = self._kept_place(at, j)
                self.put(*store_as(self.plan.work, terms[self.kept[1]], place, ACCESS))
            before = [self._held(v, j, d) for v, d in zip(arrays, dtypes)] or own
            after = [self._folded(k, v, t) for k, v, t in zip(kinds, before, terms, strict=True)]
            self._hold_all(hidden, after, j, dtypes)
            return after

        found = arrays
        if arrays:
            self._elements(body)
        else:
            found = self._elements(body, starts, [VALUES[d] for d in dtypes])
        return [self._settled(v, d) for v, d in zip(found, dtypes)]

    def _hold_all(
        self, arrays: Sequence[str], values: Sequence[str], j: str, dtypes: Sequence[str]
    ) -> None:
        for array, v, d in zip(arrays, values, dtypes):
            self._hold(array, v, j, d)

    def _settled(self, value: str, dtype: str) -> str:
        """The result of a fold in the dtype of row values."""
        if dtype == self.plan.work:
            return value
        if not self.plan.bands:
            return self._cast(value, dtype, self.plan.work)
        found = self._array(self.plan.work)
        with self._over_lanes() as j:
            v = self._cast(self._held(value, j, dtype), dtype, self.plan.work)
            self._hold(found, v, j)
        return found

    def _folded(self, kind: str, state: str, term: str) -> str:
        dtype = self._state(kind)
        t, term = VALUES[dtype], self._cast(term, self.plan.work, dtype)
        if kind == "sum":
            return self.new(f"fadd reassoc {t} {state}, {term}")
        function = f"@llvm.{kind}imum.{'f64' if t == 'double' else 'f32'}"
        self.declared.add(f"declare {t} {function}({t}, {t})")
        return self.new(f"call nsz {t} {function}({t} {state}, {t} {term})")

    def _kept_place(self, at: dict[str, str], j: str) -> str:
        """Where the term of an element is kept."""
        return self._slot("%terms", j, self.plan.work) if self.plan.apart else at["y0"]

    def _after(self, rows: Sequence[str]) -> None:
        """Append the loop over elements that stores results, and adds over rows."""
        op, after = self.op, self.kept[2] if self.kept else self.op.after

        def body(at: dict[str, str], j: str, _: list[str]) -> list[str]:
            given = self._given(at, rows, j)
            sums = self.program(op.sums, given) if op.sums is not None else []
            if self.kept:
                given.append(self.value(self.plan.work, self._kept_place(at, j), ACCESS))
            for i, v in enumerate(self.program(after, given)):
                self.put(*store_as(after.output_dtypes[i], v, at[f"y{i}"], ACCESS))
            for i, v in enumerate(sums):
                start = self.times("%count", i)
                base = self.new(f"getelementptr double, ptr {self._sums}, i64 {start}")
                slot = self.new(f"getelementptr double, ptr {base}, i64 {j}")
                wide, sofar = (
                    self._cast(v, self.plan.work, "float64"),
                    self.value("float64", slot, ACCESS),
                )
                self.put(
                    f"store double {self.new(f'fadd double {sofar}, {wide}')}, ptr {slot}{ACCESS}"
                )
            return []

        self._elements(body)

    # -- sums over rows ---------------------------------------------------------------------------

    def finish(self) -> None:
        """Append the function ``finish``, which adds the sums of tasks in order."""
        assert self.op.sums is not None
        entries = len(self.op.sums.outputs)
        self.put("define internal void @finish(ptr %w) #0 {", "entry:", *self.entry())
        whole = self.times("%count", entries)
        for n in range(entries):
            first = self.times("%count", n)
            with self.each(f"column{n}", 0, "%count") as j:
                own = self.plus(first, j)

                def task(r: str, sofar: list[str], place: str = own) -> list[str]:
                    at = self.new(f"add i64 {self.new(f'mul i64 {r}, {whole}')}, {place}")
                    slot = self.new(f"getelementptr double, ptr %partial, i64 {at}")
                    return [self.new(f"fadd double {sofar[0]}, {self.value('float64', slot)}")]

                (total,) = self.counted(f"task{n}", 0, "%tasks", task, ["0.0"], "double")
                v = self._cast(total, "float64", self.plan.work)
                to = self.new(f"getelementptr {VALUES[self.plan.work]}, ptr %s{n}.data, i64 {j}")
                self.put(*store_as(self.plan.work, v, to))
        self.put("ret void", "}")

    # -- classes ----------------------------------------------------------------------------------

    def _labelled(self) -> None:
        """Append what the label of a row does, or that of each row of a band."""
        if not self.plan.turned:
            self._label_of("0")
            return
        with self.each("labelled", 0, self._lanes) as lane:
            self._label_of(lane)

    def _label_of(self, lane: str) -> None:
        """Append what a label does; one out of range sets the flag and becomes 0."""
        dtype, kind = self.plan.label, VALUES[self.plan.label]
        label = self.new(f"load {kind}, ptr {self._at('label', self._first['label'], lane)}")
        if kind != "i64":
            extend = "sext" if dtype.startswith("int") else "zext"
            label = self.new(f"{extend} {kind} {label} to i64")
        fine = self.new(f"icmp ult i64 {label}, %n")
        flag = self.new(f"getelementptr i64, ptr %w, i64 {FLAG}")
        bad = self.new(f"xor i1 {fine}, true")
        with self.when(self.tag(), bad):
            self.put(f"store atomic i64 1, ptr {flag} monotonic, align 8")
        label = self.new(f"select i1 {fine}, i64 {label}, i64 0")
        at = self._first["y0"]
        if self.plan.turned:
            at = self._at("y0", self.bytes_at(at, (label, "%y0.i")), lane)
        else:
            at = self._at("y0", at, label)
        own, work = self.plan.dtype("y0"), self.plan.work
        if "loss" in self.plan.order:
            b = Builder([own])
            loss = b.program([b.cast(-b.cast(b.input(0), work), own)])
            (v,) = self.program(loss, [self.value(own, at)])
            self.put(*store_as(own, v, self._at("loss", self._first["loss"], lane)))
            return
        b = Builder(self.op.after.inputs)
        given = [b.input(i) for i in range(len(b.inputs))]
        result = b.cast(b.inline(self.op.after, given)[0], work)  # not rounded yet
        less = b.program([b.cast(result - b.cast(given[-1], work), own)])
        element = {"x0": self._at("x0", self._first["x0"], label), "x1": self._first["x1"]}
        (v,) = self.program(less, self._given(element, [], "0"))
        self.put(*store_as(own, v, at))
