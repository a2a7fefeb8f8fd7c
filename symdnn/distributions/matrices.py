"""Distributions of matrices: Wishart's, and Cholesky factors of correlations."""

from __future__ import annotations

from math import log, pi
from typing import Any, ClassVar

import symdnn.tensor as T
from symdnn.distributions import constraints
from symdnn.distributions.base import Distribution, dims_after, stream_of
from symdnn.distributions.constraints import Constraint
from symdnn.distributions.normal_vectors import ByCovariance, columns
from symdnn.errors import OptionError
from symdnn.graph.dims import Dim
from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import Variable
from symdnn.ops.core.gradient_control import disconnected_grad
from symdnn.ops.elemwise import like
from symdnn.ops.random.random_stream import RandomStream
from symdnn.tensor.linalg import cholesky, solve_triangular

__all__ = ["LKJCholesky", "Wishart", "multigammaln"]


def multigammaln(a: Variable, size: Dim) -> Variable:
    """The logarithm of the gamma function of symmetric matrices of ``size`` rows.

    >>> round(float(multigammaln(T.constant(3.0), 2).eval()), 6)
    1.550195
    """
    n = T.cast(size, a.type.dtype)
    rest = n * (n - 1) * like(0.25 * log(pi), a)
    return T.gammaln(_halves_below(a, size)).sum(axis=-1) + rest


def _halves_below(a: Variable, size: Dim) -> Variable:
    """``a - i / 2`` for each i below ``size``, in a new last dimension."""
    wide = a.dimshuffle([*range(a.type.ndim), "x"])
    return wide - T.arange(size, dtype=a.type.dtype) / 2


def _diagonal(v: Variable) -> Variable:
    return T.diagonal(v, 0, v.type.ndim - 2, v.type.ndim - 1)


class Wishart(ByCovariance):
    """The sum of ``df`` outer products of normal vectors of mean 0.

    One of ``covariance_matrix``, ``precision_matrix`` and ``scale_tril`` is given, of shape
    (..., n, n); ``df`` is above ``n - 1``. Draws are by Bartlett's factors.

    >>> import numpy as np
    >>> d = Wishart(np.float64(3.0), np.eye(2))
    >>> round(float(d.log_prob(2 * np.eye(2)).eval()), 6)
    -4.531024
    """

    arg_constraints: ClassVar = {"df": constraints.positive, **ByCovariance.arg_constraints}
    event_dim = 2
    df: Variable

    def __init__(
        self, df: TensorLike, covariance_matrix: TensorLike | None = None,
        precision_matrix: TensorLike | None = None, scale_tril: TensorLike | None = None,
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        given = self._one_of(covariance_matrix, precision_matrix, scale_tril)
        super().__init__(validate_args, df=df, **given)
        self._factorise(given)
        n = self.event_shape[0]
        if isinstance(n, int):
            self.df = self._checked(self.df, constraints.greater_than(n - 1), "df")

    @property
    def event_shape(self) -> tuple[Dim, ...]:
        n = dims_after(self.scale_tril, 1)[0]
        return (n, n)

    @property
    def support(self) -> Constraint:
        return constraints.positive_definite

    @property
    def _count(self) -> Variable:
        return T.cast(self.event_shape[0], self.dtype)

    @property
    def _wide_df(self) -> Variable:
        return self.df.dimshuffle([*range(self.df.type.ndim), "x", "x"])

    @property
    def mean(self) -> Variable:
        return self._spread_events(self._wide_df * self.covariance)

    @property
    def mode(self) -> Variable:
        """NaN where ``df`` is below ``n + 1``: the density has no bound, or no largest value."""
        left = self._wide_df - self._count - 1
        least = T.switch(left < 0, like(float("nan"), left), left)
        return self._spread_events(least * self.covariance)

    @property
    def variance(self) -> Variable:
        v = self.covariance
        parts = _diagonal(v)
        lead = range(parts.type.ndim)
        outer = parts.dimshuffle([*lead, "x"]) * parts.dimshuffle([*lead[:-1], "x", lead[-1]])
        return self._spread_events(self._wide_df * (T.sqr(v) + outer))

    def log_prob(self, value: TensorLike) -> Variable:
        x = self._value(value)
        root = cholesky(x, check=self.validate_args is not False)
        ratio = solve_triangular(self.scale_tril, root, lower=True, check=False)
        size = T.log(_diagonal(root)).sum(axis=-1)
        trace = T.sqr(ratio).sum(axis=-1).sum(axis=-1)
        return (self.df - self._count - 1) * size - trace / 2 - self._log_normalizer()

    def _log_normalizer(self) -> Variable:
        half = self.df / 2
        powers = self.df * (self._count * like(0.5 * log(2), half) + self._log_scale())
        return powers + multigammaln(half, self.event_shape[0])

    def rsample(self, sample_shape: Any = (), rng: RandomStream | None = None) -> Variable:
        dims, stream = self._extended(sample_shape), stream_of(rng)
        shapes = _halves_below(self.df / 2, self.event_shape[0])
        sizes = T.sqrt(2 * stream.gamma(dims[:-1], shapes, dtype=self.dtype))
        low = T.tril(stream.normal(dims, dtype=self.dtype), -1)
        eye = T.eye(self.event_shape[0], dtype=self.dtype)
        drawn = low + columns(sizes) * eye
        root = T.matmul(self.scale_tril, drawn)
        return T.matmul(root, root.swapaxes(-1, -2))

    def entropy(self) -> Variable:
        n, half = self._count, self.df / 2
        psi = T.digamma(_halves_below(half, self.event_shape[0])).sum(axis=-1)
        logs = psi + n * like(log(2), half) + 2 * self._log_scale()
        found = self._log_normalizer() - (self.df - n - 1) / 2 * logs + self.df * n / 2
        return self._spread(found)

    def kl_from(self, other: Wishart) -> Variable:
        """The divergence of this distribution from another one."""
        n, a, b = self.event_shape[0], self.df / 2, other.df / 2
        ratio = solve_triangular(other.scale_tril, self.scale_tril, lower=True, check=False)
        trace = T.sqr(ratio).sum(axis=-1).sum(axis=-1)
        size = 2 * (other._log_scale() - self._log_scale())
        psi = T.digamma(_halves_below(a, n)).sum(axis=-1)
        shapes = multigammaln(b, n) - multigammaln(a, n) + (a - b) * psi
        return b * size + a * (trace - self._count) + shapes


class LKJCholesky(Distribution):
    """Lower Cholesky factors of correlation matrices with ``dim`` rows.

    The density of the matrix is in proportion to its determinant to ``concentration - 1``: 1 is
    uniform, above 1 correlations are near 0. Draws are by the onion method of Lewandowski,
    Kurowicka and Joe, 2009.

    >>> d = LKJCholesky(2, 1.0)
    >>> round(float(d.log_prob([[1.0, 0.0], [0.6, 0.8]]).eval()), 6)
    -0.693147
    """

    arg_constraints: ClassVar = {"concentration": constraints.positive}
    event_dim = 2
    concentration: Variable

    def __init__(
        self, dim: int, concentration: TensorLike = 1.0, validate_args: bool | None = None
    ) -> None:
        if not isinstance(dim, int) or dim < 2:
            raise OptionError(f"LKJCholesky: wanted a whole number of at least 2 as dim, got {dim}")
        super().__init__(validate_args, concentration=concentration)
        self.dim = dim

    @property
    def event_shape(self) -> tuple[Dim, ...]:
        return (self.dim, self.dim)

    @property
    def support(self) -> Constraint:
        return constraints.corr_cholesky

    def log_prob(self, value: TensorLike) -> Variable:
        x, n, a = self._value(value), self.dim, self.concentration
        wide = a.dimshuffle([*range(a.type.ndim), "x"])
        powers = 2 * (wide - 1) + T.constant([float(n - i) for i in range(2, n + 1)], self.dtype)
        found = (powers * T.log(_diagonal(x)[..., 1:])).sum(axis=-1)
        most = a + (n - 1) / 2
        below = (n - 1) * T.gammaln(most)
        rest = multigammaln(most - 0.5, n - 1) + like(0.5 * (n - 1) * log(pi), most)
        return found - rest + below

    def sample(self, sample_shape: Any = (), rng: RandomStream | None = None) -> Variable:
        dims, n, stream = self._extended(sample_shape), self.dim, stream_of(rng)
        wide = self.concentration.dimshuffle([*range(self.concentration.type.ndim), "x"])
        steps = T.constant([float(k) for k in range(n - 1)], self.dtype)
        shares = stream.beta(
            [*dims[:-2], n - 1], (steps + 1) / 2, wide + (n - 2) / 2 - steps / 2, dtype=self.dtype
        )
        # Row k of the first k + 1: a place on the unit sphere, as far out as its share says.
        places = T.tril(stream.normal([*dims[:-2], n - 1, n - 1], dtype=self.dtype))
        length = T.sqrt(T.sqr(places).sum(axis=-1, keepdims=True))
        low = places / length * columns(T.sqrt(shares))
        head = T.zeros_like(low[..., :1])
        rows = T.concatenate([T.zeros_like(low[..., :1, :]), low], axis=-2)
        whole = T.concatenate([rows, T.concatenate([head[..., :1, :], head], axis=-2)], axis=-1)
        ones = T.ones_like(shares[..., :1])
        ends = T.concatenate([ones, T.sqrt(1 - shares)], axis=-1)
        return disconnected_grad(whole + columns(ends) * T.eye(n, dtype=self.dtype))
