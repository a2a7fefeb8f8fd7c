"""MultiheadAttention by NumPy's formulas: masks, appended keys, grouped heads, forms of inputs."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import InputError, SymdnnError, TypeMismatch
from tests.seeded import sampled

EMBED, HEADS, BATCH, QUERIES, KEYS = 8, 2, 3, 4, 5


def softmax(s):
    """Over the last axis; rows of -inf are 0."""
    top = s.max(-1, keepdims=True)
    e = np.where(np.isneginf(s), 0, np.exp(s - np.where(np.isneginf(top), 0, top)))
    return e / np.maximum(e.sum(-1, keepdims=True), 1e-30)


def wanted(state, q, k, v, added, heads=HEADS, groups=HEADS):
    """(result, weights) for (batch, time, features); ``added`` is added to the scores."""
    size = q.shape[-1] // heads
    weights = state.get("in_proj_weight")
    if weights is None:
        parts = [state[f"{n}_proj_weight"] for n in "qkv"]
    else:
        parts = np.split(weights, [heads * size, (heads + groups) * size])
    bias = np.split(state["in_proj_bias"], [heads * size, (heads + groups) * size])
    q, k, v = (
        (x @ w.T + b).reshape(*x.shape[:2], -1, size).transpose(0, 2, 1, 3)
        for x, w, b in zip((q, k, v), parts, bias, strict=True)
    )
    k, v = (np.repeat(x, heads // groups, axis=1) for x in (k, v))
    p = softmax(q @ k.transpose(0, 1, 3, 2) / np.sqrt(size) + added)
    y = (p @ v).transpose(0, 2, 1, 3).reshape(q.shape[0], q.shape[2], -1)
    return y @ state["out_proj.weight"].T + state["out_proj.bias"], p


def layer(**options):
    """A module whose biases are not 0."""
    nn.init.seed(1)
    made = nn.MultiheadAttention(EMBED, HEADS, **options)
    rng = np.random.default_rng(3)
    state = {n: rng.normal(0, 0.4, v.shape) for n, v in made.state_dict().items()}
    return made.load_state_dict(state), made.state_dict()


def arrays(kdim=EMBED, vdim=EMBED):
    rng = np.random.default_rng(2)
    shapes = (BATCH, QUERIES, EMBED), (BATCH, KEYS, kdim), (BATCH, KEYS, vdim)
    return [rng.normal(size=s).astype("float32") for s in shapes]


def run(module, values, **options):
    xs = [T.TensorType("float32", (None,) * v.ndim)() for v in values]
    y, w = module(*xs, **options)
    outs = [y] if w is None else [y, w]
    return symdnn.function(xs, outs)(*values)


def hidden(shape, seed=5):
    """A bool mask, True at some keys but never at the first."""
    mask = np.random.default_rng(seed).random(shape) < 0.4
    mask[..., 0] = False
    return mask


def numbers(shape):
    """What a float mask adds."""
    return np.random.default_rng(1).normal(size=shape).astype("float32")


MASKS = {
    "none": lambda: ({}, 0),
    "keys": lambda: _keys(hidden((BATCH, KEYS))),
    "keys added": lambda: _keys(numbers((BATCH, KEYS))),
    "queries": lambda: _queries(hidden((QUERIES, KEYS))),
    "queries of heads": lambda: _queries(hidden((BATCH * HEADS, QUERIES, KEYS))),
    "added": lambda: _queries(numbers((QUERIES, KEYS))),
    "both": lambda: _both(hidden((QUERIES, KEYS)), hidden((BATCH, KEYS), 6)),
    "one of each": lambda: _both(
        numbers((BATCH * HEADS, QUERIES, KEYS)),
        hidden((BATCH, KEYS), 6),
    ),
    "causal": lambda: (
        {"is_causal": True}, np.triu(np.full((QUERIES, KEYS), -np.inf), 1),
    ),
}  # fmt: skip


def _number(mask):
    return np.where(mask, -np.inf, 0.0) if mask.dtype == bool else mask


def _keys(mask):
    return {"key_padding_mask": mask}, _number(mask)[:, None, None, :]


def _queries(mask):
    added = _number(mask)
    wide = added.reshape(BATCH, HEADS, QUERIES, KEYS) if mask.ndim == 3 else added
    return {"attn_mask": mask}, wide


def _both(mask, keys):
    (one, a), (other, b) = _queries(mask), _keys(keys)
    return one | other, a + b


@pytest.mark.parametrize("name", sampled(list(MASKS), every=3))
def test_masks_leave_out_where_they_are_true(name):
    options, added = MASKS[name]()
    module, state = layer(batch_first=True)
    values = arrays()
    y, p = wanted(state, *values, added)
    found = run(module, values, average_attn_weights=False, **options)
    np.testing.assert_allclose(found[0], y, 1e-4, 1e-5)
    np.testing.assert_allclose(found[1], p, 1e-4, 1e-5)
    averaged = run(module, values, **options)[1]
    np.testing.assert_allclose(averaged, p.mean(1), 1e-4, 1e-5)
    (alone,) = run(module, values, need_weights=False, **options)
    np.testing.assert_allclose(alone, y, 1e-4, 1e-5)


def test_a_query_that_sees_nothing_has_0_and_finite_gradients():
    module, state = layer(batch_first=True)
    values = arrays()
    mask = np.zeros((QUERIES, KEYS), bool)
    mask[1] = True
    y, w = run(module, values, attn_mask=mask)
    bias = np.broadcast_to(state["out_proj.bias"], y[:, 1].shape)
    np.testing.assert_allclose(y[:, 1], bias, 1e-6)
    assert not w[:, 1].any()
    assert np.isfinite(y).all()
    x = T.ftensor3()
    loss = T.sqr(module(x, x, x, attn_mask=mask[:, :QUERIES])[0]).sum()
    grads = symdnn.function([x], symdnn.grad(loss, [x, *module.parameters()]))(values[0])
    assert all(np.isfinite(g).all() for g in grads)


def test_sizes_of_keys_and_values_of_their_own():
    module, state = layer(batch_first=True, kdim=4, vdim=6)
    assert state["k_proj_weight"].shape == (8, 4)
    assert state["v_proj_weight"].shape == (8, 6)
    values = arrays(4, 6)
    y, _ = wanted(state, *values, 0)
    np.testing.assert_allclose(run(module, values)[0], y, 1e-4, 1e-5)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_grouped_heads(groups):
    nn.init.seed(1)
    module = nn.MultiheadAttention(16, 4, batch_first=True, num_kv_heads=groups)
    state = module.state_dict()
    assert state["in_proj_weight"].shape == (16 + 2 * groups * 4, 16)
    x = np.random.default_rng(4).normal(size=(2, 5, 16)).astype("float32")
    y, p = wanted(state, x, x, x, 0, 4, groups)
    found = run(module, [x, x, x], average_attn_weights=False)
    np.testing.assert_allclose(found[0], y, 1e-4, 1e-5)
    np.testing.assert_allclose(found[1], p, 1e-4, 1e-5)


@pytest.mark.parametrize("one_input", [False, True])
def test_forms_of_inputs_agree(one_input):
    module, state = layer(batch_first=True)
    turned = nn.MultiheadAttention(EMBED, HEADS).load_state_dict(state)
    values = arrays()
    values = [values[0]] * 3 if one_input else values
    first = run(module, values, average_attn_weights=False)
    second = run(turned, [v.swapaxes(0, 1) for v in values], average_attn_weights=False)
    np.testing.assert_allclose(first[0], second[0].swapaxes(0, 1), 1e-5, 1e-6)
    np.testing.assert_allclose(first[1], second[1], 1e-5, 1e-6)
    alone = run(turned, [v[1] for v in values], average_attn_weights=False)
    np.testing.assert_allclose(alone[0], first[0][1], 1e-5, 1e-6)
    np.testing.assert_allclose(alone[1], first[1][1], 1e-5, 1e-6)
    mask = hidden((values[1].shape[1],))
    padded = run(turned, [v[1] for v in values], key_padding_mask=mask)
    _, p = wanted(state, *[v[1:2] for v in values], _number(mask))
    np.testing.assert_allclose(padded[1], p[0].mean(0), 1e-4, 1e-5)


@pytest.mark.cpu
def test_one_product_where_the_inputs_are_one():
    module, _ = layer(batch_first=True, bias=False)
    x = T.tensor("float32", (2, 4, EMBED))
    f = symdnn.function([x], module(x, x, x, need_weights=False)[0])
    products = [n for n in f.fgraph.toposort() if "Matmul" in str(n.op)]
    assert len(products) == 4  # all projections, the scores, the values, the last


@pytest.mark.parametrize("causal", [False, True])
def test_appended_keys_are_seen_by_all(causal):
    module, state = layer(batch_first=True, add_bias_kv=True, add_zero_attn=True)
    assert state["bias_k"].shape == (1, 1, EMBED)
    values = arrays()
    options = {"is_causal": True} if causal else {"key_padding_mask": hidden((BATCH, KEYS))}
    y, w = run(module, values, **options)
    assert w.shape == (BATCH, QUERIES, KEYS + 2)
    assert (w[..., -2:] > 0).all()
    np.testing.assert_allclose(w.sum(-1), 1, 1e-5)
    if causal:
        assert not np.triu(w[0][:, :KEYS], 1).any()
    else:
        assert not w[..., :KEYS].transpose(0, 2, 1)[options["key_padding_mask"]].any()
    assert np.isfinite(y).all()


@pytest.mark.parametrize("word", ["attn_mask", "key_padding_mask"])
def test_appended_keys_are_seen_where_a_mask_hides_the_first_by_minus_infinity(word):
    module, _ = layer(batch_first=True, add_bias_kv=True, add_zero_attn=True)
    hides = np.zeros((QUERIES, KEYS) if word == "attn_mask" else (BATCH, KEYS), bool)
    hides[:, 0] = True
    added = np.where(hides, -np.inf, 0).astype("float32")
    y, w = run(module, arrays(), **{word: added})
    for a, b in zip((y, w), run(module, arrays(), **{word: hides}), strict=True):
        np.testing.assert_allclose(a, b, 1e-5, 1e-6)
    assert (w[..., -2:] > 0).all()


def test_gradients_are_finite_differences():
    with symdnn.config.change_flags(floatX="float64"):
        module, _ = layer(batch_first=True, add_bias_kv=True, dtype="float64")
        mask = hidden((QUERIES, QUERIES))
        values = [v[:, :QUERIES].astype("float64") for v in arrays()]

        def out(*xs):
            y, w = module(*xs, attn_mask=mask)
            return T.concatenate([y.flatten(), w.flatten()])

        symdnn.verify_grad(out, values, rng=np.random.default_rng(0))


def test_dropout_is_of_training():
    module, _ = layer(batch_first=True, dropout=0.5)
    values = arrays()
    x = [T.ftensor3() for _ in values]
    train = symdnn.function(x, module(*x, need_weights=False)[0])
    assert not np.array_equal(train(*values), train(*values))
    test = symdnn.function(x, module.evaluate()(*x, need_weights=False)[0])
    assert np.array_equal(test(*values), test(*values))


def test_named_sizes_pass():
    module, _ = layer(batch_first=True)
    x = T.tensor("float32", ("batch", "time", EMBED))
    y, w = module(x, x, x)
    assert [str(n) for n in y.type.names[:2]] == ["batch", "time"]
    assert symdnn.function([x], [y, w])(arrays()[0])[1].shape == (BATCH, QUERIES, QUERIES)


def test_half_types_and_amp():
    module, state = layer(batch_first=True)
    values = arrays()
    y, _ = wanted(state, *values, 0)
    for dtype in ("float16", "bfloat16"):
        half = module.clone().astype(dtype)
        xs = [T.TensorType(dtype, (None,) * 3)() for _ in values]
        out = half(*xs)[0]
        assert out.type.dtype == dtype
        f = symdnn.function(xs, out.astype("float32"))
        found = f(*(v.astype(x.type.numpy) for v, x in zip(values, xs, strict=True)))
        np.testing.assert_allclose(found, y, 0.05, 0.05)
    with symdnn.config.change_flags(amp="bf16"):
        np.testing.assert_allclose(run(module, values)[0], y, 0.05, 0.05)


def test_summary_counts_the_products():
    found = nn.summary(nn.MultiheadAttention(16, 4), *[(5, 2, 16)] * 3)
    heads = 2 * 4 * 5 * 5 * (4 + 4)  # scores and values of all heads
    weights = 2 * 4 * 5 * 5 * 4  # the scores again, of the weights that it returns
    assert found.flops == 2 * (5 * 2 * 16 * (3 * 16 + 16) + heads + weights)
    assert found.parameters == 3 * 16 * 17 + 16 * 17


def test_what_does_not_fit():
    x = T.tensor("float32", (2, 4, 8))
    module = nn.MultiheadAttention(8, 2, batch_first=True)
    with pytest.raises(InputError, match="wanted multiples"):
        nn.MultiheadAttention(8, 3)
    with pytest.raises(InputError, match="wanted 0 to 1"):
        nn.MultiheadAttention(8, 2, 2.0)
    with pytest.raises(TypeMismatch, match="True is left out"):
        module(x, x, x, attn_mask=np.zeros((4, 4), "int64"))
    with pytest.raises(TypeMismatch, match="key_padding_mask"):
        module(x, x, x, key_padding_mask=np.zeros(4, bool))
    with pytest.raises(TypeMismatch, match="here 8"):
        module(x, x, x[..., :4])
    with pytest.raises(SymdnnError):
        module(x, x, x, no_such_mask=None)
