"""The IR of functions that kernels call, by their names: formulas and what these call in turn."""

from __future__ import annotations

from collections.abc import Iterable

from symdnn.cpu.ir.division_ir import REMAINDERS
from symdnn.cpu.ir.narrow_ir import conversion
from symdnn.cpu.math.functions_ir import FORMULAS
from symdnn.cpu.math.lanes_ir import Formula, LaneFormula, Text
from symdnn.cpu.math.math_rare_ir import Rare, kept_variants

_FORMULAS: dict[str, Formula | Rare] = {**FORMULAS, **{f.name: f for f in REMAINDERS}}


def _texts(names: Iterable[str]) -> list[Text]:
    """Of the functions and of what they call, each once; ``f_exp_on_8`` is on as many lanes."""
    found: dict[str, Text] = {}
    rest = sorted(set(names), reverse=True)
    while rest:
        name = rest.pop()
        if name not in found:
            own, _, lanes = name.partition("_on_")
            formula = conversion(own) or _FORMULAS[own]
            found[name] = formula.on(int(lanes or 1))
            rest += sorted(found[name].called, reverse=True)
    return list(found.values())


def definitions(names: Iterable[str]) -> list[str]:
    """The IR of these functions, without :func:`declarations`: a printer makes some of them too."""
    lines = [line for text in _texts(names) for line in text.lines]
    return [*lines, *kept_variants(lines)]


def declarations(names: Iterable[str]) -> set[str]:
    """Declarations that the IR of these functions needs."""
    return {line for text in _texts(names) for line in text.declared}


def on_lanes(names: Iterable[str]) -> int:
    """How many numbers those take that are called with a vector; 0 if there are none.

    Others would wait in memory if a loop had several vectors.
    """
    found = [f for n in names if isinstance(f := _FORMULAS.get(n), LaneFormula)]
    return max((f.width() for f in found), default=0)
