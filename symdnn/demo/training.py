"""Training the demonstration network, with a progress bar."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from symdnn.demo.data import Digits, batches
from symdnn.demo.network import Network, build

__all__ = ["Result", "train"]


@dataclass
class Result:
    """A trained network and its history: a value per epoch."""

    seed: int
    network: Network
    train_loss: list[float] = field(default_factory=list)
    test_loss: list[float] = field(default_factory=list)
    train_accuracy: list[float] = field(default_factory=list)
    test_accuracy: list[float] = field(default_factory=list)
    compile_seconds: float = 0.0
    seconds: float = 0.0


def train(
    digits: Digits,
    seed: int,
    epochs: int,
    batch_size: int = 64,
    on_epoch: Callable[[Result], None] = lambda result: None,
) -> Result:
    """Train with Adam and a cosine schedule to zero; ``on_epoch`` is called after each epoch."""
    start = time.perf_counter()
    result = Result(seed, build(seed))
    result.compile_seconds = time.perf_counter() - start
    rng = np.random.default_rng(seed)
    start = time.perf_counter()
    for epoch in range(epochs):
        rate = 0.002 * 0.5 * (1 + np.cos(np.pi * epoch / epochs))
        _one_epoch(result, digits, rate, batch_size, rng)
        result.seconds = time.perf_counter() - start
        on_epoch(result)
    return result


def _one_epoch(
    result: Result, digits: Digits, rate: float, batch_size: int, rng: np.random.Generator
) -> None:
    losses, right, seen = [], 0, 0
    for x, y in batches(digits.train_x, digits.train_y, batch_size, rng):
        loss, good = result.network.train(x, y, np.float32(rate))
        losses.append(float(loss))
        right, seen = right + int(good), seen + len(x)
    test_loss, test_right = result.network.evaluate(digits.test_x, digits.test_y)
    result.train_loss.append(float(np.mean(losses)))
    result.train_accuracy.append(right / seen)
    result.test_loss.append(float(test_loss))
    result.test_accuracy.append(int(test_right) / len(digits.test_y))
