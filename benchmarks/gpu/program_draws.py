"""What the training programs are made of: seeded arrays, sizes and layers.

A :class:`Program` has what it trains (``parameters``), what it sees (``data``), and ``loss(L, F, p,
d)``, where ``L`` is ``torch`` or ``symdnn.tensor`` and ``F`` is ``torch.nn.functional`` or
``symdnn.nn.functional``. A program is made in the size of a test, of a processor's or of a GPU's
benchmark.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

__all__ = ["Draw", "Program", "Size", "batch_norm", "layer_norm", "linear", "of"]

Arrays = dict[str, np.ndarray]
#: What a program is made for.
Size = Literal["test", "cpu", "gpu"]
_T = TypeVar("_T")


class Program(NamedTuple):
    """Parameters and data by name, and the loss of them."""

    parameters: Arrays
    data: Arrays
    loss: Callable[[Any, Any, Any, Any], Any]


class Draw:
    """Draws arrays with a fixed seed."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(7)
        self.made: Arrays = {}

    def normal(self, *shape: int, scale: float = 1.0) -> np.ndarray:
        return (scale * self.rng.standard_normal(shape)).astype(np.float32)

    def below(self, bound: int, *shape: int) -> np.ndarray:
        return self.rng.integers(0, bound, shape)

    def weight(self, name: str, *shape: int, fan: int = 0) -> None:
        """A parameter, scaled by what goes into an output."""
        fan = fan or int(np.prod(shape[1:])) or 1
        self.made[name] = self.normal(*shape, scale=fan**-0.5)

    def linear(self, name: str, width_in: int, width_out: int) -> None:
        self.weight(name + ".w", width_out, width_in)
        self.made[name + ".b"] = np.zeros(width_out, np.float32)

    def norm(self, name: str, width: int) -> None:
        self.made[name + ".w"] = np.ones(width, np.float32)
        self.made[name + ".b"] = np.zeros(width, np.float32)


def of(size: Size, test: _T, cpu: _T, gpu: _T) -> _T:
    return {"test": test, "cpu": cpu, "gpu": gpu}[size]


def linear(F: Any, p: Any, name: str, x: Any) -> Any:
    return F.linear(x, p[name + ".w"], p[name + ".b"])


def batch_norm(F: Any, p: Any, name: str, x: Any) -> Any:
    return F.batch_norm(x, None, None, p[name + ".w"], p[name + ".b"], training=True)


def layer_norm(F: Any, p: Any, name: str, x: Any, width: int) -> Any:
    return F.layer_norm(x, (width,), p[name + ".w"], p[name + ".b"])
