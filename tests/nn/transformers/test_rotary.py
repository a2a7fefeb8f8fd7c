"""Rotary embeddings by complex numbers: both orders of the pairs, positions, partial ones."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import InputError, TypeMismatch


def wanted(x, positions, base=10000.0):
    """Interleaved pairs as complex numbers, turned."""
    n = x.shape[-1]
    angles = positions[..., None] * base ** (-np.arange(0, n, 2) / n)
    z = (x[..., ::2] + 1j * x[..., 1::2]) * np.exp(1j * angles)
    return np.stack([z.real, z.imag], -1).reshape(x.shape)


def halves(x):
    """Interleaved pairs put into halves, as checkpoints of Llama were for Hugging Face."""
    return np.concatenate([x[..., ::2], x[..., 1::2]], -1)


def applied(module, x, *positions):
    v = T.TensorType("float32", (None,) * x.ndim)()
    return symdnn.function([v], module(v, *positions))(x)


def test_both_orders_of_pairs(rng):
    x = rng.normal(size=(2, 3, 5, 8)).astype("float32")
    y = wanted(x, np.arange(5))
    np.testing.assert_allclose(applied(nn.RotaryEmbedding(8, interleaved=True), x), y, 1e-4, 1e-5)
    found = applied(nn.RotaryEmbedding(8), halves(x))
    np.testing.assert_allclose(found, halves(y), 1e-4, 1e-5)
    assert not np.allclose(applied(nn.RotaryEmbedding(8), x), y, atol=1e-2)


def test_positions_base_and_features_that_pass(rng):
    x = rng.normal(size=(2, 3, 5, 12)).astype("float32")
    module = nn.RotaryEmbedding(8, 500.0, True)
    at = np.array([7, 1, 2, 9, 4])
    y = np.concatenate([wanted(x[..., :8], at, 500.0), x[..., 8:]], -1)
    np.testing.assert_allclose(applied(module, x, at), y, 1e-4, 1e-5)
    rows = np.stack([at, at + 3])
    y = np.concatenate([wanted(x[..., :8], rows[:, None], 500.0), x[..., 8:]], -1)
    np.testing.assert_allclose(applied(module, x, rows), y, 1e-4, 1e-5)
    turned = nn.RotaryEmbedding(8, interleaved=True, frequencies=np.zeros(4))
    np.testing.assert_array_equal(applied(turned, x), x)


def test_scores_depend_on_distances_alone(rng):
    q, k = (rng.normal(size=(4, 8)).astype("float32") for _ in range(2))
    module, at = nn.RotaryEmbedding(8), np.arange(4)
    first, second = (
        applied(module, q, at + d) @ applied(module, k, at + d).T for d in (0, 1000)
    )  # fmt: skip
    np.testing.assert_allclose(first, second, 1e-3, 1e-3)


def test_gradient(rng):
    module = nn.RotaryEmbedding(4)
    symdnn.verify_grad(module, [rng.normal(size=(2, 3, 6))], rng=rng)


def test_what_does_not_fit():
    with pytest.raises(InputError, match="an even number"):
        nn.RotaryEmbedding(5)
    with pytest.raises(InputError, match="wanted numbers"):
        nn.RotaryEmbedding(4, frequencies=np.ones(3))
    with pytest.raises(TypeMismatch, match="4 features or more"):
        nn.RotaryEmbedding(4)(T.tensor("float32", (5, 2)))
    with pytest.raises(TypeMismatch, match="integer positions"):
        nn.RotaryEmbedding(4)(T.tensor("float32", (5, 4)), np.ones(5, "float32"))
