"""What tests of the CUDA target share: a device, or the reason why there is none; a fake cuDNN."""

from __future__ import annotations

import time

import pytest

from .fake_cudnn import fake
from .fake_device import fake_device
from .record import record

__all__ = ["cuda", "fake", "fake_device"]


@pytest.fixture(scope="session")
def cuda():
    """The runtime of device 0; tests that need it are skipped, with the reason, without one."""
    pytest.importorskip("pycuda.driver", reason="PyCUDA is not installed")
    from symdnn.gpu.context import CudaUnavailable
    from symdnn.gpu.runtime import runtime

    try:
        return runtime(0)
    except CudaUnavailable as error:
        pytest.skip(str(error))


_started = time.monotonic()
_marked = set()


def pytest_collection_modifyitems(items):
    """Remember which tests are marked: their reports say it only together with folders' names."""
    _marked.update(i.nodeid for i in items if i.get_closest_marker("gpu"))


def pytest_terminal_summary(terminalreporter):
    """The record to keep in ``benchmarks/results/``, at the end of a run on a GPU."""
    lines = record(terminalreporter.stats, _marked, time.monotonic() - _started)
    if lines:
        terminalreporter.section("record of the GPU tests")
        for line in lines:
            terminalreporter.line(line)
