"""Batches of ops with a graph inside: loops, and ops from a graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from symdnn.errors import DataDependentShape
from symdnn.graph.dims import Dim
from symdnn.graph.inner import InnerGraphOp
from symdnn.graph.op import Axes, Batched
from symdnn.graph.operators import operator
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Variable
from symdnn.ops.control.batching import Operand, batch_graph, is_drawing
from symdnn.ops.control.from_graph import OpFromGraph
from symdnn.ops.control.scan import Scan, Split
from symdnn.ops.control.scan_parts import Built, Parts, State
from symdnn.ops.core.lanes import (
    Vectorizing,
    lanes_of,
    sizes_of,
    spread,
    vectorizing,
    vectorizing_by,
)

# -- ops with a graph inside ----------------------------------------------------------------------


def _with_lanes(v: Variable, lanes: Dim) -> Variable:
    """A new variable for ``v`` in each lane."""
    length = lanes if isinstance(lanes, int) else None
    return Variable(v.type.with_shape((length, *v.type.shape)), v.name)


def _stack(o: Operand, lanes: Dim) -> Variable:
    return o.value if o.stacked else spread(o.value, lanes)


def _swapped(v: Variable) -> Variable:
    """Exchange the dimensions of lanes and of steps."""
    return v.dimshuffle(1, 0, *range(2, v.type.ndim))


def batch_loop(op: Scan, inputs: Sequence[Variable], axes: Axes) -> list[Operand] | None:
    """The batch of a loop: one loop whose steps compute all lanes.

    Where lanes differ in their number of steps, or in the condition that ends the loop, it ends
    with the last of them. States of a lane that has ended stay as they are; what it collects has a
    length of its own. (Only where a user's function is vectorised, which refuses other readers of
    that. Elsewhere, and where sequences have lengths of their own, it is a loop of loops.)
    """
    given = op.split(axes)
    lanes = lanes_of(inputs, axes)
    told = vectorizing() is not None
    if given.steps is not None and (op.sequences or op.truncate >= 0 or not told):
        return None
    parts = Parts.of(op, inputs)
    with _lanes_inside(parts, lanes):
        states, inside, results = _stacked_step(op, parts, given, lanes)
        within = lanes_of(list(inside.values()), [0] * len(inside))
    parts.sequences = [
        (inside.get(v, v), _swapped(x) if v in inside else x) for v, x in parts.sequences
    ]
    parts.others = [(inside.get(v, v), x) for v, x in parts.others]
    for s, wide, a, r in zip(parts.states, states, given.initials, results):
        s.inside = [inside.get(v, v) for v in s.inside]
        start = Operand(s.initial, a is not None)
        s.initial = _swapped(_stack(start, lanes)) if wide else s.initial
        s.next = _stack(r, within) if wide else r.value
    collected = results[len(states) : len(states) + op.collected]
    parts.collected = [r.value for r in collected]
    parts.condition = results[-1].value if op.until else None
    alone = given.steps is not None or (op.until and results[-1].stacked)
    if alone and not told:
        return None
    counts = _end_alone(parts, states, given.steps is not None, lanes, within) if alone else None
    built = parts.build()
    return _results(op, built, states, [r.stacked for r in collected], counts)


def _stacked_step(
    op: Scan, parts: Parts, given: Split, lanes: Dim
) -> tuple[list[bool], dict[Variable, Variable], list[Operand]]:
    """Which states are stacked, the stacked inner inputs, and the inner outputs.

    A state that depends on a stacked value is stacked, and others may depend on it.
    """
    free = _states_of_draws(op)
    states = [
        a is not None or (given.steps is not None and k not in free)
        for k, a in enumerate(given.initials)
    ]
    fixed = [v for (v, _), a in zip(parts.sequences, given.sequences) if a is not None]
    fixed += [v for (v, _), a in zip(parts.others, given.others) if a is not None]
    while True:
        own = [v for s, wide in zip(parts.states, states) if wide for v in s.inside]
        inside = {v: _with_lanes(v, lanes) for v in (*fixed, *own)}
        known = {v: Operand(x, True) for v, x in inside.items()}
        results = batch_graph(parts.inner_outputs(), known)
        if any(r.lengths is not None for r in results):
            raise DataDependentShape(f"{op}: {NO_LENGTH}")
        alone = op.until and results[-1].stacked
        more = [
            w or r.stacked or (alone and k not in free)
            for k, (w, r) in enumerate(zip(states, results))
        ]
        if more == states:
            return states, inside, results
        states = more


def _states_of_draws(op: Scan) -> set[int]:
    """The states that only draws read: all lanes share them, also those that have ended."""
    found = set()
    for k, taps in enumerate(op.split_inner(op.inner.inputs).initials):
        if not _is_stream(taps[0]):
            continue
        own, reads = set(taps), []
        for n in op.inner.nodes:
            places = [i for i, v in enumerate(n.inputs) if v in own]
            if places and n.op.views.get(0) in places:
                own.add(n.outputs[0])
            else:
                reads += [(n.op, i) for i in places]
        drawn = [o.random_state == i or isinstance(o, InnerGraphOp) for o, i in reads]
        if reads and all(drawn) and all(is_drawing(o) for o, _ in reads):
            found.add(k)
    return found


def _is_stream(v: Variable) -> bool:
    return isinstance(v.type, TensorType) and v.type.dtype == "uint64" and v.type.ndim == 1


NO_LENGTH = (
    "a value of its step has a size of its own in each lane of a vectorised function. "
    "Return its last entry, y[-1]"
)


@contextmanager
def _lanes_inside(parts: Parts, lanes: Dim) -> Iterator[None]:
    """Inside of a step the number of lanes is an inner variable, if it is no number."""
    how = vectorizing()
    if how is not None and not isinstance(lanes, int):
        inside = lanes.type("lanes")
        parts.others.append((inside, lanes))
        lanes = inside
    with vectorizing_by(None if how is None else Vectorizing(lanes, how.randomness)):
        yield


def _end_alone(
    parts: Parts, stacked: Sequence[bool], own_steps: bool, lanes: Dim, within: Dim
) -> int:
    """Let each lane end alone: states to freeze, and to count its steps. The index of the count.

    ``own_steps``: the lanes differ in the number of steps that they are told to do.
    """
    done, count = TensorType("bool", (None,))("done"), TensorType("int64", (None,))("steps")
    done, count = (_sized(v, within) for v in (done, count))
    for s, wide in zip(parts.states, stacked, strict=True):
        if not wide:
            continue
        if -1 not in s.taps:
            s.taps = (*s.taps, -1)
            s.inside.append(s.inside[0].type())
        last = s.inside[s.taps.index(-1)]
        over = done.dimshuffle(0, *["x"] * (last.type.ndim - 1))
        s.next = operator("switch")(over, last, s.next)
    counted = count + operator("cast")(operator("invert")(done), "int64")
    over = done if parts.condition is None else operator("or_")(done, _as_bool(parts.condition))
    start = operator("alloc")(np.zeros((), bool), 1, lanes)
    if own_steps:
        wanted = TensorType("int64", (None,))("n_steps")
        steps = operator("cast")(parts.steps, "int64")
        parts.others.append((_sized(wanted, within), steps))
        wanted = parts.others[-1][0]
        over = operator("or_")(over, operator("ge")(counted, wanted))
        start = operator("le")(steps, 0).dimshuffle("x", 0)
        parts.steps = operator("join")(0, steps, np.zeros(1, "int64")).max()
    parts.condition = over.all()
    none = operator("alloc")(np.zeros((), "int64"), 1, lanes)
    parts.states += [
        State((-1,), [done], start, over, False, "the lanes that have ended"),
        State((-1,), [count], none, counted, False, "steps of the lanes"),
    ]
    return len(parts.states) - 1


def _sized(v: Variable, lanes: Dim) -> Variable:
    size = lanes if isinstance(lanes, int) else None
    return Variable(v.type.with_shape((size,)), v.name)


def _as_bool(v: Variable) -> Any:
    return v if v.type.dtype == "bool" else operator("neq")(v, 0)


def _results(
    op: Scan, built: Built, states: Sequence[bool], collected: Sequence[bool], counts: int | None
) -> list[Operand]:
    """Outputs in the op's order, with the lanes as first dimension."""
    steps = None if counts is None else built.last[counts]
    out: list[Operand] = []
    for c, history, last, wide in zip(op.states, built.histories, built.last, states):
        if history is not None and c.history:
            ends = steps + c.depth if wide and steps is not None else None
            whole = _swapped(history) if wide else history
            out.append(Operand(whole, wide, ends, None if ends is None else last))
        out.append(Operand(last, wide))
    out += [
        Operand(_swapped(v) if w else _each(v, steps), w or steps is not None, steps)
        for v, w in zip(built.collected, collected)
    ]
    if op.until:
        out.append(Operand(built.steps if steps is None else steps, steps is not None))
    return out


def _each(v: Variable, steps: Variable | None) -> Variable:
    """A collected value that lanes share, for each lane if they end alone."""
    return v if steps is None else spread(v, sizes_of(steps)[0])


def batch_call(op: OpFromGraph, inputs: Sequence[Variable], axes: Axes) -> Batched:
    """:meth:`Op.batch` of an op from a graph: an op from the batched graph.

    Gradients that the user defined are applied in each lane.
    """
    lanes = lanes_of(inputs, axes)
    inside, results = op.inner.open()
    if vectorizing() is not None and is_drawing(op):  # the number of lanes may be an expression
        known = {v: Operand(x, a is not None) for v, x, a in zip(inside, inputs, axes)}
        return _as_batched(op, batch_graph(results, known))
    own = [_with_lanes(v, lanes) if a is not None else v for v, a in zip(inside, axes)]
    known = {v: Operand(w, True) for v, w in zip(inside, own) if w is not v}
    found = batch_graph(results, known)
    _, outs = _as_batched(op, found)
    words: dict[str, Any] = {}
    if op.overrides[:2] != ("default", "default"):
        words["lop_overrides"] = _Lop(op, tuple(axes), outs)
    if op.overrides[2] != "default":
        words["rop_overrides"] = _Rop(op, tuple(axes), outs)
    made = OpFromGraph(own, [o.value for o in found], op.inline, name=op.name, **words)
    return made.make_node(*inputs).outputs, outs


def _as_batched(op: OpFromGraph, found: Sequence[Operand]) -> tuple[list[Variable], Any]:
    if any(o.lengths is not None for o in found):
        raise DataDependentShape(f"{op}: {NO_LENGTH}")
    return [o.value for o in found], tuple(0 if o.stacked else None for o in found)


@dataclass(frozen=True)
class _Lop:
    """The gradient of a batched ``op``: in each lane, summed for operands that all lanes share."""

    op: OpFromGraph
    axes: tuple[int | None, ...]
    outs: tuple[int | None, ...]

    def __call__(
        self,
        inputs: Sequence[Variable],
        outputs: Sequence[Variable],
        cotangents: Sequence[Variable | None],
    ) -> list[Variable | None]:
        kinds = self.op.inner.input_types, self.op.inner.output_types, self.op.inner.output_types
        alone = [[Variable(t) for t in types] for types in kinds]
        given = zip((inputs, outputs, cotangents), (self.axes, self.outs, self.outs), strict=True)
        known = _operands(alone, given)
        grads = self.op.vjp(*alone)
        found = iter(batch_graph([g for g in grads if g is not None], known))
        return [
            None if g is None else self._total(next(found), i, inputs) for i, g in enumerate(grads)
        ]

    def _total(self, o: Operand, i: int, inputs: Any) -> Variable:
        if self.axes[i] is not None:
            return _stack(o, lanes_of(inputs, self.axes))
        if o.stacked:
            return o.value.sum(axis=0, dtype=o.value.type.dtype)
        return o.value


@dataclass(frozen=True)
class _Rop:
    """The tangents of a batched ``op``, in each lane."""

    op: OpFromGraph
    axes: tuple[int | None, ...]
    outs: tuple[int | None, ...]

    def __call__(
        self, inputs: Sequence[Variable], tangents: Sequence[Variable | None]
    ) -> list[Variable | None]:
        types = self.op.inner.input_types
        alone = [[Variable(t) for t in types] for _ in range(2)]
        used = [v if t is not None else None for v, t in zip(alone[1], tangents)]
        given = zip((inputs, tangents), (self.axes, self.axes), strict=True)
        known = _operands(alone, given)
        found = self.op.jvp(alone[0], [], used) or []
        results = iter(batch_graph([t for t in found if t is not None], known))
        lanes = lanes_of(inputs, self.axes)
        return [
            None
            if t is None
            else _stack(next(results), lanes)
            if a is not None
            else next(results).value
            for t, a in zip(found, self.outs, strict=True)
        ]


def _operands(alone: Sequence[Sequence[Variable]], given: Any) -> dict[Variable, Operand]:
    return {
        v: Operand(x, a is not None)
        for own, (values, axes) in zip(alone, given, strict=True)
        for v, x, a in zip(own, values, axes, strict=True)
        if x is not None
    }
