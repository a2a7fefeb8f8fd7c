"""Losses under PyTorch's names, with PyTorch's arguments, defaults and values: the usual ones.

Options are keywords (PyTorch's ``size_average`` and ``reduce``, deprecated there, are not here).
``reduction`` is ``"mean"``, ``"sum"`` or ``"none"``. Those with margins, and of several inputs, are
in :mod:`symdnn.nn.losses.torch_losses_margin`. The classes that they derive of have Torch7's
arguments.
"""

from __future__ import annotations

from math import log as number_log
from math import pi
from typing import Any, ClassVar

from symdnn.distributed.counting import divisor_of_all
from symdnn.errors import InputError, TypeMismatch
from symdnn.graph.type import TensorType
from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import Variable, as_variable, constant
from symdnn.nn.losses import criterion as classes
from symdnn.nn.losses import criterion_values as values
from symdnn.nn.losses.criterion import Criterion
from symdnn.nn.modules.inside import Lent
from symdnn.ops.array.moments import mean
from symdnn.ops.core.gradient_control import disconnected_grad, straight_through
from symdnn.ops.elementwise.arithmetic import abs as absolute
from symdnn.ops.elementwise.arithmetic import cast, maximum, sqr
from symdnn.ops.elementwise.comparison import gt, le, switch
from symdnn.ops.elementwise.math import exp, log
from symdnn.ops.elemwise import like
from symdnn.ops.nn.softmax import logsoftmax

__all__ = [
    "BCELoss", "BCEWithLogitsLoss", "CrossEntropyLoss", "GaussianNLLLoss", "HuberLoss",
    "KLDivLoss", "L1Loss", "MSELoss", "NLLLoss", "PoissonNLLLoss", "SmoothL1Loss",
]  # fmt: skip


class NLLLoss(classes.ClassNLLCriterion):
    """:class:`ClassNLLCriterion`: of log-probabilities (N, C, ...) and classes (N, ...).

    Labels equal to ``ignore_index`` count for nothing.
    """

    def __init__(
        self, weight: TensorLike | None = None, *, ignore_index: int = -100, reduction: str = "mean"
    ) -> None:
        super().__init__(weight, ignoreIndex=ignore_index, reduction=reduction)


class CrossEntropyLoss(classes.CrossEntropyCriterion):
    """Cross-entropy of scores (N, C, ...) and classes (N, ...), or probabilities (N, C, ...).

    ``weight`` (C) are the classes' weights, by whose sum the mean divides; labels equal to
    ``ignore_index`` count for nothing. With a target of floats, the probabilities of the classes,
    the mean divides by the number of places.
    """

    def __init__(
        self, weight: TensorLike | None = None, *, ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:  # fmt: skip
        if not 0 <= label_smoothing <= 1:
            raise InputError(
                f"CrossEntropyLoss: label_smoothing={label_smoothing!r}; wanted 0 to 1"
            )
        super().__init__(
            weight, ignoreIndex=ignore_index, labelSmoothing=label_smoothing, reduction=reduction
        )

    def forward(self, output: Variable, target: Any) -> Variable:
        t = as_variable(target)
        if not isinstance(t.type, TensorType) or not t.type.is_float:
            return super().forward(output, t)
        x = self.float_tensor(output)
        if t.type.ndim != x.type.ndim or x.type.ndim < 1:
            wanted = "classes (integers), or probabilities of the output's shape"
            raise TypeMismatch(type(self).__name__, wanted, t.type)
        return self._of_probabilities(*self.pair(x, t))

    def _of_probabilities(self, x: Variable, t: Variable) -> Variable:
        axis = min(1, x.type.ndim - 1)
        logp = logsoftmax(x, axis=axis)
        if self.weights is not None:
            order: list[Any] = ["x"] * x.type.ndim
            order[axis] = 0
            weights = self.of_classes(self.weights, x, axis)
            logp = logp * cast(weights, x.type.dtype).dimshuffle(order)
        smooth = self.labelSmoothing
        losses = -(t * logp).sum(axis=axis)
        if smooth:
            losses = (1 - smooth) * losses - smooth * mean(logp, axis=axis)
        return self.reduced(losses)

    def describe(self) -> str:
        given = ["weight"] if self.weights is not None else []
        given += [] if self.ignoreIndex == -100 else [f"ignore_index={self.ignoreIndex}"]
        given += [] if self.reduction == "mean" else [f"reduction={self.reduction!r}"]
        smooth = self.labelSmoothing
        given += [f"label_smoothing={smooth:g}"] if smooth else []
        return f"({', '.join(given)})" if given else ""


class _Weighed(Criterion):
    """Losses that may have a weight each, as PyTorch's functions take them."""

    #: Whether the mean divides by the sum of the weights; else by the number of losses.
    by_weights: ClassVar[bool] = True

    def __init__(self, *, reduction: str = "mean", weight: TensorLike | None = None) -> None:
        super().__init__(reduction=reduction)
        self._weights = Lent(None if weight is None else as_variable(weight))

    def reduced(self, losses: Variable) -> Variable:
        if self._weights.value is None:
            return super().reduced(losses)
        losses, weights = self.pair(losses, self._weights.value, name="weight")
        if self.by_weights and self.reduction == "mean":
            return (losses * weights).sum() / divisor_of_all(weights.sum())
        return super().reduced(losses * weights)


class MSELoss(_Weighed, values.MSECriterion):
    """``(x - t)^2``, times ``weight`` of the same shape, by whose sum the mean divides."""


class L1Loss(_Weighed, values.AbsCriterion):
    """``|x - t|``, times ``weight`` of the same shape, by whose sum the mean divides."""


class SmoothL1Loss(Criterion):
    """``(x - t)^2 / (2 beta)`` below ``beta``, from it ``|x - t| - beta / 2``; beta may be 0."""

    def __init__(self, *, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(reduction=reduction)
        self.beta = _at_least_0(self, "beta", beta)

    def forward(self, output: Variable, target: Any) -> Variable:
        x, t = self.pair(output, target)
        d = absolute(x - t)
        if not self.beta:
            return self.reduced(d)
        return self.reduced(
            switch(gt(self.beta, d), sqr(d) * (0.5 / self.beta), d - 0.5 * self.beta)
        )


class HuberLoss(_Weighed):
    """``(x - t)^2 / 2`` up to ``delta``, beyond it ``delta (|x - t| - delta / 2)``.

    ``weight``, of the same shape, multiplies the losses; the mean divides by their number.
    """

    by_weights = False

    def __init__(
        self, *, reduction: str = "mean", delta: float = 1.0, weight: TensorLike | None = None
    ) -> None:
        super().__init__(reduction=reduction, weight=weight)
        if not delta > 0:
            raise InputError(f"HuberLoss: delta={delta!r}; wanted more than 0")
        self.delta = float(delta)

    def forward(self, output: Variable, target: Any) -> Variable:
        x, t = self.pair(output, target)
        d = absolute(x - t)
        straight = (d - 0.5 * self.delta) * self.delta
        return self.reduced(switch(le(d, self.delta), sqr(d) * 0.5, straight))


class BCELoss(values.BCECriterion):
    """``-(t log(p) + (1 - t) log(1 - p))`` of probabilities ``p``; logarithms are at least -100.

    The gradient of probabilities 0 and 1 is ``(p - t) / 1e-12``; between them there is none where a
    logarithm is cut off. After a sigmoid take :class:`BCEWithLogitsLoss`.
    """

    def __init__(self, weight: TensorLike | None = None, *, reduction: str = "mean") -> None:
        super().__init__(weight, reduction=reduction)

    def forward(self, output: Variable, target: Any) -> Variable:
        p, t = self.pair(output, target)
        at_end, fixed = le(p, 0) | le(1 - p, 0), disconnected_grad(p)
        inside = switch(at_end, fixed, p)
        losses = -(t * _log_cut(inside) + (1 - t) * _log_cut(1 - inside))
        least = like(1e-12 if p.type.dtype != "float16" else 1e-4, p)  # float16 has no 1e-12
        slope = switch(at_end, disconnected_grad(p - t) / least, like(0, p))
        return self.reduced(self._weighted(straight_through(losses, losses + slope * p)))


def _log_cut(p: Variable) -> Variable:
    """The logarithm, at least -100; its gradient is finite at 0."""
    there = gt(p, 0)
    one, least = constant(1, dtype=p.type.dtype), constant(-100, dtype=p.type.dtype)
    return switch(there, maximum(log(switch(there, p, one)), least), least)


class BCEWithLogitsLoss(values.BCEWithLogitsCriterion):
    """:class:`BCELoss` of ``sigmoid(x)``, stable for every ``x``.

    ``pos_weight`` (broadcast) multiplies the losses of ``t = 1``.
    """

    def __init__(
        self,
        weight: TensorLike | None = None,
        *,
        reduction: str = "mean",
        pos_weight: TensorLike | None = None,
    ) -> None:
        super().__init__(weight, posWeight=pos_weight, reduction=reduction)


class KLDivLoss(Criterion):
    """``t (log(t) - x)`` of log-probabilities ``x`` and probabilities ``t``; 0 where ``t`` is 0.

    ``reduction="batchmean"`` divides the sum by the first dimension: the divergence. ``"mean"``
    divides by all elements. With ``log_target`` the target has log-probabilities.
    """

    reductions = (*Criterion.reductions, "batchmean")

    def __init__(self, *, reduction: str = "mean", log_target: bool = False) -> None:
        super().__init__(reduction=reduction)
        self.log_target = bool(log_target)

    def forward(self, output: Variable, target: Any) -> Variable:
        x, t = self.pair(output, target)
        if self.log_target:
            losses = exp(t) * (t - x)
        else:
            there, zero = gt(t, 0), constant(0, dtype=t.type.dtype)
            one = constant(1, dtype=t.type.dtype)
            losses = switch(there, t * (log(switch(there, t, one)) - x), zero)
        found = self.reduced(losses)
        by_batch = self.reduction == "batchmean"  # of a sum
        return found / cast(x.shape[0], x.type.dtype) if by_batch else found


class PoissonNLLLoss(Criterion):
    """``exp(x) - t x``, for counts ``t`` and their log-rates ``x``.

    ``log_input=False``: ``x - t log(x + eps)`` of rates. ``full`` adds Stirling's approximation of
    ``log(t!)`` where ``t`` is above 1.
    """

    def __init__(
        self, log_input: bool = True, full: bool = False, *, eps: float = 1e-8,
        reduction: str = "mean",
    ) -> None:  # fmt: skip
        super().__init__(reduction=reduction)
        self.log_input, self.full = bool(log_input), bool(full)
        self.eps = _at_least_0(self, "eps", eps)

    def forward(self, output: Variable, target: Any) -> Variable:
        x, t = self.pair(output, target)
        losses = exp(x) - t * x if self.log_input else x - t * log(x + self.eps)
        if self.full:
            many, one = gt(t, 1), constant(1, dtype=t.type.dtype)
            n = switch(many, t, one)
            stirling = n * log(n) - n + 0.5 * log(2 * pi * n)
            losses = losses + switch(many, stirling, constant(0, dtype=t.type.dtype))
        return self.reduced(losses)


class GaussianNLLLoss(Criterion):
    """``(log(var) + (x - t)^2 / var) / 2``, by ``criterion(x, t, var)`` or ``([x, var], t)``.

    ``var`` has the shape of ``x``, or 1 in its last dimension, or lacks that; it counts as at least
    ``eps``. ``full`` adds ``log(2 pi) / 2``.
    """

    def __init__(self, *, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> None:
        super().__init__(reduction=reduction)
        self.full, self.eps = bool(full), _at_least_0(self, "eps", eps)

    def forward(self, output: Any, target: Any, var: Any = None) -> Variable:
        if var is None:
            if not isinstance(output, list | tuple) or len(output) != 2:
                raise TypeMismatch(
                    "GaussianNLLLoss", "an output, a target and a variance, or [output, variance]",
                    output,
                )  # fmt: skip
            output, var = output
        x, t = self.pair(output, target)
        v = cast(self.float_tensor(var), x.type.dtype)
        if v.type.ndim == x.type.ndim - 1:
            v = v.dimshuffle(*range(v.type.ndim), "x")
        if v.type.ndim != x.type.ndim:
            raise TypeMismatch("GaussianNLLLoss", f"a variance for {x.type}", v.type)
        least = constant(self.eps, dtype=x.type.dtype)
        v = v + disconnected_grad(maximum(v, least) - v)  # PyTorch's gradient passes the limit
        losses = 0.5 * (log(v) + sqr(x - t) / v)
        return self.reduced(losses + 0.5 * number_log(2 * pi) if self.full else losses)


def _at_least_0(criterion: Criterion, name: str, value: float) -> float:
    if not value >= 0:
        raise InputError(f"{type(criterion).__name__}: {name}={value!r}; wanted 0 or more")
    return float(value)
