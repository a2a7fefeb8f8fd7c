"""Compiled loops for processors without AVX-512, and without instructions for bfloat16."""

import os
import subprocess
import sys

import pytest

from tests import nested
from tests.cpu.harness import ROOMS, needs_compiler
from tests.environment import ROOT, environment

pytestmark = needs_compiler

PROGRAM = """
import tests.cpu.older_processor as older
older.pretend()
import ml_dtypes
import numpy as np, symdnn, symdnn.tensor as T
from symdnn.config import config
from symdnn.cpu.compiler import jit
from symdnn.cpu.onednn import library as libdnnl

assert jit.vector_width() == 8, jit.vector_width()
assert libdnnl.problem() or libdnnl.library().isa == "AVX2"
rng = np.random.default_rng(1)
values = rng.integers(0, 2**32, 100_000, dtype="uint32").view("f")
with config.change_flags({"cpu.compile": "always"}), np.errstate(all="ignore"):
    x = T.fvector("x")
    y = T.cast(x, "bfloat16")
    f = symdnn.function([x], [y, T.exp(y), T.nnet.softmax(y.reshape((-1, 100)))],
                        mode=symdnn.Mode(target="cpu"))
    found = f(values)
    assert "llvm.elementwise" in f.lowering_report().kernels()
    narrow = values.astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(found[0].astype("f"), narrow.astype("f"))
    wanted = np.exp(narrow.astype("f8")).astype(ml_dtypes.bfloat16)
    ok = np.isfinite(wanted.astype("f"))
    np.testing.assert_array_equal(np.isfinite(found[1].astype("f")), ok)
    np.testing.assert_allclose(found[1].astype("f")[ok], wanted.astype("f")[ok], rtol=1 / 128)
"""


def test_bfloat16_without_an_instruction_for_it():
    # Not forked: symdnn must not have been imported before.
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, env=environment(), capture_output=True,
        text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("rooms", ROOMS)
def test_kernels_are_right(rooms):
    plugins = ("-p", "tests.cpu.older_processor", "-p", "tests.cpu.filled_memory")
    nested.passes(*plugins, *(f"tests/cpu/{room}" for room in rooms.split()))


def test_looking_for_doctests_changes_nothing():
    import tests.cpu.older_processor  # noqa: F401

    assert os.environ.get("ONEDNN_MAX_CPU_ISA") is None
