"""When the parameters of a program are gathered."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.distributed as dist
import symdnn.tensor as T
from symdnn import nn
from symdnn.graph.traverse import toposort
from symdnn.graph.variable import Variable
from symdnn.nn.optimizers import base
from symdnn.ops.collective.base import Collective as Moves
from symdnn.ops.collective.overlapped import AllSucceeded
from symdnn.ops.collective.reductions import AllGather
from symdnn.ops.control.checkpoint import After
from symdnn.sharding.gathered import with_gathers
from symdnn.sharding.storage import layout_of
from symdnn.world import process
from symdnn.world.launcher import Launched

WIDTH, LAYERS = 8, 5


def gatherings(bias: bool, bucket_bytes: int, **options: Any) -> list[tuple[int, str]]:
    """The lengths of parts that a step gathers, and the node that each waits for."""
    net = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=bias) for _ in range(LAYERS)))
    x = T.tensor("float32", (4, WIDTH), name="x")
    parallel = dist.DataParallel(shard="parameters", bucket_bytes=bucket_bytes, **options)
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


def two_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is the first of two, none of which it waits for."""
    monkeypatch.setattr(base, "broadcast_values", lambda *_: None)
    monkeypatch.setattr(process, "_current", process.World(Launched(0, 2, 0, 2, "a test")))


def test_vectors_do_not_stand_between_the_buckets_of_two_layers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With biases, weights are gathered as often as without, and two of them before all work."""
    two_ranks(monkeypatch)
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


def test_what_is_kept_is_gathered_once_and_waits_for_no_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A value that a gathering waits for has a reader, so that no kernel may leave it out."""
    two_ranks(monkeypatch)
    found = gatherings(True, 4 * WIDTH * WIDTH, keep_gathered=True)
    assert [waits for _, waits in found] == [""] * (LAYERS + 1)
    assert [size for size, _ in found].count(WIDTH * WIDTH // 2) == LAYERS


def test_tables_whose_rows_are_gathered_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their dense part is averaged before the gradients that are made after it, rows behind."""
    two_ranks(monkeypatch)
    for keep in (False, True):
        table = symdnn.shared(np.zeros((400, WIDTH), np.float32), name="table")
        net = nn.Linear(WIDTH, WIDTH)
        i = T.tensor("int64", (4,), name="i")
        loss = T.sqr(T.dot(net(table[i]), table.T)).mean()
        parallel = dist.DataParallel(shard="parameters", keep_gathered=keep)
        params = {"table": table, "weight": net.weight, "bias": net.bias}
        updates = nn.optim.sgd(loss, params, distributed=parallel, clip_norm=1.0)
        assert (layout_of(table) is None) == keep
        nodes = toposort([new for _, new in updates])
        moved = [n.op for n in sorted(nodes, key=lambda n: n.written) if isinstance(n.op, Moves)]
        kinds = [type(op).__name__ for op in moved if not isinstance(op, AllSucceeded)]
        norm = "AllReduce"
        if keep:
            assert layout_of(net.weight) is not None
            assert kinds[0] == "AllReduce"
            gathered = ["AllGather"] * 2  # rows and their numbers
            parts = ["ReduceScatter"] * 2
            assert sorted(kinds) == sorted(["AllReduce", *parts, *gathered, norm])
        else:
            assert kinds == ["ReduceScatter", "ReduceScatter", norm]
