"""What a side makes of a case: a step to be timed, and the numbers that show it is right."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Job", "checksums", "rotating"]


@dataclass
class Job:
    """``step`` does the work once and returns when the result is there; ``results`` turns what the
    first step returned into named arrays in NCHW order (it may run further steps).

    ``function`` is symdnn's, for a profile.
    """

    step: Callable[[], Any]
    results: Callable[[Any], Mapping[str, Any]]
    function: Any = None


def rotating(calls: list[Callable[[], Any]]) -> Callable[[], Any]:
    """A step that makes these calls in turn."""
    number = 0

    def step() -> Any:
        nonlocal number
        number += 1
        return calls[(number - 1) % len(calls)]()

    return step


def checksums(results: Mapping[str, Any]) -> dict[str, list[float]]:
    """name -> the array itself where it is short, else its norm and its sum with random signs."""
    found = {}
    for name, value in results.items():
        flat = np.asarray(value, np.float64).ravel()
        if flat.size <= 8:
            found[name] = [float(v) for v in flat]
            continue
        signs = np.random.default_rng(9).integers(0, 2, flat.size, dtype=np.int8)
        total = float(flat[signs > 0].sum() - flat[signs == 0].sum())
        found[name] = [float(np.sqrt(flat @ flat)), total]
    return found
