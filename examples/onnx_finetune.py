"""Fine-tuning a ResNet-18 in ONNX's format: it gets a new head, trains, and is written again.

The new head reads what the old one read, and finds odd digits. It trains alone at first, then
with all layers. ``--file`` names a ResNet that you have; else one is made here, which has learned
the digits 0 to 7.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import symdnn
import symdnn.onnx
import symdnn.tensor as T
from symdnn import nn
from symdnn.demo.data import Digits, load_digits
from symdnn.nn.models.resnet import resnet18
from symdnn.ops.linalg.dot import Dot


def as_pictures(digits: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Digits of 8 x 8 points in all channels of larger pictures."""
    channels, rows, columns = shape
    tall = digits[:, :, np.arange(rows) * 8 // rows]
    return np.repeat(tall[..., np.arange(columns) * 8 // columns], channels, axis=1)


def pretrain(digits: Digits, path: Path, epochs: int) -> None:
    """Write a ResNet-18 that knows eight digits."""
    net, known = resnet18(classes=8), digits.train_y < 8
    x = as_pictures(digits.train_x[known], (3, 32, 32))
    data = nn.batches((x, digits.train_y[known]), 64, shuffle=True)
    nn.fit(net, nn.CrossEntropyCriterion(), nn.optim.adam, data, epochs, lr=1e-3)
    images = T.tensor("float32", ("batch", 3, 32, 32), name="images")
    symdnn.onnx.save({"scores": net.evaluate()(images)}, path)


def features_of(scores: symdnn.Variable) -> symdnn.Variable:
    """What the last product of a network reads."""
    node = scores.owner
    while node is not None and not isinstance(node.op, Dot):
        node = node.inputs[0].owner
    if node is None:
        raise SystemExit("the network's first output is not that of a linear layer")
    return node.inputs[0]


def main(argv: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", type=Path, help="a ResNet with an open batch in ONNX's format")
    parser.add_argument("--epochs", type=int, default=4, help="of each training")
    parser.add_argument("--images", type=int, default=300, help="for the new task")
    parser.add_argument("--frozen", action="store_true", help="train the new head alone")
    options = parser.parse_args(argv)
    nn.init.seed(0)
    digits = load_digits()

    with tempfile.TemporaryDirectory() as folder:
        path = options.file
        if path is None:
            path = Path(folder) / "resnet18.onnx"
            pretrain(digits, path, options.epochs)
        graph = symdnn.onnx.load(path)
        print(graph)
        (images,), labels = graph.variables.values(), T.ivector("labels")
        features = features_of(graph.expressions[graph.outputs[0]])
        head = nn.Linear(features.type.shape[1], 2)
        scores = head(features)
        loss = T.nnet.softmax_crossentropy(scores, labels).mean()

        shape = [size or 32 for size in images.type.shape[1:]]
        x = as_pictures(digits.train_x[: options.images], shape)
        odd = (digits.train_y[: options.images] % 2).astype("int32")
        parts = {"head": (head.parameters(), 1e-2)}
        if not options.frozen:
            body = needed(loss, graph.trainable)
            parts["all layers"] = ([*body, *head.parameters()], 3e-5)
        rng = np.random.default_rng(0)
        for name, (parameters, rate) in parts.items():
            updates = nn.optim.adam(loss, parameters, rate)
            train = symdnn.function([images, labels], loss, updates=updates)
            for epoch in range(options.epochs):
                order = np.array_split(rng.permutation(len(x)), len(x) // 25)
                losses = [train(x[part], odd[part]) for part in order]
                print(f"{name}, epoch {epoch}: loss {np.mean(losses):.3f}")

        predict = symdnn.function([images], {"odd": T.argmax(scores, axis=1)})
        symdnn.onnx.save(predict, Path(folder) / "odd_digits.onnx")
        again = symdnn.onnx.compile(Path(folder) / "odd_digits.onnx")
        test = as_pictures(digits.test_x, shape)
        found = again(test)["odd"]
    accuracy = float(np.mean(found == digits.test_y % 2))
    print(f"odd digits among the test images: {accuracy:.2%} right")
    return accuracy


def needed(loss: symdnn.Variable, parameters: list[symdnn.Shared]) -> list[symdnn.Shared]:
    """The parameters that ``loss`` depends on (not those of the old head)."""
    grads = T.grad(loss, parameters, disconnected_inputs="ignore", return_disconnected="none")
    return [p for p, grad in zip(parameters, grads) if grad is not None]


if __name__ == "__main__":
    main()
