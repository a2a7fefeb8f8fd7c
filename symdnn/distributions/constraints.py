"""Constraints of parameters and supports, under PyTorch's names (``torch.distributions``).

A constraint is a value with ``check(value)``, a bool variable that has one entry for each event of
``event_dim`` last dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import symdnn.tensor as T
from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import Variable, as_variable
from symdnn.tensor.linalg import cholesky, eigvalsh

__all__ = [
    "Constraint", "boolean", "cat", "corr_cholesky", "greater_than", "greater_than_eq",
    "half_open_interval", "independent", "integer_interval", "interval", "less_than",
    "lower_cholesky", "lower_triangular", "multinomial", "nonnegative", "nonnegative_integer",
    "one_hot", "positive", "positive_definite", "positive_integer", "positive_semidefinite",
    "real", "real_vector", "simplex", "square", "stack", "symmetric", "unit_interval",
]  # fmt: skip


class Constraint:
    """A region of values: what a parameter may be, or where a distribution has probability."""

    #: How many last dimensions make one event.
    event_dim: ClassVar[int] = 0
    #: Whether the values are whole numbers.
    is_discrete: ClassVar[bool] = False

    def check(self, value: TensorLike) -> Variable:
        """Whether each event of ``value`` lies in the region, as a bool variable."""
        raise NotImplementedError


@dataclass(frozen=True)
class _Real(Constraint):
    def check(self, value: TensorLike) -> Variable:
        v = as_variable(value)
        return T.eq(v, v)

    def __str__(self) -> str:
        return "a number"


def _shown(bound: TensorLike) -> str:
    """A bound for a message; of one that is computed it says only that."""
    computed = isinstance(bound, Variable) and bound.owner is not None
    return "a computed bound" if computed else str(bound)


@dataclass(frozen=True, eq=False)
class interval(Constraint):
    """Between two bounds, of which ``closed`` (low, high) says whether they belong to it.

    >>> bool(interval(0.0, 1.0).check(1.5).eval())
    False
    """

    low: TensorLike = -np.inf
    high: TensorLike = np.inf
    closed: tuple[bool, bool] = (True, True)

    def check(self, value: TensorLike) -> Variable:
        v = as_variable(value)
        above = T.ge(v, self.low) if self.closed[0] else T.gt(v, self.low)
        return above & (T.le(v, self.high) if self.closed[1] else T.lt(v, self.high))

    def __str__(self) -> str:
        low, high = "[" if self.closed[0] else "(", "]" if self.closed[1] else ")"
        return f"a number of {low}{_shown(self.low)}, {_shown(self.high)}{high}"


@dataclass(frozen=True, eq=False)
class integer_interval(interval):
    """A whole number between two bounds, both included."""

    is_discrete: ClassVar[bool] = True

    def check(self, value: TensorLike) -> Variable:
        v = as_variable(value)
        return super().check(v) & T.eq(v, T.floor(v))

    def __str__(self) -> str:
        return super().__str__().replace("a number", "a whole number")


@dataclass(frozen=True)
class independent(Constraint):
    """``base`` for all of some last dimensions at once."""

    base: Constraint
    reinterpreted_batch_ndims: int = 1

    @property
    def event_dim(self) -> int:  # type: ignore[override]
        """That of the base, and the dimensions that are taken together."""
        return self.base.event_dim + self.reinterpreted_batch_ndims

    @property
    def is_discrete(self) -> bool:  # type: ignore[override]
        """As the base."""
        return self.base.is_discrete

    def check(self, value: TensorLike) -> Variable:
        found = self.base.check(value)
        axes = list(range(found.type.ndim - self.reinterpreted_batch_ndims, found.type.ndim))
        return T.all(found, axis=axes) if axes else found

    def __str__(self) -> str:
        return f"in each element {self.base}"


@dataclass(frozen=True)
class _Simplex(Constraint):
    event_dim: ClassVar[int] = 1

    def check(self, value: TensorLike) -> Variable:
        v = as_variable(value)
        return T.all(T.ge(v, 0), axis=-1) & T.lt(abs(v.sum(axis=-1) - 1), 1e-6)

    def __str__(self) -> str:
        return "numbers of at least 0 that sum to 1"


@dataclass(frozen=True)
class _OneHot(Constraint):
    event_dim: ClassVar[int] = 1
    is_discrete: ClassVar[bool] = True

    def check(self, value: TensorLike) -> Variable:
        v = as_variable(value)
        return T.all(T.eq(v, 0) | T.eq(v, 1), axis=-1) & T.eq(v.sum(axis=-1), 1)

    def __str__(self) -> str:
        return "a single 1 among zeros"


@dataclass(frozen=True)
class _LowerCholesky(Constraint):
    event_dim: ClassVar[int] = 2

    def check(self, value: TensorLike) -> Variable:
        v = as_variable(value)
        lower = T.all(T.eq(v, T.tril(v)), axis=[v.type.ndim - 2, v.type.ndim - 1])
        return lower & T.all(T.gt(T.diagonal(v, 0, v.type.ndim - 2, v.type.ndim - 1), 0), axis=-1)

    def __str__(self) -> str:
        return "a lower triangle with a positive diagonal"


@dataclass(frozen=True)
class _LowerTriangular(Constraint):
    event_dim: ClassVar[int] = 2

    def check(self, value: TensorLike) -> Variable:
        v = as_variable(value)
        return T.all(T.eq(v, T.tril(v)), axis=[v.type.ndim - 2, v.type.ndim - 1])

    def __str__(self) -> str:
        return "a lower triangle"


@dataclass(frozen=True)
class _CorrCholesky(Constraint):
    event_dim: ClassVar[int] = 2

    def check(self, value: TensorLike) -> Variable:
        v = as_variable(value)
        # The error of a sum of so many squares, as in PyTorch.
        near = 10 * np.finfo(v.type.dtype).eps * T.cast(v.shape[-1], v.type.dtype)
        length = T.sqrt(T.sqr(v).sum(axis=-1))
        return T.all(T.le(abs(length - 1), near), axis=-1) & lower_cholesky.check(v)

    def __str__(self) -> str:
        return "a lower triangle with a positive diagonal and rows of length 1"


@dataclass(frozen=True)
class _Square(Constraint):
    event_dim: ClassVar[int] = 2

    def check(self, value: TensorLike) -> Variable:
        v = as_variable(value)
        lead = [v.shape[i] for i in range(v.type.ndim - 2)]
        return T.alloc(T.eq(v.shape[-1], v.shape[-2]), *lead)

    def __str__(self) -> str:
        return "a square matrix"


@dataclass(frozen=True)
class _Symmetric(_Square):
    def check(self, value: TensorLike) -> Variable:
        v = as_variable(value)
        last = [v.type.ndim - 2, v.type.ndim - 1]
        turned = v.dimshuffle([*range(last[0]), last[1], last[0]])
        return T.all(T.le(abs(v - turned), 1e-6 + 1e-5 * abs(turned)), axis=last)

    def __str__(self) -> str:
        return "a symmetric matrix"


@dataclass(frozen=True)
class _PositiveDefinite(_Symmetric):
    def check(self, value: TensorLike) -> Variable:
        v = as_variable(value)
        # Of other matrices the factor is NaN.
        root = cholesky(v, check=False)
        diagonal = T.diagonal(root, 0, v.type.ndim - 2, v.type.ndim - 1)
        return super().check(v) & T.all(T.gt(diagonal, 0), axis=-1)

    def __str__(self) -> str:
        return "a symmetric positive definite matrix"


@dataclass(frozen=True)
class _PositiveSemidefinite(_Symmetric):
    def check(self, value: TensorLike) -> Variable:
        v = as_variable(value)
        return super().check(v) & T.all(T.ge(eigvalsh(v), 0), axis=-1)

    def __str__(self) -> str:
        return "a symmetric matrix without negative eigenvalues"


@dataclass(frozen=True, eq=False)
class multinomial(Constraint):
    """Whole numbers of at least 0 that sum to ``upper_bound`` at most."""

    upper_bound: TensorLike
    event_dim: ClassVar[int] = 1
    is_discrete: ClassVar[bool] = True

    def check(self, value: TensorLike) -> Variable:
        v = as_variable(value)
        return T.all(nonnegative_integer.check(v), axis=-1) & T.le(v.sum(axis=-1), self.upper_bound)

    def __str__(self) -> str:
        return f"counts with a sum of at most {self.upper_bound}"


def lifted(rule: Constraint, event_dim: int) -> Constraint:
    """``rule`` for events of so many dimensions, or its own where it has as many."""
    more = event_dim - rule.event_dim
    return independent(rule, more) if more > 0 else rule


@dataclass(frozen=True, eq=False)
class cat(Constraint):
    """Constraints of parts of these ``lengths`` (1 each) along ``dim``, one after the other."""

    cseq: Sequence[Constraint]
    dim: int = 0
    lengths: Sequence[int] | None = None

    @property
    def event_dim(self) -> int:  # type: ignore[override]
        """The largest of the parts."""
        return max(c.event_dim for c in self.cseq)

    @property
    def is_discrete(self) -> bool:  # type: ignore[override]
        """Whether a part is."""
        return any(c.is_discrete for c in self.cseq)

    def check(self, value: TensorLike) -> Variable:
        v, found, start = as_variable(value), [], 0
        axis = self.dim % v.type.ndim
        for rule, n in zip(self.cseq, self.lengths or [1] * len(self.cseq), strict=True):
            found.append(rule.check(v[(*[slice(None)] * axis, slice(start, start + n))]))
            start += n
        return T.concatenate(found, axis=axis)

    def __str__(self) -> str:
        return f"in parts {', '.join(map(str, self.cseq))}"


@dataclass(frozen=True, eq=False)
class stack(Constraint):
    """Constraint number i of entry i along ``dim``."""

    cseq: Sequence[Constraint]
    dim: int = 0

    @property
    def event_dim(self) -> int:  # type: ignore[override]
        """The largest of the entries, and 1 more where the entries lie behind the batch."""
        most = max(c.event_dim for c in self.cseq)
        return most + 1 if self.dim + most < 0 else most

    @property
    def is_discrete(self) -> bool:  # type: ignore[override]
        """Whether an entry is."""
        return any(c.is_discrete for c in self.cseq)

    def check(self, value: TensorLike) -> Variable:
        v = as_variable(value)
        axis = self.dim % v.type.ndim
        parts = [c.check(v[(*[slice(None)] * axis, i)]) for i, c in enumerate(self.cseq)]
        return T.stack(*parts, axis=axis)

    def __str__(self) -> str:
        return f"in entries {', '.join(map(str, self.cseq))}"


real: Constraint = _Real()
real_vector: Constraint = independent(real, 1)
positive: Constraint = interval(0, closed=(False, True))
nonnegative: Constraint = interval(0)
unit_interval: Constraint = interval(0, 1)
boolean: Constraint = integer_interval(0, 1)
nonnegative_integer: Constraint = integer_interval(0)
positive_integer: Constraint = integer_interval(1)
simplex: Constraint = _Simplex()
one_hot: Constraint = _OneHot()
lower_cholesky: Constraint = _LowerCholesky()
positive_definite: Constraint = _PositiveDefinite()
positive_semidefinite: Constraint = _PositiveSemidefinite()
lower_triangular: Constraint = _LowerTriangular()
corr_cholesky: Constraint = _CorrCholesky()
square: Constraint = _Square()
symmetric: Constraint = _Symmetric()


def greater_than(low: TensorLike) -> Constraint:
    """Above ``low``."""
    return interval(low, closed=(False, True))


def greater_than_eq(low: TensorLike) -> Constraint:
    """At ``low`` or above."""
    return interval(low)


def less_than(high: TensorLike) -> Constraint:
    """Below ``high``."""
    return interval(high=high, closed=(True, False))


def half_open_interval(low: TensorLike, high: TensorLike) -> Constraint:
    """At ``low`` or above, below ``high``."""
    return interval(low, high, (True, False))
