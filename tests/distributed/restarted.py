"""A training of which ranks are killed in the middle of epochs; it resumes from its checkpoint.

    restarted.py CHECKPOINT [RANK:STEP ...]

In the first run the first of the ranks is killed after so many steps, in the second run, after a
restart, the second one. Rank 0 prints a digest of all bits: parameters, optimiser, measures.
"""

import hashlib
import os
import signal
import sys

import numpy as np

import symdnn
import symdnn.distributed as dist
from symdnn import nn

dist.init()
rng = np.random.default_rng(0)
x = rng.normal(size=(42, 4)).astype("float32")
t = (x.sum(axis=1) > 0).astype("int32")
faults = [tuple(map(int, word.split(":"))) for word in sys.argv[2:]]
fault = faults[dist.restarts()] if dist.restarts() < len(faults) else None
steps = 0


def killed(run):
    global steps
    steps += 1
    if fault == (dist.rank(), steps):
        print(f"KILLED {dist.rank()} in epoch {run.epoch}", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


nn.init.seed(0)
batches = nn.batches((x, t), 8, shuffle=True, seed=3)
net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Tanh(), nn.Linear(8, 2))
history = nn.fit(
    net, nn.CrossEntropyCriterion(), "adam", batches, 4, lr=0.02, distributed=True, resume=True,
    checkpoint=sys.argv[1], on_step=[killed], metrics=["accuracy"],
)  # fmt: skip
if dist.is_main():
    found = hashlib.sha256()
    for values in (history["loss"], history["accuracy"], *net.state_dict().values()):
        found.update(np.ascontiguousarray(values).tobytes())
    saved = symdnn.io.load_parameters(sys.argv[1])
    for name in sorted(saved):
        found.update(np.ascontiguousarray(saved[name]).tobytes())
    print(
        f"RESTARTS {dist.restarts()} EPOCHS {len(history['loss'])} {found.hexdigest()}", flush=True
    )
