"""cuDNN's attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from symdnn.graph.op import Op
from symdnn.ops.attention.attention import Attention, AttentionGrad
from symdnn.ops.attention.scores import Scores
from symdnn.ops.vendor.gpudnn_base import DnnBase

__all__ = ["GpuDnnAttention", "GpuDnnAttentionGrad"]


@dataclass(frozen=True)
class GpuDnnAttention(DnnBase):
    """(result, log-sum-exp) of query, key, value and lengths (``sdpa`` of cuDNN's frontend)."""

    dtypes: ClassVar[tuple[str, ...]] = ("float16", "bfloat16")
    neutral_type: ClassVar[type[Op]] = Attention
    how: Scores


@dataclass(frozen=True)
class GpuDnnAttentionGrad(DnnBase):
    """The gradients of query, key and value (``sdpa_backward`` of cuDNN's frontend).

    The operands are query, key, value, result, log-sum-exp, the result's cotangent and lengths.
    """

    dtypes: ClassVar[tuple[str, ...]] = ("float16", "bfloat16")
    neutral_type: ClassVar[type[Op]] = AttentionGrad
    how: Scores
