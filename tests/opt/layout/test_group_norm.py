"""Group and instance norm between convolutions: channels last, split, and values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import symdnn.tensor as T
from symdnn.config import config
from symdnn.graph.type import TensorType
from symdnn.ops.lowered.group_norm import GroupNorm, GroupNormGrad
from symdnn.ops.lowered.norm_parts import BatchMoments, BatchSums
from symdnn.ops.nn.batchnorm import LayerNorm, LayerNormGrad
from symdnn.ops.nn.channels_last import Reorder
from tests.opt.lowering import assert_same_values, rewritten

NORMS = {
    "groups": lambda x, g, b: T.nnet.group_norm(x, 2, g, b),
    "one": lambda x, g, b: T.nnet.group_norm(x, 1, g, b),
    "each": lambda x, g, b: T.nnet.group_norm(x, 6, g, b),
    "instance": T.nnet.instance_norm,
    "plain": lambda x, g, b: T.nnet.group_norm(x, 3) * g.dimshuffle("x", 0, "x", "x"),
}
SHAPE = (2, 6, 5, 4)


def block(norm: Any, static: bool = True, dtype: str = "float64") -> tuple[Any, Any, Any]:
    """A convolution, a norm with silu, a residual and a convolution: result and gradients."""
    rng = np.random.default_rng(3)
    drawn = [
        rng.standard_normal(s).astype(dtype)
        for s in (SHAPE, (6, 6, 3, 3), (6, 6, 3, 3), (6,), (6,))
    ]
    drawn[0] += 3
    types = [a.shape for a in drawn]
    types[0] = SHAPE if static else (None, 6, None, None)
    x, v, w, g, b = (TensorType(dtype, s)(f"v{i}") for i, s in enumerate(types))
    h = T.nnet.conv2d(x, v, border_mode="half")
    y = T.nnet.conv2d(T.nnet.silu(norm(h, g, b)) + h, w, border_mode="half")
    inputs = [x, v, w, g, b]
    grads = T.grad((y * y * T.cos(y)).sum(), inputs, disconnected_inputs="ignore")
    return inputs, [y, *grads], drawn


def kinds(graph: Any) -> dict[type, int]:
    found: dict[type, int] = {}
    for n in graph.toposort():
        found[type(n.op)] = found.get(type(n.op), 0) + 1
    return found


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("name", NORMS)
def test_a_norm_between_convolutions_has_their_layout(name: str, static: bool) -> None:
    inputs, outputs, drawn = block(NORMS[name], static)
    with config.change_flags(**{"gpu.layout": "nhwc"}):
        graph = rewritten(inputs, outputs)
    found = kinds(graph)
    assert (found[BatchMoments], found[BatchSums]) == (1, 1)
    assert not {GroupNorm, GroupNormGrad, LayerNorm, LayerNormGrad} & found.keys()
    assert found[Reorder] == 3 + 4  # what enters and leaves: activations, filters, gradients
    statistics = [n.op.axes for n in graph.toposort() if isinstance(n.op, BatchMoments | BatchSums)]
    assert set(statistics) == {(1, 2)}
    assert_same_values(graph, inputs, outputs, drawn, rtol=1e-8)


@pytest.mark.parametrize("flags", [{"gpu.layout": "nchw"}, {"gpu.layout": "auto"}])
def test_without_channels_last_rows_are_read_once(flags: dict[str, str]) -> None:
    inputs, outputs, drawn = block(NORMS["groups"])
    with config.change_flags(**flags):
        graph = rewritten(inputs, outputs)
    assert kinds(graph)[LayerNorm] == kinds(graph)[LayerNormGrad] == 1
    assert_same_values(graph, inputs, outputs, drawn)


def test_far_from_convolutions_it_stays_a_layer_norm() -> None:
    """Its neighbours need NCHW: rows are read once, and nothing is reordered for it."""
    x = TensorType("float64", SHAPE)("x")
    w = TensorType("float64", (6, 6, 3, 3))("w")
    y = T.nnet.group_norm(x, 2).flatten(2)
    z = T.nnet.conv2d(T.nnet.relu(x), w)
    rng = np.random.default_rng(1)
    drawn = [rng.standard_normal(SHAPE), rng.standard_normal((6, 6, 3, 3))]
    with config.change_flags(**{"gpu.layout": "nhwc"}):
        graph = rewritten([x, w], [y, z])
    assert kinds(graph)[LayerNorm] == 1
    assert_same_values(graph, [x, w], [y, z], drawn)


@pytest.mark.parametrize("what", ["second derivative", "channels mixed", "elements scaled"])
def test_near_misses_are_left_alone(what: str) -> None:
    """A reader of the statistics, other groups, and parameters that are not of channels."""
    x, w = TensorType("float64", SHAPE)("x"), TensorType("float64", (6, 6, 3, 3))("w")
    h = T.nnet.conv2d(x, w, border_mode="half")
    if what == "second derivative":
        (g,) = T.grad((T.nnet.group_norm(h, 2) ** 3).sum(), [x])
        y = T.grad((g * g).sum(), w)
    elif what == "channels mixed":
        rows = h.reshape((2, 3, 10, 4))
        y = T.nnet.layer_norm(rows, axes=(2, 3)).reshape(SHAPE)
    else:
        p = TensorType("float64", SHAPE[1:])("p")
        y = T.nnet.layer_norm(h, p, p, axes=(1, 2, 3))
    inputs = [x, w, *([p] if what == "elements scaled" else [])]
    rng = np.random.default_rng(2)
    drawn = [rng.standard_normal(v.type.shape) for v in inputs]
    with config.change_flags(**{"gpu.layout": "nhwc"}):
        graph = rewritten(inputs, [y])
    if what != "second derivative":
        assert kinds(graph)[LayerNorm] == 1
    assert not {GroupNorm, GroupNormGrad} & kinds(graph).keys()
    assert_same_values(graph, inputs, [y], drawn, rtol=1e-7)


def test_a_constant_channel_keeps_its_variance() -> None:
    """Channels without variance in a group with others, far from 0."""
    rng = np.random.default_rng(4)
    values = np.broadcast_to(100 * rng.standard_normal((2, 6, 1, 1)), SHAPE).copy()
    values[:, 1::2] += rng.standard_normal((2, 3, 5, 4))
    x, w = TensorType("float64", SHAPE)("x"), TensorType("float64", (6, 6, 1, 1))("w")
    y = T.nnet.conv2d(T.nnet.group_norm(T.nnet.relu(T.nnet.conv2d(x, w)), 3, epsilon=0.0), w)
    with config.change_flags(**{"gpu.layout": "nhwc"}):
        graph = rewritten([x, w], [y])
    assert BatchMoments in kinds(graph)
    assert_same_values(graph, [x, w], [y], [values, np.eye(6).reshape(6, 6, 1, 1)], rtol=1e-7)
