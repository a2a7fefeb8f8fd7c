"""Increments at places that are known when the graph is built are sums of listed elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.autodiff import grad
from symdnn.config import config
from symdnn.gpu import registry
from symdnn.graph.evaluate import evaluate
from symdnn.graph.type import TensorType
from symdnn.ops.array.advanced_index import AdvancedIncSubtensor, AdvancedSubtensor
from symdnn.ops.lowered.gathered import ListedSums
from tests.opt.lowering import CPU, assert_same_values, rewritten
from tests.seeded import new_rng

registry.load()
MODES = ("reflect", "symmetric", "edge", "wrap")


def ops_of(fgraph: Any, *kinds: Any) -> list[Any]:
    return [n.op for n in fgraph.toposort() if isinstance(n.op, kinds)]


def image(*shape: int | None, dtype: str = "float64") -> Any:
    return TensorType(dtype, shape)("x")


def padded_gradient(x: Any, width: Any, mode: str) -> Any:
    y = T.pad(x, width, mode=mode)
    return grad((T.exp(y) * y).sum(), x)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("shape", "width"),
    [
        ((2, 3, 5, 6), ((0, 0), (0, 0), (2, 1), (1, 3))), ((7,), ((2, 3),)),
        ((4, 5), ((3, 0), (0, 2))), ((3, 4, 2), ((0, 0), (1, 1), (0, 0))),
    ],
)  # fmt: skip
def test_the_gradient_of_padding_scatters_nothing(mode, shape, width):
    x, value = image(*shape), new_rng().standard_normal(shape)
    dx = padded_gradient(x, width, mode)
    fgraph = rewritten([x], [dx])
    assert len(ops_of(fgraph, ListedSums)) == 1
    assert ops_of(fgraph, AdvancedIncSubtensor) == []
    assert_same_values(fgraph, [x], [dx], [value])
    step, i = 1e-6, tuple(n // 2 for n in shape)
    ends = []
    for sign in (1, -1):
        moved = value.copy()
        moved[i] += sign * step
        y = np.pad(moved, width, mode=mode)
        ends.append((np.exp(y) * y).sum())
    (found,) = evaluate(fgraph.outputs, {fgraph.inputs[0]: value})
    np.testing.assert_allclose(found[i], (ends[0] - ends[1]) / (2 * step), rtol=1e-5)


LEFT = {
    "unknown sizes": lambda x, y: T.inc_subtensor(x[np.array([0, 1, 1])], y),
    "a variable index": lambda x, y: T.inc_subtensor(x[T.ivector("i")], y),
    "assigned": lambda x, y: T.set_subtensor(x[np.array([0, 2, 2])], y),
    "few of many": lambda x, y: T.inc_subtensor(x[np.array([0, 2, 2])], y),
    "one place too often": lambda x, y: T.inc_subtensor(x[np.array([0, 0, *[2] * 20])], y),
    "two arrays side by side": lambda x, y: T.inc_subtensor(
        x[np.array([0, 1, 1]), np.array([0, 1, 0])], y
    ),
    "what broadcasts": lambda x, y: T.inc_subtensor(x[np.array([0, 2, 2])], y),
}
SHAPES = {"unknown sizes": (None, 4), "few of many": (30, 4), "two arrays side by side": (3, 4)}
ADDED = {"one place too often": (22, 4), "two arrays side by side": (3,), "what broadcasts": (1, 4)}


@pytest.mark.parametrize("why", LEFT)
def test_left_alone(why):
    x, y = image(*SHAPES.get(why, (4, 4))), image(*ADDED.get(why, (3, 4)))
    out = LEFT[why](x, y)
    index = [v for v in out.owner.inputs[2:] if v.owner is None and v.name]
    assert ops_of(rewritten([x, y, *index], [out]), ListedSums) == []


def test_another_term_is_added_and_a_cpu_scatters():
    x, y = image(4, 3), image(4, 3)
    out = T.inc_subtensor(x[np.array([0, 2, 2, -1])], y)
    fgraph = rewritten([x, y], [out])
    assert len(ops_of(fgraph, ListedSums)) == 1
    values = [new_rng().standard_normal((4, 3)) for _ in range(2)]
    assert_same_values(fgraph, [x, y], [out], values)
    assert ops_of(rewritten([x, y], [out], target=CPU), ListedSums) == []


@pytest.mark.parametrize("mode", MODES)
def test_padding_between_convolutions_has_their_layout_and_dtype(mode):
    nn.init.seed(3)
    first, second = nn.Conv2d(4, 8, 3), nn.Conv2d(8, 8, 3)
    x = T.TensorType("float32", (2, 4, 16, 16))("x")

    def widened(y: Any) -> Any:
        return T.pad(y, ((0, 0), (0, 0), (1, 1), (2, 1)), mode=mode)

    loss = T.sqr(second(widened(T.nnet.relu(first(widened(x)))))).mean()
    outputs = [loss, *grad(loss, [*first.parameters(), *second.parameters()])]
    with config.change_flags(amp="bf16", **{"gpu.layout": "nhwc"}):
        f = symdnn.function([x], outputs, mode=symdnn.Mode(target="cuda:sm_90"))
    moved = [n for n in f.fgraph.toposort() if isinstance(n.op, AdvancedSubtensor | ListedSums)]
    assert [type(n.op) for n in moved].count(ListedSums) == 1
    for node in moved:
        assert node.outputs[0].type.dtype == "bfloat16"
        assert node.outputs[0].type.shape[-1] in (4, 8)  # channels last
    value = new_rng().standard_normal((2, 4, 16, 16)).astype("float32")
    wanted = evaluate(outputs, {x: value})
    got = evaluate(f.fgraph.outputs, {f.fgraph.inputs[0]: value})
    for a, b in zip(got, wanted, strict=True):
        scale = np.abs(b).max() + 1e-3
        assert np.abs(np.asarray(a, "f4").reshape(b.shape) - b).max() <= 4e-2 * scale


def test_lists_have_the_order_of_the_index():
    y = image(5)
    out = T.inc_subtensor(T.zeros((3,), "float64")[np.array([2, 0, 2, -1, 0])], y)
    fgraph = rewritten([y], [out])
    (node,) = [n for n in fgraph.toposort() if isinstance(n.op, ListedSums)]
    assert node.inputs[1].type.dtype == "int32"
    assert node.inputs[1].data.tolist() == [[1, 4, -1], [-1, -1, -1], [0, 2, 3]]
