"""Losses as modules: ``criterion(output, target)`` is a scalar. The base, and those of classes.

Classes are integers counted from 0 (Torch7 counts from 1). Every criterion has Torch7's argument
``sizeAverage`` (True: the mean, False: the sum); ``reduction="none"`` gives the losses themselves.
"""

from __future__ import annotations

from typing import Any, ClassVar

from symdnn.distributed.counting import divisor_of_all, sum_of_all
from symdnn.errors import InputError, ShapeMismatch, TypeMismatch, UnknownWord
from symdnn.graph.type import TensorType
from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import Variable, as_variable, constant
from symdnn.nn.modules.inside import Lent
from symdnn.nn.modules.module import Module
from symdnn.ops.array.moments import mean
from symdnn.ops.array.take import take
from symdnn.ops.array.view import addbroadcast
from symdnn.ops.core.shape import alloc, dims_of
from symdnn.ops.elementwise.arithmetic import cast
from symdnn.ops.elementwise.comparison import eq, neq, switch
from symdnn.ops.linalg.products import MatchSizes
from symdnn.ops.nn.crossentropy import pick_label, softmax_crossentropy
from symdnn.ops.nn.ctc import ctc
from symdnn.ops.nn.softmax import logsoftmax

__all__ = [
    "CTCCriterion", "ClassNLLCriterion", "Criterion", "CrossEntropyCriterion",
    "SpatialClassNLLCriterion", "SpatialCrossEntropyCriterion", "VolumetricClassNLLCriterion",
    "VolumetricCrossEntropyCriterion",
]  # fmt: skip


class Criterion(Module):
    """Base of the losses.

    ``reduction`` is ``"mean"``, ``"sum"`` or ``"none"``; left out, ``sizeAverage`` says whether it
    is the mean or the sum. Subclasses define :meth:`forward` of output and target.
    """

    #: The words that ``reduction`` may be.
    reductions: ClassVar[tuple[str, ...]] = ("mean", "sum", "none")

    def __init__(self, sizeAverage: bool = True, *, reduction: str | None = None) -> None:
        chosen = ("mean" if sizeAverage else "sum") if reduction is None else reduction
        if chosen not in self.reductions:
            raise UnknownWord(
                f"{type(self).__name__}: reduction={chosen!r}; wanted one of "
                f"{', '.join(self.reductions)}"
            )
        self.reduction = chosen

    @property
    def sizeAverage(self) -> bool:
        """Whether the losses are averaged (Torch7's name)."""
        return self.reduction == "mean"

    @sizeAverage.setter
    def sizeAverage(self, value: bool) -> None:
        self.reduction = "mean" if value else "sum"

    def reduced(self, losses: Variable) -> Variable:
        """The losses, their sum or their mean."""
        if self.reduction == "none":
            return losses
        if self.reduction == "mean":
            return mean(losses)
        total = losses.sum()
        return sum_of_all(total) if self.reduction == "sum" else total

    def pair(
        self, output: Variable, target: TensorLike, *, name: str = "target"
    ) -> tuple[Variable, Variable]:
        """Output and a float target of its shape, which is cast to its dtype.

        Raises :class:`~symdnn.errors.TypeMismatch` where the dimensions differ: a target (N,) never
        broadcasts against an output (N, 1).
        """
        x, t = self.float_tensor(output), as_variable(target)
        if not isinstance(t.type, TensorType) or t.type.ndim != x.type.ndim:
            wanted = f"a {name} of the output's {x.type.ndim} dimension(s)"
            raise TypeMismatch(type(self).__name__, wanted, t.type, "Reshape one of them")
        sizes = [x.type.shape, t.type.shape]
        if any(1 in ab and None not in ab and ab[0] != ab[1] for ab in zip(*sizes, strict=True)):
            wanted = f"a {name} of the output's shape {sizes[0]}"
            raise ShapeMismatch(type(self).__name__, wanted, sizes[1], "Reshape one of them")
        one = [(a == 1, b == 1) for a, b in zip(x.type.shape, t.type.shape, strict=True)]
        x = addbroadcast(x, *(i for i, (a, b) in enumerate(one) if b and not a))
        t = addbroadcast(t, *(i for i, (a, b) in enumerate(one) if a and not b))
        return x, cast(t, x.type.dtype)

    def float_tensor(self, output: TensorLike) -> Variable:
        """``output``, which must be a float tensor."""
        x = as_variable(output)
        if not isinstance(x.type, TensorType) or not x.type.is_float:
            raise TypeMismatch(type(self).__name__, "an output of floats", x.type)
        return x

    def weights_for(self, x: Variable, weights: Variable) -> Variable:
        """``weights``, one for each class (axis 1), to multiply ``x`` (N, C, ...) with."""
        order: list[Any] = ["x"] * x.type.ndim
        order[1] = 0
        return cast(weights, x.type.dtype).dimshuffle(order)


def vector_of_weights(criterion: Criterion, weights: Any) -> Variable | None:
    """One weight for each class as a variable; None stays None."""
    if weights is None:
        return None
    found = as_variable(weights)
    if found.type.ndim != 1:
        wanted = "weights that are a vector, one for each class"
        raise TypeMismatch(type(criterion).__name__, wanted, found.type)
    return found


class _Classes(Criterion):
    """Base of the losses of integer classes along axis 1.

    ``sizes`` is how many dimensions are behind; None: any, and then (C) is one example.
    """

    sizes: ClassVar[int | None] = None

    def __init__(
        self,
        weights: Any = None,
        sizeAverage: bool = True,
        ignoreIndex: int | None = None,
        *,
        reduction: str | None = None,
    ) -> None:
        super().__init__(sizeAverage, reduction=reduction)
        self._weights = Lent(vector_of_weights(self, weights))
        self.ignoreIndex = ignoreIndex

    @property
    def weights(self) -> Variable | None:
        """One weight for each class, or None."""
        return self._weights.value  # type: ignore[no-any-return]

    def forward(self, output: Any, target: Any) -> Variable:
        x, t, single = self._checked(output, target)
        kept = None if self.ignoreIndex is None else neq(t, self.ignoreIndex)
        labels = t if kept is None else switch(kept, t, 0)
        factor = None
        if self.weights is not None:
            factor = take(cast(self.of_classes(self.weights, x), x.type.dtype), labels)
        losses = self.losses(x, labels, factor)
        if kept is not None:
            losses = switch(kept, losses, 0)
            ones = constant(1, dtype=x.type.dtype) if factor is None else factor
            factor = switch(kept, ones, constant(0, dtype=x.type.dtype))
        if self.reduction == "none":
            return losses[0] if single else losses
        if self.reduction == "sum" or factor is None:
            return self.reduced(losses)
        total = divisor_of_all(factor.sum())
        return losses.sum() / switch(eq(total, 0), constant(1, dtype=x.type.dtype), total)

    def of_classes(self, weights: Variable, x: Variable, axis: int = 1) -> Variable:
        """The weights, checked to be one for each class, in a call where sizes are not known."""
        own, classes = weights.type.shape[0], x.type.shape[axis]
        if own is not None and classes is not None:
            if own != classes:
                wanted = f"a weight for each of the {classes} classes"
                raise ShapeMismatch(type(self).__name__, wanted, f"{own} of them")
            return weights
        return MatchSizes(((0, axis),))(weights, x)

    def losses(self, x: Variable, labels: Variable, weights: Variable | None) -> Variable:
        """The loss of each label, times its weight."""
        raise NotImplementedError(f"{type(self).__name__} defines no losses")

    def _checked(self, output: Variable, target: TensorLike) -> tuple[Variable, Variable, bool]:
        """Scores (N, C, ...), labels (N, ...), and whether the batch dimension was added."""
        x, t = self.float_tensor(output), as_variable(target)
        ndim, name = x.type.ndim, type(self).__name__
        batched = max(2, ndim) if self.sizes is None else self.sizes + 2
        if ndim not in (batched, batched - 1):
            behind = (
                ", ..." if self.sizes is None else "".join(f", {d}" for d in "DHW"[-self.sizes :])
            )
            raise TypeMismatch(name, f"an output (N, C{behind}), or one without N", x.type)
        if not isinstance(t.type, TensorType) or not t.type.is_integer:
            wanted = "a target of integers, classes counted from 0"
            raise TypeMismatch(name, wanted, t.type, "Cast it, such as target.astype('int64')")
        if t.type.ndim != ndim - 1:
            wanted = f"a target of {ndim - 1} dimension(s): the output's without the classes"
            raise TypeMismatch(name, wanted, t.type)
        if ndim == batched:
            return x, t, False
        return (
            x.dimshuffle("x", *range(ndim)), t.dimshuffle("x", *range(ndim - 1)), True,
        )  # fmt: skip

    def describe(self) -> str:
        given = ["weights"] if self.weights is not None else []
        given += [] if self.ignoreIndex is None else [f"ignoreIndex={self.ignoreIndex}"]
        given += [] if self.reduction == "mean" else [self.reduction]
        return f"({', '.join(given)})" if given else ""


class ClassNLLCriterion(_Classes):
    """``-w[t] x[t]`` of log-probabilities ``x`` (N, C) and classes ``t`` (N); also (C) and ().

    (N, C, ...) has a class (N, ...) at each place, such as each step of sequences (N, C, T).
    ``weights`` (C) are the classes' weights ``w``, by whose sum the mean divides. Labels equal to
    ``ignoreIndex`` count for nothing (None: every label must be a class); where all are ignored,
    the loss is 0. PyTorch's ``NLLLoss``.
    """

    def losses(self, x: Variable, labels: Variable, weights: Variable | None) -> Variable:
        found = -pick_label(x, labels, axis=1)
        return found if weights is None else found * weights


class SpatialClassNLLCriterion(ClassNLLCriterion):
    """:class:`ClassNLLCriterion` of maps: output (N, C, H, W) and target (N, H, W)."""

    sizes = 2


class VolumetricClassNLLCriterion(ClassNLLCriterion):
    """:class:`ClassNLLCriterion` of volumes: output (N, C, D, H, W) and target (N, D, H, W)."""

    sizes = 3


class CrossEntropyCriterion(_Classes):
    """Log-softmax and :class:`ClassNLLCriterion` in one, of scores (N, C), (N, C, ...) or (C).

    ``labelSmoothing`` s takes the share ``1 - s`` for the label and ``s / C`` for each class
    (Szegedy et al. 2016). PyTorch's ``CrossEntropyLoss``.
    """

    def __init__(
        self,
        weights: TensorLike | None = None,
        sizeAverage: bool = True,
        ignoreIndex: int | None = None,
        *,
        labelSmoothing: float = 0.0,
        reduction: str | None = None,
    ) -> None:
        super().__init__(weights, sizeAverage, ignoreIndex, reduction=reduction)
        if not 0 <= labelSmoothing <= 1:
            raise InputError(
                f"{type(self).__name__}: labelSmoothing={labelSmoothing}; wanted 0 to 1"
            )
        self.labelSmoothing = float(labelSmoothing)

    def losses(self, x: Variable, labels: Variable, weights: Variable | None) -> Variable:
        found = softmax_crossentropy(x, labels, axis=1)
        found = found if weights is None else found * weights
        if not self.labelSmoothing:
            return found
        logp = logsoftmax(x, axis=1)
        if self.weights is not None:
            logp = logp * self.weights_for(x, self.weights)
        smooth = -mean(logp, axis=1)
        return (1 - self.labelSmoothing) * found + self.labelSmoothing * smooth


class SpatialCrossEntropyCriterion(CrossEntropyCriterion):
    """:class:`CrossEntropyCriterion` of maps: (N, C, H, W) or (C, H, W), and (N, H, W).

    The mean is over all pixels.
    """

    sizes = 2


class VolumetricCrossEntropyCriterion(CrossEntropyCriterion):
    """:class:`CrossEntropyCriterion` of volumes: (N, C, D, H, W) and (N, D, H, W)."""

    sizes = 3


class CTCCriterion(Criterion):
    """Connectionist temporal classification of scores (T, N, C) before the softmax.

    ``criterion(output, target, lengths)``: ``target`` (N, L) are classes 1 to C - 1, padded with
    -1 (class 0 is the blank), ``lengths`` (N) the frames of each sequence, all T where left out.
    ``batchFirst`` takes scores (N, T, C). The mean is over the sequences; PyTorch's divides each
    loss by the number of its labels first.
    """

    def __init__(
        self, batchFirst: bool = False, sizeAverage: bool = True, *, reduction: str | None = None
    ) -> None:
        super().__init__(sizeAverage, reduction=reduction)
        self.batchFirst = bool(batchFirst)

    def forward(self, output: Variable, target: Any, lengths: Variable | None = None) -> Variable:
        x = self.float_tensor(output)
        if x.type.ndim != 3:
            raise TypeMismatch(type(self).__name__, "scores (T, N, C)", x.type)
        x = x.dimshuffle(1, 0, 2) if self.batchFirst else x
        if lengths is None:
            steps, batch, _ = dims_of(x)
            lengths = alloc(cast(as_variable(steps), "int32"), batch)
        return self.reduced(ctc(x, target, lengths))
