"""Candidates of a convolution measured on the device: by time, memory or energy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from symdnn.errors import SymdnnError
from symdnn.gpu.conv.bench import Bench
from symdnn.gpu.conv.candidate import Candidate
from symdnn.gpu.conv.signature import ConvSignature
from symdnn.gpu.device import energy
from symdnn.gpu.device.context import Context
from symdnn.tuning import attempts
from symdnn.tuning.attempts import Attempt, Limits, short

__all__ = ["measure"]

#: Candidates whose energy is measured: beyond a few times the fastest none uses less.
_METERED_RATIO = 2.0


def measure(
    context: Context,
    signature: ConvSignature,
    candidates: Iterable[Candidate],
    budget_ms: float = inf,
    by: str = "time",
    patience: int = 0,
) -> tuple[list[Attempt[Candidate]], str]:
    """Each candidate measured, and what was wrong with all of them, if anything.

    New ones are taken up for ``budget_ms`` milliseconds, and until ``patience`` in a row were not
    faster (0: all). ``by`` is a value of the flag ``dnn.conv.choose_by``.
    """
    try:
        with Bench(context, signature) as bench:
            bench.trust()
            found = attempts.measure(bench, candidates, Limits(budget_ms, patience))
            return (_metered(bench, found) if by == "energy" else found), ""
    except SymdnnError as error:
        return [], short(error)


def _metered(bench: Bench, found: Sequence[Attempt[Candidate]]) -> list[Attempt[Candidate]]:
    """The table with the energy of those that are fast enough to be worth the time."""
    meter = energy.meter(bench.context)
    fastest = min((a.ms or inf for a in found if a.usable), default=inf)
    made: list[Attempt[Any]] = []
    for a in found:
        if a.usable and (a.ms or inf) <= _METERED_RATIO * fastest:
            with bench.repeating(a.candidate) as enqueue:
                a = replace(a, millijoules=meter.millijoules(enqueue, a.ms or inf))
        made.append(a)
    return made
