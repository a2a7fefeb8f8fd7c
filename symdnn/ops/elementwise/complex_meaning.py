"""The scalar program of an elementwise op on complex operands: of their parts, real ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from symdnn.config import config
from symdnn.graph.op import Op
from symdnn.ops.core.scalar import Builder, Scalar, ScalarProgram, identity_program
from symdnn.ops.elementwise import complex_formulas as formulas
from symdnn.ops.elementwise import complex_inverses as inverses
from symdnn.ops.elementwise import math
from symdnn.ops.elementwise.arithmetic import (
    Abs,
    Add,
    Cast,
    Inv,
    Mul,
    Neg,
    Pow,
    Sqr,
    Sqrt,
    Sub,
    TrueDiv,
)
from symdnn.ops.elementwise.comparison import Eq, IsFinite, IsInf, IsNan, Neq, Switch
from symdnn.ops.elementwise.complex_formulas import Pair
from symdnn.ops.elementwise.complexes import Angle, Complex, Conj, Imag, Real
from symdnn.ops.elemwise import Elemwise

#: The dtype of both parts.
_PARTS = {"complex64": "float32", "complex128": "float64"}

_floatx, _cast_policy = config.reader("floatX"), config.reader("cast_policy")


def part_dtypes(dtype: str) -> tuple[str, ...]:
    """The dtypes of a number's parts; a real number has one."""
    return (_PARTS[dtype],) * 2 if dtype in _PARTS else (dtype,)


def complex_copy(dtype: str) -> ScalarProgram:
    """The program of a copy of each part."""
    own = part_dtypes(dtype)
    return ScalarProgram(own, (), (0, 1)) if len(own) > 1 else identity_program(dtype)


def complex_meaning(op: Elemwise, dtypes: tuple[str, ...]) -> ScalarProgram | None:
    """The program of ``op`` on the parts of its operands; None if it has none."""
    # The dtype of a result may depend on flags, so they are part of the cache's key.
    return _meaning(op, dtypes, str(_floatx()), str(_cast_policy()))


@cache
def _meaning(op: Elemwise, dtypes: tuple[str, ...], *flags: str) -> ScalarProgram | None:
    formula, out = _FORMULAS.get(type(op)), op.out_dtype(*dtypes)
    if formula is None or not any(d in _PARTS for d in (*dtypes, out)):
        return None
    chooses = isinstance(op, Switch)
    work = part_dtypes(out if chooses or isinstance(op, Complex) else op.work_dtype(*dtypes))[0]
    if type(op) in _IN_FLOAT64:
        work = "float64"
    b = Builder([p for d in dtypes for p in part_dtypes(d)])
    given: list[Pair] = []
    at = 0
    for i, d in enumerate(dtypes):
        own = [b.input(at + k) for k in range(len(part_dtypes(d)))]
        at += len(own)
        condition = chooses and i == 0
        own = [v.cast("bool" if condition else _kind(op, v, work)) for v in own]
        given.append((own[0], own[1] if len(own) > 1 else own[0].like(0)))
    found = formula(*given)
    parts = part_dtypes(out)
    return b.program([v.cast(part) for v, part in zip(found, parts)])


def _kind(op: Elemwise, part: Scalar, work: str) -> str:
    """The dtype in which a part is computed: a cast's is its own, which is then cast."""
    return part.dtype if isinstance(op, Cast) else work


def _either(name: str, joined: str) -> Callable[..., Pair]:
    """The test or comparison ``name`` of both parts, ``joined`` by ``and`` or ``or``."""

    def formula(x: Pair, *other: Pair) -> Pair:
        tests = [x[k].call(name, *[y[k] for y in other]) for k in (0, 1)]
        return tests[0].call(joined, tests[1]), tests[0]

    return formula


def _chosen(c: Pair, x: Pair, y: Pair) -> Pair:
    test = c[0].call("or", c[1])
    return test.where(x[0], y[0]), test.where(x[1], y[1])


_FORMULAS: dict[type[Op], Callable[..., Sequence[Scalar]]] = {
    Add: lambda x, y: (x[0] + y[0], x[1] + y[1]),
    Sub: lambda x, y: (x[0] - y[0], x[1] - y[1]),
    Mul: formulas.product,
    TrueDiv: formulas.quotient,
    Inv: formulas.reciprocal,
    Sqr: lambda x: formulas.product(x, x),
    Neg: lambda x: (-x[0], -x[1]),
    Conj: lambda x: (x[0], -x[1]),
    Real: lambda x: x,
    Imag: lambda x: (x[1], x[0]),
    Complex: lambda x, y: (x[0], y[0]),
    Cast: lambda x: x,
    Abs: formulas.absolute,
    Angle: formulas.angle,
    Sqrt: formulas.root,
    math.Exp: formulas.exponential,
    math.Log: formulas.logarithm(),
    math.Log2: formulas.logarithm(formulas.LOG2),
    math.Log10: formulas.logarithm(formulas.LOG10),
    math.Sin: formulas.sine,
    math.Cos: formulas.cosine,
    math.Tan: formulas.tangent,
    math.Sinh: formulas.sine_h,
    math.Cosh: formulas.cosine_h,
    math.Tanh: formulas.tangent_h,
    math.ArcSin: inverses.arc_sine,
    math.ArcCos: inverses.arc_cosine,
    math.ArcTan: inverses.arc_tangent,
    math.ArcSinh: inverses.arc_sine_h,
    math.ArcCosh: inverses.arc_cosine_h,
    math.ArcTanh: inverses.arc_tangent_h,
    math.Expm1: inverses.exponential_less_1,
    math.Log1p: inverses.logarithm_of_1_more,
    Pow: inverses.power,
    Eq: _either("eq", "and"),
    Neq: _either("ne", "or"),
    IsNan: _either("isnan", "or"),
    IsInf: _either("isinf", "or"),
    IsFinite: _either("isfinite", "and"),
    Switch: _chosen,
}
#: Ops that lose digits in float32, or squares that overflow in it.
_IN_FLOAT64 = frozenset(
    {math.Log1p, math.Expm1, Pow}
    | {math.ArcSin, math.ArcCos, math.ArcTan, math.ArcSinh, math.ArcCosh, math.ArcTanh}
)
