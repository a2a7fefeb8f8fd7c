"""Kernels write all of their results, whatever was in memory before, by all ways a plan runs."""

import ctypes

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.cpu.compiler import jit
from symdnn.graph.type import numpy_dtype
from symdnn.ops.core.gradient_control import assert_
from tests.cpu.filled_memory import fill
from tests.cpu.harness import needs_compiler

pytestmark = [needs_compiler, pytest.mark.usefixtures("always")]
CPU = symdnn.Mode(target="cpu")


@pytest.mark.parametrize("byte", [0x00, 0x01, 0xFF])
def test_comparisons_write_every_byte(byte, monkeypatch, rng):
    """Results for the caller, and those in the arena that an assertion reads."""
    fill(byte, monkeypatch)
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        x = T.TensorType(dtype, (None,))("x")
        f = symdnn.function([x], [x > 0, assert_(x, abs(x) <= 9) * 2], mode=CPU)
        for n in (1, 3, 7, 15, 16, 17, 33, 63, 64, 65, 130):
            values = rng.integers(-9, 10, n).astype(numpy_dtype(dtype))
            for _ in range(4):  # step by step, then as one function
                positive, doubled = f(values)
                assert positive.view(np.uint8).tolist() == [int(v > 0) for v in values]
                assert np.array_equal(doubled, values + values)


def test_what_a_kernel_leaves_out_is_seen(monkeypatch, nothing_compiled):
    """In the arena and in results, large ones that are used again too."""
    fill(0xFF, monkeypatch)

    def stubbed(self, text):
        self._call = ctypes.CFUNCTYPE(None, *self._types)(lambda *_: None)

    monkeypatch.setattr(jit.Code, "enqueue", stubbed)
    x = T.fmatrix("x")
    f = symdnn.function([x], [T.exp(x), T.argmax(T.exp(x), axis=1), T.exp(x).sum()], mode=CPU)
    for shape in ((20, 30), (300, 400)):
        for _ in range(4):
            big, at, total = f(np.zeros(shape, "float32"))
            assert np.isnan(big).all()
            assert (at == -1).all()
            assert np.isnan(total)
            big[:] = 0
