"""Recursive filters: compiled and by SciPy, their gradients, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.signal

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.errors import NdimMismatch
from tests.cpu.harness import needs_compiler

B, A = np.array([0.3, -0.2, 0.1]), np.array([2.0, -1.1, 0.4])


@pytest.mark.cpu
@needs_compiler
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize(("b", "a"), [([0.5], [1.0]), ([1.0], [1.0, -0.9]), (B, A)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_compiled_filter(dtype, b, a, axis, rng):
    x = rng.normal(size=(3, 40, 7)).astype(dtype)
    v = T.TensorType(dtype, (None, None, None))()
    y = T.signal.lfilter(list(b), list(a), v, axis=axis)
    with config.change_flags({"cpu.compile": "always"}):
        f = symdnn.function([v], [y, T.signal.lfilter(list(b), list(a), v[:, ::-1], axis=axis)])
        found, turned = f(x)
    assert found.dtype == dtype
    assert "llvm.linear_filter" in str(f.lowering_report())
    rtol = 1e-5 if dtype == "float32" else 1e-12
    for got, given in ((found, x), (turned, x[:, ::-1])):
        want = scipy.signal.lfilter(b, a, given.astype("float64"), axis=axis)
        np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol)


def test_coefficients_of_unknown_number_have_gradients(rng):
    x = rng.normal(size=(2, 9))
    symdnn.verify_grad(lambda b, a, x: T.signal.lfilter(b, a, x), [B, A, x])
    symdnn.verify_grad(lambda b, a: T.signal.lfilter(b, a, x, axis=0), [B[:1], A[:1]])


def test_a_filter_with_many_coefficients_runs_by_scipy(rng):
    b, a, x = rng.normal(size=20), np.append(1, rng.uniform(-0.1, 0.1, 9)), rng.normal(size=5000)
    v = T.dvector()
    f = symdnn.function([v], T.signal.lfilter(b, a, v))
    np.testing.assert_allclose(f(x), scipy.signal.lfilter(b, a, x), rtol=1e-9, atol=1e-9)


def test_coefficients_are_vectors_that_are_not_empty():
    for b, a in ((1.0, [1.0]), ([], [1.0]), ([1.0], [])):
        with pytest.raises(NdimMismatch, match="one coefficient or more"):
            T.signal.lfilter(b, a, T.dvector())
