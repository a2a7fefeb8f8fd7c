"""LLVM IR of top-k: a leaf of nests with its own loops.

A task is a line. The best so far are in order on the stack. Blocks of elements are compared with
the worst of them, in vectors; only where one is better are its elements inserted one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from symdnn.cpu.ir.scalar_ir import STORED, Printer, load_as, store_as
from symdnn.cpu.nest.lines_ir import LineBuilder, line_words
from symdnn.graph.type import numpy_dtype
from symdnn.ops.core.scalar import Builder as ProgramBuilder
from symdnn.ops.nest.monoid import ranks_before

#: The most elements that are kept: they are inserted by moving those behind.
MAX_KEPT = 256
#: The line, and the best elements and their numbers.
_OPERANDS = ("x0", "y0", "y1")
#: Elements that are compared at a time.
_BLOCK_ELEMENTS = 64


@dataclass(frozen=True)
class TopKPlan:
    """What the text depends on: dtypes, which are best, axes besides the line's.

    ``dense``: the elements of a line are neighbours in memory.
    """

    dtype: str
    work: str
    index: str
    largest: bool
    kept: int
    dense: bool


def top_k_words(plan: TopKPlan) -> list[str]:
    """Names of the words of the block; ``n`` elements of a line, of which ``k`` are wanted."""
    return line_words(("k",), _OPERANDS, plan.kept)


def top_k_ir(plan: TopKPlan) -> str:
    """The module of ``kernel``."""
    s = _TopKBuilder(plan)
    s.loops()
    return s.module(s.insertion())


class _TopKBuilder(LineBuilder):
    """Builds the function of tasks; ``%w`` is the block of parameters."""

    def __init__(self, plan: TopKPlan) -> None:
        super().__init__()
        self.plan, self.t = plan, STORED[plan.work]
        b = ProgramBuilder([plan.work, plan.work])
        self.better = b.program([ranks_before(b, b.input(0), b.input(1), plan.largest)])

    def element(self, i: str) -> str:
        """Element ``i`` of the line, in the dtype of comparisons."""
        if self.plan.dense:
            bits = 8 * int(numpy_dtype(self.plan.dtype).itemsize)
            pointer = self.new(f"getelementptr i{bits}, ptr %line, i64 {i}")
        else:
            pointer = self.bytes_at("%line", (i, "%x0.i"))
        return self.cast(self.value(self.plan.dtype, pointer), self.plan.dtype, self.plan.work)

    def loops(self) -> None:
        """Append the function ``rows`` but its end."""
        lines = self.begin(
            top_k_words(self.plan), _OPERANDS, self.plan.kept,
            f"%best = alloca [{MAX_KEPT} x {self.t}], align 64",
            f"%where = alloca [{MAX_KEPT} x i64], align 64",
            "%count = alloca i64", "%k_last = sub i64 %k, 1",
            f"%worst_at = getelementptr {self.t}, ptr %best, i64 %k_last",
        )  # fmt: skip
        self.put(f"%line = getelementptr i8, ptr {lines[0]}, i64 0", "store i64 0, ptr %count")
        self.put(*store_as(self.plan.work, self.zero(), "%worst_at"))
        with self.each("block", 0, "%n", step=_BLOCK_ELEMENTS) as first:
            self._block(first)
        with self.each("left", 0, "%k") as i:
            self._leave(i, lines)

    def zero(self) -> str:
        """A constant, for what nothing depends on."""
        b = ProgramBuilder(())
        return self.one(b.program([b.const(0, self.plan.work)]), [])

    def _block(self, first: str) -> None:
        high = self.least(self.plus(first, _BLOCK_ELEMENTS), "%n")
        worst = self.value(self.plan.work, "%worst_at")
        count = self.new("load i64, ptr %count")
        room = self.new(f"icmp slt i64 {count}, %k")

        def test(i: str, sofar: list[str]) -> list[str]:
            better = self.one(self.better, [self.element(i), worst])
            return [self.new(f"or i1 {sofar[0]}, {better}")]

        (some,) = self.counted("test", first, high, test, ["false"], "i1")
        wanted = self.new(f"or i1 {some}, {room}")
        with self.when("some", wanted):
            self._take(first, high)

    def _take(self, first: str, high: str) -> None:
        with self.each("each", first, high) as i:
            x = self.element(i)
            worst = self.value(self.plan.work, "%worst_at")
            count = self.new("load i64, ptr %count")
            better = self.one(self.better, [x, worst])
            enters = self.new(f"or i1 {self.new(f'icmp slt i64 {count}, %k')}, {better}")
            with self.when("enter", enters):
                last = self.least(count, "%k_last")
                self.put(f"call void @insert({self._types[0]} {x}, i64 {i}, ptr %best, "
                         f"ptr %where, i64 {last}, ptr %w)")  # fmt: skip
                more = self.least(self.plus(count, 1), "%k")
                self.put(f"store i64 {more}, ptr %count")

    @property
    def _types(self) -> tuple[str, str]:
        """The type of a value in a register, and in memory."""
        return ("i1" if self.plan.work == "bool" else self.t), self.t

    def _leave(self, i: str, lines: Sequence[str]) -> None:
        found = self.value(self.plan.work, self.new(f"getelementptr {self.t}, ptr %best, i64 {i}"))
        at = self.new(f"load i64, ptr {self.new(f'getelementptr i64, ptr %where, i64 {i}')}")
        pairs = (
            (self.cast(found, self.plan.work, self.plan.dtype), self.plan.dtype),
            (self.cast(at, "int64", self.plan.index), self.plan.index),
        )
        for (value, dtype), name, base in zip(pairs, ("y0", "y1"), lines[1:], strict=True):
            pointer = self.new(f"getelementptr i8, ptr {base}, i64 0")
            pointer = self.bytes_at(pointer, (i, f"%{name}.i"))
            self.put(*store_as(dtype, value, pointer))

    def insertion(self) -> list[str]:
        """The lines of the function ``insert``: a number takes its place, others move behind it."""
        printer = Printer(self.better, "i_")
        (better,) = printer.emit(["%x", "%old"])
        register, stored = self._types
        return [
            f"define internal void @insert({register} %x, i64 %k, ptr %best, ptr %where, "
            "i64 %last, ptr %w) {",
            "entry:", "br label %test",
            "test:", "%p = phi i64 [%last, %entry], [%q, %shift]",
            "%behind = icmp sgt i64 %p, 0", "br i1 %behind, label %look, label %done",
            "look:", "%q = sub i64 %p, 1",
            f"%old_at = getelementptr {stored}, ptr %best, i64 %q",
            *load_as(self.plan.work, "%old", "%old_at"), *printer.lines,
            f"br i1 {better}, label %shift, label %done",
            "shift:", f"%to = getelementptr {stored}, ptr %best, i64 %p",
            *store_as(self.plan.work, "%old", "%to"),
            "%number_at = getelementptr i64, ptr %where, i64 %q",
            "%number = load i64, ptr %number_at",
            "%number_to = getelementptr i64, ptr %where, i64 %p",
            "store i64 %number, ptr %number_to", "br label %test",
            "done:", f"%mine = getelementptr {stored}, ptr %best, i64 %p",
            *store_as(self.plan.work, "%x", "%mine"),
            "%mine_at = getelementptr i64, ptr %where, i64 %p", "store i64 %k, ptr %mine_at",
            "ret void", "}",
        ]  # fmt: skip
