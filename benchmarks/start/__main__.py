"""First calls and peak memory of the same programs by symdnn, JAX and PyTorch.

    python -m benchmarks.start [PROGRAM ...] [--sides symdnn,jax] [--rounds 3] [--peers PYTHON]
    python -m benchmarks.start --memory [PROGRAM ...]

Each figure is of a fresh process; the sides take turns. ``cold`` has empty caches, ``second`` those
of the cold process. A row has seconds of the clock and of processors, waiting compilers and child
processes included: of the import, and from then to the first result. ``--memory`` prints the peak
of resident memory in a few steps over what it was after the import, and symdnn's plan.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.cpu.fresh import caches
from benchmarks.start import programs

NAMES = [*programs.PROGRAMS, "many100"]


def _used() -> float:
    """Processor seconds of this process, and of those that it has ended."""
    return sum(
        u.ru_utime + u.ru_stime
        for u in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def child(side: str, name: str, memory: bool) -> dict[str, Any]:
    """One side's figures in this process."""
    import numpy as np

    made = [programs.PROGRAMS[name](1 + memory)] if name != "many100" else programs.many()
    clock, used = time.perf_counter(), _used()
    from benchmarks.start.faces import FACES

    face = FACES[side]()
    loaded = (time.perf_counter(), _used())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sums = []
    for program in made:
        step = face.prepare(program, name in programs.TRAINING)
        sums.append(float(np.sum(step(), dtype="float64")))
    first = (time.perf_counter(), _used())
    for _ in range(4 * memory):
        step()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    found = {
        "import_s": loaded[0] - clock, "import_cpu": loaded[1] - used,
        "first_s": first[0] - loaded[0], "first_cpu": first[1] - loaded[1],
        "sum": sum(sums), "peak_mb": peak / 1024, "import_mb": before / 1024,
    }  # fmt: skip
    if memory and side == "symdnn":
        found["plan"] = str(face.f.memory_report())
    return found


def ask(args: argparse.Namespace, side: str, name: str, env: dict[str, str]) -> dict[str, Any]:
    """The figures of a fresh process."""
    python = sys.executable if side == "symdnn" else args.peers
    command = [python, "-m", "benchmarks.start", name, "--child", side] + ["--memory"] * args.memory
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=env, timeout=args.timeout, check=False
        )
    except subprocess.TimeoutExpired:
        return {"error": f"over {args.timeout} s"}
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1][:200]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    found["all_cpu"] = sum(getattr(after, k) - getattr(before, k) for k in ("ru_utime", "ru_stime"))
    return found


def measure(args: argparse.Namespace, name: str) -> None:
    """Print a program's rows: medians of rounds in which the sides take turns."""
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    sides = args.sides.split(",")
    for _ in range(args.rounds):
        for side in sides:
            with tempfile.TemporaryDirectory() as folder:
                env = caches(Path(folder), args.threads)
                for when in ("cold", "second") if not args.memory else ("memory",):
                    found = ask(args, side, name, env)
                    rows.setdefault((side, when), []).append(found)
                    if "error" in found:
                        break
    for (side, when), found in rows.items():
        errors = [f["error"] for f in found if "error" in f]
        if errors:
            print(f"{name:11} {side:14} {when:7} {errors[0]}", flush=True)
            continue
        m = {k: statistics.median(f[k] for f in found) for k in found[0] if k != "plan"}
        if args.memory:
            line = f"peak {m['peak_mb']:7.0f} MB over {m['import_mb']:4.0f} after the import"
        else:
            line = (
                f"first call {m['first_s']:7.2f} s, processors {m['first_cpu']:7.2f} s, "
                f"import {m['import_cpu']:5.2f} s, all of the process {m['all_cpu']:7.2f} s"
            )
        print(f"{name:11} {side:14} {when:7} {line}  (sum {m['sum']:.5g})", flush=True)
        if "plan" in found[0]:
            print(found[0]["plan"])


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("programs", nargs="*", default=NAMES, metavar="PROGRAM")
    parser.add_argument("--sides", default="symdnn,jax,torch.compile")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=200.0)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--peers", default=os.environ.get("SYMDNN_PEERS", sys.executable))
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if unknown := set(args.programs) - set(NAMES):
        parser.error(f"no program {sorted(unknown)[0]!r}: there are {', '.join(NAMES)}")
    if args.child:
        print(json.dumps(child(args.child, args.programs[0], args.memory)))
        return
    for name in args.programs:
        measure(args, name)


if __name__ == "__main__":
    main()
