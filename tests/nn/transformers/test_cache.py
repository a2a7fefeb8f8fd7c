"""A cache makes decoding one compiled step that equals attention to the whole prefix."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import InputError, TypeMismatch

BATCH, LENGTH, EMBED = 2, 9, 16


def steps(module, cache, count):
    """A function of the next ``count`` positions."""
    x = T.tensor("float32", (BATCH, count, EMBED))
    y = module(x, x, x, cache=cache)[0]
    return symdnn.function([x], y, updates=cache.updates(y))


@pytest.mark.parametrize(
    "options",
    [{}, {"num_kv_heads": 2}, {"num_kv_heads": 1, "rotary": nn.RotaryEmbedding(4)}],
    ids=["heads", "groups", "rotary"],
)
def test_steps_are_causal_attention_to_the_prefix(options, rng):
    module = nn.MultiheadAttention(EMBED, 4, batch_first=True, **options).evaluate()
    x = T.ftensor3()
    whole = symdnn.function([x], module(x, x, x, is_causal=True, need_weights=False)[0])
    cache = nn.KeyValueCache(BATCH, LENGTH)
    first, step = steps(module, cache, 3), steps(module, cache, 1)
    value = rng.normal(size=(BATCH, LENGTH, EMBED)).astype("float32")
    found = [first(value[:, :3])] + [step(value[:, i : i + 1]) for i in range(3, LENGTH)]
    np.testing.assert_allclose(np.concatenate(found, 1), whole(value), 1e-4, 1e-5)
    assert len(step.plans()) == 1  # one plan serves all positions
    heads = options.get("num_kv_heads", 4)
    assert cache.held(module)[0].shape == (BATCH, heads, LENGTH, 4)
    with pytest.raises(AssertionError, match="no room"):
        step(value[:, :1])
    assert cache.length == LENGTH
    cache.reset(3)
    np.testing.assert_allclose(step(value[:, 3:4]), whole(value)[:, 3:4], 1e-4, 1e-5)
    cache.reset()
    np.testing.assert_allclose(first(value[:, :3]), whole(value)[:, :3], 1e-4, 1e-5)


def test_buffers_are_written_in_place():
    module = nn.MultiheadAttention(256, 4, batch_first=True, num_kv_heads=2).evaluate()
    cache, x = nn.KeyValueCache(1, 256), T.tensor("float32", (1, 1, 256))
    y = module(x, x, x, cache=cache)[0]
    step = symdnn.function([x], y, updates=cache.updates(y))
    step(np.ones((1, 1, 256), "float32"))
    (plan,) = step.plans()
    stored = {old for old in plan.memory.stored.values() if old.type.ndim == 4}
    copied = {old for old in plan.memory.copied.values() if old.type.ndim == 4}
    assert len(stored) == 2
    assert not copied
    views = plan.memory.views.items()
    of_buffers = [v for v, view in views if view.shape == (1, 2, 256, 64)]
    assert len(of_buffers) == 4  # the old and the new values
    assert all(plan.memory.views[v].buffer.kind == "outside" for v in of_buffers)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_steps_on_a_card(dtype, rng):
    module = nn.MultiheadAttention(256, 4, batch_first=True, num_kv_heads=2).evaluate()
    x = T.ftensor3()
    y = module(x, x, x, is_causal=True, need_weights=False)[0]
    whole = symdnn.function([x], y, mode=symdnn.Mode(target="cpu"))
    value = rng.normal(size=(BATCH, LENGTH, 256)).astype("float32")
    wanted = whole(value)
    module = module.astype(dtype)
    cache, row = nn.KeyValueCache(BATCH, 64), T.tensor("float32", (BATCH, 1, 256))
    y = module(*[row.astype(dtype)] * 3, cache=cache)[0]
    step = symdnn.function([row], y.astype("float32"), updates=cache.updates(y))
    found = [step(value[:, i : i + 1]) for i in range(LENGTH)]
    tolerance = 1e-4 if dtype == "float32" else 3e-2
    np.testing.assert_allclose(np.concatenate(found, 1), wanted, tolerance, tolerance)
    (plan,) = step.plans()
    assert len([v for v in plan.memory.stored.values() if v.type.ndim == 4]) == 2


def test_a_window_and_other_settings(rng):
    cache, size = nn.KeyValueCache(1, 8), (1, 2, 1, 4)
    q, k, v = (T.tensor("float32", size) for _ in range(3))
    y = cache.attend("layer", q, k, v, window=2, scale=0.7, softcap=5.0)
    step = symdnn.function([q, k, v], y, updates=cache.updates(y))
    values = [rng.normal(size=(1, 2, 8, 4)).astype("float32") for _ in range(3)]
    found = [step(*(a[:, :, i : i + 1] for a in values)) for i in range(8)]
    xs = [T.ftensor4() for _ in range(3)]
    whole = T.nnet.scaled_dot_product_attention(
        *xs, causal="top_left", window=(2, 0), scale=0.7, softcap=5.0
    )
    wanted = symdnn.function(xs, whole)(*values)
    np.testing.assert_allclose(np.concatenate(found, 2), wanted, 1e-4, 1e-5)


def test_a_network_of_layers_has_one_length(rng):
    layer = nn.TransformerEncoderLayer(EMBED, 4, 32, batch_first=True, norm_first=True)
    net = nn.TransformerEncoder(layer, 2, nn.LayerNorm(EMBED)).evaluate()
    x = T.ftensor3()
    whole = symdnn.function([x], net(x, is_causal=True))
    cache, row = nn.KeyValueCache(BATCH, LENGTH), T.tensor("float32", (BATCH, 1, EMBED))
    y = net(row, cache=cache)
    step = symdnn.function([row], y, updates=cache.updates(y))
    value = rng.normal(size=(BATCH, LENGTH, EMBED)).astype("float32")
    found = [step(value[:, i : i + 1]) for i in range(LENGTH)]
    np.testing.assert_allclose(np.concatenate(found, 1), whole(value), 1e-4, 1e-5)
    assert "2 modules" in repr(cache)
    assert cache.nbytes == 4 * BATCH * LENGTH * EMBED * 4


def test_what_does_not_fit():
    module = nn.MultiheadAttention(EMBED, 4, batch_first=True)
    cache, x = nn.KeyValueCache(BATCH, LENGTH), T.tensor("float32", (BATCH, 1, EMBED))
    with pytest.raises(InputError, match="excludes masks"):
        module(x, x, x, attn_mask=np.zeros((1, 1), bool), cache=cache)
    with pytest.raises(InputError, match="no output was made"):
        cache.updates(x)
    wide = T.tensor("float32", (3, 1, EMBED))
    with pytest.raises(TypeMismatch, match="new positions"):
        module(wide, wide, wide, cache=cache)
    one, other = (module(v, v, v, cache=cache)[0] for v in (x, x * 2))
    with pytest.raises(InputError, match="twice"):
        cache.updates(one, other)
    with pytest.raises(InputError, match="positions are held"):
        cache.reset(4)
    with pytest.raises(InputError, match="wanted an int"):
        nn.KeyValueCache(0, 3)
