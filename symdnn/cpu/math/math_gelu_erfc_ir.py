"""erfc, gelu and gelu's derivative in float32 as LLVM IR: one exponential and one division each.

With a = abs(x), the upper tail of the normal distribution is Q(a) = exp(-a^2 / 2) R(a). R falls
from 1/2 to 0.03; it is a polynomial in y = a / (a + k), divided by a + k. The other two functions
have factors of the same form.

``erfc``: exp(-a^2) times such a factor for x >= 0; erfc(-x) = 2 - erfc(x).
``gelu``: x times the normal distribution function: max(x, 0) - a Q(a).
``gelu_slope``: gelu's derivative. For x < 0 it is exp(-a^2 / 2) (1 - a / z) times a polynomial in
1 / (a + k), where its zero is at a = z = 0.75; slope(-x) = 1 - slope(x).

``exp``: 2^n exp(-s r), where r = a^2 + n ln(2) / s and abs(s r) <= ln(2) / 2. The square a^2 is not
rounded: n times ln(2) / s, cut to 7 bits, is exact, and an fma adds it to a^2. The rest of ln(2) is
applied as a small multiple of the rounded square and of r, since n is about -a^2 s / ln 2.

Errors are below 4 ulp down to the smallest denormal number, for the derivative also near its zero.
"""

from __future__ import annotations

from math import log

from symdnn.cpu.math.math_single_ir import fma, fused, horner, single

__all__ = ["GELU_ERFC"]

#: (exp(r) - 1) / r for abs(r) <= ln(2) / 2, highest degree first. All polynomials here are minimax.
_EXP = (
    "0x1.6a3d08p-10", "0x1.123856p-7", "0x1.5558bep-5", "0x1.555494p-3", "0x1.fffffcp-2", "0x1p+0",
)  # fmt: skip
#: Q(a) (a + k) / exp(-a^2 / 2) in y - 1/2 for 0 <= a <= 14.6; k.
_GELU = (
    "0x1.d8f4dcp-4", "0x1.0fe682p-4", "-0x1.119f2cp-2", "0x1.3890a4p-5", "0x1.33279ap-1",
    "-0x1.364f82p+0", "0x1.6968eap+0", "-0x1.2d2708p+0", "0x1.80268cp-1",
)  # fmt: skip
_GELU_K = 3.75
#: erfc(a) exp(a^2) (a + k) in y - 1/2 for 0 <= a <= 10.35; k.
_ERFC = (
    "0x1.4d3ffep-3", "0x1.7b2ef4p-4", "-0x1.8209a4p-2", "0x1.d246e4p-5", "0x1.affecap-1",
    "-0x1.b5e3fap+0", "0x1.fea08ep+0", "-0x1.a9c052p+0", "0x1.0f9e00p+0",
)  # fmt: skip
_ERFC_K = 2.65
#: gelu_slope(-a) / (exp(-a^2 / 2) (1 - a / z)) in 1 / (a + k) - c for 0 <= a <= 14.6; k and c.
_SLOPE = (
    "-0x1.3d83bep+11", "-0x1.bdc88ap+9", "0x1.95bca4p+7", "0x1.ed8a2ep+7", "0x1.97f0e8p+6",
    "0x1.bd1148p+4", "0x1.6d0a7ep+2", "0x1.d956c4p-1", "0x1.76d02ap-2",
)  # fmt: skip
_SLOPE_K, _SLOPE_C = 4.5, 0.140625
#: 1 / z as the sum of two float32, where z is the zero of the slope.
_ZERO_HIGH, _ZERO_LOW = float.fromhex("0x1.54851ap+0"), 2.1596791910383217e-08
#: From these a on, gelu(-a) (and the slope) and erfc(a) round to zero.
_GELU_IS_ZERO, _ERFC_IS_ZERO = 14.625, 10.3

#: A sum with _ROUND has n + 192 in its lowest bits, which shifted by 23 are the exponent of
#: 2^(n + _EXPONENT_SHIFT). _ROUND has so few bits that its product with a number of 7 bits is
#: exact. n is between -156 and 0.
_ROUND, _EXPONENT_SHIFT = float((1 << 23) + 192), 65
#: ln 2 in 7 bits, and the relative error of that.
_LN2_7_BITS = 89 / 128
_LN2_ERROR = log(2) / _LN2_7_BITS - 1
#: gelu's y is scaled by 2^8, so that it keeps its bits where a is denormal.
_Y_SHIFT = 8


def _magnitude(end: float) -> list[str]:
    """Lines for ``%a``, the magnitude of ``%x`` clamped to ``end``."""
    return [
        "%a0 = call float @llvm.fabs.f32(float %x)",
        f"%far = fcmp ogt float %a0, {single(end)}",
        f"%a = select i1 %far, float {single(end)}, float %a0",
    ]


def _times_exp(share: float) -> list[str]:
    """Lines for ``%power`` = 2^(n + 65) and ``%f`` = ``%p`` exp(-share r).

    Their product is 2^65 ``%p`` exp(-share a^2). ``%p`` is multiplied last, so that only one
    rounding matters.
    """
    step, degree = _LN2_7_BITS / share, len(_EXP)
    scale = -share * (1 + _LN2_ERROR)
    scaled = [(float.fromhex(c) * scale ** (degree - i)).hex() for i, c in enumerate(_EXP)]
    return [
        "%h = fmul float %a, %a",
        fma("%k", "%h", single(-share / log(2)), single(_ROUND)),
        fused("%m", "%k", single(step), single(-_ROUND * step)),
        fused("%r0", "%a", "%a", "%m"),
        fma("%r", "%h", single(-_LN2_ERROR / (1 + _LN2_ERROR)), "%r0"),
        "%k_bits = bitcast float %k to i32",
        "%power_bits = shl i32 %k_bits, 23",
        "%power = bitcast i32 %power_bits to float",
        *horner(scaled, "%r", "%w"),
        "%pr = fmul float %p, %r",
        fma("%f", "%pr", "%w", "%p"),
    ]


def _inverse(k: float) -> list[str]:
    """Lines for ``%inverse`` = 1 / (``%a`` + k)."""
    return [
        f"%u = fadd float %a, {single(k)}",
        f"%inverse = fdiv float {single(1.0)}, %u",
    ]


#: The end of a function: it returns ``%left`` for a negative ``%x``, else ``%right``.
_RETURN_BY_SIGN = [
    f"%negative = fcmp olt float %x, {single(0.0)}",
    "%result = select i1 %negative, float %left, float %right",
    "ret float %result",
    "}",
]

#: The IR of each function; ``s_gelu`` and so on. Polynomials are scaled by 2^-65, to cancel
#: :data:`_EXPONENT_SHIFT`.
GELU_ERFC = {
    "erfc": [
        "define internal float @s_erfc(float %x) alwaysinline {",
        *_magnitude(_ERFC_IS_ZERO),
        *_inverse(_ERFC_K),
        fma("%v", "%a", "%inverse", single(-0.5)),
        *horner(_ERFC, "%v", up=-_EXPONENT_SHIFT),
        *_times_exp(1.0),
        "%low = fmul float %power, %inverse",
        "%minus = fneg float %f",
        "%right = fmul float %f, %low",
        fused("%left", "%minus", "%low", single(2.0)),
        *_RETURN_BY_SIGN,
    ],
    "gelu": [
        "define internal float @s_gelu(float %x) alwaysinline {",
        *_magnitude(_GELU_IS_ZERO),
        fma("%u", "%a", single(2.0**-_Y_SHIFT), single(_GELU_K * 2.0**-_Y_SHIFT)),
        "%y = fdiv float %a, %u",
        fma("%v", "%y", single(2.0**-_Y_SHIFT), single(-0.5)),
        *horner(_GELU, "%v", up=-_EXPONENT_SHIFT - _Y_SHIFT),
        *_times_exp(0.5),
        "%low = fmul float %power, %y",
        "%minus = fneg float %f",
        f"%negative = fcmp olt float %x, {single(0.0)}",
        f"%high = select i1 %negative, float {single(0.0)}, float %x",
        fused("%result", "%minus", "%low", "%high"),
        "ret float %result",
        "}",
    ],
    "gelu_slope": [
        "define internal float @s_gelu_slope(float %x) alwaysinline {",
        *_magnitude(_GELU_IS_ZERO),
        *_inverse(_SLOPE_K),
        f"%v = fsub float %inverse, {single(_SLOPE_C)}",
        *horner(_SLOPE, "%v", up=-_EXPONENT_SHIFT),
        *_times_exp(0.5),
        fused("%d0", "%a", single(-_ZERO_HIGH), single(1.0)),
        fma("%d", "%a", single(-_ZERO_LOW), "%d0"),
        "%low = fmul float %power, %d",
        "%minus = fneg float %f",
        "%left = fmul float %f, %low",
        fused("%right", "%minus", "%low", single(1.0)),
        *_RETURN_BY_SIGN,
    ],
}
