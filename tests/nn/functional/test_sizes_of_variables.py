"""Sizes that a call knows, ``x.size(2)`` or ``y.shape[2:]``, where PyTorch's programs give them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.errors import InputError
from symdnn.nn import functional as F
from tests.seeded import new_rng

#: Each takes images (2, 4, 6, 8), and the shape of others, (2, 4, 9, 5), in any form.
CASES = {
    "max_pool2d": lambda x, y: F.max_pool2d(x, x.shape[2:]),
    "max_pool2d of others": lambda x, y: F.max_pool2d(x, (y.shape[1], 2), (2, y.shape[0])),
    "max_pool1d": lambda x, y: F.max_pool1d(x[:, :, 0], x.shape[3]),
    "avg_pool2d": lambda x, y: F.avg_pool2d(x, (x.shape[2], x.shape[3])),
    "avg_pool2d of others": lambda x, y: F.avg_pool2d(x, y.shape[1], y.shape[0], 1),
    "avg_pool1d": lambda x, y: F.avg_pool1d(x[:, :, 0], y.shape[0], ceil_mode=True),
    "avg_pool3d": lambda x, y: F.avg_pool3d(x[:, None], (y.shape[0], 2, 2)),
    "adaptive": lambda x, y: F.adaptive_avg_pool2d(x, (y.shape[3], y.shape[0])),
    "adaptive of one image": lambda x, y: F.adaptive_avg_pool2d(x[0], y.shape[3]),
    "nearest": lambda x, y: F.interpolate(x, size=y.shape[2:]),
    "bilinear": lambda x, y: F.interpolate(x, size=y.shape[2:], mode="bilinear"),
    "bicubic": lambda x, y: F.interpolate(
        x, size=(y.shape[2], 5), mode="bicubic", align_corners=True
    ),
    "area": lambda x, y: F.interpolate(x, size=(y.shape[3], y.shape[0]), mode="area"),
    "affine_grid": lambda x, y: F.affine_grid(x[:, 0, :2, :3], (2, 1, y.shape[2], y.shape[3])),
    "affine_grid of corners": lambda x, y: F.affine_grid(x[:, 0, :2, :3], y.shape, True),
    "layer_norm": lambda x, y: F.layer_norm(x, x.shape[1:]),
    "fold": lambda x, y: F.fold(F.unfold(x, 2, stride=2), x.shape[2:], 2, stride=2),
    "pad and crop": lambda x, y: F.pad(x, [1, y.shape[3] - x.shape[3], y.shape[2] - 6, 0]),
    "zeros": lambda x, y: T.zeros(y.shape[3], 1, dtype=x.dtype) + T.ones(*y.shape[2:])[0],
    "linspace": lambda x, y: T.linspace(0, 1, x.shape[3]) * x,
    "linspace without its end": lambda x, y: T.linspace(0, 2, y.shape[0] - 1, endpoint=False),
    "expand": lambda x, y: x[:1].expand(y.shape[0], -1, -1, -1),
    "broadcast_to": lambda x, y: T.broadcast_to(x[:, :1], x.shape),
    "repeat": lambda x, y: x[0].repeat(y.shape[0], 1, 1, 2),
    "repeat of a vector": lambda x, y: x[0, 0, 0].repeat(y.shape[0], 1),
    "flatten": lambda x, y: x.flatten(0, 1),
    "triu": lambda x, y: T.triu(T.ones((y.shape[2], y.shape[3])), diagonal=1),
}


def built(name: str, known: bool) -> Any:
    """The case and its gradient, of types with sizes or without."""
    size = (2, 4, 6, 8) if known else (None,) * 4
    x, other = T.TensorType("float64", size)("x"), T.tensor4("other", "float64")
    y = SimpleNamespace(shape=(2, 4, 9, 5)) if known else other
    made = CASES[name](x, y)
    slope = T.grad(T.sqr(made).sum(), x, disconnected_inputs="ignore")
    return symdnn.function([x, other], [made, slope], on_unused_input="ignore")


@pytest.mark.parametrize("name", CASES)
def test_a_size_of_a_variable_is_a_size(name):
    rng = new_rng()
    values = rng.standard_normal((2, 4, 6, 8)), rng.standard_normal((2, 4, 9, 5))
    for found, wanted in zip(built(name, False)(*values), built(name, True)(*values)):
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-12)


def test_an_empty_slice_stays_empty_where_its_size_is_kept():
    x = T.dmatrix()
    f = symdnn.function([x], x[:1].expand(2, -1, -1))
    assert f(np.ones((0, 3))).shape == (2, 0, 3)
    assert f(np.ones((4, 3))).shape == (2, 1, 3)


def test_what_needs_numbers_says_so():
    x = T.tensor4()
    with pytest.raises(InputError, match="max_pool2d: dilation is of windows"):
        F.max_pool2d(x, x.shape[2:], dilation=2)
    with pytest.raises(InputError, match="ints, 1 or more, or sizes of a variable"):
        F.interpolate(x, size="large")
