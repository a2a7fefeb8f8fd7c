"""Gradients that are zero almost everywhere: of integers, through them, with respect to them.

As in Theano a float function of an integer is differentiated as a function of a real number. The
derivative of an integer result is zero. Indices and shapes are not connected to the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from symdnn.config import config
from symdnn.graph.backprop import backprop, nodes_between
from symdnn.graph.op import Op
from symdnn.graph.operators import operator
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.array.reduce import Reduce
from symdnn.ops.core.gradient_control import DisconnectedGrad
from symdnn.ops.core.shape import ShapeI, ShapeVector
from symdnn.ops.elemwise import Elemwise

__all__ = ["flat_gradient", "gradient_of_discrete", "is_discrete"]

Sweep = Callable[
    [Mapping[Variable, Variable], Sequence[Variable], Iterable[Variable]], Sequence[Variable | None]
]


def is_discrete(v: Variable) -> bool:
    """Whether ``v`` is a tensor of bools or integers."""
    return isinstance(v.type, TensorType) and v.type.is_discrete


def flat_gradient(
    outputs: Iterable[Variable], v: Variable, constants: Iterable[Variable]
) -> Variable | None:
    """Zeros of the shape of ``v`` if ``outputs`` depend on its values, else None."""
    if not _reaches(outputs, v, constants):
        return None
    dtype = str(config.floatX) if is_discrete(v) else v.type.dtype
    return operator("zeros_like")(v, dtype)


def gradient_of_discrete(
    seeds: Mapping[Variable, Variable], v: Variable, constants: Iterable[Variable], sweep: Sweep
) -> Variable | None:
    """The gradient with respect to a discrete ``v`` through elementwise ops with float results."""
    readers = [n for n in nodes_between(seeds, [v], constants) if v in n.inputs and _is_real(n)]
    if not readers:
        return None
    real = operator("cast")(v, "floatX")
    total: Variable | None = None
    found = sweep(seeds, [n.outputs[0] for n in readers], constants)
    for node, cotangent in zip(readers, found):
        if cotangent is None:
            continue
        y: Variable = node.op(*[real if i is v else i for i in node.inputs])
        (term,) = backprop({y: operator("cast")(cotangent, y.type.dtype)}, [real])
        if term is not None:
            total = term if total is None else operator("add")(total, term)
    return total


def _is_real(node: Apply) -> bool:
    out = node.outputs[0].type
    return isinstance(node.op, Elemwise) and isinstance(out, TensorType) and out.is_differentiable


def _reaches(outputs: Iterable[Variable], v: Variable, constants: Iterable[Variable]) -> bool:
    outs = set(outputs)
    reached = {v}
    for node in nodes_between(outs, [v], constants):
        for i, u in enumerate(node.inputs):
            if u in reached and _carries(node.op, i, node):
                reached.update(_connected_outputs(node, i))
    return not reached.isdisjoint(outs)


def _connected_outputs(node: Apply, i: int) -> Sequence[Variable]:
    """The outputs that depend on input ``i``: all, unless the op has Theano's
    ``connection_pattern``."""
    pattern = getattr(node.op, "connection_pattern", None)
    if pattern is None:
        return node.outputs
    return [o for o, connected in zip(node.outputs, pattern(node)[i]) if connected]


def _carries(op: Op, i: int, node: Apply) -> bool:
    """Whether the values of input ``i`` enter the outputs, not only as a shape or an index."""
    if isinstance(op, ShapeI | ShapeVector | DisconnectedGrad) or i in op.host_inputs:
        return False
    if not is_discrete(node.inputs[i]) or isinstance(op, Elemwise | Reduce):
        return True
    return i == 0 and is_discrete(node.outputs[0])
