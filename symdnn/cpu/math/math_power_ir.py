"""pow, asinh, acosh and atanh as LLVM IR without branches, computed in float64.

``pow``: exp(y log abs(x)), with the sign of x where y is odd. 0, 1, infinities and NaN give the
same as in C. That of float32 is here; that of float64 has a logarithm of two numbers. The inverse
hyperbolic functions are log(1 + t); of a large x, log(x) + log(2).
"""

from __future__ import annotations

from math import log

from symdnn.cpu.math.lanes_ir import Formula, Lane, Lanes, in_double

__all__ = ["POWER", "signs_and_ones"]


def _log_of_large(k: Lanes, a: Lane, near: Lane) -> Lane:
    """log(1 + ``near``), or of a large ``a``, whose square may be infinite, log(2 a)."""
    far = a > 1.0e10
    return k.log1p(far.where(a - 1.0, near)) + far.where(log(2), 0.0)


def _asinh(k: Lanes, x: Lane) -> Lane:
    a, z = k.abs(x), x * x
    near = a + z / (k.intrinsic("sqrt", z + 1.0) + 1.0)
    return k.intrinsic("copysign", _log_of_large(k, a, near), x)


def _acosh(k: Lanes, x: Lane) -> Lane:
    less = x - 1.0
    near = less + k.intrinsic("sqrt", less * (x + 1.0))
    return (x >= 1.0).where(_log_of_large(k, x + 0.0, near), float("nan"))


def _atanh(k: Lanes, x: Lane) -> Lane:
    a = k.abs(x)
    size = k.log1p((a + a) / (1.0 - a)) * 0.5
    return k.intrinsic("copysign", size, x)


def signs_and_ones(k: Lanes, x: Lane, x2: Lane, a: Lane, size: Lane) -> Lane:
    """The power of x by that of its magnitude ``a``: with its sign, and where it is 1 or NaN."""
    whole = k.intrinsic("floor", x2).equals(x2)
    halved = x2 * 0.5
    odd = whole & k.test("une", k.intrinsic("floor", halved), halved)
    signed = k.intrinsic("copysign", size, odd.where(x, 1.0))
    # A finite negative number to a power that is no integer is NaN.
    bad = (x < 0.0) & k.test("one", a, float("inf")) & ~whole
    found = bad.where(float("nan"), signed)
    # 1 to any power, -1 to an infinite one, and anything to the power 0 are 1.
    endless = a.equals(1.0) & k.abs(x2).equals(float("inf"))
    return (x2.equals(0.0) | x.equals(1.0) | endless).where(1.0, found)


def _pow(k: Lanes, x: Lane, x2: Lane) -> Lane:
    a = k.abs(x)
    return signs_and_ones(k, x, x2, a, k.exp(x2 * k.log(a)))


_AREAS = {"asinh": _asinh, "acosh": _acosh, "atanh": _atanh}
POWER = [
    Formula("s_pow", in_double(_pow), "float", "float"),
    *(Formula(f"s_{name}", in_double(write), "float") for name, write in _AREAS.items()),
    *(Formula(f"f_{name}", write) for name, write in _AREAS.items()),
]
