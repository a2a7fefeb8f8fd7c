"""What only a fresh process shows: the time to a first step, cold and warm, and peak memory."""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.cpu.sides import Process, environment

if TYPE_CHECKING:
    from benchmarks.cpu.run import Record

__all__ = ["FIRST", "MEMORY", "caches", "run"]

_SIDES = ("symdnn", "torch", "torch.compile", "jax", "pytensor")

#: row -> (case, sides): seconds from an imported framework to the first result.
FIRST = {
    "compile/lenet5": ("net/lenet5_b64/train", _SIDES[:4]),
    "compile/resnet20": ("net/resnet20_b64/train", _SIDES[:4]),
    "compile/mlp512": ("net/mlp512_b128/train", _SIDES),
}

#: row -> (case, sides): megabytes at the peak of a step.
MEMORY = {
    "memory/lenet5": ("net/lenet5_b64/train", _SIDES[:4]),
    "memory/resnet20": ("net/resnet20_b64/train", _SIDES[:4]),
}


def caches(folder: Path, threads: int) -> dict[str, str]:
    """An environment in which every library caches compiled code in this folder."""
    return environment(
        threads,
        SYMDNN_FLAGS=f"base_compiledir={folder / 'symdnn'}",
        TORCHINDUCTOR_CACHE_DIR=str(folder / "inductor"),
        JAX_COMPILATION_CACHE_DIR=str(folder / "jax"),
        JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
        JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES="-1",
        PYTENSOR_FLAGS=f"base_compiledir={folder / 'pytensor'}",
        NUMBA_CACHE_DIR=str(folder / "numba"),
    )


def run(args: argparse.Namespace, record: Record, done: set[Any], seconds: float) -> list[str]:
    """Measure missing rows for this many seconds; returns the rows that are left."""
    began, left = time.monotonic(), []
    for part, rows in (("first", FIRST), ("memory", MEMORY)):
        for row, (case, sides) in rows.items() if part in args.part else ():
            for side in sides:
                if args.sides and side not in args.sides.split(","):
                    continue
                key = f"{row}/cold" if part == "first" else row
                if not re.search(args.only, row) or (key, side) in done:
                    continue
                if time.monotonic() - began > seconds:
                    left.append(f"{row} {side}")
                    continue
                measured = (_first if part == "first" else _memory)(args, case, side)
                for name, found in measured.items():
                    record.add(f"{row}{name}", side, found)
                    print(f"{row}{name} {side}: {found}", flush=True)
    return left


def _worker(args: argparse.Namespace, side: str, env: dict[str, str]) -> Process:
    framework = side.split(".")[0]
    python = sys.executable if framework == "symdnn" else args.peers_python
    return Process(python, framework, env, args.tiny, args.nice)


def _first(args: argparse.Namespace, case: str, side: str) -> dict[str, dict[str, Any]]:
    """Cold: with empty caches. Warm: with the caches of the cold run."""
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("/cold", "/warm"):
            try:
                process = _worker(args, side, caches(Path(folder), args.threads))
            except RuntimeError as error:
                return {name: {"error": str(error)}}
            answer = process.ask("prepare", case=case, variant=side)
            loading = process.ask("facts").get("import_s")
            process.end()
            if "error" in answer:
                return {**found, name: {"error": answer["error"]}}
            found[name] = {"s": answer["first_s"], "import_s": loading}
    return found


def _memory(args: argparse.Namespace, case: str, side: str) -> dict[str, dict[str, Any]]:
    try:
        process = _worker(args, side, environment(args.threads))
    except RuntimeError as error:
        return {"": {"error": str(error)}}
    answer = process.ask("memory", case=case, variant=side)
    process.end()
    return {"": answer}
