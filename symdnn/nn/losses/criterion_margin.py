"""Losses with margins, and losses made of several."""

from __future__ import annotations

from typing import Any

from symdnn.errors import InputError, TypeMismatch
from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import Variable, as_variable, constant
from symdnn.nn.losses.criterion import Criterion
from symdnn.nn.modules.inside import Lent
from symdnn.ops.elementwise.activations import softplus
from symdnn.ops.elementwise.arithmetic import cast, maximum, sqr, sqrt
from symdnn.ops.elementwise.comparison import gt, switch

__all__ = [
    "CosineEmbeddingCriterion", "HingeEmbeddingCriterion", "MarginCriterion",
    "MarginRankingCriterion", "MultiCriterion", "ParallelCriterion", "SoftMarginCriterion",
]  # fmt: skip


class _Margin(Criterion):
    """Base of the losses with a margin; their targets are 1 and -1."""

    #: The margin where none is given.
    usual = 1.0

    def __init__(
        self,
        margin: float | None = None,
        sizeAverage: bool = True,
        *,
        reduction: str | None = None,
    ) -> None:
        super().__init__(sizeAverage, reduction=reduction)
        self.margin = self.usual if margin is None else float(margin)

    def describe(self) -> str:
        return "" if self.margin == self.usual else f"({self.margin:g})"

    def two(self, output: TensorLike) -> list[Variable]:
        """The output's two entries."""
        if not isinstance(output, list | tuple) or len(output) != 2:
            raise TypeMismatch(type(self).__name__, "an output of two, [a, b]", output)
        return [self.float_tensor(v) for v in output]


class MarginCriterion(_Margin):
    """``max(0, margin - t x)`` with targets 1 and -1: the hinge loss of two classes."""

    def forward(self, output: Variable, target: Any) -> Variable:
        x, t = self.pair(output, target)
        return self.reduced(_positive(self.margin - t * x))


class SoftMarginCriterion(Criterion):
    """``log(1 + exp(-t x))`` with targets 1 and -1, stable. PyTorch's ``SoftMarginLoss``."""

    def forward(self, output: Variable, target: Any) -> Variable:
        x, t = self.pair(output, target)
        return self.reduced(softplus(-t * x))


class HingeEmbeddingCriterion(_Margin):
    """The distance ``x`` where the target is 1, ``max(0, margin - x)`` where it is -1."""

    def forward(self, output: Variable, target: Any) -> Variable:
        x, t = self.pair(output, target)
        return self.reduced(switch(gt(t, 0), x, _positive(self.margin - x)))


class CosineEmbeddingCriterion(_Margin):
    """``1 - cos(a, b)`` where the target is 1, ``max(0, cos(a, b) - margin)`` where it is -1.

    The output is ``[a, b]``, both (N, D), the target (N); or (D), (D) and a scalar. The margin is 0
    unless given.
    """

    usual = 0.0

    def forward(self, output: TensorLike, target: Any) -> Variable:
        a, b = self.two(output)
        t = as_variable(target)
        if a.type.ndim not in (1, 2) or a.type.ndim != b.type.ndim:
            raise TypeMismatch(type(self).__name__, "[a, b], both (N, D) or (D)", [a.type, b.type])
        if t.type.ndim != a.type.ndim - 1:
            raise TypeMismatch(type(self).__name__, "one target for each pair", t.type)
        least = constant(1e-12, dtype=a.type.dtype)  # as PyTorch: a vector of 0 has a cosine of 0
        lengths = sqrt((sqr(a).sum(axis=-1) + least) * (sqr(b).sum(axis=-1) + least))
        cosine = (a * b).sum(axis=-1) / lengths
        return self.reduced(switch(gt(t, 0), 1 - cosine, _positive(cosine - self.margin)))


class MarginRankingCriterion(_Margin):
    """``max(0, margin - t (a - b))`` of ``[a, b]``: 1 where ``a`` should rank higher, else -1.

    The margin is 0 unless given.
    """

    usual = 0.0

    def forward(self, output: TensorLike, target: Any) -> Variable:
        a, b = self.two(output)
        a, b = self.pair(a, b)
        x, t = self.pair(a - b, target)
        return self.reduced(_positive(self.margin - t * x))


def _positive(x: Variable) -> Variable:
    return maximum(x, constant(0, dtype=x.type.dtype))


class MultiCriterion(Criterion):
    """The weighted sum of several criterions of the same output and target.

    ``nn.MultiCriterion().add(nn.MSECriterion()).add(nn.AbsCriterion(), 0.5)``
    """

    unnamed = "criterions"

    def __init__(self) -> None:
        super().__init__()
        self.criterions: list[Criterion] = []
        self._weights = Lent([])

    @property
    def weights(self) -> list[Any]:
        """The criterions' weights, in their order."""
        made: list[Any] = self._weights.value
        return made

    def add(self, criterion: Criterion, weight: TensorLike = 1) -> MultiCriterion:
        """Append a criterion with its weight (a number, or a symbolic scalar); returns itself."""
        if not isinstance(criterion, Criterion):
            raise InputError(f"{type(self).__name__}.add: wanted a criterion, got {criterion!r}")
        self.criterions.append(criterion)
        self.weights.append(weight)
        return self

    def forward(self, output: Variable, target: Any) -> Variable:
        return self._total([output] * len(self.criterions), [target] * len(self.criterions))

    def _total(self, outputs: list[Any], targets: list[Any]) -> Variable:
        if not self.criterions:
            raise InputError(f"{type(self).__name__}: it has no criterions. Add some")
        parts = zip(self.criterions, self.weights, outputs, targets, strict=True)
        total: Variable | None = None
        for criterion, weight, x, t in parts:
            loss = criterion(x, t)
            loss = loss * cast(as_variable(weight), loss.type.dtype)
            total = loss if total is None else total + loss
        assert total is not None
        return total


class ParallelCriterion(MultiCriterion):
    """The weighted sum of several criterions, each of its own output and target.

    ``criterion([x1, x2], [t1, t2])``; with ``repeatTarget`` all have the one target.
    """

    def __init__(self, repeatTarget: bool = False) -> None:
        super().__init__()
        self.repeatTarget = bool(repeatTarget)

    def forward(self, output: Any, target: Any) -> Variable:
        count = len(self.criterions)
        targets = [target] * count if self.repeatTarget else target
        for what, given in (("outputs", output), ("targets", targets)):
            if not isinstance(given, list | tuple) or len(given) != count:
                wanted = f"{count} {what}, one for each criterion"
                raise TypeMismatch(type(self).__name__, wanted, given)
        return self._total(list(output), list(targets))
