"""Tensor parallel: heads and columns of a language model are shared out over ranks.

    symdnn launch -n 2 examples/distributed/tensor_parallel.py
    mpirun -n 4 python examples/distributed/tensor_parallel.py --tensor 2
    torchrun --nproc_per_node 4 examples/distributed/tensor_parallel.py --tensor 4   # GPUs
    srun -n 8 python examples/distributed/tensor_parallel.py --tensor 4

Each rank of a group keeps a part of each matrix; the program is that of one process, with one more
line. With ``--tensor`` less than the number of processes, groups train on different samples.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np

import symdnn
import symdnn.distributed as dist
import symdnn.tensor as T
from symdnn import nn

LAYERS = {"*.attn": "heads", "*.mlp": "columns", "*.wte": "vocabulary"}


def main(argv: Sequence[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tensor", type=int, default=-1, help="ranks that share out a matrix")
    parser.add_argument("--words", type=int, default=16)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args(argv)
    dist.init()
    data = 1 if options.tensor == -1 else -1
    mesh = dist.Mesh({"data": data, "tensor": options.tensor})

    nn.init.seed(0)
    net = nn.models.gpt2(options.words, 16, options.width, layers=2, heads=4, dropout=0.0)
    nn.parallel.shard(net, LAYERS, mesh.group("tensor"))

    x = T.lmatrix("tokens")
    scores = net(x[:, :-1]).reshape((-1, options.words))
    loss = nn.CrossEntropyCriterion()(scores, x[:, 1:].flatten())
    parallel = dist.DataParallel(mesh.group("data"))
    updates = nn.optim.adam(loss, net, 5e-3, distributed=parallel)
    mean = dist.all_reduce(loss, "mean", mesh.group("data"))
    train = symdnn.function([x], mean, updates=updates)

    # Texts that count up from a random word; each group of the mesh has its part of them.
    starts = np.random.default_rng(0).integers(0, options.words, (64, 1))
    texts = ((starts + np.arange(9)) % options.words)[mesh.position["data"] :: mesh.sizes["data"]]
    losses = [float(train(texts)) for _ in range(options.steps)]
    if dist.is_main():
        part = sum(v.size for v in map(_own, net.parameters()))
        whole = sum(int(np.prod(v.type.shape)) for v in net.parameters())
        print(
            f"{dist.size()} processes, {part} of {whole} parameters on each: loss "
            f"{losses[0]:.4f} to {losses[-1]:.4f}"
        )
    return losses[-1]


def _own(parameter: Any) -> Any:
    """What this rank keeps of a parameter."""
    layout = getattr(parameter.storage, "layout", None)
    return (parameter if layout is None else layout.own).get_value(borrow=True)


if __name__ == "__main__":
    main()
