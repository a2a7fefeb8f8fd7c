"""Tensor parallel: a layer whose columns, and the next whose rows, are shared out over ranks.

    symdnn launch -n 2 examples/distributed/tensor_parallel.py

Rank r has a part of the hidden units. Each multiplies the whole input by its columns of ``w1`` and
its hidden units by its rows of ``w2``; the sum over ranks is the output (Shoeybi et al. 2019,
"Megatron-LM"). The cost is the sum over ranks of each rank's cost, so that each counts an equal
part of the loss that all of them compute.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

import symdnn
import symdnn.distributed as dist
import symdnn.tensor as T


def main(argv: Sequence[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=64, help="units of all ranks together")
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args(argv)
    dist.init()

    rng = np.random.default_rng(0)  # the same on all ranks
    whole1 = rng.normal(size=(8, options.hidden)).astype("float32") / 3
    whole2 = rng.normal(size=(options.hidden, 2)).astype("float32") / 8
    mine = np.array_split(np.arange(options.hidden), dist.size())[dist.rank()]
    w1 = symdnn.shared(whole1[:, mine], name="w1")
    w2 = symdnn.shared(whole2[mine], name="w2")
    b = symdnn.shared(np.zeros(2, "float32"), name="b")  # every rank has it

    x, t = T.matrix("x"), T.matrix("t")
    hidden = T.tanh(T.dot(x, w1))
    y = dist.all_reduce(T.dot(hidden, w2)) + dist.replicated(b)
    loss = T.sqr(y - t).mean()
    grads = symdnn.grad(loss / dist.size(), [w1, w2, b])
    updates = [(p, p - np.float32(0.2) * g) for p, g in zip([w1, w2, b], grads)]
    train = symdnn.function([x, t], loss, updates=updates)

    inputs = rng.normal(size=(256, 8)).astype("float32")
    targets = np.stack([np.sin(inputs[:, 0]), inputs[:, 1] * inputs[:, 2]], 1).astype("float32")
    losses = [float(train(inputs, targets)) for _ in range(options.steps)]
    if dist.is_main():
        print(f"{dist.size()} processes: loss {losses[0]:.4f} to {losses[-1]:.4f}")
    return losses[-1]


if __name__ == "__main__":
    main()
