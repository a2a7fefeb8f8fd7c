"""What mixed precision does to each kind of node: which inputs come in 16 bits, and what comes out.

The words: a value is *narrow* where it may be kept in 16 bits, because 16 bits are all that the
product it comes from had; *exact* where 16 bits keep it as it is (0, 1, a constant).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from symdnn.graph.op import Op
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.array.index import IncSubtensor, Subtensor
from symdnn.ops.array.join import Join, Split
from symdnn.ops.array.pad import Pad
from symdnn.ops.array.reduce import Reduce
from symdnn.ops.array.view import ForgetShape
from symdnn.ops.core.shape import Alloc, DimShuffle, Reshape, SpecifyType
from symdnn.ops.elementwise.activations import Elu, Gelu, GeluTanh, LeakyRelu, Relu, Sigmoid, Step
from symdnn.ops.elementwise.arithmetic import Abs, Add, Cast, Clip, Extreme, Mul, Neg, Sgn, Sub
from symdnn.ops.elementwise.comparison import Switch
from symdnn.ops.elementwise.math import Tanh
from symdnn.ops.elemwise import Elemwise
from symdnn.ops.linalg.dot import BatchedDot, Dot, MatchSizes
from symdnn.ops.lowered.lowered import Lowered, neutral_of
from symdnn.ops.nn.batchnorm import Normalise, NormGrad
from symdnn.ops.nn.conv import Conv, ConvGradInput, ConvGradWeight
from symdnn.ops.nn.dropout import Dropout, DropoutGrad
from symdnn.ops.nn.pool import AveragePoolGrad, MaxPoolGrad, Pool
from symdnn.ops.nn.rnn import RNNForward, RNNGrad

__all__ = [
    "PRODUCTS", "inside_a_kernel", "is_exact", "is_float32", "is_product", "narrow_inputs", "safe",
    "takes_16_bits",
]  # fmt: skip

#: Elementwise ops whose results are about as large as their operands, or between -1 and 1. The
#: rest (powers, exponentials, logarithms, quotients) may leave what float16 holds.
_SAFE: tuple[type[Op], ...] = (
    Abs, Add, Clip, Elu, Extreme, Gelu, GeluTanh, LeakyRelu, Mul, Neg, Relu, Sgn, Sigmoid, Step,
    Sub, Switch, Tanh,
)  # fmt: skip

#: Ops that only move elements about: narrow where all that they move is.
_MOVES: tuple[type[Op], ...] = (
    Alloc, DimShuffle, ForgetShape, IncSubtensor, Join, MatchSizes, Pad, Reshape, SpecifyType,
    Split, Subtensor,
)  # fmt: skip

#: Neutral ops that tensor cores do most of.
PRODUCTS: tuple[type[Op], ...] = (
    BatchedDot, Conv, ConvGradInput, ConvGradWeight, Dot, RNNForward, RNNGrad,
)  # fmt: skip

Narrow = Callable[[Variable], bool]
_Rule = Callable[[Apply, Narrow], Sequence[int] | None]


def is_float32(v: Any) -> bool:
    """Whether ``v`` is a float32 tensor: all that mixed precision ever touches."""
    return isinstance(v.type, TensorType) and v.type.dtype == "float32"


def is_exact(v: Variable) -> bool:
    """Whether 16 bits keep ``v`` as it is, or it is a number that the user wrote."""
    while not isinstance(v, Constant):
        if v.owner is None:
            return False
        if isinstance(v.owner.op, Cast):
            return bool(v.owner.inputs[0].type.dtype == "bool")
        if not isinstance(v.owner.op, Alloc | DimShuffle | SpecifyType):
            return isinstance(v.owner.op, Sgn | Step)
        v = v.owner.inputs[0]
    return True


def is_product(node: Apply) -> bool:
    """Whether tensor cores do most of a node's work: convolutions, matrix products, recurrent nets.

    A hint for the precision, or an operand of another dtype, leaves the node as it is.
    """
    op: Any = node.op
    if node.hints.precision is not None:
        return False
    floats = [v for v in node.inputs if isinstance(v.type, TensorType) and v.type.is_float]
    if not floats or not all(map(is_float32, floats)):
        return False
    if isinstance(op, Dot):
        return bool(node.outputs[0].type.ndim > 0)
    # What no library took is done by loops, which have no use for 16 bits.
    return isinstance(op, BatchedDot) or (
        isinstance(op, Lowered) and isinstance(op.unlowered, PRODUCTS)
    )


def safe(node: Apply) -> bool:
    """Whether the result of an elementwise node may be rounded to 16 bits."""
    return isinstance(node.op, _SAFE)


def inside_a_kernel(node: Apply, readers: Sequence[tuple[Apply | None, int]]) -> bool:
    """Whether fusion will keep the result of an elementwise node in a register: then there is
    nothing to round."""
    nodes = {reader for reader, _ in readers}
    reader = nodes.pop() if len(nodes) == 1 else None
    if reader is None:
        return False
    if isinstance(neutral_of(reader.op), Reduce):
        return True
    if not isinstance(reader.op, Elemwise) or reader.hints != node.hints:
        return False
    mine, its = node.outputs[0].type, reader.outputs[0].type
    return bool(mine.broadcastable == its.broadcastable)


def takes_16_bits(node: Apply | None) -> bool:
    """Whether a reader (None: a result of the graph) may have any use for a value in 16 bits."""
    if node is None:
        return False
    return is_product(node) or isinstance(node.op, Elemwise) or _rule(node) is not None


def narrow_inputs(node: Apply, narrow: Narrow) -> Sequence[int] | None:
    """Which inputs of a node that is no product go in 16 bits, so that its result of the same
    type comes so too; None where the node works in float32."""
    rule = _rule(node)
    return None if rule is None else rule(node, narrow)


def _rule(node: Apply) -> _Rule | None:
    op = neutral_of(node.op)
    found = next((rule for kinds, rule in _RULES if isinstance(op, kinds)), None)
    # Pooling that no library took is done in float32.
    return None if found is _pooled and op is node.op else found


def _moved(node: Apply, narrow: Narrow) -> Sequence[int] | None:
    moved = [i for i, v in enumerate(node.inputs) if is_float32(v)]
    if isinstance(node.op, MatchSizes):
        moved = moved[:1]
    values = [node.inputs[i] for i in moved]
    fits = all(narrow(v) or is_exact(v) for v in values)
    return moved if fits and any(map(narrow, values)) else None


def _first(node: Apply, narrow: Narrow) -> Sequence[int] | None:
    return [0] if narrow(node.inputs[0]) else None


def _of_gradient(node: Apply, narrow: Narrow) -> Sequence[int] | None:
    """(x, dy, parameters...): by ``x``, which the forward op had in 16 bits."""
    return [0, 1] if narrow(node.inputs[0]) else None


def _pooled(node: Apply, narrow: Narrow) -> Sequence[int] | None:
    """An image; or (x, y, dy) of a maximum."""
    images = [i for i, v in enumerate(node.inputs) if is_float32(v)]
    return images if narrow(node.inputs[0]) else None


def _dropped(node: Apply, narrow: Narrow) -> Sequence[int] | None:
    return [1] if narrow(node.inputs[1]) else None


_RULES: tuple[tuple[Any, _Rule], ...] = (
    (_MOVES, _moved),
    (NormGrad, _of_gradient),
    (Normalise, _first),
    ((Pool, MaxPoolGrad, AveragePoolGrad), _pooled),
    (Dropout, _dropped),
    (DropoutGrad, _first),
)
