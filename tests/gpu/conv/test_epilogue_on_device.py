"""Products and convolutions with what follows them, on a GPU, against NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.gpu.gemm import choice as gemm_choice
from symdnn.graph.evaluate import evaluate
from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.ops.vendor.gpublas import GpuGemm, GpuGemmBiasGrad
from symdnn.ops.vendor.gpudnn_epilogue import GpuDnnConvBiasActivation
from tests.gpu.agreement import assert_agree, assert_close, normal

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda")]

#: dtype, TF32, largest error beside the largest value.
PRECISIONS = {
    "float32": ("float32", False, 2e-5), "tf32": ("float32", True, 3e-3),
    "bfloat16": ("bfloat16", False, 2e-2), "float16": ("float16", False, 2e-3),
}  # fmt: skip
each = pytest.mark.parametrize("precision", PRECISIONS)


def run(build, arrays, dtype, flags):
    """(results on the GPU, in float64 by NumPy, op types of the graph and names of kernels)."""
    kind = numpy_dtype(dtype)
    low = [a.astype(kind) for a in arrays]
    vs = [TensorType(dtype, [1 if n == 1 else None for n in a.shape])() for a in low]
    wide = [TensorType("float64", v.type.shape)() for v in vs]
    with config.change_flags(**flags):
        out = build(*vs)
        outs = list(out) if isinstance(out, list | tuple) else [out]
        f = symdnn.function(vs, outs, mode=symdnn.Mode(target="cuda"))
        for _ in range(3):  # as it is, captured, replayed
            got = f(*low)
    made = build(*wide)
    outs = list(made) if isinstance(made, list | tuple) else [made]
    want = evaluate(outs, dict(zip(wide, [a.astype("float64") for a in low])))
    found = {type(n.op) for n in f.fgraph.toposort()} | set(f.lowering_report().kernels())
    return [np.asarray(g) for g in got], want, found


def check(build, shapes, precision, op, **flags):
    dtype, tf32, limit = PRECISIONS[precision]
    arrays = [normal(*s, seed=i, scale=0.5) for i, s in enumerate(shapes)]
    got, want, ops = run(build, arrays, dtype, {"dnn.conv.allow_tf32": tf32, **flags})
    assert op in ops
    if op is GpuDnnConvBiasActivation:
        assert "cudnn.conv_epilogue" in ops
        assert "cudnn.reordered" not in ops
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        assert_close(a, b, limit, f"output {i}")


# -- products -------------------------------------------------------------------------------------

M, K, N = 131, 77, 203
PRODUCTS = {
    "batch_of_one": (lambda x, w, b: T.nnet.relu(T.dot(x.reshape((1, M, K)), w) + b),
                     [(M, K), (K, N), (N,)]),
    "bias": (lambda x, w, b: T.dot(x, w) + b, [(M, K), (K, N), (N,)]),
    "relu": (lambda x, w: T.nnet.relu(T.dot(x, w)), [(M, K), (K, N)]),
    "bias_relu": (lambda x, w, b: T.nnet.relu(T.dot(x, w) + b), [(M, K), (K, N), (N,)]),
    "bias_gelu": (lambda x, w, b: T.nnet.gelu(T.dot(x, w) + b, approximate=True),
                  [(M, K), (K, N), (N,)]),
    "transposed": (lambda x, w, b: T.nnet.relu(T.dot(x.T, w.T) + b), [(K, M), (N, K), (N,)]),
    "aligned": (lambda x, w, b: T.nnet.relu(T.dot(x, w) + b), [(128, 256), (256, 512), (512,)]),
    "addend": (lambda x, w, c: T.dot(x, w) - c, [(M, K), (K, N), (M, N)]),
    "everything": (lambda x, w, c, b: T.nnet.relu(T.dot(x, w) / 2 + c + b),
                   [(M, K), (K, N), (M, N), (N,)]),
    "stack": (lambda x, w, b: T.nnet.relu(T.batched_dot(x, w) + b),
              [(5, 33, 47), (5, 47, 29), (29,)]),
    "a part": (lambda x, w, b: T.nnet.relu(T.dot(x[1:], w[:, 3:]) + b[3:]),
               [(M, K), (K, N), (N,)]),
    "three dimensions": (lambda x, w, b: T.nnet.relu(T.dot(x, w) + b), [(3, 7, K), (K, N), (N,)]),
    "one row": (lambda x, w, b: T.nnet.relu(T.dot(x, w) + b), [(1, K), (K, N), (N,)]),
    "vector": (lambda x, w, c: T.dot(x, w) + c, [(M, K), (K,), (M,)]),
}  # fmt: skip


@pytest.mark.parametrize("algo", ["guess", "time"])
@each
@pytest.mark.parametrize("case", PRODUCTS)
def test_products(case, precision, algo):
    build, shapes = PRODUCTS[case]
    check(build, shapes, precision, GpuGemm, **{"gpu.gemm.algo": algo})


@each
def test_the_gradient_of_a_bias(precision):
    def build(x, dy):
        return T.dot(x.T, dy), dy.sum(0)

    check(build, [(M, K), (M, N)], precision, GpuGemmBiasGrad)
    check(build, [(256, 128), (256, 512)], precision, GpuGemmBiasGrad)


@each
def test_the_gradient_of_a_bias_beside_transposed_weights(precision):
    def build(x, dy):
        return T.dot(dy.T, x), dy.sum(0)

    check(build, [(M, K), (M, N)], precision, GpuGemmBiasGrad)
    check(build, [(256, 128), (256, 512)], precision, GpuGemmBiasGrad)


@pytest.mark.parametrize("transposed", [False, True])
def test_gradients_in_float32_of_narrow_factors(transposed):
    def build(x, dy):
        wide = "float32" if x.dtype == "bfloat16" else "float64"
        product = T.dot(dy.T, x) if transposed else T.dot(x.T, dy)
        return product.astype(wide), dy.astype(wide).sum(0)

    for shapes in ([(M, K), (M, N)], [(256, 128), (256, 512)]):
        arrays = [normal(*s, seed=i) for i, s in enumerate(shapes)]
        got, want, ops = run(build, arrays, "bfloat16", {})
        assert GpuGemmBiasGrad in ops
        for a, b in zip(got, want, strict=True):
            assert_close(a, b, 1e-5)


@each
def test_a_scaled_gradient_leaves_the_sum_alone(precision):
    def build(x, dy, v):
        return v / 2 - T.dot(x.T, dy) / 4, dy.sum(0)

    check(build, [(M, K), (M, N), (K, N)], precision, GpuGemmBiasGrad)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_wide_result_of_narrow_factors(dtype):
    def build(x, w):
        return T.dot(x, w).astype("float32" if x.dtype == dtype else "float64")

    arrays = [normal(M, K), normal(K, N, seed=1)]
    (got,), (want,), ops = run(build, arrays, dtype, {})
    assert GpuGemm in ops
    assert_close(got, want, 1e-5)


def test_nothing_to_multiply():
    build, _ = PRODUCTS["bias_relu"]
    check(build, [(3, 0), (0, 4), (4,)], "float32", GpuGemm)
    check(build, [(0, 3), (3, 4), (4,)], "float32", GpuGemm)


def test_not_a_number_stays():
    x, w, b = (TensorType("float32", (None,) * n)() for n in (2, 2, 1))
    f = symdnn.function([x, w, b], T.nnet.relu(T.dot(x, w) + b), mode=symdnn.Mode(target="cuda"))
    one = np.ones((4, 4), "float32")
    got = f(one, one, np.array([np.nan, -np.inf, np.inf, -9], "float32"))
    np.testing.assert_array_equal(np.asarray(got)[0], [np.nan, 0, np.inf, 0])


def test_a_layer_trains_alike_with_and_without():
    def build(x, w, b, v):
        return T.nnet.relu(T.dot(T.nnet.relu(T.dot(x, w) + b), v))

    arrays = [normal(*s, seed=i, scale=0.3) for i, s in enumerate([(M, K), (K, N), (N,), (N, 9)])]
    for flags in ({}, {"gpu.epilogue": "off"}, {"relu_grad_at_0": "zero"}):
        with config.change_flags(**flags):
            assert_agree(build, arrays)


@pytest.mark.usefixtures("card")
def test_choices_are_told():
    gemm_choice.forget()
    build, shapes = PRODUCTS["bias"]
    check(build, shapes, "float32", GpuGemm, **{"gpu.gemm.algo": "time"})
    text = "\n".join(map(str, gemm_choice.chosen()))
    assert "by time" in text
    assert "cuBLASLt algorithm" in text


# -- convolutions ---------------------------------------------------------------------------------


def conv(x, w):
    return T.nnet.conv2d(x, w, border_mode="half", filter_flip=False)


def channels(b):
    return b.dimshuffle("x", 0, "x", "x")


X, W, V, B = (3, 16, 9, 7), (24, 16, 3, 3), (8, 24, 1, 1), (24,)
Z = (3, 24, 9, 7)
CONVOLUTIONS = {
    "bias_relu": (lambda v, x, w, b: conv(T.nnet.relu(conv(x, w) + channels(b)), v),
                  [V, X, W, B]),
    "residual": (lambda v, x, w, z, b: conv(T.nnet.relu(conv(x, w) + channels(b) + z), v),
                 [V, X, W, Z, B]),
    "tanh": (lambda v, x, w, b: conv(T.tanh(conv(x, w) + channels(b)), v), [V, X, W, B]),
    "mirrored": (lambda v, x, w, b: conv(
        T.nnet.relu(T.nnet.conv2d(x, w, border_mode="half") + channels(b)), v), [V, X, W, B]),
    "at_the_end": (lambda v, x, w, b, c: T.nnet.relu(
        conv(T.nnet.relu(conv(x, w) + channels(b)), v) + channels(c)), [V, X, W, B, V[:1]]),
    "odd": (lambda v, x, w, b: conv(T.nnet.relu(conv(x, w) + channels(b)), v),
            [(5, 7, 1, 1), (3, 3, 9, 7), (7, 3, 3, 3), (7,)]),
}  # fmt: skip


@pytest.mark.parametrize("layout", ["auto", "nhwc", "nchw"])
@each
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolutions(case, precision, layout):
    build, shapes = CONVOLUTIONS[case]
    check(build, shapes, precision, GpuDnnConvBiasActivation, **{"gpu.layout": layout})


@each
@pytest.mark.parametrize("case", ["residual", "tanh"])
def test_measured_convolutions(case, precision):
    build, shapes = CONVOLUTIONS[case]
    flags = {"dnn.conv.algo_fwd": "time_once", "dnn.conv.time_budget": 200}
    check(build, shapes, precision, GpuDnnConvBiasActivation, **flags)


@each
@pytest.mark.parametrize("layout", ["auto", "nchw"])
def test_normalisation_in_the_kernels(precision, layout):
    def build(v, x, w, z, gamma, beta, mean, var):
        stats = (gamma, beta, mean, T.sqr(var) + 1)
        y = T.nnet.bn.batch_normalization_test(conv(x, w), *stats, axes="spatial")
        return conv(T.nnet.relu(y + z), v)

    shapes = [V, X, W, Z, *[(1, 24, 1, 1)] * 4]
    check(build, shapes, precision, GpuDnnConvBiasActivation, **{"gpu.layout": layout})
