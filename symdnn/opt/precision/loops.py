"""Mixed precision in loops: what a step would round again and again is rounded once.

The body of a loop gets mixed precision like any graph (:mod:`symdnn.opt.precision.amp`). Then a
step rounds its weights, sequences and states. Weights and sequences are rounded before the loop,
for all steps at once. Of a state the loop also carries the rounded value, which the kernel that
makes the state writes beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

from symdnn.graph.variable import Apply, Variable
from symdnn.ops.control.scan import Scan
from symdnn.ops.control.scan_parts import Parts, State
from symdnn.ops.elementwise.arithmetic import Cast, cast
from symdnn.opt.precision.amp import amp_dtype
from symdnn.opt.scan.scan_rules import in_order
from symdnn.rewriting.rewrite import Context, node_rewrite


@node_rewrite(Scan, phase="precision", tags=("amp", "scan"), name="round_before_loop")
def round_before_loop(node: Apply, context: Context) -> Sequence[Variable | None] | None:
    """A loop's inputs are rounded to 16 bits outside of it, its states one step ahead."""
    return _round_before(node, context)


@node_rewrite(Scan, phase="epilogue", tags=("amp", "scan"), name="round_bias_before_loop")
def round_bias_before_loop(node: Apply, context: Context) -> Sequence[Variable | None] | None:
    """Likewise the casts that epilogues need: of biases."""
    return _round_before(node, context)


def _round_before(node: Apply, context: Context) -> Sequence[Variable | None] | None:
    op = node.op
    dtype = amp_dtype(context.target)
    if dtype is None or not isinstance(op, Scan):
        return None
    parts = Parts.of(op, node.inputs, own=True)
    inside: dict[Variable, Variable] = {}
    for n in op.inner.nodes:
        rounds = isinstance(n.op, Cast) and n.outputs[0].type.dtype == dtype
        if rounds and n.inputs[0].type.dtype == "float32":
            new = _rounded(parts, n.inputs[0], dtype)
            if new is not None:
                inside[n.outputs[0]] = new
    if not inside:
        return None
    parts.substitute(inside)
    return in_order(op, parts.build(node.hints), range(len(op.states)), range(op.collected))


def _rounded(parts: Parts, v: Variable, dtype: str) -> Variable | None:
    """A new inner variable with the rounded value of ``v``; None where a step computes it."""
    new: Variable = cast(v, dtype).type(v.name)
    for pairs in (parts.sequences, parts.others):
        for own, outer in list(pairs):
            if own is v:
                pairs.append((new, cast(outer, dtype)))
                return new
    for state in list(parts.states):
        if state.inside == [v] and state.taps == (-1,):
            initial, following = cast(state.initial, dtype), cast(state.next, dtype)
            parts.states.append(State((-1,), [new], initial, following, False, state.label))
            return new
    return None


RULES = (round_before_loop, round_bias_before_loop)
