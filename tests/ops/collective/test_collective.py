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


@pytest.mark.parametrize("op", ["sum", "mean", "prod", "max", "min"])
@pytest.mark.parametrize("root", [None, 0, 2])
def test_every_reduction_has_the_derivative_of_its_value(op, root):
    """Of the sum over ranks of each rank's cost; backwards, forwards, and the second one."""
    x, v = T.dmatrix("x"), T.dmatrix("v")
    y = dist.all_reduce(x, op, GROUP) if root is None else dist.reduce(x, op, root, GROUP)
    y = y**3 + y  # where a reduce has zeros, the slope is not 0
    back = symdnn.grad(y.sum(), x)
    graphs = [y, back, symdnn.Rop(y, x, v), symdnn.grad((back * v).sum(), x)]
    rng = np.random.default_rng(7)
    at = rng.uniform(0.5, 2, (N, 2, 3))
    turn = rng.normal(size=at.shape)

    def on_ranks(outputs, step=0.0):
        moved = at + step * turn
        found = dist.simulate(outputs, [{x: a, v: t} for a, t in zip(moved, turn)])
        return [np.stack(values) for values in zip(*found)]

    def slope(output):
        (ahead,), (behind,) = on_ranks([output], 1e-6), on_ranks([output], -1e-6)
        return (ahead - behind) / 2e-6

    _, backward, forward, second = on_ranks(graphs)
    np.testing.assert_allclose((backward * turn).sum(), slope(y).sum(), rtol=1e-6)
    np.testing.assert_allclose(forward, slope(y), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose((second * turn).sum(), (slope(back) * turn).sum(), rtol=1e-5)


@pytest.mark.parametrize(("build", "error", "said"), [
    (lambda x: dist.new_group(0), OptionError, "ranks=0; wanted a list of different"),
    (lambda x: dist.new_group("01"), OptionError, "wanted a list of different ranks"),
    (lambda x: dist.new_group([0.5]), OptionError, "wanted a list of different ranks"),
    (lambda x: dist.new_group([]), OptionError, "wanted a list of different ranks"),
    (lambda x: dist.Mesh([1]), OptionError, "wanted a dict such as"),
    (lambda x: dist.Mesh({"data": 1.0}), OptionError, "wanted a dict such as"),
    (lambda x: dist.Mesh({"data": 1}).group(), OptionError, "wanted some, and the axes are data"),
    (lambda x: dist.Mesh({"data": 1}).group("b"), OptionError, "names .'b'.; wanted some"),
    (lambda x: dist.broadcast(x, "0"), OptionError, "root='0'; wanted from 0"),
    (lambda x: dist.broadcast(x, 0.0), OptionError, "root=0.0; wanted from 0"),
    (lambda x: dist.permute(x, [(0, 0, 0)]), OptionError, "wanted pairs of a source"),
    (lambda x: dist.permute(x, 1), OptionError, "wanted pairs of a source"),
    (lambda x: dist.recv(2, "float32", 0), TypeMismatch, "a list of sizes"),
    (lambda x: dist.barrier([0]), TypeMismatch, "a group by new_group"),
    (lambda x: dist.DataParallel(group=[0]), TypeMismatch, "a group by new_group"),
    (lambda x: dist.DataParallel(bucket_bytes="8"), OptionError, "wanted a number of bytes"),
    (lambda x: dist.DataParallel(bucket_bytes=-8), OptionError, "wanted a number of bytes"),
    (lambda x: dist.DataParallel(samples=x), TypeMismatch, "a scalar such as"),
    (lambda x: dist.data_parallel([], shard="optimizer"), OptionError, "nn.optim.adam"),
    (lambda x: dist.average_gradients([], [], samples=1), OptionError, "weights a loss"),
    (lambda x: dist.simulate([dist.all_reduce(x, group=GROUP)], [{x: [1.0]}]), OptionError,
     "has 3 ranks, and values has 1 entries"),
    (lambda x: dist.simulate([dist.all_reduce(x)], []), OptionError, "has 1 ranks"),
])  # fmt: skip
def test_what_ranks_groups_and_options_can_not_be(build, error, said):
    with pytest.raises(error, match=said):
        build(T.vector("x"))


def test_numbers_of_ranks_may_be_numpys():
    group = dist.new_group(np.arange(1))
    assert group == dist.new_group([0]) == dist.new_group(range(1))
    assert pickle.loads(pickle.dumps(group)) == group
    x = T.vector("x")
    y = dist.permute(dist.broadcast(x, np.int64(0)), np.zeros((1, 2), int).tolist())
    assert y.eval({x: [3.0]}).tolist() == [3.0]


def test_halves_are_printed_and_pickled():
    for op in (AllReduceStart(GROUP, "max"), AllReduceWait(2), AllSucceeded(GROUP)):
        assert pickle.loads(pickle.dumps(op)) == op
    assert str(AllReduceStart(GROUP, "max")) == "AllReduceStart{group=world(3), op=max}"
    assert Communicator.size.fget is not None
