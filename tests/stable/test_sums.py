"""Quotients of sums of many exponentials: each is relative to the largest one."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.ops.array.reduce import LogSumExp
from symdnn.ops.elementwise.math import Exp, LogAddExp
from tests.seeded import new_rng


def averaged(x, w):
    """The average of ``w`` by weights ``exp(x)``, over all columns, written out."""
    total, weights = 0.0, 0.0
    for i in range(5):
        e = T.exp(x[:, i] - 0.5)
        total, weights = total + e * w[:, i], weights + e
    return total / weights


def softmax(x):
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("level", [-2000, 0, 2000])
def test_averages_and_their_gradients(dtype, level):
    rng = new_rng()
    a = (rng.normal(size=(9, 5)) * 3 + level).astype(dtype)
    b = rng.normal(size=(9, 5)).astype(dtype)
    x, w = T.matrix("x", dtype=dtype), T.matrix("w", dtype=dtype)
    y = averaged(x, w)
    f = symdnn.function([x, w], [y, *symdnn.grad(y.sum(), [x, w])])
    p = softmax(a.astype("float64"))
    mean = (p * b).sum(1)
    tolerance = 1e-5 if dtype == "float32" else 1e-12
    for found, want in zip(f(a, b), (mean, p * (b - mean[:, None]), p), strict=True):
        np.testing.assert_allclose(found, want, tolerance, tolerance)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_averages_of_16_bits(dtype):
    rng = new_rng()
    x, w = T.matrix("x", dtype=dtype), T.matrix("w", dtype=dtype)
    a = (rng.integers(-4, 4, (9, 5)) + 100).astype(x.type.numpy)
    b = rng.integers(-9, 9, (9, 5)).astype(x.type.numpy)
    found = symdnn.function([x, w], averaged(x, w))(a, b).astype("float64")
    p = softmax(a.astype("float64"))
    np.testing.assert_allclose(found, (p * b.astype("float64")).sum(1), 0.02, 0.05)


def test_the_sums_share_their_exponentials():
    x, w = T.dmatrices("x", "w")
    f = symdnn.function([x, w], averaged(x, w), mode=symdnn.Mode().excluding("fusion"))
    kinds = [type(node.op) for node in f.fgraph.toposort()]
    assert kinds.count(Exp) == 5
    assert not {LogAddExp, LogSumExp} & set(kinds)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("count", [3, 4])
@pytest.mark.parametrize("values", [
    [np.inf, 0, 0, 1], [np.inf, np.inf, 0, 0], [-np.inf] * 4, [-np.inf, -800, -900, -801],
    [np.nan, 0, 0, 0], [-np.inf, np.inf, 0, 0],
])  # fmt: skip
def test_infinite_exponents_give_what_is_written(values, count, weighted):
    """No number of a quotient of two infinite sums, and none of infinity."""
    x, w = T.dvectors("x", "w")
    e = [T.exp(x[i]) for i in range(count)]
    below = sum(e[1:], e[0])
    weights = np.arange(1.0, 1 + count)
    top = sum((e[i] * w[i] for i in range(1, count)), e[0] * w[0])
    f = symdnn.function(
        [x, w], [top / below] if weighted else [v / below for v in e], on_unused_input="ignore"
    )
    with np.errstate(all="ignore"):
        given = np.array(values[:count], dtype="float64")
        most = given.max() if np.isfinite(given.max()) else 0
        e = np.exp(given - most)
        want = [(e * weights).sum() / e.sum()] if weighted else e / e.sum()
        np.testing.assert_allclose(f(given, weights), want, 1e-12)
