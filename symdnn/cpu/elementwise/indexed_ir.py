"""What gathers and scatters share: a plan's operands, and where the elements are that index arrays
select."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from symdnn.cpu.ir.loops_ir import (
    ACCESS,
    LoopOperand,
    data_of,
    word,
)
from symdnn.cpu.ir.program_ir import LoopBuilder
from symdnn.cpu.ir.scalar_ir import VALUES
from symdnn.graph.type import numpy_dtype

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
    them by ``dense``, in the order of the indices; ``count`` adds numbers to a vector, and so does
    ``tally``, whose indices are in range, by tables if it is ``short`` (see
    :mod:`~symdnn.cpu.elementwise.counts_ir`); ``check`` only looks at the indices. ``near`` says of
    each index whether the next number is the next element in memory. ``row_bytes`` of short rows
    that are copied is a constant of the code, else 0. ``one_part``: lanes are not divided.
    ``joined``: those indices of a task's rows that differ along the lanes are one run of memory.
    ``lanes`` of short rows is a constant of the code, else 0. ``in_lines``, if not empty: rows of
    ``row_bytes`` of a task follow one another along the last axis around them, which is cut into
    ``pieces``; the kinds of the index arrays' strides along it.
    """

    outer: int
    indexed: LoopOperand
    index: tuple[LoopOperand, ...]
    dense: LoopOperand
    what: str = "gather"
    near: tuple[bool, ...] = ()
    row_bytes: int = 0
    one_part: bool = False
    joined: bool = False
    lanes: int = 0
    in_lines: tuple[str, ...] = ()
    short: bool = False

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
    names = ["threads", "tasks", "one", "flag", "n", "parts", "all", "rows", "each", "pieces"]
    names += [f"n{d}" for d in range(1, plan.outer)]
    for name, _ in plan.named:
        names += [name, f"{name}.i", *(f"{name}.k{d}" for d in range(plan.outer))]
    return names + [f"a{k}.{what}" for k in range(len(plan.index)) for what in ("size", "step")]


class IndexedBuilder(LoopBuilder):
    """Builds the function of tasks: a part of the lanes at one index of the other axes."""

    def __init__(self, plan: GatherPlan) -> None:
        super().__init__()
        self.plan = plan

    def begin(self, more: Iterable[str] = ()) -> None:
        """Begin the function ``rows``: words in registers, the lines ``more``, a task."""
        operands, entry = dict(self.plan.named), list[str]()
        for i, name in enumerate(gather_words(self.plan)):
            entry += data_of(f"%{name}.data", i) if name in operands else word(f"%{name}", i)
        self.tasks([*entry, *more], "task")

    def part(self, number: str) -> tuple[str, str, str]:
        """Of a part of lanes: the index of the other axes, its first lane, and its lanes."""
        if self.plan.one_part:  # a division takes as long as the copy of a short row
            return number, "0", "%n"
        first = self.affine(self.new(f"urem i64 {number}, %parts"), LANES_OF_TASK)
        count = self.least(self.minus("%n", first), str(LANES_OF_TASK))
        return self.new(f"udiv i64 {number}, %parts"), first, count

    def begun(self, row: str, first: str) -> dict[str, str]:
        """Where operands are at an index of the other axes, and a lane."""
        places = {"i": first}
        places |= {f"k{d}": i for d, i in enumerate(self.split(row, "", self.plan.outer))}
        named = self.plan.named
        return {name: self.stepped_to(f"%{name}.data", name, places) for name, _ in named}

    def report(self, wrong: str) -> None:
        """Append code that sets the flag if a number is not 0."""
        some = self.new(f"icmp ne i64 {wrong}, 0")
        flag = self.new(f"getelementptr i64, ptr %w, i64 {FLAG}")
        with self.when(self.tag(), some):
            self.put(f"store atomic i64 1, ptr {flag} monotonic, align 8")

    def along(self, k: int, base: str, number: str) -> str:
        """The address of the element that an index selects."""
        if self.plan.near[k]:
            bits = 8 * int(numpy_dtype(self.plan.indexed.dtype).itemsize)
            return self.new(f"getelementptr i{bits}, ptr {base}, i64 {number}")
        return self.bytes_at(base, (number, f"%a{k}.step"))

    def lane(self, name: str, base: str, i: str) -> str:
        """The address of lane ``i`` of an operand."""
        return self.next(name, dict(self.plan.named)[name].inner, base, i, f"%{name}.i")

    def next(self, name: str, kind: str, base: str, i: str, step: str) -> str:
        """The address ``i`` elements of an operand further along an axis with this kind of step."""
        if kind == "one":
            return base
        if kind == "dense":
            bits = dict(self.plan.named)[name].bits
            return self.new(f"getelementptr i{bits}, ptr {base}, i64 {i}")
        return self.bytes_at(base, (i, step))

    def offset(self, k: int, place: str, wrong: str) -> tuple[str, str]:
        """The byte offset that the index at an address selects, and whether this or an earlier
        index is bad.

        A bad index selects element 0.
        """
        number, wrong = self.sound(k, place, wrong)
        return self.times(number, f"%a{k}.step"), wrong

    def sound(self, k: int, place: str, wrong: str) -> tuple[str, str]:
        """The index at an address, counted from the beginning, and whether it or an earlier one is
        bad; a bad one is 0."""
        number, fine = self.number(k, place)
        number = self.new(f"select i1 {fine}, i64 {number}, i64 0")
        bad = self.new(f"zext i1 {self.new(f'xor i1 {fine}, true')} to i64")
        return number, self.new(f"or i64 {wrong}, {bad}")

    def number(self, k: int, place: str) -> tuple[str, str]:
        """The index at an address, counted from the beginning, and whether it is in range."""
        o, number = self.plan.index[k], self.loaded(k, place)
        if o.dtype.startswith("int"):
            negative = self.new(f"icmp slt i64 {number}, 0")
            from_end = self.plus(number, f"%a{k}.size")
            number = self.new(f"select i1 {negative}, i64 {from_end}, i64 {number}")
        return number, self.new(f"icmp ult i64 {number}, %a{k}.size")

    def strange(
        self, varying: Sequence[int], begun: Mapping[str, str], i: str | None, sofar: str
    ) -> str:
        """A number that is not 0 if an index at a lane, or of a row, is below 0 or too large."""
        for k in varying:
            place = begun[f"a{k}"]
            number = self.loaded(k, place if i is None else self.lane(f"a{k}", place, i))
            outside = self.new(f"icmp uge i64 {number}, %a{k}.size")
            sofar = self.new(f"or i64 {sofar}, {self.new(f'zext i1 {outside} to i64')}")
        return sofar

    def loaded(self, k: int, place: str) -> str:
        """The index at an address."""
        kind, dtype = VALUES[self.plan.index[k].dtype], self.plan.index[k].dtype
        number = self.new(f"load {kind}, ptr {place}{ACCESS}")
        extend = "sext" if dtype.startswith("int") else "zext"
        return number if kind == "i64" else self.new(f"{extend} {kind} {number} to i64")
