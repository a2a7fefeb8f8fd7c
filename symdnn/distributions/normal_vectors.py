"""Multivariate normal distributions: by the factor of a covariance, and of low rank."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
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
from symdnn.ops.array.view import of_sizes
from symdnn.ops.random.random_stream import RandomStream
from symdnn.tensor.linalg import cholesky, solve_triangular

__all__ = [
    "ByCovariance", "LowRankMultivariateNormal", "MultivariateNormal", "columns", "inverse_from",
    "normal_kl",
]  # fmt: skip


class ByCovariance(Distribution):
    """Base of distributions by a covariance, its inverse, or its lower Cholesky factor."""

    arg_constraints: ClassVar = {
        "covariance_matrix": constraints.positive_definite,
        "precision_matrix": constraints.positive_definite,
        "scale_tril": constraints.lower_cholesky,
    }
    has_rsample: ClassVar[bool] = True
    scale_tril: Variable

    def _one_of(
        self, covariance_matrix: TensorLike | None, precision_matrix: TensorLike | None,
        scale_tril: TensorLike | None,
    ) -> dict[str, TensorLike]:  # fmt: skip
        """The one that is given, by its name."""
        names = ("covariance_matrix", "precision_matrix", "scale_tril")
        values = (covariance_matrix, precision_matrix, scale_tril)
        given = {k: v for k, v in zip(names, values, strict=True) if v is not None}
        if len(given) != 1:
            raise OptionError(
                f"{self}: wanted one of covariance_matrix, precision_matrix and "
                f"scale_tril, got {sorted(given) or 'none'}"
            )
        return given

    def _factorise(self, given: Mapping[str, TensorLike]) -> None:
        check = self.validate_args is not False
        if "covariance_matrix" in given:
            self.scale_tril = cholesky(self.covariance_matrix, check=check)
        elif "precision_matrix" in given:
            # The factor of a matrix with its rows and columns turned round is that of its inverse.
            turned = cholesky(self.precision_matrix[..., ::-1, ::-1], check=check)
            self.scale_tril = inverse_from(turned[..., ::-1, ::-1].swapaxes(-1, -2))

    @cached_property
    def covariance_matrix(self) -> Variable:
        """The covariance (..., n, n)."""
        return T.matmul(self.scale_tril, self.scale_tril.swapaxes(-1, -2))

    @cached_property
    def precision_matrix(self) -> Variable:
        """The inverse of the covariance (..., n, n)."""
        inverse = inverse_from(self.scale_tril)
        return T.matmul(inverse.swapaxes(-1, -2), inverse)

    @property
    def covariance(self) -> Variable:
        """The covariance matrix (..., n, n)."""
        return self.covariance_matrix

    def _log_scale(self) -> Variable:
        """Half the logarithm of the covariance's determinant."""
        v = self.scale_tril
        return T.log(T.diagonal(v, 0, v.type.ndim - 2, v.type.ndim - 1)).sum(axis=-1)

    def _spread_events(self, v: Variable) -> Variable:
        return T.alloc(v, *self.batch_shape, *self.event_shape)


def columns(v: Variable) -> Variable:
    """Vectors as matrices of one column."""
    return v.dimshuffle([*range(v.type.ndim), "x"])


def inverse_from(factor: Variable) -> Variable:
    """The inverse of a lower triangle."""
    unit = T.eye(dims_after(factor, 1)[0], dtype=factor.type.dtype)
    return solve_triangular(factor, unit, lower=True, check=False)


class MultivariateNormal(ByCovariance):
    """The normal distribution of vectors with the mean ``loc``.

    One of ``covariance_matrix``, ``precision_matrix`` (its inverse) and ``scale_tril`` (its lower
    Cholesky factor) is given, of shape (..., n, n). A matrix that is not positive definite raises
    :class:`~symdnn.errors.LinAlgError` in a call, and gives NaN with ``validate_args=False``.

    >>> import numpy as np
    >>> d = MultivariateNormal(np.zeros(2), np.eye(2))
    >>> round(float(d.log_prob(np.ones(2)).eval()), 6)
    -2.837877
    """

    arg_constraints: ClassVar = {"loc": constraints.real_vector, **ByCovariance.arg_constraints}
    event_dim = 1
    loc: Variable

    def __init__(
        self, loc: TensorLike, covariance_matrix: TensorLike | None = None,
        precision_matrix: TensorLike | None = None, scale_tril: TensorLike | None = None,
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        given = self._one_of(covariance_matrix, precision_matrix, scale_tril)
        super().__init__(validate_args, loc=loc, **given)
        self._factorise(given)
        self.loc = of_sizes(self.loc, dims_after(self.scale_tril, 1), f"{self}: loc")

    @property
    def event_shape(self) -> tuple[Dim, ...]:
        return (dims_after(self.loc, 1)[0],)

    @property
    def support(self) -> Constraint:
        return constraints.real_vector

    @property
    def mean(self) -> Variable:
        return self._spread_events(self.loc)

    mode = mean

    @property
    def variance(self) -> Variable:
        return self._spread_events(T.sqr(self.scale_tril).sum(axis=-1))

    def log_prob(self, value: TensorLike) -> Variable:
        off = self._value(value) - self.loc
        column = columns(off)
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


class LowRankMultivariateNormal(Distribution):
    """The normal distribution of mean ``loc``, covariance ``factor @ factor.T + diag(diagonal)``.

    ``cov_factor`` has the shape (..., n, r), ``cov_diag`` is positive, of (..., n). Only matrices
    of r rows and columns are factorised.

    >>> import numpy as np
    >>> d = LowRankMultivariateNormal(np.zeros(2), np.ones((2, 1)), np.ones(2))
    >>> round(float(d.log_prob(np.ones(2)).eval()), 6)
    -2.720517
    """

    arg_constraints: ClassVar = {
        "loc": constraints.real_vector,
        "cov_factor": constraints.independent(constraints.real, 2),
        "cov_diag": constraints.independent(constraints.positive, 1),
    }
    has_rsample: ClassVar[bool] = True
    event_dim = 1
    loc: Variable
    cov_factor: Variable
    cov_diag: Variable

    def __init__(
        self, loc: TensorLike, cov_factor: TensorLike, cov_diag: TensorLike,
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        super().__init__(validate_args, loc=loc, cov_factor=cov_factor, cov_diag=cov_diag)
        event = dims_after(self.cov_factor, 2)[:1]
        self.cov_diag = of_sizes(self.cov_diag, event, f"{self}: cov_diag")
        self.loc = of_sizes(self.loc, event, f"{self}: loc")

    @property
    def event_shape(self) -> tuple[Dim, ...]:
        return (dims_after(self.cov_diag, 1)[0],)

    @property
    def support(self) -> Constraint:
        return constraints.real_vector

    @property
    def mean(self) -> Variable:
        return T.alloc(self.loc, *self.batch_shape, *self.event_shape)

    mode = mean

    @property
    def variance(self) -> Variable:
        found = T.sqr(self.cov_factor).sum(axis=-1) + self.cov_diag
        return T.alloc(found, *self.batch_shape, *self.event_shape)

    @cached_property
    def covariance_matrix(self) -> Variable:
        """The covariance (..., n, n)."""
        w = self.cov_factor
        unit = T.eye(self.event_shape[0], dtype=self.dtype)
        return T.matmul(w, w.swapaxes(-1, -2)) + columns(self.cov_diag) * unit

    @cached_property
    def scale_tril(self) -> Variable:
        """The lower Cholesky factor of the covariance."""
        return cholesky(self.covariance_matrix, check=False)

    @cached_property
    def precision_matrix(self) -> Variable:
        """The inverse of the covariance, by Woodbury's identity."""
        unit = T.eye(self.event_shape[0], dtype=self.dtype)
        below = self._over_root.swapaxes(-1, -2)
        part = solve_triangular(self._small_root, below, lower=True, check=False)
        size = 1 / T.sqrt(self.cov_diag)
        inner = unit - T.matmul(part.swapaxes(-1, -2), part)
        return inner * columns(size) * columns(size).swapaxes(-1, -2)

    @cached_property
    def _over_root(self) -> Variable:
        """The factor over the standard deviations of the diagonal."""
        return self.cov_factor / columns(T.sqrt(self.cov_diag))

    @cached_property
    def _small_root(self) -> Variable:
        """The Cholesky factor of I + A^T A, A the factor over the standard deviations."""
        a = self._over_root
        unit = T.eye(dims_after(a, 1)[0], dtype=self.dtype)
        return cholesky(unit + T.matmul(a.swapaxes(-1, -2), a), check=False)

    def _log_scale(self) -> Variable:
        v = self._small_root
        parts = T.log(T.diagonal(v, 0, v.type.ndim - 2, v.type.ndim - 1)).sum(axis=-1)
        return parts + T.log(self.cov_diag).sum(axis=-1) / 2

    def _square(self, off: Variable) -> Variable:
        """``off^T covariance^-1 off`` of columns, summed over them, without a difference.

        With A as above it is the least of |z - A u|^2 + |u|^2, for z over the deviations.
        """
        z, a = off / columns(T.sqrt(self.cov_diag)), self._over_root
        right = T.matmul(a.swapaxes(-1, -2), z)
        half = solve_triangular(self._small_root, right, lower=True, check=False)
        u = solve_triangular(self._small_root, half, trans=1, lower=True, check=False)
        parts = T.sqr(z - T.matmul(a, u)).sum(axis=-2) + T.sqr(u).sum(axis=-2)
        return parts.sum(axis=-1)

    def log_prob(self, value: TensorLike) -> Variable:
        off = self._value(value) - self.loc
        count = T.cast(self.event_shape[0], self.dtype)
        rest = self._log_scale() + count * T.cast(0.5 * log(2 * pi), self.dtype)
        return -self._square(columns(off)) / 2 - rest

    def rsample(self, sample_shape: Any = (), rng: RandomStream | None = None) -> Variable:
        dims, stream = self._extended(sample_shape), stream_of(rng)
        few = [*dims[:-1], dims_after(self.cov_factor, 1)[0]]
        common = columns(stream.normal(few, dtype=self.dtype))
        own = stream.normal(dims, dtype=self.dtype)
        return self.loc + T.matmul(self.cov_factor, common)[..., 0] + T.sqrt(self.cov_diag) * own

    def entropy(self) -> Variable:
        count = T.cast(self.event_shape[0], self.dtype)
        return self._spread(self._log_scale() + count * T.cast(0.5 + 0.5 * log(2 * pi), self.dtype))


def normal_kl(
    p: MultivariateNormal | LowRankMultivariateNormal,
    q: MultivariateNormal | LowRankMultivariateNormal,
) -> Variable:
    """The divergence of two normal distributions of vectors, of which one has low rank."""
    count = T.cast(p.event_shape[0], p.dtype)
    if isinstance(q, LowRankMultivariateNormal):
        size = q._square(p.scale_tril) + q._square(columns(p.loc - q.loc))
    else:
        root = q.scale_tril
        ratio = solve_triangular(root, p.scale_tril, lower=True, check=False)
        z = solve_triangular(root, columns(p.loc - q.loc), lower=True, check=False)
        size = T.sqr(ratio).sum(axis=-1).sum(axis=-1) + T.sqr(z).sum(axis=-1).sum(axis=-1)
    return (size - count) / 2 + q._log_scale() - p._log_scale()
