"""The record as a table: symdnn beside the fastest peer, row by row.

    python -m benchmarks.gpu.report record/*.jsonl [--reasons FILE] [--format text|markdown|json]

``user`` is the fastest peer as a user runs it, ``graph`` the fastest one of all, also those whose
step was captured into a CUDA graph by hand; ``x user`` and ``x graph`` are their times over
symdnn's: above 1, symdnn is the faster. ``ceiling`` is the share of the card's copy rate, or of its
rate of matrix products in the case's precision, as the same run measured them. A star marks a wrong
result: a loss that is not the reference's (or not the peers'), a number that is not finite. A file
of reasons is JSON, row -> text: what the profiler says of a row below 1.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.records import number, read, table

OURS = ("symdnn", "symdnn.shared", "symdnn.trusted")

#: Peers that a user does not run as they are: the step captured by hand.
BY_HAND = "+graph"

#: How far a loss may be from the peers'; against the reference ones it was checked when measured.
TOLERANCE = 0.02


@dataclass(frozen=True)
class Row:
    """One case. Times are milliseconds (dispatch: microseconds to issue a call)."""

    case: str
    symdnn: float | None
    wrong: bool
    user: float | None
    user_peer: str
    graph: float | None
    graph_peer: str
    rate: str
    ceiling: float | None
    memory_mb: float | None
    peer_memory_mb: float | None
    first_s: float | None
    note: str

    @property
    def times_user(self) -> float | None:
        """The user's peer's time over symdnn's."""
        return ratio(self.user, self.symdnn)

    @property
    def times_graph(self) -> float | None:
        """The captured peer's time over symdnn's."""
        return ratio(self.graph, self.symdnn)


def ratio(peer: float | None, ours: float | None) -> float | None:
    """How many times as fast as the peer symdnn is."""
    return peer / ours if peer and ours else None


def time_of(record: dict[str, Any]) -> float | None:
    """What is compared: milliseconds, microseconds to issue, or seconds of a first call."""
    case = str(record.get("case"))
    key = "us_issue" if case.startswith("dispatch") else "ms"
    if case.startswith("compile_time"):
        key = "ready_s"
    value = record.get(key)
    return float(value) if isinstance(value, int | float) else None


def results(records: Iterable[dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """case -> peer -> its last record; errors only where there is no time."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for r in records:
        case, peer = str(r.get("case")), str(r.get("peer"))
        if case in ("info", "slow", "-") or (time_of(r) is None and "err" not in r):
            continue
        rows = found.setdefault(case, {})
        if time_of(r) is not None or peer not in rows:
            rows[peer] = r
    return found


def ceilings(records: Iterable[dict[str, Any]]) -> dict[str, float]:
    """The best copy and product rates of the run."""
    best: dict[str, float] = {}
    for r in records:
        for key in ("copy_gbs", "mm_tf32_tflops", "mm_bf16_tflops"):
            if r.get("case") == "info" and isinstance(r.get(key), int | float):
                best[key] = max(best.get(key, 0.0), float(r[key]))
    return best


def rows_of(records: Sequence[dict[str, Any]], reasons: dict[str, str]) -> list[Row]:
    """The table, in alphabetical order."""
    best = ceilings(records)
    found = results(records)
    return [row_of(case, found[case], best, reasons.get(case, "")) for case in sorted(found)]


def row_of(case: str, peers: dict[str, dict[str, Any]], best: dict[str, float], reason: str) -> Row:
    """One row."""
    ours = fastest({p: r for p, r in peers.items() if p in OURS})
    others = {p: r for p, r in peers.items() if p not in OURS and not wrong(r, [])}
    user = fastest({p: r for p, r in others.items() if not p.endswith(BY_HAND)})
    graph = fastest(others)
    mine = peers[ours] if ours else {}
    rate, share = rate_of(case, mine, best)
    error = next((str(r["err"]) for p, r in peers.items() if p in OURS and "err" in r), "")
    memory = [float(r["mem_mb"]) for r in others.values() if r.get("mem_mb")]
    return Row(
        case=case, symdnn=time_of(mine), wrong=wrong(mine, list(others.values())),
        user=time_of(others.get(user, {})), user_peer=user,
        graph=time_of(others.get(graph, {})), graph_peer=graph, rate=rate, ceiling=share,
        memory_mb=mine.get("mem_mb"), peer_memory_mb=min(memory, default=None),
        first_s=mine.get("first_s"),
        note=str(mine.get("note") or (error if not ours else "") or reason),
    )  # fmt: skip


def fastest(peers: dict[str, dict[str, Any]]) -> str:
    """The peer with the least time, or nothing."""
    timed = {p: t for p, r in peers.items() if (t := time_of(r)) is not None}
    return min(timed, key=lambda p: timed[p]) if timed else ""


def wrong(record: dict[str, Any], others: Sequence[dict[str, Any]]) -> bool:
    """Whether a result is known to be wrong, or is not what most others have."""
    if record.get("note") or not math.isfinite(float(record.get("end") or 0.0)):
        return True
    mine = record.get("loss0", record.get("chk"))
    theirs = sorted(float(v) for r in others if (v := r.get("loss0", r.get("chk"))) is not None)
    if mine is None or not theirs or record.get("loss_off") is not None:
        return False
    middle = theirs[len(theirs) // 2]
    return abs(float(mine) - middle) > TOLERANCE * abs(middle) + 1e-6


def rate_of(case: str, record: dict[str, Any], best: dict[str, float]) -> tuple[str, float | None]:
    """(the rate in words, its share of the ceiling)."""
    if record.get("gbs"):
        limit = best.get("copy_gbs")
        return f"{record['gbs']:.0f} GB/s", record["gbs"] / limit if limit else None
    if record.get("tflops"):
        limit = best.get(f"mm_{'tf32' if '/tf32' in case else 'bf16'}_tflops")
        return f"{record['tflops']:.1f} TF", record["tflops"] / limit if limit else None
    return "", None


# -- as text --------------------------------------------------------------------------------------

HEADS = ("case", "symdnn", "user", "x user", "graph", "x graph", "rate", "ceiling", "MB",
         "peer MB", "first s", "why")  # fmt: skip


def cells(row: Row) -> tuple[str, ...]:
    """A row in words."""
    share = "" if row.ceiling is None else f"{100 * row.ceiling:.0f}%"
    return (
        row.case, number(row.symdnn) + "*" * row.wrong, f"{number(row.user)} {row.user_peer}",
        number(row.times_user, 2), f"{number(row.graph)} {row.graph_peer}",
        number(row.times_graph, 2), row.rate, share, number(row.memory_mb),
        number(row.peer_memory_mb), number(row.first_s), row.note,
    )  # fmt: skip


def text(rows: Sequence[Row]) -> str:
    """A table with columns of equal width, and how many rows are ahead."""
    return "\n".join([*table([HEADS, *map(cells, rows)]), summary(rows)])


def markdown(rows: Sequence[Row]) -> str:
    """The same for a page."""
    lines = [HEADS, tuple("---" for _ in HEADS), *map(cells, rows)]
    shown = "\n".join(f"| {' | '.join(word.strip() for word in line)} |" for line in lines)
    return f"{shown}\n\n{summary(rows)}"


def summary(rows: Sequence[Row]) -> str:
    """How many rows are ahead of both kinds of peers, right, and wrong."""
    right = [r for r in rows if r.symdnn is not None and not r.wrong]
    parts = []
    for name, ratios in (
        ("as a user runs it", [r.times_user for r in right]),
        ("captured by hand too", [r.times_graph for r in right]),
    ):
        known = [x for x in ratios if x is not None]
        ahead, far = sum(x >= 1 for x in known), sum(x >= 1.15 for x in known)
        parts.append(f"{name}: {ahead} of {len(known)} rows at 1.0 or more, {far} at 1.15")
    bad = sum(r.wrong for r in rows)
    return "; ".join([*parts, f"{bad} rows with a wrong result" if bad else "no wrong result"])


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--reasons", type=Path, help="JSON: row -> what the profiler says")
    parser.add_argument("--format", default="text", choices=["text", "markdown", "json"])
    args = parser.parse_args()
    records = list(read(args.files))
    reasons = json.loads(args.reasons.read_text()) if args.reasons else {}
    rows = rows_of(records, reasons)
    if args.format == "json":
        print(json.dumps([asdict(r) for r in rows], indent=1))
        return
    for r in records:
        if r.get("case") == "info":
            facts = {k: v for k, v in r.items() if k not in ("case", "peer", "t")}
            print(json.dumps(facts))
    print(text(rows) if args.format == "text" else markdown(rows))


if __name__ == "__main__":
    main()
