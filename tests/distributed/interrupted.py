"""A training that Ctrl-C ends: of rank 1 alone in its sixth step, or from outside after ``GO``."""

import os
import signal
import sys
import time

import numpy as np

import symdnn.distributed as dist
from symdnn import nn

path, who = sys.argv[1:]
dist.init()
nn.init.seed(1)
net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
rng = np.random.default_rng(0)
data = rng.normal(size=(32, 4)).astype("float32"), rng.integers(0, 2, 32, "int32")


def on_step(run):
    if run.step != 6:
        return
    if who == "outside":
        print("GO", flush=True)
        time.sleep(1)
    elif dist.rank() == int(who):
        os.kill(os.getpid(), signal.SIGINT)


criterion, batches = nn.CrossEntropyCriterion(), nn.batches(data, 8)
try:
    nn.fit(net, criterion, "adam", batches, 9, on_step=[on_step], checkpoint=path, distributed=True)
except KeyboardInterrupt:
    print("RANK", dist.rank(), "INTERRUPTED", flush=True)
    raise
