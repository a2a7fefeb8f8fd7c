"""A toy of segmentation: which pixels belong to a disc, a square or a cross, in noise.

An encoder that halves the images twice, a decoder that doubles them again, and between them the
encoder's own maps: SpatialFullConvolution, JoinTable, SpatialCrossEntropyCriterion.
"""

import argparse

import numpy as np

import symdnn
import symdnn.tensor as T
from symdnn import nn

CLASSES = ("background", "disc", "square", "cross")


def scenes(count: int, size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images (count, 1, size, size) of three shapes each in noise, and the class of each pixel."""
    rng = np.random.default_rng(seed)
    images = rng.normal(0, 0.4, (count, 1, size, size)).astype("float32")
    classes = np.zeros((count, size, size), "int64")
    rows, columns = np.mgrid[:size, :size]
    for image, truth in zip(images, classes, strict=True):
        for kind in rng.integers(1, len(CLASSES), 3):
            radius = rng.uniform(size / 8, size / 5)
            down, right = rng.uniform(radius, size - radius, 2)
            y, x = np.abs(rows - down), np.abs(columns - right)
            inside = {
                "disc": np.hypot(y, x) < radius,
                "square": np.maximum(y, x) < radius,
                "cross": (np.minimum(y, x) < radius / 3) & (np.maximum(y, x) < radius),
            }[CLASSES[kind]]
            image[0][inside] += 1
            truth[inside] = kind
    return images, classes


def block(planes: int, out: int) -> nn.Sequential:
    """Two convolutions that keep the size, each normalised."""
    steps = []
    for wide in (planes, out):
        steps += [nn.SpatialConvolution(wide, out, 3, 3, 1, 1, 1, bias=False)]
        steps += [nn.SpatialBatchNormalization(out), nn.ReLU()]
    return nn.Sequential(*steps)


class Segmenter(nn.Module):
    """Scores of the classes at each pixel, (N, 4, H, W), of images (N, 1, H, W)."""

    def __init__(self, width: int) -> None:
        self.fine, self.middle = block(1, width), block(width, 2 * width)
        self.coarse = block(2 * width, 4 * width)
        self.half = nn.SpatialMaxPooling(2, 2)
        self.up_middle = nn.SpatialFullConvolution(4 * width, 2 * width, 2, 2, 2, 2)
        self.up_fine = nn.SpatialFullConvolution(2 * width, width, 2, 2, 2, 2)
        self.join_middle, self.join_fine = block(4 * width, 2 * width), block(2 * width, width)
        self.scores = nn.SpatialConvolution(width, len(CLASSES), 1, 1)

    def forward(self, x):
        """The encoder's maps of each size meet the decoder's."""
        fine = self.fine(x)
        middle = self.middle(self.half(fine))
        up = self.up_middle(self.coarse(self.half(middle)))
        up = self.up_fine(self.join_middle(T.concatenate([middle, up], axis=1)))
        return self.scores(self.join_fine(T.concatenate([fine, up], axis=1)))


def show(truth: np.ndarray, found: np.ndarray) -> None:
    """Print truth and result side by side, one letter a pixel."""
    letters = np.array(list(".dsc"))
    for left, right in zip(letters[truth], letters[found], strict=True):
        print("".join(left), " ", "".join(right))


def main(argv: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=32, help="pixels a side, a multiple of 4 (32)")
    parser.add_argument("--width", type=int, default=8, help="maps of the finest level (8)")
    parser.add_argument("--images", type=int, default=768, help="to learn from (768)")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)

    nn.init.seed(options.seed)
    net = Segmenter(options.width)
    data = nn.batches(scenes(options.images, options.size, 1), 16, shuffle=True)
    test = scenes(128, options.size, 2)
    print(nn.fit(
        net, nn.SpatialCrossEntropyCriterion(), nn.optim.adam, data, options.epochs, lr=0.01,
        validation=nn.batches(test, 64), metrics={"accuracy": nn.metrics.accuracy()},
    ))  # fmt: skip

    x = T.tensor4("x")
    segment = symdnn.function([x], T.argmax(net.evaluate()(x), axis=1))
    found = segment(test[0])
    show(test[1][0], found[0])
    for i, name in enumerate(CLASSES):
        both, either = (found == i) & (test[1] == i), (found == i) | (test[1] == i)
        print(f"{name:>10}: overlap {both.sum() / max(1, either.sum()):.2f}")
    accuracy = float((found == test[1]).mean())
    empty = float((test[1] == 0).mean())
    print(f"pixels right: {100 * accuracy:.1f} %, background alone {100 * empty:.1f} %")
    return accuracy


if __name__ == "__main__":
    main()
