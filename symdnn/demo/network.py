"""The demonstration network: a small LeNet for 8x8 grey images, and its training step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import symdnn
import symdnn.tensor as T
from symdnn.tensor.random import RandomStream

__all__ = ["Network", "build"]

#: name -> shape; convolutions are (out, in, height, width), dense layers (in, out).
SHAPES: dict[str, tuple[int, ...]] = {
    "conv1.w": (24, 1, 3, 3),
    "conv1.b": (24,),
    "conv2.w": (48, 24, 3, 3),
    "conv2.b": (48,),
    "dense.w": (48 * 4 * 4, 96),
    "dense.b": (96,),
    "out.w": (96, 10),
    "out.b": (10,),
}


@dataclass(frozen=True)
class Network:
    """Parameters by name, and three compiled functions.

    ``train(images, labels, rate)`` returns the loss and the number of right answers of the batch
    and updates the parameters; ``evaluate(images, labels)`` returns both without an update;
    ``predict(images)`` returns class probabilities. Images are float32 (N, 1, 8, 8), labels int32.
    """

    parameters: dict[str, Any]
    train: Any
    evaluate: Any
    predict: Any

    def values(self) -> dict[str, np.ndarray]:
        """The parameters' values."""
        return {name: p.get_value() for name, p in self.parameters.items()}

    def set_values(self, values: dict[str, np.ndarray]) -> None:
        """Set the parameters to values of :meth:`values`."""
        for name, p in self.parameters.items():
            p.set_value(values[name])


def build(seed: int) -> Network:
    """Define the network, differentiate its loss, compile."""
    parameters = _initial(np.random.default_rng(seed))
    images, labels = T.tensor4("images"), T.ivector("labels")
    rate = T.scalar("rate")
    stream = RandomStream(seed + 1)

    noisy = _logits(images, parameters, stream)
    loss = T.nnet.categorical_crossentropy(T.nnet.softmax(noisy), labels).mean()
    right = T.eq(T.argmax(noisy, axis=1), labels).sum()
    train = symdnn.function(
        [images, labels, rate], [loss, right], updates=_adam(loss, parameters, rate), name="train"
    )

    logits = _logits(images, parameters, None)
    probabilities = T.nnet.softmax(logits)
    test_loss = T.nnet.categorical_crossentropy(probabilities, labels).mean()
    test_right = T.eq(T.argmax(logits, axis=1), labels).sum()
    evaluate = symdnn.function([images, labels], [test_loss, test_right], name="evaluate")
    predict = symdnn.function([images], probabilities, name="predict")
    return Network(parameters, train, evaluate, predict)


def _initial(rng: np.random.Generator) -> dict[str, Any]:
    made = {}
    for name, shape in SHAPES.items():
        fan_in = int(np.prod(shape[1:])) if len(shape) == 4 else shape[0]
        scale = np.sqrt(2 / fan_in) if name.endswith(".w") else 0.0
        value = (rng.standard_normal(shape) * scale).astype("float32")
        made[name] = symdnn.shared(value, name=name)
    return made


def _logits(images: Any, p: dict[str, Any], stream: RandomStream | None) -> Any:
    """Class scores (N, 10); with a stream, half of the dense units are dropped."""
    h = T.nnet.conv2d(images, p["conv1.w"], border_mode="half")
    h = T.nnet.relu(h + p["conv1.b"].dimshuffle("x", 0, "x", "x"))
    h = T.nnet.conv2d(h, p["conv2.w"], border_mode="half")
    h = T.nnet.relu(h + p["conv2.b"].dimshuffle("x", 0, "x", "x"))
    h = T.signal.pool.pool_2d(h, (2, 2), ignore_border=True)
    h = T.nnet.relu(T.dot(h.flatten(2), p["dense.w"]) + p["dense.b"])
    if stream is not None:
        keep = stream.binomial(h.shape, p=0.5, dtype="float32")
        h = h * keep * 2
    return T.dot(h, p["out.w"]) + p["out.b"]


def _adam(loss: Any, parameters: dict[str, Any], rate: Any) -> list[tuple[Any, Any]]:
    """Adam (Kingma and Ba 2015) with the usual constants."""
    step = symdnn.shared(np.float32(0), name="step")
    now = step + 1
    scale = rate * T.sqrt(1 - T.pow(np.float32(0.999), now)) / (1 - T.pow(np.float32(0.9), now))
    updates = [(step, now)]
    names = list(parameters)
    for name, g in zip(names, T.grad(loss, [parameters[n] for n in names]), strict=True):
        p = parameters[name]
        zeros = np.zeros_like(p.get_value())
        m, v = symdnn.shared(zeros, name=f"{name}.m"), symdnn.shared(zeros, name=f"{name}.v")
        new_m = np.float32(0.9) * m + np.float32(0.1) * g
        new_v = np.float32(0.999) * v + np.float32(0.001) * g * g
        new_p = p - scale * new_m / (T.sqrt(new_v) + np.float32(1e-7))
        updates += [(m, new_m), (v, new_v), (p, new_p)]
    return updates
