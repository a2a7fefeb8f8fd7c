"""Launches of rows that are read once: how operands lie, and what a task is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np

from symdnn.cpu.elementwise.copies import CopyingLaunch
from symdnn.cpu.ir.loops_ir import LoopOperand, inner
from symdnn.cpu.nest.row_stages_ir import BAND_LANES, FLAG, RowPlan, row_stages_ir, row_words
from symdnn.cpu.threads import threads
from symdnn.graph.type import numpy_dtype
from symdnn.graph.typing import Array
from symdnn.graph.values.strides import merged
from symdnn.ops.lowered.fused_rows import FusedRows

__all__ = ["RowLaunch", "RowOperand", "lies_in_bands"]

#: The length of rows up to this is a constant of the code.
_MAX_CONSTANT_LENGTH = 256
#: Rows of a task that adds over them, at least, and such tasks, at most: not by the number of
#: threads, so that bits do not depend on it.
_MIN_ROWS_OF_TASK, _MAX_SUMMING_TASKS = 16, 64
#: Elements for which waking up another thread pays. A softmax of (b, 8, 16, 16) takes 2.6 us with
#: one thread and 3.2 with two for 4096 elements, 4.1 and 3.5 for 8192, 6.8 and 5.2 for 16384 (two
#: cores, AVX-512, lower quartiles). Its gradient takes half of that.
_ELEMENTS_PER_THREAD = 1 << 13

#: (name as in :class:`RowPlan`, dtype, shape, which broadcasts to that of the rows)
RowOperand = tuple[str, str, tuple[int, ...]]


def lies_in_bands(shape: Sequence[int], axes: Sequence[int]) -> bool:
    """Whether neighbours of a dense array of this shape are in different rows."""
    last = max((d for d, n in enumerate(shape) if n > 1), default=-1)
    return last >= 0 and last not in axes


class RowLaunch(CopyingLaunch):
    """``launch(inputs, outputs)`` of rows of dense arrays; others are copied.

    ``operands`` are in the order of (\\*inputs, \\*outputs), of which ``reads`` are inputs.
    ``failed(inputs)`` raises the error of a label out of range.
    """

    def __init__(
        self, op: FusedRows, shape: tuple[int, ...], operands: Sequence[RowOperand], reads: int,
        work: str, adds: str, failed: Callable[[Sequence[Array]], None] | None = None,
    ) -> None:  # fmt: skip
        self._failed = failed
        plan, words = _planned(op, shape, operands, work, adds)
        names = row_words(plan)
        run = threads.kernel(row_stages_ir, plan)
        sums = len(op.sums.outputs) if op.sums is not None else 0
        self._partial = np.empty(words["tasks"] * words["count"] * sums)
        words["partial"] = self._partial.ctypes.data
        words["threads"] = threads.threads(prod(shape), _ELEMENTS_PER_THREAD)
        head = [words.get(n, 0) for n in names[: -len(operands)]]
        status = FLAG if plan.label else -1
        super().__init__(run, head, reads, len(operands) - reads, status)

    def failed(self, inputs: Sequence[Array]) -> None:
        """Raise the error that names the label out of range."""
        assert self._failed is not None
        self._failed(inputs)


def _planned(
    op: FusedRows, shape: tuple[int, ...], operands: Sequence[RowOperand], work: str, adds: str
) -> tuple[RowPlan, dict[str, int]]:
    """The plan, and the words that depend neither on addresses nor on threads."""
    bands = lies_in_bands(shape, op.axes)
    axes = [[d for d in range(len(shape)) if (d in op.axes) == along] for along in (False, True)]
    steps = [_steps(dtype, own) for _, dtype, own in operands]
    (kept, kept_steps), (along, along_steps) = (
        merged([shape[d] for d in some], [[s[d] for d in some] for s in steps]) for some in axes
    )
    lanes = kept[-1] if bands else 1
    outer = kept[:-1] if bands else kept
    size = {name: int(numpy_dtype(dtype).itemsize) for name, dtype, _ in operands}
    innermost = kept_steps if bands else along_steps
    reads = {
        name: LoopOperand(dtype, inner(innermost[k][-1], size[name]))
        for k, (name, dtype, _) in enumerate(operands)
        if name[0] == "x"
    }
    label, kept_as = (
        next((dtype for name, dtype, _ in operands if name in some), "")
        for some in (("label",), [f"r{i}" for i in range(len(op.kept))])
    )
    length = along[-1] if not bands and along[-1] <= _MAX_CONSTANT_LENGTH else 0
    plan = RowPlan(
        op, tuple(reads[name] for name in sorted(reads)), tuple(name for name, *_ in operands),
        work, adds, len(outer), len(along) - 1, bands, length, label, kept_as,
    )  # fmt: skip
    words: dict[str, Any] = {
        "one": 1,
        "all": prod(outer),
        "m": lanes,
        "JB": -(-lanes // BAND_LANES),
    }
    words["tasks"] = words["all"] * words["JB"]
    if op.sums is not None:
        words["tasks"] = max(1, min(_MAX_SUMMING_TASKS, words["all"] // _MIN_ROWS_OF_TASK))
    words |= {"count": prod(along), "A": prod(along[:-1]), "n": along[-1]}
    words |= {f"kn{d}": n for d, n in enumerate(outer)} | {f"an{d}": n for d, n in enumerate(along)}
    for k, (name, *_) in enumerate(operands):
        words[f"{name}.i"] = along_steps[k][-1]
        words |= {f"{name}.k{d}": s for d, s in enumerate(kept_steps[k][: len(outer)])}
        words |= {f"{name}.a{d}": s for d, s in enumerate(along_steps[k][:-1])}
    return plan, words


def _steps(dtype: str, shape: Sequence[int]) -> list[int]:
    """Bytes from one element of a dense array to the next, 0 along axes of size 1."""
    after = list(accumulate(shape[::-1], lambda a, b: a * b, initial=1))[-2::-1]
    size = int(numpy_dtype(dtype).itemsize)
    return [size * s if n > 1 else 0 for n, s in zip(shape, after)]
