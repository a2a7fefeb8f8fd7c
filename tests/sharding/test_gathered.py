"""When the parameters of a program are gathered."""

from __future__ import annotations

import pytest

import symdnn.distributed as dist
import symdnn.tensor as T
from symdnn import nn
from symdnn.graph.traverse import toposort
from symdnn.graph.variable import Variable
from symdnn.nn.optimizers import base
from symdnn.ops.collective.reductions import AllGather
from symdnn.ops.control.checkpoint import After
from symdnn.sharding.gathered import with_gathers
from symdnn.world import process
from symdnn.world.launcher import Launched

WIDTH, LAYERS = 8, 5


def gatherings(bias: bool, bucket_bytes: int) -> list[tuple[int, str]]:
    """The lengths of parts that a step gathers, and the node that each waits for."""
    net = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=bias) for _ in range(LAYERS)))
    x = T.tensor("float32", (4, WIDTH), name="x")
    parallel = dist.DataParallel(shard="parameters", bucket_bytes=bucket_bytes)
    updates = nn.optim.sgd(T.sqr(net(x)).mean(), net, distributed=parallel)
    outputs, pairs = with_gathers([], list(updates))
    found: list[tuple[int, str]] = []
    for node in toposort([*outputs, *(new for _, new in pairs)]):
        if isinstance(node.op, AllGather):
            part: Variable = node.inputs[0]
            size, owner = part.type.shape[0], part.owner
            waits = owner is not None and isinstance(owner.op, After)
            assert size is not None
            found.append((size, str(owner.inputs[1].owner) if waits and owner else ""))
    return found


def test_vectors_do_not_stand_between_the_buckets_of_two_layers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With biases, weights are gathered as often as without, and two of them before all work."""
    monkeypatch.setattr(base, "broadcast_values", lambda *_: None)
    monkeypatch.setattr(process, "_current", process.World(Launched(0, 2, 0, 2, "a test")))
    layer = 4 * WIDTH * WIDTH
    matrices = WIDTH * WIDTH // 2
    alone = gatherings(False, layer)
    assert len(alone) == 2 * LAYERS - 3  # the last two serve both passes, the first one only one
    assert [waits for _, waits in alone].count("") == 2
    beside = gatherings(True, layer)
    weights = [waits for size, waits in beside if size == matrices]
    assert len(weights) == len(alone)
    assert weights.count("") == 2
    vectors = [waits for size, waits in beside if size != matrices]
    assert vectors == [""]
