"""asin, acos and atan of float32 as formulas, computed in float32 without branches or tables.

Up to 1/2 the arcsine of a is a + a z P(z), z = a^2. Above, it is pi/2 - 2 asin(r), where r^2 = z =
(1 - a) / 2, which is exact; of numbers above 1 the root gives NaN. The arctangent of a is a
polynomial up to 1, above it is pi/2 less that of 1 / a. Errors are below 2 ulp.
"""

from __future__ import annotations

from math import pi

from symdnn.cpu.math.lanes_ir import Formula, Lane, Lanes, coefficients

#: (asin(a) / a - 1) / z in z = a^2, for z <= 1/4: minimax.
_ASIN = coefficients(
    "0x1.59f3d8p-5", "0x1.8b86b0p-6", "0x1.748efep-5", "0x1.330136p-4", "0x1.5555cap-3",
)  # fmt: skip
#: (atan(a) / a - 1) / z in z = a^2, for z <= 1: minimax.
_ATAN = coefficients(
    "-0x1.d62fd2p-10", "0x1.65a64cp-7", "-0x1.fed150p-6", "0x1.dac9dcp-5", "-0x1.58348ep-4",
    "0x1.c099fep-4", "-0x1.2421b6p-3", "0x1.9991fep-3", "-0x1.55553ep-2",
)  # fmt: skip
_QUARTER_HIGH = float.fromhex("0x1.921fb6p+0")  # of pi / 2
_QUARTER_LOW = pi / 2 - _QUARTER_HIGH


def _reduced(k: Lanes, x: Lane) -> tuple[Lane, Lane, Lane]:
    """r, asin(r) - r, and whether abs(x) is far from 0."""
    a = k.abs(x)
    far, far_z = a > 0.5, k.multiply_add(a, -0.5, 0.5)
    z, r = far.where(far_z, a * a), far.where(k.intrinsic("sqrt", far_z), a)
    return r, r * z * k.polynomial(_ASIN, z), far


def _asin(k: Lanes, x: Lane) -> Lane:
    r, more, far = _reduced(k, x)
    high = _QUARTER_HIGH - (r + r)
    # What rounding took from it: around 1 that is a unit of the result.
    low = (_QUARTER_HIGH - high) - (r + r) + _QUARTER_LOW - (more + more)
    return k.intrinsic("copysign", far.where(high + low, r + more), x)


def _acos(k: Lanes, x: Lane) -> Lane:
    """pi/2 - asin(x), or 2 asin(r) of a large positive x, or pi less that."""
    r, more, far = _reduced(k, x)
    left = (2 * _QUARTER_HIGH - (r + r)) + (2 * _QUARTER_LOW - (more + more))
    right = (r + r) + (more + more)
    near = (_QUARTER_HIGH - x) + (_QUARTER_LOW - k.intrinsic("copysign", more, x))
    return far.where((x < 0.0).where(left, right), near)


def _atan(k: Lanes, x: Lane) -> Lane:
    a = k.abs(x)
    far = a > 1.0
    q = far.where(1.0 / a, a)
    z = q * q
    more = q * z * k.polynomial(_ATAN, z)
    size = far.where((_QUARTER_HIGH - q) + (_QUARTER_LOW - more), q + more)
    return k.intrinsic("copysign", size, x)


ARCS = [
    Formula(f"s_{name}", write, "float")
    for name, write in (("asin", _asin), ("acos", _acos), ("atan", _atan))
]
