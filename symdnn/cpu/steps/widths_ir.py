"""Widths of the vectors of short loops, as metadata for LLVM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from symdnn.cpu.compiler import jit
from symdnn.cpu.ir.builder import PARALLEL
from symdnn.ops.steps.statements import (
    Branch,
    Folding,
    LoopProgram,
    Map,
    Repeat,
    Statement,
    View,
    work_of,
)

#: Parallel loops of at least so many iterations have a width for LLVM's vectors. Without one LLVM
#: unrolls loops of few iterations before it makes vectors, and then makes none; and where it looks
#: for the best width, an assertion of it may fail, which ends the process.
_FEWEST_IN_VECTORS = 4
#: Statements of a program that have such widths, at most: with 110 LLVM took four times as long,
#: with 250 a hundred times.
_MOST_STATEMENTS = 80
#: The part of a program's work that has them: what is little is not worth LLVM's time.
_PART = 0.98
#: How often a loop of unknown length repeats, to compare what is in it with what is around it.
_REPEATS = 64
_WIDTHS = (2, 4, 8, 16)
#: Metadata nodes below this one are others' (:mod:`~symdnn.cpu.ir.loops_ir`).
_FIRST_NODE = 20


def in_vectors(program: LoopProgram) -> set[int]:
    """The statements (their ``id``) whose loops have widths: those that have most of the work."""
    around = (*program.before, *program.begin, *program.resume, *program.after)
    works = dict(_works((*around, program.loop), 1))
    left, found = (1 - _PART) * sum(works.values()), set(works)
    heaviest = sorted(works, key=lambda i: -works[i])
    for at, i in reversed(list(enumerate(heaviest))):
        left -= works[i]
        if left < 0 and at < _MOST_STATEMENTS:
            break
        found.remove(i)
    return found


def _works(block: Sequence[Statement], times: int) -> Iterator[tuple[int, int]]:
    """The work of each map and fold, by its ``id``."""
    for s in block:
        if isinstance(s, Branch):
            yield from _works((*s.yes, *s.no), times)
        elif isinstance(s, Repeat):
            count = s.count if isinstance(s.count, int) else _REPEATS
            yield from _works((*s.body, *s.after), times * count)
        elif isinstance(s, (Map, Folding)):
            yield id(s), times * work_of([s])


def width_metadata() -> list[str]:
    """The metadata of parallel loops of vectors of each width."""
    found = [
        '!3 = !{!"llvm.loop.unroll.disable"}',
        '!4 = !{!"llvm.loop.vectorize.enable", i1 true}',
    ]
    found += ['!5 = !{!"llvm.loop.vectorize.followup_vectorized", !6}']
    found += ['!6 = !{!"llvm.loop.isvectorized", i32 1}']
    for i, width in enumerate(_WIDTHS):
        own, number = _FIRST_NODE + i, _FIRST_NODE + len(_WIDTHS) + i
        found += [
            f"!{own} = distinct !{{!{own}, !2, !3, !4, !5, !{number}}}",
            f'!{number} = !{{!"llvm.loop.vectorize.width", i32 {width}}}',
        ]
    return found


def loop_kind(count: int, views: Sequence[View]) -> str:
    """The metadata of a parallel loop of so many iterations over neighbours in these views."""
    size = max((v.itemsize for v in views), default=8)
    dense = all(v.steps[-1] in (0, v.itemsize) for v in views if v.steps)
    if count < _FEWEST_IN_VECTORS or not dense:
        return PARALLEL
    most = 4 * jit.vector_width() // size
    fit = [w for w in _WIDTHS if w <= min(most, count)]
    best = min(fit, key=lambda w: (count // w + count % w, -w))
    return f"!{_FIRST_NODE + _WIDTHS.index(best)}"
