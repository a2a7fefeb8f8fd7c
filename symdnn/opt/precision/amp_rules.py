"""The rules of mixed precision by kind of node: which inputs are read in 16 bits.

A value is *narrow* where it may be stored in 16 bits, because it comes from a GEMM or convolution
of 16-bit operands. It is *exact* where rounding to 16 bits keeps it (0, 1, a constant).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from symdnn.config import config
from symdnn.graph.op import Op
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.array.advanced_index import AdvancedIncSubtensor, AdvancedSubtensor
from symdnn.ops.array.index import IncSubtensor, Subtensor
from symdnn.ops.array.join import Join, Roll, Split
from symdnn.ops.array.pad import Pad
from symdnn.ops.array.reduce import Reduce
from symdnn.ops.array.view import ForgetShape
from symdnn.ops.attention.attention import Attention, AttentionGrad
from symdnn.ops.collective.reductions import AllReduce, ReduceScatter
from symdnn.ops.control.checkpoint import After
from symdnn.ops.core.shape import Alloc, DimShuffle, Reshape, SpecifyType
from symdnn.ops.elementwise.activations import Elu, Gelu, GeluTanh, LeakyRelu, Relu, Sigmoid, Step
from symdnn.ops.elementwise.arithmetic import Abs, Add, Cast, Clip, Extreme, Mul, Neg, Sgn, Sub
from symdnn.ops.elementwise.comparison import Switch
from symdnn.ops.elementwise.math import Tanh
from symdnn.ops.elemwise import Elemwise
from symdnn.ops.linalg.dot import BatchedDot, Dot, MatchSizes
from symdnn.ops.lowered.gathered import ListedSums, PlacedSums
from symdnn.ops.lowered.lowered import Lowered, neutral_of
from symdnn.ops.nn.batchnorm import Normalise, NormGrad
from symdnn.ops.nn.conv import Conv, ConvGradInput, ConvGradWeight
from symdnn.ops.nn.dropout import Dropout, DropoutGrad
from symdnn.ops.nn.pool import AveragePoolGrad, MaxPoolGrad, Pool
from symdnn.ops.nn.rnn import RNNForward, RNNGrad

#: Elementwise ops whose results are about as large as their operands, or between -1 and 1. Others
#: (powers, exponentials, logarithms, quotients) may leave the range of float16.
_BOUNDED_OPS: tuple[type[Op], ...] = (
    Abs, Add, Clip, Elu, Extreme, Gelu, GeluTanh, LeakyRelu, Mul, Neg, Relu, Sgn, Sigmoid, Step,
    Sub, Switch, Tanh,
)  # fmt: skip

#: Ops that only copy elements, or add a few of them in float32: their results are narrow where
#: all copied values are.
DATA_MOVEMENT_OPS: tuple[type[Op], ...] = (
    AdvancedSubtensor, Alloc, DimShuffle, ForgetShape, IncSubtensor, Join, ListedSums, MatchSizes,
    Pad, PlacedSums, Reshape, Roll, SpecifyType, Split, Subtensor,
)  # fmt: skip

#: Neutral ops whose work is mostly done by tensor cores.
TENSOR_CORE_OPS: tuple[type[Op], ...] = (
    Attention, AttentionGrad, BatchedDot, Conv, ConvGradInput, ConvGradWeight, Dot, RNNForward,
    RNNGrad,
)  # fmt: skip

Narrow = Callable[[Variable], bool]
_Rule = Callable[[Apply, Narrow], Sequence[int] | None]


def is_float32(v: Any) -> bool:
    """Whether ``v`` is a float32 tensor: mixed precision changes no other values."""
    return isinstance(v.type, TensorType) and v.type.dtype == "float32"


def is_exact(v: Variable) -> bool:
    """Whether rounding to 16 bits keeps ``v``, or ``v`` is a number that the user wrote."""
    while not isinstance(v, Constant):
        if v.owner is None:
            return False
        if isinstance(v.owner.op, Cast):
            return bool(v.owner.inputs[0].type.dtype == "bool")
        if not isinstance(v.owner.op, Alloc | DimShuffle | SpecifyType):
            return isinstance(v.owner.op, Sgn | Step)
        v = v.owner.inputs[0]
    return True


def uses_tensor_cores(node: Apply) -> bool:
    """Whether tensor cores do most of a node's work: convolutions, GEMMs, recurrent networks.

    A node with a hint for the precision, or with an operand of another dtype, does not count.
    """
    op: Any = node.op
    if node.hints.precision is not None:
        return False
    floats = [v for v in node.inputs if isinstance(v.type, TensorType) and v.type.is_float]
    if not floats or not all(map(is_float32, floats)):
        return False
    if isinstance(op, Dot):
        return bool(node.outputs[0].type.ndim > 0)
    # An op that no library took runs as loops, which gain nothing from 16 bits.
    return isinstance(op, BatchedDot) or (
        isinstance(op, Lowered) and isinstance(op.unlowered, TENSOR_CORE_OPS)
    )


def only_moves(node: Apply) -> bool:
    """Whether a node's result is best rounded by rounding its operand, of which it is a copy.

    A rounded view is a view of the rounded operand, and what is copied in 16 bits is half of it.
    Not so a gather of a few elements, since all would be rounded for it. What is assigned to a part
    of zeros is all that there is to round.
    """
    if isinstance(node.op, IncSubtensor | AdvancedIncSubtensor):
        return node.op.set_instead_of_inc and is_exact(node.inputs[0])
    if isinstance(node.op, PlacedSums):
        return node.op.factors == (1.0,)
    if isinstance(node.op, AdvancedSubtensor):
        sizes = [v.type.shape for v in (node.inputs[0], node.outputs[0])]
        known = [prod(d for d in s if d is not None) for s in sizes if None not in s]
        return len(known) == 2 and known[0] <= known[1]
    return isinstance(node.op, DimShuffle | Reshape | Roll | Pad)


def may_round_result(node: Apply) -> bool:
    """Whether the result of an elementwise node may be rounded to 16 bits."""
    return isinstance(node.op, _BOUNDED_OPS)


def stays_in_register(node: Apply, readers: Sequence[tuple[Apply | None, int]]) -> bool:
    """Whether fusion will keep the result of an elementwise node in a register, not in memory."""
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
    """Whether a reader (None: a result of the graph) may read a value in 16 bits."""
    if node is None:
        return False
    return uses_tensor_cores(node) or isinstance(node.op, Elemwise) or _rule(node) is not None


def narrow_inputs(node: Apply, narrow: Narrow) -> Sequence[int] | None:
    """Indices of the inputs that a node reads in 16 bits, so that its results are narrow too.

    None where the node works in float32. ``narrow`` says which values of the old graph are narrow.
    GEMMs, convolutions and elementwise nodes have rules of their own.
    """
    rule = _rule(node)
    return None if rule is None else rule(node, narrow)


def _rule(node: Apply) -> _Rule | None:
    op = neutral_of(node.op)
    found = next((rule for kinds, rule in _RULES if isinstance(op, kinds)), None)
    if found is _narrow_ones and isinstance(op, AllReduce | ReduceScatter):
        # A sum over ranks may leave the range of float16.
        return found if op.as_rounded and str(config.amp) == "bf16" else None
    # Pooling that no library took runs in float32.
    return None if found is _pooling and op is node.op else found


def _data_movement(node: Apply, narrow: Narrow) -> Sequence[int] | None:
    moved = [i for i, v in enumerate(node.inputs) if is_float32(v)]
    if isinstance(node.op, MatchSizes):
        moved = moved[:1]
    values = [node.inputs[i] for i in moved]
    fits = all(narrow(v) or is_exact(v) for v in values)
    return moved if fits and any(map(narrow, values)) else None


def _first_input(node: Apply, narrow: Narrow) -> Sequence[int] | None:
    return [0] if narrow(node.inputs[0]) else None


def _rows_of_all_ranks(node: Apply[Any], narrow: Narrow) -> Sequence[int] | None:
    """The table, and with it the rows: they are summed in float32, and rounded with it once."""
    op: Any = node.op
    return [0, 1] if op.same_bits and narrow(node.inputs[0]) else None


def _norm_gradient(node: Apply, narrow: Narrow) -> Sequence[int] | None:
    """Inputs are (x, dy, parameters...); narrow where ``x`` is, which the forward op read."""
    return [0, 1] if narrow(node.inputs[0]) else None


def _pooling(node: Apply, narrow: Narrow) -> Sequence[int] | None:
    """The input, or (x, y, dy) of the gradient of a maximum."""
    floats = [i for i, v in enumerate(node.inputs) if is_float32(v)]
    return floats if narrow(node.inputs[0]) else None


def _narrow_ones(node: Apply, narrow: Narrow) -> Sequence[int] | None:
    """Each value by itself: results, and what is only waited for."""
    return [i for i, v in enumerate(node.inputs) if narrow(v)] or None


def _dropout(node: Apply, narrow: Narrow) -> Sequence[int] | None:
    return [1] if narrow(node.inputs[1]) else None


_RULES: tuple[tuple[Any, _Rule], ...] = (
    (DATA_MOVEMENT_OPS, _data_movement),
    (AdvancedIncSubtensor, _rows_of_all_ranks),
    (NormGrad, _norm_gradient),
    (Normalise, _first_input),
    ((Pool, MaxPoolGrad, AveragePoolGrad), _pooling),
    (Dropout, _dropout),
    (DropoutGrad, _first_input),
    ((After, AllReduce, ReduceScatter), _narrow_ones),
)
