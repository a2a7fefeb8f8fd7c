"""Products with vectors are reductions on a GPU, and those of columns and rows elementwise."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.errors import ShapeMismatch
from symdnn.graph.evaluate import evaluate
from symdnn.ops.linalg.dot import Dot
from tests.seeded import new_rng

GPU = symdnn.Mode(target="cuda:sm_90")


def compiled(inputs, made):
    f = symdnn.function(inputs, made, mode=GPU)
    kept = any("Dot" in str(n.op) or "Gemm" in str(n.op) for n in f.fgraph.toposort())

    def run(*given):
        return evaluate(f.fgraph.outputs, dict(zip(f.fgraph.inputs, given, strict=True)))

    return kept, run


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize(
    "shapes",
    [((5, 7), (7,)), ((5, 7), (7, 1)), ((5,), (5, 3)), ((1, 5), (5, 3)), ((6,), (6,)),
     ((6,), (6, 1)), ((1, 6), (6,)), ((1, 6), (6, 1)), ((4, 1), (1, 3)), ((1, 1), (1, 3)),
     ((4, 1), (1, 1)), ((4, 6), (6, 3))],
    ids=str,
)  # fmt: skip
def test_values(shapes, dtype):
    """Of known sizes, in float32 and float64."""
    rng, (a, b) = new_rng(), shapes
    x, y = T.TensorType(dtype, a)(), T.TensorType(dtype, b)()
    given = [rng.normal(size=s).astype(dtype) for s in shapes]
    kept, f = compiled([x, y], T.dot(x, y))
    want = Dot().reference(*given)
    (got,) = f(*given)
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got.astype("f8"), want.astype("f8"), 1e-5, 1e-5)
    assert kept == (dtype == "bfloat16" or shapes == ((4, 6), (6, 3)))


def test_gradients_of_a_last_layer():
    """Its weights are a column: both products, and their sum with others, are no GEMM."""
    x, w = T.TensorType("float64", (9, 5))(), T.TensorType("float64", (5, 1))()
    loss = (T.tanh(T.dot(x, w)) ** 2).mean()
    kept, f = compiled([x, w], [loss, *symdnn.grad(loss, [x, w])])
    assert not kept
    rng = new_rng()
    a, b = rng.normal(size=(9, 5)), rng.normal(size=(5, 1))
    got = f(a, b)
    t = np.tanh(a @ b)
    slope = 2 * t * (1 - t * t) / 9
    for one, want in zip(got, [np.mean(t * t), slope @ b.T, a.T @ slope], strict=True):
        np.testing.assert_allclose(one, want, 1e-10)


def test_sizes_that_do_not_fit_are_errors():
    """Of sizes that only a call knows the product checks them."""
    x, v = T.dmatrix("x"), T.dvector("v")
    kept, f = compiled([x, v], T.dot(x, v))
    assert kept
    np.testing.assert_allclose(f(np.ones((2, 3)), np.ones(3))[0], [3, 3])
    with pytest.raises(ShapeMismatch):
        f(np.ones((2, 3)), np.ones(1))
    same = T.dot(x, x[0])
    assert not compiled([x], same)[0]
