"""Places the nodes of a rewritten graph on host or device, also inside of loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from symdnn.compile.program.capabilities import places_of
from symdnn.compile.program.late_updates import with_updates
from symdnn.compile.program.mode import Mode
from symdnn.compile.program.parameter_cache import cacheable_values
from symdnn.compile.program.program import If, Loop, Program, Region, Segment
from symdnn.compile.program.schedule import schedule
from symdnn.config import config
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.inner import InnerGraph
from symdnn.graph.place import HOST, Place
from symdnn.graph.target import Target
from symdnn.graph.values.guard import ValueGuard
from symdnn.graph.variable import Apply, Variable
from symdnn.opt.fuse.transfer import Places


class Placing:
    """The place of each node of one graph; ``inside`` is the placing of a loop's body."""

    captures = True

    def __init__(self, fgraph: FunctionGraph, target: Target) -> None:
        self.target, self.places = target, places_of(fgraph, target)

    def __call__(self, node: Apply) -> Place:
        """The host or the target's device."""
        return self.places(node)

    def inside(self, body: InnerGraph) -> InnerPlacing:
        """The placing of a loop's body."""
        return InnerPlacing(body, self.target)


class InnerPlacing(Placing):
    """The placing of a loop's body, by way of a copy of the body as a graph of its own."""

    captures = False

    def __init__(self, body: InnerGraph, target: Target) -> None:
        fgraph = FunctionGraph(body.inputs, body.outputs, merge=False)
        self.target, self.copies = target, fgraph.original
        self.places: Places = places_of(fgraph, target, inner=True)

    def __call__(self, node: Apply) -> Place:
        twin = self.copies.get(node.outputs[0])
        return self.places(twin.owner) if twin is not None and twin.owner is not None else HOST


class _OnHost:
    """The placing of a program for the CPU."""

    captures = False

    def __call__(self, node: Apply) -> Place:
        return HOST

    def inside(self, body: InnerGraph) -> _OnHost:
        return self


def program_of(fgraph: FunctionGraph, target: Target, mode: Mode) -> Program:
    """The program of a rewritten graph for its target.

    A mode that watches calls or guards values gets no parameter cache, so that it sees all nodes in
    each call.
    """
    placing = _OnHost() if target.place == HOST else Placing(fgraph, target)
    guard = mode.guard
    watched = type(mode).watch is not Mode.watch or guard is not None
    kept = None if watched or not config.keep_prepared else _kept(fgraph, target, placing)
    program = schedule(fgraph.outputs, placing, () if kept is None else kept.outputs)
    if kept is not None:
        inputs = dict.fromkeys(v for v in program.inputs if v not in kept.outputs)
        inputs.update(dict.fromkeys((*kept.inputs, *kept.sources)))
        program = replace(program, regions=(kept, *program.regions), inputs=tuple(inputs))
    program = with_updates(program, fgraph.updates, target, guard is not None)
    return program if guard is None else _guarded(program, guard, program.inputs)


def _guarded(program: Program, guard: ValueGuard, inputs: Sequence[Variable] = ()) -> Program:
    """``program`` with a guard of all segments, which check ``inputs`` where these first enter."""
    regions: list[Region] = []
    left = dict.fromkeys(inputs)
    for region in program.regions:
        if isinstance(region, Loop):
            regions.append(replace(region, body=_guarded(region.body, guard)))
        elif isinstance(region, If):
            then, orelse = _guarded(region.then, guard), _guarded(region.orelse, guard)
            regions.append(replace(region, then=then, orelse=orelse))
        else:
            watched = tuple(v for v in region.inputs if v in left)
            for v in watched:
                del left[v]
            regions.append(replace(region, guard=guard, watched=watched))
    return replace(program, regions=tuple(regions))


def _kept(fgraph: FunctionGraph, target: Target, placing: Placing | _OnHost) -> Segment | None:
    """The segment of the parameter cache; None if there are no values to cache."""
    values = cacheable_values(fgraph, placing, target.place)
    regions = schedule(values, placing).regions
    if len(regions) != 1 or not isinstance(regions[0], Segment):
        return None
    segment = regions[0]
    plain = segment.place == target.place and not (segment.host or segment.dims)
    return replace(segment, kept=True) if plain else None
