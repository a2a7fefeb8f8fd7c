"""Distributions of positive numbers: exponential, gamma, Weibull, Pareto, ..."""

from __future__ import annotations

from math import log, pi
from typing import Any, ClassVar, Self

import numpy as np

import symdnn.tensor as T
from symdnn.distributions import constraints
from symdnn.distributions.base import Distribution, inside, stream_of
from symdnn.distributions.constraints import Constraint
from symdnn.distributions.real_line import EULER
from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.elemwise import like
from symdnn.ops.random.random_stream import RandomStream

__all__ = [
    "Chi2", "Exponential", "FisherSnedecor", "Gamma", "InverseGamma",
    "LogNormal", "Pareto", "Weibull",
]  # fmt: skip


class Positive(Distribution):
    """Base of distributions of positive numbers."""

    has_rsample: ClassVar[bool] = True

    @property
    def support(self) -> Constraint:
        return constraints.nonnegative

    def _inside(self, value: TensorLike) -> tuple[Variable, Variable]:
        """(the value, the value or 1 where it is out of range)."""
        x = self._value(value)
        return x, T.switch(self.support.check(x), x, like(1, x))

    def log_prob(self, value: TensorLike) -> Variable:
        x, sound = self._inside(value)
        return inside(self.support, x, self._log_density(sound))

    def _log_density(self, x: Variable) -> Variable:
        raise NotImplementedError

    def cdf(self, value: TensorLike) -> Variable:
        x = self._value(value)
        sound = T.switch(x > 0, x, like(1, x))
        return T.switch(T.le(x, 0), like(0, x), self._below(sound)) + 0 * self._nan_of(x)

    def _below(self, x: Variable) -> Variable:
        raise self._lacks("cdf")

    def _nan_of(self, x: Variable) -> Variable:
        return T.switch(T.isnan(x), x, like(0, x))


class LogNormal(Positive):
    """``exp`` of a normal value of mean ``loc`` and standard deviation ``scale``."""

    arg_constraints: ClassVar = {"loc": constraints.real, "scale": constraints.positive}
    loc: Variable
    scale: Variable

    def __init__(
        self, loc: TensorLike, scale: TensorLike, validate_args: bool | None = None
    ) -> None:
        super().__init__(validate_args, loc=loc, scale=scale)

    @property
    def support(self) -> Constraint:
        return constraints.positive

    @property
    def mean(self) -> Variable:
        return self._spread(T.exp(self.loc + T.sqr(self.scale) / 2))

    @property
    def mode(self) -> Variable:
        return self._spread(T.exp(self.loc - T.sqr(self.scale)))

    @property
    def variance(self) -> Variable:
        square = T.sqr(self.scale)
        return self._spread(T.expm1(square) * T.exp(2 * self.loc + square))

    def _log_density(self, x: Variable) -> Variable:
        z = (T.log(x) - self.loc) / self.scale
        rest = T.log(self.scale) + like(0.5 * log(2 * pi), z)
        return like(-0.5, z) * T.sqr(z) - rest - T.log(x)

    def _below(self, x: Variable) -> Variable:
        return T.ndtr((T.log(x) - self.loc) / self.scale)

    def icdf(self, value: TensorLike) -> Variable:
        return T.exp(self.loc + self.scale * T.ndtri(self._probability(value)))

    def rsample(self, sample_shape: Any = (), rng: RandomStream | None = None) -> Variable:
        dims = self._extended(sample_shape)
        return T.exp(stream_of(rng).normal(dims, self.loc, self.scale, dtype=self.dtype))

    def entropy(self) -> Variable:
        rest = like(0.5 + 0.5 * log(2 * pi), self.scale)
        return self._spread(self.loc + T.log(self.scale) + rest)


class Exponential(Positive):
    """The exponential distribution of mean ``1 / rate``."""

    arg_constraints: ClassVar = {"rate": constraints.positive}
    rate: Variable

    def __init__(self, rate: TensorLike, validate_args: bool | None = None) -> None:
        super().__init__(validate_args, rate=rate)

    @property
    def mean(self) -> Variable:
        return 1 / self.rate

    @property
    def mode(self) -> Variable:
        return T.zeros_like(self.rate)

    @property
    def variance(self) -> Variable:
        return 1 / T.sqr(self.rate)

    def _log_density(self, x: Variable) -> Variable:
        return T.log(self.rate) - self.rate * x

    def _below(self, x: Variable) -> Variable:
        return -T.expm1(-self.rate * x)

    def icdf(self, value: TensorLike) -> Variable:
        return -T.log1p(-self._probability(value)) / self.rate

    def rsample(self, sample_shape: Any = (), rng: RandomStream | None = None) -> Variable:
        dims = self._extended(sample_shape)
        return stream_of(rng).exponential(dims, 1 / self.rate, dtype=self.dtype)

    def entropy(self) -> Variable:
        return 1 - T.log(self.rate)


class Gamma(Positive):
    """The gamma distribution of mean ``concentration / rate``."""

    arg_constraints: ClassVar = {
        "concentration": constraints.positive, "rate": constraints.positive,
    }  # fmt: skip
    concentration: Variable
    rate: Variable

    def __init__(
        self, concentration: TensorLike, rate: TensorLike, validate_args: bool | None = None
    ) -> None:
        super().__init__(validate_args, concentration=concentration, rate=rate)

    @property
    def mean(self) -> Variable:
        return self._spread(self.concentration / self.rate)

    @property
    def mode(self) -> Variable:
        top = self.concentration - 1
        return self._spread(T.maximum(top, like(0, top)) / self.rate)

    @property
    def variance(self) -> Variable:
        return self._spread(self.concentration / T.sqr(self.rate))

    def _log_density(self, x: Variable) -> Variable:
        a, y = self.concentration, self.rate * x
        return T.xlogy0(a - 1, y) - y - T.gammaln(a) + T.log(self.rate)

    def _below(self, x: Variable) -> Variable:
        return T.gammainc(self.concentration, self.rate * x)

    def icdf(self, value: TensorLike) -> Variable:
        return T.gammaincinv(self.concentration, self._probability(value)) / self.rate

    def rsample(self, sample_shape: Any = (), rng: RandomStream | None = None) -> Variable:
        dims = self._extended(sample_shape)
        return stream_of(rng).gamma(dims, self.concentration, 1 / self.rate, dtype=self.dtype)

    def entropy(self) -> Variable:
        a = self.concentration
        return self._spread(a - T.log(self.rate) + T.gammaln(a) + (1 - a) * T.digamma(a))


class Chi2(Gamma):
    """The distribution of the sum of ``df`` squares of standard normal values."""

    arg_constraints: ClassVar = {"df": constraints.positive}
    df: Variable

    def __init__(self, df: TensorLike, validate_args: bool | None = None) -> None:
        Distribution.__init__(self, validate_args, df=df)
        self._derive()

    def _derive(self) -> None:
        self.concentration = self.df / 2
        self.rate = like(0.5, self.df)

    def expand(self, batch_shape: Any) -> Self:
        new = super().expand(batch_shape)
        new._derive()
        return new


class InverseGamma(Positive):
    """The distribution of 1 over a gamma value of this concentration and rate."""

    arg_constraints: ClassVar = Gamma.arg_constraints
    concentration: Variable
    rate: Variable

    def __init__(
        self, concentration: TensorLike, rate: TensorLike, validate_args: bool | None = None
    ) -> None:
        super().__init__(validate_args, concentration=concentration, rate=rate)

    @property
    def support(self) -> Constraint:
        return constraints.positive

    @property
    def mean(self) -> Variable:
        a = self.concentration
        found = self.rate / T.switch(a > 1, a - 1, like(1, a))
        return self._spread(T.switch(a > 1, found, like(np.inf, a)))

    @property
    def mode(self) -> Variable:
        return self._spread(self.rate / (self.concentration + 1))

    @property
    def variance(self) -> Variable:
        a = T.switch(self.concentration > 2, self.concentration, like(3, self.concentration))
        found = T.sqr(self.rate / (a - 1)) / (a - 2)
        return self._spread(T.switch(self.concentration > 2, found, like(np.inf, a)))

    def _log_density(self, x: Variable) -> Variable:
        a, y = self.concentration, self.rate / x
        return (a + 1) * T.log(y) - y - T.gammaln(a) - T.log(self.rate)

    def _below(self, x: Variable) -> Variable:
        return T.gammaincc(self.concentration, self.rate / x)

    def icdf(self, value: TensorLike) -> Variable:
        return self.rate / T.gammainccinv(self.concentration, self._probability(value))

    def rsample(self, sample_shape: Any = (), rng: RandomStream | None = None) -> Variable:
        dims = self._extended(sample_shape)
        return self.rate / stream_of(rng).gamma(dims, self.concentration, dtype=self.dtype)

    def entropy(self) -> Variable:
        a = self.concentration
        return self._spread(a + T.log(self.rate) + T.gammaln(a) - (1 + a) * T.digamma(a))


class Weibull(Positive):
    """Weibull's distribution: ``scale`` times an exponential value to ``1 / concentration``."""

    arg_constraints: ClassVar = {
        "scale": constraints.positive, "concentration": constraints.positive,
    }  # fmt: skip
    scale: Variable
    concentration: Variable

    def __init__(
        self, scale: TensorLike, concentration: TensorLike, validate_args: bool | None = None
    ) -> None:
        super().__init__(validate_args, scale=scale, concentration=concentration)

    @property
    def mean(self) -> Variable:
        return self._spread(self.scale * T.gamma(1 + 1 / self.concentration))

    @property
    def mode(self) -> Variable:
        k = self.concentration
        base = T.switch(k > 1, (k - 1) / k, like(0, k))
        return self._spread(self.scale * base ** (1 / k))

    @property
    def variance(self) -> Variable:
        k = self.concentration
        spread = T.gamma(1 + 2 / k) - T.sqr(T.gamma(1 + 1 / k))
        return self._spread(T.sqr(self.scale) * spread)

    def _log_density(self, x: Variable) -> Variable:
        k, y = self.concentration, x / self.scale
        return T.log(k) - T.log(self.scale) + T.xlogy0(k - 1, y) - y**k

    def _below(self, x: Variable) -> Variable:
        return -T.expm1(-((x / self.scale) ** self.concentration))

    def icdf(self, value: TensorLike) -> Variable:
        return self.scale * (-T.log1p(-self._probability(value))) ** (1 / self.concentration)

    def rsample(self, sample_shape: Any = (), rng: RandomStream | None = None) -> Variable:
        e = stream_of(rng).exponential(self._extended(sample_shape), dtype=self.dtype)
        return self.scale * e ** (1 / self.concentration)

    def entropy(self) -> Variable:
        k = self.concentration
        return self._spread(like(EULER, k) * (1 - 1 / k) + T.log(self.scale) - T.log(k) + 1)


class Pareto(Positive):
    """Pareto's distribution: of at least ``scale``, with a tail of the power ``-alpha``."""

    arg_constraints: ClassVar = {"scale": constraints.positive, "alpha": constraints.positive}
    scale: Variable
    alpha: Variable

    def __init__(
        self, scale: TensorLike, alpha: TensorLike, validate_args: bool | None = None
    ) -> None:
        super().__init__(validate_args, scale=scale, alpha=alpha)

    @property
    def support(self) -> Constraint:
        return constraints.greater_than_eq(self.scale)

    def _inside(self, value: TensorLike) -> tuple[Variable, Variable]:
        x = self._value(value)
        return x, T.switch(self.support.check(x), x, self.scale)

    @property
    def mean(self) -> Variable:
        a = T.switch(self.alpha > 1, self.alpha, like(2, self.alpha))
        return self._spread(
            T.switch(self.alpha > 1, a * self.scale / (a - 1), like(np.inf, a) + 0 * self.scale)
        )

    @property
    def mode(self) -> Variable:
        return self._spread(self.scale)

    @property
    def variance(self) -> Variable:
        a = T.switch(self.alpha > 2, self.alpha, like(3, self.alpha))
        found = T.sqr(self.scale / (a - 1)) * a / (a - 2)
        return self._spread(T.switch(self.alpha > 2, found, like(np.inf, a) + 0 * self.scale))

    def _log_density(self, x: Variable) -> Variable:
        return T.log(self.alpha / x) - self.alpha * T.log(x / self.scale)

    def cdf(self, value: TensorLike) -> Variable:
        _, sound = self._inside(value)
        over = T.log1p((sound - self.scale) / self.scale)
        found = -T.expm1(-self.alpha * over)
        return found + self._nan_of(as_variable(value))

    def icdf(self, value: TensorLike) -> Variable:
        return self.scale * T.exp(-T.log1p(-self._probability(value)) / self.alpha)

    def rsample(self, sample_shape: Any = (), rng: RandomStream | None = None) -> Variable:
        e = stream_of(rng).exponential(self._extended(sample_shape), dtype=self.dtype)
        return self.scale * T.exp(e / self.alpha)

    def entropy(self) -> Variable:
        return self._spread(T.log(self.scale / self.alpha) + 1 + 1 / self.alpha)


class FisherSnedecor(Positive):
    """The ratio of two chi squared values, each over its degrees of freedom."""

    arg_constraints: ClassVar = {"df1": constraints.positive, "df2": constraints.positive}
    df1: Variable
    df2: Variable

    def __init__(self, df1: TensorLike, df2: TensorLike, validate_args: bool | None = None) -> None:
        super().__init__(validate_args, df1=df1, df2=df2)

    @property
    def mean(self) -> Variable:
        n = T.switch(self.df2 > 2, self.df2, like(3, self.df2))
        found = T.switch(self.df2 > 2, n / (n - 2), like(np.nan, n))
        return self._spread(found + 0 * self.df1)

    @property
    def mode(self) -> Variable:
        top = T.maximum(self.df1 - 2, like(0, self.df1))
        return self._spread(top / self.df1 * self.df2 / (self.df2 + 2))

    @property
    def variance(self) -> Variable:
        n, m = T.switch(self.df2 > 4, self.df2, like(5, self.df2)), self.df1
        found = 2 * T.sqr(n / (n - 2)) * (m + n - 2) / (m * (n - 4))
        return self._spread(T.switch(self.df2 > 4, found, like(np.nan, n)))

    def _log_density(self, x: Variable) -> Variable:
        a, b = self.df1 / 2, self.df2 / 2
        y = x * self.df1 / self.df2
        rest = T.betaln(a, b) - T.log(self.df1 / self.df2)
        return T.xlogy0(a - 1, y) - (a + b) * T.log1p(y) - rest

    def _below(self, x: Variable) -> Variable:
        y = x * self.df1 / self.df2
        # Where y is large its share is near 1, and the complement of that of 1 / y.
        small, one = T.minimum(y, like(1, y)), like(1, y)
        low = T.betainc(self.df1 / 2, self.df2 / 2, small / (1 + small))
        high = T.betaincc(self.df2 / 2, self.df1 / 2, 1 / (1 + T.maximum(y, one)))
        return T.switch(y < 1, low, high)

    def icdf(self, value: TensorLike) -> Variable:
        p, a, b = self._probability(value), self.df1 / 2, self.df2 / 2
        share, rest = T.betaincinv(a, b, p), T.betainccinv(b, a, p)
        return self.df2 / self.df1 * share / rest

    def entropy(self) -> Variable:
        a, b = self.df1 / 2, self.df2 / 2
        rest = (a - 1) * T.digamma(a) + (b + 1) * T.digamma(b) - (a + b) * T.digamma(a + b)
        return self._spread(T.betaln(a, b) - rest + T.log(self.df2 / self.df1))

    def rsample(self, sample_shape: Any = (), rng: RandomStream | None = None) -> Variable:
        dims, stream = self._extended(sample_shape), stream_of(rng)
        x, y = (stream.gamma(dims, n / 2, 2 / n, dtype=self.dtype) for n in (self.df1, self.df2))
        return x / y
