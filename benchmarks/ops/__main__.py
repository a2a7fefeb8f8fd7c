"""Times every op: ``python -m benchmarks.ops --device cpu --out FILE`` (see the README).

A time is compared with that of a copy of the same bytes on the same device, or with an empty
call where that takes longer: a row at 1.0 is as fast as memory allows.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import time
from pathlib import Path
from typing import Any

__all__ = ["main"]


def main(argv: list[str] | None = None) -> int:
    """Run the rows that the file does not have yet, then print the table."""
    args = _arguments(argv)
    flags = [os.environ.get("SYMDNN_FLAGS", ""), "keep_prepared=False,print_active_device=False"]
    flags.append(f"device={args.device}")
    os.environ["SYMDNN_FLAGS"] = ",".join(f for f in flags if f)
    from benchmarks.ops.rows import fixed_rows, rotated_rows, row_named
    from benchmarks.ops.timing import Timer

    rows = [row_named(n) for n in args.row] if args.row else fixed_rows()
    if args.seed:
        rows += rotated_rows(args.seed, args.count)
    out = Path(args.out)
    done = {r.get("row") for r in _read(out)}
    began, timer = time.monotonic(), Timer(args.device == "cuda")
    with out.open("a", encoding="utf-8") as file:
        _write(file, {"facts": {**timer.facts(), "date": str(datetime.date.today())}})
        for row in rows:
            if row.id in done:
                continue
            if time.monotonic() - began > args.budget:
                break
            _write(file, timer.record(row))
    from benchmarks.ops.report import table

    print("\n".join(table(_read(out), args.worst)))
    return 0


def _arguments(argv: list[str] | None) -> Any:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ops", description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--out", default="ops.jsonl", help="file of records; it is gone on with")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds to stop after")
    parser.add_argument("--seed", type=int, default=0, help="also rows of this rotation")
    parser.add_argument("--count", type=int, default=200, help="how many of them")
    parser.add_argument("--row", action="append", help="only the row with this id")
    parser.add_argument("--worst", type=int, default=25, help="lines of the slowest rows")
    return parser.parse_args(argv)


def _read(path: Path) -> list[dict[str, Any]]:
    from benchmarks.records import read

    return list(read([path])) if path.exists() else []


def _write(file: Any, record: dict[str, Any]) -> None:
    file.write(json.dumps(record) + "\n")
    file.flush()


if __name__ == "__main__":
    raise SystemExit(main())
