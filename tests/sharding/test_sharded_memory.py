"""What sharded training keeps: plans of several ranks, made in one process, and their bytes."""

import numpy as np
import pytest

import symdnn
import symdnn.distributed as dist
import symdnn.tensor as T
from symdnn import nn
from symdnn.compile.plan.offline_plan import specialise_program
from symdnn.errors import DistributedError, OptionError
from symdnn.graph.variable import Shared
from symdnn.nn.optimizers import base
from symdnn.ops.collective.overlapped import MoveStart
from symdnn.ops.collective.reductions import AllGather, ReduceScatter
from symdnn.sharding.bucket import Bucket
from symdnn.sharding.storage import layout_of
from symdnn.world import process
from symdnn.world.launcher import Launched

WIDE, DEEP, BATCH = 64, 8, 4
ONE = 4 * WIDE * WIDE  # the bytes of a layer's matrix


@pytest.fixture
def world(monkeypatch):
    """Makes this process the last of so many ranks, which nothing joins."""
    monkeypatch.setattr(base, "broadcast_values", lambda *_: None)

    def of(size):
        place = Launched(size - 1, size, size - 1, size, "a test")
        monkeypatch.setattr(process, "_current", process.World(place))

    return of


def step(shard, target="cpu", **options):
    """A training step of a deep network, and its plan."""
    x = T.tensor("float32", (BATCH, WIDE), name="x")
    nn.init.seed(0)
    net = nn.Sequential(
        *(m for _ in range(DEEP) for m in (nn.Linear(WIDE, WIDE, bias=False), nn.Tanh()))
    )
    parallel = dist.DataParallel(shard=shard, bucket_bytes=ONE)
    loss = T.sqr(net(x)).mean()
    updates = nn.optim.adam(loss, net, distributed=parallel, **options)
    f = symdnn.function([x], loss, updates=updates, mode=symdnn.Mode(target=target))
    (plan,) = specialise_program(f.stages.program, [x], {x: (BATCH, WIDE)})
    return net, f, plan


def kept_bytes(plan):
    """The bytes of all shared variables that the step reads."""
    found = [v for v in plan.specialised.segment.inputs if isinstance(v, Shared)]
    return sum(v.storage.host().nbytes for v in dict.fromkeys(found))


def peak(plan):
    """The most bytes of values that are alive at once: without workspaces of libraries."""
    buffers = plan.memory.arena_buffers()
    steps = range(len(plan.specialised.segment.nodes))
    return max(sum(b.nbytes for b in buffers if b.first <= t <= b.last) for t in steps)


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90"])
def test_memory_falls_with_the_number_of_ranks(world, target):
    world(1)
    _, _, alone = step(None, target)
    whole = kept_bytes(alone)
    assert whole >= 3 * DEEP * ONE  # parameters and two averages
    for size in (2, 4, 8):
        world(size)
        _, _, plan = step("parameters", target)
        assert kept_bytes(plan) <= whole / size + 64
        # Two gathered buckets, a gradient and its copy in a bucket, parts of gradients: not DEEP.
        assert peak(plan) <= (5 + 2 * DEEP / size) * ONE
        _, _, state = step("gradients", target)
        assert kept_bytes(state) <= DEEP * ONE + 2 * DEEP * ONE / size + 64


def effects(plan):
    """Gatherings and reductions in the order in which they start."""
    found = []
    for n in plan.specialised.segment.nodes:
        op = n.op.of if isinstance(n.op, MoveStart) else n.op
        if isinstance(op, AllGather | ReduceScatter):
            found.append("gather" if isinstance(op, AllGather) else "reduce")
    return found


def test_parameters_are_gathered_one_bucket_ahead_and_again_in_the_backward_pass(world):
    world(4)
    _, _, plan = step("parameters")
    # The last two stay; the first is not needed in the backward pass, as its input has no gradient.
    again = DEEP - 3
    found = effects(plan)
    assert found.count("gather") == DEEP + again
    assert found.count("reduce") == DEEP
    assert found[:DEEP] == ["gather"] * DEEP
    names = [type(n.op).__name__ for n in plan.specialised.segment.nodes]
    starts = [i for i, n in enumerate(names) if n == "MoveStart"]
    waits = [i for i, n in enumerate(names) if n == "MoveWait"]
    for k in range(2, DEEP):  # one on its way while one is used
        assert waits[k - 2] < starts[k] < waits[k - 1]


@pytest.mark.parametrize(("options", "order"), [
    ({}, ["reduce", *["reduce", "gather"] * (DEEP - 1), "gather"]),
    ({"clip_norm": 1.0}, ["reduce"] * DEEP + ["gather"] * DEEP),  # it needs all gradients
])  # fmt: skip
def test_new_values_are_sent_in_the_backward_pass(world, options, order):
    """The update of a bucket runs as soon as the next bucket moves."""
    world(4)
    _, _, plan = step("optimizer", **options)
    assert effects(plan) == order
    names = [type(n.op).__name__ for n in plan.specialised.segment.nodes]
    last = max(i for i, name in enumerate(names) if "Dot" in name or "Matmul" in name)
    gathers = [
        i for i, n in enumerate(plan.specialised.segment.nodes)
        if isinstance(n.op, MoveStart) and isinstance(n.op.of, AllGather)
    ]  # fmt: skip
    assert (sum(i < last for i in gathers) >= DEEP - 2) == (not options)


def test_values_of_parts_are_read_and_written_as_whole_ones(world):
    world(1)
    net, f, _ = step("parameters")
    assert all(layout_of(v) is None for v in net.parameters())  # one rank keeps all
    v = symdnn.shared(np.arange(6, dtype="float32").reshape(2, 3), name="v")
    w = symdnn.shared(np.ones(2, "float32"), name="w")
    before = symdnn.function([], v * 2)
    bucket = Bucket([v, w], process.current().group, "both")
    bucket.keep_parts()
    assert layout_of(v) is bucket
    assert v.get_value().tolist() == [[0, 1, 2], [3, 4, 5]]
    v.set_value(np.zeros((2, 3), "float32"))
    f = symdnn.function([], v.sum() + w.sum(), updates=[(w, w + 1)])
    assert [float(f()), float(f())] == [2.0, 4.0]
    assert w.get_value().tolist() == [3, 3]
    with pytest.raises(DistributedError, match="its shape"):
        v.set_value(np.zeros((3, 3), "float32"))
    with pytest.raises((DistributedError, symdnn.errors.SymdnnError, ValueError)):
        print(before())


def test_an_unknown_word(world):
    with pytest.raises(OptionError, match="wanted 'optimizer', 'gradients' or 'parameters'"):
        dist.DataParallel(shard="everything")
