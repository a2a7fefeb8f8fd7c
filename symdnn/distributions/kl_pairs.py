"""Divergences between distributions of different classes, by moments under the first.

Each is ``-entropy(p) - mean of q.log_prob under p``, in closed form; infinity where p has
probability outside of q's support. Importing this module enters them.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log, pi, sqrt
from typing import Any

import numpy as np

import symdnn.tensor as T
from symdnn.distributions import (
    bounded,
    discrete,
    half_line,
    matrices,
    normal_vectors,
    real_line,
)
from symdnn.distributions.base import Distribution
from symdnn.distributions.kl import register_kl
from symdnn.graph.variable import Variable
from symdnn.ops.elemwise import like

__all__: list[str] = []

UNIT: tuple[type[Distribution], ...] = (bounded.Beta, bounded.ContinuousBernoulli)
HALF: tuple[type[Distribution], ...] = (half_line.Exponential, half_line.Gamma)
LINE: tuple[type[Distribution], ...] = (real_line.Gumbel, real_line.Laplace, real_line.Normal)


def _infinite(p: Any, q: Any) -> Variable:
    """Infinity, of the shape of both."""
    one, other = (T.alloc(np.asarray(np.inf, d.dtype), *d.batch_shape) for d in (p, q))
    return one + other


def _where(within: Variable, found: Variable) -> Variable:
    return T.switch(within, found, like(np.inf, found))


def _enter(
    firsts: tuple[type[Distribution], ...], second: type[Distribution],
    formula: Callable[[Any, Any], Variable],
) -> None:  # fmt: skip
    for first in firsts:
        register_kl(first, second)(formula)


# -- what has probability where the other one has none --------------------------------------------

_NARROW: tuple[type[Distribution], ...] = (
    bounded.Uniform, half_line.Pareto, bounded.ContinuousBernoulli, bounded.Beta,
)  # fmt: skip
for _q in _NARROW:
    _enter((*HALF, *LINE), _q, _infinite)
for _q in HALF:
    _enter(LINE, _q, _infinite)
_enter(UNIT, half_line.Pareto, _infinite)
_enter((half_line.Pareto,), bounded.Uniform, _infinite)
_enter((half_line.Pareto,), bounded.ContinuousBernoulli, _infinite)
_enter((half_line.Pareto,), bounded.Beta, _infinite)
_enter((discrete.Poisson,), discrete.Binomial, _infinite)
_enter((discrete.Poisson,), discrete.Bernoulli, _infinite)


# -- by moments -----------------------------------------------------------------------------------


def _to_normal(p: Distribution, q: real_line.Normal) -> Variable:
    square = (p.variance + T.sqr(p.mean - q.loc)) / (2 * T.sqr(q.scale))
    return square + T.log(q.scale) + like(0.5 * log(2 * pi), q.scale) - p.entropy()


_enter((*UNIT, *HALF, half_line.Pareto, real_line.Gumbel, real_line.Laplace),
       real_line.Normal, _to_normal)  # fmt: skip


def _to_exponential(p: Distribution, q: half_line.Exponential) -> Variable:
    return q.rate * p.mean - T.log(q.rate) - p.entropy()


def _log_mean(p: Any) -> Variable:
    """The mean of the logarithm."""
    if isinstance(p, bounded.Beta):
        return T.digamma(p.concentration1) - T.digamma(p.concentration1 + p.concentration0)
    if isinstance(p, half_line.Gamma):
        return T.digamma(p.concentration) - T.log(p.rate)
    if isinstance(p, half_line.Pareto):
        return T.log(p.scale) + 1 / p.alpha
    return _mean_log_between(p.low, p.high)


def _mean_log_between(low: Variable, high: Variable) -> Variable:
    """The mean of ``log x`` of uniform values."""
    return (T.xlogy0(high, high) - T.xlogy0(low, low)) / (high - low) - 1


def _to_gamma(p: Distribution, q: half_line.Gamma) -> Variable:
    a = q.concentration
    rest = T.gammaln(a) - a * T.log(q.rate) - (a - 1) * _log_mean(p)
    return rest + q.rate * p.mean - p.entropy()


_enter((*UNIT, half_line.Gamma, half_line.Pareto), half_line.Exponential, _to_exponential)
_enter((bounded.Beta, half_line.Pareto), half_line.Gamma, _to_gamma)


@register_kl(bounded.Uniform, half_line.Exponential)
def _uniform_exponential(p: bounded.Uniform, q: half_line.Exponential) -> Variable:
    return _where(T.ge(p.low, 0), _to_exponential(p, q))


@register_kl(bounded.Uniform, half_line.Gamma)
def _uniform_gamma(p: bounded.Uniform, q: half_line.Gamma) -> Variable:
    return _where(T.ge(p.low, 0), _to_gamma(_no_less(p, 0.0), q))


def _no_less(p: bounded.Uniform, low: float, high: float | None = None) -> bounded.Uniform:
    """``p``, or a sound one in its place where it goes beyond."""
    fits = T.ge(p.low, low) if high is None else T.ge(p.low, low) & T.le(p.high, high)
    end = low + 1
    return bounded.Uniform(
        T.switch(fits, p.low, like(low, p.low)), T.switch(fits, p.high, like(end, p.high)),
        validate_args=False,
    )  # fmt: skip


@register_kl(bounded.Uniform, half_line.Pareto)
def _uniform_pareto(p: bounded.Uniform, q: half_line.Pareto) -> Variable:
    sound = _no_less(p, 0.0)
    found = (q.alpha + 1) * _log_mean(sound) - T.log(q.alpha) - q.alpha * T.log(q.scale)
    return _where(T.ge(p.low, q.scale), found - p.entropy())


@register_kl(bounded.Uniform, bounded.Beta)
def _uniform_beta(p: bounded.Uniform, q: bounded.Beta) -> Variable:
    s, a, b = _no_less(p, 0.0, 1.0), q.concentration1, q.concentration0
    rest = (a - 1) * _log_mean(s) + (b - 1) * _mean_log_between(1 - s.high, 1 - s.low)
    return _where(T.ge(p.low, 0) & T.le(p.high, 1), T.betaln(a, b) - rest - p.entropy())


def _to_continuous_bernoulli(p: Distribution, q: bounded.ContinuousBernoulli) -> Variable:
    return q._log_normalizer() - p.mean * q.logits - p.entropy()


_enter((bounded.Beta,), bounded.ContinuousBernoulli, _to_continuous_bernoulli)


@register_kl(bounded.Uniform, bounded.ContinuousBernoulli)
def _uniform_continuous(p: bounded.Uniform, q: bounded.ContinuousBernoulli) -> Variable:
    return _where(T.ge(p.low, 0) & T.le(p.high, 1), _to_continuous_bernoulli(p, q))


def _to_uniform(p: Distribution, q: bounded.Uniform) -> Variable:
    return _where(T.le(q.low, 0) & T.ge(q.high, 1), T.log(q.high - q.low) - p.entropy())


_enter(UNIT, bounded.Uniform, _to_uniform)


def _to_gumbel(p: Distribution, q: real_line.Gumbel, log_of_mean: Variable) -> Variable:
    """``log_of_mean`` is the logarithm of the mean of ``exp(-x / q.scale)``."""
    tail = T.exp(q.loc / q.scale + log_of_mean)
    return (p.mean - q.loc) / q.scale + tail + T.log(q.scale) - p.entropy()


@register_kl(half_line.Exponential, real_line.Gumbel)
def _exponential_gumbel(p: half_line.Exponential, q: real_line.Gumbel) -> Variable:
    return _to_gumbel(p, q, -T.log1p(1 / (p.rate * q.scale)))


@register_kl(half_line.Gamma, real_line.Gumbel)
def _gamma_gumbel(p: half_line.Gamma, q: real_line.Gumbel) -> Variable:
    return _to_gumbel(p, q, -p.concentration * T.log1p(1 / (p.rate * q.scale)))


@register_kl(real_line.Normal, real_line.Gumbel)
def _normal_gumbel(p: real_line.Normal, q: real_line.Gumbel) -> Variable:
    return _to_gumbel(p, q, T.sqr(p.scale / q.scale) / 2 - p.loc / q.scale)


@register_kl(bounded.Uniform, real_line.Gumbel)
def _uniform_gumbel(p: bounded.Uniform, q: real_line.Gumbel) -> Variable:
    width = (p.high - p.low) / q.scale
    return _to_gumbel(p, q, T.log(-T.expm1(-width) / width) - p.low / q.scale)


@register_kl(real_line.Normal, real_line.Laplace)
def _normal_laplace(p: real_line.Normal, q: real_line.Laplace) -> Variable:
    off = p.loc - q.loc
    z = off / p.scale
    size = p.scale * like(sqrt(2 / pi), z) * T.exp(-T.sqr(z) / 2)
    size = size + off * T.erf(z * like(sqrt(0.5), z))
    return size / q.scale + T.log(2 * q.scale) - p.entropy()


@register_kl(discrete.Bernoulli, discrete.Poisson)
def _bernoulli_poisson(p: discrete.Bernoulli, q: discrete.Poisson) -> Variable:
    return q.rate - p.probs * T.log(q.rate) - p.entropy()


# -- of the same family ---------------------------------------------------------------------------


def _double_exponential() -> tuple[np.ndarray, np.ndarray]:
    """(logarithms of places in (0, 1), weights) of a rule for integrals that are singular at ends.

    H. Takahasi and M. Mori, "Double exponential formulas for numerical integration", 1974.
    """
    step = 1 / 16
    t = np.arange(-72, 73) * step
    z = pi * np.sinh(t)
    weights = step * pi * np.cosh(t) * np.exp(-np.logaddexp(0, z) - np.logaddexp(0, -z))
    return -np.logaddexp(0, -z), weights


def _log1mexp(z: Variable) -> Variable:
    """``log(1 - exp(z))`` of numbers below 0, to full precision at both ends."""
    half = like(-log(2), z)
    far = T.log1p(-T.exp(T.minimum(z, half)))
    return T.switch(z > half, T.log(-T.expm1(T.maximum(z, half))), far)


@register_kl(bounded.Kumaraswamy, bounded.Kumaraswamy)
def _kumaraswamy(p: bounded.Kumaraswamy, q: bounded.Kumaraswamy) -> Variable:
    """The mean of ``log(1 - x**a)`` has no closed form: it is an integral over the quantiles."""
    places, weights = (T.constant(v.astype(p.dtype)) for v in _double_exponential())
    a, b, other = (
        v.dimshuffle([*range(v.type.ndim), "x"])
        for v in (p.concentration1, p.concentration0, q.concentration1)
    )
    # x**a is 1 - w**(1 / b), with w the probability above x; a tiny power is its own log1p.
    power, ratio = places / b, other / a
    tiny = power < -60
    found = _log1mexp(ratio * _log1mexp(T.maximum(power, like(-60, power))))
    above = T.switch(tiny, T.log(ratio) + power, found)
    tail = (weights * above).sum(axis=-1)
    harmonic = T.digamma(p.concentration0 + 1) - T.digamma(like(1, p.concentration0))
    log_mean = -harmonic / p.concentration1
    first, second = q.concentration1, q.concentration0
    return (
        -T.log(first) - T.log(second) - (first - 1) * log_mean - (second - 1) * tail - p.entropy()
    )


@register_kl(matrices.Wishart, matrices.Wishart)
def _wishart(p: matrices.Wishart, q: matrices.Wishart) -> Variable:
    return p.kl_from(q)


_Normals = (normal_vectors.MultivariateNormal, normal_vectors.LowRankMultivariateNormal)
for _q in _Normals:
    _enter(_Normals, _q, normal_vectors.normal_kl)
