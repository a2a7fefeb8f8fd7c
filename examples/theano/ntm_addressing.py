"""The addressing of a neural Turing machine: a head that learns to write and to read by content.

Written for Theano: content addressing by cosine similarity, interpolation, a circular shift by
convolution, and sharpening, inside of a `scan`. The machine gets bit patterns one after the other
and must give them back in the same order: it learns to move its head by one place a step.
"""

import argparse

import numpy as np

import symdnn.compat.theano

symdnn.compat.theano.install()
import theano
import theano.tensor as T

SLOTS, BITS, SHIFTS = 8, 6, 3


def similarity(key, memory):
    """Cosine similarity of a key to each row of the memory."""
    length = T.sqrt((memory**2).sum(axis=1) + 1e-6) * T.sqrt((key**2).sum() + 1e-6)
    return T.dot(memory, key) / length


def shifted(weights, kernel):
    """Circular convolution of a weighting with the distribution of shifts -1, 0, 1."""
    moved = [T.roll(weights, s - SHIFTS // 2, axis=0) for s in range(SHIFTS)]
    return sum(kernel[s] * moved[s] for s in range(SHIFTS))


def address(head, memory, weights):
    """The next weighting, from a head's parameters: Graves et al. (2014), equations 5 to 9."""
    content = T.nnet.softmax(T.nnet.softplus(head["beta"]) * similarity(head["key"], memory))[0]
    gate = T.nnet.sigmoid(head["gate"])
    mixed = gate * content + (1 - gate) * weights
    moved = shifted(mixed, T.nnet.softmax(head["shift"])[0])
    sharp = (moved + 1e-8) ** (1 + T.nnet.softplus(head["gamma"]))
    return sharp / sharp.sum()


def head_parameters(name, rng):
    """Shared parameters of one head."""
    draw = {"key": rng.normal(0, 0.1, BITS), "beta": np.zeros(()), "gate": np.zeros(()),
            "shift": rng.normal(0, 0.1, SHIFTS), "gamma": np.ones(())}  # fmt: skip
    return {k: theano.shared(v.astype(theano.config.floatX), f"{name}_{k}")
            for k, v in draw.items()}  # fmt: skip


def main(argv=None):
    """Train to copy, and return the share of bits that are right for longer sequences."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=700)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    rng = np.random.default_rng(options.seed)
    write, read = head_parameters("write", rng), head_parameters("read", rng)
    params = [*write.values(), *read.values()]
    x = T.matrix("x")  # (time, bits)
    start = np.zeros(SLOTS, theano.config.floatX)
    start[0] = 1

    def write_step(bits, memory, weights):
        new = address(write, memory, weights)
        erased = memory * (1 - weights.dimshuffle(0, "x"))
        return erased + weights.dimshuffle(0, "x") * bits.dimshuffle("x", 0), new

    def read_step(weights, memory):
        return address(read, memory, weights), T.dot(weights, memory)

    empty = T.alloc(np.asarray(0.0, theano.config.floatX), SLOTS, BITS)
    (memories, _), _ = theano.scan(write_step, sequences=x, outputs_info=[empty, T.constant(start)])
    (_, given), _ = theano.scan(
        read_step, outputs_info=[T.constant(start), None], non_sequences=memories[-1],
        n_steps=x.shape[0],
    )  # fmt: skip
    p = T.clip(given, 1e-4, 1 - 1e-4)
    cost = T.nnet.binary_crossentropy(p, x).mean()
    updates = []
    for v, g in zip(params, T.grad(cost, params)):
        mean, square = (theano.shared(v.get_value() * 0) for _ in range(2))
        updates += [(mean, 0.9 * mean + 0.1 * g), (square, 0.99 * square + 0.01 * g**2),
                    (v, v - 0.05 * (0.9 * mean + 0.1 * g)
                     / (T.sqrt(0.99 * square + 0.01 * g**2) + 1e-4))]  # fmt: skip
    train = theano.function([x], cost, updates=updates)
    predict = theano.function([x], p)

    def patterns(length):
        return rng.integers(0, 2, (length, BITS)).astype(theano.config.floatX)

    for step in range(options.steps):
        loss = train(patterns(rng.integers(2, 6)))
        if step % 100 == 99:
            print(f"step {step + 1}: cost {float(loss):.4f}")
    right = [((predict(s) > 0.5) == s).mean() for s in (patterns(SLOTS) for _ in range(50))]
    share = float(np.mean(right))
    print(f"bits that are right in sequences of {SLOTS}, longer than in training: {share:.1%}")
    return share


if __name__ == "__main__":
    assert main() > 0.95
