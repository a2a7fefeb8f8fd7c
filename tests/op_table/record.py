"""The record of one op in the op table, and draws of fresh random data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Draw = Callable[[np.random.Generator], np.ndarray]


@dataclass(frozen=True)
class OpCase:
    """One use of an op.

    ``build`` makes the output (or a tuple of outputs) from variables; ``draws`` make one array
    per variable from a generator; ``expected`` is an independent NumPy formula for the output(s),
    from the same arrays. ``ops`` are the op classes that the case exercises: every concrete op
    class must be named by some case. ``grad`` says whether gradients are checked (in float64, by
    finite differences). ``static`` gives the static
    shapes of the variables (default: size-1 dimensions are static, the rest unknown).
    ``options={"single": False}``: the graph says float64 itself, so float32 does not enter it.
    """

    id: str
    ops: tuple[type, ...]
    build: Callable[..., Any]
    draws: tuple[Draw, ...]
    expected: Callable[..., Any] | None = None
    grad: bool = True
    rtol: float = 1e-6
    grad_tol: float = 1e-5
    static: tuple[tuple[int | None, ...] | None, ...] | None = None
    stateful: bool = False
    options: dict[str, Any] = field(default_factory=dict)


def ending(op: Any, **terms: Any) -> Callable[..., Any]:
    """``op`` with an epilogue in the dtype of its first input."""
    return lambda *vs: op.ending(vs[0].type.dtype, **terms)(*vs)


def normal(*shape: int, dtype: str = "float64", scale: float = 1.0) -> Draw:
    """Standard normal values."""
    return lambda rng: np.asarray(rng.standard_normal(shape) * scale).astype(dtype)


def uniform(low: float, high: float, *shape: int, dtype: str = "float64") -> Draw:
    """Uniform values in ``[low, high)``."""
    return lambda rng: np.asarray(rng.uniform(low, high, shape)).astype(dtype)


def integers(low: int, high: int, *shape: int, dtype: str = "int64") -> Draw:
    """Integers in ``[low, high)``."""
    return lambda rng: np.asarray(rng.integers(low, high, shape)).astype(dtype)


def distinct(*shape: int, dtype: str = "float64") -> Draw:
    """A permutation of well separated values: safe for max, sort and their differences."""
    size = int(np.prod(shape))
    return lambda rng: (rng.permutation(size).reshape(shape) * 0.37 - size * 0.15).astype(dtype)


def away_from(points: tuple[float, ...], *shape: int, gap: float = 0.05) -> Draw:
    """Normal values that keep ``gap`` away from the kinks of a function."""

    def draw(rng: np.random.Generator) -> np.ndarray:
        x = np.asarray(rng.standard_normal(shape) * 1.5)
        for p in points:
            near = np.abs(x - p) < gap
            x = np.where(near, p + np.where(x >= p, 2, -2) * gap, x)
        return np.asarray(x)

    return draw
