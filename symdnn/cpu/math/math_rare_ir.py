"""Functions whose fast code is right for nearly all arguments, as LLVM IR that LLVM vectorises.

The fast code gives NaN for the arguments that it cannot do. A function ``..._rare`` of the
arguments and the fast results returns these unless there is a NaN among them; such lanes are then
computed one by one, by slow code. LLVM's vectoriser takes its vector functions for the variants of
the scalar one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

__all__ = ["kept_variants", "rare"]

#: Vector widths that loops may have.
_WIDTHS = {"float": (4, 8, 16), "double": (2, 4, 8)}


def rare(name: str, t: str, slow: str, count: int = 1) -> list[str]:
    """Lines of ``name`` and its variants, of ``count`` arguments of type ``t`` and the fast result.

    ``slow`` is the lane's result in terms of ``%x0`` and so on: ``call float @f(float %x0)``.
    """
    names = [*(f"%x{i}" for i in range(count)), "%close"]
    variants = [
        f"_ZGV_LLVM_N{w}{'v' * len(names)}_{name}({name}_{w})" for w in _WIDTHS[t]
    ]  # fmt: skip
    return [
        f"define internal {t} @{name}({_typed(t, names)}) noinline nounwind memory(none) "
        f'"vector-function-abi-variant"="{",".join(variants)}" {{',
        f"%far = fcmp uno {t} %close, %close",
        "br i1 %far, label %slow, label %fast",
        "slow:",
        f"%y = {slow}",
        f"ret {t} %y",
        "fast:",
        f"ret {t} %close",
        "}",
        *(line for w in _WIDTHS[t] for line in _variant(name, t, w, names, slow)),
    ]


def _typed(t: str, names: Sequence[str]) -> str:
    return ", ".join(f"{t} {n}" for n in names)


def _variant(name: str, t: str, width: int, names: Sequence[str], slow: str) -> list[str]:
    v, mask = f"<{width} x {t}>", f"<{width} x i1>"
    whole = [f"{n}s" for n in names]
    return [
        f"declare i1 @llvm.vector.reduce.or.v{width}i1({mask})",
        f"define internal {v} @{name}_{width}({_typed(v, whole)}) noinline nounwind "
        "memory(none) #0 {",
        "entry:",
        f"%far = fcmp uno {v} %closes, %closes",
        f"%some = call i1 @llvm.vector.reduce.or.v{width}i1({mask} %far)",
        "br i1 %some, label %lane, label %fast",
        "lane:",
        "%i = phi i64 [0, %entry], [%i_next, %lane]",
        f"%all = phi {v} [%closes, %entry], [%all_next, %lane]",
        *(f"{n} = extractelement {v} {n}s, i64 %i" for n in names),
        f"%far_here = extractelement {mask} %far, i64 %i",
        # The scalar function would be replaced by its vector variant: a recursion.
        f"%y = {slow}",
        f"%chosen = select i1 %far_here, {t} %y, {t} %close",
        f"%all_next = insertelement {v} %all, {t} %chosen, i64 %i",
        "%i_next = add nuw nsw i64 %i, 1",
        f"%more = icmp slt i64 %i_next, {width}",
        "br i1 %more, label %lane, label %done",
        "done:",
        f"ret {v} %all_next",
        "fast:",
        f"ret {v} %closes",
        "}",
    ]


def kept_variants(lines: Iterable[str]) -> list[str]:
    """These lines, each declaration once, and a list that keeps the variants among them."""
    lines = list(lines)
    found = re.findall(r"define internal <\d+ x \w+> @(\w+_(?:rare|lanes)_\d+)\(", "\n".join(lines))
    if not found:
        return lines
    kept = ", ".join(f"ptr @{name}" for name in found)
    declared = dict.fromkeys(line for line in lines if line.startswith("declare"))
    return [
        *declared,
        *(line for line in lines if not line.startswith("declare")),
        f"@llvm.compiler.used = appending global [{len(found)} x ptr] [{kept}], "
        'section "llvm.metadata"',
    ]
