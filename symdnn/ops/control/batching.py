"""A batch of calls of a whole graph as one graph: each node by its op's batching rule or by a loop.

A lane is one call of the batch. :func:`batch_graph` walks from the outputs to the inputs that
differ between lanes, and calls :meth:`~symdnn.graph.op.Op.batch` of each op that depends on them.
Nodes that are equal for all lanes are kept and computed once. An op without a batching rule runs in
a loop over the lanes: a :class:`~symdnn.ops.control.scan.Scan`, whose name is ``batch of`` the op.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from symdnn.errors import ShapeMismatch
from symdnn.graph.dims import Dim
from symdnn.graph.op import Axes, Batched
from symdnn.graph.origin import inherit
from symdnn.graph.traverse import toposort
from symdnn.graph.type import OpaqueType, TensorType
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.control.from_graph import OpFromGraph
from symdnn.ops.control.scan import Scan
from symdnn.ops.control.scan_parts import Built, Parts
from symdnn.ops.core.lanes import lanes_of, spread
from symdnn.ops.core.shape import specify_type

__all__ = ["Operand", "batch_call", "batch_graph", "batch_node", "batch_scan"]


@dataclass(frozen=True)
class Operand:
    """The batched form of a variable: with a first dimension of lanes, or equal for all."""

    value: Variable
    stacked: bool

    @property
    def ndim(self) -> int:
        """Number of dimensions of an entry."""
        return int(self.value.type.ndim) - self.stacked

    @property
    def broadcastable(self) -> tuple[bool, ...]:
        """The dimensions of an entry that are statically 1."""
        return tuple(self.value.type.broadcastable[self.stacked :])


Known = Mapping[Variable, Operand]


def batch_graph(outputs: Sequence[Variable], known: Known) -> list[Operand]:
    """The batched forms of ``outputs``, given the ``known`` ones of some variables.

    The variables in ``known`` are inputs of the graph or intermediate ones. Results that do not
    depend on stacked ones are the same for all lanes. New nodes have the hints of the node that
    they replace, the user's line, and its position in the order of effects.

    Raises :class:`~symdnn.errors.ShapeMismatch` if known numbers of lanes differ, and in a call if
    lanes of a loop have results of different shapes (as ``nonzero`` may).
    """
    found = _of_one_length(known)
    for node in toposort(outputs, blockers=known):
        operands = [found.get(v) or Operand(v, False) for v in node.inputs]
        with inherit(node.origin, node.hints, node.written):
            results = batch_node(node, operands) or _looped(node, operands, found)
        found.update(zip(node.outputs, results, strict=True))
    return [found.get(v) or Operand(v, False) for v in outputs]


def _of_one_length(known: Known) -> dict[Variable, Operand]:
    """Operands with a static number of lanes, if one has it: else a 1 would broadcast."""
    stacked = [o for o in known.values() if o.stacked and isinstance(o.value.type, TensorType)]
    lengths = [n for o in stacked if (n := o.value.type.shape[0]) is not None]
    if not lengths:
        return dict(known)
    if len(set(lengths)) > 1:
        given = [str(o.value.type) for o in stacked]
        raise ShapeMismatch("a batch", "operands with equal first dimensions (lanes)", given)
    return {v: _as_known(o, (lengths[0],)) if o in stacked else o for v, o in known.items()}


def batch_node(node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    """The batched outputs of ``node`` by its op's rule; None if it needs a loop."""
    values = [o.value for o in operands]
    if not any(o.stacked for o in operands):
        same = all(a is b for a, b in zip(values, node.inputs, strict=True))
        return [Operand(v, False) for v in (node if same else node.clone_with(values)).outputs]
    answer = node.op.batch(values, [0 if o.stacked else None for o in operands])
    if answer is None:
        return None
    pairs = list(zip(node.outputs, *answer, strict=True))
    if any(getattr(v.type, "dtype", "") != getattr(x.type, "dtype", "") for v, x, _ in pairs):
        return None  # the flags have changed since the node was made, and give another dtype
    made = [(v, Operand(x, a is not None)) for v, x, a in pairs]
    return [
        _as_known(o, (*[None] * o.stacked, *v.type.shape)) if isinstance(v.type, TensorType) else o
        for v, o in made
    ]


def _as_known(o: Operand, static: Sequence[int | None]) -> Operand:
    """``o`` with static sizes of its first dimensions that other types have."""
    own = o.value.type
    wanted = own.with_shape((*static, *[None] * (own.ndim - len(static))))
    return Operand(specify_type(o.value, wanted), o.stacked)


# -- in a loop ------------------------------------------------------------------------------------


def _looped(node: Apply, operands: Sequence[Operand], found: Known) -> list[Operand]:
    """The node in a loop over the lanes.

    Opaque values, such as the reserve of a recurrent network, belong to two kernels: a loop can
    neither collect nor read them. So a loop that reads one contains the node that makes it, and the
    operand here is never read.
    """
    makers = {node}
    given = dict(zip(node.inputs, operands, strict=True))
    while opaque := [(v, v.owner) for v in given if isinstance(v.type, OpaqueType) and v.owner]:
        for v, maker in opaque:
            del given[v]
            makers.add(maker)
            given |= {u: found.get(u) or Operand(u, False) for u in maker.inputs}
    body = [n for n in toposort(node.outputs, given) if n in makers]
    inside: dict[Variable, Variable] = {v: v for v in given if isinstance(v, Constant)}
    inside |= {v: Variable(v.type, v.name) for v in given if v not in inside}
    for n in body:
        copy = n.clone_with([inside[v] for v in n.inputs])
        inside |= zip(n.outputs, copy.outputs, strict=True)
    collected = [v for v in node.outputs if isinstance(v.type, TensorType)]
    stacked = [o.value for o in given.values() if o.stacked]
    parts = Parts(
        lanes_of(stacked, [0] * len(stacked)),
        sequences=[(inside[v], o.value) for v, o in given.items() if o.stacked],
        others=[
            (inside[v], o.value)
            for v, o in given.items()
            if not o.stacked and not isinstance(v, Constant)
        ],
        collected=[inside[v] for v in collected],
        name=f"batch of {type(node.op).__name__}",
    )
    results = dict(zip(collected, parts.build().collected, strict=True))
    return [Operand(results.get(v, v), True) for v in node.outputs]


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


def batch_scan(op: Scan, inputs: Sequence[Variable], axes: Axes) -> Batched:
    """:meth:`Op.batch` of a loop: one loop whose steps compute all lanes.

    None if the lanes differ in their number of steps or in the condition that ends the loop.
    """
    given = op.split(axes)
    if given.steps is not None:
        return None
    lanes = lanes_of(inputs, axes)
    parts = Parts.of(op, inputs)
    states = [a is not None for a in given.initials]
    fixed = [v for (v, _), a in zip(parts.sequences, given.sequences) if a is not None]
    fixed += [v for (v, _), a in zip(parts.others, given.others) if a is not None]
    while True:  # a state that depends on a stacked value is stacked, and others may depend on it
        own = [v for s, wide in zip(parts.states, states) if wide for v in s.inside]
        inside = {v: _with_lanes(v, lanes) for v in (*fixed, *own)}
        known = {v: Operand(x, True) for v, x in inside.items()}
        results = batch_graph(parts.inner_outputs(), known)
        more = [w or r.stacked for w, r in zip(states, results)]
        if more == states:
            break
        states = more
    if op.until and results[-1].stacked:
        return None
    within = lanes_of(list(inside.values()), [0] * len(inside))
    parts.sequences = [
        (inside.get(v, v), _swapped(x) if v in inside else x) for v, x in parts.sequences
    ]
    parts.others = [(inside.get(v, v), x) for v, x in parts.others]
    for s, wide, a, r in zip(parts.states, states, given.initials, results):
        s.inside = [inside.get(v, v) for v in s.inside]
        s.initial = (
            _swapped(_stack(Operand(s.initial, a is not None), lanes)) if wide else s.initial
        )
        s.next = _stack(r, within) if wide else r.value
    collected = results[len(states) : len(states) + op.collected]
    parts.collected = [r.value for r in collected]
    parts.condition = results[-1].value if op.until else None
    return _results(op, parts.build(), states, [r.stacked for r in collected])


def _results(op: Scan, built: Built, states: Sequence[bool], collected: Sequence[bool]) -> Batched:
    """Outputs in the op's order, with the lanes as first dimension."""
    out: list[tuple[Variable, bool]] = []
    for c, history, last, wide in zip(op.states, built.histories, built.last, states):
        if history is not None and c.history:
            out.append((_swapped(history) if wide else history, wide))
        out.append((last, wide))
    out += [(_swapped(v) if w else v, w) for v, w in zip(built.collected, collected)]
    out += [(built.steps, False)] if op.until else []
    return [v for v, _ in out], [0 if w else None for _, w in out]


def batch_call(op: OpFromGraph, inputs: Sequence[Variable], axes: Axes) -> Batched:
    """:meth:`Op.batch` of an op from a graph: an op from the batched graph.

    Gradients that the user defined are applied in each lane.
    """
    lanes = lanes_of(inputs, axes)
    inside, results = op.inner.open()
    own = [_with_lanes(v, lanes) if a is not None else v for v, a in zip(inside, axes)]
    known = {v: Operand(w, True) for v, w in zip(inside, own) if w is not v}
    found = batch_graph(results, known)
    outs = tuple(0 if o.stacked else None for o in found)
    words: dict[str, Any] = {}
    if op.overrides[:2] != ("default", "default"):
        words["lop_overrides"] = _Lop(op, tuple(axes), outs)
    if op.overrides[2] != "default":
        words["rop_overrides"] = _Rop(op, tuple(axes), outs)
    made = OpFromGraph(own, [o.value for o in found], op.inline, name=op.name, **words)
    return made.make_node(*inputs).outputs, outs


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
