"""What the generators of leaves share whose task is a line: top-k and sorts."""

from __future__ import annotations

from collections.abc import Sequence

from symdnn.cpu.ir.loops_ir import data_of, word
from symdnn.cpu.ir.math_ir import definitions
from symdnn.cpu.ir.program_ir import LoopBuilder
from symdnn.ops.core.scalar import Builder as ProgramBuilder
from symdnn.ops.core.scalar import ScalarProgram


def line_words(more: Sequence[str], operands: Sequence[str], kept: int) -> list[str]:
    """Names of the words of a leaf's block: ``n`` elements of a line, in ``kept`` other axes.

    Each operand has its step along the line, ``.i``, and along the other axes, ``.k0`` and so on.
    """
    names = ["threads", "tasks", "one", "n", *more, *(f"kn{d}" for d in range(1, kept))]
    for name in operands:
        names += [name, f"{name}.i", *(f"{name}.k{d}" for d in range(kept))]
    return names


class LineBuilder(LoopBuilder):
    """Builds the function of tasks of a leaf; ``%w`` is the block of parameters."""

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
        indices = self.split("%r", "k", kept)
        return [self.moved(f"%{name}.data", name, "k", indices) for name in operands]

    def module(self, functions: Sequence[str] = ()) -> str:
        """The module of ``kernel`` around the function of tasks, which ends here."""
        return self.task_module(*definitions(self.helpers), *functions)

    def one(self, program: ScalarProgram, inputs: Sequence[str]) -> str:
        """Append a scalar program with one result."""
        (found,) = self.program(program, inputs)
        return found

    def cast(self, value: str, source: str, target: str) -> str:
        """The value in another dtype."""
        b = ProgramBuilder([source])
        return self.one(b.program([b.cast(b.input(0), target)]), [value])
