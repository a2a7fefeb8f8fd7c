"""Initial values of parameters: functions ``(shape, rng) -> array``, and their common seed.

Filters are (out, in, ...): a convolution's fan-in is in x window, its fan-out out x window. Dense
weights are (out, in), as in Torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from symdnn.graph.names.elsewhere import INIT, refusing
from symdnn.graph.typing import Array

__all__ = [
    "constant", "fans", "first_value", "generator", "glorot_normal", "glorot_uniform",
    "he_normal", "he_uniform", "normal", "ones", "orthogonal", "seed", "skipped", "torch_uniform",
    "uniform", "zeros",
]  # fmt: skip

Initialiser = Callable[[Sequence[int], np.random.Generator], Any]

_state: dict[str, Any] = {"generator": np.random.default_rng(), "skipped": False}


def seed(number: int | None) -> None:
    """Seed the random numbers of new modules; None: from the operating system."""
    _state["generator"] = np.random.default_rng(number)


def generator() -> np.random.Generator:
    """The generator of new modules' initial values and of dropout's seeds."""
    made: np.random.Generator = _state["generator"]
    return made


@contextmanager
def skipped() -> Iterator[None]:
    """A block in which new modules have zeros as initial values, for weights that are loaded later.

    >>> from symdnn import nn
    >>> with nn.init.skipped():
    ...     net = nn.models.vgg16()
    >>> sum(p.get_value(borrow=True).size for p in net.parameters())
    138357544
    """
    before, _state["skipped"] = _state["skipped"], True
    try:
        yield
    finally:
        _state["skipped"] = before


def first_value(initial: Initialiser, shape: Sequence[int], dtype: str) -> Array:
    """The initial array of a parameter, which has no other owner."""
    if _state["skipped"]:
        return np.zeros(tuple(shape), dtype)  # no page of it is touched before it is written
    return np.array(initial(tuple(shape), generator()), dtype)


def fans(shape: Sequence[int]) -> tuple[int, int]:
    """(fan-in, fan-out) of a weight (out, in, window...)."""
    if len(shape) < 2:
        n = int(shape[0]) if shape else 1
        return n, n
    window = math.prod(shape[2:])
    return shape[1] * window, shape[0] * window


def zeros(shape: Sequence[int], rng: np.random.Generator) -> Array:
    """All 0."""
    return np.zeros(shape)


def ones(shape: Sequence[int], rng: np.random.Generator) -> Array:
    """All 1."""
    return np.ones(shape)


def constant(value: float) -> Initialiser:
    """All ``value``."""
    return lambda shape, rng: np.full(shape, value)


def normal(std: float = 0.01, mean: float = 0.0) -> Initialiser:
    """Normal numbers."""
    return lambda shape, rng: rng.normal(mean, std, shape)


def uniform(bound: float = 0.01) -> Initialiser:
    """Uniform numbers from ``-bound`` to ``bound``."""
    return lambda shape, rng: rng.uniform(-bound, bound, shape)


def torch_uniform(shape: Sequence[int], rng: np.random.Generator) -> Array:
    """Uniform within 1 / sqrt(fan-in), as in Torch7's and PyTorch's layers."""
    bound = 1 / math.sqrt(max(1, fans(shape)[0]))
    return rng.uniform(-bound, bound, shape)


def he_normal(shape: Sequence[int], rng: np.random.Generator) -> Array:
    """Normal of variance 2 / fan-in (He et al. 2015), for layers before a ReLU."""
    return rng.normal(0, math.sqrt(2 / max(1, fans(shape)[0])), shape)


def he_uniform(shape: Sequence[int], rng: np.random.Generator) -> Array:
    """Uniform of variance 2 / fan-in (He et al. 2015)."""
    bound = math.sqrt(6 / max(1, fans(shape)[0]))
    return rng.uniform(-bound, bound, shape)


def glorot_normal(shape: Sequence[int], rng: np.random.Generator) -> Array:
    """Normal of variance 2 / (fan-in + fan-out) (Glorot and Bengio 2010)."""
    return rng.normal(0, math.sqrt(2 / max(1, sum(fans(shape)))), shape)


def glorot_uniform(shape: Sequence[int], rng: np.random.Generator) -> Array:
    """Uniform of variance 2 / (fan-in + fan-out) (Glorot and Bengio 2010)."""
    bound = math.sqrt(6 / max(1, sum(fans(shape))))
    return rng.uniform(-bound, bound, shape)


def orthogonal(gain: float = 1.0) -> Initialiser:
    """Rows (or columns, the fewer) that are orthonormal, times ``gain`` (Saxe et al. 2014)."""

    def draw(shape: Sequence[int], rng: np.random.Generator) -> Array:
        rows, columns = shape[0], math.prod(shape[1:])
        q, r = np.linalg.qr(rng.normal(size=(max(rows, columns), min(rows, columns))))
        q = q * np.sign(np.diag(r))  # makes it uniform over the rotations
        return gain * (q if rows >= columns else q.T).reshape(shape)

    return draw


if not TYPE_CHECKING:  # a checker of types would believe that every name exists
    __getattr__ = refusing(__name__, INIT)
