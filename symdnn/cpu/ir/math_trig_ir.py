"""sin, cos and tan of float32 as LLVM IR: up to :data:`MAX_FLOAT32_ARGUMENT` computed in float32.

With q the nearest number of quarter turns, r = x - q pi/2 takes three fmas, with pi/2 as the sum of
three floats (Cody, Waite 1980). The first fma is exact, since no bit of its operands is worth less
than 2^-23. So r is right to two units in its last place also where it is near zero. Then come
polynomials in r^2, minimax on abs(r) <= pi/4. Errors of sin and cos are below 2 ulp, of tan below
4 ulp.

Larger arguments need more bits of 2/pi (:mod:`symdnn.cpu.ir.math_inverse_trig_ir`), which takes
four times as long. They are rare. A vector function checks whether there is any, and else returns
the float32 results. LLVM's vectoriser takes it for the vector variant of a scalar function.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import pi

from symdnn.cpu.ir.math_single_ir import ROUND, fma, fused, horner, single

__all__ = ["MAX_FLOAT32_ARGUMENT", "TRIGONOMETRIC", "ALL_ARGUMENTS", "trigonometric_definitions"]

#: Up to this argument q is right: the error of 2/pi in float32 adds up to less than 0.01 turns.
MAX_FLOAT32_ARGUMENT = 2.0**17
_HALF_PI = ("0x1.921fb6p+0", "-0x1.777a5cp-25", "-0x1.ee59dap-50")
#: (sin(r) / r - 1) / r^2 and (cos(r) - 1 + r^2 / 2) / r^4 in r^2, highest coefficient first.
_SIN = ("-0x1.9951eep-13", "0x1.110774p-7", "-0x1.555546p-3")
_COS = ("0x1.99e80cp-16", "-0x1.6c0c28p-10", "0x1.55554ap-5", "-0x1p-1", "0x1p+0")
#: Vector widths that loops may have.
_WIDTHS = (4, 8, 16)

#: The functions here, and the names of their float64 versions, which take any argument.
TRIGONOMETRIC = ("sin", "cos", "tan")
ALL_ARGUMENTS = {name: f"{name}_whole" for name in TRIGONOMETRIC}


def _reduced() -> list[str]:
    """Lines for ``%sin`` and ``%cos`` of r, and ``%quarters``, q in the lowest bits."""
    first, second, third = (single(-float.fromhex(part)) for part in _HALF_PI)
    return [
        fma("%k", "%x", single(2 / pi), single(ROUND)),
        "%quarters = bitcast float %k to i32",
        f"%q = fsub float %k, {single(ROUND)}",
        fused("%r0", "%q", first, "%x"),
        fused("%r1", "%q", second, "%r0"),
        fused("%r", "%q", third, "%r1"),
        "%z = fmul float %r, %r",
        *horner(_SIN, "%z", "%s"),
        "%rz = fmul float %r, %z",
        fma("%sin", "%rz", "%s", "%r"),
        *horner(_COS, "%z", "%cos"),
    ]


def _shifted_sine(more: int) -> list[str]:
    """Lines for ``%near``, the sine of ``more`` quarter turns and ``%x``."""
    return [
        *_reduced(),
        f"%turned = add i32 %quarters, {more}",
        "%odd0 = and i32 %turned, 1",
        "%odd = icmp ne i32 %odd0, 0",
        "%size = select i1 %odd, float %cos, float %sin",
        "%half = and i32 %turned, 2",
        "%sign = shl i32 %half, 30",
        "%size_bits = bitcast float %size to i32",
        "%near_bits = xor i32 %size_bits, %sign",
        "%near = bitcast i32 %near_bits to float",
    ]


_KEEP_SIGN_OF_ZERO = [
    f"%zero = fcmp oeq float %x, {single(0.0)}",
    "%close = select i1 %zero, float %x, float %near",
]
_FLOAT32_LINES = {
    "sin": [*_shifted_sine(0), *_KEEP_SIGN_OF_ZERO],
    "cos": [*_shifted_sine(1), "%close = fadd float %near, 0.0"],
    "tan": [
        *_reduced(),
        "%odd0 = and i32 %quarters, 1",
        "%odd = icmp ne i32 %odd0, 0",
        "%minus = fneg float %cos",
        "%above = select i1 %odd, float %minus, float %sin",
        "%below = select i1 %odd, float %sin, float %cos",
        "%near = fdiv float %above, %below",
        *_KEEP_SIGN_OF_ZERO,
    ],
}


def _variants(name: str) -> str:
    """The attribute that names the vector variants of a function to LLVM's vectoriser."""
    found = [f"_ZGV_LLVM_N{w}vv_s_{name}_far(s_{name}_far_{w})" for w in _WIDTHS]
    return f'"vector-function-abi-variant"="{",".join(found)}"'


def _with_fallback(name: str) -> list[str]:
    """The function that returns ``%close`` up to the limit, else the float64 result."""
    return [
        f"define internal float @s_{name}_far(float %x, float %close) noinline nounwind "
        f"memory(none) {_variants(name)} {{",
        "%a = call float @llvm.fabs.f32(float %x)",
        f"%far = fcmp ogt float %a, {single(MAX_FLOAT32_ARGUMENT)}",
        "br i1 %far, label %slow, label %fast",
        "slow:",
        f"%y = call float @s_{ALL_ARGUMENTS[name]}(float %x)",
        "ret float %y",
        "fast:",
        "ret float %close",
        "}",
    ]


def _with_fallback_vector(name: str, width: int) -> list[str]:
    """Its vector variant: if any lane is beyond the limit, those lanes are computed one by one."""
    v, mask = f"<{width} x float>", f"<{width} x i1>"
    limit = f"<{', '.join([f'float {single(MAX_FLOAT32_ARGUMENT)}'] * width)}>"
    return [
        f"declare {v} @llvm.fabs.v{width}f32({v})",
        f"declare i1 @llvm.vector.reduce.or.v{width}i1({mask})",
        f"define internal {v} @s_{name}_far_{width}({v} %x, {v} %close) noinline nounwind "
        "memory(none) #0 {",
        "entry:",
        f"%a = call {v} @llvm.fabs.v{width}f32({v} %x)",
        f"%far = fcmp ogt {v} %a, {limit}",
        f"%some = call i1 @llvm.vector.reduce.or.v{width}i1({mask} %far)",
        "br i1 %some, label %lane, label %fast",
        "lane:",
        "%i = phi i64 [0, %entry], [%i_next, %lane]",
        f"%all = phi {v} [%close, %entry], [%all_next, %lane]",
        f"%xi = extractelement {v} %x, i64 %i",
        f"%ci = extractelement {v} %close, i64 %i",
        f"%fi = extractelement {mask} %far, i64 %i",
        # The scalar function @s_{name}_far would be replaced by its vector variant: a recursion.
        f"%wi = call float @s_{ALL_ARGUMENTS[name]}(float %xi)",
        "%yi = select i1 %fi, float %wi, float %ci",
        f"%all_next = insertelement {v} %all, float %yi, i64 %i",
        "%i_next = add nuw nsw i64 %i, 1",
        f"%more = icmp slt i64 %i_next, {width}",
        "br i1 %more, label %lane, label %done",
        "done:",
        f"ret {v} %all_next",
        "fast:",
        f"ret {v} %close",
        "}",
    ]


def trigonometric_definitions(names: Iterable[str]) -> list[str]:
    """The IR of these functions, without their float64 versions; empty without any."""
    wanted = [name for name in TRIGONOMETRIC if name in set(names)]
    if not wanted:
        return []
    lines = []
    for name in wanted:
        lines += [
            f"define internal float @s_{name}(float %x) alwaysinline {{",
            *_FLOAT32_LINES[name],
            f"%y = call float @s_{name}_far(float %x, float %close)",
            "ret float %y",
            "}",
            *_with_fallback(name),
            *(line for width in _WIDTHS for line in _with_fallback_vector(name, width)),
        ]
    used = [f"ptr @s_{name}_far_{width}" for name in wanted for width in _WIDTHS]
    lines.append(
        f"@llvm.compiler.used = appending global [{len(used)} x ptr] [{', '.join(used)}], "
        'section "llvm.metadata"'
    )
    # A module must not declare the same function twice.
    return list(dict.fromkeys(line for line in lines if line.startswith("declare"))) + [
        line for line in lines if not line.startswith("declare")
    ]
