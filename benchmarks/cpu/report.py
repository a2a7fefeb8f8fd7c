"""The record as a table and a picture: symdnn beside the fastest peer, row by row.

    python -m benchmarks.cpu.report FOLDER/cpu.jsonl [--reasons FILE] [--to FOLDER]

``ratio`` is the best peer's time over symdnn's: above 1, symdnn is faster. It is the ratio of
medians over the windows in which other processes used less than a tenth of a processor, or over all
windows if there are too few of those (the note is then ``loaded``). ``least`` is the ratio of the
fastest calls. ``goal`` is the ratio that the project promises. A star marks a side whose results
differ from the others': its time is ignored.

A run with one thread (``--threads 1``) compares processor time instead, which other processes
hardly change. Use it on a machine that is never idle.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cpu import spec
from benchmarks.records import number, read, table

__all__ = ["QUIET", "Row", "chart", "modes", "rows_of", "text", "write"]

QUIET = 0.1
#: The largest relative difference of checksums, and that of 16-bit numbers.
TOLERANCE, NARROW_TOLERANCE = 1e-3, 3e-2

#: The names of the columns: the configurations that users run by default.
PEERS = ("torch", "torch.cl", "torch.compile", "torch.compile.cl", "jax", "pytensor")

Results = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Row:
    """One case: milliseconds (seconds, megabytes where the case says so) by side.

    ``loaded``: the ratio in the slower of two modes, where both sides showed two.
    """

    case: str
    ours: float | None
    peers: dict[str, float]
    goal: float
    least: float | None = None
    loaded: float | None = None
    note: str = ""
    wrong: tuple[str, ...] = ()

    @property
    def best(self) -> str:
        """The fastest peer, or None."""
        return min(self.peers, key=lambda p: self.peers[p]) if self.peers else ""

    @property
    def ratio(self) -> float | None:
        """The best peer's time over symdnn's."""
        return self.peers[self.best] / self.ours if self.best and self.ours else None

    @property
    def met(self) -> bool:
        """Whether it is as fast as was promised, to the digits that are shown."""
        return self.ratio is not None and round(self.ratio, 2) >= round(self.goal, 2)


def rows_of(records: Iterable[Mapping[str, Any]], reasons: Mapping[str, str]) -> list[Row]:
    """The rows in the order of the cases; of several records of a side the last one counts."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for r in records:
        if "side" in r:
            found.setdefault(str(r["case"]), {})[str(r["side"])] = r
    goals = {c.name: 1 / c.goal for c in spec.CASES}
    order = {name: i for i, name in enumerate(goals)}
    names = sorted(found, key=lambda n: (order.get(n, len(order)), n))
    rows = [_row(n, found[n], goals.get(n, 1.0), reasons.get(n, "")) for n in names]
    return [r for r in rows if r.ours is not None or r.peers or r.note]


def _row(case: str, sides: Results, goal: float, reason: str) -> Row:
    wrong = disagreeing(sides, NARROW_TOLERANCE if "bfloat16" in case else TOLERANCE)
    key = time_key(case, sides)
    times = {s: float(r[key]) for s, r in sides.items() if r.get(key) and s not in wrong}
    if case.startswith("memory/"):
        times = {s: float(r["peak_mb"]) for s, r in sides.items() if "peak_mb" in r}
    if case == "compile/lenet5/warm":
        goal = 1.0  # a tenth of the cold peers': stated in the summary
    peers = {s: t for s, t in times.items() if s != "symdnn"}
    notes = [str(sides.get("symdnn", {}).get("error", "")), reason]
    if key == "ms" and not case.startswith(("compile/", "memory/")):
        notes.append("loaded")
    best = min(peers, key=lambda p: peers[p]) if peers else ""
    least, loaded = _other_ratios(sides.get("symdnn", {}), sides.get(best, {}))
    note = "; ".join(n for n in notes if n)
    return Row(case, times.get("symdnn"), peers, goal, least, loaded, note, tuple(sorted(wrong)))


def time_key(case: str, sides: Results) -> str:
    """Which of a record's times is compared: the quiet median where all sides have one."""
    if case.startswith("compile/"):
        return "s"
    timed = [r for r in sides.values() if "ms_min" in r]
    if timed and all(r.get("threads") == 1 for r in timed):
        return "cpu_ms"
    return "ms_quiet" if timed and all(r.get("ms_quiet") for r in timed) else "ms"


def _other_ratios(
    ours: Mapping[str, Any], peer: Mapping[str, Any]
) -> tuple[float | None, float | None]:
    """(of the fastest calls, of the slower mode where both have two)."""
    if "ms_min" not in ours or "ms_min" not in peer:
        return None, None
    least = peer["ms_min"] / ours["ms_min"]
    mine, theirs = (modes([w[0] for w in r["windows"]]) for r in (ours, peer))
    return least, theirs[1] / mine[1] if mine and theirs else None


def modes(times: Sequence[float]) -> tuple[float, float] | None:
    """The medians of the faster and of the slower windows, where there is a gap between them:
    a factor of 1.25, with two windows or more on both sides."""
    ordered = sorted(times)
    gaps = [(ordered[i] / ordered[i - 1], i) for i in range(2, len(ordered) - 1)]
    if not gaps or max(gaps)[0] < 1.25:
        return None
    at = max(gaps)[1]
    return statistics.median(ordered[:at]), statistics.median(ordered[at:])


# -- right or wrong --------------------------------------------------------------------------------


def disagreeing(sides: Results, tolerance: float = TOLERANCE) -> set[str]:
    """The sides whose results are not those of the largest group that agrees."""
    checks = {s: r["checks"] for s, r in sides.items() if "checks" in r}
    groups: list[list[str]] = []
    for side, values in checks.items():
        for group in groups:
            if close(values, checks[group[0]], tolerance):
                group.append(side)
                break
        else:
            groups.append([side])
    if len(groups) < 2:
        return {s for s, c in checks.items() if not _finite(c)}
    groups.sort(key=len, reverse=True)
    if len(groups[0]) == len(groups[1]):  # it is unknown which side is right
        return set(checks)
    return set(checks) - set(groups[0])


def close(
    a: Mapping[str, Sequence[float]],
    b: Mapping[str, Sequence[float]],
    tolerance: float = TOLERANCE,
) -> bool:
    """Whether what both sides have agrees: PyTensor gives no gradients in some cases."""
    shared = a.keys() & b.keys()
    return bool(shared) and all(
        abs(x - y) <= tolerance * max(map(abs, b[k])) + 1e-6
        for k in shared
        for x, y in zip(a[k], b[k], strict=True)
    )


def _finite(checks: Mapping[str, Sequence[float]]) -> bool:
    return all(math.isfinite(v) for values in checks.values() for v in values)


# -- as text ---------------------------------------------------------------------------------------

HEADS = (
    "case",
    "symdnn",
    "best peer",
    "",
    "ratio",
    "least",
    "loaded",
    "goal",
    "met",
    *PEERS,
    "note",
)


def text(records: Sequence[Mapping[str, Any]], rows: Sequence[Row]) -> str:
    """The facts, the table and the missing rows."""
    facts: dict[str, Any] = {}
    for r in records:
        if r.get("case") == "info":
            facts |= {k: v for k, v in r.items() if k != "case"}
    head = ", ".join(f"{k} {v}" for k, v in facts.items())
    unit = "ms a call; compile/: seconds to the first step; memory/: peak MB of the process"
    return "\n".join([head, unit, "", *table([HEADS, *map(cells, rows)]), "", summary(rows)]) + "\n"


def cells(row: Row) -> tuple[str, ...]:
    """A row in words."""
    star = "*" if "symdnn" in row.wrong else ""
    return (
        row.case, number(row.ours) + star, number(row.peers.get(row.best)), row.best,
        number(row.ratio, 3), number(row.least, 3), number(row.loaded, 3), f"{row.goal:.2f}",
        "-" if row.ratio is None else "yes" if row.met else "MISS",
        *(number(row.peers.get(p)) + "*" * (p in row.wrong) for p in PEERS), row.note,
    )  # fmt: skip


def summary(rows: Sequence[Row]) -> str:
    """How many are first and keep the promise; which ones do not, worst first."""
    known = [r for r in rows if r.ratio is not None]
    first = sum(r.ratio >= 1 for r in known if r.ratio is not None)
    missed = sorted((r for r in known if not r.met), key=lambda r: (r.ratio or 0) / r.goal)
    lines = [
        f"first in {first} of {len(known)} rows; {len(known) - len(missed)} meet the goal",
        *(f"missed: {r.case}: {r.ratio:.2f} of {r.goal:.2f} ({r.best}) {r.note}" for r in missed),
        *(f"wrong: {r.case}: {', '.join(r.wrong)}" for r in rows if r.wrong),
    ]
    return "\n".join(lines + _warm(rows))


def _warm(rows: Sequence[Row]) -> list[str]:
    """The goal that crosses rows: a warm first step in a tenth of JAX's cold one."""
    by = {r.case: r for r in rows}
    cold, warm = by.get("compile/lenet5/cold"), by.get("compile/lenet5/warm")
    if not cold or not warm or not warm.ours or "jax" not in cold.peers:
        return []
    share = warm.ours / cold.peers["jax"]
    return [f"LeNet's first step, warm: {share:.2f} of JAX's cold one (goal 0.10)"]


# -- as a picture ----------------------------------------------------------------------------------


def chart(rows: Sequence[Row], path: Path) -> None:
    """Bars of the ratios on a logarithmic axis; a tick at each row's goal."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = [r for r in rows if r.ratio is not None]
    halves = [shown[: (len(shown) + 1) // 2], shown[(len(shown) + 1) // 2 :]]
    figure = Figure(figsize=(15, 1.5 + 0.19 * len(halves[0])), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, part in zip(figure.subplots(1, 2, sharex=True), halves, strict=True):
        ratios = [r.ratio or 1.0 for r in part]
        colours = ["#2a7f4f" if r.met else "#c0504d" for r in part]
        axes.barh(range(len(part)), [x - 1 for x in ratios], left=1, color=colours, height=0.7)
        axes.scatter([r.goal for r in part], range(len(part)), marker="|", color="black", s=40)
        for i, (x, r) in enumerate(zip(ratios, part, strict=True)):
            axes.text(x, i, f" {x:.2f} {r.best} ", va="center", fontsize=6,
                      ha="left" if x >= 1 else "right")  # fmt: skip
        axes.set_xscale("log")
        axes.axvline(1, color="black", linewidth=0.8)
        axes.set_yticks(range(len(part)), [r.case for r in part], fontsize=6)
        axes.invert_yaxis()
        axes.set_xlabel("best peer's time / symdnn's (| the goal)")
    figure.suptitle("CPU: symdnn beside the fastest of PyTorch, JAX and PyTensor")
    figure.savefig(path, dpi=110)


def write(records: Sequence[Mapping[str, Any]], folder: Path, reasons: Mapping[str, str]) -> None:
    """``cpu-DATE.txt`` and ``cpu-DATE.png`` in the folder; the table is printed too."""
    rows = rows_of(records, reasons)
    shown = text(records, rows)
    name = time.strftime("cpu-%Y-%m-%d")
    (folder / f"{name}.txt").write_text(shown, encoding="utf-8")
    print(shown)
    try:
        chart(rows, folder / f"{name}.png")
    except ImportError:
        print("without matplotlib there is no picture")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--reasons", type=Path, help="JSON: row -> why it misses")
    parser.add_argument("--to", type=Path, help="the folder of the table and the picture")
    args = parser.parse_args()
    reasons = json.loads(args.reasons.read_text()) if args.reasons else {}
    write(list(read(args.files)), args.to or args.files[0].parent, reasons)


if __name__ == "__main__":
    main()
