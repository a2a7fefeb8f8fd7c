"""Our own attention on a GPU: its numbers on a host, its text for all GPUs, and when it runs."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import symdnn.tensor as T
from symdnn import Mode, function
from symdnn.config import config
from symdnn.gpu.binding import nvrtc
from symdnn.gpu.kernels import attention
from symdnn.gpu.kernels.attention import AttentionTile
from symdnn.graph.kernel import Call
from symdnn.graph.origin import Hints
from symdnn.graph.target import Target
from symdnn.graph.type import TensorType
from symdnn.ops.attention import reference as in_numpy
from symdnn.ops.attention.attention import (
    Attention,
    AttentionGrad,
    scaled_dot_product_attention,
)
from symdnn.ops.attention.scores import EXTRAS, Scores
from symdnn.ops.nn.dropout import Dropout
from symdnn.ops.nn.softmax import Softmax
from tests.gpu import emulator

needs_gpp = pytest.mark.skipif(not emulator.AVAILABLE, reason="there is no g++")

SLOW = pytest.mark.slow
KERNEL = AttentionTile()
#: Batch, heads, groups, queries, keys, features, features of values.
SIZES = (2, 2, 1, 66, 70, 20, 33)
#: Rounding errors of sums, beside the largest value: of float32, and of operands in TF32.
TOLERANCE, TF32_TOLERANCE = 2e-5, 4e-3


def call_of(op, arrays):
    types = [TensorType(a.dtype.name, a.shape) for a in arrays]
    return Call(op, tuple(types), tuple(op.infer(*types)), Hints())


def close(found, wanted, what, tolerance=TOLERANCE):
    found, wanted = np.asarray(found, "f8"), np.asarray(wanted, "f8")
    assert np.isfinite(found).tolist() == np.isfinite(wanted).tolist(), what
    finite = np.isfinite(wanted)
    error = np.abs(found[finite] - wanted[finite]).max(initial=0)
    most = max(1, np.abs(wanted[finite]).max(initial=0))
    assert error <= tolerance * most, f"{what}: an error of {error}, beside {most}"


def extras_of(how, sizes, rng):
    b, h, _, t, s, _, _ = sizes
    mask = rng.standard_normal((1, h, t, s)).astype("f4")
    mask[:, :, :, 5], mask[:, 1, 3] = -np.inf, -np.inf
    every = {
        "mask": mask, "key_lengths": np.array([s, 67])[:b], "query_lengths": np.array([9, t])[:b],
        "state": np.array([7, 5], np.uint64), "rate": np.asarray(0.3, "f4"),
    }  # fmt: skip
    return [every[e] for e in how.extras]


def operands(sizes, rng):
    b, h, g, t, s, d, e = sizes
    shapes = (b, h, t, d), (b, g, s, d), (b, g, s, e), (b, h, t, e)
    return [rng.standard_normal(n).astype("f4") for n in shapes]


def check(how, extras, sizes=SIZES, *, rng, of_lse=False, view=lambda a: a, tolerance=TOLERANCE):
    """Result, log-sum-exp, state and gradients by the kernels, against float64."""
    *qkv, dout = operands(sizes, rng)
    wide = [a.astype("f8") for a in qkv]
    out, lse = in_numpy.attention(how, *wide, *extras)
    call = call_of(Attention(how), [*qkv, *extras])
    assert KERNEL.refuses(call) is None
    found, _ = emulator.run(KERNEL, call, [*map(view, qkv), *extras])
    close(found[0], out, "result", tolerance)
    close(found[1], lse, "log-sum-exp", tolerance)
    if "state" in how.extras:
        b, h, _, t, s, _, _ = sizes
        assert found[2].tolist() == [7, 5 + b * h * t * s]
    dlse = [rng.standard_normal(lse.shape).astype("f4")] if of_lse else []
    op = AttentionGrad(how, of_lse, of_mask=False)
    arrays = [*qkv, out.astype("f4"), lse.astype("f4"), dout, *dlse]
    call = call_of(op, [*arrays, *extras])
    assert KERNEL.refuses(call) is None
    given = [*map(view, arrays[:4]), arrays[4], view(dout), *dlse, *extras]
    grads, _ = emulator.run(KERNEL, call, given)
    wanted = in_numpy.attention_grad(
        how, *wide, out, lse, dout.astype("f8"), dlse[0].astype("f8") if of_lse else 0, *extras
    )
    for name, got, want in zip("qkv", grads, wanted):
        close(got, want, f"gradient of {name}", tolerance)


@needs_gpp
@pytest.mark.parametrize(
    "how",
    [
        Scores(right=0),
        Scores(left=9, right=2, bottom_right=True, extras=("key_lengths", "query_lengths")),
        Scores(left=60, right=4, softcap=3.0, scale=0.3, extras=tuple(EXTRAS)),
        *(
            pytest.param(how, marks=SLOW)
            for how in (
                Scores(), Scores(scale=0.3), Scores(softcap=2.0), Scores(extras=("mask",)),
                Scores(right=0, bottom_right=True), Scores(left=20, right=3),
                Scores(left=3, right=0, bottom_right=True), Scores(right=0, extras=("mask",)),
                Scores(extras=("key_lengths", "query_lengths")), Scores(extras=("state", "rate")),
            )
        ),
    ],
    ids=str,
)  # fmt: skip
def test_settings(how, rng):
    check(how, extras_of(how, SIZES, rng), rng=rng)


@needs_gpp
@pytest.mark.parametrize(
    "sizes",
    [
        (1, 1, 1, 1, 1, 1, 1), (1, 2, 1, 3, 65, 100, 7), (2, 2, 1, 4, 0, 8, 8),
        *(
            pytest.param(n, marks=SLOW)
            for n in ((1, 2, 2, 65, 3, 5, 129), (1, 3, 1, 5, 4, 256, 256))
        ),
    ],
    ids=str,
)  # fmt: skip
def test_sizes(sizes, rng):
    check(Scores(), [], sizes, rng=rng)


@needs_gpp
@pytest.mark.parametrize(
    ("terms", "tolerance"), [(0, TOLERANCE), (1, TF32_TOLERANCE), (3, TOLERANCE)]
)
@pytest.mark.parametrize("features", [(20, 33), (64, 64), (72, 36)], ids=str)
def test_ways_of_products(terms, tolerance, features, rng, monkeypatch):
    """By FMAs, of operands with TF32's digits, and of parts; all features at once or in pieces."""
    monkeypatch.setattr(attention, "_terms", lambda: terms)
    how = Scores(right=0, bottom_right=True, extras=("mask",))
    sizes = (1, 2, 1, 66, 70, *features)
    check(how, extras_of(how, sizes, rng), sizes, rng=rng, tolerance=tolerance)


@pytest.mark.parametrize(
    ("capability", "flag", "terms"),
    [(None, False, 3), ((8, 0), False, 3), ((9, 0), True, 1), ((7, 5), True, 0)],
)
def test_terms_follow_the_card_and_the_flag(capability, flag, terms, monkeypatch):
    device = None if capability is None else SimpleNamespace(capability=capability)
    monkeypatch.setattr(attention, "existing_context", lambda: device)
    with config.change_flags({"dnn.conv.allow_tf32": flag}):
        assert attention._terms() == terms


@needs_gpp
def test_cotangents_of_log_sum_exps(rng):
    check(Scores(right=0), [], (1, 2, 1, 40, 70, 8, 8), of_lse=True, rng=rng)


@needs_gpp
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((2, 1, 1, 20), "bool"), ((1, 2, 10, 1), "bool"), ((2, 2, 10, 20), "float16")],
)
def test_masks(shape, dtype, rng):
    kept = rng.random(shape) < 0.8
    mask = kept if dtype == "bool" else np.where(kept, rng.random(shape), -np.inf).astype(dtype)
    check(Scores(extras=("mask",)), [mask], (2, 2, 2, 10, 20, 8, 8), rng=rng)


@needs_gpp
def test_operands_with_time_before_heads(rng):
    def view(a):
        whole = emulator.device_copy(np.ascontiguousarray(a.transpose(0, 2, 1, 3)))[1]
        return whole.transpose(0, 2, 1, 3)

    check(Scores(right=0), [], (2, 4, 2, 10, 20, 8, 8), view=view, rng=rng)


@needs_gpp
def test_int32_lengths(rng):
    how = Scores(extras=("key_lengths",))
    extras = [np.array([3, 60], np.int32)]
    check(how, extras, (2, 2, 1, 10, 60, 8, 8), rng=rng)


@pytest.mark.parametrize(
    ("capability", "features"),
    [((9, 0), 40), *(pytest.param((c, 0), 256, marks=SLOW) for c in (8, 9, 10))],
)
def test_the_text_compiles(capability, features, rng):
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC is not installed")
    if capability not in nvrtc.supported_architectures():
        pytest.skip(f"this NVRTC has no {capability}")
    how = Scores(right=0, softcap=3.0, extras=tuple(EXTRAS))
    sizes = (1, 2, 1, 64, 64, features, features)
    extras, (*qkv, dout) = extras_of(how, sizes, rng), operands(sizes, rng)
    calls = [call_of(Attention(how), [*qkv, *extras])]
    if features > 64:
        op, lse = AttentionGrad(how, of_mask=False), np.zeros((1, 2, 64), "f4")
        calls.append(call_of(op, [*qkv, dout, lse, dout, *extras]))
    for source in {s for call in calls for s in KERNEL.sources(call)}:
        assert nvrtc.compile_cubin(source, capability)


@pytest.mark.parametrize(
    ("shape", "dtype", "why"),
    [
        ((1, 1, 4, 8), "float64", "float32"), ((1, 1, 4, 257), "float32", "256"),
        ((1, 1, 4, None), "float32", "256"),
        ((1, 1, 4, 8), "bfloat16", "float32"),
    ],
)  # fmt: skip
def test_refusals(shape, dtype, why):
    x = TensorType(dtype, shape)
    call = Call(Attention(Scores()), (x, x, x), Attention(Scores()).infer(x, x, x), Hints())
    assert why in (KERNEL.refuses(call) or "")


@pytest.mark.parametrize("changed", range(7))
def test_a_gradient_needs_float32_of_all_operands(changed):
    """The kernel would read past the end of log-sum-exps of 16 bits."""
    shapes = [(1, 1, 4, 8)] * 4 + [(1, 1, 4), (1, 1, 4, 8), (1, 1, 4)]
    types = [TensorType("float16" if i == changed else "float32", s) for i, s in enumerate(shapes)]
    op = AttentionGrad(Scores(), of_lse=True)
    like = [t.with_dtype("float32") for t in types]
    assert KERNEL.refuses(Call(op, tuple(like), op.infer(*like), Hints())) is None
    outs = tuple(t.with_dtype("float32") for t in types[:3])
    assert "float32" in (KERNEL.refuses(Call(op, tuple(types), outs, Hints())) or "")


CUDA = Mode(target="cuda:sm_90")


@pytest.mark.parametrize("capability", [(7, 5), (9, 0)])
def test_float32_is_ours(capability):
    """Without stored scores, with any number of features, and not in 16 bits."""
    vs = [T.TensorType("float32", (None, 4, None, 33))() for _ in "qkv"]
    y = scaled_dot_product_attention(*vs, is_causal=True, dropout_p=0.1, softcap=2.0)
    mode = Mode(target=Target("cuda", compute_capability=capability, cudnn=(9, 19)))
    f = function(vs, [y, *T.grad((y**2).sum(), vs)], mode=mode)
    ops = [type(n.op) for n in f.fgraph.toposort()]
    assert ops.count(Attention) == ops.count(AttentionGrad) == 1
    assert not {Softmax, Dropout} & set(ops)


@pytest.mark.parametrize(
    ("flags", "features", "trains", "ours"),
    [
        ({"dnn.conv.allow_tf32": True}, 33, False, True),
        ({"dnn.conv.allow_tf32": True}, 128, True, True),
        ({"dnn.conv.allow_tf32": True}, 129, False, False), ({"amp": "bf16"}, 33, False, False),
    ],
)  # fmt: skip
def test_where_products_may_round_they_are_gemms(flags, features, trains, ours):
    """But for few features in TF32."""
    with config.change_flags(flags):
        vs = [T.TensorType("float32", (None, 4, None, features))() for _ in "qkv"]
        y = scaled_dot_product_attention(*vs)
        f = function(vs, T.grad(y.sum(), vs) if trains else y, mode=CUDA)
    assert (Attention in {type(n.op) for n in f.fgraph.toposort()}) is ours


@pytest.mark.parametrize("flag", [False, True])
def test_with_a_gradient_of_a_mask_it_is_written_out_as_its_gradient_is(flag):
    """They share scores and softmax, which the gradient has anyway."""
    vs = [T.TensorType("float32", s)() for s in ((2, 4, 8, 8),) * 3 + ((1, 4, 8, 8),)]
    with config.change_flags({"dnn.conv.allow_tf32": flag}):
        y = scaled_dot_product_attention(*vs)
        outs = {"result": [y], "both": [y, *T.grad((y**2).sum(), vs)]}
        found = {
            n: {type(v.op) for v in function(vs, o, mode=CUDA).fgraph.toposort()}
            for n, o in outs.items()
        }
    assert Attention in found["result"]
    assert not {Attention, AttentionGrad} & found["both"]


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("how", "sizes"),
    [
        (Scores(), (2, 3, 3, 200, 200, 64, 64)), (Scores(right=0), (2, 4, 2, 300, 333, 33, 20)),
        (Scores(right=0, bottom_right=True), (1, 2, 1, 65, 513, 128, 128)),
        (Scores(left=50, right=5, softcap=3.0, scale=0.2), (1, 2, 2, 257, 257, 256, 256)),
        (Scores(extras=tuple(EXTRAS)), (2, 4, 2, 130, 200, 40, 40)),
        (Scores(left=30, right=0, extras=tuple(EXTRAS)), (2, 2, 1, 150, 150, 64, 8)),
    ],
    ids=str,
)  # fmt: skip
def test_numbers_on_a_device(how, sizes, rng):
    """Two calls are equal bit by bit; dropout drops what the reference drops."""
    extras, (*qkv, dout) = extras_of(how, sizes, rng), operands(sizes, rng)
    arrays = [*qkv, dout, *extras]
    vs = [T.TensorType(a.dtype.name, a.shape)() for a in arrays]
    y, lse, *_ = Attention(how)(*vs[:3], *vs[4:])
    f = function(vs, [y, lse, *T.grad(None, vs[:3], known_grads={y: vs[3]})])
    kernels = f.lowering_report().kernels
    first, *others = [[np.asarray(r) for r in f(*arrays)] for _ in range(3)]
    assert {"cuda.attention", "not planned"} & set(kernels()), kernels()  # by references: no plans
    for again in others:
        assert [r.tobytes() for r in again] == [r.tobytes() for r in first]
    wide = [a.astype("f8") for a in (*qkv, dout)]
    out, wanted_lse = in_numpy.attention(how, *wide[:3], *extras)
    grads = in_numpy.attention_grad(how, *wide[:3], out, wanted_lse, wide[3], 0, *extras)
    names = ("result", "log-sum-exp", *(f"gradient of {n}" for n in "qkv"))
    for name, got, want in zip(names, first, (out, wanted_lse, *grads)):
        close(got, want, name)
