"""The multivariate normal distribution, by the Cholesky factor of its covariance."""

from __future__ import annotations

from math import log, pi
from typing import Any, ClassVar

import symdnn.tensor as T
from symdnn.distributions import constraints
from symdnn.distributions.base import Distribution, dims_after, stream_of
from symdnn.distributions.constraints import Constraint
from symdnn.errors import OptionError
from symdnn.graph.dims import Dim
from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import Variable
from symdnn.ops.random.random_stream import RandomStream
from symdnn.tensor.linalg import cholesky, solve_triangular

__all__ = ["MultivariateNormal"]


class MultivariateNormal(Distribution):
    """The normal distribution of vectors with the mean ``loc``.

    One of ``covariance_matrix``, ``precision_matrix`` (its inverse) and ``scale_tril`` (its lower
    Cholesky factor) is given, of shape (..., n, n). A matrix that is not positive definite raises
    :class:`~symdnn.errors.LinAlgError` in a call, and gives NaN with ``validate_args=False``.

    >>> import numpy as np
    >>> d = MultivariateNormal(np.zeros(2), np.eye(2))
    >>> round(float(d.log_prob(np.ones(2)).eval()), 6)
    -2.837877
    """

    arg_constraints: ClassVar = {
        "loc": constraints.real_vector,
        "covariance_matrix": constraints.positive_definite,
        "precision_matrix": constraints.positive_definite,
        "scale_tril": constraints.lower_cholesky,
    }
    has_rsample: ClassVar[bool] = True
    event_dim = 1
    loc: Variable
    scale_tril: Variable

    def __init__(
        self, loc: TensorLike, covariance_matrix: TensorLike | None = None,
        precision_matrix: TensorLike | None = None, scale_tril: TensorLike | None = None,
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        given = {
            k: v
            for k, v in (
                ("covariance_matrix", covariance_matrix), ("precision_matrix", precision_matrix),
                ("scale_tril", scale_tril),
            )
            if v is not None
        }  # fmt: skip
        if len(given) != 1:
            raise OptionError(
                "MultivariateNormal: wanted one of covariance_matrix, precision_matrix and "
                f"scale_tril, got {sorted(given) or 'none'}"
            )
        super().__init__(validate_args, loc=loc, **given)
        check = validate_args is not False
        if covariance_matrix is not None:
            self.scale_tril = cholesky(given_as(self, "covariance_matrix"), check=check)
        elif precision_matrix is not None:
            # The factor of a matrix with its rows and columns turned round is that of its inverse.
            turned = cholesky(given_as(self, "precision_matrix")[..., ::-1, ::-1], check=check)
            upper = turned[..., ::-1, ::-1]
            inverse = upper.swapaxes(-1, -2)
            unit = T.eye(dims_after(self.loc, 1)[0], dtype=self.dtype)
            self.scale_tril = solve_triangular(inverse, unit, lower=True, check=False)

    @property
    def event_shape(self) -> tuple[Dim, ...]:
        return (dims_after(self.loc, 1)[0],)

    @property
    def support(self) -> Constraint:
        return constraints.real_vector

    def _spread_vectors(self, v: Variable) -> Variable:
        return T.alloc(v, *self.batch_shape, *self.event_shape)

    @property
    def mean(self) -> Variable:
        return self._spread_vectors(self.loc)

    mode = mean

    @property
    def variance(self) -> Variable:
        return self._spread_vectors(T.sqr(self.scale_tril).sum(axis=-1))

    @property
    def covariance(self) -> Variable:
        """The covariance matrix (..., n, n)."""
        return T.matmul(self.scale_tril, self.scale_tril.swapaxes(-1, -2))

    def _log_scale(self) -> Variable:
        """Half the logarithm of the covariance's determinant."""
        v = self.scale_tril
        return T.log(T.diagonal(v, 0, v.type.ndim - 2, v.type.ndim - 1)).sum(axis=-1)

    def log_prob(self, value: TensorLike) -> Variable:
        off = self._value(value) - self.loc
        column = off.dimshuffle([*range(off.type.ndim), "x"])
        z = solve_triangular(self.scale_tril, column, lower=True, check=False)[..., 0]
        count = T.cast(self.event_shape[0], self.dtype)
        rest = self._log_scale() + count * T.cast(0.5 * log(2 * pi), self.dtype)
        return -T.sqr(z).sum(axis=-1) / 2 - rest

    def rsample(self, sample_shape: Any = (), rng: RandomStream | None = None) -> Variable:
        dims = self._extended(sample_shape)[:-1]
        return stream_of(rng).multivariate_normal(
            dims, self.loc, scale_tril=self.scale_tril, dtype=self.dtype
        )

    def entropy(self) -> Variable:
        count = T.cast(self.event_shape[0], self.dtype)
        rest = count * T.cast(0.5 + 0.5 * log(2 * pi), self.dtype)
        return self._spread(self._log_scale() + rest)

    def kl_from(self, other: MultivariateNormal) -> Variable:
        """The divergence of this distribution from another one."""
        off = (self.loc - other.loc).dimshuffle([*range(self.loc.type.ndim), "x"])
        ratio = solve_triangular(other.scale_tril, self.scale_tril, lower=True, check=False)
        z = solve_triangular(other.scale_tril, off, lower=True, check=False)[..., 0]
        size = T.sqr(ratio).sum(axis=-1).sum(axis=-1) + T.sqr(z).sum(axis=-1)
        count = T.cast(self.event_shape[0], self.dtype)
        return (size - count) / 2 + other._log_scale() - self._log_scale()


def given_as(owner: MultivariateNormal, name: str) -> Variable:
    """A parameter by its name."""
    found: Variable = getattr(owner, name)
    return found
