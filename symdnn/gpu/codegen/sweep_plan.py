"""How operands of a reduction are read: in vectors along which axis, how many at a time."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from symdnn.gpu.codegen.launches import Views
from symdnn.gpu.codegen.loop_source import Move
from symdnn.gpu.codegen.reduce_form import Reducer, Source, Sweep
from symdnn.gpu.codegen.reduce_plan import MAX_VECTOR_ELEMENTS, Lines, Plan
from symdnn.gpu.codegen.reduce_source import takes_bytes
from symdnn.graph.type import numpy_dtype
from symdnn.ops.core.scalar import ScalarProgram

__all__ = ["ahead_of", "reduces_neighbours", "resident", "vector_sweep"]

#: Registers of a state; 2 for kinds that are not here.
_STATE_REGISTERS = {
    "Sum": 1, "Prod": 1, "Max": 1, "Min": 1, "AllTrue": 1, "AnyTrue": 1, "Moments": 4,
}  # fmt: skip
#: Registers of a thread's states with which three blocks fit on a multiprocessor.
_FEW_REGISTERS = 16
#: Elements of a line from which on several are read ahead, where they are read one by one; bytes
#: that a thread then reads at a time, and vectors.
_LEAST_AHEAD, _BYTES_AHEAD, _MOST_AHEAD = 512, 64, 16
#: Elements of a row whose last vector may be a part of one.
_LEAST_CUT_ROW = 64
#: Bytes of an aligned vector below which lines are read in others, wherever they begin; bytes of
#: those, and how many a line should have.
_NARROW_BYTES, _LOOSE_BYTES, _LEAST_LOOSE_VECTORS = 8, 16, 4


def vector_sweep(
    dtypes: tuple[str, ...],
    views: Views,
    lines: Lines,
    wide: bool,
    tails: bool,
    anywhere: bool,
    widest: int,
    moves: tuple[tuple[Move, ...], ...] = (),
    jumps: Sequence[Sequence[int]] = (),
) -> Sweep | None:
    """A sweep in vectors; None where strides do not allow it.

    Lines that have no aligned vectors are read in vectors that begin ``anywhere``, or by single
    elements, several ahead, if they are long.
    With ``tails`` the last vector of a row may reach into what is behind it, as far as the next row
    is aligned: that is read, and not used. A vector has up to ``widest`` elements. Operands move by
    index arrays, the last of ``views``, and ``jumps``.
    """
    arrays = range(len(moves) or len(views), len(views))
    single: Sweep | None = None
    for across in (False, True):
        sizes = lines.kept if across else lines.reduced
        along = lines.kept_steps if across else lines.reduced_steps
        rest = [n > 1 for n in (*sizes[:-1], *(lines.reduced if across else lines.kept))]
        other = lines.reduced_steps if across else lines.kept_steps
        if any(s[-1] not in (0, 1) for s in along) or all(s[-1] == 0 for s in along):
            continue
        moving = [i for i, s in enumerate(along) if s[-1] == 1]
        outer_steps = [
            [step for step, several in zip((*along[i][:-1], *other[i]), rest) if several]
            for i in moving
        ]
        outer_steps += map(list, jumps)
        run = sizes[-1]
        cut = tails and not across and len(sizes) == 1 and run >= _LEAST_CUT_ROW
        picked = any(along[i][-1] for i in arrays)  # from one element of a vector to the next
        width = _width(0 if cut else run, [views[i] for i in moving], outer_steps,
                       1 if picked else widest)  # fmt: skip
        fixed = [not any(r) for r in lines.reduced_steps]
        for i, own in enumerate(moves):
            fixed[i] = fixed[i] and all(fixed[arrays.start + m.array] for m in own)
        sources = tuple(Source(bool(s[-1]), f) for s, f in zip(along, fixed))
        counts = len(lines.kept), len(lines.reduced)
        loose = _loose_width([views[i] for i in moving], run, width, widest)
        alike = across or (
            len(sizes) == 1 and _begin_alike([views[i] for i in moving], outer_steps, loose)
        )
        if anywhere and loose and alike:
            return Sweep(dtypes, *counts, not across, wide, loose, across, sources, loose=True)
        tail = run % width if cut else 0
        found = Sweep(
            dtypes, *counts, not across, wide, width, across, sources, tail=tail, moves=moves
        )
        if width > 1:
            return found
        if prod(lines.reduced) >= _LEAST_AHEAD:
            single = single or found
    return single


def _loose_width(moving: Views, run: int, width: int, widest: int) -> int:
    """Elements of a vector that begins anywhere, where aligned ones have ``width``; 0: none."""
    sizes = [v.itemsize for v in moving]
    loose = min(_LOOSE_BYTES // max(sizes), widest)
    if run < _LEAST_LOOSE_VECTORS * loose:
        loose = min(loose, MAX_VECTOR_ELEMENTS)
    narrow = width * min(sizes) < _NARROW_BYTES and run >= _LEAST_LOOSE_VECTORS * loose
    return loose if narrow and width < loose and loose * min(sizes) >= 4 else 0


def _begin_alike(moving: Views, steps: Sequence[Sequence[int]], width: int) -> bool:
    """Whether rows of all operands begin at the same place in a vector."""
    if len(moving) < 2 or not width:
        return True
    places = {tuple(step % width for step in own) for own in steps}
    same = len({v.itemsize for v in moving}) == 1 and len(places) == 1
    return same and all(v.aligned_to(width * v.itemsize) for v in moving)


def ahead_of(views: Views, sweep: Sweep, plan: Plan) -> int:
    """How many times as many vectors a thread reads at a time since they are narrow."""
    moving = [v.itemsize for v, a in zip(views, sweep.sources) if not a.fixed]
    lanes = plan.block[0] if sweep.rows else plan.block[1]
    own = plan.elements // (plan.chunks * lanes)
    ahead, nbytes = 1, sweep.batch * sweep.width * sum(moving)
    most = _BYTES_AHEAD * (2 if sweep.across and not sweep.loose else 1)
    while (
        moving and 2 * ahead * nbytes <= most and 2 * ahead * sweep.batch <= min(own, _MOST_AHEAD)
    ):
        ahead *= 2
    return ahead


def resident(program: ScalarProgram, reducers: Sequence[Reducer], sweep: Sweep) -> int:
    """Blocks per multiprocessor, which share its registers: 64 per thread with 4 blocks."""
    wide = any(numpy_dtype(r.work).itemsize > 4 for r in reducers)
    if wide and takes_bytes(program, reducers):
        return 2 if sweep.across else 4
    if wide or len(program.inputs) > 10:
        return 1
    if sweep.across and len(program.body) <= 24:
        states = sweep.width * sum(_STATE_REGISTERS.get(r.kind, 2) for r in reducers)
        return 4 if sweep.width == 1 else 3 if states <= _FEW_REGISTERS else 2
    if sweep.across:
        return 2
    words = sum(_STATE_REGISTERS.get(r.kind, 2) for r in reducers)
    few = words <= 16 and len(program.body) <= 24 and len(program.inputs) <= 6
    return 4 if few else 3 if words <= 32 else 2


def _width(run: int, views: Views, steps: Sequence[Sequence[int]], widest: int) -> int:
    """Elements of a vector: up to 16 bytes of the narrowest operand, as all operands allow."""
    width = 16 // min(v.itemsize for v in views)
    while width > 1 and not (
        width <= widest
        and run % width == 0
        and all(v.aligned_to(min(16, v.itemsize * width)) for v in views)
        and all(step % width == 0 for own in steps for step in own)
    ):
        width //= 2
    return width


def reduces_neighbours(kept: Sequence[tuple[int, ...]], reduced: Sequence[tuple[int, ...]]) -> bool:
    """Whether neighbours in memory belong to one output, in the input with the most dimensions."""
    spread = [sum(s != 0 for s in (*k, *r)) for k, r in zip(kept, reduced)]
    most = spread.index(max(spread))
    across = [abs(s) for s in kept[most] if s]
    along = [abs(s) for s in reduced[most] if s]
    return not across or (bool(along) and min(along) <= min(across))
