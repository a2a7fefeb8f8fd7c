"""Distributions of all numbers, of a location and a scale: normal, Laplace, Cauchy, ..."""

from __future__ import annotations

from math import log, pi
from typing import Any, ClassVar

import numpy as np

import symdnn.tensor as T
from symdnn.distributions import constraints
from symdnn.distributions.base import Distribution, stream_of
from symdnn.distributions.constraints import Constraint
from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import Variable
from symdnn.ops.elemwise import like
from symdnn.ops.random.random_stream import RandomStream

__all__ = ["Cauchy", "Gumbel", "Laplace", "LocationScale", "Logistic", "Normal", "StudentT"]

EULER = 0.57721566490153286061


class LocationScale(Distribution):
    """Base of ``loc + scale * z`` with a standard ``z``."""

    arg_constraints: ClassVar = {"loc": constraints.real, "scale": constraints.positive}
    has_rsample: ClassVar[bool] = True
    loc: Variable
    scale: Variable

    def __init__(
        self, loc: TensorLike = 0.0, scale: TensorLike = 1.0, validate_args: bool | None = None
    ) -> None:
        super().__init__(validate_args, loc=loc, scale=scale)

    @property
    def support(self) -> Constraint:
        return constraints.real

    def standard(self, value: TensorLike) -> Variable:
        """``(value - loc) / scale``."""
        return (self._value(value) - self.loc) / self.scale

    @property
    def mean(self) -> Variable:
        return self._spread(self.loc)

    @property
    def mode(self) -> Variable:
        return self._spread(self.loc)


class Normal(LocationScale):
    """The normal distribution of mean ``loc`` and standard deviation ``scale``.

    >>> round(float(Normal(0.0, 1.0).log_prob(1.0).eval()), 6)
    -1.418939
    """

    @property
    def variance(self) -> Variable:
        return self._spread(T.sqr(self.scale))

    def log_prob(self, value: TensorLike) -> Variable:
        z = self.standard(value)
        return like(-0.5, z) * T.sqr(z) - T.log(self.scale) - like(0.5 * log(2 * pi), z)

    def cdf(self, value: TensorLike) -> Variable:
        return T.ndtr(self.standard(value))

    def log_cdf(self, value: TensorLike) -> Variable:
        """The logarithm of :meth:`cdf`, exact also where that underflows."""
        return T.log_ndtr(self.standard(value))

    def icdf(self, value: TensorLike) -> Variable:
        return self.loc + self.scale * T.ndtri(self._probability(value))

    def rsample(self, sample_shape: Any = (), rng: RandomStream | None = None) -> Variable:
        dims = self._extended(sample_shape)
        return stream_of(rng).normal(dims, self.loc, self.scale, dtype=self.dtype)

    def entropy(self) -> Variable:
        return self._spread(T.log(self.scale) + like(0.5 + 0.5 * log(2 * pi), self.scale))


class Laplace(LocationScale):
    """Laplace's distribution: the density falls by e over each ``scale``, to both sides."""

    @property
    def variance(self) -> Variable:
        return self._spread(2 * T.sqr(self.scale))

    def log_prob(self, value: TensorLike) -> Variable:
        z = self.standard(value)
        return -abs(z) - T.log(self.scale) - like(log(2), z)

    def cdf(self, value: TensorLike) -> Variable:
        z = self.standard(value)
        tail = like(0.5, z) * T.exp(-abs(z))
        return T.switch(z < 0, tail, 1 - tail)

    def icdf(self, value: TensorLike) -> Variable:
        p = self._probability(value)
        half = like(0.5, p)
        return self.loc + self.scale * T.switch(
            p < half, T.log(2 * T.minimum(p, half)), -T.log1p(1 - 2 * T.maximum(p, half))
        )

    def rsample(self, sample_shape: Any = (), rng: RandomStream | None = None) -> Variable:
        dims = self._extended(sample_shape)
        return stream_of(rng).laplace(dims, self.loc, self.scale, dtype=self.dtype)

    def entropy(self) -> Variable:
        return self._spread(T.log(self.scale) + like(1 + log(2), self.scale))


class Cauchy(LocationScale):
    """Cauchy's distribution, of median ``loc``; it has no mean."""

    @property
    def mean(self) -> Variable:
        return self._spread(like(np.nan, self.loc) + 0 * self.loc)

    @property
    def variance(self) -> Variable:
        return self._spread(like(np.inf, self.scale) + 0 * self.scale)

    def log_prob(self, value: TensorLike) -> Variable:
        z = self.standard(value)
        # Where the square would overflow, its logarithm is twice that of its root.
        far = 2 * T.log(T.maximum(abs(z), like(1e4, z)))
        near = T.log1p(T.sqr(T.minimum(abs(z), like(1e9, z))))
        size = T.switch(abs(z) < like(1e9, z), near, far)
        return -size - T.log(self.scale) - like(log(pi), z)

    def cdf(self, value: TensorLike) -> Variable:
        z = self.standard(value)
        return T.arctan2(T.ones_like(z), -z) / like(pi, z)

    def icdf(self, value: TensorLike) -> Variable:
        p = self._probability(value)
        half, below = like(0.5, p), p < like(0.5, p)
        # 1 - p is exact there, and so is the distance to the pole.
        tail = 1 / T.tan(like(pi, p) * T.switch(below, p, 1 - p))
        middle = T.tan(like(pi, p) * (p - half))
        return self.loc + self.scale * T.switch(
            abs(p - half) < like(0.25, p), middle, T.switch(below, -tail, tail)
        )

    def rsample(self, sample_shape: Any = (), rng: RandomStream | None = None) -> Variable:
        dims = self._extended(sample_shape)
        return stream_of(rng).cauchy(dims, self.loc, self.scale, dtype=self.dtype)

    def entropy(self) -> Variable:
        return self._spread(T.log(self.scale) + like(log(4 * pi), self.scale))


class Gumbel(LocationScale):
    """Gumbel's distribution of the largest of many values; ``loc`` is its mode."""

    @property
    def mean(self) -> Variable:
        return self._spread(self.loc + like(EULER, self.scale) * self.scale)

    @property
    def variance(self) -> Variable:
        return self._spread(like(pi**2 / 6, self.scale) * T.sqr(self.scale))

    def log_prob(self, value: TensorLike) -> Variable:
        z = self.standard(value)
        return -z - T.exp(-z) - T.log(self.scale)

    def cdf(self, value: TensorLike) -> Variable:
        return T.exp(-T.exp(-self.standard(value)))

    def icdf(self, value: TensorLike) -> Variable:
        return self.loc - self.scale * T.log(-T.log(self._probability(value)))

    def rsample(self, sample_shape: Any = (), rng: RandomStream | None = None) -> Variable:
        dims = self._extended(sample_shape)
        return stream_of(rng).gumbel(dims, self.loc, self.scale, dtype=self.dtype)

    def entropy(self) -> Variable:
        return self._spread(T.log(self.scale) + like(1 + EULER, self.scale))


class Logistic(LocationScale):
    """The logistic distribution: its ``cdf`` is a sigmoid."""

    @property
    def variance(self) -> Variable:
        return self._spread(like(pi**2 / 3, self.scale) * T.sqr(self.scale))

    def log_prob(self, value: TensorLike) -> Variable:
        z = self.standard(value)
        half = 0.5 * z
        return -2 * T.logaddexp(half, -half) - T.log(self.scale)

    def cdf(self, value: TensorLike) -> Variable:
        return T.sigmoid(self.standard(value))

    def icdf(self, value: TensorLike) -> Variable:
        return self.loc + self.scale * T.logit(self._probability(value))

    def rsample(self, sample_shape: Any = (), rng: RandomStream | None = None) -> Variable:
        dims = self._extended(sample_shape)
        return stream_of(rng).logistic(dims, self.loc, self.scale, dtype=self.dtype)

    def entropy(self) -> Variable:
        return self._spread(T.log(self.scale) + 2)


class StudentT(LocationScale):
    """Student's t distribution of ``df`` degrees of freedom."""

    arg_constraints: ClassVar = {"df": constraints.positive, **LocationScale.arg_constraints}
    df: Variable

    def __init__(
        self, df: TensorLike, loc: TensorLike = 0.0, scale: TensorLike = 1.0,
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        Distribution.__init__(self, validate_args, df=df, loc=loc, scale=scale)

    @property
    def mean(self) -> Variable:
        return self._spread(T.switch(self.df > 1, self.loc, like(np.nan, self.loc)))

    @property
    def variance(self) -> Variable:
        n = self.df
        found = T.sqr(self.scale) * n / T.switch(n > 2, n - 2, like(1, n))
        none = T.switch(n > 1, like(np.inf, n), like(np.nan, n))
        return self._spread(T.switch(n > 2, found, none))

    def log_prob(self, value: TensorLike) -> Variable:
        z, n = self.standard(value), self.df
        # The square over df, as the product of what does not overflow.
        ratio = z / T.sqrt(n)
        far = 2 * T.log(T.maximum(abs(ratio), like(1e4, z)))
        near = T.log1p(T.sqr(T.minimum(abs(ratio), like(1e9, z))))
        size = T.switch(abs(ratio) < like(1e9, z), near, far)
        rest = like(0.5, n) * T.log(n) + T.betaln(like(0.5, n), n / 2)
        return -(n + 1) / 2 * size - rest - T.log(self.scale)

    def cdf(self, value: TensorLike) -> Variable:
        z, n = self.standard(value), self.df
        below = z < 0
        # Not quite 0, where a root has no derivative.
        least = like(1e-150 if z.type.dtype == "float64" else 1e-15, z)
        square = T.sqr(T.switch(below, z - least, z + least))
        half = like(0.5, z)
        low, high = T.minimum(square, n), T.maximum(square, n)
        near = T.betaincc(half, n / 2, low / (n + low))
        far = T.betainc(n / 2, half, n / (n + high))
        tail = half * T.switch(square < n, near, far)
        return T.switch(below, tail, 1 - tail)

    def icdf(self, value: TensorLike) -> Variable:
        p, n = self._probability(value), self.df
        half = like(0.5, p)
        share = 2 * T.minimum(p, 1 - p)
        y = T.betainccinv(half, n / 2, share)  # of a square s as s / (df + s)
        rest = T.betaincinv(n / 2, half, share)
        size = T.sqrt(n * T.switch(y < half, y, 1 - rest) / T.switch(y < half, 1 - y, rest))
        return self.loc + self.scale * T.switch(p < half, -size, size)

    def rsample(self, sample_shape: Any = (), rng: RandomStream | None = None) -> Variable:
        dims = self._extended(sample_shape)
        t = stream_of(rng).standard_t(dims, self.df, dtype=self.dtype)
        return self.loc + self.scale * t

    def entropy(self) -> Variable:
        n = self.df
        psi = T.digamma((n + 1) / 2) - T.digamma(n / 2)
        rest = like(0.5, n) * T.log(n) + T.betaln(like(0.5, n), n / 2)
        return self._spread((n + 1) / 2 * psi + rest + T.log(self.scale))
