"""The table from classes of elementwise ops to their scalar programs.

Ops with complex operands or results have none, nor have integer powers that may fail.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import pi, sqrt
from typing import Any

import numpy as np

from symdnn.config import config
from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.ops.core.dtype import is_narrow_float
from symdnn.ops.core.scalar import RESULT, STORED, Builder, Scalar, ScalarProgram
from symdnn.ops.elementwise import activations as act
from symdnn.ops.elementwise import arithmetic as ar
from symdnn.ops.elementwise import bessel as bs
from symdnn.ops.elementwise import comparison as cmp
from symdnn.ops.elementwise import incomplete as inc
from symdnn.ops.elementwise import math as mt
from symdnn.ops.elementwise import quantize as qu
from symdnn.ops.elementwise import rounding as rnd
from symdnn.ops.elementwise import special as sp
from symdnn.ops.elementwise.special_values import FAR, TERMS
from symdnn.ops.elemwise import Elemwise, FloatElemwise

__all__ = ["DECIDES", "MEANINGS", "meaning"]

Formula = Callable[..., Scalar]
_floatx, _cast_policy = config.reader("floatX"), config.reader("cast_policy")


@dataclass(frozen=True)
class Meaning:
    """A formula of scalars; ``raw`` ones see the operands in their own dtypes."""

    formula: Formula
    raw: bool = False


def meaning(op: Elemwise, dtypes: tuple[str, ...]) -> ScalarProgram | None:
    """The program of ``op`` on operands of these dtypes; None if it has none.

    Operands are cast to the dtype that the reference computes in (float16 and bfloat16 to float32),
    the result to the op's dtype. In a chain of 16-bit ops only a user's cast and the operands of
    :data:`DECIDES` are rounded in between.
    """
    # The dtype of a result may depend on flags, so they are part of the cache's key.
    return _meaning(op, dtypes, str(_floatx()), str(_cast_policy()))


@cache
def _meaning(op: Elemwise, dtypes: tuple[str, ...], *flags: str) -> ScalarProgram | None:
    entry = MEANINGS.get(type(op))
    out = op.out_dtype(*dtypes)
    if entry is None or any(TensorType(d).is_complex for d in (*dtypes, out)):
        return None
    if isinstance(op, ar.Pow) and _may_fail(dtypes):
        return None
    builder = Builder(dtypes)
    args = [builder.input(i) for i in range(len(dtypes))]
    if entry.raw:
        return builder.program([entry.formula(op, *args).cast(out, RESULT)])
    work, kind = _work_dtype(op, dtypes, out), STORED if isinstance(op, DECIDES) else ""
    result = entry.formula(*(a.cast(work, kind) for a in args))
    return builder.program([result.cast(out, RESULT)])


def _may_fail(dtypes: Sequence[str]) -> bool:
    """Whether it is a power of an integer and a signed one: NumPy refuses negative exponents."""
    signed = dtypes[1] != "bool" and not dtypes[1].startswith("u")
    return signed and all(TensorType(d).is_discrete for d in dtypes)


def _work_dtype(op: Elemwise, dtypes: Sequence[str], out: str) -> str:
    if isinstance(op, FloatElemwise):
        return "float32" if is_narrow_float(out) else out
    wide = ["float32" if is_narrow_float(d) else d for d in dtypes]
    common = str(np.result_type(*(numpy_dtype(d) for d in wide)).name)
    return "int8" if common == "bool" and out == "int8" else common


# -- formulas -------------------------------------------------------------------------------------


def _instruction(name: str) -> Formula:
    def formula(x: Scalar, *others: Scalar) -> Scalar:
        return x.call(name, *others)

    return formula


def _comparison(name: str, swap: bool = False) -> Formula:
    """A comparison that is exact also between int64 and uint64."""

    def formula(op: Any, x: Scalar, y: Scalar) -> Scalar:
        if swap:
            x, y = y, x
        signed = [s for s in (x, y) if s.dtype.startswith("int")]
        if len(signed) == 1 and "uint64" in (x.dtype, y.dtype):
            a, b = x.cast("uint64"), y.cast("uint64")
            below = {"lt": signed[0] is x, "le": signed[0] is x, "eq": False, "ne": True}[name]
            exact = a.call(name, b)
            return (signed[0] < 0).where(below, exact)
        work = _work_dtype(op, [x.dtype, y.dtype], "bool")
        return x.cast(work, STORED).call(name, y.cast(work, STORED))

    return formula


def _sgn(x: Scalar) -> Scalar:
    if TensorType(x.dtype).is_float:
        tested = (x < 0).where(-1, x)
        return (x > 0).where(1, x.call("eq", 0).where(0, tested))
    positive = (x > 0).where(1, x.like(0))
    return positive if x.dtype.startswith("u") else (x < 0).where(-1, positive)


def _sqr(x: Scalar) -> Scalar:
    return x * x


def _inv(x: Scalar) -> Scalar:
    return 1 / x


def _clip(x: Scalar, low: Scalar, high: Scalar) -> Scalar:
    return (x < low).where(low, (x > high).where(high, x))


def _cast(op: Any, x: Scalar) -> Scalar:
    return x.cast(op.dtype, "" if TensorType(op.dtype).is_float else STORED)


def _switch(op: Any, condition: Scalar, yes: Scalar, no: Scalar) -> Scalar:
    dtype = op.out_dtype(condition.dtype, yes.dtype, no.dtype)
    work = "float32" if is_narrow_float(dtype) else dtype
    return condition.cast("bool", STORED).where(yes.cast(work), no.cast(work))


def _half_away(x: Scalar) -> Scalar:
    whole = x.call("trunc")
    up = (x - whole).call("abs") < 0.5
    return whole + up.where(0, x.like(1)).call("copysign", x)


def _invert(x: Scalar) -> Scalar:
    return x.call("not")


def _sigmoid(x: Scalar) -> Scalar:
    e = (-x.call("abs")).call("exp")
    return (x < 0).where(e, x.like(1)) / (1 + e)


def _softplus(x: Scalar) -> Scalar:
    return x.call("max", 0) + (-x.call("abs")).call("exp").call("log1p")


def _logaddexp(x: Scalar, y: Scalar) -> Scalar:
    top = x.call("max", y) + (-(x - y).call("abs")).call("exp").call("log1p")
    # Of two equal infinities the difference is NaN.
    return x.call("eq", y).where(x + np.log(2), top)


def _step(x: Scalar) -> Scalar:
    rest = x.call("isnan").where(x, x.like(0.5))
    return (x > 0).where(1, (x < 0).where(0, rest))


def _relu(x: Scalar) -> Scalar:
    return x.call("max", 0)


def _leaky_relu(x: Scalar, alpha: Scalar) -> Scalar:
    return (x > 0).where(x, alpha * x)


def _elu(x: Scalar, alpha: Scalar) -> Scalar:
    return (x > 0).where(x, alpha * x.call("min", 0).call("expm1"))


def _gelu_tanh(x: Scalar) -> Scalar:
    inner = sqrt(2 / pi) * (x + 0.044715 * x * x * x)
    return 0.5 * x * (1 + inner.call("tanh"))


def _log_erfc(x: Scalar) -> Scalar:
    near = (-x.call("min", 0.5).call("erf")).call("log1p")
    high = x.call("max", 0.5)
    return (x < 0.5).where(near, high.call("erfcx").call("log") - high * high)


def _log_half_erfc(x: Scalar) -> Scalar:
    near = (-0.5 * (-x.call("min", 0)).call("erfc")).call("log1p")
    high = x.call("max", 0)
    return (x < 0).where(near, (0.5 * high.call("erfcx")).call("log") - high * high)


def _erfcx_slope(x: Scalar) -> Scalar:
    """Computed in float64, since its terms cancel."""
    wide = x.cast("float64")
    far = wide.call("max", FAR)
    total = far.like(0.0)
    inverse = 0.5 / (far * far)
    for n in range(TERMS, 0, -1):
        total = -(2.0 * n + 1.0) * inverse * (1 + total)
    near = 2 * wide * wide.call("erfcx") - 2 / sqrt(pi)
    found = (wide < FAR).where(near, -(1 + total) / (sqrt(pi) * far * far))
    return found.cast(x.dtype)


def _xlogx(x: Scalar) -> Scalar:
    return _xlogy(x, x)


def _xlogy(x: Scalar, y: Scalar) -> Scalar:
    zero = x.call("eq", 0)
    return zero.where(0, x * zero.where(1, y).call("log"))


def _xlog1py(x: Scalar, y: Scalar) -> Scalar:
    product = x * x.call("eq", 0).where(1, y).call("log1p")
    return y.call("isnan").where(y, product)


def _logit(x: Scalar) -> Scalar:
    twice = 2 * x - 1  # exact near 1/2
    far = x.call("log") - (-x).call("log1p")
    return (twice.call("abs") < 0.5).where(2 * twice.call("atanh"), far)


def _quantize(op: qu.Quantize, x: Scalar, scale: Scalar, zero: Scalar) -> Scalar:
    y = x.cast("float32", STORED) / scale.cast("float32", STORED)
    if op.kind in qu.FLOAT8:
        return _float8_bits(y, op.kind)
    low, high = qu.limits_of(op.kind)
    y = y.call("rint") + zero.cast("float32")
    y = (y > low).where((y < high).where(y, high), low)
    return y.cast("int32").cast(op.out_dtype())


def _float8_bits(y: Scalar, kind: str) -> Scalar:
    """The bits of the nearest float8; halves to even."""
    mantissa, bias = qu.FLOAT8[kind]
    most, dropped = qu.limits_of(kind)[1], 23 - mantissa
    size = y.call("abs")
    size = (size < most).where(size, most)
    bits = size.bits("int32")
    odd = bits.call("shr", dropped).call("and", 1)
    normal = (bits + ((1 << dropped - 1) - 1) + odd).call("shr", dropped) - (127 - bias << mantissa)
    small = (size * 2.0 ** (bias - 1 + mantissa)).call("rint").cast("int32")
    found = (size < 2.0 ** (1 - bias)).where(small, normal)
    sign = y.bits("int32").call("shr", 24).call("and", 0x80)
    nan = {"float8_e4m3fn": 0x7F, "float8_e5m2": 0x7E}[kind]
    return y.call("isnan").where(nan, found).call("or", sign).cast("uint8")


def _dequantize(op: qu.Dequantize, x: Scalar, scale: Scalar, zero: Scalar) -> Scalar:
    if op.kind in qu.FLOAT8:
        wide = _of_float8_bits(x.cast("int32"), op.kind).cast(op.computed)
    else:
        wide = (x.cast("int32") - zero.cast("int32")).cast(op.computed)
    return (wide * scale.cast(op.computed, STORED)).cast(op.dtype, RESULT)


def _of_float8_bits(code: Scalar, kind: str) -> Scalar:
    mantissa, bias = qu.FLOAT8[kind]
    size = code.call("and", 0x7F)
    small = size.cast("float32") * 2.0 ** (1 - bias - mantissa)
    normal = (size.call("shl", 23 - mantissa) + (127 - bias << 23)).bits("float32")
    wide = (size < 1 << mantissa).where(small, normal)
    if kind == "float8_e4m3fn":
        wide = size.call("eq", 0x7F).where(np.nan, wide)
    else:
        beyond = size.call("eq", 0x7C).where(np.inf, wide)
        wide = (size > 0x7C).where(np.nan, beyond)
    return (code > 0x7F).where(-wide, wide)


def _simple(**names: type[Elemwise]) -> dict[type[Elemwise], Meaning]:
    return {op: Meaning(_instruction(name.rstrip("_"))) for name, op in names.items()}


#: Ops with comparisons or jumps: of 16-bit operands they read the rounded numbers.
DECIDES = (
    cmp.IsNan, cmp.IsInf, cmp.IsFinite, ar.Sgn, ar.IntDiv, ar.Mod, act.Step,
    rnd.Floor, rnd.Ceil, rnd.Trunc, rnd.RoundHalfToEven, rnd.RoundHalfAwayFromZero,
)  # fmt: skip

#: Every op that has a scalar program.
MEANINGS: dict[type[Elemwise], Meaning] = {
    **_simple(
        add=ar.Add, sub=ar.Sub, mul=ar.Mul, div=ar.TrueDiv, floor_div=ar.IntDiv, mod=ar.Mod,
        pow=ar.Pow, neg=ar.Neg, abs=ar.Abs, sqrt=ar.Sqrt, max=ar.Maximum, min=ar.Minimum,
        isnan=cmp.IsNan, isinf=cmp.IsInf, isfinite=cmp.IsFinite, and_=cmp.And, or_=cmp.Or,
        xor=cmp.Xor, shl=cmp.LeftShift, shr=cmp.RightShift,
        exp=mt.Exp, exp2=mt.Exp2, expm1=mt.Expm1, log=mt.Log, log2=mt.Log2, log10=mt.Log10,
        log1p=mt.Log1p, sin=mt.Sin, cos=mt.Cos, tan=mt.Tan, asin=mt.ArcSin, acos=mt.ArcCos,
        atan=mt.ArcTan, sinh=mt.Sinh, cosh=mt.Cosh, tanh=mt.Tanh, asinh=mt.ArcSinh,
        acosh=mt.ArcCosh, atanh=mt.ArcTanh, atan2=mt.ArcTan2,
        floor=rnd.Floor, ceil=rnd.Ceil, trunc=rnd.Trunc, rint=rnd.RoundHalfToEven,
        erf=sp.Erf, erfc=sp.Erfc, erfcx=sp.Erfcx, erfinv=sp.ErfInv, erfcinv=sp.ErfcInv,
        tgamma=sp.Gamma, lgamma=sp.GammaLn, digamma=sp.Psi, trigamma=sp.TriGamma,
        polygamma=sp.PolyGamma,
        gammainc=inc.GammaInc, gammaincc=inc.GammaIncC, jv=bs.Jv, iv=bs.Iv, i0e=bs.I0e, i1e=bs.I1e,
        ndtri=sp.Ndtri, zeta=sp.Zeta, betaln=inc.BetaLn, betainc=inc.BetaInc, betaincc=inc.BetaIncC,
        betainc_slope_a=inc.BetaIncSlopeA, betainc_slope_b=inc.BetaIncSlopeB,
        owens_t=inc.OwensT, gamma_draw_slope=inc.GammaDrawSlope,
        von_mises_draw_slope=inc.VonMisesDrawSlope, gammaincinv=inc.GammaIncInv,
        gammainccinv=inc.GammaIncCInv, betaincinv=inc.BetaIncInv, betainccinv=inc.BetaIncCInv,
    ),
    ar.Sgn: Meaning(_sgn),
    ar.Sqr: Meaning(_sqr),
    ar.Inv: Meaning(_inv),
    ar.Clip: Meaning(_clip),
    ar.Cast: Meaning(_cast, raw=True),
    cmp.Switch: Meaning(_switch, raw=True),
    cmp.Lt: Meaning(_comparison("lt"), raw=True),
    cmp.Le: Meaning(_comparison("le"), raw=True),
    cmp.Gt: Meaning(_comparison("lt", swap=True), raw=True),
    cmp.Ge: Meaning(_comparison("le", swap=True), raw=True),
    cmp.Eq: Meaning(_comparison("eq"), raw=True),
    cmp.Neq: Meaning(_comparison("ne"), raw=True),
    cmp.Invert: Meaning(_invert),
    mt.Deg2Rad: Meaning(lambda x: x * (pi / 180)),
    mt.Rad2Deg: Meaning(lambda x: x * (180 / pi)),
    mt.LogAddExp: Meaning(_logaddexp),
    rnd.RoundHalfAwayFromZero: Meaning(_half_away),
    qu.Quantize: Meaning(_quantize, raw=True),
    qu.Dequantize: Meaning(_dequantize, raw=True),
    act.Sigmoid: Meaning(_sigmoid),
    act.Softplus: Meaning(_softplus),
    act.Step: Meaning(_step),
    act.Relu: Meaning(_relu),
    act.LeakyRelu: Meaning(_leaky_relu),
    act.Elu: Meaning(_elu),
    act.Gelu: Meaning(_instruction("gelu")),
    act.GeluSlope: Meaning(_instruction("gelu_slope")),
    act.GeluTanh: Meaning(_gelu_tanh),
    sp.Logit: Meaning(_logit),
    sp.ErfcxSlope: Meaning(_erfcx_slope),
    sp.LogErfc: Meaning(_log_erfc),
    sp.LogHalfErfc: Meaning(_log_half_erfc),
    sp.XLog1pY: Meaning(_xlog1py),
    sp.XLogX: Meaning(_xlogx),
    sp.XLogY: Meaning(_xlogy),
}  # fmt: skip
