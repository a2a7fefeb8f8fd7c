"""The flag ``dnn.verbose``: prints the reports of each new plan."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from symdnn.compile.plan.plan import Plan
from symdnn.compile.plan.stages import Stages
from symdnn.compile.report.dnn_report import dnn_report
from symdnn.compile.report.report import lowering_report


def print_new_plans(
    name: str, stages: Stages, plans: Sequence[Plan], printed: Sequence[Plan]
) -> list[Plan]:
    """Print to stderr those ``plans`` of a function that are not in ``printed``.

    Returns the plans that are printed by now.
    """
    new = {i for i, plan in enumerate(plans) if not any(plan is p for p in printed)}
    if not new:
        return list(printed)
    lowered, chosen = lowering_report(stages, plans), dnn_report(plans)
    numbers = ", ".join(map(str, sorted(new)))
    parts = [f"symdnn: {name} on {stages.target}, plan {numbers}"]
    parts.append(str(replace(lowered, rows=tuple(r for r in lowered.rows if r.plan in new))))
    if rows := tuple(r for r in chosen.rows if r.plan in new):
        parts.append(str(replace(chosen, rows=rows)))
    print("\n".join(parts), file=sys.stderr)
    return list(plans)
