"""Fixtures for tests of the CUDA target: a device, or the reason why there is none; a fake cuDNN.

With ``SYMDNN_TESTS_BY_REFERENCE=1`` the device is :mod:`tests.gpu.reference_device`. Then ``pytest
-m gpu tests/gpu`` checks on any machine what device tests expect of graphs, chosen kernels and
captures. It does not test the kernels.
"""

from __future__ import annotations

import os
import time

import pytest

from tests.gpu.fake_cudnn import fake
from tests.gpu.fake_device import fake_device
from tests.gpu.record import record
from tests.gpu.reference_device import by_reference
from tests.gpu.users_arrays import UsersArrays

__all__ = ["arrays", "card", "cuda", "fake", "fake_device", "quiet_card"]

#: Programs of their own import it as ``pycuda``; here that would look as if PyCUDA were installed.
collect_ignore = ["fake_pycuda"]

BY_REFERENCE = bool(os.environ.get("SYMDNN_TESTS_BY_REFERENCE"))


@pytest.fixture(scope="session")
def cuda():
    """The runtime of device 0; tests that need it are skipped, with the reason, without one."""
    if BY_REFERENCE:
        return by_reference()
    pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")
    from symdnn.gpu.device.context import CudaUnavailable
    from symdnn.gpu.execution.runtime import runtime

    try:
        return runtime(0)
    except CudaUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def card(cuda):
    """The runtime of a real device, for tests that references can't run."""
    if BY_REFERENCE:
        pytest.skip("it needs a GPU")
    return cuda


@pytest.fixture
def quiet_card(card):
    """A card that no other worker of pytest-xdist uses at the same time."""
    if int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1:
        pytest.skip("other workers use the card: run it without -n")
    return card


@pytest.fixture
def arrays(cuda):
    """Arrays on the device as users have them; the device is held."""
    with cuda.exclusive():
        yield UsersArrays(cuda)


_started = time.monotonic()
_marked = set()


def pytest_collection_modifyitems(items):
    """Remember which tests are marked: their reports say it only together with folders' names."""
    _marked.update(i.nodeid for i in items if i.get_closest_marker("gpu"))


def pytest_terminal_summary(terminalreporter):
    """The record to keep in ``benchmarks/results/``, at the end of a run on a GPU."""
    lines = (
        [] if BY_REFERENCE else record(terminalreporter.stats, _marked, time.monotonic() - _started)
    )
    if lines:
        terminalreporter.section("record of the GPU tests")
        for line in lines:
            terminalreporter.line(line)
