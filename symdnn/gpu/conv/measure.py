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
from symdnn.tuning.objective import measures_energy

#: Energy is measured of candidates up to this many times slower than the fastest. Slower ones use
#: more.
_ENERGY_MAX_TIME_RATIO = 2.0


def measure(
    context: Context,
    signature: ConvSignature,
    candidates: Iterable[Candidate],
    budget_ms: float = inf,
    by: str = "time",
    patience: int = 0,
    runs: int = 0,
    two: Any = None,
) -> tuple[list[Attempt[Candidate]], str]:
    """Attempts of all candidates, and why none could be measured, else ``""``.

    No further candidate is measured after ``budget_ms`` milliseconds, when ``patience`` in a row
    were not faster, or after the time of so many ``runs`` of the fastest (0: no limit). ``by`` is a
    value of the flag ``dnn.conv.objective``.
    ``two`` are the kernels whose result is the reference of a convolution with an epilogue.
    """
    try:
        with Bench(context, signature) as bench:
            bench.compute_reference(two)
            limits = Limits(budget_ms, patience, runs or inf)
            found = attempts.measure(bench, candidates, limits)
            return (_metered(bench, found) if measures_energy(by) else found), ""
    except (SymdnnError, RuntimeError) as error:
        return [], short(error)


def _metered(bench: Bench, found: Sequence[Attempt[Candidate]]) -> list[Attempt[Candidate]]:
    """The attempts, with the energy of the fast ones."""
    meter = energy.meter(bench.context)
    fastest = min((a.ms or inf for a in found if a.usable), default=inf)
    made: list[Attempt[Any]] = []
    for a in found:
        if a.usable and (a.ms or inf) <= _ENERGY_MAX_TIME_RATIO * fastest:
            with bench.repeating(a.candidate) as enqueue:
                a = replace(a, millijoules=meter.millijoules(enqueue, a.ms or inf))
        made.append(a)
    return made
