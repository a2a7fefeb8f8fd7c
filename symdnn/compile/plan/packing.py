"""Offsets of buffers in the arena: those that are live together do not overlap."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from symdnn.graph.kernel import OperandMemory
from symdnn.graph.variable import Variable

ALIGNMENT_BYTES = 64
#: Fewer buffers are placed without arrays.
_FEW_BUFFERS = 256


@dataclass
class Buffer:
    """The memory of one value, and the steps ``first`` to ``last`` in which it is live.

    ``kind`` is ``arena`` (at ``offset``, in bytes), ``outside`` (an input of the segment, or an
    output, which is allocated at each call), ``in block`` (at ``offset`` in that of all outputs),
    ``made`` (the kernel allocates it), ``workspace`` (scratch memory in the arena), or
    ``registered`` (at ``offset`` in ``memory``, that of a library).
    """

    variable: Variable | None
    kind: str
    nbytes: int = 0
    first: int = 0
    last: int = 0
    offset: int = 0
    memory: OperandMemory | None = None


def assign_offsets(buffers: Sequence[Buffer], then: Sequence[Buffer] = ()) -> int:
    """Set the offsets so that buffers that are live together do not overlap; returns the bytes.

    The largest buffer comes first, and those of ``then`` come after all others. Each gets the
    lowest offset that is free while it is live.
    """
    order = [b for part in (buffers, then) for b in sorted(part, key=lambda b: -b.nbytes)]
    first, last = (np.array([getattr(b, k) for b in order], np.int64) for k in ("first", "last"))
    start, end = np.zeros(len(order), np.int64), np.zeros(len(order), np.int64)
    few: list[tuple[int, int, int, int]] = []  # (start, end, first, last), the lowest first
    for i, b in enumerate(order):
        if i < _FEW_BUFFERS:
            b.offset = _lowest_gap_of_few(few, b)
        else:
            meets = np.flatnonzero((first[:i] <= b.last) & (b.first <= last[:i]))
            b.offset = _lowest_gap(start[meets], end[meets], b.nbytes)
        start[i], end[i] = b.offset, aligned(b.offset + b.nbytes)
        if i + 1 < _FEW_BUFFERS:
            insort(few, (b.offset, int(end[i]), b.first, b.last))
    return int(end.max(initial=0))


def fill(nbytes: int, placed: Sequence[Buffer], buffers: Sequence[Buffer]) -> list[Buffer]:
    """Those of ``buffers`` for which ``nbytes`` have room beside the ``placed`` ones, placed."""
    found: list[Buffer] = []
    for b in sorted(buffers, key=lambda b: -b.nbytes):
        meets = [p for p in (*placed, *found) if p.first <= b.last and b.first <= p.last]
        offset = _lowest_offset_beside(meets, b.nbytes)
        if offset + b.nbytes <= nbytes:
            b.offset = offset
            found.append(b)
    return found


def _lowest_gap_of_few(placed: Sequence[tuple[int, int, int, int]], b: Buffer) -> int:
    """:func:`_lowest_gap` between those of (start, end, first, last) that are live with ``b``.

    The lowest come first. No array is made, which takes longer than a few comparisons.
    """
    free_from = 0
    for start, end, first, last in placed:
        if first <= b.last and b.first <= last:
            if start - free_from >= b.nbytes:
                break
            free_from = max(free_from, end)
    return free_from


def end_at(step: int, buffers: Sequence[Buffer], nbytes: int) -> int:
    """The end of a new buffer of one ``step``, at the lowest offset between placed ``buffers``."""
    live = [b for b in buffers if b.first <= step <= b.last]
    return aligned(_lowest_offset_beside(live, nbytes) + nbytes)


def _lowest_offset_beside(placed: Sequence[Buffer], nbytes: int) -> int:
    """The lowest offset of so many bytes that overlap with none of the placed buffers."""
    starts = np.array([b.offset for b in placed], np.int64)
    ends = np.array([aligned(b.offset + b.nbytes) for b in placed], np.int64)
    return _lowest_gap(starts, ends, nbytes)


def room_at(step: int, buffers: Sequence[Buffer], nbytes: int) -> int:
    """The largest buffer of one ``step`` for which there is room between placed ``buffers``.

    The arena has ``nbytes``.
    """
    live = sorted((b.offset, b.nbytes) for b in buffers if b.first <= step <= b.last)
    free_from = room = 0
    for offset, size in live:
        room = max(room, offset - free_from)
        free_from = max(free_from, aligned(offset + size))
    return max(room, nbytes // ALIGNMENT_BYTES * ALIGNMENT_BYTES - free_from)


def _lowest_gap(starts: Any, ends: Any, nbytes: int) -> int:
    """The lowest offset at which ``nbytes`` fit between the intervals given."""
    order = np.argsort(starts, kind="stable")
    free_from = np.maximum.accumulate(np.concatenate([[0], ends[order]]))
    room = starts[order] - free_from[:-1]
    fits = np.flatnonzero(room >= nbytes)
    return int(free_from[fits[0]] if len(fits) else free_from[-1])


def largest_live_set(buffers: Sequence[Buffer]) -> int:
    """The most bytes that are live in one step."""
    changes: dict[int, int] = {}
    for b in buffers:
        changes[b.first] = changes.get(b.first, 0) + b.nbytes
        changes[b.last + 1] = changes.get(b.last + 1, 0) - b.nbytes
    now = peak = 0
    for step in sorted(changes):
        now += changes[step]
        peak = max(peak, now)
    return peak


def aligned(n: int) -> int:
    """A number of bytes rounded up to whole lines of the cache."""
    return -(-n // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
