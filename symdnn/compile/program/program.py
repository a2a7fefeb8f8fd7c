"""Stage 3: a function's program, a tree of regions in order, still for any shape."""

from __future__ import annotations

from dataclasses import dataclass, field

from symdnn.graph.place import HOST, Place
from symdnn.graph.variable import Apply, Variable

__all__ = ["If", "Loop", "Program", "Region", "Segment"]


@dataclass(frozen=True)
class Segment:
    """A straight run of nodes. It is planned per shape signature, and captured, as one.

    ``host`` nodes are evaluated on the host before each run (integers that feed shapes and
    bounds); ``sizes`` are those that depend on shapes alone, evaluated once per plan. ``inputs``
    enter the segment, ``outputs`` leave it. Its signature is the shapes of what enters and of
    ``sources``, and the values of ``dims``. ``updates`` are pairs of a new value and the shared
    variable that it may be written to by the segment itself (:mod:`~.late_updates`). What a
    ``kept`` segment gives stays where it is until a shared variable that it reads gets another
    value (:mod:`~.kept`).
    """

    host: tuple[Apply, ...]
    nodes: tuple[Apply, ...]
    inputs: tuple[Variable, ...]
    outputs: tuple[Variable, ...]
    dims: tuple[Variable, ...] = ()
    sizes: tuple[Apply, ...] = ()
    sources: tuple[Variable, ...] = ()
    place: Place = HOST
    capture: bool = True
    updates: tuple[tuple[Variable, Variable], ...] = ()
    kept: bool = False


@dataclass(frozen=True)
class If:
    """A lazy choice: ``condition`` is read on the host, then one program runs.

    ``results`` are the variables that either program leaves, each in the order of
    ``then_values`` and ``else_values``.
    """

    node: Apply
    condition: Variable
    then: Program
    orelse: Program
    then_values: tuple[Variable, ...]
    else_values: tuple[Variable, ...]
    results: tuple[Variable, ...]


@dataclass(frozen=True)
class Loop:
    """A scan: ``body`` runs once per step, with plans of its own.

    The body's inputs are the inner inputs of ``node.op``, its outputs the inner outputs.
    ``capture``: it may be captured as a whole, since it is in no other loop.
    """

    node: Apply
    body: Program
    capture: bool = True


Region = Segment | If | Loop


@dataclass(frozen=True)
class Program:
    """Regions in the order in which they run; ``inputs`` enter, ``outputs`` leave."""

    regions: tuple[Region, ...]
    inputs: tuple[Variable, ...]
    outputs: tuple[Variable, ...]
    notes: tuple[str, ...] = field(default=())

    def segments(self) -> list[Segment]:
        """All segments, those inside of branches and loops too."""
        found: list[Segment] = []
        for region in self.regions:
            if isinstance(region, Segment):
                found.append(region)
            elif isinstance(region, Loop):
                found += region.body.segments()
            else:
                found += region.then.segments() + region.orelse.segments()
        return found

    def text(self, indent: int = 0) -> str:
        """The program as printed lines."""
        pad = "  " * indent
        lines = []
        for i, region in enumerate(self.regions):
            if isinstance(region, Segment):
                kept = ", run when what they read has changed" if region.kept else ""
                lines.append(f"{pad}segment {i}: {len(region.nodes)} nodes{kept}")
                lines += [f"{pad}  host {n}" for n in region.host]
                lines += [f"{pad}  {n.op}" for n in region.nodes]
            elif isinstance(region, Loop):
                lines.append(f"{pad}loop {region.node.op}:")
                lines.append(region.body.text(indent + 1))
            else:
                lines.append(f"{pad}if {region.condition}:")
                lines.append(region.then.text(indent + 1))
                lines.append(f"{pad}else:")
                lines.append(region.orelse.text(indent + 1))
        return "\n".join(line for line in lines if line)

    def __str__(self) -> str:
        return self.text()
