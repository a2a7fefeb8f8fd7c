"""Results with padded rows, and attention's heads side by side, beside NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.graph.type import numpy_dtype

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda")]
SEED = 11
CLOSE = {"bfloat16": 2e-2, "float16": 3e-3, "float32": 1e-5}


def drawn(dtype: str, *shape: int) -> Any:
    return np.random.default_rng(SEED).standard_normal(shape).astype(numpy_dtype(dtype))


def agree(found: Any, wanted: Any, close: float) -> None:
    error = np.abs(np.asarray(found).astype("float64") - wanted).max()
    assert error <= close * np.abs(wanted).max(), f"seed {SEED}: error {error}"


@pytest.mark.parametrize("words", [5001, 5002, 4999])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_scores_of_an_odd_number_of_words(dtype: str, words: int) -> None:
    x, w = T.tensor(dtype, (None, 64), name="x"), T.tensor(dtype, (64, words), name="w")
    b = T.tensor(dtype, (words,), name="b")
    y = T.dot(x, w) + b
    with config.change_flags(device="cuda"):
        f = symdnn.function(
            [x, w, b], [T.tanh(y / 8), (y / 8).reshape((-1, 16, words)).sum(axis=1)]
        )
    for rows in (512, 1024):
        a, c, d = drawn(dtype, rows, 64), drawn(dtype, 64, words), drawn(dtype, words)
        wide = (a.astype("float64") @ c.astype("float64") + d.astype("float64")) / 8
        found = f(a, c, d)
        agree(found[0], np.tanh(wide), CLOSE[dtype])
        agree(found[1], wide.reshape((-1, 16, words)).sum(axis=1), CLOSE[dtype])


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_what_an_elementwise_kernel_writes_for_gemms(dtype: str) -> None:
    x, y = T.tensor(dtype, (1024, 64), name="x"), T.tensor(dtype, (1024, 5001), name="y")
    z = T.tanh(y)
    with config.change_flags(device="cuda"):
        f = symdnn.function([x, y], [T.dot(x.T, z), T.dot(z.T, x), z.sum(axis=0)])
    a, b = drawn(dtype, 1024, 64), drawn(dtype, 1024, 5001)
    wide = np.tanh(b.astype("float64")).astype(numpy_dtype(dtype)).astype("float64")
    first, second, third = f(a, b)
    agree(first, a.astype("float64").T @ wide, CLOSE[dtype])
    agree(second, wide.T @ a.astype("float64"), CLOSE[dtype])
    agree(third, wide.sum(axis=0), 2 * CLOSE[dtype])


def test_a_block_with_attention_and_its_gradients() -> None:
    """Linear, split into heads, attention, joined, linear: mixed precision beside float64."""
    x, w = T.tensor("float32", (2, 64, 128), name="x"), T.tensor("float32", (128, 384), name="w")
    b, v = T.tensor("float32", (384,), name="b"), T.tensor("float32", (128, 33), name="v")
    packed = T.dot(x, w) + b
    q, k, u = (
        packed[..., 128 * i : 128 * (i + 1)].reshape((2, 64, 2, 64)).dimshuffle(0, 2, 1, 3)
        for i in range(3)
    )
    y = T.nnet.scaled_dot_product_attention(q, k, u, is_causal=True)
    out = T.dot(y.dimshuffle(0, 2, 1, 3).reshape((2, 64, 128)), v)
    outs = [out, *T.grad((out**2).mean(), [x, w, b, v])]
    values = [drawn("float32", *t.type.shape) / 8 for t in (x, w, b, v)]
    with config.change_flags(device="cuda", amp="bf16"):
        found = symdnn.function([x, w, b, v], outs)(*values)
    with config.change_flags(device="cpu"):
        wanted = symdnn.function([x, w, b, v], outs)(*values)
    for one, right in zip(found, wanted, strict=True):
        agree(one, right.astype("float64"), 3e-2)
