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


@pytest.mark.parametrize("count", [20, 3000])
def test_a_slice_far_behind_broadcasts(count):
    x, y = T.dmatrices("x", "y")
    v = x[:, :1]
    for _ in range(count):
        v = T.tanh(v)
    z = v + y
    assert z.owner.inputs[0].type.shape == (None, 1)
    if count < 100:
        assert z.eval({x: np.ones((2, 3)), y: np.zeros((2, 3))}).shape == (2, 3)


def test_what_broadcasts_does_not_depend_on_what_was_made_before():
    x, y = T.dmatrices("x", "y")
    near = T.tanh(T.tanh(T.tanh(x[:1])))
    far = T.tanh(T.tanh(T.tanh(T.tanh(T.tanh(near)))))
    assert (far + y).eval({x: np.ones((2, 3)), y: np.zeros((2, 3))}).shape == (2, 3)
    assert (near + y).eval({x: np.ones((2, 3)), y: np.zeros((2, 3))}).shape == (2, 3)


#: Expressions of rows, each of which has its own result.
OF_ROWS = {
    "product": lambda m, x: m.dot(x, x[0].reshape((4, 1))),
    "sum": lambda m, x: x.sum(1),
    "maximum": lambda m, x: x.max(1, keepdims=True),
    "prefixes": lambda m, x: m.cumsum(x, 1),
    "order": lambda m, x: m.sort(x, 1),
    "neighbours": lambda m, x: m.concatenate([x, 2 * x], 1),
    "roll": lambda m, x: m.roll(x, 1, 1),
    "columns": lambda m, x: x[:, [0, 3, 1]],
    "part": lambda m, x: x[:, 1:3],
    "two parts": lambda m, x: m.tanh(x[:, :2]) * x[:, 2:],
    "einsum": lambda m, x: m.einsum("ij,kj->ik", x, m.ones((3, 4))),
    "repeated": lambda m, x: m.repeat(x, 2, 1),
    "by its own size": lambda m, x: x.reshape((x.shape[0], 2, 2)),
}


@pytest.mark.parametrize("name", OF_ROWS)
def test_what_is_computed_of_one_row_broadcasts(name, rng):
    f = OF_ROWS[name]
    a = rng.normal(size=(3, 4))
    x = T.dmatrix("x")
    z = f(T, x[1:2]) - f(T, x)
    w = f(np, a[1:2]) - f(np, a)
    found, slope = symdnn.function([x], [z, symdnn.grad((z * w).sum(), x)])(a)
    np.testing.assert_allclose(found, w, 1e-9, 1e-12)
    ends = []
    for step in (1e-6, -1e-6):
        moved = a + step * np.arange(12.0).reshape(3, 4)
        ends.append(((f(np, moved[1:2]) - f(np, moved)) * w).sum())
    along = (slope * np.arange(12.0).reshape(3, 4)).sum()
    assert along == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-5, abs=1e-7)


#: Values for a part ``p`` of ``x``.
WRITTEN = {
    "a slice": (lambda x, i: x[:, 1:], lambda x, i: x[:, :1]),
    "rows of a list": (lambda x, i: x[i], lambda x, i: 2 * x[:1]),
    "columns of a list": (lambda x, i: x[:, i], lambda x, i: x[:, -1:].sum(1, keepdims=True)),
    "a mask": (lambda x, i: x[x > 0], lambda x, i: x[0, :1]),
    "transposed": (lambda x, i: x.T[1:], lambda x, i: x.T[:1]),
}


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("how", ["set", "inc"])
def test_one_row_is_written_to_many(name, how, rng):
    part, value = WRITTEN[name]
    a, places = rng.normal(size=(3, 4)), np.array([0, 2])
    x, i = T.dmatrix("x"), T.lvector("i")
    write = T.set_subtensor if how == "set" else T.inc_subtensor
    f = symdnn.function([x, i], write(part(x, i), value(x, i)), on_unused_input="ignore")
    full = np.broadcast_to(value(a, places), part(a, places).shape)
    given = symdnn.function([x, i], write(part(x, i), full.copy()), on_unused_input="ignore")
    np.testing.assert_array_equal(f(a, places), given(a, places))


@pytest.mark.parametrize(
    "cost",
    [
        lambda x: (T.softmax(x[:1], 1) * T.log_softmax(x[:1], 1)).sum(),
        lambda x: (x[:1] / x[:1].norm(2, axis=1, keepdims=True)).sum(),
        lambda x: ((x[:1] - x[:1].mean(1, keepdims=True)) ** 3).sum(),
        lambda x: (x[:1].max(1) ** 2).sum(),
        lambda x: (T.tanh(T.dot(x[:1], np.ones((4, 2)))) ** 2).sum(),
    ],
    ids=["softmax", "norm", "mean", "max", "product"],
)
def test_gradients_of_parts_without_elements(cost):
    x = T.dmatrix("x")
    slope = symdnn.grad(cost(x), x)
    f = symdnn.function([x], [slope, symdnn.grad((slope**2).sum(), x)])
    assert [g.shape for g in f(np.ones((2, 4)))] == [(2, 4)] * 2
    assert [g.shape for g in f(np.zeros((0, 4)))] == [(0, 4)] * 2
