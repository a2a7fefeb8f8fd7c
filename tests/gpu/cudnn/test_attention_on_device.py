"""Attention by cuDNN on a device: gradients of masks, and dropout."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import symdnn.tensor as T
from symdnn import config, function
from symdnn.graph.type import numpy_dtype
from symdnn.ops.attention import reference as in_numpy
from symdnn.ops.attention.attention import scaled_dot_product_attention
from symdnn.ops.attention.scores import Scores
from symdnn.tensor.random import RandomStream
from tests.gpu.cudnn.test_attention import close

pytestmark = pytest.mark.gpu


def by_cudnn(f):
    kernels = f.lowering_report().kernels()
    assert "cudnn.on_host" not in kernels, f"cuDNN refused a size: {kernels}"
    assert any(k.startswith("cudnn.attention") for k in kernels), kernels


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("lead", [(1, 1), (1, 4), (2, 1), (2, 4)], ids=str)
@pytest.mark.parametrize("keys", [128, 77])
def test_gradients_of_masks(rng, lead, keys, dtype):
    """They are summed over the batch and the heads for which the mask is the same."""
    kind, how = numpy_dtype(dtype), Scores(extras=("mask",))
    shapes = (2, 4, 96, 64), (2, 2, keys, 64), (2, 2, keys, 64), (*lead, 96, keys), (2, 4, 96, 64)
    arrays = [rng.standard_normal(s).astype(kind) for s in shapes]
    vs = [T.TensorType(dtype, s)() for s in shapes]
    y, lse = scaled_dot_product_attention(*vs[:4], enable_gqa=True, return_lse=True)
    f = function(vs, [y, lse, *T.grad(None, vs[:4], known_grads={y: vs[4]})])
    results = [f(*arrays) for _ in range(3)][-1]
    by_cudnn(f)
    q, k, v, mask, dy = (a.astype("f8") for a in arrays)
    out, wanted_lse = in_numpy.attention(how, q, k, v, mask)
    wanted = in_numpy.attention_grad(how, q, k, v, out, wanted_lse, dy, 0, mask)
    names = ("result", "log-sum-exp", *(f"gradient of {n}" for n in ("q", "k", "v", "the mask")))
    for name, got, want in zip(names, results, (out, wanted_lse, *wanted), strict=True):
        close(got, want, dtype, name)


RATE = 0.25


def dropping(dtype, causal, masked):
    """(function of q, k, v, cotangent, the stream): result and gradients with dropout."""
    stream = RandomStream(11)
    shapes = (2, 4, 96, 64), (2, 4, 64, 64), (2, 4, 64, 64), (2, 4, 96, 64)
    vs = [T.TensorType(dtype, s)() for s in shapes]
    mask = None if not masked else np.arange(64).reshape(1, 1, 1, 64) % 5 != 1
    y = scaled_dot_product_attention(
        *vs[:3], mask, dropout_p=RATE, causal="top_left" if causal else None, stream=stream
    )
    grads = T.grad(None, vs[:3], known_grads={y: vs[3]})
    return function(vs, [y, *grads]), shapes, stream


def visible(causal, masked):
    seen = np.tri(96, 64, dtype=bool) if causal else np.ones((96, 64), bool)
    return np.broadcast_to(seen & (np.arange(64) % 5 != 1 if masked else True), (2, 4, 96, 64))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
def test_dropout(rng, causal, masked, dtype):
    """With the identity as values, the result is the probabilities that are left."""
    f, shapes, stream = dropping(dtype, causal, masked)
    q, k, _, dy = (0.5 * rng.standard_normal(s) for s in shapes)
    v = np.broadcast_to(np.eye(64), shapes[2])
    arrays = [np.asarray(a).astype(numpy_dtype(dtype)) for a in (q, k, v, dy)]
    results = [f(*arrays) for _ in range(4)]  # the third and fourth are those of a captured plan
    by_cudnn(f)
    q, k, v, dy = (a.astype("f8") for a in arrays)
    seen = visible(causal, masked)
    s = np.where(seen, q @ k.swapaxes(2, 3) / 8, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    for call, (y, *grads) in enumerate(results):
        kept = np.asarray(y).astype("f8") != 0
        assert not (kept & ~seen).any(), f"call {call}: a hidden key has a weight"
        share, error = kept[seen].mean(), 6 * np.sqrt(RATE * (1 - RATE) / seen.sum())
        assert abs(share - (1 - RATE)) < error, f"call {call}: {share} of the weights are kept"
        dropped = np.where(kept, p / (1 - RATE), 0)
        close(y, dropped, dtype, f"call {call}: probabilities")
        dp = np.where(kept, dy @ v.swapaxes(2, 3) / (1 - RATE), 0)
        ds = p * (dp - (dy * (dropped @ v)).sum(-1, keepdims=True)) / 8
        wanted = ds @ k, ds.swapaxes(2, 3) @ q, dropped.swapaxes(2, 3) @ dy
        for name, got, want in zip("qkv", grads, wanted, strict=True):
            close(got, want, dtype, f"call {call}: gradient of {name}, of the mask of the result")
    masks = [np.asarray(r[0]).astype("f8") != 0 for r in results]
    for a, b in pairwise(masks):
        assert (a != b)[seen].mean() > 0.2, "two calls drew the same mask"
    rows = masks[0].reshape(-1, 64)[seen.reshape(-1, 64).all(-1)]
    # cuDNN 9.19 draws two masks for eight neighbouring queries (docs/gpu.md).
    assert 4 * len({r.tobytes() for r in rows}) >= len(rows), "rows have the same mask"
    ((state, _),) = stream.state_updates
    assert state.get_value().tolist()[1] == 4 * 2 * 4 * 96 * 64, "the state counts the scores"


def test_dropout_of_a_state_is_the_same_again(rng):
    f, shapes, stream = dropping("bfloat16", causal=True, masked=False)
    arrays = [rng.standard_normal(s).astype(numpy_dtype("bfloat16")) for s in shapes]
    ((state, _),) = stream.state_updates
    start, found = state.get_value(), []
    for _ in range(4):
        state.set_value(start)
        found.append(np.asarray(f(*arrays)[0]).tobytes())
    assert len(set(found)) == 1


def test_deterministic_gradients_with_dropout(rng):
    with config.change_flags(deterministic="more"):
        f, shapes, stream = dropping("bfloat16", causal=True, masked=False)
    arrays = [rng.standard_normal(s).astype(numpy_dtype("bfloat16")) for s in shapes]
    ((state, _),) = stream.state_updates
    start, found = state.get_value(), []
    for _ in range(4):
        state.set_value(start)
        with config.change_flags(deterministic="more"):
            found.append([np.asarray(g).tobytes() for g in f(*arrays)])
    assert all(g == found[0] for g in found[1:])
