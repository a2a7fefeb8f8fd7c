"""Distributions of an interval and of angles: uniform, beta, Kumaraswamy, von Mises, ..."""

from __future__ import annotations

from math import log, pi
from typing import Any, ClassVar

import numpy as np

import symdnn.tensor as T
from symdnn.distributions import constraints
from symdnn.distributions.base import Distribution, inside, stream_of
from symdnn.distributions.constraints import Constraint
from symdnn.distributions.discrete import OfProbability
from symdnn.distributions.half_line import Positive
from symdnn.distributions.real_line import LocationScale
from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import Variable
from symdnn.ops.elemwise import like
from symdnn.ops.random.random_stream import RandomStream

__all__ = ["Beta", "ContinuousBernoulli", "Kumaraswamy", "Uniform", "VonMises"]


class Uniform(Distribution):
    """The uniform distribution of ``[low, high)``."""

    arg_constraints: ClassVar = {"low": constraints.real, "high": constraints.real}
    has_rsample: ClassVar[bool] = True
    low: Variable
    high: Variable

    def __init__(
        self, low: TensorLike, high: TensorLike, validate_args: bool | None = None
    ) -> None:
        super().__init__(validate_args, low=low, high=high)
        self.high = self._checked(self.high, constraints.greater_than(self.low), "high")

    @property
    def support(self) -> Constraint:
        return constraints.interval(self.low, self.high)

    @property
    def mean(self) -> Variable:
        return self._spread((self.low + self.high) / 2)

    @property
    def mode(self) -> Variable:
        return self._spread(self.low + like(np.nan, self.low) * self.high)

    @property
    def variance(self) -> Variable:
        return self._spread(T.sqr(self.high - self.low) / 12)

    def log_prob(self, value: TensorLike) -> Variable:
        x = self._value(value)
        rule = constraints.half_open_interval(self.low, self.high)
        return inside(rule, x, 0 * x - T.log(self.high - self.low))

    def cdf(self, value: TensorLike) -> Variable:
        share = (self._value(value) - self.low) / (self.high - self.low)
        return T.clip(share, like(0, share), like(1, share))

    def icdf(self, value: TensorLike) -> Variable:
        return self.low + (self.high - self.low) * self._probability(value)

    def rsample(self, sample_shape: Any = (), rng: RandomStream | None = None) -> Variable:
        dims = self._extended(sample_shape)
        return stream_of(rng).uniform(dims, self.low, self.high, dtype=self.dtype)

    def entropy(self) -> Variable:
        return self._spread(T.log(self.high - self.low))


class OfTheUnit(Positive):
    """Base of distributions of (0, 1)."""

    @property
    def support(self) -> Constraint:
        return constraints.unit_interval

    def _inside(self, value: TensorLike) -> tuple[Variable, Variable]:
        x = self._value(value)
        return x, T.switch(self.support.check(x), x, like(0.5, x))

    def cdf(self, value: TensorLike) -> Variable:
        x = self._value(value)
        within = (x > 0) & (x < 1)
        sound = T.switch(within, x, like(0.5, x))
        outside = T.switch(T.isnan(x), x, T.switch(x > 0, like(1, x), like(0, x)))
        return T.switch(within, self._below(sound), outside)


class Beta(OfTheUnit):
    """The beta distribution of mean ``concentration1 / (concentration1 + concentration0)``."""

    arg_constraints: ClassVar = {
        "concentration1": constraints.positive, "concentration0": constraints.positive,
    }  # fmt: skip
    concentration1: Variable
    concentration0: Variable

    def __init__(
        self, concentration1: TensorLike, concentration0: TensorLike,
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            validate_args, concentration1=concentration1, concentration0=concentration0
        )

    @property
    def _both(self) -> tuple[Variable, Variable]:
        return self.concentration1, self.concentration0

    @property
    def mean(self) -> Variable:
        a, b = self._both
        return self._spread(a / (a + b))

    @property
    def mode(self) -> Variable:
        """NaN where both concentrations are at most 1: there are two, or none."""
        a, b = (T.maximum(c - 1, like(0, c)) for c in self._both)
        return self._spread(a / (a + b))

    @property
    def variance(self) -> Variable:
        a, b = self._both
        return self._spread(a * b / (T.sqr(a + b) * (a + b + 1)))

    def _log_density(self, x: Variable) -> Variable:
        a, b = self._both
        return T.xlogy0(a - 1, x) + T.xlog1py(b - 1, -x) - T.betaln(a, b)

    def _below(self, x: Variable) -> Variable:
        return T.betainc(*self._both, x)

    def icdf(self, value: TensorLike) -> Variable:
        return T.betaincinv(*self._both, self._probability(value))

    def rsample(self, sample_shape: Any = (), rng: RandomStream | None = None) -> Variable:
        return stream_of(rng).beta(self._extended(sample_shape), *self._both, dtype=self.dtype)

    def entropy(self) -> Variable:
        a, b = self._both
        rest = (a - 1) * T.digamma(a) + (b - 1) * T.digamma(b) - (a + b - 2) * T.digamma(a + b)
        return self._spread(T.betaln(a, b) - rest)


class Kumaraswamy(OfTheUnit):
    """Kumaraswamy's distribution, like the beta distribution, with a ``cdf`` of powers."""

    arg_constraints: ClassVar = Beta.arg_constraints
    concentration1: Variable
    concentration0: Variable

    def __init__(
        self, concentration1: TensorLike, concentration0: TensorLike,
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            validate_args, concentration1=concentration1, concentration0=concentration0
        )

    def _moment(self, n: int) -> Variable:
        a, b = self.concentration1, self.concentration0
        return b * T.exp(T.betaln(1 + n / a, b))

    @property
    def mean(self) -> Variable:
        return self._spread(self._moment(1))

    @property
    def mode(self) -> Variable:
        """NaN where a concentration is below 1, or both are 1: at an end, at both, or nowhere."""
        a, b = self.concentration1, self.concentration0
        inner = T.ge(a, 1) & T.ge(b, 1) & T.gt(a * b, 1)
        sound = T.switch(inner, a * b - 1, like(1, a))
        found = (T.switch(inner, a - 1, like(1, a)) / sound) ** (1 / a)
        return self._spread(T.switch(inner, found, like(np.nan, a)))

    @property
    def variance(self) -> Variable:
        return self._spread(self._moment(2) - T.sqr(self._moment(1)))

    def _log_density(self, x: Variable) -> Variable:
        a, b = self.concentration1, self.concentration0
        even = T.eq(b, 1) & T.eq(x, 1)  # 0 times the logarithm of 0
        inner = T.switch(even, like(0.5, x), x)
        above = T.log(-T.expm1(a * T.log(inner)))
        return T.log(a * b) + T.xlogy0(a - 1, x) + (b - 1) * above

    def _below(self, x: Variable) -> Variable:
        above = T.log(-T.expm1(self.concentration1 * T.log(x)))
        return -T.expm1(self.concentration0 * above)

    def icdf(self, value: TensorLike) -> Variable:
        a, b = self.concentration1, self.concentration0
        return (-T.expm1(T.log1p(-self._probability(value)) / b)) ** (1 / a)

    def rsample(self, sample_shape: Any = (), rng: RandomStream | None = None) -> Variable:
        dims = self._extended(sample_shape)
        return self.icdf(stream_of(rng).uniform(dims, dtype=self.dtype))

    def entropy(self) -> Variable:
        a, b = self.concentration1, self.concentration0
        harmonic = T.digamma(b + 1) - T.digamma(like(1, b))
        return self._spread(1 - 1 / b + (1 - 1 / a) * harmonic - T.log(a) - T.log(b))


class ContinuousBernoulli(OfProbability):
    """The density ``C p^x (1 - p)^(1 - x)`` of (0, 1) (Loaiza-Ganem and Cunningham 2019)."""

    has_rsample: ClassVar[bool] = True
    #: Below this half logit a series is used, where the formulas cancel.
    _near = 0.3

    @property
    def support(self) -> Constraint:
        return constraints.unit_interval

    def _parts(self) -> tuple[Variable, Variable, Variable]:
        """(half the logit, whether it is near 0, itself or 1 where it is near)."""
        h = self.logits / 2
        near = abs(h) < like(self._near, h)
        return h, near, T.switch(near, like(1, h), h)

    def _log_normalizer(self) -> Variable:
        """The logarithm of the integral of ``exp(logit x)``: that of ``sinh(h) / h``, and h."""
        h, near, far = self._parts()
        size, u = abs(far), T.sqr(T.switch(near, h, like(0, h)))
        terms = [1 / 6, -1 / 180, 1 / 2835, -1 / 37800, 1 / 467775, -691 / 3831077250]
        outer = size + T.log1p(-T.exp(-2 * size)) - T.log(2 * size)
        return h + T.switch(near, _polynomial(terms, u) * u, outer)

    @property
    def mean(self) -> Variable:
        h, near, far = self._parts()
        u = T.sqr(T.switch(near, h, like(0, h)))
        terms = [1 / 3, -1 / 45, 2 / 945, -1 / 4725, 2 / 93555, -1382 / 638512875]
        slope = T.switch(near, _polynomial(terms, u) * h, 1 / T.tanh(far) - 1 / far)
        return (1 + slope) / 2

    @property
    def variance(self) -> Variable:
        h, near, far = self._parts()
        u = T.sqr(T.switch(near, h, like(0, h)))
        terms = [1 / 3, -1 / 15, 2 / 189, -1 / 675, 2 / 10395, -1382 / 58046625]
        shrunk = T.exp(-abs(far))
        outer = 1 / T.sqr(far) - T.sqr(2 * shrunk / (1 - T.sqr(shrunk)))
        return T.switch(near, _polynomial(terms, u), outer) / 4

    def log_prob(self, value: TensorLike) -> Variable:
        x = self._value(value)
        return inside(self.support, x, x * self.logits - self._log_normalizer())

    def cdf(self, value: TensorLike) -> Variable:
        x = self._value(value)
        x = T.clip(x, like(0, x), like(1, x))
        small, near, level = self._level()
        # expm1(l x) / expm1(l), whose exponentials are those of negative numbers.
        down = -abs(level)
        grows = T.exp(down * (1 - x)) * T.expm1(down * x) / T.expm1(down)
        falls = T.expm1(down * x) / T.expm1(down)
        terms = [1, 1 / 2, 1 / 6, 1 / 24, 1 / 120, 1 / 720]
        flat = x * _polynomial(terms, small * x) / _polynomial(terms, small)
        return T.switch(near, flat, T.switch(level > 0, grows, falls))

    def icdf(self, value: TensorLike) -> Variable:
        p = self._probability(value)
        small, near, level = self._level()
        # log(1 + p expm1(level)) / level: what would overflow or cancel is written as its mirror
        # image, and next to 0 as the series of a Bernoulli's cumulants.
        mild = T.minimum(level, like(80, level))
        most = T.log1p(p * T.expm1(mild)) / mild
        shrunk = T.exp(-abs(level))
        grown = 1 + T.log(p + (1 - p) * shrunk) / level
        fallen = T.log(1 - p + p * shrunk) / level
        far = T.switch(level > 80, grown, T.switch((level < 0) & (p > 0.5), fallen, most))
        v, skew = p * (1 - p), 1 - 2 * p
        steps = [v / 2, v * skew / 6, v * (1 - 6 * v) / 24, v * skew * (1 - 12 * v) / 120]
        flat = p + small * (steps[0] + small * (steps[1] + small * (steps[2] + small * steps[3])))
        return T.switch(near, flat, T.clip(far, like(0, p), like(1, p)))

    def _level(self) -> tuple[Variable, Variable, Variable]:
        """(the logit where it is next to 0, else 0; whether it is; the logit where not, else 1)."""
        level = self.logits
        near = abs(level) < like(5e-3 if self.dtype == "float64" else 0.2, level)
        return T.switch(near, level, like(0, level)), near, T.switch(near, like(1, level), level)

    def rsample(self, sample_shape: Any = (), rng: RandomStream | None = None) -> Variable:
        dims = self._extended(sample_shape)
        return self.icdf(stream_of(rng).uniform(dims, dtype=self.dtype))

    def entropy(self) -> Variable:
        return self._log_normalizer() - self.mean * self.logits


def _polynomial(terms: list[float], u: Variable) -> Variable:
    found: Variable = like(terms[-1], u)
    for c in reversed(terms[:-1]):
        found = found * u + like(c, u)
    return found


class VonMises(LocationScale):
    """Von Mises' distribution of angles around ``loc``, with a concentration."""

    arg_constraints: ClassVar = {"loc": constraints.real, "concentration": constraints.positive}
    concentration: Variable

    def __init__(
        self, loc: TensorLike, concentration: TensorLike, validate_args: bool | None = None
    ) -> None:
        Distribution.__init__(self, validate_args, loc=loc, concentration=concentration)

    @property
    def variance(self) -> Variable:
        """The circular variance, 1 less the mean resultant length."""
        return self._spread(1 - self._resultant)

    @property
    def _resultant(self) -> Variable:
        k = self.concentration
        return T.i1e(k) / T.i0e(k)

    def log_prob(self, value: TensorLike) -> Variable:
        x, k = self._value(value), self.concentration
        fall = 2 * T.sqr(T.sin((x - self.loc) / 2))
        return -k * fall - T.log(T.i0e(k)) - like(log(2 * pi), k)

    def rsample(self, sample_shape: Any = (), rng: RandomStream | None = None) -> Variable:
        dims, stream = self._extended(sample_shape), stream_of(rng)
        return stream.von_mises(dims, self.loc, self.concentration, dtype=self.dtype)

    def entropy(self) -> Variable:
        k = self.concentration
        found = k * (1 - self._resultant) + T.log(T.i0e(k)) + like(log(2 * pi), k)
        return self._spread(found)
