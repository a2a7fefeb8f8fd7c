"""Gradient descent, with momentum, and with a rate for each element from its gradients so far."""

from __future__ import annotations

from typing import Any, Unpack

from symdnn.errors import InputError
from symdnn.graph.variable import Variable
from symdnn.nn.modules.checked import checked
from symdnn.nn.optimizers.base import Common, Number, Step, Updates, build
from symdnn.nn.optimizers.groups import check_options
from symdnn.ops.elementwise.arithmetic import clip, maximum, sgn, sqr, sqrt
from symdnn.ops.elementwise.comparison import gt, lt, switch

__all__ = [
    "adadelta", "adagrad", "asgd", "momentum", "nesterov", "rmsprop", "rprop", "sgd",
]  # fmt: skip


Pair = tuple[float, float]


@checked
def sgd(
    loss: Variable | None, params: Any, lr: Number = 0.01, *, momentum: float = 0.0,
    dampening: float = 0.0, nesterov: bool = False, weight_decay: float = 0.0,
    **common: Unpack[Common],
) -> Updates:  # fmt: skip
    """``p - lr g``; with ``momentum`` ``p - lr v`` where ``v = momentum v + g``.

    ``nesterov`` (Sutskever et al. 2013) takes ``g + momentum v`` in its place. With ``dampening``
    ``v = momentum v + (1 - dampening) g`` after the first step. PyTorch's ``SGD``.
    """
    if nesterov and (dampening or not momentum > 0):
        raise InputError("sgd: nesterov=True; wanted momentum above 0 and no dampening")
    return build("sgd", _sgd, locals())


def _sgd(s: Step) -> Any:
    g = s.decayed()
    if s["momentum"]:
        velocity = s.state("velocity")
        factor = s.number(s["momentum"])
        if s["dampening"]:
            g = switch(gt(s.t, s.number(1)), s.number(1 - s["dampening"]), s.number(1)) * g
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
    initial: float = 0.0, eps: float = 1e-10, weight_decay: float = 0.0,
    initial_accumulator_value: float | None = None, **common: Unpack[Common],
) -> Updates:  # fmt: skip
    """Duchi et al. 2011: ``p - lr g / (sqrt(sum of g ** 2) + eps)``.

    The sum begins at ``initial``, which PyTorch calls ``initial_accumulator_value``; with
    ``lr_decay`` the rate is divided by ``1 + lr_decay (t - 1)`` in step t. PyTorch's ``Adagrad``.
    """
    given = {**locals()}
    of_pytorch = given.pop("initial_accumulator_value")
    if of_pytorch is not None:
        if initial:
            raise InputError("adagrad: initial is initial_accumulator_value; wanted one of them")
        check_options("adagrad", {"initial_accumulator_value": of_pytorch})
        given["initial"] = of_pytorch
    return build("adagrad", _adagrad, given)


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
    return build("rmsprop", _rmsprop, locals())


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
    return build("adadelta", _adadelta, locals())


def _adadelta(s: Step) -> Any:
    g, eps = s.decayed(), s.number(s["eps"])
    square = s.average("square_average", sqr(g), s["rho"])
    change = sqrt(s.state("change_average") + eps) / sqrt(square + eps) * g
    s.average("change_average", sqr(change), s["rho"])
    return s.p - s.lr * change


@checked
def rprop(
    loss: Variable | None, params: Any, lr: Number = 0.01, *, etas: Pair = (0.5, 1.2),
    step_sizes: Pair = (1e-6, 50.0), **common: Unpack[Common],
) -> Updates:  # fmt: skip
    """Riedmiller and Braun 1993: steps by the signs of the gradients alone. PyTorch's ``Rprop``.

    Each element's step begins at ``lr``, is multiplied by the second of ``etas`` where the sign is
    that of the step before, by the first where it has changed (and is left out then), and is kept
    within ``step_sizes``. For gradients of all data, not of batches.
    """
    return build("rprop", _rprop, locals())


def _rprop(s: Step) -> Any:
    (down, up), (least, most) = s["etas"], s["step_sizes"]
    before, size, zero = s.state("gradient"), s.state("step_size"), s.number(0)
    agreement = sgn(s.g) * sgn(before)
    turned = lt(agreement, zero)
    factor = switch(turned, s.number(down), switch(gt(agreement, zero), s.number(up), s.number(1)))
    begun = switch(gt(s.t, s.number(1)), size, s.lr)
    new = s.set(size, clip(begun * factor, s.number(least), s.number(most)))
    g = s.set(before, switch(turned, zero, s.g))
    return s.p - sgn(g) * new


@checked
def asgd(
    loss: Variable | None, params: Any, lr: Number = 0.01, *, lambd: float = 1e-4,
    alpha: float = 0.75, t0: float = 1e6, weight_decay: float = 0.0, **common: Unpack[Common],
) -> Updates:  # fmt: skip
    """Polyak and Juditsky 1992: ``p (1 - lambd r) - r g`` with a falling rate, and the average.

    In step t, from 1, ``r = lr / (1 + lambd lr (t - 1)) ** alpha``. The state ``average`` of each
    parameter is its value until step ``t0``, and the mean since then. PyTorch's ``ASGD``.
    """
    return build("asgd", _asgd, locals())


def _asgd(s: Step) -> Any:
    one, done = s.number(1), s.t - s.number(1)
    rate = s.lr / (one + s.number(s["lambd"]) * s.lr * done) ** s.number(s["alpha"])
    new = s.p * (one - s.number(s["lambd"]) * rate) - rate * s.decayed()
    share = one / maximum(one, done - s.number(s["t0"]))
    average = s.state("average")
    s.set(average, (one - share) * average + share * new)
    return new
