"""What the flag ``dnn.verbose`` prints: of each new plan, what its nodes became, and by what."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from symdnn.compile.report.dnn_report import dnn_report
from symdnn.compile.report.report import lowering_report

if TYPE_CHECKING:
    from symdnn.compile.call.compiled_function import Function

__all__ = ["tell_plans"]

#: The plans of each function that were told of, by identity.
_told: WeakKeyDictionary[Function, list[object]] = WeakKeyDictionary()


def tell_plans(function: Function) -> None:
    """Print, on the standard error, the plans that ``function`` made since this was last called."""
    plans, before = function.plans(), _told.get(function, [])
    new = {i for i, plan in enumerate(plans) if not any(plan is p for p in before)}
    if not new:
        return
    _told[function] = list(plans)
    lowered, chosen = lowering_report(function), dnn_report(function)
    numbers = ", ".join(map(str, sorted(new)))
    parts = [f"symdnn: {function.name} on {function.stages.target}, plan {numbers}"]
    parts.append(str(replace(lowered, rows=tuple(r for r in lowered.rows if r.plan in new))))
    if rows := tuple(r for r in chosen.rows if r.plan in new):
        parts.append(str(replace(chosen, rows=rows)))
    print("\n".join(parts), file=sys.stderr)
