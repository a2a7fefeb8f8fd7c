"""Transforms of vectors, of matrices, and of parts of an array, under PyTorch's names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isqrt, log, prod
from typing import Any

import numpy as np

import symdnn.tensor as T
from symdnn.distributions import constraints
from symdnn.distributions.base import Distribution, Lacking, sum_rightmost
from symdnn.distributions.constraints import Constraint, lifted
from symdnn.distributions.transforms import LowerCholeskyTransform, Transform, transforms_of
from symdnn.errors import OptionError
from symdnn.graph.dims import Dim
from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.elemwise import like
from symdnn.options import as_int, as_kind
from symdnn.tensor.linalg import cholesky

__all__ = [
    "AbsTransform", "CatTransform", "CorrCholeskyTransform", "CumulativeDistributionTransform",
    "IndependentTransform", "PositiveDefiniteTransform", "ReshapeTransform", "SoftmaxTransform",
    "StackTransform",
]  # fmt: skip


class AbsTransform(Transform):
    """``|x|``, of which the inverse is the value that is not negative."""

    codomain: Constraint = constraints.nonnegative
    bijective: bool = False

    def _call(self, x: Variable) -> Variable:
        return abs(x)

    def _inverse(self, y: Variable) -> Variable:
        return y


class SoftmaxTransform(Transform):
    """``softmax(x)`` over the last dimension; its inverse is ``log``, up to a sum."""

    domain: Constraint = constraints.real_vector
    codomain: Constraint = constraints.simplex
    bijective: bool = False

    def _call(self, x: Variable) -> Variable:
        return T.softmax(x, axis=-1)

    def _inverse(self, y: Variable) -> Variable:
        return T.log(y)

    def _log_slope(self, x: Variable, y: Variable) -> Variable:
        raise Lacking("SoftmaxTransform is not one to one: it has no log_abs_det_jacobian")


class CumulativeDistributionTransform(Transform):
    """The cdf of ``distribution``, a number of (0, 1)."""

    codomain: Constraint = constraints.unit_interval

    def __init__(self, distribution: Distribution) -> None:
        super().__init__()
        name = "CumulativeDistributionTransform"
        self.distribution: Distribution = as_kind(
            name, distribution, Distribution, "a distribution"
        )
        self.domain = distribution.support

    def _parameters(self) -> Sequence[Any]:
        return (self.distribution,)

    def _call(self, x: Variable) -> Variable:
        return self.distribution.cdf(x)

    def _inverse(self, y: Variable) -> Variable:
        return self.distribution.icdf(y)

    def _log_slope(self, x: Variable, y: Variable) -> Variable:
        return self.distribution.log_prob(x)


class IndependentTransform(Transform):
    """``base_transform`` with so many more last dimensions taken together."""

    def __init__(self, base_transform: Transform, reinterpreted_batch_ndims: int) -> None:
        super().__init__()
        (self.base_transform,) = transforms_of("IndependentTransform", [base_transform])
        n = as_int("IndependentTransform: reinterpreted_batch_ndims", reinterpreted_batch_ndims)
        self.reinterpreted_batch_ndims = n
        self.domain = constraints.independent(base_transform.domain, n)
        self.codomain = constraints.independent(base_transform.codomain, n)
        self.bijective = base_transform.bijective

    @property
    def domain_event_dim(self) -> int:
        return self.base_transform.domain_event_dim + self.reinterpreted_batch_ndims

    @property
    def codomain_event_dim(self) -> int:
        return self.base_transform.codomain_event_dim + self.reinterpreted_batch_ndims

    @property
    def sign(self) -> Variable:
        return self.base_transform.sign

    def forward_shape(self, shape: Sequence[Dim]) -> tuple[Dim, ...]:
        return self.base_transform.forward_shape(shape)

    def inverse_shape(self, shape: Sequence[Dim]) -> tuple[Dim, ...]:
        return self.base_transform.inverse_shape(shape)

    def _parameters(self) -> Sequence[Any]:
        return self.base_transform, self.reinterpreted_batch_ndims

    def _call(self, x: Variable) -> Variable:
        return self.base_transform(x)

    def _inverse(self, y: Variable) -> Variable:
        return self.base_transform.inverse(y)

    def _log_slope(self, x: Variable, y: Variable) -> Variable:
        found = self.base_transform.log_abs_det_jacobian(x, y)
        return sum_rightmost(found, self.reinterpreted_batch_ndims)


class ReshapeTransform(Transform):
    """Events of ``in_shape`` in ``out_shape``; both are of ints."""

    def __init__(self, in_shape: Sequence[int], out_shape: Sequence[int]) -> None:
        super().__init__()
        self.in_shape, self.out_shape = tuple(in_shape), tuple(out_shape)
        if prod(self.in_shape) != prod(self.out_shape):
            raise OptionError(
                f"ReshapeTransform: wanted shapes of equal sizes, got {self.in_shape} and "
                f"{self.out_shape}"
            )

        self.domain = lifted(constraints.real, len(self.in_shape))
        self.codomain = lifted(constraints.real, len(self.out_shape))

    def forward_shape(self, shape: Sequence[Dim]) -> tuple[Dim, ...]:
        return (*shape[: len(shape) - len(self.in_shape)], *self.out_shape)

    def inverse_shape(self, shape: Sequence[Dim]) -> tuple[Dim, ...]:
        return (*shape[: len(shape) - len(self.out_shape)], *self.in_shape)

    def _parameters(self) -> Sequence[Any]:
        return self.in_shape, self.out_shape

    def _shaped(self, v: Variable, old: tuple[int, ...], new: tuple[int, ...]) -> Variable:
        lead = v.type.ndim - len(old)
        return v.reshape([*(v.shape[i] for i in range(lead)), *new], ndim=lead + len(new))

    def _call(self, x: Variable) -> Variable:
        return self._shaped(x, self.in_shape, self.out_shape)

    def _inverse(self, y: Variable) -> Variable:
        return self._shaped(y, self.out_shape, self.in_shape)

    def _log_slope(self, x: Variable, y: Variable) -> Variable:
        return sum_rightmost(T.zeros_like(x), self.domain_event_dim)


class PositiveDefiniteTransform(Transform):
    """``L @ L.T`` with the result ``L`` of a :class:`LowerCholeskyTransform`."""

    domain: Constraint = constraints.independent(constraints.real, 2)
    codomain: Constraint = constraints.positive_definite
    bijective: bool = False

    def _call(self, x: Variable) -> Variable:
        root = LowerCholeskyTransform()(x)
        return T.matmul(root, root.swapaxes(-1, -2))

    def _inverse(self, y: Variable) -> Variable:
        return LowerCholeskyTransform().inverse(cholesky(y))

    def _log_slope(self, x: Variable, y: Variable) -> Variable:
        """Of the lower triangle of ``y`` by that of ``x``."""
        logs = T.diagonal(x, 0, x.type.ndim - 2, x.type.ndim - 1)
        count = T.cast(x.shape[-1], x.type.dtype)
        powers = count + 1 - T.arange(x.shape[-1], dtype=x.type.dtype)
        return (powers * logs).sum(axis=-1) + count * like(log(2), x)


class CorrCholeskyTransform(Transform):
    """Cholesky factors of correlation matrices of vectors of n (n - 1) / 2 numbers, n rows.

    ``tanh`` of a number is a partial correlation (Lewandowski, Kurowicka and Joe, 2009). The
    vector's length must be known.
    """

    domain: Constraint = constraints.real_vector
    codomain: Constraint = constraints.corr_cholesky

    def forward_shape(self, shape: Sequence[Dim]) -> tuple[Dim, ...]:
        rows = self._rows(shape[-1])
        return (*shape[:-1], rows, rows)

    def inverse_shape(self, shape: Sequence[Dim]) -> tuple[Dim, ...]:
        return (*shape[:-2], shape[-1] * (shape[-1] - 1) // 2)

    @staticmethod
    def _rows(length: Dim | None) -> int:
        if not isinstance(length, int):
            raise OptionError(
                "CorrCholeskyTransform: wanted a last dimension of known length, got one of a "
                "size that only a call knows: declare it (specify_shape, or the variable's type)"
            )
        rows = (1 + isqrt(1 + 8 * length)) // 2
        if rows * (rows - 1) // 2 != length:
            raise OptionError(
                f"CorrCholeskyTransform: wanted n (n - 1) / 2 numbers for n rows, got {length}"
            )
        return rows

    def _low(self, x: Variable) -> Variable:
        """The numbers below the diagonal, row by row, with zeros elsewhere."""
        rows = self._rows(x.type.shape[-1])
        places = np.full((rows, rows), rows * (rows - 1) // 2)
        places[np.tril_indices(rows, -1)] = np.arange(rows * (rows - 1) // 2)
        zero = T.zeros_like(x[..., :1]) if rows > 1 else T.zeros((*_lead(x), 1), dtype=x.type.dtype)
        return T.concatenate([x, zero], axis=-1)[..., places]

    @staticmethod
    def _logs(low: Variable) -> tuple[Variable, Variable]:
        """(logarithms of the cosines, their sums over what is before in a row)."""
        size = abs(low)
        logs = like(log(2), low) - size - T.softplus(-2 * size)
        return logs, T.cumsum(logs, axis=low.type.ndim - 1) - logs

    def _call(self, x: Variable) -> Variable:
        low = self._low(x)
        unit = T.eye(self._rows(x.type.shape[-1]), dtype=x.type.dtype)
        return (
            (T.tanh(low) + unit)
            * T.exp(self._logs(low)[1])
            * T.tri(self._rows(x.type.shape[-1]), dtype=x.type.dtype)
        )

    def _inverse(self, y: Variable) -> Variable:
        last = y.type.ndim - 1
        squares = T.sqr(y)
        after = T.cumsum(squares[..., ::-1], axis=last)[..., ::-1]
        rows = y.type.shape[-1]
        if rows is None:
            raise OptionError("CorrCholeskyTransform: wanted a matrix of known size")
        first, second = np.tril_indices(rows, -1)
        low = y[..., first, second]
        return T.arcsinh(low / T.sqrt(after[..., first, second + 1]))

    def _log_slope(self, x: Variable, y: Variable) -> Variable:
        low = self._low(x)
        logs, before = self._logs(low)
        return T.tril(2 * logs + before, -1).sum(axis=-1).sum(axis=-1)


def _lead(x: Variable) -> list[Variable]:
    return [x.shape[i] for i in range(x.type.ndim - 1)]


class _OfParts(Transform):
    """Base of transforms of parts of an array along ``dim``."""

    def __init__(self, tseq: Sequence[Transform], dim: int = 0) -> None:
        super().__init__()
        self.transforms = transforms_of(type(self).__name__, tseq)
        self.dim = as_int(f"{type(self).__name__}: dim", dim)
        self.bijective = all(t.bijective for t in self.transforms)

    @property
    def domain_event_dim(self) -> int:
        return max((t.domain_event_dim for t in self.transforms), default=0)

    @property
    def codomain_event_dim(self) -> int:
        return max((t.codomain_event_dim for t in self.transforms), default=0)

    @property
    def sign(self) -> Variable:
        raise Lacking(f"{type(self).__name__} has no sign: its parts have")

    def _parameters(self) -> Sequence[Any]:
        return self.transforms, self.dim

    def _parts(self, v: Variable) -> list[Variable]:
        raise NotImplementedError

    def _joined(self, parts: Sequence[Variable]) -> Variable:
        raise NotImplementedError

    def _each(self, v: Variable, f: Callable[[Transform, Variable], Variable]) -> Variable:
        parts = zip(self.transforms, self._parts(v), strict=True)
        return self._joined([f(t, part) for t, part in parts])

    def _call(self, x: Variable) -> Variable:
        return self._each(x, lambda t, v: t(v))

    def _inverse(self, y: Variable) -> Variable:
        return self._each(y, lambda t, v: t.inverse(v))

    def _slopes(self, x: Variable, y: Variable) -> list[Variable]:
        """Those of all parts, of the same number of dimensions."""
        wide = self.domain_event_dim
        return [
            sum_rightmost(t.log_abs_det_jacobian(a, b), wide - t.domain_event_dim)
            for t, a, b in zip(self.transforms, self._parts(x), self._parts(y), strict=True)
        ]


class StackTransform(_OfParts):
    """Transform number i of entry i along ``dim``."""

    def __init__(self, tseq: Sequence[Transform], dim: int = 0) -> None:
        super().__init__(tseq, dim)
        self.domain = constraints.stack([t.domain for t in self.transforms], dim)
        self.codomain = constraints.stack([t.codomain for t in self.transforms], dim)

    def _parts(self, v: Variable) -> list[Variable]:
        axis = self.dim % v.type.ndim
        return [v[(*[slice(None)] * axis, i)] for i in range(len(self.transforms))]

    def _joined(self, parts: Sequence[Variable]) -> Variable:
        return T.stack(*parts, axis=self.dim % (parts[0].type.ndim + 1))

    def _log_slope(self, x: Variable, y: Variable) -> Variable:
        axis = self.dim % x.type.ndim
        return T.stack(*self._slopes(x, y), axis=axis)


class CatTransform(_OfParts):
    """Transforms of parts of these ``lengths`` (1 each) along ``dim``, one after the other."""

    def __init__(
        self, tseq: Sequence[Transform], dim: int = 0, lengths: Sequence[int] | None = None
    ) -> None:
        super().__init__(tseq, dim)
        self.lengths = [1] * len(self.transforms) if lengths is None else list(lengths)
        if len(self.lengths) != len(self.transforms):
            raise OptionError(
                f"CatTransform: wanted {len(self.transforms)} lengths, got {len(self.lengths)}"
            )

        self.domain = constraints.cat([t.domain for t in self.transforms], dim, self.lengths)
        self.codomain = constraints.cat([t.codomain for t in self.transforms], dim, self.lengths)

    def _parameters(self) -> Sequence[Any]:
        return *super()._parameters(), self.lengths

    def _parts(self, v: Variable) -> list[Variable]:
        axis, start, found = self.dim % v.type.ndim, 0, []
        for n in self.lengths:
            found.append(v[(*[slice(None)] * axis, slice(start, start + n))])
            start += n
        return found

    def _joined(self, parts: Sequence[Variable]) -> Variable:
        return T.concatenate(list(parts), axis=self.dim % parts[0].type.ndim)

    def _log_slope(self, x: Variable, y: Variable) -> Variable:
        axis, slopes = self.dim % x.type.ndim, self._slopes(x, y)
        if axis < slopes[0].type.ndim:
            return T.concatenate(slopes, axis=axis)
        return sum(slopes[1:], slopes[0])


def as_number(bound: TensorLike) -> float | None:
    """A bound of an interval, if it is a number that is known."""
    v = as_variable(bound)
    data = getattr(v, "data", None)
    return None if data is None or np.ndim(data) else float(data)
