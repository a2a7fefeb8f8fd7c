"""Which target a function is compiled for, and what happens without its device."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.compile import targets
from symdnn.config import config
from symdnn.graph.target import Target


def test_cpu_is_asked_for_by_flag() -> None:
    with config.change_flags(device="cpu"):
        assert targets.resolve_target().kind == "cpu"


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


@pytest.mark.skipif(importlib.util.find_spec("pycuda") is not None, reason="PyCUDA is here")
def test_a_function_for_a_gpu_is_built_and_refuses_to_run_without_pycuda() -> None:
    x = T.vector("x")
    f = symdnn.function([x], T.exp(x), mode=symdnn.Mode(target="cuda:sm_90"))
    (plan,) = f.stages.specialise({"x": (5,)})
    assert plan.memory.arena_bytes > 0
    with pytest.raises(RuntimeError, match="PyCUDA is missing"):
        f(np.ones(5, "float32"))
