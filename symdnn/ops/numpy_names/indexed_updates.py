"""JAX's ``x.at[index].set(y)``: tensors with changed parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import Variable
from symdnn.ops.array.getitem import inc_subtensor, reduce_subtensor, set_subtensor
from symdnn.ops.elementwise.arithmetic import cast


@dataclass(frozen=True)
class IndexedPart:
    """``x.at[index]``: the tensor ``x`` with another part, by one of the methods.

    Where an index occurs twice, :meth:`add`, :meth:`multiply`, :meth:`min` and :meth:`max` take all
    of the values; of the others, one of the values counts.
    """

    x: Variable
    index: Any

    def _part(self) -> Variable:
        return self.x[self.index]

    def set(self, values: TensorLike) -> Variable:
        """``x`` with ``values`` in this part."""
        return set_subtensor(self._part(), cast(values, self.x.type.dtype))

    def add(self, values: TensorLike) -> Variable:
        """``x`` with ``values`` added to this part."""
        return inc_subtensor(self._part(), cast(values, self.x.type.dtype))

    def apply(self, function: Callable[[Variable], TensorLike]) -> Variable:
        """``x`` with ``function`` of this part in its place."""
        part = self._part()
        return set_subtensor(part, cast(function(part), self.x.type.dtype))

    def multiply(self, values: TensorLike) -> Variable:
        """``x`` with this part multiplied by ``values``."""
        return self._reduced(values, "mul")

    mul = multiply

    def _reduced(self, values: TensorLike, way: str) -> Variable:
        return reduce_subtensor(self._part(), cast(values, self.x.type.dtype), way)

    def divide(self, values: TensorLike) -> Variable:
        """``x`` with this part divided by ``values``."""
        return self.apply(lambda part: part / values)

    def power(self, values: TensorLike) -> Variable:
        """``x`` with this part to the power ``values``."""
        return self.apply(lambda part: part**values)

    def min(self, values: TensorLike) -> Variable:
        """``x`` with the smaller of this part and ``values``."""
        return self._reduced(values, "min")

    def max(self, values: TensorLike) -> Variable:
        """``x`` with the larger of this part and ``values``."""
        return self._reduced(values, "max")

    def get(self) -> Variable:
        """This part."""
        return self._part()


@dataclass(frozen=True)
class Indexed:
    """``x.at``: indexed, it is an :class:`IndexedPart`."""

    x: Variable

    def __getitem__(self, index: Any) -> IndexedPart:
        return IndexedPart(self.x, index)
