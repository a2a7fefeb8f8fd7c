"""Infinities that LLVM does not know, in the programs of extremes.

``where(isnan(x), -inf, x)`` is never NaN. Where LLVM knows that of all elements, it makes of their
extreme something else than it finds vectors for. So such an infinity is a register of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from symdnn.cpu.ir.scalar_ir import VALUES
from symdnn.cpu.math.lanes_ir import literal
from symdnn.ops.nest.nest import Fold

__all__ = ["defined", "hidden", "unknown_infinities"]

_INTEGERS = {"float": "int32", "double": "int64"}


def unknown_infinities(fold: Fold) -> dict[str, str]:
    """Registers for the infinities that a select of an extreme's program may choose.

    Each is named by the constant and its type.
    """
    kinds = {VALUES[s.dtype] for s in fold.program.body if s.name == "select"} & set(_INTEGERS)
    if not any(m.name in ("max", "min") for m in fold.monoids):
        return {}
    values = {"inf": float("inf"), "minus_inf": -float("inf")}
    return {
        f"{t} {literal(v, t)}": f"{t} %{name}_{t}"
        for t in sorted(kinds)
        for name, v in values.items()
    }


def defined(unknown: Mapping[str, str]) -> list[str]:
    """Lines that make these registers, before a loop."""
    lines = []
    for register in unknown.values():
        t, name = register.split()
        value = -np.inf if "minus" in name else np.inf
        bits = int(np.array(value, "float32" if t == "float" else "float64").view(_INTEGERS[t]))
        i = f"i{_INTEGERS[t][3:]}"
        lines.append(f'{name}_bits = call {i} asm "", "=r,0"({i} {bits})')
        lines.append(f"{name} = bitcast {i} {name}_bits to {t}")
    return lines


def hidden(lines: Iterable[str], unknown: Mapping[str, str]) -> list[str]:
    """Lines of a program whose selects have these registers."""
    found = list(lines)
    for constant, register in unknown.items():
        found = [v.replace(constant, register) if " = select " in v else v for v in found]
    return found
