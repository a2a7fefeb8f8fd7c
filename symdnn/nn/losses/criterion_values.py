"""Losses of values against values: regression, probabilities, distributions."""

from __future__ import annotations

from typing import Any

from symdnn.errors import InputError, TypeMismatch
from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import Variable, as_variable, constant
from symdnn.nn.losses.criterion import Criterion, vector_of_weights
from symdnn.nn.modules.inside import Lent
from symdnn.ops.array.moments import mean
from symdnn.ops.elementwise.activations import softplus
from symdnn.ops.elementwise.arithmetic import abs as absolute
from symdnn.ops.elementwise.arithmetic import cast, maximum, sqr
from symdnn.ops.elementwise.comparison import gt, lt, switch
from symdnn.ops.elementwise.math import log

__all__ = [
    "AbsCriterion", "BCECriterion", "BCEWithLogitsCriterion", "DistKLDivCriterion", "MSECriterion",
    "MultiLabelSoftMarginCriterion", "SmoothL1Criterion",
]  # fmt: skip

#: Probabilities count as at least this in a logarithm (Torch7's figure).
LEAST = 1e-12


class MSECriterion(Criterion):
    """``(x - t)^2``. PyTorch's ``MSELoss``."""

    def forward(self, output: Variable, target: Any) -> Variable:
        x, t = self.pair(output, target)
        return self.reduced(sqr(x - t))


class AbsCriterion(Criterion):
    """``|x - t|``. PyTorch's ``L1Loss``."""

    def forward(self, output: Variable, target: Any) -> Variable:
        x, t = self.pair(output, target)
        return self.reduced(absolute(x - t))


class SmoothL1Criterion(Criterion):
    """``(x - t)^2 / (2 beta)`` up to ``beta``, beyond it ``|x - t| - beta / 2``."""

    def __init__(
        self, sizeAverage: bool = True, *, beta: float = 1.0, reduction: str | None = None
    ) -> None:
        super().__init__(sizeAverage, reduction=reduction)
        if beta <= 0:
            raise InputError(f"SmoothL1Criterion: beta={beta}; wanted more than 0")
        self.beta = float(beta)

    def forward(self, output: Variable, target: Any) -> Variable:
        x, t = self.pair(output, target)
        d = absolute(x - t)
        return self.reduced(
            switch(lt(d, self.beta), sqr(d) * (0.5 / self.beta), d - 0.5 * self.beta)
        )


class BCECriterion(Criterion):
    """``-(t log(p) + (1 - t) log(1 - p))`` of probabilities ``p``.

    A probability counts as at least 1e-12 in a logarithm, and has no gradient below it: after a
    sigmoid take :class:`BCEWithLogitsCriterion`. ``weights`` broadcast to the losses, as PyTorch's
    ``BCELoss(weight)``; the mean divides by the number of elements.
    """

    def __init__(
        self,
        weights: TensorLike | None = None,
        sizeAverage: bool = True,
        *,
        reduction: str | None = None,
    ) -> None:
        super().__init__(sizeAverage, reduction=reduction)
        self._weights = Lent(None if weights is None else as_variable(weights))

    def forward(self, output: Variable, target: Any) -> Variable:
        p, t = self.pair(output, target)
        return self.reduced(self._weighted(-(t * _log(p) + (1 - t) * _log(1 - p))))

    def _weighted(self, losses: Variable) -> Variable:
        weights = self._weights.value
        return losses if weights is None else losses * cast(weights, losses.type.dtype)


def _log(p: Variable) -> Variable:
    return log(maximum(p, constant(LEAST, dtype=p.type.dtype)))


class BCEWithLogitsCriterion(BCECriterion):
    """:class:`BCECriterion` of ``sigmoid(x)``, stable for every ``x``.

    ``posWeight`` (broadcast) multiplies the losses of ``t = 1``. PyTorch's ``BCEWithLogitsLoss``.
    """

    def __init__(
        self,
        weights: TensorLike | None = None,
        sizeAverage: bool = True,
        *,
        posWeight: TensorLike | None = None,
        reduction: str | None = None,
    ) -> None:
        super().__init__(weights, sizeAverage, reduction=reduction)
        self._positive = Lent(None if posWeight is None else as_variable(posWeight))

    def forward(self, output: Variable, target: Any) -> Variable:
        x, t = self.pair(output, target)
        positive = self._positive.value
        ones = t * softplus(-x)
        ones = ones if positive is None else ones * cast(positive, x.type.dtype)
        return self.reduced(self._weighted(ones + (1 - t) * softplus(x)))


class MultiLabelSoftMarginCriterion(Criterion):
    """The mean over the classes of :class:`BCEWithLogitsCriterion`: (N, C) and targets of 0 and 1.

    ``weights`` (C) are those of the classes. Also (C) without a batch.
    """

    def __init__(
        self, weights: Any = None, sizeAverage: bool = True, *, reduction: str | None = None
    ) -> None:
        super().__init__(sizeAverage, reduction=reduction)
        self._weights = Lent(vector_of_weights(self, weights))

    def forward(self, output: Variable, target: Any) -> Variable:
        x, t = self.pair(output, target)
        if x.type.ndim not in (1, 2):
            raise TypeMismatch(type(self).__name__, "an output (N, C) or (C)", x.type)
        losses = t * softplus(-x) + (1 - t) * softplus(x)
        weights = self._weights.value
        losses = losses if weights is None else losses * cast(weights, x.type.dtype)
        return self.reduced(mean(losses, axis=-1))


class DistKLDivCriterion(Criterion):
    """``t (log(t) - x)`` of log-probabilities ``x`` and probabilities ``t``; 0 where ``t`` is 0.

    The mean is over all elements, as in Torch7; with ``sizeAverage=False`` and a division by the
    batch it is the divergence. PyTorch's ``KLDivLoss``.
    """

    def forward(self, output: Variable, target: Any) -> Variable:
        x, t = self.pair(output, target)
        there = gt(t, 0)
        one, zero = (constant(n, dtype=t.type.dtype) for n in (1, 0))
        return self.reduced(switch(there, t * (log(switch(there, t, one)) - x), zero))
