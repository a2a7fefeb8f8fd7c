from __future__ import annotations

import numpy as np

from symdnn.ops.core.scalar import Builder
from symdnn.ops.lowered.group_norm import GroupNorm, GroupNormGrad
from symdnn.ops.lowered.label_loss import LabelLoss, LabelLossGrad
from symdnn.ops.lowered.norm_formulas import grad_terms
from symdnn.ops.lowered.norm_parts import BatchMoments, BatchSums, SoftmaxParts
from symdnn.ops.nn.conv import Conv
from symdnn.ops.vendor.conv_moments import OneDnnConvMoments
from symdnn.ops.vendor.onednn import OneDnnConv
from tests.op_table.record import OpCase, integers, normal, uniform

EPS = 1e-3


def moments(x, axes):
    return x.mean(axes, keepdims=True), (x.var(axes, keepdims=True) + EPS) ** -0.5


def running(x, f, m, v):
    var = x.var((0, 2), ddof=1, keepdims=True)
    new = (1 - f) * m + f * x.mean((0, 2), keepdims=True), (1 - f) * v + f * var
    return (*moments(x, (0, 2)), *new)


def sums(axes):
    return lambda x, dy, m, r: BatchSums(grad_terms((x.type.dtype,) * 4), axes)(x, dy, m, r)


def written_sums(axes):
    """The sums, and a product that is written."""

    def found(*v):
        dtypes = [a.type.dtype for a in v]
        b = Builder(dtypes)
        given = [b.input(i) for i in range(4)]
        terms = b.inline(grad_terms(dtypes), given)
        return BatchSums(b.program([*terms, given[0] * given[1]]), axes, True)(*v)

    return found


def slow_written_sums(axes):
    return lambda x, dy, m, r: (*slow_sums(axes)(x, dy, m, r), x * dy)


def slow_sums(axes):
    def found(x, dy, m, r):
        g, h = np.broadcast_arrays(dy, dy * (x - m) * r)
        both = [v.sum(axes, keepdims=True) for v in (g, h)]
        return (*both, *(v.mean(axes, keepdims=True) for v in (g, h)))

    return found


def group_moments(x, groups):
    """Statistics of groups of the second dimension, for each of its entries."""
    rows = x.reshape(len(x), groups, -1)
    found = rows.mean(2), (rows.var(2) + EPS) ** -0.5
    shape = (*x.shape[:2], *(1 for _ in x.shape[2:]))
    return tuple(np.repeat(v, x.shape[1] // groups, 1).reshape(shape) for v in found)


def slow_group_norm(groups):
    def found(x, g, b):
        mean, r = group_moments(x, groups)
        return (x - mean) * r * g + b, mean, r

    return found


def slow_group_norm_grad(groups):
    """The gradients that differentiating the formula gives, one group at a time."""

    def found(x, dy, g, mean, r):
        xhat, dx = (x - mean) * r, np.empty_like(x)
        size = x.shape[1] // groups
        for n in range(len(x)):
            for k in range(groups):
                own = (n, slice(k * size, (k + 1) * size))
                d = (dy * g)[own]
                dx[own] = r[own] * (d - d.mean() - xhat[own] * (d * xhat[own]).mean())
        others = (0, *range(2, x.ndim))
        return dx, (dy * xhat).sum(others, keepdims=True), dy.sum(others, keepdims=True)

    return found


def log_sum(axis):
    """The parts of a softmax together: a kernel may choose the first one."""

    def found(x):
        top, rest = SoftmaxParts(axis)(x)
        return top + rest

    return found


def channels_last(slow):
    def found(*arrays):
        results = slow(*(np.moveaxis(a, -1, 1) for a in arrays))
        return tuple(np.moveaxis(r, 1, -1) for r in results)

    return found


def conv_moments(running):
    """The op for images with channels last and kernels of 2x3, in the dtype of the images."""
    conv = Conv(padding=((1, 0), (1, 1)), stride=(1, 1), dilation=(1, 1), groups=1, flip=False)

    def build(x, *more):
        low = OneDnnConv(conv, layout="NHWC").ending(x.type.dtype, bias=True)
        return OneDnnConvMoments(low, BatchMoments((0, 1, 2), EPS, running))(x, *more)

    return build


def slow_conv(x, w, b):
    padded = np.pad(x, ((0, 0), (1, 0), (1, 1), (0, 0)))
    rows, columns = padded.shape[1] - w.shape[2] + 1, padded.shape[2] - w.shape[3] + 1
    y = np.zeros((len(x), rows, columns, len(w)), x.dtype) + b
    for i in range(w.shape[2]):
        for j in range(w.shape[3]):
            y += padded[:, i : i + rows, j : j + columns] @ w[:, :, i, j].T
    return y


def slow_conv_moments(x, w, b, *more):
    y = slow_conv(x, w, b)
    mean, invstd = moments(y, (0, 1, 2))
    if not more:
        return y, mean, invstd
    f, m, v = more
    var = y.var((0, 1, 2), ddof=1, keepdims=True)
    return y, mean, invstd, (1 - f) * m + f * mean, (1 - f) * v + f * var


def slow_label_loss_grad(d, total, x, labels):
    p = np.exp(x - total[:, None]) * d[:, None]
    p[np.arange(len(x)), labels] -= d
    return p


def slow_label_loss(d, x, labels):
    total = np.log(np.exp(x).sum(-1))
    p = np.exp(x - total[:, None]) * d[:, None]
    p[np.arange(len(x)), labels] -= d
    return total - x[np.arange(len(x)), labels], p


CASES = [
    OpCase("label_loss", (LabelLoss,),
           lambda d, x, labels: LabelLoss(1, x.type.dtype)(d, x, labels),
           (normal(3), normal(3, 4), integers(0, 4, 3)), slow_label_loss, grad=False),
    OpCase("label_loss_of_one_cotangent", (LabelLoss,),
           lambda d, x, labels: LabelLoss(1, x.type.dtype)(d, x, labels),
           (normal(1), normal(3, 4), integers(0, 4, 3)), slow_label_loss, grad=False),
    OpCase("label_loss_grad", (LabelLossGrad,),
           lambda d, total, x, labels: LabelLossGrad(1, x.type.dtype)(d, total, x, labels),
           (normal(3), normal(3), normal(3, 4), integers(0, 4, 3)), slow_label_loss_grad,
           grad=False),
    OpCase("conv_moments", (OneDnnConvMoments,), conv_moments(False),
           (normal(3, 5, 4, 6), normal(7, 6, 2, 3), normal(1, 1, 1, 7)), slow_conv_moments,
           grad=False),
    OpCase("conv_moments_running", (OneDnnConvMoments,), conv_moments(True),
           (normal(3, 5, 4, 6), normal(7, 6, 2, 3), normal(1, 1, 1, 7), uniform(0.1, 0.9),
            normal(1, 1, 1, 7), normal(1, 1, 1, 7)), slow_conv_moments, grad=False),
    OpCase("softmax_parts", (SoftmaxParts,), log_sum(1), (normal(4, 6, 3),),
           lambda x: np.log(np.exp(x).sum(1, keepdims=True)), grad=False),
    OpCase("batch_moments", (BatchMoments,), lambda x: BatchMoments((0, 2), EPS)(x),
           (normal(6, 3, 4),), lambda x: moments(x, (0, 2)), grad=False),
    OpCase("batch_moments_channels_last", (BatchMoments,),
           lambda x: BatchMoments((0, 1), EPS)(x), (normal(5, 3, 8),),
           lambda x: moments(x, (0, 1)), grad=False),
    OpCase("batch_moments_running", (BatchMoments,),
           lambda x, f, m, v: BatchMoments((0, 2), EPS, True)(x, f, m, v),
           (normal(6, 3, 4), uniform(0.1, 0.9), normal(1, 3, 1), normal(1, 3, 1)), running,
           grad=False),
    OpCase("group_norm_of_images", (GroupNorm,), lambda *v: GroupNorm(2, EPS)(*v),
           (normal(3, 6, 4, 5), normal(1, 6, 1, 1), normal(1, 6, 1, 1)), slow_group_norm(2),
           grad=False),
    OpCase("group_norm_of_images_channels_last", (GroupNorm,),
           lambda *v: GroupNorm(3, EPS, 3)(*v),
           (normal(3, 4, 5, 6), normal(1, 1, 1, 6), normal(1, 1, 1, 6)),
           channels_last(slow_group_norm(3)), grad=False),
    OpCase("group_norm_of_images_grad", (GroupNormGrad,), lambda *v: GroupNormGrad(2, EPS)(*v),
           (normal(3, 6, 4, 5), normal(3, 6, 4, 5), normal(1, 6, 1, 1), normal(3, 6, 1, 1),
            normal(3, 6, 1, 1)), slow_group_norm_grad(2), grad=False),
    OpCase("group_norm_of_images_grad_channels_last", (GroupNormGrad,),
           lambda *v: GroupNormGrad(3, EPS, 3)(*v),
           (normal(3, 4, 5, 6), normal(3, 4, 5, 6), normal(1, 1, 1, 6), normal(3, 1, 1, 6),
            normal(3, 1, 1, 6)), channels_last(slow_group_norm_grad(3)), grad=False),
    OpCase("batch_sums", (BatchSums,), sums((0, 2)),
           (normal(6, 3, 4), normal(6, 3, 4), normal(1, 3, 1), normal(1, 3, 1)),
           slow_sums((0, 2)), grad=False),
    OpCase("batch_sums_channels_last", (BatchSums,), sums((0, 1)),
           (normal(5, 3, 8), normal(5, 3, 8), normal(1, 1, 8), normal(1, 1, 8)),
           slow_sums((0, 1)), grad=False),
    OpCase("batch_sums_written", (BatchSums,), written_sums((0, 2)),
           (normal(6, 3, 4), normal(6, 3, 4), normal(1, 3, 1), normal(1, 3, 1)),
           slow_written_sums((0, 2)), grad=False),
    OpCase("batch_sums_written_channels_last", (BatchSums,), written_sums((0, 1)),
           (normal(50, 3, 8), normal(50, 3, 8), normal(1, 1, 8), normal(1, 1, 8)),
           slow_written_sums((0, 1)), grad=False),
    OpCase("batch_sums_written_of_odd_sizes", (BatchSums,), written_sums((0, 2)),
           (normal(5, 3, 7), normal(5, 3, 7), normal(1, 3, 1), normal(1, 3, 1)),
           slow_written_sums((0, 2)), grad=False),
]  # fmt: skip
