from __future__ import annotations

import itertools

import numpy as np

from symdnn.ops.nn import ctc as C
from symdnn.ops.nn import lrn as L
from symdnn.ops.nn import spatial_transformer as S
from tests.op_table.record import OpCase, normal


def slow_lrn(x, n, alpha, beta, k):
    y = np.empty_like(x)
    for c in range(x.shape[1]):
        first, last = c - (n - 1) // 2, c + n // 2
        s = sum(x[:, j] ** 2 for j in range(first, last + 1) if 0 <= j < x.shape[1])
        y[:, c] = x[:, c] * (k + alpha / n * s) ** -beta
    return y


def slow_lrn_grad(x, y, dy, n, alpha, beta, k):
    dx = np.zeros_like(x)
    for c in range(x.shape[1]):
        window = [j for j in range(c - (n - 1) // 2, c + n // 2 + 1) if 0 <= j < x.shape[1]]
        s = k + alpha / n * sum(x[:, j] ** 2 for j in window)
        dx[:, c] += dy[:, c] * s**-beta
        for j in window:
            dx[:, j] -= dy[:, c] * y[:, c] / s * 2 * alpha * beta / n * x[:, j]
    return dx


def slow_ctc(a, labels, lengths):
    """All paths of classes, one by one."""
    p = np.exp(a - a.max(2, keepdims=True))
    p /= p.sum(2, keepdims=True)
    costs = []
    for b, n in enumerate(lengths):
        want, total = [int(v) for v in labels[b] if v >= 0], 0.0
        for path in itertools.product(range(a.shape[2]), repeat=int(n)):
            if [k for k, _ in itertools.groupby(path) if k] == want:
                total += np.prod([p[t, b, k] for t, k in enumerate(path)])
        costs.append(-np.log(total))
    return np.array(costs)


def fixed(values, dtype="int64"):
    return lambda rng: np.array(values, dtype)


def slow_grid(theta, height, width):
    grid = np.empty((len(theta), height, width, 2))
    for i, j in itertools.product(range(height), range(width)):
        x = -1 + 2 * j / (width - 1) if width > 1 else 0
        y = -1 + 2 * i / (height - 1) if height > 1 else 0
        grid[:, i, j] = theta @ [x, y, 1]
    return grid


def slow_sample(image, grid):
    """Sum over all pixels of a tent function: what bilinear sampling is."""
    n, c, height, width = image.shape
    out = np.zeros((n, c, *grid.shape[1:3]))
    for b, i, j in itertools.product(range(n), *map(range, grid.shape[1:3])):
        px, py = (grid[b, i, j] + 1) * np.array([width - 1, height - 1]) / 2
        tent = np.outer(
            np.maximum(0, 1 - abs(py - np.arange(height))),
            np.maximum(0, 1 - abs(px - np.arange(width))),
        )
        out[b, :, i, j] = (image[b] * tent).sum((1, 2))
    return out


def off_centre(*shape):
    """Grid points inside and outside whose pixel coordinates keep away from whole numbers."""

    def draw(rng):
        height, width = shape[-2:]
        place = rng.integers(-2, 6, (*shape[:3], 2)) + rng.uniform(0.2, 0.8, (*shape[:3], 2))
        del height, width
        return place * np.array([2 / 3, 2 / 2]) - 1  # for images of 3 rows and 4 columns

    return draw


def whole(image, theta):
    size = [int(np.ceil(image.shape[2] * 2)), int(np.ceil(image.shape[3] * 1.5))]
    return slow_sample(image, slow_grid(theta, *size))


CASES = [
    OpCase(
        f"lrn_{n}",
        (L.LRN, L.LRNGrad, L.ChannelSum),
        lambda x, n=n: L.lrn(x, n, 0.5, 0.75, 1.5),
        (normal(2, 6, 2),),
        lambda x, n=n: slow_lrn(x, n, 0.5, 0.75, 1.5),
    )
    for n in (1, 3, 4, 5, 9)
] + [
    OpCase(
        "lrn_default",
        (L.LRN,),
        L.lrn,
        (normal(2, 7, 2, 2, dtype="float32"),),
        lambda x: slow_lrn(x.astype("f8"), 5, 1e-4, 0.75, 2),
        grad=False,
    ),
    OpCase(
        "lrn_channels_last",
        (L.LRN, L.LRNGrad),
        L.LRN(4, 0.5, 0.75, 1.5, axis=3),
        (normal(2, 2, 1, 6),),
        lambda x: slow_lrn(x.transpose(0, 3, 1, 2), 4, 0.5, 0.75, 1.5).transpose(0, 2, 3, 1),
    ),
    OpCase(
        "lrn_grad",
        (L.LRNGrad,),
        L.LRNGrad(4, 0.5, 0.75, 1.5),
        (normal(2, 6), normal(2, 6), normal(2, 6)),
        lambda x, y, d: slow_lrn_grad(x, y, d, 4, 0.5, 0.75, 1.5),
    ),
    OpCase(
        "lrn_grad_images",
        (L.LRNGrad,),
        # cuDNN computes y from x again: any other y is not defined.
        lambda x, d: L.LRNGrad(4, 0.5, 0.75, 1.5)(x, L.LRN(4, 0.5, 0.75, 1.5)(x), d),
        (normal(2, 6, 2, 1), normal(2, 6, 2, 1)),
        lambda x, d: slow_lrn_grad(x, slow_lrn(x, 4, 0.5, 0.75, 1.5), d, 4, 0.5, 0.75, 1.5),
    ),
    OpCase(
        "channel_sum",
        (L.ChannelSum,),
        L.ChannelSum(1, 2),
        (normal(2, 5, 2),),
        lambda x: np.stack([x[:, max(c - 1, 0) : c + 3].sum(1) for c in range(5)], 1),
    ),
    OpCase(
        "ctc",
        (C.CTCLoss,),
        C.ctc,
        (
            normal(5, 4, 3),
            fixed([[1, 2, -1], [1, 1, -1], [-1, -1, -1], [2, 1, 2]]),
            fixed([5, 4, 3, 5]),
        ),
        slow_ctc,
    ),
    OpCase(
        "ctc_costs",
        (C.CTCCosts,),
        C.CTCCosts(),
        (normal(5, 2, 3), fixed([[1, 2, -1], [2, 1, 2]]), fixed([4, 5])),
        slow_ctc,
    ),
    OpCase(
        "ctc_padding_anywhere",
        (C.CTCLoss,),
        C.ctc,
        (normal(4, 2, 3), fixed([[-1, 1, -1, 2], [2, -1, -1, -1]], "int32"), fixed([4, 2])),
        slow_ctc,
    ),
    OpCase(
        "ctc_one_frame",
        (C.CTCLoss,),
        C.ctc,
        (normal(1, 2, 3), fixed([[1], [-1]]), fixed([1, 1])),
        slow_ctc,
    ),
    OpCase(
        "ctc_f32",
        (C.CTCLoss,),
        C.ctc,
        (normal(5, 2, 3, dtype="float32"), fixed([[1, 2], [2, -1]]), fixed([5, 4])),
        lambda a, t, n: slow_ctc(a.astype("f8"), t, n),
        grad=False,
    ),
    OpCase(
        "ctc_no_labels",
        (C.CTCLoss,),
        C.ctc,
        (normal(3, 2, 3), lambda rng: np.zeros((2, 0), "int64"), fixed([3, 2])),
        slow_ctc,
    ),
    OpCase(
        "transformer_grid",
        (S.TransformerGrid, S.TransformerGridGrad),
        lambda t: S.transformer_grid(t, (3, 4)),
        (normal(2, 2, 3),),
        lambda t: slow_grid(t, 3, 4),
    ),
    OpCase(
        "transformer_grid_thin",
        (S.TransformerGrid,),
        lambda t: S.transformer_grid(t, (1, 4)),
        (normal(2, 2, 3),),
        lambda t: slow_grid(t, 1, 4),
    ),
    OpCase(
        "transformer_grid_grad",
        (S.TransformerGridGrad,),
        S.TransformerGridGrad(),
        (normal(2, 3, 4, 2),),
        lambda d: np.einsum(
            "nhwk,hwj->nkj",
            d,
            np.concatenate([slow_grid(np.eye(2, 3)[None], 3, 4)[0], np.ones((3, 4, 1))], 2),
        ),
    ),
    OpCase(
        "transformer_sampler",
        (S.TransformerSampler, S.TransformerSamplerTangent),
        S.transformer_sampler,
        (normal(2, 2, 3, 4), off_centre(2, 2, 5)),
        slow_sample,
    ),
    OpCase(
        "transformer_sampler_grad",
        (S.TransformerSamplerGrad,),
        S.TransformerSamplerGrad(),
        (normal(2, 2, 3, 4), off_centre(2, 2, 2), normal(2, 2, 2, 2)),
        lambda x, g, d: sampler_grad(x, g, d),
        grad=False,
        rtol=1e-5,
    ),
    OpCase(
        "transformer_sampler_tangent",
        (S.TransformerSamplerTangent,),
        S.TransformerSamplerTangent(),
        (normal(2, 2, 3, 4), off_centre(2, 2, 2), normal(2, 2, 2, 2)),
        lambda x, g, d: (slow_sample(x, g + 1e-6 * d) - slow_sample(x, g - 1e-6 * d)) / 2e-6,
        grad=False,
        rtol=1e-5,
    ),
    OpCase(
        "spatial_transformer",
        (S.TransformerSampler,),
        lambda x, t: S.spatial_transformer(x, t, 1.5, 2),
        (normal(2, 2, 3, 4), lambda rng: rng.uniform(0.5, 0.9, (2, 2, 3))),
        whole,
        grad_tol=1e-4,
    ),
]


def sampler_grad(x, g, d):
    """Central differences of the slow sampler."""
    out = []
    for which in (0, 1):
        result = np.zeros((x, g)[which].shape)
        for index in np.ndindex(*result.shape):
            sides = []
            for step in (1e-6, -1e-6):
                both = [x.copy(), g.copy()]
                both[which][index] += step
                sides.append((slow_sample(*both) * d).sum())
            result[index] = (sides[0] - sides[1]) / 2e-6
        out.append(result)
    return tuple(out)
