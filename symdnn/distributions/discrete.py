"""Distributions of whole numbers: Bernoulli, binomial, geometric, Poisson, ..."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

import symdnn.tensor as T
from symdnn.distributions import constraints
from symdnn.distributions.base import Distribution, counted, inside, stream_of
from symdnn.distributions.constraints import Constraint
from symdnn.errors import OptionError
from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import Constant, Variable, as_variable
from symdnn.ops.core.gradient_control import assert_, disconnected_grad
from symdnn.ops.elemwise import like
from symdnn.ops.random.random_stream import RandomStream

__all__ = [
    "Bernoulli", "Binomial", "Geometric", "NegativeBinomial", "OfProbability", "Poisson",
    "one_of_two",
]  # fmt: skip


def one_of_two(
    owner: object, probs: TensorLike | None, logits: TensorLike | None
) -> dict[str, TensorLike]:
    """The one of ``probs`` and ``logits`` that is given, by its name."""
    given = {k: v for k, v in (("probs", probs), ("logits", logits)) if v is not None}
    if len(given) != 1:
        name = type(owner).__name__
        raise OptionError(f"{name}: wanted either probs or logits, got {sorted(given) or 'none'}")
    return given


class OfProbability(Distribution):
    """Base of distributions of a probability, given as ``probs`` or as ``logits``.

    What is not given is computed: ``logits`` keep the digits of probabilities near 1.
    """

    arg_constraints: ClassVar = {"probs": constraints.unit_interval, "logits": constraints.real}
    probs: Variable
    logits: Variable

    def __init__(
        self, probs: TensorLike | None = None, logits: TensorLike | None = None,
        validate_args: bool | None = None, **others: TensorLike,
    ) -> None:  # fmt: skip
        super().__init__(validate_args, **others, **one_of_two(self, probs, logits))
        if probs is None:
            self.probs = T.sigmoid(self.logits)
        else:
            self.logits = T.logit(self.probs)

    @property
    def _fails(self) -> Variable:
        """The probability of a failure."""
        return T.sigmoid(-self.logits)

    @property
    def support(self) -> Constraint:
        return constraints.nonnegative_integer

    def sample(self, sample_shape: Any = (), rng: RandomStream | None = None) -> Variable:
        return disconnected_grad(self._drawn(sample_shape, stream_of(rng)))

    def _drawn(self, sample_shape: Any, rng: RandomStream) -> Variable:
        return self.rsample(sample_shape, rng)

    def _steps(self, value: TensorLike, below: Any) -> Variable:
        """A cdf of whole numbers: ``below`` of the value rounded down, 0 for negative values."""
        k = T.floor(self._value_of_cdf(value))
        found = below(T.switch(k < 0, like(0, k), k))
        return T.switch(k < 0, like(0, found), found)

    def _value_of_cdf(self, value: TensorLike) -> Variable:
        v = as_variable(value)
        return v if v.type.dtype == self.dtype else T.cast(v, self.dtype)


class Bernoulli(OfProbability):
    """1 with the probability ``probs``, else 0.

    >>> round(float(Bernoulli(0.25).log_prob(1.0).eval()), 6)
    -1.386294
    """

    has_enumerate_support: ClassVar[bool] = True

    @property
    def support(self) -> Constraint:
        return constraints.boolean

    @property
    def mean(self) -> Variable:
        return self.probs

    @property
    def mode(self) -> Variable:
        p = self.probs
        return T.switch(T.eq(p, 0.5), like(np.nan, p), T.cast(p > 0.5, self.dtype))

    @property
    def variance(self) -> Variable:
        return self.probs * self._fails

    def log_prob(self, value: TensorLike) -> Variable:
        x, logit = self._value(value), self.logits
        return counted(x, -T.softplus(-logit)) + counted(1 - x, -T.softplus(logit))

    def cdf(self, value: TensorLike) -> Variable:
        return self._steps(value, lambda k: T.switch(k < 1, self._fails, like(1, k)))

    def _drawn(self, sample_shape: Any, rng: RandomStream) -> Variable:
        return rng.binomial(self._extended(sample_shape), p=self.probs, dtype=self.dtype)

    def enumerate_support(self, expand: bool = True) -> Variable:
        return self._enumerated(T.constant([0.0, 1.0], self.dtype), expand)

    def entropy(self) -> Variable:
        size = abs(self.logits)
        part = T.switch(T.isinf(size), like(0, size), size) * T.sigmoid(-size)
        return T.softplus(-size) + part


class Binomial(OfProbability):
    """The number of successes in ``total_count`` trials of the probability ``probs``."""

    arg_constraints: ClassVar = {
        "total_count": constraints.nonnegative_integer, **OfProbability.arg_constraints,
    }  # fmt: skip
    has_enumerate_support: ClassVar[bool] = True
    total_count: Variable

    def __init__(
        self, total_count: TensorLike = 1, probs: TensorLike | None = None,
        logits: TensorLike | None = None, validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        super().__init__(probs, logits, validate_args, total_count=total_count)

    @property
    def support(self) -> Constraint:
        return constraints.integer_interval(0, self.total_count)

    @property
    def mean(self) -> Variable:
        return self._spread(self.total_count * self.probs)

    @property
    def mode(self) -> Variable:
        n = self.total_count
        return self._spread(T.minimum(T.floor((n + 1) * self.probs), n))

    @property
    def variance(self) -> Variable:
        return self._spread(self.total_count * self.probs * self._fails)

    def log_prob(self, value: TensorLike) -> Variable:
        k, n = self._value(value), self.total_count
        sound = T.switch(self.support.check(k), k, like(0, k))
        ways = -T.log1p(n) - T.betaln(n - sound + 1, sound + 1)
        yes = counted(sound, -T.softplus(-self.logits))
        no = counted(n - sound, -T.softplus(self.logits))
        return inside(self.support, k, ways + yes + no)

    def cdf(self, value: TensorLike) -> Variable:
        n = self.total_count

        def below(k: Variable) -> Variable:
            whole = T.ge(k, n)
            sound = T.switch(whole, like(0, k), k)
            left = T.switch(whole, like(1, k), n - sound)
            return T.switch(whole, like(1, k), T.betaincc(sound + 1, left, self.probs))

        return self._steps(value, below)

    def entropy(self) -> Variable:
        """The sum over all counts."""
        n = self._spread(self.total_count)
        k = T.arange(T.cast(T.max(n), "int64") + 1, dtype=self.dtype)
        k = k.dimshuffle([0, *["x"] * len(self.batch_shape)])
        found = self.log_prob(T.minimum(k, n))
        p = T.exp(found)
        return -T.switch(T.le(k, n) & T.gt(p, 0), p * found, like(0, p)).sum(axis=0)

    def _drawn(self, sample_shape: Any, rng: RandomStream) -> Variable:
        n = T.cast(self.total_count, "int64")
        return rng.binomial(self._extended(sample_shape), n, self.probs, dtype=self.dtype)

    def enumerate_support(self, expand: bool = True) -> Variable:
        """One ``total_count`` for all; else it is refused, in a call where only that knows it."""
        n = T.cast(self.total_count, "int64")
        most = T.max(n)
        same = T.all(T.eq(n, most))
        if isinstance(self.total_count, Constant) and not np.ptp(self.total_count.data) == 0:
            raise OptionError(f"{self}: the support differs between total_count's numbers")
        top = assert_(most, same, message=f"{self}: one total_count has one support")
        return self._enumerated(T.arange(top + 1, dtype=self.dtype), expand)


class NegativeBinomial(OfProbability):
    """The number of successes of probability ``probs`` before ``total_count`` failures."""

    arg_constraints: ClassVar = {
        "total_count": constraints.nonnegative, **OfProbability.arg_constraints,
    }  # fmt: skip
    total_count: Variable

    def __init__(
        self, total_count: TensorLike, probs: TensorLike | None = None,
        logits: TensorLike | None = None, validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        super().__init__(probs, logits, validate_args, total_count=total_count)

    @property
    def mean(self) -> Variable:
        return self._spread(self.total_count * T.exp(self.logits))

    @property
    def mode(self) -> Variable:
        found = T.floor((self.total_count - 1) * T.exp(self.logits))
        return self._spread(T.maximum(found, like(0, found)))

    @property
    def variance(self) -> Variable:
        return self._spread(self.total_count * T.exp(self.logits) / self._fails)

    def log_prob(self, value: TensorLike) -> Variable:
        k, n = self._value(value), self.total_count
        sound = T.switch(k < 0, like(0, k), k)
        ways = -T.log(n + sound) - T.betaln(n, sound + 1)
        yes = counted(sound, -T.softplus(-self.logits))
        return inside(self.support, k, ways + yes - n * T.softplus(self.logits))

    def cdf(self, value: TensorLike) -> Variable:
        return self._steps(value, lambda k: T.betaincc(k + 1, self.total_count, self.probs))

    def _drawn(self, sample_shape: Any, rng: RandomStream) -> Variable:
        dims = self._extended(sample_shape)
        return rng.negative_binomial(dims, self.total_count, self._fails, dtype=self.dtype)


class Geometric(OfProbability):
    """The number of failures before the first success, of probability ``probs``: 0 and more."""

    arg_constraints: ClassVar = {
        **OfProbability.arg_constraints, "probs": constraints.interval(0, 1, closed=(False, True)),
    }  # fmt: skip

    @property
    def mean(self) -> Variable:
        return T.exp(-self.logits)

    @property
    def mode(self) -> Variable:
        return T.zeros_like(self.probs)

    @property
    def variance(self) -> Variable:
        return T.exp(-self.logits) / self.probs

    def log_prob(self, value: TensorLike) -> Variable:
        k = self._value(value)
        fails = counted(k, -T.softplus(self.logits))
        return inside(self.support, k, fails - T.softplus(-self.logits))

    def cdf(self, value: TensorLike) -> Variable:
        return self._steps(value, lambda k: -T.expm1(-(k + 1) * T.softplus(self.logits)))

    def _drawn(self, sample_shape: Any, rng: RandomStream) -> Variable:
        return rng.geometric(self._extended(sample_shape), self.probs, dtype=self.dtype) - 1

    def entropy(self) -> Variable:
        return T.softplus(-self.logits) + T.exp(-self.logits) * T.softplus(self.logits)


class Poisson(Distribution):
    """The number of events of the mean ``rate``."""

    arg_constraints: ClassVar = {"rate": constraints.nonnegative}
    rate: Variable

    def __init__(self, rate: TensorLike, validate_args: bool | None = None) -> None:
        super().__init__(validate_args, rate=rate)

    @property
    def support(self) -> Constraint:
        return constraints.nonnegative_integer

    @property
    def mean(self) -> Variable:
        return self.rate

    @property
    def mode(self) -> Variable:
        return T.floor(self.rate)

    @property
    def variance(self) -> Variable:
        return self.rate

    def log_prob(self, value: TensorLike) -> Variable:
        k = self._value(value)
        sound = T.switch(k < 0, like(0, k), k)
        found = T.xlogy0(sound, self.rate) - self.rate - T.gammaln(sound + 1)
        return inside(self.support, k, found)

    def cdf(self, value: TensorLike) -> Variable:
        k = T.floor(T.cast(value, self.dtype))
        sound = T.switch(k < 0, like(0, k), k)
        return T.switch(k < 0, like(0, k), T.gammaincc(sound + 1, self.rate))

    def sample(self, sample_shape: Any = (), rng: RandomStream | None = None) -> Variable:
        dims = self._extended(sample_shape)
        return disconnected_grad(stream_of(rng).poisson(dims, self.rate, dtype=self.dtype))
