"""Where a step of symdnn spends its time, op by op.

    python -m benchmarks.cpu.profile_case net/lenet5_b64/train [--calls 30] [--top 15] [--graph]

A step's time is its least time over all calls, so that other load on the machine matters little. A
step is printed with the megabytes that it reads and writes. ``call`` is the least time of a whole
call without the profile, ``around`` the part of it outside of steps.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

__all__ = ["main", "steps_of"]


def steps_of(function: Any, step: Callable[[], Any], calls: int) -> list[tuple[float, int, str]]:
    """(least seconds in a call, how many there are, op and shapes), the longest first."""
    profile = function.profile
    least: dict[Any, float] = {}
    before: dict[Any, float] = {}
    for _ in range(calls):
        step()
        for entry in profile.nodes.values():
            spent = entry.seconds - before.get(entry.node, 0.0)
            before[entry.node] = entry.seconds
            least[entry.node] = min(spent, least.get(entry.node, spent))
    found: dict[str, list[float]] = defaultdict(lambda: [0.0, 0])
    for node, seconds in least.items():
        moved = profile.nodes[node].bytes_moved / profile.nodes[node].calls
        entry = found[f"{moved / 1e6:.2f} MB  {name_of(node)}"]
        entry[0] += seconds
        entry[1] += 1
    return sorted(((s, int(n), name) for name, (s, n) in found.items()), reverse=True)


def name_of(node: Any) -> str:
    """An op with the properties that tell it from others of its kind."""
    return str(node.op)[:130]


def least_call(step: Callable[[], Any], calls: int) -> float:
    """Seconds of the fastest call."""
    times = []
    for _ in range(calls):
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    return min(times)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case")
    parser.add_argument("--calls", type=int, default=30)
    parser.add_argument("--top", type=int, default=15)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--graph", action="store_true", help="print the compiled graph too")
    args = parser.parse_args()
    own = os.environ.get("SYMDNN_FLAGS", "")
    from benchmarks.cpu import side_symdnn, spec

    case = spec.find(args.case, args.tiny)
    plain = side_symdnn.prepare(case, "symdnn")
    for _ in range(3):
        plain.step()
    whole = least_call(plain.step, args.calls)
    import symdnn

    with symdnn.config.change_flags(profile=True):
        job = side_symdnn.prepare(case, "symdnn")
    for _ in range(3):
        job.step()
    rows = steps_of(job.function, job.step, args.calls)
    total = sum(s for s, _, _ in rows)
    print(f"{args.case} {own}: call {whole * 1e3:.3f} ms, steps {total * 1e3:.3f} ms, around "
          f"{(whole - total) * 1e3:.3f} ms, {sum(n for _, n, _ in rows)} steps")  # fmt: skip
    for seconds, count, name in rows[: args.top]:
        print(f"{seconds * 1e3:10.4f} ms {seconds / total * 100:5.1f}% {count:4d}x  {name}")
    job.function.profile.calls = 0  # already shown: nothing at exit
    if args.graph:
        symdnn.dprint(job.function)


if __name__ == "__main__":
    main()
