"""Which nodes of a segment may be recomputed, and the memory and time of a choice.

Nodes run in the order of the program. The *turn* is the step at which most bytes wait for later
steps; before it is the forward pass. A *unit* is a node of the forward pass with large results. Its
:class:`Way` says whether they are stored, or dropped after the forward pass and recomputed. A
*stage* is a later node that reads such values: before it runs, missing inputs are recomputed, and
their inputs. Small values are always stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from math import inf

import numpy as np

from symdnn.compile.plan.memory_order import bytes_of, is_view
from symdnn.compile.plan.node_costs import seconds_of
from symdnn.compile.plan.result_block import shares_results
from symdnn.compile.plan.specialise import Specialised
from symdnn.graph.place import HOST
from symdnn.graph.type import OpaqueType
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.control.checkpoint import After
from symdnn.ops.lowered.transfer import GpuFromHost, HostFromGpu

#: A gap of fewer nodes is no reason to compute a value again.
_SHORTEST_GAP = 4
#: Seconds for each byte of a result above which a value is costly to compute again: some passes
#: over memory.
_CHEAP = {"host": 8e-10, "device": 4e-12}
#: Values of less than this share of the mean size of a node's results stay.
_SMALL = 0.05


class Way(IntEnum):
    """How the values of a unit reach the steps after the forward pass."""

    #: They stay until they have been read.
    KEPT = 0
    #: They are dropped, computed again when something needs them first, and stay from then on.
    ONCE = 1
    #: They are dropped, computed again for each value that needs them, and stay from the first to
    #: the last stage that reads them itself.
    OFTEN = 2


@dataclass(frozen=True)
class Found:
    """The cost of a choice: live bytes, seconds, and the units that run before each stage.

    ``seconds`` is infinite where a search gave up on the choice.
    """

    peak: float
    seconds: float
    runs: Sequence[tuple[int, Sequence[int]]] = ()


class Reruns:
    """The units and stages of a segment. Values are known by their numbers, and so are units."""

    def __init__(self, spec: Specialised) -> None:
        self.spec, self.nodes = spec, spec.segment.nodes
        self.step = {n: i for i, n in enumerate(self.nodes)}
        self.is_view = {n: is_view(n) for n in self.nodes}
        self.root: dict[Variable, Variable] = {}
        for n in self.nodes:
            if self.is_view[n]:
                source = n.inputs[n.op.views[0]]
                self.root[n.outputs[0]] = self.root.get(source, source)
        #: Results and the values behind them are not in the arena. Where they share memory with
        #: other values they count from the steps that make them.
        self.shared = shares_results(spec)
        self.leaving = {self.root.get(v, v) for v in spec.segment.outputs}
        self.size = {v: bytes_of(spec, v) for n in self.nodes for v in n.outputs}
        self.seconds = {
            n: 0.0 if self.is_view[n] else seconds_of(spec.call(n), spec.segment.place)
            for n in self.nodes
        }
        self.total = sum(self.seconds.values()) or 1.0
        self.readers = self._readers()
        self.turn = self._turn()
        least = sum(self.size.values()) / len(self.nodes) * _SMALL
        self.values = [
            v for n in self.nodes[: self.turn + 1] if not self.is_view[n] for v in n.outputs
            if self.size[v] >= least and v not in self.leaving
        ]  # fmt: skip
        self.number = {v: i for i, v in enumerate(self.values)}
        self.units = list(dict.fromkeys(maker(v) for v in self.values))
        self._describe_units()
        self._describe_stages()
        self._describe_rest()

    def _readers(self) -> dict[Variable, list[int]]:
        """The steps that read each value, directly or through a view."""
        readers: dict[Variable, list[int]] = {}
        for i, n in enumerate(self.nodes):
            if not self.is_view[n]:
                for v in dict.fromkeys(self.root.get(v, v) for v in n.inputs):
                    readers.setdefault(v, []).append(i)
        return readers

    def _turn(self) -> int:
        """The step at which most bytes wait for a later step."""
        change = [0] * (len(self.nodes) + 1)
        for v, reads in self.readers.items():
            if v not in self.size or v in self.leaving or not self._may_run_again(maker(v)):
                continue
            steps = [self.step[maker(v)], *reads]
            length, a, b = max((b - a, a, b) for a, b in pairwise(steps))
            if length >= _SHORTEST_GAP:
                change[a] += self.size[v]
                change[b] -= self.size[v]
        waiting = np.cumsum(change)
        return min(int(waiting.argmax()), len(self.nodes) - 1)

    def _may_run_again(self, n: Apply) -> bool:
        op = n.op
        if op.unmergeable or op.host_callback or op.private_draws:
            return False
        # Copies from the host come before a captured graph, not in it.
        if isinstance(op, After | GpuFromHost | HostFromGpu):
            return False
        opaque = any(isinstance(v.type, OpaqueType) for v in (*n.inputs, *n.outputs))
        return not opaque and all(self.spec.shapes.get(v) is not None for v in n.outputs)

    # -- units and stages -----------------------------------------------------------------------

    def _large(self, n: Apply) -> list[int]:
        """The numbers of the values that a node reads, itself or by views."""
        roots = dict.fromkeys(self.root.get(v, v) for v in n.inputs)
        return [self.number[v] for v in roots if v in self.number]

    def _describe_units(self) -> None:
        index = {n: u for u, n in enumerate(self.units)}
        self.unit_of = [index[maker(v)] for v in self.values]
        self.sizes = [self.size[v] for v in self.values]
        self.made = [[self.number[v] for v in n.outputs if v in self.number] for n in self.units]
        self.needs = [self._large(n) for n in self.units]
        self.cost = [self.seconds[n] for n in self.units]
        #: The bytes that a unit takes while it runs, beside the values that have numbers.
        self.beside = [
            sum(self.size[v] for v in n.outputs if v not in self.number)
            + self.spec.choices[n].workspace_bytes
            for n in self.units
        ]
        cheap = _CHEAP["host" if self.spec.segment.place == HOST else "device"]
        per_byte = [
            self.seconds[n] / (sum(self.size[v] for v in n.outputs) or 1) for n in self.units
        ]
        self.costly = [s > cheap for s in per_byte]
        effects = {
            self.root[n.outputs[0]] for n in self.nodes
            if self.is_view[n] and (n.op.unmergeable or n.op.host_callback)
        }  # fmt: skip
        #: Units that may run again, in the order of the forward pass.
        self.free = [
            u for u, n in enumerate(self.units)
            if self._may_run_again(n) and effects.isdisjoint(n.outputs)
            and all(self._waits(self.values[i]) for i in self.made[u])
        ]  # fmt: skip

    def _waits(self, v: Variable) -> bool:
        """Whether a value has no reader near the turn, as one without any later reader."""
        reads = self.readers.get(v, [])
        before = max((i for i in reads if i <= self.turn), default=self.step[maker(v)])
        after = min((i for i in reads if i > self.turn), default=len(self.nodes))
        return after - before >= _SHORTEST_GAP

    def _describe_stages(self) -> None:
        self.stages = [
            i for i, n in enumerate(self.nodes)
            if i > self.turn and not self.is_view[n] and self._large(n)
        ]  # fmt: skip
        self.reads = [self._large(self.nodes[i]) for i in self.stages]
        count = len(self.stages)
        self.first_read, self.last_read = [count] * len(self.values), [-1] * len(self.values)
        for t, read in enumerate(self.reads):
            for i in read:
                self.first_read[i] = min(self.first_read[i], t)
                self.last_read[i] = t

    def _describe_rest(self) -> None:
        """The bytes of all other values: in each stage, before it, and from it to the next one."""
        count = len(self.nodes)
        at, across = np.zeros(count + 1), np.zeros(count + 1)
        for i, n in enumerate(self.nodes):
            for v in () if self.is_view[n] else n.outputs:
                if v in self.number or (v in self.leaving and not self.shared):
                    continue
                last = count - 1 if v in self.leaving else self.readers.get(v, [i])[-1]
                at[i] += self.size[v]
                at[last + 1] -= self.size[v]
                across[min(i, last - 1) + 1] += self.size[v]
                across[last + 1] -= self.size[v]
        scratch = np.array([self.spec.choices[n].workspace_bytes for n in self.nodes])
        live, border = np.cumsum(at)[:-1] + scratch, np.cumsum(across)[:-1]
        self.in_stage = [float(live[i]) for i in self.stages]
        self.before_stage = [float(border[i]) for i in self.stages]
        ends = [*self.stages[1:], count]
        self.after_stage = [
            float(live[i + 1 : end].max(initial=0)) for i, end in zip(self.stages, ends)
        ]
        first = self.stages[0] if self.stages else count
        forward = np.zeros(count + 1)
        #: The step after the last one up to the turn that reads a value.
        self.unread = []
        for v in self.values:
            reads = [i for i in self.readers.get(v, ()) if i <= self.turn]
            self.unread.append(max(reads, default=self.step[maker(v)]) + 1)
            forward[self.step[maker(v)]] += self.size[v]
            forward[self.unread[-1]] -= self.size[v]
        self.forward = (np.cumsum(forward)[:-1] + live)[:first]

    # -- what a choice costs --------------------------------------------------------------------

    def cost_of(self, ways: Sequence[Way], most_seconds: float = inf) -> Found:
        """The cost of a way for each unit; infinite seconds if they exceed ``most_seconds``."""
        there = [ways[u] == Way.KEPT for u in self.unit_of]
        runs: list[tuple[int, Sequence[int]]] = []
        seconds = 0.0
        for t, read in enumerate(self.reads):
            if all([there[i] for i in read]):
                continue
            again = self._again(read, there)
            runs.append((t, again))
            seconds += sum([self.cost[u] for u in again])
            if seconds > most_seconds:
                return Found(inf, inf)
            for u in again:
                stays = ways[u] == Way.ONCE
                for i in self.made[u]:
                    there[i] = stays or self.first_read[i] <= t < self.last_read[i]
        return Found(self.peak_of(runs), seconds, runs)

    def peak_of(self, runs: Sequence[tuple[int, Sequence[int]]]) -> float:
        """The most live bytes where these units run before these stages.

        Each computation of a value is a row, and the value is alive in the events from ``begins``
        to ``ends``. Events are runs of units, stages, and the end after the last stage.
        """
        sizes, made, needs, before = self.sizes, self.made, self.needs, dict(runs)
        row = list(range(len(sizes)))
        held = list(row)
        begins, ends = [0] * len(sizes), [-1] * len(sizes)
        others: list[float] = []
        for t, read in enumerate(self.reads):
            for u in before.get(t, ()):
                event = len(others)
                for i in needs[u]:
                    ends[row[i]] = event
                for i in made[u]:
                    row[i] = len(begins)
                    held.append(i)
                    begins.append(event)
                    ends.append(event)
                others.append(self.before_stage[t] + self.beside[u])
            event = len(others)
            for i in read:
                ends[row[i]] = event
            others += (self.in_stage[t], self.after_stage[t])
        change = [0.0] * (len(others) + 1)
        for k, (begin, end) in enumerate(zip(begins, ends)):
            if end >= 0:
                change[begin] += sizes[held[k]]
                change[end + 1] -= sizes[held[k]]
        live = np.cumsum(change[:-1]) + others
        return max(float(live.max(initial=0)), self._forward_peak(ends))

    def _again(self, read: Sequence[int], there: Sequence[bool]) -> list[int]:
        """The units that run before a stage that reads values, in the order of the forward pass."""
        found: set[int] = set()
        pending = [i for i in read if not there[i]]
        while pending:
            u = self.unit_of[pending.pop()]
            if u not in found:
                found.add(u)
                pending += [i for i in self.needs[u] if not there[i]]
        return sorted(found)

    def _forward_peak(self, ends: Sequence[int]) -> float:
        """The most live bytes before the first stage: values that are read later stay."""
        kept = np.zeros(len(self.forward) + 1)
        for i, begin in enumerate(self.unread):
            if ends[i] >= 0 and begin < len(kept):
                kept[begin] += self.sizes[i]
        return float((self.forward + np.cumsum(kept)[:-1]).max(initial=0))

    def crossings(self) -> list[set[int]]:
        """For each unit, the units whose values are read after it, up to the turn."""
        found: list[set[int]] = [set() for _ in self.units]
        last = {i: u for u, needs in enumerate(self.needs) for i in needs}
        for i, u in last.items():
            for k in range(self.unit_of[i], u):
                found[k].add(self.unit_of[i])
        return found

    def passing_views(self) -> Iterator[Apply]:
        """Views, after the turn, of values that may be computed again."""
        free = set(self.free)
        for n in self.nodes[self.turn + 1 :]:
            if self.is_view[n]:
                i = self.number.get(self.root[n.outputs[0]])
                if i is not None and self.unit_of[i] in free:
                    yield n


def maker(v: Variable) -> Apply:
    """The node that makes a value of the segment."""
    assert v.owner is not None
    return v.owner
