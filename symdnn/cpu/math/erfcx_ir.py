"""``erfcx(x) = exp(x^2) erfc(x)``, on the lanes of a vector.

Up to 28 it is erfc's polynomial over 1 + 2 x, beyond the asymptotic series (NIST's DLMF 7.12.1);
below 0 it is 2 exp(x^2) less that of -x, where the rounding error of x^2 is a factor of its own.
"""

from __future__ import annotations

from math import pi, sqrt

from symdnn.cpu.math.lanes_ir import Lane, Lanes
from symdnn.cpu.math.math_special64_ir import ERFC

__all__ = ["erfcx"]

#: As ERFC, of a lower degree.
_SHORT = [
    1.2329951186395096, -0.1396211169890576, 0.015379649882756093, 0.06809706035279915,
    -0.10103900700002104, 0.09373277439217954, -0.06633096475175966, 0.03716764867449552,
    -0.016194809647269732, 0.005032733938802139, -0.0007651276843238138, -0.00020368128689945758,
    0.00015970780618522611, -1.622579870883544e-05, -1.5373958959858455e-05,
]  # fmt: skip
#: Of sqrt(pi) x erfcx(x), in 1 / (2 x^2).
_FAR = [1.0, -1.0, 3.0, -15.0, 105.0, -945.0, 10395.0]


def erfcx(k: Lanes, x: Lane) -> Lane:
    """The scaled complement of the error function; infinite far below 0."""
    size = k.abs(x)
    a = (size > 28.0).where(28.0, size)
    near = k.polynomial(_SHORT if k.short else ERFC, (a + -4.0) / (a + 4.0))
    value = near / k.multiply_add(a, 2.0, 1.0)

    def far() -> Lane:
        inverse = 1.0 / k.most(size, 28.0)
        return k.polynomial(_FAR, inverse * inverse * 0.5) * inverse * (1 / sqrt(pi))

    def below() -> Lane:
        square = a * a
        rest = k.fma(a, a, -square)
        whole = k.exp(square)
        twice = k.multiply_add(whole, rest, whole) * 2.0
        return (whole < float("inf")).where(twice - value, float("inf"))

    value = k.where_any(size > 28.0, far, value)
    return x.is_nan().where(x, k.where_any(x < 0.0, below, value))
