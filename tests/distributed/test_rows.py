"""Averages of embeddings' gradients by rows: values of all ranks in one process, and graphs."""

from dataclasses import replace

import numpy as np
import pytest

import symdnn
import symdnn.distributed as dist
import symdnn.tensor as T
from symdnn import nn
from symdnn.distributed.rows import Moved, in_order
from symdnn.gpu.indexing import index
from symdnn.graph.kernel import Call
from symdnn.graph.traverse import toposort
from symdnn.nn.optimizers import base
from symdnn.ops.array.advanced_index import AdvancedIncSubtensor
from symdnn.ops.collective.base import Collective
from symdnn.ops.collective.overlapped import StreamWait, is_agreement
from symdnn.ops.collective.reductions import AllGather, AllReduce
from symdnn.world import process
from symdnn.world.group import Group
from symdnn.world.launcher import Launched

N = 3
GROUP = Group(tuple(range(N)), "world")
WORDS, WIDTH, LENGTH = 40, 4, 5


@pytest.fixture(autouse=True)
def of_three(monkeypatch):
    """A world of three ranks, of which this is number 1; nothing joins them."""
    monkeypatch.setattr(process, "_current", process.World(Launched(1, N, 1, N, "a test")))


def table(name="table", shape=(WORDS, WIDTH), dtype="float32", static=True):
    value = np.random.default_rng(0).normal(size=shape).astype(dtype)
    return symdnn.shared(value, name=name, shape=shape if static else None)


def tied(w, i):
    return T.tanh(T.dot(T.tanh(w[i]), w.T)).mean()


def untied(w, i):
    return T.sqr(w[i] + 1).mean()


def twice(w, i):
    return (T.sqr(w[i]) * w[i[::-1]]).mean() - 2 * T.exp(w[i[0]]).sum()


def by_columns(w, i):
    return T.sqr(w.T.take(i, axis=1)).mean() + T.exp(w).sum()


def from_the_end(w, i):
    return T.sqr(w[i - WORDS]).mean()


def unsigned(w, i):
    return T.sqr(w[T.cast(i, "uint32")]).mean()


def scaled(w, i):
    return -(T.sqr(w[i]).mean() / np.float32(3)) * w.sum()


LOSSES = [tied, untied, twice, by_columns, from_the_end, unsigned, scaled]


def averages_of_all(loss_of, dtype="float32", **options):
    """(averages on each rank by NumPy, the gradients of each rank, the average's collectives)."""
    w = table(shape=(2 * WORDS, WIDTH), dtype=dtype, static=dtype == "float32")
    i = T.tensor("int64", (2, LENGTH), name="i")
    g = symdnn.grad(loss_of(w, i), w)
    (mean,) = dist.average_gradients([g], [w], **options)
    rng = np.random.default_rng(1)
    values = [{i: rng.integers(0, WORDS, (2, LENGTH))} for _ in range(N)]
    found = dist.simulate([mean, g], values)
    ops = [n for n in toposort([mean]) if isinstance(n.op, Collective)]
    return [f[0] for f in found], [f[1] for f in found], ops, mean


@pytest.mark.parametrize("loss_of", LOSSES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_averages_are_those_of_whole_gradients(loss_of, dtype):
    found, own, ops, mean = averages_of_all(loss_of, dtype)
    assert any(isinstance(n.op, AllGather) for n in ops)
    want = np.mean(own, axis=0)
    for value in found:
        assert value.dtype == dtype
        np.testing.assert_allclose(value, want, rtol=1e-5, atol=1e-7)
        np.testing.assert_array_equal(value, found[0])
    scatters = [n.op for n in toposort([mean]) if isinstance(n.op, AdvancedIncSubtensor)]
    assert all(op.same_bits for op in scatters)  # those of one rank are not among them
    dense = [n for n in ops if isinstance(n.op, AllReduce)]
    assert len(dense) == (loss_of in (tied, by_columns, scaled))


def test_rows_move_in_the_dtype_of_reductions():
    found, own, ops, _ = averages_of_all(tied, reduce_dtype="bfloat16")
    moved = {n.inputs[0].type.dtype for n in ops}
    assert moved == {"int64", "bfloat16"}
    np.testing.assert_allclose(found[0], np.mean(own, axis=0), rtol=0.02, atol=1e-3)


def collectives(loss, w, **options):
    (mean,) = dist.average_gradients([symdnn.grad(loss, w)], [w], **options)
    return [n for n in toposort([mean]) if isinstance(n.op, Collective)]


def test_where_rows_are_not_fewer_or_not_known_the_whole_is_averaged():
    i = T.tensor("int64", (27,), name="i")  # 27 rows of 3 ranks are more than twice 40
    k = T.lvector("k")
    w = table()
    few = T.tensor("int64", (26,), name="few")  # their numbers count, too
    for rows, said in ((i, "of at most"), (few, "of at most"), (k, "is not known")):
        (node,) = collectives(untied(w, rows), w)
        assert isinstance(node.op, AllReduce)
        assert "table: averaged as a whole" in node.hints.name
        assert said in node.hints.name
    fewer = T.tensor("int64", (13,), name="fewer")
    both = untied(w, fewer) + T.exp(w).sum()  # a dense part moves besides
    assert [type(n.op) for n in collectives(both, w)] == [AllReduce]
    assert [type(n.op) for n in collectives(untied(w, fewer), w)] == [AllGather] * 2
    with symdnn.config.change_flags({"distributed.gather_rows": False}):
        (node,) = collectives(untied(w, fewer), w)
    assert "distributed.gather_rows" in node.hints.name


def test_what_is_no_sum_of_rows_is_left_alone():
    w, i = table(), T.tensor("int64", (3,), name="i")
    j = T.tensor("int64", (3,), name="j")
    for loss in (
        T.sqr(w).sum(),
        T.sqr(w[i, j % WIDTH]).sum(),  # elements, no rows
        T.sqr(T.set_subtensor(w[i], np.float32(0))).sum(),
        T.sqr(w[2:9]).sum(),
        T.sqr(w[i][:, :2]).sum() * T.sqr(w).sum(),
    ):
        found = [type(n.op) for n in collectives(loss, w)]
        rows = AllGather in found
        assert rows == (loss.type.ndim == 0 and "AdvancedSubtensor{a, :}" in names(loss)), found


def names(loss):
    return [str(n.op) for n in toposort([loss])]


def test_rows_go_behind_what_is_made_before_them_and_before_the_last_buckets():
    buckets = [Moved((k,), 100, k + 1) for k in range(6)]
    last = Moved((6,), 150, 20, rows=True)
    assert in_order(buckets, [last]) == [*buckets[:4], last, *buckets[4:]]
    early = Moved((7,), 150, 2, rows=True)
    assert in_order(buckets, [early, last]) == [
        *buckets[:2], early, *buckets[2:4], last, *buckets[4:],
    ]  # fmt: skip
    large = Moved((6,), 10**4, 20, rows=True)  # no more than a half goes behind it
    assert in_order(buckets, [large]) == [*buckets[:3], large, *buckets[3:]]
    assert in_order([], [last]) == [last]


def training(monkeypatch, **options):
    """The nodes of a step on a GPU of a network with tied embeddings."""
    monkeypatch.setattr(base, "broadcast_values", lambda *_: None)
    nn.init.seed(3)
    net = nn.models.gpt2(words=256, context=8, width=16, layers=2, heads=2, dropout=0.0)
    x, t = (T.tensor("int64", (1, 8), name=n) for n in "xt")
    scores = net(x)
    loss = nn.CrossEntropyCriterion()(scores.reshape((-1, scores.shape[2])), t.flatten())
    parallel = dist.DataParallel(bucket_bytes=4000)
    updates = nn.optim.sgd(loss, net, 0.1, momentum=0.9, distributed=parallel, **options)
    mode = symdnn.Mode(target="cuda:sm_90")
    f = symdnn.function([x, t], loss, updates=updates, mode=mode)
    return [n for s in f.stages.program.segments() for n in s.nodes]


def test_the_dense_part_moves_first_and_updates_run_while_rows_come(monkeypatch):
    nodes = training(monkeypatch)
    starts = [n for n in nodes if isinstance(n.op, Collective) and not is_agreement(n)]
    assert starts[0].inputs[0].type.shape == (256, 16)
    gathered = [k for k, n in enumerate(starts) if isinstance(n.op.of, AllGather)]
    assert len(gathered) == 2  # numbers, and rows
    assert gathered[1] == gathered[0] + 1 < len(starts) - 1
    (scatter,) = [k for k, n in enumerate(nodes) if isinstance(n.op, AdvancedIncSubtensor)]
    assert nodes[scatter].op.same_bits
    kinds = [k for k, n in enumerate(nodes) if type(n.op).__name__ == "FusedElemwise"
             and n.inputs[-1].type.shape and k > scatter - 40]  # fmt: skip
    waits = [k for k, n in enumerate(nodes) if isinstance(n.op, StreamWait)]
    agreed = next(k for k in waits if is_agreement(nodes[k].inputs[0].owner))
    assert agreed < scatter  # updates of buckets that have come are between
    assert any(agreed < k < scatter for k in kinds)
    assert max(waits) > scatter


@pytest.mark.parametrize("options", [
    {"loss_scale": symdnn.LossScale()}, {"clip_norm": 0.1}, {"accumulate": 2, "clip_value": 1.0},
], ids=lambda o: "-".join(o))  # fmt: skip
def test_steps_of_all_kinds_have_a_valid_order(monkeypatch, options):
    nodes = training(monkeypatch, **options)
    place = {n: i for i, n in enumerate(nodes)}
    for n in nodes:
        assert all(v.owner not in place or place[v.owner] < place[n] for v in n.inputs)
    assert any(isinstance(getattr(n.op, "of", None), AllGather) for n in nodes)


def called(node):
    inputs, outputs = (tuple(v.type for v in vs) for vs in (node.inputs, node.outputs))
    return Call(node.op, inputs, outputs, node.hints)


def test_sums_of_the_same_bits_have_no_atomic_additions_on_a_gpu():
    x, y, i = T.matrix("x"), T.matrix("y"), T.lvector("i")
    inc = T.inc_subtensor(x[i], y)
    plain = inc.owner
    same = replace(plain.op, same_bits=True).make_node(*plain.inputs)
    atomic, ordered = index.ScatterKernel(), index.OrderedScatterKernel()

    def reason(node):
        return atomic.refuses(called(node))

    assert reason(plain) is None
    assert "order" in reason(same)
    assert ordered.refuses(called(same)) is None


@pytest.mark.parametrize(("loss_of", "word", "wanted"), [
    (tied, "rounded", "bfloat16"), (tied, "gradient", "float32"), (untied, "rounded", "float32"),
])  # fmt: skip
def test_rows_move_in_16_bits_to_a_table_that_is_rounded(loss_of, word, wanted):
    """Beside a dense part that a product has rounded; rows alone stay as they are."""
    w = table(shape=(8 * WORDS, 16))
    i = T.tensor("int64", (2, LENGTH), name="i")
    (mean,) = dist.average_gradients([symdnn.grad(loss_of(w, i), w)], [w], reduce_dtype=word)
    with symdnn.config.change_flags(amp="bf16"):
        stages = symdnn.function([i], mean, mode=symdnn.Mode(target="cuda:sm_90")).stages
    nodes = stages.fgraph.toposort()
    (scatter,) = [n for n in nodes if isinstance(n.op, AdvancedIncSubtensor)]
    assert {v.type.dtype for v in scatter.inputs[:2]} == {wanted}
    gathered = [
        n.inputs[0].type.dtype for n in nodes if isinstance(getattr(n.op, "of", 0), AllGather)
    ]
    assert sorted(gathered) == [wanted, "int64"]
    assert mean.type.dtype == "float32"
