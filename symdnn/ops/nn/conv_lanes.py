"""Convolutions of lanes with filters of their own, where the number of lanes is not known.

Known lanes are groups of one convolution. The number of groups is a part of an op, so for others
the windows of the images are copied, and multiplied with the filters as a stack of matrices
(Chellapilla et al. 2006). The gradients are those of this product.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from symdnn.graph.dims import Dim
from symdnn.graph.variable import Variable
from symdnn.ops.array.create import zeros
from symdnn.ops.core.composed import vjp_of_expression
from symdnn.ops.core.lanes import sizes_of
from symdnn.ops.linalg.einsum import einsum
from symdnn.ops.nn.conv_unshared import windows_of

__all__ = ["conv_of_lanes", "grad_input_of_lanes", "grad_weight_of_lanes"]


def conv_of_lanes(op: Any, x: Variable, w: Variable) -> Variable:
    """(lanes, images, out, ...) of (lanes, images, channels, ...) and of filters for each lane."""
    lanes, images, channels, *space = sizes_of(x)
    _, out, inside, *kernel = sizes_of(w)
    g = op.groups
    windows = windows_of(op, x.reshape((lanes * images, channels, *space)), kernel)
    cut = sizes_of(windows)[2:]
    apart = windows.reshape((lanes, images, g, inside, *cut), ndim=4 + len(cut))
    filters = w.reshape((lanes, g, out // g, inside, *kernel), ndim=4 + len(kernel))
    places, offsets = "pqr"[: op.ndim], "klm"[: op.ndim]
    pairs = "".join(p + k for p, k in zip(places, offsets))
    y = einsum(f"zngc{pairs},zgoc{offsets}->zngo{places}", apart, filters)
    return y.reshape((lanes, images, out, *sizes_of(y)[4:]), ndim=3 + op.ndim)


def grad_input_of_lanes(op: Any, w: Variable, dy: Variable, spatial: Sequence[Dim]) -> Variable:
    """The gradient of :func:`conv_of_lanes` in ``x``, of these spatial sizes."""
    lanes, images = sizes_of(dy)[:2]
    start = zeros([lanes, images, sizes_of(w)[2] * op.groups, *spatial], w.type.dtype)
    (dx,) = vjp_of_expression(lambda x: conv_of_lanes(op, x, w), [start], dy)
    assert dx is not None
    return dx


def grad_weight_of_lanes(op: Any, x: Variable, dy: Variable, kernel: Sequence[Dim]) -> Variable:
    """The gradient of :func:`conv_of_lanes` in ``w``, of these spatial sizes."""
    lanes, _, out = sizes_of(dy)[:3]
    start = zeros([lanes, out, sizes_of(x)[2] // op.groups, *kernel], x.type.dtype)
    (dw,) = vjp_of_expression(partial(conv_of_lanes, op, x), [start], dy)
    assert dw is not None
    return dw
