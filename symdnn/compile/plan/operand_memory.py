"""Places of collectives' operands in memory that a library has registered with the other ranks.

The places follow from the list of collectives alone, which all ranks have alike, whatever sizes
their other values have: a library needs equal distances from the start of the memory on all ranks.
A value that has a buffer of its own is made there; others are copied by the kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from symdnn.compile.plan.packing import aligned
from symdnn.compile.plan.specialise import Specialised
from symdnn.compile.plan.views import byte_count, shape_of
from symdnn.graph.kernel import OperandMemory
from symdnn.graph.place import HOST
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.collective.base import Collective

if TYPE_CHECKING:
    from symdnn.compile.plan.memory import MemoryPlan

__all__ = ["place_operands"]

#: All operands of a collective begin on a page, and so do its results, which ranks divide.
_PAGE_BYTES = 4096


def place_operands(spec: Specialised, plan: MemoryPlan) -> None:
    """Give operands and results places where kernels ask for them, none of which overlap.

    ``plan.slots`` of a node has the offsets of its inputs, its outputs, and its scratch memory,
    which comes first: collectives run one after another, so all have the same.
    """
    if spec.segment.place == HOST or spec.segment.guard is not None:
        return
    wanted: list[tuple[Apply, OperandMemory]] = []
    for node in spec.segment.nodes:
        if not isinstance(node.op, Collective):
            continue
        found = spec.choices[node].kernel.operand_memory(spec.call(node))
        if found is not None:
            memory, scratch_bytes = found
            wanted.append((node, memory))
            most = max(plan.registered.get(memory, 0), scratch_bytes)
            plan.registered[memory] = _next_page(most)
    for node, memory in wanted:
        at, offsets = plan.registered[memory], []
        for values in (node.inputs, node.outputs):
            for v in values:
                offsets.append(at)
                _move(plan, v, memory, at)
                at = aligned(at + byte_count(v, shape_of(spec, v) or ()))
            at = _next_page(at)
        plan.slots[node] = memory, (*offsets, 0)
        plan.registered[memory] = at


def _move(plan: MemoryPlan, v: Variable, memory: OperandMemory, at: int) -> None:
    """Put the buffer of a value at this offset, if the value is all of it."""
    view = plan.views[v]
    buffer = view.buffer
    whole = view.offset == 0 and buffer.nbytes == byte_count(v, view.shape) and view.contiguous
    if buffer.kind == "arena" and whole and view.static:
        buffer.kind, buffer.offset, buffer.memory = "registered", at, memory


def _next_page(n: int) -> int:
    return -(-n // _PAGE_BYTES) * _PAGE_BYTES
