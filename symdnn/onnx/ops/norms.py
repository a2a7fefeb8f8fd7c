"""Normalisation: of batches, layers, groups, instances, neighbouring channels."""

from __future__ import annotations

from typing import Any

import numpy as np

import symdnn.tensor as T
from symdnn.graph.variable import Variable
from symdnn.onnx.model.node import Node
from symdnn.onnx.ops.elementwise import number
from symdnn.ops.core.shape import dims_of


def _channels(v: Variable, ndim: int) -> Variable:
    """A vector along the second of ``ndim`` dimensions."""
    return v.dimshuffle(*["x" if i != 1 else 0 for i in range(max(ndim, 2))][:ndim])


def _batch_norm(node: Node) -> list[Variable]:
    x, scale, shift, mean, var = (node.x(i) for i in range(5))
    epsilon = node.attribute("epsilon", 1e-5)
    training = bool(node.attribute("training_mode", 0))
    if node.version < 7 and not node.attribute("is_test", 0) and len(node.wanted) > 1:
        training = True
    if training:
        return _in_training(node, x, scale, shift, mean, var, epsilon)
    axes = tuple(i for i in range(x.ndim) if i != 1)
    if scale.type.dtype == x.type.dtype == mean.type.dtype:
        g, b, m, v = (_channels(p, x.ndim) for p in (scale, shift, mean, var))
        return [T.nnet.batch_normalization_test(x, g, b, m, v, axes=axes, epsilon=epsilon)]
    wide = x.astype(mean.type.dtype)
    g, b, m, v = (_channels(p.astype(mean.type.dtype), x.ndim) for p in (scale, shift, mean, var))
    y = (wide - m) * g / T.sqrt(v + number(v, epsilon)) + b
    return [y.astype(x.type.dtype)]


def _in_training(
    node: Node, x: Variable, scale: Variable, shift: Variable, mean: Variable, var: Variable,
    epsilon: float,
) -> list[Variable]:  # fmt: skip
    axes = tuple(i for i in range(x.ndim) if i != 1)
    own_mean = T.mean(x, axis=axes)
    own_var = T.var(x, axis=axes)
    g, b, m, v = (_channels(p, x.ndim) for p in (scale, shift, own_mean, own_var))
    y = (x - m) / T.sqrt(v + number(v, epsilon)) * g + b
    keep = node.attribute("momentum", 0.9)
    old, new = number(mean, keep), number(mean, 1 - keep)
    running = [mean * old + own_mean.astype(mean.type.dtype) * new,
               var * old + own_var.astype(var.type.dtype) * new]  # fmt: skip
    if node.version >= 14:
        return [y, *running]
    return [y, *running, own_mean, own_var]


def _instance_norm(node: Node) -> Variable:
    epsilon = node.attribute("epsilon", 1e-5)
    return T.nnet.instance_norm(node.x(), node.x(1), node.x(2), epsilon=epsilon)


def _group_norm(node: Node) -> Variable:
    x, groups = node.x(), int(node.required("num_groups"))
    scale, shift = node.x(1), node.x(2)
    if node.version < 21:  # a scale for each group
        channels = x.type.shape[1]
        if channels is None:
            channels = int(node.settled(dims_of(x)[1], "the number of channels"))
        each = channels // groups
        scale, shift = T.repeat(scale, each), T.repeat(shift, each)
    return T.nnet.group_norm(x, groups, scale, shift, epsilon=node.attribute("epsilon", 1e-5))


def layer_norm(
    x: Variable, scale: Variable | None, shift: Variable | None, axis: int, epsilon: float
) -> Variable:
    """Layer normalisation over the dimensions from ``axis`` on."""
    axes = tuple(range(axis, x.ndim))
    fits = all(p is None or p.type.shape == x.type.shape[axis:] for p in (scale, shift))
    same = all(p is None or p.type.dtype == x.type.dtype for p in (scale, shift))
    if fits and same and (scale is not None or shift is None):
        shift = T.zeros_like(scale) if scale is not None and shift is None else shift
        return T.nnet.layer_norm(x, scale, shift, axes=axes, epsilon=epsilon)
    y = T.nnet.layer_norm(x, None, None, axes=axes, epsilon=epsilon)
    y = y if scale is None else y * scale
    return (y if shift is None else y + shift).astype(x.type.dtype)


def _layer_norm(node: Node) -> list[Variable]:
    x = node.x()
    axis, epsilon = node.axis(x.ndim, -1), node.attribute("epsilon", 1e-5)
    y = layer_norm(x, node.optional(1), node.optional(2), axis, epsilon)
    if len(node.wanted) == 1:
        return [y]
    wide = x.astype("float32") if x.type.dtype in ("float16", "bfloat16") else x
    axes = tuple(range(axis, x.ndim))
    mean = T.mean(wide, axis=axes, keepdims=True)
    variance = T.var(wide, axis=axes, keepdims=True)
    return [y, mean, number(wide, 1) / T.sqrt(variance + number(wide, epsilon))]


def rms_norm(x: Variable, scale: Variable | None, axis: int, epsilon: float) -> Variable:
    """``x`` over the root of its mean square over the dimensions from ``axis`` on, scaled."""
    wide = x.astype("float32") if x.type.dtype in ("float16", "bfloat16") else x
    axes = tuple(range(axis, x.ndim))
    mean = T.mean(T.sqr(wide), axis=axes, keepdims=True)
    y = (wide / T.sqrt(mean + number(wide, epsilon))).astype(x.type.dtype)
    return y if scale is None else (y * scale).astype(scale.type.dtype)


def inverse_root(x: Variable, epsilon: float) -> Variable:
    """``1 / sqrt(x + epsilon)``"""
    return 1 / T.sqrt(x + number(x, epsilon))


def simplified_norm(node: Node) -> list[Variable]:
    """``RMSNormalization``, and 1 over the root of the mean square."""
    x, epsilon = node.x(), node.attribute("epsilon", 1e-5)
    axis = node.axis(x.ndim, -1)
    square = T.mean(T.sqr(x.astype("float32")), axis=tuple(range(axis, x.ndim)), keepdims=True)
    return [rms_norm(x, node.x(1), axis, epsilon), inverse_root(square, epsilon)]


def _rms_norm(node: Node) -> Variable:
    return simplified_norm(node)[0]


def _lrn(node: Node) -> Variable:
    x, size = node.x(), int(node.required("size"))
    alpha, beta = node.attribute("alpha", 1e-4), node.attribute("beta", 0.75)
    bias = node.attribute("bias", 1.0)
    if size % 2:
        return T.nnet.lrn(x, size, alpha, beta, bias)
    before = (size - 1) // 2  # an even window reaches one channel further up than down
    squares = T.pad(T.sqr(x), [(0, 0), (before, size - 1 - before), *[(0, 0)] * (x.ndim - 2)])
    n = dims_of(x)[1]
    total = squares[:, :n]
    for i in range(1, size):
        total = total + squares[:, i : i + n]
    return x / T.pow(number(x, bias) + number(x, alpha / size) * total, number(x, beta))


def _mean_variance(node: Node) -> Variable:
    x = node.x()
    axes = tuple(node.normal(a, x.ndim) for a in node.attribute("axes", [0, 2, 3]))
    centred = x - T.mean(x, axis=axes, keepdims=True)
    deviation = T.sqrt(T.mean(T.sqr(centred), axis=axes, keepdims=True))
    return centred / (deviation + number(x, 1e-9))


def _affine_grid(node: Node) -> Variable:
    """Points of a regular grid from -1 to 1, moved by an affine map for each example."""
    theta = node.x()
    sizes = node.ints(1, "the size")
    align = bool(node.attribute("align_corners", 0))
    spatial = sizes[2:]
    lines = []
    for n in spatial:
        at = np.linspace(-1, 1, n) if align and n > 1 else (2 * np.arange(n) + 1) / n - 1
        lines.append(np.zeros(n) if align and n == 1 else at)
    mesh = np.meshgrid(*lines, indexing="ij")
    points = np.stack([*mesh[::-1], np.ones(spatial)], axis=-1).reshape(-1, len(spatial) + 1)
    grid = T.constant(points.astype(theta.type.numpy))
    moved = T.matmul(T.shape_padleft(grid), theta.transpose((0, 2, 1)))
    return moved.reshape((dims_of(theta)[0], *spatial, len(spatial)))


OPS: dict[str, Any] = {
    "BatchNormalization": _batch_norm, "InstanceNormalization": _instance_norm,
    "GroupNormalization": _group_norm, "LayerNormalization": _layer_norm,
    "RMSNormalization": _rms_norm, "SimplifiedLayerNormalization": simplified_norm, "LRN": _lrn,
    "MeanVarianceNormalization": _mean_variance, "AffineGrid": _affine_grid,
}  # fmt: skip
