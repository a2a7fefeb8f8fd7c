"""Complex numbers in loops of small steps: pairs of real ones, at their places in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from symdnn.ops.elementwise.complex_meaning import complex_meaning, part_dtypes
from symdnn.ops.nest.complex_folds import complex_sum
from symdnn.ops.steps.statements import View

__all__ = ["complex_meaning", "complex_sum", "part_dtypes", "parts"]


def parts(views: Sequence[View]) -> tuple[View, ...]:
    """The views of all parts, in order."""
    found: list[View] = []
    for v in views:
        at = v.offset
        for dtype in part_dtypes(v.dtype):
            part = replace(v, dtype=dtype, offset=at)
            found.append(part)
            at += part.itemsize
    return tuple(found)
