"""Whether cuDNN is used, and for which dtypes."""

from __future__ import annotations

from symdnn.config import config
from symdnn.graph.target import Target
from symdnn.ops.vendor.gpudnn_base import DnnBase
from symdnn.opt.lower.lowering import Backend

__all__ = ["BACKEND", "cudnn_reason", "dtype_reason"]


def cudnn_reason(target: Target) -> str | None:
    """The reasons why cuDNN is not used at all, a line for each; None where it is."""
    if target.kind != "cuda":
        return "\n".join([f"the target is {target}", *target.notes])
    if str(config.dnn.enabled) == "False":
        return "dnn.enabled=False"
    if not target.has("cudnn"):
        return "\n".join(["cuDNN can't be used", *target.notes])
    return None


def dtype_reason(target: Target, dtype: str, low: type[DnnBase] = DnnBase) -> str | None:
    """The reason why cuDNN does not take ``dtype`` for its op ``low``; None where it does."""
    if dtype not in low.dtypes:
        return f"cuDNN has it for {', '.join(DnnBase.dtypes)}, not for {dtype}"
    if dtype == "bfloat16" and (target.compute_capability or (0, 0)) < (8, 0):
        return f"bfloat16 needs compute capability 8.0 or more, {target} has not"
    return None


#: A hint for oneDNN has no effect on a GPU.
BACKEND = Backend("cudnn", "cuda", cudnn_reason, (None, "cudnn", "onednn"))
