"""Floor division and remainder as LLVM IR, with NumPy's results for all special numbers.

The remainder has the divisor's sign. Integers divided by zero give 0, as in NumPy; floats are those
of Python's ``divmod``, by C's ``fmod`` (LLVM's ``frem``).
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["DIVISIONS", "float_division", "integer_division"]

#: The instructions of this module.
DIVISIONS = frozenset({"floor_div", "mod"})

New = Callable[[str], str]


def integer_division(new: New, name: str, t: str, signed: bool, a: str, b: str) -> str:
    """``floor_div`` or ``mod`` of integers of type ``t``; ``new`` appends an instruction."""
    none = new(f"icmp eq {t} {b}, 0")
    if not signed:
        some = new(f"select i1 {none}, {t} 1, {t} {b}")
        word = "udiv" if name == "floor_div" else "urem"
        return new(f"select i1 {none}, {t} 0, {t} {new(f'{word} {t} {a}, {some}')}")
    # A division by -1 overflows for the least integer: its quotient is -a, without a remainder.
    minus = new(f"icmp eq {t} {b}, -1")
    some = new(f"select i1 {new(f'or i1 {none}, {minus}')}, {t} 1, {t} {b}")
    rest = new(f"srem {t} {a}, {some}")
    left = new(f"icmp ne {t} {rest}, 0")
    apart = new(f"icmp slt {t} {new(f'xor {t} {rest}, {b}')}, 0")
    wrong = new(f"and i1 {left}, {apart}")
    if name == "mod":
        return new(f"select i1 {wrong}, {t} {new(f'add {t} {rest}, {b}')}, {t} {rest}")
    whole = new(f"sdiv {t} {a}, {some}")
    whole = new(f"select i1 {wrong}, {t} {new(f'sub {t} {whole}, 1')}, {t} {whole}")
    whole = new(f"select i1 {minus}, {t} {new(f'sub {t} 0, {a}')}, {t} {whole}")
    return new(f"select i1 {none}, {t} 0, {t} {whole}")


def float_division(
    new: New, intrinsic: Callable[..., str], name: str, t: str, a: str, b: str
) -> str:
    """``floor_div`` or ``mod`` of floats of type ``t``; ``intrinsic(name, t, arguments)``."""
    rest = new(f"frem {t} {a}, {b}")
    left = new(f"fcmp une {t} {rest}, 0.0")
    below = new(f"fcmp olt {t} {b}, 0.0"), new(f"fcmp olt {t} {rest}, 0.0")
    wrong = new(f"and i1 {left}, {new(f'xor i1 {below[0]}, {below[1]}')}")
    none = new(f"fcmp oeq {t} {b}, 0.0")
    if name == "mod":
        fixed = new(f"select i1 {wrong}, {t} {new(f'fadd {t} {rest}, {b}')}, {t} {rest}")
        zero = intrinsic("copysign", t, ["0.0", b])
        found = new(f"select i1 {left}, {t} {fixed}, {t} {zero}")
        return new(f"select i1 {none}, {t} {rest}, {t} {found}")
    ratio = new(f"fdiv {t} {a}, {b}")
    whole = new(f"fdiv {t} {new(f'fsub {t} {a}, {rest}')}, {b}")
    whole = new(f"select i1 {wrong}, {t} {new(f'fsub {t} {whole}, 1.0')}, {t} {whole}")
    floor = intrinsic("floor", t, [whole])
    above = new(f"fcmp ogt {t} {new(f'fsub {t} {whole}, {floor}')}, 0.5")
    floor = new(f"select i1 {above}, {t} {new(f'fadd {t} {floor}, 1.0')}, {t} {floor}")
    some = new(f"fcmp une {t} {whole}, 0.0")
    zero = intrinsic("copysign", t, ["0.0", ratio])
    floor = new(f"select i1 {some}, {t} {floor}, {t} {zero}")
    return new(f"select i1 {none}, {t} {ratio}, {t} {floor}")
