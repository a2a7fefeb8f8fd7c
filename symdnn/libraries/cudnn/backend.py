"""Whether cuDNN is used, and computes in bfloat16."""

from __future__ import annotations

from symdnn.config import config
from symdnn.graph.target import Target
from symdnn.opt.lower.lowering import Backend


def cudnn_reason(target: Target) -> str | None:
    """The reasons why cuDNN is not used at all, a line for each; None where it is."""
    if target.kind != "cuda":
        return "\n".join([f"the target is {target}", *target.notes])
    if str(config.dnn.enabled) == "False":
        return "dnn.enabled=False"
    if not target.has("cudnn"):
        return "\n".join(["cuDNN can't be used", *target.notes])
    return None


def _without_bfloat16(target: Target) -> str | None:
    if (target.compute_capability or (0, 0)) >= (8, 0):
        return None
    return f"bfloat16 needs compute capability 8.0 or more, {target} has not"


#: A hint for oneDNN has no effect on a GPU.
BACKEND = Backend("cudnn", "cuda", cudnn_reason, (None, "cudnn", "onednn"), _without_bfloat16)
