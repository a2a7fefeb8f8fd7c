"""Plans of a GPU with collectives, on a device that computes by references: these use MPI.

What runs is all that a GPU's program does but NCCL itself: lowering, placing, order, memory,
capture and replay, on several ranks.
"""

import numpy as np

import symdnn
import symdnn.distributed as dist
import symdnn.tensor as T
from tests.gpu.reference_device import by_reference

by_reference()


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
    train = symdnn.function([x], loss, updates=dist.data_parallel(updates))
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
