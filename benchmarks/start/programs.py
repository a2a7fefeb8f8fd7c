"""Programs of any framework: each is written once, over a :mod:`face <benchmarks.start.faces>`.

A program has weights, data and a function of both. Those of :data:`TRAINING` give a loss, and are a
step of gradient descent; the others are computed forward. ``size`` is 1 where only the number of
nodes matters, and 2 where peak memory is measured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

__all__ = ["PROGRAMS", "TRAINING", "Program"]

Array = np.ndarray[Any, Any]


class Program(NamedTuple):
    """Weights by their names, data, and the function ``(face, weights, *data)``."""

    weights: dict[str, Array]
    data: list[Array]
    run: Callable[..., Any]


class _Draw:
    """Weights and data of a fixed seed."""

    def __init__(self) -> None:
        self.rng, self.weights = np.random.default_rng(0), dict[str, Array]()

    def weight(self, name: str, *shape: int) -> None:
        fan = int(np.prod(shape[1:])) if len(shape) == 4 else shape[0]
        self.weights[name] = self.normal(*shape) / np.float32(fan**0.5)

    def constant(self, name: str, value: float, *shape: int) -> None:
        self.weights[name] = np.full(shape, value, "float32")

    def norm(self, name: str, n: int) -> None:
        self.constant(f"{name}.w", 1.0, n)
        self.constant(f"{name}.b", 0.0, n)

    def normal(self, *shape: int) -> Array:
        return self.rng.standard_normal(shape).astype("float32")

    def labels(self, n: int, *shape: int) -> Array:
        return self.rng.integers(0, n, shape).astype("int32")


def mlp(size: int) -> Program:
    """Three layers and cross-entropy."""
    batch, width = (32, 64) if size == 1 else (512, 1024)
    d = _Draw()
    for i, (a, b) in enumerate([(784, width), (width, width), (width, 10)]):
        d.weight(f"w{i}", a, b)
        d.constant(f"b{i}", 0.0, b)

    def run(f: Any, p: Any, x: Any, y: Any) -> Any:
        for i in range(2):
            x = f.relu(f.dot(x, p[f"w{i}"]) + p[f"b{i}"])
        return f.cross_entropy(f.dot(x, p["w2"]) + p["b2"], y)

    return Program(d.weights, [d.normal(batch, 784), d.labels(10, batch)], run)


def lenet(size: int) -> Program:
    """LeNet-5."""
    batch = 16 if size == 1 else 512
    d = _Draw()
    d.weight("c0", 20, 1, 5, 5)
    d.weight("c1", 50, 20, 5, 5)
    d.weight("w0", 800, 500)
    d.weight("w1", 500, 10)
    for name, n in (("b0", 20), ("b1", 50), ("b2", 500), ("b3", 10)):
        d.constant(name, 0.0, n)

    def run(f: Any, p: Any, x: Any, y: Any) -> Any:
        for i in range(2):
            x = f.max_pool(f.conv(x, p[f"c{i}"]) + f.channels(p[f"b{i}"]), 2)
        h = f.relu(f.dot(f.reshape(x, (-1, 800)), p["w0"]) + p["b2"])
        return f.cross_entropy(f.dot(h, p["w1"]) + p["b3"], y)

    return Program(d.weights, [d.normal(batch, 1, 28, 28), d.labels(10, batch)], run)


def _batch_norm(f: Any, p: Any, name: str, x: Any) -> Any:
    mean = f.mean(x, (0, 2, 3))
    centred = x - mean
    scale = f.rsqrt(f.mean(centred * centred, (0, 2, 3)) + 1e-5)
    return centred * scale * f.channels(p[f"{name}.w"]) + f.channels(p[f"{name}.b"])


def _layer_norm(f: Any, p: Any, name: str, x: Any) -> Any:
    centred = x - f.mean(x, (-1,))
    scale = f.rsqrt(f.mean(centred * centred, (-1,)) + 1e-5)
    return centred * scale * p[f"{name}.w"] + p[f"{name}.b"]


def resnet50(size: int) -> Program:
    """ResNet-50 with batch norm of the batch's statistics."""
    batch, width, side = (2, 16, 32) if size == 1 else (8, 64, 64)
    d = _Draw()
    d.weight("stem", width, 3, 7, 7)
    d.norm("stem.n", width)
    blocks, channels = [], width
    for stage, count in enumerate((3, 4, 6, 3)):
        for i in range(count):
            inner, outer, name = width << stage, 4 * width << stage, f"{stage}.{i}"
            stride = 2 if stage and not i else 1
            for j, (a, b, k) in enumerate(
                [(channels, inner, 1), (inner, inner, 3), (inner, outer, 1), (channels, outer, 1)]
            ):
                if j < 3 or not i:
                    d.weight(f"{name}.c{j}", b, a, k, k)
                    d.norm(f"{name}.n{j}", b)
            blocks.append((name, stride, not i))
            channels = outer
    d.weight("head", channels, 10)

    def run(f: Any, p: Any, x: Any, y: Any) -> Any:
        def layer(x: Any, name: str, j: int, stride: int, pad: int) -> Any:
            return _batch_norm(f, p, f"{name}.n{j}", f.conv(x, p[f"{name}.c{j}"], stride, pad))

        x = f.relu(_batch_norm(f, p, "stem.n", f.conv(x, p["stem"], 2, 3)))
        x = f.max_pool(x, 2)
        for name, stride, projects in blocks:
            h = f.relu(layer(x, name, 0, 1, 0))
            h = layer(f.relu(layer(h, name, 1, stride, 1)), name, 2, 1, 0)
            x = f.relu(h + (layer(x, name, 3, stride, 0) if projects else x))
        return f.cross_entropy(f.dot(f.mean(x, (2, 3), keep=False), p["head"]), y)

    return Program(d.weights, [d.normal(batch, 3, side, side), d.labels(10, batch)], run)


def gpt(size: int) -> Program:
    """Twelve layers of a GPT."""
    n, t, width, heads, words = (2, 16, 64, 4, 128) if size == 1 else (4, 256, 256, 4, 2048)
    d = _Draw()
    d.weight("words", words, width)
    d.weight("places", t, width)
    for i in range(12):
        for name, a, b in (("qkv", 1, 3), ("out", 1, 1), ("up", 1, 4), ("down", 4, 1)):
            d.weight(f"{i}.{name}", a * width, b * width)
            d.constant(f"{i}.{name}.b", 0.0, b * width)
        d.norm(f"{i}.n0", width)
        d.norm(f"{i}.n1", width)
    d.norm("n", width)
    mask = np.triu(np.full((t, t), -1e9, "float32"), 1)

    def attend(f: Any, p: Any, i: int, x: Any) -> Any:
        qkv = f.dot(x, p[f"{i}.qkv"]) + p[f"{i}.qkv.b"]
        q, k, v = (
            f.transpose(f.reshape(qkv[:, :, j * width : (j + 1) * width], (n, t, heads, -1)))
            for j in range(3)
        )
        scores = f.dot(q, f.swap(k)) * np.float32((width // heads) ** -0.5) + f.constant(mask)
        mixed = f.reshape(f.transpose(f.dot(f.softmax(scores), v)), (n, t, width))
        return f.dot(mixed, p[f"{i}.out"]) + p[f"{i}.out.b"]

    def run(f: Any, p: Any, tokens: Any, y: Any) -> Any:
        x = f.take(p["words"], tokens) + p["places"]
        for i in range(12):
            x = x + attend(f, p, i, _layer_norm(f, p, f"{i}.n0", x))
            h = f.gelu(f.dot(_layer_norm(f, p, f"{i}.n1", x), p[f"{i}.up"]) + p[f"{i}.up.b"])
            x = x + f.dot(h, p[f"{i}.down"]) + p[f"{i}.down.b"]
        x = f.reshape(_layer_norm(f, p, "n", x), (n * t, width))
        return f.cross_entropy(f.dot(x, f.swap(p["words"])), y)

    return Program(d.weights, [d.labels(words, n, t), d.labels(words, n * t)], run)


def _recurrent(size: int, gates: int, step: Callable[..., Any], states: int) -> Program:
    n, t, a, b = (4, 10, 8, 16) if size == 1 else (32, 200, 128, 256)
    d = _Draw()
    d.weight("w", a, gates * b)
    d.weight("u", b, gates * b)
    d.constant("b", 0.0, gates * b)
    d.weight("head", b, 10)

    def run(f: Any, p: Any, x: Any, y: Any) -> Any:
        zero = f.constant(np.zeros((n, b), "float32"))
        given = [p["w"], p["u"], p["b"]]
        last = f.scan(lambda x, *rest: step(f, b, x, *rest), x, [zero] * states, given)
        return f.cross_entropy(f.dot(last[0], p["head"]), y)

    return Program(d.weights, [d.normal(t, n, a), d.labels(10, n)], run)


def lstm(size: int) -> Program:
    """An LSTM as a loop."""

    def step(f: Any, n: int, x: Any, h: Any, c: Any, w: Any, u: Any, b: Any) -> Any:
        z = f.dot(x, w) + f.dot(h, u) + b
        i, g, o = (f.sigmoid(z[:, j * n : (j + 1) * n]) for j in range(3))
        c = g * c + i * f.tanh(z[:, 3 * n :])
        return o * f.tanh(c), c

    return _recurrent(size, 4, step, 2)


def gru(size: int) -> Program:
    """A GRU as a loop."""

    def step(f: Any, n: int, x: Any, h: Any, w: Any, u: Any, b: Any) -> Any:
        gx, gh = f.dot(x, w) + b, f.dot(h, u)
        r, z = (f.sigmoid(gx[:, j * n : (j + 1) * n] + gh[:, j * n : (j + 1) * n]) for j in (0, 1))
        new = f.tanh(gx[:, 2 * n :] + r * gh[:, 2 * n :])
        return (z * h + (1.0 - z) * new,)

    return _recurrent(size, 3, step, 1)


def unet(size: int) -> Program:
    """A U-Net of four resolutions."""
    batch, width, side = (1, 8, 32) if size == 1 else (4, 32, 96)
    d = _Draw()

    def pair(name: str, a: int, b: int) -> None:
        for j, c in enumerate((a, b)):
            d.weight(f"{name}.c{j}", b, c, 3, 3)
            d.norm(f"{name}.n{j}", b)

    for i in range(4):
        pair(f"down{i}", (width << (i - 1)) if i else 3, width << i)
    for i in range(3):
        pair(f"up{i}", (width << i) + (width << (i + 1)), width << i)
    d.weight("head", 1, width, 1, 1)

    def run(f: Any, p: Any, x: Any, y: Any) -> Any:
        def twice(name: str, x: Any) -> Any:
            for j in range(2):
                x = f.conv(x, p[f"{name}.c{j}"], 1, 1)
                x = f.relu(_batch_norm(f, p, f"{name}.n{j}", x))
            return x

        kept = []
        for i in range(4):
            x = twice(f"down{i}", f.max_pool(x, 2) if i else x)
            kept.append(x)
        for i in (2, 1, 0):
            x = twice(f"up{i}", f.join([kept[i], f.double(x)], 1))
        error = f.conv(x, p["head"]) - y
        return f.mean(error * error, (0, 1, 2, 3), keep=False)

    data = [d.normal(batch, 3, side, side), d.normal(batch, 1, side, side)]
    return Program(d.weights, data, run)


def chain(size: int) -> Program:
    """Two hundred elementwise ops."""

    def run(f: Any, p: Any, x: Any) -> Any:
        y = x
        for i in range(40):
            y = f.tanh(y * (1.0 + i / 100)) + f.sigmoid(x) * 0.1
        return y

    return Program({}, [_Draw().normal(1000 if size == 1 else 1_000_000)], run)


def _unrolled(steps: int) -> Callable[[int], Program]:
    def made(size: int) -> Program:
        d = _Draw()
        d.weight("w", 16, 16)

        def run(f: Any, p: Any, x: Any) -> Any:
            h = x[0]
            for t in range(steps):
                h = f.tanh(f.dot(h, p["w"]) + x[t])
            return h

        return Program(d.weights, [d.normal(steps, 4, 16)], run)

    made.__doc__ = f"A recurrent network of {steps} written steps: four nodes each."
    return made


#: Steps of gradient descent, and programs that are computed forward.
TRAINING = {
    "mlp": mlp, "lenet": lenet, "resnet50": resnet50, "gpt12": gpt, "lstm": lstm, "gru": gru,
    "unet": unet,
}  # fmt: skip
FORWARD = {"chain200": chain, "nodes2000": _unrolled(500), "nodes20000": _unrolled(5000)}


def many() -> list[Program]:
    """A hundred small functions, none like another."""

    def run(i: int) -> Callable[..., Any]:
        def one(f: Any, p: Any, x: Any) -> Any:
            y = x * (i + 1.5)
            for _ in range(1 + i % 5):
                y = f.tanh(y) + x if i % 2 else f.sigmoid(y) * x
            return f.mean(y, (0,), keep=False) if i % 3 else y

        return one

    d = _Draw()
    return [Program({}, [d.normal(8, 4 + i % 7)], run(i)) for i in range(100)]


PROGRAMS: dict[str, Callable[[int], Program]] = {**TRAINING, **FORWARD}
