"""Convolutions that take in what follows them: an addend, a bias of the channels, an activation.

cuDNN does it before it writes the result. As with products (:mod:`symdnn.opt.epilogue_gemm`), it is
worth it where the elementwise kernel that would do it goes away. Which kernel then runs it, and
whether that is one or two, is chosen when the shapes are known.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from symdnn.graph.origin import inherit
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.arithmetic import Add, Sub
from symdnn.ops.gpudnn_conv import GpuDnnConv
from symdnn.ops.gpudnn_epilogue import CONV_ACTIVATIONS, GpuDnnConvBiasActivation
from symdnn.opt.epilogue_gemm import behind_factor, epilogues_wanted, same_type
from symdnn.opt.fuse import Groups
from symdnn.opt.rewrite import Context, conform, graph_rewrite

__all__ = ["RULES"]

_DTYPES = ("float16", "bfloat16", "float32")


@dataclass(frozen=True)
class _Chain:
    """A convolution with what it has taken in so far."""

    op: GpuDnnConvBiasActivation
    operands: tuple[Variable, Variable]
    value: Variable
    z: Variable | None = None
    bias: Variable | None = None

    def inputs(self) -> list[Variable]:
        """The operands of the op."""
        return [*self.operands, *(v for v in (self.z, self.bias) if v is not None)]


def _start(node: Apply, context: Context) -> _Chain | None:
    """A convolution as it is; one that adds to an operand already keeps that."""
    op, out = node.op, node.outputs[0]
    if type(op) is not GpuDnnConv or op.ndim not in (2, 3) or out.type.dtype not in _DTYPES:
        return None
    given = {f.name: getattr(op, f.name) for f in fields(op)}
    made = GpuDnnConvBiasActivation(**{**given, "beta": 0.0})
    start = _Chain(made, (node.inputs[0], node.inputs[1]), out)
    if op.output_index is None:
        return start
    z, factor = behind_factor(node.inputs[op.output_index], context)
    return replace(start, op=replace(made, residual=op.beta * factor), z=z)


def _taken(chain: _Chain, user: Apply, context: Context) -> _Chain | None:
    """The chain with its one reader taken in; None where that can't be."""
    out = user.outputs[0]
    if chain.op.activation or not same_type(out, chain.value):
        return None
    if isinstance(user.op, Add | Sub):
        return _added(chain, user, context)
    for word, op in CONV_ACTIVATIONS.items():
        if user.op == op:
            return replace(chain, op=replace(chain.op, activation=word), value=out)
    return None


def _added(chain: _Chain, user: Apply, context: Context) -> _Chain | None:
    a, b = user.inputs
    out = user.outputs[0]
    if a is b or (isinstance(user.op, Sub) and a is not chain.value):
        return None
    other = b if a is chain.value else a
    if _is_bias(other, chain, out):
        if chain.bias is not None or isinstance(user.op, Sub):
            return None
        return replace(chain, op=replace(chain.op, bias=True), bias=other, value=out)
    if chain.z is not None or isinstance(other, Constant) or not same_type(other, out):
        return None
    z, factor = behind_factor(other, context)
    factor = -factor if isinstance(user.op, Sub) else factor
    return replace(chain, op=replace(chain.op, residual=factor), z=z, value=out)


def _is_bias(v: Variable, chain: _Chain, out: Variable) -> bool:
    """Whether ``v`` has the channels alone."""
    ones, axis = v.type.broadcastable, chain.op.channel_axis
    alone = all(one == (i != axis) for i, one in enumerate(ones))
    return bool(alone and len(ones) == out.type.ndim and v.type.dtype == out.type.dtype)


def _best(start: _Chain, groups: Groups) -> _Chain | None:
    """All that it can take in such that nothing is left of the kernel that did it."""
    chain, best = start, None
    while groups.context.only_user(chain.value):
        (user,) = groups.fgraph.user_nodes(chain.value)
        longer = _taken(chain, user, groups.context) if user in groups.members else None
        if longer is None:
            break
        chain, group = longer, groups.group[user]
        readers = groups.fgraph.user_nodes(chain.value)
        if not any(groups.group.get(r) is group for r in readers):
            best = chain
    return best


@graph_rewrite("epilogue", tags=("epilogue", "cudnn", "conv_dnn"), name="conv_epilogue")
def conv_epilogue(context: Context) -> None:
    """Convolutions take in addends, biases and activations where that saves a kernel."""
    if not epilogues_wanted(context):
        return
    groups = Groups(context)
    for node in context.fgraph.toposort():
        # Read when its turn comes: what it reads may have been replaced.
        start = _start(node, context) if node in context.fgraph.nodes else None
        chain = None if start is None else _best(start, groups)
        if chain is not None:
            _replace(context, node, chain)


def _replace(context: Context, node: Apply, chain: _Chain) -> None:
    last = chain.value.owner
    assert last is not None, "a chain ends with what it took in"
    with inherit(last.origin, node.hints):
        new = conform(chain.op(*chain.inputs()), chain.value, context)
    if new is not None:
        context.fgraph.replace_all([(chain.value, new)], "conv_epilogue")


RULES: tuple[Any, ...] = (conv_epilogue,)
