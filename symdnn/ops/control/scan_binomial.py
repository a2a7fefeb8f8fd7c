"""Loops whose gradient stores a fixed number of states and recomputes as few steps as possible.

A. Griewank and A. Walther, "Algorithm 799: revolve: an implementation of checkpointing for the
reverse or adjoint mode of computational differentiation", 2000.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import comb
from typing import ClassVar, cast

import numpy as np

from symdnn.errors import TypeMismatch
from symdnn.graph.op import Array, Axes, Batched, Grads, Host, MultiOp, Shapes, Types, Vars
from symdnn.graph.operators import operator
from symdnn.graph.type import TensorType, Type
from symdnn.graph.variable import Apply, Variable, constant
from symdnn.ops.array.create import arange
from symdnn.ops.control.checkpoint import After
from symdnn.ops.control.scan import Scan
from symdnn.ops.control.scan_builder import scan
from symdnn.ops.core.composed import vjp_of_expressions
from symdnn.ops.core.shape import static_dim


def fewest_steps(steps: int, snapshots: int) -> int:
    """The fewest steps forward by which all of ``steps`` states are reached in reverse order.

    ``snapshots`` states are held, of which the initial one is the first. The closed form of
    Griewank and Walther: ``r n - C(s + r, r - 1)``, where ``r`` is the number of times that a step
    is computed at most, ``C(s + r - 1, s) < n <= C(s + r, s)``.
    """
    if steps < 2:
        return 0
    times = _times(steps, snapshots)
    return times * steps - comb(snapshots + times, times - 1)


def _times(steps: int, snapshots: int) -> int:
    times = 1
    while comb(snapshots + times, snapshots) < steps:
        times += 1
    return times


def _first_part(steps: int, snapshots: int) -> int:
    """How many steps to go forward before the next state is stored."""
    if snapshots == 1:
        return steps - 1
    times = _times(steps, snapshots)
    least = comb(snapshots + times - 2, snapshots) if times > 1 else 1
    return max(least, steps - comb(snapshots + times - 1, snapshots - 1), 1)


@lru_cache(maxsize=64)
def _schedule(steps: int, snapshots: int) -> tuple[Array, Array, Array, Array]:
    """What :class:`BinomialSchedule` returns."""
    held: list[int] = []  # the steps whose states are stored, by slot
    at = 0
    while at < steps:
        free = snapshots - len(held)
        held.append(at)
        at = steps if free == 1 or at + 1 == steps else at + _first_part(steps - at, free)
    bounds = [*held, steps]
    spare = len(held)
    first, slots, targets = [0], [], []
    for turn in reversed(range(steps)):
        while held[-1] > turn:
            held.pop()
        slots.append(len(held) - 1)
        at = held[-1]
        while at < turn:
            free = snapshots + 1 - len(held)
            part = _first_part(turn + 1 - at, free)
            at += part
            targets += [spare] * part
            if free > 1:
                targets[-1] = len(held)
                held.append(at)
        first.append(len(targets))
    found = [np.array(v, "int64") for v in (bounds, first, slots, targets)]
    for array in found:
        array.setflags(write=False)  # the cache returns it again
    return found[0], found[1], found[2], found[3]


@dataclass(frozen=True)
class BinomialSchedule(MultiOp):
    """Which states of a loop of a given length are stored, and when, for the fewest steps in total.

    It has four int64 outputs. The first lists the steps before which the forward pass stores a
    state, and the end. The second has, for each step in reverse order, the index in the fourth
    output of its first forward step; its last entry is the total. The third has the slot of the
    state from which these steps start. The fourth has, for each forward step, the slot that stores
    its result; the last slot is for results that are not stored.
    """

    no_gradients: ClassVar[bool] = True
    snapshots: int

    def infer(self, steps: TensorType) -> tuple[Type, ...]:
        if steps.ndim or not steps.is_discrete:
            raise TypeMismatch(self, "an integer scalar as number of steps", steps)
        return (TensorType("int64", (None,)),) * 4

    def reference(self, steps: Array) -> tuple[Array, ...]:
        return tuple(a.copy() for a in _schedule(int(steps), self.snapshots))

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> None:
        return None


@dataclass(frozen=True)
class BinomialCheckpoint(MultiOp):
    """The first inputs, as views: results of a loop, which its gradient computes in reverse order.

    ``loop`` is a scan whose states read one step back. Its inputs are the last values of the
    states, the last collected values, the stored values of each state (``(slots, ...)``), the last
    three outputs of a :class:`BinomialSchedule`, and the inputs of ``loop``. A rewrite removes the
    op after gradients were taken.
    """

    loop: Scan

    @property
    def count(self) -> int:
        """The number of outputs."""
        return len(self.loop.states) + self.loop.collected

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        loop = self.loop
        wanted = self.count + 4 + loop.sequences + 2 * len(loop.states) + self._others
        if len(inputs) != wanted:
            raise TypeMismatch(self, f"{wanted} inputs", f"{len(inputs)} of them")
        return inputs[: self.count]

    @property
    def _others(self) -> int:
        return len(self.loop.inner.inputs) - self.loop.sequences - self.loop.taps

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        return inputs[: self.count]

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        return [tuple(s) for s in shapes[: self.count]]

    @property
    def views(self) -> dict[int, int]:
        return {i: i for i in range(self.count)}

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        return list(tangents[: self.count])

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return list(inputs[: self.count]), list(axes[: self.count])

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Grads) -> Grads:
        first = self.count + len(self.loop.states) + 3
        found = _Reverse(self.loop, inputs[self.count : first], inputs[first:], cotangents)
        return [*[None] * first, *found.gradients()]


def binomial_loop(loop: Scan, inputs: Vars, snapshots: int) -> list[Variable]:
    """The last values of a scan's states and collected values, with few stored states."""
    given = loop.split(inputs)
    steps = static_dim(given.steps)
    if steps is None:
        schedule = list(BinomialSchedule(snapshots)(given.steps))
    else:
        schedule = [constant(a) for a in _schedule(steps, snapshots)]
    bounds, *moves = schedule
    count, reads = len(loop.states), len(given.sequences)

    def part(first: Variable, end: Variable, *args: Variable) -> list[Variable]:
        entries = [v[first:end] for v in args[count : count + reads]]
        return _run(loop, end - first, entries, args[:count], args[count + reads :])

    others = [*given.sequences, *given.others]
    infos = [*(v[0] for v in given.initials), *[None] * loop.collected]
    histories, _ = scan(
        part, [bounds[:-1], bounds[1:]], infos, others, name=loop.name, return_list=True
    )
    last = [v[-1] for v in histories]
    kept = [
        operator("join")(0, v, history)
        for v, history in zip(given.initials, histories[:count], strict=True)
    ]
    return list(BinomialCheckpoint(loop).make_node(*last, *kept, *moves, *inputs).outputs)


def _run(
    loop: Scan, steps: Variable, sequences: Vars, states: Vars,
    others: Vars,
) -> list[Variable]:  # fmt: skip
    """The last values of a loop over some of its steps: states, then collected values."""
    op = replace(loop, steps=None, states=tuple(replace(c, history=False) for c in loop.states))
    initials = [v.dimshuffle("x", *range(v.type.ndim)) for v in states]
    outputs = op.make_node(steps, *sequences, *initials, *others).outputs
    return [*outputs[: len(states)], *(v[-1] for v in outputs[len(states) :])]


class _Reverse:
    """The backward pass. Each of its steps goes forward from a stored state, and back once."""

    def __init__(self, loop: Scan, held: Vars, inputs: Vars, cotangents: Grads) -> None:
        self.loop, self.given = loop, loop.split(inputs)
        self.kept, (self.first, self.slots, self.targets) = held[:-3], held[-3:]
        count = len(loop.states)
        carried = [v.type.is_differentiable for v in self.given.initials]
        self.carried = [i for i, does in enumerate(carried) if does]
        self.pending = [
            operator("zeros_like")(self.kept[i][0]) if (c := cotangents[i]) is None else c
            for i in self.carried
        ]
        #: Cotangents of collected values. Only those of the last step exist.
        self.ends = {i: c for i, c in enumerate(cotangents[count:]) if c is not None}
        self.read = [i for i, v in enumerate(self.given.sequences) if v.type.is_differentiable]
        self.summed = [i for i, v in enumerate(self.given.others) if v.type.is_differentiable]

    def gradients(self) -> Grads:
        """Gradients with respect to the inputs of the loop."""
        given, count = self.given, len(self.kept)
        turns = arange(given.steps)[::-1]
        sums = [operator("zeros_like")(given.others[i]) for i in self.summed]
        infos = [*self.kept, *self.pending, *sums, *[None] * len(self.read)]
        constants = [self.targets, *given.sequences, *given.others, *self.ends.values()]
        found, _ = scan(
            self._turn, [turns, self.slots, self.first[:-1], self.first[1:]], infos, constants,
            name=f"grad_of_{self.loop.name or 'scan'}", return_list=True,
        )  # fmt: skip
        values = iter(found[count:])
        grads: list[Variable | None] = [None] * (1 + len(given.sequences) + count)
        grads += [None] * len(given.others)
        for i in self.carried:
            g = next(values)[-1]
            grads[1 + len(given.sequences) + i] = g.dimshuffle("x", *range(g.type.ndim))
        for i in self.summed:
            grads[1 + len(given.sequences) + count + i] = next(values)[-1]
        for i in self.read:
            grads[1 + i] = next(values)[::-1]
        return grads

    def _turn(
        self, at: Variable, slot: Variable, first: Variable, end: Variable, *args: Variable
    ) -> list[Variable]:
        """One step back: stored states, cotangents of states, sums, gradients of the entries."""
        count = len(self.kept)
        held, rest = args[:count], args[count:]
        pending, rest = rest[: len(self.carried)], rest[len(self.carried) :]
        sums, rest = rest[: len(self.summed)], rest[len(self.summed) :]
        targets, rest = rest[0], rest[1:]
        sequences, rest = rest[: self.loop.sequences], rest[self.loop.sequences :]
        others, ends = rest[: len(self.given.others)], rest[len(self.given.others) :]
        states = [v[slot] for v in held]
        states, kept = self._forward(at, targets[first:end], sequences, states, held, others)
        entries = [v[at] for v in sequences]
        found = self._back(at, [*entries, *states, *others], pending, ends)
        reads = self.loop.sequences
        before = [found[reads + i] for i in self.carried]
        added = [found[reads + count + i] for i in self.summed]
        new = [t if g is None else t + After()(g) for t, g in zip(sums, added, strict=True)]
        zeros = operator("zeros_like")
        back = [zeros(c) if g is None else g for c, g in zip(pending, before, strict=True)]
        of_entries = [(entries[i], found[i]) for i in self.read]
        passed = [zeros(v) if g is None else g for v, g in of_entries]
        return [*kept, *back, *new, *passed]

    def _forward(
        self, at: Variable, targets: Variable, sequences: Vars,
        states: Vars, kept: Vars, others: Vars,
    ) -> tuple[list[Variable], list[Variable]]:  # fmt: skip
        """The states before step ``at``, computed from ``states``, and the stored states."""
        count, reads = len(states), len(sequences)
        begin = at - operator("shape")(targets)[0]

        def step(target: Variable, *args: Variable) -> list[Variable]:
            entries, before, held = (
                args[:reads],
                args[reads:][:count],
                args[reads + count :][:count],
            )
            after = self.loop.inner.apply([*entries, *before, *args[reads + 2 * count :]])[:count]
            stored = [
                operator("set_subtensor")(v[target], new)
                for v, new in zip(held, after, strict=True)
            ]
            return [*after, *stored]

        given = [targets, *(v[begin:at] for v in sequences)]
        found, _ = scan(step, given, [*states, *kept], list(others), return_list=True)
        # Without steps a history is empty, so the last value is that of the op.
        node = loop_of(found)
        assert node is not None
        places = [last for _, last in node.op.places()]
        last = [node.outputs[i] for i in places]
        return last[:count], last[count:]

    def _back(
        self, at: Variable, inside: Vars, pending: Vars,
        ends: Vars,
    ) -> list[Variable | None]:  # fmt: skip
        """Gradients of one step with respect to its inputs."""
        is_last = operator("eq")(at, self.given.steps - 1)
        cotangents: list[Variable | None] = [None] * len(self.loop.inner.outputs)
        for i, c in zip(self.carried, pending, strict=True):
            cotangents[i] = c
        for i, c in zip(self.ends, ends, strict=True):
            cotangents[len(self.kept) + i] = operator("switch")(
                is_last, c, operator("zeros_like")(c)
            )
        return list(vjp_of_expressions(lambda *v: self.loop.inner.apply(v), inside, cotangents))


def loop_of(results: Vars) -> Apply[Scan] | None:
    """The scan behind one of the results, also through views and parts."""
    for v in results:
        node = v.owner
        while node is not None:
            if isinstance(node.op, Scan):
                return cast("Apply[Scan]", node)
            node = node.inputs[0].owner if node.inputs else None
    return None
