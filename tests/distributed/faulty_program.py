"""A training in several processes of which rank 1 has a fault; what the others say is the test."""

import os
import sys
import time

import numpy as np

import symdnn
import symdnn.distributed as dist
import symdnn.tensor as T
from symdnn.tensor.opt import Assert

fault = sys.argv[1]
dist.init()
x, t = T.matrix("x"), T.ivector("t")
w = symdnn.shared(np.zeros((3, 2), "float32"), name="w")
loss = T.nnet.categorical_crossentropy(T.nnet.softmax(T.dot(x, w)), t).mean()
updates = dist.data_parallel([(w, w - 0.1 * symdnn.grad(loss, w))])
outputs = [loss]
if fault == "late":  # after the last gradient is sent
    outputs.append(Assert("late")(loss, T.lt(x.sum(), np.float32(1e6))))
if fault == "mismatch" and dist.rank() == 1:
    outputs.append(dist.all_reduce(loss))
train = symdnn.function([x, t], outputs, updates=updates)
spread = symdnn.function([x], dist.all_to_all(x))
spread(np.ones((4, 3), "float32"))
joined = symdnn.function([x], dist.all_gather(x))
values, targets = np.ones((4, 3), "float32"), np.array([0, 1, 1, 1], "int32")
for step in range(5):
    before = w.get_value()
    if step == 3 and dist.rank() == 1:
        if fault == "raises":
            raise RuntimeError("the disk is full")
        if fault == "dies":
            os._exit(9)
        if fault == "killed":
            os.kill(os.getpid(), 9)
        if fault == "hangs":
            time.sleep(1000)
        if fault == "exits":
            sys.exit(3)
        if fault == "new":  # a new list of collectives, where the other rank has an old one
            joined(np.ones((9, 3), "float32"))
        if fault == "label":
            targets = np.array([0, 1, 7, 1], "int32")
        if fault == "late":
            values = values * 1e6
    if fault == "new":
        joined(values)
    if fault in ("sizes", "functions"):  # calls that both ranks have had before
        for count in (2, 4):
            joined(np.ones((count, 3), "float32"))
    if fault == "sizes" and step == 3:
        joined(np.ones((4 - 2 * dist.rank(), 3), "float32"))
    if fault == "functions" and step == 3 and dist.rank() == 1:
        spread(values)
    try:
        train(values, targets)
    except Exception as error:
        unchanged = np.array_equal(before, w.get_value())
        text = f"{type(error).__name__}: {error} UNCHANGED={unchanged}"
        print(f"RANK {dist.rank()} {text}", flush=True)
        raise
print(f"RANK {dist.rank()} DONE", flush=True)
