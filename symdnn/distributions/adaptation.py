"""The warm-up of samplers: a step size by dual averaging, a diagonal mass matrix in windows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import symdnn.tensor as T

__all__ = ["Adaptation", "adapted", "begun", "schedule"]

#: Hoffman and Gelman (2014), section 3.2.1: gamma, t0 and kappa of dual averaging.
_SHRINKAGE, _DELAY, _DECAY = 0.05, 10.0, 0.75
#: Stan's reference manual, "HMC algorithm parameters": draws before, in the first, after windows.
_BEFORE, _FIRST_WINDOW, _AFTER = 75, 25, 50


@dataclass(frozen=True)
class Adaptation:
    """What the warm-up knows: of the step's logarithm, and of the draws of this window."""

    step_size: Any
    mean_step_size: Any
    inverse_mass: Any
    centre: Any
    error: Any
    log_mean: Any
    count: Any
    seen: Any
    mean: Any
    squares: Any


def begun(step_size: float, size: int) -> Adaptation:
    """Before the first draw."""
    zero, zeros = np.float64(0), np.zeros(size)
    start = np.float64(step_size)
    values = (start, start, np.ones(size), np.log(10 * start), zero, zero, zero, zero, zeros, zeros)
    return Adaptation(*[T.constant(np.asarray(v)) for v in values])


def schedule(warmup: int) -> dict[str, np.ndarray[Any, Any]]:
    """For each draw of the warm-up whether it is ``inside`` of a window, and ``ends`` one.

    Windows double in length; the last one takes what is left before the final draws.
    """
    before, window, after = _BEFORE, _FIRST_WINDOW, _AFTER
    if before + window + after > warmup:  # in Stan's proportions
        before, after = int(0.15 * warmup), int(0.1 * warmup)
        window = warmup - before - after
    inside, ends = np.zeros(warmup, "bool"), np.zeros(warmup, "bool")
    inside[before : warmup - after] = True
    at = before
    while window and at < warmup - after:
        end = at + window
        if end + 2 * window > warmup - after:
            end = warmup - after
        ends[end - 1] = True
        at, window = end, 2 * window
    return {"inside": inside, "ends": ends}


def adapted(now: Adaptation, q: Any, acceptance: Any, x: Any, target: float) -> Adaptation:
    """After a draw ``q`` of this mean acceptance, with an entry of :func:`schedule`."""
    return _windowed(_stepped(now, acceptance, target), q, x["inside"], x["ends"])


def _stepped(now: Adaptation, acceptance: Any, target: float) -> Adaptation:
    """Dual averaging of the step's logarithm (equation 6 of Hoffman and Gelman)."""
    count = now.count + 1
    share = 1 / (count + _DELAY)
    accepted = T.switch(T.isnan(acceptance), 0.0, acceptance)
    error = (1 - share) * now.error + share * (target - accepted)
    log_step = now.centre - T.sqrt(count) / _SHRINKAGE * error
    weight = count**-_DECAY
    log_mean = weight * log_step + (1 - weight) * now.log_mean
    return replace(
        now, step_size=T.exp(log_step), mean_step_size=T.exp(log_mean), error=error,
        log_mean=log_mean, count=count,
    )  # fmt: skip


def _windowed(now: Adaptation, q: Any, inside: Any, ends: Any) -> Adaptation:
    """Welford's variances of a window: at its end the inverse mass, and all begins anew."""
    seen = now.seen + T.cast(inside, "float64")
    apart = q - now.mean
    mean = T.switch(inside, now.mean + apart / T.maximum(seen, 1.0), now.mean)
    squares = T.switch(inside, now.squares + apart * (q - mean), now.squares)
    variance = squares / T.maximum(seen - 1, 1.0)
    # Stan shrinks the estimate towards a small unit matrix.
    shrunk = seen / (seen + 5) * variance + 1e-3 * 5 / (seen + 5)
    zero = np.float64(0)

    def at_end(new: Any, old: Any) -> Any:
        return T.switch(ends, new, old)

    return replace(
        now, inverse_mass=at_end(shrunk, now.inverse_mass),
        centre=at_end(T.log(10 * now.step_size), now.centre), error=at_end(zero, now.error),
        log_mean=at_end(zero, now.log_mean), count=at_end(zero, now.count),
        seen=at_end(zero, seen), mean=at_end(zero, mean), squares=at_end(zero, squares),
    )  # fmt: skip
