"""Values of a plan that are the same in all its calls, computed once when it is bound.

They depend on sizes and constants alone: copies of these to the device, views of such copies, and
results of a few cheap kernels on them, such as the zeros at the start of a recurrent layer or the
gradient of a mean with respect to each of its terms.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from symdnn.gpu.device.array import RawArray
from symdnn.gpu.execution.operands import Operands, Values
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.core.shape import Alloc
from symdnn.ops.elemwise import Elemwise
from symdnn.ops.lowered.fused import FusedElemwise
from symdnn.ops.lowered.transfer import GpuFromHost

#: The largest computed value that gets memory of its own.
_MAX_CONSTANT_BYTES = 1 << 20


class PlanConstants:
    """The constants of a plan: ``at`` has their values, ``nodes`` the nodes that made them.

    ``computed`` are those of the nodes that have to be launched once, in their order. ``bound`` are
    the values that are known already, such as sizes.
    """

    def __init__(self, operands: Operands, bound: Values) -> None:
        self.operands, self.bound, self.memory = operands, bound, operands.memory
        self.at: dict[Variable, RawArray] = {}
        self.nodes: set[Apply] = set()
        self.computed: list[Apply] = []
        owners = {v: id(view.buffer) for v, view in self.memory.views.items()}
        made = [v for v in owners if v.owner is not None and v.owner not in self.memory.aliases]
        #: The number of values that are made in a buffer, one after the other.
        self.uses = Counter(owners[v] for v in made)
        for node in operands.spec.segment.nodes:
            if self._copied(node) or self._view(node) or self._launched(node):
                self.nodes.add(node)

    def _copied(self, node: Apply) -> bool:
        """Upload a constant, or a size, that the node copies to the device."""
        if not isinstance(node.op, GpuFromHost) or not self._in_arena(node.outputs[0]):
            return False
        source = node.inputs[0]
        value = source.data if isinstance(source, Constant) else self.bound.get(source)
        if value is None:
            return False
        self.at[node.outputs[0]] = self.operands.device.memory.upload(np.asarray(value), None)
        return True

    def _view(self, node: Apply) -> bool:
        """Make a view of a plan constant."""
        if node not in self.memory.aliases or node.inputs[node.op.views.get(0, 0)] not in self.at:
            return False
        kept = self.at[node.inputs[node.op.views.get(0, 0)]]
        whole = kept.owner if isinstance(kept.owner, RawArray) else kept
        for out in node.outputs:
            view = self.memory.views[out]
            at = whole.ptr + view.offset
            self.at[out] = RawArray(at, view.shape, kept.dtype, view.strides, whole)
        return True

    def _launched(self, node: Apply) -> bool:
        """Allocate the result of a kernel on plan constants, in memory that nothing else uses."""
        if not isinstance(node.op, Alloc | Elemwise | FusedElemwise) or node.op.unmergeable:
            return False
        known: Mapping[Variable, Any] = self.operands.spec.sizes
        if not all(isinstance(v, Constant) or v in self.at or v in known for v in node.inputs):
            return False
        if not all(map(self._may_move, node.outputs)):
            return False
        empty = self.operands.device.memory.empty
        for v in node.outputs:
            self.at[v] = empty(self.memory.views[v].shape, v.type.dtype)
        self.computed.append(node)
        return True

    def _may_move(self, v: Variable) -> bool:
        """Whether a value may have memory of its own: it is small, and never overwritten."""
        buffer = self.memory.views[v].buffer
        small = buffer.nbytes <= _MAX_CONSTANT_BYTES
        own = buffer.variable is v and self.uses[id(buffer)] == 1
        return self._in_arena(v) and own and small

    def _in_arena(self, v: Variable) -> bool:
        return bool(self.memory.views[v].buffer.kind == "arena")
