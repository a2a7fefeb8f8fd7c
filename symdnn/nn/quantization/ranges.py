"""Observers: what range of numbers a value takes on data, and the scale that follows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from symdnn.errors import OptionError
from symdnn.graph.typing import Array
from symdnn.ops.elementwise.quantize import FLOAT8, limits_of

#: Elements that an observer keeps of each batch, for percentiles and entropies.
_KEPT = 1 << 14
_BINS, _LEVELS = 2048, 128


@dataclass
class Observer:
    """The least and the largest number of a value over batches, and a sample of its elements."""

    seed: int = 0
    low: float = np.inf
    high: float = -np.inf
    kept: list[Array] = field(default_factory=list)

    def see(self, value: Array) -> None:
        """Take in a batch."""
        flat = np.asarray(value, np.float32).ravel()
        if not flat.size:
            return
        self.low, self.high = min(self.low, float(flat.min())), max(self.high, float(flat.max()))
        if flat.size > _KEPT:
            rng = np.random.default_rng((self.seed, len(self.kept)))
            flat = flat[rng.integers(0, flat.size, _KEPT)]
        self.kept.append(flat)

    @property
    def sample(self) -> Array:
        """The kept elements of all batches."""
        return np.concatenate(self.kept) if self.kept else np.zeros(1, np.float32)


def _min_max(seen: Observer, percentile: float) -> tuple[float, float]:
    return seen.low, seen.high


def _percentile(seen: Observer, percentile: float) -> tuple[float, float]:
    low, high = np.percentile(seen.sample, [100 - percentile, percentile])
    return float(low), float(high)


def _entropy(seen: Observer, percentile: float) -> tuple[float, float]:
    """The range whose 8-bit histogram has the least divergence from that of the floats.

    (Migacz 2017, "8-bit Inference with TensorRT".)
    """
    size = np.abs(seen.sample)
    most = float(size.max())
    if most == 0:
        return seen.low, seen.high
    counts = np.histogram(size, _BINS, (0, most))[0].astype(np.float64)
    ends = range(_LEVELS, _BINS + 1, 16)
    best = min(ends, key=lambda end: _divergence(counts, end))
    edge = most * best / _BINS
    return max(seen.low, -edge), min(seen.high, edge)


def _divergence(counts: Array, end: int) -> float:
    """Kullback and Leibler's divergence of the first bins in few levels from all, clipped."""
    wanted = counts[:end].copy()
    wanted[-1] += counts[end:].sum()
    group = np.arange(end) * _LEVELS // end
    full = counts[:end] > 0
    total = np.bincount(group, counts[:end], _LEVELS)
    filled = np.maximum(np.bincount(group, full, _LEVELS), 1)
    found = np.where(full, (total / filled)[group], 0)
    p, q = wanted / wanted.sum(), found / max(found.sum(), 1)
    known = p > 0
    return float(np.sum(p[known] * np.log(p[known] / np.maximum(q[known], 1e-12))))


#: How a range follows from what was seen.
METHODS: dict[str, Callable[[Observer, float], tuple[float, float]]] = {
    "minmax": _min_max, "percentile": _percentile, "entropy": _entropy,
}  # fmt: skip


def parameters(
    seen: Observer, kind: str, method: str, percentile: float, symmetric: bool
) -> tuple[np.float32, int]:
    """(scale, zero point) of a value; 0 is one of its numbers exactly.

    Raises :class:`OptionError` for a method that is none of :data:`METHODS`.
    """
    if method not in METHODS:
        raise OptionError(f"nn.quantize: method {method!r}: wanted one of {', '.join(METHODS)}")
    low, high = METHODS[method](seen, percentile)
    low, high = min(low, 0.0), max(high, 0.0)
    least, most = limits_of(kind)
    if kind in FLOAT8 or symmetric:
        return np.float32(max(-low, high, 1e-12) / most), 0
    scale = np.float32(max(high - low, 1e-12) / (most - least))
    return scale, int(np.clip(round(least - low / float(scale)), least, most))


def channel_scales(w: Array, axis: int | None, kind: str) -> Array:
    """Scales of weights, symmetric: one for each entry of ``axis``, or one for all (None)."""
    others = None if axis is None else tuple(i for i in range(w.ndim) if i != axis % w.ndim)
    largest = np.max(np.abs(w), axis=others)
    return np.asarray(np.maximum(largest, 1e-12) / limits_of(kind)[1], np.float32)
