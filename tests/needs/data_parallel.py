"""A network is trained on a batch that the processes share; rank 0 prints a line of JSON."""

import json
import sys

import numpy as np

import symdnn
import symdnn.distributed as dist
import symdnn.tensor as T
from symdnn import nn


def main(device: str, steps: int) -> None:
    """Train, and print the losses, the parameters as text and the report of the collectives."""
    dist.init()
    rng = np.random.default_rng(0)
    x, t = T.ftensor4("x"), T.ivector("t")
    nn.init.seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 32), nn.Tanh(),
        nn.Linear(32, 10),
    )  # fmt: skip
    loss = nn.CrossEntropyCriterion()(net(x), t)
    parallel = dist.DataParallel(bucket_bytes=4096)
    updates = nn.optim.adam(loss, net, 0.01, distributed=parallel)
    step = symdnn.function([x, t], loss, updates=updates, mode=symdnn.Mode(target=device))
    losses = []
    for _ in range(steps):
        images = rng.standard_normal((16, 1, 8, 8), dtype="float32")
        labels = rng.integers(0, 10, 16).astype("int32")
        mine = slice(dist.rank() * 16 // dist.size(), (dist.rank() + 1) * 16 // dist.size())
        losses.append(float(step(images[mine], labels[mine])))
    everyones = dist.all_reduce(T.constant(np.float32(losses)), "mean").eval()
    rows = step.distributed_report().rows
    if dist.is_main():
        found = {
            "losses": [float(v) for v in everyones],
            "parameters": [np.asarray(p.get_value()).tobytes().hex() for p in net.parameters()],
            "meanwhile": [row.meanwhile for row in rows],
        }
        print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
