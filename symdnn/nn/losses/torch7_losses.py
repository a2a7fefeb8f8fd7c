"""Losses under Torch7's names that have others in PyTorch, or none. Classes count from 0."""

from __future__ import annotations

from typing import Any

from symdnn.errors import TypeMismatch
from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import Variable, as_variable
from symdnn.nn.losses.criterion import Criterion
from symdnn.nn.losses.criterion_margin import _Margin, _positive
from symdnn.nn.losses.torch_losses_margin import MultiLabelMarginLoss, MultiMarginLoss
from symdnn.ops.elementwise.arithmetic import abs as absolute
from symdnn.ops.elementwise.comparison import gt, switch

__all__ = [
    "L1Cost", "L1HingeEmbeddingCriterion", "MultiLabelMarginCriterion", "MultiMarginCriterion",
]  # fmt: skip


class MultiMarginCriterion(MultiMarginLoss):
    """:class:`MultiMarginLoss`, with the weights of classes before the margin, as in Torch7."""

    def __init__(
        self, p: int = 1, weights: Any = None, margin: float = 1.0, *, sizeAverage: bool = True
    ) -> None:
        super().__init__(p, margin, weights, reduction="mean" if sizeAverage else "sum")


class MultiLabelMarginCriterion(MultiLabelMarginLoss):
    """Torch7's name of :class:`MultiLabelMarginLoss`; rows of classes are ended by -1."""

    def __init__(self, sizeAverage: bool = True) -> None:
        super().__init__(reduction="mean" if sizeAverage else "sum")


class L1HingeEmbeddingCriterion(_Margin):
    """The distance ``d = sum |a - b|`` of ``[a, b]`` where the target is 1, ``max(0, margin - d)``
    where it is -1.

    ``a`` and ``b`` are (N, D) with targets (N), or (D) with a scalar.
    """

    def forward(self, output: TensorLike, target: Any) -> Variable:
        a, b = self.pair(*self.two(output))
        t = as_variable(target)
        if a.type.ndim not in (1, 2) or t.type.ndim != a.type.ndim - 1:
            wanted = "[a, b], both (N, D) or (D), and one target for each pair"
            raise TypeMismatch(type(self).__name__, wanted, [a.type, t.type])
        apart = absolute(a - b).sum(axis=-1)
        return self.reduced(switch(gt(t, 0), apart, _positive(self.margin - apart)))


class L1Cost(Criterion):
    """``sum |x|``, without a target."""

    def __init__(self) -> None:
        super().__init__(reduction="sum")

    def forward(self, output: Variable, target: Any = None) -> Variable:
        return self.reduced(absolute(self.float_tensor(output)))
