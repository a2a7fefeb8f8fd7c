"""LLVM IR of gathers and scatters: elements whose place in some axes is read from index arrays."""

from __future__ import annotations

from dataclasses import dataclass

from symdnn.cpu.ir.builder import FunctionBuilder
from symdnn.cpu.ir.loops_ir import (
    ACCESS,
    METADATA,
    THREADS,
    LoopOperand,
    data_of,
    next_task,
    word,
)
from symdnn.cpu.ir.scalar_ir import VALUES
from symdnn.graph.type import numpy_dtype

__all__ = ["FLAG", "LANES_OF_TASK", "GatherPlan", "gather_ir", "gather_words"]

#: Index of the word that is set if an index is out of range.
FLAG = 3
#: The most elements along the lanes that a task has.
LANES_OF_TASK = 1 << 12


@dataclass(frozen=True)
class GatherPlan:
    """What the text depends on: the axes around lanes, how operands lie along the lanes.

    ``indexed`` is the operand along axes without an index (stride 0 along those of ``index``).
    ``what``: elements are read by ``gather``; ``add`` and ``set`` change them by ``dense``, one
    after the other; ``check`` only looks at the indices.
    """

    outer: int
    indexed: LoopOperand
    index: tuple[LoopOperand, ...]
    dense: LoopOperand
    what: str = "gather"

    @property
    def named(self) -> list[tuple[str, LoopOperand]]:
        """Operands with their names."""
        arrays = [(f"a{k}", o) for k, o in enumerate(self.index)]
        return [("x", self.indexed), *arrays, ("y", self.dense)]

    @property
    def copies_rows(self) -> bool:
        """Whether what lies along the lanes is copied as it is."""
        kinds = self.what, self.indexed.inner, self.dense.inner
        return kinds == ("gather", "dense", "dense") and all(o.inner == "one" for o in self.index)


def gather_words(plan: GatherPlan) -> list[str]:
    """Names of the words of the block.

    There are ``n`` lanes, in ``parts`` of tasks. An index array has the ``size`` of its axis, and
    the ``step`` from one of its elements to the next.
    """
    names = ["threads", "tasks", "one", "flag", "n", "parts"]
    names += [f"n{d}" for d in range(1, plan.outer)]
    for name, _ in plan.named:
        names += [name, f"{name}.i", *(f"{name}.k{d}" for d in range(plan.outer))]
    return names + [f"a{k}.{what}" for k in range(len(plan.index)) for what in ("size", "step")]


def gather_ir(plan: GatherPlan) -> str:
    """The module of ``kernel``."""
    rows = _GatherBuilder(plan)
    rows.loops()
    copy = "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)"
    return "\n".join([copy, *THREADS, *rows.lines, *next_task("task"), *METADATA]) + "\n"


class _GatherBuilder(FunctionBuilder):
    """Builds the function of tasks: a task is a part of the lanes at an index of the other axes."""

    def __init__(self, plan: GatherPlan) -> None:
        super().__init__()
        self.plan = plan

    def loops(self) -> None:
        """Append the function ``rows`` but its end."""
        plan, operands = self.plan, dict(self.plan.named)
        entry = []
        for i, name in enumerate(gather_words(plan)):
            entry += data_of(f"%{name}.data", i) if name in operands else word(f"%{name}", i)
        self.tasks(entry, "task")
        rest, part = self.new("udiv i64 %r, %parts"), self.new("urem i64 %r, %parts")
        first = self.affine(part, LANES_OF_TASK)
        count = self.least(self.new(f"sub i64 %n, {first}"), str(LANES_OF_TASK))
        indices = list[str]()
        for d in reversed(range(1, plan.outer)):
            indices.append(self.new(f"urem i64 {rest}, %n{d}"))
            rest = self.new(f"udiv i64 {rest}, %n{d}")
        indices = [rest, *indices[::-1]][: plan.outer]
        begun = {}
        for name in operands:
            base = f"%{name}.data"
            for step, index in (("i", first), *((f"k{d}", i) for d, i in enumerate(indices))):
                base = self.bytes_at(base, self.new(f"mul i64 {index}, %{name}.{step}"))
            begun[name] = base
        wrong = self._gather(begun, count)
        some = self.new(f"icmp ne i64 {wrong}, 0")
        flag = self.new(f"getelementptr i64, ptr %w, i64 {FLAG}")
        self.when(
            "wrong", some, lambda: self.put(f"store atomic i64 1, ptr {flag} monotonic, align 8")
        )

    def _gather(self, begun: dict[str, str], count: str) -> str:
        """Append what gathers the lanes; returns a number that is not 0 if an index is wrong."""
        plan, base, wrong = self.plan, begun["x"], "0"
        varying = []
        for k, o in enumerate(plan.index):
            if o.inner == "one":
                offset, wrong = self._offset(k, begun[f"a{k}"], wrong)
                base = self.bytes_at(base, offset)
            else:
                varying.append(k)
        bits = 8 * int(numpy_dtype(plan.indexed.dtype).itemsize)
        if plan.copies_rows:
            nbytes = self.affine(count, bits // 8)
            self.put(
                f"call void @llvm.memcpy.p0.p0.i64(ptr {begun['y']}, ptr {base}, i64 {nbytes}, "
                "i1 false)"
            )
            return wrong

        def element(i: str, sofar: list[str]) -> list[str]:
            at, bad = self._lane("x", base, i), sofar[0]
            for k in varying:
                offset, bad = self._offset(k, self._lane(f"a{k}", begun[f"a{k}"], i), bad)
                at = self.bytes_at(at, offset)
            self._touch(at, self._lane("y", begun["y"], i), bits)
            return [bad]

        parallel = plan.what in ("gather", "check")
        (wrong,) = self.counted("lane", 0, count, element, [wrong], "i64", parallel=parallel)
        return wrong

    def _touch(self, at: str, y: str, bits: int) -> None:
        """Append what happens between an indexed element and the dense one."""
        if self.plan.what == "gather":
            self.put(
                f"store i{bits} {self.new(f'load i{bits}, ptr {at}{ACCESS}')}, ptr {y}{ACCESS}"
            )
        elif self.plan.what == "set":
            self.put(f"store i{bits} {self.new(f'load i{bits}, ptr {y}')}, ptr {at}")
        elif self.plan.what == "add":
            t = VALUES[self.plan.dense.dtype]
            old, more = (self.new(f"load {t}, ptr {place}") for place in (at, y))
            self.put(f"store {t} {self.new(f'fadd {t} {old}, {more}')}, ptr {at}")

    def _lane(self, name: str, base: str, i: str) -> str:
        """The address of lane ``i`` of an operand."""
        o = dict(self.plan.named)[name]
        if o.inner == "one":
            return base
        if o.inner == "dense":
            bits = 8 * int(numpy_dtype(o.dtype).itemsize)
            return self.new(f"getelementptr i{bits}, ptr {base}, i64 {i}")
        return self.bytes_at(base, self.new(f"mul i64 {i}, %{name}.i"))

    def _offset(self, k: int, place: str, wrong: str) -> tuple[str, str]:
        """The bytes that the index at an address stands for, and whether that or one before is bad.

        A bad index stands for element 0.
        """
        o = self.plan.index[k]
        number = self.new(f"load {VALUES[o.dtype]}, ptr {place}{ACCESS}")
        if VALUES[o.dtype] != "i64":
            extend = "sext" if o.dtype.startswith("int") else "zext"
            number = self.new(f"{extend} {VALUES[o.dtype]} {number} to i64")
        if o.dtype.startswith("int"):
            negative = self.new(f"icmp slt i64 {number}, 0")
            from_end = self.new(f"add i64 {number}, %a{k}.size")
            number = self.new(f"select i1 {negative}, i64 {from_end}, i64 {number}")
        fine = self.new(f"icmp ult i64 {number}, %a{k}.size")
        number = self.new(f"select i1 {fine}, i64 {number}, i64 0")
        bad = self.new(f"zext i1 {self.new(f'xor i1 {fine}, true')} to i64")
        offset = self.new(f"mul i64 {number}, %a{k}.step")
        return offset, self.new(f"or i64 {wrong}, {bad}")
