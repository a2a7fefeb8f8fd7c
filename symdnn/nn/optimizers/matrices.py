"""Optimisers that see a parameter as a matrix: Adafactor, and Muon."""

from __future__ import annotations

import math
from typing import Any, Unpack

import numpy as np

from symdnn.errors import InputError, UnknownWord
from symdnn.graph.variable import Variable
from symdnn.nn.modules.checked import checked
from symdnn.nn.optimizers.base import Common, Number, Step, Updates, build
from symdnn.ops.array.moments import mean
from symdnn.ops.array.reduce import sum as total
from symdnn.ops.elementwise.arithmetic import cast, maximum, minimum, sqr, sqrt
from symdnn.ops.linalg.dot import dot


@checked
def adafactor(
    loss: Variable | None, params: Any, lr: Number = 1e-2, *, beta2_decay: float = -0.8,
    eps: tuple[float | None, float] = (None, 1e-3), d: float = 1.0, weight_decay: float = 0.0,
    **common: Unpack[Common],
) -> Updates:  # fmt: skip
    """Shazeer and Stern 2018: Adam's squares as a product of one row and one column each.

    PyTorch's ``Adafactor``. A matrix of m by n has m + n numbers of state; of more dimensions the
    last two count. A step is the gradient over the root of the squares, at most ``d`` in root mean
    square, times ``max(eps[1], rms(p)) min(lr, 1 / sqrt(t))``. The average of the squares forgets
    by ``t ** beta2_decay``. ``eps[0]`` (None: that of the dtype) is the least root.
    ``weight_decay`` is that of :func:`adamw`.
    """
    if not isinstance(eps, tuple | list) or len(eps) != 2:
        raise InputError(f"adafactor: eps={eps!r}; wanted a pair, of which the first may be None")
    given = {**locals()}
    given["eps1"], given["eps2"] = given.pop("eps")
    return build("adafactor", _adafactor, given)


def _adafactor(s: Step) -> Any:
    return s.whole(s.g, _adafactor_whole)


def _adafactor_whole(s: Step) -> Any:
    least = float(np.finfo(s.dtype).eps if s["eps1"] is None else s["eps1"])
    new, t = s.t ** s.number(s["beta2_decay"]), s.t
    rate = minimum(s.lr, s.number(1) / sqrt(t)) * maximum(s.number(s["eps2"]), _rms(s.p))
    square = maximum(_squares(s, new, least), s.number(least**2))
    step = s.g / sqrt(square)
    step = step / maximum(s.number(1), _rms(step) / s.number(s["d"]))
    return s.decoupled() - rate * step


def _squares(s: Step, new: Variable, least: float) -> Variable:
    """The average of the gradient's squares, of matrices as rows by columns."""
    squares = sqr(s.g)
    if s.g.type.ndim < 2:
        return _moved(s, "square", squares, (), new)
    row = _moved(s, "row", mean(squares, axis=-1, keepdims=True), (-1,), new)
    column = _moved(s, "column", mean(squares, axis=-2, keepdims=True), (-2,), new)
    return row * column / maximum(mean(row, axis=-2, keepdims=True), s.number(least))


def _moved(s: Step, name: str, of: Variable, ones: tuple[int, ...], new: Variable) -> Variable:
    """The state ``name``, moved by the share ``new`` towards ``of``."""
    old = s.state(name, ones=ones)
    return s.set(old, old + new * (of - old))


def _rms(v: Variable) -> Variable:
    return sqrt(mean(sqr(v)))


@checked
def muon(
    loss: Variable | None, params: Any, lr: Number = 1e-3, *, weight_decay: float = 0.1,
    momentum: float = 0.95, nesterov: bool = True,
    ns_coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315), eps: float = 1e-7,
    ns_steps: int = 5, adjust_lr_fn: str | None = None, **common: Unpack[Common],
) -> Updates:  # fmt: skip
    """Jordan et al. 2024: momentum whose singular values are brought near 1. PyTorch's ``Muon``.

    It is for matrices inside of a network; biases, embeddings and last layers are another
    optimiser's: ``muon(loss, matrices) + adamw(loss, others)``. ``ns_steps`` times, in bfloat16,
    ``x`` becomes ``a x + (b g + c g g) x`` with ``g = x x.T`` and a, b, c of ``ns_coefficients``.
    The step of a matrix of m by n is ``lr sqrt(max(1, m / n))`` times that, or with
    ``adjust_lr_fn="match_rms_adamw"`` ``lr 0.2 sqrt(max(m, n))`` times. ``weight_decay`` is that
    of :func:`adamw`.
    """
    if adjust_lr_fn not in (None, "original", "match_rms_adamw"):
        raise UnknownWord(
            f"muon: adjust_lr_fn={adjust_lr_fn!r}; wanted 'original' or 'match_rms_adamw'"
        )
    if not isinstance(ns_coefficients, tuple | list) or len(ns_coefficients) != 3:
        raise InputError(f"muon: ns_coefficients={ns_coefficients!r}; wanted three numbers")
    return build("muon", _muon, {**locals(), "ns_coefficients": tuple(ns_coefficients)})


def _muon(s: Step) -> Any:
    rate = s["momentum"]
    average = s.average("mean", s.g, rate)
    step = s.g + s.number(rate) * (average - s.g) if s["nesterov"] else average
    return s.decoupled() - s.whole(step, _straight)


def _straight(s: Step) -> Any:
    """The rate times the momentum, which is the step's gradient, with singular values near 1."""
    if s.g.type.ndim != 2:
        raise InputError(
            f"{s}: a parameter of {s.g.type.ndim} dimension(s); muon takes matrices alone. Give "
            "the others to another optimiser: muon(loss, matrices) + adamw(loss, others)"
        )
    rows, columns = s.sizes
    straight = cast(_orthogonal(s, rows > columns), s.dtype)
    ratio = math.sqrt(max(1.0, rows / columns)) if columns else 1.0
    if s["adjust_lr_fn"] == "match_rms_adamw":
        ratio = 0.2 * math.sqrt(max(rows, columns))
    return s.lr * s.number(ratio) * straight


def _orthogonal(s: Step, turned: bool) -> Variable:
    """A matrix of the gradient's singular vectors, whose singular values are near 1."""
    a, b, c = (np.asarray(n, np.float32) for n in s["ns_coefficients"])
    x = cast(s.g.T if turned else s.g, "bfloat16")
    x = x / cast(maximum(sqrt(total(sqr(cast(x, "float32")))), np.float32(s["eps"])), "bfloat16")
    for _ in range(s["ns_steps"]):
        g = dot(x, x.T)
        g = cast(b * cast(g, "float32") + c * cast(dot(g, g), "float32"), "bfloat16")
        x = cast(a * cast(x, "float32") + cast(dot(g, x), "float32"), "bfloat16")
    return x.T if turned else x
