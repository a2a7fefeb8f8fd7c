"""Sets the ``inplace*`` fields of cuDNN's ops where the result may overwrite an operand.

As in Theano they are shown when a graph is printed; they have no effect. An op declares which
operands it may overwrite, and memory planning does it where the operand has no other reader. These
rewrites set the fields under the same condition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from symdnn.graph.variable import Apply, Shared, Variable
from symdnn.ops.core.shape import SpecifyType
from symdnn.ops.vendor.gpudnn_base import DnnBase
from symdnn.ops.vendor.gpudnn_conv import DnnConvolution
from symdnn.ops.vendor.gpudnn_norm import GpuDnnBatchNorm, GpuDnnBatchNormInference
from symdnn.rewriting.rewrite import Context, Rewrite, node_rewrite


def _is_last_use(v: Variable, context: Context) -> bool:
    """Whether ``v``, and each array that ``v`` is a view of, has only one reader."""
    while v.owner is not None:
        if not context.only_user(v):
            return False
        viewed = v.owner.op.views.get(v.index or 0)
        if viewed is None:
            return True
        v = v.owner.inputs[viewed]
    return False


def _with_fields(node: Apply, **fields: bool) -> Sequence[Variable] | None:
    """The node's outputs with these fields set; None where they are set already."""
    op: Any = node.op
    if all(getattr(op, name) == value for name, value in fields.items()):
        return None
    out = replace(op, **fields)(*node.inputs, hints=node.hints)
    return [out] if isinstance(out, Variable) else list(out)


def _inplace(name: str, kind: type[DnnBase], *tags: str) -> Rewrite[DnnBase]:
    @node_rewrite(kind, phase="transfer", tags=("cudnn", "inplace", *tags), name=name)
    def rule(node: Apply, context: Context) -> Sequence[Variable] | None:
        """Sets ``inplace`` at the last use of what the result may overwrite, if it may at all."""
        operands = node.op.may_overwrite.get(0, ())
        if not all(_is_last_use(node.inputs[i], context) for i in operands):
            return None
        return _with_fields(node, inplace=True)

    return rule


def _is_update_of(v: Variable, old: Variable, context: Context) -> bool:
    """Whether ``v`` is the update of the shared variable ``old``; static sizes may differ."""
    while old.owner is not None and isinstance(old.owner.op, SpecifyType):
        old = old.owner.inputs[0]
    if not isinstance(old, Shared):
        return False
    pending = [v]
    while pending:
        for user, i in context.fgraph.users(pending.pop()):
            if user is None and context.fgraph.updates.get(i) is old:
                return True
            if user is not None and isinstance(user.op, SpecifyType):
                pending.append(user.outputs[0])
    return False


@node_rewrite(
    GpuDnnBatchNorm, phase="transfer", tags=("cudnn", "inplace",
    "local_batch_norm_inplace_running_mean", "local_batch_norm_inplace_running_var"),
    name="local_batch_norm_inplace_running",
)  # fmt: skip
def running_inplace(node: Apply, context: Context) -> Sequence[Variable] | None:
    """Running statistics that update the shared variables from which they are read."""
    assert isinstance(node.op, GpuDnnBatchNorm)
    if not node.op.running_averages:
        return None
    pairs = zip(node.outputs[3:], node.inputs[3:], strict=True)
    mean, var = (_is_update_of(new, old, context) for new, old in pairs)
    return _with_fields(node, inplace_running_mean=mean, inplace_running_var=var)


RULES = (
    _inplace("local_dnna_conv_inplace", DnnConvolution, "conv_dnn"),
    running_inplace,
    _inplace("local_batch_norm_inference_inplace", GpuDnnBatchNormInference),
)
