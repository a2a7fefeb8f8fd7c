"""LLVM IR of scalar programs: the body of a loop over elements, which LLVM vectorises.

Transcendental functions of float32 are polynomials without branches, so that LLVM can vectorise
them. The common ones are computed in float32 (:mod:`symdnn.cpu.math.math32_ir`, within 4 ulp), the
others in float64 (:mod:`symdnn.cpu.ir.math_ir`, within 0.51 ulp). So are exp, log, tanh, erf and
digamma of float64 (:mod:`symdnn.cpu.math.math64_ir`, :mod:`symdnn.cpu.math.math_special64_ir`), and
the functions of :mod:`symdnn.cpu.math.functions_ir` of both.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from math import pi, sqrt

from symdnn.cpu.ir.division_ir import DIVISIONS, float_division, integer_division
from symdnn.cpu.ir.math_ir import declarations
from symdnn.cpu.ir.narrow_ir import NARROW, narrowed, narrowing, widened, widening
from symdnn.cpu.ir.ranges import Range, value_ranges
from symdnn.cpu.ir.whole_ir import whole_number
from symdnn.cpu.math.functions_ir import IN_FLOAT, IN_FULL, IN_LANES
from symdnn.graph.type import TensorType
from symdnn.ops.core.scalar import Instruction, ScalarProgram, number_of_text

#: IR types of values in registers, and in memory. 16-bit floats are integers of their bits:
#: see :mod:`symdnn.cpu.ir.narrow_ir`.
VALUES = {
    "bool": "i1", "int8": "i8", "uint8": "i8", "int16": "i16", "uint16": "i16", "int32": "i32",
    "uint32": "i32", "int64": "i64", "uint64": "i64", "float16": "i16", "bfloat16": "i16",
    "float32": "float", "float64": "double",
}  # fmt: skip
STORED = {**VALUES, "bool": "i8"}
#: IR types of both parts of complex numbers in memory, and the bytes of one. Programs have the
#: parts as values of their own.
COMPLEX = {"complex64": ("float", 4), "complex128": ("double", 8)}

_ROUNDING = {"floor": "floor", "ceil": "ceil", "trunc": "trunc", "rint": "rint", "sqrt": "sqrt"}
_ARITHMETIC = {"add": "add", "sub": "sub", "mul": "mul"}
_BITWISE = {"and": "and", "or": "or", "xor": "xor"}
_COMPARISONS = {"lt": "olt", "le": "ole", "eq": "oeq", "ne": "une"}
_OTHER_INSTRUCTIONS = {
    "const", "cast", "bitcast", "select", "shl", "shr", "div", "neg", "abs", "max", "min", "not",
    "isnan", "isinf", "isfinite", "copysign",
}  # fmt: skip
#: Orders, as constants of programs, of which modified Bessel functions have code without branches.
_KNOWN_ORDERS = {
    "0x0000000000000000": "0", "0x3FF0000000000000": "1", "0xBFF0000000000000": "1",
}  # fmt: skip
#: Functions that are composed of others here, in float64. In float32 they have their own code.
_COMPOSED = {"gelu", "gelu_slope"}
#: Functions without code for integers; NumPy computes those.
_FLOAT_ONLY = {"pow"}


def refusal(program: ScalarProgram) -> str | None:
    """Why a program cannot be compiled; None when it can."""
    known = {
        *IN_FULL,
        *IN_LANES,
        *_COMPOSED,
        *_ROUNDING,
        *_ARITHMETIC,
        *_BITWISE,
        *_COMPARISONS,
        *_OTHER_INSTRUCTIONS,
        *DIVISIONS,
    }
    if missing := program.names - known:
        return f"no code for {', '.join(sorted(missing))}"
    dtypes = {*program.inputs, *(s.dtype for s in program.body)}
    if strange := dtypes - set(VALUES):
        return f"no code for {', '.join(sorted(strange))}"
    for step in program.body:
        if step.name in _FLOAT_ONLY and not _is_float(step.dtype):
            return f"no code for {step.name} of {step.dtype}"
        if step.name in DIVISIONS and step.dtype == "bool":
            return f"no code for {step.name} of bool"
    return None


def _is_float(dtype: str) -> bool:
    return TensorType(dtype).is_float


def _signed(dtype: str) -> bool:
    return dtype.startswith("int")


class Printer:
    """Prints one program as lines of IR, and collects the declarations that they need.

    With ``whole_loads`` operands that a select chooses are loaded whole, and not only in the chosen
    lanes.
    """

    def __init__(
        self, program: ScalarProgram, prefix: str = "v", *, whole_loads: bool = False
    ) -> None:
        self.program, self.prefix, self._whole_loads = program, prefix, whole_loads
        self.lines: list[str] = []
        self.declared: set[str] = set()
        self.helpers: set[str] = set()
        self._count = 0
        self._exact = _exact_values(program)
        self._ranges = value_ranges(program) if program.names & DIVISIONS else []
        self._dividend: Range | None = None

    def emit(self, inputs: Sequence[str]) -> list[str]:
        """Append the program for inputs in these registers; returns its results' registers."""
        values = list(inputs)
        for step in self.program.body:
            values.append(self._step(step, [values[a] for a in step.args]))
        return [values[v] for v in self.program.outputs]

    def _new(self, text: str) -> str:
        name = f"%{self.prefix}{self._count}"
        self._count += 1
        self.lines.append(f"{name} = {text}")
        return name

    def _step(self, step: Instruction, args: Sequence[str]) -> str:
        dtype = step.dtype
        if step.name == "const":
            return literal(step.value, dtype)
        operand = self.program.dtype_of(step.args[0])
        if step.name == "cast":
            if dtype == "bfloat16" and operand == "float32" and step.args[0] in self._exact:
                return self._upper_half(args[0])
            return self._cast(args[0], operand, dtype)
        if step.name == "bitcast":
            return self._new(f"bitcast {VALUES[operand]} {args[0]} to {VALUES[dtype]}")
        if step.name == "select":
            t = VALUES[dtype]
            yes, no = (self._arm(t, a) for a in args[1:])
            return self._new(f"select i1 {args[0]}, {t} {yes}, {t} {no}")
        self._dividend = self._ranges[step.args[0]] if step.name in DIVISIONS else None
        return self._function(step.name, operand, args)

    def _arm(self, t: str, x: str) -> str:
        """An arm of a select; LLVM makes no masked load of a frozen value."""
        return self._new(f"freeze {t} {x}") if self._whole_loads and x[0] == "%" else x

    # -- conversions --------------------------------------------------------------------------

    def _cast(self, x: str, source: str, target: str) -> str:
        if source == target:
            return x
        if source in NARROW:
            x, source = self._widened(x, source), "float32"
        if target in NARROW:
            return self._narrowed(self._cast_for(x, source, target), target)
        a, b = VALUES[source], VALUES[target]
        if source == target:
            return x
        if target == "bool":
            zero = "0.0" if _is_float(source) else "0"
            return self._new(f"{'fcmp une' if _is_float(source) else 'icmp ne'} {a} {x}, {zero}")
        if _is_float(source):
            return self._from_float(x, source, target)
        if _is_float(target):
            return self._new(f"{'sitofp' if _signed(source) else 'uitofp'} {a} {x} to {b}")
        if _bits(a) == _bits(b):
            return x
        if _bits(a) > _bits(b):
            return self._new(f"trunc {a} {x} to {b}")
        return self._new(f"{'sext' if _signed(source) else 'zext'} {a} {x} to {b}")

    def _cast_for(self, x: str, source: str, target: str) -> str:
        """The float32 value that is then rounded to the 16-bit ``target``."""
        if (source, target) == ("float64", "float16"):  # rounded once, as NumPy does
            return self._converted("to_odd", f"call float @to_odd(double {x})")
        return self._cast(x, source, "float32")  # as ml_dtypes rounds

    def _widened(self, x: str, dtype: str) -> str:
        return self._converted(widening(dtype), widened(dtype, x))

    def _narrowed(self, x: str, dtype: str) -> str:
        return self._converted(narrowing(dtype), narrowed(dtype, x))

    def _converted(self, name: str, text: str) -> str:
        self.helpers.add(name)
        return self._new(text)

    def _upper_half(self, x: str) -> str:
        """The bfloat16 that a float32 is exactly: there is nothing to round."""
        bits = self._new(f"bitcast float {x} to i32")
        return self._new(f"trunc i32 {self._new(f'lshr i32 {bits}, 16')} to i16")

    def _from_float(self, x: str, source: str, target: str) -> str:
        a, b = VALUES[source], VALUES[target]
        if _is_float(target):
            return self._new(f"{'fpext' if b == 'double' else 'fptrunc'} {a} {x} to {b}")
        signed = not target.startswith("u")
        return whole_number(self._new, self._intrinsic, x, a, b, signed)

    # -- functions ----------------------------------------------------------------------------

    def _function(self, name: str, dtype: str, args: Sequence[str]) -> str:
        t, real = VALUES[dtype], _is_float(dtype)
        if name in _ARITHMETIC:
            return self._arithmetic(name, dtype, args)
        if name in _BITWISE:
            return self._new(f"{_BITWISE[name]} {t} {args[0]}, {args[1]}")
        if name in _COMPARISONS:
            return self._comparison(name, dtype, args)
        if name in ("shl", "shr"):
            return self._shift(name, dtype, args)
        special: dict[str, Callable[[str, Sequence[str]], str]] = {
            "max": self._extreme, "min": self._extreme, "abs": self._abs,
            "isnan": self._test, "isinf": self._test, "isfinite": self._test,
        }  # fmt: skip
        if name in special:
            return special[name](f"{name} {dtype}", args)
        if name == "div":
            return self._new(f"fdiv {t} {args[0]}, {args[1]}")
        if name in DIVISIONS:
            a, b = args
            if real:
                rest = self._helped(f"rem_{t}", t, args)
                return float_division(self._new, self._intrinsic, name, t, a, b, rest)
            return integer_division(self._new, name, t, _signed(dtype), a, b, self._dividend)
        if name == "neg":
            return self._new(f"fneg {t} {args[0]}" if real else f"sub {t} 0, {args[0]}")
        if name == "not":
            return self._new(f"xor {t} {args[0]}, -1")
        if name in _COMPOSED and dtype == "float64":
            return self._gelu(name, args)
        if name == "copysign" or name in _ROUNDING:
            return self._intrinsic(_ROUNDING.get(name, name), t, args)
        return self._formula(name, dtype, args)

    def _arithmetic(self, name: str, dtype: str, args: Sequence[str]) -> str:
        word = _ARITHMETIC[name]
        if dtype == "bool":  # NumPy: + is or, * is and
            word = {"add": "or", "mul": "and", "sub": "xor"}[name]
        elif _is_float(dtype):
            word = f"f{word}"
        return self._new(f"{word} {VALUES[dtype]} {args[0]}, {args[1]}")

    def _shift(self, name: str, dtype: str, args: Sequence[str]) -> str:
        """A shift; by all bits or more it gives 0, or -1 to the right of a negative number."""
        (a, by), t = args, VALUES[dtype]
        inside = self._new(f"icmp ult {t} {by}, {_bits(t)}")
        if name == "shr" and _signed(dtype):
            by = self._new(f"select i1 {inside}, {t} {by}, {t} {_bits(t) - 1}")
            return self._new(f"ashr {t} {a}, {by}")
        by = self._new(f"select i1 {inside}, {t} {by}, {t} 0")
        moved = self._new(f"{'shl' if name == 'shl' else 'lshr'} {t} {a}, {by}")
        return self._new(f"select i1 {inside}, {t} {moved}, {t} 0")

    def _comparison(self, name: str, dtype: str, args: Sequence[str]) -> str:
        t = VALUES[dtype]
        if _is_float(dtype):
            return self._new(f"fcmp {_COMPARISONS[name]} {t} {args[0]}, {args[1]}")
        sign = "s" if _signed(dtype) else "u"
        word = {"lt": f"{sign}lt", "le": f"{sign}le", "eq": "eq", "ne": "ne"}[name]
        return self._new(f"icmp {word} {t} {args[0]}, {args[1]}")

    def _extreme(self, what: str, args: Sequence[str]) -> str:
        """Maximum or minimum; NaN if an operand is NaN."""
        name, dtype = what.split()
        (a, b), t = args, VALUES[dtype]
        if _is_float(dtype):  # which of two zeros it is does not matter
            return self._intrinsic(f"{name}imum", t, args, "nsz ")
        word = ("s" if _signed(dtype) else "u") + ("ge" if name == "max" else "le")
        best = self._new(f"icmp {word} {t} {a}, {b}")
        return self._new(f"select i1 {best}, {t} {a}, {t} {b}")

    def _abs(self, what: str, args: Sequence[str]) -> str:
        dtype = what.split()[1]
        t = VALUES[dtype]
        if _is_float(dtype):
            return self._intrinsic("fabs", t, args)
        if not _signed(dtype):
            return args[0]
        minus = self._new(f"sub {t} 0, {args[0]}")
        below = self._new(f"icmp slt {t} {args[0]}, 0")
        return self._new(f"select i1 {below}, {t} {minus}, {t} {args[0]}")

    def _test(self, what: str, args: Sequence[str]) -> str:
        name, dtype = what.split()
        t = VALUES[dtype]
        if not _is_float(dtype):
            return "true" if name == "isfinite" else "false"
        if name == "isnan":
            return self._new(f"fcmp uno {t} {args[0]}, {args[0]}")
        size = self._intrinsic("fabs", t, args)
        word = "oeq" if name == "isinf" else "one"
        return self._new(f"fcmp {word} {t} {size}, {literal('inf', dtype)}")

    def _intrinsic(self, name: str, t: str, args: Sequence[str], flags: str = "") -> str:
        suffix = {"float": "f32", "double": "f64"}[t]
        given = ", ".join(f"{t} {a}" for a in args)
        types = ", ".join([t] * len(args))
        self.declared.add(f"declare {t} @llvm.{name}.{suffix}({types})")
        return self._new(f"call {flags}{t} @llvm.{name}.{suffix}({given})")

    def _gelu(self, name: str, args: Sequence[str]) -> str:
        """gelu or its derivative in float64, by other functions."""
        (x,) = args

        def function(word: str, *given: str) -> str:
            return self._function(word, "float64", given)

        def constant(value: float) -> str:
            return literal(value.hex(), "float64")

        low = constant(-50.0)
        z = function("max", x, low)
        share = function("erfc", function("mul", z, constant(-sqrt(0.5))))
        share = function("mul", share, constant(0.5))
        if name == "gelu":
            return function("mul", z, share)
        z = function("min", z, constant(50.0))
        square = function("mul", function("mul", z, z), constant(-0.5))
        density = function("mul", function("exp", square), constant(1 / sqrt(2 * pi)))
        return function("add", function("mul", z, density), share)

    def _formula(self, name: str, dtype: str, args: Sequence[str]) -> str:
        """A function of :mod:`symdnn.cpu.math.functions_ir`."""
        if name == "iv" and (order := _KNOWN_ORDERS.get(args[0])):
            name, args = f"iv_{order}", args[1:]
            return self._helped(f"{'s' if dtype == 'float32' else 'f'}_{name}", VALUES[dtype], args)
        if dtype == "float32" and name in IN_FLOAT:
            return self._helped(f"s_{name}", "float", args)
        if name in IN_LANES:
            return self._helped(f"z_{name}", "double", args)
        if dtype == "float32":
            wide = [self._new(f"fpext float {a} to double") for a in args]
            return self._new(f"fptrunc double {self._formula(name, 'float64', wide)} to float")
        return self._helped(f"f_{name}", "double", args)

    def _helped(self, name: str, t: str, args: Sequence[str]) -> str:
        """A call of a formula."""
        self.helpers.add(name)
        self.declared |= declarations({name})
        return self._new(f"call {t} @{name}({', '.join(f'{t} {a}' for a in args)})")


#: Functions whose result is one of their arguments, up to its sign.
_CHOOSE = {"max", "min", "neg", "abs", "select"}


def _exact_values(program: ScalarProgram) -> set[int]:
    """The float32 values of a program that are numbers of bfloat16, or chosen among such."""
    found: set[int] = set()
    for at, step in enumerate(program.body, len(program.inputs)):
        if step.dtype != "float32":
            continue
        args = step.args[step.name == "select" :]
        if step.name == "const":
            number = number_of_text(step.value, "float32").reshape(1).view("uint32")
            exact = not int(number[0]) & 0xFFFF
        elif step.name == "cast":
            exact = program.dtype_of(args[0]) == "bfloat16"
        else:
            exact = step.name in _CHOOSE and all(a in found for a in args)
        if exact:
            found.add(at)
    return found


def _bits(t: str) -> int:
    return int(t[1:])


def literal(text: str, dtype: str) -> str:
    """A constant in IR's notation: floats by their bits."""
    if not _is_float(dtype):
        number = int(text)
        return ("true" if number else "false") if dtype == "bool" else str(number)
    value = float(number_of_text(text, dtype)) if text != "inf" else float("inf")
    bits = struct.unpack("<Q", struct.pack("<d", value))[0]
    if dtype not in NARROW:
        return f"0x{bits:016X}"
    (narrow,) = number_of_text(text, dtype).reshape(1).view("uint16")
    return str(int(narrow))


def has_code(dtype: str) -> bool:
    """Whether numbers of a dtype are loaded and stored, complex ones as their parts."""
    return dtype in VALUES or dtype in COMPLEX


def part_names(dtype: str, name: str) -> list[str]:
    """The registers of a number that is loaded as ``name``: one, or two of a complex number."""
    return [f"{name}.re", f"{name}.im"] if dtype in COMPLEX else [name]


def load_as(dtype: str, name: str, pointer: str, more: str = "") -> list[str]:
    """Lines that load ``name`` from memory, or its parts (:func:`part_names`)."""
    if dtype in COMPLEX:
        t, size = COMPLEX[dtype]
        return [
            f"{name}.re = load {t}, ptr {pointer}{more}",
            f"{name}.at = getelementptr i8, ptr {pointer}, i64 {size}",
            f"{name}.im = load {t}, ptr {name}.at{more}",
        ]
    if dtype == "bool":
        return [f"{name}_b = load i8, ptr {pointer}{more}", f"{name} = trunc i8 {name}_b to i1"]
    return [f"{name} = load {VALUES[dtype]}, ptr {pointer}{more}"]


def store_as(dtype: str, values: str | Sequence[str], pointer: str, more: str = "") -> list[str]:
    """Lines that store a value to memory, or its parts."""
    given = [values] if isinstance(values, str) else list(values)
    if dtype in COMPLEX:
        t, size = COMPLEX[dtype]
        re, im = given
        return [
            f"store {t} {re}, ptr {pointer}{more}",
            f"{pointer}.im = getelementptr i8, ptr {pointer}, i64 {size}",
            f"store {t} {im}, ptr {pointer}.im{more}",
        ]
    (value,) = given
    if dtype == "bool":
        name = f"{pointer}_b"
        return [f"{name} = zext i1 {value} to i8", f"store i8 {name}, ptr {pointer}{more}"]
    return [f"store {VALUES[dtype]} {value}, ptr {pointer}{more}"]


def dealt(dtypes: Sequence[str], values: Sequence[str]) -> list[list[str]]:
    """The values of each of some results: one, or the two parts of a complex one."""
    rest = iter(values)
    return [[next(rest) for _ in part_names(dtype, "")] for dtype in dtypes]
