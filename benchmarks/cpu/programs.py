"""The programs of :mod:`benchmarks.gpu.program_texts` on the CPU: symdnn beside PyTorch.

    python -m benchmarks.cpu.programs [NAME ...] [--threads 2] [--forward] [--out FILE]

A row is a step of training with Adam (or the loss alone) in float32, with the same weights. Each
side is a process of its own on the same cores; they run windows of steps in turn. With one thread
the time is the processor's, else the clock's: the median of windows. Printed is the best peer's
time over ours; no row counts whose first losses differ.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

import numpy as np

from benchmarks.cpu.sides import AVX2, ROOT, environment
from benchmarks.gpu.device import commit
from benchmarks.gpu.programs import STEPS_COMPARED, symdnn_step, torch_step
from tests.cpu import older_processor

__all__ = ["main"]

_WINDOW_S, _WARM_S = 0.1, 0.2
#: How far the first losses may be apart, and those after steps of Adam, as a part of them.
_PARTS = np.array([1e-4] + [1e-2] * (STEPS_COMPARED - 1))
_TEXTS = "benchmarks.gpu.program_texts"


def serve(side: str, name: str, args: argparse.Namespace) -> None:
    """Say the first losses; then, for each line, the time of a step in a window of them."""
    if args.avx2 and side == "symdnn":
        older_processor.pretend()
    clock = time.process_time if args.threads == 1 else time.perf_counter
    program = importlib.import_module(args.texts).PROGRAMS[name](args.size)
    train = not args.forward
    if side == "symdnn":
        step = symdnn_step(program, train)
    else:
        importlib.import_module("torch").set_num_threads(args.threads)
        step = torch_step(program, "cpu", side, train)
    began = time.perf_counter()
    losses = [float(step()) for _ in range(STEPS_COMPARED)]
    first_s, until = time.perf_counter() - began, time.perf_counter() + _WARM_S
    took = []
    while len(took) < 3 or time.perf_counter() < until:
        began = time.perf_counter()
        step()
        took.append(time.perf_counter() - began)
    count = max(1, int(_WINDOW_S / min(took)))
    print(json.dumps({"losses": losses, "first_s": round(first_s, 2)}), flush=True)
    for _ in sys.stdin:
        began = clock()
        for _ in range(count):
            step()
        print((clock() - began) / count, flush=True)


class _Side:
    """A process that runs windows of one side's steps."""

    def __init__(self, side: str, name: str, args: argparse.Namespace) -> None:
        cores = sorted(os.sched_getaffinity(0))[-args.threads :]
        command = [sys.executable, "-m", "benchmarks.cpu.programs", name, "--serve", side]
        command += ["--texts", args.texts, "--size", args.size, "--threads", str(args.threads)]
        command += ["--forward"] * args.forward + ["--avx2"] * args.avx2
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
            env=environment(args.threads, **(AVX2 if args.avx2 else {})),
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )  # fmt: skip
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        self.facts: dict[str, Any] = json.loads(line) if line else {}
        self.times: list[float] = []

    def run(self) -> None:
        """A window."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self.times.append(float(self._process.stdout.readline()))

    def end(self) -> None:
        """Let the process go."""
        self._process.communicate()


def one(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """A row: the losses, first calls and milliseconds of each side."""
    asked = ["symdnn", *filter(None, args.peers.split(","))]
    all_sides = {side: _Side(side, name, args) for side in asked}
    sides = {n: s for n, s in all_sides.items() if s.facts}
    for _ in range(args.rounds):
        for side in sides.values():
            side.run()
    row: dict[str, Any] = {"program": name}
    for n, s in all_sides.items():
        s.end()
        row[n] = s.facts | {"ms": round(1e3 * statistics.median(s.times), 4)} if s.facts else {}
    return row


def shown(row: dict[str, Any]) -> tuple[float, str]:
    """The ratio and the line of a row."""
    own, peers = row["symdnn"], {k: r for k, r in row.items() if k not in ("program", "symdnn")}
    peers = {k: r for k, r in peers.items() if r}
    if not own or not peers:
        return 0.0, f"  none  {row['program']}"
    best = min(r["ms"] for r in peers.values()) / own["ms"]
    far = np.max([np.abs(np.divide(own["losses"], r["losses"]) - 1) for r in peers.values()], 0)
    ratios = ", ".join(f"{k} {r['ms'] / own['ms']:.2f}" for k, r in peers.items())
    line = f"{best:6.2f}  {row['program']:20} {own['ms']:9.3f} ms  {ratios}  off {far.max():.0e}"
    return best, line if (far < _PARTS).all() else f" wrong  {line}"


def main() -> None:
    """Time the programs that are named, or all, and print them, slowest first."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="programs")
    parser.add_argument("--peers", default="eager,compile")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--forward", action="store_true", help="the loss without a step")
    parser.add_argument("--avx2", action="store_true", help="as a processor without AVX-512")
    parser.add_argument("--size", default="cpu", help="the size that the texts are asked for")
    parser.add_argument("--texts", default=_TEXTS, help="the module that has PROGRAMS")
    parser.add_argument("--out", help="a file that the table is written to")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve, args.names[0], args)
        return
    found = []
    for name in args.names or importlib.import_module(args.texts).PROGRAMS:
        found.append(shown(one(name, args)))
        print(found[-1][1], flush=True)
    what = ("the loss alone" if args.forward else "a step of training") + (
        ", as with AVX2" * args.avx2
    )
    clock = "processor time" if args.threads == 1 else "time"
    facts = f"{datetime.date.today()}, {args.threads} threads, commit {commit()}, {what}"
    lines = [facts, f"best peer's {clock} / symdnn's, medians of alternated windows", ""]
    lines += [line for _, line in sorted(found)]
    if args.out:
        with open(args.out, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
