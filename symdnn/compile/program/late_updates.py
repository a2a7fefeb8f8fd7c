"""Moves updates to the end of a program's last segment, which then writes them, and in place.

New values of shared variables may be written only when nothing can fail any more. So nodes that
cannot fail, that make new values and nothing that other nodes read, are moved behind all other
nodes of the last segment: elementwise ones, and writes to parts within bounds. Only copies to the
host follow. Nodes that can fail stay before them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from symdnn.compile.program.agreement import agreed, updates_between
from symdnn.compile.program.overlap import waits_late
from symdnn.compile.program.program import Program, Segment
from symdnn.graph.place import HOST
from symdnn.graph.target import Target
from symdnn.graph.variable import Apply, Constant, Shared, Variable
from symdnn.ops.array.advanced_index import AdvancedIncSubtensor
from symdnn.ops.array.index import IncSubtensor
from symdnn.ops.elemwise import Elemwise
from symdnn.ops.lowered.fused import FusedComplex, FusedElemwise
from symdnn.ops.lowered.transfer import HostFromGpu


def with_updates(
    program: Program, updates: Mapping[int, Shared], target: Target, guarded: bool = False
) -> Program:
    """``program`` with the updates in its last segment that the segment may write itself.

    ``updates`` maps the index of an output to the shared variable whose new value it is. The
    runtime writes the others: updates made in earlier segments or on the host, new values that are
    outputs twice, and updates of variables whose old value is an output. It also writes all updates
    of a program for a GPU that ends on the CPU. In a ``guarded`` program each node may
    find a fault.
    """
    last = program.regions[-1] if program.regions else None
    if not isinstance(last, Segment) or (last.place == HOST) != (target.place == HOST):
        return program
    pairs = _eligible(program, last, updates, target)
    if not pairs:
        return program
    nodes = _ordered(last.nodes, {new for new, _ in pairs}, guarded)
    inputs = tuple(dict.fromkeys((*last.inputs, *(old for _, old in pairs))))
    segment = replace(last, nodes=nodes, inputs=inputs, updates=pairs)
    entering = tuple(dict.fromkeys((*program.inputs, *(old for _, old in pairs))))
    return replace(program, regions=(*program.regions[:-1], segment), inputs=entering)


def _eligible(
    program: Program, last: Segment, updates: Mapping[int, Shared], target: Target
) -> tuple[tuple[Variable, Variable], ...]:
    made = {v for n in last.nodes if not isinstance(n.op, HostFromGpu) for v in n.outputs}
    times = Counter(program.outputs)
    return tuple(
        (program.outputs[i], old)
        for i, old in updates.items()
        if program.outputs[i] in made
        and times[program.outputs[i]] == 1
        and old not in times
        and target.keeps(old.type)
    )


def _ordered(nodes: Sequence[Apply], news: set[Variable], guarded: bool) -> tuple[Apply, ...]:
    """The nodes as: copies of inputs to the host, work, updates, copies of results to the host."""
    made = {v for n in nodes for v in n.outputs}
    through = [n for n in nodes if _to_host(n) and n.inputs[0] not in made]
    after = [n for n in nodes if _to_host(n) and n.inputs[0] in made]
    writers = _writers(nodes, news)
    rest = [n for n in nodes if n not in writers and not _to_host(n)]
    rest = agreed(waits_late(rest), guarded)
    return (*through, *updates_between(rest, [n for n in nodes if n in writers]), *after)


def _writers(nodes: Sequence[Apply], news: set[Variable]) -> set[Apply]:
    """Nodes that cannot fail and make new values which no other work reads."""
    users: dict[Variable, list[Apply]] = {}
    for n in nodes:
        for v in n.inputs:
            if not isinstance(v, Constant):
                users.setdefault(v, []).append(n)
    found: set[Apply] = set()
    for n in reversed(nodes):
        if (
            _cannot_fail(n)
            and any(v in news for v in n.outputs)
            and all(u in found or _to_host(u) for v in n.outputs for u in users.get(v, ()))
        ):
            found.add(n)
    return found


def _cannot_fail(node: Apply) -> bool:
    op = node.op
    if isinstance(op, AdvancedIncSubtensor):
        return op.in_bounds
    if isinstance(op, IncSubtensor):
        return not op.host_inputs
    return isinstance(op, Elemwise | FusedElemwise | FusedComplex) and not op.unmergeable


def _to_host(node: Apply) -> bool:
    return isinstance(node.op, HostFromGpu)
