"""Need 12: data parallelism is part of the product.

``symdnn launch -n`` runs the same script on 1, 2 and 4 devices: the losses agree to 1e-5 at a fixed
batch of all together; runs with ``deterministic=more`` are equal bit by bit; without NCCL one line
says so; the report has what runs while gradients are averaged.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from symdnn.errors import DistributedError
from tests.environment import environment

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "needs" / "data_parallel.py"


@cache
def trained(count: int, device: str = "cpu", flags: str = "", steps: int = 10) -> dict[str, Any]:
    """What rank 0 prints; the program runs once for all tests that ask for the same."""
    if count > 1 and device == "cpu":
        pytest.importorskip("mpi4py")
    launch = ["-m", "symdnn", "launch", "-n", str(count)] if count > 1 else []
    flags = ",".join(filter(None, [flags, f"device={device},distributed.timeout=60"]))
    env = environment(OMP_NUM_THREADS="1", SYMDNN_FLAGS=flags)
    done = subprocess.run(
        [sys.executable, *launch, PROGRAM, device, str(steps)],
        capture_output=True, text=True, timeout=200, env=env, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("{")]
    found: dict[str, Any] = json.loads(line)
    return found


DETERMINISTIC = "deterministic=more"


def agree(counts: list[int], device: str, flags: str = "") -> None:
    """The losses of all numbers of processes are those of the first."""
    wanted, *others = (trained(n, device, flags)["losses"] for n in counts)
    for losses in others:
        np.testing.assert_allclose(losses, wanted, rtol=1e-5)


def test_losses_of_one_and_two_processes_agree():
    agree([1, 2], "cpu", DETERMINISTIC)


@pytest.mark.slow
def test_losses_of_one_two_and_four_processes_agree():
    agree([1, 2, 4], "cpu")


def test_deterministic_runs_are_equal_bit_by_bit():
    first, again = trained(2, flags=DETERMINISTIC), trained.__wrapped__  # which is not cached
    second = again(2, flags=DETERMINISTIC)
    assert first["losses"] == second["losses"]
    assert first["parameters"] == second["parameters"]


def test_averages_run_beside_the_backward_pass():
    """Other nodes are between the start and the end of each bucket but the last."""
    meanwhile = trained(2, flags=DETERMINISTIC)["meanwhile"]
    assert len(meanwhile) > 1
    assert all(meanwhile[:-1])


def test_without_nccl_one_line_says_so(monkeypatch):
    from symdnn.gpu.nccl import communicator

    def absent():
        raise ImportError("No module named 'nccl'")

    monkeypatch.setattr(communicator, "_binding", absent)
    with pytest.raises(DistributedError) as raised:
        communicator.communicator(("no such group",))
    said = str(raised.value)
    assert "\n" not in said
    assert "NCCL" in said
    assert "pip install 'symdnn[nccl]'" in said


@pytest.mark.gpu
@pytest.mark.parametrize(
    "counts",
    [
        pytest.param([1, 2], marks=pytest.mark.gpu2),
        pytest.param([1, 2, 4], marks=pytest.mark.gpu4),
    ],
)
def test_losses_agree_on_gpus(counts):
    from symdnn.gpu.binding import libcuda
    from symdnn.gpu.nccl.communicator import problem

    there = len(libcuda.driver().devices)
    if there < counts[-1]:
        pytest.skip(f"this machine has {there} GPUs")
    if why := problem():
        pytest.skip(why)
    agree(counts, "cuda")
