"""Scalar programs: the computation of an elementwise op for one element of each operand.

A program is plain data in single-assignment form: values 0 .. n-1 are the inputs, each instruction
adds one. :meth:`ScalarProgram.evaluate` defines it by NumPy; code for a device is printed elsewhere
(CUDA C in ``gpu``). Every instruction works in one dtype: conversions are separate instructions,
and float16 and bfloat16 are only stored and converted.

A chain of 16-bit ops is computed in float32 and rounded when it is stored. The cast by which an op
rounds its result (:data:`RESULT`) is dropped if the next op widens it again. Only comparisons and
functions with jumps read the rounded number (:data:`STORED`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from symdnn.graph.type import numpy_dtype, tensor_type
from symdnn.graph.typing import Array
from symdnn.ops.core.dtype import is_narrow_float
from symdnn.ops.core.incomplete_values import (
    bessel_of,
    beta_inc_of,
    beta_inc_slope_of,
    betaln_of,
    gamma_draw_slope_of,
    modified_bessel_of,
    von_mises_draw_slope_of,
)

#: Kinds of casts: one that rounds an op's result to 16 bits, and one whose operand must be rounded.
RESULT, STORED = "result", "stored"


@dataclass(frozen=True)
class Instruction:
    """One step: ``name`` of :data:`FUNCTIONS`, or ``const``, ``cast``, ``bitcast``, ``select``.

    ``value`` is the exact text of a constant: 0.0 and -0.0 differ in it, and NaN equals itself. For
    a cast it is the kind: empty for a user's cast, :data:`RESULT` or :data:`STORED`.
    """

    name: str
    args: tuple[int, ...]
    dtype: str
    value: str = ""


@dataclass(frozen=True)
class ScalarProgram:
    """``inputs`` are dtypes, ``outputs`` numbers of values."""

    inputs: tuple[str, ...]
    body: tuple[Instruction, ...]
    outputs: tuple[int, ...]

    def dtype_of(self, value: int) -> str:
        """The dtype of a value by its number."""
        count = len(self.inputs)
        return self.inputs[value] if value < count else self.body[value - count].dtype

    @cached_property
    def output_dtypes(self) -> tuple[str, ...]:
        """The dtypes of the results."""
        return tuple(self.dtype_of(v) for v in self.outputs)

    def evaluate(self, *inputs: Array) -> list[Array]:
        """The results for arrays that broadcast, by NumPy, one instruction after the other."""
        values: list[Any] = list(inputs)
        with np.errstate(all="ignore"):
            for step in self.body:
                values.append(_evaluate(step, [values[a] for a in step.args]))
        return [values[v] for v in self.outputs]

    @cached_property
    def cost(self) -> int:
        """The estimated cost in additions."""
        return sum(FUNCTIONS[s.name].cost if s.name in FUNCTIONS else 1 for s in self.body)

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of the instructions."""
        return frozenset(step.name for step in self.body)

    def __str__(self) -> str:
        """Formulas of the inputs ``a``, ``b``, ...; a value that is used twice gets a name."""
        return _text(self)


def _evaluate(step: Instruction, args: Sequence[Array]) -> Array:
    dtype = numpy_dtype(step.dtype)
    if step.name == "const":
        return number_of_text(step.value, step.dtype)
    if step.name == "cast":
        (x,) = args
        return x.astype(dtype) if dtype != np.bool_ or x.dtype.kind in "biuf" else x != 0
    if step.name == "bitcast":
        return np.asarray(args[0]).view(dtype)
    if step.name == "select":
        return np.where(*args)
    return np.asarray(FUNCTIONS[step.name].function(*args)).astype(dtype, copy=False)


def text_of_number(value: Array, dtype: str) -> str:
    """The exact text of a constant: hexadecimal floats, decimal integers."""
    if tensor_type(dtype).is_discrete:
        return str(int(value))
    return float(value).hex()


def number_of_text(text: str, dtype: str) -> Array:
    """The NumPy scalar of a constant's text."""
    number = int(text) if tensor_type(dtype).is_discrete else float.fromhex(text)
    return np.asarray(number).astype(numpy_dtype(dtype))


# -- instructions ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Function:
    """The function of an instruction, for ``floats`` only or also ints; ``cost`` in additions."""

    function: Callable[..., Any]
    arity: int = 1
    floats: bool = False
    truth: bool = False
    cost: int = 1


def _scipy(name: str) -> Callable[..., Any]:
    def function(*arrays: Array) -> Any:
        import scipy.special

        return getattr(scipy.special, name)(*arrays)

    return function


def gelu_of(x: Array) -> Any:
    """x times the normal distribution's probability below x; for -inf its limit, -0."""
    return np.maximum(x, x.dtype.type(-50)) * _scipy("ndtr")(x)


def gelu_slope_of(x: Array) -> Any:
    """The derivative of :func:`gelu_of`; beyond 50 and -50 the density is 0."""
    z = np.clip(x, x.dtype.type(-50), x.dtype.type(50)).astype(np.float64)
    slope = _scipy("ndtr")(z) + z * np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi)
    return np.copysign(slope, z + 0.7517915246935645).astype(x.dtype)  # also where it is 0


def _float_functions(cost: int, **functions: Any) -> dict[str, Function]:
    return {name: Function(f, 1, True, False, cost) for name, f in functions.items()}


#: Every instruction by name. Comparisons and tests return bool, the others the operands' dtype.
FUNCTIONS: dict[str, Function] = {
    "add": Function(np.add, 2),
    "sub": Function(np.subtract, 2),
    "mul": Function(np.multiply, 2),
    "div": Function(np.true_divide, 2, floats=True, cost=4),
    "floor_div": Function(np.floor_divide, 2, cost=8),
    "mod": Function(np.mod, 2, cost=8),
    "pow": Function(np.power, 2, cost=40),
    "neg": Function(np.negative),
    "abs": Function(np.abs),
    "max": Function(np.maximum, 2),
    "min": Function(np.minimum, 2),
    "lt": Function(np.less, 2, truth=True),
    "le": Function(np.less_equal, 2, truth=True),
    "eq": Function(np.equal, 2, truth=True),
    "ne": Function(np.not_equal, 2, truth=True),
    "and": Function(np.bitwise_and, 2),
    "or": Function(np.bitwise_or, 2),
    "xor": Function(np.bitwise_xor, 2),
    "not": Function(np.invert),
    "shl": Function(np.left_shift, 2),
    "shr": Function(np.right_shift, 2),
    "isnan": Function(np.isnan, truth=True),
    "isinf": Function(np.isinf, truth=True),
    "isfinite": Function(np.isfinite, truth=True),
    **_float_functions(1, floor=np.floor, ceil=np.ceil, trunc=np.trunc, rint=np.rint),
    **_float_functions(6, sqrt=np.sqrt),
    **_float_functions(
        20, exp=np.exp, exp2=np.exp2, expm1=np.expm1, log=np.log, log2=np.log2, log10=np.log10,
        log1p=np.log1p, sin=np.sin, cos=np.cos, tan=np.tan, asin=np.arcsin, acos=np.arccos,
        atan=np.arctan, sinh=np.sinh, cosh=np.cosh, tanh=np.tanh, asinh=np.arcsinh,
        acosh=np.arccosh, atanh=np.arctanh, erf=_scipy("erf"), erfc=_scipy("erfc"),
        erfcx=_scipy("erfcx"), erfinv=_scipy("erfinv"), erfcinv=_scipy("erfcinv"),
        ndtri=_scipy("ndtri"), i0e=_scipy("i0e"), i1e=_scipy("i1e"),
        lgamma=_scipy("gammaln"), tgamma=_scipy("gamma"), digamma=_scipy("psi"),
        trigamma=partial(_scipy("polygamma"), 1),
        gelu=gelu_of, gelu_slope=gelu_slope_of,
    ),
    "atan2": Function(np.arctan2, 2, floats=True, cost=30),
    "copysign": Function(np.copysign, 2, floats=True),
    **{
        name: Function(_scipy(name), 2, floats=True, cost=200)
        for name in ("polygamma", "gammainc", "gammaincc", "gammaincinv", "gammainccinv", "zeta")
    },
    "owens_t": Function(_scipy("owens_t"), 2, floats=True, cost=200),
    **{
        name: Function(partial(beta_inc_of, name), 3, floats=True, cost=200)
        for name in ("betainc", "betaincc", "betaincinv", "betainccinv")
    },
    "jv": Function(bessel_of, 2, True, cost=200), "betaln": Function(betaln_of, 2, True, cost=200),
    "iv": Function(modified_bessel_of, 2, True, cost=200),
    "gamma_draw_slope": Function(gamma_draw_slope_of, 2, floats=True, cost=400),
    "von_mises_draw_slope": Function(von_mises_draw_slope_of, 2, floats=True, cost=400),
    "betainc_slope_a": Function(partial(beta_inc_slope_of, 0), 3, floats=True, cost=400),
    "betainc_slope_b": Function(partial(beta_inc_slope_of, 1), 3, floats=True, cost=400),
}  # fmt: skip

#: Instructions for NumPy and SciPy only: they are fused with nothing.
REFERENCE_ONLY = frozenset({"gammaincinv", "gammainccinv", "betaincinv", "betainccinv"})


# -- building -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scalar:
    """A value of a program that is being built; arithmetic on it adds instructions."""

    builder: Builder
    number: int
    dtype: str

    def __add__(self, other: Any) -> Scalar:
        return self.builder.call("add", self, other)

    def __radd__(self, other: Any) -> Scalar:
        return self.builder.call("add", self, other)

    def __sub__(self, other: Any) -> Scalar:
        return self.builder.call("sub", self, other)

    def __rsub__(self, other: Any) -> Scalar:
        return self.builder.call("sub", self.like(other), self)

    def __mul__(self, other: Any) -> Scalar:
        return self.builder.call("mul", self, other)

    def __rmul__(self, other: Any) -> Scalar:
        return self.builder.call("mul", self, other)

    def __truediv__(self, other: Any) -> Scalar:
        return self.builder.call("div", self, other)

    def __rtruediv__(self, other: Any) -> Scalar:
        return self.builder.call("div", self.like(other), self)

    def __neg__(self) -> Scalar:
        return self.builder.call("neg", self)

    def __lt__(self, other: Any) -> Scalar:
        return self.builder.call("lt", self, other)

    def __gt__(self, other: Any) -> Scalar:
        return self.builder.call("lt", self.like(other), self)

    def __le__(self, other: Any) -> Scalar:
        return self.builder.call("le", self, other)

    def __ge__(self, other: Any) -> Scalar:
        return self.builder.call("le", self.like(other), self)

    def call(self, name: str, *others: Any) -> Scalar:
        """An instruction with this value as its first operand."""
        return self.builder.call(name, self, *others)

    def cast(self, dtype: str, kind: str = "") -> Scalar:
        """The same number in another dtype."""
        return self.builder.cast(self, dtype, kind)

    def bits(self, dtype: str) -> Scalar:
        """The bits as another dtype of this width: float32 and int32."""
        return self.builder.bitcast(self, dtype)

    def where(self, yes: Any, no: Any) -> Scalar:
        """``yes`` if this (a bool) is true, else ``no``."""
        return self.builder.select(self, yes, no)

    def like(self, value: Any) -> Scalar:
        """A number as a constant of this value's dtype."""
        return value if isinstance(value, Scalar) else self.builder.const(value, self.dtype)


class Builder:
    """Makes a program; equal instructions become one value."""

    def __init__(self, inputs: Sequence[str]) -> None:
        self.inputs = tuple(inputs)
        self.body: list[Instruction] = []
        self._known: dict[object, int] = {}

    def input(self, i: int) -> Scalar:
        """The ``i``-th input."""
        return Scalar(self, i, self.inputs[i])

    def const(self, value: Any, dtype: str) -> Scalar:
        """A constant, rounded to its dtype."""
        with np.errstate(all="ignore"):
            rounded = np.asarray(value).astype(numpy_dtype(dtype))
        return self._emit("const", (), dtype, text_of_number(rounded, dtype))

    def call(self, name: str, first: Scalar, *others: Any) -> Scalar:
        """An instruction of :data:`FUNCTIONS`; numbers among its operands become constants."""
        args = [first, *(first.like(o) for o in others)]
        known = FUNCTIONS.get(name)
        if known is None:
            known_names = "FUNCTIONS of symdnn.ops.core.scalar lists them"
            raise TypeError(f"no instruction of scalar programs is named {name!r}: {known_names}")
        _check(name, known, args)
        return self._emit(name, args, "bool" if known.truth else first.dtype)

    def cast(self, x: Scalar, dtype: str, kind: str = "") -> Scalar:
        """A conversion; a cast to a wider dtype and back is dropped.

        A :data:`RESULT` cast to 16 bits and back is dropped, too, if this cast is not
        :data:`STORED`.
        """
        if x.dtype == dtype:
            return x
        made_by = self._instruction(x.number)
        name = "" if made_by is None else made_by.name
        if made_by is not None and name == "const" and not (kind == RESULT and narrows(x, dtype)):
            return self.const(number_of_text(made_by.value, x.dtype), dtype)
        if made_by is not None and name == "cast":
            source = Scalar(self, made_by.args[0], self._dtype(made_by.args[0]))
            if source.dtype == dtype and holds(x.dtype, dtype):
                return source
            if made_by.value == RESULT:
                x = self.cast(source, x.dtype) if kind == STORED else source
                if kind != STORED:
                    return self.cast(x, dtype, kind)
        plain = not (narrows(x, dtype) if kind == RESULT else is_narrow_float(x.dtype))
        return self._emit("cast", [x], dtype, "" if plain else kind)

    def bitcast(self, x: Scalar, dtype: str) -> Scalar:
        """The bits of a float32 as int32, or of an int32 as float32."""
        if {x.dtype, dtype} != {"float32", "int32"}:
            raise TypeError(f"bitcast: wanted float32 and int32, got {x.dtype} and {dtype}")
        return self._emit("bitcast", [x], dtype)

    def select(self, condition: Scalar, yes: Any, no: Any) -> Scalar:
        """``yes`` if ``condition`` is true, else ``no``; at least one of the two is a value."""
        typed = yes if isinstance(yes, Scalar) else no
        a, b = typed.like(yes), typed.like(no)
        if condition.dtype != "bool" or a.dtype != b.dtype:
            raise TypeError(f"select: wanted bool, T, T, got {[condition, a, b]}")
        return self._emit("select", [condition, a, b], a.dtype)

    def inline(
        self, program: ScalarProgram, args: Sequence[Scalar],
        given: Mapping[int, Scalar] | None = None,
    ) -> list[Scalar]:  # fmt: skip
        """The results of ``program`` on these values; some values, by number, may be ``given``."""
        values, given = list(args), given or {}
        for step in program.body:
            operands = [values[a] for a in step.args]
            if len(values) in given:
                values.append(given[len(values)])
            elif step.name == "cast":
                values.append(self.cast(operands[0], step.dtype, step.value))
            else:
                values.append(self._emit(step.name, operands, step.dtype, step.value))
        return [values[v] for v in program.outputs]

    def program(self, outputs: Sequence[Scalar]) -> ScalarProgram:
        """The finished program, without instructions that no output needs. All inputs stay."""
        count = len(self.inputs)
        needed = {v.number for v in outputs}
        for i in reversed(range(len(self.body))):
            if count + i in needed:
                needed.update(self.body[i].args)
        new = {i: i for i in range(count)}
        body: list[Instruction] = []
        for i, step in enumerate(self.body):
            if count + i in needed:
                new[count + i] = count + len(body)
                args = tuple(new[a] for a in step.args)
                body.append(Instruction(step.name, args, step.dtype, step.value))
        return ScalarProgram(self.inputs, tuple(body), tuple(new[v.number] for v in outputs))

    def _emit(self, name: str, args: Sequence[Scalar], dtype: str, value: str = "") -> Scalar:
        step = Instruction(name, tuple(a.number for a in args), dtype, value)
        known: object = step
        if name == "abs" and tensor_type(dtype).is_float:
            known = name, dtype, self._magnitude(args[0].number)
        number = self._known.get(known)
        if number is None:
            number = self._known[known] = len(self.inputs) + len(self.body)
            self.body.append(step)
        return Scalar(self, number, dtype)

    def _magnitude(self, number: int) -> object:
        """What floats have in common that differ in their sign at most: -u and u, -2 u and 2 u."""
        step = self._instruction(number)
        if step is None or step.name not in ("neg", "mul"):
            return number
        if step.name == "neg":
            return self._magnitude(step.args[0])
        made = [(i, self._instruction(i)) for i in step.args]
        return tuple(s.value.lstrip("-") if s and s.name == "const" else i for i, s in made)

    def _instruction(self, number: int) -> Instruction | None:
        at = number - len(self.inputs)
        return self.body[at] if at >= 0 else None

    def _dtype(self, number: int) -> str:
        at = number - len(self.inputs)
        return self.body[at].dtype if at >= 0 else self.inputs[number]


def _check(name: str, function: Function, args: Sequence[Scalar]) -> None:
    dtypes = {a.dtype for a in args}
    (dtype,) = dtypes if len(dtypes) == 1 else ("",)
    if not dtype or len(args) != function.arity or is_narrow_float(dtype):
        raise TypeError(f"{name}: wanted {function.arity} values of one wide dtype, got {dtypes}")
    if function.floats and not tensor_type(dtype).is_float:
        raise TypeError(f"{name}: wanted floats, got {dtype}")


def narrows(x: Scalar, dtype: str) -> bool:
    """Whether a cast of ``x`` rounds it to 16 bits."""
    return is_narrow_float(dtype) and x.dtype in ("float32", "float64")


def holds(wide: str, narrow: str) -> bool:
    """Whether ``wide`` represents every number of ``narrow``."""
    if narrow == "bfloat16":
        return wide in ("bfloat16", "float32", "float64")
    if wide == "bfloat16":
        return narrow in ("bool", "int8", "uint8")
    digits = {"float16": 11, "float32": 24, "float64": 53}.get(wide)
    if digits is not None and tensor_type(narrow).is_discrete:
        return numpy_dtype(narrow).itemsize * 8 <= digits
    return bool(np.can_cast(numpy_dtype(narrow), numpy_dtype(wide), "safe"))


def identity_program(dtype: str) -> ScalarProgram:
    """The program of a copy."""
    return ScalarProgram((dtype,), (), (0,))


# -- printing -------------------------------------------------------------------------------------

_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floor_div": "//", "mod": "%", "pow": "**",
    "lt": "<", "le": "<=", "eq": "==", "ne": "!=", "and": "&", "or": "|", "xor": "^",
    "shl": "<<", "shr": ">>",
}  # fmt: skip


def _text(program: ScalarProgram) -> str:
    """A program as text, with values that are used once inlined."""
    uses = Counter([*(a for s in program.body for a in s.args), *program.outputs])
    count = len(program.inputs)
    names = {i: chr(ord("a") + i) if i < 19 else f"in{i}" for i in range(count)}
    lines = []
    for i, step in enumerate(program.body, count):
        names[i] = _formula(step, [names[a] for a in step.args])
        if step.name != "const" and uses[i] > 1:
            lines.append(f"t{i} = {_bare(names[i])}")
            names[i] = f"t{i}"
    return "; ".join([*lines, ", ".join(_bare(names[v]) for v in program.outputs)])


def _formula(step: Instruction, args: list[str]) -> str:
    if step.name == "const":
        return f"{number_of_text(step.value, step.dtype).item():.9g}"
    if step.name in ("cast", "bitcast"):
        return f"{step.dtype if step.name == 'cast' else 'bits'}({_bare(args[0])})"
    if step.name == "select":
        return f"({args[0]} ? {args[1]} : {args[2]})"
    if step.name in _INFIX:
        return f"({args[0]} {_INFIX[step.name]} {args[1]})"
    return f"{step.name}({', '.join(map(_bare, args))})"


def _bare(text: str) -> str:
    """Without parentheses around the whole."""
    depth = 0
    for i, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0 and (i < len(text) - 1 or c != ")"):
            return text
    return text[1:-1] if text.startswith("(") else text
