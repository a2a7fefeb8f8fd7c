"""What products of 8 bits ask of cuBLASLt, and which nodes become them. Needs no device."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.gpu import registry
from symdnn.gpu.device.array import RawArray
from symdnn.graph.kernel import Call, kernels_for
from symdnn.graph.origin import NO_HINTS
from symdnn.graph.target import Target
from symdnn.graph.type import TensorType
from symdnn.ops.linalg.dot import BatchedDot, Dot
from symdnn.ops.quantized.product import QuantizedProduct
from symdnn.ops.vendor.gpublas import GpuQuantizedGemm
from symdnn.tensor.nnet import dequantize, quantize
from tests.gpu.fake_cublaslt import FakeGemmEnv, lt
from tests.opt.lowering import rewritten

__all__ = ["lt"]
registry.load()
E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"
rng = np.random.default_rng(0)
HOPPER, AMPERE = (Target("cuda", compute_capability=c) for c in ((9, 0), (8, 0)))


def launched(product, *shapes, dtype="int8"):
    scales = [TensorType("float32")] * len(product.terms)
    op, types = GpuQuantizedGemm(product), [TensorType(dtype, s) for s in shapes]
    types += scales
    outs = op.output_types(types)
    call = Call(op, tuple(types), tuple(outs), NO_HINTS)
    (kernel,) = kernels_for(GpuQuantizedGemm, "cuda")
    assert kernel.refuses(call) is None
    at = [RawArray(0x100000 * (i + 1), t.shape, t.dtype) for i, t in enumerate((*types, *outs))]
    kernel.bind(call)(FakeGemmEnv(), at[: len(types)], at[len(types) :])


def test_int8_is_summed_in_int32_of_transposed_weights(lt):
    launched(QuantizedProduct(Dot()), (6, 32), (48, 32))
    (run,) = lt.runs
    assert run["made"] == [72, 10]
    assert (run["transa"], run["transb"]) == (1, 0)
    assert [v["made"] for v in run["layouts"]] == [
        [3, 32, 48, 32], [3, 32, 6, 32], [10, 48, 6, 48], [10, 48, 6, 48],
    ]  # fmt: skip
    assert run["pointers"][:3] == [0x200000, 0x100000, 0x300000]
    assert run["factors"] == (1, 0)


def test_a_stack_has_the_distances_of_its_matrices(lt):
    launched(QuantizedProduct(BatchedDot()), (3, 16, 32), (3, 48, 32))
    a, b, _, d = lt.runs[0]["layouts"]
    assert [v["batch_count"] for v in (a, b, d)] == [3, 3, 3]
    assert [v["batch_offset"] for v in (a, b, d)] == [48 * 32, 16 * 32, 16 * 48]


def test_float8_has_the_addresses_of_its_scales(lt):
    kinds = (E5M2, E4M3)
    product = QuantizedProduct(Dot(), ("x_scale", "w_scale"), "bfloat16", kinds=kinds)
    launched(product, (6, 32), (48, 32), dtype="uint8")
    (run,) = lt.runs
    assert run["made"] == [68, 0]
    assert [v["made"][0] for v in run["layouts"]] == [28, 29, 14, 14]
    assert (run["a_scale_pointer"], run["b_scale_pointer"]) == (0x400000, 0x300000)


def operands(kind, n=32, out="float32"):
    x = T.fmatrix("x")
    w = T.constant(rng.standard_normal((64, n)).astype("float32"))
    pair = [quantize(v, 0.02, dtype=kind) for v in (x, w)]
    return x, [dequantize(c, 0.02, out=out) for c in pair]


def names(x, y, target=HOPPER):
    return [type(n.op).__name__ for n in rewritten([x], [y], target).toposort()]


@pytest.mark.parametrize("kind", ["int8", E4M3])
def test_products_of_codes_are_lowered(kind):
    x, pair = operands(kind)
    found = names(x, T.dot(*pair))
    assert "GpuQuantizedGemm" in found
    assert "Dot" not in found


def test_near_misses_stay_floats():
    x, pair = operands("int8", 30)
    assert "Dot" in names(x, T.dot(*pair))  # 30 columns are no multiple of 16
    x, pair = operands("uint8")
    assert "Dot" in names(x, T.dot(*pair))
    x, pair = operands(E5M2)
    assert "Dot" in names(x, T.dot(*pair))
    x, pair = operands(E4M3)
    assert "Dot" in names(x, T.dot(*pair), AMPERE)
    x, pair = operands("int8")
    assert "GpuQuantizedGemm" in names(x, T.dot(*pair), AMPERE)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["int8", E4M3])
@pytest.mark.parametrize("out", ["float32", "bfloat16"])
def test_values(cuda, kind, out):
    x, pair = operands(kind, out=out)
    y = T.dot(*pair).astype("float32")
    value = rng.standard_normal((40, 64)).astype("float32")
    want = symdnn.function([x], y, mode=symdnn.Mode(optimizer=None))(value)
    with config.change_flags(device="cuda"):
        got = symdnn.function([x], y)(value)
    rounding = 2.0**-8 if out == "bfloat16" else 2.0**-12 if kind == E4M3 else 1e-4
    assert np.abs(np.asarray(got) - want).max() < 2 * rounding * np.abs(want).max()
    assert np.abs(want).max() > 1


@pytest.mark.gpu
def test_a_zero_point_is_taken_off_the_sums(cuda):
    x = T.fmatrix("x")
    w = T.constant(rng.integers(-127, 128, (64, 32)).astype("int8"))
    y = T.dot(dequantize(quantize(x, 0.02, -100), 0.02, -100), dequantize(w, 0.01))
    value = rng.uniform(0, 4, (40, 64)).astype("float32")
    want = symdnn.function([x], y, mode=symdnn.Mode(optimizer=None))(value)
    with config.change_flags(device="cuda"):
        got = symdnn.function([x], y)(value)
    assert np.abs(np.asarray(got) - want).max() < 1e-3
