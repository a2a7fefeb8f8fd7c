"""Functions of doubles that are written on vectors, with loops and branches of their own.

LLVM vectorises no loop whose body has another one. A series that ends at another term for each
number is therefore written on the lanes of a vector (:class:`Lanes`): it ends with the last lane,
and a lane that is done keeps its numbers, so its result does not depend on its neighbours. LLVM's
vectoriser takes :func:`lane_variants` for those of a scalar function. Branches are taken by
all lanes or by none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

from symdnn.cpu.compiler import jit
from symdnn.cpu.math.math_double_ir import number, wrapped

__all__ = [
    "Lane", "Lanes", "Number", "Written", "called_on_lanes", "double_function",
    "lane_body", "lane_variants", "lanes", "on_vectors", "single_function", "widened_function",
]  # fmt: skip

#: Numbers of lanes for which LLVM's vectoriser may ask.
_WIDTHS = (2, 4, 8, 16)


@dataclass(frozen=True)
class Lane:
    """A value on the lanes: of a number in each, or of a truth (``t`` is ``i1``)."""

    k: Lanes
    name: str
    t: str = "double"

    def __add__(self, other: Number) -> Lane:
        return self.k.two("fadd", self, other)

    def __sub__(self, other: Number) -> Lane:
        return self.k.two("fsub", self, other)

    def __mul__(self, other: Number) -> Lane:
        return self.k.two("fmul", self, other)

    def __truediv__(self, other: Number) -> Lane:
        return self.k.two("fdiv", self, other)

    __radd__, __rmul__ = __add__, __mul__

    def __rsub__(self, other: Number) -> Lane:
        return self.k.two("fsub", other, self)

    def __rtruediv__(self, other: Number) -> Lane:
        return self.k.two("fdiv", other, self)

    def __neg__(self) -> Lane:
        return self.k.new(f"fneg {self.k.vector} {self.name}")

    def __lt__(self, other: Number) -> Lane:
        return self.k.test("olt", self, other)

    def __le__(self, other: Number) -> Lane:
        return self.k.test("ole", self, other)

    def __gt__(self, other: Number) -> Lane:
        return self.k.test("ogt", self, other)

    def __ge__(self, other: Number) -> Lane:
        return self.k.test("oge", self, other)

    def __xor__(self, other: Lane) -> Lane:
        return self.k.new(f"xor {self.k.mask} {self.name}, {other.name}", "i1")

    def equals(self, other: Number) -> Lane:
        """Whether two numbers are equal."""
        return self.k.test("oeq", self, other)

    def is_nan(self) -> Lane:
        """Whether it is NaN."""
        return self.k.test("uno", self, self)

    def __and__(self, other: Lane) -> Lane:
        return self.k.new(f"and {self.k.mask} {self.name}, {other.name}", "i1")

    def __or__(self, other: Lane) -> Lane:
        return self.k.new(f"or {self.k.mask} {self.name}, {other.name}", "i1")

    def __invert__(self) -> Lane:
        return self.k.new(f"xor {self.k.mask} {self.name}, {self.k.splat('i1 true')}", "i1")

    def cast(self, t: str) -> Lane:
        """Of one number: its bits as those of another type."""
        return self.k.new(f"bitcast {self.t} {self.name} to {t}", t)

    def whole(self, word: str, other: Lane | int) -> Lane:
        """Of one integer: an instruction such as ``add`` or ``shl``."""
        b = other.name if isinstance(other, Lane) else other
        return self.k.new(f"{word} {self.t} {self.name}, {b}", self.t)

    def where(self, yes: Number, no: Number) -> Lane:
        """``yes`` where this truth holds, else ``no``."""
        a, b = (f"{self.k.vector} {self.k.of(v)}" for v in (yes, no))
        return self.k.new(f"select {self.k.mask} {self.name}, {a}, {b}")


Number = Lane | float


class Lanes:
    """Writes the body of a function on ``width`` lanes; of one double for a width of 1.

    With ``short`` the result is rounded to float32: nine digits are enough.
    """

    def __init__(self, width: int, short: bool = False) -> None:
        self.width, self.short = width, short
        self.vector, self.mask, self._intrinsics, self._functions = "double", "i1", "f64", ""
        if width > 1:
            self.vector, self.mask = (f"<{width} x {t}>" for t in ("double", "i1"))
            self._intrinsics, self._functions = f"v{width}f64", f"_on_{width}"
        self.lines: list[str] = []
        self.declared: set[str] = set()
        self.block, self._count = "entry", 0

    # -- instructions -------------------------------------------------------------------------

    def new(self, text: str, t: str = "double") -> Lane:
        """Append an instruction."""
        self._count += 1
        self.lines.append(f"%v{self._count} = {text}")
        return Lane(self, f"%v{self._count}", t)

    def scalar(self, text: str, t: str = "double") -> Lane:
        """Append an instruction of scalars, on vectors."""
        return self.new(on_vectors(text, self.width), t)

    def splat(self, constant: str) -> str:
        """A typed constant in all lanes."""
        if self.width == 1:
            return constant.partition(" ")[2]
        return f"<{', '.join([constant] * self.width)}>"

    def of(self, value: Number) -> str:
        """An operand."""
        if isinstance(value, Lane):
            return value.name
        return self.splat(f"double {number(float(value))}")

    def two(self, word: str, a: Number, b: Number) -> Lane:
        """``fadd`` and its like."""
        return self.new(f"{word} {self.vector} {self.of(a)}, {self.of(b)}")

    def test(self, word: str, a: Number, b: Number) -> Lane:
        """A comparison."""
        return self.new(f"fcmp {word} {self.vector} {self.of(a)}, {self.of(b)}", "i1")

    def intrinsic(self, name: str, *given: Number) -> Lane:
        """``fma``, ``fabs``, ``floor`` and their like."""
        function = f"@llvm.{name}.{self._intrinsics}"
        self.declared.add(f"declare {self.vector} {function}({self._list(self.vector, given)})")
        operands = ", ".join(f"{self.vector} {self.of(v)}" for v in given)
        return self.new(f"call {self.vector} {function}({operands})")

    @staticmethod
    def _list(t: str, given: Sequence[object]) -> str:
        return ", ".join([t] * len(given))

    def call(self, name: str, *given: Number) -> Lane:
        """A function of double: ``f_...`` of :mod:`symdnn.cpu.math.math64_ir`, ``d_...`` of
        :mod:`symdnn.cpu.math.math_double_ir` or ``z_...`` of :mod:`symdnn.cpu.math.functions_ir`.
        """
        operands = ", ".join(f"{self.vector} {self.of(v)}" for v in given)
        return self.new(f"call {self.vector} @{name}{self._functions}({operands})")

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
        self.declared.add(f"declare i1 {function}({self.mask})")
        return self.new(f"call i1 {function}({self.mask} {truth.name})").name

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
        held = [Lane(self, f"%{name}_{i}") for i in range(len(state))]
        count, going = Lane(self, f"%{name}_n"), Lane(self, f"%{name}_going", "i1")
        self.lines += [""] * (len(state) + 2)
        more, after = step(count, *held)
        kept = [going.where(a, h) for a, h in zip(after, held, strict=True)]
        more = more & going & (count < most)
        following = count + 1.0
        phis = [(going, more, self.mask, self.splat("i1 true")),
                (count, following, self.vector, self.of(1.0))]  # fmt: skip
        phis += [(h, v, self.vector, self.of(s)) for h, v, s in zip(held, kept, state)]
        for i, (own, last, t, first) in enumerate(phis):
            ends = f"[{first}, %{before}], [{last.name}, %{self.block}]"
            self.lines[at + i] = f"{own.name} = phi {t} {ends}"
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
        return self.new(f"phi {self.vector} [{no.name}, %{before}], [{found.name}, %{last}]")

    def _label(self, name: str) -> None:
        self.lines.append(f"{name}:")
        self.block = name


# -- functions ------------------------------------------------------------------------------------


_PURE = "noinline nounwind willreturn memory(none)"


class Written(Sequence[str]):
    """Lines that ``write`` makes when they are first wanted: most functions are never called."""

    def __init__(self, write: Callable[[], list[str]]) -> None:
        self._write = write

    @cached_property
    def _lines(self) -> list[str]:
        return self._write()

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, i: Any) -> Any:
        return self._lines[i]


def double_function(
    name: str, write: Callable[..., Lane], arity: int = 1, short: bool = False
) -> Written:
    """Lines of the function ``f_name`` of doubles; with ``short`` of ``d_name``."""

    def lines() -> list[str]:
        k, names = Lanes(1, short), ("%x", "%x2")[:arity]
        result = write(k, *(Lane(k, n) for n in names))
        given = ", ".join(f"double {n}" for n in names)
        head = f"define internal double @{'d' if short else 'f'}_{name}({given}) alwaysinline {{"
        return [head, *k.lines, f"ret double {result.name}", "}"]

    return Written(lines)


def single_function(name: str, write: Callable[..., Lane], arity: int = 1) -> Written:
    """Lines of the function ``s_name`` of float32, whose body is of doubles."""

    def lines() -> list[str]:
        k = Lanes(1, short=True)
        result = write(k, *(Lane(k, n) for n in ("%x", "%x2")[:arity]))
        return wrapped(name, *k.lines, arguments=arity, result=result.name)

    return Written(lines)


def lane_body(name: str, write: Callable[..., Lane], arity: int, short: bool = False) -> list[str]:
    """Lines of a function on as many lanes as the processor's vectors have."""
    k = Lanes(lanes(), short)
    names = [f"%x{i}" for i in range(arity)]
    result = write(k, *(Lane(k, n) for n in names))
    given = ", ".join(f"{k.vector} {n}" for n in names)
    return [
        *sorted(k.declared),
        f"define internal {k.vector} @z_{name}_on_{k.width}({given}) {_PURE} #0 {{",
        "entry:",
        *k.lines,
        f"ret {k.vector} {result.name}",
        "}",
    ]


def lanes() -> int:
    """The number of doubles in one of the processor's vectors."""
    return jit.vector_width() // 2


def lane_variants(name: str, arity: int) -> list[str]:
    """Lines of the scalar function ``z_name``, and of its variants, around :func:`lane_body`."""
    names = [f"%x{i}" for i in range(arity)]
    return [*_scalar(name, names), *(line for w in _WIDTHS for line in _variant(name, names, w))]


def _scalar(name: str, names: Sequence[str]) -> list[str]:
    width, letters = lanes(), "v" * len(names)
    variants = ",".join(f"_ZGV_LLVM_N{w}{letters}_z_{name}(z_{name}_lanes_{w})" for w in _WIDTHS)
    vector = f"<{width} x double>"
    lines = []
    for n in names:
        lines.append(f"{n}_0 = insertelement {vector} poison, double {n}, i32 0")
        zeros = f"<{width} x i32> zeroinitializer"
        lines.append(f"{n}s = shufflevector {vector} {n}_0, {vector} poison, {zeros}")
    given = ", ".join(f"{vector} {n}s" for n in names)
    return [
        f"define internal double @z_{name}({', '.join(f'double {n}' for n in names)}) {_PURE} "
        f'"vector-function-abi-variant"="{variants}" {{',
        *lines,
        f"%found = call {vector} @z_{name}_on_{width}({given})",
        f"%y = extractelement {vector} %found, i32 0",
        "ret double %y",
        "}",
    ]


def _variant(name: str, names: Sequence[str], w: int) -> list[str]:
    """The function on ``w`` lanes, by calls of that on the processor's."""
    width = lanes()
    outer, inner = f"<{w} x double>", f"<{width} x double>"
    parts: list[tuple[str, int]] = []
    lines = []
    for first in range(0, w, width):
        places = [min(first + i, w - 1) for i in range(width)]
        lines += [f"{n}_{first} = {_shuffle(outer, n, 'poison', places)}" for n in names]
        given = ", ".join(f"{inner} {n}_{first}" for n in names)
        lines.append(f"%y{first} = call {inner} @z_{name}_on_{width}({given})")
        parts.append((f"%y{first}", width))
    while len(parts) > 1:  # neighbours are put together
        (a, size), (b, _), *parts = parts
        both = f"{a}{b[1:]}"
        lines.append(f"{both} = {_shuffle(f'<{size} x double>', a, b, range(2 * size))}")
        parts.append((both, 2 * size))
    ((found, size),) = parts
    if size > w:
        lines.append(f"%few = {_shuffle(f'<{size} x double>', found, 'poison', range(w))}")
        found = "%few"
    given = ", ".join(f"{outer} {n}" for n in names)
    head = f"define internal {outer} @z_{name}_lanes_{w}({given}) {_PURE} #0 {{"
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


_CALLED = re.compile(r"@([fdz]_\w+?)_on_\d+\(")
_SCALAR_CALLED = re.compile(r"@([fd]_\w+)\(")
_INTRINSIC = re.compile(r"@(llvm\.\w+)\.f64\(")


def called_on_lanes(lines: Iterable[str]) -> set[str]:
    """Names of the functions on vectors that these lines call."""
    return set(_CALLED.findall("\n".join(lines)))


def widened_function(lines: Sequence[str]) -> list[str]:
    """A function of doubles without branches, on vectors; those that it calls are so, too."""
    width = lanes()
    vector = f"<{width} x double>"
    *body, last = lines
    declared, found = set(), []
    for text in body:
        line = _SCALAR_CALLED.sub(rf"@\1_on_{width}(", on_vectors(text, width))
        for name in _INTRINSIC.findall(line):
            count = line.partition(f"@{name}.f64(")[2].count(f"{vector} ")
            own = ", ".join([vector] * count)
            declared.add(f"declare {vector} @{name}.v{width}f64({own})")
        found.append(_INTRINSIC.sub(rf"@\1.v{width}f64(", line))
    return [*sorted(declared), *found, last]
