"""Batch normalisation: training, its gradient, and inference with given statistics.

Statistics are over ``axes``. Parameters and statistics have the ndim of the input and size 1 on
these axes. Their dtype is that of the input, or float32 if the input is float16 or bfloat16
(cuDNN's rule). The source is Ioffe and Szegedy 2015; the functions are
``cudnnBatchNormalizationForwardTraining``, ``...Backward`` and ``...ForwardInference``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import AxisError, TypeMismatch
from symdnn.graph.backprop import zeros_for
from symdnn.graph.dims import Dim, DimT, Shape, product, same_dim
from symdnn.graph.op import Axes, Batched, Grads, Host, MultiOp, Op, Shapes, Types, Vars
from symdnn.graph.type import TensorType, Type
from symdnn.graph.typing import Array
from symdnn.graph.variable import Variable, constant
from symdnn.ops.core.dtype import widened, work_dtype
from symdnn.ops.core.lanes import lanes_of, on_lanes, stacked
from symdnn.ops.core.shape import dims_of
from symdnn.ops.elemwise import unbroadcast
from symdnn.ops.nn import norm_numpy


def parameter_dtype(dtype: str) -> str:
    """The dtype of parameters and statistics for inputs of this dtype."""
    return work_dtype(dtype)


def element_count(x: Variable, axes: Sequence[int], dtype: str) -> Any:
    """The number of elements of a statistic, as a float scalar."""
    m = product(dims_of(x)[a] for a in axes)
    return np.asarray(m, dtype) if isinstance(m, int) else m.astype(dtype)


@dataclass(frozen=True)
class Normalise(Op):
    """Base of these ops: checks of types and shapes, sums over axes."""

    never_fails: ClassVar[bool] = True
    abstract: ClassVar[bool] = True
    axes: tuple[int, ...]
    epsilon: float

    @property
    def scalars(self) -> tuple[int, ...]:
        """Inputs that are scalars."""
        return ()

    def check(self, x: TensorType, *parameters: TensorType, names: str) -> None:
        """Raise unless the input is float and parameters have its ndim and the right dtype."""
        if not isinstance(x, TensorType) or not x.is_float:
            raise TypeMismatch(self, "a float input", x)
        if not self.axes or any(not 0 <= a < x.ndim for a in self.axes):
            raise AxisError(self, f"an input with the axes {self.axes}", x)
        dtype = parameter_dtype(x.dtype)
        for p in parameters:
            if p.dtype != dtype or p.ndim != x.ndim:
                wanted = f"{names} of dtype {dtype} and {x.ndim} dimensions for an input {x}"
                raise TypeMismatch(self, wanted, list(parameters))

    def kept(self, shape: Sequence[DimT]) -> tuple[DimT | int, ...]:
        """The shape of the statistics."""
        return tuple(1 if i in self.axes else d for i, d in enumerate(shape))

    def statistic(self, x: TensorType) -> TensorType:
        """The type of the mean of ``x``."""
        return TensorType(parameter_dtype(x.dtype), self.kept(x.shape))

    def parameter_shape(self, x: Shape, *parameters: Shape, types: Sequence[TensorType]) -> Shape:
        """The common shape of parameters that broadcast against ``x`` by their static 1s."""
        out = []
        for axis, dims in enumerate(zip(*parameters, strict=True)):
            wide = [d for t, d in zip(types, dims, strict=True) if t.shape[axis] != 1]
            wanted = f"parameters that fit the input in dimension {axis}"
            got = [tuple(x), *map(tuple, parameters)]
            out.append(same_dim(self, [*wide, x[axis]], wanted, got) if wide else 1)
        return tuple(out)

    def mean_over(self, x: Variable, count: Dim) -> Variable:
        """The mean over ``axes``, which stay as size 1."""
        return x.sum(axis=self.axes, keepdims=True) / count

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return on_lanes(
            replace(self, axes=tuple(a + 1 for a in self.axes)), inputs, axes, self.scalars
        )


class NormalisedOutput(Normalise):
    """Base of the forward ops: (y, mean, invstd) of (x, gamma, beta)."""

    abstract: ClassVar[bool] = True

    def infer(self, x: TensorType, gamma: TensorType, beta: TensorType) -> tuple[Type, ...]:
        self.check(x, gamma, beta, names="gamma and beta")
        if gamma.broadcastable != beta.broadcastable:
            raise TypeMismatch(self, "gamma and beta of one broadcast pattern", [gamma, beta])
        return x, self.statistic(x), self.statistic(x)

    def reference(self, x: Array, gamma: Array, beta: Array) -> tuple[Array, ...]:
        (v,) = widened(x)
        mean, _, invstd = norm_numpy.moments(v, self.axes, self.epsilon)
        y = norm_numpy.normalise(v, gamma, beta, mean, invstd)
        return y.astype(x.dtype, copy=False), mean, invstd

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        x, gamma, beta = shapes[:3]
        self.parameter_shape(x, gamma, beta, types=types[1:3])
        return [tuple(x), self.kept(x), self.kept(x)]

    def grad_op(self) -> Any:
        """The op of the gradients through y."""
        raise NotImplementedError

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        (x, gamma, _), (_, mean, invstd) = inputs, outputs
        dy, dmean, dinvstd = cotangents
        dx: Any = None
        dgamma: Any = None
        dbeta: Any = None
        if dy is not None:
            dx, dgamma, dbeta = self.grad_op()(x, dy, gamma, mean, invstd)
        extra = self.through_statistics(x, mean, invstd, dmean, dinvstd)
        if extra is not None:
            dx = extra if dx is None else dx + extra
        return [dx, dgamma, dbeta]

    def through_statistics(
        self,
        x: Variable,
        mean: Variable,
        invstd: Variable,
        dmean: Variable | None,
        dinvstd: Variable | None,
    ) -> Variable | None:
        """Gradient of x through the statistics, which other nodes read."""
        if dmean is None and dinvstd is None:
            return None
        m = element_count(x, self.axes, invstd.type.dtype)
        total: Any = x.zeros_like(invstd.type.dtype)
        if dmean is not None:
            total = total + dmean / m
        if dinvstd is not None:
            total = total - (x - mean) * (dinvstd * invstd * invstd * invstd / m)
        return total.astype(x.type.dtype)  # type: ignore[no-any-return]


class NormGrad(Normalise, MultiOp):
    """Base of the gradient ops: (dx, dgamma, dbeta) of (x, dy, gamma, mean, invstd)."""

    abstract: ClassVar[bool] = True

    def infer(
        self, x: TensorType, dy: TensorType, gamma: TensorType, mean: TensorType, invstd: TensorType
    ) -> tuple[Type, ...]:
        self.check(x, gamma, mean, invstd, names="gamma, mean and invstd")
        if dy.dtype != x.dtype or dy.ndim != x.ndim:
            raise TypeMismatch(self, f"a cotangent of type {x}", dy)
        return x, gamma, gamma

    def reference(
        self, x: Array, dy: Array, gamma: Array, mean: Array, invstd: Array
    ) -> tuple[Array, ...]:
        v, d = widened(x, dy)
        dx, dgamma, dbeta = norm_numpy.normalise_grad(v, d, gamma, mean, invstd, self.axes)
        return dx.astype(x.dtype, copy=False), dgamma, dbeta

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        x, dy, gamma, mean, invstd = shapes
        for i, d in enumerate(x):
            same_dim(self, (d, dy[i]), "a cotangent of the input's shape", [tuple(x), tuple(dy)])
        self.parameter_shape(x, gamma, types=types[2:3])
        self.parameter_shape(x, mean, invstd, types=types[3:5])
        return [tuple(x), tuple(gamma), tuple(gamma)]

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        """The product rule on ``invstd * (g - mean(g) - xhat * mean(g * xhat))``, g = dy gamma."""
        x, dy, gamma, mean, r = inputs
        u, v, w = zeros_for(outputs, cotangents)
        m = element_count(x, self.axes, r.type.dtype)
        spread = [i for i, one in enumerate(gamma.type.broadcastable) if one]
        centred = x - mean
        xhat, g = centred * r, dy * gamma
        b = self.mean_over(g * xhat, m)
        inner = g - self.mean_over(g, m) - xhat * b
        a = u * r
        c = self.mean_over(a * xhat, m)
        dg = a - self.mean_over(a, m) - xhat * c
        dxhat = v * dy - g * c - a * b
        dr = u * inner + dxhat * centred
        dcentred = dxhat * r
        return [
            dcentred,
            dg * gamma + v * xhat + w,
            (dg * dy).sum(axis=spread, keepdims=True) if spread else dg * dy,
            -dcentred.sum(axis=self.axes, keepdims=True),
            dr.sum(axis=self.axes, keepdims=True),
        ]


class LayerNorm(NormalisedOutput, MultiOp):
    """``(x - mean) * invstd * gamma + beta`` with statistics over ``axes``.

    Inputs x, gamma, beta; gamma and beta broadcast by any pattern of static 1s (layer, group and
    instance norm differ in it). Outputs y, mean, invstd (``axes`` kept as 1). Ba et al. 2016.
    """

    def grad_op(self) -> Op:
        return LayerNormGrad(self.axes, self.epsilon)


class LayerNormGrad(NormGrad):
    """(dx, dgamma, dbeta) of :class:`LayerNorm` from x, dy, gamma, mean, invstd."""


class BatchNormGrad(NormGrad):
    """(dx, dgamma, dbeta) of :class:`BatchNormTrain` from x, dy, gamma, mean, invstd."""


@dataclass(frozen=True)
class BatchNormTrain(NormalisedOutput, MultiOp):
    """``(x - mean) * invstd * gamma + beta`` with statistics of the batch, over ``axes``.

    Inputs x, gamma, beta, and with ``running`` also factor, running_mean, running_var. Outputs y,
    mean, invstd, and then new_running_mean = old * (1 - factor) + mean * factor and
    new_running_var, likewise from the unbiased variance (m / (m - 1); for m = 1 the biased one).
    """

    running: bool = False

    @property
    def scalars(self) -> tuple[int, ...]:
        return (3,) if self.running else ()

    def grad_op(self) -> Op:
        return BatchNormGrad(self.axes, self.epsilon)

    def infer(
        self, x: TensorType, gamma: TensorType, beta: TensorType, *running: TensorType
    ) -> tuple[Type, ...]:
        out = super().infer(x, gamma, beta)
        if any(gamma.shape[a] != 1 for a in self.axes):
            raise AxisError(self, f"parameters that are statically 1 on {self.axes}", gamma)
        if len(running) != 3 * self.running:
            raise TypeMismatch(self, "factor, running_mean and running_var", list(running))
        if not self.running:
            return out
        factor, *old = running
        self.check(x, *old, names="running_mean and running_var")
        if factor.ndim != 0 or factor.dtype != old[0].dtype:
            raise TypeMismatch(self, f"a {old[0].dtype} scalar as factor", factor)
        return *out, out[1], out[1]

    def reference(self, x: Array, gamma: Array, beta: Array, *running: Array) -> tuple[Array, ...]:
        y, mean, invstd = super().reference(x, gamma, beta)
        if not self.running:
            return y, mean, invstd
        factor, old_mean, old_var = running
        (v,) = widened(x)
        _, var, _ = norm_numpy.moments(v, self.axes, self.epsilon)
        m = norm_numpy.count(x.shape, self.axes)
        unbiased = var * v.dtype.type(m / max(m - 1, 1))
        new_mean = old_mean * (1 - factor) + mean * factor
        return y, mean, invstd, new_mean, old_var * (1 - factor) + unbiased * factor

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        out = list(super().shapes(types, shapes, host) or ())
        if self.running:
            self.parameter_shape(shapes[0], *shapes[4:6], types=types[4:6])
            out += [self.kept(shapes[0])] * 2
        return out

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        if not self.running or axes[3] is None:
            return super().batch(inputs, axes)
        factor = inputs[3].dimshuffle(0, *["x"] * (inputs[1].type.ndim - (axes[1] == 0)))
        one = constant(1, dtype=factor.type.dtype)
        olds = [stacked(inputs[k], axes[k], lanes_of(inputs, axes)) for k in (4, 5)]
        given = [*inputs[:3], one, *(v.zeros_like() for v in olds)]
        answer = super().batch(given, [*axes[:3], None, 0, 0])
        assert answer is not None, "the factor is the same for all lanes"
        news = [a * (1.0 - factor) + b * factor for a, b in zip(olds, answer[0][3:])]
        return [*answer[0][:3], *news], [0] * 5

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        if not self.running:
            return super().vjp(inputs, outputs, cotangents)
        x, gamma, beta, factor, old_mean, old_var = inputs
        *first, dnew_mean, dnew_var = cotangents
        dx, dgamma, dbeta = super().vjp([x, gamma, beta], outputs[:3], first)
        mean, invstd = outputs[1:3]
        m = element_count(x, self.axes, invstd.type.dtype)
        dfactor = dold_mean = dold_var = None
        if dnew_mean is not None:
            dx = _added(dx, x.zeros_like() + (dnew_mean * factor / m).astype(x.type.dtype))
            dfactor = _added(dfactor, (dnew_mean * (mean - old_mean)).sum())
            dold_mean = unbroadcast(dnew_mean * (1.0 - factor), old_mean)
        if dnew_var is not None:
            rest = (m - 1.0).clip(1.0, np.inf) if isinstance(m, Variable) else np.maximum(m - 1, 1)
            centred = x - mean
            unbiased = (centred * centred).sum(axis=self.axes, keepdims=True) / rest
            through = centred * (dnew_var * factor * 2.0 / rest)
            dx = _added(dx, through.astype(x.type.dtype))
            dfactor = _added(dfactor, (dnew_var * (unbiased - old_var)).sum())
            dold_var = unbroadcast(dnew_var * (1.0 - factor), old_var)
        return [dx, dgamma, dbeta, dfactor, dold_mean, dold_var]


def _added(total: Any, term: Variable) -> Any:
    return term if total is None else total + term


class BatchNormInference(Normalise):
    """``(x - mean) * gamma / sqrt(var + epsilon) + beta`` with given statistics.

    Inputs x, gamma, beta, mean, var; a gradient exists for all five.
    """

    def infer(
        self, x: TensorType, gamma: TensorType, beta: TensorType, mean: TensorType, var: TensorType
    ) -> TensorType:
        self.check(x, gamma, beta, mean, var, names="gamma, beta, mean and var")
        for p in (gamma, beta, mean, var):
            if any(p.shape[a] != 1 for a in self.axes):
                raise AxisError(self, f"parameters that are statically 1 on {self.axes}", p)
        return x

    def reference(self, x: Array, gamma: Array, beta: Array, mean: Array, var: Array) -> Any:
        (v,) = widened(x)
        invstd = 1 / np.sqrt(var + var.dtype.type(self.epsilon))
        return norm_numpy.normalise(v, gamma, beta, mean, invstd).astype(x.dtype, copy=False)

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        self.parameter_shape(shapes[0], *shapes[1:], types=types[1:])
        return [tuple(shapes[0])]

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        (x, gamma, _, mean, var), (dy,) = inputs, cotangents
        r = (var + np.asarray(self.epsilon, var.type.dtype)) ** np.asarray(-0.5, var.type.dtype)
        scaled = dy * (gamma * r)
        centred = x - mean

        def total(v: Variable) -> Variable:
            return v.sum(axis=self.axes, keepdims=True)

        grads = (
            total(dy * centred) * r,
            total(dy.astype(r.type.dtype)),
            -total(scaled),
            total(scaled * centred) * r * r * np.asarray(-0.5, r.type.dtype),
        )
        # A parameter may have size 1 on an axis that is not summed over.
        own = [unbroadcast(g, p) for g, p in zip(grads, inputs[1:], strict=True)]
        return [scaled.astype(x.type.dtype), *own]
