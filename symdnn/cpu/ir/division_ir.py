"""Floor division and remainder as LLVM IR, with NumPy's results for all special numbers.

The remainder has the divisor's sign. Integers divided by zero give 0, as in NumPy; floats are those
of Python's ``divmod``, by C's ``fmod``.

Processors have no vectors of integer quotients. The quotient of integers of up to 32 bits is that
of float64, cut to an integer, which is exact: it is 2^-32 or more from the next integer. Of up to
16 bits it is that of float32. With AVX-512 two quotients of float64 give that of 64 bits, which is
put right. By a positive constant only numbers that are not negative are
divided: of another one the quotient is that of -1 - a, with all bits changed. Numbers of 64 bits
that are known to need 31 are divided as such. Of 8 bits there are no vectors of products, either.

With a quotient q below 2^22 (float64: 2^51) ``fmod`` is a - q b, by one fma without a rounding
error; of a q that was rounded up it has the wrong sign, and b is added. Larger quotients are rare
(:mod:`symdnn.cpu.math.math_rare_ir`), and are LLVM's ``frem``.
"""

from __future__ import annotations

from collections.abc import Callable

from symdnn.cpu.compiler import jit
from symdnn.cpu.ir.ranges import Range
from symdnn.cpu.math.lanes_ir import Formula, Lane, Lanes
from symdnn.cpu.math.math_rare_ir import Rare

#: The instructions of this module.
DIVISIONS = frozenset({"floor_div", "mod"})

New = Callable[[str], str]


def integer_division(
    new: New, name: str, t: str, signed: bool, a: str, b: str, known: Range | None = None
) -> str:
    """``floor_div`` or ``mod`` of integers of type ``t``; ``new`` appends an instruction.

    ``known`` are the least and the largest ``a``.
    """
    if known is not None and known[0] >= 0 and not b.startswith("%") and int(b) > 0:
        return _of_known(new, name, t, a, int(b), known[1])
    if t == "i8":
        extend = "sext" if signed else "zext"
        a, b = (v if not v.startswith("%") else new(f"{extend} i8 {v} to i16") for v in (a, b))
        found = integer_division(new, name, "i16", signed, a, b)
        return new(f"trunc i16 {found} to i8")
    if not b.startswith("%") and int(b) > 0:
        mask = new(f"ashr {t} {a}, {int(t[1:]) - 1}") if signed else "0"
        whole = new(f"udiv {t} {new(f'xor {t} {a}, {mask}')}, {b}")
        whole = new(f"xor {t} {whole}, {mask}")
        rest = new(f"sub {t} {a}, {new(f'mul {t} {whole}, {b}')}")
        return rest if name == "mod" else whole
    none = new(f"icmp eq {t} {b}, 0")
    if not signed:
        some = new(f"select i1 {none}, {t} 1, {t} {b}")
        whole = _quotient(new, t, signed, a, some)
        if name == "mod":
            whole = new(f"sub {t} {a}, {new(f'mul {t} {whole}, {some}')}")
        return new(f"select i1 {none}, {t} 0, {t} {whole}")
    # A division by -1 overflows for the least integer: its quotient is -a, without a remainder.
    minus = new(f"icmp eq {t} {b}, -1")
    some = new(f"select i1 {new(f'or i1 {none}, {minus}')}, {t} 1, {t} {b}")
    whole = _quotient(new, t, signed, a, some)
    rest = new(f"sub {t} {a}, {new(f'mul {t} {whole}, {some}')}")
    left = new(f"icmp ne {t} {rest}, 0")
    apart = new(f"icmp slt {t} {new(f'xor {t} {rest}, {b}')}, 0")
    wrong = new(f"and i1 {left}, {apart}")
    if name == "mod":
        return new(f"select i1 {wrong}, {t} {new(f'add {t} {rest}, {b}')}, {t} {rest}")
    whole = new(f"select i1 {wrong}, {t} {new(f'sub {t} {whole}, 1')}, {t} {whole}")
    whole = new(f"select i1 {minus}, {t} {new(f'sub {t} 0, {a}')}, {t} {whole}")
    return new(f"select i1 {none}, {t} 0, {t} {whole}")


def _of_known(new: New, name: str, t: str, a: str, b: int, most: int) -> str:
    """``floor_div`` or ``mod`` of numbers from 0 to ``most`` by a positive constant."""
    if most < b:
        return a if name == "mod" else "0"
    own = t
    if t == "i8" or (t == "i64" and most < 2**31 and a.startswith("%")):
        own = "i16" if t == "i8" else "i32"
        a = new(f"{'zext' if t == 'i8' else 'trunc'} {t} {a} to {own}")
    found = new(f"udiv {own} {a}, {b}")
    if name == "mod":
        found = new(f"sub {own} {a}, {new(f'mul {own} {found}, {b}')}")
    return found if own == t else new(f"{'trunc' if t == 'i8' else 'zext'} {own} {found} to {t}")


def _quotient(new: New, t: str, signed: bool, a: str, b: str) -> str:
    """``a / b`` towards zero; of a constant LLVM makes a product."""
    if t == "i64" and signed and b.startswith("%") and jit.has("avx512dq"):
        return _long_quotient(new, a, b)
    if t == "i64" or not b.startswith("%"):
        return new(f"{'sdiv' if signed else 'udiv'} {t} {a}, {b}")
    kind, f = "si" if signed else "ui", "float" if t == "i16" else "double"
    x, y = (new(f"{kind}tofp {t} {v} to {f}") for v in (a, b))
    # Of 32 bits without a sign the quotient by way of 64 bits is a vector without AVX-512, too.
    wide = "i32" if signed or t != "i32" else "i64"
    whole = new(f"fptosi {f} {new(f'fdiv {f} {x}, {y}')} to {wide}")
    return whole if t == wide else new(f"trunc {wide} {whole} to {t}")


def _long_quotient(new: New, a: str, b: str) -> str:
    """``a / b`` towards zero of 64 bits, of a ``b`` other than 0 and -1, by way of float64.

    The first quotient may be wrong by some thousands, since it is rounded to 53 bits, and what is
    left fits 64 bits. The quotient of that is wrong by one at most: where what is then left has the
    other sign than ``a``, or is as large as ``b``.
    """
    y = new(f"sitofp i64 {b} to double")

    def ratio(v: str) -> str:
        return new(f"fdiv double {new(f'sitofp i64 {v} to double')}, {y}")

    def left(q: str) -> str:
        return new(f"sub i64 {a}, {new(f'mul i64 {q}, {b}')}")

    def size(v: str) -> str:
        less = new(f"icmp slt i64 {v}, 0")
        return new(f"select i1 {less}, i64 {new(f'sub i64 0, {v}')}, i64 {v}")

    first = ratio(a)
    fits = new(f"fcmp olt double {first}, {2.0**63:.1f}")  # the largest number by 1 does not
    first = new(f"select i1 {fits}, double {first}, double {2.0**63 - 1024:.1f}")
    q = new(f"fptosi double {first} to i64")
    q = new(f"add i64 {q}, {new(f'fptosi double {ratio(left(q))} to i64')}")
    rest = left(q)
    apart = new(f"icmp slt i64 {new(f'xor i64 {rest}, {a}')}, 0")
    beyond = new(f"and i1 {apart}, {new(f'icmp ne i64 {rest}, 0')}")
    short = new(f"icmp uge i64 {size(rest)}, {size(b)}")
    signs = new(f"xor i64 {a}, {b}")
    one = new(f"or i64 {new(f'ashr i64 {signs}, 63')}, 1")
    less = new(f"select i1 {beyond}, i64 {new(f'sub i64 0, {one}')}, i64 0")
    return new(f"add i64 {q}, {new(f'select i1 {short}, i64 {one}, i64 {less}')}")


#: Quotients below are exact integers, and half one more.
_MOST = {"float": 2.0**22, "double": 2.0**51}


def _remainder(k: Lanes, a: Lane, b: Lane) -> Lane:
    """C's ``fmod``."""
    q = k.intrinsic("trunc", a / b)
    r = k.fma(-q, b, a)
    above, below = r > 0.0, r < 0.0
    wrong = (a > 0.0).where(below, above)
    rest = wrong.where(r + k.intrinsic("copysign", k.abs(b), a), r)
    near = k.abs(q) < _MOST[a.t]
    close = near.where(k.intrinsic("copysign", rest, a), float("nan"))
    return k.call(f"rem_{a.t}_rare", a, b, close)


#: ``rem_float`` and ``rem_double``.
REMAINDERS: list[Formula | Rare] = [
    *(Formula(f"rem_{t}", _remainder, t, t) for t in _MOST),
    *(Rare(f"rem_{t}_rare", t, f"frem {t} %x0, %x1", 2) for t in _MOST),
]


def float_division(
    new: New, intrinsic: Callable[..., str], name: str, t: str, a: str, b: str, rest: str
) -> str:
    """``floor_div`` or ``mod`` of floats of type ``t`` by C's remainder.

    ``intrinsic(name, t, arguments)`` calls one.
    """
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
