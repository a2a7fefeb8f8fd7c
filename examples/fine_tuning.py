"""Fine-tuning: weights from a file with PyTorch's names, all layers but the head frozen, two steps.

The file stands for one that you have: it is made here, of a network trained on the digits 0 to 7.
The head for all ten digits is new. It is trained alone at first, then everything at a low rate.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np

from symdnn import nn
from symdnn.demo.data import Digits, load_digits
from symdnn.io import save_parameters

LOSS = nn.CrossEntropyCriterion()


def network(classes: int) -> nn.Sequential:
    """Names are those of PyTorch's ``Sequential``: 0.weight, 1.running_mean, ..., 11.bias."""
    return nn.Sequential(
        nn.SpatialConvolution(1, 16, 3, 3, padding="same", bias=False),
        nn.SpatialBatchNormalization(16), nn.ReLU(),
        nn.SpatialConvolution(16, 32, 3, 3, padding="same", bias=False),
        nn.SpatialBatchNormalization(32), nn.ReLU(), nn.SpatialMaxPooling(2, 2),
        nn.Flatten(), nn.Linear(32 * 4 * 4, 64), nn.ReLU(), nn.Dropout(0.3),
        nn.Linear(64, classes),
    )  # fmt: skip


def pretrain(digits: Digits, path: Path, epochs: int) -> None:
    """Write the state dict of a network that knows eight digits, as PyTorch's programs do."""
    net, known = network(8), digits.train_y < 8
    data = nn.batches((digits.train_x[known], digits.train_y[known]), 64, shuffle=True)
    nn.fit(net, LOSS, nn.optim.adam, data, epochs, lr=2e-3)
    save_parameters(path, nn.to_torch(net))


def accuracy(net: nn.Sequential, digits: Digits) -> float:
    test = nn.batches((digits.test_x, digits.test_y), 450)
    return nn.measure(net, LOSS, test, metrics={"accuracy": nn.metrics.accuracy()})["accuracy"]


def main(argv: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5, help="of each of the three trainings")
    parser.add_argument("--images", type=int, default=300, help="for the new task")
    options = parser.parse_args(argv)
    nn.init.seed(0)
    digits = load_digits()

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "eight_digits.safetensors"
        pretrain(digits, path, options.epochs)
        net = network(10)
        # The head has another shape, so the file's is left out.
        loaded = nn.load_torch(net, path, rename={"11.": None})
    print(loaded)
    assert sorted(loaded.ignored) == ["11.bias", "11.weight"]

    few = (digits.train_x[: options.images], digits.train_y[: options.images])
    data = nn.batches(few, 32, shuffle=True)
    body = net[0].weight.get_value()
    # Only the head's parameters are given; running statistics go on following the images.
    nn.fit(net, LOSS, nn.optim.adam, data, options.epochs, lr=5e-3, params=net[11].parameters())
    assert np.array_equal(net[0].weight.get_value(), body)
    print(f"the head alone: {accuracy(net, digits):.2%} of the test images")

    nn.fit(net, LOSS, nn.optim.adam, data, options.epochs, lr=1e-3)
    print(f"everything:     {accuracy(net, digits):.2%}")

    fresh = network(10)
    nn.fit(fresh, LOSS, nn.optim.adam, data, 2 * options.epochs, lr=2e-3)
    print(f"from nothing, with the same {options.images} images: {accuracy(fresh, digits):.2%}")
    return accuracy(net, digits)


if __name__ == "__main__":
    main()
