"""Joins and splits whose pieces lie in the whole, beside NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.graph.type import numpy_dtype
from symdnn.ops.nn.channels_last import Reorder

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda")]
SEED = 5
#: Widths that are multiples of a vector, and some that are not.
WIDTHS = [(16, 48), (5, 3), (1, 7, 9), (33, 31, 2, 64)]


def drawn(dtype: str, *shape: int) -> Any:
    return np.random.default_rng(SEED).standard_normal(shape).astype(numpy_dtype(dtype))


def on_device(inputs: list[Any], outputs: list[Any]) -> Any:
    with config.change_flags(device="cuda"):
        return symdnn.function(inputs, outputs)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "int8"])
@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_pieces_made_in_a_join(widths: tuple[int, ...], dtype: str, axis: int) -> None:
    shapes = [tuple(w if d == axis else 6 for d in range(3)) for w in widths]
    xs = [T.tensor(dtype, s, name=f"x{i}") for i, s in enumerate(shapes)]
    made = [x * x if i % 2 else x + x for i, x in enumerate(xs)]
    whole = T.concatenate(made, axis=axis)
    parts = T.split(whole, widths, len(widths), axis=axis)
    f = on_device(xs, [T.cumsum(whole, axis=1), made[0].sum(), *parts])
    values = [drawn("float32", *s).round(1).astype(numpy_dtype(dtype)) for s in shapes]
    joined = np.concatenate([v * v if i % 2 else v + v for i, v in enumerate(values)], axis)
    for _ in range(3):  # captured, too
        found = f(*values)
        close = 0.1 if dtype == "bfloat16" else 1e-5
        wide = np.cumsum(joined.astype("float64"), 1)
        if dtype != "int8":
            error = np.abs(np.asarray(found[0]).astype("float64") - wide).max()
            assert error <= close * np.abs(wide).max(), f"seed {SEED}"
        ends = np.cumsum(widths)[:-1]
        for got, wanted in zip(found[2:], np.split(joined, ends, axis), strict=True):
            np.testing.assert_array_equal(np.asarray(got), wanted)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("axis", [0, 2])
def test_pieces_made_in_results_that_stay(dtype: str, axis: int) -> None:
    x, y = (T.tensor(dtype, (4, 5, 6), name=n) for n in "xy")
    made = [x + x, y * y, x - y]
    whole = T.concatenate(made, axis=axis)
    outs = [symdnn.Out(v, borrow=True) for v in (whole, T.concatenate([made[1], x]), made[0].sum())]
    f = on_device([x, y], outs)
    rng = np.random.default_rng(SEED)
    for _ in range(4):  # captured, too
        a, b = (rng.standard_normal((4, 5, 6)).round(1).astype(numpy_dtype(dtype)) for _ in "ab")
        found, other, total = map(np.asarray, f(a, b))
        np.testing.assert_array_equal(found, np.concatenate([a + a, b * b, a - b], axis))
        np.testing.assert_array_equal(other, np.concatenate([b * b, a]))
        assert abs(float(total) - float((a + a).astype("float64").sum())) < 0.5


def test_rotated_halves_and_their_gradient() -> None:
    x = T.tensor("float32", (2, 3, 10, 16), name="x")
    angle = T.constant(np.linspace(0, 3, 80, dtype="float32").reshape(10, 8))
    a, b = x[..., :8], x[..., 8:]
    cos, sin = T.cos(angle), T.sin(angle)
    y = T.concatenate([a * cos - b * sin, b * cos + a * sin], axis=3)
    value = drawn("float32", 2, 3, 10, 16)
    outs = [y, T.grad((y**3).sum(), x)]
    found = on_device([x], outs)(value)
    with config.change_flags(device="cpu"):
        wanted = symdnn.function([x], outs)(value)
    for got, right in zip(found, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(got), right, 1e-4, 1e-5)


def test_dense_blocks_train_alike() -> None:
    """Joins of what convolutions make, and splits of their gradients."""
    x = T.tensor("float32", (2, 4, 6, 6), name="x")
    ws = [T.tensor("float32", (3, c, 3, 3), name=f"w{c}") for c in (4, 7, 10)]
    h = x
    for w in ws:
        y = T.nnet.relu(T.nnet.conv2d(h, w, border_mode="half"))
        h = T.concatenate([T.exp(h / 8), y], axis=1)
    outs = [h, *T.grad(T.sqr(h).mean(), [x, *ws])]
    values = [drawn("float32", *v.type.shape) / 4 for v in (x, *ws)]
    found = on_device([x, *ws], outs)(*values)
    with config.change_flags(device="cpu"):
        wanted = symdnn.function([x, *ws], outs)(*values)
    for got, right in zip(found, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(got), right, 2e-3, 1e-4)


@pytest.mark.parametrize("heads", [2, 8])
def test_attention_among_pixels_and_its_gradients(heads: int) -> None:
    """Queries, keys and values are read, and their gradients written, in a convolution's order."""
    x, w = T.tensor("float32", (2, 64, 8, 8), name="x"), T.tensor("float32", (192, 64, 1, 1))
    b, v = T.tensor("float32", (192,), name="b"), T.tensor("float32", (64, 64, 1, 1), name="v")
    packed = T.nnet.conv2d(x, w) + b.dimshuffle("x", 0, "x", "x")
    packed = packed.reshape((2, 3, heads, 64 // heads, -1))
    q, k, u = (packed[:, i].dimshuffle(0, 1, 3, 2) for i in range(3))
    y = T.nnet.scaled_dot_product_attention(q, k, u)
    y = T.nnet.conv2d(y.dimshuffle(0, 1, 3, 2).reshape((2, 64, 8, 8)), v)
    outs = [y, *T.grad(T.sqr(y).mean(), [x, w, b, v])]
    values = [drawn("float32", *t.type.shape) / 8 for t in (x, w, b, v)]
    with config.change_flags(amp="bf16"):
        f = on_device([x, w, b, v], outs)
    with config.change_flags(device="cpu"):
        wanted = symdnn.function([x, w, b, v], outs)(*values)
    for _ in range(3):
        for got, right in zip(f(*values), wanted, strict=True):
            error = np.abs(np.asarray(got).astype("float64") - right).max()
            assert error <= 4e-2 * np.abs(right).max(), f"seed {SEED}: {error}"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("shape", [(2, 8, 6, 10), (3, 5, 7, 9), (1, 64, 33, 1)])
def test_values_made_in_the_order_of_a_reorder(shape: tuple[int, ...], dtype: str) -> None:
    x, y = T.tensor(dtype, shape, name="x"), T.tensor(dtype, shape, name="y")
    made = x * y + x
    turned = Reorder((0, 2, 3, 1))(made)
    f = on_device([x, y], [T.cumsum(turned, axis=1), made.sum(axis=(0, 2, 3))])
    a, b = drawn(dtype, *shape), drawn(dtype, *shape)[::-1].copy()
    wide = a.astype("float64") * b.astype("float64") + a.astype("float64")
    close = 6e-2 if dtype == "bfloat16" else 1e-4
    for _ in range(3):
        first, second = f(a, b)
        wanted = np.cumsum(wide.transpose(0, 2, 3, 1), axis=1)
        np.testing.assert_allclose(np.asarray(first).astype("float64"), wanted, close, close)
        sums = wide.sum((0, 2, 3))
        np.testing.assert_allclose(np.asarray(second).astype("float64"), sums, close, 9 * close)
