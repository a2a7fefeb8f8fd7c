"""Kernels that may start before the one before them ends: they wait first, all of them."""

from __future__ import annotations

import ctypes
import re
from types import SimpleNamespace
from typing import Any

import pytest

from symdnn.config import config
from symdnn.gpu.binding import nvrtc
from symdnn.gpu.codegen import device_source
from symdnn.gpu.device import context as contexts
from symdnn.gpu.device.capture import kernels_of
from symdnn.gpu.device.context import Context
from symdnn.gpu.device.driver_api import CudaBindings

KERNEL = 'extern "C" __global__ void k(float* x) { x[0] = 1; }'
FILES = sorted(p.name for p in device_source._FOLDER.glob("*.cu"))


@pytest.mark.parametrize("file", FILES)
def test_every_kernel_waits_before_anything_else(file: str) -> None:
    text = device_source.text_of(file)
    made = nvrtc.waiting(text, (9, 0))
    count = text.count("__global__")
    assert not re.search("#.*__global__", text)  # a macro would have it for several kernels
    assert made.count(f"{{ {nvrtc._START}") == count
    assert made.replace(f" {nvrtc._START}", "") == text


def test_no_written_instruction_that_uses_memory_may_move_before_the_wait() -> None:
    found = []
    for p in device_source._FOLDER.glob("*.cu*"):
        for volatile, word in re.findall(r'\basm\s*(volatile)?\s*\(\s*"\W*(\w+)', p.read_text()):
            if word in ("ld", "ldmatrix", "st", "red", "atom", "cp"):
                found.append(word)
                assert volatile, p
    assert {"ld", "st", "cp", "red"} <= set(found)


def test_older_cards_and_sources_that_are_not_understood_are_left() -> None:
    assert nvrtc.waiting(KERNEL, (8, 9)) == KERNEL
    assert nvrtc.waiting(KERNEL, (10, 0)) != KERNEL
    for entry in ("__global__", "__global__ void"):
        odd = f"#define ENTRY {entry}\n" + KERNEL.replace(entry, "ENTRY")
        assert nvrtc.waiting(odd, (9, 0)) == odd
    with config.change_flags({"gpu.early_launch": "off"}):
        assert nvrtc.waiting(KERNEL, (9, 0)) == KERNEL


def test_the_instructions_are_in_the_code() -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    assert nvrtc.compile_cubin(KERNEL, (9, 0)) != nvrtc.compile_cubin(KERNEL, (8, 9))


class Launches:
    """Calls of the driver: launches, and which of them were early."""

    def __init__(self) -> None:
        self.early: list[bool] = []

    def function(self, module: Any, name: str) -> Any:
        return SimpleNamespace(name=name)

    def launch(self, *args: Any, early: bool = False) -> None:
        self.early.append(early)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A context whose driver notes launches, of a new driver."""
    made = object.__new__(Context)
    made._api = Launches()
    made._modules, made._functions, made._waiting = {}, {}, set()
    made._stream, made.launched, made.captures = None, 0, False
    made._device_facts = SimpleNamespace(compute_capability=(9, 0))
    monkeypatch.setattr(Context, "_module", lambda self, source, options: "module")
    monkeypatch.setattr(contexts, "driver", lambda: SimpleNamespace(version=(13, 0)))
    return made


def launched(device: Any, source: str, captures: bool) -> bool:
    device.captures = captures
    device.launch(device.function(source, "k"), (1,), (1,), 0, [])
    return bool(device._api.early[-1])


def test_launches_are_early_in_captured_graphs_alone(device: Any) -> None:
    assert launched(device, KERNEL, True)
    assert not launched(device, KERNEL, False)
    with config.change_flags({"gpu.early_launch": "off"}):
        assert not launched(device, KERNEL, True)


def test_a_kernel_that_does_not_wait_is_not_early(device: Any) -> None:
    assert not launched(device, "no entry", True)


@pytest.mark.parametrize(
    ("version", "capability"), [((12, 3), (9, 0)), ((13, 0), (8, 6)), (None, (9, 0))]
)
def test_older_drivers_and_cards_have_none(
    device: Any, monkeypatch: pytest.MonkeyPatch, version: Any, capability: Any
) -> None:
    monkeypatch.setattr(contexts, "driver", lambda: SimpleNamespace(version=version))
    device._device_facts = SimpleNamespace(compute_capability=capability)
    assert not launched(device, KERNEL, True)


def test_the_attribute_of_an_early_launch() -> None:
    pytest.importorskip("cuda.bindings.driver")
    seen: list[Any] = []
    api = object.__new__(CudaBindings)
    from cuda.bindings import driver

    names = {n: getattr(driver, n) for n in dir(driver) if n.startswith("CU")}
    api._driver = SimpleNamespace(
        **names, cuLaunchKernelEx=lambda *a: (seen.append(a), (driver.CUresult(0),))[1]
    )
    stream = SimpleNamespace(handle=ctypes.c_void_p(16).value)
    api.launch("k", (2, 3, 1), (32, 1, 1), 64, [], stream, early=True)
    ((how, function, _, _),) = seen
    assert (function, how.gridDimX, how.gridDimY, how.blockDimX) == ("k", 2, 3, 32)
    assert (how.sharedMemBytes, int(how.hStream), how.numAttrs) == (64, 16, 1)
    (attribute,) = how.attrs
    assert attribute.id.name == "CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION"
    assert attribute.value.programmaticStreamSerializationAllowed == 1


@pytest.mark.parametrize("refused", [0, 2])
def test_a_graph_whose_edges_are_not_told_is_launched_whole(
    monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    """CUDA 12's call, which has no data of edges, refuses graphs with early launches."""
    driver = pytest.importorskip("cuda.bindings.driver")
    lossy, fine = driver.CUresult.CUDA_ERROR_LOSSY_QUERY, driver.CUresult(0)

    def edges(graph: Any, count: int) -> Any:
        if count == refused:
            return (lossy, None, None, None)
        return (fine, None, None, 2) if count == 0 else (fine, [1, 2], [2, 3], count)

    monkeypatch.setattr(driver, "cuGraphGetNodes", lambda graph, n: (fine, [1, 2, 3][:n], 3))
    monkeypatch.setattr(driver, "cuGraphGetEdges", edges)
    assert kernels_of(None, None) == []
