"""Search for the nodes to recompute: the least time within a memory bound.

The search starts from regular choices: the forward pass is cut into segments whose inputs are
stored, and the last segment is stored whole (T. Chen et al., "Training deep nets with sublinear
memory cost", 2016). Simulated annealing improves the best of them (S. Kirkpatrick, C. Gelatt and M.
Vecchi, "Optimization by simulated annealing", 1983). A move changes one unit or several neighbours,
or swaps two units. The random numbers have a fixed seed, so each run finds the same choice. Runs
that it does not need are left out in the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf, log
from random import Random

from symdnn.compile.plan.reruns import Found, Reruns, Way

Ways = list[Way]
#: Numbers of segments, and shares of the forward pass that are stored whole.
_PARTS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32)
_LAST_PARTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
#: The most choices that are evaluated, and the most evaluations times units and stages.
_MOST_LOOKS, _MOST_WORK = 2500, 600_000
#: The initial temperature: a multiple of a unit's mean time, at most this share of the time of all
#: nodes.
_WARM_UNITS, _WARMEST = 4.0, 0.04
#: The cost of memory above the bound, in time. Both are shares of the whole.
_ABOVE, _STEP_ABOVE = 3.0, 0.05
#: The cost of memory in a search that ignores time.
_MEMORY_ALONE = 100.0


@dataclass(frozen=True)
class Choice:
    """The way of each unit, with the time and memory of the whole, which may run less than that."""

    ways: Sequence[Way]
    found: Found


def search(reruns: Reruns, bound: float) -> Choice | None:
    """The choice of the least time with live bytes in ``bound``; else that of the least bytes.

    None if no node may be recomputed.
    """
    if not reruns.free or not reruns.stages:
        return None
    best = _Annealing(reruns, bound, _ABOVE).run()
    if best.found.peak > bound:
        least = _Annealing(reruns, 0.0, _MEMORY_ALONE).run()
        best = min(best, least, key=lambda c: (c.found.peak, c.found.seconds))
        best = _Annealing(reruns, max(bound, best.found.peak), _ABOVE).run(best.ways)
    return replace(best, found=_without_idle_runs(reruns, best.found, max(bound, best.found.peak)))


def _without_idle_runs(reruns: Reruns, found: Found, bound: float) -> Found:
    """Without the runs for whose values there is room until they are read; the longest first."""
    runs = dict(found.runs)
    order = sorted(((t, u) for t in runs for u in runs[t]), key=lambda p: -reruns.cost[p[1]])
    for t, u in order[: _looks(reruns)]:
        fewer = {**runs, t: [w for w in runs[t] if w != u]}
        peak = reruns.peak_of([*fewer.items()])
        if peak <= bound:
            runs, found = fewer, Found(peak, found.seconds - reruns.cost[u], [*fewer.items()])
    return found


def _looks(reruns: Reruns) -> int:
    """How many choices are evaluated."""
    return min(_MOST_LOOKS, _MOST_WORK // (len(reruns.units) + len(reruns.stages)))


class _Annealing:
    """One search. Choices are compared by time, plus a cost for bytes above the bound."""

    def __init__(self, reruns: Reruns, bound: float, above: float) -> None:
        self.reruns, self.bound, self.above = reruns, bound, above
        kept: Ways = [Way.KEPT] * len(reruns.units)
        self.whole = reruns.cost_of(kept).peak or 1.0
        self.best = Choice(kept, reruns.cost_of(kept))
        self.random = Random(0)
        costly = [u for u in reruns.free if reruns.costly[u]]
        cheap = [u for u in reruns.free if not reruns.costly[u]]
        self.groups = [g for g in (costly, cheap) if g]

    def run(self, begin: Sequence[Way] | None = None) -> Choice:
        """The best choice that was met, from regular ones or another one on."""
        first = self._regular() if begin is None else [list(begin)]
        found = [(self._badness(self._look(ways)), ways) for ways in first]
        now, ways = min(found, key=lambda p: p[0])
        looks = _looks(self.reruns)
        mean = sum(self.reruns.cost[u] for u in self.reruns.free) / len(self.reruns.free)
        warm = min(_WARMEST, _WARM_UNITS * mean / self.reruns.total)
        for k in range(looks):
            warmth = warm * (1 - k / looks) ** 2
            limit = now - warmth * log(1 - self.random.random())
            new = self._moved(ways)
            if new != ways and (badness := self._badness(self._look(new, limit))) <= limit:
                now, ways = badness, new
        return self.best

    def _look(self, ways: Ways, limit: float = inf) -> Found:
        found = self.reruns.cost_of(ways, limit * self.reruns.total)
        if found.seconds < inf and self._rank(found) < self._rank(self.best.found):
            self.best = Choice(ways, found)
        return found

    def _rank(self, found: Found) -> tuple[float, float]:
        """Choices within the bound by their seconds, others by their bytes."""
        return max(found.peak, self.bound), found.seconds

    def _badness(self, found: Found) -> float:
        above = (found.peak - self.bound) / self.whole
        extra = self.above * above + _STEP_ABOVE if above > 0 else 0.0
        return found.seconds / self.reruns.total + extra

    def _moved(self, ways: Ways) -> Ways:
        """A choice beside another one."""
        group, new = self.random.choice(self.groups), list(ways)
        kind = self.random.random()
        if kind < 0.25:
            a, b = self.random.choice(group), self.random.choice(group)
            new[a], new[b] = new[b], new[a]
            return new
        count = 1 if kind < 0.7 else self.random.choice((2, 3, 4, 6, 8))
        begin, way = self.random.randrange(len(group)), self.random.choice(list(Way))
        for u in group[begin : begin + count]:
            new[u] = way
        return new

    # -- regular choices ------------------------------------------------------------------------

    def _regular(self) -> Iterator[Ways]:
        yield list(self.best.ways)
        crossings = self.reruns.crossings()
        for share in _LAST_PARTS:
            end = round(len(crossings) * (1 - share))
            for parts in _PARTS:
                if parts == 1 or 2 * parts <= end:
                    borders = self._borders(crossings, end, parts)
                    yield self._in_parts(borders, end, Way.ONCE)
                    yield self._in_parts(borders, end, Way.OFTEN)
                    yield self._in_parts(borders, end, Way.ONCE, Way.KEPT)

    def _borders(self, crossings: Sequence[set[int]], end: int, parts: int) -> set[int]:
        """The units whose values enter a part, or the last one, at the narrowest points nearby."""
        sizes = [sum(self._bytes(u) for u in units) for units in crossings]
        width = end / parts
        kept: set[int] = set()
        for k in range(1, parts + (end < len(crossings))):
            near = range(round((k - 0.5) * width), min(len(sizes), round((k + 0.5) * width) + 1))
            kept |= crossings[min(near, key=lambda i: (sizes[i], abs(i - k * width)))]
        return kept

    def _bytes(self, u: int) -> int:
        return sum(self.reruns.sizes[i] for i in self.reruns.made[u])

    def _in_parts(self, borders: set[int], end: int, cheap: Way, last: Way = Way.OFTEN) -> Ways:
        """Segments, and the way of cheap units in them and in the last part.

        With :attr:`Way.KEPT` for ``last`` no unit counts as cheap: kernels that are fused well take
        about as long as products.
        """
        ways: Ways = [Way.KEPT] * len(self.reruns.units)
        for u in self.reruns.free:
            if u not in borders and self.reruns.costly[u]:
                ways[u] = Way.ONCE if u < end else Way.KEPT
            elif u not in borders:
                ways[u] = cheap if u < end else last
        return ways
