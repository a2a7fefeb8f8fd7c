"""Convolutions, dense layers and whole networks in int8 beside float32, by oneDNN.

``python -m benchmarks.cpu.eight_bits --networks resnet18 resnet50``. Both sides run in turn; a line
has the medians of processor time, and their ratio.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.tensor.nnet import conv2d, dequantize, quantize, relu

RNG = np.random.default_rng(0)
#: Images, channels, size, filters, size of filters, stride: layers of ResNet-50.
CONVOLUTIONS = (
    (8, 3, 224, 64, 7, 2), (8, 64, 56, 64, 3, 1), (8, 256, 56, 64, 1, 1), (8, 64, 56, 256, 1, 1),
    (8, 128, 28, 128, 3, 1), (8, 256, 14, 256, 3, 1), (8, 1024, 14, 256, 1, 1),
    (8, 512, 7, 512, 3, 1), (1, 128, 28, 128, 3, 1),
)  # fmt: skip
#: Rows, inputs, outputs.
DENSE = ((128, 768, 768), (128, 768, 3072), (512, 1024, 4096), (1, 4096, 4096))


def in_turn(runs: Sequence[Callable[[], Any]], rounds: int) -> list[float]:
    """Medians of processor time in milliseconds."""
    times: list[list[float]] = [[] for _ in runs]
    for k in range(rounds + 3):
        for own, run in zip(times, runs):
            start = time.process_time()
            run()
            if k >= 3:
                own.append((time.process_time() - start) * 1e3)
    return [float(np.median(own)) for own in times]


def told(name: str, runs: Sequence[Callable[[], Any]], rounds: int = 15) -> None:
    """Print times of int8 and float32."""
    narrow, wide = in_turn(runs, rounds)
    print(f"{name:38s} int8 {narrow:8.2f} ms  float32 {wide:8.2f} ms  {wide / narrow:.2f}")


def weights(*shape: int, axis: int) -> tuple[Any, Any, Any]:
    """Weights as dequantised codes and as floats, and a bias."""
    codes = RNG.integers(-127, 128, shape).astype("int8")
    scales = RNG.uniform(0.001, 0.002, shape[axis]).astype("float32")
    wide = scales.reshape([-1 if i == axis else 1 for i in range(len(shape))])
    bias = RNG.standard_normal(shape[axis]).astype("float32")
    return dequantize(T.constant(codes), scales, axis=axis), T.constant(codes * wide), bias


def values(*shape: int) -> tuple[Any, Any]:
    """A parameter of codes, dequantised, and one of floats."""
    codes = symdnn.shared(RNG.integers(-128, 128, shape).astype("int8"), shape=shape)
    floats = symdnn.shared(RNG.standard_normal(shape).astype("float32"), shape=shape)
    return dequantize(codes, 0.02, -128), floats


def convolution(n: int, c: int, size: int, k: int, r: int, stride: int) -> None:
    """A convolution with a bias and relu, of images with channels last."""
    *pair, bias = weights(k, c, r, r, axis=0)

    def layer(x: Any, w: Any) -> Any:
        settings: Any = {"border_mode": r // 2, "subsample": (stride, stride)}
        y = conv2d(x.dimshuffle(0, 3, 1, 2), w, filter_flip=False, **settings)
        return relu(y + bias[None, :, None, None]).dimshuffle(0, 2, 3, 1)

    narrow, wide = map(layer, values(n, size, size, c), pair)
    runs = [symdnn.function([], y) for y in (quantize(narrow, 0.05, -128), wide)]
    told(f"{n} x {c} x {size}^2, {k} of {r} x {r} / {stride}", runs)


def dense(m: int, k: int, n: int) -> None:
    """A dense layer with a bias and relu."""
    *pair, bias = weights(k, n, axis=1)
    narrow, wide = (relu(T.dot(x, w) + bias) for x, w in zip(values(m, k), pair))
    runs = [symdnn.function([], y) for y in (quantize(narrow, 0.05, -128), wide)]
    told(f"{m} x {k}, {n} outputs", runs)


def network(name: str, batch: int) -> None:
    """A network of ``nn.models`` with random weights, quantised on its own input."""
    x = T.tensor("float32", ("batch", 3, 224, 224), name="x")
    data = RNG.standard_normal((batch, 3, 224, 224)).astype("float32")
    net = getattr(nn.models, name)()
    narrow = nn.quantize(net, [data], inputs=[x]).function()
    wide = symdnn.function([x], net.evaluate()(x))
    told(f"{name}, {batch} images", [lambda: narrow(data), lambda: wide(data)], 8)


def main() -> None:
    """All layers, then networks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="*", default=[])
    given = parser.parse_args()
    for shape in CONVOLUTIONS:
        convolution(*shape)
    for sizes in DENSE:
        dense(*sizes)
    for name in given.networks:
        for batch in (1, 8):
            network(name, batch)


if __name__ == "__main__":
    main()
