"""Which target a function is compiled for, and what happens without its device."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.compile.execute import targets
from symdnn.config import config
from symdnn.errors import CudnnRequired
from symdnn.gpu import detect as gpu_detect
from symdnn.graph.target import Target
from tests.forked import forked


def test_cpu_is_asked_for_by_flag() -> None:
    with config.change_flags(device="cpu"):
        assert targets.resolve_target().kind == "cpu"


DESCRIBED = """
import numpy as np, symdnn, symdnn.tensor as T
from symdnn import nn
net = nn.Sequential(
    nn.SpatialConvolution(3, 8, 3, 3), nn.SpatialBatchNormalization(8), nn.ReLU(),
    nn.SpatialMaxPooling(2, 2), nn.Flatten(), nn.Linear(72, 4),
)
x, t = T.tensor4("x", "float32"), T.ivector("t")
loss = T.nnet.categorical_crossentropy(T.nnet.softmax(net(x)), t).mean()
with symdnn.config.change_flags({"amp": "bf16", "gpu.layout": "nhwc"}):
    updates = nn.optim.sgd(loss, net, 0.1)
    f = symdnn.function([x, t], loss, updates=updates, mode=symdnn.Mode(target="cuda:sm_90"))
print(symdnn.printing.debugprint(f, file="str"))
loaded = open("/proc/self/maps").read()
assert not [name for name in ("libcudnn", "libcuda.", "libcublas", "libnvrtc") if name in loaded]
"""


def test_a_described_gpu_is_planned_alike_on_any_machine(tmp_path: Path) -> None:
    found = [
        forked(DESCRIBED, env={**os.environ, "SYMDNN_FLAGS": flags})
        for flags in ("device=cpu", f"dnn.enabled=auto,cuda.root={tmp_path}")
    ]
    assert not any(each.returncode for each in found), found[0].stderr + found[1].stderr
    assert "GpuDnnConv" in found[0].stdout
    assert found[0].stdout == found[1].stdout


def test_auto_is_the_cpu_without_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with config.change_flags(device="auto"):
        assert targets.resolve_target().kind == "cpu"


def test_auto_is_the_gpu_when_all_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    class Detect:
        def gpu_available(self) -> bool:
            return True

        def dnn_available(self) -> bool:
            return True

        def cuda_target(self, index: int) -> Target:
            return Target("cuda", index)

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(targets, "_detect", Detect)
    with config.change_flags(device="auto"):
        assert targets.resolve_target() == Target("cuda", 0)
    with config.change_flags(device="cuda1"):
        assert targets.resolve_target() == Target("cuda", 1)
        # A program that names the kind runs on each rank's own GPU.
        assert targets.resolve_target("cuda") == Target("cuda", 1)
        assert targets.resolve_target("cuda0") == Target("cuda", 0)
    with config.change_flags(device="cpu"):
        assert targets.resolve_target("cuda") == Target("cuda", 0)


@pytest.mark.parametrize("there", ["nothing", "card", "container"])
@pytest.mark.parametrize("missing", [[], ["pycuda"]])
def test_a_gpu_that_is_passed_over_is_one_line(
    there: str, missing: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(targets, "_printed", set())
    monkeypatch.setattr(targets, "_missing_packages", lambda: missing)
    monkeypatch.setattr(targets, "gpu_seems_there", lambda: there == "card")
    wants = "all" if there == "container" else "void"
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", wants)
    old = replace(gpu_detect.driver(), devices=(), problem="the driver is too old")
    monkeypatch.setattr(gpu_detect, "driver", lambda: old)
    with config.change_flags(device="cpu"):
        targets.resolve_target()
    assert capsys.readouterr().err == ""
    with config.change_flags(device="auto"):
        for _ in range(3):
            assert targets.resolve_target().kind == "cpu"
    said = capsys.readouterr().err.splitlines()
    why = "the Python package pycuda is not installed" if missing else "the driver is too old"
    assert len(said) == (there != "nothing")
    assert all(("start it with --gpus all" in s) == (there == "container") for s in said)
    assert all(f"device=auto uses the CPU: {why}" in s.replace("no GPU: ", "") for s in said)


@pytest.mark.cpu
@pytest.mark.parametrize("how", ["flag", "tag"])
def test_a_cpu_by_default_says_why_when_cudnn_is_demanded(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Detect:
        def why_no_gpu(self, packages: list[str]) -> tuple[str, ...]:
            return (f"no {packages}", "no card:\n  here: not there")

    monkeypatch.setattr(targets, "_missing_packages", lambda: ["pycuda"])
    monkeypatch.setattr(targets, "_detect", Detect)
    x = T.vector("x")
    mode = symdnn.Mode().including("cudnn") if how == "tag" else symdnn.Mode()
    flags = {"device": "auto", "dnn.enabled": "True" if how == "flag" else "auto"}
    with config.change_flags(flags), pytest.raises(CudnnRequired) as caught:
        symdnn.function([x], T.exp(x), mode=mode)
    reasons = "the target is cpu\nno ['pycuda']\nno card:\n  here: not there"
    assert str(caught.value).endswith(f"but cuDNN can't be used: {reasons}")


@pytest.mark.cpu
def test_a_cpu_is_not_explained_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "_missing_packages", lambda: ["pycuda"])
    with config.change_flags(device="auto"):
        assert targets.resolve_target().notes == ()


@pytest.mark.cpu
@pytest.mark.skipif(importlib.util.find_spec("pycuda") is not None, reason="PyCUDA is here")
def test_a_function_for_a_gpu_is_built_and_refuses_to_run_without_pycuda() -> None:
    x = T.vector("x")
    f = symdnn.function([x], T.exp(x), mode=symdnn.Mode(target="cuda:sm_90"))
    (plan,) = f.stages.specialise({"x": (5,)})
    assert plan.memory.arena_bytes > 0
    missing = "PyCUDA is missing|cuda-bindings is missing"
    with (
        config.change_flags({"gpu.runtime": "pycuda"}),
        pytest.raises(RuntimeError, match=missing),
    ):
        f(np.ones(5, "float32"))


@pytest.mark.parametrize(
    ("flag", "there", "missing"),
    [
        ("auto", ["cuda.bindings"], []),
        ("auto", ["pycuda"], ["cuda.bindings"]),
        ("cuda-bindings", ["cuda.bindings"], []),
        ("pycuda", ["cuda.bindings"], ["pycuda"]),
        ("pycuda", [], ["pycuda", "cuda.bindings"]),
    ],
)
def test_pycuda_is_needed_only_where_it_is_asked_for(
    flag: str, there: list[str], missing: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "_installed", lambda name: name in there)
    with config.change_flags({"gpu.runtime": flag}):
        assert targets._missing_packages() == missing
