"""Kullback-Leibler divergences, by a table of formulas for pairs of classes.

The formulas are in closed form, from the means of log densities; several are in Gil, Alajaji and
Linder, "Renyi divergence measures for commonly used univariate continuous distributions", 2013.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log, pi
from typing import Any

import numpy as np

import symdnn.tensor as T
from symdnn.distributions import (
    bounded,
    classes,
    combined,
    discrete,
    folded,
    half_line,
    real_line,
    vectors,
)
from symdnn.distributions.base import Distribution, Lacking, sum_rightmost
from symdnn.graph.variable import Variable
from symdnn.ops.elemwise import like

__all__ = ["kl_divergence", "register_kl"]

Formula = Callable[[Any, Any], Variable]
_TABLE: dict[tuple[type, type], Formula] = {}


def register_kl(type_p: type, type_q: type) -> Callable[[Formula], Formula]:
    """A decorator that enters a formula ``f(p, q)`` for two classes and those derived from them."""

    def enter(formula: Formula) -> Formula:
        _TABLE[type_p, type_q] = formula
        return formula

    return enter


def kl_divergence(p: Distribution, q: Distribution) -> Variable:
    """The mean under ``p`` of ``p.log_prob - q.log_prob``, of the batch's shape.

    Raises :class:`NotImplementedError` for a pair without a formula.

    >>> from symdnn.distributions.real_line import Normal
    >>> float(kl_divergence(Normal(0.0, 1.0), Normal(1.0, 1.0)).eval())
    0.5
    """
    known = [
        (type(p).__mro__.index(a) + type(q).__mro__.index(b), f)
        for (a, b), f in _TABLE.items()
        if isinstance(p, a) and isinstance(q, b)
    ]
    if not known:
        raise Lacking(f"no divergence of {p} from {q} is known: register_kl enters a formula")
    return min(known, key=lambda ranked: ranked[0])[1](p, q)


def _weighted(p: Variable, logs: Variable) -> Variable:
    return T.switch(T.eq(p, 0), like(0, p), p * logs)


@register_kl(discrete.Bernoulli, discrete.Bernoulli)
def _bernoulli(p: discrete.Bernoulli, q: discrete.Bernoulli) -> Variable:
    yes = T.softplus(-q.logits) - T.softplus(-p.logits)
    no = T.softplus(q.logits) - T.softplus(p.logits)
    return _weighted(p.probs, yes) + _weighted(T.sigmoid(-p.logits), no)


@register_kl(discrete.Binomial, discrete.Binomial)
def _binomial(p: discrete.Binomial, q: discrete.Binomial) -> Variable:
    same = T.eq(p.total_count, q.total_count)
    return T.switch(same, p.total_count * _bernoulli(p, q), like(np.inf, p.total_count))


@register_kl(discrete.Geometric, discrete.Geometric)
def _geometric(p: discrete.Geometric, q: discrete.Geometric) -> Variable:
    return -p.entropy() + T.softplus(-q.logits) + T.exp(-p.logits) * T.softplus(q.logits)


@register_kl(discrete.Poisson, discrete.Poisson)
def _poisson(p: discrete.Poisson, q: discrete.Poisson) -> Variable:
    return _weighted(p.rate, T.log(p.rate / q.rate)) - (p.rate - q.rate)


@register_kl(classes.OfClasses, classes.OfClasses)
def _classes(p: classes.OfClasses, q: classes.OfClasses) -> Variable:
    return _weighted(p.probs, p.logits - q.logits).sum(axis=-1)


@register_kl(real_line.Normal, real_line.Normal)
def _normal(p: real_line.Normal, q: real_line.Normal) -> Variable:
    ratio, off = T.log(p.scale / q.scale), (p.loc - q.loc) / q.scale
    return (T.expm1(2 * ratio) + T.sqr(off)) / 2 - ratio


@register_kl(half_line.LogNormal, half_line.LogNormal)
def _log_normal(p: half_line.LogNormal, q: half_line.LogNormal) -> Variable:
    return _normal(p, q)


@register_kl(folded.HalfNormal, folded.HalfNormal)
def _half_normal(p: folded.HalfNormal, q: folded.HalfNormal) -> Variable:
    ratio = T.log(p.scale / q.scale)
    return T.expm1(2 * ratio) / 2 - ratio


@register_kl(real_line.Laplace, real_line.Laplace)
def _laplace(p: real_line.Laplace, q: real_line.Laplace) -> Variable:
    off = abs(p.loc - q.loc)
    moved = p.scale * T.expm1(-off / p.scale) + off
    return moved / q.scale + p.scale / q.scale - T.log(p.scale / q.scale) - 1


@register_kl(real_line.Gumbel, real_line.Gumbel)
def _gumbel(p: real_line.Gumbel, q: real_line.Gumbel) -> Variable:
    ratio, off = p.scale / q.scale, (p.loc - q.loc) / q.scale
    gained = off + like(real_line.EULER, ratio) * ratio + T.exp(-off + T.gammaln(1 + ratio))
    return gained - T.log(ratio) - like(1 + real_line.EULER, ratio)


@register_kl(folded.HalfCauchy, folded.HalfCauchy)
def _half_cauchy(p: folded.HalfCauchy, q: folded.HalfCauchy) -> Variable:
    """That of the distributions with both halves."""
    return T.log(T.sqr(p.scale + q.scale) / (4 * p.scale * q.scale))


@register_kl(real_line.Cauchy, real_line.Cauchy)
def _cauchy(p: real_line.Cauchy, q: real_line.Cauchy) -> Variable:
    """Chyzak and Nielsen, 2019."""
    spread = T.sqr(p.scale + q.scale) + T.sqr(p.loc - q.loc)
    return T.log(spread / (4 * p.scale * q.scale))


@register_kl(bounded.Uniform, bounded.Uniform)
def _uniform(p: bounded.Uniform, q: bounded.Uniform) -> Variable:
    within = T.ge(p.low, q.low) & T.le(p.high, q.high)
    found = T.log((q.high - q.low) / (p.high - p.low))
    return T.switch(within, found, like(np.inf, found))


@register_kl(half_line.Exponential, half_line.Exponential)
def _exponential(p: half_line.Exponential, q: half_line.Exponential) -> Variable:
    ratio = q.rate / p.rate
    return ratio - 1 - T.log(ratio)


@register_kl(half_line.Gamma, half_line.Gamma)
def _gamma(p: half_line.Gamma, q: half_line.Gamma) -> Variable:
    a, b = p.concentration, q.concentration
    shapes = T.gammaln(b) - T.gammaln(a) + (a - b) * T.digamma(a)
    return shapes + b * T.log(p.rate / q.rate) + a * (q.rate / p.rate - 1)


@register_kl(half_line.InverseGamma, half_line.InverseGamma)
def _inverse_gamma(p: half_line.InverseGamma, q: half_line.InverseGamma) -> Variable:
    return _gamma(p, q)


@register_kl(half_line.Exponential, half_line.Gamma)
def _exponential_gamma(p: half_line.Exponential, q: half_line.Gamma) -> Variable:
    b, ratio = q.concentration, q.rate / p.rate
    rest = like(real_line.EULER, ratio) * (1 - b)
    return -b * T.log(ratio) + ratio + T.gammaln(b) - 1 - rest


@register_kl(half_line.Weibull, half_line.Weibull)
def _weibull(p: half_line.Weibull, q: half_line.Weibull) -> Variable:
    """Bauckhage, 2013."""
    k, m = p.concentration, q.concentration
    shapes = T.log(k / p.scale**k) - T.log(m / q.scale**m)
    first = (k - m) * (T.log(p.scale) - like(real_line.EULER, k) / k)
    return shapes + first + (p.scale / q.scale) ** m * T.gamma(m / k + 1) - 1


@register_kl(half_line.Pareto, half_line.Pareto)
def _pareto(p: half_line.Pareto, q: half_line.Pareto) -> Variable:
    ratio = p.scale / q.scale
    found = q.alpha * T.log(ratio) + T.log(p.alpha / q.alpha) + q.alpha / p.alpha - 1
    return T.switch(ratio < 1, like(np.inf, found), found)


@register_kl(bounded.Beta, bounded.Beta)
def _beta(p: bounded.Beta, q: bounded.Beta) -> Variable:
    a, b, c, d = p.concentration1, p.concentration0, q.concentration1, q.concentration0
    turned = (a - c) * T.digamma(a) + (b - d) * T.digamma(b)
    return T.betaln(c, d) - T.betaln(a, b) + turned + (c + d - a - b) * T.digamma(a + b)


@register_kl(bounded.ContinuousBernoulli, bounded.ContinuousBernoulli)
def _continuous_bernoulli(
    p: bounded.ContinuousBernoulli, q: bounded.ContinuousBernoulli
) -> Variable:
    rest = q._log_normalizer() - p._log_normalizer()
    return p.mean * (p.logits - q.logits) + rest


@register_kl(bounded.VonMises, bounded.VonMises)
def _von_mises(p: bounded.VonMises, q: bounded.VonMises) -> Variable:
    k, m = p.concentration, q.concentration
    lengths = T.i1e(k) / T.i0e(k)
    turned = k - m * T.cos(p.loc - q.loc)
    return T.log(T.i0e(m) / T.i0e(k)) + m - k + lengths * turned


@register_kl(vectors.Dirichlet, vectors.Dirichlet)
def _dirichlet(p: vectors.Dirichlet, q: vectors.Dirichlet) -> Variable:
    a, b = p.concentration, q.concentration
    total = T.digamma(a.sum(axis=-1, keepdims=True))
    turned = ((a - b) * (T.digamma(a) - total)).sum(axis=-1)
    return q._log_normalizer() - p._log_normalizer() + turned


@register_kl(bounded.Uniform, real_line.Normal)
def _uniform_normal(p: bounded.Uniform, q: real_line.Normal) -> Variable:
    square = p.variance + T.sqr((p.low + p.high) / 2 - q.loc)
    rest = T.log(q.scale) + like(0.5 * log(2 * pi), q.scale)
    return square / (2 * T.sqr(q.scale)) + rest - T.log(p.high - p.low)


@register_kl(combined.Independent, combined.Independent)
def _independent(p: combined.Independent, q: combined.Independent) -> Variable:
    if p.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
        raise Lacking(f"{p} and {q} take different numbers of dimensions together")
    return sum_rightmost(kl_divergence(p.base_dist, q.base_dist), p.reinterpreted_batch_ndims)


@register_kl(combined.TransformedDistribution, combined.TransformedDistribution)
def _transformed(
    p: combined.TransformedDistribution, q: combined.TransformedDistribution
) -> Variable:
    if p.transforms != q.transforms or p.event_dim != q.event_dim:
        raise Lacking(f"{p} and {q} have different transforms: equal ones are wanted")
    return kl_divergence(p.base_dist, q.base_dist)
