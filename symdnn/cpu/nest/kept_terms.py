"""Terms of a stage of rows that the results need again: they are kept, and not computed twice.

The exponentials of a softmax are such terms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from symdnn.ops.core.scalar import Builder, ScalarProgram
from symdnn.ops.lowered.fused_rows import FusedRows
from symdnn.ops.nest.monoid import reads_of

__all__ = ["kept_term"]

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
            found = _with_input(b, term.number, [v.number for v in results], work)
            saved = b.program(results).cost - found.cost >= _MIN_COST_TO_KEEP
            if saved and (apart or not _reads_first(op, found)):
                return s, t, found
        known += len(stage.rows.outputs)
    return None


def _with_input(b: Builder, number: int, results: Sequence[int], dtype: str) -> ScalarProgram:
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
