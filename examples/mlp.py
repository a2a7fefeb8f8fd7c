"""A multilayer perceptron: data in shared variables, minibatches by ``givens``, momentum."""

import argparse

import numpy as np
from sklearn.datasets import load_digits

import symdnn
import symdnn.tensor as T


def dense(rng: np.random.Generator, rows: int, columns: int) -> tuple[object, object]:
    w = rng.standard_normal((rows, columns)) * np.sqrt(2 / rows)
    return (
        symdnn.shared(w.astype("float32"), name="w"),
        symdnn.shared(np.zeros(columns, "float32"), name="b"),
    )


def momentum(loss, parameters, rate: float, keep: float = 0.9) -> list:
    updates = []
    for p, g in zip(parameters, T.grad(loss, parameters), strict=True):
        v = symdnn.shared(np.zeros_like(p.get_value()))
        new_v = keep * v - rate * g
        updates += [(v, new_v), (p, p + new_v)]
    return updates


def main(argv: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64)
    options = parser.parse_args(argv)

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    images, labels = (images[order] / 16).astype("float32"), labels[order].astype("int32")
    data, answers = symdnn.shared(images[:1400]), symdnn.shared(labels[:1400])

    rng = np.random.default_rng(1)
    x, t, i = T.matrix("x"), T.ivector("t"), T.lscalar("i")
    layers = [dense(rng, 64, 128), dense(rng, 128, 128), dense(rng, 128, 10)]
    h = x
    for w, b in layers[:-1]:
        h = T.nnet.relu(T.dot(h, w) + b)
    p = T.nnet.softmax(T.dot(h, layers[-1][0]) + layers[-1][1])
    loss = T.nnet.categorical_crossentropy(p, t).mean()

    n = options.batch
    train = symdnn.function(
        [i],
        loss,
        updates=momentum(loss, [v for layer in layers for v in layer], rate=0.05),
        givens={x: data[i * n : (i + 1) * n], t: answers[i * n : (i + 1) * n]},
    )
    test = symdnn.function([x, t], T.neq(T.argmax(p, axis=1), t).mean())

    for epoch in range(options.epochs):
        losses = [float(train(k)) for k in range(1400 // n)]
        if epoch % 5 == 0:
            print(f"epoch {epoch:3d}  loss {np.mean(losses):.4f}")
    wrong = float(test(images[1400:], labels[1400:]))
    print(f"wrong on {len(images) - 1400} images: {100 * wrong:.1f} %")
    return wrong


if __name__ == "__main__":
    main()
