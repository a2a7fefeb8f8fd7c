"""Between 1-D convolutions nothing is reordered: elementwise ops, slices, gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.config import config
from symdnn.graph.type import TensorType
from symdnn.ops.elemwise import Elemwise
from symdnn.ops.nn.channels_last import Reorder
from tests.opt.lowering import assert_same_values, rewritten

SHAPE, FILTERS = (2, 4, 12), (4, 4, 3)


def stack(middle: Any, static: bool) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(6)
    drawn = [rng.standard_normal(s) for s in (SHAPE, FILTERS, FILTERS)]
    x = TensorType("float64", SHAPE if static else (None, 4, None))("x")
    v, w = (TensorType("float64", FILTERS)(n) for n in "vw")
    y = T.nnet.conv1d(middle(T.nnet.conv1d(x, v)), w, border_mode="half")
    return [x, v, w], [y, *T.grad((y * T.cos(y)).sum(), [x, v, w])], drawn


def batch_norm(h: Any) -> Any:
    scale, shift = (T.constant(np.linspace(a, 2, 4).astype(h.dtype)) for a in (0.5, -1))
    return symdnn.nn.functional.batch_norm(h, None, None, scale, shift, training=True)


MIDDLES = {
    "batch norm": lambda h: T.nnet.relu(batch_norm(h)),
    "gelu": lambda h: T.nnet.gelu(h),
    "chain": lambda h: T.tanh(h) * T.nnet.sigmoid(h) + h,
    "bias": lambda h: T.nnet.silu(h + T.constant(np.arange(4.0)[None, :, None])),
    "slice": lambda h: T.nnet.gelu(h[:, :, 1:-2]) * 2,
}


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("name", MIDDLES)
def test_only_what_enters_and_leaves_is_reordered(name: str, static: bool) -> None:
    inputs, outputs, drawn = stack(MIDDLES[name], static)
    with config.change_flags(**{"gpu.layout": "nhwc"}):
        graph = rewritten(inputs, outputs)
    reorders = [n for n in graph.toposort() if isinstance(n.op, Reorder)]
    # Activations and filters, the result, and what the gradient begins and ends with.
    assert len(reorders) <= 3 + 5
    between = [n for n in graph.toposort() if isinstance(n.op, Elemwise)]
    assert {v.type.ndim for n in between for v in n.outputs} >= {4}
    for node in reorders:
        readers = {type(n.op).__name__ for n in graph.user_nodes(node.outputs[0])}
        assert not readers & {"Gelu", "Tanh", "Sigmoid"}
    assert_same_values(graph, inputs, outputs, drawn)


@pytest.mark.parametrize("flags", [{"gpu.layout": "nchw"}, {"gpu.layout": "auto"}])
def test_without_channels_last_rows_stay(flags: dict[str, str]) -> None:
    inputs, outputs, drawn = stack(MIDDLES["gelu"], True)
    with config.change_flags(**flags):
        graph = rewritten(inputs, outputs[:1])
    between = [n for n in graph.toposort() if isinstance(n.op, Elemwise)]
    assert {v.type.ndim for n in between for v in n.outputs} == {3}
    assert_same_values(graph, inputs, outputs[:1], drawn)


def test_updates_of_filters_stay_in_place() -> None:
    """The gradient of filters is a view of an image of one row, too; their update is none."""
    net = nn.Sequential(nn.Conv1d(4, 8, 3, bias=False), nn.GELU(), nn.Conv1d(8, 8, 3, bias=False))
    x = T.tensor("float32", (2, 4, 16), name="x")
    with config.change_flags(amp="bf16"):
        updates = nn.optim.adam(T.sqr(net(x)).mean(), net, 0.1)
        f = symdnn.function([x], [], updates=updates, mode=symdnn.Mode(target="cuda:sm_90"))
    (plan,) = f.stages.specialise({})
    assert all(old.ndim == 0 for old in plan.memory.copied.values())
    assert len(plan.memory.stored) == 2 * 3  # the filters, and two means of each
