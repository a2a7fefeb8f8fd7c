"""Epilogues: elementwise work of a library's GEMM or convolution on its result, in registers.

An epilogue is a scalar program over the accumulated result and named operands. So it can always be
separated again: :meth:`EpilogueOp.expanded` is the same computation in neutral ops, and any kernel
of fused elementwise ops runs the program alone. Which epilogues a library takes is data: the
:class:`EpilogueRules` of an op.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from symdnn.errors import TypeMismatch
from symdnn.graph.dims import DimT, same_dim
from symdnn.graph.op import Host, Shapes, Types
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array
from symdnn.graph.variable import Variable
from symdnn.ops.core.dtype import is_narrow_float, work_dtype
from symdnn.ops.core.scalar import (
    RESULT,
    Builder,
    Instruction,
    ScalarProgram,
    number_of_text,
)
from symdnn.ops.elementwise.arithmetic import cast
from symdnn.ops.lowered.activation import Activation, program_of, spellings
from symdnn.ops.lowered.fused import FusedElemwise
from symdnn.ops.lowered.lowered import LoweredLate

#: The names of operands, in the order of an op's inputs. A residual has the result's shape, a bias
#: has one value for each channel.
RESIDUAL, BIAS = "residual", "bias"
OPERANDS = (RESIDUAL, BIAS)


def scaled(v: Any, factor: float) -> Any:
    """``factor * v`` in the dtype of ``v``; ``v`` itself for 1."""
    return v if factor == 1 else v * np.asarray(factor, v.type.numpy)


# -- the value ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Affine:
    """``activation(alpha * y + residual * z + bias)``: the form that libraries have.

    ``residual`` is the factor of ``z``, 0 without one; ``activation`` is the library's name.
    """

    alpha: float = 1.0
    residual: float = 0.0
    bias: bool = False
    activation: str = ""

    @property
    def is_linear(self) -> bool:
        """Whether it only scales and adds ``z``."""
        return not (self.bias or self.activation)

    def words(self) -> list[str]:
        """The fields that differ from their defaults, for printing."""
        found = [] if self.alpha == 1 else [f"alpha={self.alpha}"]
        if self.residual != 0:
            found.append("residual" if self.residual == 1 else f"residual={self.residual}")
        return [*found, *["bias"] * self.bias, *[self.activation] * bool(self.activation)]

    def epilogue(self, dtype: str, activation: Activation | None, factors: str = "") -> Epilogue:
        """The epilogue as a program whose operands and result have ``dtype``.

        ``activation`` is the activation function. The accumulator has the dtype for multiplied
        operands of dtype ``factors`` (default: ``dtype``).
        """
        operands = tuple(n for n, on in zip(OPERANDS, (self.residual != 0, self.bias)) if on)
        work = work_dtype(factors or dtype)
        p = Builder((work, *[dtype] * len(operands)))
        total = p.input(0)
        total = total if self.alpha == 1 else total * float(self.alpha)
        for i, name in enumerate(operands, 1):
            more = p.input(i).cast(work)
            scales = name == RESIDUAL and self.residual != 1
            total = total + (more * float(self.residual) if scales else more)
        if activation is not None:
            program = program_of(activation, work)
            assert program is not None, f"{activation} has no scalar program"
            (total,) = p.inline(program, [total])
        return Epilogue(p.program([total.cast(dtype, RESULT)]), operands)


class Operand(NamedTuple):
    """An operand of an epilogue besides the result: its name, dtype and constant factor."""

    name: str
    dtype: str
    factor: float = 1.0


@dataclass(frozen=True)
class Epilogue:
    """A scalar program of (accumulated result, operands); ``operands`` are their names.

    >>> e = Affine(bias=True, residual=2.0).epilogue("float32", None)
    >>> e.operands, str(e.program)
    (('residual', 'bias'), '(a + (b * 2)) + c')
    """

    program: ScalarProgram
    operands: tuple[str, ...] = ()

    @property
    def dtype(self) -> str:
        """The dtype of the result."""
        return self.program.output_dtypes[0]

    def dtype_of(self, operand: str) -> str:
        """The dtype of an operand."""
        return self.program.inputs[1 + self.operands.index(operand)]

    def then(self, program: ScalarProgram, args: Sequence[Any]) -> Epilogue:
        """The epilogue followed by another program.

        ``args`` are that program's inputs: None for the result so far, an operand, or a number.
        """
        dtypes = {n: self.dtype_of(n) for n in self.operands}
        dtypes |= {a.name: a.dtype for a in args if isinstance(a, Operand)}
        names = tuple(n for n in OPERANDS if n in dtypes)
        p = Builder((self.program.inputs[0], *(dtypes[n] for n in names)))
        at = {n: p.input(i) for i, n in enumerate(names, 1)}
        (own,) = p.inline(self.program, [p.input(0), *(at[n] for n in self.operands)])
        values = []
        for a, dtype in zip(args, program.inputs, strict=True):
            if isinstance(a, Operand):
                value = at[a.name]
                if a.factor != 1:
                    value = value.cast(work_dtype(a.dtype)) * a.factor
            else:
                value = own if a is None else p.const(a, dtype)
            values.append(value.cast(dtype, RESULT))
        return Epilogue(p.program(p.inline(program, values)), names)

    def after(self, dtype: str) -> ScalarProgram:
        """The program of a second kernel, which reads the result stored as ``dtype``."""
        first, *rest = self.program.inputs
        p = Builder((dtype, *rest))
        operands = [p.input(i) for i in range(1, 1 + len(rest))]
        return p.program(p.inline(self.program, [p.input(0).cast(first), *operands]))

    def affine(self, activations: Activations = ()) -> Affine | None:
        """The epilogue in the form of :class:`Affine`; None where it has not this form."""
        return _affine(self, activations)


#: The result is written as it is.
NO_EPILOGUE = None
#: Pairs of a library's name and the activation function.
Activations = tuple[tuple[str, Activation], ...]
#: Instructions whose two operands may be exchanged.
_COMMUTES = ("add", "mul", "min", "max")


# -- recognising the form of a program ------------------------------------------------------------


@cache
def _affine(e: Epilogue, activations: Activations) -> Affine | None:
    p = e.program
    if len(p.outputs) != 1:
        return None
    end = _before_cast(p, p.outputs[0])
    spelled = [(w, each) for w, op in activations for each in spellings(op)]
    for word, op in (("", None), *spelled):
        start = end if op is None else _before(p, end, op)
        found = None if start is None else _linear(p, start)
        if found is None:
            continue
        alpha, offset = found.pop(0, 0.0), found.pop(None, 0.0)
        factors = {e.operands[i - 1]: f for i, f in found.items() if i is not None}
        if alpha and not offset and factors.get(BIAS, 1.0) == 1 and set(factors) == {*e.operands}:
            return Affine(alpha, factors.get(RESIDUAL, 0.0), BIAS in factors, word)
    return None


def _step(p: ScalarProgram, value: int) -> Instruction | None:
    at = value - len(p.inputs)
    return p.body[at] if at >= 0 else None


def _before_cast(p: ScalarProgram, value: int) -> int:
    """The value before a last cast to 16 bits; ``value`` itself if there is none."""
    step = _step(p, value)
    narrows = step is not None and step.name == "cast" and is_narrow_float(step.dtype)
    return step.args[0] if step is not None and narrows else value


def _before(p: ScalarProgram, end: int, activation: Activation) -> int | None:
    """The value ``x`` with ``end = activation(x)``; None if ``end`` has not this form."""
    q = program_of(activation, p.dtype_of(end))

    def argument(a: int, b: int, x: int | None) -> int | None:
        """``x``, if value a of p is value b of q; of q's input if ``x`` is None, -1 if not."""
        assert q is not None
        mine, its = _step(p, a), _step(q, b)
        if its is None:
            return a if x in (None, a) else -1
        if mine is None or (mine.name, mine.dtype, mine.value) != (its.name, its.dtype, its.value):
            return -1
        orders = [mine.args, mine.args[::-1]] if mine.name in _COMMUTES else [mine.args]
        for args in orders:
            found = x
            for left, right in zip(args, its.args, strict=True):
                found = argument(left, right, found) if found != -1 else -1
            if found != -1:
                return found
        return -1

    found = None if q is None else argument(end, q.outputs[0], None)
    return None if found == -1 else found


def _linear(p: ScalarProgram, end: int) -> dict[int | None, float] | None:
    """The factors of the inputs in a value, with its offset as None; None if it is not linear."""
    terms: list[dict[int | None, float] | None] = [{i: 1.0} for i in range(len(p.inputs))]
    for step in p.body[: max(0, end + 1 - len(p.inputs))]:
        terms.append(_linear_step(step, [terms[a] for a in step.args]))
    return terms[end]


def _linear_step(
    step: Instruction, args: Sequence[dict[int | None, float] | None]
) -> dict[int | None, float] | None:
    if step.name == "const":
        return {None: float(number_of_text(step.value, step.dtype))}
    if any(a is None for a in args):
        return None
    a, b = ([x for x in args if x is not None] + [{}, {}])[:2]
    if step.name == "cast":
        return None if is_narrow_float(step.dtype) else a
    if step.name in ("add", "sub"):
        sign = 1.0 if step.name == "add" else -1.0
        return {i: a.get(i, 0.0) + sign * b.get(i, 0.0) for i in {**a, **b}}
    if step.name == "neg":
        return {i: -f for i, f in a.items()}
    if step.name == "mul" and {*a} == {None}:
        a, b = b, a
    if step.name in ("mul", "div") and {*b} == {None} and (step.name == "mul" or b[None]):
        factor = b[None] if step.name == "mul" else 1 / b[None]
        return {i: f * factor for i, f in a.items()}
    return None


# -- rules of libraries ---------------------------------------------------------------------------


@dataclass(frozen=True)
class EpilogueRules:
    """The epilogues that a library takes behind an op, as a predicate of dtypes.

    ``dtypes`` are dtypes of results that may have a bias or an activation function,
    ``linear_dtypes`` those that may only be scaled and added to. ``scales`` and
    ``scales_residual`` say whether ``alpha`` and the factor of ``z`` may differ from 1. ``widens``:
    16-bit operands may give a float32 result. ``rounds_operands``: the epilogue's operands have the
    dtype of the multiplied ones, so float32 operands are rounded to 16 bits. ``saves_sums``: it is
    worth adding a residual that has no other reader even where an elementwise kernel reads the sum.
    ``through_reshape``: a reshape that keeps the last dimension may be before the epilogue.
    ``measured`` are activation functions that are in one kernel only where that was measured to be
    faster. They are taken in 16 bits, and where products alone read the result: then two kernels
    do what they would do anyway, and no other kernel would have done this work.
    """

    activations: Activations = ()
    dtypes: tuple[str, ...] = ()
    linear_dtypes: tuple[str, ...] = ()
    scales: bool = False
    scales_residual: bool = False
    widens: bool = False
    rounds_operands: bool = False
    saves_sums: bool = False
    through_reshape: bool = False
    measured: tuple[str, ...] = ()

    def op_of(self, word: str) -> Activation | None:
        """The activation function of a name; raises KeyError for an unknown name."""
        return dict(self.activations)[word] if word else None

    def takes(self, e: Epilogue, factors: str) -> bool:
        """Whether the library takes all of ``e`` for multiplied operands of dtype ``factors``."""
        found = e.affine(self.activations)
        if found is None or work_dtype(factors) != e.program.inputs[0]:
            return False
        if e.dtype not in (*self.dtypes, *(self.linear_dtypes if found.is_linear else ())):
            return False
        if found.activation in self.measured and not is_narrow_float(e.dtype):
            return False
        if e.dtype != factors and not (self.widens and e.dtype == work_dtype(factors)):
            return False
        if any(e.dtype_of(name) != e.dtype for name in e.operands):
            return False
        scaled = found.alpha != 1 and not self.scales
        return not scaled and (self.scales_residual or found.residual in (0.0, 1.0))


# -- ops with an epilogue -------------------------------------------------------------------------


@dataclass(frozen=True)
class EpilogueOp(LoweredLate):
    """Base of GEMMs and convolutions with an epilogue.

    Inputs are those of :meth:`neutral`, then z (of the result's shape) and the bias (a value for
    each channel, of size 1 in the other dimensions), where the epilogue has them. With 16-bit
    inputs the accumulator is float32, and the result is rounded once.
    """

    abstract: ClassVar[bool] = True
    rules: ClassVar[EpilogueRules] = EpilogueRules()
    #: The dimension of the result along which a bias varies, in NCHW: the last one, of a GEMM.
    bias_axis: ClassVar[int] = -1
    epilogue: Epilogue | None = field(default=NO_EPILOGUE, kw_only=True)

    def channel_axis(self, ndim: int) -> int:
        """The dimension of a result of ``ndim`` dimensions along which the bias varies."""
        return self.bias_axis % ndim if self.layout == "NCHW" else ndim - 1

    def ending(self, dtype: str = "float32", *, factors: str = "", **terms: Any) -> Self:
        """The op with an epilogue; ``terms`` are the fields of :class:`Affine`.

        Operands and result have ``dtype``, the multiplied operands ``factors`` (default:
        ``dtype``). Raises TypeMismatch for an activation function that the library has not.
        """
        affine = Affine(**terms)
        known = dict(self.rules.activations)
        if affine.activation and affine.activation not in known:
            raise TypeMismatch(self, f"one of {sorted(known)}", affine.activation)
        if affine == _IDENTITY and not factors:
            return replace(self, epilogue=None)
        made = affine.epilogue(dtype, self.rules.op_of(affine.activation), factors)
        return replace(self, epilogue=made)

    # -- the epilogue in the library's form -------------------------------------------------------

    @property
    def terms(self) -> Affine:
        """The epilogue as an :class:`Affine`. Raises TypeMismatch if it has not this form."""
        if self.epilogue is None:
            return _IDENTITY
        found = self.epilogue.affine(self.rules.activations)
        if found is None:
            words = [w for w, _ in self.rules.activations]
            wanted = f"an epilogue of alpha, residual, bias and one of {words}"
            raise TypeMismatch(type(self).__name__, wanted, str(self.epilogue.program))
        return found

    @property
    def is_plain(self) -> bool:
        """Whether there is no epilogue."""
        return self.epilogue is None

    @property
    def alpha(self) -> float:
        """The factor of the result."""
        return self.terms.alpha

    @property
    def residual(self) -> float:
        """The factor of z; 0 without one."""
        return self.terms.residual

    @property
    def bias(self) -> bool:
        """Whether the last input is a bias."""
        return self.terms.bias

    @property
    def activation(self) -> str:
        """The library's name of the activation function; empty without one."""
        return self.terms.activation

    def _words(self) -> list[str]:
        own = [w for w in super()._words() if not w.startswith("epilogue=")]
        return own + self.terms.words()

    # -- the contract of an op --------------------------------------------------------------------

    @property
    def operand_names(self) -> tuple[str, ...]:
        """Names of the last inputs."""
        return () if self.epilogue is None else self.epilogue.operands

    @property
    def may_overwrite(self) -> Mapping[int, tuple[int, ...]]:
        # z is the third input, of a GEMM and of a convolution.
        return {0: (2,)} if RESIDUAL in self.operand_names else {}

    def split(self, inputs: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        """The neutral op's inputs, and the epilogue's operands."""
        count = len(inputs) - len(self.operand_names)
        return inputs[:count], inputs[count:]

    def _operand_shape(self, name: str, shape: Sequence[DimT]) -> tuple[DimT | int, ...]:
        if name == RESIDUAL:
            return tuple(shape)
        axis = self.channel_axis(len(shape))
        return tuple(d if i == axis else 1 for i, d in enumerate(shape))

    def _result_type(self, inputs: Sequence[Any]) -> TensorType:
        own, operands = self.split(inputs)
        (y,) = self.neutral().output_types(own)
        assert isinstance(y, TensorType)
        if self.epilogue is None:
            return y
        if work_dtype(y.dtype) != self.epilogue.program.inputs[0]:
            wanted = f"factors that are accumulated in {self.epilogue.program.inputs[0]}"
            raise TypeMismatch(self, wanted, list(inputs))
        for name, v in zip(self.operand_names, operands, strict=True):
            shape = self._operand_shape(name, y.shape)
            t = TensorType(self.epilogue.dtype_of(name), shape)
            spread = len(v.shape) == len(shape) and any(
                a == 1 and b != 1 for a, b in zip(shape, v.shape)
            )
            if not t.accepts(v) or (name == BIAS and spread):
                raise TypeMismatch(self, f"{_NOUNS[name]} of type {t}", v)
        return y.with_dtype(self.epilogue.dtype)

    def infer(self, *inputs: TensorType) -> Any:
        return self._result_type(inputs)

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        own, operands = self.split(shapes)
        found = self.neutral().shapes(types[: len(own)], own, host)
        if found is None:
            return None
        for name, shape in zip(self.operand_names, operands, strict=True):
            wanted = self._operand_shape(name, found[0])
            for a, b in zip(wanted, shape, strict=True):
                same_dim(self, (a, b), f"{_NOUNS[name]} of shape {wanted}", tuple(shape))
        return found

    def _value(self, inputs: Sequence[Any]) -> Any:
        own, operands = self.split(inputs)
        if self.epilogue is None:
            return self.neutral().compute(*own)[0]
        (y,) = self.neutral().compute(*map(_wide, own))
        (result,) = self.epilogue.program.evaluate(y, *operands)
        return np.asarray(result)

    def reference(self, *inputs: Array) -> Any:
        return self._value(inputs)

    def _expanded_value(self, inputs: Sequence[Variable]) -> Variable:
        own, operands = self.split(inputs)
        y: Variable = self.neutral()(*own)
        if self.epilogue is None:
            return y
        program = self.epilogue.program
        return FusedElemwise(program)(cast(y, program.inputs[0]), *operands)[0]

    def expanded(self, *inputs: Variable) -> list[Variable] | None:
        return [self._expanded_value(inputs)]


_IDENTITY = Affine()
_NOUNS = {RESIDUAL: "an output to add to", BIAS: "a bias"}


def _wide(a: Any) -> Any:
    """float32 for the 16-bit floats."""
    return a.astype(np.float32) if is_narrow_float(np.asarray(a).dtype.name) else a
