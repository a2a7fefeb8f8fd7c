"""How large values are, for comparing costs, where their sizes are not known.

Each size of a graph is a number, or arithmetic on sizes of what enters. Those get plausible values,
so that what is pooled or strided comes out smaller than what is not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from symdnn.graph.type import TensorType
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.core.shape import ShapeI
from symdnn.ops.lowered.lowered import neutral_of
from symdnn.ops.nn.conv import Conv, ConvGradInput
from symdnn.rewriting.facts import ShapeFacts

__all__ = ["GuessedSizes"]

_KERNEL, _CHANNELS, _OTHER = 3, 64, 64


class GuessedSizes:
    """Sizes of all values of a graph whose nodes are ``nodes``."""

    def __init__(self, shapes: ShapeFacts, nodes: Iterable[Apply]) -> None:
        self.shapes = shapes
        self.filters = {v for n in nodes for v in _filters(n)}
        self._numbers: dict[Variable, int] = {}

    def elements(self, v: Variable) -> float:
        """About how many elements ``v`` has."""
        count = 1.0
        for d in self.shapes.dims(v):
            count *= max(1, self._number(d) if isinstance(d, Variable) else int(d))
        return count

    def _number(self, size: Variable) -> int:
        stack = [size]
        while stack:
            v = stack[-1]
            parts = v.owner.inputs if v.owner is not None and _is_arithmetic(v.owner) else ()
            missing = [p for p in parts if p not in self._numbers]
            if v not in self._numbers and missing:
                stack += missing
                continue
            stack.pop()
            if v not in self._numbers:
                self._numbers[v] = self._computed(v)
        return self._numbers[size]

    def _computed(self, v: Variable) -> int:
        if isinstance(v, Constant):
            return int(v.data) if v.data.size == 1 else _OTHER
        node: Any = v.owner
        if node is None:
            return _OTHER
        if isinstance(node.op, ShapeI):
            leaf = node.inputs[0]
            if leaf in self.filters:
                return _CHANNELS if node.op.axis < 2 else _KERNEL
            return _OTHER
        if not _is_arithmetic(node):
            return _OTHER
        dtypes = [p.type.numpy.type for p in node.inputs]
        values = [t(self._numbers[p]) for t, p in zip(dtypes, node.inputs, strict=True)]
        try:
            with np.errstate(all="ignore"):
                return int(node.op.compute(*values)[v.index])
        except Exception:
            return _OTHER  # guessed numbers, of which an op may take none


def _is_arithmetic(node: Apply) -> bool:
    """Whether all that a node reads and makes is scalars, so that numbers can be put in."""
    values = (*node.inputs, *node.outputs)
    scalars = all(isinstance(v.type, TensorType) and v.type.ndim == 0 for v in values)
    return scalars and not node.op.unmergeable


def _filters(node: Apply) -> list[Variable]:
    """The filter that a convolution reads."""
    op = neutral_of(node.op)
    if isinstance(op, Conv):
        return [node.inputs[1]]
    return [node.inputs[0]] if isinstance(op, ConvGradInput) else []
