"""Batch normalisation with given statistics that no convolution takes in is elementwise."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.graph.evaluate import evaluate
from symdnn.ops.nn.batchnorm import BatchNormInference
from tests.opt.lowering import rewritten
from tests.seeded import new_rng

pytestmark = pytest.mark.cpu

X = T.tensor("float32", (2, 5, 4, 6), name="x")
STATISTICS = [T.tensor("float32", (5,), name=n) for n in ("gamma", "beta", "mean", "var")]


def normalised(x, axes=(0, 2, 3)):
    order = ["x" if a in axes else 0 for a in range(4)]
    return BatchNormInference(axes, 1e-3)(x, *(p.dimshuffle(*order) for p in STATISTICS))


def names(outputs, mode=None):
    f = symdnn.function([X, *STATISTICS], outputs, mode=mode, on_unused_input="ignore")
    return [type(n.op).__name__ for n in f.fgraph.toposort()], f


CASES = {
    "alone": lambda: normalised(X),
    "two readers": lambda: [T.nnet.relu(y := normalised(X)), T.sum(y, axis=(2, 3))],
    "relu": lambda: T.nnet.relu(normalised(X)),
    "sum": lambda: normalised(X) + T.tanh(X),
    "two": lambda: normalised(X) * normalised(X + 1),
    "between_convolutions": lambda: T.nnet.conv2d(
        T.nnet.relu(normalised(T.signal.pool.pool_2d(X, (2, 2), ignore_border=True))),
        np.ones((3, 5, 2, 2), "float32"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_written_out_on_a_cpu(name):
    without = symdnn.Mode().excluding("split_batch_norm")
    ops, f = names(CASES[name]())
    before, g = names(CASES[name](), without)
    assert "OneDnnBatchNormInference" in before
    assert not any("BatchNorm" in n for n in ops)
    rng = new_rng()
    x = rng.normal(size=X.type.shape).astype("float32") + 3
    values = [rng.normal(size=5).astype("float32") for _ in range(3)]
    values.append(rng.uniform(0.1, 2, size=5).astype("float32"))
    found, wanted = (h(x, *values) for h in (f, g))
    for got, want in zip(
        *(r if isinstance(r, list) else [r] for r in (found, wanted)), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("axes", [(0, 2, 3), (0,), (0, 1, 2)])
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_other_dtypes_and_axes_are_written_out_too(rng, dtype, axes):
    x = T.tensor(dtype, (None,) * 4, name="x")
    shape = tuple(1 if a in axes else None for a in range(4))
    kind = "float32" if dtype == "bfloat16" else dtype
    given = [T.tensor(kind, shape, name=n) for n in ("gamma", "beta", "mean", "var")]
    y = BatchNormInference(axes, 1e-3)(x, *given)
    f = symdnn.function([x, *given], y, mode=symdnn.Mode(target="cpu"))
    assert not any("BatchNorm" in type(n.op).__name__ for n in f.fgraph.toposort())
    arrays = [rng.normal(size=(2, 5, 4, 6)).astype(x.type.numpy)]
    sizes = [1 if a in axes else n for a, n in enumerate(arrays[0].shape)]
    arrays += [rng.uniform(0.1, 2, size=sizes).astype(kind) for _ in given]
    wide, gamma, beta, mean, var = (a.astype("float64") for a in arrays)
    want = (wide - mean) * gamma / np.sqrt(var + 1e-3) + beta
    tolerance = 1e-12 if dtype == "float64" else 0.02
    np.testing.assert_allclose(f(*arrays).astype("float64"), want, rtol=tolerance, atol=tolerance)


def test_what_stays():
    """Behind a convolution, and on a GPU where a flag says so."""
    conv = T.nnet.conv2d(X, np.ones((5, 5, 1, 1), "float32"))
    ops, _ = names(T.nnet.relu(normalised(conv)))
    assert [n for n in ops if "Conv" in n or "Batch" in n] == ["OneDnnConv"]
    with config.change_flags(**{"gpu.fold_batch_norm": "off"}):
        on_gpu = names(T.nnet.relu(normalised(X)), symdnn.Mode(target="cuda:sm_90"))[0]
    assert "GpuDnnBatchNormInference" in on_gpu


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_gpu_has_it_written_out_before_layouts_are_chosen(dtype):
    """No copy of activations is left between convolutions with channels last."""
    rng = new_rng()
    x = T.tensor(dtype, (2, 16, 8, 8), name="x")
    w = T.tensor(dtype, (16, 16, 1, 1), name="w")
    statistics = [T.tensor("float32", (16,), name=n) for n in ("gamma", "beta", "mean", "var")]
    order = [p.dimshuffle("x", 0, "x", "x") for p in statistics]

    def build(x, w, *given):
        y = T.nnet.conv2d(x, w, filter_flip=False)
        for _ in range(2):
            pooled = T.concatenate([y, y * 2], axis=1)[:, 8:24]
            y = T.nnet.relu(BatchNormInference((0, 2, 3), 1e-3)(pooled, *order))
            y = T.nnet.conv2d(y, w, filter_flip=False)
        return y

    inputs = [x, w, *statistics]
    f = symdnn.function(inputs, build(*inputs), mode=symdnn.Mode(target="cuda:sm_90"))
    found = [type(n.op).__name__ for n in f.fgraph.toposort()]
    assert not any("BatchNorm" in n for n in found)
    values = [rng.uniform(0.2, 1, size=v.type.shape) for v in inputs]
    values = [a.astype(v.type.numpy) for a, v in zip(values, inputs)]
    plain = symdnn.function(inputs, build(*inputs), mode=symdnn.Mode(optimizer="None"))
    fgraph = rewritten(inputs, [build(*inputs)])
    (made,) = evaluate(fgraph.outputs, dict(zip(fgraph.inputs, values)))
    tolerance = 0.1 if dtype == "bfloat16" else 1e-4
    np.testing.assert_allclose(
        made.astype("float64"), plain(*values).astype("float64"), rtol=tolerance, atol=tolerance
    )
