"""Adam and its variants: averages of the gradients and of their squares."""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np

from symdnn.graph.variable import Variable
from symdnn.nn.modules.checked import checked
from symdnn.nn.optimizers.base import Common, Number, Step, Updates, build
from symdnn.ops.elementwise.arithmetic import abs as absolute
from symdnn.ops.elementwise.arithmetic import cast, maximum, sqr, sqrt
from symdnn.ops.elementwise.comparison import and_, gt, switch
from symdnn.ops.elementwise.math import exp

__all__ = ["adam", "adamax", "adamw", "lamb", "nadam", "radam"]

Betas = tuple[float, float]


@checked
def adam(
    loss: Variable | None, params: Any, lr: Number = 1e-3, *, betas: Betas = (0.9, 0.999),
    eps: float = 1e-8, weight_decay: float = 0.0, amsgrad: bool = False, **common: Unpack[Common],
) -> Updates:  # fmt: skip
    """Kingma and Ba 2015: ``p - lr m / (sqrt(v) + eps)``, PyTorch's ``Adam``.

    ``m`` and ``v`` are averages of the gradients and of their squares with the factors ``betas``,
    divided by how far they have come from 0. ``amsgrad`` takes the largest v so far (Reddi et al.
    2018). ``weight_decay`` is part of the gradient; see :func:`adamw`.
    """
    return build("adam", _adam, locals())


@checked
def adamw(
    loss: Variable | None, params: Any, lr: Number = 1e-3, *, betas: Betas = (0.9, 0.999),
    eps: float = 1e-8, weight_decay: float = 1e-2, amsgrad: bool = False,
    **common: Unpack[Common],
) -> Updates:  # fmt: skip
    """:func:`adam` after ``p (1 - lr weight_decay)`` (Loshchilov and Hutter 2019).

    PyTorch's ``AdamW``.
    """
    return build("adamw", _adamw, locals())


def _adam(s: Step) -> Any:
    return _adam_step(s, s.p, s.decayed())


def _adamw(s: Step) -> Any:
    return _adam_step(s, s.decoupled(), s.g)


def _decay(s: Step) -> tuple[Any, Variable]:
    """The parameter and its gradient, one of them with ``weight_decay``."""
    return (s.decoupled(), s.g) if s["decoupled_weight_decay"] else (s.p, s.decayed())


def _averages(s: Step, g: Variable) -> tuple[Variable, Variable]:
    first, second = s["betas"]
    return s.average("mean", g, first), s.average("square", sqr(g), second)


def _adam_step(s: Step, p: Variable, g: Variable) -> Any:
    (first, second), (mean, square) = s["betas"], _averages(s, g)
    if s["amsgrad"]:
        largest = s.state("largest_square")
        square = s.set(largest, maximum(largest, square))
    # Of scalars alone, so that it is computed once for all parameters.
    root, rate = sqrt(s.correction(second)), s.lr / s.correction(first)
    return p - rate * mean / (sqrt(square) / root + s.number(s["eps"]))


@checked
def adamax(
    loss: Variable | None, params: Any, lr: Number = 2e-3, *, betas: Betas = (0.9, 0.999),
    eps: float = 1e-8, weight_decay: float = 0.0, **common: Unpack[Common],
) -> Updates:  # fmt: skip
    """Adam with a decaying maximum of the gradients in place of squares (Kingma and Ba 2015).

    PyTorch's ``Adamax``.
    """
    return build("adamax", _adamax, locals())


def _adamax(s: Step) -> Any:
    g, (first, second) = s.decayed(), s["betas"]
    mean = s.average("mean", g, first)
    old = s.state("largest")
    fading = s.number(second) * old
    largest = s.set(old, maximum(fading, absolute(g) + s.number(s["eps"])))
    return s.p - s.lr / s.correction(first) * mean / largest


@checked
def nadam(
    loss: Variable | None, params: Any, lr: Number = 2e-3, *, betas: Betas = (0.9, 0.999),
    eps: float = 1e-8, weight_decay: float = 0.0, momentum_decay: float = 4e-3,
    decoupled_weight_decay: bool = False, **common: Unpack[Common],
) -> Updates:  # fmt: skip
    """Adam with Nesterov's momentum (Dozat 2016), PyTorch's ``NAdam``.

    In step t the factor of the mean is ``beta (1 - 0.96 ** (t momentum_decay) / 2)``.
    ``decoupled_weight_decay`` is that of :func:`adamw`.
    """
    return build("nadam", _nadam, locals())


def _nadam(s: Step) -> Any:
    (p, g), second = _decay(s), s["betas"][1]
    mean, square = _averages(s, g)
    mu, following = _momentum_at(s, s.t), _momentum_at(s, s.t + s.number(1))
    # In float64: the product of thousands of factors enters as 1 - product.
    old = s.scalar("momentum_product", 1.0)
    product = s.number(s.set(old, old * cast(mu, "float64")))
    one = s.number(1)
    of_gradient = s.lr * (one - mu) / (one - product)
    of_mean = s.lr * following / (one - product * following)
    below = sqrt(square) / sqrt(s.correction(second)) + s.number(s["eps"])
    return p - of_gradient * g / below - of_mean * mean / below


def _momentum_at(s: Step, t: Variable) -> Any:
    fading = exp(t * s.number(s["momentum_decay"] * np.log(0.96)))
    return s.number(s["betas"][0]) * (s.number(1) - s.number(0.5) * fading)


@checked
def radam(
    loss: Variable | None, params: Any, lr: Number = 1e-3, *, betas: Betas = (0.9, 0.999),
    eps: float = 1e-8, weight_decay: float = 0.0, decoupled_weight_decay: bool = False,
    **common: Unpack[Common],
) -> Updates:  # fmt: skip
    """Adam whose first steps are those of momentum (Liu et al. 2020), PyTorch's ``RAdam``.

    With ``r = 2 / (1 - beta) - 1`` and ``r_t = r - 2 t beta^t / (1 - beta^t)`` of the squares'
    beta, the length of Adam's average, the step is Adam's times
    ``sqrt((r_t - 4) (r_t - 2) r / ((r - 4) (r - 2) r_t))`` where ``r_t`` is above 5, else
    ``lr m``. ``decoupled_weight_decay`` is that of :func:`adamw`.
    """
    return build("radam", _radam, locals())


def _radam(s: Step) -> Any:
    (p, g), (first, second) = _decay(s), s["betas"]
    mean, square = _averages(s, g)
    t, whole = cast(s.t, "float64"), 2 / (1 - second) - 1
    # In float64: lengths are differences of thousands that are near each other.
    faded = exp(t * np.log(second)) if second else t * 0.0
    length = whole - 2 * t * faded / (1 - faded)
    known = maximum(length, 5.0)
    part = (known - 4) * (known - 2) * whole / ((whole - 4) * (whole - 2) * known)
    rate = s.number(sqrt(part * (1 - faded))) / (sqrt(square) + s.number(s["eps"]))
    factor = switch(gt(length, 5.0), rate, s.number(1))
    return p - s.lr / s.correction(first) * mean * factor


@checked
def lamb(
    loss: Variable | None, params: Any, lr: Number = 1e-3, *, betas: Betas = (0.9, 0.999),
    eps: float = 1e-6, weight_decay: float = 1e-2, **common: Unpack[Common],
) -> Updates:  # fmt: skip
    """You et al. 2020, for large batches: Adam's step, as long for each parameter as it is itself.

    With ``u = m / (sqrt(v) + eps) + weight_decay p``, where m and v are corrected as in
    :func:`adam`: ``p - lr |p| / |u| u``, and ``p - lr u`` where one of the norms is 0.
    """
    return build("lamb", _lamb, locals())


def _lamb(s: Step) -> Any:
    (first, second), (mean, square) = s["betas"], _averages(s, s.g)
    root = sqrt(s.correction(second))
    step = mean / s.correction(first) / (sqrt(square) / root + s.number(s["eps"]))
    if s.decay:
        step = step + s.number(s.decay) * s.p
    size, length = s.norms(s.p, step)
    zero, one = s.number(0), s.number(1)
    ratio = switch(and_(gt(size, zero), gt(length, zero)), size / length, one)
    return s.p - s.lr * s.spread(ratio) * step
