"""Starts programs of several processes by the MPI that mpi4py finds here."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def launcher():
    """``mpiexec`` of the wheel in this environment, else of the system."""
    own = Path(sys.executable).parent / "mpiexec"
    return str(own) if own.exists() else shutil.which("mpiexec")


def run(count, *arguments, timeout=100, limit=20, **environment):
    """A finished run of ``python ARGUMENTS`` in so many processes."""
    pytest.importorskip("mpi4py")
    if launcher() is None:
        pytest.skip("there is no mpiexec")
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **environment}
    env["SYMDNN_FLAGS"] = f"device=cpu,distributed.timeout={limit}"
    command = [launcher(), "-n", str(count), sys.executable, "-W", "error", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, env=env, cwd=ROOT
    )


def checks(count, folder, *modules, timeout=100):
    """The errors of all checks of some modules, by name, and what each rank returned."""
    out = Path(folder) / f"checks{count}"
    done = run(count, "-m", "tests.distributed.run_checks", out, *modules, timeout=timeout)
    found = []
    for r in range(count):
        path = Path(f"{out}.{r}")
        assert path.exists(), f"rank {r} wrote nothing:\n{done.stdout}\n{done.stderr}"
        found.append(json.loads(path.read_text()))
    if any(e for f in found for e in f["errors"].values()):
        wrong = {n: e for f in found for n, e in f["errors"].items() if e and "PeerFailed" not in e}
        raise AssertionError("\n".join(wrong.values()) or done.stderr)
    assert done.returncode == 0, done.stderr
    return found
