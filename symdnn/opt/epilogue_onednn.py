"""Convolutions and products of oneDNN take in what follows them: an addend, a bias, an activation.

oneDNN does it before it writes the result. As on a GPU (:mod:`symdnn.opt.epilogue_gemm`) it is
worth it where the elementwise kernel that would do it goes away.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from symdnn.graph.origin import inherit
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.arithmetic import Add
from symdnn.ops.onednn import ACTIVATIONS, OneDnnEpilogue
from symdnn.opt.epilogue_gemm import same_type
from symdnn.opt.fuse import Groups
from symdnn.opt.rewrite import Context, conform, graph_rewrite

__all__ = ["RULES"]


@dataclass(frozen=True)
class _Chain:
    """A convolution or product with what it has taken in so far."""

    op: OneDnnEpilogue
    operands: tuple[Variable, ...]
    value: Variable
    z: Variable | None = None
    bias: Variable | None = None

    def inputs(self) -> list[Variable]:
        """The operands of the op."""
        return [*self.operands, *(v for v in (self.z, self.bias) if v is not None)]


def _start(node: Apply) -> _Chain | None:
    """One that has taken in nothing yet, in float32."""
    op, out = node.op, node.outputs[0]
    if not isinstance(op, OneDnnEpilogue) or not op.is_plain or out.type.dtype != "float32":
        return None
    return _Chain(op, tuple(node.inputs), out)


def _taken(chain: _Chain, user: Apply) -> _Chain | None:
    """The chain with its one reader taken in; None where that can't be."""
    out = user.outputs[0]
    if chain.op.activation or not same_type(out, chain.value):
        return None
    if isinstance(user.op, Add):
        return _added(chain, user)
    for word, op in ACTIVATIONS.items():
        if user.op == op:
            return replace(chain, op=replace(chain.op, activation=word), value=out)
    return None


def _added(chain: _Chain, user: Apply) -> _Chain | None:
    a, b = user.inputs
    out = user.outputs[0]
    if a is b:
        return None
    other = b if a is chain.value else a
    if _is_bias(other, chain, out):
        if chain.bias is not None:
            return None
        return replace(chain, op=replace(chain.op, bias=True), bias=other, value=out)
    if chain.z is not None or isinstance(other, Constant) or not same_type(other, out):
        return None
    return replace(chain, op=replace(chain.op, residual=True), z=other, value=out)


def _is_bias(v: Variable, chain: _Chain, out: Variable) -> bool:
    """Whether ``v`` has the channels alone."""
    ones, axis = v.type.broadcastable, chain.op.channel_axis(out.type.ndim)
    alone = all(one == (i != axis) for i, one in enumerate(ones))
    return bool(alone and len(ones) == out.type.ndim and v.type.dtype == out.type.dtype)


def _best(start: _Chain, groups: Groups) -> _Chain | None:
    """All that it can take in such that nothing is left of the kernel that did it."""
    chain, best = start, None
    while groups.context.only_user(chain.value):
        (user,) = groups.fgraph.user_nodes(chain.value)
        longer = _taken(chain, user) if user in groups.members else None
        if longer is None:
            break
        chain, group = longer, groups.group[user]
        readers = groups.fgraph.user_nodes(chain.value)
        if not any(groups.group.get(r) is group for r in readers):
            best = chain
    return best


@graph_rewrite("epilogue", tags=("epilogue", "onednn"), name="onednn_epilogue")
def onednn_epilogue(context: Context) -> None:
    """Convolutions and products take in what follows where that saves a kernel."""
    if context.target.kind != "cpu" or not context.target.has("onednn"):
        return
    groups = Groups(context)
    for node in context.fgraph.toposort():
        # Read when its turn comes: what it reads may have been replaced.
        start = _start(node) if node in context.fgraph.nodes else None
        chain = None if start is None else _best(start, groups)
        if chain is not None:
            _replace(context, node, chain)


def _replace(context: Context, node: Apply, chain: _Chain) -> None:
    last = chain.value.owner
    assert last is not None, "a chain ends with what it took in"
    with inherit(last.origin, node.hints):
        new = conform(chain.op(*chain.inputs()), chain.value, context)
    if new is not None:
        context.fgraph.replace_all([(chain.value, new)], "onednn_epilogue")


RULES: tuple[Any, ...] = (onednn_epilogue,)
