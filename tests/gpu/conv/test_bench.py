"""Trials of convolutions, on a cuDNN that computes and a driver that is this machine's memory."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from symdnn.gpu import registry
from symdnn.gpu.conv.bench import Bench, Overrun
from symdnn.gpu.conv.epilogue import TwoKernels
from symdnn.gpu.conv.launch import signature
from symdnn.gpu.conv.search import Search
from symdnn.gpu.conv.signature import DIRECTIONS, Epilogue
from symdnn.ops.vendor import gpudnn as G
from tests.gpu.computing_cudnn import Memory, computing, seen  # noqa: F401
from tests.gpu.fake_cudnn import HANDLE, conv

registry.load()

KINDS = {"fwd": G.GpuDnnConv, "bwd_data": G.GpuDnnConvGradI, "bwd_filter": G.GpuDnnConvGradW}


class Driver(ModuleType):
    """Memory of the device is this machine's; ``owned`` is what was not freed."""

    def __init__(self):
        super().__init__("driver")
        self.owned = {}

    def cuMemAlloc(self, nbytes):
        block = (ctypes.c_char * nbytes)()
        self.owned[ctypes.addressof(block)] = block
        return 0, ctypes.addressof(block)

    def cuMemFree(self, ptr):
        del self.owned[ptr]

    def cuMemsetD8Async(self, ptr, value, nbytes, stream):
        ctypes.memset(ptr, value, nbytes)

    def cuMemcpyDtoH(self, target, source, nbytes):
        ctypes.memmove(target, source, nbytes)


@pytest.fixture
def device(fake, computing, monkeypatch):  # noqa: F811
    """A context, of which the driver is ``driver``."""
    bindings = ModuleType("cuda.bindings")
    bindings.driver = Driver()
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    env = Memory(fake)
    return SimpleNamespace(
        driver=bindings.driver, stream=0, error_word=0, cudnn=HANDLE, function=env.module,
        launch=env.launch, zero=env.zero, synchronize=lambda: None,
    )  # fmt: skip


def started(bench):
    """The bench with a clock that only runs things."""
    bench.clock = SimpleNamespace(elapsed_ms=lambda enqueue, launches: enqueue() or 1.0)
    return bench


@pytest.mark.parametrize("direction", KINDS)
def test_a_right_and_a_wrong_algorithm(direction, device, computing):  # noqa: F811
    s = signature(conv(KINDS[direction]))
    number = DIRECTIONS[direction].algorithms["fft_tiling"]
    with started(Bench(device, s)) as bench:
        bench.compute_reference()
        candidate = Search(s, HANDLE).named(number)
        assert bench.check(candidate)[0] < 1e-6
        assert bench.tried(candidate, timed=False).problem == ""
        computing.wrong[direction].add(number)
        assert bench.check(candidate)[0] == np.inf
        assert bench.tried(candidate).wrong
    assert device.driver.owned == {}


def test_writes_behind_the_workspace_are_noticed(device, computing):  # noqa: F811
    with started(Bench(device, signature(conv()))) as bench:
        bench.compute_reference()
        with pytest.raises(Overrun, match="behind the 64 bytes"), bench._workspace(64) as env:
            ctypes.memset(env.workspace + 64, 0, 1)


def biased_relu(factor):
    """A launch of ``relu(residual + bias)``, times a factor."""

    def launch(env, arrays):
        y, b, z = (
            seen(arrays[r].ptr, arrays[r].shape, "float32") for r in ("y", "bias", "residual")
        )
        y[...] = factor * np.maximum(z + b, 0)

    return launch


def test_an_epilogue_is_compared_with_two_kernels(device, computing):  # noqa: F811
    s = replace(signature(conv()), epilogue=Epilogue(True, True, activation="relu"))
    two, wrong = TwoKernels(0, biased_relu(1.0)), TwoKernels(0, biased_relu(1.01))
    with started(Bench(device, s)) as bench:
        bench.compute_reference(two)
        assert bench.check(two)[0] == 0
        assert bench.tried(wrong).wrong
    assert device.driver.owned == {}
