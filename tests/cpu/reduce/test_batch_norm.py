"""Batch normalisation by compiled loops: statistics, sums of gradients, what is fused with them."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.cpu.compiler import jit
from symdnn.cpu.onednn import library
from symdnn.cpu.reduce.batch_norm import MomentsKernel, SumsKernel
from symdnn.graph.target import Target
from symdnn.graph.type import TensorType
from symdnn.ops.lowered.norm_formulas import grad_terms
from symdnn.ops.lowered.norm_parts import BatchMoments, BatchSums
from symdnn.ops.vendor.onednn import OneDnnConv
from tests.cpu import harness
from tests.seeded import new_rng

needs_llvm = pytest.mark.skipif(bool(jit.problem()), reason="llvmlite is not installed")
FIRST, LAST = (0, 2, 3), (0, 1, 2)


def launched(kernel, op, *arrays):
    """The kernel's results in float64, and the reference's on float64 operands."""
    with np.errstate(all="ignore"):  # as in a plan
        out = harness.launched(kernel, harness.called(op, arrays), arrays)
        return out, op.reference(*(a.astype("float64") for a in arrays))


@needs_llvm
@pytest.mark.parametrize("shape", [(5, 7, 3, 11), (64, 16, 9, 8), (1, 1, 1, 1), (2, 300, 1, 2)])
@pytest.mark.parametrize("axes", [FIRST, LAST])
@pytest.mark.parametrize("offset", [0.0, 300.0])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_moments(rng, shape, axes, offset, dtype):
    x = (rng.normal(size=shape) * rng.uniform(0.1, 9) + offset).astype(dtype)
    kept = tuple(1 if i in axes else n for i, n in enumerate(shape))
    factor = np.asarray(0.3, "f")
    mean, variance = rng.normal(size=kept).astype("f"), rng.uniform(size=kept).astype("f")
    op = BatchMoments(axes, 1e-3, running=True)
    found, wanted = launched(MomentsKernel(), op, x, factor, mean, variance)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-6, atol=2e-6)


@needs_llvm
@pytest.mark.parametrize("axes", [FIRST, LAST])
def test_sums(rng, axes):
    x, dy = (rng.normal(size=(9, 12, 10, 14)).astype("f") for _ in range(2))
    kept = tuple(1 if i in axes else n for i, n in enumerate(x.shape))
    mean, invstd = rng.normal(size=kept).astype("f"), rng.uniform(1, 2, size=kept).astype("f")
    op = BatchSums(grad_terms(["float32"] * 4), axes)
    found, wanted = launched(SumsKernel(), op, x, dy, mean, invstd)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@needs_llvm
def test_what_is_not_finite_stays_so():
    x = new_rng().normal(size=(4, 3, 5, 5)).astype("f")
    x[1, 0, 2, 2], x[2, 1, 0, 0] = np.nan, np.inf
    (mean, invstd), _ = launched(MomentsKernel(), BatchMoments(FIRST, 1e-5), x)
    assert np.isnan(mean[0, 0])
    assert np.isnan(invstd[0, 0])
    assert np.isinf(mean[0, 1])
    assert np.isfinite([mean[0, 2], invstd[0, 2]]).all()


def block(last, residual, running):
    """(inputs, results): conv, batch norm, relu and its gradients; with running values too."""
    x, dy, r = T.ftensor4("x"), T.ftensor4("dy"), T.ftensor4("r")
    w, g, b, mean, variance = T.ftensor4("w"), *(T.fvector(n) for n in ("g", "b", "m", "v"))
    a = x.dimshuffle(0, 3, 1, 2) if last else x
    h = T.nnet.conv2d(a, w, border_mode=1) if residual else a
    words = {"running_mean": mean, "running_var": variance} if running else {}
    y, *more = T.nnet.bn.batch_normalization_train(h, g, b, "spatial", 1e-3, **words)
    y = T.nnet.relu(y + (r if residual else 0))
    wrt = [a, g, b, *([w, r] if residual else [])]
    grads = symdnn.grad(None, wrt, known_grads={y: dy})
    return [x, dy, w, r, g, b, mean, variance], [y, *more, *grads]


@pytest.mark.skipif(bool(library.problem() or jit.problem()), reason="oneDNN or LLVM is missing")
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("running", [False, True])
def test_a_block_is_taken_apart_and_has_the_same_values(rng, last, residual, running):
    inputs, outputs = block(last, residual, running)
    n, c, h, w = shape = (3, 4, 6, 7)
    given = [
        rng.normal(size=(n, h, w, c) if last else shape), rng.normal(size=shape),
        rng.normal(size=(c, c, 3, 3)), rng.normal(size=shape), rng.uniform(1, 2, c),
        rng.normal(size=c), rng.normal(size=c), rng.uniform(1, 2, c),
    ]  # fmt: skip
    given = [a.astype("f") for a in given]
    words = {"on_unused_input": "ignore"}
    fused = symdnn.function(inputs, outputs, mode=symdnn.Mode(target="cpu"), **words)
    mode = symdnn.Mode(target="cpu").excluding("split_batch_norm", "onednn")
    plain = symdnn.function(inputs, outputs, mode=mode, **words)
    kinds = {type(n.op).__name__ for n in fused.fgraph.nodes}
    assert {"OneDnnConvMoments" if residual else "BatchMoments", "BatchSums"} <= kinds
    assert not any("BatchNorm" in k for k in kinds)
    for a, b in zip(fused(*given), plain(*given), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4)


@needs_llvm
@pytest.mark.parametrize("last", [False, True])
def test_float16_is_taken_apart_too(rng, last):
    """Statistics and sums are of float32, results rounded once."""
    x, dy, g, b = (TensorType("float16", (None,) * n)() for n in (4, 4, 1, 1))
    y = T.nnet.bn.batch_normalization_train(
        x.dimshuffle(0, 3, 1, 2) if last else x, g, b, "spatial"
    )[0]
    outputs = [y, *symdnn.grad(None, [x, g, b], known_grads={y: dy})]
    n, c, h, w = shape = (3, 4, 6, 7)
    arrays = [
        rng.normal(size=(n, h, w, c) if last else shape) * 3 + 2, rng.normal(size=shape),
        rng.uniform(1, 2, c), rng.normal(size=c),
    ]  # fmt: skip
    arrays = [a.astype("float16") for a in arrays]
    f = symdnn.function([x, dy, g, b], outputs, mode=symdnn.Mode(target="cpu"))
    assert not any("BatchNorm" in type(node.op).__name__ for node in f.fgraph.nodes)
    mode = symdnn.Mode(target="cpu").excluding("split_batch_norm")
    whole = symdnn.function([x, dy, g, b], outputs, mode=mode)
    for found, wanted in zip(f(*arrays), whole(*arrays), strict=True):
        assert found.dtype == wanted.dtype == "float16"
        np.testing.assert_allclose(found.astype("f"), wanted.astype("f"), rtol=4e-3, atol=4e-3)


def test_without_a_compiler_it_stays_whole():
    inputs, outputs = block(False, False, False)
    with config.change_flags({"cpu.compile": "never"}):
        f = symdnn.function(
            inputs, outputs, mode=symdnn.Mode(target="cpu"), on_unused_input="ignore"
        )
    assert not any(isinstance(n.op, BatchMoments | BatchSums) for n in f.fgraph.nodes)


def test_double_precision_stays_whole():
    x = T.dtensor4("x")
    y = T.nnet.bn.batch_normalization_train(x, np.ones(3), np.zeros(3), "spatial")[0]
    f = symdnn.function([x], y, mode=symdnn.Mode(target="cpu"))
    assert not any(isinstance(n.op, BatchMoments) for n in f.fgraph.nodes)


def inference(residual, groups=1):
    """(inputs, result): a convolution, normalisation by given statistics, relu."""
    x, w, r = (T.ftensor4(n) for n in "xwr")
    g, b, mean, variance = (T.fvector(n) for n in "gbmv")
    h = T.nnet.conv2d(x, w, border_mode=1, num_groups=groups)
    y = T.nnet.bn.batch_normalization_test(h, g, b, mean, variance, "spatial", 1e-3)
    z = T.nnet.conv2d(r, w, border_mode=1, num_groups=groups)
    return [x, w, g, b, mean, variance, r], T.nnet.relu(y + z if residual else y)


@pytest.mark.parametrize("residual", [False, True])
def test_given_statistics_become_part_of_the_convolution(residual):
    inputs, y = inference(residual)
    target = Target("cpu", onednn=(3, 2, 0), isa="AVX-512", threads=2)
    words = {"on_unused_input": "ignore"}
    f = symdnn.function(inputs, y, mode=symdnn.Mode(target=target), **words)
    convolutions = [n.op for n in f.fgraph.nodes if isinstance(n.op, OneDnnConv)]
    (op,) = [op for op in convolutions if not op.is_plain]
    assert (op.bias, op.activation, op.residual) == (True, "relu", residual)
    assert not any("BatchNorm" in type(n.op).__name__ for n in f.fgraph.nodes)
    mode = symdnn.Mode(target=target).excluding("fold_batch_norm")
    g = symdnn.function(inputs, y, mode=mode, **words)
    assert not any(getattr(n.op, "bias", False) for n in g.fgraph.nodes)


@pytest.mark.skipif(bool(library.problem()), reason="oneDNN is not installed")
@pytest.mark.parametrize("groups", [1, 2])
def test_folded_statistics_give_the_same_values(rng, groups):
    inputs, y = inference(True, groups)
    sizes = (3, 4, 6, 7), (6, 4 // groups, 3, 3), 6, 6, 6, 6, (3, 4, 6, 7)
    given = [rng.normal(size=s).astype("f") for s in sizes]
    given[5] = np.abs(given[5]) + np.float32(0.1)
    fast, plain = (
        symdnn.function(inputs, y, mode=symdnn.Mode(target=t))(*given)
        for t in ("cpu", Target("cpu"))
    )
    np.testing.assert_allclose(fast, plain, rtol=1e-4, atol=1e-4)


def narrow(target, excluded=()):
    """(function, arguments): conv, batch norm, relu, pool and gradients of bfloat16 images."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    image = TensorType("bfloat16", (None,) * 4)
    x, w, dy, g, b = image("x"), image("w"), image("dy"), T.fvector("g"), T.fvector("b")
    h = T.nnet.conv2d(x, w, border_mode=1)
    y = T.nnet.relu(T.nnet.bn.batch_normalization_train(h, g, b, "spatial", 1e-3)[0])
    y = T.signal.pool.pool_2d(y, (2, 2), ignore_border=True, mode="average_inc_pad")
    grads = symdnn.grad(None, [x, w, g, b], known_grads={y: dy})
    mode = symdnn.Mode(target=target).excluding(*excluded)
    f = symdnn.function([x, w, g, b, dy], [y, *grads], mode=mode)
    rng = np.random.default_rng(8)
    sizes = (4, 16, 12, 12), (32, 16, 3, 3), (4, 32, 6, 6)
    a, k, c = (rng.normal(size=s).astype(ml_dtypes.bfloat16) for s in sizes)
    return f, (a, k, np.full(32, 1.5, "f"), np.full(32, 0.1, "f"), c)


@pytest.mark.skipif(
    bool(library.problem() or jit.problem()) or not library.has_bfloat16(),
    reason="a library is missing, or the CPU does not compute in bfloat16",
)
@pytest.mark.parametrize("excluded", [(), ("split_batch_norm",)])
def test_bfloat16_images(excluded):
    f, given = narrow("cpu", excluded)
    plain, _ = narrow(Target("cpu"), ("split_batch_norm",))
    for a, b in zip(f(*given), plain(*given), strict=True):
        a, b = a.astype("float64"), b.astype("float64")
        np.testing.assert_allclose(a, b, atol=0.02 * np.abs(b).max())
    kernels = {n: c.kernel.name for p in f.plans() for n, c in p.specialised.choices.items()}
    heavy = [k for n, k in kernels.items() if "OneDnn" in type(n.op).__name__]
    assert heavy
    assert all(k.startswith("onednn.") for k in heavy)
    assert not any("BatchNorm" in type(n.op).__name__ and k.startswith("numpy")
                   for n, k in kernels.items())  # fmt: skip


def test_bfloat16_where_the_processor_has_it_not():
    pytest.importorskip("ml_dtypes")
    target = Target("cpu", onednn=(3, 2, 0), isa="AVX2", threads=2)
    f, _ = narrow(target)
    lowered = [n for n in f.fgraph.nodes if "OneDnn" in type(n.op).__name__]
    assert len(lowered) >= 3
    assert {v.type.dtype for n in lowered for v in n.outputs} == {"float32"}
