"""Rows of benchmarks by symdnn of two working trees, in turn.

    python -m benchmarks.before ops --tree TREE --out FILE [--budget 3000] [--count 100]
    python -m benchmarks.before cpu --tree TREE --out FILE [--only REGEX]
    python -m benchmarks.before ops --device cuda --tree TREE --out FILE --pairs 8 --ahead 8
    python -m benchmarks.before gpu --device cuda --tree TREE --out FILE --pairs 8 --ahead 2

``ops`` has the rows of ``benchmarks.ops``, ``cpu`` those of ``benchmarks.cpu.run``, ``gpu`` those
of ``benchmarks.gpu.symdnn_cases`` without first calls. Each tree has a process of its own and its
own programs of the rows: a row is what that tree means by its name; rows that one tree lacks are
left out. Times are the processor's, with one thread, or on a GPU those until it has done a
window's calls: medians of windows that alternate. Several ``--pairs`` of processes prepare rows
side by side, each pair ``--ahead``; then each row is measured alone, on a GPU by threads of both
trees on one processor, since others may be farther from the GPU. A row under 0.95 is measured
again by other processes with more windows, and its second ratio counts (``--count 0``: only this).
FILE has a line of JSON for each measurement; the same command goes on where it stopped. A ratio is
the time of TREE over that of this tree.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import re
import select
import signal
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["main"]

_ROOT = Path(__file__).resolve().parents[1]
#: A row is a loss below this ratio.
_LEAST_RATIO = 0.95
#: Windows of a row, and of one that is measured again.
_ROUNDS, _ROUNDS_AGAIN = 7, 21
_WINDOW_S = {"cpu": 0.02, "cuda": 0.01}
#: Seconds after which a row has no more windows, if it has three of each tree.
_ENOUGH_S = 4
#: How much longer than ``--longest`` an answer may take: a process imports and starts a GPU first.
_LATE_S = 30
#: Calls before the windows, or seconds of them: plans of NumPy's kernels are compiled meanwhile.
_WARM_CALLS, _WARM_S = 1100, 0.2


def main() -> int:
    """Measure the rows that the file does not have yet, then print what they say."""
    args = _arguments()
    found = _read(args.out)
    until = time.monotonic() + args.budget
    with args.out.open("a", encoding="utf-8") as file:
        for again in (False, True):
            if time.monotonic() > until or not (_low(found) if again else args.count != 0):
                continue
            pairs = [_Pair(args) for _ in range(args.pairs)]
            chosen = [n for n in pairs[0].names() if re.search(args.only, n)][: args.count]
            left = [n for n in (_low(found) if again else chosen) if len(found.get(n, [])) <= again]
            rounds = _ROUNDS_AGAIN if again else _ROUNDS
            for line in _measured(pairs, left, args.ahead, rounds, until):
                found.setdefault(line["row"], []).append(line)
                print(json.dumps(line), file=file, flush=True)
            for pair in pairs:
                pair.end()
    print("\n".join([*_facts(args), *_summary(found)]))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.before", description=__doc__)
    parser.add_argument("kind", choices=list(_KINDS))
    parser.add_argument("--device", choices=list(_WINDOW_S), default="cpu")
    parser.add_argument("--tree", type=Path, required=True, help="the other working tree")
    parser.add_argument("--out", type=Path, required=True, help="file of measurements")
    parser.add_argument("--only", default="", help="rows whose names match this expression")
    parser.add_argument("--count", type=int, help="at most so many rows")
    parser.add_argument("--budget", type=float, default=float("inf"), help="prepare until then")
    parser.add_argument("--longest", type=int, default=40, help="seconds to prepare a row in")
    parser.add_argument("--pairs", type=int, default=1, help="pairs of processes")
    parser.add_argument("--ahead", type=int, default=1, help="rows that a pair prepares at once")
    return parser.parse_args()


def _measured(
    pairs: list[_Pair], names: list[str], ahead: int, rounds: int, until: float
) -> Iterator[dict[str, Any]]:
    """Lines of the rows that are prepared until then."""
    batches = deque(names)
    while batches and time.monotonic() < until:
        batch = deque(batches.popleft() for _ in range(min(len(pairs) * ahead, len(batches))))
        with ThreadPoolExecutor(len(pairs)) as threads:
            made = [threads.submit(pair.prepare, batch, until) for pair in pairs]
        yield from (line for future in made for line in future.result())
        for pair in pairs:
            yield from pair.measured(rounds)


# -- what was measured ----------------------------------------------------------------------------


def _read(path: Path) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        found.setdefault(json.loads(line)["row"], []).append(json.loads(line))
    return found


def _low(found: dict[str, list[dict[str, Any]]]) -> list[str]:
    return [n for n, lines in found.items() if lines[0].get("ratio", 1.0) < _LEAST_RATIO]


def _facts(args: argparse.Namespace) -> list[str]:
    commits = [_commit(tree) for tree in (args.tree.resolve(), _ROOT)]
    what = "time of one thread" if args.device == "cpu" else "time on the GPU"
    return [f"benchmarks.{args.kind}: {commits[0]} / {commits[1]}, {what}, medians"]


def _commit(tree: Path) -> str:
    """What git calls a tree; its folder's name where git has none."""
    describe = ["git", "-C", str(tree), "describe", "--always", "--dirty", "--exclude=*"]
    done = subprocess.run(describe, capture_output=True, text=True, check=False)
    return done.stdout.strip() or tree.name


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


# -- the processes --------------------------------------------------------------------------------


class _Pair:
    """A process of the other tree and one of this, and the rows that both have prepared."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._start = lambda: [_Process(args, root) for root in (args.tree.resolve(), _ROOT)]
        self._processes, self._ready = self._start(), list[str]()
        self._longest = args.longest

    def names(self) -> list[str]:
        """The rows that both trees have."""
        then, now = self._ask(do="names")
        if "error" in (*then, *now):
            raise SystemExit(f"before: {then}; now: {now}"[:1000])
        common = set(now)
        return [n for n in then if n in common]

    def prepare(self, batch: deque[str], until: float) -> list[dict[str, Any]]:
        """Take rows of a batch and prepare them until then; lines of those that fail."""
        lines = []
        while time.monotonic() < until:
            try:
                name = batch.popleft()
            except IndexError:
                break
            if any(p.ended for p in self._processes):  # what it had prepared is lost
                self.end()
                self._processes, self._ready = self._start(), []
            seconds = int(min(self._longest, until - time.monotonic() + 1))
            answers = self._ask(do="prepare", name=name, seconds=seconds)
            errors = [a["error"] for a in answers if "error" in a]
            if not errors:
                self._ready.append(name)
            elif time.monotonic() < until:
                lines.append({"row": name, "none": errors[0][:200]})
        return lines

    def measured(self, rounds: int) -> Iterator[dict[str, Any]]:
        """Lines of the prepared rows: the ratio and microseconds of both, or why there is none."""
        for name in self._ready:
            if any(p.ended for p in self._processes):
                break
            yield {"row": name, **self._measured(name, rounds)}
        self._ready.clear()
        self._ask(do="forget")

    def _measured(self, name: str, rounds: int) -> dict[str, Any]:
        times: list[list[float]] = [[], []]
        enough = time.monotonic() + _ENOUGH_S
        for process in self._processes:
            if error := process.answer(do="warm", name=name).get("error"):
                return {"none": error[:200]}
        for number in range(rounds):
            if number >= 3 and time.monotonic() > enough:
                break
            for side in (0, 1) if number % 2 else (1, 0):
                answer = self._processes[side].answer(do="run", name=name)
                if "error" in answer:
                    return {"none": answer["error"][:200]}
                times[side].append(answer["s"])
        then, now = map(statistics.median, times)
        return {"ratio": round(then / now, 4), "us": [float(f"{t * 1e6:.5g}") for t in (then, now)]}

    def _ask(self, **order: Any) -> list[Any]:
        """What both answer, who work at the same time."""
        for process in self._processes:
            process.tell(order)
        return [process.answer() for process in self._processes]

    def end(self) -> None:
        """Let both go."""
        for process in self._processes:
            process.end()


class _Process:
    """A process of one tree, which answers a line of JSON by one."""

    def __init__(self, args: argparse.Namespace, root: Path) -> None:
        words = ["--worker", args.kind, args.device]
        flags = f"device={args.device},keep_prepared=False,print_active_device=False"
        paths = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
        given = {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "SYMDNN_FLAGS": flags}
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).resolve()), *words],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, cwd=root, env={**os.environ, **given},
        )  # fmt: skip
        self._late = args.longest + _LATE_S
        self.ended = False

    def tell(self, order: dict[str, Any]) -> None:
        """Send an order."""
        with contextlib.suppress(OSError):  # an ended process gives no answer
            print(json.dumps(order), file=self._process.stdin, flush=True)

    def answer(self, **order: str) -> Any:
        """The answer to the last order, or to this one."""
        assert self._process.stdout is not None
        if order:
            self.tell(order)
        came = not self.ended and select.select([self._process.stdout], [], [], self._late)[0]
        text = self._process.stdout.readline() if came else ""
        answer = json.loads(text or '{"error": "the process ended", "ends": true}')
        if "ends" in answer:
            self.ended = True
            self._process.kill()
        return answer

    def end(self) -> None:
        """Let it go."""
        try:
            self._process.communicate(timeout=_LATE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()


def _work(kind: str) -> None:
    """Answer orders until the input ends, by the tree that is first on the path."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not get between the answers
    names, prepared = _KINDS[kind]
    ready: dict[str, tuple[Callable[[], Any], int]] = {}
    processors = sorted(os.sched_getaffinity(0), reverse=True)
    for line in sys.stdin:
        order = json.loads(line)
        answer: Any = {}
        try:
            if order["do"] == "names":
                answer = names()
            elif order["do"] == "prepare":
                names()  # imports
                _wait()
                signal.signal(signal.SIGALRM, _too_late)
                signal.alarm(order["seconds"])
                call = prepared(order["name"])
                ready[order["name"]] = call, 1
                _seconds(call, 1)
                signal.alarm(0)
            elif order["do"] == "warm":
                os.sched_setaffinity(0, processors[:1] if _device() == "cuda" else processors)
                call = ready[order["name"]][0]
                ready[order["name"]] = call, _calls_of(call)
            elif order["do"] == "run":
                answer = {"s": _seconds(*ready[order["name"]])}
            else:
                os.sched_setaffinity(0, processors)
                ready.clear()
                call = list
                gc.collect()
        except Exception as error:
            signal.alarm(0)
            answer = {"error": f"{type(error).__name__}: {error}", **_state()}
        print(json.dumps(answer), file=answers, flush=True)


def _too_late(*_: Any) -> None:
    raise TimeoutError("the row takes too long")


def _state() -> dict[str, bool]:
    """Whether the process has to end: a GPU whose kernel failed answers nothing more."""
    try:
        _wait()
    except Exception:
        return {"ends": True}
    return {}


def _calls_of(call: Callable[[], Any]) -> int:
    """How many calls a window has, after some that warm up."""
    until = time.monotonic() + _WARM_S
    for _ in range(_WARM_CALLS):
        call()
        _wait()
        if time.monotonic() > until:
            break
    return max(1, int(_WINDOW_S[_device()] / max(_seconds(call, 1), 2e-6)))


def _seconds(call: Callable[[], Any], calls: int) -> float:
    """The mean of some calls after one."""
    clock = time.process_time if _device() == "cpu" else time.perf_counter
    call()
    _wait()
    began = clock()
    for _ in range(calls):
        call()
    _wait()
    return (clock() - began) / calls


# -- what a tree has (in its process) -------------------------------------------------------------


def _device() -> str:
    return sys.argv[-1]


@cache
def _gpu() -> Any:
    from benchmarks.gpu.device import Device

    return Device(True)


def _wait() -> None:
    if _device() == "cuda":
        _gpu().sync()


@cache
def _op_rows() -> dict[str, Any]:
    """All rows, shuffled alike in all trees; each op class has its turn."""
    from benchmarks.ops import rows

    every = rows.all_rows()
    return {row.id: row for row in rows._in_turn(every, seed=0, count=len(every))}


def _op(name: str) -> Callable[[], Any]:
    import numpy as np

    from benchmarks.ops import program

    program._references = lambda outs, values: None  # times alone
    built = program.build(_op_rows()[name])
    f, arrays = built.function, built.arrays
    if _device() == "cuda":
        arrays = [_gpu().put(a) if np.ndim(a) else a for a in arrays]
    return lambda: f(*arrays)


def _cpu_names() -> list[str]:
    from benchmarks.cpu import spec

    return [case.name for case in spec.CASES]


def _cpu(name: str) -> Callable[[], Any]:
    from benchmarks.cpu import side_symdnn, spec

    return side_symdnn.prepare(spec.find(name), "symdnn").step


@cache
def _record_rows() -> dict[str, Callable[[], Any]]:
    """The GPU record's cases that time a call, those that take longest first; tiny on a CPU."""
    from benchmarks.gpu import symdnn_cases
    from benchmarks.workloads import pcommon

    suites: list[pcommon.Suite] = []
    pcommon.Suite.run = lambda suite: suites.append(suite)
    sys.argv[1:] = ["--tiny"] * (_device() == "cpu") + ["--budget", "1e9", "--device", _device()]
    symdnn_cases.main()
    cases = sorted(suites[0].cases, key=lambda case: -case[4])
    timed = [c for c in cases if c[5] not in (None, "first") and "/check" not in c[0]]
    return {f"{c[0]} {c[1]}": c[2] for c in timed}


class _Timed(BaseException):
    """Ends a case of the GPU record when its call is known."""


def _record(name: str) -> Callable[[], Any]:
    from benchmarks.gpu.device import Device

    calls: list[Callable[[], Any]] = []

    def time_it(_: Device, call: Callable[[], Any], *args: Any, **options: Any) -> None:
        calls.append(call)
        raise _Timed

    Device.time = time_it
    with contextlib.suppress(_Timed):
        _record_rows()[name]()
    return calls[0]


_KINDS = {
    "ops": (lambda: list(_op_rows()), _op),
    "cpu": (_cpu_names, _cpu),
    "gpu": (lambda: list(_record_rows()), _record),
}


if __name__ == "__main__":
    if "--worker" in sys.argv:
        _work(sys.argv[-2])
    else:
        raise SystemExit(main())
