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

from fractions import Fraction
from math import factorial, pi

from symdnn.cpu.math.lanes_ir import Formula, Lane, Lanes

__all__ = ["COS_PI", "ERFC", "SIN_PI", "SPECIAL64"]

#: (1 + 2 a) exp(a^2) erfc(a) in (a - 4) / (a + 4), from 0 to 28, and erf(x) / x - 1 in x^2, from 0
#: to 1; digamma over x less its zero, in x - 3/2, from 1 to 2. Lowest degree first; interpolated at
#: Chebyshev's points.
ERFC = [
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


def _upper_tail(k: Lanes, x: Lane) -> Lane:
    """erfc of a number that is not negative."""
    a = (x > 28.0).where(28.0, x)
    scaled = k.polynomial(ERFC, (a + -4.0) / (a + 4.0)) / k.multiply_add(a, 2.0, 1.0)
    square = a * a
    rest = k.fma(a, a, -square)
    whole = k.call("f_exp", -square) * scaled
    return k.multiply_add(-whole, rest, whole)


def _near(k: Lanes, x: Lane) -> Lane:
    """erf up to 1."""
    return k.multiply_add(x, k.polynomial(_ERF, x * x), x)


def _erfc(k: Lanes, x: Lane) -> Lane:
    a = k.abs(x)
    tail = k.call("f_erfc_of_size", a)
    far = (x < 0.0).where(2.0 - tail, tail)
    return (a < 0.5).where(1.0 - _near(k, x), far)


def _erf(k: Lanes, x: Lane) -> Lane:
    a = k.abs(x)
    far = 1.0 - k.call("f_erfc_of_size", a)
    return k.intrinsic("copysign", (a < 1.0).where(_near(k, a), far), x)


def _reflection(k: Lanes, x: Lane) -> tuple[Lane, Lane, Lane, Lane]:
    """Whether x < 0, then 1 - x, else x; and sine and cosine of pi x, of which tan is right."""
    below = x < 0.0
    y = below.where(1.0 - x, x)
    to_whole = x - k.intrinsic("rint", x)
    a = k.abs(to_whole)
    turned = a > 0.25
    b = turned.where(0.5 - a, a)
    square = b * b
    sine, cosine = b * k.polynomial(SIN_PI, square), k.polynomial(COS_PI, square)
    up, down = turned.where(cosine, sine), turned.where(sine, cosine)
    return below, y, k.intrinsic("copysign", up, to_whole), down


def _digamma(k: Lanes, x: Lane) -> Lane:
    below, y, sine, cosine = _reflection(k, x)
    small = y < 1.0
    u = y + small.where(1.0, -1.0)
    steps = (y < 2.0).where(y, u)
    first = 1.0 / small.where(-y, u)
    total = (~small & (y < 2.0)).where(0.0, first)
    u = small.where(u, steps)
    for _ in range(4):
        less = u + -1.0
        more = less >= 1.0
        total = more.where(total + 1.0 / less, total)
        u = more.where(less, u)
    near = k.polynomial(_DIGAMMA, u + -1.5) * (u - _ZERO_HIGH - _ZERO_LOW) + total
    w = 1.0 / y
    square = w * w
    terms = [-b / (2 * n) for n, b in enumerate(_BERNOULLI, 1)]
    tail = square * k.polynomial(terms, square)
    far = k.call("f_log", y) + k.multiply_add(w, -0.5, tail)
    value = (y < 7.0).where(near, far)
    reflected = k.multiply_add(cosine / sine, -pi, value)
    return below.where(sine.equals(0.0).where(float("nan"), reflected), value)


def _trigamma(k: Lanes, x: Lane) -> Lane:
    below, y, sine, _ = _reflection(k, x)
    near, total = y < 8.0, None
    for n in (6, 4, 2, 0):
        a, b = (y + float(n + i) if n + i else y for i in (0, 1))
        p, q = a * a, b * b
        two = (p + q) / (p * q)
        total = two if total is None else total + two
    assert total is not None
    w = 1.0 / near.where(y + 8.0, y)
    square = w * w
    tail = k.multiply_add(w * square, k.polynomial(_BERNOULLI[:-1], square), square * 0.5)
    value = w + tail + near.where(total, 0.0)
    pole = pi / sine
    return below.where(pole * pole - value, value)


SPECIAL64 = [
    Formula("f_erfc_of_size", _upper_tail), Formula("f_erfc", _erfc), Formula("f_erf", _erf),
    Formula("f_digamma", _digamma), Formula("f_trigamma", _trigamma),
]  # fmt: skip
