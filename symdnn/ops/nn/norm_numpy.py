"""Normalisation in NumPy: common parts of the references of batch and layer norm."""

from __future__ import annotations

from typing import Any

import numpy as np

from symdnn.graph.typing import Array

Axes = tuple[int, ...]


def count(shape: tuple[int, ...], axes: Axes) -> int:
    """The number of elements of a statistic."""
    return int(np.prod([shape[a] for a in axes], dtype=np.int64))


def moments(x: Any, axes: Axes, epsilon: float) -> tuple[Array, ...]:
    """Mean, variance (biased, by two passes) and ``1 / sqrt(variance + epsilon)``, axes kept."""
    m = count(x.shape, axes)
    mean = x.sum(axes, keepdims=True) / x.dtype.type(m)
    centred = x - mean
    var = (centred * centred).sum(axes, keepdims=True) / x.dtype.type(m)
    return mean, var, 1 / np.sqrt(var + x.dtype.type(epsilon))


def normalise(x: Any, gamma: Array, beta: Array, mean: Any, invstd: Any) -> Any:
    """``(x - mean) * invstd * gamma + beta``."""
    return (x - mean) * (invstd * gamma) + beta


def sum_to(x: Array, shape: tuple[int, ...]) -> Array:
    """``x`` summed over the axes that are 1 in ``shape``."""
    axes = tuple(i for i, (n, d) in enumerate(zip(x.shape, shape, strict=True)) if d == 1 != n)
    return x.sum(axes, keepdims=True) if axes else x


def normalise_grad(
    x: Any, dy: Any, gamma: Array, mean: Array, invstd: Array, axes: Axes
) -> tuple[Array, ...]:
    """Gradients with respect to x (also through the statistics), gamma and beta."""
    m = x.dtype.type(count(x.shape, axes))
    xhat = (x - mean) * invstd
    g = dy * gamma
    a = g.sum(axes, keepdims=True) / m
    b = (g * xhat).sum(axes, keepdims=True) / m
    dx = invstd * (g - a - xhat * b)
    return dx, sum_to(dy * xhat, gamma.shape), sum_to(dy, gamma.shape)
