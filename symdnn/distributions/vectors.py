"""Distributions of vectors: Dirichlet's."""

from __future__ import annotations

from typing import Any, ClassVar

import symdnn.tensor as T
from symdnn.distributions import constraints
from symdnn.distributions.base import Distribution, dims_after, stream_of
from symdnn.distributions.constraints import Constraint
from symdnn.graph.dims import Dim
from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import Variable
from symdnn.ops.elemwise import like
from symdnn.ops.random.random_stream import RandomStream

__all__ = ["Dirichlet"]


class Dirichlet(Distribution):
    """Dirichlet's distribution of probabilities; ``concentration`` has the classes last."""

    arg_constraints: ClassVar = {"concentration": constraints.independent(constraints.positive, 1)}
    has_rsample: ClassVar[bool] = True
    event_dim = 1
    concentration: Variable

    def __init__(self, concentration: TensorLike, validate_args: bool | None = None) -> None:
        super().__init__(validate_args, concentration=concentration)

    @property
    def event_shape(self) -> tuple[Dim, ...]:
        return (dims_after(self.concentration, 1)[0],)

    @property
    def support(self) -> Constraint:
        return constraints.simplex

    @property
    def mean(self) -> Variable:
        return self.concentration / self.concentration.sum(axis=-1, keepdims=True)

    @property
    def mode(self) -> Variable:
        """NaN where no concentration is above 1: there are several, or none."""
        over = T.maximum(self.concentration - 1, like(0, self.concentration))
        return over / over.sum(axis=-1, keepdims=True)

    @property
    def variance(self) -> Variable:
        total = self.concentration.sum(axis=-1, keepdims=True)
        return self.mean * (1 - self.mean) / (total + 1)

    def _log_normalizer(self) -> Variable:
        a = self.concentration
        return T.gammaln(a).sum(axis=-1) - T.gammaln(a.sum(axis=-1))

    def log_prob(self, value: TensorLike) -> Variable:
        x = self._value(value)
        return T.xlogy0(self.concentration - 1, x).sum(axis=-1) - self._log_normalizer()

    def rsample(self, sample_shape: Any = (), rng: RandomStream | None = None) -> Variable:
        dims = self._extended(sample_shape)[:-1]
        return stream_of(rng).dirichlet(dims, self.concentration, dtype=self.dtype)

    def entropy(self) -> Variable:
        a = self.concentration
        total, count = a.sum(axis=-1), T.cast(self.event_shape[0], self.dtype)
        rest = ((a - 1) * T.digamma(a)).sum(axis=-1)
        return self._log_normalizer() + (total - count) * T.digamma(total) - rest
