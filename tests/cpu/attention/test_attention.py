"""Attention in tiles and its gradient against the references, option by option."""

import ml_dtypes
import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.cpu.attention.attention import AttentionKernel
from symdnn.cpu.compiler import jit
from symdnn.graph.type import TensorType
from symdnn.ops.attention.attention import Attention, AttentionGrad
from symdnn.ops.attention.scores import Scores
from tests.cpu.harness import call_of, compiled, launched
from tests.seeded import new_rng

pytestmark = [*compiled, pytest.mark.skipif(jit.vector_width() < 8, reason="no AVX")]

BF16 = ml_dtypes.bfloat16
STATE, RATE = np.array([17, 5], np.uint64), np.asarray(np.float32(0.3))


def mask(*shape, dtype=bool):
    """Draws a mask; if bool, query 7 sees nothing."""

    def draw(rng):
        if dtype is not bool:
            found = rng.normal(size=shape).astype(dtype)
            found[..., 3] = -np.inf
            return found
        found = rng.random(shape) > 0.4
        found[:, :, 7 % shape[2]] &= shape[2] == 1
        return found

    return draw


#: name -> settings, sizes (batch, heads, groups, queries, keys, features, of values), extras
CASES = {
    "plain": (Scores(), (2, 4, 4, 128, 128, 64, 64), ()),
    "odd": (Scores(), (1, 3, 1, 100, 233, 20, 37), ()),
    "tiny": (Scores(scale=0.3), (2, 2, 2, 5, 6, 3, 2), ()),
    "one_query": (Scores(), (2, 4, 2, 1, 300, 64, 64), ()),
    "one_key": (Scores(), (1, 2, 2, 120, 1, 8, 8), ()),
    "wide": (Scores(right=0), (1, 1, 1, 100, 100, 300, 200), ()),
    "causal": (Scores(right=0), (2, 4, 2, 150, 150, 16, 16), ()),
    "causal_few_keys": (Scores(right=0), (1, 2, 2, 250, 150, 16, 16), ()),
    "bottom_right": (Scores(right=0, bottom_right=True), (1, 2, 2, 110, 250, 16, 17), ()),
    "bottom_right_few_keys": (Scores(right=0, bottom_right=True), (1, 2, 2, 250, 110, 16, 16), ()),
    "window": (Scores(left=30, right=2), (1, 2, 2, 250, 150, 16, 16), ()),
    "left_window": (Scores(left=40), (1, 2, 2, 150, 250, 16, 16), ()),
    "narrow_window": (
        Scores(left=3, right=0, bottom_right=True), (1, 2, 1, 250, 251, 16, 16), ()
    ),
    "softcap": (Scores(softcap=1.5, right=0), (1, 2, 2, 110, 150, 16, 16), ()),
    "lengths": (
        Scores(right=0, bottom_right=True, extras=("key_lengths", "query_lengths")),
        (4, 2, 1, 110, 150, 16, 16),
        (np.array([120, 0, 900, 33]), np.array([33, 70, 110, 0], "int32")),
    ),
    "key_lengths": (
        Scores(extras=("key_lengths",)), (3, 2, 2, 60, 150, 16, 16),
        (np.array([120, 0, 150], "int32"),),
    ),
    "mask": (Scores(extras=("mask",)), (2, 4, 2, 110, 150, 16, 16), (mask(1, 1, 110, 150),)),
    "key_mask": (Scores(extras=("mask",)), (2, 4, 2, 110, 150, 16, 16), (mask(2, 1, 1, 150),)),
    "mask_of_all": (
        Scores(softcap=2.0, right=0, extras=("mask",)), (2, 2, 2, 110, 150, 16, 16),
        (mask(2, 2, 110, 150),),
    ),
    "added_mask": (
        Scores(extras=("mask",)), (2, 4, 2, 110, 150, 16, 16), (mask(1, 4, 110, 150, dtype="f4"),)
    ),
    "narrow_mask": (
        Scores(extras=("mask",)), (1, 4, 2, 110, 150, 16, 16), (mask(4, 110, 150, dtype=BF16),)
    ),
    "dropout": (Scores(extras=("state", "rate")), (2, 2, 1, 110, 151, 16, 16), (STATE, RATE)),
    "dropout_at_the_end": (
        Scores(right=0, extras=("key_lengths", "state", "rate")), (2, 2, 1, 110, 150, 16, 16),
        (np.array([77, 150]), np.array([3, 2**64 - 9], np.uint64), RATE),
    ),
    "dropout_of_all": (
        Scores(extras=("state", "rate")), (1, 2, 1, 60, 50, 16, 16),
        (STATE, np.asarray(np.float32(1))),
    ),
}  # fmt: skip


def operands(name, dtype="float32"):
    """The settings of a case, its operands, a cotangent."""
    how, (b, h, g, t, s, d, e), extras = CASES[name]
    rng = new_rng()
    shapes = (b, h, t, d), (b, g, s, d), (b, g, s, e), (b, h, t, e)
    *qkv, dout = (rng.normal(size=x).astype("float32").astype(dtype) for x in shapes)
    drawn = [x(rng) if callable(x) else x for x in extras]
    return how, [*qkv, *(x if x.ndim != 3 else x[None] for x in drawn)], dout


def result_types(op, arrays):
    types = [TensorType(a.dtype.name, a.shape) for a in arrays]
    shapes = op.shapes(types, [a.shape for a in arrays], None)
    return [TensorType(t.dtype, tuple(s)) for t, s in zip(op.infer(*types), shapes)]


def ran(op, arrays):
    call = call_of(op, arrays, *result_types(op, arrays))
    call = type(call)(call.op, call.inputs, tuple(call.outputs), call.hints)
    return launched(AttentionKernel(), call, arrays)


def grad_operands(how, arrays, dout, of_lse=False):
    out, lse, *_ = Attention(how).reference(*arrays)
    of = [new_rng().normal(size=lse.shape).astype("float32")] if of_lse else []
    return AttentionGrad(how, of_lse, of_mask=False), [
        *arrays[:3],
        out,
        lse,
        dout,
        *of,
        *arrays[3:],
    ]


def close(found, wanted, rtol):
    """Beside the largest number of the whole array."""
    wanted = wanted.astype("float64")
    assert found.shape == wanted.shape
    fine = np.isfinite(wanted)
    size = max(np.abs(wanted, where=fine, out=np.zeros_like(wanted)).max(initial=0), 1e-3)
    np.testing.assert_allclose(found.astype("float64"), wanted, rtol=rtol, atol=rtol * size)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("dtype", "rtol"), [("float32", 5e-6), (BF16, 1e-2)])
def test_result_and_log_sum_exp(name, dtype, rtol):
    how, arrays, _ = operands(name, dtype)
    (out, lse, *states), (want, want_lse, *after) = ran(Attention(how), arrays), (
        Attention(how).reference(*arrays)
    )  # fmt: skip
    close(out, want, rtol)
    close(lse, want_lse, 5e-6)
    np.testing.assert_array_equal(np.isneginf(lse), np.isneginf(want_lse))
    assert not out[np.isneginf(lse)].any()
    for new, old in zip(states, after, strict=True):
        np.testing.assert_array_equal(new, old)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("dtype", "rtol"), [("float32", 1e-5), (BF16, 1e-2)])
def test_gradients(name, dtype, rtol):
    op, arrays = grad_operands(*operands(name, dtype), of_lse=name in ("plain", "softcap"))
    # One key: the gradient of the scores is the rounding of numbers that cancel.
    least = 1e-5 if name == "one_key" else 0
    for found, wanted in zip(ran(op, arrays), op.reference(*arrays), strict=True):
        if np.abs(wanted.astype("float64")).max(initial=0) > least:
            close(found, wanted, rtol)
        else:
            assert np.abs(found.astype("float64")).max(initial=0) < 1e-5


@pytest.mark.parametrize("name", ["odd", "causal", "mask", "dropout", "narrow_window"])
def test_the_tiles_of_other_processors(monkeypatch, name):
    other = 16 if jit.vector_width() == 8 else 8
    monkeypatch.setattr(jit, "vector_width", lambda: other)
    how, arrays, dout = operands(name)
    close(ran(Attention(how), arrays)[0], Attention(how).reference(*arrays)[0], 5e-6)
    op, arrays = grad_operands(how, arrays, dout)
    for found, wanted in zip(ran(op, arrays), op.reference(*arrays), strict=True):
        close(found, wanted, 1e-5)


@pytest.mark.parametrize("name", ["odd", "causal", "lengths", "dropout"])
def test_threads_change_no_bit(name):
    how, arrays, dout = operands(name)
    found = []
    for count in (1, 2, 5):
        with config.change_flags(**{"openmp.threads": count}):
            op, given = grad_operands(how, arrays, dout)
            found.append([*ran(Attention(how), arrays), *ran(op, given)])
    for again in found[1:]:
        for a, b in zip(found[0], again, strict=True):
            np.testing.assert_array_equal(a, b)


def test_strided_operands_are_read_where_they_are():
    how = Scores(right=0)
    rng = new_rng()
    qkv = rng.normal(size=(2, 130, 3, 4, 16)).astype(
        "float32"
    )  # batch, time, which, heads, features
    arrays = [qkv[:, :, i].transpose(0, 2, 1, 3) for i in range(3)]
    op = Attention(how)
    outs = [np.empty(t.shape, t.numpy) for t in result_types(op, arrays)]
    launch = AttentionKernel().bind(call_of(op, arrays, *result_types(op, arrays)))
    assert launch.native(arrays, outs) is not None
    features_apart = [np.asfortranarray(a) for a in arrays]
    assert launch.native(features_apart, outs) is None
    for given in (arrays, features_apart):
        for found, wanted in zip(ran(op, given), op.reference(*arrays), strict=True):
            close(found, wanted, 5e-6)


def test_hidden_keys_may_hold_anything():
    how, arrays, dout = operands("causal")
    k, v = arrays[1], arrays[2]
    k[:, :, 120:], v[:, :, 120:] = np.nan, np.inf
    out, lse = ran(Attention(how), arrays)
    assert np.isfinite(out[:, :, :64]).all()  # a tile has at most 64 keys
    assert np.isfinite(lse[:, :, :120]).all()
    how, arrays, dout = operands("key_lengths")
    for x in arrays[1:3]:
        x[0, :, 120:] = np.nan
    op, given = grad_operands(how, [np.nan_to_num(a) for a in arrays], dout)
    given[1:3] = arrays[1:3]
    for found, wanted in zip(ran(op, given), op.reference(*map(np.nan_to_num, given)), strict=True):
        close(found, wanted, 1e-5)


def test_what_is_not_a_number_stays_so():
    how, arrays, _ = operands("causal")
    arrays[0][0, 1, 40, 3] = np.nan
    out, lse = ran(Attention(how), arrays)
    assert np.isnan(out[0, 1, 40]).all()
    assert np.isnan(lse[0, 1, 40])
    assert np.isnan(out).sum() == out.shape[3]


# -- in graphs ------------------------------------------------------------------------------------


def grads_of(dtype, shape, **options):
    """A function of the result and the gradients, and its arguments."""
    vs = [T.TensorType(dtype, shape)(n) for n in ("q", "k", "v")]
    out = T.nnet.scaled_dot_product_attention(*vs, **options)
    cost = (out * out).sum()
    f = symdnn.function(vs, [out, *T.grad(cost, vs)], mode=symdnn.Mode(target="cpu"))
    rng = new_rng()
    return f, [rng.normal(size=shape).astype(dtype) for _ in vs]


def op_names(f):
    return {type(n.op).__name__ for n in f.fgraph.nodes}


def test_a_graph_stores_no_scores():
    shape = (1, 2, 2048, 16)
    f, arrays = grads_of("float32", shape, is_causal=True)
    assert {"Attention", "AttentionGrad"} <= op_names(f)
    f(*arrays)
    assert f.memory_report().arena < 2048 * 2048 * 4


def test_a_graph_without_a_kernel_is_written_out():
    wide, wide_arrays = grads_of("float64", (1, 2, 30, 16), is_causal=True)
    assert not {"Attention", "AttentionGrad"} & op_names(wide)
    f, _ = grads_of("float32", (1, 2, 30, 16), is_causal=True)
    for a, b in zip(f(*(a.astype("float32") for a in wide_arrays)), wide(*wide_arrays)):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("heads", [2, 6])
def test_few_queries_are_written_out(heads):
    """As of a step of decoding; not with few keys, nor where a gradient reads the result's sums."""
    rng = new_rng()

    def attend(queries, keys, dtype="float32", own=None):
        shapes = [(2, heads, queries, 8), (2, 2, keys, 8), (2, 2, keys, 8)]
        vs = [T.TensorType(dtype, s)() for s in shapes]
        mask = T.TensorType("bool", (2, 1, 1, keys))()
        out = T.nnet.scaled_dot_product_attention(*vs, mask, enable_gqa=True)
        f = symdnn.function([*vs, mask], out, mode=symdnn.Mode(target="cpu"))
        arrays = own or [rng.normal(size=s) for s in shapes] + [rng.random((2, 1, 1, keys)) > 0.3]
        return f, f(*(a.astype(v.type.dtype) for a, v in zip(arrays, [*vs, mask]))), arrays

    for queries, keys, stays in ((1, 40, False), (4, 32, False), (5, 40, True), (1, 31, True)):
        f, found, arrays = attend(queries, keys)
        assert ("Attention" in op_names(f)) == stays
        np.testing.assert_allclose(found, attend(queries, keys, "float64", arrays)[1], 1e-4, 1e-5)
    f, _ = grads_of("float32", (1, 2, 4, 16))
    assert {"Attention", "AttentionGrad"} <= op_names(f)


def test_the_gradient_of_a_mask_is_written_out_where_it_is_read():
    mask, found = T.ftensor4("mask"), []
    added = new_rng().normal(size=(1, 2, 30, 30)).astype("float32")
    for reads in (False, True):
        q, k, v = (T.TensorType("float32", (1, 2, 30, 16))() for _ in range(3))
        out = T.nnet.scaled_dot_product_attention(q, k, v, mask)
        wrt = [q, k, v, mask] if reads else [q, k, v]
        grads = T.grad((out * out).sum(), wrt)
        f = symdnn.function([q, k, v, mask], grads, mode=symdnn.Mode(target="cpu"))
        assert "Attention" in op_names(f)
        assert ("AttentionGrad" in op_names(f)) == (not reads)
        arrays = [np.sin(np.arange(960.0) * s).reshape(1, 2, 30, 16) for s in (1, 2, 3)]
        found.append(f(*(a.astype("float32") for a in arrays), added))
    for a, b in zip(*found):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_a_stream_draws_in_a_graph_what_the_reference_draws():
    found, arrays = [], []
    for compiles in ("always", "never"):
        with config.change_flags(**{"cpu.compile": compiles}):
            stream = T.random.RandomStream(3)
            f, drawn = grads_of("float32", (1, 2, 40, 16), dropout_p=0.4, stream=stream)
            arrays = arrays or drawn
            found.append([f(*arrays), f(*arrays)])
    assert not np.array_equal(found[0][0][0], found[0][1][0])
    for a, b in zip(*([*x[0], *x[1]] for x in found)):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("empty", range(5), ids=["batch", "heads", "queries", "keys", "features"])
def test_empty_sizes_have_empty_results_and_gradients(empty, known):
    batch, heads, queries, keys, features = (
        n * (i != empty) for i, n in enumerate((2, 3, 4, 5, 6))
    )
    shapes = [(batch, heads, n, features) for n in (queries, keys, keys)]
    vs = [T.tensor("float32", s if known else (None,) * 4) for s in shapes]
    y = T.nnet.scaled_dot_product_attention(*vs)
    f = symdnn.function(vs, [y, *symdnn.grad((y**2).sum(), vs)])
    made = f(*(np.ones(s, "float32") for s in shapes))
    assert [r.shape for r in made] == [shapes[0], *shapes]
    assert not any(r.any() for r in made)  # nothing is seen, or there is nothing to add


@pytest.mark.parametrize("changed", [3, 4, 5, 6])
def test_operands_of_a_gradient_in_other_dtypes_are_right(changed):
    """The kernel would read past the end of log-sum-exps of 16 bits; references compute those."""
    rng = new_rng()
    shapes = [(2, 4, 19, 8)] * 4 + [(2, 4, 19), (2, 4, 19, 8), (2, 4, 19)]
    dtypes = ["bfloat16"] * 4 + ["float32", "bfloat16", "float32"]
    dtypes[changed] = "float32" if dtypes[changed] == "bfloat16" else "bfloat16"
    arrays = [
        rng.standard_normal(s).astype(TensorType(d, ()).numpy) for s, d in zip(shapes, dtypes)
    ]
    arrays[4] = (abs(arrays[4].astype("float32")) + 3).astype(arrays[4].dtype)
    op = AttentionGrad(Scores(), of_lse=True)
    call = call_of(op, arrays)
    assert "float32" in (AttentionKernel().refuses(call) or "")
    xs = [TensorType(d, (None,) * len(s))() for s, d in zip(shapes, dtypes)]
    found = symdnn.function(xs, op(*xs))(*arrays)
    for a, b in zip(found, op.reference(*arrays), strict=True):
        np.testing.assert_allclose(a.astype("float32"), b.astype("float32"), 3e-2, 3e-2)
