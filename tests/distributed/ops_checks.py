"""Collectives on real ranks against their NumPy references."""

import os

import numpy as np

import symdnn
import symdnn.distributed as dist
import symdnn.tensor as T
from symdnn.graph.type import TensorType

DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "int32", "int64", "uint8",
          "complex64", "complex128", "bool")  # fmt: skip
if "SYMDNN_QUICK" in os.environ:
    DTYPES = ("float32", "bfloat16", "int64", "bool")
if "SYMDNN_NCCL" in os.environ:  # what NCCL reduces; others run on the host, by MPI
    DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64")
SHAPES = ((0,), (1,), (7,), (3, 5), (2, 0, 3), (33, 1030))


def drawn(dtype, shape, rank):
    rng = np.random.default_rng([rank, len(shape), sum(shape)])
    x = rng.normal(size=shape) * 3
    if dtype.startswith("complex"):
        x = x + 1j * rng.normal(size=shape)
    if dtype == "bool":
        return x > 0
    if dtype.startswith(("int", "uint")):
        x = rng.integers(1, 5, shape)
    return np.asarray(x).astype(TensorType(dtype, ()).numpy)


def functions(n, dtype):
    """Functions of one array of which the first axis is a multiple of n where that is needed."""
    found = {f"all_reduce_{op}": (lambda x, op=op: dist.all_reduce(x, op), 1) for op in ops(dtype)}
    if "sum" in ops(dtype):
        found["reduce"] = (lambda x: dist.reduce(x, "sum", n - 1), 1)
        found["reduce_scatter"] = (dist.reduce_scatter, n)
    return found | {
        "all_gather": (dist.all_gather, 1),
        "all_gather_last": (lambda x: dist.all_gather(x, axis=-1), 1),
        "broadcast": (lambda x: dist.broadcast(x, n - 1), 1),
        "all_to_all": (dist.all_to_all, n),
        "all_to_all_axes": (lambda x: dist.all_to_all(x, 0, x.type.ndim - 1), n),
        "permute": (lambda x: dist.permute(x, [(i, (i + 1) % n) for i in range(n)]), 1),
        "permute_some": (lambda x: dist.permute(x, [(0, n - 1)]), 1),
    }


def ops(dtype):
    if dtype == "bool":
        return ("max", "min")
    if dtype.startswith("complex"):
        return ("sum", "mean", "prod")
    whole = dtype.startswith(("int", "uint"))
    return ("sum", "prod", "max", "min") if whole else ("sum", "mean", "prod", "max", "min")


def check_every_op_on_every_dtype_and_size():
    n, r = dist.size(), dist.rank()
    for dtype in DTYPES:
        for shape in SHAPES:
            variables, outs, values = [], [], [{} for _ in range(n)]
            for name, (build, multiple) in functions(n, dtype).items():
                full = (shape[0] * multiple, *shape[1:])
                x = TensorType(dtype, (None,) * len(full))(name)
                variables.append(x)
                outs.append(build(x))
                for i in range(n):
                    values[i][x] = drawn(dtype, full, i)
            f = symdnn.function(variables, outs)
            got = f(*[values[r][x] for x in variables])
            want = dist.simulate(outs, values)[r]
            for x, a, b in zip(variables, got, want, strict=True):
                assert a.dtype == b.dtype, x
                tolerance = {"float16": 1e-2, "bfloat16": 5e-2}.get(dtype, 1e-5)
                np.testing.assert_allclose(
                    a.astype(complex), b.astype(complex), rtol=tolerance, atol=tolerance,
                    err_msg=f"{x} {dtype} {shape}",
                )  # fmt: skip


def check_strided_operands():
    n, r = dist.size(), dist.rank()
    x = T.matrix("x")
    outs = [
        dist.all_reduce(x[::2, ::-1]), dist.all_gather(x.T), dist.all_to_all(x.T[::1]),
        dist.broadcast(x[:, ::3], 1), dist.reduce_scatter(x.T),
    ]  # fmt: skip
    values = [np.arange(8 * 4 * n, dtype="float32").reshape(8, 4 * n) + 100 * i for i in range(n)]
    got = symdnn.function([x], outs)(values[r])
    want = dist.simulate(outs, [{x: v} for v in values])[r]
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b)


def check_gradients_are_those_of_the_sum_of_costs():
    n, r = dist.size(), dist.rank()
    for name, (build, multiple) in functions(n, "float64").items():
        x, w = T.dmatrix("x"), T.dmatrix("w")
        cost = (build(x * w) ** 2 * (1 + dist.rank())).sum()
        costs = [(build(x * w) ** 2 * (1 + i)).sum() for i in range(n)]
        g = symdnn.grad(cost, x)
        rng = np.random.default_rng(3)
        values = [
            {x: rng.uniform(1, 2, (2 * multiple, 3)), w: rng.uniform(1, 2, (2 * multiple, 3))}
            for _ in range(n)
        ]
        found = symdnn.function([x, w], g)(*values[r].values())
        turn = rng.normal(size=found.shape)

        def total(step, costs=costs, values=values, turn=turn, x=x):
            moved = [dict(v) for v in values]
            moved[r][x] = moved[r][x] + step * turn
            every = dist.simulate(costs, moved)
            return sum(every[i][i] for i in range(n))

        slope = (total(1e-6) - total(-1e-6)) / 2e-6
        np.testing.assert_allclose(slope, (found * turn).sum(), rtol=1e-6, atol=1e-6, err_msg=name)


def check_equal_collectives_are_not_merged_and_dead_ones_do_not_run():
    x = T.vector("x")
    twice = [dist.all_reduce(x), dist.all_reduce(x)]
    f = symdnn.function([x], [*twice, x * 2])
    names = [type(n.op).__name__ for n in f.fgraph.apply_nodes]
    assert sum(n in ("AllReduce", "AllReduceStart", "StreamStart") for n in names) == 2
    g = symdnn.function([x], x * 2)
    assert not any("AllReduce" in type(n.op).__name__ for n in g.fgraph.apply_nodes)
    for value in f([1.0, 2.0])[:2]:
        assert value.tolist() == [dist.size(), 2 * dist.size()]


def check_groups_and_a_mesh():
    n, r = dist.size(), dist.rank()
    mesh = dist.Mesh({"data": 2, "tensor": -1})
    x = T.scalar("x")
    outs = [
        dist.all_reduce(x, group=mesh.group("data")),
        dist.all_reduce(x, group=mesh.group("tensor")),
        dist.all_reduce(x, group=mesh.group("data", "tensor")),
    ]  # fmt: skip
    found = [int(v) for v in symdnn.function([x], outs)(np.float32(2**r))]
    grid = 2 ** np.arange(n).reshape(2, -1)
    i, j = mesh.position["data"], mesh.position["tensor"]
    assert found == [grid[:, j].sum(), grid[i].sum(), grid.sum()]
    if r < 2:
        pair = dist.new_group([1, 0], "reversed")
        gathered = symdnn.function([x], dist.all_gather(x, group=pair))(np.float32(r))
        assert gathered.tolist() == [1, 0]


def check_a_pipeline_by_sends_has_the_gradients_of_the_whole():
    n, r = dist.size(), dist.rank()
    rng = np.random.default_rng(5)
    weights = [symdnn.shared(rng.normal(size=(4, 4)), name=f"w{i}") for i in range(n)]
    x = T.dmatrix("x")
    value = rng.normal(size=(3, 4))
    whole = x
    for w in weights:
        whole = T.tanh(T.dot(whole, w))
    want = symdnn.function([x], symdnn.grad((whole**2).sum(), weights))(value)[r]
    token = T.dvector("token")
    h = x if r == 0 else dist.recv(x.shape, "float64", r - 1, after=token)
    h = T.tanh(T.dot(h, weights[r]))
    last = r == n - 1
    cost = (h**2).sum() if last else dist.send(h, r + 1).sum()
    grads = symdnn.grad(cost, [weights[r], *([token] if r else [])])
    inputs = [x, *([token] if r else [])]
    got = symdnn.function(inputs, [cost, *grads])(value, *([np.zeros(0)] if r else []))[1]
    np.testing.assert_allclose(got, want, rtol=1e-10)


def check_loops_run_their_collectives_in_each_step():
    x = T.vector("x")
    outs, _ = symdnn.scan(lambda h: dist.all_reduce(T.tanh(h), "mean"), outputs_info=x, n_steps=5)
    g = symdnn.grad(outs[-1].sum(), x)
    n = dist.size()
    values = [{x: np.linspace(-1, 1, 3).astype("float32") * (1 + i)} for i in range(n)]
    got, slope = symdnn.function([x], [outs[-1], g])(values[dist.rank()][x])
    h = [v[x] for v in values]
    for _ in range(5):
        h = [np.mean([np.tanh(a) for a in h], axis=0)] * n
    np.testing.assert_allclose(got, h[0], rtol=1e-5)
    np.testing.assert_allclose(slope, slopes_of_means(values, 5), rtol=1e-4)


def slopes_of_means(values, steps):
    """d(sum over ranks of the cost) / dx on any rank: each of the n costs is the same function."""
    rows = [np.asarray(next(iter(v.values())), "float64") for v in values]
    n, mine = len(rows), rows[dist.rank()]
    mean = np.mean(np.tanh(rows), axis=0)
    slope = n * (1 - np.tanh(mine) ** 2) / n
    for _ in range(steps - 1):
        slope = slope * (1 - np.tanh(mean) ** 2)
        mean = np.tanh(mean)
    return slope


def check_large_values_in_all_calls_of_a_step():
    """As it is first, then captured, then replayed on a GPU; with new values in each call."""
    n, r = dist.size(), dist.rank()
    x, k = T.vector("x"), T.scalar("k")
    bucket = dist.all_reduce([x * k, T.sqr(x[:70_001]), x[:3] + k], "mean")
    part = dist.reduce_scatter(x * k, "sum")
    whole = dist.all_gather(T.exp(-x[:20_003]))
    f = symdnn.function([x, k], [*bucket, part, whole, dist.all_reduce(T.sqr(x), "max")])
    rng = np.random.default_rng(11)
    for call in range(4):
        values = rng.normal(size=(n, 12 * 9_001)).astype("float32")
        c = np.float32(call + 1)
        got = f(values[r], c)
        squares = np.square(values)
        scattered = np.split((values * c).sum(axis=0), n)[r]
        wanted = [
            (values * c).mean(axis=0), squares[:, :70_001].mean(axis=0),
            (values[:, :3] + c).mean(axis=0), scattered,
            np.exp(-values[:, :20_003]).reshape(-1), squares.max(axis=0),
        ]  # fmt: skip
        for a, b in zip(got, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
