"""What GEMMs fuse, what they leave to fused kernels, and equal values."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.gpu import registry
from symdnn.graph.type import TensorType
from symdnn.ops.elemwise import Elemwise
from symdnn.ops.linalg.dot import BatchedDot, Dot
from symdnn.ops.lowered.fused import FusedElemwise
from symdnn.ops.vendor.gpublas import GpuGemm, GpuGemmBase, GpuGemmBiasGrad
from symdnn.ops.vendor.gpudnn import GpuDnnReduction
from symdnn.opt.phases import Selection
from tests.opt.lowering import assert_same_values, rewritten, variables

RNG = np.random.default_rng(19)
SELECTION = Selection(frozenset({"fast_run", "fast_compile"}))
registry.load()


def normal(*shape, dtype="float32"):
    return RNG.standard_normal(shape).astype(dtype)


def gemm(*args, **terms):
    return GpuGemm().ending(*args, **terms)


def stacked(*args, **terms):
    return GpuGemm(BatchedDot()).ending(*args, **terms)


X, W, B, C = normal(6, 4), normal(4, 5), normal(5), normal(6, 5)


def made(build, arrays, *, same=True, rtol=1e-5):
    """The rewritten graph of ``build``; its values are those of the plain one."""
    vs = variables(arrays)
    out = build(*vs)
    outputs = list(out) if isinstance(out, list | tuple) else [out]
    fgraph = rewritten(vs, outputs, selection=SELECTION)
    if same:
        assert_same_values(fgraph, vs, outputs, arrays, rtol)
    return fgraph


def products(fgraph):
    kinds = Dot | BatchedDot | GpuGemmBase
    return [n.op for n in fgraph.toposort() if isinstance(n.op, kinds)]


def elementwise(fgraph):
    kinds = Elemwise | FusedElemwise
    return [n.op for n in fgraph.toposort() if isinstance(n.op, kinds) and n.outputs[0].ndim]


def gelu(v):
    return T.nnet.gelu(v, approximate=True)


# -- what is taken in -----------------------------------------------------------------------------

TAKEN = {
    "bias": (lambda x, w, b: T.dot(x, w) + b, (X, W, B), gemm(bias=True)),
    "bias_first": (lambda x, w, b: b + T.dot(x, w), (X, W, B), gemm(bias=True)),
    "bias_minus": (lambda x, w, b: b - T.dot(x, w), (X, W, B), gemm(alpha=-1.0, bias=True)),
    "row": (lambda x, w, b: T.dot(x, w) + b, (X, W, B[None]), gemm(bias=True)),
    "relu": (lambda x, w, b: T.nnet.relu(T.dot(x, w) + b), (X, W, B),
             gemm(bias=True, activation="relu")),
    "relu_alone": (lambda x, w: T.nnet.relu(T.dot(x, w)), (X, W), gemm(activation="relu")),
    "gelu": (lambda x, w, b: gelu(T.dot(x, w) + b), (X, W, B),
             gemm(bias=True, activation="gelu")),
    "factor": (lambda x, w: T.dot(x, w) * np.float32(0.5), (X, W), gemm(alpha=0.5)),
    "negative": (lambda x, w: -T.dot(x, w) / np.float32(4), (X, W), gemm(alpha=-0.25)),
    "sum": (lambda x, w, c: T.dot(x, w) + c, (X, W, C), gemm(residual=1.0)),
    "update": (lambda x, w, c: c - np.float32(0.5) * T.dot(x, w), (X, W, C),
               gemm(alpha=-0.5, residual=1.0)),
    "momentum": (lambda x, w, c: np.float32(0.5) * c + T.dot(x, w), (X, W, C), gemm(residual=0.5)),
    "difference": (lambda x, w, c: T.dot(x, w) - np.float32(2) * c, (X, W, C), gemm(residual=-2.0)),
    "all": (lambda x, w, c, b: T.nnet.relu(np.float32(2) * T.dot(x, w) + c + b), (X, W, C, B),
            gemm(alpha=2.0, residual=1.0, bias=True, activation="relu")),
    "vector": (lambda x, w, c: T.dot(x, w) + c, (X, W[:, 0].copy(), C[:, 0].copy()),
               gemm(residual=1.0)),
    "stack": (lambda x, w, b: T.nnet.relu(T.batched_dot(x, w) + b),
              (normal(2, 6, 4), normal(2, 4, 5), B),
              stacked(bias=True, activation="relu")),
}  # fmt: skip


@pytest.mark.parametrize("case", TAKEN)
def test_taken_in(case):
    build, arrays, op = TAKEN[case]
    fgraph = made(build, arrays)
    assert products(fgraph) == [op]
    assert elementwise(fgraph) == []


@pytest.mark.parametrize("case", TAKEN)
def test_switched_off(case):
    build, arrays, _ = TAKEN[case]
    with config.change_flags(**{"gpu.epilogue": "off"}):
        by_flag = made(build, arrays)
    vs = variables(arrays)
    by_tag = rewritten(vs, [build(*vs)], selection=SELECTION.excluding("epilogue"))
    for fgraph in (by_flag, by_tag):
        assert not any(isinstance(op, GpuGemmBase) for op in products(fgraph))
        assert elementwise(fgraph)


@pytest.mark.parametrize("activation", [T.nnet.relu, gelu])
def test_a_layer_of_a_batch_of_one(activation):
    """A reshape to a batch of one is a dimshuffle."""

    def build(x, w, b):
        return activation(T.dot(x.reshape((1, 6, 4)), w) + b)

    fgraph = made(build, (X, W, B))
    word = "relu" if activation is T.nnet.relu else "gelu"
    assert products(fgraph) == [gemm(bias=True, activation=word)]
    assert elementwise(fgraph) == []


@pytest.mark.parametrize("pattern", [(0, "x", 1), (0, 1, "x")])
def test_dimensions_of_size_1_before_and_behind_the_columns(pattern):
    b = normal(*(5 if d == 1 else 1 for d in pattern))
    fgraph = made(lambda x, w, b: T.dot(x, w).dimshuffle(pattern) + b, (X, W, b))
    assert products(fgraph) == [gemm(bias=True) if pattern[-1] == 1 else Dot()]


def test_a_layer_over_the_last_of_three_dimensions():
    x = normal(2, 6, 4)
    fgraph = made(lambda x, w, b: T.nnet.relu(T.dot(x, w) + b), (x, W, B))
    assert products(fgraph) == [gemm(bias=True, activation="relu")]
    assert elementwise(fgraph) == []
    added = made(lambda x, w, c: T.dot(x, w) + c, (x, W, normal(2, 6, 5)))
    assert products(added) == [gemm(residual=1.0)]
    assert elementwise(added) == []
    normed = made(lambda x, w, c: T.nnet.softmax(T.dot(x, w) + c), (x, W, normal(2, 6, 5)))
    assert products(normed) == [Dot()]
    other = made(lambda x, w, b: T.dot(x, w).reshape((2, 5, 6)) + b, (x, W, normal(6)))
    assert products(other) == [Dot()]


def test_two_products_are_one_sum():
    fgraph = made(lambda x, w, u, v, b: T.dot(x, w) + T.dot(u, v) + b, (X, W, X + 1, W + 1, B))
    assert sorted(map(str, products(fgraph))) == ["Dot", "GpuGemm{residual, bias}"]
    assert elementwise(fgraph) == []


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_wide_result_is_not_rounded_before(dtype):
    vs = [TensorType(dtype, (None, None))(n) for n in "xw"]
    fgraph = rewritten(vs, [T.dot(*vs).astype("float32") * np.float32(3)], selection=SELECTION)
    assert products(fgraph) == [gemm("float32", factors="float16", alpha=3.0)]
    assert elementwise(fgraph) == []


@pytest.mark.parametrize("word", ["gelu_erf", "silu"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_products_alone_read_has_an_activation_of_another_library(word, dtype):
    function = {"gelu_erf": T.nnet.gelu, "silu": T.nnet.silu}[word]
    whole, row = TensorType(dtype, (None, None)), TensorType(dtype, (5,))
    x, w, b, v = whole("x"), whole("w"), row("b"), whole("v")
    h = function(T.dot(x, w) + b)
    taken = gemm(dtype, bias=True, activation=word)
    for y in (T.dot(h, v), T.dot(h.reshape((2, 3, 5)), v), h):
        fgraph = rewritten([x, w, b, v], [y], selection=SELECTION)
        assert products(fgraph)[0] == taken
        assert elementwise(fgraph) == []
    for y in (T.nnet.softmax(h), h.astype("float32").sum(1), [T.dot(h, v), h * 2]):
        outputs = y if isinstance(y, list) else [y]
        left = products(rewritten([x, w, b, v], outputs, selection=SELECTION))
        assert not any("activation" in str(op) or word in str(op) for op in left)


def test_a_momentum_is_added_although_it_is_read_again():
    def build(x, w, v, p):
        step = np.float32(0.5) * v + T.dot(x, w)
        return step, p - np.float32(0.1) * step

    fgraph = made(build, (X, W, C, C + 1))
    assert products(fgraph) == [gemm(residual=0.5)]
    assert len(elementwise(fgraph)) == 1


# -- what is left alone ---------------------------------------------------------------------------

LEFT = {
    "an elementwise reader does it for nothing":
        (lambda x, w, b: T.tanh(T.dot(x, w) + b), (X, W, B)),
    "so does one of the activation": (lambda x, w, b: T.nnet.relu(T.dot(x, w) + b) * 3, (X, W, B)),
    "the product is wanted itself":
        (lambda x, w, b: (T.dot(x, w), T.dot(x, w) + b), (X, W, B)),
    "the exact gelu in float32": (lambda x, w: T.nnet.gelu(T.dot(x, w)), (X, W)),
    "so is silu": (lambda x, w: T.nnet.silu(T.dot(x, w)), (X, W)),
    "a bias of rows": (lambda x, w, b: T.dot(x, w) + b, (X, W, C[:, :1].copy())),
    "a bias that is subtracted": (lambda x, w, b: T.dot(x, w) - b, (X, W, B)),
    "a factor that is computed": (lambda x, w, s: T.dot(x, w) * s, (X, W, np.float32(3))),
    "a number is no bias": (lambda x, w: T.dot(x, w) + np.float32(3), (X, W)),
    "an addend of the activation":
        (lambda x, w, c: T.nnet.relu(T.dot(x, w)) + c, (X, W, C)),
}  # fmt: skip


@pytest.mark.parametrize("case", LEFT)
def test_left_alone(case):
    build, arrays = LEFT[case]
    assert products(made(build, arrays)) == [Dot()]


def test_float64_has_factors_and_addends_only():
    arrays = [a.astype("float64") for a in (X, W, C, B)]
    fgraph = made(lambda x, w, c: 2.0 * T.dot(x, w) + c, arrays[:3])
    assert products(fgraph) == [gemm("float64", alpha=2.0, residual=1.0)]
    fgraph = made(lambda x, w, b: T.dot(x, w) + b, (arrays[0], arrays[1], arrays[3]))
    assert products(fgraph) == [Dot()]


def test_nothing_on_a_cpu():
    vs = variables((X, W, B))
    f = symdnn.function(vs, T.dot(vs[0], vs[1]) + vs[2], mode=symdnn.Mode(target="cpu"))
    assert not any(isinstance(op, GpuGemmBase) for op in products(f.fgraph))


@pytest.mark.parametrize("at", [2, 3])
def test_sizes_that_do_not_fit_are_still_an_error(at):
    arrays = [X, W, C, B]
    vs = variables(arrays)
    out = T.nnet.relu(T.dot(vs[0], vs[1]) + vs[2] + vs[3])
    fgraph = rewritten(vs, [out], selection=SELECTION)
    arrays[at] = np.concatenate([arrays[at]] * 2, axis=-1)
    node = next(n for n in fgraph.toposort() if isinstance(n.op, GpuGemm))
    with pytest.raises(symdnn.errors.ShapeMismatch, match="GpuGemm"):
        node.op.shapes([v.type for v in node.inputs], [a.shape for a in arrays], {})


# -- training -------------------------------------------------------------------------------------


def step(x, w, b, v):
    cost = (T.dot(T.nnet.relu(T.dot(x, w) + b), v) ** 2).sum()
    return T.grad(cost, [w, b, v])


ARRAYS = (X, W, B, normal(5, 3))


def test_the_gradient_of_a_bias_comes_with_that_of_the_weights():
    fgraph = made(step, ARRAYS, rtol=1e-4)
    assert products(fgraph).count(GpuGemmBiasGrad()) == 1
    assert not any(isinstance(n.op, GpuDnnReduction) for n in fgraph.toposort())


def test_a_sum_that_the_product_depends_on_stays():
    def build(x, y):
        total = y.sum(0)
        return T.dot(x * total[:4], y), total

    fgraph = made(build, (X, normal(4, 5)))
    assert products(fgraph) == [Dot()]


@pytest.mark.parametrize("axis", [1, None])
def test_sums_over_other_axes_stay(axis):
    fgraph = made(lambda x, y: (T.dot(x, y), y.sum(axis)), (X, W))
    assert products(fgraph) == [Dot()]


def test_the_sum_of_a_transposed_left_factor():
    fgraph = made(lambda x, y: (T.dot(y.T, x), y.sum(0)), (X, C))
    assert products(fgraph) == [GpuGemmBiasGrad(left=True)]


def layer_of_attention(transposed, batch=2):
    """Gradients of a dense layer between attention and a norm: no kernel of ours makes them."""

    def build(x, w, b):
        y = (
            (T.dot(x, w.T if transposed else w) + b)
            .reshape((batch, 8, 3, 8))
            .dimshuffle(0, 2, 1, 3)
        )
        return T.grad((T.nnet.scaled_dot_product_attention(y, y, y) ** 2).sum(), [w, b])

    w = normal(24, 24)
    return build, (normal(batch, 8, 24), w, normal(24))


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("transposed", [False, True])
def test_sums_of_narrow_gradients_are_float32(transposed, batch):
    build, arrays = layer_of_attention(transposed, batch)
    with config.change_flags(amp="bf16"):
        fgraph = made(build, arrays, rtol=5e-2, same=False)
    wide = GpuGemmBiasGrad(left=transposed).ending("float32", factors="bfloat16")
    assert products(fgraph).count(wide) == 1
    assert {v.type.dtype for v in fgraph.outputs} == {"float32"}
    assert not any(isinstance(n.op, GpuDnnReduction) for n in fgraph.toposort())


def test_a_product_that_is_read_in_16_bits_stays():
    def build(x, y):
        y = T.dot(y, y.T)
        return T.dot(x, y), y.astype("float32").sum(0)

    half = (normal(4, 4).astype("float16"), normal(4, 4).astype("float16"))
    assert not any(isinstance(op, GpuGemmBiasGrad) for op in products(made(build, half, rtol=1e-2)))


def test_a_kernel_that_makes_the_factor_sums_it():
    def build(x, y):
        y = (T.exp(y.astype("float32"))).astype("float16")
        return T.dot(x, y).astype("float32"), y.astype("float32").sum(0)

    half = (normal(4, 4).astype("float16"), normal(4, 4).astype("float16"))
    assert not any(isinstance(op, GpuGemmBiasGrad) for op in products(made(build, half, rtol=1e-2)))


def test_dimensions_that_a_sum_keeps():
    fgraph = made(lambda x, y: (T.dot(x, y), y.sum(0, keepdims=True)), (X, W))
    assert products(fgraph) == [GpuGemmBiasGrad()]


def test_relu_is_differentiated_at_its_result_on_demand():
    exact = made(step, ARRAYS, rtol=1e-4)
    assert gemm(bias=True, activation="relu") not in products(exact)
    with config.change_flags(**{"relu_grad_at_0": "zero"}):
        fgraph = made(step, ARRAYS, rtol=1e-4)
        assert gemm(bias=True, activation="relu") in products(fgraph)
        at_zero = made(step, (X * 0, W, B * 0, ARRAYS[3]), same=False)
    assert len(elementwise(fgraph)) < len(elementwise(exact))
    assert len(at_zero.nodes) == len(fgraph.nodes)


def test_the_report_shows_it():
    vs = variables((X, W, B))
    mode = symdnn.Mode(target="cuda:sm_90")
    f = symdnn.function(vs, T.nnet.relu(T.dot(vs[0], vs[1]) + vs[2]), mode=mode)
    assert "GpuGemm{bias, relu}" in str(f.lowering_report())


@pytest.mark.parametrize("shape", [(30,), (2, 3, 5), (15, 2)], ids=str)
def test_a_flattened_product_is_made_in_float32(shape):
    """As gradients of parameters are that are kept in vectors, and those that are not."""
    half = [a.astype("float16") for a in (X, W)]
    fgraph = made(lambda x, w: T.cast(T.dot(x, w).reshape(shape), "float32"), half, rtol=1e-2)
    assert products(fgraph) == [gemm("float32", factors="float16")]
    assert not elementwise(fgraph)


def test_a_flattened_product_that_is_read_in_16_bits_stays_so():
    half = [a.astype("float16") for a in (X, W)]

    def build(x, w):
        flat = T.dot(x, w).flatten()
        return T.cast(flat, "float32"), flat[::2]

    assert products(made(build, half, rtol=1e-2)) == [Dot()]
