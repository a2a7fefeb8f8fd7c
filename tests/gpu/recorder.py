"""Enqueued work of kernels, without a device or a compiler: sources and launches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from symdnn.gpu import registry
from symdnn.gpu.codegen.launches import CudaKernel
from symdnn.graph.kernel import Call, kernels_for
from tests.gpu.emulator import on_device
from tests.gpu.table import Try

#: Compute capabilities that the text of kernels is compiled for;
#: those of most cards by every run of the tests.
CAPABILITIES = [
    pytest.param((8, 0), marks=pytest.mark.slow), (9, 0),
    pytest.param((10, 0), marks=pytest.mark.slow),
]  # fmt: skip


class Recorder:
    """A launch environment that only records calls."""

    stream = workspace = error_word = 0
    node = 3

    def __init__(self) -> None:
        self.modules: list[tuple[str, str]] = []
        self.launches: list[tuple[Any, ...]] = []

    def module(self, source: str, name: str, options: Any = ()) -> Any:
        self.modules.append((source, name))
        return name

    def launch(self, *args: Any) -> None:
        self.launches.append(args)


def recorded(kernel: Any, call: Call, inputs: list[Any], outputs: list[Any]) -> Recorder:
    """What ``kernel`` enqueues for arrays that lie as these do."""
    env = Recorder()
    read = set(call.op.host_inputs)
    given = [np.int64(a) if i in read else on_device(a) for i, a in enumerate(inputs)]
    made = [on_device(np.array(a, order="C")) for a in outputs]
    kernel.bind(call)(env, given, made)
    return env


def generated_kernels(call: Call) -> list[Any]:
    """Kernels of the table, made of our own device text, that take ``call``."""
    registry.load()
    found = kernels_for(type(call.op), "cuda")
    return [k for k in found if isinstance(k, CudaKernel) and k.refuses(call) is None]


def sources(one: Try) -> list[str]:
    """The device text of all kernels for one try."""
    found = [recorded(k, one.call, one.inputs, one.expected) for k in generated_kernels(one.call)]
    return list(dict.fromkeys(source for env in found for source, _ in env.modules))
