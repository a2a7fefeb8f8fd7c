from __future__ import annotations

from itertools import product

import numpy as np

from symdnn.ops.written_out.pixel_sums import (
    PixelSums,
    PixelSumsGradImage,
    PixelSumsGradWeights,
)
from tests.op_table.record import OpCase, normal

#: An image, points, and places along two axes, some of them outside.
N, C, H, W, P = 2, 3, 4, 5, 6


def places(size):
    return lambda rng: rng.integers(-1, size + 1, (N, P)).astype("int32")


AT = (places(H), places(H), places(W), places(W))
WEIGHTS = (normal(N, P),) * 4


def numpy_terms(at):
    """For each term: the arrays that it has, where it is inside, and its places."""
    for i, j in product((0, 1), (2, 3)):
        inside = (at[i] >= 0) & (at[i] < H) & (at[j] >= 0) & (at[j] < W)
        yield (i, j), inside[:, None], (at[i].clip(0, H - 1), at[j].clip(0, W - 1))


def found(x, row, column):
    return np.stack([x[n][:, row[n], column[n]] for n in range(N)])


def sums(x, *given):
    at, w = given[:4], given[4:]
    return np.sum([
        np.where(inside, found(x, *place) * (w[i] * w[j])[:, None], 0)
        for (i, j), inside, place in numpy_terms(at)
    ], 0)  # fmt: skip


def of_image(*given):
    *given, dy, x = given
    at, w, out = given[:4], given[4:], np.zeros_like(x)
    for (i, j), inside, (row, column) in numpy_terms(at):
        term = np.where(inside, dy * (w[i] * w[j])[:, None], 0)
        for n, c in product(range(N), range(C)):
            np.add.at(out[n, c], (row[n], column[n]), term[n, c])
    return out


def of_weights(x, *given):
    *given, dy = given
    at, w, out = given[:4], given[4:], [np.zeros((N, P)) for _ in range(4)]
    for (i, j), inside, place in numpy_terms(at):
        each = np.where(inside, found(x, *place) * dy, 0).sum(1)
        out[i] += each * w[j]
        out[j] += each * w[i]
    return out


CASES = [
    OpCase("pixel_sums", (PixelSums,), PixelSums((2, 2)), (normal(N, C, H, W), *AT, *WEIGHTS),
           sums),
    OpCase("pixel_sums_of_one", (PixelSums,), PixelSums((1, 1), False),
           (normal(N, C, H, W), places(H), places(W)),
           lambda x, i, j: np.where(
               ((i >= 0) & (i < H) & (j >= 0) & (j < W))[:, None],
               found(x, i.clip(0, H - 1), j.clip(0, W - 1)), 0)),
    OpCase("pixel_sums_grad_image", (PixelSumsGradImage,), PixelSumsGradImage((2, 2)),
           (*AT, *WEIGHTS, normal(N, C, P), normal(N, C, H, W)), of_image),
    OpCase("pixel_sums_grad_weights", (PixelSumsGradWeights,), PixelSumsGradWeights((2, 2)),
           (normal(N, C, H, W), *AT, *WEIGHTS, normal(N, C, P)), of_weights),
]  # fmt: skip
