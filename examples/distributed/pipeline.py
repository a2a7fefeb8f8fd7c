"""Pipeline parallel by hand: each rank has a stage, and micro-batches go through one after another.

    symdnn launch -n 4 examples/distributed/pipeline.py

The order of forward and backward passes is 1F1B (Narayanan et al. 2019, "PipeDream"): a stage
begins with as many forward passes as there are stages behind it. Then a forward and a backward pass
take turns, so that no stage keeps many more micro-batches than that. A stage keeps its inputs, and
computes its forward pass again in the backward pass.
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Sequence

import numpy as np

import symdnn
import symdnn.distributed as dist
import symdnn.tensor as T

WIDTH, LAYERS = 16, 4
FORWARD, BACKWARD = 0, 1  # tags


class Stage:
    """The layers of one rank, and what it sends and receives."""

    def __init__(self, rows: int, micro_batches: int) -> None:
        r, n = dist.rank(), dist.size()
        self.first, self.last = r == 0, r == n - 1
        rng = np.random.default_rng(0)  # the same on all ranks
        whole = [rng.normal(size=(WIDTH, WIDTH)).astype("float32") / 4 for _ in range(LAYERS)]
        mine = np.array_split(np.arange(LAYERS), n)[r]
        self.weights = [symdnn.shared(whole[i], name=f"w{i}") for i in mine]
        sums = [symdnn.shared(np.zeros((WIDTH, WIDTH), "float32")) for _ in mine]
        shape, x, t = (rows, WIDTH), T.matrix("x"), T.matrix("t")

        def layers(h):
            for w in self.weights:
                h = T.tanh(T.dot(h, w))
            return h

        # Forward: receive (or take) an input, and send the result.
        entering = x if self.first else dist.recv(shape, "float32", r - 1, tag=FORWARD)
        sent = [] if self.last else [dist.send(layers(entering), r + 1, tag=FORWARD)]
        inputs = [x] if self.first else []
        self.forward = symdnn.function(inputs, [entering, *sent], on_unused_input="ignore")

        # Backward: receive the gradient of the result (or take the loss), send that of the input.
        h = layers(x)
        loss = T.sqr(h - t).mean() if self.last else T.as_tensor(np.float32(0))
        known = {} if self.last else {h: dist.recv(shape, "float32", r + 1, tag=BACKWARD)}
        *grads, back = symdnn.grad(
            loss if self.last else None, [*self.weights, x], known_grads=known
        )
        sent = [] if self.first else [dist.send(back, r - 1, tag=BACKWARD)]
        added = [(s, s + g / np.float32(micro_batches)) for s, g in zip(sums, grads)]
        self.backward = symdnn.function(
            [x, t], [loss, *sent], updates=added, on_unused_input="ignore"
        )
        step = [(w, w - np.float32(0.5) * s) for w, s in zip(self.weights, sums)]
        self.step = symdnn.function([], [], updates=[*step, *((s, s * 0) for s in sums)])

    def train(self, inputs: Sequence[np.ndarray], targets: Sequence[np.ndarray]) -> float:
        """A step on some micro-batches; the loss, on the last stage."""
        ahead = min(dist.size() - dist.rank() - 1, len(inputs))
        kept: deque[np.ndarray] = deque()
        coming, going, losses = iter(inputs), iter(targets), []
        for i in range(len(inputs) + ahead):
            if i < len(inputs):
                given = [next(coming)] if self.first else []
                kept.append(self.forward(*given)[0])
            if i >= ahead:
                losses.append(float(self.backward(kept.popleft(), next(going))[0]))
        self.step()
        return float(np.mean(losses))


def main(argv: Sequence[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--micro-batches", type=int, default=8)
    options = parser.parse_args(argv)
    dist.init()

    rng = np.random.default_rng(1)
    x = rng.normal(size=(options.micro_batches, 8, WIDTH)).astype("float32")
    t = np.tanh(x[:, :, ::-1] / 2)
    stage = Stage(8, options.micro_batches)
    losses = [stage.train(x, t) for _ in range(options.steps)]
    if stage.last:
        print(f"{dist.size()} processes: loss {losses[0]:.4f} to {losses[-1]:.4f}")
    return losses[-1]


if __name__ == "__main__":
    main()
