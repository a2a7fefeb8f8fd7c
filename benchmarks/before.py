"""Rows of ``benchmarks.ops`` and ``benchmarks.cpu.run`` by symdnn of two working trees, in turn.

    python -m benchmarks.before ops --tree TREE --out FILE [--budget 3000] [--count 100]
    python -m benchmarks.before cpu --tree TREE --out FILE [--only REGEX]

Each tree has a process of its own and its own programs of the rows: a row is what that tree means
by its name; rows that one tree lacks are left out. Times are the processor's, with one thread:
medians of windows that alternate. A row under 0.95 is measured again by other processes with more
windows, and its second ratio counts. FILE has a line of JSON for each measurement; the same command
goes on where it stopped. A ratio is the time of TREE over that of this tree.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["main"]

_ROOT = Path(__file__).resolve().parents[1]
#: A row is a loss below this ratio.
_LEAST_RATIO = 0.95
#: Windows of a row, and of one that is measured again.
_ROUNDS, _ROUNDS_AGAIN = 7, 21
_WINDOW_S = 0.02
#: Seconds that building a row and its first calls may take.
_LONGEST_ROW_S = 40
#: Calls shorter than this are made so many times first: plans of NumPy's kernels are compiled then.
_SHORT_S, _WARM_CALLS = 2e-4, 1100


def main() -> int:
    """Measure the rows that the file does not have yet, then print what they say."""
    args = _arguments()
    found = _read(args.out)
    began = time.monotonic()
    with args.out.open("a", encoding="utf-8") as file:
        for again in (False, True):
            sides = _Sides(args.kind, args.tree)
            chosen = [n for n in sides.names if re.search(args.only, n)][: args.count]
            for name in _low(found) if again else chosen:
                if len(found.get(name, [])) > again:
                    continue
                if time.monotonic() - began > args.budget:
                    break
                line = {"row": name, **sides.measure(name, _ROUNDS_AGAIN if again else _ROUNDS)}
                found.setdefault(name, []).append(line)
                print(json.dumps(line), file=file, flush=True)
            sides.end()
    print("\n".join([*_facts(args), *_summary(found)]))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.before", description=__doc__)
    parser.add_argument("kind", choices=list(_KINDS))
    parser.add_argument("--tree", type=Path, required=True, help="the other working tree")
    parser.add_argument("--out", type=Path, required=True, help="file of measurements")
    parser.add_argument("--only", default="", help="rows whose names match this expression")
    parser.add_argument("--count", type=int, help="at most so many rows")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds to stop after")
    return parser.parse_args()


# -- what was measured ----------------------------------------------------------------------------


def _read(path: Path) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        found.setdefault(json.loads(line)["row"], []).append(json.loads(line))
    return found


def _low(found: dict[str, list[dict[str, Any]]]) -> list[str]:
    return [n for n, lines in found.items() if lines[0].get("ratio", 1.0) < _LEAST_RATIO]


def _facts(args: argparse.Namespace) -> list[str]:
    commits = [
        subprocess.run(
            ["git", "-C", str(tree), "describe", "--always", "--dirty", "--exclude=*"],
            capture_output=True, text=True, check=True,
        ).stdout.strip()
        for tree in (args.tree, _ROOT)
    ]  # fmt: skip
    return [f"benchmarks.{args.kind}: {commits[0]} / {commits[1]}, time of one thread, medians"]


def _summary(found: dict[str, list[dict[str, Any]]]) -> list[str]:
    last = {n: lines[-1] for n, lines in found.items() if "ratio" in lines[-1]}
    if not last:
        return ["no row"]
    ratios = {n: line["ratio"] for n, line in last.items()}
    low = sorted((r, n) for n, r in ratios.items() if r < _LEAST_RATIO)
    first = sum(lines[0]["ratio"] < _LEAST_RATIO for n, lines in found.items() if n in last)
    missing = len(found) - len(last)
    return [
        f"{len(ratios)} rows ({missing} not in both), geometric mean "
        f"{statistics.geometric_mean(ratios.values()):.3f}, {first} first under {_LEAST_RATIO}, "
        f"{len(low)} when measured again:",
        *(f"{r:6.2f}  {n:70} {last[n]['us'][0]:.4g} -> {last[n]['us'][1]:.4g} us" for r, n in low),
    ]


# -- the two processes ----------------------------------------------------------------------------


class _Sides:
    """A process of the other tree and one of this, which answer a line of JSON by one."""

    def __init__(self, kind: str, tree: Path) -> None:
        self._processes = [self._started(kind, root) for root in (tree.resolve(), _ROOT)]
        then, now = (self._ask(p, {"do": "names"}) for p in self._processes)
        common = set(now)
        self.names = [n for n in then if n in common]

    def _started(self, kind: str, root: Path) -> subprocess.Popen[str]:
        flags = "device=cpu,keep_prepared=False,print_active_device=False"
        given = {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "SYMDNN_FLAGS": flags}
        return subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).resolve()), "--worker", kind],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, cwd=root, env={**os.environ, **given},
        )  # fmt: skip

    def _ask(self, process: subprocess.Popen[str], order: dict[str, Any]) -> Any:
        assert process.stdin is not None
        assert process.stdout is not None
        print(json.dumps(order), file=process.stdin, flush=True)
        return json.loads(process.stdout.readline() or '{"error": "the process ended"}')

    def measure(self, name: str, rounds: int) -> dict[str, Any]:
        """The ratio of a row and microseconds of both, or why there is none."""
        for process in self._processes:
            error = self._ask(process, {"do": "prepare", "name": name}).get("error")
            if error:
                return {"none": error[:200]}
        times: list[list[float]] = [[], []]
        for number in range(rounds):
            for side in (0, 1) if number % 2 else (1, 0):
                times[side].append(self._ask(self._processes[side], {"do": "run"})["s"])
        then, now = map(statistics.median, times)
        return {"ratio": round(then / now, 4), "us": [float(f"{t * 1e6:.5g}") for t in (then, now)]}

    def end(self) -> None:
        """Let both go."""
        for process in self._processes:
            process.communicate()


def _work(kind: str) -> None:
    """Answer orders until the input ends, by the tree that is first on the path."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not get between the answers
    names, prepared = _KINDS[kind]
    call: Callable[[], Any] = list
    calls = 1
    for line in sys.stdin:
        order = json.loads(line)
        answer: Any = {}
        try:
            if order["do"] == "names":
                answer = names()
            elif order["do"] == "prepare":
                signal.signal(signal.SIGALRM, _too_late)
                signal.alarm(_LONGEST_ROW_S)
                call = list
                gc.collect()
                call = prepared(order["name"])
                calls = _calls_of(call)
                signal.alarm(0)
            else:
                call()
                began = time.process_time()
                for _ in range(calls):
                    call()
                answer = {"s": (time.process_time() - began) / calls}
        except Exception as error:
            signal.alarm(0)
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


def _too_late(*_: Any) -> None:
    raise TimeoutError(f"the row takes longer than {_LONGEST_ROW_S} s")


def _calls_of(call: Callable[[], Any]) -> int:
    """How many calls a window has."""
    took = []
    for _ in range(5):
        began = time.process_time()
        call()
        took.append(time.process_time() - began)
    if min(took) < _SHORT_S:
        for _ in range(_WARM_CALLS):
            call()
    began = time.process_time()
    call()
    return max(1, int(_WINDOW_S / max(time.process_time() - began, 2e-6)))


# -- what a tree has (in its process) -------------------------------------------------------------


@cache
def _op_rows() -> dict[str, Any]:
    """All rows, shuffled alike in all trees; each op class has its turn."""
    from benchmarks.ops import rows

    every = rows.all_rows()
    return {row.id: row for row in rows._in_turn(every, seed=0, count=len(every))}


def _op(name: str) -> Callable[[], Any]:
    from benchmarks.ops import program

    program._references = lambda outs, values: None  # times alone
    built = program.build(_op_rows()[name])
    f, arrays = built.function, built.arrays
    return lambda: f(*arrays)


def _cpu_names() -> list[str]:
    from benchmarks.cpu import spec

    return [case.name for case in spec.CASES]


def _cpu(name: str) -> Callable[[], Any]:
    from benchmarks.cpu import side_symdnn, spec

    return side_symdnn.prepare(spec.find(name), "symdnn").step


_KINDS = {"ops": (lambda: list(_op_rows()), _op), "cpu": (_cpu_names, _cpu)}


if __name__ == "__main__":
    if "--worker" in sys.argv:
        _work(sys.argv[-1])
    else:
        raise SystemExit(main())
