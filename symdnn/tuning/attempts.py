"""Measurement of candidates on a device: is the result right, and how long does it take?

A candidate that is wrong, that fails (no memory) or that is not reached within the time budget
stays in the table with the reason. The fastest few are timed again, in turn, so that a change of
the clock rate does not decide.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Generic, TypeVar

import numpy as np

from symdnn.config import config
from symdnn.errors import SymdnnError
from symdnn.graph.typing import Array
from symdnn.tuning.allowance import left_ms
from symdnn.tuning.objective import costs

_MAX_FINALISTS = 6
#: A candidate is not timed again if its first run takes longer than this ratio of the best time
#: plus the overhead of a launch.
_HOPELESS_RATIO, _LAUNCH_OVERHEAD_MS = 1.5, 0.2
_LONG_RUN_MS = 2.0  # a candidate whose first run takes longer is not timed again before the race
_FINALIST_RATIO = 1.15  # slower candidates, relative to the best, are not timed again
_SAME_COST_RATIO = 1.02  # a difference that repeating would not show again
#: So many candidates are tried however fast they are. (In 80 searches on an H200 the first one
#: within 3% of the fastest was among the first 9.)
_LEAST_TRIED = 9
_IMPROVEMENT_RATIO = 0.98  # a smaller gain does not count as an improvement for ``patience``

C = TypeVar("C")


@dataclass(frozen=True)
class Attempt(Generic[C]):
    """A candidate with its time in milliseconds, or the reason why it has none.

    ``error`` is the relative error of its result against a trusted one. ``millijoules`` is measured
    if the choice is by energy.
    """

    candidate: C
    ms: float | None = None
    error: float | None = None
    millijoules: float | None = None
    problem: str = ""

    @property
    def usable(self) -> bool:
        """Whether its result was right and it was timed."""
        return self.ms is not None and not self.problem

    @property
    def wrong(self) -> bool:
        """Whether it ran, and its result was wrong."""
        return self.error is not None and self.ms is None and bool(self.problem)


@dataclass(frozen=True)
class Limits:
    """When a measurement tries no further candidates.

    That is after ``budget_ms`` milliseconds, after ``patience`` candidates in a row without an
    improvement (0: never), or when it has taken as long as ``runs`` runs of the best candidate and
    has tried a few: a search that costs more than it can save is worth nothing.
    """

    budget_ms: float = inf
    patience: int = 0
    runs: float = inf


class Bench(ABC, Generic[C]):
    """The environment in which candidates run: operands, a trusted result, a clock."""

    #: Largest error of a right result.
    error_limit: float = 0.0
    #: The trusted results; None before the first candidate has run.
    trusted: Sequence[Array] | None = None

    def results(self, candidate: C) -> Sequence[Array]:
        """The results of a run, on the host, for the default of :meth:`check`."""
        raise NotImplementedError

    def check(self, candidate: C, good_ms: float) -> tuple[float, float]:
        """Run a candidate once: (error of its result, rough time in milliseconds, 0 if not known).

        The default compares :meth:`results` with those of the first candidate that runs. Raises
        :class:`~symdnn.errors.SymdnnError` or ``RuntimeError`` if it fails.
        """
        got = self.results(candidate)
        if self.trusted is None:
            self.trusted = got
        return max(map(difference, self.trusted, got)), 0.0

    @abstractmethod
    def time(self, candidate: C, good_ms: float) -> float:
        """Milliseconds of one run; may be an estimate if it is far above ``good_ms``, the best."""

    def tried(self, candidate: C, timed: bool = True, good_ms: float = inf) -> Attempt[C]:
        """Check a candidate, and time it if its result is right."""
        try:
            error, once_ms = self.check(candidate, good_ms)
            if not error <= self.error_limit:
                wrong = f"its result is off by {error:.2g}, {self.error_limit:.2g} allowed"
                return Attempt(candidate, error=error, problem=wrong)
            if once_ms > min(_LONG_RUN_MS, _LAUNCH_OVERHEAD_MS + _HOPELESS_RATIO * good_ms):
                return Attempt(candidate, once_ms, error)
            return Attempt(candidate, self.time(candidate, good_ms) if timed else None, error)
        except (SymdnnError, RuntimeError, MemoryError) as error:
            return Attempt(candidate, problem=short(error))

    def race(self, candidates: Sequence[C]) -> list[float]:
        """Milliseconds of each candidate, timed again in turn."""
        return [self.time(c, inf) for c in candidates]


def measure(
    bench: Bench[C], candidates: Iterable[C], limits: Limits | None = None
) -> list[Attempt[C]]:
    """Check each candidate, time those with a right result, and time the fastest few again.

    Without ``limits`` the flag ``dnn.conv.time_budget`` is the budget.
    """
    within = limits or Limits(float(config.dnn.conv.time_budget))
    within = replace(within, budget_ms=min(within.budget_ms, left_ms()))
    return _race_finalists(bench, _first_round(bench, candidates, within))


def _first_round(bench: Bench[C], candidates: Iterable[C], limits: Limits) -> list[Attempt[C]]:
    start, good, in_vain = time.perf_counter(), inf, 0
    found: list[Attempt[C]] = []
    for candidate in candidates:
        if limits.patience and good < inf and in_vain >= limits.patience:
            break
        spent_ms = (time.perf_counter() - start) * 1e3
        if len(found) >= _LEAST_TRIED and spent_ms > limits.runs * good:
            break
        if good < inf and spent_ms > limits.budget_ms:
            found.append(Attempt(candidate, problem="not reached (dnn.conv.time_budget)"))
            continue
        one = bench.tried(candidate, good_ms=good)
        found.append(one)
        ms = _ms(one) if one.usable else inf
        in_vain = 0 if ms < _IMPROVEMENT_RATIO * good else in_vain + 1
        good = min(good, ms)
    return found


def _race_finalists(bench: Bench[C], found: Sequence[Attempt[C]]) -> list[Attempt[C]]:
    """The table after the fastest few were timed again, in turn."""
    usable = sorted((a for a in found if a.usable), key=_ms)
    finalists = [a for a in usable[:_MAX_FINALISTS] if _ms(a) <= _FINALIST_RATIO * _ms(usable[0])]
    if len(finalists) < 2:
        return list(found)
    times = bench.race([a.candidate for a in finalists])
    again = {id(a): ms for a, ms in zip(finalists, times, strict=True)}
    return [replace(a, ms=again.get(id(a), a.ms)) for a in found]


def best_of(found: Sequence[Attempt[Any]], by: str = "time") -> Attempt[Any] | None:
    """The best attempt by an objective (flag ``dnn.conv.objective``); None if none is usable.

    Of attempts whose costs are the same to 2 % it is the one of least
    ``workspace_bytes`` (of those with any). By ``memory`` the workspace is compared first.
    """
    usable = [a for a in found if a.usable]
    (cost,) = costs([usable], by)
    sizes = [getattr(a.candidate, "workspace_bytes", 0) for a in usable]
    most = inf if by == "memory" else _SAME_COST_RATIO * min(cost, default=inf)
    ranked = [(sizes[i], c, i) for i, c in enumerate(cost) if c < inf and c <= most]
    return usable[min(ranked)[2]] if ranked else None


def _ms(a: Attempt[Any]) -> float:
    return inf if a.ms is None else a.ms


def difference(want: Array, got: Array) -> float:
    """The largest difference, relative to the largest value; infinite if only one is finite.

    >>> difference(np.array([1.0, 2.0]), np.array([1.0, 1.5]))
    0.25
    """
    kind = np.complex128 if want.dtype.kind == "c" else np.float64
    with np.errstate(invalid="ignore"):  # elements that were not written may be any NaN
        a, b = want.astype(kind), got.astype(kind)
    finite = np.isfinite(a)
    if not np.array_equal(finite, np.isfinite(b)):
        return inf
    size = float(np.abs(a[finite]).max(initial=0.0))
    largest = float(np.abs(a[finite] - b[finite]).max(initial=0.0))
    return largest / size if size else (0.0 if largest == 0 else inf)


def short(error: BaseException) -> str:
    """The first line of an error's text, or its type."""
    return (str(error).splitlines() or [type(error).__name__])[0]
