"""Losses under PyTorch's names: with margins, of pairs and triplets, and of sequences (CTC).

Several inputs are given one by one, ``criterion(x1, x2, target)`` as in PyTorch, or as a list,
``criterion([x1, x2], target)``, as a network in ``fit`` gives them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from symdnn.errors import InputError, TypeMismatch
from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import Variable, as_variable, constant
from symdnn.nn.losses import criterion_margin as margins
from symdnn.nn.losses import criterion_values as values
from symdnn.nn.losses.criterion import Criterion, vector_of_weights
from symdnn.nn.modules.inside import Lent
from symdnn.ops.array.create import arange
from symdnn.ops.array.cumulative import cumsum
from symdnn.ops.array.moments import mean
from symdnn.ops.array.take import take
from symdnn.ops.array.view import of_sizes
from symdnn.ops.core.shape import dims_of
from symdnn.ops.elementwise.arithmetic import cast, clip, maximum, minimum, sqr
from symdnn.ops.elementwise.comparison import eq, isinf, lt, neq, switch
from symdnn.ops.linalg.products import MatchSizes
from symdnn.ops.nn.ctc import ctc
from symdnn.ops.torch_names.torch_distances import pairwise_distance

__all__ = [
    "CTCLoss", "CosineEmbeddingLoss", "HingeEmbeddingLoss", "MarginRankingLoss",
    "MultiLabelMarginLoss", "MultiLabelSoftMarginLoss", "MultiMarginLoss", "SoftMarginLoss",
    "TripletMarginLoss", "TripletMarginWithDistanceLoss",
]  # fmt: skip


class CosineEmbeddingLoss(margins.CosineEmbeddingCriterion):
    """``1 - cos(a, b)`` where the target is 1, ``max(0, cos(a, b) - margin)`` where it is -1."""

    def __init__(self, margin: float = 0.0, *, reduction: str = "mean") -> None:
        super().__init__(margin, reduction=reduction)

    def forward(self, *given: Any) -> Variable:
        return super().forward(*_inputs_and_target(self, 2, given))


class MarginRankingLoss(margins.MarginRankingCriterion):
    """``max(0, margin - t (a - b))``: target 1 where ``a`` should rank higher, else -1."""

    def __init__(self, margin: float = 0.0, *, reduction: str = "mean") -> None:
        super().__init__(margin, reduction=reduction)

    def forward(self, *given: Any) -> Variable:
        return super().forward(*_inputs_and_target(self, 2, given))


class HingeEmbeddingLoss(margins.HingeEmbeddingCriterion):
    """The distance ``x`` where the target is 1, ``max(0, margin - x)`` where it is -1."""

    def __init__(self, margin: float = 1.0, *, reduction: str = "mean") -> None:
        super().__init__(margin, reduction=reduction)


class SoftMarginLoss(margins.SoftMarginCriterion):
    """``log(1 + exp(-t x))`` with targets 1 and -1, stable."""

    def __init__(self, *, reduction: str = "mean") -> None:
        super().__init__(reduction=reduction)


class MultiLabelSoftMarginLoss(values.MultiLabelSoftMarginCriterion):
    """The mean over the classes of the cross-entropy of ``sigmoid(x)`` and targets of 0 and 1."""

    def __init__(self, weight: TensorLike | None = None, *, reduction: str = "mean") -> None:
        super().__init__(weight, reduction=reduction)


class TripletMarginLoss(Criterion):
    """``max(0, d(anchor, positive) - d(anchor, negative) + margin)``, ``d`` the p-norm.

    ``criterion(anchor, positive, negative)``, each (N, D) or (D); in a network of three outputs
    ``criterion([anchor, positive, negative], target)``, where the target does not matter. ``swap``
    takes the distance of positive and negative where that is shorter. ``eps`` is added to each
    difference. (Balntas et al. 2016.)
    """

    def __init__(
        self, margin: float = 1.0, p: float = 2.0, eps: float = 1e-6, swap: bool = False, *,
        reduction: str = "mean",
    ) -> None:  # fmt: skip
        super().__init__(reduction=reduction)
        if not margin > 0 or not p > 0:
            raise InputError(f"TripletMarginLoss: margin={margin!r}, p={p!r}; wanted more than 0")
        self.margin, self.p, self.eps, self.swap = float(margin), float(p), float(eps), bool(swap)

    def forward(self, *given: Any) -> Variable:
        table = given[0] if given and isinstance(given[0], list | tuple) else given
        if len(table) != 3:
            raise TypeMismatch("TripletMarginLoss", "anchor, positive and negative", list(given))
        anchor, positive, negative = (self.float_tensor(v) for v in table)
        near, far = self._distance(anchor, positive), self._distance(anchor, negative)
        far = minimum(far, self._distance(positive, negative)) if self.swap else far
        return self.reduced(_above_0(near - far + self.margin))

    def _distance(self, a: Variable, b: Variable) -> Variable:
        return pairwise_distance(*self.pair(a, b), self.p, self.eps)


class TripletMarginWithDistanceLoss(TripletMarginLoss):
    """:class:`TripletMarginLoss` of any distance, a function of two tensors; None: Euclid's."""

    def __init__(
        self, *, distance_function: Callable[..., Any] | None = None, margin: float = 1.0,
        swap: bool = False, reduction: str = "mean",
    ) -> None:  # fmt: skip
        super().__init__(margin, swap=swap, reduction=reduction)
        self.distance_function = distance_function

    def _distance(self, a: Variable, b: Variable) -> Variable:
        if self.distance_function is None:
            return super()._distance(a, b)
        found: Variable = self.distance_function(a, b)
        return found


class MultiMarginLoss(Criterion):
    """``sum over i != t of max(0, margin - x[t] + x[i])^p / C``, of scores (N, C) and classes (N).

    ``p`` is 1 or 2; ``weight`` (C) multiplies by the weight of the target's class. Also (C), ().
    """

    def __init__(
        self, p: int = 1, margin: float = 1.0, weight: Any = None, *, reduction: str = "mean"
    ) -> None:
        super().__init__(reduction=reduction)
        if p not in (1, 2):
            raise InputError(f"MultiMarginLoss: p={p!r}; wanted 1 or 2")
        self.p, self.margin = int(p), float(margin)
        self._weights = Lent(vector_of_weights(self, weight))

    def forward(self, output: Variable, target: Any) -> Variable:
        x, t, restore = _rows(self, output, target, 0)
        own = x[arange(x.shape[0]), t].dimshuffle(0, "x")
        found = _above_0(x - own + self.margin)
        found = sqr(found) if self.p == 2 else found
        other = neq(arange(x.shape[1]).dimshuffle("x", 0), t.dimshuffle(0, "x"))
        losses = mean(switch(other, found, constant(0, dtype=x.type.dtype)), axis=1)
        if self._weights.value is not None:
            losses = losses * take(cast(self._weights.value, x.type.dtype), t)
        return self.reduced(restore(losses))


class MultiLabelMarginLoss(Criterion):
    """The hinge loss of each target's class against each other one, over C.

    Scores (N, C), targets (N, C): a row lists its classes, ended by -1. Also (C), (C).
    """

    def __init__(self, *, reduction: str = "mean") -> None:
        super().__init__(reduction=reduction)

    def forward(self, output: Variable, target: Any) -> Variable:
        x, t, restore = _rows(self, output, target, 1)
        listed = eq(cumsum(cast(lt(t, 0), "int32"), axis=1), 0)
        named = switch(listed, t, constant(0, dtype=t.type.dtype))
        rows = arange(x.shape[0]).dimshuffle(0, "x")
        own = x[rows, named].dimshuffle(0, 1, "x")  # (N, entries, 1)
        is_it = eq(named.dimshuffle(0, 1, "x"), arange(x.shape[1]).dimshuffle("x", "x", 0))
        count = cast(listed, x.type.dtype).dimshuffle(0, 1, "x")
        target_of = (cast(is_it, x.type.dtype) * count).sum(axis=1)  # (N, C): is it a target
        others = cast(eq(target_of, 0), x.type.dtype).dimshuffle(0, "x", 1)
        losses = _above_0(1 - own + x.dimshuffle(0, "x", 1)) * count * others
        size = cast(x.shape[1], x.type.dtype)
        return self.reduced(restore(losses.sum(axis=(1, 2)) / size))


class CTCLoss(Criterion):
    """Connectionist temporal classification: ``criterion(log_probs, targets, lengths, counts)``.

    ``log_probs`` (T, N, C) are logarithms of probabilities; ``targets`` (N, S) are classes, the
    first ``counts`` (N) of each row, or in a vector one behind the other; ``lengths`` (N) are the
    frames of each sequence. ``blank`` is the class of the blank. The mean divides each loss by
    the number of its labels first. ``zero_infinity`` makes losses of labels that can't fit 0.
    """

    def __init__(
        self, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False
    ) -> None:
        super().__init__(reduction=reduction)
        self.blank, self.zero_infinity = int(blank), bool(zero_infinity)

    def forward(
        self, log_probs: Variable, targets: Any, lengths: TensorLike, counts: Any
    ) -> Variable:
        x, t = self.float_tensor(log_probs), as_variable(targets)
        if x.type.ndim != 3:
            raise TypeMismatch("CTCLoss", "log-probabilities (T, N, C)", x.type)
        if t.type.ndim not in (1, 2) or not t.type.is_integer:
            raise TypeMismatch("CTCLoss", "integer targets (N, S), or all in a vector", t.type)
        counts, t = _one_each(x, "counts", as_variable(counts)), cast(t, "int32")
        t = _padded(t, counts) if t.type.ndim == 1 else _one_each(x, "targets", t)
        place = arange(t.shape[1]).dimshuffle("x", 0)
        if self.blank:
            t = switch(lt(t, self.blank), t + 1, t)
            x = x[:, :, _blank_first(arange(x.shape[2]), self.blank)]
        t = switch(lt(place, counts.dimshuffle(0, "x")), t, constant(-1, dtype="int32"))
        losses = ctc(x, cast(t, "int32"), cast(as_variable(lengths), "int32"))
        if self.zero_infinity:
            losses = switch(isinf(losses), constant(0, dtype=x.type.dtype), losses)
        if self.reduction != "mean":
            return self.reduced(losses)
        return mean(losses / maximum(cast(counts, x.type.dtype), 1))


def _one_each(x: Variable, name: str, v: Variable) -> Variable:
    """``v``, with a check that it has an entry for each sequence: one alone serves no others."""
    size = x.type.shape[1]
    if v.type.ndim == 0 or (None not in (size, v.type.shape[0]) and v.type.shape[0] != size):
        wanted = f"{name} with an entry for each of the {size or 'N'} sequences of {x.type}"
        raise TypeMismatch("CTCLoss", wanted, v.type)
    return MatchSizes(((0, 1),))(v, x)


def _blank_first(number: Variable, blank: int) -> Variable:
    """The classes in the order of their numbers, but for the blank, which is in front."""
    shifted = switch(lt(number, blank + 1), number - 1, number)
    return switch(eq(number, 0), blank, shifted)


def _padded(t: Variable, counts: Variable) -> Variable:
    """A vector of all labels as a matrix, a row for each sequence."""
    counts = cast(counts, "int64")
    first = cumsum(counts) - counts
    places = first.dimshuffle(0, "x") + arange(counts.max()).dimshuffle("x", 0)
    return t[clip(places, np.int64(0), cast(t.shape[0], "int64") - 1)]


def _inputs_and_target(
    criterion: Criterion, count: int, given: Sequence[Any]
) -> tuple[list[Any], Any]:
    """``(a, b, target)`` or ``([a, b], target)`` as the latter."""
    if len(given) == count + 1:
        return list(given[:count]), given[count]
    if len(given) == 2 and isinstance(given[0], list | tuple) and len(given[0]) == count:
        return list(given[0]), given[1]
    wanted = f"{count} inputs and a target, or a list of {count} and a target"
    raise TypeMismatch(type(criterion).__name__, wanted, list(given))


def _rows(
    criterion: Criterion, output: Variable, target: TensorLike, more: int
) -> tuple[Variable, Variable, Any]:
    """Scores (N, C) and integers (N,) or (N, C), and what takes an added N away again."""
    x, t = criterion.float_tensor(output), as_variable(target)
    name = type(criterion).__name__
    if x.type.ndim not in (1, 2) or t.type.ndim != x.type.ndim - 1 + more:
        raise TypeMismatch(name, "scores (N, C) or (C) and their classes", [x.type, t.type])
    if not t.type.is_integer:
        raise TypeMismatch(name, "a target of integers, classes counted from 0", t.type)
    t = of_sizes(t, dims_of(x)[: t.type.ndim], f"{name}: the target")
    if x.type.ndim == 2:
        return x, t, lambda losses: losses
    t = t.dimshuffle("x", *range(t.type.ndim))
    return x.dimshuffle("x", 0), t, lambda losses: losses[0]


def _above_0(x: Variable) -> Variable:
    return maximum(x, constant(0, dtype=x.type.dtype))
