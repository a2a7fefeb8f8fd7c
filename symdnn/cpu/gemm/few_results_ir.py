"""LLVM IR of products with few results and long sums: vectors are along the terms.

Sums of all results are vectors, added up in the end. A line is the terms of a row of the first
operand, or of a column of the second one. Lines that are not dense are turned into memory of the
stack, for a block of terms at a time: those of a matrix with as many lines as its rows are long by
shuffles of whole vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from symdnn.cpu.ir.builder import Builder
from symdnn.cpu.ir.loops_ir import data_of, word
from symdnn.graph.type import numpy_dtype

#: The words of the kernel's block: steps are bytes from a line to the next, and along a line.
WORDS = (
    "threads", "tasks", "one", "a", "b", "c", "terms", "a_line", "a_term", "b_line", "b_term",
    "c_row", "c_column",
)  # fmt: skip
#: Vectors of a block of terms, and sums that stay in registers at a time.
_STEPS, _SUMS, _SUMS_OF_FEW_REGISTERS = 16, 20, 8


@dataclass(frozen=True)
class FewResults:
    """Numbers of lines, and how each operand has them: ``dense``, ``turned`` (all lines side by
    side, without gaps), or ``strided``. ``bits`` are those of a vector.
    """

    dtype: str
    rows: int
    columns: int
    a: str
    b: str
    bits: int

    @property
    def width(self) -> int:
        """Terms of a vector."""
        return self.bits // (8 * int(numpy_dtype(self.dtype).itemsize))


def few_results_ir(plan: FewResults) -> str:
    """The module of ``kernel``."""
    s = _Few(plan)
    s.whole()
    return s.task_module()


class _Few(Builder):
    """Builds the function of the only task."""

    def __init__(self, plan: FewResults) -> None:
        super().__init__(plan.width, plan.dtype)
        self.plan, self.nbytes = plan, int(numpy_dtype(plan.dtype).itemsize)
        self.operands = (("a", plan.rows, plan.a), ("b", plan.columns, plan.b))

    def whole(self) -> None:
        """Append the function ``rows`` but its end."""
        plan, entry = self.plan, list[str]()
        for i, name in enumerate(WORDS):
            if name in ("a", "b", "c"):
                entry += data_of(f"%{name}", i)
            elif i > 2:
                entry += word(f"%{name}", i)
        block = _STEPS * plan.width
        for name, count, _ in self.operands:
            entry.append(f"%turned_{name} = alloca [{count * block} x {self.element}], align 64")
        results = plan.rows * plan.columns
        entry.append(f"%sums = alloca [{results} x {self.vector}], align 64")
        self.tasks(entry, "task")
        for k in range(results):
            self.put(f"store {self.vector} zeroinitializer, ptr {self._sum(k)}, align 64")
        steps = self.new(f"udiv i64 %terms, {plan.width}")
        blocks = self.new(f"udiv i64 {self.affine(steps, 1, _STEPS - 1)}, {_STEPS}")
        with self.each("block", 0, blocks) as block_:
            first = self.affine(block_, _STEPS)
            left = self.least(str(_STEPS), self.minus(steps, first))
            self._block(self.affine(first, plan.width), left)
        self._rest(self.affine(steps, plan.width))
        for i in range(plan.rows):
            for j in range(plan.columns):
                whole = self.new(f"load {self.vector}, ptr {self._sum(i * plan.columns + j)}")
                at = self.bytes_at("%c", ("%c_row", i))
                at = self.bytes_at(at, ("%c_column", j))
                total = self.reduce_add(whole)
                self.put(f"store {self.element} {total}, ptr {at}, align {self.nbytes}")

    def _sum(self, k: int) -> str:
        return self.new(f"getelementptr {self.vector}, ptr %sums, i64 {k}")

    def _block(self, first: str, count: str) -> None:
        """Add the products of a block of terms."""
        lines = []
        for name, number, kind in self.operands:
            if kind == "dense":
                begun = self.bytes_at(f"%{name}", self.affine(first, self.nbytes))
                lines.append([
                    self.bytes_at(begun, (f"%{name}_line", k))
                    for k in range(number)
                ])  # fmt: skip
                continue
            if kind == "turned":
                self._turned(name, number, first, count)
            else:
                terms = self.affine(count, self.width)
                self._copied(name, number, first, terms, _STEPS * self.width)
            room = _STEPS * self.width
            lines.append([self.at(f"%turned_{name}", k * room) for k in range(number)])
        self._added(lines[0], lines[1], count, "step")

    def _added(self, a: Sequence[str], b: Sequence[str], count: str, name: str) -> None:
        """Loops over ``count`` vectors of all lines, for as many rows as have sums in registers."""
        most = _SUMS if self.plan.bits == 512 else _SUMS_OF_FEW_REGISTERS
        rows, columns = max(1, most // len(b)), len(b)
        for low in range(0, len(a), rows):
            own = a[low : low + rows]
            places = [self._sum((low + r) * columns + j) for r in range(len(own))
                      for j in range(columns)]  # fmt: skip
            begun = [self.new(f"load {self.vector}, ptr {p}") for p in places]

            def step(i: str, sums: list[str], own: Sequence[str] = own) -> list[str]:
                at = self.affine(i, self.width)
                right = [self.load(self.at(line, at)) for line in b]
                left = [self.load(self.at(line, at)) for line in own]
                pairs = [(x, y) for x in left for y in right]
                return [self.multiply_add(*xy, t) for xy, t in zip(pairs, sums, strict=True)]

            ended = self.loop(f"{name}{low}", count, step, begun)
            for p, value in zip(places, ended, strict=True):
                self.put(f"store {self.vector} {value}, ptr {p}, align 64")

    def _turned(self, name: str, number: int, first: str, count: str) -> None:
        """Turn terms with ``number`` neighbours each into as many lines."""
        width, begun = self.width, self.bytes_at(
            f"%{name}", self.affine(self.affine(first, number), self.nbytes)
        )  # fmt: skip
        with self.each(f"turn_{name}", 0, count) as i:
            base = self.at(begun, self.affine(i, width * number))
            given = [self.load(self.at(base, k * width)) for k in range(number)]
            for j in range(number):
                found = "poison"
                for k, vector in enumerate(given):
                    own = {t: t * number + j - k * width for t in range(width)}
                    own = {t: p for t, p in own.items() if 0 <= p < width}
                    if own:
                        places = [width + own[t] if t in own else t for t in range(width)]
                        found = self.shuffled(self.vector, found, vector, places)
                to = self.at(f"%turned_{name}", self.affine(i, width, j * _STEPS * width))
                self.store(found, to)

    def _copied(self, name: str, number: int, first: str, terms: str, room: int) -> None:
        """Copy terms of lines with any steps, one by one."""
        begun = self.bytes_at(f"%{name}", (first, f"%{name}_term"))
        for k in range(number):
            line = self.bytes_at(begun, (f"%{name}_line", k))
            with self.each(f"copy_{name}{k}_{room}", 0, terms) as t:
                at = self.bytes_at(line, (t, f"%{name}_term"))
                value = self.new(f"load {self.element}, ptr {at}, align {self.nbytes}")
                to = self.at(f"%turned_{name}", self.affine(t, 1, k * room))
                self.put(f"store {self.element} {value}, ptr {to}, align {self.nbytes}")

    def _rest(self, first: str) -> None:
        """Add the terms that fill no vector."""
        left = self.minus("%terms", first)
        with self.when("some_left", self.new(f"icmp sgt i64 {left}, 0")):
            lines = []
            for name, number, _ in self.operands:
                places = [self.at(f"%turned_{name}", k * self.width) for k in range(number)]
                for p in places:
                    self.store("zeroinitializer", p)
                self._copied(name, number, first, left, self.width)
                lines.append(places)
            self._added(lines[0], lines[1], "1", "rest")
