"""Code for all shapes is asked for before any shape is known."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.cpu.compiler import jit
from symdnn.cpu.execution import runtime
from symdnn.cpu.gemm.gemm import GemmKernel
from symdnn.cpu.onednn import library
from tests.seeded import new_rng

pytestmark = pytest.mark.skipif(
    bool(library.problem() or jit.problem()), reason="oneDNN or LLVM is missing"
)
assert runtime  # kernels are in the table


@pytest.fixture
def begun(monkeypatch):
    """The calls for which products' code was asked for."""
    calls = []
    monkeypatch.setattr(GemmKernel, "begin", lambda self, call: calls.append(call))
    return calls


@pytest.mark.parametrize(("dtype", "count"), [("float32", 1), ("float64", 0)])
def test_products_ask_for_it_where_they_will_run_it(begun, dtype, count):
    a, b = T.matrix("a", dtype=dtype), T.matrix("b", dtype=dtype)
    f = symdnn.function([a, b], T.dot(a, b), mode=symdnn.Mode(target="cpu"))
    assert len(begun) == count
    x, y = (new_rng().normal(size=(37, 37)).astype(dtype) for _ in "ab")
    np.testing.assert_allclose(f(x, y), x @ y, rtol=1e-4, atol=1e-4)


def test_nothing_is_asked_for_where_it_is_not_lowered(begun):
    a = T.fmatrix("a")
    mode = symdnn.Mode(target="cpu").excluding("onednn")
    symdnn.function([a], [T.dot(a, a), a + 1], mode=mode)
    assert begun == []
