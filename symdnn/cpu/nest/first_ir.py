"""LLVM IR of searches for the first true or false element of each line of booleans, or of what a
program makes of the elements of lines.

They end where the element is found: any, all, extremes and their indices ask for no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from symdnn.cpu.ir.loops_ir import ACCESS, LoopOperand
from symdnn.cpu.ir.scalar_ir import store_as
from symdnn.cpu.nest.lines_ir import LineBuilder, line_words
from symdnn.graph.type import numpy_dtype
from symdnn.ops.core.scalar import ScalarProgram

#: Elements that are looked at together, one bit of a word each: no line is shorter.
LEAST_LENGTH = 64


@dataclass(frozen=True)
class FirstPlan:
    """What is ``sought``; whether the result is its ``index`` (0 where it is not), or its truth.

    The truth of a line without what is sought is that of the other elements. ``kept``: the number
    of axes of lines. ``program`` gives the booleans of operands ``reads``, which are dense along
    the lines or have one element for all of a line; without it they are the operand.
    """

    sought: bool
    index: bool
    kept: int
    program: ScalarProgram | None = None
    reads: tuple[LoopOperand, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the operands, the result last."""
        return *(f"x{i}" for i in range(max(1, len(self.reads)))), "y0"


def first_words(plan: FirstPlan) -> list[str]:
    """Names of the words of the block."""
    return line_words((), plan.names, plan.kept)


def first_ir(plan: FirstPlan) -> str:
    """The module of ``kernel``."""
    s = LineBuilder()
    entry = [] if plan.program is None else [f"%made = alloca [{LEAST_LENGTH} x i8], align 64"]
    *x, y = s.begin(first_words(plan), plan.names, plan.kept, *entry)
    width, last = LEAST_LENGTH, s.minus("%n", LEAST_LENGTH)
    vector = f"<{width} x i8>"
    before = s.block
    s.put("br label %look")
    s.label("look")
    s.put(f"%at = phi i64 [0, %{before}], [%further, %on]")
    # The last elements begin early enough to be as many: some are looked at twice.
    first = s.least("%at", last)
    if plan.program is None:
        place = s.new(f"getelementptr i8, ptr {x[0]}, i64 {first}")
    else:
        place = _made(s, plan, plan.program, x, first)
    elements = s.new(f"load {vector}, ptr {place}, align 1")
    true = s.new(f"icmp {'ne' if plan.sought else 'eq'} {vector} {elements}, zeroinitializer")
    bits = s.new(f"bitcast <{width} x i1> {true} to i64")
    s.put(f"br i1 {s.new(f'icmp ne i64 {bits}, 0')}, label %end, label %on")
    s.label("on")
    s.put(f"%further = add i64 %at, {width}")
    s.put(f"br i1 {s.new('icmp slt i64 %further, %n')}, label %look, label %end")
    s.label("end")
    found = s.new(f"icmp ne i64 {bits}, 0")
    if not plan.index:
        truth = found if plan.sought else s.new(f"xor i1 {found}, true")
        s.put(f"store i8 {s.new(f'zext i1 {truth} to i8')}, ptr {y}")
        return s.module()
    s.declared.add("declare i64 @llvm.cttz.i64(i64, i1)")
    number = s.new(f"call i64 @llvm.cttz.i64(i64 {bits}, i1 false)")
    number = s.plus(number, first)
    s.put(f"store i64 {s.new(f'select i1 {found}, i64 {number}, i64 0')}, ptr {y}")
    return s.module()


def _made(
    s: LineBuilder, plan: FirstPlan, program: ScalarProgram, lines: Sequence[str], first: str
) -> str:
    """The address of the booleans that the program makes of the elements from ``first`` on."""
    with s.each("make", 0, str(LEAST_LENGTH), parallel=True) as j:
        at = s.plus(first, j)
        values = []
        for line, o in zip(lines, plan.reads, strict=True):
            size = numpy_dtype(o.dtype).itemsize
            place = s.bytes_at(line, (at, size)) if o.inner == "dense" else line
            values.append(s.value(o.dtype, place, ACCESS))
        found = s.one(program, values)
        place = s.new(f"getelementptr i8, ptr %made, i64 {j}")
        s.put(*store_as("bool", found, place, ACCESS))
    return "%made"
