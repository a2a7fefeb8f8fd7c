"""Distributions made of others: transformed ones, independent dimensions, mixtures."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any, ClassVar, Self

import symdnn.tensor as T
from symdnn.distributions import constraints
from symdnn.distributions.base import Distribution, stream_of, sum_rightmost
from symdnn.distributions.classes import Categorical
from symdnn.distributions.constraints import Constraint
from symdnn.distributions.real_line import Normal
from symdnn.distributions.transforms import (
    ComposeTransform,
    StickBreakingTransform,
    Transform,
    transforms_of,
)
from symdnn.errors import OptionError, ShapeMismatch, TypeMismatch
from symdnn.graph.dims import Dim
from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.core.gradient_control import disconnected_grad
from symdnn.ops.random.random_stream import RandomStream
from symdnn.ops.random.sizes import size_dims
from symdnn.options import as_int, as_kind

__all__ = ["Independent", "LogisticNormal", "MixtureSameFamily", "TransformedDistribution"]


class Independent(Distribution):
    """``base`` with its last ``reinterpreted_batch_ndims`` batch dimensions as one event."""

    def __init__(
        self, base_distribution: Distribution, reinterpreted_batch_ndims: int,
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        as_kind("Independent", base_distribution, Distribution, "a distribution")
        as_int("Independent: reinterpreted_batch_ndims", reinterpreted_batch_ndims)
        if not 0 <= reinterpreted_batch_ndims <= len(base_distribution.batch_shape):
            raise OptionError(
                f"Independent: wanted at most {len(base_distribution.batch_shape)} dimensions, the "
                f"batch's, got {reinterpreted_batch_ndims}"
            )
        self.base_dist, self.reinterpreted_batch_ndims = (
            base_distribution,
            reinterpreted_batch_ndims,
        )
        self.dtype, self.validate_args = base_distribution.dtype, validate_args
        self.event_dim = base_distribution.event_dim + reinterpreted_batch_ndims
        shape = base_distribution.batch_shape
        self._batch_dims = list(shape[: len(shape) - reinterpreted_batch_ndims])

    def expand(self, batch_shape: Any) -> Self:
        new, inner = copy(self), self.base_dist.batch_shape[len(self._batch_dims) :]
        new._batch_dims = size_dims(batch_shape)
        new.base_dist = self.base_dist.expand([*new._batch_dims, *inner])
        return new

    @property
    def has_enumerate_support(self) -> bool:  # type: ignore[override]
        return not self.reinterpreted_batch_ndims and self.base_dist.has_enumerate_support

    def enumerate_support(self, expand: bool = True) -> Variable:
        if self.reinterpreted_batch_ndims:
            raise self._lacks("enumerate_support")
        return self.base_dist.enumerate_support(expand)

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        return self.base_dist.has_rsample

    @property
    def event_shape(self) -> tuple[Dim, ...]:
        return (*self.base_dist.batch_shape[len(self._batch_dims) :], *self.base_dist.event_shape)

    @property
    def support(self) -> Constraint:
        return constraints.independent(self.base_dist.support, self.reinterpreted_batch_ndims)

    @property
    def mean(self) -> Variable:
        return self.base_dist.mean

    @property
    def mode(self) -> Variable:
        return self.base_dist.mode

    @property
    def variance(self) -> Variable:
        return self.base_dist.variance

    def sample(self, sample_shape: Any = (), rng: RandomStream | None = None) -> Variable:
        return self.base_dist.sample(sample_shape, rng)

    def rsample(self, sample_shape: Any = (), rng: RandomStream | None = None) -> Variable:
        return self.base_dist.rsample(sample_shape, rng)

    def log_prob(self, value: TensorLike) -> Variable:
        return sum_rightmost(self.base_dist.log_prob(value), self.reinterpreted_batch_ndims)

    def entropy(self) -> Variable:
        return sum_rightmost(
            self.base_dist._spread(self.base_dist.entropy()), self.reinterpreted_batch_ndims
        )


class TransformedDistribution(Distribution):
    """The distribution of ``transforms(x)``, with ``x`` of a base distribution.

    >>> from symdnn.distributions.real_line import Normal
    >>> from symdnn.distributions.transforms import ExpTransform
    >>> d = TransformedDistribution(Normal(0.0, 1.0), [ExpTransform()])
    >>> round(float(d.log_prob(1.0).eval()), 6)
    -0.918939
    """

    def __init__(
        self, base_distribution: Distribution, transforms: Transform | Sequence[Transform],
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        one = isinstance(transforms, Transform)
        parts = transforms_of("TransformedDistribution", [transforms] if one else transforms)
        as_kind("TransformedDistribution", base_distribution, Distribution, "a distribution")
        self.transforms, self.transform = parts, ComposeTransform(parts)
        base_distribution = _as_wide_as(base_distribution, self.transform)
        wanted = self.transform.domain_event_dim
        lacking = wanted - base_distribution.event_dim
        if lacking > 0:
            base_distribution = Independent(base_distribution, lacking)
        self.base_dist = base_distribution
        self.dtype, self.validate_args = base_distribution.dtype, validate_args
        over = base_distribution.event_dim - wanted
        self.event_dim = self.transform.codomain_event_dim + over
        self._batch_dims = list(base_distribution.batch_shape)

    def expand(self, batch_shape: Any) -> Self:
        new = copy(self)
        new.base_dist = self.base_dist.expand(batch_shape)
        new._batch_dims = list(new.base_dist.batch_shape)
        return new

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        return self.base_dist.has_rsample

    @property
    def event_shape(self) -> tuple[Dim, ...]:
        if self.transform.domain_event_dim == self.transform.codomain_event_dim == 0:
            return self.base_dist.event_shape
        drawn = self.transform(T.zeros((*self.base_dist.batch_shape, *self.base_dist.event_shape)))
        shape = drawn.type.shape[drawn.type.ndim - self.event_dim :]
        first = drawn.type.ndim - self.event_dim
        return tuple(drawn.shape[first + i] if n is None else n for i, n in enumerate(shape))

    @property
    def support(self) -> Constraint:
        if not self.transforms:
            return self.base_dist.support
        return constraints.lifted(self.transforms[-1].codomain, self.event_dim)

    def sample(self, sample_shape: Any = (), rng: RandomStream | None = None) -> Variable:
        return disconnected_grad(self.transform(self.base_dist.sample(sample_shape, rng)))

    def rsample(self, sample_shape: Any = (), rng: RandomStream | None = None) -> Variable:
        return self.transform(self.base_dist.rsample(sample_shape, rng))

    def log_prob(self, value: TensorLike) -> Variable:
        y = self._value(value)
        total, dims = None, self.event_dim
        for part in reversed(self.transforms):
            x = part.inverse(y)
            dims += part.domain_event_dim - part.codomain_event_dim
            slope = sum_rightmost(part.log_abs_det_jacobian(x, y), dims - part.domain_event_dim)
            total, y = slope if total is None else total + slope, x
        found = sum_rightmost(self.base_dist.log_prob(y), dims - self.base_dist.event_dim)
        return found if total is None else found - total

    def cdf(self, value: TensorLike) -> Variable:
        x, falls = as_variable(value), self.transform.sign < 0
        for part in reversed(self.transforms):
            x = part.inverse(x)
        found = self.base_dist.cdf(x)
        return T.switch(falls, 1 - found, found)

    def icdf(self, value: TensorLike) -> Variable:
        p, falls = as_variable(value), self.transform.sign < 0
        return self.transform(self.base_dist.icdf(T.switch(falls, 1 - p, p)))


def _as_wide_as(base: Distribution, transform: Transform) -> Distribution:
    """``base`` expanded to the batch that parameters of ``transform`` make, so draws differ."""
    dims = (*base.batch_shape, *base.event_shape)
    if len(dims) < transform.domain_event_dim:
        wanted = f"{transform.domain_event_dim} dimension(s) at least, of batch and events"
        raise OptionError(f"TransformedDistribution: wanted {wanted}, got {base} of shape {dims}")
    wide = transform.inverse_shape(transform.forward_shape(dims))
    more = len(wide) - len(dims)
    grows = more > 0 or any(a == 1 != b for a, b in zip(base.batch_shape, wide) if a is not b)
    return base.expand(wide[: more + len(base.batch_shape)]) if grows else base


class LogisticNormal(TransformedDistribution):
    """Probabilities by a :class:`StickBreakingTransform` of normal numbers, one fewer.

    >>> import numpy as np
    >>> LogisticNormal(np.zeros((4, 2)), np.ones((4, 2))).event_shape
    (3,)
    """

    arg_constraints: ClassVar = Normal.arg_constraints

    def __init__(
        self, loc: TensorLike, scale: TensorLike, validate_args: bool | None = None
    ) -> None:
        base = Normal(loc, scale, validate_args)
        if not base.batch_shape:
            raise OptionError("LogisticNormal: wanted vectors as loc and scale, got numbers")
        super().__init__(base, StickBreakingTransform(), validate_args)

    @property
    def loc(self) -> Variable:
        """The means of the normal numbers."""
        return self._normal.loc

    @property
    def scale(self) -> Variable:
        """Their standard deviations."""
        return self._normal.scale

    @property
    def _normal(self) -> Normal:
        base = self.base_dist
        while isinstance(base, Independent):
            base = base.base_dist
        assert isinstance(base, Normal)
        return base


class MixtureSameFamily(Distribution):
    """A mixture of the last batch dimension's distributions, with the weights of a categorical."""

    def __init__(
        self, mixture_distribution: Distribution, component_distribution: Distribution,
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        as_kind("MixtureSameFamily", component_distribution, Distribution, "distributions")
        if not component_distribution.batch_shape:
            raise OptionError("MixtureSameFamily: the components need a batch dimension, the last")
        if not isinstance(mixture_distribution, Categorical):
            wanted = "a Categorical as mixture_distribution"
            raise TypeMismatch("MixtureSameFamily", wanted, mixture_distribution)
        count, parts = (
            mixture_distribution.logits.type.shape[-1],
            component_distribution.batch_shape,
        )
        if isinstance(parts[-1], int) and count not in (None, parts[-1]):
            wanted = f"{count} components, the number of weights, along the batch's last dimension"
            raise ShapeMismatch("MixtureSameFamily", wanted, parts)
        self.mixture_distribution = mixture_distribution
        self.component_distribution = component_distribution
        self.dtype, self.validate_args = component_distribution.dtype, validate_args
        self.event_dim = component_distribution.event_dim
        self._batch_dims = list(component_distribution.batch_shape[:-1])

    def expand(self, batch_shape: Any) -> Self:
        new, parts = copy(self), self.component_distribution.batch_shape[-1:]
        new._batch_dims = size_dims(batch_shape)
        new.component_distribution = self.component_distribution.expand([*new._batch_dims, *parts])
        new.mixture_distribution = self.mixture_distribution.expand(new._batch_dims)
        return new

    @property
    def event_shape(self) -> tuple[Dim, ...]:
        return self.component_distribution.event_shape

    @property
    def support(self) -> Constraint:
        return self.component_distribution.support

    def _mixed(self, v: Variable) -> Variable:
        """The weighted mean over components, which stand before an event's dimensions."""
        probs = self.mixture_distribution.probs
        weights = probs.dimshuffle([*range(probs.type.ndim), *["x"] * self.event_dim])
        return (weights * v).sum(axis=v.type.ndim - 1 - self.event_dim)

    @property
    def mean(self) -> Variable:
        return self._mixed(self.component_distribution.mean)

    @property
    def variance(self) -> Variable:
        parts, mean = self.component_distribution, self.mean
        axes = list(range(mean.type.ndim))
        at = mean.type.ndim - self.event_dim
        wide = mean.dimshuffle([*axes[:at], "x", *axes[at:]])
        return self._mixed(parts.variance + T.sqr(parts.mean - wide))

    def _each(self, value: TensorLike) -> Variable:
        """The value beside each component."""
        v = as_variable(value)
        at = v.type.ndim - self.event_dim
        return v.dimshuffle([*range(at), "x", *range(at, v.type.ndim)])

    def log_prob(self, value: TensorLike) -> Variable:
        logs = self.component_distribution.log_prob(self._each(value))
        return T.logsumexp(logs + self.mixture_distribution.logits, axis=-1)

    def cdf(self, value: TensorLike) -> Variable:
        below = self.component_distribution.cdf(self._each(value))
        return (below * self.mixture_distribution.probs).sum(axis=-1)

    def sample(self, sample_shape: Any = (), rng: RandomStream | None = None) -> Variable:
        stream = stream_of(rng)
        drawn = self.component_distribution.sample(sample_shape, stream)
        dims = [*size_dims(sample_shape), *self.batch_shape]
        chosen = stream.categorical(dims, self.mixture_distribution.probs)
        at, ndim = drawn.type.ndim - 1 - self.event_dim, drawn.type.ndim
        count = T.arange(self.component_distribution.batch_shape[-1])
        wide = chosen.dimshuffle([*range(chosen.type.ndim), "x"])
        mask = T.eq(wide, count).dimshuffle([*range(at + 1), *["x"] * (ndim - at - 1)])
        return disconnected_grad(T.switch(mask, drawn, T.zeros_like(drawn)).sum(axis=at))
