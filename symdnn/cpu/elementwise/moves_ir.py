"""LLVM IR of copies whose rows are short: all pieces of a row are written before the next row.

A join of two arrays along their last axis would go over its result twice, one piece after the
other. Here a task is a row: each move copies a piece of it from one array to another, or fills it
with a number. Lengths of short pieces are constants of the code, so that LLVM makes a few loads and
stores of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from symdnn.cpu.ir.loops_ir import ACCESS, COPY_ROW, data_of, word
from symdnn.cpu.ir.program_ir import LoopBuilder


@dataclass(frozen=True)
class Move:
    """A piece of a row of array ``target``: from ``source``, or filled with its one number.

    ``count`` elements, or 0 where the number is a word of the block.
    """

    source: int
    target: int
    count: int = 0
    fill: bool = False


@dataclass(frozen=True)
class MovePlan:
    """The moves of a row, the axes of rows, the number of arrays, and the bytes of an element."""

    moves: tuple[Move, ...]
    outer: int
    arrays: int
    itemsize: int


def move_words(plan: MovePlan) -> list[str]:
    """Names of the words of the block.

    An array ``a0`` has steps ``a0.k0`` along the axes of rows. A move ``m0`` begins ``m0.from`` and
    ``m0.to`` bytes from where the rows of its arrays begin, and has ``m0.n`` elements.
    """
    names = ["threads", "tasks", "one", *(f"kn{d}" for d in range(1, plan.outer))]
    for a in range(plan.arrays):
        names += [f"a{a}", *(f"a{a}.k{d}" for d in range(plan.outer))]
    return [*names, *(f"m{i}.{w}" for i in range(len(plan.moves)) for w in ("from", "to", "n"))]


def moves_ir(plan: MovePlan) -> str:
    """The module of ``kernel``."""
    rows = _MoveBuilder(plan)
    rows.loops()
    return rows.task_module(*COPY_ROW)


class _MoveBuilder(LoopBuilder):
    """Builds the function of tasks, a row each."""

    def __init__(self, plan: MovePlan) -> None:
        super().__init__()
        self.plan, self.kind = plan, f"i{8 * plan.itemsize}"

    def loops(self) -> None:
        """Append the function ``rows`` but its end."""
        plan, entry = self.plan, list[str]()
        arrays = [f"a{a}" for a in range(plan.arrays)]
        for i, name in enumerate(move_words(plan)):
            entry += data_of(f"%{name}.data", i) if name in arrays else word(f"%{name}", i)
        filled = {m.source for m in plan.moves if m.fill}
        entry += [f"%a{a}.value = load {self.kind}, ptr %a{a}.data" for a in sorted(filled)]
        self.tasks(entry, "task")
        places = self.split("%r", "k", plan.outer)
        begun = [
            f"%{name}.data" if a in filled else self.moved(f"%{name}.data", name, "k", places)
            for a, name in enumerate(arrays)
        ]
        for i, move in enumerate(plan.moves):
            target = self.bytes_at(begun[move.target], f"%m{i}.to")
            if move.fill:
                self._fill(f"%a{move.source}.value", target, move.count, f"%m{i}.n")
                continue
            source = self.bytes_at(begun[move.source], f"%m{i}.from")
            size = plan.itemsize
            nbytes = move.count * size or self.times(f"%m{i}.n", size)
            self.copy_row(target, source, nbytes)

    def _fill(self, value: str, target: str, count: int, words: str) -> None:
        if count:
            vector = f"<{count} x {self.kind}>"
            begun = self.new(f"insertelement {vector} poison, {self.kind} {value}, i64 0")
            zeros = f"<{count} x i32> zeroinitializer"
            every = self.new(f"shufflevector {vector} {begun}, {vector} poison, {zeros}")
            self.put(f"store {vector} {every}, ptr {target}, align {self.plan.itemsize}")
            return

        with self.each(self.tag(), 0, words, parallel=True) as i:
            at = self.new(f"getelementptr {self.kind}, ptr {target}, i64 {i}")
            self.put(f"store {self.kind} {value}, ptr {at}{ACCESS}")
