"""Products of dequantised values become products of their codes: when, and with what result."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.graph.evaluate import evaluate
from symdnn.graph.target import Target
from symdnn.graph.type import TensorType
from symdnn.ops.linalg.dot import Dot
from symdnn.ops.nn.conv import Conv
from symdnn.ops.quantized.product import QuantizedProduct, integer_product
from symdnn.tensor.nnet import conv2d, dequantize, quantize, relu
from tests import op_table
from tests.opt.lowering import assert_same_values, rewritten
from tests.seeded import new_rng

VNNI = Target("cpu", onednn=(3, 2), isa="AVX-512 VNNI")
rng = np.random.default_rng(0)
FILTERS = rng.integers(-127, 128, (16, 8, 3, 3)).astype("int8")
SCALES = rng.uniform(0.001, 0.01, 16).astype("float32")
BIAS = rng.standard_normal(16).astype("float32")
X = T.tensor("float32", (None, 8, 10, 10), name="x")


def ops_after(vs, outputs, target):
    return [node.op for node in rewritten(vs, outputs, target).toposort()]


def layer(h, w=FILTERS, scale=SCALES, axis=0, zero=None):
    weights = dequantize(T.constant(w), scale, zero, axis=axis)
    return conv2d(h, weights, border_mode=1, filter_flip=False) + BIAS[None, :, None, None]


def codes(v, scale=0.05, zero=100, dtype="uint8"):
    return quantize(v, scale, zero, dtype)


def real(v, scale=0.05, zero=100, dtype="uint8"):
    return dequantize(codes(v, scale, zero, dtype), scale, zero)


def names(y, target=VNNI):
    return [type(op).__name__ for op in ops_after([X], [y], target)]


def test_a_layer_is_one_op_of_codes():
    found = names(codes(relu(layer(real(X))), 0.02, -7, "int8"))
    assert found.count("OneDnnQuantized") == 1
    assert not {"OneDnnConv", "Dequantize", "FusedElemwise"} & {*found}
    assert found.count("Quantize") == 1  # of the input


def test_layers_pass_codes_on():
    h = real(relu(layer(real(X))), 0.02)
    w = rng.integers(-127, 128, (16, 16, 3, 3)).astype("int8")
    ops = ops_after([X], [codes(relu(layer(h, w) + h), 0.04)], VNNI)
    products = [op.op for op in ops if type(op).__name__ == "OneDnnQuantized"]
    assert [p.out for p in products] == ["uint8", "uint8"]
    assert [p.terms[-3] for p in products] == ["bias", "z"]
    assert all(p.relu for p in products)


@pytest.mark.parametrize(
    "y",
    [
        layer(real(X), zero=np.full(16, 3, "int8")),
        layer(real(X), scale=SCALES[:8], axis=1),
        layer(dequantize(quantize(X, SCALES[:8], axis=1), SCALES[:8], axis=1)),
        layer(X),
    ],
    ids=["weights with a zero point", "scales of input channels", "scales of x", "x in floats"],
)
def test_near_misses_stay_floats(y):
    found = names(y)
    assert "OneDnnConv" in found
    assert "OneDnnQuantized" not in found


def test_without_vnni_it_stays_floats():
    assert "OneDnnConv" in names(layer(real(X)), Target("cpu", onednn=(3, 2), isa="AVX2"))


def test_a_value_that_is_read_twice_stays_outside():
    y = relu(layer(real(X)))
    ops = ops_after([X], [codes(y, 0.02), y], VNNI)
    (product,) = [op.op for op in ops if type(op).__name__ == "OneDnnQuantized"]
    assert product.out == "float32"


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("ends", ["floats", "codes", "addend"])
def test_values_are_within_one_step(dtype, ends):
    zero = 100 if dtype == "uint8" else 4
    h = real(X, 0.05, zero, dtype)
    y = relu(layer(h))
    if ends == "codes":
        y = codes(y, 0.03, zero, dtype)
    if ends == "addend":
        w = rng.integers(-127, 128, (16, 16, 3, 3)).astype("int8")
        z = real(y, 0.03, zero, dtype)
        y = codes(relu(layer(z, w) + z), 0.3, zero, dtype)
    x = rng.standard_normal((2, 8, 10, 10)).astype("float32")
    f = symdnn.function([X], y)
    plain = symdnn.function([X], y, mode=symdnn.Mode(optimizer=None))
    got, want = f(x), plain(x)
    assert np.array_equal(got, f(x))
    limit = 1e-4 if ends == "floats" else 1
    assert np.abs(got.astype("float64") - want).max() <= limit
    assert want.std() > 1e-2


@pytest.mark.parametrize("ndim", [2, 3])
def test_dense_layers(ndim):
    x = T.tensor("float32", (*[None] * (ndim - 1), 24), name="x")
    w = rng.integers(-127, 128, (16, 24)).astype("int8")
    y = T.dot(real(x), dequantize(T.constant(w), SCALES, axis=0).T) + BIAS
    y = codes(relu(y), 0.02, -3, "int8")
    assert "OneDnnQuantized" in [type(op).__name__ for op in ops_after([x], [y], VNNI)]
    value = rng.standard_normal((*[5] * (ndim - 1), 24)).astype("float32")
    want = symdnn.function([x], y, mode=symdnn.Mode(optimizer=None))(value)
    assert np.abs(symdnn.function([x], y)(value).astype(int) - want).max() <= 1


@pytest.mark.parametrize("zero", [None, 3, np.arange(16)])
def test_sums_without_a_kernel_are_written_out(zero):
    codes, w = T.tensor("int8", (None, 8, 10, 10), name="codes"), T.constant(FILTERS)
    zero = zero if zero is None else np.asarray(zero, "int8")
    op = Conv(((1, 1), (1, 1)), (1, 1), (1, 1))
    y = integer_product(op, codes, w, 5, zero)
    graph = rewritten([codes], [y], Target("cpu"))
    names = {type(node.op).__name__ for node in graph.nodes}
    assert "Conv" in names
    assert "QuantizedProduct" not in names
    value = rng.integers(-128, 128, (2, 8, 10, 10)).astype("int8")
    (want,) = evaluate([y], {codes: value})
    (got,) = evaluate(graph.outputs, {graph.inputs[0]: value})
    assert np.array_equal(got, want)
    assert np.array_equal(symdnn.function([codes], y)(value), want)


def test_weights_are_packed_once():
    """A parameter behind a view is packed when its value changes, and then again."""
    w = symdnn.shared(rng.integers(-127, 128, (16, 24)).astype("int8"), shape=(16, 24))
    x = T.tensor("float32", (None, 24), name="x")
    f = symdnn.function([x], T.dot(real(x), dequantize(w, 0.01).T))
    value = rng.standard_normal((5, 24)).astype("float32")
    first = [np.array(f(value)) for _ in range(4)]
    assert all(np.array_equal(first[0], y) for y in first)
    w.set_value(-w.get_value())
    assert np.allclose(f(value), -first[0], atol=1e-4)


# -- sums of integers without 8-bit instructions ---------------------------------------------------

PLAIN = Target("cpu", onednn=(3, 2), isa="AVX2")
A, B = T.tensor("uint8", (None, 1201), name="a"), T.tensor("int8", (1201, 7), name="b")
IMAGE, KERNELS = (
    T.tensor("uint8", (1, 80, 5, 6), name="i"),
    T.tensor("int8", (3, 80, 3, 3), name="k"),
)
ZERO = T.scalar("zero", dtype="uint8")
CONV = Conv(((1, 1),) * 2, (1, 1), (1, 1), 1, False)


def float_types(inputs, y, target):
    """Dtypes in which sums are computed, one for each product."""
    order = rewritten(inputs, [y], target).toposort()
    products = ("OneDnnMatmul", "OneDnnConv", "Dot", "Conv", "Gemv", "Dot22")
    return [n.outputs[0].type.dtype for n in order if type(n.op).__name__ in products]


@pytest.mark.parametrize(("zero", "parts"), [(None, (3, 2)), (131, (2, 1)), (ZERO, (3, 2))])
@pytest.mark.parametrize("of_images", [False, True])
def test_sums_in_float32_are_exact(of_images, zero, parts):
    op, x, w = (CONV, IMAGE, KERNELS) if of_images else (Dot(), A, B)
    y = integer_product(op, x, w, zero)
    given = [ZERO] if zero is ZERO else []
    found = float_types([x, w, *given], y, PLAIN)
    assert found == ["float32"] * parts[of_images]  # of more terms one may be beyond 2^24
    shape = [3 if n is None else n for n in x.type.shape]
    codes = rng.choice([0, 1, 254, 255], size=shape).astype("uint8")
    weights = rng.choice([-128, -127, 127], size=w.type.shape, p=[0.8, 0.1, 0.1]).astype("int8")
    values = [codes, weights, *[np.uint8(255)] * len(given)]
    zeros = [] if zero is None else [np.int32(255 if given else zero)]
    wanted = y.owner.op.reference(codes, weights, *zeros)
    np.testing.assert_array_equal(symdnn.function([x, w, *given], y)(*values), wanted)


def test_when_sums_are_in_float64():
    """Zero points may be any numbers, or Winograd's algorithm would not add products."""
    any_zero = T.iscalar("any")
    assert float_types([A, B, any_zero], integer_product(Dot(), A, B, any_zero), PLAIN) == [
        "float64"
    ]
    wide = Target("cpu", onednn=(3, 2), isa="AVX-512")
    assert float_types([IMAGE, KERNELS], integer_product(CONV, IMAGE, KERNELS), wide) == ["float64"]
    long = T.tensor("uint8", (2, 9000), name="l"), T.tensor("int8", (9000, 2), name="m")
    assert float_types([*long], integer_product(Dot(), *long), PLAIN) == ["float64"]


@pytest.mark.parametrize("name", ["quantized_matmul", "quantized_conv_QuantizedProduct"])
def test_what_follows_sums_stays_on_a_device(name):
    """A whole layer of codes that no library takes: no node is left to the host."""
    (case,) = [c for c in op_table.load() if c.id == name]
    rng = new_rng()
    values = [draw(rng) for draw in case.draws]
    vs = [TensorType(a.dtype.name, (None,) * a.ndim)() for a in values]
    out = case.build(*vs)
    fgraph = rewritten(vs, [out])
    assert not any(isinstance(n.op, QuantizedProduct) for n in fgraph.toposort())
    assert_same_values(fgraph, vs, [out], values)
