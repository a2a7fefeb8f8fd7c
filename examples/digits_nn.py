"""The demo's network for handwritten digits, by layers: 98.5 % of 450 test images or more."""

import argparse

from symdnn import nn
from symdnn.demo.data import load_digits, moved


def main(argv: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)

    nn.init.seed(options.seed)
    he = {"weight_init": nn.init.he_normal}
    net = nn.Sequential(
        nn.SpatialConvolution(1, 24, 3, 3, padding="same", **he), nn.ReLU(),
        nn.SpatialConvolution(24, 48, 3, 3, padding="same", **he), nn.ReLU(),
        nn.SpatialMaxPooling(2, 2), nn.Flatten(),
        nn.Linear(48 * 4 * 4, 96, **he), nn.ReLU(), nn.Dropout(0.5), nn.Linear(96, 10),
    )  # fmt: skip
    print(nn.summary(net, (64, 1, 8, 8)))

    digits, loss = load_digits(), nn.CrossEntropyCriterion()
    shifted = lambda batch, rng: (moved(batch[0], rng), batch[1])  # noqa: E731
    data = nn.batches((digits.train_x, digits.train_y), 64, shuffle=True, transform=shifted)
    rate = nn.schedule.cosine(0.002, options.epochs * len(data))
    nn.fit(net, loss, nn.optim.adam, data, options.epochs, lr=rate, average=0.95)

    test = nn.batches((digits.test_x, digits.test_y), 450)
    found = nn.measure(net, loss, test, metrics={"accuracy": nn.metrics.accuracy()})
    print(f"test loss {found['loss']:.4f}, accuracy {found['accuracy']:.2%}")
    return found["accuracy"]


if __name__ == "__main__":
    main()
