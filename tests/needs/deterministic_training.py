"""Trains a net with the layers whose kernels may sum in any order; prints what came out.

Convolution, pooling, batch normalisation, a recurrent network, dropout, attention by its op and as
an expression.
Printed are a hash of the losses, the gradients and the parameters, the losses, and the algorithms
of the libraries.
"""

import hashlib
import json

import numpy as np

import symdnn
import symdnn.tensor as T
from symdnn import nn

_BATCH, _STEPS = 16, 4


def main() -> None:
    """Train for a few steps."""
    rng = np.random.default_rng(5)
    front = nn.Sequential(
        nn.SpatialConvolution(8, 16, 3, 3), nn.SpatialBatchNormalization(16), nn.ReLU(),
        nn.SpatialMaxPooling(2, 2), nn.SpatialConvolution(16, 16, 3, 3), nn.ReLU(),
    )  # fmt: skip
    lstm, last = nn.LSTM(16, 12, 1), nn.Linear(12, 10)
    attends = [symdnn.shared(np.zeros((12, 12), "float32"), f"attend{i}") for i in range(3)]
    heads = nn.MultiheadAttention(12, 2)
    modules = (front, lstm, heads, last)
    parameters = [*(p for m in modules for p in m.parameters()), *attends]
    for p in parameters:
        shape = p.get_value().shape
        p.set_value((rng.standard_normal(shape) * 0.1 + (len(shape) == 1)).astype("float32"))

    x, labels = T.tensor4("x"), T.ivector("labels")
    steps = front(x).flatten(3).dimshuffle(2, 0, 1)  # (pixels, batch, channels)
    hidden = nn.Dropout(0.2, seed=3)(lstm(steps))
    h = heads(hidden, hidden, hidden, need_weights=False)[0].dimshuffle(1, 0, 2)
    query, key, value = (T.dot(h, w) for w in attends)
    weights = T.nnet.softmax(T.batched_dot(query, key.dimshuffle(0, 2, 1)), axis=2)
    scores = last(T.batched_dot(weights, value).mean(axis=1))
    loss = T.nnet.categorical_crossentropy(T.nnet.softmax(scores), labels).mean()
    grads = T.grad(loss, parameters)
    updates = [(p, p - 0.1 * g) for p, g in zip(parameters, grads)]
    f = symdnn.function([x, labels], [loss, *grads], updates=updates)
    images = rng.standard_normal((_BATCH, 8, 14, 14)).astype("float32")
    given = images, rng.integers(0, 10, _BATCH).astype("int32")

    bits, losses = hashlib.sha256(), []
    for _ in range(_STEPS):
        results = [np.asarray(r) for r in f(*given)]
        losses.append(float(results[0]))
        for r in results:
            bits.update(r.tobytes())
    for p in parameters:
        bits.update(p.get_value().tobytes())
    print(json.dumps([bits.hexdigest(), losses, f.dnn_report().used()]))


if __name__ == "__main__":
    main()
