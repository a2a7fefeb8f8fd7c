"""A training whose rank 1 is killed in its second epoch, once; it resumes from its checkpoint."""

import os
import signal
import sys

import numpy as np

import symdnn.distributed as dist
from symdnn import nn

dist.init()
rng = np.random.default_rng(0)
x = rng.normal(size=(32, 4)).astype("float32")
t = (x.sum(axis=1) > 0).astype("int32")


def killed(run):
    if run.epoch == 2 and dist.rank() == 1 and not dist.restarts():
        os.kill(os.getpid(), signal.SIGKILL)


nn.init.seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
history = nn.fit(
    net, nn.CrossEntropyCriterion(), "adam", nn.batches((x, t), 8), 4, distributed=True,
    checkpoint=sys.argv[1], resume=True, callbacks=[killed],
)  # fmt: skip
if dist.is_main():
    print(f"RESTARTS {dist.restarts()} EPOCHS {len(history['loss'])}", flush=True)
