"""float32's erfc, gelu and gelu's slope as LLVM IR: one exponential and one division each.

With a = abs(x) what is left beyond a of the normal distribution is Q(a) = exp(-a^2 / 2) R(a), where
R falls from 1/2 to 0.03: a polynomial in y = a / (a + k) divided by a + k. The others are alike.

``erfc``: exp(-a^2) times such a factor for x >= 0; of -x it is 2 less that.
``gelu``: x times the distribution's value at x, max(x, 0) - a Q(a).
``gelu_slope``: exp(-a^2 / 2) (1 - a / z) times a polynomial in 1 / (a + k) for x < 0, z = 0.75
where it changes its sign; of -x it is 1 less that.

``exp``: 2^n exp(-s r), where a^2 + n ln(2) / s = r, abs(s r) <= ln(2) / 2. a^2 is not rounded: n
times a number of 7 bits is exact, an fma adds it, and what the 7 bits lack is, n being about
-a^2 s / ln 2, a small part of the (rounded) square and of r itself.

Errors are below 4 ulp down to the last denormal number, for the slope also beside its zero.
"""

from __future__ import annotations

from math import log

from symdnn.cpu.ir.math_single_ir import fma, fused, horner, single

__all__ = ["BELL"]

#: (exp(r) - 1) / r for abs(r) <= ln(2) / 2, highest coefficient first: minimax, as those below.
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
#: 1 / z, where z is where the slope is zero, as the sum of two floats.
_ZERO_HIGH, _ZERO_LOW = float.fromhex("0x1.54851ap+0"), 2.1596791910383217e-08
#: From here on the results for -a round to zero.
_END, _ERFC_END = 14.625, 10.3

#: Adding it leaves n + 192 in the lowest bits, 23 places below the exponent of 2^(n + 65). It has
#: so few bits that its product with 7 others is exact; n is between -156 and 0.
_SHIFT, _UP = float((1 << 23) + 192), 65
_LN2 = 89 / 128
#: gelu's y is made 2^8 times too large, so that it has bits left where a is denormal.
_Y_UP = 8
#: What the 7 bits of ln 2 lack.
_REST = log(2) / _LN2 - 1


def _size(end: float) -> list[str]:
    """Lines for ``%a``, the size of ``%x`` up to an end."""
    return [
        "%a0 = call float @llvm.fabs.f32(float %x)",
        f"%far = fcmp ogt float %a0, {single(end)}",
        f"%a = select i1 %far, float {single(end)}, float %a0",
    ]


def _falling(share: float) -> list[str]:
    """Lines for ``%power`` = 2^(n + 65) and ``%f`` = ``%p`` exp(-share r), of which the product is
    2^65 ``%p`` exp(-share a^2).

    ``%p`` is multiplied last, so that there is one rounding of weight.
    """
    step, degree = _LN2 / share, len(_EXP)
    scale = -share * (1 + _REST)
    scaled = [(float.fromhex(c) * scale ** (degree - i)).hex() for i, c in enumerate(_EXP)]
    return [
        "%h = fmul float %a, %a",
        fma("%k", "%h", single(-share / log(2)), single(_SHIFT)),
        fused("%m", "%k", single(step), single(-_SHIFT * step)),
        fused("%r0", "%a", "%a", "%m"),
        fma("%r", "%h", single(-_REST / (1 + _REST)), "%r0"),
        "%k_bits = bitcast float %k to i32",
        "%power_bits = shl i32 %k_bits, 23",
        "%power = bitcast i32 %power_bits to float",
        *horner(scaled, "%r", "%w"),
        "%pr = fmul float %p, %r",
        fma("%f", "%pr", "%w", "%p"),
    ]


def _inverse(k: float) -> list[str]:
    """Lines for ``%inverse`` = 1 / (a + k)."""
    return [
        f"%u = fadd float %a, {single(k)}",
        f"%inverse = fdiv float {single(1.0)}, %u",
    ]


#: The end of a function that is ``%left`` below zero, else ``%right``.
_CHOICE = [
    f"%negative = fcmp olt float %x, {single(0.0)}",
    "%result = select i1 %negative, float %left, float %right",
    "ret float %result",
    "}",
]

#: Each function's text; ``s_gelu`` and so on. Polynomials are made 2^65 times too small.
BELL = {
    "erfc": [
        "define internal float @s_erfc(float %x) alwaysinline {",
        *_size(_ERFC_END),
        *_inverse(_ERFC_K),
        fma("%v", "%a", "%inverse", single(-0.5)),
        *horner(_ERFC, "%v", up=-_UP),
        *_falling(1.0),
        "%low = fmul float %power, %inverse",
        "%minus = fneg float %f",
        "%right = fmul float %f, %low",
        fused("%left", "%minus", "%low", single(2.0)),
        *_CHOICE,
    ],
    "gelu": [
        "define internal float @s_gelu(float %x) alwaysinline {",
        *_size(_END),
        fma("%u", "%a", single(2.0**-_Y_UP), single(_GELU_K * 2.0**-_Y_UP)),
        "%y = fdiv float %a, %u",
        fma("%v", "%y", single(2.0**-_Y_UP), single(-0.5)),
        *horner(_GELU, "%v", up=-_UP - _Y_UP),
        *_falling(0.5),
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
        *_size(_END),
        *_inverse(_SLOPE_K),
        f"%v = fsub float %inverse, {single(_SLOPE_C)}",
        *horner(_SLOPE, "%v", up=-_UP),
        *_falling(0.5),
        fused("%d0", "%a", single(-_ZERO_HIGH), single(1.0)),
        fma("%d", "%a", single(-_ZERO_LOW), "%d0"),
        "%low = fmul float %power, %d",
        "%minus = fneg float %f",
        "%left = fmul float %f, %low",
        fused("%right", "%minus", "%low", single(1.0)),
        *_CHOICE,
    ],
}
