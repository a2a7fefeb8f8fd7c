"""``f.distributed_report()``: the collectives of a function's plans, their times and
their overlap.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from symdnn.compile.plan.plan import Plan
from symdnn.compile.report import communication
from symdnn.compile.report.communication import EXPOSED, MOVE, Timeline
from symdnn.errors import InputError
from symdnn.graph.variable import Apply
from symdnn.ops.collective.base import Collective
from symdnn.ops.collective.overlapped import AllReduceWait, MoveWait, StreamWait, is_agreement
from symdnn.world import process

if TYPE_CHECKING:
    from symdnn.compile.report.profile import FunctionProfile

_HEAD = (
    "plan", "step", "collective", "group", "arrays", "bytes", "meanwhile", "ms", "exposed ms",
    "line",
)  # fmt: skip


@dataclass(frozen=True)
class CollectiveRow:
    """One collective of a plan, a bucket of gradients for instance.

    ``step`` is its number among the plan's nodes; ``arrays`` and ``bytes`` count this rank's
    operands. ``meanwhile`` counts the other nodes that run between its start and its wait, without
    collectives: 0 if it does not overlap. ``seconds`` is the time from its start to the end of its
    wait in the last profiled call, and ``exposed_seconds`` the part in which the rank did nothing
    else; None without a profile.
    """

    plan: int
    step: int
    node: Apply
    arrays: int
    bytes: int
    meanwhile: int
    seconds: float | None = None
    exposed_seconds: float | None = None

    def values(self) -> dict[str, Any]:
        """The columns of the table, times in seconds."""
        op = self.node.op
        assert isinstance(op, Collective), "rows are made of collectives"
        return {
            "plan": self.plan, "step": self.step, "collective": communication.kind_of(self.node),
            "group": str(op.group), "arrays": self.arrays, "bytes": self.bytes,
            "meanwhile": self.meanwhile, "seconds": self.seconds,
            "exposed_seconds": self.exposed_seconds, "line": str(self.node.origin),
        }  # fmt: skip

    def cells(self) -> tuple[str, ...]:
        """The row of the table; times in milliseconds."""
        *known, seconds, exposed, line = self.values().values()
        times = ("-" if t is None else f"{t * 1e3:.3f}" for t in (seconds, exposed))
        return (*map(str, known), *times, line)


@dataclass(frozen=True)
class DistributedReport:
    """A row for each collective of each plan made so far, in their order.

    ``timelines`` has the last call of this rank, or of all ranks; it is empty without a profile.
    ``registered`` says for each plan with the flag ``distributed.registered`` how many bytes NCCL
    has registered for its collectives, or why there are none.
    """

    rows: tuple[CollectiveRow, ...]
    timelines: tuple[Timeline, ...] = ()
    registered: tuple[str, ...] = ()

    @property
    def said(self) -> list[str]:
        """How the gradients of tables are averaged of which rows are read, and why."""
        return list(dict.fromkeys(r.node.hints.name for r in self.rows if r.node.hints.name))

    @property
    def bytes(self) -> int:
        """Bytes of this rank's operands of all collectives of all plans."""
        return sum(r.bytes for r in self.rows)

    def save(self, path: str | Path) -> None:
        """Write the last call to a file, in the format that the end of its name says.

        ``.trace.json``: for Chrome's tracing and Perfetto, a process for each rank. ``.json``: the
        rows and totals. ``.txt``: the table. Any other (``.png``, ``.svg``, ``.pdf``): a picture of
        the timeline, by matplotlib. Raises :class:`~symdnn.errors.InputError` where there are no
        times, as the function has no profile.
        """
        name = str(path)
        if name.endswith(".txt"):
            Path(path).write_text(f"{self}\n", encoding="utf-8")
            return
        if not self.timelines:
            raise InputError(
                "the timeline of collectives: the function has no profile; compile it with "
                "function(..., profile=True) and call it"
            )
        if name.endswith(".trace.json"):
            trace = communication.chrome_trace(self.timelines)
            Path(path).write_text(json.dumps(trace), encoding="utf-8")
        elif name.endswith(".json"):
            text = json.dumps(self._plain(), indent=1)
            Path(path).write_text(text, encoding="utf-8")
        else:
            communication.picture(self.timelines, name)

    def _plain(self) -> dict[str, Any]:
        calls = [
            {
                "rank": t.rank, "seconds": t.seconds, "moving_seconds": t.moving_seconds,
                "exposed_seconds": t.exposed_seconds,
            }
            for t in self.timelines
        ]  # fmt: skip
        return {"calls": calls, "collectives": [r.values() for r in self.rows]}

    def __str__(self) -> str:
        if not self.rows:
            return "no plan has a collective (plans are made at the first call)"
        table = [_HEAD, *(r.cells() for r in self.rows)]
        widths = [max(map(len, column)) for column in zip(*table)]
        lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths)).rstrip() for row in table]
        lines += self.said
        lines += [f"registered memory of {said}" for said in self.registered]
        lines += [_total(t) for t in self.timelines]
        if not self.timelines:
            lines.append("times: function(..., profile=True)")
        return "\n".join(lines)


def _total(t: Timeline) -> str:
    moving, exposed = t.moving_seconds, t.exposed_seconds
    hidden = max(moving - exposed, 0.0)
    return (
        f"rank {t.rank}: the last call took {t.seconds * 1e3:.3f} ms; bytes were on their way for "
        f"{moving * 1e3:.3f} ms, {hidden * 1e3:.3f} of them behind other steps; exposed "
        f"{exposed * 1e3:.3f} ms ({100 * exposed / t.seconds if t.seconds else 0:.1f} %)"
    )


def distributed_report(
    plans: Sequence[Plan], profile: FunctionProfile | None = None, all_ranks: bool = False
) -> DistributedReport:
    """The report of some plans, with times if there is a profile with a call.

    With ``all_ranks`` it has the timelines of all ranks, which all call it.
    """
    timelines: tuple[Timeline, ...] = ()
    if profile is not None and profile.timeline:
        rank = process.current().place.rank
        call = profile.began, profile.last_seconds
        timelines = (communication.timeline_of(profile.timeline, rank, *call),)
    times = _times(profile, timelines)
    if all_ranks:
        timelines = _gathered(timelines)
    rows: list[CollectiveRow] = []
    states = [(number, p.bound.registered_state) for number, p in enumerate(plans)]
    registered = tuple(f"plan {number}: {state}" for number, state in states if state)
    for number, plan in enumerate(plans):
        nodes = plan.specialised.segment.nodes
        for step, node in enumerate(nodes):
            if isinstance(node.op, Collective) and not is_agreement(node):
                types = plan.specialised.call(node).inputs
                count = sum(_bytes(t) for t in types)
                known = times.get(node, (None, None))
                between = _between(nodes, step)
                rows.append(CollectiveRow(number, step, node, len(types), count, between, *known))
    return DistributedReport(tuple(rows), timelines, registered)


def _times(
    profile: FunctionProfile | None, timelines: Sequence[Timeline]
) -> dict[Apply, tuple[float, float]]:
    """Seconds of each collective in the last call, and how many of them are exposed."""
    found: dict[Apply, tuple[float, float]] = {}
    for t in timelines:
        assert profile is not None, "a timeline is made of a profile"
        for s in (s for s in t.spans if s.kind in (MOVE, EXPOSED)):
            node = profile.timeline[s.index][0]
            whole, exposed = found.get(node, (0.0, 0.0))
            moved = s.seconds if s.kind == MOVE else 0.0
            found[node] = whole + moved, exposed + s.seconds - moved
    return found


def _gathered(own: tuple[Timeline, ...]) -> tuple[Timeline, ...]:
    """The timelines of all ranks. On several machines, whose clocks differ, each begins at 0."""
    world = process.current()
    every = world.gather("the report of collectives", [t.plain() for t in own])
    found = [Timeline.of_plain(t) for given in every for t in given]
    if world.place.local_size != world.place.size:
        found = [Timeline(t.rank, 0.0, t.seconds, t.spans) for t in found]
    return tuple(found)


def _bytes(type_: object) -> int:
    shape, numpy = getattr(type_, "shape", ()), getattr(type_, "numpy", None)
    if numpy is None:
        return 0
    count = 1
    for d in shape:
        count *= int(d)
    return count * int(numpy.itemsize)


def _between(nodes: Sequence[Apply], step: int) -> int:
    """The nodes that run between a start and its wait."""
    (ticket, *_) = nodes[step].outputs
    found = 0
    for node in nodes[step + 1 :]:
        if isinstance(node.op, AllReduceWait | MoveWait | StreamWait) and ticket in node.inputs:
            return found
        found += not isinstance(node.op, Collective | AllReduceWait | MoveWait | StreamWait)
    return 0
