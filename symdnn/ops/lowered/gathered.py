"""Rows that are gathered and added elsewhere, as one op: a graph's messages along its edges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from symdnn.graph.dims import Shape
from symdnn.graph.op import Host, Op
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array
from symdnn.ops.array.advanced_index import AdvancedIncSubtensor, AdvancedSubtensor

__all__ = ["AddGathered"]


@dataclass(frozen=True)
class AddGathered(Op):
    """``x`` with elements of ``source`` added: those that ``get`` selects, where ``add`` says.

    Inputs: ``x``, ``source``, the index arrays of ``get``, then those of ``add``. What is gathered
    has the shape of the part that it is added to, and is never stored. ``opt/fuse/gathers.py``
    makes it where a target has a kernel for it. It has no gradient, which is taken before.
    """

    get: AdvancedSubtensor
    add: AdvancedIncSubtensor

    def apart(self, inputs: Sequence[Any]) -> tuple[Any, Any, Sequence[Any], Sequence[Any]]:
        """``x``, ``source``, the index arrays of ``get`` and those of ``add``."""
        x, source, *rest = inputs
        count = len(self.get.arrays)
        return x, source, rest[:count], rest[count:]

    def infer(self, *inputs: TensorType) -> TensorType:
        x, source, gets, adds = self.apart(inputs)
        return self.add.infer(x, self.get.infer(source, *gets), *adds)

    def reference(self, *inputs: Array) -> Array:
        x, source, gets, adds = self.apart(inputs)
        return self.add.reference(x, self.get.reference(source, *gets), *adds)

    def shapes(
        self, types: Sequence[TensorType], shapes: Sequence[Shape], host: Host
    ) -> Sequence[Shape] | None:
        x, source, gets, adds = self.apart(shapes)
        _, source_type, get_types, add_types = self.apart(types)
        read = self.get.shapes([source_type, *get_types], [source, *gets], {})
        if read is None:
            return [x]
        value = self.get.infer(source_type, *get_types)
        return self.add.shapes([types[0], value, *add_types], [x, *read, *adds], {})

    @property
    def may_overwrite(self) -> Mapping[int, tuple[int, ...]]:
        return {0: (0,)}

    def __str__(self) -> str:
        return f"AddGathered{{{self.get}, {self.add}}}"
