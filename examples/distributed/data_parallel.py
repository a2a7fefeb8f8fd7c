"""Data parallel training of a network on digits: one more word than on one process.

    python examples/distributed/data_parallel.py
    symdnn launch -n 4 examples/distributed/data_parallel.py
    mpirun -n 4 python examples/distributed/data_parallel.py
    torchrun --nproc_per_node 4 examples/distributed/data_parallel.py      # GPUs, by NCCL
    srun -n 4 python examples/distributed/data_parallel.py

The losses are the same for every number of processes: each takes its part of the same batches.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
from sklearn.datasets import load_digits

import symdnn.distributed as dist
from symdnn import nn


def main(argv: Sequence[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=64, help="of all processes together")
    parser.add_argument("--checkpoint", help="a .safetensors file; training goes on from it")
    options = parser.parse_args(argv)
    dist.init()

    digits = load_digits()
    images = (digits.images[:, None] / 16).astype("float32")
    labels = digits.target.astype("int32")
    nn.init.seed(0)
    net = nn.Sequential(
        nn.SpatialConvolution(1, 16, 3, 3, padding="same"),
        nn.SpatialBatchNormalization(16),
        nn.ReLU(),
        nn.SpatialMaxPooling(2, 2),
        nn.Flatten(),
        nn.Linear(16 * 4 * 4, 10),
    )
    nn.sync_batch_norm(net)  # means and variances of the whole batch
    history = nn.fit(
        net,
        nn.CrossEntropyCriterion(),
        nn.optim.adam,
        nn.batches((images[:1400], labels[:1400]), options.batch, shuffle=True, seed=1),
        options.epochs,
        lr=3e-3,
        validation=nn.batches((images[1400:], labels[1400:]), 128),
        metrics=["accuracy"],
        checkpoint=options.checkpoint,
        resume=options.checkpoint is not None,
        distributed=True,
    )
    if dist.is_main():
        print(f"{dist.size()} processes:", np.round(history["loss"], 4).tolist())
        print(f"accuracy {max(history['val_accuracy']):.1%}")
    return float(max(history["val_accuracy"]))


if __name__ == "__main__":
    main()
