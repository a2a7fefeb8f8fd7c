"""Which attention cuDNN takes, by its version and the GPU's compute capability.

The conditions are those of its documentation and of its frontend 1.32.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from symdnn.graph.dims import known
from symdnn.graph.target import Target
from symdnn.graph.variable import Apply, Variable
from symdnn.libraries.cudnn.backend import BACKEND
from symdnn.ops.attention.attention import Attention, AttentionGrad
from symdnn.ops.attention.scores import Scores
from symdnn.ops.elemwise import Elemwise
from symdnn.ops.nn.dropout import Dropout
from symdnn.ops.vendor.gpudnn_attention import GpuDnnAttention, GpuDnnAttentionGrad
from symdnn.opt.precision.amp import amp_dtype
from symdnn.rewriting.facts import number
from symdnn.rewriting.rewrite import Context

_LENGTHS = ("key_lengths", "query_lengths")

#: The first versions with any bounds of a window, also beside a mask or dropout; with gradients of
#: masks of any length; with 256 features on Hopper, and on Blackwell.
_ANY_BOUNDS, _ANY_MASK_GRADIENT, _WIDE_HOPPER, _WIDE_BLACKWELL = (9, 11), (9, 5), (9, 5), (9, 23)


def dtype_of(node: Apply, target: Target) -> str:
    """The dtype in which the node is computed: its own, or that of the flag ``amp``."""
    own: str = node.inputs[0].type.dtype
    if own == "float32" and node.hints.precision is None:
        return amp_dtype(target) or own
    return own


def first_extra(node: Apply) -> int:
    """The index of the first operand that ``how.extras`` names."""
    return node.op.first_extra if isinstance(node.op, AttentionGrad) else 3


def simplest(node: Apply, context: Context) -> Scores:
    """The node's settings, from the first key where that is the same as from the last."""
    op: Any = node.op
    how: Scores = op.how
    if not how.bottom_right or set(_LENGTHS) & set(how.extras):
        return how
    if _as_many(node, context):
        return replace(how, bottom_right=False)
    if how.left is None and _size(node.inputs[0], 2, context) == 1:
        return replace(how, right=None, bottom_right=False)
    return how


def _as_many(node: Apply, context: Context) -> bool:
    """Whether there are as many queries as keys."""
    queries, keys = (context.shapes.dims(x)[2] for x in node.inputs[:2])
    return context.shapes.same(queries, keys)


def refuses(node: Apply, context: Context) -> str | None:
    """Dtypes, features and settings that cuDNN does not have."""
    return _refuses_alone(node, context) or _refuses_draws(node, context)


def _refuses_alone(node: Apply, context: Context) -> str | None:
    target, op = context.target, node.op
    how = simplest(node, context)
    capability = target.compute_capability or (0, 0)
    if capability < (8, 0):
        return f"cuDNN's attention needs compute capability 8.0 or more, {target} has not"
    reason = BACKEND.dtype_reason(target, dtype_of(node, target), GpuDnnAttention)
    if reason is not None:
        return reason
    if isinstance(op, AttentionGrad) and op.of_lse:
        return "cuDNN takes no cotangent of the log-sum-exp"
    heads = [_size(x, 1, context) for x in node.inputs[:2]]
    if None in heads:
        return "the numbers of heads are not known"
    if how.softcap:
        return "not used with softcap"
    return (
        _features_reason(node, context) or _band_reason(node, how, context)
        or _mask_reason(node, how, context) or _rate_reason(node, how, context)
    )  # fmt: skip


def _size(v: Variable, axis: int, context: Context) -> int | None:
    """A size, if it is known: also of ``x.reshape((*x.shape[:2], heads, -1))``."""
    return known(context.shapes.dims(v)[axis])


def _features_reason(node: Apply, context: Context) -> str | None:
    target = context.target
    q, v = (_size(node.inputs[i], 3, context) for i in (0, 2))
    major, version = (target.compute_capability or (0, 0))[0], target.cudnn or ()
    most = 256 if major == 9 and version >= _WIDE_HOPPER else 128
    if major == 10 and (q, v) == (256, 256) and version >= _WIDE_BLACKWELL:
        most = 256
    for size in (q, v):
        if size is None or size % 8 or not 0 < size <= most:
            return f"cuDNN takes features that are known multiples of 8 up to {most}, not {size}"
    return None


def _band_reason(node: Apply, how: Scores, context: Context) -> str | None:
    """Bounds that cuDNN does not take, or with which a query may see no key."""
    if not how.banded:
        return None
    if (context.target.cudnn or ()) < _ANY_BOUNDS:
        if how.right != 0:
            return "a window ends at the query"
        if how.left is not None and {"mask", "state"} & set(how.extras):
            return "not used with a mask or dropout beside a window"
    if how.left is None and not how.bottom_right:
        return None
    if set(_LENGTHS) & set(how.extras):
        return "not used with lengths beside a window, or one that ends at the last key"
    if how.bottom_right and {"mask", "state"} & set(how.extras):
        return "not used with a mask or dropout beside a window that ends at the last key"
    queries, keys = (_size(x, 2, context) for x in node.inputs[:2])
    if not _as_many(node, context) and (queries is None or keys is None or queries > keys):
        return "a query may see no key: there may be more queries than keys"
    return None


def _mask_reason(node: Apply, how: Scores, context: Context) -> str | None:
    if "mask" not in how.extras:
        return None
    mask = node.inputs[first_extra(node)].type
    own, dtype = node.inputs[0].type.dtype, dtype_of(node, context.target)
    if mask.dtype not in ("bool", dtype) and own == dtype:
        return f"a mask of {mask.dtype} would be rounded to {dtype}"
    if mask.shape[3] == 1:
        return "a mask has an entry for each key"
    if len(node.outputs) > 3 and isinstance(node.op, AttentionGrad):
        if context.deterministic or "state" in how.extras:
            return "no gradient of a mask beside dropout, or where it has to be deterministic"
        if mask.shape[2] == 1 or (context.target.cudnn or ()) < _ANY_MASK_GRADIENT:
            return "a mask with a gradient has an entry for each query and key"
    return None


# -- dropout ---------------------------------------------------------------------------------------


def _rate_reason(node: Apply, how: Scores, context: Context) -> str | None:
    if "state" not in how.extras:
        return None
    rate = number(node.inputs[-1])
    if rate is None or not 0 <= rate < 1:
        return "the rate of dropout is not a known number below 1"
    if context.inner:
        return "no dropout in a loop"
    if context.deterministic and (context.target.compute_capability or (0, 0))[0] == 10:
        return "no deterministic gradient with dropout on compute capability 10"
    return None


def _refuses_draws(node: Apply, context: Context) -> str | None:
    """What else would draw the numbers of this state itself: cuDNN's are others."""
    op: Any = node.op
    if "state" not in op.how.extras:
        return None
    for reader, _ in context.fgraph.users(node.inputs[-2]):
        if reader is not None and not _draws_alike(reader, context):
            return "not all that draws by its random state is cuDNN's"
    return None


def _draws_alike(reader: Apply, context: Context) -> bool:
    """Whether a node that reads the state draws by cuDNN, or draws nothing."""
    if isinstance(reader.op, Attention | AttentionGrad):
        taken = reader.hints.backend in BACKEND.hints
        return taken and _refuses_alone(reader, context) is None
    if isinstance(reader.op, Dropout):
        return not any(context.fgraph.users(v) for v in reader.outputs[:2])
    return isinstance(reader.op, GpuDnnAttention | GpuDnnAttentionGrad | Elemwise)
