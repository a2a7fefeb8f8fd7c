"""How a nest runs on a CPU: what are lanes of vectors, tasks of threads, and chunks of a fold.

Three shapes of loops:

- ``columns``: the lanes are neighbours along a kept axis. A task is a band of them, whose states
  are in memory, in the first cache; it goes along the folded axes.
- ``lanes``: the lanes are neighbours along the last folded axis; each folds every so many-th
  element, and in the end they meet in pairs. For reductions.
- ``lines``: along neighbours in memory, for scans and short reductions: some lines at a time, one
  element of each after the other, states in registers.

All follows from sizes and strides, nothing from the processor or the number of threads, so neither
do the bits of a result.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from symdnn.cpu.ir.loops_ir import LoopOperand, inner
from symdnn.ops.nest.nest import Access, Nest

__all__ = ["Schedule", "scheduled", "word_names"]

#: The most and the fewest columns of a band: wide ones are read in long runs, several threads need
#: several. No column depends on others, so neither do bits on the width.
_MAX_BAND, _MIN_BAND = 1024, 64
#: Lanes along a folded axis, by its least length; an axis has the first that it is long enough for.
_LANES = ((4096, 256), (256, 64), (0, 16))
#: Lines that are run together, since each addition waits for the one before.
_LINES = 4
#: Columns that fill a vector; short folded axes, along which lanes are not worth it.
_MIN_COLUMNS, _SHORT_AXIS = 4, 128
#: Elements of a part of a folded axis: chunks have whole parts.
_PART_ELEMENTS = 4096
#: A reduction of few results is cut into chunks: up to so many tasks, of at least so many elements.
_WANTED_TASKS, _MIN_TASK_ELEMENTS = 64, 1 << 14


@dataclass(frozen=True)
class Schedule:
    """What the text depends on: the shape of loops, how many axes are outside of the lanes.

    ``reads`` and ``writes`` say how operands lie along the lanes (along the folded axis for lines).
    """

    shape: str
    lanes: int
    kept: int
    along: int
    reads: tuple[LoopOperand, ...]
    writes: tuple[LoopOperand, ...]


def word_names(schedule: Schedule) -> list[str]:
    """Names of the words of the block of parameters, in order.

    ``threads``, ``tasks``, ``one``: the head of every kernel's block. ``C`` chunks of a fold have
    ``Q`` parts of ``QT`` in all; a part is an element for columns, else one of ``S`` parts of an
    axis of ``n`` elements, ``seg`` long. There are ``m`` columns in ``JB`` bands of ``W``, or ``m``
    lines.
    """
    names = ["threads", "tasks", "one", "C", "Q", "QT", "S", "seg", "n", "m", "W", "JB"]
    names += [f"kn{d}" for d in range(1, schedule.kept)]
    names += [f"an{d}" for d in range(1, schedule.along)]
    operands = [f"x{i}" for i in range(len(schedule.reads))]
    operands += [f"y{i}" for i in range(len(schedule.writes))]
    for name in operands:
        names += [name, f"{name}.o", f"{name}.i"]
        names += [f"{name}.k{d}" for d in range(schedule.kept)]
        names += [f"{name}.a{d}" for d in range(schedule.along)]
    return [*names, "partial"]


def scheduled(nest: Nest, threads: int) -> tuple[Schedule, dict[str, int]]:
    """The schedule of a merged nest, and the words that do not depend on addresses."""
    shape = _shape(nest)
    kept, along = list(nest.kept), list(nest.along)
    length = nest.sizes[along[-1]]
    lane = {"columns": kept, "lanes": along, "lines": along}[shape].pop()
    outer = prod(nest.sizes[d] for d in kept)
    lanes = _MAX_BAND
    if shape == "lanes":
        lanes = next(count for least, count in _LANES if length >= least)
    elif shape == "lines":
        lanes = _LINES if outer >= _LINES else 1

    def operand(a: Access, written: bool) -> LoopOperand:
        return LoopOperand(a.dtype, inner(a.steps[lane], a.itemsize, written))

    found = Schedule(
        shape, lanes, len(kept), len(along),
        tuple(operand(a, False) for a in nest.reads), tuple(operand(a, True) for a in nest.writes),
    )  # fmt: skip
    columns = nest.sizes[lane] if shape == "columns" else outer
    band = _band(outer * columns, threads) if shape == "columns" else lanes
    bands = -(-columns // band) if shape != "lanes" else 1
    rows = prod(nest.sizes[d] for d in along)
    seg = length if length <= 2 * _PART_ELEMENTS else _PART_ELEMENTS
    parts_of_row = -(-length // seg) if shape == "lanes" else 1
    parts, groups = rows * parts_of_row, bands if shape == "lines" else outer * bands
    chunks, chunk = _chunks(nest, shape, groups, parts)
    words = {
        "tasks": groups * chunks, "one": 1, "C": chunks, "Q": chunk, "QT": parts,
        "S": parts_of_row, "seg": seg, "n": length, "m": columns, "W": band, "JB": bands,
    }  # fmt: skip
    for mark, axes in (("k", kept), ("a", along)):
        words |= {f"{mark}n{i}": nest.sizes[d] for i, d in enumerate(axes) if i}
    for kind, operands in (("x", nest.reads), ("y", nest.writes)):
        for j, a in enumerate(operands):
            words |= {f"{kind}{j}.o": a.offset, f"{kind}{j}.i": a.steps[lane]}
            words |= {f"{kind}{j}.k{i}": a.steps[d] for i, d in enumerate(kept)}
            words |= {f"{kind}{j}.a{i}": a.steps[d] for i, d in enumerate(along)}
    return found, words


def _band(columns: int, threads: int) -> int:
    """Columns of a band: a few bands for each thread, if there are enough columns."""
    share = -(-columns // (2 * threads)) if threads > 1 else columns
    return max(_MIN_BAND, min(_MAX_BAND, -(-share // _MIN_BAND) * _MIN_BAND))


def _shape(nest: Nest) -> str:
    column, row = nest.kept[-1], nest.along[-1]
    columns, length = nest.sizes[column], nest.sizes[row]
    beside, ahead = (
        sum(abs(a.steps[d]) for a in nest.reads if nest.sizes[d] > 1) for d in (column, row)
    )
    neighbours = columns >= _MIN_COLUMNS and (beside < ahead or length == 1)
    if nest.fold.scan:
        return "columns" if neighbours else "lines"
    ordered = any(m.ordered for m in nest.fold.monoids)
    if neighbours or (ordered and len(nest.along) > 1):
        return "columns"
    return "lines" if ordered or (length <= _SHORT_AXIS and len(nest.along) == 1) else "lanes"


def _chunks(nest: Nest, shape: str, groups: int, parts: int) -> tuple[int, int]:
    """(the number of chunks of each fold, parts of a chunk)."""
    if nest.fold.scan or shape == "lines":
        return 1, parts
    if shape == "columns":  # not the groups, which depend on the number of threads
        columns = nest.sizes[nest.kept[-1]]
        groups = nest.outputs // columns * -(-columns // _MAX_BAND)
    each = nest.elements * nest.outputs // max(groups, 1)
    wanted = max(1, min(-(-_WANTED_TASKS // groups), each // _MIN_TASK_ELEMENTS))
    chunk = -(-parts // wanted)
    return -(-parts // chunk), chunk
