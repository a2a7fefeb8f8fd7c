"""Recursive filters of signals along an axis, and the builder under SciPy's name."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from symdnn.errors import NdimMismatch, TypeMismatch
from symdnn.graph.op import Axes, Batched, Grads, Vars
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array, TensorLike
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.array.create import arange, ones
from symdnn.ops.array.cumulative import AlongAxis
from symdnn.ops.array.reduce import normal_axes
from symdnn.ops.array.take import take
from symdnn.ops.core.dtype import float_of
from symdnn.ops.core.lanes import on_lanes
from symdnn.ops.core.python_numbers import alike
from symdnn.ops.core.shape import dimshuffle, shape_i
from symdnn.ops.elementwise.arithmetic import cast, maximum
from symdnn.ops.elementwise.comparison import ge, switch
from symdnn.ops.elemwise import like

__all__ = ["LinearFilter", "lfilter"]


class LinearFilter(AlongAxis):
    """``y[n] = b[0] x[n] + ... + b[q] x[n - q] - a[0] y[n - 1] - ... - a[p - 1] y[n - p]``.

    Inputs: ``x``, and the vectors ``b`` and ``a``, in one float dtype. Numbers before the start of
    the axis (with ``reverse``: behind its end) are 0. Sums are in float64.
    """

    def infer(self, *inputs: TensorType) -> TensorType:
        x, b, a = inputs
        if not x.is_float or len({t.dtype for t in inputs}) != 1 or b.ndim != 1 or a.ndim != 1:
            raise TypeMismatch(
                self, "float tensors x, b, a of one dtype, b and a vectors", list(inputs)
            )
        return super().infer(x)

    def reference(self, *inputs: Array) -> Array:
        from scipy.signal import lfilter as filtered

        x, b, a = (v.astype(np.float64) for v in inputs)
        if not x.size or not b.size:
            return np.zeros_like(inputs[0])
        y = filtered(b, [1.0, *a], self._forwards(x), axis=0)
        return self._back(y).astype(inputs[0].dtype)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        (x, b, a), (y,), (g,) = inputs, outputs, cotangents
        back = replace(self, reverse=not self.reverse)
        moved = back(g, ones((1,), dtype=b.type.dtype), a)
        return [
            back(g, b, a),
            self._lagged(moved, x, shape_i(b, 0), 0),
            -self._lagged(moved, y, shape_i(a, 0), 1),
        ]

    def _lagged(self, g: Variable, v: Variable, count: Variable, first: int) -> Variable:
        """The sums of ``g[n] * v[n - k]`` for ``count`` numbers ``k`` from ``first`` on."""
        order = [self.axis, *(d for d in range(v.type.ndim) if d != self.axis)]
        g, v = (dimshuffle(u, order) for u in (g, v))
        if self.reverse:
            g, v = g[::-1], v[::-1]
        lags = dimshuffle(arange(count), [0, "x"]) + first
        at = dimshuffle(arange(shape_i(v, 0)), ["x", 0]) - lags
        there = dimshuffle(ge(at, 0), [0, 1, *"x" * (v.type.ndim - 1)])
        found = switch(there, take(v, maximum(at, 0), axis=0), like(0, v))
        return (found * g).sum(axis=tuple(range(1, v.type.ndim + 1)))

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return on_lanes(replace(self, axis=self.axis + 1), inputs, axes, same=(1, 2))


def lfilter(b: TensorLike, a: TensorLike, x: TensorLike, axis: int = -1) -> Variable:
    """The recursive filter of ``x`` along ``axis``. (``scipy.signal.lfilter``)

    ``a[0] y[n]`` is the sum of ``b[k] x[n - k]`` minus that of ``a[k] y[n - k]`` for ``k > 0``.
    ``b`` and ``a`` are vectors; lists of numbers take the dtype of ``x``. All three have gradients.
    Discounted sums of rewards are a filter of one coefficient that runs backwards:

    >>> import numpy as np, symdnn.tensor as T
    >>> rewards = np.array([0.0, 0.0, 1.0])
    >>> T.signal.lfilter([1.0], [1.0, -0.9], rewards[::-1])[::-1].eval()
    array([0.81, 0.9 , 1.  ])
    """
    signal = as_variable(x)
    vectors = [
        cast(as_variable(v), float_of(signal.type.dtype)) if isinstance(v, list | tuple) else v
        for v in (b, a)
    ]
    b, a, signal = alike([as_variable(v) for v in (*vectors, signal)])
    for name, v in (("b", b), ("a", a)):
        if v.type.ndim != 1 or v.type.shape[0] == 0:
            raise NdimMismatch("lfilter", f"a vector {name} with one coefficient or more", v.type)
    (where,) = normal_axes(axis, signal.type.ndim, "lfilter")
    return LinearFilter(where)(signal, b / a[0], a[1:] / a[0])
