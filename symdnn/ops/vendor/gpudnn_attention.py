"""cuDNN's attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from symdnn.graph.op import Host, Op, Shapes, Types
from symdnn.graph.type import TensorType, Type
from symdnn.graph.typing import Array
from symdnn.graph.variable import Variable
from symdnn.ops.attention.attention import Attention, AttentionGrad
from symdnn.ops.attention.scores import Scores
from symdnn.ops.vendor.gpudnn_base import DnnBase


@dataclass(frozen=True)
class GpuDnnAttention(DnnBase):
    """(result, log-sum-exp) of query, key, value and extras (``sdpa`` of cuDNN's frontend).

    A mask is added. With a state it drops probabilities at the rate ``dropout``, which the operand
    ``rate`` repeats, by numbers of cuDNN's own generator: their seed and offset are the state's
    key and counter.
    """

    never_fails: ClassVar[bool] = True
    dtypes: ClassVar[tuple[str, ...]] = ("float16", "bfloat16")
    neutral_type: ClassVar[type[Op]] = Attention
    how: Scores
    dropout: float = 0.0

    @property
    def private_draws(self) -> bool:  # type: ignore[override]
        """Whether it drops probabilities."""
        return "state" in self.how.extras

    def infer(self, *inputs: TensorType) -> tuple[Type, ...]:
        return super().infer(*inputs)[:2]

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        found = super().shapes(types, shapes, host)
        return None if found is None else found[:2]

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        return super().reference(*inputs)[:2]

    def expanded(self, *inputs: Variable) -> list[Variable] | None:
        found = super().expanded(*inputs)
        return None if found is None else found[:2]


@dataclass(frozen=True)
class GpuDnnAttentionGrad(DnnBase):
    """The gradients of query, key, value and mask (``sdpa_backward`` of cuDNN's frontend).

    The operands are query, key, value, result, log-sum-exp, the result's cotangent and the extras
    of :class:`GpuDnnAttention`. Without ``of_mask`` there is no gradient of the mask.
    """

    never_fails: ClassVar[bool] = True
    dtypes: ClassVar[tuple[str, ...]] = ("float16", "bfloat16")
    neutral_type: ClassVar[type[Op]] = AttentionGrad
    how: Scores
    of_mask: bool = False
    dropout: float = 0.0

    @property
    def private_draws(self) -> bool:  # type: ignore[override]
        """Whether it drops probabilities."""
        return "state" in self.how.extras
