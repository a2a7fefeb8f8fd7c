"""The record of a run on a GPU: the machine, the versions, how many tests of each file passed."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections import Counter, defaultdict
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

__all__ = ["record"]

ROOT = Path(__file__).parents[2]
PACKAGES = ("numpy", "pycuda", "cuda-bindings", "nvidia-cudnn-frontend", "pytest")
OUTCOMES = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")


def record(stats, marked, seconds):
    """The lines of the record, from pytest's reports by outcome; none where no GPU test ran.

    ``marked`` are the node ids of the tests that are marked ``gpu``.
    """
    counts = by_file(stats, marked)
    if not any(c[o] for c in counts.values() for o in ("passed", "failed", "error")):
        return []
    head = [f"{name:12}{value}" for name, value in facts(seconds).items()]
    rows = [f"{file:44}{shown(counts[file])}" for file in sorted(counts)]
    total = sum(counts.values(), Counter())
    return [*head, "", *rows, f"{'all':44}{shown(total)}"]


def by_file(stats, marked):
    """Outcomes of the marked tests, counted for each file."""
    counts = defaultdict(Counter)
    for outcome in OUTCOMES:
        for report in stats.get(outcome, ()):
            if getattr(report, "nodeid", None) in marked:
                counts[report.nodeid.partition("::")[0]][outcome] += 1
    return counts


def shown(counts):
    return ", ".join(f"{counts[o]} {o}" for o in OUTCOMES if counts[o])


def facts(seconds):
    """What the numbers belong to."""
    from symdnn.gpu.binding.libcuda import driver
    from symdnn.gpu.detect import version
    from symdnn.gpu.device.driver_api import wanted

    found, cudnn = driver(), version(raises=False)
    cuda = "unknown" if found.version is None else ".".join(map(str, found.version))
    parts = (cudnn // 10000, cudnn % 10000 // 100, cudnn % 100)
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "commit": commit(),
        "GPU": str(found),
        "driver": kernel_driver(),
        "CUDA": f"{cuda} (the driver's)",
        "cuDNN": ".".join(map(str, parts)) if cudnn > 0 else "none",
        "runtime": wanted(),
        "Python": f"{platform.python_version()}, {packages()}",
        "machine": f"{platform.system()}, {platform.machine()}, {' '.join(platform.libc_ver())}",
        "seconds": f"{seconds:.0f}",
    }


def commit():
    """The commit that ran; ``SYMDNN_COMMIT`` says it where there is no git repository."""
    if "SYMDNN_COMMIT" in os.environ:
        return os.environ["SYMDNN_COMMIT"]
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def kernel_driver():
    try:
        line = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8").splitlines()[0]
    except OSError:
        return "unknown"
    version = re.search(r"\d+\.\d+(\.\d+)?", line)
    return version.group() if version else "unknown"


def packages():
    found = []
    for name in PACKAGES:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            found.append(f"no {name}")
    return ", ".join(found)
