"""Attention in gradients of functions that read its probabilities or scores, too."""

import math

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import Mode
from symdnn.ops.attention.attention import Attention, AttentionGrad
from symdnn.ops.linalg.products import BatchedDot
from symdnn.ops.nn.softmax import Softmax
from symdnn.ops.random.random_stream import RandomStream
from symdnn.stable import shared_weights
from tests.seeded import new_rng
from tests.stable.test_attention import (
    BATCH,
    BUFFER,
    FEATURES,
    HEADS,
    KEYS,
    LOW,
    SOFTMAXES,
    lower,
    mode,
    ops_of,
    qkv,
    turned,
)

RULE = "shared_weights"
#: Products of a forward pass and of the gradients by q, k and v, written out.
PRODUCTS = 6


def scores_of(q, k):
    return T.matmul(q, turned(k)) * 0.3


def entropy(p):
    return -(p * T.log(p + 1e-9)).sum()


def seen_of(q):
    return T.constant(np.array([[True] * 3 + [False] * 2, [False] * KEYS]))[:, None, None, :]


MASKS = {
    "none": lambda s: s,
    "causal": lambda s: T.switch(lower(s), s, LOW),
    "causal, -inf": lambda s: T.where(T.eq(BUFFER[: s.shape[2], : s.shape[3]], 0), -np.inf, s),
    "padding, one text of which is hidden": lambda s: T.switch(seen_of(s), s, LOW),
    "a bias": lambda s: s + T.arange(KEYS, dtype="float64") * 0.1,
    "capped": lambda s: 2.0 * T.tanh(s / 2.0),
    "capped and causal": lambda s: T.switch(lower(s), 2.0 * T.tanh(s / 2.0), LOW),
}

READ = {
    "probabilities": lambda s, p, y, inputs: [p],
    "their entropy": lambda s, p, y, inputs: [entropy(p)],
    "the entropy's gradient": lambda s, p, y, inputs: symdnn.grad(entropy(p), inputs[:2]),
    "the gradient of probabilities": lambda s, p, y, inputs: [p, symdnn.grad((y**3).sum(), p)],
    "scores": lambda s, p, y, inputs: [s],
    "scores and probabilities": lambda s, p, y, inputs: [s, p],
}


def functions(build, inputs, how=mode):
    """With the rule, and without it."""
    return [
        symdnn.function(inputs, build(*inputs), mode=how().excluding(*off)) for off in ((), (RULE,))
    ]


def agree(f, plain, values, count=PRODUCTS):
    """Equal values, and no work twice."""
    for got, want in zip(f(*values), plain(*values), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-11)
    ops = ops_of(f)
    assert not {Attention, AttentionGrad} & set(ops)
    assert {Attention, AttentionGrad} <= set(ops_of(plain))
    assert (ops.count(BatchedDot), ops.count(Softmax)) == (count, 1)


@pytest.mark.parametrize("masked", MASKS)
@pytest.mark.parametrize("read", READ)
def test_one_product_and_one_softmax(read, masked):
    inputs, values = qkv(new_rng())

    def build(q, k, v):
        s = scores_of(q, k)
        p = T.nnet.softmax(MASKS[masked](s), axis=-1)
        y = T.matmul(p, v)
        grads = symdnn.grad((y**3).sum(), [q, k, v])
        return [*READ[read](s, p, y, [q, k]), (y**3).sum(), *grads]

    more = 2 if read == "the entropy's gradient" else 0
    if "hidden" in masked and read == "the gradient of probabilities":
        more = 1  # the result's cotangent is 0 where all is hidden, that of the means is not
    agree(*functions(build, inputs), values, PRODUCTS + more)


@pytest.mark.parametrize("softmax", SOFTMAXES)
def test_any_softmax(softmax):
    inputs, values = qkv(new_rng())

    def build(q, k, v):
        p = SOFTMAXES[softmax](scores_of(q, k))
        return [p, *symdnn.grad((T.matmul(p, v) ** 3).sum(), [q, k, v])]

    agree(*functions(build, inputs), values)


def test_a_learned_bias():
    inputs, values = qkv(new_rng())
    inputs.append(T.tensor("float64", (1, HEADS, KEYS, KEYS), name="bias"))
    values.append(new_rng().standard_normal((1, HEADS, KEYS, KEYS)))

    def build(q, k, v, bias):
        p = T.nnet.softmax(scores_of(q, k) + bias, axis=-1)
        return [p, *symdnn.grad((T.matmul(p, v) ** 3).sum(), [q, k, v, bias])]

    agree(*functions(build, inputs), values)


@pytest.mark.parametrize("dropped", [False, True])
def test_dropped_probabilities(dropped):
    """The mask is drawn once."""
    inputs, values = qkv(new_rng(), (BATCH, HEADS, KEYS, FEATURES))

    def build(q, k, v):
        p = T.nnet.softmax(scores_of(q, k), axis=-1)
        kept = T.nnet.dropout(p, 0.5, stream=RandomStream(7))
        cost = (T.matmul(kept, v) ** 3).sum()
        return [kept if dropped else p, cost, *symdnn.grad(cost, [q, k, v])]

    f, plain = functions(build, inputs)
    for got, want in zip(f(*values), plain(*values), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-11)
    names = [op.__name__ for op in ops_of(f)]
    assert (names.count("Softmax"), names.count("BatchedDot")) == (1, PRODUCTS)
    assert "Attention" not in names


def test_matrices_without_heads():
    inputs = [T.tensor("float64", (5, 4), name=n) for n in "qkv"]
    rng = new_rng()

    def build(q, k, v):
        q, k, v = (T.tanh(x) for x in (q, k, v))
        p = T.nnet.softmax(T.dot(q, k.T), axis=-1)
        return [p, *symdnn.grad((T.dot(p, v) ** 3).sum(), inputs)]

    f, plain = functions(build, inputs)
    values = [rng.standard_normal((5, 4)) for _ in inputs]
    for got, want in zip(f(*values), plain(*values), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-11)
    assert Attention not in ops_of(f)


def test_scores_with_another_product_in_them():
    """A bias that is a product as well is none of queries and keys."""
    inputs, values = qkv(new_rng(), (BATCH, HEADS, KEYS, FEATURES))
    inputs.append(T.tensor("float64", (BATCH, HEADS, KEYS, FEATURES), name="r"))
    values.append(new_rng().standard_normal((BATCH, HEADS, KEYS, FEATURES)))

    def build(q, k, v, r):
        first, second = T.matmul(q, turned(k)), T.matmul(q, turned(r))
        p = T.nnet.softmax(first + second, axis=-1)
        cost = (T.matmul(p, v) ** 3).sum()
        return [first, second, p, *symdnn.grad(cost, [q, k, v, r])]

    f, plain = functions(build, inputs)
    for got, want in zip(f(*values), plain(*values), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-11)


def test_nobody_else_reads_them():
    inputs, _ = qkv(new_rng())

    def build(q, k, v):
        y = T.matmul(T.nnet.softmax(scores_of(q, k), axis=-1), v)
        return [y, *symdnn.grad((y**3).sum(), [q, k, v])]

    f, _ = functions(build, inputs)
    assert {Attention, AttentionGrad} <= set(ops_of(f))


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90"])
def test_memory_is_that_of_the_written_out_form(target):
    """Beside it a sum for each row waits for its use; values are so large that order counts."""
    shape = (2, 4, 1024, 16)
    inputs = [T.tensor("float32", shape, name=n) for n in "qkv"]

    def peak(*off):
        q, k, v = inputs
        p = T.nnet.softmax(scores_of(q, k), axis=-1)
        with symdnn.config.change_flags(optimizer_excluding=":".join(off)):
            outs = [p, *symdnn.grad((T.matmul(p, v) ** 3).sum(), inputs)]
            f = symdnn.function(inputs, outs, mode=Mode(target=target))
        plans = f.stages.specialise({v.name: v.type.shape for v in inputs})
        return max(plan.memory.arena_bytes for plan in plans)

    assert peak() <= peak("recognise_attention") + 4 * math.prod(shape[:-1])


def test_the_rule_is_one_of_the_list():
    assert shared_weights.RULES[0].name == RULE
