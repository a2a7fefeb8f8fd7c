"""Propagation of the names of sizes from the inputs of a node to its outputs.

An op's shape rule (:meth:`~symdnn.graph.op.Op.shapes`) is called with a symbol for each unknown
size, one symbol for all sizes of one name. A size of an output that is such a symbol has its name.
If the rule demands that two sizes are equal and their names differ, the rule raises an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from symdnn.config import config
from symdnn.errors import ShapeMismatch
from symdnn.graph.dims import Size, Unknown, is_size
from symdnn.graph.names.dim import Dim, one_for_each
from symdnn.graph.origin import NO_HINTS, NOWHERE, inherit, is_inherited
from symdnn.graph.type import OpaqueType, TensorType, Type
from symdnn.graph.variable import Constant, Variable

if TYPE_CHECKING:
    from symdnn.graph.op import Op


def with_names(op: Op, inputs: Sequence[Variable], types: tuple[Type, ...]) -> tuple[Type, ...]:
    """``types`` of the outputs with the names that follow from those of ``inputs``, and no others.

    Raises :class:`~symdnn.errors.ShapeMismatch` if sizes with different names have to be equal.
    Nodes that replace others (rewrites, gradients) are not checked: the user's node was.
    """
    names: list[Dim] = []
    for v in inputs:
        if v.type.names:
            names += [n for n in v.type.names if n is not None]
        elif v.owner is not None and v.owner.op.size_of is not None:
            names += [n for n in [name_of(v)] if n is not None]
    if not names:
        for t in types:
            if t.names is not None:
                return tuple([_plain(t) for t in types])
        return types
    shapes = _shapes(op, inputs, names)
    if shapes is None:
        return tuple([_plain(t) for t in types])
    return tuple([_plain(t, s) for t, s in zip(types, shapes, strict=True)])


def name_of(size: object) -> Dim | None:
    """The name of a size such as ``x.shape[0]``; None if it has none."""
    node = size.owner if isinstance(size, Variable) else None
    if node is None or node.op.size_of is None or node.inputs[0].type.names is None:
        return None
    return node.inputs[0].type.names[node.op.size_of]


def _plain(type_: Type, shape: Sequence[Any] = ()) -> Type:
    """``type_`` with the names of ``shape`` and no others."""
    if not isinstance(type_, TensorType):
        return type_
    names = [d.dim if isinstance(d, Size) else None for d in shape]
    return type_.with_names(names if any(names) else None)


def _shapes(op: Op, inputs: Sequence[Variable], names: Sequence[Dim]) -> Any:
    symbols = {n: s for dim in one_for_each(names) for s in [Size(dim)] for n in dim.names}

    def symbol(name: Dim | None) -> Size:
        return Size() if name is None else symbols[name.names[0]]

    def sizes(v: Variable) -> tuple[Any, ...]:
        if isinstance(v.type, OpaqueType):
            return ()
        given = v.type.names or (None,) * v.type.ndim
        return tuple([symbol(n) if d is None else d for d, n in zip(v.type.shape, given)])

    def number(v: Variable) -> Any:
        if isinstance(v, Constant):
            return int(v.data)
        name = name_of(v)
        if name is not None:
            return symbol(name)
        return of_host.setdefault(v, Size() if is_size(v) else Unknown())

    of_host: dict[Variable, Unknown] = {}
    host = {i: number(inputs[i]) for i in op.host_inputs}
    strict = not is_inherited()
    try:
        with inherit(NOWHERE, NO_HINTS), config.change_flags(compute_test_value="off"):
            return op.shapes([v.type for v in inputs], [sizes(v) for v in inputs], host)
    except ShapeMismatch:
        if strict:
            raise
        return None
