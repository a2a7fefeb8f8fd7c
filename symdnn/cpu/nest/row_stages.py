"""Launches of rows that are read once: the strides of operands, and what a task is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np

from symdnn.cpu.elementwise.copies import CopyingLaunch
from symdnn.cpu.ir.loops_ir import LoopOperand, inner
from symdnn.cpu.nest.row_plan import FLAG, LINE, TURNED_LANES, RowPlan, row_words
from symdnn.cpu.nest.row_stages_ir import row_stages_ir
from symdnn.cpu.threads import threads
from symdnn.graph.type import numpy_dtype
from symdnn.graph.typing import Arrays
from symdnn.graph.values.strides import merged
from symdnn.ops.lowered.fused_rows import FusedRows

#: The length of rows up to this is a constant of the code.
_MAX_CONSTANT_LENGTH = 256
#: Rows of up to so many bytes are turned, so that vectors have neighbouring rows; and those of
#: which only values of rows are wanted. (Softmax of 10000x30 in float32: 388 -> 137 us; of
#: 16384x64, whose rows fill vectors, 358 -> 508; log-sum-exp of that 452 -> 415.)
_MAX_TURNED_BYTES, _MAX_FOLDED_BYTES = 160, 400
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
        work: str, adds: str, failed: Callable[[Arrays], None] | None = None,
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

    def failed(self, inputs: Arrays) -> None:
        """Raise the error that names the label out of range."""
        assert self._failed is not None
        self._failed(inputs)


def _planned(
    op: FusedRows, shape: tuple[int, ...], operands: Sequence[RowOperand], work: str, adds: str
) -> tuple[RowPlan, dict[str, int]]:
    """The plan, and the words that depend neither on addresses nor on threads."""
    axes = [[d for d in range(len(shape)) if (d in op.axes) == along] for along in (False, True)]
    steps = [_steps(dtype, own) for _, dtype, own in operands]
    (kept, kept_steps), (along, along_steps) = (
        merged([shape[d] for d in some], [[s[d] for d in some] for s in steps]) for some in axes
    )
    size = {name: int(numpy_dtype(dtype).itemsize) for name, dtype, _ in operands}
    turned: dict[str, int] = {}
    bands = lies_in_bands(shape, op.axes)
    most = _MAX_TURNED_BYTES if op.after.outputs else _MAX_FOLDED_BYTES
    may_turn = not bands and op.sums is None and kept[-1] >= TURNED_LANES and len(along) == 1
    if may_turn and 2 <= along[-1] <= most // int(numpy_dtype(work).itemsize):
        ends = [
            (name, kept_steps[k][-1], along_steps[k][-1]) for k, (name, *_) in enumerate(operands)
        ]
        turned = _turned(ends, size)
    bands = bands or bool(turned)
    lanes = kept[-1] if bands else 1
    outer = kept[:-1] if bands else kept
    innermost = kept_steps if bands else along_steps
    reads = {
        name: LoopOperand(dtype, "dense" if name in turned else inner(innermost[k][-1], size[name]))
        for k, (name, dtype, _) in enumerate(operands)
        if name[0] == "x"
    }
    label, kept_as = (
        next((dtype for name, dtype, _ in operands if name in some), "")
        for some in (("label",), [f"r{i}" for i in range(len(op.kept))])
    )
    short = along[-1] <= _MAX_CONSTANT_LENGTH
    length = along[-1] if turned or (short and not bands) else 0
    plan = RowPlan(
        op, tuple(reads[name] for name in sorted(reads)), tuple(name for name, *_ in operands),
        work, adds, len(outer), len(along) - 1, bands, length, label, kept_as, tuple(turned),
        not bands and prod(along) <= LINE and op.after.output_dtypes[:1] != (work,),
    )  # fmt: skip
    words: dict[str, Any] = {
        "one": 1,
        "all": prod(outer),
        "m": lanes,
        "JB": -(-lanes // plan.lanes),
    }
    words["tasks"] = words["all"] * words["JB"]
    if op.sums is not None:
        words["tasks"] = max(1, min(_MAX_SUMMING_TASKS, words["all"] // _MIN_ROWS_OF_TASK))
    words |= {"count": prod(along), "A": prod(along[:-1]), "n": along[-1]}
    words |= {f"kn{d}": n for d, n in enumerate(outer)} | {f"an{d}": n for d, n in enumerate(along)}
    for k, (name, *_) in enumerate(operands):
        words[f"{name}.i"] = plan.lanes * size[name] if name in turned else along_steps[k][-1]
        words[f"{name}.l"] = turned.get(name, 0)
        words |= {f"{name}.k{d}": s for d, s in enumerate(kept_steps[k][: len(outer)])}
        words |= {f"{name}.a{d}": s for d, s in enumerate(along_steps[k][:-1])}
    return plan, words


def _turned(operands: Sequence[tuple[str, int, int]], size: dict[str, int]) -> dict[str, int]:
    """Operands of short rows that are turned, and their steps from row to row; none where some lie
    otherwise.

    Of each operand the steps are given from row to row and along a row.
    """
    names = [n for n, *_ in operands]
    if "label" in names and "loss" not in names:
        return {}  # an element of a row is an exponential and a product: rows fill vectors
    if any(row != size[n] for n, row, _ in operands if n in ("label", "loss")):
        return {}
    found = {n: row for n, row, along in operands if along == size[n]}
    others = (row in (0, size[n]) and not along for n, row, along in operands if n not in found)
    return found if all(others) and any(n[0] == "x" for n in found) else {}


def _steps(dtype: str, shape: Sequence[int]) -> list[int]:
    """Bytes from one element of a dense array to the next, 0 along axes of size 1."""
    after = list(accumulate(shape[::-1], lambda a, b: a * b, initial=1))[-2::-1]
    size = int(numpy_dtype(dtype).itemsize)
    return [size * s if n > 1 else 0 for n, s in zip(shape, after)]
