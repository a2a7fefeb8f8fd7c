"""An LSTM written with `scan` that reads sentences of words and says whether they are positive.

Written for Theano in the way of its tutorial: four gates in one product, a mask for sentences of
different lengths, mean pooling over time, and Adadelta. The data are synthetic: words have a
sentiment, and "not" turns that of the next word. Only an order-aware network gets them all.
"""

import argparse
from collections import OrderedDict

import numpy as np

import symdnn.compat.theano

symdnn.compat.theano.install()
import theano
import theano.tensor as T

WORDS, NOT = 20, 1  # 0 is padding; even words are good, odd ones bad


def floatx(value):
    """An array of Theano's ``floatX``."""
    return np.asarray(value, dtype=theano.config.floatX)


def sentences(count, rng, longest=10):
    """(words of shape (time, sentences), mask, labels)."""
    x = np.zeros((longest, count), "int64")
    labels = np.zeros(count, "int64")
    for n in range(count):
        length = rng.integers(4, longest + 1)
        while True:
            x[:length, n] = rng.integers(2, WORDS, length)
            x[np.flatnonzero(rng.random(length - 1) < 0.3), n] = NOT
            score, sign = 0, 1
            for word in x[:length, n]:
                score += 0 if word == NOT else sign * (1 if word % 2 == 0 else -1)
                sign = -1 if word == NOT else 1
            if score:
                break
        labels[n] = score > 0
    return x, floatx(x > 0), labels


def lstm_layer(params, embedded, mask):
    """The hidden states at all times."""
    width = params["U"].get_value(borrow=True).shape[0]
    samples = embedded.shape[1]

    def part(v, i):
        return v[:, i * width : (i + 1) * width]

    def step(m, x, h, c):
        gates = T.dot(h, params["U"]) + x
        i, f, o = (T.nnet.sigmoid(part(gates, n)) for n in range(3))
        c_new = f * c + i * T.tanh(part(gates, 3))
        c_new = m[:, None] * c_new + (1.0 - m)[:, None] * c
        h_new = m[:, None] * (o * T.tanh(c_new)) + (1.0 - m)[:, None] * h
        return h_new, c_new

    start = T.alloc(floatx(0.0), samples, width)
    inputs = T.dot(embedded, params["W"]) + params["b"]
    (states, _), _ = theano.scan(step, sequences=[mask, inputs], outputs_info=[start, start])
    return states


def adadelta(params, grads):
    """Zeiler's method: steps in the units of the parameters."""
    updates = OrderedDict()
    for p, g in zip(params, grads):
        squares = theano.shared(p.get_value() * floatx(0.0))
        steps = theano.shared(p.get_value() * floatx(0.0))
        squares_new = 0.95 * squares + 0.05 * g**2
        step = -T.sqrt(steps + 1e-6) / T.sqrt(squares_new + 1e-6) * g
        updates[squares] = squares_new
        updates[steps] = 0.95 * steps + 0.05 * step**2
        updates[p] = p + step
    return updates


def main(argv=None):
    """Train, and return the accuracy on other sentences."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--width", type=int, default=24)
    parser.add_argument("--sentences", type=int, default=1200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    rng, width = np.random.default_rng(options.seed), options.width
    draw = {
        "Wemb": rng.normal(0, 0.1, (WORDS, width)),
        "W": np.hstack([np.linalg.qr(rng.normal(size=(width, width)))[0] for _ in range(4)]),
        "U": np.hstack([np.linalg.qr(rng.normal(size=(width, width)))[0] for _ in range(4)]),
        "b": np.zeros(4 * width),
        "V": rng.normal(0, 0.1, (width, 2)),
        "c": np.zeros(2),
    }
    params = OrderedDict((name, theano.shared(floatx(v), name)) for name, v in draw.items())

    x, mask, y = T.lmatrix("x"), T.matrix("mask"), T.lvector("y")
    embedded = params["Wemb"][x.flatten()].reshape((x.shape[0], x.shape[1], width))
    states = lstm_layer(params, embedded, mask)
    mean = (states * mask[:, :, None]).sum(axis=0) / mask.sum(axis=0)[:, None]
    p = T.nnet.softmax(T.dot(mean, params["V"]) + params["c"])
    cost = -T.log(p[T.arange(x.shape[1]), y] + 1e-8).mean()
    grads = T.grad(cost, wrt=list(params.values()))
    train = theano.function([x, mask, y], cost, updates=adadelta(params.values(), grads))
    predict = theano.function([x, mask], p.argmax(axis=1))

    words, masks, labels = sentences(options.sentences, rng)
    for epoch in range(options.epochs):
        order = rng.permutation(options.sentences)
        costs = [
            train(words[:, part], masks[:, part], labels[part])
            for part in np.array_split(order, options.sentences // 16)
        ]
        if epoch % 4 == 1:
            print(f"epoch {epoch + 1}: cost {np.mean(costs):.3f}")
    words, masks, labels = sentences(500, rng)
    accuracy = float(np.mean(predict(words, masks) == labels))
    print(f"accuracy on other sentences {accuracy:.1%}")
    return accuracy


if __name__ == "__main__":
    assert main() > 0.9
