"""benchmarks/gpu/record.sh, with a Python that does nothing: names, limits, what it says."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu" / "record.sh"

pytestmark = pytest.mark.skipif(
    not (shutil.which("sh") and shutil.which("timeout")), reason="it is a shell script"
)

STUB = """#!/bin/sh
case "$*" in
-c*) echo h200; exit ;;
"-m pytest"*) echo "called with $*, flags ${SYMDNN_FLAGS:-none}"; exit 1 ;;
"-m symdnn demo"*) sleep 30 ;;
*) echo "called with $*, device flag ${SYMDNN_FLAGS:-none}" ;;
esac
"""


def run(tmp_path, *steps, **environment):
    """(completed process, text of each file by its name up to the card)."""
    python = tmp_path / "python"
    python.write_text(STUB)
    python.chmod(0o755)
    out = tmp_path / "out"
    done = subprocess.run(
        [str(SCRIPT), str(out), *steps], capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHON": str(python), "SYMDNN_COMMIT": "abc", **environment},
    )  # fmt: skip
    files = sorted(out.glob("*.txt"))
    return done, {f.name.partition("-h200-")[0]: f.read_text() for f in files}


def test_steps_run_in_their_order_whatever_fails(tmp_path):
    steps = ("suite", "demo", "reference", "workloads")
    done, files = run(tmp_path, *steps, LIMIT_demo="1")
    assert done.returncode == 1
    said = [line.split(" after ")[0] for line in done.stdout.splitlines()]
    assert said == [
        "suite: failed with status 1", "demo: ran past its limit", "reference: done",
        "workloads: done",
    ]  # fmt: skip
    assert set(files) == {"gpu-suite", "gpu-demo", "gpu-reference", "workloads", "record"}
    assert files["record"] == done.stdout
    assert "commit abc, h200" in files["gpu-suite"]
    assert "called with -m pytest -m gpu -q -rs" in files["gpu-suite"]
    assert files["gpu-reference"].count("called with examples/reference/") == 4
    assert "called with -m benchmarks.gpu.report" in files["workloads"]


def test_the_suite_runs_by_either_runtime(tmp_path):
    _, files = run(tmp_path, "suite", "bindings", SYMDNN_FLAGS="device=cuda")
    assert "flags device=cuda\n" in files["gpu-suite"]
    assert "flags device=cuda,gpu.runtime=cuda-bindings\n" in files["gpu-bindings"]


def test_without_a_gpu_it_says_so_and_writes_nothing(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'no GPU: none here' >&2\nexit 1\n")
    python.chmod(0o755)
    done = subprocess.run(
        [str(SCRIPT), str(tmp_path / "out")], capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHON": str(python)},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (2, "no GPU: none here\n")
    assert not (tmp_path / "out").exists()


def test_a_step_that_there_is_not_fails(tmp_path):
    done, _ = run(tmp_path, "suites")
    assert (done.returncode, done.stdout.split(" after ")[0]) == (
        1,
        "suites: failed with status 2",
    )
