"""A denoising autoencoder with tied weights; the noise is drawn inside the graph."""

import argparse

import numpy as np
from sklearn.datasets import load_digits

import symdnn
import symdnn.tensor as T
from symdnn.tensor.random import RandomStream


def main(argv: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--hidden", type=int, default=32)
    options = parser.parse_args(argv)

    images = (load_digits().data / 16).astype("float32")
    rng = np.random.default_rng(0)
    w = symdnn.shared((rng.standard_normal((64, options.hidden)) * 0.1).astype("float32"), name="w")
    b = symdnn.shared(np.zeros(options.hidden, "float32"), name="b")
    c = symdnn.shared(np.zeros(64, "float32"), name="c")

    x = T.matrix("x")
    noise = RandomStream(7).binomial(x.shape, p=0.8, dtype="float32")

    def reconstruct(seen):
        code = T.nnet.sigmoid(T.dot(seen, w) + b)
        return T.nnet.sigmoid(T.dot(code, w.T) + c)

    loss = T.nnet.binary_crossentropy(reconstruct(x * noise), x).sum(axis=1).mean()
    parameters = [w, b, c]
    grads = T.grad(loss, parameters)
    train = symdnn.function(
        [x], loss, updates=[(p, p - 0.2 * g) for p, g in zip(parameters, grads, strict=True)]
    )
    error = symdnn.function([x], ((reconstruct(x) - x) ** 2).mean())

    for step in range(options.steps):
        batch = images[rng.integers(0, len(images), 128)]
        value = float(train(batch))
        if step % 100 == 0:
            print(f"step {step:4d}  cross-entropy {value:.2f}")
    found = float(error(images))
    print(f"mean squared error {found:.4f} (of the mean image: {images.var(axis=0).mean():.4f})")
    return found


if __name__ == "__main__":
    main()
