"""What the generators of leaves share whose task is a line: top-k and sorts."""

from __future__ import annotations

from collections.abc import Sequence

from symdnn.cpu.ir.builder import FunctionBuilder
from symdnn.cpu.ir.loops_ir import METADATA, THREADS, data_of, next_task, word
from symdnn.cpu.ir.math_ir import definitions
from symdnn.cpu.ir.scalar_ir import Printer, load_as
from symdnn.ops.core.scalar import Builder as ProgramBuilder
from symdnn.ops.core.scalar import ScalarProgram

__all__ = ["LineBuilder", "line_words"]


def line_words(more: Sequence[str], operands: Sequence[str], kept: int) -> list[str]:
    """Names of the words of a leaf's block: ``n`` elements of a line, in ``kept`` other axes.

    Each operand has its step along the line, ``.i``, and along the other axes, ``.k0`` and so on.
    """
    names = ["threads", "tasks", "one", "n", *more, *(f"kn{d}" for d in range(1, kept))]
    for name in operands:
        names += [name, f"{name}.i", *(f"{name}.k{d}" for d in range(kept))]
    return names


class LineBuilder(FunctionBuilder):
    """Builds the function of tasks of a leaf; ``%w`` is the block of parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.helpers: set[str] = set()
        self._tags = 0

    def begin(
        self, words: Sequence[str], operands: Sequence[str], kept: int, *entry: str
    ) -> list[str]:
        """Begin the function ``rows``, with its words in registers and the lines ``entry`` before.

        Returns where each operand's line begins.
        """
        lines = []
        for i, name in enumerate(words):
            lines += data_of(f"%{name}.data", i) if name in operands else word(f"%{name}", i)
        self.tasks([*lines, *entry], "task")
        indices, rest = list[str](), "%r"
        for d in reversed(range(1, kept)):
            indices.append(self.new(f"urem i64 {rest}, %kn{d}"))
            rest = self.new(f"udiv i64 {rest}, %kn{d}")
        indices = [rest, *indices[::-1]][:kept]
        found = []
        for name in operands:
            base = f"%{name}.data"
            for d, index in enumerate(indices):
                base = self.bytes_at(base, self.new(f"mul i64 {index}, %{name}.k{d}"))
            found.append(base)
        return found

    def module(self, functions: Sequence[str] = ()) -> str:
        """The module of ``kernel`` around the function of tasks, which ends here."""
        lines = [*sorted(self.declared), *definitions(self.helpers), *functions, *THREADS]
        return "\n".join([*lines, *self.lines, *next_task("task"), *METADATA]) + "\n"

    def program(self, program: ScalarProgram, inputs: Sequence[str]) -> str:
        """Append a scalar program with one result."""
        self._tags += 1
        printer = Printer(program, f"t{self._tags}_")
        (found,) = printer.emit(inputs)
        self.put(*printer.lines)
        self.declared |= printer.declared
        self.helpers |= printer.helpers
        return found

    def cast(self, value: str, source: str, target: str) -> str:
        """The value in another dtype."""
        b = ProgramBuilder([source])
        return self.program(b.program([b.cast(b.input(0), target)]), [value])

    def value(self, dtype: str, pointer: str, more: str = "") -> str:
        """Load a number."""
        self._tags += 1
        self.put(*load_as(dtype, f"%l{self._tags}", pointer, more))
        return f"%l{self._tags}"
