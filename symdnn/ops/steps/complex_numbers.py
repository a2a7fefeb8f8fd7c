"""Complex numbers in loops of small steps: pairs of real ones, at their places in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from symdnn.graph.op import Op
from symdnn.ops.core.scalar import Builder, Scalar, ScalarProgram
from symdnn.ops.elementwise.arithmetic import Abs, Add, Cast, Mul, Neg, Sqr, Sub, TrueDiv
from symdnn.ops.elementwise.comparison import Switch
from symdnn.ops.elementwise.complexes import Complex, Conj, Imag, Real
from symdnn.ops.elementwise.math import Exp
from symdnn.ops.elemwise import Elemwise
from symdnn.ops.nest.monoid import total
from symdnn.ops.nest.nest import Fold
from symdnn.ops.steps.statements import View

__all__ = ["complex_meaning", "complex_sum", "part_dtypes", "parts"]

#: The dtype of both parts.
_PARTS = {"complex64": "float32", "complex128": "float64"}
Pair = tuple[Scalar, Scalar]


def part_dtypes(dtype: str) -> tuple[str, ...]:
    """The dtypes of a number's parts; a real number has one."""
    return (_PARTS[dtype],) * 2 if dtype in _PARTS else (dtype,)


def parts(views: Sequence[View]) -> tuple[View, ...]:
    """The views of all parts, in order."""
    found: list[View] = []
    for v in views:
        at = v.offset
        for dtype in part_dtypes(v.dtype):
            part = replace(v, dtype=dtype, offset=at)
            found.append(part)
            at += part.itemsize
    return tuple(found)


def complex_sum(dtype: str) -> Fold:
    """The sum of complex numbers, as a fold of both parts."""
    part = _PARTS[dtype]
    b = Builder([part, part])
    own = total("add", part, part, part)
    return Fold(b.program([b.input(0), b.input(1)]), (own, own))


@cache
def complex_meaning(op: Elemwise, dtypes: tuple[str, ...]) -> ScalarProgram | None:
    """The program of ``op`` on the parts of its operands; None if it has none."""
    formula, out = _FORMULAS.get(type(op)), op.out_dtype(*dtypes)
    if formula is None or not any(d in _PARTS for d in (*dtypes, out)):
        return None
    work = part_dtypes(out)[0]
    b = Builder([p for d in dtypes for p in part_dtypes(d)])
    given: list[Pair] = []
    at = 0
    for i, d in enumerate(dtypes):
        own = [b.input(at + k) for k in range(len(part_dtypes(d)))]
        at += len(own)
        kind = "bool" if isinstance(op, Switch) and i == 0 else work
        own = [v.cast(kind) for v in own]
        given.append((own[0], own[1] if len(own) > 1 else own[0].like(0)))
    if isinstance(op, Switch) and dtypes[0] in _PARTS:
        return None
    found = formula(*given)
    return b.program([v.cast(work) for v in found[: len(part_dtypes(out))]])


def _product(x: Pair, y: Pair) -> Pair:
    return x[0] * y[0] - x[1] * y[1], x[0] * y[1] + x[1] * y[0]


def _quotient(x: Pair, y: Pair) -> Pair:
    """By R. L. Smith's algorithm (1962), which squares no number; so is NumPy's."""
    a, b = y[0].call("abs"), y[1].call("abs")
    tall = a < b
    large, small = tall.where(y[1], y[0]), tall.where(y[0], y[1])
    ratio = small / large
    scale = large + small * ratio
    first = tall.where(x[0] * ratio + x[1], x[0] + x[1] * ratio) / scale
    second = tall.where(x[1] * ratio - x[0], x[1] - x[0] * ratio) / scale
    none = a.call("add", b).call("eq", 0)
    return none.where(x[0] / a, first), none.where(x[1] / a, second)


def _size(x: Pair) -> Pair:
    a, b = x[0].call("abs"), x[1].call("abs")
    low = a < b
    large, small = low.where(b, a), low.where(a, b)
    ratio = large.call("eq", 0).where(small, small / large)
    infinite = a.call("eq", np.inf).call("or", b.call("eq", np.inf))
    return infinite.where(a.like(np.inf), large * (ratio * ratio + 1).call("sqrt")), ratio


def _exponential(x: Pair) -> Pair:
    size = x[0].call("exp")
    zero = x[1].call("eq", 0).call("or", size.call("eq", 0))
    return zero.where(size, size * x[1].call("cos")), zero.where(
        x[1].like(0), size * x[1].call("sin")
    )


_FORMULAS: dict[type[Op], Callable[..., Pair]] = {
    Add: lambda x, y: (x[0] + y[0], x[1] + y[1]),
    Sub: lambda x, y: (x[0] - y[0], x[1] - y[1]),
    Mul: _product,
    TrueDiv: _quotient,
    Sqr: lambda x: _product(x, x),
    Neg: lambda x: (-x[0], -x[1]),
    Conj: lambda x: (x[0], -x[1]),
    Real: lambda x: x,
    Imag: lambda x: (x[1], x[0]),
    Complex: lambda x, y: (x[0], y[0]),
    Cast: lambda x: x,
    Abs: _size,
    Exp: _exponential,
    Switch: lambda c, x, y: (c[0].where(x[0], y[0]), c[0].where(x[1], y[1])),
}
