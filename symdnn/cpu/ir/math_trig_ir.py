"""float32's sin, cos and tan as LLVM IR: in float32 up to :data:`LIMIT`, beyond it in float64.

With q the nearest number of quarter turns, r = x - q pi/2 is three fmas: pi/2 as the sum of three
floats (Cody, Waite 1980), of which the first leaves no rounding behind, since all that is
subtracted has places down to 2^-23 only. So r is right to two units in its last place also where
it is near zero. Then come polynomials in r^2, minimax on abs(r) <= pi/4. sin and cos are off by
less than 2 ulp, tan by less than 4.

Larger arguments need some of the bits of 2/pi (:mod:`symdnn.cpu.ir.math_inverse_trig_ir`), which
takes four times as long. They are rare: a function of a vector looks whether there is one and else
gives back what it was given. To LLVM's vectoriser it is a variant of one of a scalar.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import pi

from symdnn.cpu.ir.math_single_ir import ROUND, fma, fused, horner, single

__all__ = ["LIMIT", "TURNS", "WHOLE", "turn_definitions"]

#: Up to here q is right: 2/pi as a float is off by less than a hundredth of a turn in all.
LIMIT = 2.0**17
_HALF_PI = ("0x1.921fb6p+0", "-0x1.777a5cp-25", "-0x1.ee59dap-50")
#: (sin(r) / r - 1) / r^2 and (cos(r) - 1 + r^2 / 2) / r^4 in r^2, highest coefficient first.
_SIN = ("-0x1.9951eep-13", "0x1.110774p-7", "-0x1.555546p-3")
_COS = ("0x1.99e80cp-16", "-0x1.6c0c28p-10", "0x1.55554ap-5", "-0x1p-1", "0x1p+0")
#: Vectors that loops may have.
_WIDTHS = (4, 8, 16)

#: The functions here, and the names under which those of float64 serve for all arguments.
TURNS = ("sin", "cos", "tan")
WHOLE = {name: f"{name}_whole" for name in TURNS}


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


def _wave(more: int) -> list[str]:
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


_KEEPS_ZERO = [  # with its sign
    f"%zero = fcmp oeq float %x, {single(0.0)}",
    "%close = select i1 %zero, float %x, float %near",
]
_NEAR = {
    "sin": [*_wave(0), *_KEEPS_ZERO],
    "cos": [*_wave(1), "%close = fadd float %near, 0.0"],
    "tan": [
        *_reduced(),
        "%odd0 = and i32 %quarters, 1",
        "%odd = icmp ne i32 %odd0, 0",
        "%minus = fneg float %cos",
        "%above = select i1 %odd, float %minus, float %sin",
        "%below = select i1 %odd, float %sin, float %cos",
        "%near = fdiv float %above, %below",
        *_KEEPS_ZERO,
    ],
}


def _variants(name: str) -> str:
    """The attribute that tells the vectoriser of functions of vectors."""
    found = [f"_ZGV_LLVM_N{w}vv_s_{name}_far(s_{name}_far_{w})" for w in _WIDTHS]
    return f'"vector-function-abi-variant"="{",".join(found)}"'


def _far(name: str) -> list[str]:
    """The second argument, which is the result up to the limit, else that in float64."""
    return [
        f"define internal float @s_{name}_far(float %x, float %close) noinline nounwind "
        f"memory(none) {_variants(name)} {{",
        "%a = call float @llvm.fabs.f32(float %x)",
        f"%far = fcmp ogt float %a, {single(LIMIT)}",
        "br i1 %far, label %slow, label %fast",
        "slow:",
        f"%y = call float @s_{WHOLE[name]}(float %x)",
        "ret float %y",
        "fast:",
        "ret float %close",
        "}",
    ]


def _far_vector(name: str, width: int) -> list[str]:
    """The same of a vector: one look at all, and where there is one too large, one by one."""
    v, mask = f"<{width} x float>", f"<{width} x i1>"
    limit = f"<{', '.join([f'float {single(LIMIT)}'] * width)}>"
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
        # Not the function of a scalar: the vectoriser would make this function call itself.
        f"%wi = call float @s_{WHOLE[name]}(float %xi)",
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


def turn_definitions(names: Iterable[str]) -> list[str]:
    """The IR of these functions, without those of float64 that they call; [] of none."""
    wanted = [name for name in TURNS if name in set(names)]
    if not wanted:
        return []
    lines = []
    for name in wanted:
        lines += [
            f"define internal float @s_{name}(float %x) alwaysinline {{",
            *_NEAR[name],
            f"%y = call float @s_{name}_far(float %x, float %close)",
            "ret float %y",
            "}",
            *_far(name),
            *(line for width in _WIDTHS for line in _far_vector(name, width)),
        ]
    kept = [f"ptr @s_{name}_far_{width}" for name in wanted for width in _WIDTHS]
    lines.append(
        f"@llvm.compiler.used = appending global [{len(kept)} x ptr] [{', '.join(kept)}], "
        'section "llvm.metadata"'
    )
    # A declaration of the same function may stand in a module once.
    return list(dict.fromkeys(line for line in lines if line.startswith("declare"))) + [
        line for line in lines if not line.startswith("declare")
    ]
