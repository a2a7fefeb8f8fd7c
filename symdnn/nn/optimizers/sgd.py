"""Gradient descent, with momentum, and with a rate for each element from its gradients so far."""

from __future__ import annotations

from typing import Any, Unpack

from symdnn.graph.variable import Variable
from symdnn.nn.modules.checked import checked
from symdnn.nn.optimizers.base import Common, Number, Step, Updates, build
from symdnn.ops.elementwise.arithmetic import maximum, sqr, sqrt

__all__ = ["adadelta", "adagrad", "momentum", "nesterov", "rmsprop", "sgd"]


@checked
def sgd(
    loss: Variable | None, params: Any, lr: Number = 0.01, *, momentum: float = 0.0,
    nesterov: bool = False, weight_decay: float = 0.0, **common: Unpack[Common],
) -> Updates:  # fmt: skip
    """``p - lr g``; with ``momentum`` ``p - lr v`` where ``v = momentum v + g``.

    ``nesterov`` (Sutskever et al. 2013) takes ``g + momentum v`` in its place. PyTorch's ``SGD``.
    """
    options = {
        "lr": lr, "momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay,
    }  # fmt: skip
    return build("sgd", _sgd, loss, params, options, common)


def _sgd(s: Step) -> Any:
    g = s.decayed()
    if s["momentum"]:
        velocity = s.state("velocity")
        factor = s.number(s["momentum"])
        new = s.set(velocity, factor * velocity + g)
        g = g + factor * new if s["nesterov"] else new
    return s.p - s.lr * g


@checked
def momentum(
    loss: Variable | None, params: Any, lr: Number = 0.01, *, momentum: float = 0.9,
    weight_decay: float = 0.0, **common: Unpack[Common],
) -> Updates:  # fmt: skip
    """:func:`sgd` with momentum (Polyak 1964)."""
    return sgd(loss, params, lr, momentum=momentum, weight_decay=weight_decay, **common)


@checked
def nesterov(
    loss: Variable | None, params: Any, lr: Number = 0.01, *, momentum: float = 0.9,
    weight_decay: float = 0.0, **common: Unpack[Common],
) -> Updates:  # fmt: skip
    """:func:`sgd` with Nesterov's momentum."""
    return sgd(
        loss, params, lr, momentum=momentum, nesterov=True, weight_decay=weight_decay, **common
    )


@checked
def adagrad(
    loss: Variable | None, params: Any, lr: Number = 0.01, *, lr_decay: float = 0.0,
    initial: float = 0.0, eps: float = 1e-10, weight_decay: float = 0.0, **common: Unpack[Common],
) -> Updates:  # fmt: skip
    """Duchi et al. 2011: ``p - lr g / (sqrt(sum of g ** 2) + eps)``.

    The sum begins at ``initial``; with ``lr_decay`` the rate is divided by
    ``1 + lr_decay (t - 1)`` in step t. PyTorch's ``Adagrad``.
    """
    options = {
        "lr": lr, "lr_decay": lr_decay, "initial": initial, "eps": eps,
        "weight_decay": weight_decay,
    }  # fmt: skip
    return build("adagrad", _adagrad, loss, params, options, common)


def _adagrad(s: Step) -> Any:
    g = s.decayed()
    old = s.state("square_sum", s["initial"])
    total = s.set(old, old + sqr(g))
    rate = s.lr
    if s["lr_decay"]:
        rate = rate / (s.number(1) + (s.t - s.number(1)) * s.number(s["lr_decay"]))
    return s.p - rate * g / (sqrt(total) + s.number(s["eps"]))


@checked
def rmsprop(
    loss: Variable | None, params: Any, lr: Number = 0.01, *, alpha: float = 0.99,
    eps: float = 1e-8, centered: bool = False, momentum: float = 0.0, weight_decay: float = 0.0,
    **common: Unpack[Common],
) -> Updates:  # fmt: skip
    """Tieleman and Hinton 2012: ``p - lr g / (sqrt(average of g ** 2) + eps)``.

    ``alpha`` is the average's factor; ``centered`` takes the square of the gradients' average
    away (Graves 2013). With ``momentum`` the quotients are summed as in :func:`sgd`. PyTorch's
    ``RMSprop``.
    """
    options = {
        "lr": lr, "alpha": alpha, "eps": eps, "centered": centered, "momentum": momentum,
        "weight_decay": weight_decay,
    }  # fmt: skip
    return build("rmsprop", _rmsprop, loss, params, options, common)


def _rmsprop(s: Step) -> Any:
    g = s.decayed()
    square = s.average("square_average", sqr(g), s["alpha"])
    if s["centered"]:
        mean = s.average("average", g, s["alpha"])
        square = maximum(square - sqr(mean), s.number(0))  # rounding may leave it below
    change = g / (sqrt(square) + s.number(s["eps"]))
    if s["momentum"]:
        velocity = s.state("velocity")
        change = s.set(velocity, s.number(s["momentum"]) * velocity + change)
    return s.p - s.lr * change


@checked
def adadelta(
    loss: Variable | None, params: Any, lr: Number = 1.0, *, rho: float = 0.9, eps: float = 1e-6,
    weight_decay: float = 0.0, **common: Unpack[Common],
) -> Updates:  # fmt: skip
    """Zeiler 2012: steps as large as the average of those before. PyTorch's ``Adadelta``."""
    options = {"lr": lr, "rho": rho, "eps": eps, "weight_decay": weight_decay}
    return build("adadelta", _adadelta, loss, params, options, common)


def _adadelta(s: Step) -> Any:
    g, eps = s.decayed(), s.number(s["eps"])
    square = s.average("square_average", sqr(g), s["rho"])
    change = sqrt(s.state("change_average") + eps) / sqrt(square + eps) * g
    s.average("change_average", sqr(change), s["rho"])
    return s.p - s.lr * change
