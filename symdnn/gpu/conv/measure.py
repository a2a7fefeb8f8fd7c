"""Candidates of a convolution measured on the device: is the result right, how long does it take.

What is not right, not there (no memory) or not reached within the time allowed stays in the table
with the reason. The best few are timed once more, in turn, so that a clock that changes between
them does not decide.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from symdnn.errors import SymdnnError
from symdnn.gpu.conv.bench import Bench
from symdnn.gpu.conv.candidate import Candidate
from symdnn.gpu.conv.signature import ConvSignature
from symdnn.gpu.device import energy
from symdnn.gpu.device.context import Context

__all__ = ["Measured", "best_of", "measure"]

_FINALISTS = 6
_ROUNDS = 5
#: A first run that takes so many times the best time, beside what its launch may cost, is enough.
_FAR, _LAUNCH_MS = 1.5, 0.2
_LONG_MS = 2.0  # one run is long enough to tell, until the race
_NEAR = 1.15  # what is slower by more does not enter the final
_GAIN = 0.98  # what is faster by less is no reason to go on
#: Candidates whose energy is measured: beyond a few times the fastest none uses less.
_METERED = 2.0


@dataclass(frozen=True)
class Measured:
    """A candidate with its time in milliseconds, or why it has none.

    ``error`` is that of its result, relative to a trusted algorithm's; ``millijoules`` is there
    where energy was asked for.
    """

    candidate: Candidate
    ms: float | None = None
    error: float | None = None
    millijoules: float | None = None
    problem: str = ""

    @property
    def usable(self) -> bool:
        """Whether it was right and timed."""
        return self.ms is not None and not self.problem


def measure(
    context: Context,
    signature: ConvSignature,
    candidates: Iterable[Candidate],
    budget_ms: float = inf,
    by: str = "time",
    patience: int = 0,
) -> tuple[list[Measured], str]:
    """Each candidate measured, and what was wrong with all of them, if anything.

    New ones are taken up for ``budget_ms`` milliseconds, and until ``patience`` in a row were not
    faster (0: all). ``by`` is a value of the flag ``dnn.conv.choose_by``.
    """
    try:
        with Bench(context, signature) as bench:
            bench.trust()
            found = _first_round(bench, candidates, budget_ms, patience)
            found = _final(bench, found)
            return (_metered(bench, found) if by == "energy" else found), ""
    except SymdnnError as error:
        return [], _short(error)


def _first_round(
    bench: Bench, candidates: Iterable[Candidate], budget_ms: float, patience: int
) -> list[Measured]:
    start, good, in_vain = time.perf_counter(), inf, 0
    found: list[Measured] = []
    for candidate in candidates:
        if patience and good < inf and in_vain >= patience:
            break
        if good < inf and (time.perf_counter() - start) * 1e3 > budget_ms:
            found.append(Measured(candidate, problem="not reached (dnn.conv.time_budget)"))
            continue
        one = _one(bench, candidate, good)
        found.append(one)
        ms = _ms(one) if one.usable else inf
        in_vain = 0 if ms < _GAIN * good else in_vain + 1
        good = min(good, ms)
    return found


def _one(bench: Bench, candidate: Candidate, good_ms: float) -> Measured:
    try:
        error, once_ms = bench.check(candidate, good_ms)
        if not error <= bench.error_limit:
            wrong = f"its result is off by {error:.2g}, {bench.error_limit:.2g} allowed"
            return Measured(candidate, error=error, problem=wrong)
        if once_ms > min(_LONG_MS, _LAUNCH_MS + _FAR * good_ms):
            return Measured(candidate, once_ms, error)
        return Measured(candidate, bench.time(candidate, good_ms), error)
    except (SymdnnError, RuntimeError) as error:
        return Measured(candidate, problem=_short(error))


def _final(bench: Bench, found: Sequence[Measured]) -> list[Measured]:
    """The table with the fastest few timed again, in turn."""
    usable = sorted((m for m in found if m.usable), key=_ms)
    finalists = [m for m in usable[:_FINALISTS] if _ms(m) <= _NEAR * _ms(usable[0])]
    if len(finalists) < 2:
        return list(found)
    times = bench.race([m.candidate for m in finalists], _ROUNDS)
    again = {id(m): ms for m, ms in zip(finalists, times, strict=True)}
    return [replace(m, ms=again.get(id(m), m.ms)) for m in found]


def _metered(bench: Bench, found: Sequence[Measured]) -> list[Measured]:
    """The table with the energy of those that are fast enough to be worth the time."""
    meter = energy.meter(bench.context)
    fastest = min((_ms(m) for m in found if m.usable), default=inf)
    made = []
    for m in found:
        if m.usable and _ms(m) <= _METERED * fastest:
            with bench.repeating(m.candidate) as enqueue:
                m = replace(m, millijoules=meter.millijoules(enqueue, _ms(m)))
        made.append(m)
    return made


def best_of(found: Sequence[Measured], by: str) -> Measured | None:
    """The best by ``time``, ``memory`` (time decides among equals) or ``energy``."""
    usable = [m for m in found if m.usable]
    if by == "energy":
        usable = [m for m in usable if m.millijoules is not None]
    return min(usable, key=lambda m: _cost(m, by), default=None)


def _cost(m: Measured, by: str) -> tuple[Any, ...]:
    if by == "memory":
        return m.candidate.workspace_bytes, _ms(m)
    return (m.millijoules if by == "energy" else _ms(m)), m.candidate.workspace_bytes


def _ms(m: Measured) -> float:
    return inf if m.ms is None else m.ms


def _short(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
