"""Collectives and trainings on 2 and 4 real GPUs by NCCL: the checks that MPI's ranks pass."""

import json
import subprocess
import sys

import pytest

from symdnn.gpu.binding import libcuda
from symdnn.gpu.nccl.communicator import problem
from tests.distributed.harness import ROOT
from tests.environment import environment

pytestmark = pytest.mark.gpu

COUNTS = [pytest.param(2, marks=pytest.mark.gpu2), pytest.param(4, marks=pytest.mark.gpu4)]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("module", ["ops_checks", "train_checks"])
def test_checks_pass_on_gpus(module, count, tmp_path):
    there = len(libcuda.driver().devices)
    if there < count:
        pytest.skip(f"this machine has {there} GPUs")
    if why := problem():
        pytest.skip(why)
    out = tmp_path / "found"
    program = ROOT / "tests" / "distributed" / "run_checks.py"
    command = [sys.executable, "-m", "symdnn", "launch", "-n", str(count), "--engine", "nccl"]
    flags = "device=cuda,distributed.timeout=60"
    env = environment(SYMDNN_FLAGS=flags, SYMDNN_CHECKPOINTS=str(tmp_path), SYMDNN_NCCL="1")
    done = subprocess.run(
        [*command, str(program), str(out), "", module], env=env, cwd=ROOT, timeout=600,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for r in range(count):
        errors = json.loads((tmp_path / f"found.{r}").read_text())["errors"]
        assert not any(errors.values())
