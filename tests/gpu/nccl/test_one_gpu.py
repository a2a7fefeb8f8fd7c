"""Collectives of one rank by NCCL itself, eager and in a captured graph: on any machine with a GPU.

Sends to another rank need two GPUs; a permutation of one rank onto itself runs the same calls.
"""

from __future__ import annotations

import gc

import numpy as np
import pytest

import symdnn
import symdnn.distributed as dist
import symdnn.tensor as T
from symdnn.config import config
from symdnn.distributed.gradients import agreement
from symdnn.errors import IndexOutOfRange
from symdnn.gpu.nccl import communicator as nccl
from symdnn.world.group import Group
from tests.gpu.conftest import BY_REFERENCE

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda")]

ONE = Group((0,), "the only rank")
CALLS = 4  # as it is, captured, replayed twice
MODE = symdnn.Mode(target="cuda")


class Recorded:
    """The binding, with the names of its functions as they are looked up to be called."""

    def __init__(self, real):
        self.real, self.names = real, []

    def __getattr__(self, name):
        self.names.append(name)
        return getattr(self.real, name)


@pytest.fixture(scope="module")
def engine():
    """(the binding, recorded; communicators). They are left to the end of the process: to destroy
    one waits for all graphs that use it, and a failed test keeps its own."""
    if not BY_REFERENCE and (why := nccl.problem()):
        pytest.skip(why)
    return Recorded(nccl._binding()), {}


@pytest.fixture(autouse=True)
def called(engine, monkeypatch):
    """Collectives of one rank go to NCCL; the names of the functions that are called there."""
    recorded, communicators = engine
    recorded.names.clear()
    monkeypatch.setattr(nccl, "_binding", lambda: recorded)
    monkeypatch.setattr(nccl, "_communicators", communicators)
    with config.change_flags(**{"distributed.single_rank": "nccl"}):
        yield recorded.names


def drawn(dtype, shape, seed):
    values = np.random.default_rng(seed).integers(0, 2 if dtype == "bool" else 9, shape)
    return values.astype(T.tensor(dtype, shape).type.numpy)


def moves(x):
    """Each call of NCCL that moves values, and what one rank gets."""
    return [
        dist.all_gather(x, group=ONE),
        dist.broadcast(x, group=ONE),
        dist.all_to_all(x, group=ONE),
        dist.permute(x, [(0, 0)], group=ONE),
    ]


def reductions(x):
    """Each reduction of each function of NCCL."""
    words = ["sum", "prod", "max", "min"] + (["mean"] if x.type.is_float else [])
    sums = [w for w in words if w in ("sum", "mean")]
    return [
        *(dist.all_reduce(x, w, group=ONE) for w in words),
        *(dist.reduce_scatter(x, w, group=ONE) for w in sums),
        *(dist.reduce(x, w, group=ONE) for w in sums),
    ]


def is_captured(f):
    (plan,) = f.plans()
    return plan.bound.replay is not None


DTYPES = ["float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8", "bool", "int16"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_op_gives_the_rank_its_own_value(dtype, called):
    x = T.tensor(dtype, (None, 3), name="x")
    reduced = [] if dtype in ("bool", "int16") else reductions(x)
    outs = [*reduced, *moves(x), dist.permute(x, [], group=ONE)]
    f = symdnn.function([x], outs, mode=MODE)
    for k in range(CALLS):
        value = drawn(dtype, (5, 3), k)
        *own, nothing = f(value)
        for got in own:
            np.testing.assert_array_equal(np.asarray(got), value)
        assert not np.asarray(nothing).any()
    assert is_captured(f)
    (plan,) = f.plans()
    kernels = [c.kernel.name for c in plan.specialised.choices.values()]
    assert kernels.count("nccl") == len(outs)
    if not BY_REFERENCE:
        wanted = {"all_gather", "broadcast", "allto_all", "send", "recv"}
        wanted |= {"all_reduce", "reduce_scatter", "reduce"} if reduced else set()
        assert wanted <= set(called)
        # The replays call nothing: each function was called twice, alone and for the graph.
        assert called.count("broadcast") == 2


@pytest.mark.parametrize("size", [0, 1, 7, 65537])
def test_a_bucket_of_several_arrays_of_any_size(size):
    x, y = T.vector("x"), T.matrix("y")
    f = symdnn.function([x, y], dist.all_reduce([x * 2, y.T, T.exp(x)], "mean", ONE), mode=MODE)
    for k in range(CALLS):
        a, b = drawn("float32", (size,), k), drawn("float32", (3, size), k + 9)
        for got, want in zip(f(a, b), (a * 2, b.T, np.exp(a)), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-6)


def test_operands_in_registered_memory():
    """Made or copied there; the report says how much NCCL has registered, or why nothing."""
    x = T.vector("x")
    with config.change_flags({"distributed.registered": True}):
        outs = [
            *dist.all_reduce([x * 2, T.exp(x)], "mean", ONE), dist.all_gather(x, group=ONE),
            dist.reduce_scatter(x * 3, group=ONE),
        ]  # fmt: skip
        f = symdnn.function([x], outs, mode=MODE)
        for k in range(CALLS):
            a = drawn("float32", (70_001,), k) / np.float32(8)
            for got, want in zip(f(a), (a * 2, np.exp(a), a, a * 3), strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-6)
    assert is_captured(f)
    (said,) = f.distributed_report().registered
    assert said.startswith("plan 0: ")


def step(x, t, w, averaged):
    """A training step whose gradients, and error words, go through NCCL."""
    loss = T.nnet.categorical_crossentropy(T.nnet.softmax(T.dot(x, w)), t).mean()
    (g,) = dist.all_reduce([symdnn.grad(loss, w)], "mean", ONE) if averaged else [
        symdnn.grad(loss, w)
    ]  # fmt: skip
    updates = [(w, w - np.float32(0.5) * g)] + (agreement(ONE) if averaged else [])
    return symdnn.function([x, t], loss, updates=updates, mode=MODE)


def test_a_captured_step_trains_as_without_collectives(called):
    start = np.random.default_rng(0).normal(size=(6, 4)).astype("float32")
    w, v = symdnn.shared(start, name="w"), symdnn.shared(start, name="v")
    x, t = T.matrix("x"), T.ivector("t")
    ours, plain = step(x, t, w, True), step(x, t, v, False)
    for k in range(6):
        values, labels = drawn("float32", (8, 6), k), drawn("int32", (8,), k) % 4
        np.testing.assert_allclose(ours(values, labels), plain(values, labels), rtol=1e-6)
    np.testing.assert_allclose(w.get_value(), v.get_value(), rtol=1e-6)
    assert is_captured(ours)
    assert BY_REFERENCE or called.count("all_reduce") >= 4  # the bucket, the value, the error word


def test_a_data_error_goes_through_nccl_and_no_variable_changes():
    w = symdnn.shared(np.ones((6, 4), "float32"), name="w")
    x, t = T.matrix("x"), T.ivector("t")
    train = step(x, t, w, True)
    values, labels = drawn("float32", (8, 6), 1), np.arange(8, dtype="int32") % 4
    for _ in range(CALLS):
        train(values, labels)
    before = w.get_value()
    with pytest.raises(IndexOutOfRange):
        train(values, labels + 3)
    np.testing.assert_array_equal(w.get_value(), before)
    train(values, labels)
    assert not np.array_equal(w.get_value(), before)


def test_communicators_are_destroyed_after_graphs_and_made_again(called, monkeypatch):
    monkeypatch.setattr(nccl, "_communicators", {})
    x = T.vector("x")
    for _ in range(2):
        f = symdnn.function([x], dist.all_reduce(x + 1, group=ONE), mode=MODE)
        for k in range(CALLS):
            np.testing.assert_array_equal(f(np.full(5, k, "float32")), np.full(5, k + 1))
        f.free()
        del f
        gc.collect()  # the captured graph, for which NCCL would wait
        nccl.drop_all()
    assert BY_REFERENCE or called.count("comm_init_rank_scalable") == 2
    assert BY_REFERENCE or called.count("comm_destroy") == 2
