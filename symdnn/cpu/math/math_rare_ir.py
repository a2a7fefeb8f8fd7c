"""Functions whose fast code is right for nearly all arguments, as LLVM IR that LLVM vectorises.

The fast code gives NaN for the arguments that it cannot do. A function ``..._rare`` of the
arguments and the fast results returns these unless there is a NaN among them; such lanes are then
computed one by one, by slow code. LLVM's vectoriser takes its vector functions for the variants of
the scalar one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from symdnn.cpu.math.lanes_ir import Text

#: Vector widths that loops may have.
_WIDTHS = {"float": (4, 8, 16), "double": (2, 4, 8)}


class Rare:
    """The function ``name`` and its variants, of ``count`` arguments and the fast result.

    ``slow`` is the lane's result in terms of ``%x0`` and so on: ``call float @f(float %x0)``.
    """

    def __init__(
        self, name: str, t: str, slow: str, count: int = 1, *, declared: Sequence[str] = (),
        called: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.name, self._t, self._slow = name, t, slow
        self._names = [*(f"%x{i}" for i in range(count)), "%close"]
        self._declared, self._called = declared, called

    def on(self, width: int) -> Text:
        """The text, of one number and all vectors of them; for formulas on lanes of one width."""
        name, t, names, widths = self.name, self._t, self._names, _WIDTHS[self._t]
        if width > 1:
            declared = f"declare i1 @llvm.vector.reduce.or.v{width}i1(<{width} x i1>)"
            lines = _variant(f"{name}_on", t, width, names, self._slow)
            return Text(lines, [declared, *self._declared], self._called)
        listed = (f"_ZGV_LLVM_N{w}{'v' * len(names)}_{name}({name}_{w})" for w in widths)
        lines = [
            f"define internal {t} @{name}({_typed(t, names)}) noinline nounwind memory(none) "
            f'"vector-function-abi-variant"="{",".join(listed)}" {{',
            f"%far = fcmp uno {t} %close, %close",
            "br i1 %far, label %slow, label %fast",
            "slow:",
            f"%y = {self._slow}",
            f"ret {t} %y",
            "fast:",
            f"ret {t} %close",
            "}",
            *(line for w in widths for line in _variant(name, t, w, names, self._slow)),
        ]
        any_of = [f"declare i1 @llvm.vector.reduce.or.v{w}i1(<{w} x i1>)" for w in widths]
        return Text(lines, [*any_of, *self._declared], self._called)


def _typed(t: str, names: Sequence[str]) -> str:
    return ", ".join(f"{t} {n}" for n in names)


def _variant(name: str, t: str, width: int, names: Sequence[str], slow: str) -> list[str]:
    v, mask = f"<{width} x {t}>", f"<{width} x i1>"
    whole = [f"{n}s" for n in names]
    return [
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


def kept_variants(lines: Sequence[str]) -> list[str]:
    """A list that keeps the functions with variants among these lines, and the variants.

    Nothing else uses the latter. Of a function that is only called LLVM would take away an argument
    that is always the same, and so its variants. Nothing without any.
    """
    text = "\n".join(lines)
    found = re.findall(r"define internal <\d+ x \w+> @(\w+_(?:rare|lanes)_\d+)\(", text)
    found += re.findall(r"define internal \w+ @(\w+)\(.*vector-function-abi-variant", text)
    kept = ", ".join(f"ptr @{name}" for name in found)
    used = f"@llvm.compiler.used = appending global [{len(found)} x ptr] [{kept}]"
    return [f'{used}, section "llvm.metadata"'] if found else []
