"""The kernels of NCCL on a fake of it: addresses, counts, dtypes, groups; values of all ranks."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from types import SimpleNamespace

import numpy as np
import pytest

import symdnn
import symdnn.distributed as dist
import symdnn.gpu.execution.runtime as runtimes
import symdnn.tensor as T
from symdnn.config import config
from symdnn.errors import DistributedError, PeerFailed
from symdnn.gpu.device.array import RawArray
from symdnn.gpu.nccl import communicator as nccl
from symdnn.gpu.nccl import kernels
from symdnn.gpu.nccl.kernels import ArrivalKernel, NcclKernel
from symdnn.gpu.nccl.settings import Settings
from symdnn.graph.kernel import Call
from symdnn.graph.origin import Hints
from symdnn.graph.type import TensorType
from symdnn.ops.collective.moves import AllToAll, Permute, Recv, Send
from symdnn.ops.collective.overlapped import AllReduceStart, AllSucceeded, StreamStart, StreamWait
from symdnn.ops.collective.reductions import (
    AllGather,
    AllReduce,
    Broadcast,
    Reduce,
    ReduceScatter,
)
from symdnn.world import process
from symdnn.world.group import Group
from symdnn.world.launcher import Launched
from tests.gpu.nccl.fake_nccl import FakeNccl
from tests.gpu.reference_device import TARGET, ReferenceRuntime

N = 3
GROUP = Group(tuple(range(N)), "world")


@pytest.fixture
def fake(monkeypatch):
    made = FakeNccl(N)
    monkeypatch.setattr(nccl, "_binding", lambda: made)
    monkeypatch.setattr(nccl, "_communicators", {})
    return made


def key_of(group, **settings):
    """That of a group's communicator, of the flags."""
    return group, Settings(**settings) if settings else Settings.of_flags()


def use(monkeypatch, group, index):
    """Let a group's communicator be that of one of its ranks."""
    made = nccl.NcclCommunicator(group, index, "comm")
    monkeypatch.setattr(nccl, "_communicators", {key_of(group): made})


def raw(array):
    """A RawArray of host memory."""
    return RawArray(array.ctypes.data, array.shape, array.dtype.name)


class FakeSide:
    """The second stream, number 7: what was asked of it."""

    def __init__(self):
        self.asked = []

    def enter(self):
        self.asked.append("enter")
        return 7

    def leave(self, key, kept=()):
        self.asked.append(("leave", key))

    def came(self, key):
        self.asked.append(("came", key))

    def arrive(self, key):
        self.asked.append(("arrive", key))


def environment(word, alone=False, slots=(), captures=False):
    made = SimpleNamespace(
        stream=5, alone=alone, load_only=False, slots=slots, captures=captures, node=0,
        side=FakeSide(),
        error_word=word.ctypes.data, zero=lambda address, count: ctypes.memset(address, 0, count),
    )  # fmt: skip
    made.on = lambda stream: SimpleNamespace(**{**vars(made), "stream": stream})
    return made


def call_of(op, arrays):
    types = tuple(TensorType(a.dtype.name, a.shape) for a in arrays)
    return Call(op, types, op.output_types(types), Hints())


def on_all_ranks(fake, monkeypatch, ops, values, words=None):
    """The outputs of each rank's op on its values, as the kernels' calls of NCCL make them."""
    found, kept = [], []
    words = words or [np.zeros(4, "int32") for _ in range(N)]
    for rank, (op, arrays) in enumerate(zip(ops, values)):
        fake.rank = rank
        use(monkeypatch, GROUP, rank)
        call = call_of(op, arrays)
        assert NcclKernel().refuses(call) is None
        outs = [np.full(t.shape, 77, t.numpy) for t in call.outputs]
        operands = [np.ascontiguousarray(a) for a in arrays]
        kept.append(operands)
        launch = NcclKernel().bind(call)
        launch(environment(words[rank]), [raw(a) for a in operands], [raw(o) for o in outs])
        found.append(outs)
    fake.run()
    return found


def drawn(rank, dtype="float32", shape=(6, 5)):
    rng = np.random.default_rng([rank, len(dtype)])
    return rng.integers(1, 9, shape).astype(TensorType(dtype, ()).numpy)


@pytest.mark.parametrize("op", [
    *(AllReduce(GROUP, name) for name in ("sum", "mean", "prod", "max", "min")),
    Reduce(GROUP, "sum", 2), ReduceScatter(GROUP, "mean"), AllGather(GROUP), Broadcast(GROUP, 1),
    AllToAll(GROUP), Permute(GROUP, ((0, 1), (1, 2), (2, 0))), Permute(GROUP, ((0, 2),)),
], ids=str)  # fmt: skip
def test_calls_of_nccl_compute_what_the_reference_does(fake, monkeypatch, op):
    for dtype in ("float32", "float64", "int32", "float16"):
        if dtype == "int32" and getattr(op, "op", "") == "mean":
            continue
        values = [[drawn(r, dtype)] for r in range(N)]
        want = op.across(values)
        for got, expected in zip(on_all_ranks(fake, monkeypatch, [op] * N, values), want):
            np.testing.assert_allclose(got[0], expected[0], rtol=2e-3)


@pytest.mark.parametrize("make", [AllReduce, ReduceScatter, lambda g, op: Reduce(g, op, 0)])
def test_of_one_rank_nccl_is_asked_for_no_mean(monkeypatch, make):
    """It leaves out elements: the only rank's mean is its sum."""
    made, one = FakeNccl(1), Group((0,), "one")
    monkeypatch.setattr(nccl, "_binding", lambda: made)
    use(monkeypatch, one, 0)
    x, out = drawn(0), np.zeros((6, 5), "float32")
    with config.change_flags(**{"distributed.single_rank": "nccl"}):
        launch = NcclKernel().bind(call_of(make(one, "mean"), [x]))
    launch(environment(np.zeros(4, "int32")), [raw(x)], [raw(out)])
    ((call,),) = made.launches[0]
    assert call[5] == nccl._OPERATIONS["sum"]
    made.run()
    np.testing.assert_array_equal(out, x)


def test_a_bucket_is_one_launch(fake, monkeypatch):
    values = [[drawn(r), drawn(r, shape=(0, 2)), drawn(r, shape=(3,))] for r in range(N)]
    op = AllReduce(GROUP, "sum")
    fake.rank = 0
    want = op.across(values)
    recorded = []
    run = fake.run
    monkeypatch.setattr(fake, "run", lambda: (recorded.extend(map(list, fake.launches)), run()))
    found = on_all_ranks(fake, monkeypatch, [op] * N, values)
    assert [len(mine) for mine in recorded] == [1] * N
    assert [len(mine[0]) for mine in recorded] == [2] * N  # nothing is sent of an empty array
    for got, expected in zip(found, want):
        for a, b in zip(got, expected):
            np.testing.assert_allclose(a, b)


def test_the_error_word_of_one_rank_becomes_that_of_all(fake, monkeypatch):
    words = [np.array([0, 0, 0, 0], "int32") for _ in range(N)]
    words[1][:] = [3, 12, 0, 5]
    values = [[np.float32(4).reshape(())] for _ in range(N)]
    found = on_all_ranks(fake, monkeypatch, [AllSucceeded(GROUP)] * N, values, words)
    assert [float(o[0]) for o in found] == [4.0] * N
    assert [w.tolist() for w in words] == [[3, 12, 0, 5]] * N


def test_a_send_meets_its_receipt(fake, monkeypatch):
    token, x = np.zeros(0, "float32"), drawn(0)
    ops = [Send(GROUP, 2), AllSucceeded(GROUP), Recv(GROUP, 0, 0, (6, 5))]
    dims = [np.array(6), np.array(5)]
    fake.launches = [[], [], []]
    comm = {r: nccl.NcclCommunicator(GROUP, r, "comm") for r in range(N)}
    out = np.zeros((6, 5), "float32")
    for rank, arrays, outs in ((0, [x, token], [token]), (2, [token, *dims], [out])):
        fake.rank = rank
        monkeypatch.setattr(nccl, "_communicators", {key_of(GROUP): comm[rank]})
        launch = NcclKernel().bind(call_of(ops[rank], arrays))
        launch(environment(np.zeros(4, "int32")), [raw(a) for a in arrays], [raw(o) for o in outs])
    fake.launches[1].append([])
    fake.run()
    np.testing.assert_array_equal(out, x)


def test_a_started_collective_goes_on_until_its_wait(fake, monkeypatch):
    """On the second stream; other collectives have come when their launch returns."""
    use(monkeypatch, GROUP, 0)
    empty, x, y = np.zeros(0, "float32"), drawn(0), drawn(1, shape=(3,))
    started, outs = StreamStart(GROUP, AllReduce(GROUP, "sum")), [empty + 0, x * 0, y * 0]
    env, elsewhere = environment(np.zeros(4, "int32")), y * 0
    operands = [raw(a) for a in (empty, x, y)]
    places = [raw(o) for o in outs]
    NcclKernel().bind(call_of(started, [empty, x, y]))(env, operands, places)
    key = places[1].ptr  # that of the first that is not empty
    assert env.side.asked == ["enter", ("leave", key)]
    copied = []
    monkeypatch.setattr(kernels, "strided_copy", lambda env, x, out: copied.append((x, out)))
    wait = ArrivalKernel().bind(call_of(StreamWait(3), [*outs, empty, x, y]))
    wait(env, [*places, *operands], [*places[:2], raw(elsewhere)])
    assert env.side.asked[2:] == [("arrive", key)]
    assert [out.ptr for _, out in copied] == [elsewhere.ctypes.data]
    NcclKernel().bind(call_of(AllGather(GROUP), [y]))(env, [raw(y)], [raw(np.zeros(9, "f4"))])
    assert [a if isinstance(a, str) else a[0] for a in env.side.asked[3:]] == [
        "enter", "leave", "arrive",
    ]  # fmt: skip


def test_of_one_rank_a_wait_finds_what_was_started(monkeypatch):
    """The copies of a group of one are on the plan's stream: its wait has no event."""
    monkeypatch.setattr(kernels, "strided_copy", lambda env, x, out: None)
    env, y = environment(np.zeros(4, "int32")), drawn(1, shape=(3,))
    started = StreamStart(Group((0,), "one"), AllReduce(Group((0,), "one"), "sum"))
    NcclKernel().bind(call_of(started, [y]))(env, [raw(y)], [raw(y)])
    ArrivalKernel().bind(call_of(StreamWait(1), [y, y]))(env, [raw(y)] * 2, [raw(y)])
    assert env.side.asked == [("came", y.ctypes.data), ("arrive", y.ctypes.data)]


def test_the_plans_stream_has_all_where_nothing_overlaps(fake, monkeypatch):
    use(monkeypatch, GROUP, 0)
    env, y = environment(np.zeros(4, "int32")), drawn(1, shape=(3,))
    env.stream = 7  # where the fake wants it
    with config.change_flags(**{"distributed.overlap": False}):
        started = StreamStart(GROUP, Broadcast(GROUP))
        NcclKernel().bind(call_of(started, [y]))(env, [raw(y)], [raw(y)])
        ArrivalKernel().bind(call_of(StreamWait(1), [y, y]))(env, [raw(y)] * 2, [raw(y)])
    assert env.side.asked == []


def test_what_nccl_does_not_reduce_is_refused(fake):
    for dtype, refused in (
        ("float32", False),
        ("bool", True),
        ("int16", True),
        ("complex64", True),
    ):
        op = AllReduce(GROUP, "max" if dtype == "bool" else "sum")
        why = NcclKernel().refuses(call_of(op, [np.zeros(3, dtype)]))
        assert (why is not None) is refused, dtype
    halves = AllReduceStart(GROUP, "sum")
    call = Call(halves, (TensorType("float32", (3,)),), (), Hints())
    assert "halves" in NcclKernel().refuses(call)


def test_what_a_single_rank_sends_to_itself_is_kept_on_the_cpu(rng, monkeypatch):
    one, token = Group((0,), "world"), np.zeros(0, "float32")
    calls = [
        call_of(Send(one, 0), [np.zeros(3, "float32"), token]),
        call_of(Recv(one, 0, 0, (3,)), [token, np.array(3)]),
    ]
    assert all("itself" in NcclKernel().refuses(call) for call in calls)
    with config.change_flags({"distributed.single_rank": "nccl"}):
        assert not any(NcclKernel().refuses(call) for call in calls)
    monkeypatch.setattr(runtimes, "_runtimes", {0: ReferenceRuntime()})
    x = T.matrix("x", dtype="float64")
    come = [dist.recv((2, 3), x.type.dtype, 0, after=dist.send(k * x, 0)) for k in (2, 3)]
    f = symdnn.function([x], come, mode=symdnn.Mode(target=TARGET))
    value = rng.standard_normal((2, 3))
    for _ in range(3):
        got = f(value)
        np.testing.assert_array_equal(got[0], 2 * value)
        np.testing.assert_array_equal(got[1], 3 * value)


def test_the_unique_id_comes_from_the_first_of_the_group(fake, monkeypatch):
    asked = []

    def gather(name, value, group):
        asked.append((name, value, group))
        return [bytes(range(128)).hex(), "", ""]

    device = SimpleNamespace(poll=None)
    world = SimpleNamespace(
        place=Launched(1, 2, 1, 2, "a test"), gather=gather, store="its store",
        blocking=lambda what: contextlib.nullcontext(),
    )  # fmt: skip
    monkeypatch.setattr(nccl.atexit, "register", lambda *given: None)
    monkeypatch.setattr(process, "current", lambda: world)
    monkeypatch.setattr(nccl, "existing_context", lambda: device)
    mixing, _ = nccl._MIXING
    for name in (*nccl._SETTINGS, mixing):
        monkeypatch.delenv(name, raising=False)
    comm = nccl.communicator(GROUP, Settings())
    assert nccl.communicator(GROUP, Settings()) is comm
    assert asked == [("NCCL's unique id", "", GROUP)]
    assert fake.joined == (N, 1, 1, bytes(range(128)), 0)
    assert device.poll is nccl._wait_with_others
    assert {os.environ[name] for name in nccl._SETTINGS} == {"0"}
    assert mixing not in os.environ
    nccl.communicator(GROUP, Settings(policy="zero"))  # a graph has collectives of two, then
    assert os.environ[mixing] == "0"
    del os.environ[mixing]
    nccl.drop_all(failed=True)
    abort_begins(fake)


def abort_begins(fake):
    """Wait for the thread that aborts."""
    assert fake.ending.wait(60)
    assert fake.ended == ("aborted", "comm")


@pytest.mark.parametrize("failed", [None, [2, "ValueError: no"]])
def test_a_wait_for_the_device_ends_with_the_other_ranks(fake, monkeypatch, failed):
    """By a limit of time, or by news that one has failed: then NCCL's work is aborted."""
    news = {"failure": failed, "left": [], "statuses": {"0": "a wait for the GPU"}}
    store = SimpleNamespace(status=lambda text: news)
    place = Launched(1, N, 1, N, "a test")
    monkeypatch.setattr(process, "_current", process.World(place, store))
    use(monkeypatch, GROUP, 1)
    device = SimpleNamespace(cancel=lambda end: end())
    monkeypatch.setattr(nccl, "existing_context", lambda: device)
    monkeypatch.setattr(nccl, "_bound", {})
    NcclKernel().bind(call_of(AllReduce(GROUP, "sum"), [drawn(1)]))
    monkeypatch.setattr(fake, "held", threading.Event())  # as while graphs with NCCL's kernels are
    answers = iter([False, True])
    nccl._wait_with_others(lambda: next(answers))
    assert nccl._communicators
    said = pytest.raises(DistributedError, match="no" if failed else "rank 2 did not come")
    with config.change_flags(**{"distributed.timeout": 0.1}), said as raised:
        nccl._wait_with_others(lambda: False)
    assert failed or "AllReduce(op=sum, float32 [6, 5]) of world(3)" in str(raised.value)
    abort_begins(fake)
    assert not nccl._communicators
    fake.held.set()
    with pytest.raises(PeerFailed, match="collectives were aborted"):
        process.current().check()


def test_an_old_nccl_or_none_is_named(fake, monkeypatch):
    fake.version = 22703
    with pytest.raises(DistributedError, match="22800 or newer"):
        nccl.communicator(GROUP)
    monkeypatch.undo()
    nccl._binding.cache_clear()
    assert "symdnn[nccl]" in (nccl.problem() or "symdnn[nccl]")


@pytest.mark.parametrize(("pairs", "wanted"), [((), 0), (((0, 0),), 5)])
def test_of_one_rank_a_permutation_gives_its_own_value_or_zeros(monkeypatch, pairs, wanted):
    copied = []
    monkeypatch.setattr(kernels, "strided_copy", lambda env, x, out: copied.append((x, out)))
    op, x, out = Permute(Group((0,), "one"), pairs), np.full(4, 5.0), np.full(4, 7.0)
    launch = NcclKernel().bind(call_of(op, [x]))
    launch(environment(np.zeros(4, "int32")), [raw(x)], [raw(out)])
    assert len(copied) == (wanted == 5)
    assert copied or (out == wanted).all()


def test_collectives_that_are_alone_do_without_nccl(fake, monkeypatch):
    """They give a rank its own values, or zeros, as before a capture at once."""
    monkeypatch.setattr(kernels, "strided_copy", lambda env, x, out: np.copyto(out_of[out.ptr], x_))
    use(monkeypatch, GROUP, 1)
    x_ = np.full((6, 5), 3.0, "float32")
    for op in (AllReduce(GROUP, "sum"), AllGather(GROUP), StreamStart(GROUP, AllReduce(GROUP))):
        call = call_of(op, [x_])
        outs = [np.full(t.shape, 7.0, "float32") for t in call.outputs]
        out_of = {raw(y).ptr: y for y in outs}
        env = environment(np.zeros(4, "int32"), alone=True)
        NcclKernel().bind(call)(env, [raw(x_)], [raw(y) for y in outs])
        assert (outs[0] == (3 if outs[0].shape == x_.shape else 0)).all()
    assert fake.launches == [[], [], []]
