"""Invertible functions with the logarithms of their derivatives, under PyTorch's names."""

from __future__ import annotations

from collections.abc import Sequence
from math import log, prod
from typing import Any

import numpy as np

import symdnn.tensor as T
from symdnn.distributions import constraints
from symdnn.distributions.base import Distribution, Lacking, sum_rightmost
from symdnn.distributions.constraints import Constraint, lifted
from symdnn.errors import TypeMismatch
from symdnn.graph.dims import Dim
from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import Constant, Variable, as_variable
from symdnn.ops.elemwise import like
from symdnn.ops.random.sizes import size_dims
from symdnn.options import as_list

__all__ = [
    "AffineTransform", "ComposeTransform", "ExpTransform", "LowerCholeskyTransform",
    "PowerTransform", "SigmoidTransform", "SoftplusTransform", "StickBreakingTransform",
    "TanhTransform", "Transform",
]  # fmt: skip


class Transform:
    """A function ``y = t(x)`` with ``t.inv`` and :meth:`log_abs_det_jacobian`.

    The last result is cached: its inverse is the very input variable, which preserves digits that a
    computed inverse would lose (PyTorch's ``cache_size=1``).

    Transforms of one class with equal numbers, or the same variables, are equal.
    """

    domain: Constraint = constraints.real
    codomain: Constraint = constraints.real
    bijective: bool = True

    def __init__(self) -> None:
        self._last: tuple[Variable, Variable] | None = None

    @property
    def domain_event_dim(self) -> int:
        """The dimensions of an operand that belong together."""
        return self.domain.event_dim

    @property
    def codomain_event_dim(self) -> int:
        """Those of a result."""
        return self.codomain.event_dim

    @property
    def inv(self) -> Transform:
        """The inverse function."""
        return InverseTransform(self)

    @property
    def sign(self) -> Variable:
        """1 where the function of a number rises, -1 where it falls."""
        if self.domain_event_dim or self.codomain_event_dim or not self.bijective:
            raise Lacking(f"{type(self).__name__} neither rises nor falls: it has no sign")
        return as_variable(1)

    def forward_shape(self, shape: Sequence[Dim]) -> tuple[Dim, ...]:
        """The shape of ``t(x)`` for an ``x`` of this shape."""
        return tuple(shape)

    def inverse_shape(self, shape: Sequence[Dim]) -> tuple[Dim, ...]:
        """The shape of ``t.inv(y)`` for a ``y`` of this shape."""
        return tuple(shape)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Transform) or type(other) is not type(self):
            return False
        return _equal(self._parameters(), other._parameters())

    def __hash__(self) -> int:
        return hash(type(self))

    def _parameters(self) -> Sequence[Any]:
        """What makes it another transform of its class."""
        return ()

    def __call__(self, x: TensorLike) -> Variable:
        v = as_variable(x)
        y = self._call(v)
        self._last = (v, y)
        return y

    def inverse(self, y: TensorLike) -> Variable:
        """``x`` of ``y``."""
        v = as_variable(y)
        if self._last is not None and self._last[1] is v:
            return self._last[0]
        return self._inverse(v)

    def log_abs_det_jacobian(self, x: TensorLike, y: TensorLike) -> Variable:
        """``log |det dy/dx|``, of ``x`` and ``y = t(x)``; one number for each event."""
        return self._log_slope(as_variable(x), as_variable(y))

    def _call(self, x: Variable) -> Variable:
        raise NotImplementedError

    def _inverse(self, y: Variable) -> Variable:
        raise NotImplementedError

    def _log_slope(self, x: Variable, y: Variable) -> Variable:
        raise NotImplementedError


def _equal(a: Any, b: Any) -> bool:
    """Whether two parameters are the same, or equal constants."""
    if a is b or isinstance(a, Distribution):
        return a is b
    if isinstance(a, Transform):
        return bool(a == b)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_equal, a, b))
    u, v = as_variable(a), as_variable(b)
    if isinstance(u, Constant) and isinstance(v, Constant):
        return bool(np.array_equal(u.data, v.data))
    return False


def _broadcast(shape: Sequence[Dim], *operands: TensorLike) -> tuple[Dim, ...]:
    return tuple(size_dims(None, None, [T.zeros(list(shape)), *map(as_variable, operands)]))


class InverseTransform(Transform):
    """The inverse of a transform."""

    def __init__(self, of: Transform) -> None:
        super().__init__()
        self.of, self.domain, self.codomain = of, of.codomain, of.domain
        self.bijective = of.bijective

    @property
    def domain_event_dim(self) -> int:
        return self.of.codomain_event_dim

    @property
    def codomain_event_dim(self) -> int:
        return self.of.domain_event_dim

    @property
    def inv(self) -> Transform:
        return self.of

    @property
    def sign(self) -> Variable:
        return self.of.sign

    def forward_shape(self, shape: Sequence[Dim]) -> tuple[Dim, ...]:
        return self.of.inverse_shape(shape)

    def inverse_shape(self, shape: Sequence[Dim]) -> tuple[Dim, ...]:
        return self.of.forward_shape(shape)

    def _parameters(self) -> Sequence[Any]:
        return (self.of,)

    def _call(self, x: Variable) -> Variable:
        return self.of.inverse(x)

    def _inverse(self, y: Variable) -> Variable:
        return self.of(y)

    def _log_slope(self, x: Variable, y: Variable) -> Variable:
        return -self.of.log_abs_det_jacobian(y, x)


class AffineTransform(Transform):
    """``loc + scale x``; with ``event_dim`` last dimensions taken together."""

    def __init__(self, loc: TensorLike, scale: TensorLike, event_dim: int = 0) -> None:
        super().__init__()
        self.loc, self.scale, self.event_dim = loc, as_variable(scale), event_dim
        self.domain = self.codomain = lifted(constraints.real, event_dim)

    @property
    def sign(self) -> Variable:
        return T.sgn(self.scale)

    def forward_shape(self, shape: Sequence[Dim]) -> tuple[Dim, ...]:
        return _broadcast(shape, self.loc, self.scale)

    inverse_shape = forward_shape

    def _parameters(self) -> Sequence[Any]:
        return self.loc, self.scale, self.event_dim

    def _call(self, x: Variable) -> Variable:
        return self.loc + self.scale * x

    def _inverse(self, y: Variable) -> Variable:
        return (y - self.loc) / self.scale

    def _log_slope(self, x: Variable, y: Variable) -> Variable:
        return sum_rightmost(T.log(abs(self.scale + T.zeros_like(x))), self.event_dim)


class ExpTransform(Transform):
    """``exp(x)``."""

    codomain: Constraint = constraints.positive

    def _call(self, x: Variable) -> Variable:
        return T.exp(x)

    def _inverse(self, y: Variable) -> Variable:
        return T.log(y)

    def _log_slope(self, x: Variable, y: Variable) -> Variable:
        return x


class PowerTransform(Transform):
    """``x ** exponent`` of positive numbers."""

    domain: Constraint = constraints.positive
    codomain: Constraint = constraints.positive

    def __init__(self, exponent: TensorLike) -> None:
        super().__init__()
        self.exponent = as_variable(exponent)

    @property
    def sign(self) -> Variable:
        return T.sgn(self.exponent)

    def forward_shape(self, shape: Sequence[Dim]) -> tuple[Dim, ...]:
        return _broadcast(shape, self.exponent)

    inverse_shape = forward_shape

    def _parameters(self) -> Sequence[Any]:
        return (self.exponent,)

    def _call(self, x: Variable) -> Variable:
        return x**self.exponent

    def _inverse(self, y: Variable) -> Variable:
        return y ** (1 / self.exponent)

    def _log_slope(self, x: Variable, y: Variable) -> Variable:
        return T.log(abs(self.exponent + T.zeros_like(x))) + (self.exponent - 1) * T.log(x)


class SigmoidTransform(Transform):
    """``sigmoid(x)``."""

    codomain: Constraint = constraints.unit_interval

    def _call(self, x: Variable) -> Variable:
        return T.sigmoid(x)

    def _inverse(self, y: Variable) -> Variable:
        return T.logit(y)

    def _log_slope(self, x: Variable, y: Variable) -> Variable:
        return -T.softplus(-x) - T.softplus(x)


class TanhTransform(Transform):
    """``tanh(x)``."""

    codomain: Constraint = constraints.interval(-1, 1)

    def _call(self, x: Variable) -> Variable:
        return T.tanh(x)

    def _inverse(self, y: Variable) -> Variable:
        return T.arctanh(y)

    def _log_slope(self, x: Variable, y: Variable) -> Variable:
        return 2 * (like(log(2), x) - x - T.softplus(-2 * x))


class SoftplusTransform(Transform):
    """``softplus(x)``."""

    codomain: Constraint = constraints.positive

    def _call(self, x: Variable) -> Variable:
        return T.softplus(x)

    def _inverse(self, y: Variable) -> Variable:
        return y + T.log(-T.expm1(-y))

    def _log_slope(self, x: Variable, y: Variable) -> Variable:
        return -T.softplus(-x)


class StickBreakingTransform(Transform):
    """Probabilities of ``n + 1`` classes of a vector of ``n`` numbers, by breaking a stick.

    Entry ``k`` is the logit of class ``k``'s share of the remainder, minus the logarithm of the
    number of classes after it. So 0 means equal shares.
    """

    domain: Constraint = constraints.real_vector
    codomain: Constraint = constraints.simplex

    def forward_shape(self, shape: Sequence[Dim]) -> tuple[Dim, ...]:
        return (*shape[:-1], shape[-1] + 1)

    def inverse_shape(self, shape: Sequence[Dim]) -> tuple[Dim, ...]:
        return (*shape[:-1], shape[-1] - 1)

    def _offset(self, count: Variable, dtype: str) -> Variable:
        return T.log(T.cast(count - T.arange(count), dtype))

    def _call(self, x: Variable) -> Variable:
        off = x - self._offset(x.shape[-1], x.type.dtype)
        left = T.cumsum(-T.softplus(off), axis=x.type.ndim - 1)
        zero = T.zeros_like(left[..., :1])
        taken = T.concatenate([-T.softplus(-off), zero], axis=-1)
        return T.exp(taken + T.concatenate([zero, left], axis=-1))

    def _inverse(self, y: Variable) -> Variable:
        short = y[..., :-1]
        # The remainder after each class: the sum of the later ones, which are all positive.
        after = T.cumsum(y[..., ::-1], axis=y.type.ndim - 1)[..., ::-1][..., 1:]
        return T.log(short) - T.log(after) + self._offset(short.shape[-1], y.type.dtype)

    def _log_slope(self, x: Variable, y: Variable) -> Variable:
        off = x - self._offset(x.shape[-1], x.type.dtype)
        return (-T.softplus(off) + T.log(y[..., :-1])).sum(axis=-1)


class LowerCholeskyTransform(Transform):
    """A lower triangle with a positive diagonal: the operand's, with ``exp`` of its diagonal."""

    domain: Constraint = constraints.independent(constraints.real, 2)
    codomain: Constraint = constraints.lower_cholesky
    bijective: bool = False

    def _parts(self, x: Variable) -> tuple[Variable, Variable]:
        """(the part below the diagonal, a mask of the diagonal)."""
        return T.tril(x, -1), T.eye(x.shape[-1], dtype=x.type.dtype)

    def _call(self, x: Variable) -> Variable:
        low, mask = self._parts(x)
        return low + mask * T.exp(x * mask)

    def _inverse(self, y: Variable) -> Variable:
        low, mask = self._parts(y)
        return low + T.log(y * mask + 1 - mask)

    def _log_slope(self, x: Variable, y: Variable) -> Variable:
        return T.diagonal(x, 0, x.type.ndim - 2, x.type.ndim - 1).sum(axis=-1)


def transforms_of(name: str, given: object) -> list[Transform]:
    """A list of transforms; ``name`` is whose argument it is."""
    found = as_list(f"{name}: transforms", given, "transforms")
    if others := [t for t in found if not isinstance(t, Transform)]:
        raise TypeMismatch(name, "transforms", f"{others[0]!r:.80}")
    return found


class ComposeTransform(Transform):
    """Transforms one after the other, the first of ``parts`` first."""

    def __init__(self, parts: Sequence[Transform]) -> None:
        super().__init__()
        self.parts = transforms_of("ComposeTransform", parts)
        if self.parts:
            first, last = self.parts[0].domain, self.parts[-1].codomain
            self.domain = lifted(first, self.domain_event_dim)
            self.codomain = lifted(last, self.codomain_event_dim)
            self.bijective = all(part.bijective for part in self.parts)

    @property
    def domain_event_dim(self) -> int:
        return self._event_dims(self.parts[::-1], True)

    @property
    def codomain_event_dim(self) -> int:
        return self._event_dims(self.parts, False)

    @property
    def sign(self) -> Variable:
        return prod((part.sign for part in self.parts), start=as_variable(1))

    def forward_shape(self, shape: Sequence[Dim]) -> tuple[Dim, ...]:
        for part in self.parts:
            shape = part.forward_shape(shape)
        return tuple(shape)

    def inverse_shape(self, shape: Sequence[Dim]) -> tuple[Dim, ...]:
        for part in reversed(self.parts):
            shape = part.inverse_shape(shape)
        return tuple(shape)

    def _parameters(self) -> Sequence[Any]:
        return self.parts

    def _event_dims(self, parts: Sequence[Transform], backwards: bool) -> int:
        found = 0
        for part in parts:
            ends = part.domain_event_dim, part.codomain_event_dim
            enter, leave = ends[::-1] if backwards else ends
            found = max(found + leave - enter, leave)
        return found

    def _call(self, x: Variable) -> Variable:
        for part in self.parts:
            x = part(x)
        return x

    def _inverse(self, y: Variable) -> Variable:
        for part in reversed(self.parts):
            y = part.inverse(y)
        return y

    def _log_slope(self, x: Variable, y: Variable) -> Variable:
        values = [x]
        for part in self.parts[:-1]:
            values.append(part(values[-1]))
        values.append(y)
        dims, total = self.domain_event_dim, None
        for part, a, b in zip(self.parts, values[:-1], values[1:], strict=True):
            slope = part.log_abs_det_jacobian(a, b)
            term = sum_rightmost(slope, dims - part.domain_event_dim)
            total = term if total is None else total + term
            dims += part.codomain_event_dim - part.domain_event_dim
        return T.zeros_like(x) if total is None else total
