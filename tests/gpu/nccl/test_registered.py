"""Operands in registered memory: their places in plans, the calls of NCCL, what it is asked for."""

from __future__ import annotations

import contextlib
import ctypes
import re
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

import symdnn
import symdnn.distributed as dist
import symdnn.tensor as T
from symdnn.compile.plan.offline_plan import specialise_program
from symdnn.config import config
from symdnn.errors import DistributedError, OutOfDeviceMemory
from symdnn.gpu.device.budget import Budget
from symdnn.gpu.execution.registered import Registered
from symdnn.gpu.nccl import communicator as nccl
from symdnn.gpu.nccl import kernels, registered
from symdnn.gpu.nccl.kernels import NcclKernel
from symdnn.gpu.nccl.registered import RegisteredMemory
from symdnn.gpu.nccl.settings import Config, Settings
from symdnn.ops.collective.moves import Recv
from symdnn.ops.collective.overlapped import StreamStart
from symdnn.ops.collective.reductions import AllGather, AllReduce, ReduceScatter
from symdnn.world import process
from symdnn.world.communicator import Solo
from symdnn.world.group import Group
from symdnn.world.launcher import Launched
from tests.gpu.fake_device import FakeRuntime, at
from tests.gpu.nccl.fake_nccl import FakeNccl
from tests.gpu.nccl.test_kernels import FakeSide, call_of, environment, key_of, raw, use
from tests.gpu.reference_device import TARGET

FLAGS = {"distributed.registered": True, "distributed.cta_policy": "default"}


# -- places in plans ------------------------------------------------------------------------------


class Described(process.World):
    """A world of which only this rank is there."""

    def _new_communicator(self, group):
        return Solo(group, 0, self.watch)


def step_of_two_ranks(monkeypatch, batch, width=200, machines=1, **options):
    """The plans of a training step of one of two ranks, on a described GPU."""
    place = Launched(0, 2, 0, 2 // machines, "a test")
    monkeypatch.setattr(process, "_current", Described(place))
    x = T.tensor("float32", (batch, width), name="x")
    ws = [symdnn.shared(np.zeros((width, width), "float32"), name=f"w{i}") for i in range(4)]
    out = x
    for w in ws:
        out = T.tanh(T.dot(out, w))
    loss = T.sqr(out).mean()
    from symdnn import nn

    parallel = dist.DataParallel(bucket_bytes=2 * 4 * width**2, **options)
    updates = nn.optim.sgd(loss, ws, 0.1, momentum=0.9, distributed=parallel)
    f = symdnn.function([x], loss, updates=updates, mode=symdnn.Mode(target=TARGET))
    return specialise_program(f.stages.program, [x], {x: (batch, width)})


@pytest.mark.parametrize("policy", ["default", "zero"])
@pytest.mark.parametrize("shard", [None, "optimizer"])
def test_operands_of_buckets_are_made_in_registered_memory(monkeypatch, shard, policy):
    """At places that do not overlap and follow from the collectives alone, not from other sizes."""
    places = []
    with config.change_flags({**FLAGS, "distributed.cta_policy": policy}):
        for batch in (8, 300):
            (memory,) = [
                p.memory
                for p in step_of_two_ranks(monkeypatch, batch, shard=shard)
                if p.memory.slots
            ]
            assert len(memory.slots) >= 2
            spans, found = [], []
            for node, (owner, offsets) in memory.slots.items():
                values = (*node.inputs, *node.outputs)
                assert len(offsets) == len(values) + 1
                assert offsets[len(node.inputs)] % 4096 == 0
                for v, offset in zip(values, offsets):
                    view = memory.views[v]
                    assert view.buffer.kind == "registered"
                    assert (view.buffer.memory, view.buffer.offset + view.offset) == (owner, offset)
                    replaces = isinstance(node.op.of, AllReduce) and v in node.outputs
                    spans += [] if replaces else [(offset, offset + view.buffer.nbytes)]
                    found.append(offset)
                if isinstance(node.op.of, AllReduce):
                    assert offsets[: len(node.inputs)] == offsets[len(node.inputs) : -1]
            spans.sort()
            assert (spans[0][0] > 0) == (policy == "zero")  # scratch memory is before them
            assert all(a[1] <= b[0] for a, b in pairwise(spans))
            (nbytes,) = memory.registered.values()
            assert spans[-1][1] <= nbytes
            places.append((nbytes, found))
    assert places[0] == places[1]


@pytest.mark.parametrize("again", ["", "by a node", "by an update", "by an update with a view"])
def test_an_operand_that_is_read_later_is_not_replaced(monkeypatch, again):
    """By a sum, which takes the places of its operands: the collective copies that one there."""
    monkeypatch.setattr(process, "_current", Described(Launched(0, 2, 0, 2, "a test")))
    x = T.tensor("float32", (200, 200), name="x")
    y = T.dot(x, x)
    kept = symdnn.shared(np.zeros((200, 200), "float32"), name="kept")
    total = dist.all_reduce(y, "sum")
    out = total * y if again == "by a node" else total * 2
    updates = {kept: y.T if "view" in again else y} if "update" in again else {}
    with config.change_flags(FLAGS):
        f = symdnn.function([x], out, updates=updates, mode=symdnn.Mode(target=TARGET))
        sizes = dict.fromkeys((x, *updates), (200, 200))
        plans = [p.memory for p in specialise_program(f.stages.program, [x, *updates], sizes)]
    (plan,) = [p for p in plans if p.slots]
    assert bool(plan.copied) == bool(updates)
    ((node, (_, (at, result, _))),) = plan.slots.items()
    assert at == result
    assert plan.views[node.inputs[0]].buffer.kind == ("arena" if again else "registered")
    assert plan.views[node.outputs[0]].buffer.kind == "registered"


def test_large_operands_of_one_machine_have_it_by_default(monkeypatch):
    """Without the flag, for few bytes and on several machines they are in the arena."""

    def registered_bytes(policy="default", flag=True, **options):
        flags = {"distributed.registered": flag, "distributed.cta_policy": policy}
        with config.change_flags(flags):
            plans = step_of_two_ranks(monkeypatch, 8, **options)
            return sum(sum(p.memory.registered.values()) for p in plans), Settings.of_flags()

    assert config.distributed.registered is True
    (nbytes, few), (copied, engines) = registered_bytes(), registered_bytes("zero", False)
    assert 0 < nbytes < copied  # engines move nothing else, and have memory for parts
    assert few == Settings(16)
    assert engines == Settings(0, "zero")
    assert registered_bytes(flag=False) == (0, Settings())
    assert registered_bytes(machines=2) == (0, Settings())
    assert registered_bytes(width=20)[0] == 0


# -- calls of NCCL --------------------------------------------------------------------------------


class Asked(FakeNccl):
    """NCCL on the memory of this machine; kernels between its calls are kept in their order."""

    def _kernel(self, calls):
        for _, work in calls:
            work()


@pytest.fixture
def device():
    return FakeRuntime()


def on_ranks(
    monkeypatch, count, op, values, elsewhere=False, policy="default", captures=False, by=None
):
    """(each rank's results, the names of the calls), with all operands in one block of memory.

    The communicators of the calls are added to ``by``.
    """
    group = Group(tuple(range(count)), "world")
    fake, found, kept = Asked(count), [], []
    monkeypatch.setattr(nccl, "_binding", lambda: fake)
    device = FakeRuntime()
    monkeypatch.setattr(
        kernels, "strided_copy", lambda env, x, y: fake.launches[fake.rank].append(
            [("kernel", lambda: ctypes.memmove(y.ptr, x.ptr, x.nbytes))]
        ) if env.stream == 7 else ctypes.memmove(y.ptr, x.ptr, x.nbytes)
    )  # fmt: skip
    whole = registered._launches

    def launches(views, word):
        def enqueue(env, addresses):
            def work():
                for k in whole(views, word):
                    k.enqueue(device.env(), addresses)

            fake.launches[fake.rank].append([("kernel", work)])

        return [SimpleNamespace(enqueue=enqueue)]

    monkeypatch.setattr(registered, "_launches", launches)
    flags = {**FLAGS, "distributed.cta_policy": policy}
    with config.change_flags(flags):
        for rank in range(count):
            fake.rank = rank
            settings = Settings.of_flags()
            engines = nccl.NcclCommunicator(group, rank, "engines", settings)
            comm = nccl.NcclCommunicator(
                group, rank, "comm", settings, engines if policy == "zero" else None
            )
            monkeypatch.setattr(nccl, "_communicators", {key_of(group, policy=policy): comm})
            call = call_of(op(group), values[rank])
            _, scratch, in_place = NcclKernel().operand_memory(call)
            offsets, end = [], 0
            for types in (call.inputs, call.outputs):
                end = 0 if in_place else end
                for t in types:
                    offsets.append(end)
                    end += -(-int(np.prod(t.shape)) * t.numpy.itemsize // 64) * 64
                end = -(-end // 4096) * 4096
            block = np.full(end + scratch, 0x3F, np.uint8)
            slots = [block.ctypes.data + k for k in (*(scratch + k for k in offsets), 0)]
            own = [np.full(t.shape, 77, t.numpy) for t in call.outputs]
            operands = list(values[rank])
            places = [raw(o) for o in own]
            if not elsewhere:
                views = [t.numpy.itemsize for t in call.inputs]
                assert len(views) == len(operands)
                for x, address in zip(operands, slots):
                    at(address, x.nbytes)[:] = x.reshape(-1).view(np.uint8)
                xs = [type(raw(x))(s, x.shape, x.dtype.name) for x, s in zip(operands, slots)]
                places = [
                    type(raw(o))(s, o.shape, o.dtype.name)
                    for o, s in zip(own, slots[len(operands) :])
                ]
            else:
                xs = [raw(x) for x in operands]
            env = environment(np.zeros(4, "int32"), slots=slots, captures=captures)
            NcclKernel().bind(call)(env, xs, places)
            found.append((own, places))
            kept += [block, operands]
        names = [c[0] for one in fake.launches[0] for c in one]
        if by is not None:
            by += fake.handles
        fake.run()
    results = [
        [at(p.ptr, o.nbytes).view(o.dtype).reshape(o.shape).copy() for o, p in zip(own, places)]
        for own, places in found
    ]
    return results, names


OPS = [
    lambda g: AllReduce(g, "mean"), lambda g: StreamStart(g, AllReduce(g, "sum")),
    lambda g: AllReduce(g, "max"), lambda g: StreamStart(g, ReduceScatter(g, "mean")),
    lambda g: AllGather(g),
]  # fmt: skip


def of_references(op, count, values):
    group = Group(tuple(range(count)), "world")
    made = op(group)
    return getattr(made, "of", made).across(values)


@pytest.mark.parametrize("policy", ["default", "zero"])
@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("number", range(len(OPS)))
def test_registered_operands_give_what_the_reference_does(
    monkeypatch, number, count, elsewhere, policy
):
    """Buckets of several arrays, and values that the plan could not make in their places."""
    op, rng = OPS[number], np.random.default_rng([number, count])
    several = number in (0, 1, 2)
    shapes = [(12 * 2001,), (12, 311), (5,)] if several else [(12 * 2001, 3)]
    values = [[rng.integers(1, 9, s).astype("float32") for s in shapes] for _ in range(count)]
    found, names = on_ranks(monkeypatch, count, op, values, elsewhere, policy)
    for mine, wanted in zip(found, of_references(op, count, values), strict=True):
        for a, b in zip(mine, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)
    names = [n for n in names if not elsewhere or n != "kernel"]
    adds = number in (0, 1) and policy == "zero" and count != 3
    if adds:
        wanted = ["allto_all", *(["kernel"] if not elsewhere else []), "all_gather"]
    elif number == 3 and policy == "zero":
        wanted = ["allto_all", *(["kernel"] if not elsewhere else [])]
    else:
        wanted = [
            ["all_reduce"],
            ["all_reduce"],
            ["all_reduce"],
            ["reduce_scatter"],
            ["all_gather"],
        ]
        wanted = wanted[number]  # a bucket is one call
    assert names == wanted


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_parts_of_16_bits_are_added_in_float32(monkeypatch, dtype):
    from symdnn.graph.type import numpy_dtype

    rng = np.random.default_rng(2)
    values = [[rng.standard_normal(40_000).astype(numpy_dtype(dtype))] for _ in range(4)]
    found, _ = on_ranks(monkeypatch, 4, lambda g: AllReduce(g, "mean"), values, policy="zero")
    total = sum(v[0].astype("float32" if dtype != "float64" else dtype) for v in values)
    wanted = (total * np.asarray(0.25, total.dtype)).astype(numpy_dtype(dtype))
    for (one,) in found:
        np.testing.assert_array_equal(one, wanted)


@pytest.mark.parametrize("number", range(len(OPS)))
def test_copy_engines_move_what_is_captured_and_nothing_else(monkeypatch, number):
    """NCCL's numbers of their transfers differ between ranks, but for those in graphs. The values
    have the same bits, since the same parts are added in the same order.
    """
    op, rng = OPS[number], np.random.default_rng(number)
    values = [[rng.standard_normal(40_000).astype("float32")] for _ in range(2)]
    found = []
    for captures in (False, True):
        by = []
        with monkeypatch.context() as own:
            values_of, _ = on_ranks(own, 2, op, values, policy="zero", captures=captures, by=by)
        assert set(by) == {"engines" if captures else "comm"}
        found.append(values_of)
    np.testing.assert_array_equal(*found)


def with_engines(monkeypatch, rank):
    """A communicator of a rank by the flags, with another for copy engines."""
    settings = Settings.of_flags()
    engines = nccl.NcclCommunicator(GROUP, rank, "engines", settings)
    comm = nccl.NcclCommunicator(GROUP, rank, "comm", settings, engines)
    monkeypatch.setattr(nccl, "_communicators", {key_of(GROUP): comm})


def test_values_that_are_not_registered_are_moved_by_blocks(monkeypatch):
    fake = FakeNccl(2)
    monkeypatch.setattr(nccl, "_binding", lambda: fake)
    with config.change_flags({**FLAGS, "distributed.cta_policy": "zero"}):
        with_engines(monkeypatch, 0)
        x = np.ones(8, "float32")
        launch = NcclKernel().bind(call_of(AllReduce(GROUP, "sum"), [x]))
        launch(environment(np.zeros(4, "int32"), captures=True), [raw(x)], [raw(x.copy())])
    assert fake.handles == ["comm"]


# -- what NCCL is asked for -----------------------------------------------------------------------


GROUP = Group((0, 1), "world")


class Windows(FakeNccl):
    """Memory of NCCL's allocator, and its windows."""

    def __init__(self, size):
        super().__init__(size)
        self.fails, self.window, self.given = "", 5, []

    def mem_alloc(self, size):
        if self.fails == "mem_alloc":
            raise RuntimeError("out of memory")
        self.given.append(np.empty(size, np.uint8))
        return self.given[-1].ctypes.data

    def comm_window_register(self, comm, address, size, flags):
        if self.fails == "register":
            raise RuntimeError("no peer access")
        assert flags == 1
        self.registered_by = comm
        self.size = size
        return self.window


def test_operands_on_the_host_are_left(monkeypatch):
    """A receipt has its sizes there."""
    fake = FakeNccl(2)
    monkeypatch.setattr(nccl, "_binding", lambda: fake)
    with config.change_flags({"distributed.cta_policy": "default"}):
        use(monkeypatch, GROUP, 0)
        token, dims = np.zeros(0, "float32"), [np.array(6), np.array(5)]
        out = np.zeros((6, 5), "float32")
        launch = NcclKernel().bind(call_of(Recv(GROUP, 1, 0, (6, 5)), [token, *dims]))
        launch(environment(np.zeros(4, "int32")), [raw(token), *dims], [raw(out)])
    assert fake.launches[0][0][0][0] == "recv"


def world_that_says(monkeypatch, others):
    asked = []

    def first_said(name, words, group):
        asked.append((name, words))
        return next((w for w in (words, others.get(name, "")) if w), "")

    for module in (registered, nccl):
        monkeypatch.setattr(module, "existing_context", lambda: "a device")
    budget = Budget(SimpleNamespace(active_bytes=0, managed_bytes=0, most_active_bytes=0), None)
    monkeypatch.setattr(nccl, "memory_of", lambda device: SimpleNamespace(budget=budget))
    world = SimpleNamespace(
        place=Launched(0, 2, 0, 2, "a test"), first_said=first_said,
        blocking=lambda what: contextlib.nullcontext(),
    )  # fmt: skip
    monkeypatch.setattr(process, "current", lambda: world)
    asked.append(budget)
    nccl._warn_once.cache_clear()
    return asked


def test_memory_of_a_size_is_registered_once(monkeypatch):
    fake = Windows(2)
    monkeypatch.setattr(nccl, "_binding", lambda: fake)
    use(monkeypatch, GROUP, 0)
    budget, *_ = asked = world_that_says(monkeypatch, {})
    memory = RegisteredMemory.of_flags(GROUP)
    first = memory.address(8192)
    assert first == memory.address(8192) == fake.given[0].ctypes.data
    assert memory.address(4096) == first  # there is room
    assert memory.address(12288) == fake.given[1].ctypes.data
    assert [g.size for g in fake.given] == [8192, 16384]
    assert memory.address(8192) == first  # as plans have it
    assert len(asked) == 5
    assert memory.why_none == ""
    assert (budget.use().registered, budget.use().peak) == (24576, 24576)
    assert "registered 24576" in str(budget.use())


def test_registered_memory_counts_in_the_limit(monkeypatch):
    fake, other = Windows(2), []
    monkeypatch.setattr(nccl, "_binding", lambda: fake)
    use(monkeypatch, GROUP, 0)
    (budget,) = world_that_says(monkeypatch, {})
    budget.reliefs.append(lambda: other.append("freed"))
    memory = RegisteredMemory.of_flags(GROUP)
    with config.change_flags({"gpu.memory_limit": 10_000}):
        assert memory.address(8192)
        with pytest.raises(OutOfDeviceMemory, match="registered 8192"):
            budget.allocate("an array", 4096, list)
        with pytest.warns(RuntimeWarning, match="gpu.memory_limit"):
            assert memory.address(12288) == 0
        assert other
    assert "gpu.memory_limit" in memory.why_none
    assert [g.size for g in fake.given] == [8192]


def test_copy_engines_begin_before_the_first_capture(monkeypatch):
    """All ranks make two transfers that are waited for, when their first memory is registered: the
    numbers of the first one, 1 and 2, would let a graph go on without the other ranks.
    """
    fake, waits = Windows(2), []
    monkeypatch.setattr(nccl, "_binding", lambda: fake)
    world_that_says(monkeypatch, {})
    device = SimpleNamespace(side=FakeSide(), synchronize=lambda: waits.append(len(fake.handles)))
    monkeypatch.setattr(nccl, "existing_context", lambda: device)
    with config.change_flags({**FLAGS, "distributed.cta_policy": "zero"}):
        with_engines(monkeypatch, 1)
        memory = RegisteredMemory.of_flags(GROUP)
        at_first = memory.address(8192)
        memory.address(1 << 20)
    assert fake.registered_by == "engines"
    assert fake.handles == ["engines"] * 2
    assert waits == [1, 2]
    calls = [one for launch in fake.launches[0] for one in launch]
    assert calls == [("all_gather", at_first + 4096, at_first, 4096, 1)] * 2


def test_copy_engines_have_a_communicator_beside_that_of_blocks(monkeypatch):
    fake, policies = Windows(1), []

    def join(*given):
        made = Config.from_address(given[4]).CTAPolicy if given[4] else 0
        policies.append(made)
        return f"comm {made}"

    monkeypatch.setattr(nccl, "_binding", lambda: fake)
    monkeypatch.setattr(nccl, "_communicators", {})
    ended = []
    monkeypatch.setattr(fake, "comm_init_rank_scalable", join, raising=False)
    monkeypatch.setattr(fake, "comm_destroy", ended.append, raising=False)
    with config.change_flags({**FLAGS, "distributed.cta_policy": "zero"}):
        both = nccl.communicator(Group((0,), "one"))
    assert policies == [0, 2]
    assert both.engines is not None
    assert both.settings == both.engines.settings
    nccl.drop_all()
    assert ended == ["comm 2", "comm 0"]


@pytest.mark.parametrize(("fails", "other", "said"), [
    ("mem_alloc", {}, "ncclMemAlloc: out of memory"),
    ("register", {}, "ncclCommWindowRegister: no peer access"),
    ("", {"registered memory of 4096 bytes": "on rank 1: full"}, "on rank 1: full"),
    ("", {"registered memory of 4096 bytes, made": "on rank 1: no"}, "on rank 1: no"),
])  # fmt: skip
def test_where_one_rank_has_none_no_rank_has(monkeypatch, fails, other, said):
    fake = Windows(2)
    fake.fails = fails
    monkeypatch.setattr(nccl, "_binding", lambda: fake)
    use(monkeypatch, GROUP, 0)
    world_that_says(monkeypatch, other)
    memory = RegisteredMemory.of_flags(GROUP)
    with pytest.warns(RuntimeWarning, match=re.escape(said)) as warned:
        assert [memory.address(4096), memory.address(8192)] == [0, 0]
    assert len(warned) == 1  # the others are not asked again
    assert said in memory.why_none
    given = np.zeros(4096, "uint8")
    device = SimpleNamespace(memory=SimpleNamespace(empty=lambda *_: raw(given)))
    plan = SimpleNamespace(slots={"its collective": (memory, (0, 0))}, registered={memory: 4096})
    found = Registered(device, plan)
    assert found.begin(memory, 7) == raw(given).ptr
    assert found.slots("its collective") == ()  # NCCL moves what lies there as all else
    assert said in found.state


def test_an_emulated_device_has_none(monkeypatch):
    monkeypatch.setattr(nccl, "_binding", lambda: Windows(2))
    monkeypatch.setattr(registered, "existing_context", lambda: None)
    memory = RegisteredMemory.of_flags(GROUP)
    assert (memory.address(4096), memory.why_none) == (0, "no GPU is in use")


def test_an_nccl_without_windows_is_named(monkeypatch):
    fake = Windows(2)
    fake.window = 0
    monkeypatch.setattr(nccl, "_binding", lambda: fake)
    use(monkeypatch, GROUP, 0)
    world_that_says(monkeypatch, {})
    memory = RegisteredMemory.of_flags(GROUP)
    with pytest.warns(RuntimeWarning, match="distributed.registered=False"):
        assert memory.address(4096) == 0
    assert "no windows" in memory.why_none


def test_settings_are_the_fields_of_ncclConfig_t():
    assert Settings().config() is None
    made = Settings(8, "zero").config()
    assert (made.size, made.magic, made.version) == (ctypes.sizeof(Config), 0xCAFEBEEF, 22800)
    assert (made.minCTAs, made.maxCTAs, made.CTAPolicy, made.blocking) == (1, 8, 2, -(2**31))
    assert Settings(0, "efficiency").config().maxCTAs == -(2**31)
    assert (Config.CTAPolicy.offset, Config.maxCTAs.offset, Config.netName.offset) == (60, 28, 32)


def test_communicators_differ_by_their_settings(monkeypatch):
    fake = Windows(1)
    given = []
    monkeypatch.setattr(nccl, "_binding", lambda: fake)
    monkeypatch.setattr(nccl, "_communicators", {})
    monkeypatch.setattr(
        fake, "comm_init_rank_scalable", lambda *a: given.append(a[4] != 0) or "comm", raising=False
    )
    one = Group((0,), "one")
    plain = nccl.communicator(one, Settings())
    with config.change_flags({"distributed.ctas": 4}):
        few = nccl.communicator(one)
        assert few is nccl.communicator(one)
    assert plain is nccl.communicator(one, Settings())
    assert plain is not few
    assert given == [False, True]
    fake.version = 22703
    with config.change_flags({"distributed.ctas": 5}), pytest.raises(DistributedError):
        nccl.communicator(one)
