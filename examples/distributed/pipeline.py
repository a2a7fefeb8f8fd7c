"""Pipeline parallel by hand: each rank has a stage, and micro-batches go through one after another.

    symdnn launch -n 4 examples/distributed/pipeline.py

The order of forward and backward passes is 1F1B (Narayanan et al. 2019, "PipeDream"): a stage
begins with as many forward passes as there are stages behind it. Then a forward and a backward pass
take turns, so that no stage keeps many more micro-batches than that. A stage keeps its inputs, and
computes its forward pass again in the backward pass.

While they take turns, two neighbours have something for each other: the result of a stage, and the
gradient of an earlier one. They exchange them in one call. If each sent before it received, both
would wait for ever: an engine need not keep what is sent until it is received (NCCL does not, and
MPI does so for small messages).
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Sequence

import numpy as np

import symdnn
import symdnn.distributed as dist
import symdnn.tensor as T

LAYERS = 4
EXCHANGE = [(0, 1), (1, 0)]


class Edge:
    """What this rank sends to and receives from a neighbour: values of one shape, and the
    gradients with respect to them, both ways. ``number`` is this rank's in the pair."""

    def __init__(self, first: int, number: int, shape: tuple[int, int]) -> None:
        pair, other, x = dist.new_group([first, first + 1]), 1 - number, T.matrix("x")
        came = dist.recv(shape, "float32", other, group=pair)
        swapped = dist.permute(x, EXCHANGE, group=pair)
        self.recv = symdnn.function([], symdnn.Out(came, borrow=True))
        self.send = symdnn.function([x], dist.send(x, other, group=pair))
        self.exchange = symdnn.function([x], symdnn.Out(swapped, borrow=True))


class Stage:
    """The layers of one rank, and its neighbours."""

    def __init__(self, rows: int, width: int, micro_batches: int) -> None:
        r, n = dist.rank(), dist.size()
        self.first, self.last = r == 0, r == n - 1
        self.before = None if self.first else Edge(r - 1, 1, (rows, width))
        self.behind = None if self.last else Edge(r, 0, (rows, width))
        rng = np.random.default_rng(0)  # the same on all ranks
        scale = np.float32(1 / width**0.5)
        whole = [rng.normal(size=(width, width)).astype("float32") * scale for _ in range(LAYERS)]
        mine = np.array_split(np.arange(LAYERS), n)[r]
        self.weights = [symdnn.shared(whole[i], name=f"w{i}") for i in mine]
        sums = [symdnn.shared(np.zeros((width, width), "float32")) for _ in mine]
        x, t = T.matrix("x"), T.matrix("t")

        h = x
        for w in self.weights:
            h = T.tanh(T.dot(h, w))
        self.forward = symdnn.function([x], symdnn.Out(h, borrow=True))

        # ``t`` is the gradient of the result that the next stage sends; the last one's targets.
        loss = T.sqr(h - t).mean() if self.last else (h * t).sum()
        *grads, back = symdnn.grad(loss, [*self.weights, x])
        added = [(s, s + g / np.float32(micro_batches)) for s, g in zip(sums, grads)]
        outs = [symdnn.Out(back, borrow=True), loss]
        self.backward = symdnn.function([x, t], outs, updates=added)
        step = [(w, w - np.float32(0.5) * s) for w, s in zip(self.weights, sums)]
        self.step = symdnn.function([], [], updates=[*step, *((s, s * 0) for s in sums)])

    def train(self, inputs: Sequence[np.ndarray], targets: Sequence[np.ndarray]) -> float:
        """A step on some micro-batches; the loss, on the last stage."""
        count, before, behind = len(inputs), self.before, self.behind
        ahead = min(dist.size() - dist.rank() - 1, count)
        coming, going = iter(inputs), iter(targets)
        kept, losses = deque(), []

        def backward(given):
            back, loss = self.backward(kept.popleft(), given)
            losses.append(float(loss))
            return back

        for _ in range(ahead):  # forward passes alone
            kept.append(next(coming) if self.first else before.recv())
            behind.send(self.forward(kept[-1]))
        back = None
        for i in range(count - ahead):  # in turns
            if self.first:
                kept.append(next(coming))
            else:
                kept.append(before.recv() if i == 0 else before.exchange(back))
            if self.last:  # its loss is in the backward pass
                back = backward(next(going))
            else:
                back = backward(behind.exchange(self.forward(kept[-1])))
        for _ in range(ahead):  # backward passes alone
            if back is not None and not self.first:
                before.send(back)
            back = backward(behind.recv())
        if not self.first:
            before.send(back)
        self.step()
        return float(np.mean(losses))


def main(argv: Sequence[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--rows", type=int, default=8, help="samples of a micro-batch")
    parser.add_argument("--width", type=int, default=16)
    options = parser.parse_args(argv)
    dist.init()

    rng = np.random.default_rng(1)
    size = (options.micro_batches, options.rows, options.width)
    x = rng.normal(size=size).astype("float32")
    t = np.tanh(x[:, :, ::-1] / 2)
    stage = Stage(options.rows, options.width, options.micro_batches)
    losses = [stage.train(x, t) for _ in range(options.steps)]
    if stage.last:
        print(f"{dist.size()} processes: loss {losses[0]:.4f} to {losses[-1]:.4f}")
    return losses[-1]


if __name__ == "__main__":
    main()
