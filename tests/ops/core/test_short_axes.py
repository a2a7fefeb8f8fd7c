"""Slices of at most one element broadcast, as in NumPy, where sizes are unknown."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.errors import ShapeMismatch

SLICES = {
    "the first": lambda m, x, y, i: x[:, :1] * y,
    "one inside": lambda m, x, y, i: x[:, 1:2] + y,
    "the last": lambda m, x, y, i: y - x[:, -1:],
    "one from the end": lambda m, x, y, i: x[:, -2:-1] * y,
    "a row": lambda m, x, y, i: y - y[:1],
    "one by a variable": lambda m, x, y, i: x[:, i : i + 1] * y,
    "by a step": lambda m, x, y, i: x[:, :3:5] * y,
    "behind other ops": lambda m, x, y, i: (2 * x[:, :1] + x[:, 1:2] ** 2).T * y.T,
    "compared": lambda m, x, y, i: (x[:, :1] < y) * 1.0,
    "a choice": lambda m, x, y, i: m.where(y > 0, x[:, :1], y[:1]),
    "a vector": lambda m, x, y, i: x[1, :1] * y,
    "a row and a column": lambda m, x, y, i: x[:1] * x[:, :1],
    "two of them": lambda m, x, y, i: x[:, :1] * x[:, 1:2],
}


@pytest.mark.parametrize("name", SLICES)
def test_slices_of_one_element_broadcast(name, rng):
    f = SLICES[name]
    a, b = rng.normal(size=(3, 4)), rng.normal(size=(3, 5))
    x, y, i = T.dmatrix("x"), T.dmatrix("y"), T.lscalar("i")
    z = f(T, x, y, i)
    w = f(np, a, b, 2)
    slopes = symdnn.grad((z * w).sum(), [x, y], disconnected_inputs="ignore")
    found, *gradients = symdnn.function([x, y, i], [z, *slopes], on_unused_input="ignore")(a, b, 2)
    np.testing.assert_allclose(found, w, 1e-12)
    for k, (point, got) in enumerate(zip((a, b), gradients, strict=True)):
        for at in ((0, 0), (1, 1), (2, 3)):
            ends = []
            for step in (1e-6, -1e-6):
                moved = [a.copy(), b.copy()]
                moved[k][at] += step
                ends.append((f(np, *moved, 2) * w).sum())
            assert got[at] == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=1e-6), (name, at)
        assert got.shape == point.shape


def test_parts_without_elements():
    """Two short dimensions keep their size; beside others an empty one is an error."""
    x = T.matrix("x")
    none = np.zeros((0, 3), "float32")
    assert symdnn.function([x], x[:1] - x[1:2])(none).shape == (0, 3)
    with pytest.raises(ShapeMismatch, match=r"static dimensions \(1, None\), got \(0, 3\)"):
        symdnn.function([x], x[:1] - x)(none)
    y = T.tensor("float32", (4, 3))
    assert (y[:1] - y).type.shape == (4, 3)


def test_longer_slices_do_not_broadcast():
    x, y, i = T.matrix("x"), T.matrix("y"), T.lscalar("i")
    one, many = np.ones((3, 1), "float32"), np.ones((3, 5), "float32")
    for part in (x[:, :2], x[:, i:], x[:, ::2], x[:, : i + 1]):
        with pytest.raises(ShapeMismatch, match="declare it with"):
            symdnn.function([x, y, i], part * y, on_unused_input="ignore")(one, many, 0)


@pytest.mark.parametrize("start", [0, 2, -1])
def test_a_slice_of_nothing_is_no_single_element(start):
    x, y = T.dmatrix("x"), T.dmatrix("y")
    f = symdnn.function([x, y], x[start:start] + y)
    assert f(np.ones((4, 3)), np.ones((0, 3))).shape == (0, 3)


def test_a_slice_far_behind_is_found_by_what_was_found_before():
    x, y = T.dmatrices("x", "y")
    v = x[:, :1]
    for _ in range(20):
        v = T.tanh(v) * 2
    assert (v + y).eval({x: np.ones((2, 3)), y: np.zeros((2, 3))}).shape == (2, 3)
