"""What a kernel of rows need not compute again: for each row, and for each element.

Terms of a stage that the results need again are kept: the exponentials of a softmax. What follows
from values of rows alone is computed once for each row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from symdnn.ops.core.scalar import Builder, ScalarProgram
from symdnn.ops.lowered.fused_rows import FusedRows
from symdnn.ops.nest.monoid import picked, reads_of

#: A term that costs this much, in additions, is kept.
_MIN_COST_TO_KEEP = 8


def kept_term(
    op: FusedRows, work: str, apart: bool = False
) -> tuple[int, int, ScalarProgram] | None:
    """(stage, term, ``after`` with this term as a further input), where that saves work.

    The term is kept in the first result, which may be where the first operand was; or ``apart``.
    """
    after, values, known = op.after, len(op.before.outputs), 0
    if op.sums is not None or not (apart or after.output_dtypes[:1] == (work,)):
        return None
    for s, stage in enumerate(op.stages):
        for t in range(len(stage.terms.outputs)):
            b = Builder(after.inputs)
            given = [b.input(i) for i in range(len(after.inputs))]
            rows, late = given[values : values + known], given[values + op.row_values :]
            term = b.inline(stage.terms, [*given[:values], *rows, *late])[t]
            results = b.inline(after, given)
            found = with_input(b, term.number, [v.number for v in results], work)
            saved = b.program(results).cost - found.cost >= _MIN_COST_TO_KEEP
            if saved and (apart or not _reads_first(op, found)):
                return s, t, found
        known += len(stage.rows.outputs)
    return None


def with_input(b: Builder, number: int, results: Sequence[int], dtype: str) -> ScalarProgram:
    """The program of a builder with a further input in the place of a value."""
    count = len(b.inputs)

    def new(v: int) -> int:
        return count if v == number else v + (v >= count)

    body = tuple(replace(step, args=tuple(map(new, step.args))) for step in b.body)
    whole = ScalarProgram((*b.inputs, dtype), body, tuple(map(new, results)))
    made = Builder(whole.inputs)
    return made.program(made.inline(whole, [made.input(i) for i in range(count + 1)]))


def _reads_first(op: FusedRows, after: ScalarProgram) -> bool:
    """Whether a program of values reads one that is made of the first operand."""
    read = reads_of(after, after.outputs)
    return any(i in read and 0 in reads_of(op.before, [v]) for i, v in enumerate(op.before.outputs))


def hoisted(program: ScalarProgram, rows: range) -> tuple[list[ScalarProgram], ScalarProgram]:
    """Programs of the inputs ``rows``, and the program with their results as further inputs."""
    found: list[ScalarProgram] = []
    while (number := _first_of_rows(program, rows)) is not None:
        found.append(picked(replace(program, outputs=(number,)), rows, [0]))
        b = Builder(program.inputs)
        results = b.inline(program, [b.input(i) for i in range(len(b.inputs))])
        (own,) = b.inline(found[-1], [b.input(i) for i in rows])
        dtype = found[-1].output_dtypes[0]
        program = with_input(b, own.number, [r.number for r in results], dtype)
    return found, program


def _first_of_rows(program: ScalarProgram, rows: range) -> int | None:
    """A value that follows from ``rows`` alone, and is a result or read beside other values."""
    count, of_rows = len(program.inputs), set(rows)
    fixed = set(rows)
    for v, step in enumerate(program.body, count):
        if step.args and fixed >= set(step.args):
            of_rows.add(v)
        if not step.args or v in of_rows:
            fixed.add(v)
    read = set(program.outputs)
    for v, step in enumerate(program.body, count):
        read |= set() if v in of_rows else set(step.args)
    return min((v for v in of_rows & read if v >= count), default=None)
