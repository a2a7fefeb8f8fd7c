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


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("left", [False, True])
def test_rows_of_a_table_with_vectors(left, turned):
    """Each side, each axis: no product is left, and nothing that was selected."""
    rng = new_rng()
    table, i = T.TensorType("float32", (20, 7))(), T.TensorType("int64", (5, 3))()
    rows = table[i].dimshuffle(0, 2, 1) if left != turned else table[i]
    terms = 3 if turned else 7
    v = T.TensorType("float32", (5, 1, terms) if left else (5, terms, 1))()
    made = T.batched_dot(v, rows) if left else T.batched_dot(rows, v)
    kept, f = compiled([table, i, v], T.exp(made))
    assert not kept
    given = rng.normal(size=(20, 7)).astype("f"), rng.integers(0, 20, (5, 3))
    number = rng.normal(size=v.type.shape).astype("f")
    picked = given[0][given[1]]
    picked = picked.transpose(0, 2, 1) if left != turned else picked
    want = np.exp(number @ picked if left else picked @ number)
    (got,) = f(*given, number)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, 1e-4)


def test_other_stacks_are_products():
    """Of matrices that are stored, of several columns, of vectors on both sides."""
    x, v = T.TensorType("float32", (5, 3, 7))(), T.TensorType("float32", (5, 7, 1))()
    table, i = T.TensorType("float32", (20, 7))(), T.TensorType("int64", (5, 3))()
    assert compiled([x, v], T.batched_dot(x, v))[0]
    wide = T.TensorType("float32", (5, 7, 2))()
    assert compiled([table, i, wide], T.batched_dot(table[i], wide))[0]


def test_losses_of_negative_samples_store_no_rows():
    """Word vectors: scores of candidates are sums of what is selected, and so are gradients."""
    t, u = (T.TensorType("float32", (40, 16))(n) for n in "tu")
    i, wrong = T.TensorType("int64", (12,))("i"), T.TensorType("int64", (12, 5))("wrong")
    v = t[i]
    loss = T.nnet.softplus(T.batched_dot(u[wrong], v.dimshuffle(0, 1, "x"))).mean()
    outputs = [loss, *T.grad(loss, [t, u])]
    f = symdnn.function([t, u, i, wrong], outputs, mode=GPU)
    made = [(n.op, n.outputs[0]) for n in f.fgraph.toposort()]
    stored = [v for op, v in made if type(op).__name__ != "HostFromGpu" and v.type.ndim == 3]
    assert all(v.type.shape[2] == 1 or v.type.shape[1] == 1 for v in stored)
    rng = new_rng()
    a, b = (rng.normal(size=(40, 16)).astype("f") for _ in range(2))
    at, far = rng.integers(0, 40, 12), rng.integers(0, 40, (12, 5))
    got = evaluate(f.fgraph.outputs, dict(zip(f.fgraph.inputs, (a, b, at, far), strict=True)))
    z = np.einsum("nkc,nc->nk", b[far], a[at])
    slope = 1 / (1 + np.exp(-z)) / z.size
    da, db = np.zeros_like(a), np.zeros_like(b)
    np.add.at(da, at, np.einsum("nk,nkc->nc", slope, b[far]))
    np.add.at(db, far, slope[:, :, None] * a[at][:, None])
    for one, want in zip(got, [np.log1p(np.exp(z)).mean(), da, db], strict=True):
        np.testing.assert_allclose(one, want, 1e-3, 1e-5)
