"""A convolutional network is trained with images of sizes that do not return, or only run.

Prints the MB by which the process grew after the first ten, the MB that are left after
``f.free()``, and the median milliseconds that a call with a new size takes:

    python tests/needs/changing_shapes.py 200 cuda run
"""

import gc
import random
import statistics
import sys
import time

import numpy as np

import symdnn
import symdnn.tensor as T
from symdnn import nn


def memory_mb() -> float:
    """The process's memory."""
    with open("/proc/self/status", encoding="ascii") as file:
        (line,) = (line for line in file if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def main(count: int, device: str, train: bool) -> None:
    """Train, or run, with ``count`` sizes."""
    sizes = [(h, w) for h in range(20, 80) for w in range(20, 80)]
    random.Random(1).shuffle(sizes)
    net = nn.Sequential(
        nn.SpatialConvolution(3, 16, 3, 3), nn.ReLU(),
        nn.SpatialConvolution(16, 8, 3, 3), nn.ReLU(),
    )  # fmt: skip
    x = T.tensor4("x")
    loss = (net(x).mean((2, 3)) ** 2).sum()
    mode = symdnn.Mode(target=device)
    updates = nn.optim.sgd(loss, net, 0.001) if train else None
    f = symdnn.function([x], loss, updates=updates, mode=mode)
    rng = np.random.default_rng(0)
    f(np.zeros((1, 3, 80, 80), "float32"))  # the largest: the arena is no growth
    start, took = 0.0, []
    for i, size in enumerate(sizes[: count + 10]):
        if i == 10:
            start = memory_mb()
        image = rng.standard_normal((1, 3, *size), dtype="float32")
        began = time.perf_counter()
        f(image)
        took.append(time.perf_counter() - began)
    more = memory_mb() - start
    f.free()
    gc.collect()
    print(more, memory_mb() - start, statistics.median(took) * 1e3)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3] == "train")
