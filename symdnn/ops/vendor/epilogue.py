"""Epilogues: what a library's product or convolution does to its result before it writes it.

An epilogue is a scalar program over the accumulated result and named operands, so that it can
always be taken apart again: :meth:`EpilogueOp.expanded` gives the same in ops of no library, and
any kernel of fused elementwise ops runs the program by itself. What a library takes of all that can
be written so is data: the :class:`EpilogueRules` of an op.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from symdnn.errors import NonDifferentiable, TypeMismatch
from symdnn.graph.dims import Shape, same_dim
from symdnn.graph.op import Grads, Host, Vars
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Variable
from symdnn.ops.core.dtype import is_narrow_float
from symdnn.ops.core.lowered import Lowered
from symdnn.ops.core.scalar import (
    RESULT,
    Builder,
    Instruction,
    ScalarProgram,
    number_of_text,
)
from symdnn.ops.elementwise.arithmetic import cast
from symdnn.ops.elementwise.scalar_meaning import meaning
from symdnn.ops.elemwise import Elemwise
from symdnn.ops.vendor.fused import FusedElemwise

__all__ = [
    "BIAS", "NO_EPILOGUE", "RESIDUAL", "Affine", "Epilogue", "EpilogueOp", "EpilogueRules",
    "Operand", "accumulator",
]  # fmt: skip

#: Operands by name, in the order of an op's inputs: of the result's shape; of one value a channel.
RESIDUAL, BIAS = "residual", "bias"
OPERANDS = (RESIDUAL, BIAS)


def accumulator(dtype: str) -> str:
    """The dtype in which a result of ``dtype`` is accumulated: float32 for the 16-bit floats."""
    return "float32" if is_narrow_float(dtype) else dtype


# -- the value ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Affine:
    """``activation(alpha * y + residual * z + bias)``: the form in which libraries are told.

    ``residual`` is the factor of ``z``, 0 without one; ``activation`` is the library's word.
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
        """For printing: what is not at its default."""
        found = [] if self.alpha == 1 else [f"alpha={self.alpha}"]
        if self.residual != 0:
            found.append("residual" if self.residual == 1 else f"residual={self.residual}")
        return [*found, *["bias"] * self.bias, *[self.activation] * bool(self.activation)]

    def epilogue(self, dtype: str, activation: Elemwise | None, factors: str = "") -> Epilogue:
        """As a program whose operands and result have ``dtype``; ``activation`` is the op of the
        word. The accumulator has the dtype ``factors`` would be accumulated in."""
        operands = tuple(n for n, on in zip(OPERANDS, (self.residual != 0, self.bias)) if on)
        work = accumulator(factors or dtype)
        p = Builder((work, *[dtype] * len(operands)))
        total = p.input(0)
        total = total if self.alpha == 1 else total * float(self.alpha)
        for i, name in enumerate(operands, 1):
            more = p.input(i).cast(work)
            scales = name == RESIDUAL and self.residual != 1
            total = total + (more * float(self.residual) if scales else more)
        if activation is not None:
            program = meaning(activation, (work,))
            assert program is not None, f"{activation} has no scalar program"
            (total,) = p.inline(program, [total])
        return Epilogue(p.program([total.cast(dtype, RESULT)]), operands)


class Operand(NamedTuple):
    """What a program reads besides the result: its name, its dtype, and a factor of it."""

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
        """The epilogue with another program behind it.

        ``args`` are that one's inputs: None for the result so far, a new operand, or a number.
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
                    value = value.cast(accumulator(a.dtype)) * a.factor
            else:
                value = own if a is None else p.const(a, dtype)
            values.append(value.cast(dtype, RESULT))
        return Epilogue(p.program(p.inline(program, values)), names)

    def after(self, dtype: str) -> ScalarProgram:
        """The program where the result was stored as ``dtype`` in between."""
        first, *rest = self.program.inputs
        p = Builder((dtype, *rest))
        operands = [p.input(i) for i in range(1, 1 + len(rest))]
        return p.program(p.inline(self.program, [p.input(0).cast(first), *operands]))

    def affine(self, activations: Activations = ()) -> Affine | None:
        """In the form that libraries are told; None where it is no such one."""
        return _affine(self, activations)


#: Nothing is done to the result.
NO_EPILOGUE = None
#: (library's word, op) of what may come last.
Activations = tuple[tuple[str, Elemwise], ...]


# -- taking a program apart -----------------------------------------------------------------------


@cache
def _affine(e: Epilogue, activations: Activations) -> Affine | None:
    p = e.program
    if len(p.outputs) != 1:
        return None
    end = _before_cast(p, p.outputs[0])
    for word, op in (("", None), *activations):
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
    """The value that is rounded to the result's dtype at the end."""
    step = _step(p, value)
    narrows = step is not None and step.name == "cast" and is_narrow_float(step.dtype)
    return step.args[0] if step is not None and narrows else value


def _before(p: ScalarProgram, end: int, op: Elemwise) -> int | None:
    """The value of which ``end`` is ``op``; None where it is no such one."""
    q = meaning(op, (p.dtype_of(end),))
    bound: dict[int, int] = {}

    def same(a: int, b: int) -> bool:
        assert q is not None
        mine, its = _step(p, a), _step(q, b)
        if its is None:
            return bound.setdefault(b, a) == a
        if mine is None or (mine.name, mine.dtype, mine.value) != (its.name, its.dtype, its.value):
            return False
        return len(mine.args) == len(its.args) and all(map(same, mine.args, its.args))

    if q is None or not same(end, q.outputs[0]):
        return None
    return bound.get(0)


def _linear(p: ScalarProgram, end: int) -> dict[int | None, float] | None:
    """The factors of the inputs in a value, and its offset under None; None: it is not linear."""
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


# -- what a library takes -------------------------------------------------------------------------


@dataclass(frozen=True)
class EpilogueRules:
    """What a library does behind an op: a predicate of types, for which no library is needed.

    ``dtypes``: results that may get a bias or an activation; ``linear_dtypes``: those that may
    only be scaled and added to. ``scales``: whether ``alpha`` and the factor of ``z`` are free,
    else 1 is wanted. ``widens``: 16-bit factors may give float32. ``rounds_operands``: operands
    have the dtype of the factors; float32 ones are rounded to it.
    """

    activations: Activations = ()
    dtypes: tuple[str, ...] = ()
    linear_dtypes: tuple[str, ...] = ()
    scales: bool = False
    scales_residual: bool = False
    widens: bool = False
    rounds_operands: bool = False

    def op_of(self, word: str) -> Elemwise | None:
        """The activation of a word; raises KeyError for a word that there is not."""
        return dict(self.activations)[word] if word else None

    def takes(self, e: Epilogue, factors: str) -> bool:
        """Whether the library does all of ``e`` to the result of factors of this dtype."""
        found = e.affine(self.activations)
        if found is None or accumulator(factors) != e.program.inputs[0]:
            return False
        if e.dtype not in (*self.dtypes, *(self.linear_dtypes if found.is_linear else ())):
            return False
        if e.dtype != factors and not (self.widens and e.dtype == accumulator(factors)):
            return False
        if any(e.dtype_of(name) != e.dtype for name in e.operands):
            return False
        scaled = found.alpha != 1 and not self.scales
        return not scaled and (self.scales_residual or found.residual in (0.0, 1.0))


# -- ops that have one ----------------------------------------------------------------------------


@dataclass(frozen=True)
class EpilogueOp(Lowered):
    """Base of products and convolutions that end with an epilogue.

    Inputs are those of :meth:`neutral`, then z (of the result's shape) and the bias (a value for
    each channel, 1 in the other dimensions), where the epilogue has them. The neutral op of 16-bit
    inputs is accumulated in float32, and the result is rounded once.
    """

    abstract: ClassVar[bool] = True
    rules: ClassVar[EpilogueRules] = EpilogueRules()
    epilogue: Epilogue | None = field(default=NO_EPILOGUE, kw_only=True)

    def channel_axis(self, ndim: int) -> int:
        """Which dimension of a result of ``ndim`` dimensions the bias has."""
        raise NotImplementedError

    def ending(self, dtype: str = "float32", *, factors: str = "", **terms: Any) -> Self:
        """With an epilogue by the words of :class:`Affine`; operands and result have ``dtype``,
        the factors ``factors``, where theirs differs. Raises TypeMismatch for an activation that
        the library has not."""
        affine = Affine(**terms)
        known = dict(self.rules.activations)
        if affine.activation and affine.activation not in known:
            raise TypeMismatch(self, f"one of {sorted(known)}", affine.activation)
        if affine == _NOTHING and not factors:
            return replace(self, epilogue=None)
        made = affine.epilogue(dtype, self.rules.op_of(affine.activation), factors)
        return replace(self, epilogue=made)

    # -- the epilogue in the library's words ------------------------------------------------------

    @property
    def terms(self) -> Affine:
        """The epilogue as the library is told. Raises TypeMismatch where it has no words for it."""
        if self.epilogue is None:
            return _NOTHING
        found = self.epilogue.affine(self.rules.activations)
        if found is None:
            words = [w for w, _ in self.rules.activations]
            wanted = f"an epilogue of alpha, residual, bias and one of {words}"
            raise TypeMismatch(type(self).__name__, wanted, str(self.epilogue.program))
        return found

    @property
    def is_plain(self) -> bool:
        """Whether nothing is done to the result."""
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
        """The library's word for what comes last; empty without one."""
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
        # z is the third input: of a product and of a convolution it always is.
        return {0: (2,)} if RESIDUAL in self.operand_names else {}

    def split(self, inputs: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        """The neutral op's inputs, and the epilogue's operands."""
        count = len(inputs) - len(self.operand_names)
        return inputs[:count], inputs[count:]

    def _operand_shape(self, name: str, shape: Shape) -> tuple[Any, ...]:
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
        if accumulator(y.dtype) != self.epilogue.program.inputs[0]:
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

    def infer(self, *inputs: Any) -> Any:
        return self._result_type(inputs)

    def shapes(
        self, types: Sequence[Any], shapes: Sequence[Shape], host: Host
    ) -> Sequence[Shape] | None:
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

    def reference(self, *inputs: Any) -> Any:
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

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        raise NonDifferentiable(f"{self} has no gradient: it is made after gradients are taken")

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        raise NonDifferentiable(f"{self} has no gradient: it is made after gradients are taken")


_NOTHING = Affine()
_NOUNS = {RESIDUAL: "an output to add to", BIAS: "a bias"}


def _wide(a: Any) -> Any:
    """float32 for the 16-bit floats."""
    return a.astype(np.float32) if is_narrow_float(np.asarray(a).dtype.name) else a
