"""The slope of relu before the gradient of pooling: when it is, and that values agree exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import symdnn.tensor as T
from symdnn.config import config
from symdnn.gpu import registry
from symdnn.graph.evaluate import evaluate
from symdnn.graph.fgraph import FunctionGraph
from symdnn.ops.elementwise.arithmetic import Mul
from symdnn.ops.elementwise.comparison import Gt
from symdnn.ops.nn.pool import AveragePoolGrad, MaxPoolGrad
from symdnn.ops.vendor.gpudnn import GpuDnnPoolGrad
from symdnn.opt.phases import Selection
from tests.opt.lowering import rewritten
from tests.seeded import new_rng

SELECTION = Selection(frozenset({"fast_run"})).excluding("fusion")
registry.load()


def gradient(
    size: int, stride: int, mode: str = "max", slope: Any = T.nnet.relu
) -> tuple[Any, FunctionGraph, Any]:
    """The gradient through a nonlinearity and pooling: (inputs, its graph, the expression)."""
    x, dy = T.ftensor4("x"), T.ftensor4("dy")
    y = T.signal.pool.pool_2d(
        slope(x), (size, size), ignore_border=True, stride=(stride, stride), mode=mode
    )
    dx = T.grad(None, x, known_grads={y: dy})
    return [x, dy], rewritten([x, dy], [dx], selection=SELECTION), dx


def reads_maxima(fgraph: FunctionGraph) -> bool:
    """Whether what is compared with 0 are the maxima, and what is scaled their gradient."""
    order = fgraph.toposort()
    (pool,) = [n for n in order if isinstance(n.op, GpuDnnPoolGrad | MaxPoolGrad)]
    (compared,) = [n for n in order if isinstance(n.op, Gt)]
    scaled = pool.inputs[2].owner
    return compared.inputs[0] is pool.inputs[1] and scaled is not None and scaled.op == Mul()


def numbers(shape: tuple[int, ...]) -> np.ndarray:
    """Few different values, so that maxima tie, also at 0."""
    return new_rng().integers(-2, 3, shape).astype("float32")


@pytest.mark.parametrize(("size", "stride"), [(2, 2), (3, 2), (3, 1)])
def test_the_slope_goes_to_the_maxima(size: int, stride: int) -> None:
    with config.change_flags(**{"relu_grad_at_0": "zero"}):
        inputs, fgraph, dx = gradient(size, stride)
    assert reads_maxima(fgraph)
    x = numbers((2, 3, 7, 8))
    out = tuple((n - size) // stride + 1 for n in (7, 8))
    dy = numbers((2, 3, *out))
    (got,) = evaluate(fgraph.outputs, dict(zip(fgraph.inputs, [x, dy])))
    (plain,) = evaluate([dx], dict(zip(inputs, [x, dy])))
    np.testing.assert_array_equal(got, np.where(x > 0, plain, 0))


def test_not_where_the_slope_at_0_is_a_half() -> None:
    inputs, fgraph, dx = gradient(2, 2)
    assert not [n for n in fgraph.toposort() if isinstance(n.op, Gt)]
    x, dy = numbers((1, 2, 4, 4)), numbers((1, 2, 2, 2))
    (got,) = evaluate(fgraph.outputs, dict(zip(fgraph.inputs, [x, dy])))
    (plain,) = evaluate([dx], dict(zip(inputs, [x, dy])))
    np.testing.assert_array_equal(got, plain)


@pytest.mark.parametrize("mode", ["average_exc_pad", "average_inc_pad"])
def test_not_behind_a_mean(mode: str) -> None:
    with config.change_flags(**{"relu_grad_at_0": "zero"}):
        _, fgraph, _ = gradient(2, 2, mode)
    order = fgraph.toposort()
    (pool,) = [i for i, n in enumerate(order) if isinstance(n.op, GpuDnnPoolGrad | AveragePoolGrad)]
    (scaled,) = [i for i, n in enumerate(order) if n.op == Mul()]
    assert scaled > pool


def test_not_where_others_read_the_gradient() -> None:
    x, dy = T.ftensor4("x"), T.ftensor4("dy")
    h = T.nnet.relu(x)
    y = T.signal.pool.pool_2d(h, (2, 2), ignore_border=True)
    dh = T.grad(None, h, known_grads={y: dy})
    with config.change_flags(**{"relu_grad_at_0": "zero"}):
        fgraph = rewritten([x, dy], [dh * (h > 0), dh], selection=SELECTION)
    assert not reads_maxima(fgraph)
