"""The memory of a whole call at given shapes, also what passes from one region to another.

A plan knows the memory of its segment. Between segments and loops arrays pass: those that wait
while a region runs count for it, and so do the buffers of a loop's states and collected values. It
is all computed from shapes, before anything runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from symdnn.compile.plan.known_sizes import MOST_INTEGERS, bytes_of_shape, known_sizes
from symdnn.compile.plan.offline_plan import (
    SegmentPlan,
    add_shapes_of_loop,
    add_shapes_of_views,
    segment_plan,
)
from symdnn.compile.plan.result_block import made_bytes
from symdnn.compile.plan.specialise import Oracle
from symdnn.compile.program.program import If, Loop, Program, Region, Segment
from symdnn.errors import SymdnnError
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Constant, Variable
from symdnn.ops.control.scan import Scan

Shapes = dict[Variable, tuple[int, ...]]
Values = dict[Variable, Any]


@dataclass(frozen=True)
class CallMemory:
    """For each region of a program the bytes that it needs itself, and those that wait beside it.

    A region that runs only when a parameter has changed needs none. ``steps`` are the most bytes
    that one step of a loop needs.
    """

    own: tuple[int, ...]
    beside: tuple[int, ...]
    steps: int = 0

    @property
    def peak(self) -> int:
        """The most bytes of a call beside arguments, shared variables and constants."""
        return max((a + b for a, b in zip(self.own, self.beside)), default=0)


def call_memory(
    program: Program, shapes: Mapping[Variable, tuple[int, ...]], values: Mapping[Variable, Any],
    oracle: Oracle | None = None,
) -> CallMemory:  # fmt: skip
    """The memory of each region. ``shapes`` are those of what enters, ``values`` known integers.

    Raises :class:`~symdnn.errors.DataDependentShape` where a shape follows from data.
    """
    return _Regions(program, dict(shapes), dict(values), oracle).memory()


def sizes_of_values(
    values: Mapping[Variable, Any],
) -> tuple[dict[Variable, tuple[int, ...]], dict[Variable, Any]]:
    """The shapes of a call's arrays, and the values of small arrays of integers on the host."""
    shapes = {v: tuple(a.shape) for v, a in values.items() if hasattr(a, "shape")}
    numbers = {
        v: a for v, a in values.items()
        if isinstance(a, np.ndarray) and a.dtype.kind in "iu" and a.size <= MOST_INTEGERS
    }  # fmt: skip
    return shapes, numbers


def entering(program: Program) -> list[Variable]:
    """What the regions of a call and its outputs read that none of them computes, no constants."""
    regions = program.called_regions
    hosts = (n for r in regions if isinstance(r, Segment) for n in (*r.host, *r.sizes))
    made = {v for n in hosts for v in n.outputs}.union(*map(_made_by, regions))
    read = dict.fromkeys([*(v for r in regions for v in _read_by(r)), *program.outputs])
    return [v for v in read if v not in made and not isinstance(v, Constant)]


def _read_by(region: Region) -> list[Variable]:
    """The values that a region reads, those of its branches too."""
    if isinstance(region, Segment):
        hosts = [v for n in (*region.host, *region.sizes) for v in n.inputs]
        return [*region.entering, *region.sources, *region.dims, *hosts]
    if isinstance(region, Loop):
        return list(region.inputs)
    return [region.condition, *entering(region.then), *entering(region.orelse)]


def dead_after(program: Program, regions: Sequence[Region]) -> list[list[Variable]]:
    """For each region the values of regions that nothing reads after it."""
    last: dict[Variable, int] = {}
    for i, region in enumerate(regions):
        made = _made_by(region)
        last.update((v, i) for v in (*made, *(u for u in _read_by(region) if u in last)))
    kept = set(program.outputs)
    found: list[list[Variable]] = [[] for _ in regions]
    for v, i in last.items():
        if v not in kept:
            found[i].append(v)
    return found


def _made_by(region: Region) -> list[Variable]:
    if isinstance(region, Segment):
        return [] if region.kept else list(region.outputs)
    return list(region.node.outputs if isinstance(region, Loop) else region.results)


class _Regions:
    def __init__(
        self, program: Program, shapes: Shapes, values: Values, oracle: Oracle | None
    ) -> None:
        self.program, self.shapes, self.values, self.oracle = program, shapes, values, oracle
        #: Values that are views -> what they are views of.
        self.root: dict[Variable, Variable] = {}
        self.made: dict[Variable, int] = {}
        self.steps = 0

    def memory(self) -> CallMemory:
        """See :func:`call_memory`."""
        regions = self.program.regions
        own, made = [], []
        for region in regions:
            before = set(self.made)
            own.append(self._own(region))
            made.append([v for v in self.made if v not in before])
        last: dict[Variable, int] = {}
        for i, region in enumerate(regions):
            last.update((self.root.get(v, v), i) for v in (*made[i], *_read_by(region)))
        last.update((self.root.get(v, v), len(regions)) for v in self.program.outputs)
        beside = [0] * len(regions)
        for i, those in enumerate(made):
            for v in those:
                for k in range(i + 1, min(last[v], len(regions) - 1) + 1):
                    beside[k] += self.made[v]
        kept = [isinstance(r, Segment) and r.kept for r in regions]
        return CallMemory(
            tuple(0 if k else n for k, n in zip(kept, own)),
            tuple(0 if k else n for k, n in zip(kept, beside)),
            self.steps,
        )

    def _own(self, region: Region) -> int:
        if isinstance(region, Segment):
            return max((self._of_segment(p) for p in self._plans(region)), default=0)
        return self._of_loop(region) if isinstance(region, Loop) else self._of_branches(region)

    def _plans(self, segment: Segment) -> Sequence[SegmentPlan]:
        free = replace(segment, memory_budget=None)
        return list(segment_plan(free, self.oracle, self.shapes, self.values))

    def _of_segment(self, plan: SegmentPlan) -> int:
        spec, memory = plan.specialised, plan.memory
        numbers = [n for n in spec.segment.nodes if n.outputs[0].type.is_integer_scalar]
        known = {v: s for v, s in spec.shapes.items() if s is not None}
        self.values = known_sizes(numbers, known, self.values)[1]
        for v in () if spec.segment.kept else spec.segment.outputs:
            buffer = memory.views[v].buffer
            root = v if buffer.variable is None else buffer.variable
            root = self.root.get(root, root)
            if root is not v:
                self.root[v] = root
            elif buffer.kind in ("outside", "made"):
                self.made[v] = buffer.nbytes
        return memory.arena_bytes + made_bytes(spec, memory.views, memory.block)

    def _of_loop(self, loop: Loop) -> int:
        step, entries = self._of_body(loop)
        add_shapes_of_loop(loop, self.shapes, self.values)
        self._add_by_step(loop, entries)
        found = 0
        for v in loop.node.outputs:
            self.made[v] = _bytes(v, self.shapes.get(v))
            found += self.made[v]
        self.steps = max(self.steps, step)
        return found + step

    def _add_by_step(self, loop: Loop, entries: Shapes) -> None:
        """Shapes of results that follow from those of one step, as where it reads by its number."""
        node, op = loop.node, loop.node.op
        assert isinstance(op, Scan)
        steps = node.inputs[0]
        known = steps.data if isinstance(steps, Constant) else self.values.get(steps)
        if known is None or op.until:
            return
        count = int(known)
        for v, (history, last), c in zip(op.inner.outputs, op.places(), op.states):
            if v in entries:
                self.shapes.setdefault(node.outputs[last], entries[v])
                if history is not None:
                    whole = (count + c.depth, *entries[v])
                    self.shapes.setdefault(node.outputs[history], whole)
        first = len(op.states)
        for k, v in enumerate(op.inner.outputs[first : first + op.collected]):
            if v in entries:
                out = node.outputs[op.first_collected + k]
                self.shapes.setdefault(out, (count, *entries[v]))

    def _of_body(self, loop: Loop) -> tuple[int, Shapes]:
        """The memory of a step, and shapes of its results; 0 where they follow from its values."""
        node, op = loop.node, loop.node.op
        assert isinstance(op, Scan)
        add_shapes_of_views(loop, self.shapes, self.values)
        given = op.split(node.inputs)
        inner = op.split_inner(op.inner.inputs)
        pairs = [(v, x, True) for v, x in zip(inner.sequences, given.sequences, strict=True)]
        for taps, x in zip(inner.initials, given.initials, strict=True):
            pairs += [(v, x, True) for v in taps]
        pairs += [(v, x, False) for v, x in zip(inner.others, given.others, strict=True)]
        shapes: Shapes = {}
        values: Values = {}
        try:
            for v, x, entry in pairs:
                shape = x.data.shape if isinstance(x, Constant) else self.shapes.get(x)
                if shape is None:
                    shape = np.shape(self.values[x])
                shapes[v] = tuple(shape[1:] if entry else shape)
                value = x.data if isinstance(x, Constant) else self.values.get(x)
                if value is not None and (not entry or len(value)):
                    values[v] = value[0] if entry else value
            body = _Regions(loop.body, shapes, values, self.oracle)
            return body.memory().peak, body.shapes
        except (SymdnnError, KeyError):
            return 0, {}

    def _of_branches(self, region: If) -> int:
        found = 0
        for branch, results in (
            (region.then, region.then_values), (region.orelse, region.else_values)
        ):  # fmt: skip
            found = max(found, call_memory(branch, self.shapes, self.values, self.oracle).peak)
            for v, w in zip(region.results, results, strict=True):
                if w in self.shapes:
                    self.shapes[v] = self.shapes[w]
        for v in region.results:
            self.made[v] = _bytes(v, self.shapes.get(v))
        return found


def _bytes(v: Variable, shape: Sequence[int] | None) -> int:
    if shape is None or not isinstance(v.type, TensorType):
        return 0
    return bytes_of_shape(v.type, shape)
