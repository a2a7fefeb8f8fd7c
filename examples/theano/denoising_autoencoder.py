"""A denoising autoencoder with tied weights, stacked twice and fine-tuned by a classifier on top.

Written for Theano in the way of its tutorial: a corruption by a random stream inside of the graph,
layer-wise training, then one function for all layers. The data are noisy prototypes, of which only
a few have labels. Reconstructions must be nearer to the clean images than what was given.
"""

import argparse

import numpy as np

import symdnn.compat.theano

symdnn.compat.theano.install()
import theano
import theano.tensor as T
from theano.sandbox.rng_mrg import MRG_RandomStreams

PIXELS, CLASSES = 64, 8


class DenoisingLayer:
    """A layer whose weights reconstruct their input from a corrupted copy."""

    def __init__(self, n_in, n_out, rng, streams):
        bound = 4 * np.sqrt(6.0 / (n_in + n_out))
        draw = rng.uniform(-bound, bound, (n_in, n_out)).astype(theano.config.floatX)
        self.W = theano.shared(draw, "W", borrow=True)
        self.b = theano.shared(np.zeros(n_out, theano.config.floatX), "b")
        self.b_prime = theano.shared(np.zeros(n_in, theano.config.floatX), "b_prime")
        self.params, self.streams = [self.W, self.b, self.b_prime], streams

    def hidden(self, x):
        """The code of ``x``."""
        return T.nnet.sigmoid(T.dot(x, self.W) + self.b)

    def reconstructed(self, x):
        """What the code says of ``x``."""
        return T.nnet.sigmoid(T.dot(self.hidden(x), self.W.T) + self.b_prime)

    def cost_updates(self, x, corruption, lr):
        """The cross-entropy of reconstructions from corrupted inputs, and a step down."""
        keep = self.streams.binomial(x.shape, n=1, p=1 - corruption, dtype=theano.config.floatX)
        z = self.reconstructed(x * keep)
        cost = -T.sum(x * T.log(z) + (1 - x) * T.log(1 - z), axis=1).mean()
        return cost, [(p, p - lr * g) for p, g in zip(self.params, T.grad(cost, self.params))]


def main(argv=None):
    """Train, and return (error left by denoising, accuracy)."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    rng = np.random.default_rng(options.seed)
    prototypes = rng.integers(0, 2, (CLASSES, PIXELS)).astype(theano.config.floatX)

    def images(count, noise=0.1):
        kinds = rng.integers(0, CLASSES, count)
        turned = rng.random((count, PIXELS)) < noise
        return np.abs(prototypes[kinds] - turned).astype(theano.config.floatX), kinds

    data = theano.shared(images(1000)[0], borrow=True)
    index, batch = T.lscalar("index"), 50
    x, y = T.matrix("x"), T.lvector("y")
    streams = MRG_RandomStreams(options.seed + 1)
    layers, below = [], x
    for n_in, n_out in ((PIXELS, 40), (40, 24)):
        layer = DenoisingLayer(n_in, n_out, rng, streams)
        cost, updates = layer.cost_updates(below, 0.3, 0.2)
        train = theano.function([index], cost, updates=updates,
                                givens={x: data[index * batch : (index + 1) * batch]})  # fmt: skip
        for _ in range(options.epochs):
            costs = [train(i) for i in range(1000 // batch)]
        print(f"layer of {n_out}: cost {np.mean(costs):.2f}")
        layers.append(layer)
        below = layer.hidden(below)

    W = theano.shared(np.zeros((24, CLASSES), theano.config.floatX), "W_top")
    p = T.nnet.softmax(T.dot(below, W))
    cost = -T.mean(T.log(p)[T.arange(y.shape[0]), y])
    params = [W, *(v for layer in layers for v in layer.params[:2])]
    steps = [(v, v - 0.5 * g) for v, g in zip(params, T.grad(cost, params))]
    tune = theano.function([x, y], cost, updates=steps)
    few, labels = images(80)
    denoise = theano.function([x], layers[0].reconstructed(x))
    given, kinds = images(400)
    clean = prototypes[kinds]
    left = float(((denoise(given) - clean) ** 2).sum() / ((given - clean) ** 2).sum())
    for _ in range(200):
        tune(few, labels)
    guess = theano.function([x], p.argmax(axis=1))
    accuracy = float((guess(given) == kinds).mean())
    print(f"noise left {left:.0%}, accuracy with 80 labels {accuracy:.1%}")
    return left, accuracy


if __name__ == "__main__":
    left, accuracy = main()
    assert left < 0.6
    assert accuracy > 0.9
