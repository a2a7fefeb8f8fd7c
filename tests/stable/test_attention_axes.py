"""Attention whose scores have other axes than (batch, heads, queries, keys)."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.ops.attention.attention import Attention, AttentionGrad
from symdnn.stable import attention
from tests.seeded import new_rng, sampled
from tests.stable.test_attention import check, mode
from tests.stable.test_attention_operands import dropped, results_of

#: Letters of axes: b batch, w windows, g groups, r heads of a group, h heads, q, k, d, e features.
SIZES = dict(b=2, w=3, g=2, r=3, h=4, q=5, k=6, d=8, e=7)


def by_einsum(scores, q, k, v, out, softmax_over="k"):
    """Attention by the letters of its operands, scores and result."""

    def build(query, key, value, masked=lambda s: s):
        s = masked(T.einsum(f"{q},{k}->{scores}", query * 0.4, key))
        p = T.nnet.softmax(s, axis=scores.index(softmax_over))
        return T.einsum(f"{scores},{v}->{out}", p, value)

    return build, (q, k, v)


def last_two(x):
    return x.swapaxes(-1, -2)


def softmax(s, axis=-1):
    return T.nnet.softmax(s, axis=axis)


SPELLINGS = {
    "windows": by_einsum("bwhqk", "bwhqd", "bwhkd", "bwhke", "bwhqe"),
    "windows, heads behind time": by_einsum("bwhqk", "bwqhd", "bwkhd", "bwkhe", "bwqhe"),
    "groups": by_einsum("bgrqk", "bgrqd", "bgkd", "bgke", "bgrqe"),
    "groups, heads behind time": by_einsum("bgrqk", "bqgrd", "bkgd", "bkge", "bqgre"),
    "one head of keys": by_einsum("bhqk", "bhqd", "bkd", "bke", "bhqe"),
    "one head, heads behind time": by_einsum("bhqk", "bqhd", "bkd", "bke", "bqhe"),
    "keys first": by_einsum("bhkq", "bhqd", "bhkd", "bhke", "bhqe"),
    "keys first, batch alone": by_einsum("bkq", "bqd", "bkd", "bke", "bqe"),
    "heads last": by_einsum("bqkh", "bqhd", "bkhd", "bkhe", "bqhe"),
    "groups last": by_einsum("bqkgr", "bqgrd", "bkgd", "bkge", "bgrqe"),
    "heads before the batch": by_einsum("hbqk", "bhqd", "bhkd", "hbke", "bhqe"),
    "products turned": (
        lambda q, k, v: last_two(last_two(v) @ softmax(k @ last_two(q), -2)),
        ("bhqd", "bhkd", "bhke"),
    ),
    "scores turned": (
        lambda q, k, v: softmax(last_two(k @ last_two(q)) * 0.3) @ v, ("bhqd", "bhkd", "bhke")
    ),
    "weights turned": (
        lambda q, k, v: last_two(v) @ last_two(softmax(q @ last_two(k))), ("bhqd", "bhkd", "bhke")
    ),
    "a broadcast group": (
        lambda q, k, v: softmax(q @ last_two(k[:, :, None])) @ v[:, :, None],
        ("bgrqd", "bgkd", "bgke"),
    ),
}  # fmt: skip


def inputs_of(letters, open_sizes, rng):
    shapes = [tuple(SIZES[a] for a in word) for word in letters]
    names = [tuple(a if a in "bqk" else SIZES[a] for a in word) for word in letters]
    xs = [T.tensor("float64", n if open_sizes else s) for n, s in zip(names, shapes, strict=True)]
    return xs, [rng.standard_normal(s) for s in shapes]


@pytest.mark.parametrize("open_sizes", [False, True], ids=["closed", "open"])
@pytest.mark.parametrize("name", sampled(list(SPELLINGS), every=2))
def test_spellings(name, open_sizes):
    build, letters = SPELLINGS[name]
    check(build, *inputs_of(letters, open_sizes, new_rng()))


def test_heads_that_share_keys_are_not_copied():
    rng = new_rng()
    for name in ("groups", "one head of keys", "a broadcast group"):
        build, letters = SPELLINGS[name]
        f = check(build, *inputs_of(letters, False, rng))
        (node,) = [n for n in f.stages.fgraph.toposort() if isinstance(n.op, Attention)]
        heads, groups = (x.type.shape[1] for x in node.inputs[:2])
        assert heads > groups, name


@pytest.mark.parametrize("name", ["groups", "groups, heads behind time", "groups last"])
def test_time_is_the_longest_axis(name):
    """Not the heads that share keys, in whatever order they are."""
    build, letters = SPELLINGS[name]
    f = check(build, *inputs_of(letters, False, new_rng()))
    (node,) = [n for n in f.stages.fgraph.toposort() if isinstance(n.op, Attention)]
    assert node.inputs[0].type.shape[2] == SIZES["q"]


@pytest.mark.parametrize("low", [-np.inf, -1e9, None])
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("windows", (1, 1, 1, 5, 6)), ("windows", (2, 3, 1, 5, 6)), ("windows", (2, 3, 4, 1, 6)),
        ("windows", (1, 3, 1, 5, 6)), ("groups", (2, 1, 1, 5, 6)), ("groups", (1, 2, 3, 5, 6)),
        ("one head of keys", (1, 4, 5, 6)), ("keys first", (2, 1, 6, 5)),
        ("heads last", (1, 5, 6, 4)),
    ],
)  # fmt: skip
def test_masks(name, shape, low, monkeypatch):
    """Bool masks, and ones that are added (None)."""
    monkeypatch.setattr(attention, "_REPEAT_MASKS_ON", ("cpu",))
    rng = new_rng()
    build, letters = SPELLINGS[name]
    inputs, values = inputs_of(letters, False, rng)
    inputs.append(T.tensor("float64" if low is None else "bool", shape))
    values.append(rng.standard_normal(shape) if low is None else rng.random(shape) < 0.8)

    def masked(*xs):
        *operands, mask = xs
        how = (lambda s: s + mask) if low is None else (lambda s: T.switch(mask, s, low))
        return build(*operands, how)

    check(masked, inputs, values)


def test_a_causal_mask_of_windows_is_a_band():
    build, letters = SPELLINGS["windows"]
    inputs, values = inputs_of(letters, False, new_rng())

    def causal(*xs):
        return build(*xs, lambda s: T.switch(T.tril(T.ones((5, 6), "bool")), s, -np.inf))

    f = check(causal, inputs, values)
    (node,) = [n for n in f.stages.fgraph.toposort() if isinstance(n.op, Attention)]
    assert node.op.how.right == 0
    assert not node.op.how.extras


def test_masks_that_would_be_repeated_stay_on_a_cpu():
    build, letters = SPELLINGS["windows"]
    inputs, values = inputs_of(letters, False, new_rng())
    mask = T.tensor("bool", (1, 3, 1, 5, 6))
    values.append(np.random.default_rng(3).random((1, 3, 1, 5, 6)) < 0.8)

    def masked(*xs):
        return build(*xs[:3], lambda s: T.switch(xs[3], s, -1e9))

    check(masked, [*inputs, mask], values, recognised=False)


@pytest.mark.parametrize("over", ["q", "h"])
def test_a_softmax_over_another_axis_stays(over):
    build, letters = by_einsum("bhqk", "bhqd", "bhkd", "bhke", "bhqe", softmax_over=over)
    check(build, *inputs_of(letters, False, new_rng()), recognised=False)


def test_values_of_other_heads_stay():
    """The second product sums over heads, too, or has an axis that the first one sums over."""
    for scores, out in (("bhqk", "bqe"), ("bhqk", "bhe")):
        build, letters = by_einsum(scores, "bhqd", "bhkd", "bhke", out)
        check(build, *inputs_of(letters, False, new_rng()), recognised=False)


@pytest.mark.parametrize(
    ("name", "kept"), [("windows", True), ("groups", True), ("keys first", False)]
)
def test_dropout_draws_in_the_order_of_elements(name, kept):
    rng = new_rng()
    letters = SPELLINGS[name][1]
    scores, out = {
        "windows": ("bwhqk", "bwhqe"),
        "groups": ("bgrqk", "bgrqe"),
        "keys first": ("bhkq", "bhqe"),
    }[name]
    inputs, values = inputs_of(letters, False, rng)

    def build(q, k, v):
        s = T.einsum(f"{letters[0]},{letters[1]}->{scores}", q, k)
        p = dropped(softmax(s, scores.index("k")), 0.4)
        return T.einsum(f"{scores},{letters[2]}->{out}", p, v)

    found, ops = results_of(build, inputs, values)
    wanted, _ = results_of(build, inputs, values, without=True)
    assert ops.count(Attention) == ops.count(AttentionGrad) == kept
    for got, want in zip(found, wanted, strict=True):
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("how", ["product", "product before", "quotient"])
@pytest.mark.parametrize(
    ("name", "shape"),
    [("heads", (4, 1, 1)), ("heads", (2, 4, 1, 1)), ("windows", (4, 1, 1)), ("heads last", (4,))],
)
def test_a_scale_of_each_head(name, shape, how):
    rng = new_rng()
    build, letters = by_einsum("bhqk", "bhqd", "bhkd", "bhke", "bhqe")
    build, letters = (build, letters) if name == "heads" else SPELLINGS[name]
    inputs, values = inputs_of(letters, False, rng)
    inputs.append(T.tensor("float64", shape))
    values.append(rng.random(shape) + 0.5)

    def scaled(*xs):
        *operands, scale = xs
        hows = {
            "product": lambda s: s * scale, "product before": lambda s: scale * s + 1,
            "quotient": lambda s: s / scale,
        }  # fmt: skip
        return build(*operands, hows[how])

    check(scaled, inputs, values, recognised=name != "heads last")


def test_attention_is_recognised_while_a_function_is_traced():
    """Heads of a reshape with an open batch and a bias of each head, in a gradient by ``jit``."""
    rng = new_rng()
    bias = rng.standard_normal((3, 5, 5))

    def loss(w, x):
        parts = T.split(T.dot(x, w), [12, 12, 12], 3, axis=2)
        q, k, v = (p.reshape((-1, 5, 3, 4)).dimshuffle(0, 2, 1, 3) for p in parts)
        y = softmax(q @ last_two(k) / 2 + bias) @ v
        return (y**2).sum()

    both = symdnn.jit(symdnn.value_and_grad(loss))
    w, x = rng.standard_normal((8, 36)) / 3, rng.standard_normal((2, 5, 8))
    value, slope = both(w, x)  # a warning of a rewrite that failed is an error
    near = [loss_of(loss, w + e, x) for e in (1e-6 * slope, -1e-6 * slope)]
    np.testing.assert_allclose(value, loss_of(loss, w, x), rtol=1e-12)
    np.testing.assert_allclose((near[0] - near[1]) / 2e-6, (slope**2).sum(), rtol=1e-5)


def loss_of(loss, w, x):
    """The value without the rule."""
    return symdnn.function([], loss(T.constant(w), T.constant(x)), mode=mode(without=True))()
