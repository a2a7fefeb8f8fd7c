"""Hurwitz' zeta function and the polygamma functions, on the lanes of a vector.

The sum of (q + k)^-s up to a term beyond 8 + 3 s / 4, or to one that no longer counts; the rest by
Euler and Maclaurin's formula with 12 terms (NIST's DLMF 25.11.43). Powers of whole orders below 16
are products. For q < 0 and whole s it is
made of three values at positive q: of the terms on either side of 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import factorial

from symdnn.cpu.math.gamma_ir import power, whole_power
from symdnn.cpu.math.lanes_ir import Lane, Lanes

_BERNOULLI = [
    Fraction(*n) for n in (
        (1, 6), (-1, 30), (1, 42), (-1, 30), (5, 66), (-691, 2730), (7, 6), (-3617, 510),
        (43867, 798), (-174611, 330), (854513, 138), (-236364091, 2730),
    )
]  # fmt: skip
#: B(2j) / (2j)!
_TERMS = [float(b / factorial(2 * j)) for j, b in enumerate(_BERNOULLI, 1)]
#: Where the sum ends, in terms of s; and how small a term need not be added: of full precision,
#: and for results of float32.
_END, _LEAST = {False: (8.0, 0.75), True: (3.0, 0.6)}, {False: 1e-18, True: 1e-11}
#: Whole orders below 2^4 have powers by squares, of numbers up to 2^66: these are finite.
_BITS, _MOST_BY_SQUARES = 4, 2.0**66
#: As good as infinite for an order, and a whole number.
_LARGE = 1e300


def zeta_of_positive(k: Lanes, s: Lane, q: Lane) -> Lane:
    """For s > 1 and q > 0."""
    base, slope = _END[k.short]
    end, least, less = s * slope + base, _LEAST[k.short], s - 1.0
    few = k.intrinsic("floor", s).equals(s) & (s < 2.0**_BITS) & (q < _MOST_BY_SQUARES)
    order = few.where(s, 0.0)

    def quick(a: Lane) -> Lane:
        return 1.0 / whole_power(k, a, order, _BITS)

    def step(_: Lane, total: Lane, a: Lane) -> tuple[Lane, Sequence[Lane]]:
        term = k.where_any(~few, lambda: power(k, a, -s), quick(a))
        total, a = total + term, a + 1.0
        return (a < end) & (term > total * least), (total, a)

    total, a = k.loop(step, 0.0, q)
    w = 1.0 / a
    square = w * w
    factor = s * w
    series = factor * _TERMS[0]
    for j, c in enumerate(_TERMS[1:], 1):
        factor = factor * ((s + (2.0 * j - 1)) * (s + 2.0 * j) * square)
        series = series + factor * c
    # Of large numbers a^-s may be 0 where this is not.
    last = k.where_any(~few, lambda: power(k, a, -less), quick(a) * a)
    rest = last * (1.0 / less + w * (series + 0.5))
    return ((a < end) | last.equals(0.0)).where(total, total + rest)


def zeta(k: Lanes, s: Lane, q: Lane) -> Lane:
    """The sum of ``(q + k)^-s``; NaN for ``s < 1``, and for ``q < 0`` if ``s`` is not whole."""
    name, inf = "z_zeta_of_positive" + "_short" * k.short, float("inf")
    order = (s > 1.0).where(k.least(s, _LARGE), 2.0)
    pole = (q <= 0.0) & k.intrinsic("floor", q).equals(q)
    to_whole = q - k.intrinsic("rint", q)
    above = to_whole > 0.0
    at = (q > 0.0).where(q, above.where(to_whole, to_whole + 1.0))
    value = k.call(name, order, (pole | q.equals(inf)).where(1.0, at))

    def with_negative() -> Lane:
        below = k.call(name, order, above.where(1.0 - to_whole, -to_whole))
        half = order * 0.5
        odd = k.intrinsic("floor", half).equals(half).where(1.0, -1.0)
        whole = k.intrinsic("floor", order).equals(order)
        both = (value + odd * below) - odd * k.call(name, order, 1.0 - q)
        return whole.where(both, float("nan"))

    value = k.where_any((q < 0.0) & ~pole, with_negative, value)
    sound = (s > 1.0) & q.equals(q)
    value = sound.where(q.equals(inf).where(0.0, value), float("nan"))
    return (s.equals(1.0) | pole & ~(s < 1.0)).where(inf, value)


def polygamma(k: Lanes, n: Lane, x: Lane) -> Lane:
    """The ``n``-th derivative of digamma; NaN where ``n`` is no whole number."""

    def step(i: Lane, product: Lane) -> tuple[Lane, Sequence[Lane]]:
        product = product * (i <= n).where(i, 1.0)
        return (i < n) & (product < float("inf")), [product]

    (factorial_of_n,) = k.loop(step, 1.0)
    size = factorial_of_n * k.call("z_zeta" + "_short" * k.short, n + 1.0, x)
    half = n * 0.5
    value = k.intrinsic("floor", half).equals(half).where(-size, size)
    value = k.where_any(n.equals(0.0), lambda: k.call("f_digamma", x), value)
    return ((n >= 0.0) & k.intrinsic("floor", n).equals(n)).where(value, float("nan"))
