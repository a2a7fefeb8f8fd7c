"""symdnn, PyTorch, JAX and PyTensor on the CPU's cases, window by window in turn; resumable.

    python -m benchmarks.cpu.run --peers-python /path/to/venv/bin/python [--out FOLDER]
        [--only REGEX] [--quick] [--budget 450]

Each side is a process of its own, loaded once; of a case all sides are prepared, then they run a
window of calls each, in turn, until every one has had enough windows in which nothing else used the
processors. Every result is a line of JSON in ``FOLDER/cpu.jsonl``; a case that has one is skipped,
so the same command goes on where the last one stopped. In the end the table is printed and written
with a picture beside it (``report``). Without ``--peers-python``, peers are looked for here.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cpu import fresh, report, spec
from benchmarks.cpu.sides import ROOT, Processes, Window, wait_for_calm
from benchmarks.records import read

__all__ = ["Pace", "main", "measure"]


@dataclass(frozen=True)
class Pace:
    """How long a window is, how many there are of each side, and when a case has taken enough."""

    window_s: float = 0.15
    rounds: int = 7
    most_rounds: int = 25
    quiet: int = 4
    case_s: float = 30.0


QUICK = Pace(0.05, 7, 7, 0, 12.0)


def measure(processes: Processes, case: spec.Case, sides: Sequence[str], pace: Pace) -> Records:
    """The records of a case, one for each side."""
    records: Records = {}
    for side in sides:
        process = processes.of(side)
        if process is None:
            records[side] = {"error": processes.missing[side.split(".")[0]]}
        else:
            records[side] = process.ask("prepare", case=case.name, variant=side)
    able = [s for s in sides if "error" not in records[s]]
    windows: dict[str, list[Window]] = {s: [] for s in able}
    began = time.monotonic()
    for number in range(pace.most_rounds):
        late = time.monotonic() - began > pace.case_s
        if not able or (number >= 3 and (late or enough(windows, number, pace))):
            break
        for side in able[number % len(able) :] + able[: number % len(able)]:
            processes.wait_for_rest()
            calls = max(1, round(pace.window_s * 1e3 / max(records[side]["ms"], 1e-5)))
            process = processes.of(side)
            assert process is not None
            try:
                windows[side].append(process.window(side, calls))
            except RuntimeError as error:
                records[side] = {"error": str(error)}
                able = [s for s in able if s != side]
    for side in able:
        records[side].update(summary(windows[side]), threads=processes.threads)
    processes.drop()
    return records


Records = dict[str, dict[str, Any]]


def enough(windows: dict[str, list[Window]], rounds: int, pace: Pace) -> bool:
    """Whether there are as many windows as wanted, and as many quiet ones."""
    quiet = [sum(w.foreign < report.QUIET for w in of) for of in windows.values()]
    return rounds >= pace.rounds and min(quiet, default=pace.quiet) >= pace.quiet


def summary(windows: Sequence[Window]) -> dict[str, Any]:
    """Medians, of all windows and of quiet ones."""
    times = [w.ms for w in windows]
    quiet = [w.ms for w in windows if w.foreign < report.QUIET]
    return {
        "ms": statistics.median(times), "ms_min": min(w.least for w in windows),
        "ms_quiet": statistics.median(quiet) if len(quiet) >= 2 else None,
        "cpu_ms": statistics.median(w.cpu_ms for w in windows),
        "windows": [(_short(w.ms), round(w.foreign, 2)) for w in windows],
    }  # fmt: skip


def _short(value: Any) -> Any:
    return float(f"{value:.5g}") if isinstance(value, float) else value


# -- what there is to do, and what was done --------------------------------------------------------


class Record:
    """A file of results, a line each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def lines(self) -> list[dict[str, Any]]:
        """All that was written."""
        return list(read([self.path])) if self.path.exists() else []

    def done(self) -> set[tuple[str, str]]:
        """The (case, side) pairs with a result; an error is one."""
        return {(r["case"], r["side"]) for r in self.lines() if "side" in r}

    def add(self, case: str, side: str, found: dict[str, Any]) -> None:
        """Append one."""
        short = {k: _short(v) for k, v in found.items()}
        line = {"case": case, "side": side, **short, "at": time.strftime("%F %T")}
        with self.path.open("a") as f:
            f.write(json.dumps(line) + "\n")


def machine() -> dict[str, Any]:
    """The processor and the commit."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return {
        "commit": os.environ.get("SYMDNN_COMMIT", commit.stdout.strip()),
        "cpu": model[1] if model else platform.processor(), "processors": os.cpu_count(),
    }  # fmt: skip


def facts(args: argparse.Namespace) -> dict[str, Any]:
    """The machine, the commit, the load before the run."""
    return {
        "case": "info", **machine(),
        "python": platform.python_version(), "threads": args.threads, "nice": args.nice,
        "avx2": args.avx2,
        "load": os.getloadavg(), "at": time.strftime("%F %T"),
    }  # fmt: skip


def wanted(args: argparse.Namespace) -> Iterator[tuple[spec.Case, list[str]]]:
    """The cases of this command, and who runs them."""
    for case in spec.CASES:
        sides = [s for s in case.sides if not args.sides or s in args.sides.split(",")]
        if re.search(args.only, case.name) and sides and "times" in args.part:
            yield case, sides


def main() -> None:
    """The command line."""
    args = _arguments()
    record = Record(args.out / "cpu.jsonl")
    done = set() if args.again else record.done()
    began = time.monotonic()
    pace = QUICK if args.quick or args.tiny else Pace()
    processes = Processes(args.peers_python, args.threads, args.tiny, args.nice, args.avx2)
    with record.path.open("a") as f:
        f.write(json.dumps(facts(args)) + "\n")
    left = []
    try:
        for case, sides in wanted(args):
            if all((case.name, s) in done for s in sides):
                continue
            if time.monotonic() - began > args.budget:
                left.append(case.name)
                continue
            wait_for_calm(args.calm)
            found = measure(processes, case, sides, pace)
            for side, result in found.items():
                record.add(case.name, side, result)
            print(line_of(case, found), flush=True)
        _note_versions(processes, record)
    finally:
        processes.end()
    left += fresh.run(args, record, done, args.budget - (time.monotonic() - began))
    if left:
        print(f"{len(left)} cases are left, from {left[0]} on: run the same command again")
    else:
        report.write(record.lines(), args.out, {})


def _note_versions(processes: Processes, record: Record) -> None:
    versions: dict[str, Any] = {}
    for framework in ("symdnn", "torch", "jax", "pytensor"):
        process = processes.running.get(framework)
        if process is not None:
            versions |= {k: v for k, v in process.ask("facts").items() if k != "import_s"}
    if versions:
        with record.path.open("a") as f:
            f.write(json.dumps({"case": "info", **versions}) + "\n")


def line_of(case: spec.Case, found: Records) -> str:
    """A case's medians in words."""
    words = [
        f"{side} {r['ms']:.4g}" if "ms_min" in r else f"{side} {r.get('error', '?')[:60]}"
        for side, r in found.items()
    ]
    return f"{case.name}: {', '.join(words)}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers-python", default=sys.executable, help="a Python that has peers")
    parser.add_argument("--out", type=Path, default=Path("cpu-record"), help="a folder")
    parser.add_argument("--only", default="", help="cases that match this expression")
    parser.add_argument("--sides", default="", help="these sides only, with commas")
    parser.add_argument("--part", default="times,first,memory", help="some of these")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument(
        "--nice", type=int, default=0, help="priority of the sides, -20 the highest"
    )
    parser.add_argument("--calm", type=float, default=5, help="seconds to wait for others to rest")
    parser.add_argument("--budget", type=float, default=420, help="seconds; then call it again")
    parser.add_argument("--quick", action="store_true", help="short windows, few of them")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes, to try the program")
    parser.add_argument("--avx2", action="store_true", help="times as without AVX-512")
    parser.add_argument("--again", action="store_true", help="also what has a result")
    return parser.parse_args()


if __name__ == "__main__":
    main()
