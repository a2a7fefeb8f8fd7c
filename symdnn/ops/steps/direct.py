"""Results of maps that are copied once: the maps write them where the copies would."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import replace

from symdnn.ops.steps.statements import (
    Branch,
    Check,
    Folding,
    Index,
    Map,
    Product,
    Repeat,
    Statement,
    View,
)


def without_copies(
    body: list[Statement], after: list[Statement], own: Container[str], until: View | None
) -> tuple[list[Statement], list[Statement]]:
    """The statements of a step, and those that move its states on, with fewer copies.

    ``own`` are the buffers of values of this step alone. A copy of one goes if a map wrote it and
    reads nothing else of the memory that the copy writes, which nothing touches in between.
    """
    block, count = [*body, *after], len(body)
    p = 0
    while p < len(block):
        j = _maker(block, p, own, until)
        if j is None:
            p += 1
            continue
        made, copy = block[j], block[p]
        assert isinstance(made, Map)
        assert isinstance(copy, Map)
        (source,), (target,) = copy.reads, copy.writes
        writes = tuple(target if w == source else w for w in made.writes)
        block[j] = replace(made, writes=writes)
        del block[p]
        count -= p < count
    return block[:count], block[count:]


def _maker(
    block: Sequence[Statement], p: int, own: Container[str], until: View | None
) -> int | None:
    """Which statement may write what statement ``p`` copies where it copies it to; None if none."""
    copy = block[p]
    if not isinstance(copy, Map) or copy.program.body or len(copy.reads) != 1:
        return None
    source, (target, *more) = copy.reads[0], copy.writes
    if source.base not in own or source.dtype != target.dtype or more:
        return None
    touching = [i for i, s in enumerate(block) if any(v.base == source.base for v, _ in _views(s))]
    at = touching.index(p)
    if at != len(touching) - 1 or (until is not None and until.base in (source.base, target.base)):
        return None
    j = touching[at - 1]
    made = block[j]
    first = {written for v, written in _views(block[touching[0]]) if v.base == source.base}
    if first != {True} or not isinstance(made, Map) or made.writes.count(source) != 1:
        return None
    inside = [
        v for v, written in _views(made) if v.base == target.base and (written or v != target)
    ]
    between = [v for s in block[j + 1 : p] for v, _ in _views(s) if v.base == target.base]
    return j if made.shape == copy.shape and not inside and not between else None


def _views(s: Statement) -> Iterator[tuple[View, bool]]:
    """The views that a statement reads, and those that it writes (True)."""
    if isinstance(s, Map | Folding):
        yield from ((v, False) for v in s.reads)
        yield from ((v, True) for v in s.writes)
    elif isinstance(s, Product):
        yield from ((s.x, False), (s.y, False), (s.out, True))
    elif isinstance(s, Index | Check):
        yield s.view, False
    elif isinstance(s, Branch):
        yield s.condition, False
        for inner in (*s.yes, *s.no):
            yield from _views(inner)
    elif isinstance(s, Repeat):
        for view in (s.count, s.until):
            if isinstance(view, View):
                yield view, False
        if s.done is not None:
            yield s.done, True
        for inner in (*s.body, *s.after):
            yield from _views(inner)
