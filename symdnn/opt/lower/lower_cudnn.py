"""Everything about cuDNN among the rewrites: what is lowered to it, and why something is not.

The tag ``cudnn`` switches all of it off (``optimizer_excluding=cudnn``); included by name it
demands cuDNN (``optimizer_including=cudnn``). The names are Theano's where it has the rewrite.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from symdnn.config import config
from symdnn.errors import CudnnRequired
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.target import Target
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.core.lowered import DnnBase
from symdnn.opt.lower import (
    lower_cudnn_conv,
    lower_cudnn_inplace,
    lower_cudnn_merge,
    lower_cudnn_norm,
    lower_cudnn_ops,
    lower_cudnn_rnn,
)
from symdnn.opt.lower.lowering import Lowering, cudnn_reason, why_not
from symdnn.rewriting.rewrite import Context, GraphRewrite, Rewrite, graph_rewrite, node_rewrite

__all__ = ["LOWERINGS", "RULES", "demanded", "not_lowered"]

LOWERINGS: tuple[Lowering, ...] = (
    *lower_cudnn_conv.LOWERINGS,
    *lower_cudnn_ops.LOWERINGS,
    *lower_cudnn_norm.LOWERINGS,
    *lower_cudnn_rnn.LOWERINGS,
)


def not_lowered(
    fgraph: FunctionGraph, target: Target, takes: Callable[[Rewrite], bool] = lambda rewrite: True
) -> dict[Apply, str]:
    """The nodes of a rewritten graph that cuDNN could have had, each with the reason.

    ``takes`` says which rewrites were switched on (:meth:`Selection.takes`).
    """
    return why_not(LOWERINGS, fgraph, target, takes)


def _require(context: Context, wish: str) -> None:
    reason = cudnn_reason(context.target)
    if reason is not None:
        raise CudnnRequired(f"{wish}, but cuDNN can't be used: {reason}")


@graph_rewrite("canonicalize", tags=("cudnn", "optional"), name="NoCuDNNRaise")
def no_cudnn_raise(context: Context) -> None:
    """With ``cudnn`` included by name: raise CudnnRequired unless it can be used."""
    _require(context, "optimizer_including=cudnn")


@graph_rewrite("canonicalize", tags=("fast_compile",), name="cudnn_is_enabled")
def cudnn_is_enabled(context: Context) -> None:
    """With ``dnn.enabled=True``: raise CudnnRequired unless a GPU's program has cuDNN.

    A CPU that was chosen because the GPU can't be used counts, one that was asked for does not.
    """
    chosen = context.target.kind == "cuda" or str(config.device) != "cpu"
    if str(config.dnn.enabled) == "True" and chosen:
        _require(context, "dnn.enabled=True")


def demanded(takes: Callable[[GraphRewrite], bool]) -> bool:
    """Whether compiling fails without cuDNN; ``takes`` is :meth:`Selection.takes`."""
    return takes(no_cudnn_raise) or str(config.dnn.enabled) == "True"


@node_rewrite(DnnBase, phase="canonicalize", tags=("fast_compile",), name="local_gpudnn_to_neutral")
def to_neutral(node: Apply, context: Context) -> Sequence[Variable] | None:
    """A GpuDnn op that was applied by hand, where there is no cuDNN: the neutral op."""
    assert isinstance(node.op, DnnBase)
    if cudnn_reason(context.target) is None:
        return None
    return node.op.expanded(*node.inputs)


RULES: tuple[Rewrite | GraphRewrite, ...] = (
    no_cudnn_raise,
    cudnn_is_enabled,
    to_neutral,
    *(low.rewrite() for low in LOWERINGS),
    *lower_cudnn_ops.RULES,
    *lower_cudnn_merge.RULES,
    *lower_cudnn_inplace.RULES,
)
