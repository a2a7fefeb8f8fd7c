"""Pooling, batch norm and softmax of values that lie in another order than they are seen."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.graph.evaluate import evaluate
from symdnn.graph.type import TensorType

CUDA = symdnn.Mode(target="cuda:sm_90")


def compiled(inputs, outputs):
    """The nodes of the rewritten graph, its values compared with those of the expression."""
    graph = symdnn.function(inputs, outputs, mode=CUDA).stages.fgraph
    rng = np.random.default_rng(0)
    values = [rng.standard_normal([n or 6 for n in v.type.shape]).astype("float32") for v in inputs]
    before = evaluate(outputs, dict(zip(inputs, values)))
    after = evaluate(graph.outputs, dict(zip(graph.inputs, values)))
    for a, b in zip(before, after):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    return {type(n.op).__name__: n for n in graph.toposort()}


def image(last=True):
    return TensorType("float32", (2, 8, 6, 4) if last else (2, 4, 8, 6))("x")


def pooled(x, mode="max"):
    seen = T.signal.pool.pool_2d(
        x.dimshuffle(0, 3, 1, 2), (3, 3), ignore_border=True, stride=(2, 2), pad=(1, 1), mode=mode
    )
    return seen.dimshuffle(0, 2, 3, 1)


@pytest.mark.parametrize("mode", ["max", "average_exc_pad"])
def test_pooling_and_its_gradient_take_the_layout(mode):
    x = image()
    y = pooled(x, mode)
    dy = y.type("dy")
    grads = symdnn.grad(None, [x], known_grads={y: dy})
    found = compiled([x, dy], [y, *grads])
    assert found["GpuDnnPool"].op.layout == found["GpuDnnPoolGrad"].op.layout == "NHWC"


def test_batch_norm_takes_the_layout():
    x, gamma = image(), TensorType("float32", (4,))("gamma")
    own = gamma.dimshuffle("x", 0, "x", "x")
    y, *_ = T.nnet.bn.batch_normalization_train(
        x.dimshuffle(0, 3, 1, 2), own, own, axes=(0, 2, 3), epsilon=1e-3
    )
    found = compiled([x, gamma], [y.dimshuffle(0, 2, 3, 1)])
    assert found["GpuDnnBatchNorm"].op.layout == "NHWC"


def test_what_lies_channels_first_stays():
    x = image(last=False)
    y = T.signal.pool.pool_2d(x, (2, 2), ignore_border=True)
    assert compiled([x], [y])["GpuDnnPool"].op.layout == "NCHW"
    y = T.signal.pool.pool_2d(x.dimshuffle(0, 1, 3, 2), (2, 2), ignore_border=True)
    assert compiled([x], [y])["GpuDnnPool"].op.layout == "NCHW"


def test_the_rewrite_can_be_switched_off():
    x, mode = image(), CUDA.excluding("images_seen_last")
    graph = symdnn.function([x], pooled(x), mode=mode).stages.fgraph
    (pool,) = [n for n in graph.toposort() if type(n.op).__name__ == "GpuDnnPool"]
    assert pool.op.layout == "NCHW"


@pytest.mark.parametrize("function", [T.nnet.softmax, T.nnet.logsoftmax])
@pytest.mark.parametrize("order", [(0, 3, 1, 2), (2, 0, 1), (1, 0)])
def test_softmax_and_its_gradient_are_computed_as_values_lie(order, function):
    x = TensorType("float32", (4, 5, 3, 2)[: len(order)])("x")
    y = function(x.dimshuffle(*order), axis=1)
    back = [order.index(i) for i in range(len(order))]
    result = y.dimshuffle(*back)
    dy = result.type("dy")
    grads = symdnn.grad(None, [x], known_grads={result: dy})
    found = compiled([x, dy], [result, *grads])
    assert found["GpuDnnSoftmax"].op.axis == found["GpuDnnSoftmaxGrad"].op.axis == order[1]
    assert "DimShuffle" not in found


def test_a_softmax_of_other_views_stays():
    x = TensorType("float32", (4, 5))("x")
    wide = T.nnet.softmax(x.dimshuffle(1, "x", 0), axis=2)
    assert compiled([x], [wide])["GpuDnnSoftmax"].op.axis == 2


@pytest.mark.parametrize("axes", [(0, 2, 3), (1,), (0, 1, 2, 3)])
@pytest.mark.parametrize("of", ["sum", "norm", "max", "argmax"])
def test_a_reduction_is_no_softmax(of, axes):
    """cuDNN's reductions have an axis too: one, several, or all."""
    x = image()
    seen = x.dimshuffle(0, 3, 1, 2)
    found = {
        "sum": lambda: T.sum(seen, axis=axes),
        "norm": lambda: T.sum(seen**2, axis=axes),
        "max": lambda: T.max(seen, axis=axes),
        "argmax": lambda: T.argmax(seen, axis=axes),
    }[of]()
    with symdnn.config.change_flags(on_opt_error="raise"):
        compiled([x], [found])
