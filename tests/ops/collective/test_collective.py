"""Collectives as ops: batches of calls, arguments that are refused, how they are printed."""

import pickle

import numpy as np
import pytest

import symdnn
import symdnn.distributed as dist
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import OptionError, ShapeMismatch, TypeMismatch
from symdnn.graph.traverse import toposort
from symdnn.ops.collective.base import Collective
from symdnn.ops.collective.overlapped import AllReduceStart, AllReduceWait, AllSucceeded
from symdnn.ops.control.batching import Operand, batch_graph
from symdnn.world.communicator import Communicator
from symdnn.world.group import Group

N = 3
GROUP = Group(tuple(range(N)), "world")


def test_a_batch_of_calls_is_one_collective():
    x = T.matrix("x")
    builds = [
        lambda v: dist.all_reduce(v, group=GROUP), lambda v: dist.all_gather(v, group=GROUP),
        lambda v: dist.reduce_scatter(v, group=GROUP), lambda v: dist.broadcast(v, group=GROUP),
        lambda v: dist.all_to_all(v, group=GROUP), lambda v: dist.reduce(v, group=GROUP),
        lambda v: dist.permute(v, [(0, 2)], group=GROUP),
    ]  # fmt: skip
    rng = np.random.default_rng(0)
    values = [rng.normal(size=(2, 6)).astype("float32") for _ in range(N)]
    for build in builds:
        one = T.vector("one")
        (found,) = batch_graph([build(one)], {one: Operand(x, True)})
        stacked = found.value
        assert found.stacked
        assert sum(isinstance(n.op, Collective) for n in toposort([stacked])) == 1
        got = dist.simulate([stacked], [{x: v} for v in values])
        for lane in range(2):
            want = dist.simulate([build(one)], [{one: v[lane]} for v in values])
            for a, b in zip(got, want):
                np.testing.assert_allclose(a[0][lane], b[0])


def test_arguments_that_make_no_sense():
    x, b = T.vector("x"), T.vector("b", dtype="bool")
    with pytest.raises(OptionError, match="op='avg'; wanted one of sum, mean"):
        dist.all_reduce(x, "avg")
    with pytest.raises(OptionError, match="reduce_scatter: op='max'"):
        dist.reduce_scatter(x, "max")
    with pytest.raises(TypeMismatch, match="a dtype that has a sum"):
        dist.all_reduce(b)
    with pytest.raises(TypeMismatch, match="a dtype that has a mean"):
        dist.all_reduce(T.ivector(), "mean")
    with pytest.raises(OptionError, match="broadcast: root=3; wanted from 0 to 2"):
        dist.broadcast(x, 3, group=GROUP)
    with pytest.raises(ShapeMismatch, match="a first dimension that 3 ranks divide"):
        dist.reduce_scatter(T.tensor("float32", (4,)), group=GROUP)
    with pytest.raises(OptionError, match="at most once"):
        dist.permute(x, [(0, 1), (0, 2)], group=GROUP)
    with pytest.raises(TypeMismatch, match="group"):
        dist.all_reduce(x, group=[0, 1])
    with pytest.raises(TypeMismatch, match="a token of dtype float32"):
        dist.recv((3,), "float32", 0, after=T.dvector(), group=GROUP)
    with pytest.raises(OptionError, match="distributed=3"):
        nn.optim.sgd((x**2).sum(), [symdnn.shared(np.ones(2, "float32"))], distributed=3)


def test_halves_are_printed_and_pickled():
    for op in (AllReduceStart(GROUP, "max"), AllReduceWait(2), AllSucceeded(GROUP)):
        assert pickle.loads(pickle.dumps(op)) == op
    assert str(AllReduceStart(GROUP, "max")) == "AllReduceStart{group=world(3), op=max}"
    assert Communicator.size.fget is not None
