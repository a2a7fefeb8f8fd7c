"""Starts programs of several processes by the MPI that mpi4py finds here."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.environment import environment

ROOT = Path(__file__).parents[2]


def launcher():
    """``mpiexec`` of the wheel in this environment, else of the system."""
    own = Path(sys.executable).parent / "mpiexec"
    return str(own) if own.exists() else shutil.which("mpiexec")


def run(count, *arguments, timeout=100, limit=20, flags="device=cpu"):
    """A finished run of ``python ARGUMENTS`` in so many processes."""
    pytest.importorskip("mpi4py")
    if launcher() is None:
        pytest.skip("there is no mpiexec")
    env = environment(OMP_NUM_THREADS="1")
    env["SYMDNN_FLAGS"] = f"{flags},distributed.timeout={limit}"
    command = [launcher(), "-n", str(count), sys.executable, "-W", "error", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, env=env, cwd=ROOT
    )


def checks(count, folder, *modules, only=(), **options):
    """What each rank returned in the checks of some modules (``only`` these), which must pass."""
    out = Path(folder) / f"checks{count}"
    done = run(
        count, "-m", "tests.distributed.run_checks", out, ",".join(only), *modules, **options
    )
    found = []
    for r in range(count):
        path = Path(f"{out}.{r}")
        assert path.exists(), f"rank {r} wrote nothing:\n{done.stdout}\n{done.stderr}"
        found.append(json.loads(path.read_text()))
    errors = {name: text for f in found for name, text in f["errors"].items() if text}
    own = [text for text in errors.values() if "PeerFailed" not in text]
    assert not errors, "\n".join(own or errors.values())
    assert done.returncode == 0, done.stderr
    return found
