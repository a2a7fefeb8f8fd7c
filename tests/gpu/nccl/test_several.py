"""Collectives and trainings on 2 and 4 real GPUs by NCCL: the checks that MPI's ranks pass."""

import json
import subprocess
import sys
import time

import pytest

from symdnn.gpu.binding import libcuda
from symdnn.gpu.nccl.communicator import problem
from tests.distributed.harness import ROOT
from tests.environment import environment

pytestmark = pytest.mark.gpu

COUNTS = [pytest.param(2, marks=pytest.mark.gpu2), pytest.param(4, marks=pytest.mark.gpu4)]


def launched(count, *program, flags="device=cuda,distributed.timeout=60", **more):
    """A finished run of a program on so many GPUs."""
    there = len(libcuda.driver().devices)
    if there < count:
        pytest.skip(f"this machine has {there} GPUs")
    if why := problem():
        pytest.skip(why)
    command = [sys.executable, "-m", "symdnn", "launch", "-n", str(count), "--engine", "nccl"]
    return subprocess.run(
        [*command, *map(str, program)], env=environment(SYMDNN_FLAGS=flags, **more), cwd=ROOT,
        timeout=600, capture_output=True, text=True,
    )  # fmt: skip


@pytest.mark.gpu2
@pytest.mark.parametrize(("fault", "said"), [("hangs", "CollectiveTimeout"), ("dies", "rank 1")])
def test_a_rank_that_fails_ends_all(fault, said):
    program = ROOT / "tests" / "distributed" / "faulty_program.py"
    began = time.monotonic()
    done = launched(2, program, fault, flags="device=cuda,distributed.timeout=10")
    assert time.monotonic() - began < 60
    assert done.returncode != 0
    assert said in done.stdout + done.stderr
    assert "DONE" not in done.stdout
    assert "UNCHANGED=False" not in done.stdout


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("module", ["ops_checks", "train_checks"])
def test_checks_pass_on_gpus(module, count, tmp_path):
    out = tmp_path / "found"
    program = ROOT / "tests" / "distributed" / "run_checks.py"
    more = {"SYMDNN_CHECKPOINTS": str(tmp_path), "SYMDNN_NCCL": "1"}
    done = launched(count, program, out, "", module, **more)
    assert done.returncode == 0, done.stderr
    for r in range(count):
        errors = json.loads((tmp_path / f"found.{r}").read_text())["errors"]
        assert not any(errors.values())
