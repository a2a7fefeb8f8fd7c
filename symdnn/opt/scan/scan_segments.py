"""A loop and its gradient in segments, so that few values of all steps are stored.

Steps are divided into pieces, each of some segments of equal length. A piece is a loop over its
segments, with a loop over the steps of one in it. A kept piece stores the values of its steps for
the gradient. Another one stores the states at the start of each segment, from which its gradient
runs the segment again. What a rewrite moves out of the inner loop stays in the outer one, so
products of all steps become products of a segment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.operators import operator
from symdnn.graph.origin import inherit
from symdnn.graph.variable import Constant, Variable, constant
from symdnn.ops.array.create import arange
from symdnn.ops.array.join import join
from symdnn.ops.control.checkpoint import After
from symdnn.ops.control.scan import Scan
from symdnn.ops.control.scan_parts import Parts, State
from symdnn.ops.core.shape import dims_of, specify_type
from symdnn.opt.scan.scan_pairs import Pair, Reading

Pairs = list[tuple[Variable, Variable]]


@dataclass(frozen=True)
class Piece:
    """Consecutive steps: ``segments`` of them, each of ``steps`` steps; ``kept``: stored whole."""

    segments: int
    steps: int
    kept: bool

    @property
    def all_steps(self) -> int:
        """The number of steps."""
        return self.segments * self.steps


def put_in_segments(fgraph: FunctionGraph, chosen: Sequence[tuple[Pair, Sequence[Piece]]]) -> None:
    """Let loops and their gradients run in these pieces, which have all of their steps."""
    order = {node: i for i, node in enumerate(fgraph.toposort())}
    found: list[tuple[int, Pairs]] = []
    for pair, pieces in chosen:
        with inherit(pair.forward.origin, pair.forward.hints, pair.forward.written):
            forward = _Forward(fgraph, pair, pieces)
            found.append((order[pair.forward], forward.run()))
        with inherit(pair.backward.origin, pair.backward.hints, pair.backward.written):
            found.append((order[pair.backward], _Backward(fgraph, pair, forward).run()))
    # What reads a loop comes before it, since the new nodes were made of the old ones.
    last_first = sorted(found, key=lambda entry: -entry[0])
    fgraph.replace_all([p for _, pairs in last_first for p in pairs], "loops in segments")


@dataclass
class _Values:
    """What a piece of the forward loop leaves.

    ``stored`` are the values that the gradient reads, by output (segments, ...), ``begins`` the
    states at the start of each segment, ``whole`` the entries of outputs that others read.
    """

    piece: Piece
    offset: int
    stored: dict[int, Variable] = field(default_factory=dict)
    begins: list[Variable] = field(default_factory=list)
    whole: dict[int, Variable] = field(default_factory=dict)


def _inner(v: Variable) -> Variable:
    new: Variable = v.type(v.name)
    return new


def _numbers(parts: Parts, piece: Piece, backwards: bool = False) -> Variable:
    """The number of the segment, in the body of the loop over segments."""
    numbers = arange(piece.segments)[::-1] if backwards else arange(piece.segments)
    at: Variable = numbers.type.entry()("segment")
    parts.sequences.append((at, numbers))
    return at


def _whole(parts: Parts, x: Variable) -> Variable:
    """An array, as a variable of the body: a part of it is a view there, and a copy outside."""
    known = {outer: v for v, outer in parts.others}
    if x not in known:
        known[x] = _inner(x)
        parts.others.append((known[x], x))
    return known[x]


def _steps_of(parts: Parts, x: Variable, at: Variable, values: _Values) -> Variable:
    """The entries of the steps of segment ``at``."""
    steps = values.piece.steps
    start = at * steps + values.offset
    part = _whole(parts, x)[start : start + steps]
    return specify_type(part, part.type.with_shape((steps, *part.type.shape[1:])))


def _one(v: Variable) -> Variable:
    found: Variable = v.dimshuffle("x", *range(v.type.ndim))
    return found


def _fitted(new: Variable, like: Variable) -> Variable:
    """``new`` with the static sizes of ``like``, which it has."""
    lacking = (a is not None and b is None for a, b in zip(like.type.shape, new.type.shape))
    return specify_type(new, like.type) if any(lacking) else new


class _Forward:
    """The loop before, piece by piece."""

    def __init__(self, fgraph: FunctionGraph, pair: Pair, pieces: Sequence[Piece]) -> None:
        self.fgraph, self.pair, self.node = fgraph, pair, pair.forward
        op = pair.forward.op
        assert isinstance(op, Scan)
        self.op, self.pieces = op, pieces
        given = op.split(pair.forward.inputs)
        self.sequences, self.initials = list(given.sequences), list(given.initials)
        self.others = list(given.others)
        self.stored = pair.stored
        self.values: list[_Values] = []
        first = op.first_collected
        of_steps = [h for h, _ in op.places() if h is not None]
        of_steps += range(first, first + op.collected)
        #: Outputs of all steps that something besides the gradient reads.
        self.read = [
            i for i in of_steps if i not in self.stored and fgraph.users(self.node.outputs[i])
        ]

    def run(self) -> Pairs:
        """The outputs with those that replace them."""
        states, offset = self.initials, 0
        for piece in self.pieces:
            values = _Values(piece, offset)
            states = self._piece(values, states)
            self.values.append(values)
            offset += piece.all_steps
        return self._outputs(states, offset)

    def segment(
        self, steps: int, sequences: Sequence[Variable], states: Sequence[Variable],
        others: Sequence[Variable],
    ) -> tuple[dict[int, Variable], list[Variable]]:  # fmt: skip
        """The values of all steps of a segment, by output, and the states after it."""
        inputs = [constant(steps), *sequences, *states, *others]
        parts = Parts.of(self.op, inputs)
        for s in parts.states:
            s.history = True
        # ``build`` leaves out what no step reads, but not outputs.
        built = parts.build()
        found: dict[int, Variable] = {}
        for (h, _), history in zip(self.op.places(), built.histories, strict=True):
            if h is not None:
                assert history is not None
                found[h] = history
        first = self.op.first_collected
        found.update({first + i: v for i, v in enumerate(built.collected)})
        return found, [_after(c.depth, b, h) for c, b, h in zip(
            self.op.states, built.last, built.histories, strict=True)]  # fmt: skip

    def _piece(self, values: _Values, states: Sequence[Variable]) -> list[Variable]:
        """Run a piece from these states; returns those after it."""
        piece = values.piece
        parts = Parts(piece.segments, name=self.op.name)
        inside = [_inner(v) for v in states]
        at = _numbers(parts, piece)
        entries = [After()(_steps_of(parts, x, at, values), *inside) for x in self.sequences]
        others = _add_others(parts, self.others)
        found, after = self.segment(piece.steps, entries, inside, others)
        for v, initial, new in zip(inside, states, after, strict=True):
            parts.states.append(State((-1,), [v], _one(initial), _fitted(new, v), True, "a state"))
        stored = self.stored if piece.kept else []
        depth = self._depths()
        parts.collected = [found[i] for i in stored]
        parts.collected += [found[i][depth.get(i, 0) :] for i in self.read]
        built = parts.build()
        values.stored = dict(zip(stored, built.collected))
        for i, v in zip(self.read, built.collected[len(stored) :], strict=True):
            values.whole[i] = v.reshape((piece.all_steps, *dims_of(v)[2:]))
        values.begins = [h[:-1] for h in built.histories if h is not None]
        return list(built.last)

    def _depths(self) -> dict[int, int]:
        """For the output of each history the number of initial values."""
        places = self.op.places()
        return {
            h: c.depth for c, (h, _) in zip(self.op.states, places, strict=True) if h is not None
        }

    def _outputs(self, states: Sequence[Variable], steps: int) -> Pairs:
        depths, pairs = self._depths(), []
        for i, v in enumerate(self.node.outputs):
            if not self.fgraph.users(v):
                continue
            if i in self.read:
                pieces = [p.whole[i] for p in self.values]
                at = [h for h, _ in self.op.places()]
                start = [self.initials[at.index(i)]] if i in depths else []
                new = join(0, *start, *pieces) if len(start) + len(pieces) > 1 else pieces[0]
            elif i in depths:  # its sizes alone are read
                sizes = dims_of(self.initials[[h for h, _ in self.op.places()].index(i)])[1:]
                zero = constant(v.type.numpy.type(0))
                new = operator("alloc")(zero, depths[i] + steps, *sizes)
            elif i in self.stored:
                continue
            else:
                at = [last for _, last in self.op.places()]
                new = states[at.index(i)][-1]
            pairs.append((v, _fitted(new, v)))
        return pairs


def _after(depth: int, last: Variable, history: Variable | None) -> Variable:
    """The values of a state that the next segment begins with."""
    if depth == 1:
        return _one(last)
    assert history is not None
    return history[-depth:]


def _add_others(parts: Parts, others: Sequence[Variable]) -> list[Variable]:
    """Inner variables of what all steps read; constants stay."""
    known = {x: v for v, x in parts.others}
    for v in others:
        if not isinstance(v, Constant) and v not in known:
            known[v] = _inner(v)
            parts.others.append((known[v], v))
    return [known.get(v, v) for v in others]


class _Backward:
    """The loop of the gradient, piece by piece from the last one on."""

    def __init__(self, fgraph: FunctionGraph, pair: Pair, forward: _Forward) -> None:
        self.fgraph, self.pair, self.forward, self.node = fgraph, pair, forward, pair.backward
        op = pair.backward.op
        assert isinstance(op, Scan)
        self.op = op
        given = op.split(pair.backward.inputs)
        self.initials, self.others = list(given.initials), list(given.others)

    def run(self) -> Pairs:
        """The outputs with those that replace them."""
        states: Sequence[Variable] = self.initials
        collected: list[list[Variable]] = []
        for values in reversed(self.forward.values):
            states, found = self._piece(values, states)
            collected.append(found)
        pairs = []
        for (_, last), v in zip(self.op.places(), states, strict=True):
            old = self.node.outputs[last]
            if self.fgraph.users(old):
                pairs.append((old, _fitted(v[-1], old)))
        for i in range(self.op.collected):
            old = self.node.outputs[self.op.first_collected + i]
            if self.fgraph.users(old):
                pieces = [found[i] for found in collected]
                new = join(0, *pieces) if len(pieces) > 1 else pieces[0]
                pairs.append((old, _fitted(new, old)))
        return pairs

    def _piece(
        self, values: _Values, states: Sequence[Variable]
    ) -> tuple[list[Variable], list[Variable]]:
        """The gradient of a piece from these states on: states after it, and collected values."""
        piece = values.piece
        parts = Parts(piece.segments, name=self.op.name)
        inside = [_inner(v) for v in states]
        at = _numbers(parts, piece, backwards=True)
        known = self._known(parts, values, at, inside)
        sequences = self._sequences(parts, values, known, at, inside)
        inner = Parts.of(
            self.op, [constant(piece.steps), *sequences, *inside, *_add_others(parts, self.others)]
        )
        for s in inner.states:
            s.history = len(s.inside) > 1 or -min(s.taps) > 1
        built = inner.build()
        for c, v, initial, last, history in zip(
            self.op.states, inside, states, built.last, built.histories, strict=True
        ):
            # Behind ``After`` sums over the steps are not moved out of the loop over segments.
            new = After()(_fitted(_after(c.depth, last, history), v))
            parts.states.append(State((-1,), [v], _one(initial), new, False, "a gradient"))
        parts.collected = [After()(v) for v in built.collected]
        outer = parts.build()
        flat = [v.reshape((piece.all_steps, *dims_of(v)[2:])) for v in outer.collected]
        return list(outer.last), flat

    def _known(
        self, parts: Parts, values: _Values, at: Variable, inside: Sequence[Variable]
    ) -> Mapping[int, Variable]:
        """The values of a segment's steps by output: stored ones, or computed again."""
        if values.piece.kept:
            # Behind ``After`` nothing is computed of the values of all segments at once.
            return {i: After()(_whole(parts, v)[at], *inside) for i, v in values.stored.items()}
        if not self.forward.stored:
            return {}
        begins = [_whole(parts, v)[at] for v in values.begins]
        entries = [
            After()(_steps_of(parts, x, at, values), *inside) for x in self.forward.sequences
        ]
        others = _add_others(parts, self.forward.others)
        found, _ = self.forward.segment(values.piece.steps, entries, begins, others)
        return found

    def _sequences(
        self, parts: Parts, values: _Values, known: Mapping[int, Variable], at: Variable,
        inside: Sequence[Variable],
    ) -> list[Variable]:  # fmt: skip
        """The sequences of the gradient's loop in a segment."""
        found: list[Variable] = []
        for r in self.pair.sequences:
            if isinstance(r, Reading):
                x: Any = known[r.output]
                entries = x if (r.start, r.stop) == (None, None) else x[r.start : r.stop]
            else:
                entries = After()(_steps_of(parts, r, at, values), *inside)
            found.append(entries[::-1])
        return found
