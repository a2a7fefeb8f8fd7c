"""Shared out parameters: each rank keeps a part of the network and of the optimiser's state.

    symdnn launch -n 2 examples/distributed/sharded.py
    mpirun -n 4 python examples/distributed/sharded.py --shard optimizer
    torchrun --nproc_per_node 4 examples/distributed/sharded.py                      # GPUs
    srun -n 8 python examples/distributed/sharded.py

The losses are those of one process at the same batch (ZeRO: Rajbhandari et al. 2020).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

import symdnn.distributed as dist
from symdnn import nn


def main(argv: Sequence[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__)
    words = ["optimizer", "gradients", "parameters"]
    parser.add_argument("--shard", choices=words, default="parameters")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--checkpoint", help="a .safetensors file to resume from and to write")
    options = parser.parse_args(argv)
    dist.init()

    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(512, 16)).astype("float32")
    labels = (np.sin(inputs[:, 0]) + inputs[:, 1] * inputs[:, 2] > 0).astype("int32")
    nn.init.seed(0)
    hidden = [m for _ in range(4) for m in (nn.Linear(64, 64), nn.ReLU())]
    net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), *hidden, nn.Linear(64, 2))
    history = nn.fit(
        net, nn.CrossEntropyCriterion(), nn.optim.adamw,
        nn.batches((inputs, labels), 64, shuffle=True, seed=1), options.epochs, lr=3e-3,
        checkpoint=options.checkpoint, resume=options.checkpoint is not None,
        # A bucket is what is gathered at once: here a layer.
        distributed=dist.DataParallel(shard=options.shard, bucket_bytes=16 << 10),
    )  # fmt: skip
    if dist.is_main():
        print(
            f"{dist.size()} processes: loss {history['loss'][0]:.3f} to {history['loss'][-1]:.3f}"
        )
    return float(history["loss"][-1])


if __name__ == "__main__":
    main()
