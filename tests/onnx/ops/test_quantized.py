"""Quantised values: storage types, exact results, gradients of the straight-through estimator."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.onnx import compile, load, save
from symdnn.ops.elementwise.storage import narrow
from tests.onnx.models import model

PAIR = """g (float[n, 3] x) => (y) {
    q = QuantizeLinear<axis = 1>(x, s, z)
    y = DequantizeLinear<axis = 1>(q, s, z)
}"""
SCALE = np.float32([0.1, 0.5, 2])
ZERO = np.int8([0, 3, -5])
X = np.float32([[0.33, -1.2, 7], [200, 1.1, -900], [-0.05, 0.75, 263]])


def exact(x):
    q = np.clip(np.rint(x / SCALE) + ZERO, -128, 127)
    return ((q - ZERO) * SCALE).astype("float32")


def test_a_pair_is_exact():
    f = compile(model(PAIR, s=SCALE, z=ZERO))
    np.testing.assert_array_equal(f(X)["y"], exact(X))


def test_a_scale_of_one_element_is_for_all(rng):
    """As ONNX Runtime writes the bias of a network that it quantises: there is no axis 1."""
    text = """g (float[n, 3] x) => (y) {
        d = DequantizeLinear(b, s, z)
        y = Add(x, d)
    }"""
    bias, x = np.int32([100, -7, 3]), rng.normal(size=(2, 3)).astype("f4")
    f = compile(model(text, b=bias, s=np.float32([0.01]), z=np.int32([0])))
    np.testing.assert_allclose(f(x)["y"], x + bias * np.float32(0.01), rtol=1e-6)


def test_the_gradient_of_a_pair_is_that_of_the_identity_within_the_range():
    graph = load(model(PAIR, s=SCALE, z=ZERO))
    x = graph.variables["x"]
    weight = np.arange(9, dtype="float32").reshape(3, 3)
    g = T.grad(T.sum(graph.expressions["y"] * weight), x)
    zero = ZERO.astype("int64")
    inside = ((-128 - zero) * SCALE <= X) & ((127 - zero) * SCALE >= X)
    assert 0 < inside.sum() < 9
    np.testing.assert_array_equal(g.eval({x: X}), weight * inside)


def test_a_quantised_network_trains():
    text = """g (float[n, 4] x) => (y) {
        q = QuantizeLinear(w, s, z)
        d = DequantizeLinear(q, s, z)
        h = MatMul(x, d)
        a = QuantizeLinear(h, s, z)
        y = DequantizeLinear(a, s, z)
    }"""
    rng = np.random.default_rng(0)
    w = rng.normal(size=(4, 2)).astype("float32")
    graph = load(model(text, w=w, s=np.float32(0.05), z=np.int8(0)))
    x, t = graph.variables["x"], T.fmatrix("t")
    loss = T.mean(T.sqr(graph.expressions["y"] - t))
    (p,) = (v for v in graph.trainable if v.name == "w")
    step = symdnn.function([x, t], loss, updates=[(p, p - 0.2 * T.grad(loss, p))])
    data = rng.normal(size=(64, 4)).astype("float32")
    wanted = data @ rng.normal(size=(4, 2)).astype("float32")
    losses = [float(step(data, wanted)) for _ in range(40)]
    assert losses[-1] < 0.05 * losses[0]


@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"])
def test_rounding_to_floats_of_few_bits(kind):
    x = T.fvector("x")
    value = np.float32([0.3, -1.7, 5.2, 1e9, -1e9])
    g = T.grad(narrow(x, kind).sum(), x)
    np.testing.assert_array_equal(g.eval({x: value}), [1, 1, 1, 0, 0])
    edge = float(ml_dtypes.finfo(getattr(ml_dtypes, kind)).max)
    wanted = np.clip(value, -edge, edge).astype(getattr(ml_dtypes, kind)).astype("float32")
    np.testing.assert_array_equal(narrow(x, kind).eval({x: value}), wanted)


@pytest.mark.parametrize(
    "kind", ["int4", "uint4", "int2", "uint2", "float8_e4m3fn", "float4_e2m1fn"]
)
def test_values_of_storage_types_enter_and_leave(kind):
    from onnx import helper

    dtype = np.dtype(getattr(ml_dtypes, kind))
    code = helper.np_dtype_to_tensor_dtype(dtype)
    graph = helper.make_graph(
        [helper.make_node("Transpose", ["x"], ["y"])], "g",
        [helper.make_tensor_value_info("x", code, ["n", 2])],
        [helper.make_tensor_value_info("y", code, [2, "n"])],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)])
    x = np.float32([[0, 1], [1, 1], [1, 0]]).astype(dtype)
    y = compile(made)(x)["y"]
    assert y.dtype == dtype
    np.testing.assert_array_equal(y.astype("float32"), x.T.astype("float32"))


def test_integer_products_are_exact():
    text = "g (uint8[2, n] a, int8[n, 3] b) => (y) { y = MatMulInteger(a, b, za, zb) }"
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, 256, (2, 3000), "uint8"), rng.integers(-128, 128, (3000, 3), "int8")
    f = compile(model(text, za=np.uint8(7), zb=np.int8(-3)))
    wanted = (a.astype("int64") - 7) @ (b.astype("int64") + 3)
    np.testing.assert_array_equal(f(a, b)["y"], wanted)


@pytest.mark.parametrize("sizes", ["2, 4", "rows, 4"])
@pytest.mark.parametrize("point", ["", ", z"])
def test_blocks_are_saved(sizes, point, tmp_path):
    """Scales and zero points that vary along several axes."""
    text = f"""g (float[{sizes}] x) => (float[m, n] y, int8[m, n] q) {{
        q = QuantizeLinear<axis=1, block_size=2>(x, s{point})
        y = DequantizeLinear<axis=1, block_size=2>(q, s{point})
    }}"""
    arrays = {"s": np.float32([[0.1, 0.2], [0.3, 0.05]])}
    arrays |= {"z": np.int8([[1, -3], [0, 20]])} if point else {}
    made = model(text, **arrays)
    if not point:
        made.graph.output[1].type.tensor_type.elem_type = onnx.TensorProto.UINT8
    graph = load(made)
    save(graph.expressions, tmp_path / "m.onnx", inputs=list(graph.variables.values()))
    x = np.random.default_rng(0).normal(size=(2, 4)).astype("float32")
    wanted = compile(made)(x)
    for found, w in zip(compile(tmp_path / "m.onnx")(x).values(), wanted.values(), strict=True):
        assert found.dtype == w.dtype
        np.testing.assert_array_equal(found, w)


def test_codes_of_zeros_alone_have_a_scale():
    """One by which codes can be divided, as ONNX Runtime gives it."""
    f = compile(model("g (float[n] x) => (y, s, z) { y, s, z = DynamicQuantizeLinear(x) }"))
    found = f(np.zeros(3, "float32"))
    assert found["s"] == 1
    assert found["z"] == 0
    assert not found["y"].any()
