"""Guesses of the number of elements of values of unknown shape, to compare costs.

Each size in a graph is a number, or arithmetic on sizes of the inputs. Unknown sizes of inputs get
plausible values, so that pooled or strided activations are smaller than others.
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

#: Guesses for unknown sizes of inputs: of a filter's window, of its channels, of other dimensions.
_WINDOW_ELEMENTS, _CHANNELS, _OTHER_ELEMENTS = 3, 64, 64


class GuessedSizes:
    """Sizes of all values of a graph whose nodes are ``nodes``."""

    def __init__(self, shapes: ShapeFacts, nodes: Iterable[Apply]) -> None:
        self.shapes = shapes
        self.filters = {v for n in nodes for v in _filters(n)}
        self._numbers: dict[Variable, int] = {}

    def elements(self, v: Variable) -> float:
        """An estimate of the number of elements of ``v``."""
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
            return int(v.data) if v.data.size == 1 else _OTHER_ELEMENTS
        node: Any = v.owner
        if node is None:
            return _OTHER_ELEMENTS
        if isinstance(node.op, ShapeI):
            leaf = node.inputs[0]
            if leaf in self.filters:
                return _CHANNELS if node.op.axis < 2 else _WINDOW_ELEMENTS
            return _OTHER_ELEMENTS
        if not _is_arithmetic(node):
            return _OTHER_ELEMENTS
        dtypes = [p.type.numpy.type for p in node.inputs]
        values = [t(self._numbers[p]) for t, p in zip(dtypes, node.inputs, strict=True)]
        try:
            with np.errstate(all="ignore"):
                return int(node.op.compute(*values)[v.index])
        except Exception:
            return _OTHER_ELEMENTS  # an op may refuse guessed numbers


def _is_arithmetic(node: Apply) -> bool:
    """Whether all inputs and outputs of a node are scalars, so that it can be computed."""
    values = (*node.inputs, *node.outputs)
    scalars = all(isinstance(v.type, TensorType) and v.type.ndim == 0 for v in values)
    return scalars and not node.op.unmergeable


def _filters(node: Apply) -> list[Variable]:
    """The filter that a convolution or the gradient of its input reads, in a list."""
    op = neutral_of(node.op)
    if isinstance(op, Conv):
        return [node.inputs[1]]
    return [node.inputs[0]] if isinstance(op, ConvGradInput) else []
