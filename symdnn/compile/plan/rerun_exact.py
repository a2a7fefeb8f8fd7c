"""The least time of all schedules that keep to a bound, by an integer program.

A schedule says only which units run before each stage: how long a value is stored follows from its
readers. So the integer program has a variable for each unit and stage (it runs), and for each value
and stage (it is stored before the stage). It is the program of P. Jain et al., "Checkmate: breaking
the memory wall with optimal tensor rematerialization" (2020), for the stages of
:class:`~symdnn.compile.plan.reruns.Reruns`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from symdnn.compile.plan.reruns import Found, Reruns

#: The most units that may run again times stages for which a program is solved.
_MOST_PAIRS = 600
#: Seconds for all programs of a plan, and for one of them.
_SECONDS, _SECONDS_EACH = 6.0, 3.0
#: A solution this near the lower bound counts as optimal.
_GAP = 1e-4

Terms = Sequence[tuple[int, float]]


@dataclass(frozen=True)
class Exact:
    """A schedule, and a time that no schedule within the bound is below; None: not known."""

    found: Found
    least_seconds: float | None = None

    def gap(self, total: float) -> float | None:
        """By how much another schedule may be quicker at most, as a part of ``total`` seconds."""
        least = self.least_seconds
        return None if least is None else max(self.found.seconds - least, 0.0) / total


class Solver:
    """Solves the programs of one plan while its seconds last."""

    def __init__(self, reruns: Reruns, seconds: float = _SECONDS) -> None:
        self.reruns, self.left = reruns, seconds
        self.small = 0 < len(reruns.free) * len(reruns.stages) <= _MOST_PAIRS

    def improved(self, bound: float, found: Found) -> Exact:
        """The best schedule within ``bound``, or ``found`` where the solver has no better one."""
        if not self.small or self.left <= 0 or (found.peak <= bound and not found.seconds):
            return Exact(found)
        began = time.perf_counter()
        program = _Program(self.reruns, bound)
        best, least = program.solved(min(self.left, _SECONDS_EACH))
        self.left -= time.perf_counter() - began
        fits = found.peak <= bound
        if best is not None and best.peak <= bound and not (fits and found.seconds <= best.seconds):
            found, fits = best, True
        if least is not None and fits:
            least = min(least, found.seconds)
        return Exact(found, least)


class _Program:
    """Variables and rows of the program; each row is a sum of terms that is at most its limit.

    Variables of runs come first, then those of values that are there: these are 0 or 1. The others
    say that a value is needed by a unit of a stage or one after it, and are as large as they must.
    """

    def __init__(self, reruns: Reruns, bound: float) -> None:
        self.reruns, self.bound = reruns, bound
        self.scale = max(bound, 1.0)
        self.rows: list[int] = []
        self.columns: list[int] = []
        self.entries: list[float] = []
        self.limits: list[float] = []
        stages, values = range(len(reruns.stages)), range(len(reruns.values))
        self.runs = {
            (t, u): k for k, (t, u) in enumerate((t, u) for t in stages for u in reruns.free)
        }
        begin = len(self.runs)
        self.there = {
            (t, i): begin + k for k, (t, i) in enumerate((t, i) for t in stages for i in values)
        }
        self.whole = self.count = begin + len(self.there)
        self.consumers: list[list[int]] = [[] for _ in values]
        for u in reruns.free:
            for i in reruns.needs[u]:
                self.consumers[i].append(u)
        for t in stages:
            self._stage(t)
        self._forward()
        self.highest = np.ones(self.count)
        for (t, i), k in self.there.items():
            if reruns.last_read[i] < t and not self.consumers[i]:
                self.highest[k] = 0

    def solved(self, seconds: float) -> tuple[Found | None, float | None]:
        """A schedule, and a lower bound on the seconds of all; None for missing ones."""
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        cost, integral = np.zeros(self.count), np.zeros(self.count)
        for (_, u), k in self.runs.items():
            cost[k] = self.reruns.cost[u] / self.reruns.total
        integral[: self.whole] = 1
        places = self.rows, self.columns
        matrix = csr_array((self.entries, places), shape=(len(self.limits), self.count))
        solved = milp(
            cost, integrality=integral, bounds=Bounds(0, self.highest),
            constraints=LinearConstraint(matrix, -np.inf, self.limits),
            options={"mip_rel_gap": _GAP, "time_limit": seconds},
        )  # fmt: skip
        found = None if solved.x is None else self._schedule(solved.x)
        least = solved.mip_dual_bound
        known = least is not None and np.isfinite(least)
        return found, max(float(least), 0.0) * self.reruns.total if known else None

    def _schedule(self, x: np.ndarray) -> Found:
        own: dict[int, list[int]] = {}
        for (t, u), k in self.runs.items():
            if x[k] > 0.5:
                own.setdefault(t, []).append(u)
        runs = [(t, sorted(units)) for t, units in sorted(own.items())]
        seconds = sum(self.reruns.cost[u] for _, units in runs for u in units)
        return Found(self.reruns.peak_of(runs), seconds, runs)

    def _at_most(self, terms: Terms, limit: float) -> None:
        self.rows += [len(self.limits)] * len(terms)
        self.columns += [k for k, _ in terms]
        self.entries += [c for _, c in terms]
        self.limits.append(limit)

    def _made(self, t: int, i: int) -> Terms:
        """That a value is there in a stage: from before, or by a run."""
        run = self.runs.get((t, self.reruns.unit_of[i]))
        return [(self.there[t, i], 1.0)] + ([] if run is None else [(run, 1.0)])

    def _stage(self, t: int) -> None:
        """The inputs of a stage and of the runs before it are stored, and all fit in memory."""
        r = self.reruns
        for i in range(len(r.values)):
            if i in r.reads[t]:
                self._at_most([(k, -c) for k, c in self._made(t, i)], -1.0)
            self._at_most(self._made(t, i), 1.0)
            later = self.there.get((t + 1, i))
            if later is not None:
                self._at_most([(later, 1.0), *((k, -c) for k, c in self._made(t, i))], 0.0)
        for u in r.free:
            for i in r.needs[u]:
                terms = [(k, -c) for k, c in self._made(t, i)]
                self._at_most([(self.runs[t, u], 1.0), *terms], 0.0)
        needed = [self._needed(t, i) for i in range(len(r.values))]
        for u in r.free:
            run = self.runs[t, u]
            terms, fixed = [(run, r.beside[u])], r.before_stage[t]
            for i, size in enumerate(r.sizes):
                w = r.unit_of[i]
                if w < u:
                    term = next(k for v, k in needed[i] if v >= u)
                    if term == _ALWAYS:
                        fixed += size
                    elif term != _NEVER:
                        terms.append((term, size))
                else:
                    terms.append((self.there[t, i], size))
                    if w == u:
                        terms.append((run, size))
            self._fits(terms, fixed)
        after = [
            (self.there[t + 1, i], i) for i in range(len(r.values)) if (t + 1, i) in self.there
        ]
        read = set(r.reads[t])
        inside = [(k, r.sizes[i]) for k, i in after if i not in read]
        self._fits(inside, r.in_stage[t] + sum(r.sizes[i] for i in read))
        self._fits([(k, r.sizes[i]) for k, i in after], r.after_stage[t])

    def _needed(self, t: int, i: int) -> list[tuple[int, int]]:
        """Up to which unit each variable says that a value is needed in a stage or after it."""
        last = _ALWAYS if i in self.reruns.reads[t] else self.there.get((t + 1, i), _NEVER)
        found = [(len(self.reruns.units), last)]
        for u in reversed(self.consumers[i]):
            k = _ALWAYS
            if last != _ALWAYS:
                k, self.count = self.count, self.count + 1
                self._at_most([(self.runs[t, u], 1.0), (k, -1.0)], 0.0)
                if last != _NEVER:
                    self._at_most([(last, 1.0), (k, -1.0)], 0.0)
            found.append((u, k))
            last = k
        return found[::-1]

    def _forward(self) -> None:
        """Values before the first stage have been stored since they were made."""
        r = self.reruns
        steps = sorted({0, *(k for k in r.unread if k < len(r.forward))})
        for begin, end in zip(steps, [*steps[1:], len(r.forward)]):
            terms = [(self.there[0, i], r.sizes[i]) for i, k in enumerate(r.unread) if k <= begin]
            self._fits(terms, float(r.forward[begin:end].max(initial=0)))

    def _fits(self, terms: Terms, fixed: float) -> None:
        limit = (self.bound - fixed) / self.scale
        self._at_most([(k, c / self.scale) for k, c in terms], limit)


#: Constants in place of variables: a value that is always needed, and one that never is.
_ALWAYS, _NEVER = -1, -2
