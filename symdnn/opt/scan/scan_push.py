"""Code motion out of loops: work that needs no earlier step is done for all steps at once.

Moved before the loop: values that depend on sequences and invariants only (``dot(x_t, W)`` becomes
one GEMM). Moved behind it: collected outputs that follow from states, sequences and invariants, and
sums of GEMMs over the steps (the gradient of a weight), again as one GEMM.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from symdnn.graph.inner import InnerGraph
from symdnn.graph.operators import operator
from symdnn.graph.traverse import clone_graph, leaves, toposort
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.array.index import Subtensor
from symdnn.ops.array.reduce import Reduce, Sum
from symdnn.ops.array.view import specify_shape
from symdnn.ops.control.batching import Operand, batch_node
from symdnn.ops.control.scan import Scan
from symdnn.ops.control.scan_parts import Built, Parts, State
from symdnn.ops.core.inner_shapes import inner_shapes
from symdnn.ops.core.lanes import sizes_of
from symdnn.ops.core.shape import DimShuffle, ShapeI, dims_of, reshape
from symdnn.ops.elementwise.arithmetic import Add, Mul
from symdnn.ops.elemwise import Elemwise
from symdnn.ops.linalg.dot import Dot
from symdnn.ops.linalg.products import BatchedDot
from symdnn.ops.nn.softmax import AlongAxis
from symdnn.opt.scan.scan_rules import in_order, turned
from symdnn.rewriting.facts import made_by, node_of
from symdnn.rewriting.rewrite import Context, node_rewrite

PHASE = "canonicalize"
TAGS = ("scan", "scan_push_out")

Outputs = Sequence[Variable | None] | None


class _KnownValues:
    """Values of the body's variables outside of the loop, where they are known before it.

    ``operands`` has for each variable its value for all steps, stacked, or the same for each step.
    """

    def __init__(self, parts: Parts) -> None:
        self.operands = {v: Operand(x, True) for v, x in parts.sequences}
        self.operands |= {v: Operand(x, False) for v, x in parts.others}
        self.computed: dict[Variable, None] = {}

    def of(self, v: Variable) -> Operand | None:
        """The value of ``v`` outside of the loop; None where it is not known."""
        return Operand(v, False) if isinstance(v, Constant) else self.operands.get(v)

    def extend(self, nodes: Iterable[Apply]) -> None:
        """Compute the results of ``nodes`` outside, where all operands are known."""
        for node in nodes:
            operands = [self.of(v) for v in node.inputs]
            if node.op.unmergeable or len(node.outputs) != 1 or any(o is None for o in operands):
                continue
            found = _outside(node, [o for o in operands if o is not None])
            if found is not None:
                self.operands[node.outputs[0]] = found
                self.computed[node.outputs[0]] = None


def _outside(node: Apply, operands: Sequence[Operand]) -> Operand | None:
    if not any(o.stacked for o in operands):  # a copy: the node is the loop's own
        return Operand(node.clone_with([o.value for o in operands]).outputs[0], False)
    if not _keeps_size(node, operands):
        return None
    onward = _in_order(operands) if _is_computed_before(node, operands) else None
    found = batch_node(node, onward or operands)
    if found is None or onward is None:
        return None if found is None else found[0]
    return Operand(found[0].value[::-1], True)


def _is_computed_before(node: Apply, operands: Sequence[Operand]) -> bool:
    """Whether it costs nothing to compute a node in the order of the steps and to turn the result
    round: of elementwise ops, and where the loop before has its operands before it begins.

    A loop's own states come from steps, one after the other.
    """
    if isinstance(node.op, Elemwise):
        return True
    before = [turned(o.value) for o in operands if o.stacked]
    return not isinstance(node.op, DimShuffle) and not any(
        v is not None and made_by(v, Subtensor) and made_by(node_of(v).inputs[0], Scan)
        for v in before
    )


def _in_order(operands: Sequence[Operand]) -> list[Operand] | None:
    """Operands of which all sequences run backwards, with these turned round; else None.

    What a gradient's loop computes of them is what the loop before it has computed, then.
    """
    found = []
    for o in operands:
        value = turned(o.value) if o.stacked else o.value
        if value is None:
            return None
        found.append(Operand(value, o.stacked))
    return found if any(o.stacked for o in found) else None


#: Ops that are computed for all steps at once. Their results are no larger than their operands, so
#: results of all steps need no more memory than the operands do.
_HOISTED_OPS = (AlongAxis, DimShuffle, Dot, Elemwise, Reduce)


def _keeps_size(node: Apply, operands: Sequence[Operand]) -> bool:
    if not isinstance(node.op, Elemwise):
        return isinstance(node.op, _HOISTED_OPS)
    wide = tuple(map(all, zip(*(o.broadcastable for o in operands))))
    # Otherwise memory would grow: by an outer product at each step, say.
    return any(o.stacked and o.broadcastable == wide for o in operands)


# -- before the loop ------------------------------------------------------------------------------


@node_rewrite(
    Scan, phase=PHASE, tags=(*TAGS, "scanOp_pushout_seqs_ops", "scanOp_pushout_nonseqs_ops")
)
def scan_push_before(node: Apply, context: Context) -> Outputs:
    """Values of a step that follow from sequences and invariants are computed before the loop."""
    op = node.op
    assert isinstance(op, Scan)
    parts = Parts.of(op, node.inputs, own=True)
    known = _KnownValues(parts)
    known.extend(op.inner.nodes)
    border = _computed_and_read(known, op.inner.nodes, parts)
    if not border:
        return None
    kept = [i for i, v in enumerate(parts.collected) if op.until or v not in known.computed]
    direct = {
        op.first_collected + i: _all_steps(known.operands[v], op, node)
        for i, v in enumerate(parts.collected)
        if i not in kept
    }
    parts.collected = [parts.collected[i] for i in kept]
    inside = {v: v.type(v.name) for v in border}
    parts.substitute(inside)
    for v, new in inside.items():
        operand = known.operands[v]
        (parts.sequences if operand.stacked else parts.others).append((new, operand.value))
    if not parts.inner_outputs():
        return [direct.get(i) for i in range(len(node.outputs))]
    out = in_order(op, parts.build(), range(len(op.states)), kept)
    return [direct.get(i, v) for i, v in enumerate(out)]


def _computed_and_read(known: _KnownValues, nodes: Sequence[Apply], parts: Parts) -> list[Variable]:
    """Computed variables that the rest of the step reads, or that are results."""
    read = {v for n in nodes if n.outputs[0] not in known.computed for v in n.inputs}
    read |= set(parts.inner_outputs())
    return [v for v in known.computed if v in read]


def _all_steps(operand: Operand, op: Scan, node: Apply) -> Variable:
    """The values of all steps (steps, ...), as a collected output of the scan."""
    steps = node.inputs[0]
    if not operand.stacked:
        full = [steps, *dims_of(operand.value)]
        from_one = operand.value.dimshuffle("x", *range(operand.ndim))
        return _alloc(from_one, full)
    x = operand.value
    length = x.type.shape[0]
    if length is not None and length == op.steps:
        return x
    exact = isinstance(getattr(steps.owner, "op", None), ShapeI) and _lengths_agree(node)
    return x if exact else specify_shape(x, [steps, *([None] * (x.type.ndim - 1))])


def _alloc(x: Variable, dims: Sequence[Any]) -> Variable:
    return operator("alloc")(x, *dims)


def _lengths_agree(node: Apply) -> bool:
    """Whether the number of steps is the length of the only sequence, so it needs no check."""
    op, steps = node.op, node.inputs[0]
    assert isinstance(op, Scan)
    sequences = op.split(node.inputs).sequences
    return len(sequences) == 1 and steps.owner is not None and steps.owner.inputs[0] is sequences[0]


# -- after the loop -------------------------------------------------------------------------------


class _KnownAfterLoop(_KnownValues):
    """Values that are known after the loop: also states with a history, and collected outputs.

    ``require`` makes the loop keep or collect a variable that would not be known otherwise.
    """

    def __init__(self, op: Scan, parts: Parts) -> None:
        super().__init__(parts)
        self.op, self.parts = op, parts
        #: Values of states -> the state, and how many steps back.
        self.states: dict[Variable, tuple[State, int]] = {
            s.next: (s, 0)
            for s in parts.states
            if s.next.type.broadcastable == s.inside[0].type.broadcastable
        }
        self.states |= {v: (s, tap) for s in parts.states for tap, v in zip(s.taps, s.inside)}

    def has(self, v: Variable) -> bool:
        """Whether ``v`` is known without collecting it."""
        if v in self.states and self.states[v][0].history:
            return True
        return isinstance(v, Constant) or v in self.operands or v in self.parts.collected

    def may_collect(self, v: Variable) -> bool:
        """Whether ``v`` is known, or has the same shape in all steps."""
        if v in self.states or self.of(v) is not None or v.type.is_static:
            return True
        parts = self.parts
        inside = [u for u, _ in (*parts.sequences, *parts.others)]
        inside += [u for s in parts.states for u in s.inside]
        same = range(len(parts.sequences), len(parts.sequences) + len(parts.others))
        values = {i: inside[i] for i in same if inside[i].type.is_integer_scalar}
        shapes = [tuple(sizes_of(u)) for u in inside]
        return inner_shapes(InnerGraph(inside, [v]), [0], shapes, values)[0] is not None

    def require(self, v: Variable) -> None:
        """Make ``v`` known after the loop, as a history or as a collected output."""
        if self.has(v):
            return
        if v in self.states:
            self.states[v][0].history = True
        else:
            self.parts.collected.append(v)

    def read(self, built: Built) -> None:
        """Enter the outputs of the new loop as known values."""
        histories = dict(zip(map(id, self.parts.states), built.histories, strict=True))
        for v, (state, tap) in self.states.items():
            history, depth = histories.get(id(state)), -min(state.taps)
            if history is not None:
                self.operands.setdefault(v, Operand(history[depth + tap : tap or None], True))
        for v, x in zip(self.parts.collected, built.collected, strict=True):
            self.operands.setdefault(v, Operand(x, True))


@node_rewrite(Scan, phase=PHASE, tags=(*TAGS, "scan_pushout_dot1"))
def scan_push_after(node: Apply, context: Context) -> Outputs:
    """Collected outputs that follow from states, sequences and invariants are computed after."""
    op = node.op
    assert isinstance(op, Scan)
    if op.until:
        return None
    parts = Parts.of(op, node.inputs, own=True)
    after = _KnownAfterLoop(op, parts)
    now, later = _computable(after, True), _computable(after, False)
    pushed = {
        i: v
        for i, v in enumerate(parts.collected)
        if v not in after.states
        and (v in now or _is_gemm_by_invariant(v, after) or _follows_by_gemm(v, later))
    }
    if not pushed:
        return None
    kept = [i for i in range(op.collected) if i not in pushed]
    parts.collected = [parts.collected[i] for i in kept]
    last = [
        v.owner for v in pushed.values() if v.owner is not None and _is_gemm_by_invariant(v, after)
    ]
    for v in pushed.values():
        for u in _to_collect(v, now, after):
            after.require(u)
    built = parts.build()
    after.read(built)
    after.extend([*later.values(), *last])
    found = {i: after.of(v) for i, v in pushed.items()}
    if any(o is None or not o.stacked for o in found.values()):
        return None
    out = in_order(op, built, range(len(op.states)), kept)
    for i, operand in found.items():
        assert operand is not None
        out[op.first_collected + i] = operand.value
    return out


def _to_collect(
    v: Variable, now: Mapping[Variable, Apply], after: _KnownAfterLoop
) -> Sequence[Variable]:
    """Variables that must be known for each step to compute ``v`` after the loop."""
    if v in now:
        return ()
    if _is_gemm_by_invariant(v, after):
        return v.owner.inputs if v.owner is not None else ()
    return [u for u in leaves([v], after.states) if u in after.states]


def _computable(after: _KnownAfterLoop, kept: bool) -> dict[Variable, Apply]:
    """Variables that follow from states and from values known before, with their nodes, in order.

    With ``kept`` only states with a history count.
    """
    states = {v: s for v, (s, _) in after.states.items() if s.history or not kept}
    trial = _KnownValues(after.parts)
    for v in states:
        trial.operands[v] = Operand(v.type.with_shape((None, *v.type.shape))(), True)
    found: dict[Variable, Apply] = {}
    for node in toposort(after.parts.collected, blockers=states):
        before = len(trial.computed)
        trial.extend([node])
        if len(trial.computed) > before:
            found[node.outputs[0]] = node
    return found


def _follows_by_gemm(v: Variable, later: Mapping[Variable, Apply]) -> bool:
    """Whether ``v`` follows by way of a GEMM, which makes it worth keeping histories of states."""
    above = toposort([v], blockers={u for n in later.values() for u in n.inputs if u not in later})
    return v in later and any(isinstance(n.op, Dot) for n in above)


def _is_gemm_by_invariant(v: Variable, after: _KnownAfterLoop) -> bool:
    """Whether ``v`` is a GEMM with one invariant operand: then the other operand is collected."""
    node = v.owner
    if node is None or not isinstance(node.op, Dot):
        return False
    operands = [after.of(u) for u in node.inputs]
    same = [o is not None and not o.stacked for o in operands]
    return sum(same) == 1 and all(map(after.may_collect, node.inputs))


# -- sums over the steps --------------------------------------------------------------------------


@node_rewrite(Scan, phase=PHASE, tags=(*TAGS, "scan_pushout_sum", "scanOp_pushout_output"))
def scan_push_sums(node: Apply, context: Context) -> Outputs:
    """States that only add up GEMMs or sums: operands are collected, and summed after the loop."""
    op = node.op
    assert isinstance(op, Scan)
    if op.until:
        return None
    parts = Parts.of(op, node.inputs, own=True)
    after = _KnownAfterLoop(op, parts)
    found = {i: terms for i in range(len(op.states)) if (terms := _terms(i, parts, after))}
    if not found:
        return None
    collected = range(op.collected)
    dropped: dict[int, Variable] = {}
    for i, (moved, rest) in found.items():
        for term in moved:
            for v in _operands(term):
                after.require(v)
        state = parts.states[i]
        if rest:
            state.next = sum(rest, state.inside[0])
        else:
            # Where a step is lacking, the index is out of range.
            lacking = parts.least and operator("lt")(parts.steps, parts.least)
            dropped[i] = state.initial[-1 - lacking]
    states = [i for i in range(len(op.states)) if i not in dropped]
    parts.states = [parts.states[i] for i in states]
    built = parts.build()
    after.read(built)
    out = in_order(op, built, states, collected)
    for i, (moved, _) in found.items():
        place = op.places()[i][1]
        start = dropped.get(i, out[place])
        assert start is not None
        out[place] = sum((_sum_over_steps(t, after) for t in moved), start)
    return out


def _terms(
    i: int, parts: Parts, after: _KnownAfterLoop
) -> tuple[list[Variable], list[Variable]] | None:
    """Terms of a state's next value that may be summed after the loop, and the other terms."""
    state = parts.states[i]
    if state.taps != (-1,) or state.history:
        return None
    terms = _terms_of_sum(state.next)
    (own,) = state.inside
    if terms.count(own) != 1:
        return None
    others = [t for t in terms if t is not own]
    # Other outputs must not read the state. Its own next value, output i, does.
    readers = [*others, *(v for k, v in enumerate(parts.inner_outputs()) if k != i)]
    if own in leaves(readers):
        return None
    pattern = own.type.broadcastable
    moved = [t for t in others if t.type.broadcastable == pattern and _may_move(t, after)]
    return (moved, [t for t in others if t not in moved]) if moved else None


def _terms_of_sum(v: Variable) -> list[Variable]:
    """The terms of nested sums."""
    found, stack = [], [v]
    while stack:
        u = stack.pop()
        if u.owner is not None and isinstance(u.owner.op, Add):
            stack += u.owner.inputs
        else:
            found.append(u)
    return found


def _may_move(term: Variable, after: _KnownAfterLoop) -> bool:
    """Whether a term's operands need little memory, some change from step to step, and no shape
    does."""
    inner = _without_dimshuffles(term)
    cheap = after.has(term) or _factors(inner) is not None or _is_sum(inner)
    operands = [after.of(v) for v in _operands(term)]
    changes = any(o is None or o.stacked for o in operands)
    return cheap and changes and all(map(after.may_collect, _operands(term)))


def _without_dimshuffles(term: Variable) -> Variable:
    """``term`` before any dimshuffles."""
    while term.owner is not None and isinstance(term.owner.op, DimShuffle):
        term = term.owner.inputs[0]
    return term


def _is_sum(term: Variable) -> bool:
    return term.owner is not None and isinstance(term.owner.op, Sum)


def _factors(term: Variable) -> tuple[Variable, Variable] | None:
    """``(a, b)`` where ``term`` is the GEMM ``a b``, or an outer product of column and row.

    Also of stacks of them, as a batch of loops has.
    """
    node = term.owner
    if node is None or len(node.inputs) != 2:
        return None
    a, b = node.inputs
    if isinstance(node.op, Dot | BatchedDot):
        return (a, b) if (a.type.ndim, b.type.ndim) in ((2, 2), (3, 3)) else None
    if isinstance(node.op, Mul) and a.type.ndim in (2, 3):
        (*stack, left, right), (*others, up, down) = a.type.broadcastable, b.type.broadcastable
        if stack == others and (left, right, up, down) == (False, True, True, False):
            return a, b
        if stack == others and (left, right, up, down) == (True, False, False, True):
            return b, a
    return None


def _operands(term: Variable) -> list[Variable]:
    """Variables that must be known for each step to sum ``term`` after the loop."""
    inner = _without_dimshuffles(term)
    if (pair := _factors(inner)) is not None:
        return list(pair)
    return [inner.owner.inputs[0]] if inner.owner is not None and _is_sum(inner) else [term]


def _sum_over_steps(term: Variable, after: _KnownAfterLoop) -> Variable:
    """The sum of ``term`` over all steps."""
    values = [o for v in _operands(term) if (o := after.of(v)) is not None]
    inner = _without_dimshuffles(term)
    if _factors(inner) is not None:
        total = _gemm_over_steps(*values)
    elif inner.owner is not None and _is_sum(inner):
        op: Any = inner.owner.op
        total = values[0].value.sum(axis=(0, *(a + 1 for a in op.axes)), keepdims=op.keepdims)
        total = total.dimshuffle(*range(1, total.type.ndim)) if op.keepdims else total
    else:
        return values[0].value.sum(axis=0)
    return clone_graph([term], {inner: total})[term]


def _gemm_over_steps(a: Operand, b: Operand) -> Variable:
    """The sum over the steps of ``a b``, as one GEMM whose inner dimension has the steps."""
    x, y = a.value, b.value
    if not (a.stacked and b.stacked):
        # One operand is the same at each step: sum the other one first.
        x, y = x.sum(axis=0) if a.stacked else x, y.sum(axis=0) if b.stacked else y
        return Dot()(x, y) if x.type.ndim == 2 else BatchedDot()(x, y)
    if x.type.ndim == 4:
        return _stack_over_steps(x, y)
    steps, rows, inner = dims_of(x)
    left = reshape(x.dimshuffle(0, 2, 1), (steps * inner, rows))
    right = reshape(y, (steps * inner, dims_of(y)[2]))
    return Dot()(left.dimshuffle(1, 0), right)


def _stack_over_steps(x: Variable, y: Variable) -> Variable:
    """The same of (steps, stack, rows, inner) and (steps, stack, inner, columns)."""
    steps, _, rows, inner = dims_of(x)
    left = reshape(x.dimshuffle(1, 0, 3, 2), (dims_of(x)[1], steps * inner, rows))
    right = reshape(y.dimshuffle(1, 0, 2, 3), (dims_of(y)[1], steps * inner, dims_of(y)[3]))
    return BatchedDot()(left.dimshuffle(0, 2, 1), right)


RULES = [scan_push_before, scan_push_after, scan_push_sums]
