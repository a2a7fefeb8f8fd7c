"""Convolutions that hand out the batch statistics of their results."""

import numpy as np
import pytest

import symdnn
import symdnn.cpu.execution.runtime  # enters the kernels into the table
import symdnn.tensor as T
from symdnn.config import config
from symdnn.cpu.compiler import jit
from symdnn.cpu.conv.conv_moments import ConvMomentsKernel
from symdnn.cpu.onednn import library
from symdnn.graph.kernel import Call
from symdnn.graph.origin import Hints, hinted
from symdnn.graph.type import TensorType
from symdnn.ops.lowered.norm_parts import BatchMoments
from symdnn.ops.nn.conv import Conv
from symdnn.ops.vendor.conv_moments import OneDnnConvMoments
from symdnn.ops.vendor.onednn import OneDnnConv
from tests.cpu import harness
from tests.seeded import new_rng

needs_both = pytest.mark.skipif(
    bool(library.problem() or jit.problem()), reason="oneDNN or LLVM is missing"
)
AXES = (0, 1, 2)


def launched(op, *arrays):
    """(what the kernel gives, the reference in float64, the kernel's own words)"""
    types = tuple(TensorType(a.dtype.name, a.shape) for a in arrays)
    outputs = op.output_types(types)
    (y,) = op.conv.compute(*op.operands(arrays)[0])
    sizes = [y.shape, *([(1, 1, 1, y.shape[-1])] * (len(outputs) - 1))]
    outputs = tuple(t.with_shape(s) for t, s in zip(outputs, sizes, strict=True))
    call, kernel = Call(op, types, outputs, Hints()), ConvMomentsKernel()
    made = harness.launched(kernel, call, arrays)
    return made, op.reference(*(a.astype("float64") for a in arrays)), kernel.details(call)


def given(shape, kernels, pad, bias=False, running=False, flip=True, offset=0.0):
    rng = new_rng()
    conv = Conv(padding=((pad, pad),) * 2, stride=(1, 1), dilation=(1, 1), groups=1, flip=flip)
    op = OneDnnConvMoments(
        OneDnnConv(conv, layout="NHWC").ending(bias=bias), BatchMoments(AXES, 1e-3, running)
    )
    k = kernels[0]
    arrays = [rng.normal(size=shape) + offset, rng.normal(size=kernels) / 9]
    arrays += [rng.normal(size=(1, 1, 1, k))] * bias
    if running:
        arrays += [np.asarray(0.3), rng.normal(size=(1, 1, 1, k)), rng.uniform(size=(1, 1, 1, k))]
    return op, [np.asarray(a, "f") for a in arrays]


@needs_both
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("shape", "kernels", "pad"),
    [((32, 16, 16, 16), (16, 16, 3, 3), 1), ((16, 17, 19, 32), (40, 32, 3, 3), 1),
     ((64, 12, 12, 20), (50, 20, 5, 5), 0)],
)  # fmt: skip
@pytest.mark.parametrize("running", [False, True])
def test_sums_of_winograd(shape, kernels, pad, running, threads):
    op, arrays = given(shape, kernels, pad, running=running)
    with config.change_flags({"openmp.threads": threads}):
        made, wanted, name = launched(op, *arrays)
    if "AVX-512" in library.library().isa:
        assert name == "llvm.winograd"
    for a, b in zip(made, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


@needs_both
def test_sums_lose_nothing_to_a_large_mean():
    """The moments are those of the result as it was written, to float32's last digits."""
    op, arrays = given((64, 16, 16, 16), (16, 16, 3, 3), 0, offset=500.0)
    (y, mean, invstd), _, _ = launched(op, *arrays)
    wide = y.astype("float64")
    np.testing.assert_allclose(mean[0, 0, 0], wide.mean(AXES), rtol=2e-7)
    np.testing.assert_allclose(invstd[0, 0, 0], (wide.var(AXES) + 1e-3) ** -0.5, rtol=2e-6)


@needs_both
@pytest.mark.parametrize(
    ("shape", "kernels", "pad", "bias"),
    [((2, 5, 6, 3), (7, 3, 3, 3), 1, True), ((3, 9, 9, 16), (24, 16, 2, 2), 0, False)],
)
def test_other_kernels_are_followed_by_a_pass(shape, kernels, pad, bias):
    op, arrays = given(shape, kernels, pad, bias, running=True)
    made, wanted, name = launched(op, *arrays)
    assert name != "llvm.winograd"
    for a, b in zip(made, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


@needs_both
def test_two_launches_and_a_bias():
    """Sums begin anew in each call; a bias counts."""
    op, arrays = given((32, 16, 16, 16), (16, 16, 3, 3), 1, bias=True)
    first, wanted, _ = launched(op, *arrays)
    second, _, _ = launched(op, *arrays)
    for a, b, c in zip(first, second, wanted, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(a, c, rtol=2e-5, atol=2e-5)


def trained(residual):
    """(inputs, results) of a convolution, batch norm with running values, relu."""
    x, w, r = (T.ftensor4(n) for n in "xwr")
    g, b, m, v = (T.fvector(n) for n in "gbmv")
    h = T.nnet.conv2d(x, w, border_mode=1)
    if residual:
        h = h + r
    words = {"running_mean": m, "running_var": v}
    y, *more = T.nnet.bn.batch_normalization_train(h, g, b, "spatial", 1e-3, **words)
    return [x, w, r, g, b, m, v], [T.nnet.relu(y), *more, *T.grad(y.sum(), [x, w])]


@needs_both
@pytest.mark.parametrize("residual", [False, True])
def test_in_a_program(rng, residual):
    inputs, outputs = trained(residual)
    words = {"on_unused_input": "ignore"}
    mode = symdnn.Mode(target="cpu")
    f = symdnn.function(inputs, outputs, mode=mode, **words)
    plain = symdnn.function(
        inputs, outputs, mode=mode.excluding("moments_of_convolutions"), **words
    )
    assert any(isinstance(n.op, OneDnnConvMoments) for n in f.fgraph.nodes) is not residual
    assert not any(isinstance(n.op, OneDnnConvMoments) for n in plain.fgraph.nodes)
    shape = (32, 16, 18, 18)
    arrays = [
        rng.normal(size=shape), rng.normal(size=(16, 16, 3, 3)), rng.normal(size=shape),
        rng.uniform(1, 2, 16), rng.normal(size=16), rng.normal(size=16), rng.uniform(1, 2, 16),
    ]  # fmt: skip
    arrays = [a.astype("f") for a in arrays]
    for _ in range(3):
        for a, b in zip(f(*arrays), plain(*arrays), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * np.abs(b).max())
    if jit.has("avx512f"):  # narrower vectors leave this size to oneDNN
        assert "winograd" in str(f.dnn_report())
    assert "llvm.conv_moments" in str(f.lowering_report()) or residual


def moments_in(f):
    return sum(isinstance(n.op, OneDnnConvMoments) for n in f.fgraph.nodes)


@needs_both
def test_running_values_that_are_made_of_the_result(rng):
    """One node of both would read what it makes."""
    x, w, g, b = T.ftensor4("x"), T.ftensor4("w"), T.fvector("g"), T.fvector("b")
    h = T.nnet.conv2d(x, w, border_mode=1)
    mean = T.tanh(h).mean((0, 2, 3))
    words = {"running_mean": mean, "running_var": mean**2}
    outputs = list(T.nnet.bn.batch_normalization_train(h, g, b, "spatial", 1e-3, **words))
    mode = symdnn.Mode(target="cpu")
    f = symdnn.function([x, w, g, b], outputs, mode=mode)
    plain = symdnn.function([x, w, g, b], outputs, mode=mode.excluding("moments_of_convolutions"))
    assert moments_in(f) == 0
    arrays = [rng.normal(size=s) for s in ((4, 16, 9, 9), (16, 16, 3, 3), 16, 16)]
    arrays = [a.astype("f") for a in arrays]
    for a, c in zip(f(*arrays), plain(*arrays), strict=True):
        np.testing.assert_allclose(a, c, rtol=1e-4, atol=1e-4)


@needs_both
@pytest.mark.parametrize("backend", ["onednn", None])
def test_a_hint_of_whose_kernel_is_wanted_is_kept(backend):
    x, w, g, b = T.ftensor4("x"), T.ftensor4("w"), T.fvector("g"), T.fvector("b")
    with hinted(Hints(backend=backend)):
        h = T.nnet.conv2d(x, w, border_mode=1)
    y = T.nnet.bn.batch_normalization_train(h, g, b, "spatial")[0]
    f = symdnn.function([x, w, g, b], y, mode=symdnn.Mode(target="cpu"))
    assert moments_in(f) == (backend is None)
    f(*(np.ones(s, "f") for s in ((4, 16, 9, 9), (16, 16, 3, 3), 16, 16)))
    assert backend is None or "onednn.conv" in str(f.lowering_report())


def test_the_pass_is_refused_where_moments_are():
    op, arrays = given((2, 5, 6, 3), (7, 3, 3, 3), 1)
    types = tuple(TensorType(a.dtype.name, a.shape) for a in arrays)
    call = Call(op, types, op.output_types(types), Hints())
    with config.change_flags({"cpu.compile": "never"}):
        assert "never" in ConvMomentsKernel().refuses(call)
