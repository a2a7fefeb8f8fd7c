"""Encoder and decoder layers by NumPy's formulas, and copies of them."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import InputError
from tests.nn.transformers.test_attention import hidden
from tests.nn.transformers.test_attention import wanted as attention

SIZE, BATCH, TIME, MEMORY = 8, 3, 4, 5


def norm(x, state, name):
    """Layer normalisation with the weights of this name."""
    y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return y * state[f"{name}.weight"] + state[f"{name}.bias"]


def dense(x, state, activation):
    y = activation(x @ state["linear1.weight"].T + state["linear1.bias"])
    return y @ state["linear2.weight"].T + state["linear2.bias"]


def part(state, name):
    return {k.removeprefix(f"{name}."): v for k, v in state.items() if k.startswith(name)}


def blocks(x, functions, state, first):
    """Sums around the blocks, with norms before or behind."""
    for i, f in enumerate(functions, 1):
        x = x + f(norm(x, state, f"norm{i}")) if first else norm(x + f(x), state, f"norm{i}")
    return x


def drawn(module, rng):
    """The module with biases that are not 0, and its values."""
    state = {n: rng.normal(0, 0.4, v.shape) for n, v in module.state_dict().items()}
    return module.load_state_dict(state), module.state_dict()


@pytest.mark.parametrize("first", [False, True])
def test_an_encoder_layer(first, rng):
    module, state = drawn(
        nn.TransformerEncoderLayer(SIZE, 2, 12, batch_first=True, norm_first=first).evaluate(), rng
    )
    value = rng.normal(size=(BATCH, TIME, SIZE)).astype("float32")
    mask = hidden((TIME, TIME))
    added = np.where(mask, -np.inf, 0)
    functions = [
        lambda x: attention(part(state, "self_attn"), x, x, x, added)[0],
        lambda x: dense(x, state, lambda y: np.maximum(y, 0)),
    ]
    x = T.ftensor3()
    found = symdnn.function([x], module(x, src_mask=mask))(value)
    np.testing.assert_allclose(found, blocks(value, functions, state, first), 1e-3, 1e-4)


@pytest.mark.parametrize("first", [False, True])
def test_a_decoder_layer(first, rng):
    module, state = drawn(
        nn.TransformerDecoderLayer(
            SIZE, 2, 12, activation="gelu", batch_first=True, norm_first=first
        ).evaluate(),
        rng,
    )
    value = rng.normal(size=(BATCH, TIME, SIZE)).astype("float32")
    memory = rng.normal(size=(BATCH, MEMORY, SIZE)).astype("float32")
    keys = hidden((BATCH, MEMORY))
    causal = np.triu(np.full((TIME, TIME), -np.inf), 1)
    padded = np.where(keys, -np.inf, 0)[:, None, None]
    m = memory.astype("float64")
    gelu = symdnn.function([v := T.dtensor3()], T.nnet.gelu(v))
    functions = [
        lambda x: attention(part(state, "self_attn"), x, x, x, causal)[0],
        lambda x: attention(part(state, "multihead_attn"), x, m, m, padded)[0],
        lambda x: dense(x, state, lambda y: gelu(y.astype("float64"))),
    ]
    x, y = T.ftensor3(), T.ftensor3()
    out = module(x, y, tgt_is_causal=True, memory_key_padding_mask=keys)
    found = symdnn.function([x, y], out)(value, memory)
    np.testing.assert_allclose(found, blocks(value, functions, state, first), 1e-3, 1e-4)


def test_copies_have_values_and_dropout_of_their_own(rng):
    layer = nn.TransformerEncoderLayer(SIZE, 2, 12, dropout=0.5, batch_first=True)
    net = nn.TransformerEncoder(layer, 2, nn.LayerNorm(SIZE))
    state = net.state_dict()
    names = {k.removeprefix("layers.0.") for k in state if k.startswith("layers.0.")}
    assert names == set(layer.state_dict())
    assert "norm.weight" in state
    a, b = net.layers
    np.testing.assert_array_equal(a.linear1.weight.get_value(), layer.linear1.weight.get_value())
    assert a.linear1.weight is not b.linear1.weight
    seeds = {m.seed for n in (layer, a, b) for m in (n.dropout1, n.dropout2, n.self_attn)}
    assert len(seeds) == 9
    x = T.ftensor3()
    value = rng.normal(size=(BATCH, TIME, SIZE)).astype("float32")
    train, test = (symdnn.function([x], m(x)) for m in (net, net.clone().evaluate()))
    assert not np.array_equal(train(value), train(value))
    assert np.array_equal(test(value), test(value))


def test_a_whole_transformer_trains(rng):
    nn.init.seed(0)
    net = nn.Transformer(SIZE, 2, 1, 1, 12, dropout=0.0, batch_first=True)
    bound = np.sqrt(6 / (SIZE + 3 * SIZE))
    weight = net.encoder.layers[0].self_attn.in_proj_weight.get_value()
    assert bound * 0.9 < abs(weight).max() <= bound
    src, tgt = T.ftensor3(), T.ftensor3()
    loss = T.sqr(net(src, tgt, tgt_is_causal=True) - tgt).mean()
    train = symdnn.function([src, tgt], loss, updates=nn.optim.adam(loss, net, lr=0.01))
    values = [rng.normal(size=(BATCH, n, SIZE)).astype("float32") for n in (MEMORY, TIME)]
    losses = [train(*values) for _ in range(30)]
    assert losses[-1] < 0.5 * losses[0]
    mask = nn.Transformer.generate_square_subsequent_mask(3)
    np.testing.assert_array_equal(mask == 0, np.tril(np.ones((3, 3), bool)))


def test_layers_without_biases():
    layer = nn.TransformerDecoderLayer(SIZE, 2, 12, bias=False)
    assert not [n for n in layer.state_dict() if "bias" in n]
    x = T.tensor("float32", (TIME, BATCH, SIZE))
    f = symdnn.function([x], layer.evaluate()(x, x))
    assert np.isfinite(f(np.ones((TIME, BATCH, SIZE), "float32"))).all()


def test_what_does_not_fit():
    with pytest.raises(InputError, match="wanted 'relu', 'gelu'"):
        nn.TransformerEncoderLayer(8, 2, activation="swish")
    with pytest.raises(InputError, match="num_layers"):
        nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2), 0)
