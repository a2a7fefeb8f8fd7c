"""Trainings on several ranks against the same training by one process at the same global batch.

A check returns numbers, which ``test_training`` compares between 1, 2 and 4 processes.
"""

import functools
import os
from pathlib import Path

import numpy as np

import symdnn
import symdnn.distributed as dist
import symdnn.tensor as T
from symdnn import nn
from symdnn.ops.random.random_stream import RandomStream

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


def trained(net, optimiser="adam", epochs=2, batch=10, folder=None, **options):
    data = nn.batches((X, TARGET), batch, shuffle=True, seed=1)
    history = nn.fit(
        net, nn.CrossEntropyCriterion(), optimiser, data, epochs, lr=0.05,
        validation=nn.batches((X[:13], TARGET[:13]), 5), metrics=["accuracy"], distributed=True,
        checkpoint=None if folder is None else Path(folder) / "run.safetensors",
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


def check_a_batch_smaller_than_the_number_of_ranks():
    return trained(network(), nn.optim.sgd, batch=11)


def check_sync_batch_norm_is_that_of_the_whole_batch():
    net = nn.sync_batch_norm(network(lambda: nn.BatchNormalization(8)))
    return trained(net, nn.optim.sgd)


def check_early_stopping_is_agreed():
    found = trained(network(), nn.optim.sgd, epochs=6, patience=1, min_delta=0.02)
    return {"epochs": len(found["loss"]), **found}


def check_small_buckets_and_float32_reduction():
    with symdnn.config.change_flags(**{"distributed.bucket_bytes": 64}):
        return trained(network(), nn.optim.sgd)


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
    net = network(dropout)
    whole = trained(net, epochs=4)
    if n == 1:
        return {}
    if n == 2:  # bit for bit on as many ranks
        trained(network(dropout), epochs=2, folder=folder)
        again = trained(network(dropout), epochs=4, folder=folder)
        assert again["state"] == whole["state"]
        return {}
    before = trained(network(dropout), epochs=5, folder=folder)
    assert len(before["loss"]) == 5
    return {}
