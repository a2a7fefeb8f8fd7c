"""Local response normalisation across channels (Krizhevsky et al. 2012), as cuDNN defines it.

    y[c] = x[c] * (k + alpha / n * sum of x[j]**2 over the window of c) ** -beta

The window of channel c has the existing ones of the n channels c - (n - 1) // 2 .. c + n // 2.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import OptionError, TypeMismatch
from symdnn.graph.dims import product
from symdnn.graph.op import Axes, Batched, Grads, Host, Op, Shapes, Types, Vars
from symdnn.graph.origin import Hints
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array, TensorLike
from symdnn.graph.variable import Variable
from symdnn.ops.array.view import of_sizes
from symdnn.ops.core.composed import vjp_of_expression
from symdnn.ops.core.dtype import is_narrow_float
from symdnn.ops.core.lanes import on_folded
from symdnn.ops.core.shape import dims_of, reshape
from symdnn.ops.nn.pool import Pool
from symdnn.ops.nn.softmax import agreed_shape
from symdnn.options import as_int, as_number

__all__ = ["LRN", "ChannelSum", "LRNGrad", "local_response_normalization"]


def window_sum(v: Array, before: int, after: int, axis: int = 1) -> Array:
    """Sums over channels c - before .. c + after, by differences of a running sum."""
    v = np.moveaxis(v, axis, 1)
    channels = v.shape[1]
    total = np.zeros((v.shape[0], channels + 1, *v.shape[2:]), v.dtype)
    np.cumsum(v, axis=1, out=total[:, 1:])
    c = np.arange(channels)
    found = total[:, np.minimum(c + after + 1, channels)] - total[:, np.maximum(c - before, 0)]
    return np.moveaxis(found, 1, axis)


@dataclass(frozen=True)
class LRNOp(Op):
    """Base of both: ``n`` channels in a window, ``alpha``, ``beta`` and ``k`` of the formula.

    ``axis`` is the dimension of the channels: 1, or the last one in NHWC.
    """

    abstract: ClassVar[bool] = True
    n: int = 5
    alpha: float = 1e-4
    beta: float = 0.75
    k: float = 2.0
    axis: int = field(default=1, kw_only=True)

    def infer(self, *inputs: TensorType) -> TensorType:
        x = inputs[0]
        for t in inputs:
            if not isinstance(t, TensorType) or not t.is_float or t.ndim < 2:
                raise TypeMismatch(self, "a float tensor (N, C, ...)", t)
            if t.dtype != x.dtype or t.ndim != x.ndim:
                raise TypeMismatch(self, "operands of one dtype and ndim", list(inputs))
        return x

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        return [agreed_shape(self, "operands", shapes)]

    def base(self, x: Array) -> Array:
        """``k + alpha / n * window sum of squares``, in float64 against cancellation."""
        before, after = (self.n - 1) // 2, self.n // 2
        squares = window_sum(x.astype(np.float64) ** 2, before, after, self.axis)
        return self.k + self.alpha / self.n * squares

    def written_base(self, x: Variable) -> Variable:
        """:meth:`base` as an expression, in the dtype of ``x``."""
        sums = ChannelSum((self.n - 1) // 2, self.n // 2, axis=self.axis)(x * x)
        made: Variable = sums * number(self.alpha / self.n, x) + number(self.k, x)
        return made

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return on_folded(self, inputs, axes, [0] * len(inputs), [0])


def number(value: float, x: Variable) -> Any:
    """A constant in the dtype of ``x``."""
    return np.asarray(value, x.type.dtype)


class LRN(LRNOp):
    """The normalised input (``cudnnLRNCrossChannelForward``)."""

    def reference(self, x: Array) -> Array:
        return (x * self.base(x) ** -self.beta).astype(x.dtype)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        op = LRNGrad(self.n, self.alpha, self.beta, self.k, axis=self.axis)
        return [op(inputs[0], outputs[0], cotangents[0])]

    def written_out(self, x: Variable) -> Variable:
        """This op as an expression in simpler ops."""
        made: Variable = x * self.written_base(x) ** number(-self.beta, x)
        return made


class LRNGrad(LRNOp):
    """The gradient of x from x, y and dy (``cudnnLRNCrossChannelBackward``).

    ``dy s**-beta - 2 alpha beta / n * x * (sum of dy y / s over the windows that contain c)``.
    """

    def reference(self, x: Array, y: Array, dy: Array) -> Array:
        wide = np.float32 if is_narrow_float(x.dtype.name) else x.dtype
        s = self.base(x)
        v, out, d = (a.astype(wide) for a in (x, y, dy))
        inner = window_sum(d * out / s, self.n // 2, (self.n - 1) // 2, self.axis)
        dx = d * s**-self.beta - 2 * self.alpha * self.beta / self.n * v * inner
        return dx.astype(x.dtype)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        return vjp_of_expression(self.written_out, inputs, cotangents[0])

    def written_out(self, x: Variable, y: Variable, dy: Variable) -> Variable:
        """This op as an expression in simpler ops."""
        s = self.written_base(x)
        y, dy = (of_sizes(v, dims_of(x), str(self)) for v in (y, dy))
        inner = ChannelSum(self.n // 2, (self.n - 1) // 2, axis=self.axis)(dy * y / s)
        factor = number(2 * self.alpha * self.beta / self.n, x)
        made: Variable = dy * s ** number(-self.beta, x) - x * inner * factor
        return made


@dataclass(frozen=True)
class ChannelSum(Op):
    """Sums over the existing ones of the channels c - ``before`` to c + ``after`` on ``axis``."""

    shaped_as: ClassVar[int | None] = 0
    linear_in_first: ClassVar[bool] = True
    before: int
    after: int
    axis: int = field(default=1, kw_only=True)

    def infer(self, x: TensorType) -> TensorType:
        if not isinstance(x, TensorType) or not x.is_float or x.ndim < 2:
            raise TypeMismatch(self, "a float tensor (N, C, ...)", x)
        return x

    def reference(self, x: Array) -> Array:
        wide = window_sum(x.astype(np.float64), self.before, self.after, self.axis)
        return wide.astype(x.dtype)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        return [ChannelSum(self.after, self.before, axis=self.axis)(cotangents[0])]

    def written_out(self, x: Variable, *, hints: Hints | None = None) -> Variable:
        """Sums over windows of images whose rows are channels."""
        dims, pad = dims_of(x), max(self.before, self.after)
        pool = Pool((self.before + self.after + 1, 1), (1, 1), (pad, 0), "sum")
        rest = dims[self.axis + 1 :]
        image = (product(dims[: self.axis]), 1, dims[self.axis], product(rest))
        sums: Variable = pool(reshape(x, image, ndim=4), hints=hints)
        if self.before != self.after:
            first = pad - self.before
            sums = sums[:, :, first : first + dims[self.axis]]
        return reshape(sums, dims, ndim=x.type.ndim)

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return on_folded(self, inputs, axes, [0], [0])


def local_response_normalization(
    x: TensorLike,
    n: int = 5,
    alpha: float = 1e-4,
    beta: float = 0.75,
    k: float = 2.0,
    *,
    hints: Hints | None = None,
) -> Variable:
    """Normalise (N, C, ...) across ``n`` neighbouring channels, by the formula
    ``x * (k + alpha / n * sum of squares) ** -beta``.

    ``alpha`` is divided by ``n`` as in cuDNN (and PyTorch); Caffe's WITHIN_CHANNEL does not exist.
    """
    name = "local_response_normalization"
    count = as_int(f"{name}: n", n)
    if count < 1:
        raise OptionError(f"{name}: n={n}; wanted 1 or more")
    numbers = [
        as_number(f"{name}: {w}", v) for w, v in (("alpha", alpha), ("beta", beta), ("k", k))
    ]
    return LRN(count, *numbers)(x, hints=hints)


lrn = local_response_normalization

OPERATORS: dict[str, Any] = {}
