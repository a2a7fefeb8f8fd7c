"""A card for whole programs without one: answers by a fake cuDNN, results by the references."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import symdnn.gpu.execution.runtime as runtimes
from symdnn.compile.function import function
from symdnn.compile.program.mode import Mode
from symdnn.config import config
from symdnn.gpu import detect, registry
from symdnn.gpu.conv import algorithm
from symdnn.graph.type import TensorType
from symdnn.tuning import blocked
from tests.gpu.fake_cudnn import unsupported
from tests.gpu.reference_device import TARGET, ReferenceRuntime

registry.load()

__all__ = ["DIRECTIONS", "compiled", "fake_card", "mebibytes", "new_process", "tensors"]

#: Stems of cuDNN's functions, by direction.
DIRECTIONS = {"fwd": "Forward", "bwd_data": "BackwardData", "bwd_filter": "BackwardFilter"}


def mebibytes(n: float) -> int:
    return int(n * (1 << 20))


@pytest.fixture
def fake_card(fake, monkeypatch, tmp_path):
    """The fake cuDNN on an emulated card; ``sizes`` are workspaces of algorithms by number."""
    monkeypatch.setitem(runtimes._runtimes, 0, ReferenceRuntime())
    monkeypatch.setattr(detect, "cuda_target", lambda index=0: TARGET)
    monkeypatch.setattr("symdnn.gpu.binding.frontend.unavailable", lambda: "none in this test")
    device = fake_context()
    device.name = "card"
    fake.sizes, fake.refused = {}, set()

    def nbytes(*args: Any) -> int:
        number = int(args[-1])
        if number in fake.refused:
            raise unsupported("cudnnGetConvolutionWorkspaceSize")
        return int(fake.sizes.get(number, 0))

    for stem in DIRECTIONS.values():
        fake.answers[f"cudnnGetConvolution{stem}WorkspaceSize"] = nbytes
        fake.answers[f"cudnnGetConvolution{stem}Algorithm_v7"] = []
    with config.change_flags({"dnn.conv.tuning_cache": str(tmp_path / "tuning")}):
        yield fake
    new_process()


def fake_context() -> Any:
    from symdnn.gpu.device import cudnn_device

    return cudnn_device.existing_context()


def new_process() -> None:
    """Forget what only the process knows."""
    algorithm.forget()
    blocked.forget()


def tensors(**shapes: Any) -> dict[str, Any]:
    """Variables of known sizes by name."""
    return {name: TensorType("float32", shape)(name) for name, shape in shapes.items()}


def compiled(inputs: Any, outputs: Any, **words: Any) -> Any:
    """A function for the card."""
    return function(list(inputs), outputs, mode=Mode(target="cuda"), **words)


def ones(*shape: int) -> Any:
    return np.ones(shape, "float32")
