"""What one process can show of many: graphs, orders, buckets, references; no launcher."""

import numpy as np
import pytest

import symdnn
import symdnn.distributed as dist
import symdnn.tensor as T
from symdnn import nn
from symdnn.compile.nanguard import NanGuardMode
from symdnn.compile.program.agreement import agreed
from symdnn.compile.program.overlap import overlapped
from symdnn.distributed.gradients import _large_not_last, _small_last, agreement
from symdnn.errors import (
    DistributedError,
    InputError,
    OptionError,
)
from symdnn.graph.traverse import toposort
from symdnn.nn.optimizers import base
from symdnn.ops.collective.base import Collective
from symdnn.ops.collective.overlapped import (
    AllSucceeded,
    StreamStart,
    StreamWait,
)
from symdnn.ops.collective.reductions import AllReduce
from symdnn.ops.core.gradient_control import Assert
from symdnn.ops.elementwise.arithmetic import cast
from symdnn.ops.lowered.transfer import GpuFromHost, HostFromGpu
from symdnn.ops.nn.normalization import layer_norm
from symdnn.world import process
from symdnn.world.group import Group
from symdnn.world.launcher import Launched

N = 3
GROUP = Group(tuple(range(N)), "world")


@pytest.fixture
def of_three(monkeypatch):
    """A world of three ranks, of which this is number 1; nothing joins them."""
    monkeypatch.setattr(process, "_current", process.World(Launched(1, N, 1, N, "a test")))


def rewritten(outputs, inputs, target="cpu", updates=()):
    mode = symdnn.Mode(target=target)
    return symdnn.function(inputs, outputs, updates=updates, mode=mode).stages


def names(nodes):
    return [type(n.op).__name__ for n in nodes]


def test_collectives_of_several_ranks_are_split_in_halves():
    x = T.vector("x")
    found = names(rewritten(dist.all_reduce(x, group=GROUP), [x]).fgraph.apply_nodes)
    assert sorted(found) == ["AllReduceStart", "AllReduceWait"]
    one = rewritten(dist.all_reduce(x), [x]).fgraph.apply_nodes
    assert names(one) == ["AllReduce"]
    for of in (dist.all_reduce, dist.all_gather, dist.reduce_scatter):
        gpu = rewritten(of(x, group=GROUP), [x], "cuda:sm_90").fgraph.apply_nodes
        assert sorted(names(gpu)) == ["GpuFromHost", "HostFromGpu", "StreamStart", "StreamWait"]
    z = T.cvector("z")  # NCCL reduces none
    assert "AllReduce" in names(
        rewritten(dist.all_reduce(z, group=GROUP), [z], "cuda:sm_90").fgraph.apply_nodes
    )
    gathered = rewritten(dist.all_gather(x, group=GROUP), [x]).fgraph.apply_nodes
    assert sorted(names(gathered)) == ["MoveStart", "MoveWait"]
    parts = rewritten(dist.reduce_scatter(x, group=GROUP), [x]).fgraph.apply_nodes
    assert sorted(names(parts)) == ["MoveStart", "MoveWait"]
    moved = rewritten(dist.all_to_all(x, group=GROUP), [x]).fgraph.apply_nodes
    assert names(moved) == ["AllToAll"]


def steps_of_a_deep_net(of_three, target="cpu", **options):
    x = T.matrix("x")
    weights = [symdnn.shared(np.eye(8, dtype="float32"), name=f"w{i}") for i in range(4)]
    h = x
    for w in weights:
        h = T.tanh(T.dot(h, w))
    grads = dist.average_gradients(symdnn.grad(h.sum(), weights), weights, **options)
    updates = [(w, w - g) for w, g in zip(weights, grads)] + agreement(GROUP)
    stages = rewritten(h.sum(), [x], target, updates)
    (segment,) = stages.program.segments()
    return names(segment.nodes), segment.nodes


def test_buckets_start_in_the_order_of_the_backward_pass(of_three):
    found, nodes = steps_of_a_deep_net(of_three, bucket_bytes=300)  # one gradient has 256 bytes
    starts = [i for i, n in enumerate(found) if n == "AllReduceStart"]
    waits = [i for i, n in enumerate(found) if n == "AllReduceWait"]
    assert len(starts) == len(waits) == 4
    products = [i for i, n in enumerate(found) if n == "OneDnnMatmul" or n == "Dot"]
    assert starts[0] < max(products)  # products run while the first bucket moves
    assert max(starts) < min(waits)
    assert found.index("AllSucceeded") > max(waits)
    assert found[found.index("AllSucceeded") + 1 :] == ["FusedElemwise"] * 4  # the updates
    place = {n: i for i, n in enumerate(nodes)}
    for n in nodes:
        assert all(v.owner not in place or place[v.owner] < place[n] for v in n.inputs)


def test_two_buckets_are_on_their_way_on_a_gpu(of_three):
    """Operands keep their memory until the wait, so it is not put off to the updates."""
    found, nodes = steps_of_a_deep_net(of_three, "cuda:sm_90", bucket_bytes=300)
    agreement = next(
        n for n in nodes if isinstance(getattr(n.op, "of", None), AllSucceeded)
    ).outputs[0]
    halves = [
        name for n, name in zip(nodes, found)
        if name in ("StreamStart", "StreamWait") and agreement not in (*n.inputs, *n.outputs)
    ]  # fmt: skip
    assert halves == ["StreamStart"] * 2 + ["StreamWait", "StreamStart"] * 2 + ["StreamWait"] * 2
    place = {n: i for i, n in enumerate(nodes)}
    for n in nodes:
        assert all(v.owner not in place or place[v.owner] < place[n] for v in n.inputs)


def test_updates_on_a_gpu_do_not_wait_for_later_buckets(of_three):
    """Those of buckets that have come run before the waits for the last ones; behind the agreement,
    which begins before the last third of the bytes."""
    x, t = T.matrix("x"), T.ivector("t")
    weights = [
        symdnn.shared(np.eye(8, dtype="float32"), name=f"w{i}", shape=(8, 8)) for i in range(6)
    ]
    h = x
    for w in weights:
        h = T.tanh(T.dot(h, w))
    loss = T.nnet.categorical_crossentropy(T.nnet.softmax(h), t).mean()
    grads = dist.average_gradients(symdnn.grad(loss, weights), weights, bucket_bytes=300)
    updates = [(w, w - g) for w, g in zip(weights, grads)] + agreement(GROUP)

    def order(kind):
        mode = kind(target="cuda:sm_90")
        f = symdnn.function([x, t], loss, updates=updates, mode=mode)
        (segment,) = f.stages.program.segments()
        nodes = [n for n in segment.nodes if not isinstance(n.op, GpuFromHost | HostFromGpu)]
        place = {n: i for i, n in enumerate(nodes)}
        for n in nodes:
            assert all(v.owner not in place or place[v.owner] < place[n] for v in n.inputs)
        words = [
            f"agreement {w}" if isinstance(of, AllSucceeded) else w
            for n, w in zip(nodes, names(nodes))
            for of in [getattr(n.inputs[0].owner or n if w == "StreamWait" else n, "op", None)]
            for of in [getattr(of, "of", None)]
        ]
        news = {v for v, _ in segment.updates}
        made = [i for i, n in enumerate(nodes) if n.outputs[0] in news and "agree" not in words[i]]
        return words, made

    words, made = order(symdnn.Mode)
    begins, ends = words.index("agreement StreamStart"), words.index("agreement StreamWait")
    fails = [i for i, w in enumerate(words) if "Label" in w or "Crossentropy" in w]
    assert fails
    assert begins > max(fails)
    assert words[:begins].count("StreamStart") == 3  # the size of one is not known here
    assert words.count("StreamStart") == len(made) == 6
    assert max(i for i, w in enumerate(words) if w == "StreamStart") < ends < min(made)
    late = [i for i, w in enumerate(words) if w == "StreamWait" and i > ends]
    assert len(late) == 2  # as many are on their way
    assert [sum(i < k for i in made) for k in late] == [4, 5]
    words, made = order(NanGuardMode)
    assert words.index("agreement StreamStart") > max(
        i for i, w in enumerate(words) if w == "StreamStart"
    )
    assert words.index("agreement StreamWait") < min(made)


@pytest.mark.parametrize("shard", ["optimizer", "parameters"])
@pytest.mark.parametrize("optimiser", ["adam", "lamb"])
def test_ranks_with_other_parts_have_one_order_of_collectives(monkeypatch, shard, optimiser):
    """Norms of their own layers are computed by nodes that not all ranks have."""
    monkeypatch.setattr(base, "broadcast_values", lambda *_: None)

    def collectives(rank):
        monkeypatch.setattr(
            process, "_current", process.World(Launched(rank, 2, rank, 2, "a test"))
        )
        x, t = T.matrix("x"), T.ivector("t")
        deep = [m for _ in range(3) for m in (nn.Tanh(), nn.Linear(8, 8))]
        net = nn.Sequential(nn.Linear(6, 8), *deep, nn.Tanh(), nn.Linear(8, 2))
        loss = nn.CrossEntropyCriterion()(net(x), t)
        parallel = dist.DataParallel(shard=shard, bucket_bytes=300)
        updates = getattr(nn.optim, optimiser)(loss, net, 0.01, distributed=parallel)
        stages = rewritten(loss, [x, t], "cuda:sm_90", updates)
        nodes = [n for s in stages.program.segments() for n in s.nodes]
        return [n.op for n in nodes if isinstance(n.op, Collective)]

    assert collectives(0) == collectives(1)


def test_gradients_of_a_sharded_step_are_made_by_the_same_products(of_three, monkeypatch):
    """In the dtype in which they move; not in 16 bits and then widened into their bucket."""
    monkeypatch.setattr(base, "broadcast_values", lambda *_: None)
    x, t = T.tensor("float32", (16, 8), name="x"), T.tensor("int32", (16,), name="t")
    net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 8))
    loss = nn.CrossEntropyCriterion()(net(x), t)

    def made(shard, dtype):
        parallel = dist.DataParallel(shard=shard, reduce_dtype=dtype)
        with symdnn.config.change_flags(amp="bf16"):
            updates = nn.optim.sgd(loss, net, 0.1, momentum=0.9, distributed=parallel)
            stages = rewritten(loss, [x, t], "cuda:sm_90", updates)
        nodes = [n for s in stages.program.segments() for n in s.nodes]
        kinds = ("Dot", "GpuGemm", "GpuGemmKept", "GpuGemmBiasGrad")
        return [(str(n.op), n.outputs[0].type.dtype) for n in nodes if type(n.op).__name__ in kinds]

    for dtype in ("rounded", "float32"):
        assert made("optimizer", dtype) == made(None, dtype)


@pytest.mark.parametrize("early", [True, False], ids=["of an input", "of an average"])
def test_ranks_that_compute_more_agree_at_the_same_place(of_three, early):
    """Of all collectives: they have one order. What can fail comes before, where it can."""
    x = T.matrix("x")
    weights = [symdnn.shared(np.eye(8, dtype="float32"), name=f"w{i}") for i in range(6)]
    h = x
    for w in weights:
        h = T.tanh(T.dot(h, w))
    means = dist.average_gradients(symdnn.grad(h.sum(), weights), weights, bucket_bytes=300)
    updates = [(w, w - g) for w, g in zip(weights, means)] + agreement(GROUP)

    def collectives(outputs):
        stages = rewritten(outputs, [x], "cuda:sm_90", updates)
        nodes = [n for s in stages.program.segments() for n in s.nodes]
        return [n for n in nodes if isinstance(n.op, Collective)], nodes

    plain, _ = collectives([h.sum()])
    checked = x.sum() if early else sum(m.sum() for m in means)
    found, nodes = collectives([h.sum(), Assert("it is large")(checked, T.lt(checked, 9))])
    assert [n.op for n in found] == [n.op for n in plain]
    (begins,) = [
        i for i, n in enumerate(nodes) if isinstance(getattr(n.op, "of", None), AllSucceeded)
    ]
    (fails,) = [i for i, n in enumerate(nodes) if "Assert" in type(n.op).__name__]
    assert (fails < begins) == early


@pytest.mark.parametrize("shard", [None, "optimizer", "parameters"])
@pytest.mark.parametrize("options", [
    {}, {"loss_scale": symdnn.LossScale()}, {"clip_norm": 0.1},
    {"accumulate": 2, "clip_value": 1.0},
], ids=lambda o: "-".join(o) or "plain")  # fmt: skip
def test_steps_of_all_kinds_have_a_valid_order_on_a_gpu(of_three, monkeypatch, shard, options):
    """What reads the agreement, as a loss scale does, is behind the wait for it."""
    monkeypatch.setattr(base, "broadcast_values", lambda *_: None)
    x, t = T.matrix("x"), T.ivector("t")
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    parallel = dist.DataParallel(shard=shard, samples=x.shape[0], bucket_bytes=64)
    loss = nn.CrossEntropyCriterion()(net(x), t)
    updates = nn.optim.adam(loss, net, distributed=parallel, **options)
    stages = rewritten(loss, [x, t], "cuda:sm_90", updates)
    for segment in stages.program.segments():
        place = {n: i for i, n in enumerate(segment.nodes)}
        for n in segment.nodes:
            assert all(v.owner not in place or place[v.owner] < place[n] for v in n.inputs)


def test_the_first_stream_does_not_wait_for_a_large_bucket_alone(of_three):
    """More than two buckets are on their way while they are half of all bytes or less."""
    k = T.imatrix("k")
    table = symdnn.shared(np.ones((60, 8), "float32"), name="table", shape=(60, 8))
    weights = [
        symdnn.shared(np.eye(8, dtype="float32"), name=f"w{i}", shape=(8, 8)) for i in range(16)
    ]
    h = table[k.flatten()]
    for w in weights:
        h = T.tanh(T.dot(h, w))
    grads = symdnn.grad(h.sum(), [table, *weights])
    means = dist.average_gradients(grads, [table, *weights], bucket_bytes=512)
    (segment,) = rewritten(means, [k], "cuda:sm_90").program.segments()
    places = {n.inputs[0]: i for i, n in enumerate(segment.nodes) if isinstance(n.op, StreamWait)}
    starts = [i for i, n in enumerate(segment.nodes) if isinstance(n.op, StreamStart)]
    made = {v for n in segment.nodes if "IncSubtensor" in str(n.op) for v in n.outputs}
    (large,) = [i for i in starts if segment.nodes[i].inputs[0] in made]
    wait = places[segment.nodes[large].outputs[0]]
    # 1920 bytes and twice 512 are less than half of 6016.
    assert sum(large < i < wait for i in starts) == 2


def test_a_large_gradient_that_is_made_last_is_not_reduced_last(of_three):
    """An embedding's: gradients of weights, which it does not need, are computed meanwhile."""
    k = T.imatrix("k")
    table = symdnn.shared(np.ones((500, 8), "float32"), name="table")
    weights = [symdnn.shared(np.eye(8, dtype="float32"), name=f"w{i}") for i in range(80)]
    h = table[k.flatten()]
    for w in weights:
        h = T.tanh(T.dot(h, w))
    grads = symdnn.grad(h.sum(), [table, *weights])
    means = dist.average_gradients(grads, [table, *weights], bucket_bytes=1024)
    stages = rewritten(means, [k], "cuda:sm_90")
    (segment,) = stages.program.segments()
    found, nodes = names(segment.nodes), segment.nodes
    made = {v for n, name in zip(nodes, found) if "IncSubtensor" in name for v in n.outputs}
    (start,) = [i for i, n in enumerate(nodes) if found[i] == "StreamStart" and n.inputs[0] in made]
    behind = [name for name in found[start:] if name in ("Dot", "GpuGemm")]
    assert len(behind) == 40  # half of all: 40 * 256 bytes, less than the 16000 of the large one


def test_a_norm_takes_its_neighbours_in_beside_collectives(of_three):
    """As in a program of one GPU; but not over a collective that must come before."""
    x, y, z = T.matrices("xyz")
    scale, shift = (symdnn.shared(np.full(64, k, "float32")) for k in (1, 0))
    norm = layer_norm(x + y, scale, shift)
    first = dist.all_reduce(norm.sum(axis=0), group=GROUP)
    second = dist.all_reduce(z * 3, group=GROUP)

    def order(*outs):
        used = [x, y] if outs[0] is exp else [x, y, z]
        (segment,) = rewritten(list(outs), used, "cuda:sm_90").program.segments()
        found = [n for n in segment.nodes if type(n.op).__name__ in ("FusedRows", "StreamStart")]
        return names(found), str(found[0].op), found

    exp = T.exp(norm)
    found, text, _ = order(exp, first)
    assert found == ["FusedRows", "StreamStart"]
    assert "exp" in text
    assert "a + b" in text
    # The sum with the second, were it taken in, would put the first behind it.
    found, text, nodes = order(norm * second, first)
    assert found == ["FusedRows", "StreamStart", "StreamStart"]
    assert [n.inputs[0].type.ndim for n in nodes[1:]] == [1, 2]
    alone = dist.all_reduce(z * 3, group=GROUP)
    found, _, _ = order(layer_norm(x + y, scale, shift) * alone)
    assert found == ["StreamStart", "FusedRows"]  # nothing forbids it here


@pytest.mark.parametrize(("sizes", "limit", "order"), [
    ([9, 9, 9, 9, 9, 9, 20, 1], 10, [0, 1, 2, 3, 6, 7, 4, 5]),
    ([9, 9, 9, 9, 9, 9, 20, 1], 30, [0, 1, 2, 3, 4, 5, 6, 7]),  # it is no larger than a bucket
    ([20, 9, 9, 9], 10, [0, 1, 2, 3]),  # it is made first
    ([20, 9, 9, 9, 9, 30], 10, [0, 1, 2, 5, 3, 4]),
    ([20], 10, [0]),
    ([9, 20], 10, [0, 1]),
    ([9, 9, 9, 9, 50, 60], 10, [0, 1, 4, 5, 2, 3]),
])  # fmt: skip
def test_the_order_of_buckets(sizes, limit, order):
    buckets = [[k] for k in range(len(sizes))]
    assert _large_not_last(buckets, sizes, limit) == [[k] for k in order]


@pytest.mark.parametrize(("last", "parts"), [
    ([8, 8, 8, 8], [[8, 8], [8], [8]]),
    ([30, 6, 1, 1], [[30], [6, 1, 1]]),
    ([40, 1, 1, 1], [[40, 1, 1, 1]]),  # too few bytes are left
    ([1, 1, 1, 40], [[1, 1, 1, 40]]),
    ([3], [[3]]),
    ([4] * 8, [[4] * 4, [4] * 2, [4] * 2]),
])  # fmt: skip
def test_the_last_bucket_is_divided(last, parts):
    sizes = [50, 50, 50, *last]
    buckets = [[0], [1], [2], list(range(3, len(sizes)))]
    found = _small_last(buckets, sizes, 40)[3:]
    assert [[sizes[i] for i in b] for b in found] == parts
    assert _small_last(buckets, sizes, 50) == buckets  # there are few


def test_small_gradients_share_a_bucket(of_three):
    found, _ = steps_of_a_deep_net(of_three)
    assert found.count("AllReduceStart") == 1


def test_gradients_are_reduced_in_the_dtype_asked_for(of_three):
    w = symdnn.shared(np.ones(3, "float32"))
    g = T.grad((w**2).sum(), w)
    (mean,) = dist.average_gradients([g], [w], reduce_dtype="bfloat16")
    (node,) = [n for n in toposort([mean]) if isinstance(n.op, AllReduce)]
    assert node.inputs[0].type.dtype == "bfloat16"
    assert mean.type.dtype == "float32"
    with pytest.raises(OptionError, match="reduce_dtype='int8'"):
        dist.average_gradients([g], [w], reduce_dtype="int8")
    assert dist.average_gradients([g], [w], group=Group((1,))) == [g]


def reduced_dtypes(amp="bf16", **options):
    """The dtypes of the matrices and vectors that a step of two products sums over ranks."""
    x, t = T.tensor("float32", (16, 8), name="x"), T.tensor("int32", (16,), name="t")
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
    loss = nn.CrossEntropyCriterion()(net(x), t)
    params = list(net.named_parameters().values())
    means = dist.average_gradients(symdnn.grad(loss, params), params, group=GROUP, **options)
    with symdnn.config.change_flags(amp=amp):
        stages = rewritten(means, [x, t], "cuda:sm_90")
    starts = [n for n in stages.fgraph.apply_nodes if isinstance(n.op, StreamStart)]
    found = {(v.type.ndim, v.type.dtype) for n in starts for v in n.inputs}
    assert {g.type.dtype for g in means} == {"float32"}
    return found, starts


WIDE = {(1, "float32"), (2, "float32")}


@pytest.mark.parametrize(("options", "wanted"), [
    ({"reduce_dtype": "gradient"}, WIDE),
    ({"reduce_dtype": "rounded"}, {(1, "float32"), (2, "bfloat16")}),
    ({"reduce_dtype": "rounded", "amp": "off"}, WIDE),
    ({"reduce_dtype": "rounded", "amp": "fp16"}, WIDE),  # a sum may leave its range
    ({"reduce_dtype": "float32"}, WIDE),
    ({"reduce_dtype": "bfloat16"}, {(1, "bfloat16"), (2, "bfloat16")}),
])  # fmt: skip
def test_what_a_step_has_rounded_is_summed_in_16_bits(of_three, options, wanted):
    found, starts = reduced_dtypes(**options)
    assert found == wanted
    assert len(starts) == 1  # a bucket of two dtypes is one transfer


def test_copy_engines_have_a_bucket_for_each_dtype(of_three):
    with symdnn.config.change_flags({"distributed.cta_policy": "zero"}):
        found, starts = reduced_dtypes(reduce_dtype="rounded")
    assert found == {(1, "float32"), (2, "bfloat16")}
    assert [len({v.type.dtype for v in n.inputs}) for n in starts] == [1, 1]


def test_values_of_a_program_are_summed_as_they_are(of_three):
    x, w = T.matrix("x"), T.matrix("w")
    with symdnn.config.change_flags(amp="bf16"):
        stages = rewritten(dist.all_reduce(T.dot(x, w), group=GROUP), [x, w], "cuda:sm_90")
    (node,) = [n for n in stages.fgraph.apply_nodes if isinstance(n.op, StreamStart)]
    assert node.inputs[0].type.dtype == "float32"


def test_sums_of_float16_are_made_in_float32(of_three):
    w = symdnn.shared(np.ones(3, "float16"))
    g = T.grad((cast(w, "float32") * 3e4).sum(), w)
    (mean,) = dist.average_gradients([g], [w])
    (node,) = [n for n in toposort([mean]) if isinstance(n.op, AllReduce)]
    assert (node.inputs[0].type.dtype, mean.type.dtype) == ("float32", "float16")
    (total,) = dist.simulate([mean], [{} for _ in range(N)])[0]
    np.testing.assert_allclose(total, 3e4, rtol=1e-3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_averages_of_16_bits_are_rounded_once(of_three, dtype):
    """The sum is divided before it is rounded, whatever the number of ranks."""
    w, x = symdnn.shared(np.ones(50, dtype)), T.vector("x", "float32")
    (mean,) = dist.average_gradients([symdnn.grad((cast(w, "float32") * x).sum(), w)], [w],
                                     reduce_dtype="float32")  # fmt: skip
    values = np.random.default_rng(0).normal(size=(N, 50)).astype(w.type.numpy).astype("float32")
    for (found,) in dist.simulate([mean], [{x: v} for v in values]):
        np.testing.assert_array_equal(found, values.mean(axis=0).astype(w.type.numpy))


def test_nodes_without_reductions_keep_their_order():
    x = T.vector("x")
    nodes = toposort([dist.all_gather(T.tanh(x), group=GROUP), T.exp(x)])
    assert overlapped(nodes) == nodes
    assert agreed(nodes) == nodes


def test_what_reads_the_agreement_stays_behind_it():
    x, y = T.scalar("x"), T.vector("y")
    ok = AllSucceeded(GROUP)(x)
    after = ok + 1
    nodes = agreed(toposort([after, T.exp(y)]))
    assert names(nodes)[-2:] == ["AllSucceeded", "Add"]


def test_groups_and_meshes(of_three):
    assert dist.rank() == 1
    mesh = dist.Mesh({"data": 1, "tensor": -1})
    assert mesh.sizes == {"data": 1, "tensor": 3}
    assert mesh.group("tensor").ranks == (0, 1, 2)
    assert mesh.group("data").ranks == (1,)
    with pytest.raises(OptionError, match="the axes are data, tensor"):
        mesh.group("pipeline")
    for sizes in ({"a": 2}, {"a": -1, "b": 2}, {"a": -1, "b": -1}, {"a": 0}):
        with pytest.raises(OptionError, match="3 processes"):
            dist.Mesh(sizes)
    with pytest.raises(OptionError, match="rank=3"):
        dist.new_group([0, 3])
    for ranks in ((), (0, 0), (-1,)):
        with pytest.raises(OptionError, match="different ranks"):
            Group(ranks)


def test_updates_without_a_gradient_are_refused(of_three):
    w, x = symdnn.shared(np.ones(2, "float32"), name="w"), T.vector("x")
    with pytest.raises(InputError, match="no gradient by symdnn.grad"):
        dist.data_parallel([(w, w + x)])


def test_a_program_of_more_processes_says_what_is_missing():
    x = T.vector("x")
    f = symdnn.function([x], dist.all_reduce(x, group=GROUP))
    with pytest.raises(DistributedError, match="but there are 1 processes"):
        f([1.0])


def test_without_mpi_host_values_are_refused(of_three):
    x = T.vector("x")
    f = symdnn.function([x], dist.all_gather(x))
    with pytest.raises(DistributedError, match="moved by MPI"):
        f([1.0])
