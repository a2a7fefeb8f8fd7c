"""Losses under Torch7's names that have others in PyTorch, or none. Classes count from 0."""

from __future__ import annotations

from typing import Any

import numpy as np

from symdnn.errors import InputError, TypeMismatch
from symdnn.graph.typing import Array, TensorLike
from symdnn.graph.variable import Variable, as_variable, constant
from symdnn.nn.losses.criterion import Criterion
from symdnn.nn.losses.criterion_margin import _Margin, _positive
from symdnn.nn.losses.torch_losses_margin import MultiLabelMarginLoss, MultiMarginLoss
from symdnn.ops.array.argreduce import argmax
from symdnn.ops.array.take import take
from symdnn.ops.elementwise.arithmetic import abs as absolute
from symdnn.ops.elementwise.arithmetic import sqr
from symdnn.ops.elementwise.comparison import gt, switch
from symdnn.ops.linalg.dot import dot
from symdnn.ops.linalg.products import MatchSizes

__all__ = [
    "ClassSimplexCriterion", "L1Cost", "L1HingeEmbeddingCriterion", "MultiLabelMarginCriterion",
    "MultiMarginCriterion",
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


class ClassSimplexCriterion(Criterion):
    """The squared differences of (N, nClasses) to the corner of each class, a label of (N,).

    The corners are those of a regular simplex in ``nClasses - 1`` dimensions at a distance of 1
    from the centre; the last coordinate of all is 0 (Mroueh et al. 2012).
    """

    def __init__(self, nClasses: int, *, sizeAverage: bool = True) -> None:
        super().__init__(sizeAverage)
        if int(nClasses) != nClasses or nClasses < 2:
            raise InputError(f"ClassSimplexCriterion: nClasses={nClasses!r}; wanted 2 or more")
        self.nClasses = int(nClasses)
        self.simplex = np.pad(_simplex(self.nClasses - 1), ((0, 0), (0, 1)))

    def forward(self, output: Variable, target: TensorLike) -> Variable:
        x, labels = self.float_tensor(output), as_variable(target)
        fits = x.type.ndim in (1, 2) and x.type.shape[-1] in (None, self.nClasses)
        if not fits or not labels.type.is_integer or labels.type.ndim != x.type.ndim - 1:
            wanted = f"scores (N, {self.nClasses}) and labels (N,), or one example"
            raise TypeMismatch("ClassSimplexCriterion", wanted, [x.type, labels.type])
        if x.type.ndim == 2:
            x = MatchSizes(((0, 0),))(x, labels)
        return self.reduced(sqr(x - take(self._corners(x), labels, axis=0)))

    def getPredictions(self, output: TensorLike) -> Variable:
        """The products of outputs and corners: the largest is that of the nearest class."""
        x = self.float_tensor(as_variable(output))
        return dot(x, self._corners(x).T)

    def getTopPrediction(self, output: TensorLike) -> Variable:
        """The class whose corner is nearest."""
        return argmax(self.getPredictions(output), axis=-1)

    def _corners(self, x: Variable) -> Variable:
        return constant(self.simplex, dtype=x.type.dtype)


def _simplex(n: int) -> Array:
    """The n + 1 corners of a regular simplex around 0, of length 1, in n dimensions."""
    corners = np.zeros((n + 1, n))
    for k in range(n):
        corners[k, k] = np.sqrt(1 - (corners[k, :k] ** 2).sum())
        corners[k + 1 :, k] = (corners[k, k] ** 2 - 1 - 1 / n) / corners[k, k]
    return corners


class L1Cost(Criterion):
    """``sum |x|``, without a target."""

    def __init__(self) -> None:
        super().__init__(reduction="sum")

    def forward(self, output: Variable, target: Any = None) -> Variable:
        return self.reduced(absolute(self.float_tensor(output)))
