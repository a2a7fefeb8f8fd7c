"""Attention of arrays whose leading dimensions differ, and of packed sequences."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.errors import OptionError, ShapeMismatch, TypeMismatch
from tests.seeded import new_rng

attention = T.nnet.scaled_dot_product_attention


def values(rng, *shapes):
    return [rng.standard_normal(s).astype("float32") for s in shapes]


def with_gradients(y, wrt):
    return [y, *symdnn.grad((y**2).sum(), wrt)]


def agree(found, wanted):
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(
    "leads",
    [
        ((2, 3), (1, 3), (2, 3)),
        ((2, 1), (2, 3), (2, 3)),
        ((2, 3), (2, 1), (2, 1)),
        ((2, 3), (2, 1), (2, 3)),
        ((2, 3), (3,), (1, 1)),
        ((3,), (2, 3), ()),
        ((4, 1, 3), (2, 3), (1, 2, 1)),
    ],
)
def test_leading_ones_broadcast(leads):
    xs = values(new_rng(), *((*lead, n, 4) for lead, n in zip(leads, (5, 6, 6))))
    full = np.broadcast_shapes(*leads)
    inputs = [T.tensor("float32", x.shape) for x in xs]
    wide = [T.broadcast_to(v, (*full, *v.type.shape[-2:])) for v in inputs]
    found, wanted = (
        symdnn.function(inputs, with_gradients(attention(*vs, is_causal=True), inputs))
        for vs in (inputs, wide)
    )
    agree(found(*xs), wanted(*xs))


@pytest.mark.parametrize(("keys", "values_"), [(2, 1), (1, 4), (4, 2)])
def test_keys_and_values_may_have_different_groups(keys, values_):
    xs = values(new_rng(), (2, 4, 5, 8), (2, keys, 6, 8), (2, values_, 6, 8))
    inputs = [T.tensor("float32", x.shape) for x in xs]
    q, k, v = inputs
    wide = q, T.repeat(k, 4 // keys, axis=1), T.repeat(v, 4 // values_, axis=1)
    found = symdnn.function(inputs, with_gradients(attention(*inputs, enable_gqa=True), inputs))
    wanted = symdnn.function(inputs, with_gradients(attention(*wide), inputs))
    agree(found(*xs), wanted(*xs))


@pytest.mark.parametrize("causal", [None, "top_left", "bottom_right"])
@pytest.mark.parametrize(
    ("of_queries", "of_keys"), [([0, 3, 3, 10], None), ([0, 5, 9], [0, 7, 8]), ([0, 2], [0, 0])]
)
def test_packed_sequences_see_only_themselves(of_queries, of_keys, causal):
    """Two more positions than the sequences have give 0 and -inf."""
    ends = of_queries, of_keys or of_queries
    xs = values(new_rng(), *((3, e[-1] + 2, 4) for e in (ends[0], ends[1], ends[1])))
    inputs = [T.tensor3(n) for n in "qkv"]
    given = {} if of_keys is None else {"cu_seqlens_k": np.array(of_keys, "int32")}
    y, lse = attention(
        *inputs, cu_seqlens_q=np.array(of_queries), causal=causal, return_lse=True, **given
    )
    parts = [
        attention(
            inputs[0][:, a:b], *(x[:, c:d] for x in inputs[1:]), causal=causal, return_lse=True
        )
        for a, b, c, d in zip(ends[0], ends[0][1:], ends[1], ends[1][1:])
    ]
    behind = np.zeros((3, 2, 4), "float32")
    alone = T.concatenate([*(p[0] for p in parts), behind], axis=1)
    lses = T.concatenate([*(p[1] for p in parts), behind[..., 0] - np.inf], axis=1)
    found = symdnn.function(inputs, [*with_gradients(y, inputs), lse])
    wanted = symdnn.function(inputs, [*with_gradients(alone, inputs), lses])
    agree(found(*xs), wanted(*xs))


def test_ends_of_packed_sequences_may_be_an_input():
    xs = values(new_rng(), (2, 9, 4))
    x, ends = T.tensor3("x"), T.ivector("ends")
    f = symdnn.function([x, ends], attention(x, x, x, cu_seqlens_q=ends))
    known = symdnn.function(
        [x, ends], attention(x, x, x, cu_seqlens_q=ends, max_seqlen_q=9, max_seqlen_k=9)
    )
    for given in ([0, 9], [0, 2, 9], [0, 1, 2, 9]):
        e = np.array(given, "int32")
        np.testing.assert_allclose(f(*xs, e), known(*xs, e), rtol=1e-5, atol=1e-6)


def test_wrong_arguments_are_named():
    q = np.ones((2, 3, 5, 4), "float32")
    with pytest.raises(ShapeMismatch, match="enable_gqa"):
        attention(q, q[:, :2], q[:, :2])
    with pytest.raises(OptionError, match="heads, positions, features"):
        attention(q, q, q, cu_seqlens_q=np.array([0, 5]))
    with pytest.raises(TypeMismatch, match="int32"):
        attention(q[0], q[0], q[0], cu_seqlens_q=np.array([0.0, 5.0]))
