from __future__ import annotations

import numpy as np

from symdnn.ops.nn import batchnorm as B
from symdnn.ops.nn import normalization as N
from tests.op_table.record import OpCase, normal, uniform

EPS = 1e-3


def slow_norm(x, gamma, beta, axes, eps=EPS):
    """Element by element, with NumPy's own mean and variance of each group."""
    keep = [i for i in range(x.ndim) if i not in axes]
    y = np.empty_like(x)
    mean = np.empty([1 if i in axes else n for i, n in enumerate(x.shape)])
    invstd = np.empty_like(mean)
    for where in np.ndindex(*(x.shape[i] for i in keep)):
        index, at = [slice(None)] * x.ndim, [0] * x.ndim
        for axis, i in zip(keep, where, strict=True):
            index[axis] = slice(i, i + 1)
            at[axis] = i
        part = x[tuple(index)]
        mean[tuple(at)], invstd[tuple(at)] = part.mean(), (part.var() + eps) ** -0.5
        y[tuple(index)] = (part - part.mean()) / np.sqrt(part.var() + eps)
    return y * gamma + beta, mean, invstd


def running(x, gamma, beta, old_mean, old_var, axes, f):
    var = x.var(axes, ddof=1, keepdims=True)
    new = (1 - f) * old_mean + f * x.mean(axes, keepdims=True), (1 - f) * old_var + f * var
    return (*slow_norm(x, gamma, beta, axes), *new)


def train(axes):
    return lambda x, g, b: N.batch_normalization_train(x, g, b, axes, EPS)


def train_running(axes, f=0.3):
    return lambda x, g, b, m, v: N.batch_normalization_train(x, g, b, axes, EPS, f, m, v)


def test_time(axes):
    return lambda *a: N.batch_normalization_test(*a, axes=axes, epsilon=EPS)


def slow_test(x, g, b, m, v):
    return (x - m) * g / np.sqrt(v + EPS) + b


def all_outputs(y, mean, invstd, *more):
    total = (y * y * y).sum() + (mean * mean).sum() + (invstd * invstd).sum()
    for v in more:
        total = total + (v * v).sum()
    return total


def group_expected(x, groups, g, b):
    n, c, *rest = x.shape
    y, _, _ = slow_norm(x.reshape(n, groups, -1), 1.0, 0.0, (2,))
    wide = (1, c, *(1 for _ in rest))
    return y.reshape(x.shape) * g.reshape(wide) + b.reshape(wide)


def finite_grad(x, dy, g, mean, r):
    m = x.size / mean.size
    axes = tuple(i for i, n in enumerate(mean.shape) if n == 1)
    xh = (x - mean) * r
    s = (dy * g).sum(axes, keepdims=True)
    p = (dy * g * xh).sum(axes, keepdims=True)
    return (
        r / m * (m * dy * g - s - xh * p),
        (dy * xh).sum(axes, keepdims=True),
        dy.sum(axes, keepdims=True),
    )


def params(*shape, n=2):
    return (uniform(0.5, 1.5, *shape),) * (n - 1) + (uniform(0.5, 2, *shape),)


CASES = [
    OpCase(
        f"bn_train_{name}",
        (B.BatchNormTrain, B.BatchNormGrad),
        train(axes),
        (normal(*shape), *params(*stat)),
        lambda x, g, b, real=real: slow_norm(x, g, b, real),
    )
    for name, axes, shape, stat, real in (
        ("1d", "per-activation", (4,), (1,), (0,)),
        ("2d", "per-activation", (4, 3), (1, 3), (0,)),
        ("4d_spatial", "spatial", (3, 2, 2, 2), (1, 2, 1, 1), (0, 2, 3)),
        ("5d_spatial", "spatial", (2, 2, 2, 1, 2), (1, 2, 1, 1, 1), (0, 2, 3, 4)),
        ("3d_per_activation", "per-activation", (3, 2, 2), (1, 2, 2), (0,)),
        ("axis_1_2", (1, 2), (2, 3, 2), (2, 1, 1), (1, 2)),
    )
] + [
    OpCase(
        "bn_train_running",
        (B.BatchNormTrain,),
        train_running("spatial"),
        (normal(3, 2, 2, 2), *params(1, 2, 1, 1), *params(1, 2, 1, 1)),
        lambda x, g, b, m, v: running(x, g, b, m, v, (0, 2, 3), 0.3),
    ),
    OpCase(
        "bn_train_factor",
        (B.BatchNormTrain,),
        lambda x, g, b, m, v, f: all_outputs(
            *N.batch_normalization_train(x, g, b, "spatial", EPS, f, m, v)
        ),
        (normal(3, 2, 2), *params(1, 2, 1), *params(1, 2, 1), uniform(0.1, 0.9)),
        grad=True,
    ),
    OpCase(
        "bn_train_statistics_used",
        (B.BatchNormTrain,),
        lambda *a: all_outputs(*train((0,))(*a)),
        (normal(4, 3), *params(1, 3)),
    ),
    OpCase(
        "bn_train_dropped_axes",
        (B.BatchNormTrain,),
        train_running("spatial"),
        (normal(3, 2, 2, 2), *params(2), *params(2)),
        lambda x, g, b, m, v: [
            a if i < 1 else a.ravel()
            for i, a in enumerate(
                running(x, *(p.reshape(1, 2, 1, 1) for p in (g, b, m, v)), (0, 2, 3), 0.3)
            )
        ],
    ),
    OpCase(
        "bn_train_symbolic_epsilon",
        (),
        lambda x, g, b, m, v, e: N.batch_normalization_train(x, g, b, "spatial", e * e, 0.3, m, v),
        (normal(3, 2, 2, 2), *params(1, 2, 1, 1), *params(1, 2, 1, 1), uniform(0.1, 0.2)),
        lambda x, g, b, m, v, e: (
            *slow_norm(x, g, b, (0, 2, 3), e * e),
            *running(x, g, b, m, v, (0, 2, 3), 0.3)[3:],
        ),
    ),
    OpCase(
        "bn_train_f32",
        (B.BatchNormTrain,),
        train((0,)),
        tuple(normal(5, 3, dtype="float32") for _ in range(1))
        + tuple(uniform(0.5, 2, 1, 3, dtype="float32") for _ in range(2)),
        lambda x, g, b: slow_norm(x.astype("f8"), g, b, (0,)),
        grad=False,
        rtol=1e-5,
    ),
    OpCase(
        "bn_train_f16",
        (B.BatchNormTrain,),
        train((0,)),
        (normal(5, 3, dtype="float16"), *(uniform(0.5, 2, 1, 3, dtype="float32"),) * 2),
        lambda x, g, b: slow_norm(x.astype("f8"), g, b, (0,)),
        grad=False,
        rtol=3e-3,
    ),
    OpCase(
        "bn_train_one_element",
        (B.BatchNormTrain,),
        train_running((0,)),
        (normal(1, 3), *params(1, 3), *params(1, 3)),
        lambda x, g, b, m, v: (b, x, np.full((1, 3), EPS**-0.5), 0.7 * m + 0.3 * x, 0.7 * v),
        grad=False,
    ),
    OpCase(
        "bn_grad",
        (B.BatchNormGrad,),
        B.BatchNormGrad((0, 2), EPS),
        (normal(3, 2, 2), normal(3, 2, 2), *params(1, 2, 1), uniform(0.5, 2, 1, 2, 1)),
        finite_grad,
    ),
    OpCase(
        "bn_test_spatial",
        (B.BatchNormInference,),
        test_time("spatial"),
        (normal(3, 2, 2, 2), *params(1, 2, 1, 1, n=4)),
        slow_test,
    ),
    OpCase(
        "bn_test_activation",
        (B.BatchNormInference,),
        test_time("per-activation"),
        (normal(3, 2), *params(1, 2, n=4)),
        slow_test,
    ),
    OpCase(
        "bn_test_vectors",
        (B.BatchNormInference,),
        test_time("spatial"),
        (normal(3, 2, 2, 2), *params(2, n=4)),
        lambda x, *p: slow_test(x, *(a.reshape(1, 2, 1, 1) for a in p)),
    ),
    OpCase(
        "bn_test_no_rows",
        (B.BatchNormInference,),
        test_time("per-activation"),
        (normal(0, 2), *params(1, 2, n=4)),
        slow_test,
        grad=False,
    ),
    OpCase(
        "bn_test_symbolic_epsilon",
        (),
        lambda x, g, b, m, v, e: N.batch_normalization_test(x, g, b, m, v, (0,), e),
        (normal(3, 2), *params(1, 2, n=4), uniform(0.1, 0.2)),
        lambda x, g, b, m, v, e: (x - m) * g / np.sqrt(v + e) + b,
    ),
    OpCase(
        "bn_old",
        (),
        N.batch_normalization,
        (normal(3, 2), *params(1, 2, n=4)),
        lambda x, g, b, m, s: (x - m) / s * g + b,
    ),
    OpCase(
        "layer_norm",
        (B.LayerNorm, B.LayerNormGrad),
        lambda x, g, b: N.layer_norm(x, g, b, epsilon=EPS),
        (normal(3, 4), *params(4)),
        lambda x, g, b: slow_norm(x, g, b, (1,))[0],
    ),
    OpCase(
        "layer_norm_two_axes",
        (B.LayerNorm,),
        lambda x, g, b: N.layer_norm(x, g, b, (-2, -1), EPS),
        (normal(2, 2, 3), *params(2, 3)),
        lambda x, g, b: slow_norm(x, g, b, (1, 2))[0],
    ),
    OpCase(
        "layer_norm_plain",
        (B.LayerNorm,),
        lambda x: N.layer_norm(x, epsilon=EPS),
        (normal(3, 4),),
        lambda x: slow_norm(x, 1.0, 0.0, (1,))[0],
    ),
    OpCase(
        "layer_norm_statistics",
        (B.LayerNorm,),
        lambda x, g, b: B.LayerNorm((1,), EPS)(x, g, b),
        (normal(3, 4), *params(1, 4)),
        lambda x, g, b: slow_norm(x, g, b, (1,)),
    ),
    OpCase(
        "layer_norm_grad",
        (B.LayerNormGrad,),
        B.LayerNormGrad((1,), EPS),
        (normal(3, 4), normal(3, 4), uniform(0.5, 1, 1, 4), normal(3, 1), uniform(1, 2, 3, 1)),
        lambda x, dy, g, m, r: (
            r
            * (
                dy * g
                - (dy * g).mean(1, keepdims=True)
                - (x - m) * r * (dy * g * (x - m) * r).mean(1, keepdims=True)
            ),
            (dy * (x - m) * r).sum(0, keepdims=True),
            dy.sum(0, keepdims=True),
        ),
    ),
    OpCase(
        "group_norm",
        (B.LayerNorm,),
        lambda x, g, b: N.group_norm(x, 2, g, b, EPS),
        (normal(2, 4, 2, 2), *params(4)),
        lambda x, g, b: group_expected(x, 2, g, b),
    ),
    OpCase(
        "instance_norm",
        (B.LayerNorm,),
        lambda x, g, b: N.instance_norm(x, g, b, EPS),
        (normal(2, 3, 2, 2), *params(3)),
        lambda x, g, b: group_expected(x, 3, g, b),
    ),
]
