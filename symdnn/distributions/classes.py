"""Distributions of classes: categorical, one-hot, multinomial; and relaxed ones."""

from __future__ import annotations

from typing import Any, ClassVar

import symdnn.tensor as T
from symdnn.distributions import constraints
from symdnn.distributions.base import Distribution, counted, dims_after, inside, stream_of
from symdnn.distributions.constraints import Constraint
from symdnn.distributions.discrete import Binomial, OfProbability, one_of_two
from symdnn.graph.dims import Dim
from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import Constant, Variable, as_variable
from symdnn.ops.core.gradient_control import disconnected_grad
from symdnn.ops.elemwise import like
from symdnn.ops.random.random_stream import RandomStream

__all__ = [
    "Categorical", "Multinomial", "OneHotCategorical",
    "OneHotCategoricalStraightThrough", "RelaxedBernoulli", "RelaxedOneHotCategorical",
]  # fmt: skip

_WEIGHTS = constraints.independent(constraints.nonnegative, 1)


class OfClasses(Distribution):
    """Base of distributions of classes, by ``probs`` (of any scale) or ``logits``, classes last.

    ``probs`` are then normalised, and ``logits`` are logarithms of probabilities.
    """

    arg_constraints: ClassVar = {"probs": _WEIGHTS, "logits": constraints.real_vector}
    probs: Variable
    logits: Variable

    def __init__(
        self, probs: TensorLike | None = None, logits: TensorLike | None = None,
        validate_args: bool | None = None, **others: TensorLike,
    ) -> None:  # fmt: skip
        super().__init__(validate_args, **others, **one_of_two(self, probs, logits))
        if probs is None:
            self.logits = T.log_softmax(self.logits, axis=-1)
            self.probs = T.exp(self.logits)
        else:
            self.probs = self.probs / self.probs.sum(axis=-1, keepdims=True)
            self.logits = T.log(self.probs)

    @property
    def num_events(self) -> Dim:
        """The number of classes."""
        found: Dim = dims_after(self.logits, 1)[0]
        return found

    def _weighted(self, weights: Variable) -> Variable:
        """The sum of weights times logits over the classes; a weight of 0 counts for nothing."""
        return counted(weights, self.logits).sum(axis=-1)

    def entropy(self) -> Variable:
        return -self._weighted(self.probs)


class Categorical(OfClasses):
    """The index of a class.

    >>> round(float(Categorical(probs=[0.25, 0.75]).log_prob(1).eval()), 6)
    -0.287682
    """

    has_enumerate_support: ClassVar[bool] = True

    @property
    def support(self) -> Constraint:
        count = dims_after(self.logits, 1)[0]
        return constraints.integer_interval(0, count - 1)

    @property
    def mean(self) -> Variable:
        return like(float("nan"), self.probs) * self.probs[..., 0]

    variance = mean

    @property
    def mode(self) -> Variable:
        return T.argmax(self.probs, axis=-1)

    def log_prob(self, value: TensorLike) -> Variable:
        v = as_variable(value)
        k = T.cast(self._checked(v, self.support, "the value"), "int64")
        lead = self.logits.type.ndim - 1
        if k.type.ndim > lead:
            ahead = ["x"] * (k.type.ndim - lead)
            table = self.logits.dimshuffle([*ahead, *range(lead + 1)])
            table = T.alloc(table, *[k.shape[i] for i in range(k.type.ndim)], self.num_events)
        else:
            table = self.logits
            dims = [self.logits.shape[i] for i in range(lead)]
            k = T.alloc(k, *dims) if lead else k
        k = k.dimshuffle([*range(k.type.ndim), "x"])
        return T.take_along_axis(table, k, axis=-1)[..., 0]

    def sample(self, sample_shape: Any = (), rng: RandomStream | None = None) -> Variable:
        dims = self._extended(sample_shape)
        return disconnected_grad(stream_of(rng).categorical(dims, self.probs))

    def enumerate_support(self, expand: bool = True) -> Variable:
        return self._enumerated(T.arange(self.num_events, dtype="int64"), expand)


class OneHotCategorical(OfClasses):
    """A class as a vector with a single 1."""

    has_enumerate_support: ClassVar[bool] = True
    event_dim = 1

    @property
    def event_shape(self) -> tuple[Dim, ...]:
        return (self.num_events,)

    @property
    def support(self) -> Constraint:
        return constraints.one_hot

    @property
    def mean(self) -> Variable:
        return self.probs

    @property
    def mode(self) -> Variable:
        return self._one_hot(T.argmax(self.probs, axis=-1))

    @property
    def variance(self) -> Variable:
        return self.probs * (1 - self.probs)

    def _one_hot(self, index: Variable) -> Variable:
        wide = index.dimshuffle([*range(index.type.ndim), "x"])
        return T.cast(T.eq(wide, T.arange(self.num_events)), self.dtype)

    def log_prob(self, value: TensorLike) -> Variable:
        return self._weighted(self._value(value))

    def sample(self, sample_shape: Any = (), rng: RandomStream | None = None) -> Variable:
        dims = self._extended(sample_shape)[:-1]
        return self._one_hot(stream_of(rng).categorical(dims, self.probs))

    def enumerate_support(self, expand: bool = True) -> Variable:
        return self._enumerated(T.eye(self.num_events, dtype=self.dtype), expand)


class OneHotCategoricalStraightThrough(OneHotCategorical):
    """As :class:`OneHotCategorical`; gradients of draws go to the probabilities (Bengio 2013)."""

    has_rsample: ClassVar[bool] = True

    def rsample(self, sample_shape: Any = (), rng: RandomStream | None = None) -> Variable:
        drawn = self.sample(sample_shape, rng)
        return drawn + (self.probs - disconnected_grad(self.probs))


class Multinomial(OfClasses):
    """The count of each class in ``total_count`` independent draws."""

    event_dim = 1
    total_count: TensorLike

    def __init__(
        self, total_count: TensorLike = 1, probs: TensorLike | None = None,
        logits: TensorLike | None = None, validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        super().__init__(probs, logits, validate_args)
        if isinstance(n := as_variable(total_count), Constant):
            self._checked(n, constraints.nonnegative_integer, "total_count")
        self.total_count = total_count

    @property
    def event_shape(self) -> tuple[Dim, ...]:
        return (self.num_events,)

    @property
    def support(self) -> Constraint:
        return constraints.independent(constraints.nonnegative_integer, 1)

    @property
    def mean(self) -> Variable:
        return T.cast(self.total_count, self.dtype) * self.probs

    @property
    def variance(self) -> Variable:
        return self.mean * (1 - self.probs)

    def log_prob(self, value: TensorLike) -> Variable:
        k = self._value(value)
        ways = T.gammaln(k.sum(axis=-1) + 1) - T.gammaln(k + 1).sum(axis=-1)
        return ways + self._weighted(k)

    def sample(self, sample_shape: Any = (), rng: RandomStream | None = None) -> Variable:
        dims, n = self._extended(sample_shape)[:-1], self.total_count
        return stream_of(rng).multinomial(dims, n, self.probs, dtype=self.dtype)

    def entropy(self) -> Variable:
        """By the sum over the counts of each class alone."""
        n = T.cast(self.total_count, self.dtype)
        k = T.arange(1, T.cast(n, "int64") + 1, dtype=self.dtype)
        k = k.dimshuffle([0, *["x"] * self.probs.type.ndim])
        alone = T.exp(Binomial(n, self.probs, validate_args=False).log_prob(k))
        ways = (alone * T.gammaln(k + 1)).sum(axis=[0, -1])
        return n * super().entropy() - T.gammaln(n + 1) + ways


class RelaxedBernoulli(OfProbability):
    """A Bernoulli value made continuous by a ``temperature`` (Maddison et al. 2017)."""

    arg_constraints: ClassVar = {
        "temperature": constraints.positive, **OfProbability.arg_constraints,
    }  # fmt: skip
    has_rsample: ClassVar[bool] = True
    temperature: Variable

    def __init__(
        self, temperature: TensorLike, probs: TensorLike | None = None,
        logits: TensorLike | None = None, validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        super().__init__(probs, logits, validate_args, temperature=temperature)

    @property
    def support(self) -> Constraint:
        return constraints.unit_interval

    def log_prob(self, value: TensorLike) -> Variable:
        x = self._value(value)
        off = self.logits - self.temperature * T.logit(x)
        found = T.log(self.temperature) + off - 2 * T.softplus(off)
        return inside(self.support, x, found - T.log(x) - T.log1p(-x))

    def rsample(self, sample_shape: Any = (), rng: RandomStream | None = None) -> Variable:
        noise = stream_of(rng).logistic(self._extended(sample_shape), dtype=self.dtype)
        return T.sigmoid((self.logits + noise) / self.temperature)


class RelaxedOneHotCategorical(OfClasses):
    """A one-hot vector made continuous by a scalar ``temperature`` (Maddison et al. 2017)."""

    has_rsample: ClassVar[bool] = True
    event_dim = 1

    def __init__(
        self, temperature: TensorLike, probs: TensorLike | None = None,
        logits: TensorLike | None = None, validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        super().__init__(probs, logits, validate_args)
        given = T.cast(temperature, self.dtype)
        self.temperature = self._checked(given, constraints.positive, "temperature")

    @property
    def event_shape(self) -> tuple[Dim, ...]:
        return (self.num_events,)

    @property
    def support(self) -> Constraint:
        return constraints.simplex

    def log_prob(self, value: TensorLike) -> Variable:
        x, t = self._value(value), self.temperature
        logs = T.log(x)
        score = self.logits - t * logs
        count = T.cast(self.num_events, self.dtype)
        scale = T.gammaln(count) + (count - 1) * T.log(t)
        total = (score - logs).sum(axis=-1)
        return scale + total - count * T.logsumexp(score, axis=-1)

    def rsample(self, sample_shape: Any = (), rng: RandomStream | None = None) -> Variable:
        noise = stream_of(rng).gumbel(self._extended(sample_shape), dtype=self.dtype)
        return T.softmax((self.logits + noise) / self.temperature, axis=-1)

    def entropy(self) -> Variable:
        raise self._lacks("entropy")
