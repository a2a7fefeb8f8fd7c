"""Learning rates over a training: functions from a step's number, counted from 0, to a rate.

They are plain functions, so any function is one, and they compose: :func:`warm_up` goes before
another, :func:`chain` puts them one after the other. ::

    rate = nn.schedule.warm_up(nn.schedule.cosine(0.1, steps=9000), steps=1000)
    nn.schedule.set_rate(lr, rate(step))         # lr is a shared variable
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING as _CHECKED
from typing import Any

import numpy as np

from symdnn.errors import InputError
from symdnn.graph.names.elsewhere import refusing as _refusing
from symdnn.graph.tracing import check_takes
from symdnn.graph.variable import Shared
from symdnn.nn.modules.arguments import sizes
from symdnn.nn.modules.checked import checked

__all__ = [
    "Plateau", "Schedule", "as_schedule", "chain", "constant", "cosine", "cosine_restarts",
    "exponential", "linear", "multi_step", "one_cycle", "scaled", "set_rate", "step", "warm_up",
]  # fmt: skip

Schedule = Callable[[int], float]


@checked
def as_schedule(rate: float | Schedule) -> Schedule:
    """``rate`` itself if it is a function, else :func:`constant`."""
    if callable(rate):
        check_takes("schedule", rate, ["step"])
    return rate if callable(rate) else constant(rate)


@checked
def constant(rate: float) -> Schedule:
    """``rate`` at every step."""
    return lambda step: rate


@checked
def step(rate: float, every: int, factor: float = 0.1) -> Schedule:
    """``rate``, times ``factor`` after each ``every`` steps."""
    _positive("step: every", every)
    return lambda step: rate * factor ** (step // every)


@checked
def multi_step(rate: float, milestones: Sequence[int], factor: float = 0.1) -> Schedule:
    """``rate``, times ``factor`` from each of the ``milestones`` (step numbers) on."""
    at = sorted(sizes("multi_step: milestones", len(milestones), (), list(milestones)))
    return lambda step: rate * factor ** sum(step >= m for m in at)


@checked
def exponential(rate: float, factor: float, every: float = 1) -> Schedule:
    """``rate * factor ** (step / every)``."""
    _positive("exponential: every", every)
    return lambda step: rate * factor ** (step / every)


@checked
def linear(start: float, steps: int, end: float = 0.0) -> Schedule:
    """From ``start`` straight to ``end``, which is reached after ``steps`` and kept."""
    _positive("linear: steps", steps)
    return lambda step: start + (end - start) * min(step / steps, 1.0)


@checked
def cosine(rate: float, steps: int, end: float = 0.0) -> Schedule:
    """From ``rate`` down half a period of a cosine to ``end``, which is reached after ``steps``."""
    _positive("cosine: steps", steps)
    return lambda step: _cosine(rate, end, min(step / steps, 1.0))


@checked
def cosine_restarts(rate: float, first: int, factor: int = 1, end: float = 0.0) -> Schedule:
    """:func:`cosine` again and again: over ``first`` steps, each time ``factor`` times as many.

    At each restart the rate is ``rate`` again. (Loshchilov and Hutter 2017.)
    """
    _positive("cosine_restarts: first", first)
    if factor < 1:
        raise ValueError(f"cosine_restarts: factor={factor}; wanted an int, 1 or more")

    def at(step: int) -> float:
        length = first
        if factor == 1:
            step %= first
        while step >= length:
            step, length = step - length, length * factor
        return _cosine(rate, end, step / length)

    return at


@checked
def warm_up(schedule: float | Schedule, steps: int, start: float = 0.0) -> Schedule:
    """From ``start`` straight to the first rate of ``schedule``, which begins after ``steps``."""
    after = as_schedule(schedule)
    return chain((linear(start, steps, after(0)), steps), after)


@checked
def one_cycle(
    rate: float, steps: int, up: float = 0.3, first: float = 25.0, last: float = 1e4
) -> Schedule:
    """Up to ``rate`` along a cosine in the part ``up`` of ``steps``, then down (Smith 2018).

    It begins at ``rate / first`` and ends, in step ``steps - 1``, at ``rate / first / last``.
    PyTorch's ``OneCycleLR``.
    """
    _positive("one_cycle: steps", steps - 1)
    if not 0 < up < 1:
        raise ValueError(f"one_cycle: up={up}; wanted a part of 1")
    top, low = up * steps - 1, rate / first

    def at(step: int) -> float:
        if step <= top:
            return _cosine(low, rate, step / top) if top > 0 else rate
        return _cosine(rate, low / last, min((step - top) / (steps - 1 - top), 1.0))

    return at


@checked
def chain(*parts: Any) -> Schedule:
    """Schedules one after the other: pairs ``(schedule or rate, steps)``, and one without an end.

    Each counts its own steps from 0.
    """
    if not parts or not all(_is_timed(p) for p in parts[:-1]) or isinstance(parts[-1], tuple):
        raise InputError(
            f"chain: wanted pairs (schedule or rate, steps) and a schedule, got {parts!r:.80}"
        )
    *timed, rest = parts
    pairs = [(as_schedule(s), int(steps)) for s, steps in timed]
    final = as_schedule(rest)

    def at(step: int) -> float:
        for schedule, steps in pairs:
            if step < steps:
                return schedule(step)
            step -= steps
        return final(step)

    return at


def _is_timed(part: Any) -> bool:
    return isinstance(part, tuple | list) and len(part) == 2 and isinstance(part[1], int)


@checked
def scaled(schedule: float | Schedule, factor: float) -> Schedule:
    """``schedule`` times ``factor``: for a larger batch, or a group of parameters."""
    inner = as_schedule(schedule)
    return lambda step: inner(step) * factor


class Plateau:
    """A schedule that falls when a measure no longer gets better; PyTorch's ``ReduceLROnPlateau``.

    ``observe(value)`` after each epoch: when more than ``patience`` of them in a row were no
    better than the best by ``threshold`` (relative), the rate is multiplied by ``factor``, never
    below ``least``; then ``cooldown`` observations do not count. ``maximise``: larger is better.
    ``fit`` calls it with the measure that it watches, and saves its state.
    """

    @checked
    def __init__(
        self, rate: float, factor: float = 0.1, patience: int = 10, *, threshold: float = 1e-4,
        cooldown: int = 0, least: float = 0.0, maximise: bool = False,
    ) -> None:  # fmt: skip
        if not 0 < factor < 1:
            raise ValueError(f"Plateau: factor={factor}; wanted between 0 and 1")
        self.factor, self.patience, self.threshold = factor, patience, threshold
        self.cooldown, self.least, self.maximise = cooldown, least, maximise
        self.rate = float(rate)
        self.best: float | None = None
        self.bad = self.resting = 0

    def __call__(self, step: int) -> float:
        """The rate of now; the step's number does not matter."""
        return self.rate

    def observe(self, value: float) -> float:
        """Take note of a measure; returns the rate from now on."""
        if self.best is None or self._better(value, self.best):
            self.best, self.bad = float(value), 0
        else:
            self.bad += 1
        if self.resting:
            self.resting, self.bad = self.resting - 1, 0
        if self.bad > self.patience:
            self.rate = max(self.rate * self.factor, self.least)
            self.resting, self.bad = self.cooldown, 0
        return self.rate

    def _better(self, value: float, best: float) -> bool:
        if self.maximise:
            return value > best * (1 + self.threshold)
        return value < best * (1 - self.threshold)

    def state_dict(self) -> dict[str, Any]:
        """What changes, as JSON can hold it."""
        return {"rate": self.rate, "best": self.best, "bad": self.bad, "resting": self.resting}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from :meth:`state_dict`."""
        for name in ("rate", "best", "bad", "resting"):
            setattr(self, name, state[name])


@checked
def set_rate(lr: Shared, rate: float) -> None:
    """Give a shared scalar this value; nothing is done, or copied to a device, if it has it."""
    if not isinstance(lr, Shared) or lr.type.ndim:
        raise InputError(f"set_rate: wanted a shared scalar, got {lr!r}")
    value = np.asarray(rate, lr.type.numpy)
    if lr.get_value(borrow=True) != value:
        lr.set_value(value)


def _cosine(start: float, end: float, part: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * part)) / 2


def _positive(what: str, number: float) -> None:
    if not number > 0:
        raise ValueError(f"{what} is {number}; wanted more than 0")


if not _CHECKED:  # a checker of types would believe that every name exists
    __getattr__ = _refusing(__name__, "SCHEDULE")
