"""The table of a record: how near each op comes to the speed of a copy."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from benchmarks import records

__all__ = ["table"]


def table(found: Sequence[dict[str, Any]], worst: int = 25) -> list[str]:
    """Lines: counts, what is wrong or failed, the slowest rows, and a median for each op."""
    rows = [r for r in found if "row" in r]
    timed = [r for r in rows if "ms" in r and not r.get("wrong")]
    failed = [r for r in rows if "error" in r]
    wrong = [r for r in rows if r.get("wrong")]
    lines = [f"{k}: {v}" for r in found[:1] for k, v in r.get("facts", {}).items()]
    lines.append(
        f"{len(rows)} rows: {len(timed)} timed, {len(wrong)} wrong, {len(failed)} failed, "
        f"{sum('none' in r for r in rows)} that do not exist"
    )
    lines += [f"WRONG {r['row']}: relative error {r['relerr']:.2g}" for r in wrong]
    lines += [f"FAILED {r['row']}: {r['error']}" for r in failed]
    slowest = sorted(timed, key=_ratio)[:worst]
    body = [("copy/ms", "ms", "row")]
    body += [(_text(_ratio(r)), _text(r["ms"]), r["row"]) for r in slowest]
    return [*lines, "", *records.table(body), "", *_by_op(timed)]


def _by_op(timed: Sequence[dict[str, Any]]) -> list[str]:
    by_op: dict[str, list[float]] = defaultdict(list)
    for r in timed:
        by_op[r["op"]].append(_ratio(r))
    order = sorted(by_op.items(), key=lambda kv: statistics.median(kv[1]))
    body = [("median", "rows", "op")]
    body += [(_text(statistics.median(v)), str(len(v)), k) for k, v in order]
    return records.table(body)


def _ratio(record: dict[str, Any]) -> float:
    return float(record["floor_ms"] / record["ms"])


def _text(value: float) -> str:
    return records.number(value, 3)
