"""Invertible functions with the logarithms of their derivatives, under PyTorch's names."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import ClassVar

import symdnn.tensor as T
from symdnn.distributions import constraints
from symdnn.distributions.base import sum_rightmost
from symdnn.distributions.constraints import Constraint
from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.elemwise import like

__all__ = [
    "AffineTransform", "ComposeTransform", "ExpTransform", "LowerCholeskyTransform",
    "PowerTransform", "SigmoidTransform", "SoftplusTransform", "StickBreakingTransform",
    "TanhTransform", "Transform",
]  # fmt: skip


class Transform:
    """A function ``y = t(x)`` with ``t.inv`` and :meth:`log_abs_det_jacobian`.

    The last result is cached: its inverse is the very input variable, which preserves digits that a
    computed inverse would lose (PyTorch's ``cache_size=1``).
    """

    domain: ClassVar[Constraint] = constraints.real
    codomain: ClassVar[Constraint] = constraints.real
    bijective: ClassVar[bool] = True

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


class InverseTransform(Transform):
    """The inverse of a transform."""

    def __init__(self, of: Transform) -> None:
        super().__init__()
        self.of = of

    @property
    def domain_event_dim(self) -> int:
        return self.of.codomain_event_dim

    @property
    def codomain_event_dim(self) -> int:
        return self.of.domain_event_dim

    @property
    def inv(self) -> Transform:
        return self.of

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

    @property
    def domain_event_dim(self) -> int:
        return self.event_dim

    codomain_event_dim = domain_event_dim

    def _call(self, x: Variable) -> Variable:
        return self.loc + self.scale * x

    def _inverse(self, y: Variable) -> Variable:
        return (y - self.loc) / self.scale

    def _log_slope(self, x: Variable, y: Variable) -> Variable:
        return sum_rightmost(T.log(abs(self.scale + T.zeros_like(x))), self.event_dim)


class ExpTransform(Transform):
    """``exp(x)``."""

    codomain: ClassVar[Constraint] = constraints.positive

    def _call(self, x: Variable) -> Variable:
        return T.exp(x)

    def _inverse(self, y: Variable) -> Variable:
        return T.log(y)

    def _log_slope(self, x: Variable, y: Variable) -> Variable:
        return x


class PowerTransform(Transform):
    """``x ** exponent`` of positive numbers."""

    domain: ClassVar[Constraint] = constraints.positive
    codomain: ClassVar[Constraint] = constraints.positive

    def __init__(self, exponent: TensorLike) -> None:
        super().__init__()
        self.exponent = as_variable(exponent)

    def _call(self, x: Variable) -> Variable:
        return x**self.exponent

    def _inverse(self, y: Variable) -> Variable:
        return y ** (1 / self.exponent)

    def _log_slope(self, x: Variable, y: Variable) -> Variable:
        return T.log(abs(self.exponent + T.zeros_like(x))) + (self.exponent - 1) * T.log(x)


class SigmoidTransform(Transform):
    """``sigmoid(x)``."""

    codomain: ClassVar[Constraint] = constraints.unit_interval

    def _call(self, x: Variable) -> Variable:
        return T.sigmoid(x)

    def _inverse(self, y: Variable) -> Variable:
        return T.logit(y)

    def _log_slope(self, x: Variable, y: Variable) -> Variable:
        return -T.softplus(-x) - T.softplus(x)


class TanhTransform(Transform):
    """``tanh(x)``."""

    codomain: ClassVar[Constraint] = constraints.interval(-1, 1)

    def _call(self, x: Variable) -> Variable:
        return T.tanh(x)

    def _inverse(self, y: Variable) -> Variable:
        return T.arctanh(y)

    def _log_slope(self, x: Variable, y: Variable) -> Variable:
        return 2 * (like(log(2), x) - x - T.softplus(-2 * x))


class SoftplusTransform(Transform):
    """``softplus(x)``."""

    codomain: ClassVar[Constraint] = constraints.positive

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

    domain: ClassVar[Constraint] = constraints.real_vector
    codomain: ClassVar[Constraint] = constraints.simplex

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

    domain: ClassVar[Constraint] = constraints.independent(constraints.real, 2)
    codomain: ClassVar[Constraint] = constraints.lower_cholesky

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


class ComposeTransform(Transform):
    """Transforms one after the other, the first of ``parts`` first."""

    def __init__(self, parts: Sequence[Transform]) -> None:
        super().__init__()
        self.parts = list(parts)

    @property
    def domain_event_dim(self) -> int:
        return self._event_dims(self.parts[::-1], True)

    @property
    def codomain_event_dim(self) -> int:
        return self._event_dims(self.parts, False)

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
