"""The generalised Pareto distribution: what exceeds a high threshold."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

import symdnn.tensor as T
from symdnn.distributions import constraints
from symdnn.distributions.base import inside, stream_of
from symdnn.distributions.constraints import Constraint
from symdnn.distributions.real_line import LocationScale
from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import Variable
from symdnn.ops.elemwise import like
from symdnn.ops.random.random_stream import RandomStream

__all__ = ["GeneralizedPareto"]

#: Where a quotient is its series of six terms: |x|, so that the derivative has all digits too.
_MAX_SERIES_X = 1e-3


def _series(u: Variable, terms: list[float], far: Variable) -> Variable:
    found: Variable = like(terms[-1], u)
    for c in reversed(terms[:-1]):
        found = found * u + like(c, u)
    return T.switch(abs(u) < like(_MAX_SERIES_X, u), found, far)


def _sound(u: Variable) -> Variable:
    return T.switch(abs(u) < like(_MAX_SERIES_X, u), like(1, u), u)


def _log1p_over(u: Variable) -> Variable:
    """``log1p(u) / u``, 1 at 0."""
    v = _sound(u)
    return _series(u, [1, -1 / 2, 1 / 3, -1 / 4, 1 / 5, -1 / 6], T.log1p(v) / v)


def _expm1_over(u: Variable) -> Variable:
    """``expm1(u) / u``, 1 at 0."""
    v = _sound(u)
    return _series(u, [1, 1 / 2, 1 / 6, 1 / 24, 1 / 120, 1 / 720], T.expm1(v) / v)


class GeneralizedPareto(LocationScale):
    """``loc + scale (u ** -concentration - 1) / concentration`` of a uniform u; exponential at 0.

    >>> round(float(GeneralizedPareto(0.0, 1.0, 0.5).log_prob(2.0).eval()), 6)
    -2.079442
    """

    arg_constraints: ClassVar = {**LocationScale.arg_constraints, "concentration": constraints.real}
    concentration: Variable

    def __init__(
        self, loc: TensorLike, scale: TensorLike, concentration: TensorLike,
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        super(LocationScale, self).__init__(
            validate_args, loc=loc, scale=scale, concentration=concentration
        )

    @property
    def support(self) -> Constraint:
        k = self.concentration
        bounded = T.switch(k < 0, k, like(-1, k))
        top = T.switch(k < 0, self.loc - self.scale / bounded, like(np.inf, k))
        return constraints.interval(self.loc, top)

    def _moment(self, below: float, found: Variable) -> Variable:
        """``found`` where the concentration is below a bound, else infinity."""
        k = self.concentration
        return self._spread(T.switch(k < like(below, k), found, like(np.inf, k)))

    @property
    def mean(self) -> Variable:
        k = T.minimum(self.concentration, like(0.9999, self.concentration))
        sound = T.switch(self.concentration < 1, self.concentration, k)
        return self._moment(1.0, self.loc + self.scale / (1 - sound))

    @property
    def variance(self) -> Variable:
        k = T.switch(self.concentration < 0.5, self.concentration, like(0, self.concentration))
        return self._moment(0.5, T.sqr(self.scale / (1 - k)) / (1 - 2 * k))

    def _within(self, x: Variable) -> Variable:
        return self.support.check(x) & T.lt(x, np.inf)

    def _rate(self, value: TensorLike) -> tuple[Variable, Variable]:
        """(the value, minus the logarithm of the probability above it)."""
        x = self._value(value)
        within = self._within(x)
        z = T.switch(within, (x - self.loc) / self.scale, like(0, x))
        return x, z * _log1p_over(self.concentration * z)

    def log_prob(self, value: TensorLike) -> Variable:
        x, rate = self._rate(value)
        return inside(self.support, x, -(1 + self.concentration) * rate - T.log(self.scale))

    def cdf(self, value: TensorLike) -> Variable:
        x, rate = self._rate(value)
        over = T.switch(x > self.loc, like(1, x), T.switch(T.isnan(x), x, like(0, x)))
        return T.switch(self._within(x), -T.expm1(-rate), over)

    def log_cdf(self, value: TensorLike) -> Variable:
        """The logarithm of :meth:`cdf`."""
        return T.log(self.cdf(value))

    def log_survival_function(self, value: TensorLike) -> Variable:
        """The logarithm of the probability above a value, exact also where that underflows."""
        x, rate = self._rate(value)
        over = T.switch(x > self.loc, like(-np.inf, x), T.switch(T.isnan(x), x, like(0, x)))
        return T.switch(self._within(x), -rate, over)

    def _at_rate(self, rate: Variable) -> Variable:
        return self.loc + self.scale * rate * _expm1_over(self.concentration * rate)

    def icdf(self, value: TensorLike) -> Variable:
        at = self._probability(value)
        end, c = T.eq(at, 1), self.concentration
        last = T.switch(c < 0, self.loc - self.scale / T.switch(c < 0, c, like(-1, c)), np.inf)
        return T.switch(end, last, self._at_rate(-T.log1p(-T.switch(end, like(0, at), at))))

    def rsample(self, sample_shape: Any = (), rng: RandomStream | None = None) -> Variable:
        dims = self._extended(sample_shape)
        return self._at_rate(stream_of(rng).exponential(dims, dtype=self.dtype))

    def entropy(self) -> Variable:
        return self._spread(T.log(self.scale) + self.concentration + 1)
