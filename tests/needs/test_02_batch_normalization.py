"""Need 2: batch normalisation is right in training and evaluation, with cuDNN and without.

Outputs, running statistics and gradients against formulas in NumPy's float64.
"""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.autodiff import grad
from symdnn.graph.type import TensorType
from tests.gpu import agreement
from tests.needs.on_each_device import device  # noqa: F401

EPSILON, FACTOR = 1e-3, 0.3


def by_numpy(x, dy, gamma, beta, old_mean, old_var, axes, training):
    """(y, new mean, new variance, dx, dgamma, dbeta)."""
    count = np.prod([x.shape[a] for a in axes])
    mean = x.mean(axes, keepdims=True) if training else old_mean
    var = x.var(axes, keepdims=True) if training else old_var
    scale = 1 / np.sqrt(var + EPSILON)
    normal = (x - mean) * scale
    dgamma, dbeta = (dy * normal).sum(axes, keepdims=True), dy.sum(axes, keepdims=True)
    dx = gamma * scale * dy
    if training:
        dx -= gamma * scale * (dbeta + normal * dgamma) / count
    unbiased = var * count / (count - 1)
    new = [(1 - FACTOR) * old_mean + FACTOR * mean, (1 - FACTOR) * old_var + FACTOR * unbiased]
    return [normal * gamma + beta, *(new if training else [old_mean, old_var]), dx, dgamma, dbeta]


@pytest.mark.parametrize("training", [True, False], ids=["train", "evaluate"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("ndim", [2, 3, 4, 5])
@pytest.mark.parametrize("mode", ["per-activation", "spatial", "channels last"])
def test_batch_normalization(device, mode, ndim, dtype, training):  # noqa: F811
    shape = (6, 4, 5, 3, 2)[:ndim]
    axes = {"per-activation": (0,), "spatial": (0, *range(2, ndim))}.get(mode, range(ndim - 1))
    axes = tuple(axes)
    kept = tuple(1 if a in axes else n for a, n in enumerate(shape))
    rng = np.random.default_rng(ndim)
    x, dy = rng.normal(1, 2, shape), rng.normal(size=shape)
    gamma, beta, mean, var = (rng.uniform(0.5, 1.5, kept) for _ in range(4))
    low, wide = agreement.rounded([x, dy, gamma, beta, mean, var], dtype)
    vs = agreement.variables(low, dtype)
    vx, vdy, vg, vb, vm, vv = vs
    vx, vdy = (TensorType(dtype, (None,) * ndim)(n) for n in ("x", "dy"))
    norm = T.nnet.bn
    if training:
        y, _, _, new_mean, new_var = norm.batch_normalization_train(
            vx, vg, vb, axes, EPSILON, FACTOR, vm, vv
        )
    else:
        y = norm.batch_normalization_test(vx, vg, vb, vm, vv, axes, EPSILON)
        new_mean, new_var = vm, vv
    cost = (T.cast(y, "float64") * T.cast(vdy, "float64")).sum()
    outputs = [y, new_mean, new_var, *grad(cost, [vx, vg, vb])]
    f = symdnn.function(
        [vx, vdy, vg, vb, vm, vv], outputs, mode=symdnn.Mode(target=agreement.TARGET),
    )  # fmt: skip
    for i, (got, want) in enumerate(zip(f(*low), by_numpy(*wide, axes, training), strict=True)):
        agreement.assert_close(np.asarray(got), want, agreement.TOLERANCE[dtype], f"output {i}")
