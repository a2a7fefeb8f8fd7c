"""Shapes of all variables of a graph, as ints and integer scalars over its inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import reduce
from operator import mul
from typing import TYPE_CHECKING, Any

from symdnn.graph.origin import NO_HINTS, inherit
from symdnn.graph.traverse import toposort
from symdnn.graph.type import OpaqueType, TensorType
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.core.shape import ShapeI

if TYPE_CHECKING:
    from symdnn.graph.dims import Dim

Dims = tuple[Any, ...]


def op_shapes(
    node: Apply, input_shapes: Sequence[Dims], size: Callable[[Variable], Any] | None = None
) -> list[Dims] | None:
    """Shapes of the outputs of ``node`` by its op's rule; None where they depend on data.

    ``size`` gives the value of an input on the host; by default a number, or the input.
    """
    types = [v.type for v in node.inputs]
    host = {i: (size or _number)(node.inputs[i]) for i in node.op.host_inputs}
    found = node.op.shapes(types, input_shapes, host)
    return None if found is None else [tuple(s) for s in found]


def _number(v: Variable) -> Variable | int:
    return int(v.data) if isinstance(v, Constant) else v


class ShapeResolver:
    """Expresses shapes through sizes of leaves, host scalars, and sizes that depend on data.

    The same variable always gets the same expression objects.
    """

    def __init__(self, leaves: Iterable[Variable] = ()) -> None:
        """``leaves`` are variables whose sizes are not traced further."""
        self._shapes: dict[Variable, Dims] = {}
        self._depends_on_data: set[Apply] = set()
        self._leaves = frozenset(leaves)
        for v in self._leaves:
            self._shapes[v] = self._sizes(v)

    def shape(self, v: Variable) -> Dims:
        """The dimensions of ``v``."""
        found = self._shapes.get(v)
        if found is not None:
            return found
        if v.owner is not None and _static(v) and len(v.owner.outputs) == 1:
            found = self._shapes[v] = self._sizes(v)
            return found
        for node in toposort([v], blockers=self._shapes):
            self._visit(node)
        if v not in self._shapes:
            self._shapes[v] = self._sizes(v)
        return self._shapes[v]

    def depends_on_data(self, node: Apply) -> bool:
        """Whether an output's shape depends on data, so is known only after the node ran."""
        for v in node.outputs:
            self.shape(v)
        return node in self._depends_on_data

    def dims(self, node: Apply) -> list[Variable]:
        """Symbolic sizes of the outputs of ``node``."""
        found = [d for v in node.outputs for d in self.shape(v)]
        return [d for d in found if isinstance(d, Variable) and not isinstance(d, Constant)]

    def _visit(self, node: Apply) -> None:
        shapes = None
        if not all([_static(v) for v in node.outputs]):
            with inherit(node.origin, NO_HINTS):
                shapes = op_shapes(node, [self._known(v) for v in node.inputs], self.size)
            if shapes is None:
                self._depends_on_data.add(node)
        for i, v in enumerate(node.outputs):
            if shapes is not None and isinstance(v.type, TensorType):
                self._shapes[v] = _with_static(v.type, shapes[i])
            else:
                self._shapes[v] = self._sizes(v)

    def _known(self, v: Variable) -> Dims:
        if v not in self._shapes:
            self._shapes[v] = self._sizes(v)
        return self._shapes[v]

    def size(self, v: Variable) -> Any:
        """A host input; the size of a variable as it is expressed here, so that equals cancel.

        A size that is itself a leaf stays so: its array may not be known here.
        """
        if v.owner is None or v in self._leaves:
            return _number(v)
        if v.owner.op.multiplies:
            return reduce(mul, [self.size(factor) for factor in v.owner.inputs])
        if not isinstance(v.owner.op, ShapeI):
            return _number(v)
        return self._known(v.owner.inputs[0])[v.owner.op.axis]

    @staticmethod
    def _sizes(v: Variable) -> Dims:
        if isinstance(v.type, OpaqueType):
            return ()
        made_here = nullcontext() if v.owner is None else inherit(v.owner.origin, NO_HINTS)
        with made_here:
            return tuple(ShapeI(i)(v) if d is None else d for i, d in enumerate(v.type.shape))


def _static(v: Variable) -> bool:
    return not isinstance(v.type, TensorType) or v.type.is_static


def _with_static(type_: TensorType, dims: Dims) -> Dims:
    return tuple(_plain(d) if s is None else s for s, d in zip(type_.shape, dims, strict=True))


def _plain(d: Dim) -> Dim:
    return _number(d) if isinstance(d, Variable) else int(d)
