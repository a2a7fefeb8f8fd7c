"""Outputs, gradients, weights and initial values against PyTorch's, where it is installed."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from tests.seeded import sampled

torch = pytest.importorskip("torch")
#: PyTorch tells which of its fast paths it leaves out.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

N, QUERIES, KEYS, EMBED, HEADS = 3, 4, 5, 8, 2
MASKS = [
    {}, {"key_padding_mask": "bool"}, {"key_padding_mask": "float", "attn_mask": "bool"},
    {"attn_mask": "float"}, {"attn_mask": "heads", "key_padding_mask": "bool"},
]  # fmt: skip
CASES = [
    {}, {"bias": False}, {"batch_first": True}, {"add_bias_kv": True}, {"add_zero_attn": True},
    {"kdim": 4, "vdim": 6, "batch_first": True}, {"add_bias_kv": True, "add_zero_attn": True},
]  # fmt: skip


def compared(ours, theirs, values, options, first=lambda y: y):
    """Outputs and gradients of both for these inputs, with the weights of theirs."""
    ours.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items()})
    back = nn.to_torch(ours)
    assert {k: v.shape for k, v in back.items()} == {
        k: tuple(v.shape) for k, v in theirs.state_dict().items()
    }
    tensors = [torch.tensor(v, requires_grad=True) for v in values]
    given = {k: torch.tensor(v) if hasattr(v, "shape") else v for k, v in options.items()}
    wanted = first(theirs(*tensors, **given))
    (wanted**2).sum().backward()
    xs = [T.TensorType("float32", (None,) * v.ndim)() for v in values]
    found = first(ours(*xs, **options))
    named = ours.named_parameters()
    grads = symdnn.grad(T.sqr(found).sum(), [*xs, *named.values()])
    got, *dx = symdnn.function(xs, [found, *grads])(*values)
    np.testing.assert_allclose(got, wanted.detach().numpy(), 1e-3, 1e-4)
    theirs_by_name = dict(theirs.named_parameters())
    for g, t in zip(dx, [*tensors, *(theirs_by_name[n] for n in named)], strict=True):
        np.testing.assert_allclose(g, t.grad.numpy(), 2e-3, 2e-3)


def drawn(rng, shape):
    return rng.normal(size=shape).astype("float32")


def masks(kinds, rng):
    shapes = {"attn_mask": (QUERIES, KEYS), "key_padding_mask": (N, KEYS)}
    found = {}
    for name, kind in kinds.items():
        shape = (N * HEADS, QUERIES, KEYS) if kind == "heads" else shapes[name]
        hidden = rng.random(shape) < 0.3
        hidden[..., 0] = False
        found[name] = hidden if kind == "bool" else drawn(rng, shape)
    return found


@pytest.mark.parametrize("kinds", MASKS, ids=str)
@pytest.mark.parametrize("case", sampled(CASES, every=3), ids=str)
def test_attention(case, kinds, rng):
    theirs = torch.nn.MultiheadAttention(EMBED, HEADS, **case)
    ours = nn.MultiheadAttention(EMBED, HEADS, **case)
    sizes = zip((QUERIES, KEYS, KEYS), (EMBED, ours.kdim, ours.vdim), strict=True)
    values = [drawn(rng, (N, n, e) if ours.batch_first else (n, N, e)) for n, e in sizes]
    options = masks(kinds, rng)
    compared(ours, theirs, values, options, lambda y: y[0])
    xs = [torch.tensor(v) for v in values]
    given = {k: torch.tensor(v) for k, v in options.items()}
    for average in (False, True):
        _, weights = theirs(*xs, **given, average_attn_weights=average)
        w = ours(*values, **options, average_attn_weights=average)[1].eval()
        np.testing.assert_allclose(w, weights.detach().numpy(), 1e-4, 1e-5)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_a_transformer(norm_first, batch_first, rng):
    options = {
        "dim_feedforward": 12, "dropout": 0.0, "activation": "gelu", "norm_first": norm_first,
        "batch_first": batch_first,
    }  # fmt: skip
    theirs = torch.nn.Transformer(EMBED, HEADS, 2, 1, **options)
    ours = nn.Transformer(EMBED, HEADS, 2, 1, **options)
    keys = rng.random((N, KEYS)) < 0.3
    keys[:, 0] = False
    sizes = (KEYS, QUERIES)
    values = [drawn(rng, (N, n, EMBED) if batch_first else (n, N, EMBED)) for n in sizes]
    given = {
        "src_key_padding_mask": keys, "memory_key_padding_mask": keys,
        "tgt_mask": nn.Transformer.generate_square_subsequent_mask(QUERIES),
    }  # fmt: skip
    compared(ours, theirs, values, given)


@pytest.mark.parametrize("kind", ["TransformerEncoderLayer", "TransformerDecoderLayer"])
def test_initial_values_are_of_the_same_distributions(kind):
    theirs = getattr(torch.nn, kind)(128, 4, 300).state_dict()
    ours = getattr(nn, kind)(128, 4, 300).state_dict()
    assert set(ours) == set(theirs)
    for name, value in ours.items():
        other = theirs[name].numpy()
        assert abs(value.std() - other.std()) <= 0.15 * other.std(), name
        assert abs(abs(value).max() - abs(other).max()) <= 0.05 * abs(other).max(), name


def test_heads_of_groups_are_those_of_the_function(rng):
    q, k, v = (drawn(rng, (N, h, QUERIES, 4)) for h in (4, 2, 2))
    xs = [torch.tensor(a) for a in (q, k, v)]
    wanted = torch.nn.functional.scaled_dot_product_attention(*xs, enable_gqa=True, scale=0.3)
    found = T.nnet.scaled_dot_product_attention(q, k, v, enable_gqa=True, scale=0.3).eval()
    np.testing.assert_allclose(found, wanted.numpy(), 1e-4, 1e-5)
