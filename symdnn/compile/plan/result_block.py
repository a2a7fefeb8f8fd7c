"""Values in the memory of results that are made later, in a plan with a bound on its memory.

Gradients with respect to parameters are made while the values of the forward pass die, so these may
lie where the gradients will be. The results of a call are parts of one block then, and the arena
has what found no place in it. Only on a CPU.
"""

from __future__ import annotations

from collections.abc import Mapping

from symdnn.compile.plan.packing import Buffer, aligned, fill
from symdnn.compile.plan.specialise import Specialised
from symdnn.compile.plan.views import View
from symdnn.graph.place import HOST
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Variable

#: The fewest bytes of results that are worth it: larger memory is also used again by later calls.
_LEAST_BYTES = 1 << 16


def shares_results(spec: Specialised) -> bool:
    """Whether the memory of results may have other values before."""
    segment = spec.segment
    return segment.memory_budget is not None and segment.place == HOST and not segment.kept


def add_block(spec: Specialised, views: dict[Variable, View]) -> Variable | None:
    """Place results in one block, and values beside and before them; returns it, if there is one.

    The result that is made last has the lowest place: behind a result lie those made before it, so
    that what is free at a time is in one piece.
    """
    results = _results(spec, views)
    nbytes = sum(aligned(b.nbytes) for b in results)
    if not shares_results(spec) or nbytes < _LEAST_BYTES:
        return None
    block = Variable(TensorType("uint8", (nbytes,)), name="results")
    end, offset = len(spec.segment.nodes), 0
    for b in sorted(results, key=lambda b: -b.first):
        b.kind, b.offset, b.last = "in block", offset, end
        offset += aligned(b.nbytes)
    values = {id(v.buffer): v.buffer for v in views.values() if v.buffer.kind == "arena"}
    for b in fill(nbytes, results, list(values.values())):
        b.kind = "in block"
    views[block] = View(Buffer(block, "outside", nbytes, 0, end), (nbytes,), (1,), static=False)
    return block


def _results(spec: Specialised, views: Mapping[Variable, View]) -> list[Buffer]:
    """The buffers of results that a call allocates."""
    made = dict.fromkeys(v for n in spec.segment.nodes for v in n.outputs)
    return [
        b for v in made if (b := views[v].buffer).kind == "outside" and b.variable is v and b.nbytes
    ]  # fmt: skip


def made_bytes(spec: Specialised, views: Mapping[Variable, View], block: Variable | None) -> int:
    """Bytes of results, without new values that are written to shared variables directly."""
    alone = (
        (views[v].buffer, v) for v in spec.segment.outputs if views[v].buffer.kind != "in block"
    )
    found = sum(b.nbytes for b, v in alone if b.variable is v)
    return found if block is None else found + views[block].buffer.nbytes
