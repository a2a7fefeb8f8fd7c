"""Fine-tuning a model in ONNX's format: it gets a new head, trains, and is written as ONNX again.

The file stands for one that you have: it is made here, of a network trained on the digits 0 to 7.
The new network reads the values before the old head, finds odd digits, and trains with few images.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np

import symdnn
import symdnn.onnx
import symdnn.tensor as T
from symdnn import nn
from symdnn.demo.data import Digits, load_digits


def pretrain(digits: Digits, path: Path, epochs: int) -> None:
    """Write a network that knows eight digits; its output ``features`` is what the head reads."""
    body = nn.Sequential(
        nn.SpatialConvolution(1, 16, 3, 3, padding="same"), nn.SpatialBatchNormalization(16),
        nn.ReLU(), nn.SpatialMaxPooling(2, 2),
        nn.SpatialConvolution(16, 32, 3, 3, padding="same"), nn.ReLU(), nn.Flatten(),
    )  # fmt: skip
    net = nn.Sequential(body, nn.Linear(32 * 4 * 4, 8))
    known = digits.train_y < 8
    data = nn.batches((digits.train_x[known], digits.train_y[known]), 64, shuffle=True)
    nn.fit(net, nn.CrossEntropyCriterion(), nn.optim.adam, data, epochs, lr=2e-3)
    images = T.tensor("float32", ("batch", 1, 8, 8), name="images")
    features = body.evaluate()(images)
    symdnn.onnx.save({"features": features, "scores": net[1](features)}, path)


def main(argv: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4, help="of each of the two trainings")
    parser.add_argument("--images", type=int, default=200, help="for the new task")
    options = parser.parse_args(argv)
    nn.init.seed(0)
    digits = load_digits()

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "eight_digits.onnx"
        pretrain(digits, path, options.epochs)
        graph = symdnn.onnx.load(path)
        print(graph)
        images, labels = graph.variables["images"], T.ivector("labels")
        features = graph.expressions["features"]
        head = nn.Linear(32 * 4 * 4, 2)
        scores = head(features)
        loss = T.nnet.softmax_crossentropy(scores, labels).mean()
        body = [p for p in graph.trainable if loss_needs(loss, p)]
        train = symdnn.function(
            [images, labels], loss, updates=nn.optim.adam(loss, [*body, *head.parameters()], 2e-3)
        )
        predict = symdnn.function([images], T.argmax(scores, axis=1))

        x, odd = digits.train_x[: options.images], digits.train_y[: options.images] % 2
        rng = np.random.default_rng(0)
        for epoch in range(4 * options.epochs):
            order = rng.permutation(len(x))
            losses = [train(x[part], odd[part].astype("int32"))
                      for part in np.array_split(order, len(x) // 25)]  # fmt: skip
            if epoch % options.epochs == 0:
                print(f"epoch {epoch}: loss {np.mean(losses):.3f}")
        symdnn.onnx.save(predict, Path(folder) / "odd_digits.onnx")
        again = symdnn.onnx.compile(Path(folder) / "odd_digits.onnx")
        (found,) = again(images=digits.test_x).values()
    accuracy = float(np.mean(found == digits.test_y % 2))
    print(f"odd digits among the test images: {accuracy:.2%} right")
    return accuracy


def loss_needs(loss: symdnn.Variable, parameter: symdnn.Shared) -> bool:
    """Whether ``loss`` depends on a parameter (not on that of the old head)."""
    grad = T.grad(loss, parameter, disconnected_inputs="ignore", return_disconnected="none")
    return grad is not None


if __name__ == "__main__":
    main()
