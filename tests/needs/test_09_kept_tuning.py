"""Need 9: tuning results are kept across runs, safely.

A second process runs zero timing kernels and picks the same plans; another GPU, cuDNN, driver,
shape, dtype or layout is a miss; a damaged file is a miss; what ``symdnn tune --export`` writes
``--import`` reads on another machine with the same GPU.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from symdnn import cli
from symdnn.config import config
from symdnn.gpu.conv.algorithm import choose
from symdnn.gpu.conv.launch import signature
from symdnn.gpu.device import cudnn_device
from tests.gpu.conv.test_algorithm import Timer
from tests.gpu.fake_cudnn import HANDLE, conv
from tests.needs.fake_card import new_process

TIMES = {"none": 3.0, "small": 1.0, "large": 2.0, "fft": 4.0}


@pytest.fixture
def machine(fake_card, monkeypatch):
    """A card whose facts can be changed, and a count of what it measures."""
    facts = SimpleNamespace(
        index=0, cudnn=HANDLE, name="card", capability=(9, 0), current=contextlib.nullcontext,
        driver=(580, 0), version=91900, measured=Timer(monkeypatch, **TIMES),
    )  # fmt: skip
    monkeypatch.setattr(cudnn_device, "existing_context", lambda: facts)
    monkeypatch.setattr(cudnn_device, "driver", lambda: SimpleNamespace(version=facts.driver))
    fake_card.answers["cudnnGetVersion"] = lambda: facts.version
    new_process()
    return facts


def chosen(**words):
    """The choice for a layer in a new process."""
    new_process()
    return choose(signature(conv(algo="time_once", **words)), 0)


def test_a_second_process_measures_nothing_and_chooses_the_same(machine):
    first = chosen()
    second = chosen()
    assert (first.candidate.name, machine.measured.calls) == ("small", 1)
    assert second.candidate == first.candidate
    assert second.ms == first.ms


@pytest.mark.parametrize(
    "changed",
    [{"name": "another card"}, {"version": 92000}, {"driver": (590, 1)}],
    ids=["GPU", "cuDNN", "driver"],
)
def test_another_machine_is_a_miss(machine, changed):
    chosen()
    vars(machine).update(changed)
    chosen()
    assert machine.measured.calls == 2


@pytest.mark.parametrize(
    "words",
    [{"x": (3, 4, 7, 6)}, {"dtype": "float64"}, {"layout": "NHWC"}, {"dilation": (2, 2)}],
    ids=["shape", "dtype", "layout", "dilation"],
)
def test_another_convolution_is_a_miss(machine, words):
    chosen()
    if "layout" in words:
        words = {**words, "x": (2, 7, 6, 4), "w": (6, 3, 3, 4)}
    chosen(**words)
    assert machine.measured.calls == 2


DAMAGES = [lambda t: t[:50], lambda t: t.replace("1.0", "9.0"), lambda t: ""]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_a_miss(machine, damage):
    chosen()
    (file,) = Path(str(config.dnn.conv.tuning_cache)).rglob("*.json")
    file.write_text(damage(file.read_text()))
    with pytest.warns(RuntimeWarning, match="damaged: dropped"):
        assert chosen().candidate.name == "small"
    assert machine.measured.calls == 2
    chosen()
    assert machine.measured.calls == 2  # it was mended


def test_export_and_import(machine, tmp_path, capsys):
    first = chosen()
    file = tmp_path / "choices.txt"
    assert cli.main(["tune", "--export", str(file)]) == 0
    with config.change_flags({"dnn.conv.tuning_cache": str(tmp_path / "other machine")}):
        assert cli.main(["tune", "--import", str(file)]) == 0
        assert "1 new" in capsys.readouterr().out
        assert chosen().candidate == first.candidate
        assert machine.measured.calls == 1
        machine.name = "another card"
        chosen()
        assert machine.measured.calls == 2
        file.write_text(file.read_text().replace("small", "large"))
        assert cli.main(["tune", "--import", str(file)]) == 1
        assert "1 damaged" in capsys.readouterr().out


#: A program of three layers with gradients, which prints what it chose and how much it measured.
PROGRAM = """
import json
import numpy as np
import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.gpu.conv import bench
from symdnn.gpu.device import clock

count = {"benches": 0, "timed": 0}
enter, elapsed = bench.Bench.__enter__, clock.Clock.elapsed_ms

def entered(self):
    count["benches"] += 1
    return enter(self)

def timed(self, enqueue, launches):
    count["timed"] += 1
    return elapsed(self, enqueue, launches)

bench.Bench.__enter__, clock.Clock.elapsed_ms = entered, timed
layers = [nn.SpatialConvolution(a, b, 3, 3) for a, b in ((3, 16), (16, 16), (16, 8))]
net = nn.Sequential(*layers)
x = T.tensor4("x")
loss = net(x).sum()
updates, mode = nn.optim.sgd(loss, net, 1e-3), symdnn.Mode(target="cuda")
f = symdnn.function([x], loss, updates=updates, mode=mode)
f(np.ones((8, 3, 32, 32), "float32"))
rows = [[r.use.used, r.use.api, r.use.engine, r.use.ms] for r in f.dnn_report().rows]
print(json.dumps({**count, "rows": rows}))
"""


@pytest.mark.gpu
@pytest.mark.usefixtures("card")
def test_two_processes_on_a_card(tmp_path):
    def run(folder):
        flags = [f"dnn.conv.algo_{d}=time_once" for d in ("fwd", "bwd_data", "bwd_filter")]
        text = ",".join([*flags, f"dnn.conv.tuning_cache={folder}", "dnn.conv.allow_tf32=True"])
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], env={**os.environ, "SYMDNN_FLAGS": text},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return json.loads(done.stdout.splitlines()[-1])

    first, second = run(tmp_path / "a"), run(tmp_path / "a")
    assert first["timed"] > 0
    assert (second["benches"], second["timed"]) == (0, 0)
    assert second["rows"] == first["rows"]
    file = tmp_path / "choices.txt"
    for way, folder in (("--export", "a"), ("--import", "b")):
        with config.change_flags({"dnn.conv.tuning_cache": str(tmp_path / folder)}):
            assert cli.main(["tune", way, str(file)]) == 0
    third = run(tmp_path / "b")
    assert (third["timed"], third["rows"]) == (0, first["rows"])
