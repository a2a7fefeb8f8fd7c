"""Bases of special functions: of real operands, and of an order and a point.

A derivative in an order for which no formula is known is taken by differences of the function.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import NonDifferentiable
from symdnn.graph.backprop import backprop
from symdnn.graph.op import Grads, Vars
from symdnn.graph.operators import operator
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array
from symdnn.graph.variable import Constant, Variable
from symdnn.ops.elemwise import FloatElemwise, as_computed, like

#: So often differences of differences are taken.
MOST_DIFFERENCES = 3


@dataclass(frozen=True)
class SpecialFunction(FloatElemwise):
    """Base of the functions of real operands that SciPy computes."""

    abstract: ClassVar[bool] = True
    kinds: ClassVar[str] = "bif"


class OfOrder(SpecialFunction):
    """Base of functions of one order ``n`` or several, and of a point ``x``, the last operand."""

    abstract: ClassVar[bool] = True
    arity: ClassVar[int] = 2

    def point_slope(self, *operands: Variable) -> Variable:
        """The derivative with respect to the point, from the operands and the result."""
        raise NotImplementedError

    def order_slope(self, order: int, *operands: Variable) -> Variable:
        """The derivative with respect to an order, from the operands and the result."""
        return OrderSlope(self, order)(*operands[:-1])

    def scalar_vjp(self, inputs: Vars, output: Variable, cotangent: Variable) -> Grads:
        operands = [*as_computed(inputs, output), output]
        found: Grads = [
            cotangent * self.order_slope(i, *operands) if _varies(v) else None
            for i, v in enumerate(inputs[:-1])
        ]
        return [*found, cotangent * self.point_slope(*operands)]

    def evaluated(self, *operands: Any) -> Any:
        """The function of float64 arrays, of which :class:`OrderSlope` takes differences."""
        return type(self).function(*operands)

    def step(self, order: int, *operands: Array) -> Any:
        """A step in an order by which the function changes little, for differences."""
        return np.full(operands[order].shape, 0.1)


def _varies(order: Variable) -> bool:
    return order.type.is_differentiable and not isinstance(order, Constant)


@dataclass(frozen=True)
class OrderSlope(OfOrder):
    """The derivative of ``of`` with respect to an order, for which no formula is known.

    Central differences at five steps, each half of the one before, extrapolated to 0 (Richardson
    1911) in float64: ten digits where the function itself has full precision. A further derivative
    in an order is that of differences, and has two digits less.
    """

    of: OfOrder
    order: int = 0

    @property
    def arity(self) -> int:  # type: ignore[override]
        """As many operands as the function has."""
        return self.of.arity

    def reference(self, *inputs: Array) -> Array:
        out = TensorType(self.out_dtype(*(a.dtype.name for a in inputs))).numpy
        operands = np.broadcast_arrays(*(np.asarray(a, np.float64) for a in inputs))
        with np.errstate(all="ignore"):
            return np.asarray(self.evaluated(*operands)).astype(out)

    def evaluated(self, *operands: Any) -> Any:
        step, table = self.step(self.order, *operands), []
        for _ in range(5):
            table.append((self._at(operands, step) - self._at(operands, -step)) / (2 * step))
            step = step / 2
        for power in range(1, 5):
            table = [(4**power * b - a) / (4**power - 1) for a, b in itertools.pairwise(table)]
        return table[0]

    def _at(self, operands: tuple[Array, ...], step: Any) -> Any:
        moved = list(operands)
        moved[self.order] = moved[self.order] + step
        return self.of.evaluated(*moved)

    def step(self, order: int, *operands: Array) -> Any:
        return self.of.step(order, *operands)

    def order_slope(self, order: int, *operands: Variable) -> Variable:
        of: OfOrder = self
        for _ in range(MOST_DIFFERENCES):
            if not isinstance(of, OrderSlope):
                return super().order_slope(order, *operands)
            of = of.of
        raise NonDifferentiable(f"{self}: differences of differences have no digits left")

    def point_slope(self, *operands: Variable) -> Variable:
        # The order's derivative of the point's, which has a formula: derivatives may be exchanged.
        apart = [v.copy() for v in operands[:-1]]
        slope = self.of.point_slope(*apart, self.of(*apart))
        (found,) = backprop({slope: operator("fill")(slope, like(1, slope))}, [apart[self.order]])
        return like(0, slope) * slope if found is None else found
