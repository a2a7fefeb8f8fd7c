"""Special functions of float64 as LLVM IR without branches or tables: erf, digamma and their kin.

LLVM vectorises them. Of float32 they are computed in float64 and rounded once, but for erf and
erfc, which have code of their own. Errors are below 1 unit in the last place for erf and 4 for
the others, where SciPy's are up to 5; near digamma's zeros below 0 they are relative to
the two terms whose difference it is. NaN, infinities, zeros and poles give the same as SciPy.

``erfc``: for a = abs(x) it is exp(-a^2) / (1 + 2 a) times a polynomial in (a - 4) / (a + 4); the
rounding error of a^2 is a factor of its own. erfc(-x) = 2 - erfc(x).
``erf``: x + x times a polynomial in x^2 up to 1, then 1 - erfc(x); up to 1/2 erfc is 1 - erf(x).
``digamma``: by the recurrence psi(x + 1) = psi(x) + 1 / x (NIST's DLMF 5.5.2) from below 7 to
[1, 2), where it is x less its zero times a polynomial; from 7 on the asymptotic series (5.11.2);
for x < 0 by reflection (5.5.4).
``trigamma``: its derivative, by recurrence up to 8 and by the series (5.15.1, 5.15.8), or by
reflection (5.15.6).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import factorial, pi

from symdnn.cpu.math.math_double_ir import number

__all__ = ["COS_PI", "SIN_PI", "SPECIAL64", "Text", "function_lines"]

#: (1 + 2 a) exp(a^2) erfc(a) in (a - 4) / (a + 4), from 0 to 28, and erf(x) / x - 1 in x^2, from 0
#: to 1; digamma over x less its zero, in x - 3/2, from 1 to 2. Lowest degree first; interpolated at
#: Chebyshev's points.
_ERFC = [
    1.2329951186255526,
    -0.13962111684056253,
    0.015379652102620111,
    0.06809705425469303,
    -0.10103906603632955,
    0.09373283499833329,
    -0.06633036581154421,
    0.03716751553787908,
    -0.016197734067039865,
    0.005031969972225688,
    -0.0007577732147971718,
    -0.00019925664291065565,
    0.00015062131217624512,
    -2.4399505458525544e-05,
    -1.1220902504340601e-05,
    5.710769473216913e-06,
    2.916445562939141e-07,
    -8.277591913537945e-07,
    7.703495881102781e-08,
    1.1328048304274549e-07,
    -1.9106294487779176e-08,
    -1.660879467182853e-08,
    1.6868082625932292e-09,
    2.1031095817570338e-09,
    2.9111659955327447e-10,
]
_ERF = [
    0.1283791670955126,
    -0.3761263890318375,
    0.11283791670954879,
    -0.026866170645076792,
    0.0052239776248180145,
    -0.000854832698083379,
    0.0001205533111164271,
    -1.4925595266831182e-05,
    1.6461000484121368e-06,
    -1.6350312701054695e-07,
    1.4659775274047436e-08,
    -1.1372848856791674e-09,
    5.957176147748911e-11,
]
_DIGAMMA = [
    0.9510558760318328,
    -0.4236274212814606,
    0.24054248424078697,
    -0.14840492305388092,
    0.09498872445289039,
    -0.06192213327548831,
    0.040760833940846085,
    -0.026975796659787055,
    0.017907248317313294,
    -0.011908220105959716,
    0.007927021796868154,
    -0.005279937255532708,
    0.003518106563802472,
    -0.0023454947397380833,
    0.0015633696313653504,
    -0.0010364584817312839,
    0.0006909255761282986,
    -0.00048595039220036254,
    0.00032395945401345196,
    -0.00014480643368061614,
    9.653646261410062e-05,
    -0.0001782188548855923,
    0.00011881232908510335,
]
#: The zero of digamma, as the sum of two numbers.
_ZERO_HIGH, _ZERO_LOW = (
    float.fromhex("0x1.762d86356be3fp+0"),
    float.fromhex("0x1.b86a722197829p-54"),
)

_BERNOULLI = [
    Fraction(*n) for n in (
        (1, 6), (-1, 30), (1, 42), (-1, 30), (5, 66), (-691, 2730), (7, 6), (-3617, 510),
        (43867, 798), (-174611, 330), (854513, 138),
    )
]  # fmt: skip
#: sin(pi x) / x and cos(pi x), in x^2.
SIN_PI = [(-1) ** k * pi ** (2 * k + 1) / factorial(2 * k + 1) for k in range(9)]
COS_PI = [(-1) ** k * pi ** (2 * k) / factorial(2 * k) for k in range(9)]


class Text:
    """Lines of a function of doubles; operands are registers or numbers."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def new(self, text: str) -> str:
        """Append an instruction; returns its register."""
        self.lines.append(f"%t{len(self.lines)} = {text}")
        return f"%t{len(self.lines) - 1}"

    def two(self, word: str, a: str | float, b: str | float) -> str:
        """``fadd`` and its like."""
        return self.new(f"f{word} double {_operand(a)}, {_operand(b)}")

    def test(self, word: str, a: str, b: float) -> str:
        """A comparison."""
        return self.new(f"fcmp {word} double {a}, {number(b)}")

    def choose(self, condition: str, yes: str | float, no: str | float) -> str:
        """One of two values."""
        return self.new(f"select i1 {condition}, double {_operand(yes)}, double {_operand(no)}")

    def call(self, name: str, *operands: str | float) -> str:
        """A function's result."""
        given = ", ".join(f"double {_operand(a)}" for a in operands)
        return self.new(f"call double @{name}({given})")

    def multiply_add(self, a: str | float, b: str | float, c: str | float) -> str:
        """``a b + c``"""
        return self.call("llvm.fmuladd.f64", a, b, c)

    def polynomial(self, coefficients: Sequence[float | Fraction], x: str) -> str:
        """Horner's rule; the coefficient of degree 0 comes first."""
        value: str | float = float(coefficients[-1])
        for c in reversed(coefficients[:-1]):
            value = self.multiply_add(value, x, float(c))
        return str(value)


def _operand(a: str | float) -> str:
    return a if isinstance(a, str) else number(a)


def function_lines(name: str, write: Callable[[Text], str]) -> list[str]:
    """The definition of ``f_name``, whose body ``write`` makes of ``%x``."""
    text = Text()
    result = write(text)
    head = f"define internal double @f_{name}(double %x) alwaysinline {{"
    return [head, *text.lines, f"ret double {result}", "}"]


def _upper_tail(t: Text) -> str:
    """erfc of %a, which is not negative."""
    a = t.choose(t.test("ogt", "%x", 28.0), 28.0, "%x")
    ratio = t.two("div", t.two("add", a, -4.0), t.two("add", a, 4.0))
    scaled = t.two("div", t.polynomial(_ERFC, ratio), t.multiply_add(a, 2.0, 1.0))
    square = t.two("mul", a, a)
    rest = t.call("llvm.fma.f64", a, a, t.new(f"fneg double {square}"))
    whole = t.two("mul", t.call("f_exp", t.new(f"fneg double {square}")), scaled)
    return t.multiply_add(t.new(f"fneg double {whole}"), rest, whole)


def _near(t: Text, x: str) -> str:
    """erf up to 1."""
    return t.multiply_add(x, t.polynomial(_ERF, t.two("mul", x, x)), x)


def _erfc(t: Text) -> str:
    a = t.call("llvm.fabs.f64", "%x")
    tail = t.call("f_erfc_of_size", a)
    far = t.choose(t.test("olt", "%x", 0.0), t.two("sub", 2.0, tail), tail)
    return t.choose(t.test("olt", a, 0.5), t.two("sub", 1.0, _near(t, "%x")), far)


def _erf(t: Text) -> str:
    a = t.call("llvm.fabs.f64", "%x")
    far = t.two("sub", 1.0, t.call("f_erfc_of_size", a))
    return t.call("llvm.copysign.f64", t.choose(t.test("olt", a, 1.0), _near(t, a), far), "%x")


def _reflection(t: Text) -> tuple[str, str, str, str]:
    """Whether %x < 0, then 1 - x, else x; and sine and cosine of pi x, of which tan is right."""
    below = t.test("olt", "%x", 0.0)
    y = t.choose(below, t.two("sub", 1.0, "%x"), "%x")
    to_whole = t.two("sub", "%x", t.call("llvm.rint.f64", "%x"))
    a = t.call("llvm.fabs.f64", to_whole)
    turned = t.test("ogt", a, 0.25)
    b = t.choose(turned, t.two("sub", 0.5, a), a)
    square = t.two("mul", b, b)
    sine = t.two("mul", b, t.polynomial(SIN_PI, square))
    cosine = t.polynomial(COS_PI, square)
    up, down = t.choose(turned, cosine, sine), t.choose(turned, sine, cosine)
    return below, y, t.call("llvm.copysign.f64", up, to_whole), down


def _digamma(t: Text) -> str:
    below, y, sine, cosine = _reflection(t)
    small = t.test("olt", y, 1.0)
    u = t.two("add", y, t.choose(small, 1.0, -1.0))
    steps = t.choose(t.test("olt", y, 2.0), y, u)
    first = t.two("div", 1.0, t.choose(small, t.new(f"fneg double {y}"), u))
    between = t.new(f"xor i1 {small}, true")
    idle = t.new(f"and i1 {between}, {t.test('olt', y, 2.0)}")
    total = t.choose(idle, 0.0, first)
    u = t.choose(small, u, steps)
    for _ in range(4):
        less = t.two("add", u, -1.0)
        more = t.test("oge", less, 1.0)
        total = t.choose(more, t.two("add", total, t.two("div", 1.0, less)), total)
        u = t.choose(more, less, u)
    near = t.two("mul", t.polynomial(_DIGAMMA, t.two("add", u, -1.5)),
                 t.two("sub", t.two("sub", u, _ZERO_HIGH), _ZERO_LOW))  # fmt: skip
    near = t.two("add", near, total)
    w = t.two("div", 1.0, y)
    square = t.two("mul", w, w)
    terms = [-b / (2 * k) for k, b in enumerate(_BERNOULLI, 1)]
    tail = t.two("mul", square, t.polynomial(terms, square))
    far = t.two("add", t.call("f_log", y), t.multiply_add(w, -0.5, tail))
    value = t.choose(t.test("olt", y, 7.0), near, far)
    cotangent = t.two("div", cosine, sine)
    reflected = t.multiply_add(cotangent, -pi, value)
    reflected = t.choose(t.test("oeq", sine, 0.0), float("nan"), reflected)
    return t.choose(below, reflected, value)


def _trigamma(t: Text) -> str:
    below, y, sine, _ = _reflection(t)
    near = t.test("olt", y, 8.0)
    total = ""
    for k in (6, 4, 2, 0):
        a, b = (t.two("add", y, float(k + i)) if k + i else y for i in (0, 1))
        p, q = t.two("mul", a, a), t.two("mul", b, b)
        two = t.two("div", t.two("add", p, q), t.two("mul", p, q))
        total = t.two("add", total, two) if total else two
    w = t.two("div", 1.0, t.choose(near, t.two("add", y, 8.0), y))
    square = t.two("mul", w, w)
    cube = t.two("mul", w, square)
    tail = t.multiply_add(cube, t.polynomial(_BERNOULLI[:-1], square), t.two("mul", square, 0.5))
    value = t.two("add", t.two("add", w, tail), t.choose(near, total, 0.0))
    pole = t.two("div", pi, sine)
    reflected = t.two("sub", t.two("mul", pole, pole), value)
    return t.choose(below, reflected, value)


#: Lines of ``f_name`` for each function and for what they call.
SPECIAL64 = {
    name: function_lines(name, write)
    for name, write in (
        ("erfc_of_size", _upper_tail), ("erfc", _erfc), ("erf", _erf), ("digamma", _digamma),
        ("trigamma", _trigamma),
    )
}  # fmt: skip
