"""The axis of a softmax that is given none: PyTorch's."""

import numpy as np
import pytest

import symdnn.tensor as T
from symdnn import nn
from symdnn.nn import functional as F


@pytest.mark.parametrize(
    ("shape", "axis"), [((4,), 0), ((3, 4), 1), ((2, 3, 4), 0), ((2, 3, 4, 2), 1)]
)
def test_softmax_without_dim_is_along_pytorchs_axis(shape, axis):
    """The first axis of 1 or 3 dimensions, else the second: as layer and as function."""
    x = np.random.default_rng(0).normal(size=shape).astype("float32")
    one = np.exp(x) / np.exp(x).sum(axis, keepdims=True)
    other = np.exp(-x) / np.exp(-x).sum(axis, keepdims=True)
    v = T.constant(x)
    found = [F.softmax(x), nn.Softmax()(v), F.log_softmax(x), nn.LogSoftmax()(v)]
    for y, wanted in zip(found, (one, one, np.log(one), np.log(one)), strict=True):
        np.testing.assert_allclose(y.eval(), wanted, rtol=1e-5, atol=1e-6)
    for y in (F.softmin(x), nn.Softmin()(v)):
        np.testing.assert_allclose(y.eval(), other, rtol=1e-5, atol=1e-6)
