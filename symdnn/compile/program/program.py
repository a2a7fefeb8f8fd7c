"""A function's program: a tree of regions in the order in which they run, for any shapes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from symdnn.errors import OptionError
from symdnn.graph.place import HOST, Place
from symdnn.graph.values.guard import ValueGuard
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.nn.channels_last import Reorder


@dataclass(frozen=True)
class Segment:
    """A sequence of nodes on one device without choices. It is planned and captured as one.

    ``host`` nodes are evaluated on the host before each run (integers that feed shapes and bounds);
    ``sizes`` are those that depend only on shapes, evaluated once per plan. ``inputs`` enter the
    segment, ``outputs`` leave it. Its signature has the shapes of the inputs and of ``sources``,
    and the values of ``dims``. ``updates`` are pairs of a new value and the shared variable to
    which the segment itself may write it (:mod:`symdnn.compile.program.late_updates`). A ``kept``
    segment runs only if a shared variable that it reads has changed
    (:mod:`symdnn.compile.program.parameter_cache`). With a ``guard`` a run raises
    :class:`~symdnn.errors.NanDetected` at the first step of which a result has a fault, or before
    the steps where one of the inputs ``watched`` has. A plan of it needs at most ``memory_budget``
    bytes for values and results, by computing some again. ``carried`` are pairs of an output and
    the input that a loop passes its value as in the next step: the plan may write that input's
    memory, which is the loop's own (:mod:`symdnn.compile.program.carried`).
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
    guard: ValueGuard | None = None
    watched: tuple[Variable, ...] = ()
    memory_budget: int | None = None
    carried: tuple[tuple[Variable, Variable], ...] = ()

    # What plans of all shapes share, found once. Not to be changed.

    @cached_property
    def entering(self) -> tuple[Variable, ...]:
        """The inputs, and all else that nodes read and no node computes."""
        made = {v for n in self.nodes for v in n.outputs}
        read = (v for n in self.nodes for v in n.inputs)
        return tuple(v for v in dict.fromkeys((*self.inputs, *read)) if v not in made)

    @cached_property
    def last_uses(self) -> Mapping[Variable, int]:
        """The last step that reads each value; one behind the last for outputs."""
        last = {v: step for step, node in enumerate(self.nodes) for v in node.inputs}
        last.update(dict.fromkeys(self.outputs, len(self.nodes)))
        return last

    @cached_property
    def last_reads(self) -> Mapping[Variable, int]:
        """The last step that reads each value, or a view of it."""
        last: dict[Variable, int] = {}
        for step in reversed(range(len(self.nodes))):
            node = self.nodes[step]
            views = {0: 0} if isinstance(node.op, Reorder) else node.op.views
            for i, v in enumerate(node.inputs):
                seen = [o for o, source in views.items() if source == i]
                read = max([step, *(last.get(node.outputs[o], step) for o in seen)])
                last[v] = max(last.get(v, -1), read)
        return last

    @cached_property
    def readers(self) -> Mapping[Variable, Sequence[tuple[Apply, int]]]:
        """The nodes that read each value, with the operand's index."""
        found: dict[Variable, list[tuple[Apply, int]]] = {}
        for node in self.nodes:
            for i, v in enumerate(node.inputs):
                found.setdefault(v, []).append((node, i))
        return found


@dataclass(frozen=True)
class If:
    """A lazy choice: ``condition`` is read on the host, then one of two programs runs.

    ``results`` are the variables of the choice, in the order of ``then_values`` and
    ``else_values``, the outputs of the two programs.
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

    The body's inputs are the inner inputs of ``node.op``, its outputs the inner outputs. With
    ``outer`` it is in no other loop, so its results may be in the same memory each time. ``views``
    are views that only loops read, each after what it is of: the loop makes them where it begins.
    """

    node: Apply
    body: Program
    outer: bool = True
    views: tuple[Apply, ...] = ()

    @cached_property
    def inputs(self) -> tuple[Variable, ...]:
        """The values that it reads, constants too; instead of its views what they are of."""
        return inputs_of_loop(self.node, self.views)


def inputs_of_loop(node: Apply, views: Sequence[Apply]) -> tuple[Variable, ...]:
    """The values that a node reads; instead of ``views`` what they are of."""
    made = {v for n in views for v in n.outputs}
    read = (*node.inputs, *(v for n in views for v in n.inputs))
    return tuple(v for v in read if v not in made)


Region = Segment | If | Loop


@dataclass(frozen=True)
class Program:
    """Regions in the order in which they run; ``inputs`` enter, ``outputs`` leave."""

    regions: tuple[Region, ...]
    inputs: tuple[Variable, ...]
    outputs: tuple[Variable, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def called_regions(self) -> list[Region]:
        """The regions that run at each call: all but segments whose results are kept."""
        return [r for r in self.regions if not (isinstance(r, Segment) and r.kept)]

    def segments(self) -> list[Segment]:
        """All segments, also inside of branches and loops."""
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
                kept = ", run when their inputs have changed" if region.kept else ""
                lines.append(f"{pad}segment {i}: {len(region.nodes)} nodes{kept}")
                lines += [f"{pad}  host {n}" for n in region.host]
                lines += [f"{pad}  {n.op}" for n in region.nodes]
            elif isinstance(region, Loop):
                lines.append(f"{pad}loop {region.node.op}:")
                lines += [f"{pad}  view {n.op}" for n in region.views]
                lines.append(region.body.text(indent + 1))
            else:
                lines.append(f"{pad}if {region.condition}:")
                lines.append(region.then.text(indent + 1))
                lines.append(f"{pad}else:")
                lines.append(region.orelse.text(indent + 1))
        return "\n".join(line for line in lines if line)

    def __str__(self) -> str:
        return self.text()


def with_budget(program: Program, budget: int | None) -> Program:
    """The program with this bound on the memory of each of its segments that run at each call."""
    if budget is None:
        return program

    def bounded(region: Region) -> Region:
        if isinstance(region, Segment):
            return region if region.kept else replace(region, memory_budget=budget)
        if isinstance(region, If):
            then, orelse = with_budget(region.then, budget), with_budget(region.orelse, budget)
            return replace(region, then=then, orelse=orelse)
        return replace(region, body=with_budget(region.body, budget))

    return replace(program, regions=tuple([bounded(r) for r in program.regions]))


_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{p}B": 1000 ** (i + 1) for i, p in enumerate("KMGT")}
_UNITS |= {f"{p}iB": 1024 ** (i + 1) for i, p in enumerate("KMGT")}


def byte_size(what: str, value: str | int | None) -> int | None:
    """Bytes of a number or of a string with a unit: ``"4GB"``, ``"512 MiB"``; None stays None.

    >>> byte_size("memory_budget", "1.5KiB")
    1536
    """
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
        return value
    found = (
        re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*(\w*)\s*", value) if isinstance(value, str) else None
    )
    units = {u.lower(): n for u, n in _UNITS.items()}
    if found is None or found[2].lower() not in units or not float(found[1]):
        wanted = (
            "a positive number of bytes, or a string with one of the units B, kB, KiB, MB, MiB, GB"
        )
        raise OptionError(f"{what}={value!r}: wanted {wanted}, GiB, TB, TiB")
    return int(float(found[1]) * units[found[2].lower()])


def copied_results(program: Program, count: int) -> list[int]:
    """Indices of the results that need a copy, since they are not new arrays.

    These are leaves, values of host nodes, values of the parameter cache, and repeated results. An
    update is copied to its storage anyway. It needs a copy before that only if it may share memory
    that another update writes.
    """
    stays = {v for s in program.segments() for n in s.host for v in n.outputs}
    stays.update(v for s in program.segments() if s.kept for v in s.outputs)
    seen: set[Variable] = set()
    copied = []
    for i, v in enumerate(program.outputs):
        if v.owner is None or v in stays or (v in seen and i < count):
            copied.append(i)
        seen.add(v)
    return copied
