"""Modified Bessel functions of orders 0 and 1 follow from the scaled ones on a GPU."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.graph.evaluate import evaluate
from symdnn.ops.elementwise.bessel import Iv
from tests.seeded import new_rng

GPU = symdnn.Mode(target="cuda:sm_90")
TOLERANCE = {"float64": 1e-13, "float32": 1e-6, "bfloat16": 1e-2, "float16": 2e-3}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("order", [0, 1, -1, 2, 0.5])
def test_values_and_ops(order, dtype):
    x = T.TensorType(dtype, (None, 5))()
    y = T.iv(order, x)
    f = symdnn.function([x], y, mode=GPU)
    kept = any(isinstance(n.op, Iv) for n in f.fgraph.toposort())
    assert kept == (order not in (0, 1, -1))
    low = 0.01 if order == 0.5 else -9
    given = new_rng().uniform(low, 9, (4, 5)).astype(dtype)
    (got,) = evaluate(f.fgraph.outputs, dict(zip(f.fgraph.inputs, [given], strict=True)))
    (want,) = evaluate([y], {x: given})
    assert got.dtype == want.dtype
    rtol = TOLERANCE[dtype]
    np.testing.assert_allclose(got.astype("f8"), want.astype("f8"), rtol=rtol, atol=rtol)


@pytest.mark.parametrize("order", [0, 1, -1])
def test_gradients_and_large_numbers(order):
    x = T.dvector("x")
    outs = [T.iv(order, x), T.grad(T.iv(order, x).sum(), x)]
    f = symdnn.function([x], outs, mode=GPU)
    given = np.array([-700.0, -30, -1e-9, 0, 1e-9, 0.5, 30, 700, 712.5])
    found = evaluate(f.fgraph.outputs, dict(zip(f.fgraph.inputs, [given], strict=True)))
    for got, want in zip(found, evaluate(outs, {x: given}), strict=True):
        assert np.isfinite(want).all()
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-15)
