"""Plans of a GPU with collectives, on a device that computes by references: these use MPI.

What runs is all that a GPU's program does but NCCL itself: lowering, placing, order, memory,
capture and replay, on several ranks.
"""

import contextlib
from unittest import mock

import numpy as np

import symdnn
import symdnn.distributed as dist
import symdnn.tensor as T
from symdnn import nn
from symdnn.gpu.device.capture import CaptureFailed
from symdnn.gpu.execution.plan import CudaPlan
from symdnn.gpu.execution.replay import Replay
from symdnn.ops.collective.base import Collective, Reducing
from symdnn.ops.collective.overlapped import StreamStart
from symdnn.world import process
from tests.gpu.reference_device import by_reference

DEVICE = by_reference()


def check_the_device_runs_all_collectives_that_it_can():
    """Of scalars, too: without MPI the host has no engine. Nodes run between the halves."""
    x, k = T.matrix("x"), T.scalar("k")
    whole = dist.all_reduce(k * x.shape[0], "sum")
    outs = [x / whole, dist.all_reduce(x, "max"), T.exp(x)]
    f = symdnn.function([x, k], outs)
    places = {type(n.op).__name__: s.place for s in f.stages.program.regions for n in s.nodes}
    assert {places["StreamStart"].kind, places["StreamWait"].kind} == {"cuda"}
    assert not {"AllReduce", "AllReduceStart"} & set(places)
    value, n = np.arange(6, dtype="float32").reshape(3, 2) + dist.rank(), dist.size()
    got = f(value, np.float32(2))
    for a, b in zip(got, [value / (6 * n), value - dist.rank() + n - 1, np.exp(value)]):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    if n > 1:
        assert any(row.meanwhile for row in f.distributed_report().rows)
    with symdnn.config.change_flags(**{"distributed.overlap": False}):
        g = symdnn.function([x], dist.all_reduce(x, "max"))
    assert "AllReduce" in {type(n.op).__name__ for n in g.fgraph.apply_nodes}


def check_collectives_are_captured_with_their_step():
    n, r = dist.size(), dist.rank()
    x, w = T.matrix("x"), symdnn.shared(np.full((4, 4), 0.1, "float32"), name="w")
    b = symdnn.shared(np.zeros(4, "float32"), name="b")
    loss = T.sqr(T.tanh(T.dot(x, w) + b)).mean()
    grads = symdnn.grad(loss, [w, b])
    updates = [(p, p - np.float32(0.5) * g) for p, g in zip([w, b], grads)]
    train = symdnn.function([x], loss, updates=dist.data_parallel(updates, bucket_bytes=16))
    train(np.ones((4, 4), "float32"))
    choices = [c for plan in train.plans() for c in plan.specialised.choices.values()]
    names = {c.kernel.name for c in choices}
    assert "nccl" in names, names
    value = np.random.default_rng(0).normal(size=(4 * n, 4)).astype("float32")
    for p in (w, b):
        p.set_value(np.full(p.get_value().shape, 0.1, "float32"))
    losses = [float(train(value[r::n])) for _ in range(6)]  # the third call replays a graph
    host_w, host_b = np.full((4, 4), 0.1), np.full(4, 0.1)
    for k in range(6):
        h = np.tanh(value @ host_w + host_b)
        own = np.tanh(value[r::n] @ host_w + host_b)
        np.testing.assert_allclose(losses[k], (own**2).mean(), rtol=1e-4)
        d = 2 * h * (1 - h**2) / h.size
        host_w, host_b = host_w - 0.5 * value.T @ d, host_b - 0.5 * d.sum(axis=0)
    np.testing.assert_allclose(w.get_value(), host_w, rtol=1e-3)


def lists_with_plans(f):
    """The collectives of which a function has plans, and whether each plan is a graph."""
    found = {}
    for plan in f.plans():
        nodes = [n for n in plan.specialised.segment.nodes if isinstance(n.op, Collective)]
        texts = [n.op.text(plan.specialised.call(n).inputs) for n in nodes]
        found.setdefault(", ".join(texts), []).append(plan.bound.replay is not None)
    return found


def is_graph(f, *given):
    """(what a call returns, whether its plan was replayed)."""
    log = DEVICE.context.log
    log.clear()
    found = f(*given)
    return found, "graph" in log


def agree(what, value):
    """Raise unless all ranks give equal values."""
    values = process.current().gather(what, value)
    assert values == [value] * len(values), values


def check_calls_are_captured_alike_whatever_sizes_ranks_have():
    """A rank with a new plan captures it at once where others replay theirs."""
    n, r = dist.size(), dist.rank()
    x, w = T.matrix("x"), symdnn.shared(np.full(3, 0.5, "float32"), name="w")
    steps = symdnn.shared(np.float32(0), name="steps")
    loss = T.sqr(T.dot(x, w)).sum()
    total = dist.all_reduce(symdnn.grad(loss, w), "sum")
    updates = [(w, w - np.float32(0.001) * total), (steps, steps + np.float32(1))]
    train = symdnn.function([x], dist.all_reduce(loss, "sum"), updates=updates)
    rng, host = np.random.default_rng(3), np.full(3, 0.5)
    rows = rng.integers(1, 7, size=(40, n))
    rows[:3] = 4
    modes = []
    with symdnn.config.change_flags(plan_cache_size=3):
        for sizes in rows.tolist():
            values = [rng.normal(size=(k, 3)).astype("float32") for k in sizes]
            got, graph = is_graph(train, values[r])
            modes.append(graph)
            if len(modes) == 9 and r == 0:  # other addresses, on one rank alone
                w.set_value(np.array(w.get_value()))
            np.testing.assert_allclose(got, sum(((v @ host) ** 2).sum() for v in values), rtol=1e-4)
            host = host - 0.001 * sum(2 * v.T @ (v @ host) for v in values)
            assert len(train.plans()) <= 3
    np.testing.assert_allclose(w.get_value(), host, rtol=1e-4)
    assert float(steps.get_value()) == len(modes)
    assert modes == [False] + [True] * (len(modes) - 1), modes


def check_plans_are_dropped_by_the_lists_of_their_collectives():
    """All ranks drop the plans of a list in the same call; of their own sizes, what they like."""
    n, r = dist.size(), dist.rank()
    x, y = T.vector("x"), T.vector("y")
    f = symdnn.function([x, y], [dist.all_gather(x), T.exp(y)])
    rng = np.random.default_rng(5)
    with symdnn.config.change_flags(plan_cache_size=4):
        for call in range(60):
            size, own = int(rng.integers(1, 8)), rng.integers(1, 4, size=n)
            (whole, _), graph = is_graph(f, np.full(size, r, "float32"), np.ones(own[r], "float32"))
            np.testing.assert_array_equal(whole, np.repeat(np.arange(n), size))
            agree("modes", [call, graph])
            agree("lists", sorted(lists_with_plans(f)))
            assert len(f.plans()) <= 4
    assert len(lists_with_plans(f)) == 4


def check_a_rank_that_cannot_capture_lets_none():
    """The reason is that of the rank, told with the list of collectives."""
    x = T.vector("x")
    f = symdnn.function([x], dist.all_reduce(x * 2, "sum"))
    with symdnn.config.change_flags(**{"gpu.graph": "off" if dist.rank() == 1 else "auto"}):
        for _ in range(3):
            got, graph = is_graph(f, np.ones(3, "float32"))
            np.testing.assert_array_equal(got, np.full(3, 2 * dist.size()))
            assert not graph
    (plan,) = f.plans()
    assert "gpu.graph=off" in plan.bound.capture_state


def check_a_capture_that_fails_on_one_rank_lets_none():
    """All capture for the first time in one call, behind which they agree; each tries it twice."""
    x, r, n = T.vector("x"), dist.rank(), dist.size()
    for refused in (1, 2):
        f = symdnn.function([x], dist.all_reduce(x * refused, "sum"))
        for call in range(4):
            with capture_refused(refused if (call, r) == (1, 1) else 0):
                got, graph = is_graph(f, np.ones(3, "float32"))
            np.testing.assert_array_equal(got, np.full(3, refused * n))
            assert graph == (refused == 1 and call > 0)
        (plan,) = f.plans()
        assert ("on rank 1: RuntimeError: busy" in plan.bound.capture_state) == (refused == 2)


@contextlib.contextmanager
def capture_refused(count):
    """The next ``count`` captures on this rank fail."""
    whole, left = Replay.__init__, count

    def refusing(*given):
        nonlocal left
        left -= 1
        if left >= 0:
            raise CaptureFailed("RuntimeError: busy")
        whole(*given)

    Replay.__init__ = refusing
    try:
        yield
    finally:
        Replay.__init__ = whole


def check_plans_that_take_too_much_on_one_rank_are_dropped_on_all():
    """In the call that brings new collectives, which the ranks compare."""
    n, r = dist.size(), dist.rank()
    x = T.vector("x")
    f = symdnn.function([x], dist.all_gather(x * 2))
    counts, each = [], 10 if r == 0 else 0
    with (
        mock.patch.object(CudaPlan, "nbytes", property(lambda _: each)),
        symdnn.config.change_flags(plan_cache_bytes=15),
    ):
        for size in (1, 2, 1, 2, 3, 3, 4, 1):
            whole, _ = is_graph(f, np.full(size, r, "float32"))
            np.testing.assert_array_equal(whole, np.repeat(2 * np.arange(n), size))
            found = lists_with_plans(f)
            agree("lists", [size, sorted(found)])
            counts.append(len(found))
    assert counts == [1, 2, 2, 2, 2, 2, 2, 3], counts


def check_loops_with_collectives_run_step_by_step_on_all_ranks():
    """A rank would capture its loop by its own sizes, in another call than the others."""
    n, r = dist.size(), dist.rank()
    x, rows = T.vector("x"), T.matrix("rows")
    (states, sums), _ = symdnn.scan(
        lambda row, s: [dist.all_reduce(s + row.sum(), "mean"), T.exp(row).sum()],
        sequences=[rows], outputs_info=[x, None],
    )  # fmt: skip
    f = symdnn.function([x, rows], [states[-1], sums])
    for call in range(6):
        width = 3 + call % (r + 1)
        got = f(np.zeros(2, "float32"), np.ones((4, width), "float32"))
        want = sum(3 + call % (q + 1) for q in range(n)) / n
        np.testing.assert_allclose(got[0], np.full(2, 4 * want), rtol=1e-6)
    ops = [[n.op for n in p.specialised.segment.nodes] for p in f.plans()]
    (body,) = [i for i, found in enumerate(ops) if any(isinstance(o, Collective) for o in found)]
    said = f.plans()[body].bound.capture_state
    assert said == "not captured: the body of a loop is enqueued step by step"


def check_sends_and_receipts_are_captured_in_one_call():
    """In the second one of a list on both, though the lists are not compared."""
    r = dist.rank()
    if r > 1:
        return
    pair, x = dist.new_group([0, 1]), symdnn.shared(np.zeros(3, "float32"))
    out = dist.send(x * 2, 1, group=pair) if r == 0 else dist.recv((3,), "float32", 0, group=pair)
    f, modes = symdnn.function([], out), []
    for call in range(4):
        if r == 0:
            x.set_value(np.full(3, call, "float32"))
        got, graph = is_graph(f)
        modes.append(graph)
        if r == 1:
            np.testing.assert_array_equal(got, np.full(3, 2 * call))
    assert modes == [False, True, True, True], modes


def check_a_run_without_the_others_leaves_no_trace():
    """Before a capture at once: no variable changes, and a fault in the data is raised once."""
    n, r = dist.size(), dist.rank()
    x, k = T.vector("x"), T.lvector("k")
    w = symdnn.shared(np.ones(4, "float32"), name="w")
    total = dist.all_reduce(T.sqr(x[k]).sum(), "sum")
    f = symdnn.function([x, k], total, updates=[(w, w + total)])
    value = np.arange(4, dtype="float32")
    for call in range(4):
        rows = np.arange(call % 3 + 1 + (r if call else 0)) % 4  # other sizes on each rank
        before, want = w.get_value(), None
        got, graph = is_graph(f, value, rows)
        counts = [np.arange(call % 3 + 1 + (q if call else 0)) % 4 for q in range(n)]
        want = sum((value[c] ** 2).sum() for c in counts)
        np.testing.assert_allclose(got, want)
        np.testing.assert_allclose(w.get_value(), before + want, rtol=1e-5)
        assert graph == (call > 0)


def check_steps_shared_out_have_one_order_of_collectives():
    """Ranks with other parts compute other things between them, and norms of their own layers."""
    n, r = dist.size(), dist.rank()
    rng = np.random.default_rng(1)
    value, labels = rng.normal(size=(40, 6)).astype("float32"), rng.integers(0, 2, 40, "int32")
    found = []
    for shard in (None, "optimizer", "parameters"):
        nn.init.seed(3)
        x, t = T.matrix("x"), T.ivector("t")
        deep = [m for _ in range(3) for m in (nn.Tanh(), nn.Linear(8, 8))]
        net = nn.Sequential(nn.Linear(6, 8), *deep, nn.Tanh(), nn.Linear(8, 2))
        loss = nn.CrossEntropyCriterion()(net(x), t)
        parallel = dist.DataParallel(shard=shard, bucket_bytes=300)
        train = symdnn.function(
            [x, t], loss, updates=nn.optim.adam(loss, net, distributed=parallel)
        )
        found.append([float(train(value[r::n], labels[r::n])) for _ in range(4)])
    for losses in found[1:]:
        np.testing.assert_allclose(losses, found[0], rtol=1e-4)


def check_gradients_that_a_step_has_rounded_are_summed_in_16_bits():
    """Those of matrices; of two ranks the sum of two numbers, which is rounded once more."""
    n, r = dist.size(), dist.rank()
    rng = np.random.default_rng(2)
    value, labels = rng.normal(size=(16 * n, 24)).astype("float32"), rng.integers(0, 4, 16 * n)
    shards, found = (None, "optimizer", "parameters"), {}
    for word in ("rounded", "float32"):
        for shard in shards:
            nn.init.seed(5)
            x, t = T.tensor("float32", (16, 24), name="x"), T.tensor("int64", (16,), name="t")
            net = nn.Sequential(nn.Linear(24, 32), nn.Tanh(), nn.Linear(32, 4))
            loss = nn.CrossEntropyCriterion()(net(x), t)
            parallel = dist.DataParallel(shard=shard, reduce_dtype=word)
            with symdnn.config.change_flags(amp="bf16"):
                updates = nn.optim.sgd(loss, net, 0.1, momentum=0.9, distributed=parallel)
                train = symdnn.function([x, t], loss, updates=updates)
            losses = [float(train(value[r::n], labels[r::n])) for _ in range(6)]
            moved = [
                (t.dtype, len(t.shape))
                for plan in train.plans()
                for node in plan.specialised.segment.nodes
                if isinstance(node.op, StreamStart) and isinstance(node.op.of, Reducing)
                for t in plan.specialised.call(node).inputs
            ]
            found[word, shard] = losses, {d for d, _ in moved}
            if word == "rounded" and shard is None and n > 1:
                assert set(moved) == {("bfloat16", 2), ("float32", 1)}, moved
    for (word, _), (losses, dtypes) in found.items():
        np.testing.assert_allclose(losses, found["float32", None][0], rtol=2e-3)
        if n > 1:
            assert dtypes == ({"float32"} if word == "float32" else {"bfloat16", "float32"})
        if n == 2:  # the same sums, and GEMMs of the same dtypes
            np.testing.assert_allclose(losses, found[word, None][0], rtol=1e-6)


def check_operands_may_lie_in_memory_of_their_own():
    """Without NCCL it is not registered, which the report says; results are the same."""
    n, r = dist.size(), dist.rank()
    x, w = T.matrix("x"), symdnn.shared(np.ones((160, 160), "float32"), name="w")
    loss = T.sqr(T.dot(x, w)).mean()
    updates = [(w, w - np.float32(0.5) * symdnn.grad(loss, w))]
    values = np.random.default_rng(4).normal(size=(n, 8, 160)).astype("float32")
    found = []
    for registered in (False, True):
        w.set_value(np.ones((160, 160), "float32"))
        with symdnn.config.change_flags({"distributed.registered": registered}):
            train = symdnn.function([x], loss, updates=dist.data_parallel(updates))
            for _ in range(4):
                train(values[r])
        found.append(w.get_value())
        assert bool(train.distributed_report().registered) == (registered and n > 1)
    np.testing.assert_array_equal(*found)
    if n > 1:
        assert "registered memory of plan 0: none: " in str(train.distributed_report())
        (plan,) = train.plans()
        assert "registered at " in plan.memory.text()
