"""Ops of ``com.microsoft`` against what ONNX Runtime 1.32 gave on a CPU.

``data/microsoft.npz`` has for each case the model, inputs ``i0, i1, ...`` and outputs ``o0, ...``;
``benchmarks/onnx/microsoft.py`` wrote it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from symdnn.errors import ModelError
from symdnn.onnx import compile
from symdnn.onnx.build.table import known_ops
from tests.onnx.models import model

DATA = np.load(Path(__file__).parents[2] / "data" / "microsoft.npz")
CASES = sorted({name.partition("/")[0] for name in DATA.files})
#: Made of others that are tested, or with no kernel in ONNX Runtime for a CPU.
WITHOUT_CASE = {
    "BiasSplitGelu", "BiasAdd", "TransposeMatMul", "QuantizeLinear", "DequantizeLinear",
    "SimplifiedLayerNormalization", "DynamicQuantizeLSTM", "QLinearReduceMean",
}  # fmt: skip


def parts(case, letter):
    """Arrays of a case by name: its inputs (i) or outputs (o)."""
    names = [n for n in DATA.files if n.startswith(f"{case}/{letter}")]
    return {n.partition("/")[2]: DATA[n] for n in names}


def test_values():
    wrong = []
    for case in CASES:
        found = compile(DATA[f"{case}/model"].tobytes())(**parts(case, "i"))
        for name, wanted in parts(case, "o").items():
            value = found[name]
            if wanted.size == 0 or value is None:
                continue  # an output that ONNX Runtime fills on other devices only
            same = value.dtype == wanted.dtype and value.shape == wanted.shape
            if not same or not np.allclose(value, wanted, rtol=1e-4, atol=1e-5):
                wrong.append((case, name))
    assert not wrong


def test_each_op_has_a_case():
    import onnx

    seen = {
        onnx.load_from_string(DATA[f"{case}/model"].tobytes()).graph.node[0].op_type
        for case in CASES
    }
    ops = {op for domain, op in known_ops() if domain == "com.microsoft"}
    assert ops - seen == WITHOUT_CASE


def test_sums_and_halves():
    text = """g (float[1, 2, 4] x, float[4] b, float[1, 2, 4] s) => (y) {
        y = com.microsoft.BiasAdd(x, b, s)
    }"""
    x = np.ones((1, 2, 4), "float32")
    found = compile(model(text))(x, np.arange(4, dtype="float32"), x)["y"]
    np.testing.assert_array_equal(found, 2 + np.broadcast_to(np.arange(4), (1, 2, 4)))
    text = "g (float[1, 2, 4] x, float[4] b) => (y) { y = com.microsoft.BiasSplitGelu(x, b) }"
    x = np.float32([[[1, 2, 30, -30], [3, 4, 0, 30]]])
    found = compile(model(text))(x, np.zeros(4, "float32"))["y"]
    np.testing.assert_allclose(found, [[[30, 0], [0, 120]]])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_both_outputs_of_a_simplified_norm(rng, dtype):
    text = f"""g ({dtype.replace("32", "")}[n, 5, 8] x) => (y, r) {{
        y, r = SimplifiedLayerNormalization<axis = 1, epsilon = 0.001>(x, w)
    }}"""
    x, w = rng.normal(size=(2, 5, 8)).astype(dtype), rng.normal(size=(5, 8)).astype(dtype)
    found = compile(model(text, w=w))(x)
    root = 1 / np.sqrt(np.mean(x.astype("f8") ** 2, axis=(1, 2), keepdims=True) + 1e-3)
    np.testing.assert_allclose(found["r"], root, rtol=1e-5)
    np.testing.assert_allclose(found["y"], x * root * w, rtol=2e-3 if dtype != "float32" else 1e-5)


@pytest.mark.parametrize("scales", [(), (2,), (2, 16)])
def test_a_recurrent_network_of_dynamic_codes(scales, rng):
    """That of the weights which the codes stand for, in both directions."""
    text = """g (float[t, 3, 5] x) => (y, h, c) {{
        y, h, c = {}<hidden_size = 4, direction = "bidirectional">({})
    }}"""
    weights = {n: rng.integers(0, 256, (2, k, 16)).astype("uint8") for n, k in (("w", 5), ("r", 4))}
    scale = rng.uniform(0.002, 0.004, scales).astype("f4")
    zero = np.full(scales, 120, "uint8")
    bias = rng.normal(size=(2, 32)).astype("f4")
    names = "x, w, r, b, , , , , s, z, s, z"
    quantised = text.format("com.microsoft.DynamicQuantizeLSTM", names)
    column = scale.reshape((2, 1, -1)) if scales else scale
    real = {n: ((v - np.float32(120)) * column).transpose(0, 2, 1) for n, v in weights.items()}
    x = rng.normal(size=(6, 3, 5)).astype("f4")
    found = compile(model(quantised, **weights, b=bias, s=scale, z=zero))(x)
    wanted = compile(model(text.format("LSTM", "x, w, r, b"), **real, b=bias))(x)
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5)


#: What a node asks -> the words of the refusal.
UNKNOWN = {
    "com.microsoft.GroupQueryAttention<num_heads = 2, kv_num_heads = 2, qk_output = 1>(x, x, x)":
        "qk_output = 1",
    "com.microsoft.Attention<num_heads = 2, do_rotary = 1>(x, x)": "do_rotary = 1",
    "com.microsoft.Gelu(x, x)": "input 1",
    "com.microsoft.MultiHeadAttention<num_heads = 2>(x, x, x, , , , x, x, x, x)": "input 9",
    "com.microsoft.Sneeze(x)": "knows no op",
}  # fmt: skip


@pytest.mark.parametrize("call", UNKNOWN)
def test_what_is_not_known_is_refused(call):
    """Each input and attribute that a node has is read: others would give a wrong result."""
    made = model(f"g (float[1, 4, 4] x) => (y) {{ y = {call} }}")
    with pytest.raises(ModelError, match=f"com.microsoft.*{UNKNOWN[call]}"):
        compile(made)(np.ones((1, 4, 4), "float32"))


def test_outputs_that_are_not_computed_are_refused():
    text = """g (float[1, 4, 4] x) => (y, qk) {
        y, k, v, qk = com.microsoft.MultiHeadAttention<num_heads = 2>(x, x, x)
    }"""
    with pytest.raises(ModelError, match="output 3 is wanted"):
        compile(model(text))(np.ones((1, 4, 4), "float32"))


def test_packed_queries_keys_and_values(rng):
    """One tensor of all three, or one of keys and values, as the three beside one another."""
    q, k, v = (rng.normal(size=(2, 5, 2, 4)).astype("f4") for _ in range(3))
    flat = [t.reshape(2, 5, 8) for t in (q, k, v)]
    text = "g ({}) => (y) {{ y = com.microsoft.MultiHeadAttention<num_heads = 2>({}) }}"
    apart = text.format("float[b, n, 8] q, float[b, n, 8] k, float[b, n, 8] v", "q, k, v")
    wanted = compile(model(apart))(*flat)["y"]
    whole = compile(model(text.format("float[b, n, 2, 3, 4] x", "x")))
    pair = compile(model(text.format("float[b, n, 8] q, float[b, n, 2, 2, 4] x", "q, x")))
    np.testing.assert_allclose(whole(np.stack([q, k, v], 3))["y"], wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        pair(flat[0], np.stack([k, v], 3))["y"], wanted, rtol=1e-5, atol=1e-6
    )


def test_a_vector_mask_of_open_sizes(rng):
    """Whether it has ends, or ends and starts, follows from its length."""
    text = """g (float[b, n, 4] x, float[4, 12] w, int32[m] mask) => (y) {
        y = com.microsoft.Attention<num_heads = 2>(x, w, , mask)
    }"""
    f, x = compile(model(text)), rng.normal(size=(2, 5, 4)).astype("f4")
    w = rng.normal(size=(4, 12)).astype("f4")
    ends = f(x, w, np.int32([3, 5]))["y"]
    np.testing.assert_allclose(f(x, w, np.int32([3, 5, 0, 0]))["y"], ends, rtol=1e-5, atol=1e-6)
    cut = f(x, w, np.int32([3, 5, 1, 2]))["y"]
    assert np.abs(cut - ends).max() > 1e-3
    alone = f(x[1:, 2:], w, np.int32([3]))["y"]
    np.testing.assert_allclose(cut[1:, 2:], alone, rtol=1e-5, atol=1e-6)


def test_a_product_of_matrices_whose_first_axis_is_the_rows():
    rng = np.random.default_rng(1)
    a, b = (rng.normal(size=s).astype("float32") for s in ((5, 2, 3, 4), (6, 2, 3, 4)))
    text = """g (float[5, 2, 3, 4] a, float[6, 2, 3, 4] b) => (y) {
        y = com.microsoft.FusedMatMul
            <transBatchA = 1, transBatchB = 1, transB = 1, alpha = 0.5>(a, b)
    }"""
    wanted = 0.5 * np.einsum("ixyk,jxyk->xyij", a, b)
    np.testing.assert_allclose(compile(model(text))(a, b)["y"], wanted, rtol=1e-4, atol=1e-5)
