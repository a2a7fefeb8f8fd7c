"""Trainings that put several ways to train together, against the same by one process."""

import functools
import os
from dataclasses import replace
from pathlib import Path

import numpy as np

import symdnn
import symdnn.distributed as dist
import symdnn.tensor as T
from symdnn import nn

RNG, RNG2 = np.random.default_rng(17), np.random.default_rng(18)
X = RNG.normal(size=(37, 6)).astype("float32")
TARGET = (X[:, :3].sum(axis=1) > 0).astype("int32")
IMAGES = RNG.normal(size=(23, 3, 6, 6)).astype("float32")
KINDS = RNG.integers(0, 5, 23).astype("int32")
WORDS = RNG.integers(0, 20, (19, 7))
WAYS = (
    {}, {"shard": "optimizer"}, {"shard": "gradients"}, {"shard": "parameters"},
    {"shard": "parameters", "keep_gathered": True},
)  # fmt: skip


def values(net):
    return {n: np.asarray(v, "float64").tolist() for n, v in net.state_dict().items()}


def close(got, want, what):
    for name in want:
        np.testing.assert_allclose(
            got[name], want[name], rtol=3e-4, atol=3e-5, err_msg=f"{what} {name}"
        )


def every_way(fitted):
    """What ``fitted(parallel)`` returns is the same for every way to share out."""
    found = None
    for way in WAYS:
        one = fitted(dist.DataParallel(bucket_bytes=200, **way))
        if found is None:
            found = one
        close(one, found, way)
    return found


def perceptron(*more):
    nn.init.seed(3)
    return nn.Sequential(nn.Linear(6, 8), *more, nn.Tanh(), nn.Linear(8, 5), nn.Linear(5, 2))


def fitted(net, parallel, optimiser, data=(X, TARGET), batch=11, epochs=2, **options):
    history = nn.fit(
        net, nn.CrossEntropyCriterion(), optimiser, nn.batches(data, batch, shuffle=True, seed=1),
        epochs, lr=0.05, distributed=parallel, **options,
    )  # fmt: skip
    return {"loss": list(history["loss"]), **values(net)}


def check_norms_of_all_samples_with_accumulation_clipping_and_shards():
    """Uneven last batches: 4 samples of 11."""
    optimiser = functools.partial(nn.optim.adamw, clip_norm=0.1, accumulate=3, eps=1e-3)

    def run(parallel):
        net = nn.sync_batch_norm(perceptron(nn.BatchNormalization(8)))
        return fitted(net, parallel, optimiser, epochs=3)

    return every_way(run)


def check_images_with_norms_and_a_loss_scale():
    optimiser = functools.partial(nn.optim.sgd, momentum=0.9, nesterov=True)

    def run(parallel):
        nn.init.seed(5)
        net = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.SpatialBatchNormalization(4), nn.ReLU(), nn.Flatten(),
            nn.Linear(64, 5),
        )  # fmt: skip
        nn.sync_batch_norm(net)
        return fitted(
            net, parallel, optimiser, (IMAGES, KINDS), 7, loss_scale=symdnn.LossScale(64.0)
        )

    return every_way(run)


def check_losses_that_are_no_means_over_samples():
    """They divide by labels that count or by weights, or are sums; and several of them together.

    Batches of 5 samples, at last of 2, and one whose labels count for nothing.
    """
    targets = np.where(np.arange(37) % 3 == 0, -100, KINDS[np.arange(37) % 23] % 2)
    targets[10:15] = -100
    kinds, floats = np.maximum(targets, 0), RNG2.normal(size=(37, 2)).astype("float32")
    weights = RNG2.uniform(0.1, 3, (37, 2)).astype("float32")
    of_classes = np.array([0.3, 4], "float32")
    ignoring, weighing = nn.CrossEntropyLoss(), nn.CrossEntropyLoss(of_classes)
    total = nn.CrossEntropyLoss(reduction="sum")
    found = {}
    for name, criterion, data in (
        ("ignored", ignoring, (X, targets)),
        ("weighed", weighing, (X, kinds)),
        ("both", nn.CrossEntropyLoss(of_classes), (X, targets)),
        ("torch7", nn.CrossEntropyCriterion(of_classes, ignoreIndex=-100), (X, targets)),
        ("sum", total, (X, targets)),
        ("sums of squares", nn.MSELoss(reduction="sum"), (X, floats)),
        ("KL", nn.KLDivLoss(reduction="batchmean"), (X, np.abs(floats))),
        ("together", lambda y, t: ignoring(y, t) + 0.1 * total(y, t) - y.mean(), (X, targets)),
        *(
            (loss.__name__, lambda y, t, w, f=loss: f(y, t, weight=w), (X, floats, weights))
            for loss in (nn.functional.mse_loss, nn.functional.l1_loss, nn.functional.huber_loss)
        ),
    ):  # fmt: skip
        for parallel in (True, dist.DataParallel(shard="parameters", bucket_bytes=100)):
            nn.init.seed(3)
            net = nn.Sequential(nn.Linear(6, 3), nn.Tanh(), nn.Linear(3, 2))
            batches = nn.batches(data, 5, shuffle=True, seed=2)
            history = nn.fit(
                net, criterion, nn.optim.sgd, batches, 2, lr=0.01, targets=len(data) - 1,
                distributed=parallel, validation=nn.batches(data, 6),
            )  # fmt: skip
            one = {k: list(history[k]) for k in ("loss", "val_loss")} | values(net)
            close(one, found.setdefault(name, one), name)
    return found


def check_more_ranks_than_samples_and_elements():
    """A scalar and vectors of 1 and 3 elements, batches of 3 samples."""

    def run(parallel):
        n, r = dist.size(), dist.rank()
        x, t = T.matrix("x"), T.ivector("t")
        w = symdnn.shared(np.linspace(-1, 1, 18, dtype="float32").reshape(6, 3), name="w")
        s = symdnn.shared(np.float32(0.5), name="s")
        b = symdnn.shared(np.zeros(3, "float32"), name="b")
        scores = T.dot(x, w) * s + b
        samples = x.shape[0]
        parallel = replace(parallel, samples=samples, bucket_bytes=8)
        loss = T.nnet.categorical_crossentropy(T.nnet.softmax(scores), t).sum() / T.maximum(
            samples, 1
        )
        updates = nn.optim.adam(loss, {"w": w, "s": s, "b": b}, 0.05, distributed=parallel)
        total = dist.all_reduce(loss * samples, "sum")
        step = symdnn.function([x, t], total, updates=updates)
        losses = []
        for k in (3, 1, 2, 3):
            losses.append(float(step(X[:k][r::n], KINDS[:k][r::n] % 3)))
        return {"losses": losses, **{v.name: np.asarray(v.get_value()).tolist() for v in (w, s, b)}}

    return every_way(run)


def check_a_recurrent_network():
    def run(parallel):
        nn.init.seed(2)
        n, r = dist.size(), dist.rank()
        x, t = T.tensor3("x"), T.ivector("t")
        cell = nn.LSTM(6, 7)
        head = nn.Linear(7, 5)
        y = cell(x)
        y = y[0] if isinstance(y, tuple) else y
        loss = nn.CrossEntropyCriterion()(head(y[-1]), t)
        params = {
            **{f"cell.{k}": v for k, v in cell.named_parameters().items()},
            **{f"head.{k}": v for k, v in head.named_parameters().items()},
        }
        updates = nn.optim.adam(loss, params, 0.02, distributed=parallel, clip_norm=0.5)
        step = symdnn.function([x, t], dist.all_reduce(loss, "mean"), updates=updates)
        data = np.random.default_rng(4).normal(size=(5, 12, 6)).astype("float32")
        kinds = np.random.default_rng(5).integers(0, 5, 12).astype("int32")
        losses = [float(step(data[:, r::n], kinds[r::n])) for _ in range(4)]
        return {
            "losses": losses,
            **{k: np.asarray(v.get_value()).tolist() for k, v in params.items()},
        }

    return every_way(run)


def check_a_tied_table_with_norms_clipped_and_rows():
    """Sizes are known, and so are the rows."""
    for accumulate in (1, 2):
        optimiser = functools.partial(nn.optim.adam, clip_norm=0.2, accumulate=accumulate, eps=1e-3)

        def run(parallel, optimiser=optimiser):
            n, r = dist.size(), dist.rank()
            nn.init.seed(3)
            net = nn.models.gpt2(words=400, context=8, width=16, layers=2, heads=2, dropout=0.0)
            x, t = (T.tensor("int64", (12 // n, 8), name=name) for name in "xt")
            scores = net(x)
            loss = nn.CrossEntropyCriterion()(scores.reshape((-1, scores.shape[2])), t.flatten())
            parallel = replace(parallel, bucket_bytes=4000)
            updates = optimiser(loss, net, 0.05, distributed=parallel)
            step = symdnn.function([x, t], dist.all_reduce(loss, "mean"), updates=updates)
            data = np.random.default_rng(8).integers(0, 60, (4, 2, 12, 8))
            losses = [float(step(*(v[r::n] for v in one))) for one in data]
            whole = not parallel.shard or parallel.keep_gathered
            said = "".join(step.distributed_report().said)
            assert ("rows are gathered" in said) == (whole and n > 1), said
            return {"losses": losses, **values(net)}

        found = every_way(run)
    return found


def check_a_part_of_the_parameters_is_trained():
    """The others stay as they are; a schedule of rates, and settings of their own."""

    def run(parallel):
        net = perceptron()
        params = [net[0].weight, net[2].bias, net[3].weight, net[3].bias]
        optimiser = functools.partial(
            nn.optim.adamw, lr_scale={net[3].bias: 3.0}, decays=nn.optim.matrices_only
        )
        return fitted(net, parallel, optimiser, params=params, epochs=2)

    return every_way(run)


def check_goes_on_with_other_ways_to_share_out():
    """Each two epochs by another one, and by another number of ranks, from one checkpoint."""
    folder = Path(os.environ["SYMDNN_CHECKPOINTS"]) / "ways"
    n = dist.size()
    if dist.is_main():
        folder.mkdir(exist_ok=True)
    dist.barrier()
    for name in ("run.safetensors", "run.safetensors.index.json"):
        optimiser = functools.partial(nn.optim.adam, clip_norm=0.3)
        whole = fitted(perceptron(), True, optimiser, epochs=8)
        own = folder / f"{n}"
        if dist.is_main():
            own.mkdir(exist_ok=True)
        dist.barrier()
        for k, shard in enumerate(("parameters", None, "optimizer", "parameters")):
            parallel = dist.DataParallel(shard=shard, bucket_bytes=100 + 50 * k)
            last = fitted(
                perceptron(),
                parallel,
                optimiser,
                epochs=2 * k + 2,
                checkpoint=own / name,
                resume=k > 0,
            )
        close(last, whole, name)
    return last


def check_float64_and_float32_together():
    def run(parallel):
        n, r = dist.size(), dist.rank()
        x, t = T.matrix("x"), T.ivector("t")
        a = symdnn.shared(np.random.default_rng(1).normal(size=(6, 4)).astype("float32"), name="a")
        b = symdnn.shared(np.random.default_rng(2).normal(size=(4, 2)), name="b")
        loss = T.nnet.categorical_crossentropy(
            T.nnet.softmax(T.dot(T.tanh(T.dot(x, a)), b)), t
        ).mean()
        updates = nn.optim.sgd(
            loss, {"a": a, "b": b}, 0.3, momentum=0.5, distributed=parallel, clip_norm=0.2
        )
        step = symdnn.function([x, t], dist.all_reduce(loss, "mean"), updates=updates)
        losses = [float(step(X[:36][r::n], TARGET[:36][r::n])) for _ in range(5)]
        return {"losses": losses, "a": a.get_value().tolist(), "b": b.get_value().tolist()}

    return every_way(run)
