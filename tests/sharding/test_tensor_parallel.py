"""Networks whose dimensions are shared out: on real ranks, and their graphs in one process."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import AxisError, InputError, ShapeMismatch
from symdnn.graph.traverse import toposort
from symdnn.nn import parallel
from symdnn.nn.optimizers import base
from symdnn.ops.collective.base import Collective
from symdnn.sharding.axis import Split, sliced
from symdnn.sharding.storage import layout_of
from symdnn.world import process
from symdnn.world.launcher import Launched
from tests.distributed import harness


def test_networks_on_2_ranks_are_those_of_one(tmp_path):
    quick = ("check_a_perceptron", "check_an_attention", "check_fit_with_checkpoints")
    harness.checks(2, tmp_path, "tensor_checks", only=quick)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
def test_networks_on_2_and_4_ranks_are_those_of_one(count, tmp_path):
    harness.checks(count, tmp_path, "tensor_checks")


@pytest.fixture
def of_two(monkeypatch):
    """A world of two ranks, of which this is the last; nothing joins them."""
    monkeypatch.setattr(process, "_current", process.World(Launched(1, 2, 1, 2, "a test")))
    for room in (parallel, base):
        monkeypatch.setattr(room, "broadcast_values", lambda *_: None)


def collectives(inputs, outputs, target="cpu", updates=()):
    mode = symdnn.Mode(target=target, optimizer="fast_compile")
    f = symdnn.function(inputs, outputs, updates=updates, mode=mode)
    found = toposort([*f.fgraph.outputs])
    return [str(n.op).partition("{")[0] for n in found if isinstance(n.op, Collective)]


def perceptron():
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90"])
def test_columns_and_rows_need_one_reduction_and_their_gradients_none(of_two, target):
    x = T.matrix("x")
    net = nn.parallel.shard(perceptron(), {"": "columns"})
    y = net(x)
    start = "AllReduceStart" if target == "cpu" else "StreamStart"
    assert collectives([x], y, target) == [start]
    grads = symdnn.grad(y.sum(), net.parameters())
    updates = [(p, p - g) for p, g in zip(net.parameters(), grads)]
    # The gradient of the sum does not need the sum; that of the input needs one of its own.
    assert collectives([x], [], target, updates) == []
    assert collectives([x], symdnn.grad(y.sum(), x), target) == [start]
    assert [v.storage.layout.own.type.shape for v in net.parameters()[:3]] == [(8, 8), (8,), (4, 8)]
    assert layout_of(net[2].bias) is None


def test_a_layer_alone_is_gathered_where_its_result_is_needed(of_two):
    x = T.matrix("x")
    net = nn.parallel.shard(perceptron(), {"0": "columns"})
    assert collectives([x], net[0](x)) == ["MoveStart"]
    # A whole matrix that meets parts is cut, which takes no exchange.
    assert collectives([x], net(x)) == ["AllReduceStart"]
    lone = nn.parallel.shard(perceptron(), {"2": "rows"})
    assert collectives([x], lone(x)) == ["AllReduceStart"]


def test_ops_without_a_rule_get_whole_operands(of_two):
    x = T.matrix("x")
    net = nn.parallel.shard(perceptron(), {"0": "columns"})
    assert collectives([x], T.sort(net[0](x), axis=1)) == ["MoveStart"]
    assert collectives([x], T.nnet.softmax(net[0](x))) == ["MoveStart"]
    assert collectives([x], net[0](x).max(axis=1)) == ["AllReduceStart"]
    assert collectives([x], net[0](x).sum()) == ["AllReduceStart"]
    assert collectives([x], net[0](x).shape[1]) == []


def test_sections_are_cut_each(of_two):
    x = np.arange(12.0).reshape(1, 12)
    split = Split(1, (4, 8))
    parts = [sliced(x, split, 2, i)[0].tolist() for i in range(2)]
    assert parts == [[0, 1, 4, 5, 6, 7], [2, 3, 8, 9, 10, 11]]


def test_what_makes_no_sense_is_refused(of_two):
    for layers, error, text in (
        ({"7": "columns"}, InputError, "no module is named '7'; there are 0, 1, 2"),
        ({"1": "columns"}, InputError, "a Tanh, which has no columns"),
        ({"0": "vocabularies"}, InputError, "wanted one of columns, rows, heads, vocabulary"),
        ({"9.weight": 0}, InputError, "no parameter is named"),
        ({"2": "heads"}, InputError, "a Linear, which has no heads"),
        ({"2": None}, InputError, "wanted one of columns, rows, heads, vocabulary"),
        ({"2": True}, InputError, "wanted one of columns, rows, heads, vocabulary"),
        ({"2.weight": 7}, AxisError, "an axis of a tensor of 2 dimension"),
        ({"2.weight": -3}, AxisError, "an axis of a tensor of 2 dimension"),
        (["columns"], InputError, "a module and a dict such as"),
    ):
        with pytest.raises(error, match=text):
            nn.parallel.shard(perceptron(), layers)
    with pytest.raises(InputError, match="a module and a dict such as"):
        nn.parallel.shard([perceptron()], {"0": "columns"})
    with pytest.raises(ShapeMismatch, match="a dimension 0 that 2 ranks divide"):
        nn.parallel.shard(nn.Linear(2, 3), {"": "columns"})
    net = nn.parallel.shard(perceptron(), {"0": "columns"})
    with pytest.raises(InputError, match="in parts already"):
        nn.parallel.shard(net, {"0": "columns"})
    x = T.matrix("x")
    sharded = symdnn.distributed.DataParallel(shard="parameters")
    with pytest.raises(InputError, match="does not go with nn.parallel.shard"):
        nn.optim.adam(net(x).sum(), net, distributed=sharded)
