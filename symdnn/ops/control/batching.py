"""A batch of calls of a whole graph as one graph: each node by its op's batching rule or by a loop.

A lane is one call of the batch. :func:`batch_graph` walks from the outputs to the inputs that
differ between lanes, and calls :meth:`~symdnn.graph.op.Op.batch` of each op that depends on them.
Nodes that are equal for all lanes are kept and computed once. An op without a batching rule runs in
a loop over the lanes: a :class:`~symdnn.ops.control.scan.Scan`, whose name is ``batch of`` the op.

While a user's function is vectorised (:func:`~symdnn.ops.core.lanes.vectorizing`), random draws
are those that the user asked for, and what would give each lane a size of its own is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from symdnn.errors import DataDependentShape, OptionError, ShapeMismatch
from symdnn.graph.dims import Dim
from symdnn.graph.inner import InnerGraphOp
from symdnn.graph.op import Batched, Op
from symdnn.graph.operators import operator
from symdnn.graph.origin import inherit
from symdnn.graph.traverse import toposort
from symdnn.graph.type import OpaqueType, TensorType
from symdnn.graph.values.branch_gradients import Branch, Branches
from symdnn.graph.values.test_values_flag import only_outside
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.array.index import IncSubtensor, Subtensor
from symdnn.ops.control.scan import Scan
from symdnn.ops.control.scan_parts import Parts, State
from symdnn.ops.core.gradient_control import GradWhere
from symdnn.ops.core.lanes import Vectorizing, lanes_of, spread, vectorizing
from symdnn.ops.core.shape import ShapeI, specify_type
from symdnn.ops.elemwise import Elemwise


@dataclass(frozen=True)
class Operand:
    """The batched form of a variable: with a first dimension of lanes, or equal for all.

    With ``lengths`` the entries of the lanes have first dimensions of these sizes; ``value`` has
    the largest, and its elements after an entry's end mean nothing. ``last`` is the last element of
    each entry, where a loop has it.
    """

    value: Variable
    stacked: bool
    lengths: Variable | None = None
    last: Variable | None = None

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
    with only_outside() as made:
        batched = _batched(outputs, known)
        made += [o.value for o in batched]
    return batched


def _batched(outputs: Sequence[Variable], known: Known) -> list[Operand]:
    found = _of_one_length(known)
    states: dict[Variable, Operand] = {}
    nodes = toposort(outputs, blockers=known)
    branches = Branches(nodes, set(outputs))
    for node in nodes:
        operands = [found.get(v) or Operand(v, False) for v in node.inputs]
        with inherit(node.origin, node.hints, node.written):
            try:
                operands = _in_branch(node, operands, branches.of(node), found)
                results = batch_node(node, operands) or _looped(node, found, states)
            except (DataDependentShape, OptionError) as error:
                error.add_note(f"{node} was made here:\n{node.origin.text()}")
                raise
        found.update(zip(node.outputs, results, strict=True))
    return [found.get(v) or Operand(v, False) for v in outputs]


def _in_branch(
    node: Apply, operands: list[Operand], branches: Iterable[Branch], found: Known
) -> list[Operand]:
    """Operands of a node that serves branches which are taken in some lanes.

    In the others they get no gradients: the choice gives them 0, but a derivative may be infinite.
    """
    mask: Variable | None = None
    for choice, number in branches:
        condition = found.get(choice.inputs[0])
        if condition is not None and condition.stacked:
            holds = operator("neq")(condition.value, np.zeros((), condition.value.type.numpy))
            taken = operator("invert")(holds) if number else holds
            mask = taken if mask is None else operator("and_")(mask, taken)
    if mask is None or not any(o.stacked for o in operands):
        return operands
    lanes = lanes_of([mask], [0])
    return [_masked(node, o, mask, lanes) for o in operands]


def _masked(node: Apply, o: Operand, mask: Variable, lanes: Dim) -> Operand:
    real = isinstance(o.value.type, TensorType) and o.value.type.is_differentiable
    if not real or o.lengths is not None or isinstance(o.value, Constant):
        return o
    if not o.stacked and not isinstance(node.op, Elemwise):
        return o  # a stack of it would be large, and only infinite operands make it NaN
    whole = o.value if o.stacked else spread(o.value, lanes)
    return Operand(GradWhere()(whole, mask), True)


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
    if any(o.lengths is not None for o in operands):
        return _of_ragged(node, operands)
    how = vectorizing()
    values, differs = [o.value for o in operands], any(o.stacked for o in operands)
    own = how is not None and (differs or how.covers(node.written))
    draws = own and is_drawing(node.op)
    if draws and how is not None and how.randomness == "error":
        raise OptionError(
            f"{node.op} draws random numbers inside of a vectorised function, with "
            "randomness='error'. Pass randomness='different' (each lane draws its own numbers) or "
            "randomness='same' (all lanes share them)"
        )
    own_draws = draws and how is not None and how.randomness == "different"
    if not differs and not own_draws:
        same = all(a is b for a, b in zip(values, node.inputs, strict=True))
        return [Operand(v, False) for v in (node if same else node.clone_with(values)).outputs]
    if draws and not own_draws and node.op.random_state is not None:
        return _same_draws(node, operands)
    found = _by_rule(node, operands)
    if found is None and how is not None:
        _check_sizes(node, operands)
    return found


def _by_rule(node: Apply, operands: Sequence[Operand]) -> list[Operand] | None:
    values, axes = [o.value for o in operands], [0 if o.stacked else None for o in operands]
    if isinstance(node.op, Scan):
        from symdnn.ops.control.batching_inner import batch_loop  # it walks over graphs as well

        made = batch_loop(node.op, values, axes)
    else:
        made = _as_operands(node.op.batch(values, axes))
    if made is None:
        return None
    pairs = list(zip(node.outputs, made, strict=True))
    if any(getattr(v.type, "dtype", "") != getattr(o.value.type, "dtype", "") for v, o in pairs):
        return None  # the flags have changed since the node was made, and give another dtype
    return [
        _as_known(o, (*[None] * o.stacked, *v.type.shape))
        if isinstance(v.type, TensorType) and o.lengths is None
        else o
        for v, o in pairs
    ]


def _as_operands(answer: Batched) -> list[Operand] | None:
    if answer is None:
        return None
    return [Operand(v, a is not None) for v, a in zip(*answer, strict=True)]


def _as_known(o: Operand, static: Sequence[int | None]) -> Operand:
    """``o`` with static sizes of its first dimensions that other types have."""
    own = o.value.type
    wanted = own.with_shape((*static, *[None] * (own.ndim - len(static))))
    return Operand(specify_type(o.value, wanted), o.stacked)


# -- what each lane has of its own ----------------------------------------------------------------


@lru_cache(maxsize=4096)
def is_drawing(op: Op) -> bool:
    """Whether the op, or one in its inner graph, draws random numbers."""
    if op.random_state is not None:
        return True
    return isinstance(op, InnerGraphOp) and any(is_drawing(n.op) for n in op.inner.nodes)


def _same_draws(node: Apply, operands: Sequence[Operand]) -> list[Operand]:
    """Results of a draw whose lanes have the same numbers; its next state is that of one lane."""
    at = node.op.random_state
    assert at is not None
    state, given = operands[at], list(operands)
    if state.stacked:
        return _by_rule(node, operands) or _looped(node, dict(zip(node.inputs, operands)), {})
    lanes = lanes_of([o.value for o in given], [0 if o.stacked else None for o in given])
    given[at] = Operand(spread(state.value, lanes), True)
    found = _by_rule(node, given) or _looped(node, dict(zip(node.inputs, given)), {})
    for k, v in enumerate(node.outputs):
        if v.type == node.inputs[at].type:  # without lanes the state is as it was
            ends = operator("join")(0, found[k].value, state.value.dimshuffle("x", 0))
            found[k] = Operand(ends[0], False)
    return found


def _check_sizes(node: Apply, operands: Sequence[Operand]) -> None:
    """Refuse what gives each lane a size of its own; the bounds of a slice may differ in vain."""
    host = {i for i in node.op.host_inputs if operands[i].stacked}
    if host and not isinstance(node.op, Subtensor | IncSubtensor):
        names = ", ".join(str(node.inputs[i]) for i in sorted(host))
        raise DataDependentShape(
            f"{node.op}: a size depends on {names}, which differs between the lanes of a "
            "vectorised function. Compute it from values that are equal for all lanes (in_axes "
            "None), or take the largest size and mask"
        )
    if _has_size_of_data(node):
        raise DataDependentShape(
            f"{node.op}: the size of its result depends on values that differ between the lanes of "
            "a vectorised function. Use a mask (T.switch) in place of indices, or call it outside"
        )


def _has_size_of_data(node: Apply) -> bool:
    op = node.op
    by_rule = type(op).shapes is not Op.shapes or op.shaped_as is not None
    if not by_rule or isinstance(op, InnerGraphOp):
        return False
    types = [v.type for v in node.inputs]
    if not all(isinstance(t, TensorType) for t in types):
        return False
    with inherit(node.origin, node.hints):
        sizes = [
            tuple(n if n is not None else operator("shape_i")(v, i) for i, n in enumerate(t.shape))
            for v, t in zip(node.inputs, types)
        ]
        host = {i: operator("cast")(node.inputs[i], "int64") for i in op.host_inputs}
        return op.shapes(types, sizes, host) is None


def _of_ragged(node: Apply, operands: Sequence[Operand]) -> list[Operand]:
    """The few ops that read an operand whose lanes differ in length: its size, and its end."""
    x = operands[0]
    lengths = x.lengths
    rest = operands[1:]
    if lengths is not None and not any(o.stacked for o in rest):
        if isinstance(node.op, ShapeI) and not rest:
            axis = node.op.axis
            size = lengths if axis == 0 else operator("shape_i")(x.value, axis + 1)
            return [Operand(size, axis == 0)]
        if isinstance(node.op, Subtensor):
            found = _part_of_ragged(node.op, x, lengths, [o.value for o in rest])
            if found is not None:
                return [found]
    raise DataDependentShape(
        f"{node.op}: the lanes of {node.inputs[0]} end after different numbers of steps, so it has "
        "a size of its own in each lane of a vectorised function. Use its last entry, y[-1], or "
        "y[-1] of a sum that the loop carries. Of a gradient: differentiate the result of vmap "
        "(a sum of it) in place of the function inside"
    )


def _part_of_ragged(
    op: Subtensor, x: Operand, lengths: Variable, bounds: Sequence[Variable]
) -> Operand | None:
    first, *rest = op.index
    full = (None, None, None)
    if first == "?" or (isinstance(first, tuple) and "?" in first):
        return None
    if isinstance(first, int) and first < 0:
        if first == -1 and x.last is not None:
            entry = x.last
        else:
            lanes = operator("arange")(operator("shape_i")(x.value, 0))
            entry = operator("getitem")(x.value, (lanes, lengths + first))
        return Operand(Subtensor((full, *rest))(entry, *bounds) if rest else entry, True)
    if isinstance(first, tuple) and (first[0] or 0) >= 0 and first[1:] in ((None, None), (None, 1)):
        left = operator("maximum")(lengths - (first[0] or 0), 0)
        whole = all(e == full for e in rest)  # a loop does one step at least
        last = x.last if whole and (first[0] or 0) <= 1 else None
        return Operand(Subtensor((full, first, *rest))(x.value, *bounds), True, left, last)
    return None


# -- in a loop ------------------------------------------------------------------------------------


def _looped(node: Apply, found: Known, states: dict[Variable, Operand]) -> list[Operand]:
    """The node in a loop over the lanes.

    Opaque values, such as the reserve of a recurrent network, belong to two kernels: a loop can
    neither collect nor read them. So a loop that reads one contains the node that makes it, and the
    operand here is never read.

    Where lanes share one state of a generator, a lane draws after the lanes before it. ``states``
    gets the state that each of them began with, for other ops that read the same state to draw the
    same again (a gradient).
    """
    makers = {node}
    own = vectorizing() is None
    operands = [_of_lane(v, found, {} if own else states) for v in node.inputs]
    given = dict(zip(node.inputs, operands, strict=True))
    while opaque := [(v, v.owner) for v in given if isinstance(v.type, OpaqueType) and v.owner]:
        for v, maker in opaque:
            del given[v]
            makers.add(maker)
            given |= {u: _of_lane(u, found, {} if own else states) for u in maker.inputs}
    body = [n for n in toposort(node.outputs, given) if n in makers]
    inside: dict[Variable, Variable] = {v: v for v in given if isinstance(v, Constant)}
    inside |= {v: Variable(v.type, v.name) for v in given if v not in inside}
    for n in body:
        copy = n.clone_with([inside[v] for v in n.inputs])
        inside |= zip(n.outputs, copy.outputs, strict=True)
    return _run_loop(node, given, inside, _carried(node, given, vectorizing()), states)


def _of_lane(v: Variable, found: Known, states: Known) -> Operand:
    return states.get(v) or found.get(v) or Operand(v, False)


def _carried(
    node: Apply, given: Known, how: Vectorizing | None
) -> tuple[Variable, Variable] | None:
    """The state of a generator that the lanes share, and the next one; None if there is none."""
    at = node.op.random_state
    if how is None or at is None or given[node.inputs[at]].stacked:
        return None
    state = node.inputs[at]
    return state, next(v for v in reversed(node.outputs) if v.type == state.type)


def _run_loop(
    node: Apply,
    given: Known,
    inside: Known | Mapping[Variable, Variable],
    carried: tuple[Variable, Variable] | None,
    states: dict[Variable, Operand],
) -> list[Operand]:
    within: Mapping[Variable, Variable] = inside  # type: ignore[assignment]
    drawn = carried or ()
    collected = [v for v in node.outputs if isinstance(v.type, TensorType) and v not in drawn]
    stacked = [o.value for o in given.values() if o.stacked]
    parts = Parts(
        lanes_of(stacked, [0] * len(stacked)),
        sequences=[(within[v], o.value) for v, o in given.items() if o.stacked],
        others=[
            (within[v], o.value)
            for v, o in given.items()
            if not o.stacked and not isinstance(v, Constant) and v not in drawn
        ],
        collected=[within[v] for v in collected],
        name=f"batch of {type(node.op).__name__}",
    )
    if carried is None:
        built = parts.build()
        results = dict(zip(collected, built.collected, strict=True))
        return [Operand(results.get(v, v), True) for v in node.outputs]
    state, new = carried
    start = given[state].value.dimshuffle("x", 0)
    parts.states = [State((-1,), [within[state]], start, within[new], False)]
    parts.collected.append(within[state])
    built = parts.build()
    *own, begun = built.collected
    results = dict(zip(collected, own, strict=True))
    states[state] = Operand(begun, True)
    return [
        Operand(built.last[0], False) if v is new else Operand(results.get(v, v), True)
        for v in node.outputs
    ]
