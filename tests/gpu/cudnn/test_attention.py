"""Attention by cuDNN: graphs as the frontend has them, lowering, and numbers on a device."""

from __future__ import annotations

import json

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import Mode, config, function
from symdnn.gpu.cudnn.attention import AttentionGraph, _other_direction
from symdnn.gpu.cudnn.attention import _form as attention_form
from symdnn.gpu.cudnn.graph import new_graph
from symdnn.graph.kernel import Call
from symdnn.graph.origin import Hints
from symdnn.graph.target import Target
from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.ops.attention import reference as in_numpy
from symdnn.ops.attention.attention import Attention, scaled_dot_product_attention
from symdnn.ops.attention.scores import EXTRAS as EXTRA_OPERANDS
from symdnn.ops.attention.scores import Scores
from symdnn.ops.nn.dropout import Dropout
from symdnn.ops.vendor.gpudnn_attention import GpuDnnAttention, GpuDnnAttentionGrad
from tests.gpu.with_cudnn import real_cudnn, real_frontend  # noqa: F401

HOPPER = Mode(target="cuda:sm_90")
LATER = Mode(target=Target("cuda", compute_capability=(9, 0), cudnn=(9, 19)))

EXTRAS = tuple(EXTRA_OPERANDS)

#: A mask that hides some keys of the first sequence.
SEEN = np.arange(32).reshape(1, 1, 1, 32) % 3 > 0


def form(how: Scores, backward: bool, mask=(1, 1, 96, 128), of_mask=False) -> AttentionGraph:
    q, kv = TensorType("bfloat16", (2, 4, 96, 64)), TensorType("bfloat16", (2, 2, 128, 64))
    row = TensorType("float32", (2, 4, 96))
    every = {
        "mask": TensorType("bfloat16", mask), "key_lengths": TensorType("int32", (2,)),
        "query_lengths": TensorType("int32", (2,)), "state": TensorType("uint64", (2,)),
        "rate": TensorType("float32", ()),
    }  # fmt: skip
    extras = [every[e] for e in how.extras]
    rate = 0.1 if "state" in how.extras else 0.0
    if not backward:
        call = Call(GpuDnnAttention(how, rate), (q, kv, kv, *extras), (q, row), Hints())
    else:
        grads = (q, kv, kv, *([every["mask"]] if of_mask else []))
        op = GpuDnnAttentionGrad(how, of_mask, rate)
        call = Call(op, (q, kv, kv, q, row, q, *extras), grads, Hints())
    return attention_form(call)


@pytest.mark.usefixtures("real_frontend")
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(
    "how",
    [
        Scores(), Scores(scale=0.3), Scores(right=0), Scores(left=7, right=0),
        Scores(right=0, bottom_right=True), Scores(extras=("key_lengths", "query_lengths")),
        Scores(right=0, extras=("key_lengths", "query_lengths")), Scores(left=7, right=2),
        Scores(left=7, right=3, bottom_right=True), Scores(extras=("mask",)),
        Scores(extras=("state", "rate")), Scores(left=3, right=0, extras=("mask", "state", "rate")),
        Scores(right=0, extras=EXTRAS),
    ],
    ids=str,
)  # fmt: skip
def test_graphs_that_the_frontend_takes(how, backward):
    found = json.loads(str(new_graph(form(how, backward), None, (9, 0))))
    tensors = {t["uid"]: t["dim"] for t in found["tensors"]}
    for uid, (_, shape, _) in enumerate(form(how, backward).shapes, 1):
        assert tensors[uid] == list(shape)


@pytest.mark.usefixtures("real_frontend")
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("queries", [1, 96])
@pytest.mark.parametrize("of_mask", [False, True])
def test_masks_that_the_frontend_takes(batch, heads, queries, of_mask):
    how, mask = Scores(extras=("mask",)), (batch, heads, queries, 128)
    for backward in (False, True):
        one = form(how, backward, mask, of_mask and queries > 1 and backward)
        assert new_graph(one, None, (9, 0))
        shapes = {role: (shape, strides) for role, shape, strides in one.shapes}
        shape, strides = shapes["mask"]
        assert shape == (batch, heads, 96, 128)
        assert strides[2:] == (0 if queries == 1 else 128, 1)


@pytest.mark.usefixtures("real_frontend")
def test_the_other_direction_of_a_graph():
    how = Scores(right=0, extras=EXTRAS)
    for backward in (False, True):
        other = _other_direction(form(how, backward))
        assert {s[0]: s for s in other.shapes} == {s[0]: s for s in form(how, not backward).shapes}
        assert other.backward != backward
        assert new_graph(other, None, (9, 0))


def ops_of(
    dtype="bfloat16", amp="off", shape=(None, 4, None, 64), gradient=True, mode=HOPPER, **settings
):
    with config.change_flags(amp=amp):
        vs = [T.TensorType(dtype, shape)() for _ in "qkv"]
        y = scaled_dot_product_attention(*vs, **settings)
        cost = (y.astype("float32") ** 2).sum()
        wanted = T.grad(cost, vs) if gradient else [y]
        f = function(vs, wanted, mode=mode)
    return f, [type(n.op) for n in f.fgraph.toposort()]


@pytest.mark.parametrize(
    "options",
    [
        {}, {"is_causal": True}, {"window": (8, 0), "shape": (2, 4, 32, 64)},
        {"causal": "bottom_right", "shape": (2, 4, 32, 64)}, {"dtype": "float16"},
        {"dtype": "float32", "amp": "bf16"},
        {"key_lengths": np.array([3, 4, 5]), "shape": (3, 4, None, 64)},
        {"dropout_p": 0.1}, {"dropout_p": 0.1, "is_causal": True}, {"attn_mask": SEEN},
        {"attn_mask": SEEN, "dropout_p": 0.2, "key_lengths": np.array([3, 4])},
        {"attn_mask": SEEN.astype("float32"), "dtype": "float32", "amp": "bf16"},
        {"attn_mask": SEEN.astype(numpy_dtype("bfloat16"))},
        {"window": (8, 8), "shape": (2, 4, 32, 64), "mode": LATER},
        {"window": (8, 0), "shape": (2, 4, 32, 64), "attn_mask": SEEN, "mode": LATER},
        {"shape": (None, 4, None, 256), "mode": LATER},
    ],
    ids=lambda o: ",".join(o),
)  # fmt: skip
def test_lowered(options):
    _, ops = ops_of(**options)
    assert ops.count(GpuDnnAttention) == ops.count(GpuDnnAttentionGrad) == 1
    assert not {Attention, Dropout} & set(ops)


@pytest.mark.parametrize(
    ("shape", "taken"),
    [((2, 32, 256), True), ((None, None, 256), True), ((None, 32, 256), True), ((2, 32, 20), False),
     ((None, None, None), False)], ids=str,
)  # fmt: skip
@pytest.mark.parametrize("sizes", [lambda x: x.shape[:2], lambda x: (x.shape[0], x.shape[1])])
def test_features_of_a_head_that_reshape_finds(shape, taken, sizes):
    """``x.reshape((*x.shape[:2], heads, -1))``: known, as the sizes of both sides cancel."""
    x = T.TensorType("bfloat16", shape)()
    q, k, v = (y.reshape((*sizes(y), 4, -1)).dimshuffle(0, 2, 1, 3) for y in (T.tanh(x), x * 2, -x))
    y = scaled_dot_product_attention(q, k, v)
    f = function([x], T.grad((y.astype("float32") ** 2).sum(), x), mode=HOPPER)
    ops = [type(n.op) for n in f.fgraph.toposort()]
    assert ops.count(GpuDnnAttention) == ops.count(GpuDnnAttentionGrad) == taken


@pytest.mark.parametrize("causal", ["bottom_right", "top_left"])
@pytest.mark.parametrize("extra", [{}, {"dropout_p": 0.1}, {"window": (4, 0)}])
def test_ends_of_sequences_of_one_length_are_their_starts(causal, extra):
    x = T.TensorType("bfloat16", (None, 4, None, 64))()
    y = scaled_dot_product_attention(x, x * 2, -x, causal=causal, **extra)
    f = function([x], T.grad((y.astype("float32") ** 2).sum(), x), mode=LATER)
    found = [n.op for n in f.fgraph.toposort() if isinstance(n.op, GpuDnnAttention)]
    assert [op.how.bottom_right for op in found] == [False]


def test_the_last_of_all_queries_sees_all_keys():
    q, k = (T.TensorType("bfloat16", (2, 4, n, 64))() for n in (1, None))
    f = function([q, k], scaled_dot_product_attention(q, k, k, causal="bottom_right"), mode=LATER)
    (op,) = [n.op for n in f.fgraph.toposort() if isinstance(n.op, GpuDnnAttention)]
    assert op.how == Scores()


def test_a_masks_gradient_is_cudnns_too():
    q, k, bias = (
        T.TensorType("bfloat16", s)()
        for s in ((2, 4, None, 64), (2, 4, None, 64), (1, 4, None, None))
    )
    y = scaled_dot_product_attention(q, k, k, bias)
    grads = T.grad((y.astype("float32") ** 2).sum(), [q, k, bias])
    f = function([q, k, bias], grads, mode=LATER)
    (op,) = [n.op for n in f.fgraph.toposort() if isinstance(n.op, GpuDnnAttentionGrad)]
    assert op.of_mask


@pytest.mark.parametrize("what", ["second", "lse", "hint", "rate"])
def test_dropout_is_cudnns_for_all_or_for_none(what):
    """Its numbers are not ours, so a gradient that we compute would be that of another mask."""
    vs = [T.TensorType("bfloat16", (2, 4, 32, 64))() for _ in "qkv"]
    rate = T.scalar("rate", dtype="float32") if what == "rate" else 0.2
    hints = Hints(backend="nn") if what == "hint" else None
    y, lse = scaled_dot_product_attention(*vs, dropout_p=rate, return_lse=True, hints=hints)
    cost = (y.astype("float32") ** 2).sum() + (lse.sum() if what == "lse" else 0)
    found = T.grad(cost, vs)
    if what == "second":
        found += T.grad(sum((g.astype("float32") ** 2).sum() for g in found), vs)
    f = function([*vs, *([rate] if what == "rate" else [])], [y, *found], mode=LATER)
    ops = {type(n.op) for n in f.fgraph.toposort()}
    assert not {GpuDnnAttention, GpuDnnAttentionGrad} & ops


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"dtype": "float32"}, "float32"), ({"dropout_p": 1.0}, "below 1"),
        ({"softcap": 3.0}, "softcap"), ({"shape": (None, 4, None, 60)}, "multiples of 8"),
        ({"shape": (None, 4, None, 512)}, "up to 128, not 512"),
        ({"window": (2, 1)}, "a window ends at the query"),
        ({"causal": "bottom_right"}, "may see no key"),
        ({"attn_mask": np.ones((1, 1, 1, 1), bool)}, "mask"),
        ({"attn_mask": SEEN.astype("float32")}, "would be rounded to bfloat16"),
        ({"attn_mask": SEEN, "window": (2, 0), "shape": (2, 4, 32, 64)}, "beside a window"),
    ],
    ids=str,
)  # fmt: skip
def test_others_where_cudnn_does_not_have_it(options, why):
    """Our own kernel has float32; the rest is written out."""
    from symdnn.graph.fgraph import FunctionGraph
    from symdnn.libraries.table import not_lowered

    f, ops = ops_of(gradient=False, **options)
    assert (Attention in ops) == (options.get("dtype") == "float32")
    assert GpuDnnAttention not in ops
    vs = [
        T.TensorType(options.get("dtype", "bfloat16"), options.get("shape", (None, 4, None, 64)))()
        for _ in "qkv"
    ]
    given = {k: v for k, v in options.items() if k not in ("dtype", "shape")}
    y = scaled_dot_product_attention(*vs, **given)
    assert any(why in r for r in not_lowered(FunctionGraph(vs, [y]), f.stages.target).values())


# --- on a device ----------------------------------------------------------------------------------

#: Largest error beside the largest value: roundings of operands, probabilities and results.
TOLERANCE = {"bfloat16": 2e-2, "float16": 3e-3}


def close(found, wanted, dtype, what):
    found = np.asarray(found).astype("f8")
    assert np.isfinite(found[np.isfinite(wanted)]).all(), what
    same = np.where(np.isfinite(wanted), found - np.where(np.isfinite(wanted), wanted, 0), 0)
    assert np.abs(same).max() <= TOLERANCE[dtype] * max(
        1, np.abs(wanted[np.isfinite(wanted)]).max()
    ), what
    np.testing.assert_array_equal(np.isneginf(found), np.isneginf(wanted))


def hiding(*shape):
    """A bool mask in which the third query, or the second sequence, sees nothing."""
    seen = np.random.default_rng(5).random(shape) < 0.7
    if shape[2] > 2:
        seen[:, :, 2] = False
    else:
        seen[1] = False
    return seen


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("turned", [False, True], ids=["", "time_first"])
@pytest.mark.parametrize(
    ("shapes", "options"),
    [
        (((2, 4, 96, 64), (2, 4, 96, 64)), {}),
        (((2, 4, 100, 64), (2, 4, 77, 64)), {"is_causal": True}),
        (((1, 6, 33, 128), (1, 2, 70, 128)), {"enable_gqa": True, "scale": 0.2}),
        (((2, 2, 60, 32), (2, 2, 90, 32)), {"causal": "bottom_right"}),
        (((2, 2, 128, 64), (2, 2, 128, 64)), {"window": (10, 0)}),
        (
            ((3, 2, 50, 64), (3, 2, 64, 64)),
            {"key_lengths": np.array([64, 3, 0]), "query_lengths": np.array([50, 7, 20])},
        ),
        (((2, 2, 40, 64), (2, 2, 64, 64)), {"key_lengths": np.array([64, 9])}),
        (((2, 2, 1, 64), (2, 2, 300, 64)), {"causal": "bottom_right"}),
        (((2, 2, 96, 64), (2, 2, 96, 64)), {"window": (10, 5)}),
        (((2, 2, 60, 64), (2, 2, 90, 64)), {"causal": "bottom_right", "window": (9, 0)}),
        (((1, 2, 70, 256), (1, 2, 70, 256)), {"is_causal": True}),
        (((2, 3, 40, 40), (2, 3, 50, 72)), {}),
        (((2, 4, 96, 64), (2, 2, 80, 64)), {"attn_mask": hiding(2, 1, 1, 80), "enable_gqa": True}),
        (((2, 4, 65, 64), (2, 4, 77, 64)), {"attn_mask": hiding(1, 4, 65, 77)}),
        (
            ((2, 4, 96, 64), (2, 4, 96, 64)),
            {"attn_mask": hiding(2, 1, 96, 96), "causal": "top_left"},
        ),
        (
            ((2, 4, 64, 64), (2, 4, 80, 64)),
            {"attn_mask": hiding(2, 1, 64, 80), "key_lengths": np.array([80, 31])},
        ),
    ],
    ids=str,
)  # fmt: skip
def test_numbers(rng, shapes, options, turned, dtype):
    q, kv = shapes
    kind = numpy_dtype(dtype)
    out = (*q[:3], kv[3])
    kv = (*kv[:3], q[3]), kv
    arrays = [rng.standard_normal(s).astype(kind) for s in (q, *kv, out)]
    order = (0, 2, 1, 3) if turned else (0, 1, 2, 3)
    given = [np.ascontiguousarray(a.transpose(order)) for a in arrays]
    vs = [T.TensorType(dtype, a.shape)() for a in given]
    heads = [v.dimshuffle(*order) for v in vs]
    y, lse = scaled_dot_product_attention(*heads[:3], return_lse=True, **options)
    grads = T.grad(None, vs[:3], known_grads={y: heads[3]})
    f = function(vs, [y, lse, *grads])
    results = [f(*given) for _ in range(3)][-1]  # the third call is that of a captured plan
    kernels = f.lowering_report().kernels()
    assert "cudnn.on_host" not in kernels
    assert any(k.startswith("cudnn.attention") for k in kernels)
    op = y.owner.op if isinstance(y.owner.op, Attention) else lse.owner.op
    extras = [x.data for x in lse.owner.inputs[3:]]
    wide = [a.astype("f8") for a in arrays]
    out, wanted_lse = in_numpy.attention(op.how, *wide[:3], *extras)
    wanted = in_numpy.attention_grad(op.how, *wide[:3], out, wanted_lse, wide[3], 0, *extras)
    close(results[0], out, dtype, "result")
    close(results[1], wanted_lse, dtype, "log-sum-exp")
    for name, g, w in zip("qkv", results[2:], wanted):
        close(np.asarray(g).transpose(order), w, dtype, f"gradient of {name}")


@pytest.mark.gpu
def test_deterministic_gradients_are_equal_bit_for_bit(rng):
    with config.change_flags(deterministic="more"):
        vs = [T.TensorType("bfloat16", (2, 4, None, 64))() for _ in "qkv"]
        y = scaled_dot_product_attention(*vs, is_causal=True)
        f = function(vs, T.grad((y.astype("float32") ** 2).sum(), vs))
        arrays = [rng.standard_normal((2, 4, 512, 64)).astype(numpy_dtype("bfloat16")) for _ in vs]
        first = [g.tobytes() for g in f(*arrays)]
        for _ in range(5):
            assert [g.tobytes() for g in f(*arrays)] == first


def test_the_package_is_public():
    assert symdnn.tensor.nnet.scaled_dot_product_attention is scaled_dot_product_attention
