"""Places of collectives' operands in memory that a library has registered with the other ranks.

The places follow from the list of collectives alone, which all ranks have alike, whatever sizes
their other values have: a library needs equal distances from the start of the memory on all ranks.
A value that has a buffer of its own is made there; others are copied by the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from symdnn.compile.plan.packing import aligned
from symdnn.compile.plan.specialise import Specialised
from symdnn.compile.plan.views import byte_count, shape_of
from symdnn.graph.kernel import OperandMemory
from symdnn.graph.place import HOST
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.collective.base import Collective
from symdnn.ops.collective.overlapped import StreamWait

if TYPE_CHECKING:
    from symdnn.compile.plan.memory import MemoryPlan

#: All operands of a collective begin on a page, and so do its results, which ranks divide.
_PAGE_BYTES = 4096


def place_operands(spec: Specialised, plan: MemoryPlan) -> None:
    """Give operands and results places where kernels ask for them. None of them overlap, but for a
    result that replaces its operand; an operand that is read later is copied there then.

    ``plan.slots`` of a node has the offsets of its inputs, its outputs, and its scratch memory,
    which comes first: collectives run one after another, so all have the same.
    """
    if spec.segment.place == HOST or spec.segment.guard is not None:
        return
    wanted: list[tuple[int, Apply, OperandMemory, bool]] = []
    for step, node in enumerate(spec.segment.nodes):
        if not isinstance(node.op, Collective):
            continue
        found = spec.choices[node].kernel.operand_memory(spec.call(node))
        if found is not None:
            memory, scratch_bytes, in_place = found
            wanted.append((step, node, memory, in_place))
            most = max(plan.registered.get(memory, 0), scratch_bytes)
            plan.registered[memory] = _next_page(most)
    last_reads = _last_reads(spec, plan) if wanted else {}
    for step, node, memory, in_place in wanted:
        begin = plan.registered[memory]
        inputs, end = _places(spec, node.inputs, begin)
        outputs, end = _places(spec, node.outputs, begin if in_place else end)
        for v, at in zip(node.inputs, inputs, strict=True):
            if not in_place or last_reads[id(plan.views[v].buffer)] == step:
                _move(plan, v, memory, at)
        for v, at in zip(node.outputs, outputs, strict=True):
            _move(plan, v, memory, at)
        plan.slots[node] = memory, (*inputs, *outputs, 0)
        plan.registered[memory] = end


def _places(spec: Specialised, values: Sequence[Variable], at: int) -> tuple[list[int], int]:
    """Offsets of values from a page on, and the first page behind them."""
    found = []
    for v in values:
        found.append(at)
        at = aligned(at + byte_count(v, shape_of(spec, v) or ()))
    return found, _next_page(at)


def _last_reads(spec: Specialised, plan: MemoryPlan) -> dict[int, int]:
    """The last step that reads each buffer, by its id. A wait keeps the operands of its collective
    and does not read them. New values are copied to shared variables behind all steps."""
    found: dict[int, int] = {}
    for step, node in enumerate(spec.segment.nodes):
        if node not in plan.aliases:
            read = node.inputs[: node.op.count] if isinstance(node.op, StreamWait) else node.inputs
            found.update(dict.fromkeys((id(plan.views[v].buffer) for v in read), step))
    end = len(spec.segment.nodes)
    found.update(dict.fromkeys((id(plan.views[v].buffer) for v in plan.copied), end))
    return found


def _move(plan: MemoryPlan, v: Variable, memory: OperandMemory, at: int) -> None:
    """Put the buffer of a value at this offset, if the value is all of it."""
    view = plan.views[v]
    buffer = view.buffer
    whole = view.offset == 0 and buffer.nbytes == byte_count(v, view.shape) and view.contiguous
    if buffer.kind == "arena" and whole and view.static:
        buffer.kind, buffer.offset, buffer.memory = "registered", at, memory


def _next_page(n: int) -> int:
    return -(-n // _PAGE_BYTES) * _PAGE_BYTES
