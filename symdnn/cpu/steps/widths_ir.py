"""Widths of the vectors of short loops, as metadata for LLVM."""

from __future__ import annotations

from collections.abc import Sequence

from symdnn.cpu.compiler import jit
from symdnn.cpu.ir.builder import PARALLEL
from symdnn.ops.steps.statements import View

__all__ = ["MOST_STATEMENTS", "loop_kind", "width_metadata"]

#: Parallel loops of at least so many iterations have a width for LLVM's vectors. Without one LLVM
#: unrolls loops of few iterations before it makes vectors, and then makes none; and where it looks
#: for the best width, an assertion of it may fail, which ends the process.
_FEWEST_IN_VECTORS = 4
#: Statements of a program that has such widths, at most: of 110 LLVM took four times as long with
#: them, of 250 a hundred times.
MOST_STATEMENTS = 80
_WIDTHS = (2, 4, 8, 16)


def width_metadata() -> list[str]:
    """The metadata ``!10`` of parallel loops of vectors of the first width, and so on."""
    found = [
        '!3 = !{!"llvm.loop.unroll.disable"}',
        '!4 = !{!"llvm.loop.vectorize.enable", i1 true}',
    ]
    found += ['!5 = !{!"llvm.loop.vectorize.followup_vectorized", !6}']
    found += ['!6 = !{!"llvm.loop.isvectorized", i32 1}']
    for i, width in enumerate(_WIDTHS):
        own, number = 10 + i, 20 + i
        found += [
            f"!{own} = distinct !{{!{own}, !2, !3, !4, !5, !{number}}}",
            f'!{number} = !{{!"llvm.loop.vectorize.width", i32 {width}}}',
        ]
    return found


def loop_kind(count: int, views: Sequence[View], in_vectors: bool) -> str:
    """The metadata of a parallel loop of so many iterations over neighbours in these views."""
    size = max((v.itemsize for v in views), default=8)
    dense = all(v.steps[-1] in (0, v.itemsize) for v in views if v.steps)
    if count < _FEWEST_IN_VECTORS or not dense or not in_vectors:
        return PARALLEL
    most = 4 * jit.vector_width() // size
    fit = [w for w in _WIDTHS if w <= min(most, count)]
    best = min(fit, key=lambda w: (count // w + count % w, -w))
    return f"!{10 + _WIDTHS.index(best)}"
