"""LLVM IR of gathers: elements whose place in some axes is read from index arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from symdnn.cpu.elementwise.indexed_ir import LANES_OF_TASK, GatherPlan, IndexedBuilder
from symdnn.cpu.ir.loops_ir import ACCESS, COPY_ROW
from symdnn.graph.type import numpy_dtype


def gather_ir(plan: GatherPlan) -> str:
    """The module of ``kernel``, which reads elements, or only looks at the indices."""
    rows = _GatherBuilder(plan)
    rows.loops()
    return rows.task_module(*COPY_ROW)


class _GatherBuilder(IndexedBuilder):
    """Builds the function of tasks.

    A task is a part of the lanes at one index of the other axes, or at several.
    """

    def loops(self) -> None:
        """Append the function ``rows`` but its end."""
        plan, entry = self.plan, list[str]()
        if plan.what == "gather":
            entry += [
                f"%right{k} = alloca [{LANES_OF_TASK} x i64], align 64"
                for k, o in enumerate(plan.index)
                if o.inner != "one"
            ]
        self.begin(entry)
        part, first, count = self.part("%r")
        count = str(plan.lanes) if plan.lanes else count
        if plan.in_lines:
            self._rows_of_line(part)
            return
        low = self.times(part, "%each")
        rows = self.least(self.minus("%rows", low), "%each")
        self._gather(lambda i: self.begun(self.plus(low, i), first), rows, count)

    def _rows_of_line(self, part: str) -> None:
        """Append code that copies short rows that follow one another along the last axis around
        them.

        It takes one division for all of them. Their indices are looked at first: those that count
        from the end, or are wrong, are rare.
        """
        plan, last = self.plan, self.plan.outer - 1
        if last:
            line, place = (
                self.new(f"udiv i64 {part}, %pieces"),
                self.new(f"urem i64 {part}, %pieces"),
            )
            ahead, n = self.times(place, "%each"), f"%n{last}"
            first = self.plus(self.times(line, n), ahead)
        else:
            ahead = first = self.times(part, "%each")
            n = "%rows"
        rows, begun = self.least(self.minus(n, ahead), "%each"), self.begun(first, "0")
        indices = range(len(plan.index))

        def row(i: str) -> dict[str, str]:
            found = {k: self.bytes_at(begun[k], (i, f"%{k}.k{last}")) for k in ("x", "y")}
            for k, kind in zip(indices, plan.in_lines, strict=True):
                found[f"a{k}"] = self.next(f"a{k}", kind, begun[f"a{k}"], i, f"%a{k}.k{last}")
            return found

        def look(i: str, sofar: list[str]) -> list[str]:
            return [self.strange(indices, row(i), None, sofar[0])]

        (strange,) = self.counted("look", 0, rows, look, ["0"], "i64", parallel=True)

        def either(plain: bool, _: str) -> None:
            with self.each(self.tag(), 0, rows) as i:
                at = row(i)
                if plain:
                    base = at["x"]
                    for k in indices:
                        base = self.bytes_at(base, (self.loaded(k, at[f"a{k}"]), f"%a{k}.step"))
                    self.copy_row(at["y"], base, plan.row_bytes)
                else:
                    self._row_alone(at, (), "")

        self.choose("all", self.new(f"icmp eq i64 {strange}, 0"), either)

    def _gather(self, begun: Callable[[str], dict[str, str]], rows: str, count: str) -> None:
        """Append code that gathers the lanes of rows, or checks their indices.

        Their indices along the lanes are the same, or joined. ``begun`` is where operands are in a
        row.
        """
        plan = self.plan
        varying = [k for k, o in enumerate(plan.index) if o.inner != "one"]

        def each_row(body: Callable[[dict[str, str], str], None]) -> None:
            with self.each(self.tag(), 0, rows) as i:
                ahead = self.times(i, count) if plan.joined else "0"
                body(begun(i), ahead)

        if plan.what == "check" or not varying:
            each_row(lambda at, _: self._row_alone(at, varying, count))
            return
        at, shared = begun("0"), count
        if plan.joined:
            shared = self.times(rows, count)
        # Indices that count from the end, or are wrong, are rare: without them there is less to do.
        run = _Run(self, varying[0], at, count) if self._may_run(varying) else None

        def look(i: str, sofar: list[str]) -> list[str]:
            found = self.strange(varying, at, i, sofar[0])
            return [found, *(run.follow(i, sofar[1:]) if run else ())]

        starts = ["0", "0", count] if run else ["0"]
        (strange, *ends) = self.counted("look", 0, shared, look, starts, "i64", parallel=True)

        def either(plain: bool, _: str) -> None:
            if not plain:
                self._put_right(varying, at, shared)
            each_row(lambda at, ahead: self._row(at, varying, count, plain, run, ends, ahead))

        self.choose("all", self.new(f"icmp eq i64 {strange}, 0"), either)

    def _put_right(self, varying: Sequence[int], begun: Mapping[str, str], count: str) -> None:
        """Append code that writes indices counted from the beginning into buffers for all rows.

        One out of range, which is reported, becomes 0.
        """

        def lane(i: str, sofar: list[str]) -> list[str]:
            wrong = sofar[0]
            for k in varying:
                number, wrong = self.sound(k, self.lane(f"a{k}", begun[f"a{k}"], i), wrong)
                place = self.new(f"getelementptr i64, ptr %right{k}, i64 {i}")
                self.put(f"store i64 {number}, ptr {place}{ACCESS}")
            return [wrong]

        self.report(*self.counted("right", 0, count, lane, ["0"], "i64", parallel=True))

    def _start_of_row(self, begun: Mapping[str, str]) -> tuple[str, str]:
        """Where the elements of a row are by the indices that do not change along it, and whether
        one of these is bad."""
        base, wrong = begun["x"], "0"
        for k, o in enumerate(self.plan.index):
            if o.inner == "one":
                offset, wrong = self.offset(k, begun[f"a{k}"], wrong)
                base = self.bytes_at(base, offset)
        return base, wrong

    def _row_alone(self, begun: Mapping[str, str], varying: Sequence[int], count: str) -> None:
        """Append code that copies a row of a gather, or checks its indices."""
        plan, (base, wrong) = self.plan, self._start_of_row(begun)
        bits = 8 * int(numpy_dtype(plan.indexed.dtype).itemsize)
        if plan.copies_rows:
            nbytes = plan.row_bytes or self.affine(count, bits // 8)
            self.copy_row(begun["y"], base, nbytes)
            self.report(wrong)
            return

        def element(i: str, sofar: list[str]) -> list[str]:
            bad = sofar[0]
            for k in varying:
                _, bad = self.sound(k, self.lane(f"a{k}", begun[f"a{k}"], i), bad)
            if plan.what == "gather":
                self._copy_element(self.lane("x", base, i), self.lane("y", begun["y"], i))
            return [bad]

        self.report(*self.counted(self.tag(), 0, count, element, [wrong], "i64", parallel=True))

    def _row(
        self, begun: Mapping[str, str], varying: Sequence[int], count: str, plain: bool,
        run: _Run | None, ends: Sequence[str], ahead: str,
    ) -> None:  # fmt: skip
        """Append code that gathers a row, by its indices or, unless ``plain``, those in buffers,
        in which so many are ahead of it."""
        base, wrong = self._start_of_row(begun)

        def each(low: int | str, high: str) -> None:
            # One load for each index is faster than vectors of them, but not several.
            with self.each(self.tag(), low, high, parallel=len(varying) > 1) as i:
                at = self.lane("x", base, i)
                for k in varying:
                    if plain:
                        number = self.loaded(k, self.lane(f"a{k}", begun[f"a{k}"], i))
                    else:
                        at_ = self.plus(ahead, i)
                        place = self.new(f"getelementptr i64, ptr %right{k}, i64 {at_}")
                        number = self.new(f"load i64, ptr {place}{ACCESS}")
                    at = self.along(k, at, number)
                self._copy_element(at, self.lane("y", begun["y"], i))

        if plain and run is not None:
            self._copy_run(run, base, begun["y"], ends, each)
        else:
            each(0, count)
        self.report(wrong)

    def _copy_element(self, source: str, to: str) -> None:
        size = int(numpy_dtype(self.plan.indexed.dtype).itemsize)
        kind, where = f"i{8 * size}", f", align {min(size, 8)}{ACCESS}"
        value = self.new(f"load {kind}, ptr {source}{where}")
        self.put(f"store {kind} {value}, ptr {to}{where}")

    def _may_run(self, varying: Sequence[int]) -> bool:
        """Whether consecutive indices select neighbours, as the lanes are."""
        plan = self.plan
        alone = plan.what == "gather" and len(varying) == 1 and plan.dense.inner == "dense"
        return alone and not plan.joined and plan.near[varying[0]] and plan.indexed.inner == "one"

    def _copy_run(
        self, run: _Run, base: str, to: str, ends: Sequence[str],
        each: Callable[[int | str, str], None],
    ) -> None:  # fmt: skip
        """Append the copy of a run that most lanes are in, and the loops around it."""
        low, high = ends
        bits = 8 * int(numpy_dtype(self.plan.indexed.dtype).itemsize)
        length = self.minus(high, low)
        most = self.new(f"icmp sge i64 {self.affine(length, 2)}, {run.count}")

        def either(copied: bool, _: str) -> None:
            if not copied:
                each(0, run.count)
                return
            with self.when("left", self.new(f"icmp sgt i64 {low}, 0")):
                each(0, low)
            number = self.plus(run.ahead, low)
            source = self.new(f"getelementptr i{bits}, ptr {base}, i64 {number}")
            self.copy_row(self.lane("y", to, low), source, self.affine(length, bits // 8))
            some = self.new(f"icmp slt i64 {high}, {run.count}")
            with self.when("right", some):
                each(high, run.count)

        self.choose("run", most, either)


class _Run:
    """The lanes around the middle one whose indices follow one another, as those of a pad do."""

    def __init__(self, code: _GatherBuilder, k: int, begun: Mapping[str, str], count: str) -> None:
        self._code, self._k, self._begun, self.count = code, k, begun, count
        self._middle = code.new(f"lshr i64 {count}, 1")
        #: How far the indices of the run are ahead of the lanes.
        self.ahead = self._ahead(self._middle)

    def _ahead(self, i: str) -> str:
        code, k = self._code, self._k
        number = code.loaded(k, code.lane(f"a{k}", self._begun[f"a{k}"], i))
        return code.new(f"sub i64 {number}, {i}")

    def follow(self, i: str, ends: Sequence[str]) -> list[str]:
        """The first lane and the one behind the last, as far as the lanes up to ``i`` say."""
        new = self._code.new
        in_it = new(f"icmp eq i64 {self._ahead(i)}, {self.ahead}")
        left = new(f"icmp slt i64 {i}, {self._middle}")
        behind, found = new(f"add i64 {i}, 1"), list[str]()
        low = new(f"select i1 {new(f'xor i1 {left}, true')}, i64 0, i64 {behind}")
        low = new(f"select i1 {in_it}, i64 0, i64 {low}")
        high = new(f"select i1 {new(f'or i1 {in_it}, {left}')}, i64 {self.count}, i64 {i}")
        more = new(f"icmp sgt i64 {low}, {ends[0]}")
        found.append(new(f"select i1 {more}, i64 {low}, i64 {ends[0]}"))
        return [*found, self._code.least(high, ends[1])]
