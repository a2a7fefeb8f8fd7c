"""A restricted Boltzmann machine, trained by contrastive divergence with k steps of Gibbs sampling.

Written for Theano: `scan` runs the chain, its updates carry the state of the random numbers. The
data are the bars of 4x4 images: each row or each column is on or off. The trained machine's free
energy must separate bars from random images, and its samples must look like bars.
"""

import argparse

import numpy as np

import symdnn.compat.theano

symdnn.compat.theano.install()
import theano
import theano.tensor as T
from theano.tensor.shared_randomstreams import RandomStreams

SIDE = 4


def bars(count, rng):
    """Images of which each row, or each column, is on with probability 1/2."""
    on = rng.integers(0, 2, (count, SIDE, 1)).repeat(SIDE, axis=2)
    turned = rng.integers(0, 2, count).astype(bool)
    on[turned] = on[turned].transpose(0, 2, 1)
    return on.reshape(count, -1).astype(theano.config.floatX)


class RBM:
    """Weights and biases, the chain, and the cost whose gradient is that of the likelihood."""

    def __init__(self, visible, hidden, rng):
        draw = rng.normal(0, 0.1, (visible, hidden)).astype(theano.config.floatX)
        self.W = theano.shared(draw, "W", borrow=True)
        self.hbias = theano.shared(np.zeros(hidden, theano.config.floatX), "hbias")
        self.vbias = theano.shared(np.zeros(visible, theano.config.floatX), "vbias")
        self.params = [self.W, self.hbias, self.vbias]
        self.streams = RandomStreams(int(rng.integers(2**30)))

    def free_energy(self, v):
        """The energy of images with the hidden units summed out."""
        inside = T.dot(v, self.W) + self.hbias
        return -T.dot(v, self.vbias) - T.sum(T.log(1 + T.exp(inside)), axis=1)

    def gibbs_vhv(self, v):
        """One step of the chain from images to images: the mean and a draw."""
        h_mean = T.nnet.sigmoid(T.dot(v, self.W) + self.hbias)
        h = self.streams.binomial(h_mean.shape, n=1, p=h_mean, dtype=theano.config.floatX)
        mean = T.nnet.sigmoid(T.dot(h, self.W.T) + self.vbias)
        draw = self.streams.binomial(mean.shape, n=1, p=mean, dtype=theano.config.floatX)
        return mean, draw

    def cost_updates(self, v, lr, k):
        """The difference of free energies, and updates for one step of CD-k."""
        (_, draws), updates = theano.scan(self.gibbs_vhv, outputs_info=[None, v], n_steps=k)
        chain_end = draws[-1]
        cost = T.mean(self.free_energy(v)) - T.mean(self.free_energy(chain_end))
        gradients = T.grad(cost, self.params, consider_constant=[chain_end])
        for p, g in zip(self.params, gradients):
            updates[p] = p - g * T.cast(lr, theano.config.floatX)
        return T.mean((v - chain_end) ** 2), updates


def main(argv=None):
    """Train. Returns the free energy of noise over that of bars, and the share of samples that are
    bars."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=80)
    parser.add_argument("--k", type=int, default=3, help="steps of the chain")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    rng = np.random.default_rng(options.seed)
    train = theano.shared(bars(1000, rng), borrow=True)
    batch, index, v = 50, T.lscalar("index"), T.matrix("v")
    rbm = RBM(SIDE * SIDE, 24, rng)
    cost, updates = rbm.cost_updates(v, 0.1, options.k)
    step = theano.function([index], cost, updates=updates,
                           givens={v: train[index * batch : (index + 1) * batch]})  # fmt: skip
    for epoch in range(options.epochs):
        error = np.mean([step(i) for i in range(1000 // batch)])
        if epoch % 20 == 19:
            print(f"epoch {epoch + 1}: reconstruction error {error:.3f}")

    energy = theano.function([v], rbm.free_energy(v))
    noise = rng.integers(0, 2, (500, SIDE * SIDE)).astype(theano.config.floatX)
    gap = float(energy(noise).mean() - energy(bars(500, rng)).mean())

    chain = theano.shared(noise[:200])
    (_, draws), updates = theano.scan(rbm.gibbs_vhv, outputs_info=[None, chain], n_steps=300)
    updates[chain] = draws[-1]
    theano.function([], [], updates=updates)()
    images = chain.get_value().reshape(-1, SIDE, SIDE)
    rows = (images == images[:, :, :1]).all(axis=(1, 2))
    columns = (images == images[:, :1, :]).all(axis=(1, 2))
    share = float((rows | columns).mean())
    print(f"free energy of noise - of bars {gap:.2f}, samples that are bars {share:.0%}")
    return gap, share


if __name__ == "__main__":
    assert main()[1] > 0.4  # of all images 0.05 % are bars
