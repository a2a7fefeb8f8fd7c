"""Batches without an example: a result and gradients without one, of the right other sizes."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.nn import functional as F


def unpooled(x):
    return F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2)


FUNCTIONS = {
    "conv2d": lambda x: F.conv2d(x, np.ones((3, 4, 3, 3), "float32")),
    "conv_transpose2d": lambda x: F.conv_transpose2d(x, np.ones((4, 3, 2, 2), "float32"), stride=2),
    "max_pool2d": lambda x: F.max_pool2d(x, 2),
    "max_pool2d with places": lambda x: F.max_pool2d(x, 2, return_indices=True)[0],
    "max_unpool2d": unpooled,
    "avg_pool2d": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 2),
    "grid_sample": lambda x: F.grid_sample(x, x[:, :2].dimshuffle(0, 2, 3, 1)),
    "interpolate": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "unfold": lambda x: F.unfold(x, 2),
    "group_norm": lambda x: F.group_norm(x, 2),
    "instance_norm": F.instance_norm,
    "softmax of images": nn.SoftMax(),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x),
    "GRU": lambda x: nn.GRU(6, 3)(x[:, 0].dimshuffle(1, 0, 2)).dimshuffle(1, 0, 2),
    "linear": lambda x: F.linear(x.flatten(2), np.ones((2, 144), "float32")),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.filterwarnings("ignore:.*align_corners")
def test_no_example(name):
    x = T.tensor("float32", (None, 4, 6, 6))
    y = FUNCTIONS[name](x)
    f = symdnn.function([x], [y, T.grad((y * y).sum(), x)])
    (two, _), (none, slope) = (f(np.ones((n, 4, 6, 6), "float32")) for n in (2, 0))
    assert none.shape == (0, *two.shape[1:])
    assert slope.shape == (0, 4, 6, 6)
