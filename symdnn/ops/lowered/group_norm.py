"""Group norm of activations in one op, with the channels as second or as last dimension.

``opt/layout/group_norm.py`` makes these ops, which may have either layout, of a layer norm between
two reshapes; ``opt/fuse/group_norm.py`` splits them into reductions and elementwise nodes. They
have no gradients, which are taken before. (Wu and He 2018; with a group for each channel it is
instance norm, Ulyanov et al. 2016.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import TypeMismatch
from symdnn.graph.op import Host, MultiOp, Shapes, Types
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array
from symdnn.ops.core.dtype import widened
from symdnn.ops.nn import norm_numpy
from symdnn.ops.nn.batchnorm import parameter_dtype


@dataclass(frozen=True)
class _OfGroups(MultiOp):
    """Base of both: ``channels`` is the dimension of the channels, 0 that of the batch.

    Parameters have size 1 but for the channels, statistics but for the batch and the channels: all
    channels of a group have the statistics of the group.
    """

    abstract: ClassVar[bool] = True
    groups: int
    epsilon: float
    channels: int = 1

    def positions(self, ndim: int) -> tuple[int, ...]:
        """The dimensions that are neither the batch nor the channels."""
        return tuple(i for i in range(1, ndim) if i != self.channels)

    def _parameter(self, x: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(d if i == self.channels else 1 for i, d in enumerate(x))

    def _statistic(self, x: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(d if i in (0, self.channels) else 1 for i, d in enumerate(x))

    def _check(self, x: Any, parameters: Sequence[Any], statistics: Sequence[Any]) -> str:
        """The dtype of parameters and statistics; raises :class:`TypeMismatch` for other types."""
        if not isinstance(x, TensorType) or not x.is_float or not 1 <= self.channels < x.ndim:
            raise TypeMismatch(self, "a float input with a batch and channels", x)
        if self.groups < 1 or (x.shape[self.channels] or 0) % self.groups:
            raise TypeMismatch(self, f"a multiple of {self.groups} channels", x)
        dtype = parameter_dtype(x.dtype)
        for kind, shape in ((parameters, self._parameter), (statistics, self._statistic)):
            wanted = TensorType(dtype, shape(x.shape))
            for t in kind:
                if (t.dtype, t.broadcastable) != (dtype, wanted.broadcastable):
                    raise TypeMismatch(self, f"parameters and statistics like {wanted}", t)
        return dtype

    def _rows(self, a: Array) -> Array:
        """An array as (batch, groups, all that a group has)."""
        first = np.moveaxis(a, self.channels, 1)
        return first.reshape(first.shape[0], self.groups, -1)

    def _spread(self, rows: Array, x: Array) -> Array:
        """Numbers of (batch, groups, 1) for each channel."""
        each = np.repeat(rows[:, :, 0], x.shape[self.channels] // self.groups, axis=1)
        return each.reshape(self._statistic(x.shape))


class GroupNorm(_OfGroups):
    """(y, mean, invstd) of (x, gamma, beta): ``(x - mean) * invstd * gamma + beta``."""

    def infer(self, x: TensorType, gamma: TensorType, beta: TensorType) -> Any:
        statistic = TensorType(self._check(x, (gamma, beta), ()), self._statistic(x.shape))
        return x, statistic, statistic

    def reference(self, x: Array, gamma: Array, beta: Array) -> Any:
        (v,) = widened(x)
        mean, _, invstd = norm_numpy.moments(self._rows(v), (2,), self.epsilon)
        mean, invstd = self._spread(mean, v), self._spread(invstd, v)
        y = norm_numpy.normalise(v, gamma, beta, mean, invstd)
        return y.astype(x.dtype, copy=False), mean, invstd

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        statistic = self._statistic(shapes[0])
        return [tuple(shapes[0]), statistic, statistic]


class GroupNormGrad(_OfGroups):
    """(dx, dgamma, dbeta) of (x, dy, gamma, mean, invstd)."""

    def infer(
        self, x: TensorType, dy: TensorType, gamma: TensorType, mean: TensorType, invstd: TensorType
    ) -> Any:
        self._check(x, (gamma,), (mean, invstd))
        if (dy.dtype, dy.ndim) != (x.dtype, x.ndim):
            raise TypeMismatch(self, f"a cotangent of type {x}", dy)
        return x, gamma, gamma

    def reference(self, x: Array, dy: Array, gamma: Array, mean: Array, invstd: Array) -> Any:
        v, d = widened(x, dy)
        xhat = (v - mean) * invstd
        g = d * gamma
        a, b = (self._spread(self._rows(t).mean(2, keepdims=True), v) for t in (g, g * xhat))
        dx = invstd * (g - a - xhat * b)
        others = (0, *self.positions(v.ndim))
        sums = [t.sum(others, keepdims=True) for t in (d * xhat, d)]
        return (dx.astype(x.dtype, copy=False), *sums)

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        return [tuple(shapes[0]), tuple(shapes[2]), tuple(shapes[2])]
