"""A rank whose GPU waits for ever ends, and ends all, whatever NCCL and the driver do."""

import sys

import pytest

from tests.distributed.harness import ROOT
from tests.environment import environment
from tests.processes import ended

PROGRAM = ROOT / "tests" / "gpu" / "nccl" / "hanging_program.py"
#: Seconds: ``distributed.timeout``, and those that all may take, most of them to start and to end.
LIMIT, MOST = 1, 100


def run(fault):
    """(exit status, output and errors) of two processes."""
    command = [sys.executable, "-m", "symdnn", "launch", "-n", "2", "--engine", "nccl"]
    env = environment(SYMDNN_FLAGS="device=cpu,distributed.timeout=60", OMP_NUM_THREADS="1")
    return ended([*command, PROGRAM, fault, LIMIT], MOST, env=env, cwd=ROOT)


@pytest.mark.parametrize("fault", ["hangs", pytest.param("exit", marks=pytest.mark.slow)])
def test_a_wait_for_a_rank_that_hangs_ends_all(fault):
    status, said = run(fault)
    assert status == 1, said
    assert f"CollectiveTimeout: rank 0 waited {LIMIT} s in a wait for the GPU (AllReduce" in said
    assert "rank 1 did not come" in said
    assert "rank 0 exited with 1" in said
    assert "hanging_program.py" in said.partition("SIGTERM")[2]  # where rank 1 was
    assert (fault == "hangs") == ("RANK 0 CollectiveTimeout" in said)


@pytest.mark.slow
def test_a_rank_that_dies_is_named():
    status, said = run("dies")
    assert status in (1, 9), said
    assert "PeerFailed: rank 1 failed: its process ended" in said
    assert "rank 1 exited with 9" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "what"), [("driver", "a wait for the GPU"), ("init", "ncclCommInitRank of world(2)")]
)
def test_a_library_that_does_not_return_ends_all(fault, what):
    """Nothing can be raised there: the process says where its threads are, and ends."""
    status, said = run(fault)
    assert status == 1, said
    assert f"CollectiveTimeout: rank 0: {what}" in said
    assert "did not return within" in said
    assert "rank 1 did not come" in said
    assert "hanging_program.py" in said  # the stack
    assert "rank 0 exited with 1" in said
