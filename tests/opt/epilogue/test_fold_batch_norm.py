"""Batch normalisation with given statistics that no convolution takes in: elementwise ops do."""

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
    "relu": lambda: T.nnet.relu(normalised(X)),
    "sum": lambda: normalised(X) + T.tanh(X),
    "two": lambda: normalised(X) * normalised(X + 1),
    "between_convolutions": lambda: T.nnet.conv2d(
        T.nnet.relu(normalised(T.signal.pool.pool_2d(X, (2, 2), ignore_border=True))),
        np.ones((3, 5, 2, 2), "float32"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_written_out_for_an_elementwise_op(name):
    without = symdnn.Mode().excluding("batch_norm_into_elementwise")
    ops, f = names(CASES[name]())
    before, g = names(CASES[name](), without)
    assert "OneDnnBatchNormInference" in before
    assert not any("BatchNorm" in n for n in ops)
    rng = new_rng()
    x = rng.normal(size=X.type.shape).astype("float32") + 3
    values = [rng.normal(size=5).astype("float32") for _ in range(3)]
    values.append(rng.uniform(0.1, 2, size=5).astype("float32"))
    np.testing.assert_allclose(f(x, *values), g(x, *values), rtol=1e-4, atol=1e-5)


def test_what_stays():
    """Without an elementwise reader, with two readers, behind a convolution."""
    y = normalised(X)
    stays = [
        normalised(X),
        [T.nnet.relu(y), T.sum(y, axis=(2, 3))],
        T.nnet.relu(y).dimshuffle(1, 0, 2, 3) + T.max(y),
    ]
    for outputs in stays:
        assert "OneDnnBatchNormInference" in names(outputs)[0]
    conv = T.nnet.conv2d(X, np.ones((5, 5, 1, 1), "float32"))
    ops, _ = names(T.nnet.relu(normalised(conv)))
    assert [n for n in ops if "Conv" in n or "Batch" in n] == ["OneDnnConv"]
    with config.change_flags(**{"gpu.fold_batch_norm": "off"}):
        on_gpu = names(T.nnet.relu(y), symdnn.Mode(target="cuda:sm_90"))[0]
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
