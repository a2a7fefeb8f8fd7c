"""Trainings on several ranks against the same training by one process at the same global batch.

A check returns numbers, which ``test_training`` compares between 1, 2 and 4 processes.
"""

import functools
import json
import os
from pathlib import Path

import numpy as np
import pytest

import symdnn
import symdnn.distributed as dist
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import InputError
from symdnn.ops.random.random_stream import RandomStream
from symdnn.world import process

RNG = np.random.default_rng(7)
X = RNG.normal(size=(45, 6)).astype("float32")
TARGET = (X[:, :3].sum(axis=1) > 0).astype("int32")


def network(more=None):
    nn.init.seed(3)
    middle = [] if more is None else [more()]
    return nn.Sequential(nn.Linear(6, 8), *middle, nn.Tanh(), nn.Linear(8, 2))


def dropout():
    return nn.Dropout(0.5)


def state(net):
    return {n: np.asarray(v, "float64").round(9).tolist() for n, v in net.state_dict().items()}


def trained(net, optimiser="adam", epochs=2, batch=10, folder=None, distributed=True,
            name="run.safetensors", **options):  # fmt: skip
    data = nn.batches((X, TARGET), batch, shuffle=True, seed=1)
    history = nn.fit(
        net, nn.CrossEntropyCriterion(), optimiser, data, epochs, lr=0.05,
        validation=nn.batches((X[:13], TARGET[:13]), 5), metrics=["accuracy"],
        distributed=distributed,
        checkpoint=None if folder is None else Path(folder) / name,
        resume=folder is not None, **options,
    )  # fmt: skip
    measures = {n: history[n] for n in ("loss", "accuracy", "val_loss", "val_accuracy")}
    return {"state": state(net), **{n: np.asarray(v).tolist() for n, v in measures.items()}}


def check_adam():
    """The last batch has 5 samples: with 2 and 4 ranks unequal parts."""
    return trained(network())


def check_clipping_by_the_global_norm_and_accumulation():
    optimiser = functools.partial(nn.optim.sgd, momentum=0.9, clip_norm=0.05, accumulate=2)
    return trained(network(), optimiser)


def check_prefetched_batches():
    return trained(network(), nn.optim.sgd, prefetch=2)


def check_a_batch_smaller_than_the_number_of_ranks():
    return trained(network(), nn.optim.sgd, batch=11)


def check_sync_batch_norm_is_that_of_the_whole_batch():
    net = nn.sync_batch_norm(network(lambda: nn.BatchNormalization(8)))
    return trained(net, nn.optim.sgd)


def check_sync_batch_norm_where_a_rank_has_no_sample():
    """The last batch has 1 sample."""
    net = nn.sync_batch_norm(network(lambda: nn.BatchNormalization(8)))
    return trained(net, nn.optim.sgd, batch=11)


def check_means_of_statistics_count_samples():
    """A batch of 3 samples, of which 2 ranks have 2 and 1, and the last of 4 has none."""
    nn.init.seed(3)
    net = nn.Sequential(nn.BatchNormalization(6), nn.Linear(6, 2))
    data = [(X[:3], TARGET[:3])]
    nn.fit(net, nn.CrossEntropyCriterion(), "sgd", data, 1, lr=0.05, distributed=True)
    return {"mean": net[0].running_mean.get_value().tolist()}


def check_early_stopping_is_agreed():
    found = trained(network(), nn.optim.sgd, epochs=6, patience=1, min_delta=0.02)
    return {"epochs": len(found["loss"]), **found}


def check_small_buckets_and_float32_reduction():
    with symdnn.config.change_flags(**{"distributed.bucket_bytes": 64}):
        return trained(network(), nn.optim.sgd)


def embeddings(gathers, **options):
    """A language model's losses and tables after some steps of sizes that are known."""
    n, r = dist.size(), dist.rank()
    nn.init.seed(3)
    sizes = {"words": 400, "context": 8, "width": 16, "layers": 1, "heads": 2, "dropout": 0.0}
    net = nn.models.gpt2(**sizes)
    x, t = (T.tensor("int64", (4 // n, 8), name=name) for name in "xt")
    scores = net(x)
    loss = nn.CrossEntropyCriterion()(scores.reshape((-1, scores.shape[2])), t.flatten())
    with symdnn.config.change_flags({"distributed.gather_rows": gathers}):
        parallel = dist.DataParallel(bucket_bytes=4000)
        updates = nn.optim.sgd(loss, net, 0.5, momentum=0.9, distributed=parallel, **options)
    f = symdnn.function([x, t], dist.all_reduce(loss, "mean"), updates=updates)
    rng = np.random.default_rng(2)
    batches = [rng.integers(0, 40, (2, 4, 8)) for _ in range(5)]  # rows occur several times
    losses = [float(f(*(part[r::n] for part in b))) for b in batches]
    gathered = "rows are gathered" in "".join(f.distributed_report().said)
    assert gathered == (gathers and n > 1)
    values = {name: np.asarray(p.get_value()) for name, p in net.named_parameters().items()}
    everywhere = process.current().gather(
        "tables", {k: v.tobytes().hex() for k, v in values.items()}
    )
    assert all(other == everywhere[0] for other in everywhere)  # bit for bit
    return {"losses": losses, **{k: v.tolist() for k, v in values.items() if "wte" in k}}


def check_embeddings_by_rows_and_as_a_whole():
    """Several calls: as they are, captured, replayed. Ranks keep the same bits."""
    return {f"{gathers}": embeddings(gathers) for gathers in (True, False)}


def check_embeddings_by_rows_with_every_way_of_a_step():
    with symdnn.config.change_flags(**{"distributed.reduce_dtype": "float32"}):
        clipped = embeddings(True, clip_norm=0.05, accumulate=2)
    return {"clipped": clipped, "scaled": embeddings(True, loss_scale=symdnn.LossScale(8.0))}


def check_ranks_with_different_numbers_of_rows_average_the_whole():
    """A program that is compiled for other sizes on one rank; the loss is weighted by samples."""
    n, r = dist.size(), dist.rank()
    parts = np.array_split(np.arange(9) * 5 % 40, n)
    w = symdnn.shared(np.linspace(-1, 1, 160, dtype="float32").reshape(40, 4), name="w")
    i = T.tensor("int64", parts[r].shape, name="i")
    loss = T.sqr(T.sin(w[i])).mean()
    parallel = dist.DataParallel(samples=T.constant(np.int64(parts[r].size)))
    f = symdnn.function([i], [], updates=nn.optim.sgd(loss, {"w": w}, 0.5, distributed=parallel))
    f(parts[r])
    assert ("different numbers of its rows" in "".join(f.distributed_report().said)) == (9 % n > 0)
    return {"w": w.get_value().tolist()}


def check_bare_updates():
    """A program of one process, made data parallel by one more line."""
    n, r = dist.size(), dist.rank()
    x, t = T.matrix("x"), T.ivector("t")
    rng = np.random.default_rng(r)  # other values on each rank: those of rank 0 count
    w = symdnn.shared(rng.normal(size=(6, 2)).astype("float32"), name="w")
    b = symdnn.shared(np.zeros(2, "float32"), name="b")
    seen = symdnn.shared(np.float32(0), name="seen")
    loss = T.nnet.categorical_crossentropy(T.nnet.softmax(T.dot(x, w) + b), t).mean()
    grads = symdnn.grad(loss, [w, b])
    updates = [(p, p - 0.5 * g) for p, g in zip([w, b], grads)]
    updates.append((seen, np.float32(0.9) * seen + np.float32(0.1) * x.mean()))
    train = symdnn.function([x, t], dist.all_reduce(loss, "mean"),
                            updates=dist.data_parallel(updates))  # fmt: skip
    losses = [float(train(X[:40][r::n], TARGET[:40][r::n])) for _ in range(5)]
    return {"losses": losses, "w": w.get_value().tolist(), "seen": float(seen.get_value())}


def check_integers_that_follow_from_updated_variables_need_no_average():
    """Those that follow from samples have none."""
    x, w = T.matrix("x"), symdnn.shared(np.ones((6, 2), "float32"), name="w")
    a, b = (symdnn.shared(np.int64(1), name=name) for name in "ab")
    step = (w, w - np.float32(0.1) * symdnn.grad(T.sqr(T.dot(x, w)).mean(), w))
    train = symdnn.function([x], [], updates=dist.data_parallel([step, (a, b), (b, a + b)]))
    for _ in range(5):
        train(X[:8][dist.rank() :: dist.size()])
    if dist.size() > 1:
        with pytest.raises(InputError, match="the update of a depends on a rank's data"):
            dist.data_parallel([step, (a, b + x.shape[0])])
    return {"a": int(a.get_value()), "b": int(b.get_value()), "w": w.get_value().tolist()}


def check_ranks_change_their_sizes_at_different_times():
    """A rank that replays a captured step meets one that makes a plan, or has dropped its own."""
    n, r = dist.size(), dist.rank()
    rng = np.random.default_rng(11)
    parts = [rng.integers(1, 2 + 9 * (k % 2), size=60) for k in range(4)]  # 0 and 2: always 1
    x, t = T.matrix("x"), T.ivector("t")
    w = symdnn.shared(np.zeros((6, 2), "float32"), name="w")
    loss = T.nnet.categorical_crossentropy(T.nnet.softmax(T.dot(x, w)), t).sum()
    step = dist.all_reduce(symdnn.grad(loss, w), "sum")
    with symdnn.config.change_flags(plan_cache_size=3):
        train = symdnn.function(
            [x, t], dist.all_reduce(loss, "sum"), updates=[(w, w - 0.01 * step)]
        )
        losses, states = [], []
        for sizes in zip(*parts):
            rows = np.split(rng.permutation(len(X))[: sum(sizes)], np.cumsum(sizes)[:-1])
            mine = np.concatenate(rows[r::n])
            losses.append(float(train(X[mine], TARGET[mine])))
            states.append(train.plans()[-1].bound.capture_state)
    if "SYMDNN_NCCL" in os.environ:  # each call is a graph on all ranks, but for the first
        assert not states[0].startswith("captured")
        assert all(s.startswith("captured") for s in states[1:]), states
    return {"losses": losses, "w": w.get_value().tolist()}


def check_ranks_draw_numbers_of_their_own():
    n = dist.size()
    stream = RandomStream(5)
    u = stream.uniform((4,))
    f = symdnn.function([], dist.all_gather(u), updates=stream.updates())
    rows = f().reshape(n, 4)
    assert all(np.array_equal(rows[0], row) for row in rows)
    dist.random_by_rank([v for v, _ in stream.updates()])
    rows = f().reshape(n, 4)
    assert len(np.unique(rows)) == 4 * n
    net = nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    return {"epochs": len(trained(net)["loss"])}


def check_a_checkpoint_goes_on_with_another_number_of_ranks():
    """Written by those that run first, resumed by those that come later."""
    folder = Path(os.environ["SYMDNN_CHECKPOINTS"])
    n = dist.size()
    if n == 1:
        return {}
    if n == 2:  # bit for bit on as many ranks, by kernels that do not change on the way
        with symdnn.config.change_flags({"cpu.compile": "always"}):
            whole = trained(network(dropout), epochs=4)
            trained(network(dropout), epochs=2, folder=folder)
            again = trained(network(dropout), epochs=4, folder=folder)
        assert again["state"] == whole["state"]
        return {}
    before = trained(network(dropout), epochs=5, folder=folder)
    assert len(before["loss"]) == 5
    return {}


SHARDED = dist.DataParallel(shard="optimizer")


def check_sharded_optimisers_equal_whole_ones():
    """Clipping, groups of settings, buckets of a few parameters, accumulation."""
    net = network()
    optimiser = functools.partial(
        nn.optim.adamw, clip_norm=0.5, accumulate=2, decays=nn.optim.matrices_only,
        lr_scale={net[0].weight: 0.5},
    )  # fmt: skip
    found = trained(net, optimiser, distributed=SHARDED)
    if dist.size() > 1:
        again = network()
        whole = functools.partial(
            nn.optim.adamw, clip_norm=0.5, accumulate=2, decays=nn.optim.matrices_only,
            lr_scale={again[0].weight: 0.5},
        )  # fmt: skip
        np.testing.assert_allclose(trained(again, whole)["loss"], found["loss"], rtol=1e-5)
    return found


PARAMETERS = dist.DataParallel(shard="parameters", bucket_bytes=150)


def steps(optimiser, shard, only=None, **options):
    """Losses, parameters and state after some steps of a deep net, in buckets of a layer.

    Of parameters of ``only`` dimensions, or of all.
    """
    n, r = dist.size(), dist.rank()
    nn.init.seed(3)
    deep = [m for _ in range(3) for m in (nn.Tanh(), nn.Linear(8, 8))]
    net = nn.Sequential(nn.Linear(6, 8), *deep, nn.Tanh(), nn.Linear(8, 2))
    x, t = T.matrix("x"), T.ivector("t")
    loss = nn.CrossEntropyCriterion()(net(x), t)
    if "loss_scale" in options:
        options["loss_scale"] = symdnn.LossScale(1024.0)
    parallel = dist.DataParallel(shard=shard, bucket_bytes=300)
    params = [p for p in net.parameters() if only in (None, p.ndim)]
    updates = optimiser(loss, params, 0.01, distributed=parallel, **options)
    train = symdnn.function([x, t], loss, updates=updates)
    losses = [float(train(X[:40][r::n], TARGET[:40][r::n])) for _ in range(4)]
    evaluated = symdnn.function([x], net(x))(X)
    return losses, net.state_dict(), updates.state_dict(), evaluated


def check_every_way_to_share_out_gives_the_same_step():
    """Bit for bit on two ranks, where sums have one order, and where steps are the same kernels: on
    a GPU other alignments of parameters may have others."""
    first = ("gradients",)
    both = first if "SYMDNN_NCCL" in os.environ else ("gradients", "parameters")
    for optimiser, options, exact in (
        (nn.optim.adam, {}, both),
        (nn.optim.adamw, {"decays": nn.optim.matrices_only}, first),
        (nn.optim.adam, {"clip_value": 0.01, "accumulate": 2}, first),
        (nn.optim.sgd, {"momentum": 0.9, "loss_scale": True}, first),
        (nn.optim.adam, {"clip_norm": 0.1}, ()),  # a norm is another sum
        (nn.optim.lamb, {}, ()),
    ):
        whole = steps(optimiser, None, **options)
        for shard in ("gradients", "parameters"):
            found = steps(optimiser, shard, **options)
            assert set(found[2]) == set(whole[2])
            for a, b in zip(found, whole):
                pairs = [(a[n], b[n]) for n in b] if isinstance(b, dict) else [(a, b)]
                for u, v in pairs:
                    if shard in exact and dist.size() <= 2:
                        np.testing.assert_array_equal(u, v, err_msg=f"{optimiser} {shard}")
                    np.testing.assert_allclose(u, v, rtol=1e-4, atol=1e-6, err_msg=str(shard))
    return {}


def check_whole_matrices_are_gathered_for_a_step():
    """Adafactor and Muon on parts: the state is that of whole parameters, under its names."""
    for optimiser, only in ((nn.optim.adafactor, None), (nn.optim.muon, 2)):
        whole = steps(optimiser, None, only=only)
        for shard in ("gradients", "parameters"):
            found = steps(optimiser, shard, only=only)
            for a, b in zip(found, whole):
                pairs = [(a[n], b[n]) for n in b] if isinstance(b, dict) else [(a, b)]
                for u, v in pairs:
                    np.testing.assert_allclose(u, v, rtol=2e-3, atol=2e-4, err_msg=str(shard))
    return {}


def check_sharded_parameters_are_trained_saved_and_resumed():
    """By ``fit``; a checkpoint has whole parameters, and goes on with whole ones."""
    folder = Path(os.environ["SYMDNN_CHECKPOINTS"]) / f"parameters{dist.size()}"
    net = network()
    found = trained(net, epochs=3, distributed=PARAMETERS)
    if dist.is_main():
        folder.mkdir()
    dist.barrier()
    trained(network(), epochs=2, folder=folder, distributed=PARAMETERS)
    again = trained(network(), epochs=3, folder=folder)
    np.testing.assert_allclose(again["loss"], found["loss"], rtol=1e-5)
    more = trained(net, epochs=1, distributed=PARAMETERS)  # the same parts again
    assert more["loss"][0] < found["loss"][0]
    return found


def check_a_checkpoint_in_parts_goes_on_with_another_number_of_ranks():
    """Each rank writes some of the arrays; 4 ranks go on with what 2 wrote."""
    folder = Path(os.environ["SYMDNN_CHECKPOINTS"])
    n, path = dist.size(), "run.safetensors.index.json"
    folder = folder / f"parts{min(n, 2)}"
    if dist.is_main():
        folder.mkdir(exist_ok=True)
    dist.barrier()
    found = trained(network(), epochs=4, distributed=PARAMETERS)
    options = {"folder": folder, "name": path, "distributed": PARAMETERS}
    if n <= 2:
        trained(network(), epochs=2, **options)
        dist.barrier()
        files = {p.name for p in folder.glob("*.safetensors")}
        ends = {f"-{i + 1:05d}-of-{n:05d}.safetensors" for i in range(n)}
        assert {"-" + f.partition("-")[2] for f in files} == ends
        assert len(files) == n  # those of earlier epochs are gone
    again = trained(network(), epochs={1: 4, 2: 3, 4: 4}[n], **options)
    np.testing.assert_allclose(again["loss"], found["loss"][: len(again["loss"])], rtol=1e-4)
    return {"loss": found["loss"]}


def check_a_sharded_state_is_resumed_whole_and_in_parts():
    """Whole on one rank, in parts on 2, in other parts on 4."""
    folder = Path(os.environ["SYMDNN_CHECKPOINTS"]) / "sharded"
    folder.mkdir(exist_ok=True)
    n = dist.size()
    options = {"keep_best": False, "distributed": SHARDED}
    whole = trained(network(), epochs=4, **options)
    own = folder / f"{n}"
    if dist.is_main():
        own.mkdir()
    dist.barrier()
    trained(network(), epochs=2, folder=own, **options)
    other = folder / f"{max(n // 2, 1)}.kept"  # two epochs by another number of ranks
    if dist.is_main() and n > 1 and other.exists():  # on GPUs nobody ran before
        (own / "run.safetensors").write_bytes(other.read_bytes())
    if dist.is_main():
        (folder / f"{n}.kept").write_bytes((own / "run.safetensors").read_bytes())
    dist.barrier()
    parts = trained(network(), epochs=4, folder=own, **options)
    np.testing.assert_allclose(parts["loss"], whole["loss"], rtol=1e-4)
    return parts


def check_optimisers_that_are_joined_have_their_states():
    """Two that share out theirs, and one that does not."""
    found, n, r = {}, dist.size(), dist.rank()
    for shard in (None, "optimizer", "parameters"):
        x, t = T.matrix("x"), T.ivector("t")
        updates, nets = None, [network(), network(), network()]
        for i, net in enumerate(nets):
            loss = nn.CrossEntropyCriterion()(net(x * (i + 1)), t)
            parallel = dist.DataParallel(shard=shard if i else None, bucket_bytes=64)
            own = nn.optim.adam(loss, net, 0.01, distributed=parallel, name=f"net{i}")
            updates = own if updates is None else updates + own
        train = symdnn.function([x, t], [], updates=updates)
        train(X[:8][r::n], TARGET[:8][r::n])
        state = updates.state_dict()
        train(X[:8][r::n], TARGET[:8][r::n])
        after = updates.load_state_dict(state).state_dict()
        assert all(np.array_equal(after[name], state[name]) for name in state)
        found[str(shard)] = {name: state[name].tolist() for name in sorted(state)}
    return found


def check_the_state_of_a_rank_is_its_part():
    x, t = T.matrix("x"), T.ivector("t")
    net = network()
    loss = nn.CrossEntropyCriterion()(net(x), t)
    updates = nn.optim.adam(loss, net, 0.01, distributed=SHARDED)
    sizes = [v.get_value().size for n, v in updates.state.items() if n.endswith("mean")]
    count = sum(v.get_value().size for v in net.parameters())
    assert sum(sizes) == -(-count // dist.size())
    names = sorted(updates.state_dict())
    assert updates.load_state_dict(updates.state_dict()) is updates
    return {"names": len(names)}


def check_the_report_has_the_buckets():
    x, t = T.matrix("x"), T.ivector("t")
    net = network()
    loss = nn.CrossEntropyCriterion()(net(x), t)
    parallel = dist.DataParallel(bucket_bytes=64)
    train = symdnn.function([x, t], loss, updates=nn.optim.sgd(loss, net, distributed=parallel))
    train(X[:4], TARGET[:4])
    report = train.distributed_report()
    sizes = [4 * v.get_value().size for v in net.parameters()]
    if dist.size() == 1:
        assert "no plan has a collective" in str(report)
        return {}
    assert report.bytes == sum(sizes)
    assert len(report.rows) >= 2
    assert report.rows[0].meanwhile > 0
    assert "AllReduce(sum)" in str(report)
    assert "profile=True" in str(report)
    return {}


def check_the_report_has_times_and_all_ranks_timelines():
    """What was measured is consistent: of each bucket, of the call, of the ranks together."""
    x, t = T.matrix("x"), T.ivector("t")
    net = network()
    loss = nn.CrossEntropyCriterion()(net(x), t)
    updates = nn.optim.sgd(loss, net, distributed=dist.DataParallel(bucket_bytes=64))
    train = symdnn.function([x, t], loss, updates=updates, profile=True)
    for _ in range(2):
        train(X[:4], TARGET[:4])
    report = train.distributed_report(all_ranks=True)
    train.profile.shown = True  # else it is printed at the end
    assert [c.rank for c in report.timelines] == list(range(dist.size()))
    own = report.timelines[dist.rank()]
    assert 0 <= own.exposed_seconds <= own.seconds
    for row in report.rows:
        assert 0 < row.exposed_seconds <= row.seconds <= own.seconds
    begun = [c.began for c in report.timelines]
    assert max(begun) - min(begun) < 20  # one clock, since all are on one machine
    folder = Path(os.environ.get("SYMDNN_CHECKPOINTS", ".")) / f"report{dist.size()}.{dist.rank()}"
    for end in (".trace.json", ".json", ".svg", ".txt"):
        report.save(f"{folder}{end}")
    trace = json.loads(Path(f"{folder}.trace.json").read_text())["traceEvents"]
    assert {e["pid"] for e in trace} == set(range(dist.size()))
    if dist.size() > 1:
        assert f"rank {dist.rank()}: the last call took" in str(report)
    return {}
