"""Gatherings of which all readers round the result: each rank rounds its own part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.distributed as dist
import symdnn.tensor as T
from symdnn import nn
from symdnn.compile.plan.offline_plan import specialise_program
from symdnn.config import config
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.target import Target
from symdnn.graph.type import numpy_dtype
from symdnn.graph.variable import Variable
from symdnn.nn.optimizers import base
from symdnn.ops.collective.overlapped import StreamStart
from symdnn.ops.collective.reductions import AllGather
from symdnn.ops.control.checkpoint import After
from symdnn.ops.vendor.gpublas import GpuGemmKept
from symdnn.opt.lower.collectives import round_before_gathering
from symdnn.rewriting.rewrite import Context
from symdnn.world import process
from symdnn.world.group import Group
from symdnn.world.launcher import Launched
from tests.seeded import new_rng

N = 3
GROUP = Group(tuple(range(N)), "world")


def dtypes_gathered(graph: FunctionGraph) -> list[str]:
    return [n.inputs[0].type.dtype for n in graph.toposort() if isinstance(n.op, AllGather)]


def same_after_the_rule(
    read: Callable[[Variable], list[Variable]], dtype: str = "float32"
) -> list[str]:
    """The rule changes no bit of any rank; the dtypes that are gathered then."""
    x = T.tensor(dtype, (8,), name="x")
    outputs = read(dist.all_gather(x, group=GROUP))
    graph = FunctionGraph([x], outputs)
    round_before_gathering.function(Context(graph, Target.parse("cuda:sm_90")))
    rows = (100 * new_rng().standard_normal((N, 8))).astype("float32").astype(numpy_dtype(dtype))
    want = dist.simulate(outputs, [{x: row} for row in rows])
    found = dist.simulate(graph.outputs, [{graph.inputs[0]: row} for row in rows])
    for a, b in zip(want, found, strict=True):
        for u, v in zip(a, b, strict=True):
            assert u.dtype == v.dtype
            np.testing.assert_array_equal(u.astype("float32"), v.astype("float32"))
    return dtypes_gathered(graph)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("name", "read"), [
    ("itself", lambda g, d: [T.cast(g, d)]),
    ("a part", lambda g, d: [T.cast(g[3:15], d)]),
    ("a matrix", lambda g, d: [T.cast(g.reshape((4, 6)).T, d)]),
    ("parts", lambda g, d: [T.cast(g[:12].reshape((3, 4)), d), T.cast(g[12:], d)]),
    ("all", lambda g, d: [T.cast(g, d), T.cast(g.reshape((4, 6)), d), T.cast(g[::2], d)]),
])  # fmt: skip
def test_what_is_read_rounded_is_gathered_rounded(name: str, read: Any, dtype: str) -> None:
    assert same_after_the_rule(lambda g: read(g, dtype)) == [dtype]


@pytest.mark.parametrize(("name", "read"), [
    ("a result", lambda g: [g, T.cast(g, "bfloat16")]),
    ("a part as it is", lambda g: [g[:4] * 2, T.cast(g[4:], "bfloat16")]),
    ("two dtypes", lambda g: [T.cast(g, "float16"), T.cast(g, "bfloat16")]),
    ("wider", lambda g: [T.cast(g, "float64")]),
    ("whole numbers", lambda g: [T.cast(g, "int8")]),
    ("an index", lambda g: [T.cast(g[T.cast(g[0] * 0, "int64") :], "bfloat16")]),
    ("nobody", lambda g: [g.shape[0]]),
])  # fmt: skip
def test_near_misses_are_gathered_as_they_are(name: str, read: Any) -> None:
    assert set(same_after_the_rule(read)) <= {"float32"}


@pytest.mark.parametrize("dtype", ["int8", "bool", "bfloat16"])
def test_what_is_as_narrow_is_gathered_as_it_is(dtype: str) -> None:
    assert same_after_the_rule(lambda g: [T.cast(g, "float16")], dtype) == [dtype]


def test_sharded_parameters_of_products_move_in_16_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors are in buckets of their own, and nothing is widened to be waited for."""
    monkeypatch.setattr(base, "broadcast_values", lambda *_: None)
    monkeypatch.setattr(process, "_current", process.World(Launched(0, 2, 0, 2, "a test")))
    x = T.tensor("float32", (4, 64), name="x")
    layers = [m for _ in range(5) for m in (nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU())]
    net = nn.Sequential(*layers)
    parallel = dist.DataParallel(shard="parameters", bucket_bytes=4 * 64 * 64)
    loss = T.sqr(net(x)).mean()
    updates = nn.optim.sgd(loss, net, distributed=parallel)
    with config.change_flags(amp="bf16"):
        mode = symdnn.Mode(target="cuda:sm_90")
        f = symdnn.function([x], loss, updates=updates, mode=mode)
        (plan,) = specialise_program(f.stages.program, [x], {x: (4, 64)})
    moved: dict[str, set[Any]] = {}
    for node in plan.specialised.segment.nodes:
        if isinstance(node.op, StreamStart) and isinstance(node.op.of, AllGather):
            moved.setdefault(node.inputs[0].type.dtype, set()).add(node.inputs[0].type.shape[0])
        elif isinstance(node.op, After):
            assert all(not str(v.owner).startswith("Cast{dtype=float32}") for v in node.inputs)
    assert moved == {"bfloat16": {64 * 64 // 2}, "float32": {5 * 3 * 64 // 2}}


def test_a_gathering_waits_for_what_is_stored_anyway(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a reader of its own it would let a normalisation write float32 besides 16 bits, and a GEMM
    leave its GELU to another kernel."""
    monkeypatch.setattr(base, "broadcast_values", lambda *_: None)
    monkeypatch.setattr(process, "_current", process.World(Launched(0, 2, 0, 2, "a test")))
    x = T.tensor("float32", (2, 64, 64), name="x")
    blocks = 6
    net = nn.Sequential(*(m for _ in range(blocks) for m in (
        nn.LayerNorm(64), nn.Linear(64, 256), nn.GELU("tanh"), nn.Linear(256, 64),
    )))  # fmt: skip
    parallel = dist.DataParallel(shard="parameters", bucket_bytes=4 * 64 * 256)
    loss = T.sqr(net(x)).mean()
    updates = nn.optim.sgd(loss, net, distributed=parallel)
    with config.change_flags(amp="bf16"):
        mode = symdnn.Mode(target="cuda:sm_90")
        f = symdnn.function([x], loss, updates=updates, mode=mode)
        (plan,) = specialise_program(f.stages.program, [x], {x: (2, 64, 64)})
    nodes = plan.specialised.segment.nodes
    waits = [v.type.dtype for n in nodes if isinstance(n.op, After) for v in n.inputs[1:]]
    assert len(waits) > blocks
    assert set(waits) == {"bfloat16"}
    assert sum(isinstance(n.op, GpuGemmKept) for n in nodes) == blocks
