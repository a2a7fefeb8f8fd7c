"""A residual network in int8: trained in floats, quantised, compared; and a ResNet's speed.

Convolutions, the additions of shortcuts and relu run in 8 bits, and codes are all that is between
them. ``--speed resnet50`` times that network, with random weights, in floats and in int8.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.config import config
from symdnn.demo.data import load_digits


def conv(channels: int, planes: int, stride: int = 1) -> list[nn.Module]:
    """A convolution with batch normalisation."""
    layer = nn.SpatialConvolution(channels, planes, 3, 3, stride, stride, 1, 1)
    return [layer, nn.SpatialBatchNormalization(planes)]


def residual(planes: int) -> nn.Module:
    """Two convolutions, added to what they read."""
    path = nn.Sequential(*conv(planes, planes), nn.ReLU(), *conv(planes, planes))
    sides = nn.ConcatTable().add(path).add(nn.Identity())
    return nn.Sequential(sides, nn.CAddTable(), nn.ReLU())


def network(planes: int) -> nn.Module:
    """Two residual blocks for images of 8 x 8."""
    return nn.Sequential(
        *conv(1, planes), nn.ReLU(), residual(planes),
        *conv(planes, 2 * planes, 2), nn.ReLU(), residual(2 * planes),
        nn.Flatten(), nn.Linear(2 * planes * 16, 10),
    )  # fmt: skip


def milliseconds(run: Callable[..., Any], x: Any) -> float:
    """The median time of some calls."""
    found = []
    for _ in range(12):
        start = time.perf_counter()
        run(x)
        found.append((time.perf_counter() - start) * 1e3)
    return float(np.median(found[2:]))


def speed(name: str, batch: int) -> None:
    """Print times of a network of ``nn.models`` with random weights."""
    images = T.tensor("float32", ("batch", 3, 224, 224), name="images")
    data = np.random.default_rng(0).standard_normal((batch, 3, 224, 224)).astype("float32")
    net = getattr(nn.models, name)()
    scores = net.evaluate()(images)
    functions = {"float32": symdnn.function([images], scores)}
    if str(config.device).startswith("cuda"):
        with config.change_flags(amp="bf16"):
            functions["bfloat16"] = symdnn.function([images], scores)
    functions["int8"] = nn.quantize(net, [data], inputs=[images]).function()
    for word, f in functions.items():
        print(f"{name}, {batch} images, {word}: {milliseconds(f, data):.1f} ms")


def main(argv: list[str] | None = None) -> float:
    """Train, quantise, compare; returns the accuracy that int8 costs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--planes", type=int, default=16)
    parser.add_argument("--method", default="percentile", help="minmax, percentile or entropy")
    parser.add_argument("--speed", default="", help="a network of nn.models, such as resnet50")
    parser.add_argument("--batch", type=int, default=8)
    options = parser.parse_args(argv)
    nn.init.seed(0)
    digits = load_digits()
    net = network(options.planes)
    data = nn.batches((digits.train_x, digits.train_y), 64, shuffle=True)
    nn.fit(net, nn.CrossEntropyCriterion(), nn.optim.adam, data, options.epochs, lr=2e-3)

    images = T.tensor("float32", ("batch", 1, 8, 8), name="images")
    some = [digits.train_x[k : k + 64] for k in range(0, 256, 64)]
    quantized = nn.quantize(net, some, inputs=[images], method=options.method)
    functions = {
        "float32": symdnn.function([images], net.evaluate()(images)),
        "int8": quantized.function(),
    }
    right = {}
    for word, f in functions.items():
        right[word] = float((np.asarray(f(digits.test_x)).argmax(1) == digits.test_y).mean())
        print(f"{word}: {right[word]:.2%} of the test images")
    if options.speed:
        speed(options.speed, options.batch)
    return right["float32"] - right["int8"]


if __name__ == "__main__":
    main()
