"""Compiled kernels read and write nothing but their operands: pages beside these are nobody's."""

import signal
import subprocess
import sys

import pytest

from symdnn.cpu.compiler import jit
from symdnn.cpu.threads import threads
from tests import nested
from tests.cpu.harness import ROOMS
from tests.environment import ROOT, environment

pytestmark = pytest.mark.skipif(
    bool(jit.problem() or threads.problem()) or not sys.platform.startswith("linux"),
    reason="llvmlite or libgomp is missing, or mprotect",
)

#: Launches that go so far, in bytes from their operands' ends, each in a process; how these end.
PROGRAM = """
import ctypes, os, warnings
import numpy as np
from numpy.lib.array_utils import byte_bounds
from tests.cpu.guarded_pages import AT_START, Guarded

def launch(inputs, outputs, workspace):
    (x,), (y,) = inputs, outputs
    assert np.isnan(y).all() and (workspace == 0xFF).all()

    def at(a, far):
        low, high = byte_bounds(a)
        return ctypes.c_ubyte.from_address(low - far if AT_START else high - 1 + far)

    at(x, from_input).value
    if to_input >= 0:
        at(x, to_input).value = 0
    y[...] = 2 * x
    at(y, to_output).value = at(y, to_output).value

warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside NumPy's threads
for to_input, from_input, to_output in (-1, 0, 0), (-1, 1, 0), (0, 0, 0), (-1, 0, 1):
    if (process := os.fork()) == 0:
        x = np.arange(1001, dtype="f4")[::-1]
        y = np.empty(1001, "f4")
        for _ in range(2):
            Guarded(launch)([x], [y], np.empty(100, "u1"))
            assert (y == 2 * x).all()
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
"""


@pytest.mark.parametrize("place", ["end", "start"])
def test_a_byte_too_far_ends_the_process(place):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, env=environment(GUARDED_PAGES=place),
        capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    fault = -signal.SIGSEGV
    assert done.stdout.split() == [str(code) for code in (0, fault, fault, fault)]


@pytest.mark.slow
@pytest.mark.parametrize("place", ["end", "start"])
@pytest.mark.parametrize("rooms", ROOMS)
def test_kernels_stay_within_their_operands(rooms, place):
    paths = [f"tests/cpu/{room}" for room in rooms.split()]
    # Guarded steps run one by one.
    words = ("-p", "tests.cpu.guarded_pages", "-k", "not is_one_call")
    nested.passes(*words, *paths, GUARDED_PAGES=place)
