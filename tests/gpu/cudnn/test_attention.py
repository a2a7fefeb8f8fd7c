"""Attention by cuDNN: graphs as the frontend has them, lowering, and numbers on a device."""

from __future__ import annotations

import json

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import Mode, config, function
from symdnn.gpu.binding import frontend
from symdnn.gpu.cudnn.attention import AttentionGraph
from symdnn.gpu.cudnn.graph import new_graph
from symdnn.gpu.device.array import c_strides
from symdnn.graph.type import numpy_dtype
from symdnn.ops.attention import reference as in_numpy
from symdnn.ops.attention.attention import Attention, scaled_dot_product_attention
from symdnn.ops.attention.scores import Scores
from symdnn.ops.vendor.gpudnn_attention import GpuDnnAttention, GpuDnnAttentionGrad
from tests.gpu.with_cudnn import real_cudnn  # noqa: F401

HOPPER = Mode(target="cuda:sm_90")


@pytest.fixture
def real_frontend(real_cudnn):  # noqa: F811
    problem = frontend.unavailable()
    if problem:
        pytest.skip(problem)


def form(how: Scores, backward: bool) -> AttentionGraph:
    q, kv, row = (2, 4, 96, 64), (2, 2, 128, 64), (2, 4, 96, 1)
    shapes = {"q": q, "k": kv, "v": kv, "o": q, "stats": row}
    if backward:
        shapes |= {"do": q, "dq": q, "dk": kv, "dv": kv}
    shapes |= {e: (2, 1, 1, 1) for e in how.extras}
    found = tuple((role, s, c_strides(s, 1)) for role, s in shapes.items())
    return AttentionGraph(how, "bfloat16", found, backward, False)


@pytest.mark.usefixtures("real_frontend")
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(
    "how",
    [
        Scores(), Scores(scale=0.3), Scores(right=0), Scores(left=7, right=0),
        Scores(right=0, bottom_right=True), Scores(extras=("key_lengths", "query_lengths")),
        Scores(right=0, extras=("key_lengths", "query_lengths")),
    ],
    ids=str,
)  # fmt: skip
def test_graphs_that_the_frontend_takes(how, backward):
    found = json.loads(str(new_graph(form(how, backward), None, (9, 0))))
    tensors = {t["uid"]: t["dim"] for t in found["tensors"]}
    for uid, (_, shape, _) in enumerate(form(how, backward).shapes, 1):
        assert tensors[uid] == list(shape)


def ops_of(dtype="bfloat16", amp="off", shape=(None, 4, None, 64), gradient=True, **settings):
    with config.change_flags(amp=amp):
        vs = [T.TensorType(dtype, shape)() for _ in "qkv"]
        y = scaled_dot_product_attention(*vs, **settings)
        cost = (y.astype("float32") ** 2).sum()
        wanted = T.grad(cost, vs) if gradient else [y]
        f = function(vs, wanted, mode=HOPPER)
    return f, [type(n.op) for n in f.fgraph.toposort()]


@pytest.mark.parametrize(
    "options",
    [
        {}, {"is_causal": True}, {"window": (8, 0), "shape": (2, 4, 32, 64)},
        {"causal": "bottom_right", "shape": (2, 4, 32, 64)}, {"dtype": "float16"},
        {"dtype": "float32", "amp": "bf16"},
        {"key_lengths": np.array([3, 4, 5]), "shape": (3, 4, None, 64)},
    ],
    ids=str,
)  # fmt: skip
def test_lowered(options):
    _, ops = ops_of(**options)
    assert ops.count(GpuDnnAttention) == ops.count(GpuDnnAttentionGrad) == 1
    assert Attention not in ops


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"dtype": "float32"}, "float32"), ({"dropout_p": 0.1}, "state"),
        ({"softcap": 3.0}, "softcap"), ({"shape": (None, 4, None, 60)}, "multiples of 8"),
        ({"shape": (None, 4, None, 512)}, "up to 128, not 512"),
        ({"window": (2, 1)}, "a window ends at the query"),
        ({"causal": "bottom_right"}, "may see no key"),
        ({"attn_mask": np.ones((1, 1, 1, 1), bool)}, "mask"),
    ],
    ids=str,
)  # fmt: skip
def test_written_out_where_cudnn_does_not_have_it(options, why):
    from symdnn.graph.fgraph import FunctionGraph
    from symdnn.libraries.table import not_lowered

    f, ops = ops_of(gradient=False, **options)
    assert Attention not in ops
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
    ],
    ids=str,
)  # fmt: skip
def test_numbers(rng, shapes, options, turned, dtype):
    q, kv = shapes
    kind = numpy_dtype(dtype)
    arrays = [rng.standard_normal(s).astype(kind) for s in (q, kv, kv, q)]
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
