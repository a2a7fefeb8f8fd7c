"""Collectives and trainings on 2 and 4 real GPUs by NCCL: the checks that MPI's ranks pass."""

import json
import sys

import pytest

from symdnn.gpu.binding import libcuda
from symdnn.gpu.nccl.communicator import problem
from tests.distributed.harness import ROOT
from tests.distributed.test_training import of_one, same
from tests.environment import environment
from tests.processes import ended

pytestmark = pytest.mark.gpu

COUNTS = [pytest.param(2, marks=pytest.mark.gpu2), pytest.param(4, marks=pytest.mark.gpu4)]


def launched(count, *program, flags="device=cuda,distributed.timeout=60", seconds=600, **more):
    """(exit status, output) of a program on this many GPUs."""
    there = len(libcuda.driver().devices)
    if there < count:
        pytest.skip(f"this machine has {there} GPUs")
    if why := problem():
        pytest.skip(why)
    command = [sys.executable, "-m", "symdnn", "launch", "-n", str(count), "--engine", "nccl"]
    env = environment(SYMDNN_FLAGS=flags, PYTHONFAULTHANDLER="1", **more)
    return ended([*command, *program], seconds, env=env, cwd=ROOT)


@pytest.mark.gpu2
@pytest.mark.parametrize(("fault", "said"), [
    ("hangs", ("RANK 0 CollectiveTimeout", "AllReduce", "rank 1 did not come", "faulty_program.")),
    ("dies", ("rank 1 exited with 9",)),
])  # fmt: skip
def test_a_rank_that_fails_ends_all(fault, said):
    program = ROOT / "tests" / "distributed" / "faulty_program.py"
    flags = "device=cuda,distributed.timeout=10"
    status, found = launched(2, program, fault, flags=flags, seconds=50)
    assert status != 0, found
    for words in said:
        assert words in found
    assert "DONE" not in found
    assert "UNCHANGED=False" not in found


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(("module", "registered"), [
    ("ops_checks", False), ("train_checks", False), ("train_checks", True),
])  # fmt: skip
def test_checks_pass_on_gpus(module, registered, count, tmp_path):
    """Also of trainings whose sums replace what they are of, in registered memory."""
    out = tmp_path / "found"
    program = ROOT / "tests" / "distributed" / "run_checks.py"
    more = {"SYMDNN_CHECKPOINTS": str(tmp_path), "SYMDNN_NCCL": "1"}
    more |= {"SYMDNN_LEAST_REGISTERED": "0"} if registered else {}
    flags = f"device=cuda,distributed.timeout=60,distributed.registered={registered}"
    status, said = launched(count, program, out, "", module, flags=flags, **more)
    assert status == 0, said
    found = [json.loads((tmp_path / f"found.{r}").read_text()) for r in range(count)]
    for rank in found:
        assert not any(rank["errors"].values())
    if module == "train_checks":
        want = of_one(tmp_path, device="cuda")
        for name, values in found[0]["values"].items():
            same(name, values, want[name], rtol=2e-3, atol=2e-4)
