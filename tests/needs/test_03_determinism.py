"""Need 3: one switch for the same bits in all processes, which also holds with tuning on."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from symdnn.config import config
from symdnn.gpu import registry
from symdnn.gpu.conv import algorithm
from symdnn.gpu.conv.algorithm import UnsupportedAlgorithm
from symdnn.gpu.conv.launch import ConvKernel
from tests.gpu.conv.test_algorithm import both  # noqa: F401
from tests.gpu.fake_cudnn import conv, fake  # noqa: F401

CHILD = Path(__file__).with_name("deterministic_training.py")
TIMED = (
    "dnn.conv.algo_fwd=time_once,dnn.conv.algo_bwd=time_once,dnn.rnn.algo=time_once,"
    "gpu.gemm.algo=time,onednn.conv.algo=time"
)

registry.load()


def start(device: str, records: Path, flags: str) -> subprocess.Popen[str]:
    """A fresh process that trains."""
    own = f"device={device},deterministic=more,print_active_device=False"
    given = f"{own},dnn.conv.tuning_cache={records},{flags}"
    env = {**os.environ, "SYMDNN_FLAGS": given}
    return subprocess.Popen(
        [sys.executable, str(CHILD)], env=env, text=True, stdout=subprocess.PIPE
    )


def outcomes(count: int, together: int, device: str, records: Path, flags: str = TIMED):
    """What ``count`` fresh processes print, some of which run at the same time."""
    found = []
    for _ in range(count // together):
        running = [start(device, records, flags) for _ in range(together)]
        found += [p.communicate(timeout=400)[0] for p in running]
    return [json.loads(text.splitlines()[-1]) for text in found]


def check(found, count: int) -> None:
    """All bits, losses and algorithms are equal, and something was learnt."""
    assert len(found) == count
    assert all(one == found[0] for one in found), found
    losses = found[0][1]
    assert losses[-1] < losses[0]


@pytest.mark.cpu
def test_fresh_processes_have_the_same_bits(tmp_path):
    """Two at the same time: they compete for processors, and threads are divided differently."""
    check(outcomes(2, 2, "cpu", tmp_path / "tuning"), 2)


@pytest.mark.slow
@pytest.mark.cpu
def test_ten_fresh_processes_have_the_same_bits(tmp_path):
    check(outcomes(10, 2, "cpu", tmp_path / "tuning"), 10)


@pytest.mark.gpu
@pytest.mark.parametrize("flags", [TIMED, f"{TIMED},dnn.workspace_budget=1MB", ""])
def test_ten_fresh_processes_on_a_card(tmp_path, flags):
    """An empty folder at first: five at a time measure, and one's choice is everyone's."""
    check(outcomes(10, 5, "cuda", tmp_path / "tuning", flags), 10)


def test_without_a_deterministic_algorithm_it_raises_and_names_the_op(both, monkeypatch):  # noqa: F811
    """It never takes another one: all that cuDNN has here are not deterministic."""
    algorithm.forget()
    both.plans = lambda form: ([], "none")
    both.answers["cudnnGetConvolutionForwardAlgorithm_v7"] = []
    monkeypatch.setattr(
        algorithm.Search, "_legacy",
        lambda self, form, number: self._refuse(str(number), "it is not deterministic"),
    )  # fmt: skip
    with config.change_flags(deterministic="more"), pytest.raises(UnsupportedAlgorithm) as e:
        ConvKernel().settled(conv(algo="guess_once"))
    assert "it is not deterministic" in str(e.value)
    assert "cudnnConvolutionForward" in "".join(e.value.__notes__)
