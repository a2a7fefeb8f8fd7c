"""Logistic regression on the handwritten digits: the smallest whole program."""

import argparse

import numpy as np
from sklearn.datasets import load_digits

import symdnn
import symdnn.tensor as T


def main(argv: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args(argv)

    images, labels = load_digits(return_X_y=True)
    images, labels = (images / 16).astype("float32"), labels.astype("int32")

    x, t = T.matrix("x"), T.ivector("t")
    w = symdnn.shared(np.zeros((64, 10), "float32"), name="w")
    b = symdnn.shared(np.zeros(10, "float32"), name="b")
    p = T.nnet.softmax(T.dot(x, w) + b)
    loss = T.nnet.categorical_crossentropy(p, t).mean() + 1e-4 * (w**2).sum()
    errors = T.neq(T.argmax(p, axis=1), t).mean()

    dw, db = T.grad(loss, [w, b])
    train = symdnn.function([x, t], loss, updates=[(w, w - 0.5 * dw), (b, b - 0.5 * db)])
    test = symdnn.function([x, t], errors)

    for step in range(options.steps):
        value = train(images[:1400], labels[:1400])
        if step % 100 == 0:
            print(f"step {step:4d}  loss {float(value):.4f}")
    wrong = float(test(images[1400:], labels[1400:]))
    print(f"wrong on the last {len(images) - 1400} images: {100 * wrong:.1f} %")
    return wrong


if __name__ == "__main__":
    main()
