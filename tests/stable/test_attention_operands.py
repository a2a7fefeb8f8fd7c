"""Attention as users write it: of matrices, with heads that are repeated, with dropout."""

import math

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import Mode
from symdnn.ops.attention.attention import Attention, AttentionGrad
from symdnn.ops.nn.dropout import Dropout
from symdnn.tensor.random import RandomStream
from tests.seeded import new_rng
from tests.stable.test_attention import (
    BATCH,
    CAUSAL,
    FEATURES,
    HEADS,
    KEYS,
    LOW,
    PRODUCTS,
    attend,
    check,
    compiled,
    mode,
    ops_of,
    qkv,
    turned,
)

# -- one head of matrices --------------------------------------------------------------------------


def matrices(rng, dtype="float64"):
    sizes = {"q": (4, FEATURES), "k": (6, FEATURES), "v": (6, 3)}
    found = [T.tensor(dtype, (None, d), name=n) for n, (_, d) in sizes.items()]
    return found, [rng.standard_normal(s).astype(dtype) for s in sizes.values()]


@pytest.mark.parametrize(
    "mask",
    [
        lambda s: s, lambda s: T.switch(T.tril(T.ones_like(s)), s, -np.inf),
        lambda s: T.switch(T.arange(s.shape[1]).dimshuffle("x", 0) < 2, s, LOW),
        lambda s: s + T.arange(s.shape[1]).astype("float64"),
    ],
    ids=["plain", "causal", "chosen", "added"],
)  # fmt: skip
def test_products_of_matrices(mask):
    inputs, values = matrices(new_rng())

    def build(q, k, v):
        s = mask(T.dot(q, k.T) / math.sqrt(FEATURES))
        return T.dot(T.nnet.softmax(s), v)

    check(build, inputs, values)


def test_projections_of_a_matrix():
    rng = new_rng()
    x = T.matrix("x", dtype="float64")
    weights = [symdnn.shared(rng.standard_normal((6, FEATURES)), name=n) for n in "qkv"]

    def build(x):
        q, k, v = (T.dot(x, w) for w in weights)
        return T.dot(T.nnet.softmax(T.dot(q, k.T) * FEATURES**-0.5), v)

    value = rng.standard_normal((5, 6))
    f = check(build, [x], [value])
    alone = symdnn.function([x], build(x), mode=mode())
    assert Attention in ops_of(alone)
    np.testing.assert_allclose(alone(value), f(value)[0], rtol=1e-10)


def test_a_layer_before_and_after_a_softmax_stays():
    rng = new_rng()
    x, w, e = (T.matrix(n, dtype="float64") for n in "xwe")
    values = [rng.standard_normal(s) for s in ((4, 5), (5, 6), (6, 3))]
    check(lambda x, w, e: T.dot(T.nnet.softmax(T.dot(x, w)), e), [x, w, e], values, False)


def test_scores_of_other_sizes_than_their_product_stay():
    rng = new_rng()
    sizes = (4, FEATURES), (6, FEATURES), (4, 3)
    inputs = [T.tensor("float64", s, name=n) for n, s in zip("qkv", sizes)]

    def build(q, k, v):
        return T.dot(T.nnet.softmax(T.dot(q, k.T).reshape((6, 4))), v)

    check(build, inputs, [rng.standard_normal(s) for s in sizes], recognised=False)


# -- heads that are shared by groups ---------------------------------------------------------------

GROUPS, SHARE = 2, 3


def broadcast_heads(x):
    b, g, t, d = (x.shape[i] for i in range(4))
    return T.broadcast_to(x[:, :, None], (b, g, SHARE, t, d)).reshape((b, g * SHARE, t, d))


def by_time(x):
    """Repeated while heads stand behind time, and with an axis that is tiled."""
    y = x.transpose(0, 2, 1, 3)
    b, t, g, d = (y.shape[i] for i in range(4))
    y = T.broadcast_to(y.dimshuffle(0, 1, 2, "x", 3), (b, t, g, SHARE, d))
    return y.reshape((b, t, g * SHARE, d)).transpose(0, 2, 1, 3)


REPEATS = {
    "repeat": lambda x: T.repeat(x, SHARE, axis=1),
    "broadcast": broadcast_heads,
    "heads behind time": by_time,
    "tile of a new dimension": lambda x: T.tile(x[:, :, None], (1, 1, SHARE, 1, 1)).reshape(
        (x.shape[0], GROUPS * SHARE, x.shape[2], FEATURES)
    ),
    "indices": lambda x: x[:, np.repeat(np.arange(GROUPS), SHARE)],
    "repeat of a cast": lambda x: T.repeat(x.astype("float32"), SHARE, axis=1).astype("float64"),
}


def grouped(rng, groups=GROUPS, heads=GROUPS * SHARE):
    sizes = [heads, groups, groups]
    xs = [T.tensor("float64", ("batch", n, "time", FEATURES), name=m) for m, n in zip("qkv", sizes)]
    return xs, [rng.standard_normal((BATCH, n, KEYS, FEATURES)) for n in sizes]


def heads_of_keys(f):
    (node,) = [n for n in f.stages.fgraph.toposort() if isinstance(n.op, Attention)]
    return [x.type.shape[1] for x in node.inputs[1:3]]


@pytest.mark.parametrize("spelling", REPEATS)
@pytest.mark.parametrize("mask", ["tril", None])
def test_repeated_heads_are_groups(spelling, mask):
    inputs, values = grouped(new_rng())
    repeat, hide = REPEATS[spelling], CAUSAL[mask] if mask else lambda s: s

    def build(q, k, v):
        return attend(q, repeat(k), repeat(v), hide)

    f = check(build, inputs, values, rtol=1e-5 if "cast" in spelling else 2e-10)
    assert heads_of_keys(f) == [GROUPS, GROUPS]


@pytest.mark.parametrize("product", PRODUCTS)
def test_one_head_for_all_queries(product):
    to_keys, to_values = PRODUCTS[product]
    inputs, values = grouped(new_rng(), groups=1)

    def build(q, k, v):
        k, v = (T.repeat(x, GROUPS * SHARE, axis=1) for x in (k, v))
        return to_values(T.nnet.softmax(to_keys(q, k), axis=-1), v)

    assert heads_of_keys(check(build, inputs, values)) == [1, 1]


def test_a_head_that_a_product_broadcasts():
    inputs, values = grouped(new_rng(), groups=1)
    f = check(lambda q, k, v: attend(q, k, v, lambda s: s), inputs, values)
    assert heads_of_keys(f) == [1, 1]


@pytest.mark.parametrize(
    "repeats",
    [
        (lambda x: T.tile(x, (1, SHARE, 1, 1)),) * 2,
        (REPEATS["repeat"], lambda x: T.tile(x, (1, SHARE, 1, 1))),
        (lambda x: x[:, np.array([0, 1, 1, 1, 1, 1])],) * 2,
    ],
    ids=["tiled", "keys alone", "unequal"],
)  # fmt: skip
def test_heads_in_another_order_stay_copies(repeats):
    inputs, values = grouped(new_rng())

    def build(q, k, v):
        return attend(q, repeats[0](k), repeats[1](v), lambda s: s)

    f = check(build, inputs, values)
    assert heads_of_keys(f) == [GROUPS * SHARE] * 2


# -- heads that a stack has beside the batch -------------------------------------------------------


@pytest.mark.parametrize("batch", [BATCH, None])
def test_heads_beside_the_batch_in_a_stack(batch):
    """Time first, heads joined to the batch, and both scaled: as PyTorch's layer is exported."""
    rng, width = new_rng(), HEADS * FEATURES
    shapes = [(KEYS, BATCH, width)] * 3
    inputs = [T.tensor("float64", (KEYS, batch, width), name=n) for n in "qkv"]
    values = [rng.standard_normal(s) for s in shapes]

    def build(q, k, v):
        joined = [x.reshape((KEYS, x.shape[1] * HEADS, FEATURES)) for x in (q, k, v)]
        q, k, v = (x.dimshuffle(1, 0, 2).reshape((-1, HEADS, KEYS, FEATURES)) for x in joined)
        scores = T.matmul(q * 0.5, (k * 0.25).dimshuffle(0, 1, 3, 2))
        return T.matmul(T.nnet.softmax(scores, axis=-1), v)

    f = check(build, inputs, values)
    (node,) = [n for n in f.stages.fgraph.toposort() if isinstance(n.op, Attention)]
    assert node.op.how.scale == 0.125


# -- dropout ---------------------------------------------------------------------------------------


def dropped(p, rate, **options):
    return T.nnet.dropout(p, rate, 7, **options)


def results_of(build, inputs, values, calls=3, without=False):
    """Values and gradients of some calls, and the ops."""
    f = compiled(build, lambda vs: vs, inputs, without=without)
    return [f(*values) for _ in range(calls)], ops_of(f)


@pytest.mark.parametrize("dims", [2, 3, 4])
@pytest.mark.parametrize("rate", [0.4, 0.0, 1.0, "symbolic"])
def test_dropout_draws_the_same_masks(dims, rate):
    rng = new_rng()
    lead = {2: (), 3: ("batch",), 4: ("batch", HEADS)}[dims]
    inputs = [T.tensor("float64", (*lead, "time", FEATURES), name=n) for n in "qkv"]
    shape = {2: (), 3: (BATCH,), 4: (BATCH, HEADS)}[dims] + (KEYS, FEATURES)
    values = [rng.standard_normal(shape) for _ in inputs]

    def build(q, k, v):
        product = T.dot if dims == 2 else T.matmul
        p = T.nnet.softmax(product(q, k.swapaxes(-1, -2)) / math.sqrt(FEATURES), axis=-1)
        share = T.switch(T.gt(v.sum(), -1e9), 0.3, 0.5) if rate == "symbolic" else rate
        return product(dropped(p, share), v)

    found, ops = results_of(build, inputs, values)
    wanted, plain = results_of(build, inputs, values, without=True)
    assert ops.count(Attention) == ops.count(AttentionGrad) == 1
    assert not {Attention, AttentionGrad} & set(plain)
    for got, want in zip(found, wanted, strict=True):
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)
    if rate in (0.4, "symbolic"):
        assert not np.allclose(found[0][0], found[1][0]), "two calls drew the same"


def test_a_state_after_dropout_is_that_of_the_dropout():
    inputs, values = qkv(new_rng())
    stream = RandomStream(3)

    def build(q, k, v):
        p = T.nnet.softmax(T.matmul(q, turned(k)), axis=-1)
        return T.matmul(T.nnet.dropout(p, 0.5, stream), v)

    f = symdnn.function(inputs, build(*inputs), mode=Mode(target="cpu"))
    f(*values)
    ((state, _),) = stream.state_updates
    assert state.get_value()[1] == BATCH * HEADS * KEYS * KEYS
    kinds = [type(n.op) for n in f.stages.fgraph.toposort()]
    assert kinds.count(Dropout) == 1  # written out in float64


@pytest.mark.parametrize("spelling", ["mask read", "not scaled", "shared by heads", "read twice"])
def test_dropouts_that_stay(spelling):
    inputs, values = qkv(new_rng())

    def build(q, k, v):
        p = T.nnet.softmax(T.matmul(q, turned(k)), axis=-1)
        if spelling == "mask read":
            d, mask = dropped(p, 0.4, return_mask=True)
            return T.matmul(d, v) + mask.sum()
        d = dropped(
            p, 0.4, scale=spelling != "not scaled", shared=[1] * (spelling == "shared by heads")
        )
        return T.matmul(d, v) + (d.sum() if spelling == "read twice" else 0)

    found, ops = results_of(build, inputs, values, calls=1)
    wanted, _ = results_of(build, inputs, values, calls=1, without=True)
    assert Attention not in ops
    for a, b in zip(found[0], wanted[0], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)
