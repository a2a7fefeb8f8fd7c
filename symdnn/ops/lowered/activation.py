"""Activation functions of epilogues: one elementwise op, or a formula of several."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from symdnn.graph.type import TensorType
from symdnn.ops.core.dtype import work_dtype
from symdnn.ops.core.scalar import RESULT, Builder, Scalar, ScalarProgram
from symdnn.ops.elementwise.activations import Relu, Sigmoid
from symdnn.ops.elementwise.arithmetic import Clip, Maximum, Minimum
from symdnn.ops.elementwise.scalar_meaning import meaning
from symdnn.ops.elemwise import Elemwise

__all__ = [
    "HARD_SIGMOID", "HARD_SWISH", "RELU6", "SILU", "Activation", "Formula", "program_of",
    "spellings",
]  # fmt: skip


@dataclass(frozen=True)
class Formula:
    """A function that a user's program computes by several elementwise ops.

    With ``of_floats`` integers have none: its steps have other dtypes than the operand. ``others``
    are other ways to write it.
    """

    of: Callable[[Scalar], Scalar]
    of_floats: bool = True
    others: tuple[Callable[[Scalar], Scalar], ...] = ()


Activation = Elemwise | Formula


def spellings(activation: Activation) -> tuple[Activation, ...]:
    """Each way to write an activation function, its own first."""
    if isinstance(activation, Elemwise):
        return (activation,)
    return (activation, *(replace(activation, of=f, others=()) for f in activation.others))


def program_of(activation: Activation, dtype: str) -> ScalarProgram | None:
    """The program of an activation function of one number of a dtype; None if it has none.

    Formulas of 16-bit floats are computed in float32 and rounded once.
    """
    if isinstance(activation, Elemwise):
        return meaning(activation, (dtype,))
    if activation.of_floats and not TensorType(dtype).is_float:
        return None
    p = Builder((dtype,))
    x = p.input(0).cast(work_dtype(dtype))
    return p.program([activation.of(x).cast(dtype, RESULT)])


def _call(op: Elemwise, x: Scalar, *numbers: float) -> Scalar:
    args = [x, *(x.like(n) for n in numbers)]
    program = meaning(op, tuple(a.dtype for a in args))
    assert program is not None, f"{op} has no scalar program"
    return x.builder.inline(program, args)[0]


def _hard_sigmoid(x: Scalar) -> Scalar:
    return _call(Clip(), x * (1 / 6) + 0.5, 0, 1)


#: ``min(relu(x), 6)``; ``x / 6 + 1 / 2`` limited to 0 .. 1; ``x`` times it; ``x sigmoid(x)``.
RELU6 = Formula(
    lambda x: _call(Minimum(), _call(Relu(), x), 6), of_floats=False,
    others=(
        lambda x: _call(Clip(), x, 0, 6),
        lambda x: _call(Maximum(), _call(Minimum(), x, 6), 0),
    ),
)  # fmt: skip
HARD_SIGMOID = Formula(_hard_sigmoid)
HARD_SWISH = Formula(lambda x: x * _hard_sigmoid(x))
SILU = Formula(lambda x: x * _call(Sigmoid(), x))
