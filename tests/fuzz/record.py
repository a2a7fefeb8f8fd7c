"""The record of a run, for ``benchmarks/results/``."""

from __future__ import annotations

import json
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


def write_record(path: Path, options: Any, outcomes: list[Any]) -> None:
    """Date, commit, machine, seeds, counts and failures, as JSON."""
    record = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit(),
        "machine": machine(options.device),
        "python": platform.python_version(),
        "processes": options.processes,
        "areas": [
            {
                "area": o.area,
                "seed": o.seed,
                o.unit: o.tried,
                "cases": o.cases,
                "seconds": round(o.seconds),
                "failures": [f"{f.index}: {f.message}" for f in o.failures],
            }
            for o in outcomes
        ],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")


def commit() -> str:
    """The commit, and whether files differ from it."""
    said = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return said.stdout.strip() or "unknown"


def machine(device: str) -> str:
    """Processor, and the GPU where one is used."""
    model = platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(x.split(":")[1].strip() for x in lines if x.startswith("model name"))
    except (OSError, StopIteration):
        pass
    if not device:
        return model
    from symdnn.gpu.execution.runtime import runtime

    return f"{runtime(0).context.name}, {model}"
