"""Choices and loops: ``If``, ``Loop``, ``Scan``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import symdnn.tensor as T
from symdnn.errors import ModelError, SymdnnError
from symdnn.graph.evaluate import evaluator
from symdnn.graph.traverse import ancestors, leaves
from symdnn.graph.variable import Constant, Variable
from symdnn.onnx.model.kinds import carrier
from symdnn.onnx.model.node import Node
from symdnn.onnx.model.values import Stacked, Unsettled, Value, known_array
from symdnn.onnx.ops.loop_states import Grows, check_sizes, growing_states, listed_states
from symdnn.ops.array.view import ForgetShape
from symdnn.ops.control.control import ifelse
from symdnn.ops.control.scan_builder import scan, until
from symdnn.ops.core.shape import dims_of
from symdnn.rewriting.shapes import ShapeResolver

#: Loops of a known, small number of steps are written out.
_FEW_STEPS = 4
_MOST_STEPS = 4096
#: A loop without a number of steps ends by its condition.
_NO_LIMIT = (1 << 31) - 1


# -- If -------------------------------------------------------------------------------------------


def _if(node: Node) -> list[Any]:
    condition = node.value(0)
    then, other = node.required("then_branch"), node.required("else_branch")
    value = condition.array if condition.array is not None else known_array(condition.variable)
    if value is not None:
        return list(node.scope.subgraph(then if bool(value.ravel()[0]) else other))
    try:
        pair = [node.scope.subgraph(branch) for branch in (then, other)]
        return _chosen(condition.variable.reshape(()), *pair)
    except (SymdnnError, ModelError) as error:
        # Branches that can't both be built, or have different shapes: the call's value decides.
        try:
            node.settled(condition.variable, "the condition")
        except ModelError:
            raise node.error(f"its branches differ, and its condition is data: {error}") from error
        raise


def _chosen(condition: Variable, yes: list[Any], no: list[Any]) -> list[Any]:
    for a, b in zip(yes, no):
        if not isinstance(a, Value) or not isinstance(b, Value):
            raise ModelError("a branch gives a sequence or an optional value")
        if a.kind != b.kind or a.ndim != b.ndim:
            raise ModelError(f"its branches give {a} and {b}")
    left, right = [], []
    for a, b in zip(yes, no):
        u, v = _alike(a.variable, b.variable)
        left.append(u)
        right.append(v)
    found = ifelse(condition, left, right)
    return [Value(v, a.kind) for v, a in zip(found, yes)]


def _forgotten(v: Variable, axes: Sequence[int]) -> Variable:
    """``v`` without static sizes along ``axes``."""
    static = tuple(i for i in axes if v.type.shape[i] is not None)
    return ForgetShape(static)(v) if static else v


# -- Loop -----------------------------------------------------------------------------------------


def _loop(node: Node) -> list[Any]:
    return _run_loop(node, node.required("body"), list(node.inputs[2:]))


def _run_loop(node: Node, body: Any, states: list[Any]) -> list[Any]:
    steps = _known_number(node, 0)
    start = _known_number(node, 1)
    if start == 0 and start is not None:
        steps = 0
    plain = all(isinstance(s, Value) for s in states)
    if steps is not None and steps <= _FEW_STEPS:
        unrolled = _unrolled(node, body, states, steps)
        if unrolled is not None:
            return unrolled
    grown = growing_states(body, states)
    if steps is None and not node.roots:  # no call has the number of steps
        grown |= listed_states(body, states)
    if grown and all(isinstance(s, Value) for k, s in enumerate(states) if k not in grown):
        unrolled = _of_several_sizes(node, body, states, grown)
        return _with_growing(node, body, states, grown) if unrolled is None else unrolled
    if plain:
        for loose in (False, True):
            try:
                return _scanned(node, body, states, loose)
            except Grows:
                return _of_changing_states(node, body, states)
            except SymdnnError as error:
                problem = error
    else:
        problem = ModelError("a state is a sequence or an optional value")
    unrolled = _unrolled(node, body, states, _settled_steps(node))
    if unrolled is None:
        raise node.error(f"it can neither run as a loop nor be written out: {problem}") from problem
    return unrolled


def _of_changing_states(node: Node, body: Any, states: list[Any]) -> list[Any]:
    """The loop written out, since a loop's states keep their sizes.

    It stays a loop, which checks them when it runs, if no call settles its steps.
    """
    try:
        unrolled = _unrolled(node, body, states, _settled_steps(node))
    except ModelError:
        unrolled = None
    return _scanned(node, body, states, True, checks=False) if unrolled is None else unrolled


def _plain(body: Any, grown: dict[int, tuple[int | None, str]]) -> Any:
    """The body without the states that grow; the last outputs are what is appended to them."""
    plain = type(body)()
    plain.CopyFrom(body)
    del plain.input[:]
    del plain.output[:]
    plain.input.extend(v for i, v in enumerate(body.input) if i - 2 not in grown)
    plain.output.extend(v for i, v in enumerate(body.output) if i - 1 not in grown)
    for _, piece in grown.values():
        plain.output.add().name = piece
    return plain


def _of_several_sizes(
    node: Node, body: Any, states: list[Any], grown: dict[int, tuple[int | None, str]]
) -> list[Any] | None:
    """The loop written out, if what it appends may have another size at each step.

    None if it has not, or if no call settles the number of steps: a loop checks it when it runs.
    """
    sizes, i = _sizes_of_steps(node, body, states, grown)
    if not sizes:
        return None
    try:
        steps = _settled_steps(node)
    except ModelError:
        return None
    if _same_at_all(node, sizes, i, steps):
        return None
    return _unrolled(node, body, states, steps)


def _sizes_of_steps(
    node: Node, body: Any, states: list[Any], grown: dict[int, tuple[int | None, str]]
) -> tuple[list[Variable], Variable]:
    """Sizes of the pieces that follow from the step or from states, and the number of the step."""
    i = T.scalar("step", dtype="int64")
    kept = [s for k, s in enumerate(states) if k not in grown]
    fresh = [_forgotten(s.variable, range(s.ndim)).type() for s in kept]
    inputs = [Value(i), Value.of(np.asarray(True))]
    inputs += [Value(v, s.kind) for v, s in zip(fresh, kept)]
    results = node.scope.subgraph(_plain(body, grown), inputs)
    resolver, own = ShapeResolver(), {i, *fresh}
    sizes = [d for r in results[-len(grown) :] for d in resolver.shape(r.variable)]
    sizes = [d for d in sizes if isinstance(d, Variable)]
    return [d for d in sizes if own & set(leaves([d], _sizes_of_leaves([d])))], i


def _sizes_of_leaves(sizes: Sequence[Variable]) -> list[Variable]:
    """Sizes of variables without an owner, on the way to ``sizes``."""
    found = ancestors(sizes)
    return [v for v in found if v.owner and v.owner.op.size_of is not None
            and not v.owner.inputs[0].owner]  # fmt: skip


def _same_at_all(node: Node, sizes: Sequence[Variable], i: Variable, steps: int) -> bool:
    """Whether sizes that follow from the step alone, and sizes of inputs, are so at all steps."""
    open_sizes = _sizes_of_leaves(sizes)
    rest = set(leaves(sizes, open_sizes)) - {i, *open_sizes}
    if steps > _MOST_STEPS or not all(isinstance(v, Constant) for v in rest):
        return False
    if open_sizes and node.roots:
        raise Unsettled(f"{node}: what it appends must have a known size", sizes=True)
    if open_sizes:
        return False
    run = evaluator(sizes, [i])
    return len({tuple(map(int, run({i: np.asarray(k)}))) for k in range(steps)}) < 2


def _with_growing(
    node: Node, body: Any, states: list[Any], grown: dict[int, tuple[int | None, str]]
) -> list[Any]:
    """The loop without its growing states, to which what it collects is appended at the end."""
    kept = [s for k, s in enumerate(states) if k not in grown]
    plain = _plain(body, grown)
    results = _run_loop(replace(node, inputs=[*node.inputs[:2], *kept]), plain, kept)
    pieces = results[len(results) - len(grown) :]
    rest = iter(results[: len(results) - len(grown)])
    found: list[Any] = []
    for k, state in enumerate(states):
        if k not in grown:
            found.append(next(rest))
            continue
        piece, along = pieces[list(grown).index(k)], grown[k][0]
        v = piece.variable
        if along is None:
            found.append(Stacked(v, piece.kind))
            continue
        axis = node.normal(along, v.ndim - 1)
        sizes = dims_of(v)[1:]
        joined = T.moveaxis(v, 0, axis).reshape(
            (*sizes[:axis], dims_of(v)[0] * sizes[axis], *sizes[axis + 1 :])
        )
        found.append(Value(T.concatenate([state.variable, joined], axis=axis), state.kind))
    return [*found, *rest]


def _known_number(node: Node, i: int) -> int | None:
    """An input that is a known number; None if it is absent or only a call has it."""
    if not node.has(i):
        return None
    value = node.value(i)
    found = value.array if value.array is not None else known_array(value.variable)
    return None if found is None else int(found.ravel()[0])


def _settled_steps(node: Node) -> int:
    if node.has(1) and not bool(node.known(1, "the condition").ravel()[0]):
        return 0
    if not node.has(0):
        return _MOST_STEPS
    return int(node.known(0, "the number of steps").ravel()[0])


def _unrolled(node: Node, body: Any, states: list[Any], steps: int) -> list[Any] | None:
    """The steps one after another; None if the condition to go on is only known in a call."""
    collected: list[list[Value]] = [[] for _ in body.output[1 + len(states) :]]
    bounded = node.has(0)
    for i in range(min(steps, _MOST_STEPS)):
        inputs = [Value.of(np.asarray(i, np.int64)), Value.of(np.asarray(True)), *states]
        condition, *rest = node.scope.subgraph(body, inputs)
        states = list(rest[: len(states)])
        for kept, value in zip(collected, rest[len(states) :]):
            kept.append(value)
        go_on = condition.array if condition.array is not None else known_array(condition.variable)
        if go_on is None:
            if bounded and steps == 1:
                break
            return None
        if not bool(go_on.ravel()[0]):
            break
    else:
        if steps > _MOST_STEPS or (steps and not bounded):
            raise node.error(f"more than {_MOST_STEPS} steps that must be written out")
    return [
        *states,
        *(_stacked(node, c, body, len(states) + 1 + k) for k, c in enumerate(collected)),
    ]


def _stacked(node: Node, values: list[Value], body: Any, output: int) -> Value:
    if values:
        return Value(T.stack([v.variable for v in values]), values[0].kind)
    proto = body.output[output].type.tensor_type
    from symdnn.onnx.model.kinds import kind_of

    kind = kind_of(proto.elem_type, str(node))
    dims = [d.dim_value for d in proto.shape.dim]
    return Value(T.zeros((0, *dims), dtype=carrier(kind)), kind)


def _scanned(
    node: Node, body: Any, states: list[Any], loose: bool, checks: bool = True
) -> list[Any]:
    """The loop as a loop."""
    steps: Any = node.number(0, _NO_LIMIT)
    if node.has(1) and _known_number(node, 1) is None:
        steps = T.switch(node.x(1).reshape(()), steps, 0)
    elif _known_number(node, 1) == 0:
        steps = 0
    initial = [s.variable for s in states]
    if loose:
        initial = [_forgotten(v, range(v.ndim)) for v in initial]
    kinds: list[str] = []

    def step(i: Variable, *state: Variable) -> Any:
        inputs = [Value(i), Value.of(np.asarray(True)),
                  *(Value(v, s.kind) for v, s in zip(state, states))]  # fmt: skip
        condition, *rest = node.scope.subgraph(body, inputs)
        kinds[:] = [r.kind for r in rest]
        if checks:
            check_sizes([r.variable for r in rest[: len(states)]], state)
        results = [_fitting(r.variable, v) for r, v in zip(rest, state)]
        results += [r.variable for r in rest[len(states) :]]
        go_on = condition.array
        if go_on is not None and bool(go_on.ravel()[0]):
            return results
        return results, until(T.invert(condition.variable.reshape(())))

    count = len(body.output) - 1 - len(states)
    counter = T.constant(np.asarray(-1, np.int64))

    def counted(i: Variable, *state: Variable) -> Any:
        made = step(i + 1, *state)
        results, end = made if isinstance(made, tuple) else (made, None)
        outputs = [i + 1, *results]
        return outputs if end is None else (outputs, end)

    outputs, _ = scan(
        counted, outputs_info=[counter, *initial, *[None] * count], n_steps=steps, return_list=True
    )
    values = _ended(outputs[1:], initial, steps)
    return [Value(v, k) for v, k in zip(values, kinds)]


def _fitting(new: Variable, old: Variable) -> Variable:
    """A next state without static sizes that the state does not have."""
    extra = [i for i, (n, o) in enumerate(zip(new.type.shape, old.type.shape)) if o is None]
    return _forgotten(new, extra) if new.ndim == old.ndim else new


def _ended(outputs: Sequence[Variable], initial: Sequence[Variable], steps: Any) -> list[Variable]:
    """The states after the last step, and what was collected; of no step the initial states."""
    count = len(initial)
    collected = list(outputs[count:])
    if not isinstance(steps, Variable):
        return [*(v[-1] if steps else s for v, s in zip(outputs, initial)), *collected]
    if any(None in v.type.shape[1:] for v in collected):
        kept = [T.concatenate([T.shape_padleft(s), v]) for v, s in zip(outputs, initial)]
        return [*(v[-1] for v in kept), *collected]
    # The whole loop is in a branch, which is not taken if there is no step.
    last = [v[-1] for v in outputs[:count]]
    pairs = [*zip(last, initial)]
    for v in collected:
        pairs.append((v, T.zeros((0, *v.type.shape[1:]), dtype=v.type.dtype)))  # type: ignore[arg-type]
    alike = [_alike(a, b) for a, b in pairs]
    return list(ifelse(steps > 0, [a for a, _ in alike], [b for _, b in alike]))


def _alike(a: Variable, b: Variable) -> tuple[Variable, Variable]:
    """Two values without the static sizes in which they differ."""
    differ = [i for i, (p, q) in enumerate(zip(a.type.shape, b.type.shape)) if p != q]
    return _forgotten(a, differ), _forgotten(b, differ)


# -- Scan -----------------------------------------------------------------------------------------


def _scan(node: Node) -> list[Any]:
    body, count = node.required("body"), int(node.required("num_scan_inputs"))
    given = list(node.inputs)
    n_states = len(given) - count
    values = [node.value(i) for i in range(len(given))]
    forward = _listed(node, "scan_input_directions", count)
    axes = _listed(node, "scan_input_axes", count)
    sequences = []
    for value, backwards, axis in zip(values[n_states:], forward, axes):
        x = value.variable
        x = T.moveaxis(x, node.normal(axis, x.ndim), 0)
        sequences.append(T.flip(x, 0) if backwards else x)
    states = values[:n_states]
    found = _stepped(node, body, states, sequences, [v.kind for v in values[n_states:]])
    n_outputs = len(found) - n_states
    flipped = _listed(node, "scan_output_directions", n_outputs)
    axes = _listed(node, "scan_output_axes", n_outputs)
    for k in range(n_outputs):
        v, kind = found[n_states + k].variable, found[n_states + k].kind
        v = T.flip(v, 0) if flipped[k] else v
        found[n_states + k] = Value(T.moveaxis(v, 0, node.normal(axes[k], v.ndim)), kind)
    return found


def _listed(node: Node, name: str, count: int) -> list[int]:
    return [int(n) for n in node.attribute(name) or [0] * count]


def _stepped(
    node: Node, body: Any, states: list[Value], sequences: list[Variable], kinds: list[str]
) -> list[Value]:
    """The loop over the first axis of ``sequences``."""
    result_kinds: list[str] = []
    initial = [s.variable for s in states]

    def step(*args: Variable) -> Any:
        entries = [Value(v, k) for v, k in zip(args, kinds)]
        state = args[len(sequences) :]
        inputs = [*(Value(v, s.kind) for v, s in zip(state, states)), *entries]
        rest = node.scope.subgraph(body, inputs)
        result_kinds[:] = [r.kind for r in rest]
        results = [_fitting(r.variable, v) for r, v in zip(rest, state)]
        return results + [r.variable for r in rest[len(states) :]]

    count = len(body.output) - len(states)
    outputs, _ = scan(
        step, sequences=sequences, outputs_info=[*initial, *[None] * count], return_list=True
    )
    steps = dims_of(sequences[0])[0]
    values = _ended(outputs, initial, steps)
    return [Value(v, k) for v, k in zip(values, result_kinds)]


def _scan_8(node: Node) -> list[Any]:
    """Opset 8: each example of a batch has a loop of its own, of its own length."""
    body, count = node.required("body"), int(node.required("num_scan_inputs"))
    values = [node.value(i) for i in range(1, len(node.inputs))]
    n_states = len(values) - count
    batch = values[0].shape[0]
    if batch is None:
        batch = int(node.settled(dims_of(values[0].variable)[0], "the size of the batch"))
    lengths = node.ints(0, "the lengths") if node.has(0) else None
    backwards = _listed(node, "directions", count)
    found: list[list[Value]] = []
    for b in range(batch):
        sequences = []
        for value, back in zip(values[n_states:], backwards):
            x = value.variable[b]
            x = x if lengths is None else x[: lengths[b]]
            sequences.append(T.flip(x, 0) if back else x)
        states = [Value(v.variable[b], v.kind) for v in values[:n_states]]
        kinds = [v.kind for v in values[n_states:]]
        found.append(_stepped(node, body, states, sequences, kinds))
    return [
        Value(T.stack([f[k].variable for f in found]), found[0][k].kind)
        for k in range(len(found[0]))
    ]


OPS: dict[str, Any] = {"If": _if, "Loop": _loop, "Scan": {8: _scan_8, 9: _scan}}
