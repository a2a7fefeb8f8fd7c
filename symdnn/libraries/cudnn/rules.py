"""The rewrites for cuDNN: its lowerings, its other rules, and errors where it is missing.

The tag ``cudnn`` switches all of it off (``optimizer_excluding=cudnn``); included by name it
demands cuDNN (``optimizer_including=cudnn``). The names are Theano's where it has the rewrite.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from symdnn.config import config
from symdnn.errors import CudnnRequired
from symdnn.graph.variable import Apply, Variable
from symdnn.libraries.cudnn import attention, conv, epilogue, inplace, merge, norm, ops, rnn
from symdnn.libraries.cudnn.backend import BACKEND, cudnn_reason
from symdnn.ops.vendor.gpudnn_base import DnnBase
from symdnn.opt.lower.lowering import Library
from symdnn.rewriting.rewrite import Context, GraphRewrite, graph_rewrite, node_rewrite


def _require(context: Context, demand: str) -> None:
    reason = cudnn_reason(context.target)
    if reason is not None:
        raise CudnnRequired(f"{demand}, but cuDNN can't be used: {reason}")


@graph_rewrite("canonicalize", tags=("cudnn", "optional"), name="NoCuDNNRaise")
def no_cudnn_raise(context: Context) -> None:
    """With the tag ``cudnn`` included: raise CudnnRequired unless cuDNN can be used."""
    _require(context, "optimizer_including=cudnn")


@graph_rewrite("canonicalize", tags=("fast_compile",), name="cudnn_is_enabled")
def cudnn_is_enabled(context: Context) -> None:
    """With ``dnn.enabled=True``: raise CudnnRequired where cuDNN can't be used.

    Not with ``device=cpu``. It does raise where a CPU replaces a GPU that can't be used.
    """
    chosen = context.target.kind == "cuda" or str(config.device) != "cpu"
    if str(config.dnn.enabled) == "True" and chosen:
        _require(context, "dnn.enabled=True")


def _demanded(takes: Callable[[GraphRewrite], bool]) -> bool:
    """Whether compiling fails without cuDNN; ``takes`` is :meth:`Selection.takes`."""
    return takes(no_cudnn_raise) or str(config.dnn.enabled) == "True"


@node_rewrite(DnnBase, phase="canonicalize", tags=("fast_compile",), name="local_gpudnn_to_neutral")
def to_neutral(node: Apply, context: Context) -> Sequence[Variable] | None:
    """A GpuDnn op that the user applied becomes the neutral op where cuDNN can't be used."""
    assert isinstance(node.op, DnnBase)
    if cudnn_reason(context.target) is None:
        return None
    return node.op.expanded(*node.inputs)


CUDNN = Library(
    BACKEND,
    (
        *conv.LOWERINGS, *ops.LOWERINGS, *norm.LOWERINGS, *rnn.LOWERINGS,
        *attention.LOWERINGS,
    ),
    (
        no_cudnn_raise, cudnn_is_enabled, to_neutral, *ops.RULES, *merge.RULES, *inplace.RULES,
        *epilogue.RULES, rnn.bfloat16_rnn_in_float32,
    ),
    demanded=_demanded,
)  # fmt: skip
