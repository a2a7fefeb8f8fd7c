"""Candidates for one question tried on a device: is the result right, how long does it take.

What is not right, not there (no memory) or not reached within the time allowed stays in the table
with the reason. The fastest few are timed once more, in turn, so that a clock that changes between
them does not decide.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Generic, TypeVar

from symdnn.config import config
from symdnn.errors import SymdnnError

__all__ = ["Attempt", "Bench", "Limits", "best_of", "measure", "short"]

_FINALISTS = 6
#: A first run that takes so many times the best time, beside what its launch may cost, is enough.
_HOPELESS_RATIO, _LAUNCH_MS = 1.5, 0.2
_LONG_RUN_MS = 2.0  # one run is long enough to tell, until the race
_FINALIST_RATIO = 1.15  # what is slower by more does not enter the final
_LEAST_GAIN_RATIO = 0.98  # what is faster by less is no reason to go on

C = TypeVar("C")


@dataclass(frozen=True)
class Attempt(Generic[C]):
    """A candidate with its time in milliseconds, or why it has none.

    ``error`` is that of its result, relative to a trusted one's; ``millijoules`` is there where
    energy was asked for.
    """

    candidate: C
    ms: float | None = None
    error: float | None = None
    millijoules: float | None = None
    problem: str = ""

    @property
    def usable(self) -> bool:
        """Whether it was right and timed."""
        return self.ms is not None and not self.problem


@dataclass(frozen=True)
class Limits:
    """When a measurement takes up no further candidate: after ``budget_ms`` milliseconds, or when
    ``patience`` of them in a row were not faster (0: never)."""

    budget_ms: float = inf
    patience: int = 0


class Bench(ABC, Generic[C]):
    """Where the candidates of one question run: operands, a trusted result, a clock."""

    #: Largest error of a right result.
    error_limit: float = 0.0

    @abstractmethod
    def check(self, candidate: C, good_ms: float) -> tuple[float, float]:
        """Run it: the error of its result, and about how many milliseconds that took (0: not
        known). Raises :class:`~symdnn.errors.SymdnnError` or ``RuntimeError`` where it can't."""

    @abstractmethod
    def time(self, candidate: C, good_ms: float) -> float:
        """Milliseconds of one run; only an estimate where it is far above ``good_ms``."""

    def race(self, candidates: Sequence[C]) -> list[float]:
        """Milliseconds of each again, in turn."""
        return [self.time(c, inf) for c in candidates]


def measure(
    bench: Bench[C], candidates: Iterable[C], limits: Limits | None = None
) -> list[Attempt[C]]:
    """Each candidate checked, and timed where it is right; the fastest few timed again.

    Without ``limits`` all are tried within the flag ``dnn.conv.time_budget``.
    """
    within = limits or Limits(float(config.dnn.conv.time_budget))
    return _final(bench, _first_round(bench, candidates, within))


def _first_round(bench: Bench[C], candidates: Iterable[C], limits: Limits) -> list[Attempt[C]]:
    start, good, in_vain = time.perf_counter(), inf, 0
    found: list[Attempt[C]] = []
    for candidate in candidates:
        if limits.patience and good < inf and in_vain >= limits.patience:
            break
        if good < inf and (time.perf_counter() - start) * 1e3 > limits.budget_ms:
            found.append(Attempt(candidate, problem="not reached (dnn.conv.time_budget)"))
            continue
        one = _one(bench, candidate, good)
        found.append(one)
        ms = _ms(one) if one.usable else inf
        in_vain = 0 if ms < _LEAST_GAIN_RATIO * good else in_vain + 1
        good = min(good, ms)
    return found


def _one(bench: Bench[C], candidate: C, good_ms: float) -> Attempt[C]:
    try:
        error, once_ms = bench.check(candidate, good_ms)
        if not error <= bench.error_limit:
            wrong = f"its result is off by {error:.2g}, {bench.error_limit:.2g} allowed"
            return Attempt(candidate, error=error, problem=wrong)
        if once_ms > min(_LONG_RUN_MS, _LAUNCH_MS + _HOPELESS_RATIO * good_ms):
            return Attempt(candidate, once_ms, error)
        return Attempt(candidate, bench.time(candidate, good_ms), error)
    except (SymdnnError, RuntimeError, MemoryError) as error:
        return Attempt(candidate, problem=short(error))


def _final(bench: Bench[C], found: Sequence[Attempt[C]]) -> list[Attempt[C]]:
    """The table with the fastest few timed again, in turn."""
    usable = sorted((a for a in found if a.usable), key=_ms)
    finalists = [a for a in usable[:_FINALISTS] if _ms(a) <= _FINALIST_RATIO * _ms(usable[0])]
    if len(finalists) < 2:
        return list(found)
    times = bench.race([a.candidate for a in finalists])
    again = {id(a): ms for a, ms in zip(finalists, times, strict=True)}
    return [replace(a, ms=again.get(id(a), a.ms)) for a in found]


def best_of(found: Sequence[Attempt[Any]], by: str = "time") -> Attempt[Any] | None:
    """The best by ``time``, ``memory`` (time decides among equals) or ``energy``; None: none is
    usable. Candidates have ``workspace_bytes`` where it is not by time alone."""
    usable = [a for a in found if a.usable]
    if by == "energy":
        usable = [a for a in usable if a.millijoules is not None]
    return min(usable, key=lambda a: _cost(a, by), default=None)


def _cost(a: Attempt[Any], by: str) -> tuple[Any, ...]:
    nbytes = getattr(a.candidate, "workspace_bytes", 0)
    if by == "memory":
        return nbytes, _ms(a)
    return (a.millijoules if by == "energy" else _ms(a)), nbytes


def _ms(a: Attempt[Any]) -> float:
    return inf if a.ms is None else a.ms


def short(error: BaseException) -> str:
    """An error in one line."""
    return (str(error).splitlines() or [type(error).__name__])[0]
