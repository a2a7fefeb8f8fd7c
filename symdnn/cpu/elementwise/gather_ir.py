"""LLVM IR of gathers and scatters: elements whose place in some axes is read from index arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from symdnn.cpu.ir.loops_ir import (
    ACCESS,
    COPY_ROW,
    METADATA,
    THREADS,
    LoopOperand,
    data_of,
    next_task,
    word,
)
from symdnn.cpu.ir.program_ir import LoopBuilder
from symdnn.cpu.ir.scalar_ir import STORED, VALUES
from symdnn.graph.type import numpy_dtype

__all__ = ["FLAG", "LANES_OF_TASK", "GatherPlan", "gather_ir", "gather_words"]

#: Index of the word that is set if an index is out of range.
FLAG = 3
#: The most elements along the lanes that a task has: their indices stay in the first cache.
LANES_OF_TASK = 1 << 11


@dataclass(frozen=True)
class GatherPlan:
    """The cache key of the text: the axes outside of the lanes, and the operands' strides along
    them.

    ``indexed`` is the operand along axes without an index (stride 0 along those of ``index``).
    ``what``: elements are read by ``gather``; ``add``, ``set``, ``max``, ``min`` and ``mul`` change
    them by ``dense``, in the order of the indices; ``check`` only looks at the indices. ``near``
    says of each index whether the next number is the next element in memory. ``row_bytes`` of short
    rows that are copied is a constant of the code, else 0. ``one_part``: lanes are not divided.
    """

    outer: int
    indexed: LoopOperand
    index: tuple[LoopOperand, ...]
    dense: LoopOperand
    what: str = "gather"
    near: tuple[bool, ...] = ()
    row_bytes: int = 0
    one_part: bool = False

    @property
    def named(self) -> list[tuple[str, LoopOperand]]:
        """Operands with their names."""
        arrays = [(f"a{k}", o) for k, o in enumerate(self.index)]
        return [("x", self.indexed), *arrays, ("y", self.dense)]

    @property
    def changes(self) -> bool:
        """Whether indexed elements are written."""
        return self.what not in ("gather", "check")

    @property
    def copies_rows(self) -> bool:
        """Whether operands are contiguous along the lanes, so that they are copied as blocks."""
        kinds = self.what, self.indexed.inner, self.dense.inner
        return kinds == ("gather", "dense", "dense") and all(o.inner == "one" for o in self.index)


def gather_words(plan: GatherPlan) -> list[str]:
    """Names of the words of the block.

    There are ``n`` lanes, in ``parts``, and ``all`` parts of lanes in ``rows``, of which a task has
    ``each``. An index array has the ``size``
    of its axis, and the ``step`` from one of its elements to the next.
    """
    names = ["threads", "tasks", "one", "flag", "n", "parts", "all", "rows", "each"]
    names += [f"n{d}" for d in range(1, plan.outer)]
    for name, _ in plan.named:
        names += [name, f"{name}.i", *(f"{name}.k{d}" for d in range(plan.outer))]
    return names + [f"a{k}.{what}" for k in range(len(plan.index)) for what in ("size", "step")]


def gather_ir(plan: GatherPlan) -> str:
    """The module of ``kernel``."""
    rows = _GatherBuilder(plan)
    rows.loops()
    return "\n".join([*COPY_ROW, *THREADS, *rows.lines, *next_task("task"), *METADATA]) + "\n"


class _GatherBuilder(LoopBuilder):
    """Builds the function of tasks.

    A task is a part of the lanes at one index of the other axes, or at several. If elements are
    updated, a task has an equal share of the first index array's axis and visits all lanes. So one
    thread updates an element, in the order of the indices.
    """

    def __init__(self, plan: GatherPlan) -> None:
        super().__init__()
        self.plan = plan

    def loops(self) -> None:
        """Append the function ``rows`` but its end."""
        plan, operands = self.plan, dict(self.plan.named)
        entry = []
        for i, name in enumerate(gather_words(plan)):
            entry += data_of(f"%{name}.data", i) if name in operands else word(f"%{name}", i)
        if plan.what == "gather":
            entry += [
                f"%right{k} = alloca [{LANES_OF_TASK} x i64], align 64"
                for k, o in enumerate(plan.index)
                if o.inner != "one"
            ]
        self.tasks(entry, "task")
        if not plan.changes:
            self._part("%r")
            return
        shares = [self.new(f"mul i64 {r}, %a0.size") for r in ("%r", self.affine("%r", 1, 1))]
        self._low, high = (self.new(f"udiv i64 {share}, %tasks") for share in shares)
        self._share = self.new(f"sub i64 {high}, {self._low}")

        def every(part: str, _: list[str]) -> list[str]:
            self._part(part)
            return []

        self.counted("part", 0, "%all", every)

    def _part(self, number: str) -> None:
        """Append the work on a part of the lanes at an index of the other axes."""
        plan = self.plan
        rest, first, count = number, "0", "%n"
        if not plan.one_part:  # a division takes as long as the copy of a short row
            rest = self.new(f"udiv i64 {number}, %parts")
            first = self.affine(self.new(f"urem i64 {number}, %parts"), LANES_OF_TASK)
            count = self.least(self.new(f"sub i64 %n, {first}"), str(LANES_OF_TASK))

        def begun(row: str) -> dict[str, str]:
            places = {"i": first}
            places |= {f"k{d}": i for d, i in enumerate(self.split(row, "", plan.outer))}
            return {name: self.stepped_to(f"%{name}.data", name, places) for name, _ in plan.named}

        if plan.changes:
            self._change(begun(rest), count)
            return
        low = self.new(f"mul i64 {rest}, %each")
        rows = self.least(self.new(f"sub i64 %rows, {low}"), "%each")
        self._gather(begun, low, rows, count)

    def _report(self, wrong: str) -> None:
        """Append code that sets the flag if a number is not 0."""
        some = self.new(f"icmp ne i64 {wrong}, 0")
        flag = self.new(f"getelementptr i64, ptr %w, i64 {FLAG}")
        self.when(
            self.tag(), some, lambda: self.put(f"store atomic i64 1, ptr {flag} monotonic, align 8")
        )

    def _change(self, begun: dict[str, str], count: str) -> None:
        """Append code that adds or sets the lanes whose first index is in this task's share."""
        plan, base = self.plan, begun["x"]
        kinds = enumerate(plan.index)
        alone, varying = list[int](), list[int]()
        for k, o in kinds:
            (alone if o.inner == "one" else varying).append(k)
        fixed = {k: self._number(k, begun[f"a{k}"])[0] for k in alone}
        # Lanes are different elements unless an index has them, or the same one is meant by all.
        parallel = not varying and plan.indexed.inner != "one"

        def lanes() -> None:
            start = base
            for k, number in fixed.items():
                start = self.bytes_at(start, self.new(f"mul i64 {number}, %a{k}.step"))

            def element(i: str, _: list[str]) -> list[str]:
                y = self.lane("y", begun["y"], i)
                numbers = {k: self._number(k, self.lane(f"a{k}", begun[f"a{k}"], i))[0]
                           for k in varying}  # fmt: skip

                def touch() -> None:
                    at = self.lane("x", start, i)
                    for k, number in numbers.items():
                        at = self._along(k, at, number)
                    self._touch(at, y, ACCESS if parallel else "")

                if 0 in numbers:
                    self.when("own", self._is_own(numbers[0]), touch)
                else:
                    touch()
                return []

            self.counted("lane", 0, count, element, parallel=parallel)

        if 0 in fixed:
            self.when("own", self._is_own(fixed[0]), lanes)
        else:
            lanes()

    def _is_own(self, number: str) -> str:
        """Whether this task changes the elements at this number along the first index's axis."""
        return self.new(f"icmp ult i64 {self.new(f'sub i64 {number}, {self._low}')}, {self._share}")

    def _gather(
        self, begun: Callable[[str], dict[str, str]], low: str, rows: str, count: str
    ) -> None:
        """Append code that gathers the lanes of rows from ``low``, or checks their indices.

        Their indices along the lanes are the same.
        """
        plan = self.plan
        varying = [k for k, o in enumerate(plan.index) if o.inner != "one"]

        def each_row(body: Callable[[dict[str, str]], None]) -> None:
            def row(i: str, _: list[str]) -> list[str]:
                body(begun(self.new(f"add i64 {low}, {i}")))
                return []

            self.counted(self.tag(), 0, rows, row)

        if plan.what == "check" or not varying:
            each_row(lambda at: self._row_alone(at, varying, count))
            return
        at = begun(low)
        # Indices that count from the end, or are wrong, are rare: without them there is less to do.
        run = _Run(self, varying[0], at, count) if self._may_run(varying) else None

        def look(i: str, sofar: list[str]) -> list[str]:
            found = self._strange(varying, at, i, sofar[0])
            return [found, *(run.follow(i, sofar[1:]) if run else ())]

        starts = ["0", "0", count] if run else ["0"]
        (strange, *ends) = self.counted("look", 0, count, look, starts, "i64", parallel=True)

        def either(plain: bool, _: str) -> None:
            if not plain:
                self._put_right(varying, at, count)
            each_row(lambda at: self._row(at, varying, count, plain, run, ends))

        self.choose("all", self.new(f"icmp eq i64 {strange}, 0"), either)

    def _put_right(self, varying: Sequence[int], begun: Mapping[str, str], count: str) -> None:
        """Append code that writes indices counted from the beginning into buffers for all rows.

        One out of range, which is reported, becomes 0.
        """

        def lane(i: str, sofar: list[str]) -> list[str]:
            wrong = sofar[0]
            for k in varying:
                number, wrong = self._sound(k, self.lane(f"a{k}", begun[f"a{k}"], i), wrong)
                place = self.new(f"getelementptr i64, ptr %right{k}, i64 {i}")
                self.put(f"store i64 {number}, ptr {place}{ACCESS}")
            return [wrong]

        self._report(*self.counted("right", 0, count, lane, ["0"], "i64", parallel=True))

    def _start_of_row(self, begun: Mapping[str, str]) -> tuple[str, str]:
        """Where the elements of a row are by the indices that do not change along it, and whether
        one of these is bad."""
        base, wrong = begun["x"], "0"
        for k, o in enumerate(self.plan.index):
            if o.inner == "one":
                offset, wrong = self._offset(k, begun[f"a{k}"], wrong)
                base = self.bytes_at(base, offset)
        return base, wrong

    def _row_alone(self, begun: Mapping[str, str], varying: Sequence[int], count: str) -> None:
        """Append code that copies a row of a gather, or checks its indices."""
        plan, (base, wrong) = self.plan, self._start_of_row(begun)
        bits = 8 * int(numpy_dtype(plan.indexed.dtype).itemsize)
        if plan.copies_rows:
            nbytes = plan.row_bytes or self.affine(count, bits // 8)
            self.copy_row(begun["y"], base, nbytes)
            self._report(wrong)
            return

        def element(i: str, sofar: list[str]) -> list[str]:
            bad = sofar[0]
            for k in varying:
                _, bad = self._sound(k, self.lane(f"a{k}", begun[f"a{k}"], i), bad)
            if plan.what == "gather":
                self._copy_element(self.lane("x", base, i), self.lane("y", begun["y"], i))
            return [bad]

        self._report(*self.counted(self.tag(), 0, count, element, [wrong], "i64", parallel=True))

    def _row(
        self, begun: Mapping[str, str], varying: Sequence[int], count: str, plain: bool,
        run: _Run | None, ends: Sequence[str],
    ) -> None:  # fmt: skip
        """Append code that gathers a row, by its indices or, unless ``plain``, those in buffers."""
        base, wrong = self._start_of_row(begun)

        def element(i: str, _: list[str]) -> list[str]:
            at = self.lane("x", base, i)
            for k in varying:
                if plain:
                    number = self.loaded(k, self.lane(f"a{k}", begun[f"a{k}"], i))
                else:
                    place = self.new(f"getelementptr i64, ptr %right{k}, i64 {i}")
                    number = self.new(f"load i64, ptr {place}{ACCESS}")
                at = self._along(k, at, number)
            self._copy_element(at, self.lane("y", begun["y"], i))
            return []

        def each(low: int | str, high: str) -> None:
            # One load for each index is faster than vectors of them, but not several.
            self.counted(self.tag(), low, high, element, parallel=len(varying) > 1)

        if plain and run is not None:
            self._copy_run(run, base, begun["y"], ends, each)
        else:
            each(0, count)
        self._report(wrong)

    def _copy_element(self, source: str, to: str) -> None:
        bits = 8 * int(numpy_dtype(self.plan.indexed.dtype).itemsize)
        value = self.new(f"load i{bits}, ptr {source}{ACCESS}")
        self.put(f"store i{bits} {value}, ptr {to}{ACCESS}")

    def _may_run(self, varying: Sequence[int]) -> bool:
        """Whether consecutive indices select neighbours, as the lanes are."""
        plan = self.plan
        alone = plan.what == "gather" and len(varying) == 1 and plan.dense.inner == "dense"
        return alone and plan.near[varying[0]] and plan.indexed.inner == "one"

    def _copy_run(
        self, run: _Run, base: str, to: str, ends: Sequence[str],
        each: Callable[[int | str, str], None],
    ) -> None:  # fmt: skip
        """Append the copy of a run that most lanes are in, and the loops around it."""
        low, high = ends
        bits = 8 * int(numpy_dtype(self.plan.indexed.dtype).itemsize)
        length = self.new(f"sub i64 {high}, {low}")
        most = self.new(f"icmp sge i64 {self.affine(length, 2)}, {run.count}")

        def either(copied: bool, _: str) -> None:
            if not copied:
                each(0, run.count)
                return
            self.when("left", self.new(f"icmp sgt i64 {low}, 0"), lambda: each(0, low))
            number = self.new(f"add i64 {run.ahead}, {low}")
            source = self.new(f"getelementptr i{bits}, ptr {base}, i64 {number}")
            self.copy_row(self.lane("y", to, low), source, self.affine(length, bits // 8))
            some = self.new(f"icmp slt i64 {high}, {run.count}")
            self.when("right", some, lambda: each(high, run.count))

        self.choose("run", most, either)

    def _strange(self, varying: Sequence[int], begun: Mapping[str, str], i: str, sofar: str) -> str:
        """A number that is not 0 if an index at a lane is below 0 or too large."""
        for k in varying:
            number = self.loaded(k, self.lane(f"a{k}", begun[f"a{k}"], i))
            outside = self.new(f"icmp uge i64 {number}, %a{k}.size")
            sofar = self.new(f"or i64 {sofar}, {self.new(f'zext i1 {outside} to i64')}")
        return sofar

    def _along(self, k: int, base: str, number: str) -> str:
        """The address of the element that an index selects."""
        if self.plan.near[k]:
            bits = 8 * int(numpy_dtype(self.plan.indexed.dtype).itemsize)
            return self.new(f"getelementptr i{bits}, ptr {base}, i64 {number}")
        return self.bytes_at(base, self.new(f"mul i64 {number}, %a{k}.step"))

    def _touch(self, at: str, y: str, more: str) -> None:
        """Append code that updates an indexed element with the dense one."""
        t, what = STORED[self.plan.dense.dtype], self.plan.what
        value = self.new(f"load {t}, ptr {y}{more}")
        if what != "set":
            old = self.new(f"load {t}, ptr {at}{more}")
            value = self._combined(t, old, value)
        self.put(f"store {t} {value}, ptr {at}{more}")

    def _combined(self, t: str, old: str, value: str) -> str:
        """The element that is stored for an old one and the dense one."""
        what, floats = self.plan.what, t in ("float", "double")
        if what in ("add", "mul"):
            return self.new(f"{'f' * floats}{what} {t} {old}, {value}")
        word = "gt" if what == "max" else "lt"
        if floats:  # NaN stays, and is taken
            beyond = self.new(f"fcmp o{word} {t} {value}, {old}")
            nan = self.new(f"fcmp uno {t} {value}, {value}")
            taken = self.new(f"or i1 {beyond}, {nan}")
        else:
            sign = "s" if self.plan.dense.dtype.startswith("int") else "u"
            taken = self.new(f"icmp {sign}{word} {t} {value}, {old}")
        return self.new(f"select i1 {taken}, {t} {value}, {t} {old}")

    def lane(self, name: str, base: str, i: str) -> str:
        """The address of lane ``i`` of an operand."""
        o = dict(self.plan.named)[name]
        if o.inner == "one":
            return base
        if o.inner == "dense":
            bits = 8 * int(numpy_dtype(o.dtype).itemsize)
            return self.new(f"getelementptr i{bits}, ptr {base}, i64 {i}")
        return self.bytes_at(base, self.new(f"mul i64 {i}, %{name}.i"))

    def _offset(self, k: int, place: str, wrong: str) -> tuple[str, str]:
        """The byte offset that the index at an address selects, and whether this or an earlier
        index is bad.

        A bad index selects element 0.
        """
        number, wrong = self._sound(k, place, wrong)
        return self.new(f"mul i64 {number}, %a{k}.step"), wrong

    def _sound(self, k: int, place: str, wrong: str) -> tuple[str, str]:
        """The index at an address, counted from the beginning, and whether it or an earlier one is
        bad; a bad one is 0."""
        number, fine = self._number(k, place)
        number = self.new(f"select i1 {fine}, i64 {number}, i64 0")
        bad = self.new(f"zext i1 {self.new(f'xor i1 {fine}, true')} to i64")
        return number, self.new(f"or i64 {wrong}, {bad}")

    def _number(self, k: int, place: str) -> tuple[str, str]:
        """The index at an address, counted from the beginning, and whether it is in range."""
        o, number = self.plan.index[k], self.loaded(k, place)
        if o.dtype.startswith("int"):
            negative = self.new(f"icmp slt i64 {number}, 0")
            from_end = self.new(f"add i64 {number}, %a{k}.size")
            number = self.new(f"select i1 {negative}, i64 {from_end}, i64 {number}")
        return number, self.new(f"icmp ult i64 {number}, %a{k}.size")

    def loaded(self, k: int, place: str) -> str:
        """The index at an address."""
        kind, dtype = VALUES[self.plan.index[k].dtype], self.plan.index[k].dtype
        number = self.new(f"load {kind}, ptr {place}{ACCESS}")
        extend = "sext" if dtype.startswith("int") else "zext"
        return number if kind == "i64" else self.new(f"{extend} {kind} {number} to i64")


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
