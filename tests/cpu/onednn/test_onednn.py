"""oneDNN: the library, and each of its kernels against the NumPy reference in float64."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.compile.execute.targets import load_kernels
from symdnn.compile.plan.specialise import TableOracle
from symdnn.config import config
from symdnn.cpu.compiler import jit
from symdnn.cpu.compiler import object_cache as kept
from symdnn.cpu.onednn import library
from symdnn.cpu.onednn.objects import Primitive
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.kernel import Call, kernels_for
from symdnn.graph.origin import NO_HINTS
from symdnn.graph.target import Target
from symdnn.graph.type import TensorType
from symdnn.libraries.onednn.rules import LOWERINGS
from symdnn.ops.linalg.dot import BatchedDot, Dot
from symdnn.ops.nn.batchnorm import (
    BatchNormGrad,
    BatchNormInference,
    BatchNormTrain,
    LayerNorm,
    LayerNormGrad,
)
from symdnn.ops.nn.conv import Conv, ConvGradInput, ConvGradWeight
from symdnn.ops.nn.pool import AveragePoolGrad, MaxPoolGrad, Pool
from symdnn.ops.vendor.onednn import (
    ACTIVATIONS,
    OneDnnConv,
    OneDnnLayerNorm,
    OneDnnMatmul,
    OneDnnPool,
    OneDnnPoolGrad,
)
from symdnn.rewriting.rewrite import Context
from tests.cpu.harness import called, launched
from tests.seeded import new_rng

needs_onednn = pytest.mark.skipif(bool(library.problem()), reason="oneDNN is not installed")


load_kernels(Target("cpu"))

#: What lowers each neutral op.
LOW = {op: lowering for lowering in LOWERINGS for op in lowering.ops}


def lowered(op, arrays, **words):
    """The OneDnn op that an op becomes when the CPU has oneDNN, on operands of these types."""
    inputs = [
        TensorType("int64", ())() if isinstance(a, int)
        else TensorType("float32", [1 if d == 1 else None for d in a.shape])()
        for a in arrays
    ]  # fmt: skip
    fgraph = FunctionGraph(inputs, op.make_node(*inputs).outputs)
    (node,) = fgraph.toposort()
    target = Target("cpu", onednn=(3, 2, 0))
    lowering = LOW[type(op)]
    assert lowering.reason(node, Context(fgraph, target)) is None
    (made, *_) = lowering.rewrite()(node, Context(fgraph, target))
    return replace(made.owner.op, **words)


def run(low, *arrays):
    """The results of the kernel of oneDNN; it must be the one that is preferred."""
    float32 = [a.astype("float32") if isinstance(a, np.ndarray) and a.dtype == "float64" else a
               for a in arrays]  # fmt: skip
    call = called(low, float32)
    kernels = [k for k in kernels_for(type(low), "cpu") if k.name.startswith("onednn")]
    kernel = next((k for k in kernels if k.refuses(call) is None), kernels[0])
    refusal = kernel.refuses(call)
    if refusal is not None and "only its reference" in refusal and jit.vector_width() < 16:
        pytest.skip(f"{low}: {refusal} on this processor")
    return launched(kernel, call, float32)


def last(a):
    """(N, C, sizes) with channels last; what is no image stays."""
    return np.ascontiguousarray(np.moveaxis(a, 1, -1)) if np.ndim(a) >= 4 else a


def close(got, wanted, atol=2e-6):
    scale = max(np.abs(wanted).max(), 1e-30)
    np.testing.assert_allclose(got / scale, wanted / scale, atol=atol, rtol=0)


def agrees(op, *arrays, layouts=("NCHW", "NHWC"), atol=2e-6):
    """Each result of the kernel in each layout against the neutral op in float64."""
    wanted = op.compute(*arrays)
    low = lowered(op, arrays)
    for layout in layouts:
        given = [last(a) if layout == "NHWC" else a for a in arrays]
        found = run(replace(low, layout=layout), *given)
        for a, b in zip(found, wanted, strict=True):
            close(a, last(b) if layout == "NHWC" else b, atol)


def settings():
    """(dimensions, groups, stride, dilation, padding, flip, channels)"""
    for ndim, (groups, channels) in itertools.product((1, 2, 3), ((1, 16), (1, 3), (2, 8))):
        for stride, dilation, pad, flip in (
            (1, 1, (0, 0), False), (2, 1, (1, 1), True), (1, 2, (2, 1), False),
        ):  # fmt: skip
            yield ndim, groups, stride, dilation, pad, flip, channels


@needs_onednn
@pytest.mark.parametrize("algo", ["guess", "time"])
@pytest.mark.parametrize(
    ("ndim", "groups", "stride", "dilation", "pad", "flip", "c"), list(settings())
)
def test_convolution_in_three_directions(rng, algo, ndim, groups, stride, dilation, pad, flip, c):
    fields = ((pad,) * ndim, (stride,) * ndim, (dilation,) * ndim, groups, flip)
    x = rng.normal(size=(3, c, *(9, 8, 7)[:ndim]))
    w = rng.normal(size=(16, c // groups, *(3, 2, 3)[:ndim]))
    y = Conv(*fields).reference(x, w)
    dy = rng.normal(size=y.shape)
    cases = (
        (Conv(*fields), (x, w), y),
        (ConvGradInput(*fields, (None,) * ndim), (w, dy, *x.shape[2:]), x),
        (ConvGradWeight(*fields, (None,) * ndim), (x, dy, *w.shape[2:]), w),
    )
    with config.change_flags(**{"onednn.conv.algo": algo}):
        kept.clear()
        for op, given, _ in cases:
            (wanted,) = op.compute(*given)
            low = lowered(op, given)
            close(run(low, *given)[0], wanted)
            if ndim > 1:
                moved = [a if i == low.packed_filter else last(a) for i, a in enumerate(given)]
                (found,) = run(replace(low, layout="NHWC"), *moved)
                close(found, wanted if low.packed_filter < 0 else last(wanted))
    kept.clear()


@needs_onednn
@pytest.mark.parametrize("activation", ["", *ACTIVATIONS])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(("residual", "bias"), [(False, True), (True, False), (True, True)])
def test_a_convolution_adds_and_activates(rng, activation, layout, residual, bias):
    for c in (5, 16):
        x, w = rng.normal(size=(3, 3, 7, 6)), rng.normal(size=(c, 3, 3, 3)) * 0.3
        z, b = rng.normal(size=(3, c, 5, 4)), rng.normal(size=(1, c, 1, 1))
        op = Conv(((0, 0),) * 2, (1, 1), (1, 1))
        low = OneDnnConv(op).ending(residual=residual, bias=bias, activation=activation)
        given = [x, w, *[z] * residual, *[b] * bias]
        wanted = low.reference(*given)
        if layout == "NHWC":
            given = [a if i == 1 else last(a) for i, a in enumerate(given)]
            low, wanted = replace(low, layout=layout), last(wanted)
            close(low.reference(*given), wanted)
        close(run(low, *given)[0], wanted, 1e-5)


@needs_onednn
@pytest.mark.parametrize("turned", list(itertools.product([False, True], repeat=2)))
@pytest.mark.parametrize("stack", [(), (5,)])
def test_products_of_matrices_as_they_lie(rng, turned, stack):
    a, b = rng.normal(size=(*stack, 7, 33)), rng.normal(size=(*stack, 33, 12))
    given = [
        np.ascontiguousarray(m.swapaxes(-1, -2)).swapaxes(-1, -2) if turn else m
        for m, turn in zip((a, b), turned)
    ]
    close(run(OneDnnMatmul(BatchedDot() if stack else Dot()), *given)[0], a @ b)


@needs_onednn
@pytest.mark.parametrize("activation", ["", "relu", "tanh", "logistic"])
@pytest.mark.parametrize(("residual", "bias"), [(False, True), (True, False), (True, True)])
def test_a_product_adds_and_activates(rng, activation, residual, bias):
    a, b = rng.normal(size=(7, 33)), rng.normal(size=(33, 12))
    z, c = rng.normal(size=(7, 12)), rng.normal(size=(1, 12))
    low = OneDnnMatmul(Dot()).ending(residual=residual, bias=bias, activation=activation)
    given = [a, b, *[z] * residual, *[c] * bias]
    close(run(low, *given)[0], low.reference(*given), 1e-5)


@needs_onednn
def test_a_matrix_that_lies_in_neither_way_is_copied(rng):
    a, b = rng.normal(size=(6, 10)), rng.normal(size=(5, 3))
    close(run(OneDnnMatmul(Dot()), a[:, ::2], b)[0], a[:, ::2] @ b)


@needs_onednn
@pytest.mark.parametrize("sizes", [(), (6,), (7, 6), (4, 3, 5)])
@pytest.mark.parametrize("channels", [5, 16])
def test_batch_normalisation(rng, sizes, channels):
    x = rng.normal(size=(3, channels, *sizes)) * 2 + 1
    gamma, beta, mean, var = rng.uniform(0.5, 2, (4, 1, channels, *[1] * len(sizes)))
    axes = (0, *range(2, 2 + len(sizes)))
    agrees(BatchNormTrain(axes, 1e-4), x, gamma, beta, atol=1e-5)
    agrees(BatchNormTrain(axes, 1e-4, True), x, gamma, beta, np.asarray(0.1), mean, var, atol=1e-5)
    agrees(BatchNormInference(axes, 1e-4), x, gamma, beta, mean, var, atol=1e-5)
    _, mean, invstd = BatchNormTrain(axes, 1e-4).compute(x, gamma, beta)
    dy = rng.normal(size=x.shape)
    agrees(BatchNormGrad(axes, 1e-4), x, dy, gamma, mean, invstd, atol=2e-5)


@needs_onednn
@pytest.mark.parametrize("shape", [(6, 20), (4, 5, 16), (2, 3, 4, 9)])
def test_layer_normalisation(rng, shape):
    x, dy = rng.normal(size=(2, *shape))
    gamma, beta = rng.normal(size=(2, *[1] * (len(shape) - 1), shape[-1]))
    op = LayerNorm((len(shape) - 1,), 1e-5)
    agrees(op, x, gamma, beta, layouts=["NCHW"], atol=1e-5)
    _, mean, invstd = op.compute(x, gamma, beta)
    grad = LayerNormGrad(op.axes, op.epsilon)
    agrees(grad, x, dy, gamma, mean, invstd, layouts=["NCHW"], atol=1e-5)


def pools():
    """(sizes, windows, stride, padding, ignore_border)"""
    return [
        ((11,), (3,), (2,), (1,), True), ((8, 7), (2, 2), (2, 2), (0, 0), True),
        ((9, 8), (3, 2), (2, 1), (1, 0), True), ((9, 8), (3, 3), (2, 2), (0, 0), False),
        ((7, 6, 5), (2, 3, 2), (2, 2, 1), (0, 1, 0), True), ((2, 2), (3, 3), (3, 3), (2, 2), True),
    ]  # fmt: skip


@needs_onednn
@pytest.mark.parametrize("mode", ["max", "average_inc_pad", "average_exc_pad"])
@pytest.mark.parametrize(("sizes", "ws", "stride", "pad", "ignore"), pools())
def test_pooling(rng, mode, sizes, ws, stride, pad, ignore):
    layouts = ["NCHW", "NHWC"] if len(sizes) > 1 else ["NCHW"]
    fields = (ws, stride, pad, mode, ignore)
    for channels in (3, 16):
        x = np.round(rng.normal(size=(2, channels, *sizes)) * 2)
        agrees(Pool(*fields), x, layouts=layouts)
        if mode != "max":
            dy = rng.normal(size=Pool(*fields).reference(x).shape)
            agrees(AveragePoolGrad(*fields, (None,) * len(sizes)), dy, *sizes, layouts=layouts)


@pytest.mark.parametrize(("sizes", "ws", "stride", "pad", "ignore"), pools()[1:])
def test_the_gradient_of_a_maximum_goes_to_every_tie(rng, sizes, ws, stride, pad, ignore):
    op = MaxPoolGrad(ws, stride, pad, "max", ignore)
    x = np.round(rng.normal(size=(2, 3, *sizes)) * 2)
    y = Pool(*op.settings).reference(x)
    dy = rng.normal(size=y.shape)
    low = OneDnnPoolGrad(op, layout="NHWC")
    given = [last(a) for a in (x, y, dy)]
    call = called(low, given)
    found = [k for k in kernels_for(OneDnnPoolGrad, "cpu") if k.refuses(call) is None]
    assert found[-2].name == "numpy.pool_grad"  # and the reference
    for kernel in found:
        close(launched(kernel, call, given)[0], last(op.reference(x, y, dy)))


@pytest.mark.parametrize("ws", [(2, 2), (3, 1), (2, 1, 2)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_windows_that_tile_have_a_compiled_gradient(rng, ws, dtype):
    op = MaxPoolGrad(ws, ws, (0,) * len(ws), "max", True)
    x = np.round(rng.normal(size=(5, 7, *(12 * w for w in ws))) * 2).astype(dtype)
    y = Pool(*op.settings).reference(x)
    dy = rng.normal(size=y.shape).astype(dtype)
    low = OneDnnPoolGrad(op, layout="NHWC")
    given = [last(a) for a in (x, y, dy)]
    call = called(low, given)
    kernel = TableOracle("cpu").choose(call).kernel
    if jit.problem():
        pytest.skip(jit.problem())
    assert kernel.name == ("llvm.pool_last" if len(ws) == 2 else "llvm.pool_grad")
    found = [k for k in kernels_for(OneDnnPoolGrad, "cpu") if k.refuses(call) is None]
    assert "llvm.pool_grad" in [k.name for k in found]
    for kernel in found:
        result = launched(kernel, call, given)[0]
        np.testing.assert_array_equal(result, last(op.reference(x, y, dy)))


@needs_onednn
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_a_maximum_over_a_nan_is_nan(layout):
    x = new_rng().normal(size=(2, 8, 8, 16))
    x[0, 3, 2, 2], x[1, 2, 3, 3] = np.nan, np.inf
    low = OneDnnPool(Pool((2, 2), (2, 2), (0, 0)), layout=layout)
    np.testing.assert_array_equal(run(low, x)[0], low.compute(x.astype("float32"))[0])


@needs_onednn
def test_what_onednn_refuses_runs_by_the_neutral_ops_kernels(monkeypatch):
    monkeypatch.setattr(Primitive, "is_reference", True)
    low = OneDnnLayerNorm(LayerNorm((1,), 1e-5))
    types = [TensorType("float32", s) for s in ((40, 300), (1, 300), (1, 300))]
    call = Call(low, tuple(types), tuple(low.infer(*types)), NO_HINTS)
    kernel = next(k for k in kernels_for(OneDnnLayerNorm, "cpu") if k.name.startswith("onednn"))
    assert "reference" in kernel.refuses(call)
    given = [new_rng().normal(size=t.shape).astype("float32") for t in types]
    outs = [np.empty(t.shape, t.dtype) for t in call.outputs]
    TableOracle("cpu").choose(call).kernel.bind(call)(given, outs)
    close(outs[0], low.compute(*given)[0])


@needs_onednn
def test_a_training_step_runs_by_onednn(rng):
    x, t = T.ftensor4("x"), T.ivector("t")
    w = symdnn.shared(rng.normal(size=(16, 3, 3, 3)).astype("float32") * 0.1)
    v = symdnn.shared(rng.normal(size=(16 * 36, 10)).astype("float32") * 0.1)
    p = T.nnet.softmax(T.dot(T.tanh(T.nnet.conv2d(x, w)).flatten(2), v))
    loss = T.nnet.categorical_crossentropy(p, t).mean()
    updates = [(s, s - 0.1 * g) for s, g in zip((w, v), T.grad(loss, [w, v]))]
    f = symdnn.function([x, t], loss, updates=updates, mode=symdnn.Mode(target="cpu"))
    images, labels = rng.normal(size=(5, 3, 8, 8)).astype("float32"), np.arange(5, dtype="int32")
    first = f(images, labels)
    for _ in range(20):
        last = f(images, labels)
    assert last < first
    used = f.lowering_report().kernels()
    assert used["onednn.conv"] == 2
    assert used["llvm.gemm"] == 3


def test_what_has_no_kernel_of_onednn_runs_by_numpy():
    x = T.dtensor4("x")
    y = T.nnet.conv2d(x, np.ones((2, 3, 2, 2)))
    f = symdnn.function([x], y, mode=symdnn.Mode(target="cpu"))
    np.testing.assert_allclose(f(np.ones((1, 3, 4, 4))), 12)
    (row,) = [r for r in f.lowering_report().rows if "Conv" in r.op]
    assert row.how == "numpy.reference"


@needs_onednn
def test_an_empty_batch_runs():
    x = T.ftensor4("x")
    f = symdnn.function([x], T.nnet.conv2d(x, np.ones((2, 3, 2, 2), "float32")))
    assert f(np.ones((0, 3, 4, 4), "float32")).shape == (0, 2, 3, 3)
