"""Distributions of sizes: of normal and of Cauchy values around 0."""

from __future__ import annotations

from math import log, pi, sqrt
from typing import Any, ClassVar

import numpy as np

import symdnn.tensor as T
from symdnn.distributions import constraints
from symdnn.distributions.base import stream_of
from symdnn.distributions.half_line import Positive
from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import Variable
from symdnn.ops.elemwise import like
from symdnn.ops.random.random_stream import RandomStream

__all__ = ["HalfCauchy", "HalfNormal"]


class HalfNormal(Positive):
    """The size of a normal value of mean 0 and standard deviation ``scale``."""

    arg_constraints: ClassVar = {"scale": constraints.positive}
    scale: Variable

    def __init__(self, scale: TensorLike, validate_args: bool | None = None) -> None:
        super().__init__(validate_args, scale=scale)

    @property
    def mean(self) -> Variable:
        return self.scale * like(sqrt(2 / pi), self.scale)

    @property
    def mode(self) -> Variable:
        return T.zeros_like(self.scale)

    @property
    def variance(self) -> Variable:
        return T.sqr(self.scale) * like(1 - 2 / pi, self.scale)

    def _log_density(self, x: Variable) -> Variable:
        z = x / self.scale
        return like(-0.5, z) * T.sqr(z) - T.log(self.scale) + like(0.5 * log(2 / pi), z)

    def _below(self, x: Variable) -> Variable:
        return T.erf(x / self.scale * like(sqrt(0.5), x))

    def icdf(self, value: TensorLike) -> Variable:
        p = self._probability(value)
        return self.scale * like(sqrt(2), p) * T.erfinv(p)

    def rsample(self, sample_shape: Any = (), rng: RandomStream | None = None) -> Variable:
        return abs(
            stream_of(rng).normal(self._extended(sample_shape), 0.0, self.scale, dtype=self.dtype)
        )

    def entropy(self) -> Variable:
        return T.log(self.scale) + like(0.5 * log(pi / 2) + 0.5, self.scale)


class HalfCauchy(Positive):
    """The size of a Cauchy value of median 0; it has no mean."""

    arg_constraints: ClassVar = {"scale": constraints.positive}
    scale: Variable

    def __init__(self, scale: TensorLike, validate_args: bool | None = None) -> None:
        super().__init__(validate_args, scale=scale)

    @property
    def mean(self) -> Variable:
        return T.fill(self.scale, like(np.inf, self.scale))

    @property
    def mode(self) -> Variable:
        return T.zeros_like(self.scale)

    variance = mean

    def _log_density(self, x: Variable) -> Variable:
        z = x / self.scale
        near = T.log1p(T.sqr(T.minimum(z, like(1e9, z))))
        size = T.switch(z < like(1e9, z), near, 2 * T.log(T.maximum(z, like(1, z))))
        return like(log(2 / pi), z) - T.log(self.scale) - size

    def _below(self, x: Variable) -> Variable:
        return like(2 / pi, x) * T.arctan(x / self.scale)

    def icdf(self, value: TensorLike) -> Variable:
        p = self._probability(value)
        tail = 1 / T.tan(like(pi / 2, p) * (1 - p))
        return self.scale * T.switch(p > like(0.5, p), tail, T.tan(like(pi / 2, p) * p))

    def rsample(self, sample_shape: Any = (), rng: RandomStream | None = None) -> Variable:
        return abs(
            stream_of(rng).cauchy(self._extended(sample_shape), 0.0, self.scale, dtype=self.dtype)
        )

    def entropy(self) -> Variable:
        return T.log(self.scale) + like(log(2 * pi), self.scale)
