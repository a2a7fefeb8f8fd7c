"""Functions of numbers as formulas: written once, for a number or for the lanes of a vector.

A :class:`Formula` is a Python function of :class:`Lane` values, which appends instructions to
:class:`Lanes`. The type of each follows from the operands: float, double or integers of any bits.

LLVM vectorises no loop whose body has another one. A series that ends at another term for each
number is therefore written on the lanes of a vector (:class:`LaneFormula`): it ends with the last
lane, and a lane that is done keeps its numbers, so its result does not depend on its neighbours.
LLVM's vectoriser takes variants of the scalar function. Branches are taken by all lanes or by none.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from symdnn.cpu.compiler import jit

#: Numbers of lanes for which LLVM's vectoriser may ask.
_WIDTHS = (2, 4, 8, 16)
#: The names of floats in intrinsics.
_FLOATS = {"float": "f32", "double": "f64"}
#: A sum with it has the nearest integer in its lowest bits.
ROUND = {"float": float(3 << 22), "double": float(3 << 51)}


def number(value: float) -> str:
    """A float64 constant in IR's notation."""
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


def coefficients(*texts: str) -> tuple[float, ...]:
    """Of a polynomial, the lowest degree first; the texts have the highest first."""
    return tuple(map(float.fromhex, reversed(texts)))


def literal(value: float, t: str) -> str:
    """A constant of this type in IR's notation; one of float is the equal double."""
    if t == "double":
        return number(value)
    if t == "float":
        return number(struct.unpack("<f", struct.pack("<f", value))[0])
    return str(int(value)) if t != "i1" else str(bool(value)).lower()


@dataclass(frozen=True)
class Lane:
    """A value on the lanes, of numbers of type ``t``; of truths it is ``i1``."""

    k: Lanes
    name: str
    t: str = "double"

    def __add__(self, other: Number) -> Lane:
        return self.k.two("add", self, other)

    def __sub__(self, other: Number) -> Lane:
        return self.k.two("sub", self, other)

    def __mul__(self, other: Number) -> Lane:
        return self.k.two("mul", self, other)

    def __truediv__(self, other: Number) -> Lane:
        return self.k.two("div", self, other)

    __radd__, __rmul__ = __add__, __mul__

    def __rsub__(self, other: Number) -> Lane:
        return self.k.two("sub", other, self)

    def __rtruediv__(self, other: Number) -> Lane:
        return self.k.two("div", other, self)

    def __neg__(self) -> Lane:
        return self.k.new(f"fneg {self.k.type(self.t)} {self.name}", self.t)

    def __lt__(self, other: Number) -> Lane:
        return self.k.test("olt", self, other)

    def __le__(self, other: Number) -> Lane:
        return self.k.test("ole", self, other)

    def __gt__(self, other: Number) -> Lane:
        return self.k.test("ogt", self, other)

    def __ge__(self, other: Number) -> Lane:
        return self.k.test("oge", self, other)

    def __and__(self, other: Number) -> Lane:
        return self.k.two("and", self, other)

    def __or__(self, other: Number) -> Lane:
        return self.k.two("or", self, other)

    def __xor__(self, other: Number) -> Lane:
        return self.k.two("xor", self, other)

    def __invert__(self) -> Lane:
        return self ^ True

    def __lshift__(self, bits: int) -> Lane:
        return self.k.two("shl", self, bits)

    def __rshift__(self, bits: int) -> Lane:
        """Of an integer without a sign."""
        return self.k.two("lshr", self, bits)

    def equals(self, other: Number) -> Lane:
        """Whether two numbers are equal."""
        return self.k.test("oeq" if self.t in _FLOATS else "eq", self, other)

    def is_nan(self) -> Lane:
        """Whether it is NaN."""
        return self.k.test("uno", self, self)

    def cast(self, t: str, word: str = "bitcast") -> Lane:
        """As a number of another type; its bits unless an instruction is named."""
        return self.k.new(f"{word} {self.k.type(self.t)} {self.name} to {self.k.type(t)}", t)

    def where(self, yes: Number, no: Number, t: str = "") -> Lane:
        """``yes`` where this truth holds, else ``no``; ``t`` is the type of two constants."""
        t = t or self.k.type_of(yes, no)
        a, b = (f"{self.k.type(t)} {self.k.of(v, t)}" for v in (yes, no))
        return self.k.new(f"select {self.k.type('i1')} {self.name}, {a}, {b}", t)


Number = Lane | float


class Lanes:
    """Writes the body of a function on ``width`` lanes; of one number for a width of 1.

    Constants are of type ``t`` where no operand has one. With ``short`` the result is rounded to
    float32: nine digits are enough. ``append`` appends an instruction elsewhere.
    """

    def __init__(
        self, width: int = 1, t: str = "double", short: bool = False,
        append: Callable[[str], str] | None = None,
    ) -> None:  # fmt: skip
        self.width, self.t, self.short = width, t, short
        self.lines: list[str] = []
        self.declared: set[str] = set()
        self.called: set[str] = set()
        self.block, self._count = "entry", 0
        self.append = append or self._own

    # -- instructions -------------------------------------------------------------------------

    def _own(self, text: str) -> str:
        self._count += 1
        self.lines.append(f"%v{self._count} = {text}")
        return f"%v{self._count}"

    def new(self, text: str, t: str) -> Lane:
        """Append an instruction, whose result is of type ``t``."""
        return Lane(self, self.append(text), t)

    def type(self, t: str) -> str:
        """The type of numbers on the lanes."""
        return f"<{self.width} x {t}>" if self.width > 1 and t != "ptr" else t

    def type_of(self, *given: Number) -> str:
        """The type of a number of operands."""
        return next((v.t for v in given if isinstance(v, Lane)), self.t)

    def of(self, value: Number, t: str) -> str:
        """An operand."""
        if isinstance(value, Lane):
            return value.name
        one = literal(value, t)
        return f"<{', '.join([f'{t} {one}'] * self.width)}>" if self.width > 1 else one

    def everywhere(self, value: str, t: str) -> Lane:
        """One number on all lanes."""
        if self.width == 1:
            return Lane(self, value, t)
        vector = self.type(t)
        first = self.append(f"insertelement {vector} poison, {t} {value}, i64 0")
        zeros = f"{self.type('i32')} zeroinitializer"
        return self.new(f"shufflevector {vector} {first}, {vector} poison, {zeros}", t)

    def two(self, word: str, a: Number, b: Number) -> Lane:
        """``add``, ``shl`` and their like; of floats ``fadd``."""
        t = self.type_of(a, b)
        word = f"f{word}" if t in _FLOATS else word
        return self.new(f"{word} {self.type(t)} {self.of(a, t)}, {self.of(b, t)}", t)

    def test(self, word: str, a: Number, b: Number) -> Lane:
        """A comparison."""
        t = self.type_of(a, b)
        word = f"{'fcmp' if t in _FLOATS else 'icmp'} {word}"
        return self.new(f"{word} {self.type(t)} {self.of(a, t)}, {self.of(b, t)}", "i1")

    def intrinsic(self, name: str, *given: Number) -> Lane:
        """``fma``, ``fabs``, ``floor`` and their like."""
        t = self.type_of(*given)
        own, lanes = self.type(t), f"v{self.width}" * (self.width > 1)
        function = f"@llvm.{name}.{lanes}{_FLOATS.get(t, t)}"
        self.declared.add(f"declare {own} {function}({', '.join([own] * len(given))})")
        return self._called(function, t, given)

    def call(self, name: str, *given: Number) -> Lane:
        """Another formula: ``s_...`` is of float, ``d_...``, ``f_...`` and ``z_...`` of double."""
        name += f"_on_{self.width}" * (self.width > 1)
        self.called.add(name)
        return self._called(f"@{name}", self.type_of(*given), given)

    def _called(self, function: str, t: str, given: Sequence[Number]) -> Lane:
        operands = ", ".join(f"{self.type(t)} {self.of(v, t)}" for v in given)
        return self.new(f"call {self.type(t)} {function}({operands})", t)

    def fma(self, a: Number, b: Number, c: Number) -> Lane:
        """``a b + c``, rounded once."""
        return self.intrinsic("fma", a, b, c)

    def multiply_add(self, a: Number, b: Number, c: Number) -> Lane:
        """``a b + c``, rounded once where the processor has an instruction for it."""
        return self.intrinsic("fmuladd", a, b, c)

    def abs(self, x: Lane) -> Lane:
        """``abs(x)``"""
        return self.intrinsic("fabs", x)

    def least(self, a: Lane, b: Number) -> Lane:
        """The smaller number; ``b`` if one is NaN."""
        return (a < b).where(a, b)

    def most(self, a: Lane, b: Number) -> Lane:
        """The larger number; ``b`` if one is NaN."""
        return (a > b).where(a, b)

    def held(self, least: float, most: float, x: Lane) -> Lane:
        """``x``, or the end that is beyond it; NaN stays."""
        x = (x > most).where(most, x)
        return (x < least).where(least, x)

    def exp(self, x: Lane) -> Lane:
        """``exp(x)``"""
        return self.call("d_exp" if self.short else "f_exp", x)

    def expm1(self, x: Lane) -> Lane:
        """``exp(x) - 1``"""
        return self.call("d_expm1" if self.short else "f_expm1", x)

    def log(self, x: Lane) -> Lane:
        """``log(x)``"""
        return self.call("d_log" if self.short else "f_log", x)

    def log1p(self, x: Lane) -> Lane:
        """``log(1 + x)``"""
        return self.call("d_log1p" if self.short else "f_log1p", x)

    def polynomial(self, coefficients: Sequence[float | Fraction], x: Lane) -> Lane:
        """Horner's rule; the coefficient of degree 0 comes first."""
        value: Number = float(coefficients[-1])
        for c in reversed(coefficients[:-1]):
            value = self.multiply_add(value, x, float(c))
        assert isinstance(value, Lane), "a polynomial has two coefficients or more"
        return value

    # -- control ------------------------------------------------------------------------------

    def any(self, truth: Lane) -> str:
        """Whether it holds in one of the lanes."""
        function = f"@llvm.vector.reduce.or.v{self.width}i1"
        self.declared.add(f"declare i1 {function}({self.type('i1')})")
        return self.append(f"call i1 {function}({self.type('i1')} {truth.name})")

    def loop(
        self, step: Callable[..., tuple[Lane, Sequence[Lane]]], *state: Number, most: int = 10_000
    ) -> list[Lane]:
        """Repeat ``step(n, *state) -> (more, state)``, with ``n`` from 1 on, where there is more.

        A lane that is done keeps its numbers.
        """
        self._count += 1
        name, before = f"loop{self._count}", self.block
        self.lines.append(f"br label %{name}")
        self._label(name)
        at = len(self.lines)
        held = [Lane(self, f"%{name}_{i}", self.t) for i in range(len(state))]
        count, going = Lane(self, f"%{name}_n", self.t), Lane(self, f"%{name}_going", "i1")
        self.lines += [""] * (len(state) + 2)
        more, after = step(count, *held)
        kept = [going.where(a, h) for a, h in zip(after, held, strict=True)]
        more = more & going & (count < most)
        phis: list[tuple[Lane, Lane, Number]] = [(going, more, True), (count, count + 1.0, 1.0)]
        for i, (own, last, first) in enumerate([*phis, *zip(held, kept, state)]):
            ends = f"[{self.of(first, own.t)}, %{before}], [{last.name}, %{self.block}]"
            self.lines[at + i] = f"{own.name} = phi {self.type(own.t)} {ends}"
        self.lines.append(f"br i1 {self.any(more)}, label %{name}, label %{name}_end")
        self._label(f"{name}_end")
        return kept

    def where_any(self, truth: Lane, yes: Callable[[], Lane], no: Lane) -> Lane:
        """``yes()`` where ``truth`` holds, else ``no``; nothing of it is computed where none do."""
        self._count += 1
        name, before = f"some{self._count}", self.block
        self.lines.append(f"br i1 {self.any(truth)}, label %{name}, label %{name}_end")
        self._label(name)
        found = truth.where(yes(), no)
        last = self.block
        self.lines.append(f"br label %{name}_end")
        self._label(f"{name}_end")
        ends = f"[{no.name}, %{before}], [{found.name}, %{last}]"
        return self.new(f"phi {self.type(no.t)} {ends}", no.t)

    def _label(self, name: str) -> None:
        self.lines.append(f"{name}:")
        self.block = name


# -- functions ------------------------------------------------------------------------------------


class Text(NamedTuple):
    """The lines of a function, declarations that they need, and names of formulas they call."""

    lines: Sequence[str]
    declared: Iterable[str] = ()
    called: Iterable[str] = ()


_PURE = "noinline nounwind willreturn memory(none)"


class Formula:
    """A function ``write(k, *arguments)`` of arguments of these types; most are never called."""

    def __init__(
        self, name: str, write: Callable[..., Lane], *types: str, short: bool = False,
        attributes: str = "alwaysinline",
    ) -> None:  # fmt: skip
        self.name, self.types, self.short = name, types or ("double",), short
        self._write, self._attributes = write, attributes
        self._texts: dict[int, Text] = {}

    def on(self, width: int) -> Text:
        """The function of this name on one number, or ``_on_{width}`` on so many lanes."""
        if width not in self._texts:
            self._texts[width] = self._text(width)
        return self._texts[width]

    def _text(self, width: int) -> Text:
        k = Lanes(width, self.types[0], self.short)
        given = [Lane(k, f"%x{i}", t) for i, t in enumerate(self.types)]
        result = self._write(k, *given)
        name = f"{self.name}_on_{width}" if width > 1 else self.name
        parameters = ", ".join(f"{k.type(v.t)} {v.name}" for v in given)
        own = k.type(result.t)
        head = f"define internal {own} @{name}({parameters}) {self._attributes} {{"
        return Text(
            [head, "entry:", *k.lines, f"ret {own} {result.name}", "}"], k.declared, k.called
        )


def in_double(write: Callable[..., Lane]) -> Callable[..., Lane]:
    """A function of floats that is computed in double and rounded once."""

    def wide(k: Lanes, *given: Lane) -> Lane:
        k.t, k.short = "double", True
        return write(k, *(v.cast("double", "fpext") for v in given)).cast("float", "fptrunc")

    return wide


class LaneFormula(Formula):
    """A function that is written on as many lanes as the processor's vectors have.

    Its operands and its result are of one type. That on one number, and its variants for LLVM's
    vectoriser, are calls of it.
    """

    def __init__(
        self, name: str, write: Callable[..., Lane], arity: int, short: bool = False,
        t: str = "double",
    ) -> None:  # fmt: skip
        types = [t] * arity
        super().__init__(name, write, *types, short=short, attributes=f"{_PURE} #0")

    def width(self) -> int:
        """The lanes of the processor's vectors."""
        return jit.vector_width() // (2 if self.types[0] == "double" else 1)

    def _text(self, width: int) -> Text:
        if width > 1:
            return super()._text(width)
        t, own = self.types[0], self.width()
        names = [f"%x{i}" for i in range(len(self.types))]
        variants = (line for w in _WIDTHS for line in _variant(self.name, names, t, w, own))
        lines = [*_scalar(self.name, names, t, own), *variants]
        return Text(lines, (), {f"{self.name}_on_{own}"})


def _scalar(name: str, names: Sequence[str], t: str, width: int) -> list[str]:
    letters, k = "v" * len(names), Lanes(width, t)
    variants = ",".join(f"_ZGV_LLVM_N{w}{letters}_{name}({name}_lanes_{w})" for w in _WIDTHS)
    found = k.call(name, *(k.everywhere(n, t) for n in names))
    return [
        f"define internal {t} @{name}({', '.join(f'{t} {n}' for n in names)}) {_PURE} "
        f'"vector-function-abi-variant"="{variants}" {{',
        *k.lines,
        f"%y = extractelement {k.type(t)} {found.name}, i32 0",
        f"ret {t} %y",
        "}",
    ]


def _variant(name: str, names: Sequence[str], t: str, w: int, width: int) -> list[str]:
    """The function on ``w`` lanes, by calls of that on the processor's ``width``."""
    outer, inner = f"<{w} x {t}>", f"<{width} x {t}>"
    parts: list[tuple[str, int]] = []
    lines = []
    for first in range(0, w, width):
        places = [min(first + i, w - 1) for i in range(width)]
        lines += [f"{n}_{first} = {_shuffle(outer, n, 'poison', places)}" for n in names]
        given = ", ".join(f"{inner} {n}_{first}" for n in names)
        lines.append(f"%y{first} = call {inner} @{name}_on_{width}({given})")
        parts.append((f"%y{first}", width))
    while len(parts) > 1:  # neighbours are put together
        (a, size), (b, _), *parts = parts
        both = f"{a}{b[1:]}"
        lines.append(f"{both} = {_shuffle(f'<{size} x {t}>', a, b, range(2 * size))}")
        parts.append((both, 2 * size))
    ((found, size),) = parts
    if size > w:
        lines.append(f"%few = {_shuffle(f'<{size} x {t}>', found, 'poison', range(w))}")
        found = "%few"
    given = ", ".join(f"{outer} {n}" for n in names)
    head = f"define internal {outer} @{name}_lanes_{w}({given}) {_PURE} #0 {{"
    return [head, *lines, f"ret {outer} {found}", "}"]


def _shuffle(vector: str, a: str, b: str, places: Sequence[int]) -> str:
    numbers = ", ".join(f"i32 {p}" for p in places)
    return f"shufflevector {vector} {a}, {vector} {b}, <{len(places)} x i32> <{numbers}>"


# -- scalar text on vectors -----------------------------------------------------------------------

_TYPE = re.compile(r"(?<!%)\b(float|double|half|i\d+)\b")
#: A constant operand, and its type where that is in front of it.
_CONSTANT = re.compile(
    r"(?:\b(float|double|i\d+) |(?<=, ))(0x[0-9A-F]{16}|-?[\d.]+(?:e\d+)?|true|false)\b"
)


def on_vectors(text: str, lanes: int) -> str:
    """An instruction, or a function's first line, with vectors for its types and its constants."""
    kind = _TYPE.search(text)
    assert kind is not None, f"an instruction without a type: {text}"

    def widened(part: str) -> str:
        return _TYPE.sub(rf"<{lanes} x \1>", part)

    found, at = [], 0
    for constant in _CONSTANT.finditer(text):
        own, value = constant[1] or kind[1], constant[2]
        vector = f"<{', '.join([f'{own} {value}'] * lanes)}>"
        head = f"<{lanes} x {own}> " if constant[1] else ""
        found += [widened(text[at : constant.start()]), head, vector]
        at = constant.end()
    return "".join([*found, widened(text[at:])])
