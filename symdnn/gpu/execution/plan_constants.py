"""Values of a plan that are the same in all its runs, made once when it is bound.

They depend on sizes and constants alone: copies of these to the device, views of such copies, and
what a few cheap kernels compute of them, such as the zeros in which a recurrent net starts or the
gradient of a mean with respect to each of its terms.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from symdnn.gpu.device.array import RawArray
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.core.shape import Alloc
from symdnn.ops.elemwise import Elemwise
from symdnn.ops.lowered.fused import FusedElemwise
from symdnn.ops.lowered.transfer import GpuFromHost

if TYPE_CHECKING:
    from symdnn.gpu.execution.plan import CudaPlan

__all__ = ["Resident"]

#: Bytes of one computed value that are worth a place of their own.
_MOST = 1 << 20


class Resident:
    """What is settled for all runs of ``plan``: ``at`` has the values, ``nodes`` made them.

    ``computed`` are those of the nodes that have to be launched once, in their order.
    """

    def __init__(self, plan: CudaPlan) -> None:
        self.plan, self.memory = plan, plan.memory
        self.at: dict[Variable, RawArray] = {}
        self.nodes: set[Apply] = set()
        self.computed: list[Apply] = []
        owners = {v: id(view.buffer) for v, view in self.memory.views.items()}
        made = [v for v in owners if v.owner is not None and v.owner not in self.memory.aliases]
        #: How many values are made in a buffer, one after the other.
        self.uses = Counter(owners[v] for v in made)
        for node in plan.nodes:
            if self._copied(node) or self._seen(node) or self._launched(node):
                self.nodes.add(node)

    def _copied(self, node: Apply) -> bool:
        if not isinstance(node.op, GpuFromHost) or not self._in_arena(node.outputs[0]):
            return False
        source = node.inputs[0]
        value = source.data if isinstance(source, Constant) else self.plan.bound.get(source)
        if value is None:
            return False
        self.at[node.outputs[0]] = self.plan.rt.memory.upload(np.asarray(value), None)
        return True

    def _seen(self, node: Apply) -> bool:
        """A view of what is settled."""
        if node not in self.memory.aliases or node.inputs[node.op.views.get(0, 0)] not in self.at:
            return False
        out = node.outputs[0]
        kept, view = self.at[node.inputs[node.op.views.get(0, 0)]], self.memory.views[out]
        whole = kept.owner if isinstance(kept.owner, RawArray) else kept
        at = whole.ptr + view.offset
        self.at[out] = RawArray(at, view.shape, kept.dtype, view.strides, whole)
        return True

    def _launched(self, node: Apply) -> bool:
        """What a kernel computes of settled values, into memory that nothing else is made in."""
        if not isinstance(node.op, Alloc | Elemwise | FusedElemwise) or node.op.unmergeable:
            return False
        known: Mapping[Variable, Any] = self.plan.spec.sizes
        if not all(isinstance(v, Constant) or v in self.at or v in known for v in node.inputs):
            return False
        if not all(map(self._may_move, node.outputs)):
            return False
        for v in node.outputs:
            self.at[v] = self.plan.rt.memory.empty(self.memory.views[v].shape, v.type.dtype)
        self.computed.append(node)
        return True

    def _may_move(self, v: Variable) -> bool:
        """Whether a value may have a place of its own: it is small, and never overwritten."""
        buffer = self.memory.views[v].buffer
        return self._in_arena(v) and self.uses[id(buffer)] == 1 and buffer.nbytes <= _MOST

    def _in_arena(self, v: Variable) -> bool:
        return bool(self.memory.views[v].buffer.kind == "arena")
