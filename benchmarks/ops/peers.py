"""Large rows of the op table beside JAX, PyTorch and NumPy: ``python -m benchmarks.ops.peers``.

The peers' programs are told of the records' formulas (:mod:`benchmarks.ops.sides`). NumPy is a peer
on a CPU, in forward rows. There time is the processor's, with one thread, the median of rounds in
which the libraries take turns; ``--avx2`` runs all of them as without AVX-512.

Some processes compile the rows and look at their numbers; then one after the other measures its
own, while the others wait (:mod:`benchmarks.ops.in_turn`). A single process measures each row when
it is compiled. A row's bytes are those of operands and results; a copy of as many is measured
beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import records
from benchmarks.cpu.nest import Nest, rows_of
from benchmarks.cpu.sides import AVX2, environment
from benchmarks.gpu import rows as gpu_rows
from benchmarks.gpu.device import Device, commit, set_flags, time_limit, wide
from benchmarks.ops import in_turn
from benchmarks.ops.program import NotThere
from benchmarks.ops.rows import Row, huge_rows, large_rows
from benchmarks.ops.sides import nest_row
from benchmarks.workloads import pcommon

__all__ = ["main", "report"]

#: Seconds that a row may take: its arrays, its numbers in float64, what is compiled.
_ROW_S = 20.0
#: Seconds of a peer's first call.
_FIRST_S = 6.0
#: Seconds of a call after which only one more is timed.
_LONG_CALL_S = 0.1
#: About how many numbers of a result are compared.
_LOOKED_AT = 1 << 17
#: Seconds of a side's calls that are timed, and of those before.
_TIMED_S, _WARM_S = 0.03, 0.01
#: Rounds on a CPU, where each call waits: what is still computed would be of the next side's time.
_ROUNDS = 3


#: Begins a process as on a processor without AVX-512, before symdnn is imported.
_OLDER = """
from tests.cpu import older_processor
older_processor.pretend()
from benchmarks.ops.peers import main
raise SystemExit(main())
"""


def main(argv: list[str] | None = None) -> int:
    """Time rows of a rotation of the op table, of each op in turn another."""
    given = _arguments(argv)
    if given.worker:
        _Worker(given).run()
        return 0
    passed = list(sys.argv[1:] if argv is None else argv)
    until = time.time() + given.prepare_seconds
    command = [sys.executable, "-m", "benchmarks.ops.peers", *passed, "--worker"]
    set_flags(given.device == "cuda")  # the processes import symdnn after that
    if given.device == "cpu":
        alone = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
        os.environ.update(environment(1, **(AVX2 if given.avx2 else alone)))
    if given.avx2:
        command[1:3] = ["-c", _OLDER]
    commands = [[*command, f"{k}/{given.processes}/{until}"] for k in range(given.processes)]
    found, notes = in_turn.children(commands, given.prepare_seconds, given.measure_seconds)
    lines = [f"commit {commit()}, {len(found)} rows", *notes, *report(found, given.worst)]
    print("\n".join(lines))
    if given.out:
        text = "".join(json.dumps(r) + "\n" for r in found)
        Path(given.out).write_text(text, encoding="utf-8")
    return 0


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ops.peers", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", default="", help="rows whose names match this expression")
    parser.add_argument("--module", default="", help="whose rows are taken, not the op table's")
    parser.add_argument("--compile-seconds", type=float, default=0, help="of torch.compile")
    parser.add_argument("--seed", type=int, default=1, help="which rotation of the rows")
    parser.add_argument("--count", type=int, default=200, help="how many rows of 16 MB")
    parser.add_argument("--huge", type=int, default=0, help="how many rows of 256 MB")
    parser.add_argument("--orders", default="contiguous,transposed", help="or strided, of operands")
    parser.add_argument("--size", default="large", help="or middle, small")
    parser.add_argument("--avx2", action="store_true", help="as a processor without AVX-512")
    parser.add_argument("--dtypes", default="float32", help="of the rows, with commas")
    parser.add_argument("--processes", type=int, default=6, help="that compile side by side")
    parser.add_argument("--prepare-seconds", type=float, default=60, help="for compiling, in all")
    parser.add_argument("--measure-seconds", type=float, default=60, help="for measuring, in all")
    parser.add_argument("--worst", type=int, default=50, help="lines of the slowest rows")
    parser.add_argument("--out", help="file of records that is written")
    parser.add_argument(
        "--worker", help="which of how many processes it is, until when it prepares"
    )
    return parser.parse_args(argv)


# -- one process ----------------------------------------------------------------------------------


def _mixed(rows: list[Row], others: list[Row]) -> list[Row]:
    """All rows, the others at equal distances."""
    places = [(i / len(some), r) for some in (rows, others) for i, r in enumerate(some)]
    return [r for _, r in sorted(places, key=lambda place: place[0])]


class _Worker:
    """Prepares each nth row, and measures these in its turn."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given, on_gpu = given, given.device == "cuda"
        if on_gpu:  # the host's work is compiling and tracing, of as many processes as it has cores
            os.environ.setdefault("OMP_NUM_THREADS", "1")
            os.environ.setdefault("XLA_FLAGS", "--xla_gpu_force_compilation_parallelism=1")
        self.begin = time.perf_counter()
        first_s = _FIRST_S + given.compile_seconds
        self.run_of = gpu_rows.Run(
            Device(on_gpu), True, given.compile_seconds, waits=not on_gpu, first_s=first_s,
            alone=False, looked_at=_LOOKED_AT,
        )  # fmt: skip
        self.device = self.run_of.device
        self.tried = "middle" if on_gpu else "small"
        if not on_gpu:
            self.run_of.peers["numpy"] = _NumPy()

    def run(self) -> None:
        """Do the work."""
        given, (k, n, until) = self.given, map(float, self.given.worker.split("/"))
        rows = [r for r in self._rows() if re.search(given.only, _name(r))][int(k) :: int(n)]
        started, left = time.perf_counter() - self.begin, until - time.time()
        print(f"process {k:.0f}: {started:.0f} s to start, {left:.0f} s for {len(rows)} rows")
        if n > 1:
            in_turn.work(rows, self.prepared, self.measured, left)
            return
        in_turn.work(
            rows, lambda *given: self.measured(self.prepared(*given)), lambda record: record, left
        )

    def _rows(self) -> list[Any]:
        given = self.given
        if given.module:
            return list(rows_of(given.module))
        asked = given.dtypes.split(","), given.orders.split(","), given.size
        return _mixed(
            large_rows(given.seed, given.count, *asked), huge_rows(given.seed, given.huge)
        )

    def prepared(self, row: Any, seconds: float) -> tuple[Any, Any, str]:
        """The row, its calls, and why there are none."""
        self.run_of.compare = getattr(row, "size", "") != "huge"
        limit, began = min(seconds, _ROW_S + self.given.compile_seconds), time.perf_counter()
        try:
            with time_limit(limit, NotThere(f"it takes longer than {limit:.0f} s")):
                nest = row if isinstance(row, Nest) else nest_row(row, self.tried)
                made = time.perf_counter() - began
                ready = self.run_of.prepared(nest)
                ready.seconds.insert(0, made)
                self.run_of.found.clear()
                ready.row = replace(ready.row, arrays=())  # the host has enough of them
                return row, ready, ""
        except NotThere as reason:
            return row, None, str(reason).splitlines()[0][:90]
        except Exception as error:
            return row, None, f"{type(error).__name__}: {error}"[:200]

    def measured(self, made: tuple[Any, Any, str]) -> dict[str, Any]:
        """The record: ``ms`` of each side and of a copy, ``nbytes``, ``notes``."""
        row, ready, why = made
        record: dict[str, Any] = {"row": _name(row), "notes": [why] if why else []}
        if ready is None:
            return record
        record["notes"] += ready.notes
        record["prepare_s"] = [round(t, 2) for t in ready.seconds]
        calls = {side: call for side, (call, _) in ready.calls.items()}
        times: dict[str, list[float]] = {}
        for _ in range(1 if self.device.on_gpu else _ROUNDS):
            for side, call in [*calls.items()]:
                try:
                    times[side] = [*times.get(side, ()), self._ms(call)]
                    if "copy" not in calls:
                        calls["copy"] = self._copy(record, ready)
                except Exception as error:
                    record["notes"].append(f"{side}: {type(error).__name__}: {error}"[:120])
                    del calls[side]
        if "copy" in calls and "copy" not in times:
            times["copy"] = [self._ms(calls["copy"])]
        record.update({side: statistics.median(found) for side, found in times.items()})
        ready.calls.clear()
        return record

    def _ms(self, call: Any) -> float:
        if not self.device.on_gpu:
            return _processor_ms(call)
        self.run_of.sync()
        begin = time.perf_counter()
        call()
        self.run_of.sync()
        once = time.perf_counter() - begin
        if once > _LONG_CALL_S:  # or it was the one that made a graph, or waited for memory
            begin = time.perf_counter()
            call()
            self.run_of.sync()
            again = time.perf_counter() - begin
            if again > _LONG_CALL_S:
                return 1e3 * again
        return float(
            pcommon.time_loop(call, self.run_of.sync, min_t=_TIMED_S, warm_t=_WARM_S)["ms"]
        )

    def _copy(self, record: dict[str, Any], ready: Any) -> Any:
        """The call of a copy that reads and writes as many bytes as operands and results have."""
        results = ready.calls["symdnn"][0]()
        record["nbytes"] = ready.nbytes + sum(int(r.nbytes) for r in results)
        half = max(record["nbytes"] // 2, 8)
        a, b = (self.device.put(np.ones(half, np.uint8)) for _ in range(2))
        if not self.device.on_gpu:
            return lambda: np.copyto(b, a)
        return lambda: self.device.copy(b, a, half)


def _name(row: Row | Nest) -> str:
    return row.name if isinstance(row, Nest) else row.id


def _processor_ms(call: Any) -> float:
    """Milliseconds of the processor, after a call that is not timed."""
    call()
    begin, count, took = time.process_time(), 0, 0.0
    while took < _TIMED_S:
        call()
        count += 1
        took = time.process_time() - begin
    return 1e3 * took / count


class _NumPy(gpu_rows.Peer):
    version = np.__version__

    def call(self, f: Any, arrays: list[Any], compiled: bool = False) -> Any:
        return lambda: f(*arrays), lambda: 0

    def host(self, value: Any) -> np.ndarray:
        return wide(value)


# -- what was found -------------------------------------------------------------------------------


def report(found: Iterable[dict[str, Any]], worst: int) -> list[str]:
    """Lines: how many rows a peer is ahead in, what failed, the worst rows first."""
    rows = list(found)
    failed = [r for r in rows if "symdnn" not in r]
    beside = sorted(
        ((min(r[p] for p in _PEERS if p in r) / r["symdnn"], r) for r in rows
         if "symdnn" in r and any(p in r for p in _PEERS)), key=lambda pair: pair[0],
    )  # fmt: skip
    ratios = [ratio for ratio, _ in beside]
    lines = [
        f"{len(beside)} beside a peer: {sum(r >= 1 for r in ratios)} at 1.0 or more, "
        f"{sum(0.9 <= r < 1 for r in ratios)} at 0.9 to 1, {sum(r < 0.9 for r in ratios)} below"
    ]
    huge = [r for r in rows if "/huge/" in r["row"] and "symdnn" in r]
    slow = [r for r in huge if r.get("copy", 0) < 0.85 * r["symdnn"]]
    lines.append(
        f"{len(huge)} rows of 256 MB, {len(slow)} of them slower than 0.85 of a copy's rate"
    )
    body = [("best peer", "copy", "ms", "torch", "compiled", "jax", "NumPy", "row")]
    body += [(_ratio(ratio), *_columns(r)) for ratio, r in beside[:worst]]
    body += [("", *_columns(r)) for r in slow]
    lines += records.table(body)
    return lines + [f"FAILED {r['row']}: {'; '.join(r['notes'])}"[:200] for r in failed]


_PEERS = ("torch", "compiled", "jax", "numpy")


def _columns(r: dict[str, Any]) -> tuple[str, ...]:
    numbers = [r.get("copy", 0) / r["symdnn"], *(r.get(n) for n in ("symdnn", *_PEERS))]
    return (*(_ratio(n) if n is not None else "-" for n in numbers), r["row"])


def _ratio(value: float) -> str:
    return records.number(value, 3)


if __name__ == "__main__":
    raise SystemExit(main())
