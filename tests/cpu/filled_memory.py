"""A plugin of pytest by which memory that kernels are given holds neither zeros nor old results: ::

    SYMDNN_TESTS_FILL=0x7f python -m pytest -p tests.cpu.filled_memory tests/cpu

The arena is filled before each run of a plan, results and scratch memory when they are made. With
0xff, the default, floats are NaN, integers -1, and a bool is neither True nor False.
Being imported changes nothing: pytest imports it as any module to look for doctests.
"""

import ctypes
import os

import numpy as np
import pytest


def fill(byte, monkeypatch):
    """Fill memory with this byte from now on, until ``monkeypatch`` is undone."""
    from symdnn.cpu.execution.output_buffers import OutputBuffers
    from symdnn.cpu.execution.plan import CpuPlan

    empty, make, run = np.empty, OutputBuffers.make, CpuPlan.run

    def filled(array):
        if not array.dtype.hasobject:
            ctypes.memset(array.ctypes.data, byte, array.nbytes)
        return array

    def filled_empty(*arguments, **options):
        return filled(empty(*arguments, **options))

    def filled_result(self, k):
        return filled(make(self, k))

    def filled_run(self, *arguments, **options):
        filled(self.runtime.arenas[self.runtime.depth].bytes)
        return run(self, *arguments, **options)

    monkeypatch.setattr(np, "empty", filled_empty)
    monkeypatch.setattr(OutputBuffers, "make", filled_result)
    monkeypatch.setattr(CpuPlan, "run", filled_run)


@pytest.fixture(autouse=True)
def _filled(monkeypatch):
    """For each test of a session that names this plugin by ``-p``."""
    fill(int(os.environ.get("SYMDNN_TESTS_FILL", "0xff"), 0), monkeypatch)
