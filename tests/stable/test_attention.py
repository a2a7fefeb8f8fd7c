"""Attention as users write it: what becomes the op, and what does not."""

import itertools
import math

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import Mode
from symdnn.config import config
from symdnn.errors import ShapeMismatch
from symdnn.ops.attention.attention import Attention, AttentionGrad
from symdnn.stable import attention
from tests.seeded import new_rng, sampled

BATCH, HEADS, QUERIES, KEYS, FEATURES = 2, 3, 5, 5, 8
LOW = -1e9
RULE = "recognise_attention"


def mode(**flags):
    found = Mode(target="cpu").excluding("lower", "fuse", "transfer")
    return found.excluding(RULE) if flags.get("without") else found


def ops_of(f):
    return [type(node.op) for node in f.stages.fgraph.toposort()]


def compiled(build, wrt_of, inputs, **flags):
    """The function of the value and its gradients, with the rule or ``without`` it."""
    with config.change_flags(optimizer_excluding=RULE if flags.get("without") else ""):
        y = build(*inputs)
        cost = (y * T.constant(np.float32(1)) ** 2).sum() + (y**3).sum()
        grads = symdnn.grad(cost, wrt_of(inputs))
        return symdnn.function(inputs, [y, *grads], mode=mode(**flags))


def check(build, inputs, values, recognised=True, rtol=2e-10):
    """Values and gradients with the rule are those without it; whether the op is used once."""
    wrt = [v for v in inputs if v.type.is_float]
    f, plain = (
        compiled(build, lambda _: wrt, inputs, without=without) for without in (False, True)
    )
    assert not {Attention, AttentionGrad} & set(ops_of(plain))
    assert ops_of(f).count(Attention) == ops_of(f).count(AttentionGrad) == recognised
    for got, want in zip(f(*values), plain(*values), strict=True):
        np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol)
    return f


def qkv(rng, names=("batch", HEADS, "time", FEATURES), dtype="float64", batch=BATCH):
    shape = (batch, HEADS, KEYS, FEATURES)
    xs = [T.tensor(dtype, names, name=n) for n in "qkv"]
    return xs, [rng.standard_normal(shape).astype(dtype) for _ in xs]


def turned(k):
    return k.dimshuffle(0, 1, 3, 2)


def softmax_written(s):
    e = T.exp(s - s.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def softmax_unshifted(s):
    e = T.exp(s)
    return e / e.sum(axis=3).dimshuffle(0, 1, 2, "x")


def softmax_of_two_maxima(s):
    top = T.exp(s - T.max(s, axis=-1, keepdims=True))
    return top / T.exp(s - T.max(s, axis=-1, keepdims=True)).sum(-1, keepdims=True)


SOFTMAXES = {
    "by name": lambda s: T.nnet.softmax(s, axis=-1),
    "with two maxima": softmax_of_two_maxima,
    "by the sum's logarithm": lambda s: T.exp(s - T.logsumexp(s, axis=-1, keepdims=True)),
    "by its logarithm": lambda s: T.exp(T.nnet.logsoftmax(s, axis=-1)),
    "with a shift": softmax_written,
    "without a shift": softmax_unshifted,
}
PRODUCTS = {
    "matmul": (lambda q, k: T.matmul(q, turned(k)), T.matmul),
    "@": (lambda q, k: q @ k.transpose(0, 1, 3, 2), lambda p, v: p @ v),
    "einsum": (
        lambda q, k: T.einsum("bhqd,bhkd->bhqk", q, k),
        lambda p, v: T.einsum("bhqk,bhkd->bhqd", p, v),
    ),
}
SCALES = {
    "quotient": lambda s, k: s / math.sqrt(FEATURES),
    "product": lambda s, k: s * FEATURES**-0.5,
    "another": lambda s, k: 0.7 * s,
    "none": lambda s, k: s,
    "the root of the size": lambda s, k: s / T.sqrt(T.cast(k.shape[-1], s.dtype)),
    "a divisor": lambda s, k: s / T.exp(k[0, 0, 0, 0]),
    "a variable": lambda s, k: s * T.exp(k[0, 0, 0, 0]),
}


SPELLINGS = list(itertools.product(SOFTMAXES, PRODUCTS, SCALES))


@pytest.mark.parametrize(("softmax", "product", "scale"), sampled(SPELLINGS, every=4))
def test_each_spelling(softmax, product, scale):
    to_keys, to_values = PRODUCTS[product]

    def build(q, k, v):
        return to_values(SOFTMAXES[softmax](SCALES[scale](to_keys(q, k), k)), v)

    inputs, values = qkv(new_rng())
    check(build, inputs, values)


@pytest.mark.parametrize("product", PRODUCTS)
def test_heads_of_unknown_number(product):
    to_keys, to_values = PRODUCTS[product]
    inputs, values = qkv(new_rng(), (None, None, None, None))
    f = check(lambda q, k, v: to_values(T.nnet.softmax(to_keys(q, k)), v), inputs, values)
    q, k, v = values
    with pytest.raises(ShapeMismatch):
        f(q, k.swapaxes(0, 1), v)


@pytest.mark.parametrize("low", [-np.inf, LOW])
@pytest.mark.parametrize("shown", ["causal", "other"])
def test_masks_that_know_the_number_of_keys(low, shown):
    seen = np.tri(QUERIES, dtype=bool)
    if shown == "other":
        seen[3, 1] = False

    def build(q, k, v):
        scores = T.switch(T.constant(seen), q @ turned(k), np.float64(low))
        return T.nnet.softmax(scores) @ v

    inputs, values = qkv(new_rng())
    f = check(build, inputs, values)
    with pytest.raises(ShapeMismatch):
        f(*(x[:, :, 1:] for x in values))


def test_a_scaled_query_and_projections():
    rng, heads = new_rng(), 4
    x = T.tensor("float64", ("batch", "time", 16), name="x")
    weights = [symdnn.shared(rng.standard_normal((16, 16)), name=n) for n in "qkv"]

    def build(x, *_):
        def split(w):
            return T.dot(x, w).reshape((x.shape[0], x.shape[1], heads, 4)).transpose(0, 2, 1, 3)

        q, k, v = (split(w) for w in weights)
        y = T.matmul(T.nnet.softmax(T.matmul(q * 0.5, k.transpose(0, 1, 3, 2)), axis=-1), v)
        return y.transpose(0, 2, 1, 3).reshape((x.shape[0], x.shape[1], 16))

    check(build, [x], [rng.standard_normal((3, 6, 16))])


def test_stacks_of_three_dimensions():
    rng = new_rng()
    inputs = [T.tensor("float64", ("batch", "time", FEATURES), name=n) for n in "qkv"]
    values = [rng.standard_normal((BATCH, KEYS, FEATURES)) for _ in inputs]

    def build(q, k, v):
        s = T.batched_dot(q, k.dimshuffle(0, 2, 1)) / math.sqrt(FEATURES)
        return T.batched_dot(T.nnet.softmax(s, axis=2), v)

    check(build, inputs, values)


@pytest.mark.parametrize("lead", [(1, HEADS), (BATCH, 1), (1, 1), (BATCH, HEADS), (None, None)])
def test_sizes_of_one(lead):
    rng = new_rng()
    x = T.tensor("float64", (*lead, None, FEATURES), name="x")
    value = rng.standard_normal((*(n or 2 for n in lead), KEYS, FEATURES))
    check(lambda x: attend(T.sin(x), x, T.exp(x), lambda s: s), [x], [value])


# -- masks ----------------------------------------------------------------------------------------


def time_of(s):
    return T.arange(s.shape[2])


def lower(s, dtype="bool"):
    return T.tril(T.ones((s.shape[2], s.shape[3]), dtype=dtype))


def above(s, dtype="bool"):
    i = T.arange(s.shape[2])
    return T.cast(i[None, :] > i[:, None], dtype)


#: Masks for more keys than there are, of which programs take a corner.
BUFFER = T.constant(np.tril(np.ones((9, 9))))
BOOL_BUFFER = T.constant(np.tril(np.ones((1, 1, 9, 9), bool)))

CAUSAL = {
    "indices with None": lambda s: T.where(above(s), LOW, s),
    "lowest number": lambda s: T.where(above(s), np.finfo(s.dtype).min, s),
    "more than 0": lambda s: T.where(lower(s, "float64") > 0, s, -np.inf),
    "under a half": lambda s: T.where(lower(s, "float64") < 0.5, LOW, s),
    "subtracted": lambda s: s - 1e9 * above(s, "float64"),
    "multiplied and subtracted": lambda s: (
        s * lower(s, "float64") - 1e10 * (1 - lower(s, "float64"))
    ),
    "a corner": lambda s: T.where(T.eq(BUFFER[: s.shape[2], : s.shape[3]], 0), LOW, s),
    "a corner of four dimensions": lambda s: T.where(
        BOOL_BUFFER[:, :, : s.shape[2], : s.shape[3]], s, -np.inf
    ),
    "a corner of a matrix inside": lambda s: T.where(
        BOOL_BUFFER[0, 0, : s.shape[2], : s.shape[3]], s, LOW
    ),
    "tril": lambda s: T.switch(lower(s), s, LOW),
    "tril of floats as a condition": lambda s: T.switch(lower(s, "float64"), s, LOW),
    "tril of ones like": lambda s: T.switch(T.tril(T.ones_like(s[0, 0])), s, LOW),
    "tril of floats": lambda s: T.switch(T.eq(lower(s, "float64"), 0), LOW, s),
    "tril that is not 0": lambda s: T.switch(T.neq(lower(s, "int32"), 0), s, LOW),
    "tril that is not 1": lambda s: T.switch(T.neq(lower(s, "int32"), 1), -np.inf, s),
    "infinite": lambda s: T.switch(lower(s), s, -np.inf),
    "indices": lambda s: T.switch(
        T.ge(time_of(s).dimshuffle(0, "x"), time_of(s).dimshuffle("x", 0)), s, LOW
    ),
    "later": lambda s: T.switch(
        time_of(s).dimshuffle("x", "x", "x", 0) > time_of(s).dimshuffle("x", "x", 0, "x"), LOW, s
    ),
    "added": lambda s: s + (1 - lower(s, "float64")) * LOW,
    "added triangle": lambda s: s + T.triu(T.fill(s[0, 0], -np.inf), 1),
    "constant": lambda s: T.switch(np.tril(np.ones((KEYS, KEYS), bool)), s, LOW),
    "constant, added": lambda s: (
        s + np.triu(np.full((KEYS, KEYS), LOW), 1).reshape(1, 1, KEYS, KEYS)
    ),
}


def attend(q, k, v, mask):
    s = mask(T.matmul(q, turned(k)) / math.sqrt(FEATURES))
    return T.matmul(T.nnet.softmax(s, axis=-1), v)


@pytest.mark.parametrize("spelling", CAUSAL)
def test_causal_masks(spelling):
    static = "constant" in spelling
    names = (BATCH, HEADS, KEYS, FEATURES) if static else ("batch", HEADS, "time", FEATURES)
    inputs, values = qkv(new_rng(), names)
    f = check(lambda q, k, v: attend(q, k, v, CAUSAL[spelling]), inputs, values)
    (how,) = [n.op.how for n in f.stages.fgraph.toposort() if isinstance(n.op, Attention)]
    assert (how.left, how.right, how.extras) == (None, 0, ())


def test_a_window_is_a_band():
    def banded(s):
        i, j = time_of(s).dimshuffle(0, "x"), time_of(s).dimshuffle("x", 0)
        return T.switch((i >= j) & (i - j < 3), s, LOW)

    x = T.tensor("float64", ("batch", HEADS, "time", FEATURES), name="x")
    value = new_rng().standard_normal((BATCH, HEADS, KEYS, FEATURES))
    f = check(lambda x: attend(T.sin(x), x, T.exp(x), banded), [x], [value])
    (how,) = [n.op.how for n in f.stages.fgraph.toposort() if isinstance(n.op, Attention)]
    assert (how.left, how.right, how.extras) == (2, 0, ())


@pytest.mark.parametrize("low", [LOW, -np.inf])
def test_padding_with_whole_rows_hidden(low):
    rng = new_rng()
    inputs, values = qkv(rng)
    seen = T.tensor("bool", ("batch", "time"), name="seen")
    shown = rng.random((BATCH, KEYS)) < 0.6
    shown[0], shown[1, 0] = low == -np.inf, True  # nan without the rule where all is -inf

    def build(q, k, v, seen):
        return attend(q, k, v, lambda s: T.switch(seen.dimshuffle(0, "x", "x", 1), s, low))

    check(build, [*inputs, seen], [*values, shown])


@pytest.mark.parametrize("low", [LOW, -np.inf])
def test_queries_without_keys(low):
    """A product over no keys is 0, and there is no mean of no values."""
    q, k, v = (T.tensor("float64", (BATCH, HEADS, n, FEATURES)) for n in ("m", "n", "n"))
    seen = T.tensor("bool", (BATCH, "n"), name="seen")

    def build(q, k, v, seen):
        return attend(q, k, v, lambda s: T.switch(seen.dimshuffle(0, "x", "x", 1), s, low))

    none = np.zeros((BATCH, HEADS, 0, FEATURES))
    queries = np.ones((BATCH, HEADS, QUERIES, FEATURES))
    check(build, [q, k, v, seen], [queries, none, none, np.zeros((BATCH, 0), bool)])


def test_causal_with_padding_on_the_left_keeps_means():
    rng = new_rng()
    inputs, values = qkv(rng)
    seen = T.tensor("bool", ("batch", "time"), name="seen")
    shown = np.arange(KEYS) >= np.array([[2], [0]])

    def build(q, k, v, seen):
        def mask(s):
            return T.switch(lower(s) & seen.dimshuffle(0, "x", "x", 1), s, LOW)

        return attend(q, k, v, mask)

    check(build, [*inputs, seen], [*values, shown])


@pytest.mark.parametrize("shape", [(1, HEADS, 5, 5), (BATCH, 1, 1, 5), (BATCH, HEADS, 5, 5)])
def test_added_masks_have_gradients(shape):
    rng = new_rng()
    inputs, values = qkv(rng)
    names = tuple(1 if n == 1 else None for n in shape)
    bias = T.tensor("float64", names, name="bias")

    def build(q, k, v, bias):
        return attend(q, k, v, lambda s: (s + bias) * 0.5)

    check(build, [*inputs, bias], [*values, rng.standard_normal(shape)])


@pytest.mark.parametrize("batch", [6, 3, "batch"])
def test_masks_of_windows(batch, monkeypatch):
    """The stack is divided into images and windows; all images have the masks of the windows."""
    monkeypatch.setattr(attention, "_REPEAT_MASKS_ON", ("cpu",))
    rng = new_rng()
    count = 6 if batch == "batch" else batch
    inputs, values = qkv(rng, (batch, HEADS, KEYS, FEATURES), batch=count)
    inputs += [T.tensor("float64", (1, HEADS, KEYS, KEYS)), T.tensor("float64", (3, KEYS, KEYS))]
    values += [rng.standard_normal((1, HEADS, KEYS, KEYS)), rng.standard_normal((3, KEYS, KEYS))]

    def build(q, k, v, bias, windows):
        def masked(s):
            s = s + bias
            images = s.reshape((s.shape[0] // 3, 3, HEADS, KEYS, KEYS))
            return (images + windows.dimshuffle("x", 0, "x", 1, 2)).reshape(s.shape)

        return attend(q, k, v, masked)

    check(build, inputs, values)


def test_a_mask_of_another_order_of_the_stack_stays(monkeypatch):
    """What is added to windows that lie elsewhere afterwards is no mask of them."""
    monkeypatch.setattr(attention, "_REPEAT_MASKS_ON", ("cpu",))
    rng = new_rng()
    inputs, values = qkv(rng, (6, HEADS, KEYS, FEATURES), batch=6)
    inputs += [T.tensor("float64", (3, KEYS, KEYS))]
    values += [rng.standard_normal((3, KEYS, KEYS))]

    def build(q, k, v, windows):
        def masked(s):
            images = s.reshape((2, 3, HEADS, KEYS, KEYS)) + windows.dimshuffle("x", 0, "x", 1, 2)
            return images.dimshuffle(1, 0, 2, 3, 4).reshape(s.shape)

        return attend(q, k, v, masked)

    check(build, inputs, values, recognised=False)


def test_soft_capping():
    inputs, values = qkv(new_rng())

    def build(q, k, v):
        return attend(q, k, v, lambda s: T.switch(lower(s), 3.0 * T.tanh(s / 3.0), LOW))

    f = check(build, inputs, values)
    (how,) = [n.op.how for n in f.stages.fgraph.toposort() if isinstance(n.op, Attention)]
    assert (how.softcap, how.scale) == (3.0, None)


# -- what stays -----------------------------------------------------------------------------------


def test_probabilities_that_are_a_result_stay():
    inputs, _ = qkv(new_rng())
    q, k, v = inputs
    p = T.nnet.softmax(T.matmul(q, turned(k)), axis=-1)
    f = symdnn.function(inputs, [p, T.matmul(p, v)], mode=mode())
    assert Attention not in ops_of(f)


def test_probabilities_in_the_cost_stay():
    inputs, _ = qkv(new_rng())

    def cost(q, k, v):
        p = T.nnet.softmax(T.matmul(q, turned(k)), axis=-1)
        return (T.matmul(p, v) ** 2).sum() + (p**2).sum()

    f = symdnn.function(inputs, symdnn.grad(cost(*inputs), inputs), mode=mode())
    assert AttentionGrad not in ops_of(f)


def test_gradients_of_scores_are_the_users():
    inputs, values = qkv(new_rng())
    q, k, v = inputs
    s = T.matmul(q, turned(k))
    p = T.nnet.softmax(s, axis=-1)
    cost = (T.matmul(p, v) ** 2).sum()
    for wrt in (s, p):
        f = symdnn.function(inputs, symdnn.grad(cost, [q, wrt]), mode=mode())
        with config.change_flags(optimizer_excluding=RULE):
            plain = symdnn.function(inputs, symdnn.grad(cost, [q, wrt]), mode=mode(without=True))
        for got, want in zip(f(*values), plain(*values), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-12)


def test_a_clipped_gradient_of_scores_stays():
    inputs, values = qkv(new_rng())

    def build(q, k, v):
        s = symdnn.gradient.grad_clip(T.matmul(q, turned(k)), -0.01, 0.01)
        return T.matmul(T.nnet.softmax(s, axis=-1), v)

    check(build, inputs, values, recognised=False)


@pytest.mark.parametrize("start", [1, 2])
def test_another_part_of_a_triangle_is_no_causal_mask(start):
    inputs, values = qkv(new_rng())

    def build(q, k, v):
        end = k.shape[2]
        mask = BUFFER[start : end + start, :end]
        return attend(q, k, v, lambda s: T.where(T.eq(mask, 0), LOW, s))

    f = check(build, inputs, values)
    (how,) = [n.op.how for n in f.stages.fgraph.toposort() if isinstance(n.op, Attention)]
    assert (how.left, how.right, how.extras) == (None, None, ("mask",))


def test_scores_times_another_mask_stay():
    inputs, values = qkv(new_rng())

    def build(q, k, v):
        def mask(s):
            return s * T.tril(T.ones_like(s[0, 0]), 1) - 1e10 * (1 - lower(s, "float64"))

        return attend(q, k, v, mask)

    check(build, inputs, values, recognised=False)


@pytest.mark.parametrize("low", [-1e4, -5.0])
def test_scores_that_are_only_lower_are_no_mask(low):
    inputs, values = qkv(new_rng())

    def build(q, k, v):
        return attend(q, k, v, lambda s: T.switch(lower(s), s, low))

    check(build, inputs, values, recognised=False)


def test_a_strict_triangle_keeps_its_first_row():
    inputs, values = qkv(new_rng())

    def build(q, k, v):
        return attend(q, k, v, lambda s: T.switch(T.tril(T.ones_like(s[0, 0]), -1) > 0, s, LOW))

    check(build, inputs, values)


def test_softmax_over_queries_stays():
    inputs, values = qkv(new_rng())

    def build(q, k, v):
        return T.matmul(T.nnet.softmax(T.matmul(q, turned(k)), axis=2), v)

    check(build, inputs, values, recognised=False)


def test_rop_and_second_derivatives_agree():
    inputs, values = qkv(new_rng())
    q, k, v = inputs
    found = []
    for excluded in ("", RULE):
        with config.change_flags(optimizer_excluding=excluded):
            y = attend(q, k, v, lambda s: T.switch(lower(s), s, LOW))
            tangent = symdnn.gradient.Rop(y, q, v)
            second = symdnn.grad((symdnn.grad((y**2).sum(), q) ** 2).sum(), [q, k, v])
            f = symdnn.function(inputs, [tangent, *second], mode=Mode(target="cpu"))
            found.append(f(*values))
    for got, want in zip(*found, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bits(dtype):
    """The default scale is found in any float dtype."""
    q, k, v = (T.tensor(dtype, (2, 3, 5, 4), name=n) for n in "qkv")
    scores = T.matmul(q, turned(k)) * T.constant(np.asarray(0.5, q.type.numpy))
    f = symdnn.function([q, k, v], T.matmul(T.softmax(scores), v), mode=mode())
    ops = [node.op for node in f.stages.fgraph.toposort() if isinstance(node.op, Attention)]
    assert [op.how.scale for op in ops] == [None]
