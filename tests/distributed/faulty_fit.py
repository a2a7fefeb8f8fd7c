"""A training by ``fit`` in which one rank has a fault in an odd place; what is said is the test."""

import sys
import tempfile
from pathlib import Path

import numpy as np

import symdnn.distributed as dist
from symdnn import nn
from symdnn.world import process

place = sys.argv[1]
dist.init()
faulty = dist.rank() == 1
rng = np.random.default_rng(1)
X = rng.normal(size=(30, 6)).astype("float32")
TARGET = rng.integers(0, 2, 30).astype("int32")
nn.init.seed(3)
net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
folder = Path(process.current().gather("folder", tempfile.mkdtemp())[0])


def fail(where):
    if faulty and place == where:
        raise RuntimeError(f"nothing goes in {where}")


class Data:
    def __init__(self, where):
        self.where = where

    def __iter__(self):
        for k in range(3):
            if k == 1:
                fail(self.where)
            yield X[10 * k : 10 * k + 10], TARGET[10 * k : 10 * k + 10]


def callback(run):
    fail("callback")


def on_step(run):
    fail("on_step")


def optimiser(loss, params, *args, **options):
    fail("optimiser")
    return nn.optim.adam(loss, params, *args, **options)


def criterion(y, t):
    fail("criterion")
    return nn.CrossEntropyCriterion()(y, t)


try:
    nn.fit(
        net, criterion, optimiser, Data("data"), 3, lr=0.05, validation=Data("validation"),
        distributed=dist.DataParallel(shard="parameters", keep_gathered=True),
        callbacks=[callback], on_step=[on_step], checkpoint=folder / "run.safetensors.index.json",
    )  # fmt: skip
    fail("afterwards")
    net.state_dict()
except Exception as error:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    print(f"RANK {dist.rank()} {text[:300]}", flush=True)
    raise
print(f"RANK {dist.rank()} DONE", flush=True)
