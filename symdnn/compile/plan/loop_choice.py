"""How many segments a loop within a memory budget has, and which of them are stored.

A loop of ``n`` steps whose gradient reads ``stored`` bytes of each step has three parts of memory:
the steps that are kept, the states at the start of each segment, and the working values of one
segment. Steps that are not kept run again, which takes ``seconds`` each, and each segment takes
some time of its own. The share of kept steps follows from the length of segments; among loops,
memory goes first to those whose bytes save the most time (a fractional knapsack).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, sqrt
from typing import Any

from symdnn.compile.plan.known_sizes import bytes_of_shape, known_sizes, shape_of, value_of
from symdnn.compile.plan.node_costs import seconds_of
from symdnn.compile.plan.specialise import make_call
from symdnn.graph.place import HOST, Place
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.control.scan import Scan
from symdnn.ops.elemwise import Elemwise
from symdnn.opt.scan.scan_pairs import Pair
from symdnn.opt.scan.scan_segments import Piece

Shapes = dict[Variable, tuple[int, ...]]
Values = dict[Variable, Any]

#: Seconds that a segment takes beside its steps: launches, copies, a look-up of plans.
_EACH_SEGMENT = {"host": 2e-4, "device": 4e-5}
#: Working values of a step in a segment, in proportion to all that the loop makes in a step.
_WORKING = 3.0
#: The least share of the estimated working values to which a program corrects them.
_LEAST_WORKING = 0.05
#: The lengths of segments that are tried, in proportion to the one of the least time.
_SCALES = (1.0, 0.7, 0.5, 0.35, 0.25, 0.18, 0.12, 0.08, 0.05, 0.03, 0.02, 0.01)
#: How far a length may be from the wanted one, so that segments are equal, and how many are tried.
_NEAR, _MOST_LENGTHS = 0.25, 24


@dataclass(frozen=True)
class LoopFacts:
    """A loop at its sizes: steps, and in bytes what is stored of a step, a state, and worked on.

    ``seconds`` is the time of a step that runs again, by estimate.
    """

    steps: int
    stored: float
    state: float
    working: float
    seconds: float

    @property
    def bytes_of_steps(self) -> float:
        """What the loop and its gradient need for all steps."""
        return self.steps * (self.stored + self.working)


def facts_of(pair: Pair, shapes: Shapes, values: Values, place: Place) -> LoopFacts | None:
    """What a choice needs to know of a loop; None where its sizes follow from data."""
    op, node = pair.forward.op, pair.forward
    assert isinstance(op, Scan)
    try:
        steps = int(value_of(node.inputs[0], values))
        outputs = [shape_of(v, shapes) for v in node.outputs]
        read = [
            bytes_of_shape(v.type, shape_of(v, shapes))
            for v in pair.sequences
            if isinstance(v, Variable)
        ]
        given = op.split([shape_of(v, shapes) for v in node.inputs])
    except KeyError:
        return None
    sizes = [
        bytes_of_shape(v.type, s[1:])
        for v, s in zip(node.outputs, outputs)
        if len(s) == v.type.ndim > 0
    ]
    of_steps = {h for h, _ in op.places() if h is not None}
    of_steps |= set(range(op.first_collected, len(node.outputs)))
    each = {i: sizes[i] for i in of_steps if i < len(sizes)}
    states = sum(
        bytes_of_shape(v.type, s) for v, s in zip(op.split(node.inputs).initials, given.initials)
    )
    working = _WORKING * (sum(each.values()) + sum(read) / max(steps, 1))
    stored = float(sum(each.get(i, 0) for i in pair.stored))
    return LoopFacts(steps, stored, float(states), working, _seconds(op, given, values, place))


def _seconds(op: Scan, given: Any, values: Values, place: Place) -> float:
    """The estimated time of a step: at the sizes ``given``."""
    inside: Shapes = {}
    split = op.split_inner(op.inner.inputs)
    inside.update((v, s[1:]) for v, s in zip(split.sequences, given.sequences))
    for taps, s in zip(split.initials, given.initials, strict=True):
        inside.update((v, s[1:]) for v in taps)
    inside.update(zip(split.others, given.others))
    shapes, _ = known_sizes(op.inner.nodes, inside, {})
    return seconds_of_nodes(op.inner.nodes, shapes, place)


def seconds_of_nodes(nodes: Iterable[Apply], shapes: Shapes, place: Place) -> float:
    """The estimated time of nodes with known ``shapes``: elementwise ones are one kernel."""
    total, rest = 0.0, 0.0
    for n in nodes:
        if all(v in shapes for v in n.outputs):
            took = seconds_of(make_call(n, shapes), place)
            if isinstance(n.op, Elemwise) or n.op.views:
                rest = max(rest, took)
            else:
                total += took
    return total + rest


# -- the choice -----------------------------------------------------------------------------------


def chosen_pieces(loops: Sequence[LoopFacts], room: float, place: Place) -> list[list[Piece]]:
    """The pieces of each loop that take the least time within ``room`` bytes.

    Where nothing fits, those of the fewest bytes.
    """
    each = _EACH_SEGMENT["host" if place == HOST else "device"]
    best: tuple[float, float, list[list[Piece]]] | None = None
    for lengths in _lengths(loops, each):
        kept = _kept_steps(loops, lengths, room)
        pieces = [
            list(_pieces(f, k, n if f.stored else f.steps))
            for f, k, n in zip(loops, lengths, kept, strict=True)
        ]
        need, took = bytes_of(loops, pieces), time_of(loops, pieces, place)
        rank = (max(need, room), took)
        if best is None or rank < (max(best[0], room), best[1]):
            best = need, took, pieces
    assert best is not None
    return best[2]


def _lengths(loops: Sequence[LoopFacts], each: float) -> Iterator[list[int]]:
    """Lengths of segments: the whole loop, that of the least time, shorter ones, of least bytes."""
    yield [f.steps for f in loops]
    fast = [
        sqrt(f.steps * each * max(f.stored, 1.0) / (max(f.working, 1.0) * max(f.seconds, 1e-9)))
        for f in loops
    ]
    least = [sqrt(f.steps * f.state / max(f.stored + f.working, 1.0)) for f in loops]
    for wanted in [[k * s for k in fast] for s in (4.0, 2.0, *_SCALES)] + [least]:
        yield [max(1, min(round(k), f.steps)) for k, f in zip(wanted, loops, strict=True)]


def _kept_steps(loops: Sequence[LoopFacts], lengths: Sequence[int], room: float) -> list[int]:
    """How many of the last steps of each loop are stored."""
    fixed = sum(f.state * ceil(f.steps / k) for f, k in zip(loops, lengths, strict=True))
    free = room - fixed - max(f.working * k for f, k in zip(loops, lengths, strict=True))
    kept = [0] * len(loops)
    order = sorted(range(len(loops)), key=lambda i: -loops[i].seconds / max(loops[i].stored, 1e-9))
    for i in order:
        f = loops[i]
        if f.stored and free > 0:
            n = min(f.steps, int(free / f.stored))
            kept[i] = n if n == f.steps else n // lengths[i] * lengths[i]
            free -= kept[i] * f.stored
    return kept


def _pieces(f: LoopFacts, length: int, kept: int) -> Iterator[Piece]:
    """The steps that run again, then those that are kept; equal segments where numbers allow."""
    n = f.steps
    if kept in (0, n):
        yield from _alike(n, length, kept == n)
        return
    near = _near(length)
    found: tuple[int, Piece, Piece] | None = None
    for b in near:
        for segments in range(kept // b, max(0, kept // b - 3), -1):
            left = n - segments * b
            for a in near:
                if left > 0 and left % a == 0 and (found is None or left < found[0]):
                    found = left, Piece(left // a, a, False), Piece(segments, b, True)
    if found is not None:
        yield from found[1:]
        return
    yield from _alike(n - kept, length, False)
    yield from _alike(kept, length, True)


def _near(length: int) -> list[int]:
    reach = min(int(length * _NEAR), _MOST_LENGTHS // 2)
    return sorted(range(max(1, length - reach), length + reach + 1), key=lambda k: abs(k - length))


def _alike(n: int, length: int, kept: bool) -> Iterator[Piece]:
    """``n`` steps in equal segments of about ``length``, or with a shorter one behind them."""
    length = min(length, n)
    equal = next((k for k in _near(length) if k <= n and n % k == 0), None)
    length = equal or length
    yield Piece(n // length, length, kept)
    if n % length:
        yield Piece(1, n % length, kept)


def bytes_of(loops: Sequence[LoopFacts], pieces: Sequence[Sequence[Piece]]) -> float:
    """The bytes of all loops: of kept steps together, of working values of one loop at a time."""
    kept = again = 0.0
    most = most_again = 0.0
    for f, some in zip(loops, pieces, strict=True):
        for p in some:
            kept += f.stored * p.all_steps if p.kept else f.state * p.segments
            again += 0 if p.kept else f.state * p.segments
            most = max(most, f.working * p.steps)
            most_again = max(most_again, 0 if p.kept else (f.working + f.stored) * p.steps)
    return max(kept + most, again + most_again)


def working_of(loops: Sequence[LoopFacts], pieces: Sequence[Sequence[Piece]]) -> float:
    """The bytes of the working values of a segment, by estimate."""
    return max(f.working * p.steps for f, some in zip(loops, pieces, strict=True) for p in some)


def corrected(
    loops: Sequence[LoopFacts], measured: Sequence[tuple[float, float]]
) -> list[LoopFacts]:
    """Loops with the working values that programs had: pairs of estimated and measured bytes.

    Two programs tell them from what is needed for a segment of any length.
    """
    (x, y), others = measured[-1], measured[:-1]
    share = y / max(x, 1.0)
    if others:
        u, v = max(others, key=lambda p: abs(p[0] - x))
        if abs(u - x) > 0.1 * x:
            share = (v - y) / (u - x)
    share = min(max(share, _LEAST_WORKING), 1 / _LEAST_WORKING)
    return [replace(f, working=f.working * share) for f in loops]


def time_of(loops: Sequence[LoopFacts], pieces: Sequence[Sequence[Piece]], place: Place) -> float:
    """The seconds of steps that run again and of segments, by estimate."""
    each = _EACH_SEGMENT["host" if place == HOST else "device"]
    return sum(
        (0.0 if p.kept else p.all_steps * f.seconds) + each * p.segments
        for f, some in zip(loops, pieces, strict=True)
        for p in some
    )
