"""Device tests on a device that computes by references: their graphs, kernels, captures are right.

A test of the CUDA target that expects a kernel which lowering no longer takes is found here, and
not at the next run on a card.
"""

from __future__ import annotations

import numpy as np
import pytest

from symdnn.compile.function import function
from symdnn.compile.program.mode import Mode
from symdnn.graph.type import TensorType
from symdnn.ops.nn.conv import Conv
from tests import nested
from tests.gpu.emulator import AVAILABLE
from tests.gpu.reference_device import ReferenceRuntime

FILES = (
    "cudnn/test_cudnn_on_device.py", "cudnn/test_sequences_on_device.py",
    "conv/test_epilogue_on_device.py",
)  # fmt: skip
SLOW = (
    *FILES, "execution/test_capture_on_device.py", "kernels/test_kernels_on_device.py",
    "execution/test_same_as_cpu.py", "rnn/test_rnn_on_device.py", "cudnn/test_layout_on_device.py",
)  # fmt: skip

needs_compiler = pytest.mark.skipif(not AVAILABLE, reason="there is no g++ to compile kernels")


@needs_compiler
@pytest.mark.parametrize(
    ("files", "of", "one_in"),
    [
        # bfloat16 is lowered as float16 is, and who measures algorithms compiles what a guess does.
        (FILES, "not bfloat16 and not time", 4),
        pytest.param(SLOW, "not more_elements_than_32_bits", 1, marks=pytest.mark.slow),  # of 2 GiB
    ],
)
def test_device_tests_expect_what_is_compiled(files, of, one_in):
    """Run in a process of their own: there, ``device=cuda`` is the device that computes so."""
    words = ["-m", "gpu", "--one-in", one_in, "-k", of, *(f"tests/gpu/{f}" for f in files)]
    nested.passes(*words, SYMDNN_TESTS_BY_REFERENCE="1")


@needs_compiler
@pytest.mark.parametrize(
    "which",
    [
        ["tests/compile/modes/test_checking_modes.py", "-k", "sgd or loops", "--one-in", "9"],
        *(
            pytest.param([f"tests/{folder}"], marks=pytest.mark.slow, id=folder)
            for folder in ("compile", "tensor", "ops", "stable")
        ),
    ],
    ids=lambda which: which[0],
)
def test_what_is_promised_of_all_devices(which):
    """Tests that name no target, compiled for that device."""
    nested.passes("--device", "emulated", *which)


def test_a_convolution_is_cudnns_and_its_values_the_references(monkeypatch):
    import symdnn.gpu.execution.runtime as runtimes

    monkeypatch.setattr(runtimes, "_runtimes", {0: ReferenceRuntime()})
    x, w = (TensorType("float32", (None,) * 4)(n) for n in "xw")
    op = Conv(((1, 1), (1, 1)), (1, 1), (1, 1))
    f = function([x, w], op(x, w), mode=Mode(target="cuda:sm_90"))
    a = np.arange(36, dtype="float32").reshape(1, 1, 6, 6)
    b = np.arange(9, dtype="float32").reshape(1, 1, 3, 3)
    for n in range(4):  # as it is, captured, replayed
        np.testing.assert_array_equal(f(a + n, b), op.reference(a + n, b))
    assert "cudnn.conv" in f.lowering_report().kernels()
    assert f.plans()[0].bound.capture_state.startswith("captured")


@pytest.mark.parametrize("mask", [[False, True], [True, True], [False, False]])
@pytest.mark.parametrize("of", ["compress", "nonzero", "flatnonzero"])
def test_sizes_of_what_is_computed_of_constants(monkeypatch, mask, of):
    """``nonzero`` of a constant is made on the host; so are its own sizes, in a gradient too."""
    import symdnn.gpu.execution.runtime as runtimes
    import symdnn.tensor as T

    monkeypatch.setattr(runtimes, "_runtimes", {0: ReferenceRuntime()})
    x = TensorType("float64", (None,))("x")
    rows, c = T.stacklists([[x, x], [x, 2 * x]]), np.array(mask)
    found = {
        "compress": lambda: T.compress(c, rows, 0),
        "nonzero": lambda: rows[T.nonzero(T.constant(c))[0]],
        "flatnonzero": lambda: T.take(rows, T.flatnonzero(T.constant(c)), axis=0),
    }[of]()
    mode = Mode(target="cuda:sm_90")
    f = function([x], [found.sum(), T.grad(found.sum(), x)], mode=mode)
    a = np.array([0.5, 2, 3])
    slope = float(2 * mask[0] + 3 * mask[1])
    for _ in range(3):
        total, grad = f(a)
        np.testing.assert_allclose(total, slope * a.sum())
        np.testing.assert_allclose(grad, np.full(3, slope))
