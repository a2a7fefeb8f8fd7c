"""``f.distributed_report()``: the collectives of a function's plans, and what runs meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from symdnn.compile.plan.plan import Plan
from symdnn.graph.variable import Apply
from symdnn.ops.collective.base import Collective
from symdnn.ops.collective.overlapped import AllReduceWait, AllSucceeded, MoveStart, MoveWait

__all__ = ["CollectiveRow", "DistributedReport", "distributed_report"]

_HEAD = ("plan", "step", "collective", "group", "arrays", "bytes", "meanwhile", "line")


@dataclass(frozen=True)
class CollectiveRow:
    """One collective of a plan, a bucket of gradients for instance.

    ``step`` is its number among the plan's nodes, ``arrays`` and ``bytes`` what this rank gives.
    ``meanwhile`` counts the nodes that run between its start and the wait for it, but those of
    other collectives: 0 for one that is done at once.
    """

    plan: int
    step: int
    node: Apply
    arrays: int
    bytes: int
    meanwhile: int

    def cells(self) -> tuple[str, ...]:
        """The row of the table."""
        op = self.node.op
        assert isinstance(op, Collective), "rows are made of collectives"
        op = op.of if isinstance(op, MoveStart) else op
        kind = type(op).__name__.removesuffix("Start")
        name = f"{kind}({op.op})" if hasattr(op, "op") else kind
        sizes = (self.plan, self.step, name, op.group, self.arrays, self.bytes, self.meanwhile)
        return (*map(str, sizes), str(self.node.origin))


@dataclass(frozen=True)
class DistributedReport:
    """A row for each collective of each plan made so far, in their order."""

    rows: tuple[CollectiveRow, ...]

    @property
    def bytes(self) -> int:
        """What this rank gives to all collectives of all plans."""
        return sum(r.bytes for r in self.rows)

    def __str__(self) -> str:
        if not self.rows:
            return "no plan has a collective (plans are made at the first call)"
        table = [_HEAD, *(r.cells() for r in self.rows)]
        widths = [max(map(len, column)) for column in zip(*table)]
        return "\n".join(
            "  ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip() for row in table
        )


def distributed_report(plans: Sequence[Plan]) -> DistributedReport:
    """The report of some plans."""
    rows: list[CollectiveRow] = []
    for number, plan in enumerate(plans):
        nodes = plan.specialised.segment.nodes
        for step, node in enumerate(nodes):
            if isinstance(node.op, Collective) and not isinstance(node.op, AllSucceeded):
                types = plan.specialised.call(node).inputs
                count = sum(_bytes(t) for t in types)
                between = _between(nodes, step)
                rows.append(CollectiveRow(number, step, node, len(types), count, between))
    return DistributedReport(tuple(rows))


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
        if isinstance(node.op, AllReduceWait | MoveWait) and ticket in node.inputs:
            return found
        found += not isinstance(node.op, Collective | AllReduceWait | MoveWait)
    return 0
