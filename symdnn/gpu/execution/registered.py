"""Memory of libraries in which a plan's collectives have their operands."""

from __future__ import annotations

from typing import Any

from symdnn.gpu.device.array import RawArray
from symdnn.gpu.execution.operands import Device
from symdnn.graph.kernel import OperandMemory
from symdnn.graph.variable import Apply


class Registered:
    """Where each of them begins. Where a library has none it is an array that is not registered."""

    def __init__(self, device: Device, plan: Any) -> None:
        self._slots: dict[Apply, tuple[OperandMemory, tuple[int, ...]]] = plan.slots
        self._at: dict[OperandMemory, int] = {}
        self._instead: dict[OperandMemory, RawArray] = {}
        #: All of them.
        self.spans: list[RawArray] = []
        said = []
        for memory, nbytes in plan.registered.items():
            at = memory.address(nbytes)
            if not at:
                self._instead[memory] = device.memory.empty((nbytes,), "uint8")
            self._at[memory] = at or self._instead[memory].ptr
            self.spans.append(RawArray(self._at[memory], (nbytes,), "uint8"))
            said.append(f"{nbytes} bytes" if at else f"none: {memory.why_none}")
        #: How much is registered, or why nothing is; empty if no collective asks for it.
        self.state = "; ".join(said)

    def begin(self, memory: OperandMemory | None, arena: int) -> int:
        """The first address of a buffer's memory; None stands for the arena."""
        return arena if memory is None else self._at[memory]

    def slots(self, node: Apply) -> tuple[int, ...]:
        """The registered addresses of a collective's operands; none of other nodes."""
        memory, offsets = self._slots.get(node, (None, ()))
        if memory is None or memory in self._instead:
            return ()
        return tuple(self._at[memory] + k for k in offsets)
